-- Linear: y = x W' + b, weight stored [out, in] as checkpoints have it.
--
-- The product is the field `product(x, weight, bias)`: tide.linear, or with fp8 tide.linear_fp8,
-- which rounds both operands on the way; parameters and results keep their dtype.

local tide = require 'tide'
local class = require 'tide.class'
local err = require 'tide.util.err'
local Module = require 'tide.nn.module'

local Linear = class('Linear', Module)
Linear.mixes = false

-- opts: bias (true), std (initial standard deviation; default kaiming uniform with gain
-- 1/sqrt(3)), fp8 (false), dtype, device, seed.
function Linear:init(nin, nout, opts)
   local op = 'nn.Linear'
   err.integer(op, 'nin', nin, 1)
   err.integer(op, 'nout', nout, 1)
   opts = Module.options(op, opts, { 'bias', 'std' })
   if opts.fp8 and opts.dtype == 'f64' then err.arg(op, 'dtype', 'f32 or bf16 with fp8', 'f64') end
   Module.init(self)
   self.nin, self.nout, self.fp8 = nin, nout, opts.fp8 or false
   self.product = self.fp8 and tide.linear_fp8 or tide.linear
   local spec = { kind = 'kaiming', fan_in = nin, gain = 1 / math.sqrt(3) }
   if opts.std then
      spec = { kind = 'normal', std = err.number(op, 'std', opts.std, 0) }
   end
   self:param('weight', { nout, nin }, spec, opts)
   if opts.bias ~= false then self:param('bias', { nout }, 'zeros', opts) end
   self:ready(opts)
end

-- x [.., nin] -> [.., nout].
function Linear:forward(x)
   return self.product(x, self.weight, self.bias)
end

-- Sizes, for the text of a model.
function Linear:detail()
   return ('%d -> %d%s%s'):format(self.nin, self.nout, self.bias and ', bias' or '',
      self.fp8 and ', fp8' or '')
end

return Linear
