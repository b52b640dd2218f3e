-- NF4: the weights of Linear layers and experts in 4 bits, for adapters beside them (QLoRA).
--
--    nn.nf4.quantise_(model)                       -- all but the output head
--    nn.lora.attach(model, { rank = 16 })          -- adapters alone are trained
--
-- A weight [out, in] becomes two buffers of its layer, as bitsandbytes codes it (NF4 in blocks of
-- 64, double quantisation): weight_nf4, u8, and weight_scale, f32; 4.13 bits a number. The layer
-- computes with tide.linear_nf4, which reads the weight a panel at a time. The weight of each
-- expert of an nn.MoE is coded by itself (gate_proj_nf4, gate_proj_scale; ..), and the layer
-- computes with tide.grouped_linear_nf4; its router stays as it is. Buffers get no gradients.
-- Tensor parallelism cuts the codes with the rows or columns of the weight (nf4_part.lua);
-- otherwise each rank has them whole. model.quantised is the description, which checkpoints keep.

local tide = require 'tide'
local class = require 'tide.class'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local lora = require 'tide.nn.lora'
local MoE = require 'tide.nn.moe'
local mixtures = require 'tide.nn.mixtures'
local part = require 'tide.nn.nf4_part'
local signature = require 'tide.util.signature'
local spread = require 'tide.nn.spread'

local nf4 = {}

-- ---- which weights -----------------------------------------------------------------------------
-- A weight: path and field (of its module), rows, cols; experts: how many, or nil. The description
-- has them as { path, rows, cols, field, experts }, without the last two of a Linear layer.

local function of_row(row)
   return { path = row[1], rows = row[2], cols = row[3], field = row[4] or 'weight',
      experts = row[5] }
end

local function name_of(w) return w.path .. '.' .. w.field end

-- Returns the shape of the weight as a parameter.
local function shape_of(w)
   return w.experts and { w.experts, w.rows, w.cols } or { w.rows, w.cols }
end

