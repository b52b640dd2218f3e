-- Mamba2: the state-space layer of Dao and Gu (arXiv 2405.21060), with the parameter names and
-- shapes of its published form.
--
-- One projection gives gate z, x, B, C and dt; x, B and C go through a causal convolution, the scan
-- mixes along time, a gated norm and a projection end the layer. A plan wraps two methods to spread
-- the work over ranks: `mix` (everything between the two projections but the norm), and inside it
-- `filter` (the weights of the convolution); `conv` and `scan` are the two ops.
-- Legend: B batch, T tokens, M model width, P width of the projection, H heads, D head size,
-- G groups, N state size, I = H D inner width, K taps.

local tide = require 'tide'
local class = require 'tide.class'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local context = require 'tide.nn.context'
local Module = require 'tide.nn.module'
local Linear = require 'tide.nn.linear'
local old = require 'tide.util.old'
local wrap = require 'tide.nn.wrap'

-- ---- the gated norm ----------------------------------------------------------------------------

local GatedRMSNorm = class('GatedRMSNorm', Module)
GatedRMSNorm.mixes = false

-- Makes a norm over dim channels.
function GatedRMSNorm:init(dim, opts)
   Module.init(self)
   self.dim, self.eps, self.group, self.gate_last = dim, opts.eps, opts.group, opts.gate_last
   self:param('weight', { dim }, 'ones', opts)
   self:ready(opts)
end

-- Returns the gated norm of x and its gate z, all [.., dim]; see tide.gated_rms_norm.
function GatedRMSNorm:forward(x, z)
   return tide.gated_rms_norm(x, z, self.weight,
      { eps = self.eps, group = self.group, gate_last = self.gate_last })
end
private.note(GatedRMSNorm.forward)

-- Returns the sizes, for the text of a model.
function GatedRMSNorm:detail()
   return ('%d in groups of %d, eps %g'):format(self.dim, self.group, self.eps)
end

local gate_last = 'gate_last: boolean = false -- applies the gate after the norm, not before it'
signature.doors('nn.GatedRMSNorm', GatedRMSNorm, {
   init = { 'dim: integer >= 1', opts = {
      'eps: number >= 0 = 1e-5 -- added to the mean of squares',
      'group: integer in [1, dim] = dim -- channels that share a mean', gate_last,
      'where dim % group == 0 -- group ({group}) must divide dim ({dim})', Module.common } },
})

-- ---- the convolution's parameters --------------------------------------------------------------

local Conv1d = class('Conv1d', Module)

-- Makes the parameters of a convolution, with the weight [channels, 1, taps] of checkpoints; the
-- layer that holds them calls the op.
function Conv1d:init(channels, taps, opts)
   Module.init(self)
   self.channels, self.taps = channels, taps
   local bound = 1 / math.sqrt(taps)
   local spec = { kind = 'uniform', lo = -bound, hi = bound }
   self:param('weight', { channels, 1, taps }, spec, opts)
   if opts.bias then self:param('bias', { channels }, spec, opts) end
   self:ready(opts)
end

-- Returns the sizes, for the text of a model.
function Conv1d:detail() return ('%d channels, %d taps'):format(self.channels, self.taps) end

signature.doors('nn.Conv1d', Conv1d, {
   init = { 'channels: integer >= 1; taps: integer >= 1', opts = {
      'bias: boolean = true -- adds a bias', Module.common } },
})

-- ---- the layer ---------------------------------------------------------------------------------

local Mamba2 = class('Mamba2', Module)
Mamba2.mixes = 'context'

local function pair(op, name, v, least)
   err.number(op, name .. '[1]', v[1], least)
   err.number(op, name .. '[2]', v[2], v[1])
   return v
end

local function check_limit(op, limit)
   if limit == nil then return nil end
   local lo, hi = limit[1] or 0, limit[2] or math.huge
   err.raise_if(type(lo) ~= 'number' or type(hi) ~= 'number' or not (0 <= lo and lo <= hi), 'E_ARG',
      op, "argument 'dt_limit': expected two numbers, 0 <= least <= most, got { %s, %s }",
      err.show(lo), err.show(hi))
   return { lo, hi }
end

