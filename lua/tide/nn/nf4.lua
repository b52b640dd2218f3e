-- NF4: the weights of Linear layers in 4 bits, for adapters beside them (QLoRA).
--
--    nn.nf4.quantise_(model)                       -- all Linear layers but the output head
--    nn.lora.attach(model, { rank = 16 })          -- adapters alone are trained
--
-- A weight [out, in] becomes two buffers of its layer, as bitsandbytes codes it (NF4 in blocks of
-- 64, double quantisation): weight_nf4, u8, and weight_scale, f32; 4.13 bits a number. The layer
-- computes with tide.linear_nf4, which reads the weight a panel at a time. Buffers get no
-- gradients. Tensor parallelism cuts the codes with the rows or columns of the weight
-- (nf4_part.lua); otherwise each rank has them whole. model.quantised is the description, which
-- checkpoints keep.

local tide = require 'tide'
local class = require 'tide.class'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local lora = require 'tide.nn.lora'
local part = require 'tide.nn.nf4_part'
local signature = require 'tide.util.signature'
local spread = require 'tide.nn.spread'

local nf4 = {}

-- Replaces a layer's weight by codes of W, or on the null device by their shapes.
local function quantise_layer(m, W)
   local codes, scale
   if W.device == 'null' then
      local n, blocks = W:numel(), math.ceil(W:numel() / 64)
      codes = tide.empty({ math.ceil(n / 2) + blocks }, { dtype = 'u8', device = 'null' })
      scale = tide.empty({ 1 + math.ceil(blocks / 256) }, { dtype = 'f32', device = 'null' })
   else
      codes, scale = tide.quantize_nf4(W:detach())
   end
   m:_take_away 'weight'
   m:buffer('weight_nf4', codes)
   m:buffer('weight_scale', scale, { keeps_dtype = true })
end

local function check_layer(op, path, m)
   local dtype = m.weight.dtype
   err.raise_if(dtype == 'f64', 'E_DTYPE', op, "'%s' is f64; expected f32, bf16 or f16", path)
   err.raise_if(m.fp8, 'E_UNSUPPORTED', op, "'%s' multiplies in FP8; leave out fp8", path)
   err.raise_if(class.is(m, require 'tide.nn.linear') and #m:wraps 'forward' > 0, 'E_STATE', op,
      "'%s' has wraps around its forward; quantise first", path)
end

-- Rounds the weights of all Linear layers but the output head to NF4, in place; a model without
-- bytes (device 'null') gets the shapes. Returns model. E_STATE: it is quantised, has adapters, or
-- is distributed over ranks; E_DTYPE: f64.
function nf4.quantise_(model)
   local op = 'nn.nf4.quantise_'
   err.raise_if(rawget(model, 'quantised'), 'E_STATE', op, 'the model is quantised already')
   err.raise_if(rawget(model, 'adapter'), 'E_STATE', op, 'the model has adapters; quantise first, '
      .. 'then attach them')
   spread.check_whole(op, model, 'quantise first')
   local list, modules = lora.layers(model), {}
   err.raise_if(#list == 0, 'E_ARG', op, 'the model has no Linear layer')
   for i, entry in ipairs(list) do
      check_layer(op, entry.path, entry.m)
      modules[i] = { entry.path, entry.m.nout, entry.m.nin }
   end
   tide.no_grad(function()
      for _, entry in ipairs(list) do quantise_layer(entry.m, entry.m.weight) end
   end)
   rawset(model, 'quantised', { method = 'nf4', modules = modules })
   return model
end

-- Returns the weight [out, in] of a layer that is quantised, in f32.
function nf4._weight(m)
   return tide.dequantize_nf4(m.weight_nf4, m.weight_scale, m.nout * m.nin)
      :reshape(m.nout, m.nin)
end

-- Quantises a whole weight W into a quantised layer, or into this rank's part of one.
function nf4._fill(m, W)
   local codes, scale = tide.quantize_nf4(W)
   part.fill({ owner = m, field = 'weight_nf4', buffer = m.weight_nf4 }, codes)
   m.weight_scale:copy_(scale)
end

-- Replaces weights in NF4 by plain weights of the other parameters' dtype, with the numbers that
-- the layers compute with. They are frozen where the model has adapters. Returns model.
function nf4.dequantise_(model)
   local op, q = 'nn.nf4.dequantise_', rawget(model, 'quantised')
   err.raise_if(not q, 'E_STATE', op, 'the model is not quantised')
   spread.check_whole(op, model, 'load its checkpoint on one rank')
   local dtype, trained = model:parameters()[1].dtype, rawget(model, 'adapter') == nil
   for _, row in ipairs(q.modules) do
      local m = model:get(row[1])
      local W = tide.no_grad(nf4._weight, m):to(dtype)
      for _, field in ipairs { 'weight_nf4', 'weight_scale' } do m:_take_away(field) end
      m:param('weight', { m.nout, m.nin }, 'zeros', { dtype = dtype, device = W.device })
      table.insert(m._param, 1, table.remove(m._param))
      tide.no_grad(function() m.weight:copy_(W) end)
      m.weight:requires_grad_(trained)
   end
   rawset(model, 'quantised', nil)
   return model
end

-- Returns the rows (name -> { shape, dtype }) of a stored model and its reading, with weights in
-- place of the codes that the description names. dtype: of those weights.
function nf4._read_as_weights(description, rows, read, dtype)
   local list, of = {}, {}
   for name, row in each(rows) do list[name] = row end
   for _, row in ipairs(description.modules) do
      local path, nout, nin = unpack(row)
      list[path .. '.weight_nf4'], list[path .. '.weight_scale'] = nil, nil
      list[path .. '.weight'] = { shape = { nout, nin }, dtype = dtype }
      of[path .. '.weight'] = { path = path, nout = nout, nin = nin }
   end
   return list, function(name, slice)
      local m = of[name]
      if not m then return read(name, slice) end
      m.weight_nf4, m.weight_scale = read(m.path .. '.weight_nf4'), read(m.path .. '.weight_scale')
      local W = nf4._weight(m):to(dtype)
      m.weight_nf4, m.weight_scale = nil, nil
      return W
   end
end

return signature.doors('nn.nf4', nf4, {
   quantise_ = 'model: module', dequantise_ = 'model: module',
})
