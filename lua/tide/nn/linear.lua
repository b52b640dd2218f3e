-- Linear: y = x W' + b, weight stored [out, in] as checkpoints have it.
--
-- The product is tide.linear, or with fp8 tide.linear_fp8, which rounds both operands on the way;
-- parameters and results keep their dtype. fp8 is a scaling of tide.linear_fp8; true: 'tensor'.
-- nn.nf4 puts codes of 4 bits in place of the weight.

local tide = require 'tide'
local class = require 'tide.class'
local err = require 'tide.util.err'
local nf4_part = require 'tide.nn.nf4_part'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local Module = require 'tide.nn.module'

local Linear = class('Linear', Module)
Linear.mixes = false

-- Makes a layer of weight [nout, nin].
function Linear:init(nin, nout, opts)
   err.arg_if(opts.fp8 and opts.dtype == 'f64', 'nn.Linear', 'dtype', 'f32 or bf16 with fp8', 'f64')
   Module.init(self)
   self.nin, self.nout, self.fp8 = nin, nout, opts.fp8 or false
   self._fp8 = opts.fp8 and { scaling = opts.fp8 == true and 'tensor' or opts.fp8 }
   local spec = { kind = 'kaiming', fan_in = nin, gain = 1 / math.sqrt(3) }
   if opts.std then spec = { kind = 'normal', std = opts.std } end
   self:param('weight', { nout, nin }, spec, opts)
   if opts.bias then self:param('bias', { nout }, 'zeros', opts) end
   self:ready(opts)
end

-- Returns the product of this layer, with any operands that fit.
function Linear:product(x, weight, bias)
   if self.fp8 then return tide.linear_fp8(x, weight, bias or nil, self._fp8) end
   return tide.linear(x, weight, bias or nil)
end

-- Returns the product of this layer with its weight in NF4 (see nn.nf4), or with a part of that
-- weight.
function Linear:product_nf4(x)
   if self.weight_boxes then return nf4_part.product(self, x) end
   return tide.linear_nf4(x, self.weight_nf4, self.weight_scale, self.nout, self.bias or nil)
end

-- Returns the product [.., nout] of x [.., nin].
function Linear:forward(x)
   if self.weight_nf4 then return private.call(self.product_nf4, self, x) end
   return private.call(self.product, self, x, self.weight, self.bias)
end
private.note(Linear.forward)
private.note(Linear.product_nf4)
private.note(Linear.product)

-- Makes backward of an FP8 product round the weight again, so that forward keeps the weight and not
-- its codes: for weights whose bytes are dropped after forward. Returns a handle; handle.remove()
-- ends it.
function Linear:keep_weight()
   local how = self._fp8
   if how then how.keep = 'weight' end
   return { remove = function() if how then how.keep = nil end end }
end

-- Returns how the weight is cut, see Module.tp.
function Linear:tp(style, on)
   if not style then return nil end
   local given = on.given
   local function codes(how)
      return self.weight_nf4 and nf4_part.answer(self, on, 'weight', { self.nout, self.nin },
         how.dim, how.blocks)
   end
   if style.shard == 'rows' then
      local k = style.blocks
      if self.nout % k ~= 0 then on:refuse('%d rows are not %d equal blocks', self.nout, k) end
      on:check_size('the number of rows', self.nout / k)
      local how = { dim = 1, blocks = given and given.blocks or k }
      return { cut = { weight = self.weight and how, weight_nf4 = codes(how),
         bias = self.bias and how, lora_B = self.lora_B and how, lora_m = self.lora_m and how },
         gives = 'S(-1)', after = given and given.after, done = function(n) self.nout = n end }
   elseif style.shard == 'columns' then
      if style.blocks ~= 1 then on:refuse 'fused blocks are rows, not columns' end
      on:check_size('the number of columns', self.nin)
      local how = { dim = 2, blocks = given and given.blocks }
      return { cut = { weight = self.weight and how, weight_nf4 = codes(how),
         lora_A = self.lora_A and how }, takes = 'S(-1)', gives = 'P', late = 'bias',
         done = function(n) self.nin = n end }
   end
   on:refuse('a Linear cannot be %s', tostring(style))
end

-- Returns the sizes, for the text of a model.
function Linear:detail()
   return ('%d -> %d%s%s%s'):format(self.nin, self.nout, self.bias and ', bias' or '',
      self.weight_nf4 and ', nf4' or self.fp8 and ', fp8' or '',
      self.fp8 and self._fp8.scaling ~= 'tensor' and ' ' .. self._fp8.scaling or '')
end

return signature.doors('nn.Linear', Linear, {
   init = { 'nin: integer >= 1; nout: integer >= 1', opts = {
      'bias: boolean = true -- adds a bias',
      'std: number? >= 0 -- initial standard deviation; by default uniform within 1/sqrt(nin)',
      Module.common } },
})