-- Declares the parameters of the recurrence with the published initial values: -A is uniform in
-- A_range; the step softplus(dt_bias) is log-uniform in dt_range and at least dt_floor.
local function recurrence(self, op, opts)
   if opts.recurrence_dtype ~= nil then
      opts = Module.inner(opts, opts)
      opts.dtype = opts.recurrence_dtype
   end
   local A, dt = pair(op, 'A_range', opts.A_range or { 1, 16 }, 1e-9),
      pair(op, 'dt_range', opts.dt_range or { 0.001, 0.1 }, 1e-12)
   self:param('dt_bias', { self.heads }, { kind = 'softplus_inverse', lo = dt[1], hi = dt[2],
      least = opts.dt_floor }, opts)
   self:param('A_log', { self.heads }, { kind = 'log_uniform', lo = A[1], hi = A[2] }, opts)
   self:param('D', { opts.per_channel_D and self.inner_dim or self.heads }, 'ones', opts)
end

-- Makes the layer and its parts.
function Mamba2:init(opts)
   local op = 'nn.Mamba2'
   Module.init(self)
   self.dim, self.head_dim, self.groups = opts.dim, opts.head_dim, opts.groups
   self.heads = opts.heads or opts.expand * opts.dim / self.head_dim
   self.state, self.taps, self.chunk = opts.state, opts.conv, opts.chunk
   self.per_channel_D = opts.per_channel_D
   self.inner_dim = self.heads * self.head_dim
   self.conv_dim = self.inner_dim + 2 * self.groups * self.state
   self.dt_limit = check_limit(op, opts.dt_limit)
   self:child('in_proj', Linear(self.dim, self.inner_dim + self.conv_dim + self.heads,
      Module.inner(opts, { bias = opts.bias, std = opts.std })))
   self:child('conv1d', Conv1d(self.conv_dim, self.taps,
      Module.inner(opts, { bias = opts.conv_bias })))
   recurrence(self, op, opts)
   self:child('norm', GatedRMSNorm(self.inner_dim, Module.inner(opts, { eps = opts.norm_eps,
      group = self.inner_dim / self.groups, gate_last = opts.gate_last })))
   self:child('out_proj', Linear(self.inner_dim, self.dim, Module.inner(opts,
      { bias = opts.bias, std = opts.out_std or opts.std })))
   self:ready(opts)
end

-- The two ops of mix.
Mamba2.conv, Mamba2.scan = private.note(tide.conv1d), private.note(tide.ssd_scan)

-- Accepts mamba.inner = fn, the 0.1 spelling of a wrap of mix.
function Mamba2:__newindex(key, value)
   if key ~= 'inner' or type(value) ~= 'function' then
      return Module.__newindex(self, key, value)
   end
   old('mamba.inner = fn', "mamba:wrap(name, fn, { of = 'mix' })")
   wrap.drop(self, 'inner', 'mix')
   self:wrap('inner', function(_, ...) return value(...) end, { of = 'mix' })
end

