-- Linear: y = x W' + b, weight stored [out, in] as checkpoints have it.

local tide = require 'tide'
local class = require 'tide.class'
local err = require 'tide.util.err'
local Module = require 'tide.nn.module'

local Linear = class('Linear', Module)

-- opts: bias (true), std (initial standard deviation; default kaiming uniform with gain
-- 1/sqrt(3)), dtype, device, seed.
function Linear:init(nin, nout, opts)
   local op = 'nn.Linear'
   err.integer(op, 'nin', nin, 1)
   err.integer(op, 'nout', nout, 1)
   opts = Module.options(op, opts, { 'bias', 'std' })
   Module.init(self)
   self.nin, self.nout = nin, nout
   local spec = { kind = 'kaiming', fan_in = nin, gain = 1 / math.sqrt(3) }
   if opts.std then
      spec = { kind = 'normal', std = err.number(op, 'std', opts.std, 0) }
   end
   self:param('weight', { nout, nin }, spec, opts)
   if opts.bias ~= false then self:param('bias', { nout }, 'zeros', opts) end
   self:ready(opts)
end

function Linear:forward(x)
   return tide.linear(x, self.weight, self.bias)
end

function Linear:detail()
   return ('%d -> %d%s'):format(self.nin, self.nout, self.bias and ', bias' or '')
end

return Linear
