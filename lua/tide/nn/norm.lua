-- RMSNorm and LayerNorm over the last dim. Given a residual, both return norm(x + residual) and
-- the sum: the two results of one pass over memory.

local tide = require 'tide'
local class = require 'tide.class'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local Module = require 'tide.nn.module'

local RMSNorm = class('RMSNorm', Module)
RMSNorm.mixes = false

-- Makes a norm over dim channels.
function RMSNorm:init(dim, opts)
   Module.init(self)
   self.dim, self.eps, self.offset = dim, opts.eps, opts.offset
   self:param('weight', { dim }, { kind = 'constant', value = 1 - self.offset }, opts)
   self:ready(opts)
end

-- Returns the norm of x [.., dim]. With a residual of that shape it returns the norm of the sum,
-- and the sum.
function RMSNorm:forward(x, residual)
   if residual then return tide.add_rms_norm(x, residual, self.weight, self.eps, self.offset) end
   return tide.rms_norm(x, self.weight, self.eps, self.offset)
end
private.note(RMSNorm.forward)

-- Returns size and eps, for the text of a model.
function RMSNorm:detail() return ('%d, eps %g'):format(self.dim, self.eps) end

local LayerNorm = class('LayerNorm', Module)
LayerNorm.mixes = false

-- Makes a norm over dim channels.
function LayerNorm:init(dim, opts)
   Module.init(self)
   self.dim, self.eps = dim, opts.eps
   self:param('weight', { dim }, 'ones', opts)
   if opts.bias then self:param('bias', { dim }, 'zeros', opts) end
   self:ready(opts)
end

-- Returns the norm of x [.., dim]. With a residual of that shape it returns the norm of the sum,
-- and the sum.
function LayerNorm:forward(x, residual)
   if residual then
      local sum = x + residual
      return tide.layer_norm(sum, self.weight, self.bias, self.eps), sum
   end
   return tide.layer_norm(x, self.weight, self.bias, self.eps)
end
private.note(LayerNorm.forward)

-- Returns size and eps, for the text of a model.
function LayerNorm:detail() return ('%d, eps %g'):format(self.dim, self.eps) end

signature.doors('nn.RMSNorm', RMSNorm, {
   init = { 'dim: integer >= 1', opts = {
      'eps: number >= 0 = 1e-6 -- added to the mean of squares',
      'offset: number = 0 -- added to the weight; 1 for weights stored around zero',
      Module.common } },
})
signature.doors('nn.LayerNorm', LayerNorm, {
   init = { 'dim: integer >= 1', opts = {
      'eps: number >= 0 = 1e-5 -- added to the variance', 'bias: boolean = true -- adds a bias',
      Module.common } },
})

-- Returns whether a value is one of these norms.
local function is(m) return class.is(m, RMSNorm) or class.is(m, LayerNorm) end

-- Returns whether a call of m is nothing but the forward of one of them, which takes a residual.
local function takes_addends(m)
   return is(m) and (m.forward == RMSNorm.forward or m.forward == LayerNorm.forward)
      and m._call == Module._call
end

return { RMSNorm = RMSNorm, LayerNorm = LayerNorm, is = is, takes_addends = takes_addends }