-- x cut along its last dim. The gradients are joined in one pass, where slices would each make a
-- whole tensor of zeros.
local divide = private.func {
   name = 'divide',
   forward = function(self, x, widths)
      self.widths, self.x = widths, { shape = x.shape, dtype = x.dtype, device = x.device }
      return unpack(tide.split(x, widths, -1))
   end,
   backward = function(self, ...)
      local list = { ... }
      for i, width in ipairs(self.widths) do
         if not list[i] then
            local shape = { unpack(self.x.shape) }
            shape[#shape] = width
            list[i] = tide.zeros(shape, { dtype = self.x.dtype, device = self.x.device })
         end
      end
      return tide.cat(list, -1)
   end,
}

-- Returns the convolution's weight [channels, taps] and bias (nil if it has none).
function Mamba2:filter()
   local weight = self.conv1d.weight
   return weight:reshape(weight:size(1), self.taps), self.conv1d.bias
end

-- Returns the convolution of x, B and C. opts: initial, sequence, return_last, as of tide.conv1d.
-- Works on anything that has filter and conv, for some of the channels too.
function Mamba2:convolve(xBC, opts)
   local weight, bias = private.call(self.filter, self)
   return private.call(self.conv, xBC, weight, bias, {
      silu = true, sequence = opts.sequence, initial = opts.initial,
      return_last = opts.return_last })
end

-- Returns the rates of decay, in f32 (f64 for f64).
function Mamba2:rates()
   local A_log = self.A_log
   return -(A_log.dtype == 'f64' and A_log or A_log:float()):exp()
end

-- Returns the scan of what convolve gave: y [B, T, I] and the state. opts as of convolve.
function Mamba2:recur(xBC, dt_BTH, opts)
   local B, T = xBC:size(1), xBC:size(2)
   local H, D, G, N, I = self.heads, self.head_dim, self.groups, self.state, self.inner_dim
   local x_BTI, B_BTS, C_BTS = divide(xBC, { I, G * N, G * N })
   local rates = Mamba2.rates(self)
   x_BTI = private.replace(x_BTI, x_BTI:reshape(B, T, H, D))
   B_BTS = private.replace(B_BTS, B_BTS:reshape(B, T, G, N))
   C_BTS = private.replace(C_BTS, C_BTS:reshape(B, T, G, N))
   local y_BTHD, last = private.call(self.scan, x_BTI, dt_BTH, rates, B_BTS, C_BTS, {
         D = self.D:numel() == H and self.D or self.D:reshape(H, D), dt_bias = self.dt_bias,
         softplus = true, dt_limit = self.dt_limit, chunk = self.chunk, sequence = opts.sequence,
         initial = opts.initial, return_last = opts.return_last,
      })
   private.spend(x_BTI, B_BTS, C_BTS, rates)
   return private.replace(y_BTHD, y_BTHD:reshape(B, T, I)), last
end

-- Computes the part between the projections: returns y and the gate z, both [B, T, I], of the
-- projected tokens. at: { sequence = [B or 1, T], cache = table of this layer or nil }.
function Mamba2:mix(projected_BTP, at)
   local z_BTI, xBC, dt_BTH = divide(projected_BTP, { self.inner_dim, self.conv_dim, self.heads })
   local cache, kept = at.cache, at.cache ~= nil
   local rows, last, y_BTI
   local joined = xBC
   xBC, rows = private.call(self.convolve, self, xBC, { sequence = at.sequence,
      initial = cache and cache.conv, return_last = kept })
   private.spend(joined)
   y_BTI, last = private.call(self.recur, self, xBC, dt_BTH, { sequence = at.sequence,
      initial = cache and cache.state, return_last = kept })
   private.spend(xBC, dt_BTH)
   if cache then cache.conv, cache.state = private.keep(rows, last) end
   return y_BTI, z_BTI
end

signature.doors('nn.Mamba2', Mamba2, {
   convolve = 'opts: table', recur = 'xBC: tensor [B, T, C]; dt_BTH: tensor [B, T, H]; opts: table',
   mix = 'projected_BTP: tensor [B, T, C]; at: table',
})
Mamba2.inner = Mamba2.mix

local function check_call(op, self, x, at)
   if not tide.is_tensor(x) then err.arg(op, 'x', 'a tensor [batch, tokens, dim]', x) end
   if x.ndim ~= 3 or x:size(3) ~= self.dim then
      err.raise('E_SHAPE', op, 'x: expected [batch, tokens, %d], got [%s]', self.dim,
         table.concat(x.shape, ', '))
   end
   if at == nil then return end
   err.type(op, 'at', at, 'table')
   local cache = at.cache
   if cache == nil then return end
   err.type(op, 'at.cache', cache, 'table')
   if (cache.conv == nil) ~= (cache.state == nil) then
      err.arg_text(op, 'at.cache', 'conv and state together (as a call left them) or neither',
         cache.conv and 'conv alone' or 'state alone')
   end
end

-- Returns the numbers of sequences i32 [B, T] from the documents i32 [B, T] of tokens: one more
-- wherever the document changes, so that padding (document -1) is a sequence of its own.
local function sequence_of(document_BT)
   local n = document_BT:size(2)
   if n == 0 then return document_BT end
   local new = document_BT:narrow(2, 2, n - 1):ne(document_BT:narrow(2, 1, n - 1))
   return new:to('i32'):pad({ 0, 1 }, { 0, 0 }):cumsum(2):to 'i32'
end

-- Returns `at` of a call of a layer with a state, checked; `sequence` follows from a context of one
-- rank.
local function place(op, self, x_BTM, at)
   check_call(op, self, x_BTM, at)
   local _, whole = context.for_layer(op, self, at)
   at = at or {}
   if not whole or at.sequence ~= nil then return at end
   return { cache = at.cache, sequence = sequence_of(whole:q_index(x_BTM.device):select(3, 1)) }
end

-- Returns the output [B, T, C] of x. Fields of at: sequence, the number of the sequence of each
-- token [B or 1, T]; cache, a table or nil; context. A cache holds the last rows of the convolution
-- and the state, so its size does not depend on the number of tokens.
function Mamba2:forward(x_BTM, at)
   at = place('nn.Mamba2', self, x_BTM, at)
   local p = self.in_proj(x_BTM)
   local y_BTI, z_BTI = private.call(self.mix, self, p, at)
   private.spend(p)
   local n = self.norm(y_BTI, z_BTI)
   private.spend(y_BTI, z_BTI)
   return private.replace(n, self.out_proj(n))
end
private.note_methods(Mamba2)

-- Cuts the layer by heads as a whole, or not at all. See Module.tp.
function Mamba2:tp(_, on)
   local text = 'in_proj must be colwise and out_proj rowwise'
   if not on:all_or_none({ 'in_proj' }, 'out_proj', text) then return nil end
   if on.children.in_proj.blocks ~= 1 then on:refuse('%s, all or none', text) end
   on:check_size('the number of heads', self.heads)
   return on:by_heads()
end

-- Returns the styles of the projections, see Module.tp_plan.
function Mamba2:tp_plan() return { in_proj = 'colwise', out_proj = 'rowwise' } end

-- Returns the sizes, for the text of a model.
function Mamba2:detail()
   return ('%d heads of %d, %d groups, state %d'):format(self.heads, self.head_dim, self.groups,
      self.state)
end

signature.doors('nn.Mamba2', Mamba2, {
   init = { opts = {
      'dim: integer >= 1 -- width of input and output',
      'state: integer >= 1 = 128 -- numbers of the state of a channel',
      'conv: integer in [2, 4] = 4 -- taps of the convolution',
      'expand: number >= 0 = 2 -- inner width / dim, if heads is not given',
      'heads: integer? >= 1 -- heads of the recurrence',
      'head_dim: integer >= 1 = 64 -- channels of a head',
      'groups: integer >= 1 = 1 -- sets of B and C, which heads share',
      'chunk: integer? >= 1 -- tokens that the scan takes together',
      'bias: boolean = false -- adds biases to the projections',
      'conv_bias: boolean = true -- adds one to the convolution',
      'norm_eps: number >= 0 = 1e-5 -- eps of the norm', gate_last,
      'per_channel_D: boolean = false -- D has a number a channel, not a head',
      'A_range: table? -- { 1, 16 }: -A is uniform in it at first',
      'dt_range: table? -- { 0.001, 0.1 }: the step is uniform in it, by its logarithm',
      'dt_floor: number >= 0 = 1e-4 -- the least step at first',
      'dt_limit: table? -- { least, most } step; no limit by default',
      'std: number? >= 0 -- initial standard deviation',
      'out_std: number? >= 0 -- initial standard deviation of out_proj',
      "recurrence_dtype: 'f32' | 'f64' | 'bf16' | 'f16'? -- of A_log, dt_bias and D: a bf16 model "
         .. "keeps small changes of them in 'f32'; that of the layer by default",
      'where heads or expand * dim % head_dim == 0 and expand * dim >= 1 -- expand * dim '
         .. '({expand * dim}) must be a multiple of head_dim ({head_dim}), or give heads',
      'where (heads or expand * dim / head_dim) % groups == 0 -- heads '
         .. '({heads or expand * dim / head_dim}) must be a multiple of groups ({groups})',
      Module.common } },
})

return { Mamba2 = Mamba2, GatedRMSNorm = GatedRMSNorm, Conv1d = Conv1d, divide = divide,
   sequence_of = sequence_of, place = place }
