-- Moves and fills the tensors of a module and of all below: dtype, device, initial weights. The
-- methods are Module:to, Module:materialise and Module:init_weights.

local tide = require 'tide'
local err = require 'tide.util.err'
local spread = require 'tide.nn.spread'
local weight = require 'tide.nn.weight'

local place = {}

-- Refuses a sharded model: its shards would not follow a change of the fields into which they are
-- gathered.
local function check_unsharded(self, op)
   self:walk(function(m)
      err.raise_if(spread.of(m).inside, 'E_STATE', op, 'the model is sharded: its shards would '
         .. 'keep their values and dtype; call it before fully_shard')
   end)
end

-- Replaces every parameter and buffer by fn(t, is_param, is_fixed, into); shared tensors stay
-- shared. is_fixed: it keeps its dtype; into: memory for the new tensor, or nil. goal: as
-- nn.joined.places takes it.
local function replace(self, op, goal, fn)
   check_unsharded(self, op)
   local made, into = {}, require('tide.nn.joined').places(self, goal)
   self:walk(function(m)
      for _, field in ipairs(m._param) do
         local old = m[field]
         local new = made[old.id] or fn(old, true, nil, into[old.id])
         made[old.id] = new
         m[field] = new
      end
      for _, field in ipairs(m._buffer) do m[field] = fn(m[field], false, m._fixed[field]) end
   end)
   return self
end

local is_float = { f32 = true, f64 = true, bf16 = true, f16 = true }
local targets = { 'f32', 'f64', 'bf16', 'f16', 'cpu', 'cuda', 'null', 'ref' }

-- Does what Module:to describes.
function place.to(self, target)
   if type(target) == 'string' then
      target = is_float[target] and { dtype = target } or { device = target }
      err.choice('nn.Module.to', 'target', target.dtype or target.device, targets)
   elseif type(target) ~= 'table' then
      err.arg('nn.Module.to', 'target', 'a dtype, a device, or { dtype =, device = }', target)
   end
   err.options('nn.Module.to', target, { 'dtype', 'device' })
   local function goal(t)
      return { dtype = target.dtype or t.dtype, device = target.device or t.device }
   end
   return replace(self, 'nn.Module.to', goal, function(t, is_param, is_fixed, into)
      local want = { device = target.device,
         dtype = is_float[t.dtype] and not is_fixed and target.dtype or nil }
      if next(want) == nil then return t end
      local new = t:detach():to(want):detach()
      if into then
         tide.no_grad(into.copy_, into, new)
         if not new:same_storage(t) then new:release() end
         new = into
      end
      if is_param and t.requires_grad then new:requires_grad_(true) end
      return new
   end)
end

-- Returns a tensor on `device` in place of a buffer on device 'null': zeros, as buffers have no
-- initialiser that would fill them later.
local function zeros_like(t, device)
   return tide.zeros(t.shape, { dtype = t.dtype, device = device })
end

-- Allocates the buffers on device 'null' on `device`, zeros.
function place.give_buffers(self, device)
   for _, e in ipairs(self:named_buffers()) do
      if e.buffer.device == 'null' and device ~= 'null' then
         e.owner[e.field] = zeros_like(e.buffer, device)
      end
   end
end

-- Allocates the tensors on device 'null' on `device`: parameters with undefined contents, buffers
-- with zeros.
function place.materialise(self, device)
   local function goal(t)
      return { dtype = t.dtype, device = t.device == 'null' and device or t.device }
   end
   replace(self, 'nn.Module.materialise', goal, function(t, is_param, _, into)
      if t.device ~= 'null' then return t end
      if not is_param then return zeros_like(t, device) end
      local new = into or tide.empty(t.shape, { dtype = t.dtype, device = device })
      if t.requires_grad then new:requires_grad_(true) end
      return new
   end)
end

-- Fills a parameter. A part of a whole one (module._layout) gets the numbers of that part.
local function fill_parameter(entry, seed)
   local spec, layout = entry.owner._spec[entry.field], rawget(entry.owner, '_layout')
   local part_of = layout and layout[entry.field]
   local parts = part_of and part_of:parts(entry.param) or { { view = entry.param } }
   for _, part in ipairs(parts) do
      weight.fill(part.view, spec,
         { seed = seed, path = entry.name, start = part.start, stride = part.stride })
   end
end

-- Fills every parameter by its initialiser from (seed, dotted name).
function place.fill(self, seed)
   check_unsharded(self, 'nn.Module.init_weights')
   tide.no_grad(function()
      for _, entry in ipairs(self:named_parameters()) do fill_parameter(entry, seed) end
   end)
end

return place