-- Returns the rows of the description for a model without codes.
local function rows_of(model)
   local rows = {}
   for i, entry in ipairs(lora.layers(model)) do
      rows[i] = { entry.path, entry.m.nout, entry.m.nin }
   end
   for _, layer in ipairs(mixtures(model)) do
      for _, field in ipairs(layer.m:_fields()) do
         local E, out, into = unpack(layer.m[field].shape)
         rows[#rows + 1] = { layer.path, out, into, field, E }
      end
   end
   return rows
end

-- Calls fn(w, m) for the weights of a description, those of this stage of a pipeline; w as above.
local function each_weight(model, rows, fn)
   local has = spread.has(model)
   for _, row in ipairs(rows) do
      if has(row[1]) then fn(of_row(row), model:get(row[1])) end
   end
end

-- ---- coding ------------------------------------------------------------------------------------

-- Returns codes and scale of n numbers without bytes, with those sizes before theirs.
local function empty_codes(n, experts, device)
   local blocks = math.ceil(n / 64)
   local function size(k) return experts and { experts, k } or { k } end
   return tide.empty(size(math.ceil(n / 2) + blocks), { dtype = 'u8', device = device }),
      tide.empty(size(1 + math.ceil(blocks / 256)), { dtype = 'f32', device = device })
end

local function code_experts(W, codes, scale)
   for e = 1, W:size(1) do
      tide.scope(function()
         local c, s = tide.quantize_nf4(W:select(1, e))
         codes:select(1, e):copy_(c)
         scale:select(1, e):copy_(s)
      end)
   end
end

-- Replaces a weight of a module by its codes, or on the null device by their shapes.
local function quantise_weight(w, m)
   local W = m[w.field]:detach()
   local codes, scale
   if W.device == 'null' or w.experts then
      codes, scale = empty_codes(w.rows * w.cols, w.experts, W.device)
      if W.device ~= 'null' then code_experts(W, codes, scale) end
   else
      codes, scale = tide.quantize_nf4(W)
   end
   local codes_at, scale_at = part.names(w.field)
   m:_take_away(w.field)
   m:buffer(codes_at, codes)
   m:buffer(scale_at, scale, { keeps_dtype = true })
end

local function check_weight(op, w, m)
   err.raise_if(m[w.field].dtype == 'f64', 'E_DTYPE', op, "'%s' is f64; expected f32, bf16 or f16",
      w.experts and name_of(w) or w.path)
   err.raise_if(m.fp8, 'E_UNSUPPORTED', op, "'%s' multiplies in FP8; leave out fp8", w.path)
   err.raise_if(class.is(m, require 'tide.nn.linear') and #m:wraps 'forward' > 0, 'E_STATE', op,
      "'%s' has wraps around its forward; quantise first", w.path)
end

-- Quantises the weights of a description.
local function quantise(op, model, rows)
   each_weight(model, rows, function(w, m) check_weight(op, w, m) end)
   tide.no_grad(function() each_weight(model, rows, quantise_weight) end)
   rawset(model, 'quantised', { method = 'nf4', modules = rows })
   return model
end

-- Rounds the weights of all Linear layers but the output head, and of all experts, to NF4, in
-- place; a model without bytes (device 'null') gets the shapes. Returns model. E_STATE: it is
-- quantised, has adapters, or is distributed over ranks; E_DTYPE: f64.
function nf4.quantise_(model)
   local op = 'nn.nf4.quantise_'
   err.raise_if(rawget(model, 'quantised'), 'E_STATE', op, 'the model is quantised already')
   err.raise_if(rawget(model, 'adapter'), 'E_STATE', op, 'the model has adapters; quantise first, '
      .. 'then attach them')
   spread.check_whole(op, model, 'quantise first')
   local rows = rows_of(model)
   err.raise_if(#rows == 0, 'E_ARG', op, 'the model has no Linear layer')
   return quantise(op, model, rows)
end

-- Quantises the weights that a saved description names; without their list, those of quantise_.
function nf4._quantise_as(model, description)
   if not description.modules then return nf4.quantise_(model) end
   return quantise('nn.nf4', model, description.modules)
end

-- ---- reading -----------------------------------------------------------------------------------

-- Returns a weight from its codes, in `dtype`, a whole one or one of each expert; or, with expert
-- (from 0), of that one.
local function weight_from(w, codes, scale, dtype, expert)
   local function one(c, s)
      return tide.dequantize_nf4(c, s, w.rows * w.cols):reshape(w.rows, w.cols):to(dtype)
   end
   if not w.experts then return one(codes, scale) end
   if expert then return one(codes:select(1, expert + 1), scale:select(1, expert + 1)) end
   local W = tide.empty(shape_of(w), { dtype = dtype, device = codes.device })
   for e = 1, w.experts do
      tide.scope(function()
         W:select(1, e):copy_(one(codes:select(1, e), scale:select(1, e)))
      end)
   end
   return W
end

-- Returns the weight [out, in] of a Linear layer that is quantised, in f32.
function nf4._weight(m)
   return weight_from({ rows = m.nout, cols = m.nin }, m.weight_nf4, m.weight_scale, 'f32')
end

-- Quantises the plain weights that read(name, offset, size, device, dtype) gives into the codes of
-- a model, or into this rank's part of them, an expert or a layer at a time. has(name): whether
-- there is such a weight.
function nf4._fill(model, has, read)
   each_weight(model, (rawget(model, 'quantised') or { modules = {} }).modules, function(w, m)
      if not has(name_of(w)) then return end
      local codes_at, scale_at = part.names(w.field)
      local first, count = part.experts_here(m, codes_at, w.experts or 1)
      for e = 1, count do
         tide.scope(function()
            local codes, scale = m[codes_at], m[scale_at]
            local W = read(name_of(w), w.experts and { first + e - 1, 0, 0 } or { 0, 0 },
               w.experts and { 1, w.rows, w.cols } or { w.rows, w.cols }, codes.device)
            if w.experts then codes, scale = codes:select(1, e), scale:select(1, e) end
            local made, size = tide.quantize_nf4(W)
            part.fill({ owner = m, field = codes_at, buffer = codes }, made)
            scale:copy_(size)
         end)
      end
   end)
end

-- Replaces codes of a module by the weight that they represent.
local function dequantise_weight(w, m, dtype, trained)
   local codes_at, scale_at = part.names(w.field)
   local W = tide.no_grad(weight_from, w, m[codes_at], m[scale_at], dtype)
   for _, field in ipairs { codes_at, scale_at } do m:_take_away(field) end
   m:param(w.field, shape_of(w), 'zeros', { dtype = dtype, device = W.device })
   tide.no_grad(function() m[w.field]:copy_(W) end)
   m[w.field]:requires_grad_(trained)
end

-- Orders the parameters of a module as its class declares them.
local function reorder(m)
   local first = class.is(m, MoE) and MoE._order or { 'weight' }
   for i = #first, 1, -1 do
      for k, name in ipairs(m._param) do
         if name == first[i] then
            table.insert(m._param, 1, table.remove(m._param, k))
            break
         end
      end
   end
end

-- Replaces weights in NF4 by plain weights of the other parameters' dtype, with the numbers that
-- the layers compute with. They are frozen where the model has adapters. Returns model.
function nf4.dequantise_(model)
   local op, q = 'nn.nf4.dequantise_', rawget(model, 'quantised')
   err.raise_if(not q, 'E_STATE', op, 'the model is not quantised')
   spread.check_whole(op, model, 'load its checkpoint on one rank')
   local dtype, trained = model:parameters()[1].dtype, rawget(model, 'adapter') == nil
   each_weight(model, q.modules, function(w, m) dequantise_weight(w, m, dtype, trained) end)
   each_weight(model, q.modules, function(_, m) reorder(m) end)
   rawset(model, 'quantised', nil)
   return model
end

-- Returns the names of a model's scales, as a set.
function nf4._scales(description)
   local set = {}
   for _, row in ipairs(description and description.modules or {}) do
      local _, scale_at = part.names(of_row(row).field)
      set[row[1] .. '.' .. scale_at] = true
   end
   return set
end

-- Returns the rows (name -> { shape, dtype }) of a stored model and its reading, with weights in
-- place of the codes that the description names. dtype: of those weights.
function nf4._read_as_weights(description, rows, read, dtype)
   local list, of = {}, {}
   for name, row in each(rows) do list[name] = row end
   for _, row in ipairs(description.modules) do
      local w = of_row(row)
      local codes_at, scale_at = part.names(w.field)
      list[w.path .. '.' .. codes_at], list[w.path .. '.' .. scale_at] = nil, nil
      list[name_of(w)] = { shape = shape_of(w), dtype = dtype }
      of[name_of(w)] = w
   end
   return list, function(name, slice)
      local w = of[name]
      if not w then return read(name, slice) end
      local codes_at, scale_at = part.names(w.field)
      local codes, scale = w.path .. '.' .. codes_at, w.path .. '.' .. scale_at
      if not slice or not w.experts then
         local W = weight_from(w, read(codes), read(scale), dtype)
         return slice and W:select(1, slice + 1) or W
      end
      return weight_from({ rows = w.rows, cols = w.cols }, read(codes, slice), read(scale, slice),
         dtype)
   end
end

return signature.doors('nn.nf4', nf4, {
   quantise_ = 'model: module', dequantise_ = 'model: module',
})
