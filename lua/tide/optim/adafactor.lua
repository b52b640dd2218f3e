-- Adafactor (Shazeer and Stern, arXiv 1804.04235) as in PyTorch: the second moment of a matrix is
-- kept as one number a row and one a column. Rates are relative to the size of a weight.
--
-- Rows, columns and sizes are those of whole parameters, so sharded ones are gathered for their
-- update: every mesh makes the update of one rank.

local tide = require 'tide'
local class = require 'tide.class'
local signature = require 'tide.util.signature'
local Optimizer = require 'tide.optim.optimizer'
local Whole = require 'tide.optim.whole'

local Adafactor = class('Adafactor', Whole)

Adafactor.fields = { 'row', 'col', 'v', 'master' }

-- Fields that every rank with a piece keeps of the whole parameter.
Adafactor.whole_fields = { row = true, col = true, v = true }

-- Makes an optimiser of params (see Optimizer:init).
function Adafactor:init(params, opts)
   Optimizer._begin(self, Whole, 'optim.Adafactor', params, opts)
end

-- Returns whether the update of a parameter needs its whole: always.
function Adafactor:is_whole() return true end

local function with(shape, dim)
   local list = { unpack(shape) }
   list[#list + dim + 1] = 1
   return list
end

-- Returns the state of a parameter before its first update. entry: { name =, param = }.
function Adafactor:new_state(entry)
   local param, shape = entry.param, entry.shape or entry.param.shape
   local state = { step = 0, master = self.master(param) }
   local of = { dtype = param.dtype == 'f64' and 'f64' or 'f32', device = param.device }
   if #shape > 1 then
      state.row, state.col = tide.zeros(with(shape, -1), of), tide.zeros(with(shape, -2), of)
   else
      state.v = tide.zeros(shape, of)
   end
   return state
end

-- Returns the estimate of the second moment, after the state has taken in this gradient.
local function estimate(state, grad, share, eps1)
   local square = grad:square()
   if state.v then return state.v:mul_(1 - share):add_(square, share) end
   state.row:mul_(1 - share):add_(square:mean(-1, true), share)
   state.col:mul_(1 - share):add_(square:mean(-2, true), share)
   return state.row * state.col / state.row:mean(-2, true):clamp(eps1, nil)
end

-- Updates one parameter by its whole gradient; see Whole. Collective.
function Adafactor:update_whole(p, u)
   local grad = self.gather(p, u.grad, u.dtype, u.device)
   local whole = self.gather(p, u.weight, u.dtype, u.device)
   if not u.state then return end
   local g, step = u.group, u.state.step + 1
   local root = math.sqrt(whole:numel())
   grad = grad:to(u.state[u.state.v and 'v' or 'row'].dtype)
   local rate = (whole:norm() / root):clamp(g.eps2, nil) * math.min(u.lr, 1 / math.sqrt(step))
   local var = estimate(u.state, grad, step ^ g.beta2_decay, g.eps1)
   local change = var:clamp(g.eps1 * g.eps1, nil):rsqrt() * grad
   change = change * rate / (change:norm() / (root * g.d)):clamp(1, nil)
   u.weight:mul_(1 - u.lr * g.weight_decay)
   self.add_piece_(p, u.weight, change, -1)
end

-- Returns the bytes of state for an element of a parameter.
function Adafactor.state_bytes(dtype, entry)
   local shape, bytes = entry.shape, Optimizer.bytes_of(dtype, 0)
   local wide = dtype == 'f64' and 8 or 4
   if #shape < 2 then return bytes + wide end
   return bytes + wide * (1 / shape[#shape] + 1 / shape[#shape - 1])
end

return signature.doors('optim.Adafactor', Adafactor, {
   new_state = Optimizer.takes.new_state,
   init = { opts = {
      'lr: number >= 0 | function = 1e-2 -- largest relative step, or a function of the step',
      'beta2_decay: number < 0 = -0.8 -- power of the step that new squares are weighed with',
      'eps1: number >= 0 = 1.1920929e-7 -- least mean of squares',
      'eps2: number >= 0 = 1e-3 -- least size of a weight that a step is a share of',
      'd: number > 0 = 1 -- largest root mean square of an update before the rate',
      'weight_decay: number >= 0 = 0 -- decoupled decay, of matrices',
      Optimizer.grouping } },
})
