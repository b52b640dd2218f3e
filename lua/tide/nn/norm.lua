-- RMSNorm and LayerNorm over the last dim. Given a residual, both return norm(x + residual) and
-- the sum: the two results of one pass over memory.

local tide = require 'tide'
local class = require 'tide.class'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local Module = require 'tide.nn.module'

local RMSNorm = class('RMSNorm', Module)
RMSNorm.mixes = false

-- opts: eps (1e-6), offset (added to the weight; 1 for weights stored around zero), dtype, device.
function RMSNorm:init(dim, opts)
   local op = 'nn.RMSNorm'
   err.integer(op, 'dim', dim, 1)
   opts = Module.options(op, opts, { 'eps', 'offset' })
   Module.init(self)
   self.dim = dim
   self.eps = err.number(op, 'eps', opts.eps or 1e-6, 0)
   self.offset = err.number(op, 'offset', opts.offset or 0)
   self:param('weight', { dim }, { kind = 'constant', value = 1 - self.offset }, opts)
   self:ready(opts)
end

-- x [.., dim] -> the same shape; with a residual of that shape: the norm of the sum, and the
-- sum.
function RMSNorm:forward(x, residual)
   if residual then
      return tide.add_rms_norm(x, residual, self.weight, self.eps, self.offset)
   end
   return tide.rms_norm(x, self.weight, self.eps, self.offset)
end
private.note(RMSNorm.forward)

-- Sizes, for the text of a model.
function RMSNorm:detail() return ('%d, eps %g'):format(self.dim, self.eps) end

local LayerNorm = class('LayerNorm', Module)
LayerNorm.mixes = false

-- opts: eps (1e-5), bias (true), dtype, device.
function LayerNorm:init(dim, opts)
   local op = 'nn.LayerNorm'
   err.integer(op, 'dim', dim, 1)
   opts = Module.options(op, opts, { 'eps', 'bias' })
   Module.init(self)
   self.dim = dim
   self.eps = err.number(op, 'eps', opts.eps or 1e-5, 0)
   self:param('weight', { dim }, 'ones', opts)
   if opts.bias ~= false then self:param('bias', { dim }, 'zeros', opts) end
   self:ready(opts)
end

-- x [.., dim] -> the same shape; with a residual of that shape: the norm of the sum, and the
-- sum.
function LayerNorm:forward(x, residual)
   if residual then
      local sum = x + residual
      return tide.layer_norm(sum, self.weight, self.bias, self.eps), sum
   end
   return tide.layer_norm(x, self.weight, self.bias, self.eps)
end
private.note(LayerNorm.forward)

-- Sizes, for the text of a model.
function LayerNorm:detail() return ('%d, eps %g'):format(self.dim, self.eps) end

-- Whether a value is one of these norms.
local function is(m) return class.is(m, RMSNorm) or class.is(m, LayerNorm) end

return { RMSNorm = RMSNorm, LayerNorm = LayerNorm, is = is }
