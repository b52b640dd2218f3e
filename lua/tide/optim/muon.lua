-- Muon (Jordan et al. 2024): momentum of a matrix, made nearly orthogonal by Newton-Schulz steps.
-- The weights of experts, [experts, rows, columns], are a matrix each. Embeddings, heads, norms and
-- other parameters that are not matrices get AdamW's update in the same optimiser.
--
-- A sharded matrix is gathered for its update, so every mesh makes the update of one rank. Each
-- rank with a piece computes Newton-Schulz in f32 (f64 of f64).

local class = require 'tide.class'
local groups = require 'tide.optim.groups'
local signature = require 'tide.util.signature'
local AdamW = require 'tide.optim.adamw'
local Optimizer = require 'tide.optim.optimizer'
local Whole = require 'tide.optim.whole'

local Muon = class('Muon', Whole)

Muon.fields = { 'm', 'v', 'master' }

local not_matrices = 'embed|lm_head|head.weight|norm|wte|wpe|router|gate.weight|_bias'

-- Makes an optimiser of params (see Optimizer:init).
function Muon:init(params, opts)
   self.adamw, opts.adamw = opts.adamw, nil
   Optimizer._begin(self, Whole, 'optim.Muon', params, opts)
end

-- Returns whether a shape is that of a matrix or of several; that of taps, [C, 1, taps], is not.
local function is_matrix(shape)
   return #shape == 2 or #shape == 3 and shape[2] > 1 and shape[3] > 1
end

-- Returns whether a parameter is a matrix that Newton-Schulz updates.
function Muon:is_whole(name, shape)
   return is_matrix(shape) and not groups.matches(self.adamw, name)
end

-- Returns the state of a parameter before its first update. entry: { name =, param = }.
function Muon:new_state(entry)
   if not self:is_whole(entry.name, entry.shape or entry.param.shape) then
      return Optimizer.new_state(self, entry)
   end
   return { step = 0, m = self.zeros_like(entry.param), master = self.master(entry.param) }
end

-- Returns the norm of a matrix, or of each of several, in a shape that x can be divided by.
local function norm_of(x)
   return x.ndim == 2 and x:norm() or x:square():sum({ 2, 3 }, true):sqrt()
end

-- Returns a nearly orthogonal matrix of the same row and column space, by `steps` quintic
-- Newton-Schulz steps: singular values end near 1. x: [rows, columns], or several such.
function Muon.orthogonal(x, steps)
   local tall = x:size(-2) > x:size(-1)
   if tall then x = x:t() end
   x = x / norm_of(x):clamp(1e-7, nil)
   for _ = 1, steps do
      local gram = x:matmul(x:t())
      x = x * 3.4445 + (gram * -4.7750 + gram:matmul(gram) * 2.0315):matmul(x)
   end
   return tall and x:t() or x
end

-- Returns the factor of a matrix's rate: as in the paper, or such that updates are as large as
-- those of AdamW.
local function adjusted(kind, shape)
   local rows, cols = shape[#shape - 1], shape[#shape]
   if kind == 'match_rms_adamw' then return 0.2 * math.sqrt(math.max(rows, cols)) end
   return math.sqrt(math.max(1, rows / cols))
end

-- Updates one matrix by its whole momentum; see Whole. Collective.
function Muon:update_whole(p, u)
   local direction
   if u.state then
      local g, k = u.group, u.group.momentum
      local grad = u.grad:to(u.state.m.dtype)
      u.state.m:mul_(k):add_(grad, 1 - k)
      direction = g.nesterov and grad * (1 - k) + u.state.m * k or u.state.m
   end
   direction = self.gather(p, direction, u.dtype, u.device)
   if not u.state then return end
   direction = self.orthogonal(direction, u.group.ns_steps)
   u.weight:mul_(1 - u.lr * u.group.weight_decay)
   self.add_piece_(p, u.weight, direction, -u.lr * adjusted(u.group.adjust, p.shape))
end

-- Updates a bucket of parameters that are not matrices.
function Muon:update(group, bucket, lr, opts)
   AdamW.update(self, group, bucket, lr * group.adamw_lr, opts)
end

-- Returns the bytes of state for an element of a parameter.
function Muon.state_bytes(dtype, entry)
   local matrix = is_matrix(entry.shape) and not groups.matches(not_matrices, entry.name)
   return Optimizer.bytes_of(dtype, matrix and 1 or 2)
end

return signature.doors('optim.Muon', Muon, {
   new_state = Optimizer.takes.new_state, update = Optimizer.takes.update,
   init = { opts = {
      'lr: number >= 0 | function = 1e-3 -- learning rate, or a function of the step',
      'momentum: number in [0, 1) = 0.95 -- decay of the mean of gradients',
      "nesterov: boolean = true -- Nesterov's form of momentum",
      'ns_steps: integer >= 1 = 5 -- Newton-Schulz steps',
      "adjust: 'original' | 'match_rms_adamw' = 'match_rms_adamw' -- how the rate scales with the "
         .. 'shape: as in the paper, or so that updates are as large as those of AdamW',
      'weight_decay: number >= 0 = 0.1 -- decoupled decay, of matrices',
      ("adamw: string = '%s' -- names of the parameters that AdamW updates; it always updates "
         .. 'vectors')
         :format(not_matrices),
      'adamw_lr: number >= 0 = 1 -- its rate, as a share of lr',
      "beta1: number in [0, 1) = 0.9 -- AdamW's decay of the mean of gradients",
      "beta2: number in [0, 1) = 0.95 -- AdamW's decay of the mean of their squares",
      'eps: number >= 0 = 1e-8 -- added to the root of that mean',
      Optimizer.grouping } },
})
