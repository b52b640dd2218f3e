-- Whole parameters for a while, and the end of a run's communication.
--
-- A unit counts the calls that need it whole and drops its bytes after the last. So
-- scopes nest, overlap with a forward pass, and an error inside leaves everything as it was.

local tide = require 'tide'
local dist = require 'tide.dist'
local spread = require 'tide.nn.spread'
local err = require 'tide.util.err'
local pack = require 'tide.ffi.pack'

local unshard = {}

local function sharded_of(op, model)
   local given = type(model) == 'table' and model.is_sharded
   local sharded = given and model or spread.of(model).sharded
   if not sharded then
      err.arg(op, 'model', 'a model that fully_shard has sharded', model)
   end
   return sharded
end

-- The units that parameters below `path` lie in, in order.
local function units_of(op, sharded, path)
   if err.type(op, 'path', path or '', 'string') == '' then return sharded:all_units() end
   local inside, list = {}, {}
   sharded.model:get(path):walk(function(m) inside[m] = true end)
   for _, unit in ipairs(sharded:all_units()) do
      local found = false
      for _, e in ipairs(unit.entries) do
         for _, place in ipairs(e.places) do found = found or inside[place.owner] end
      end
      if found then list[#list + 1] = unit end
   end
   return list
end

-- One unit at a time: no gather ahead, every unit dropped after its forward.
local function layerwise(sharded, fn)
   local o, before = sharded.opts, {}
   local depth = o.forward_prefetch
   o.forward_prefetch = 0
   for i, unit in ipairs(sharded.units) do
      before[i], unit.reshard_after_forward = unit.reshard_after_forward, true
   end
   local r = pack(pcall(tide.no_grad, fn))
   o.forward_prefetch = depth
   for i, unit in ipairs(sharded.units) do unit.reshard_after_forward = before[i] end
   sharded:release()
   if not r[1] then error(r[2], 0) end
   return unpack(r, 2, r.n)
end

-- The results of fn(), in which every parameter of the model (or below `path`) is whole. Scopes may
-- nest; parameters are given back at the end of the outermost, also after an error. Collective.
-- opts.layerwise: for scoring text; fn runs the model without gradients, and instead of all units
-- only the root and the one that runs are whole.
function unshard.unshard_fsdp2_model(model, fn, path, opts)
   local op = 'parallel.unshard_fsdp2_model'
   local sharded = sharded_of(op, model)
   err.type(op, 'fn', fn, 'function')
   opts = err.options(op, opts, { 'layerwise' })
   if opts.layerwise ~= nil then err.type(op, 'layerwise', opts.layerwise, 'boolean') end
   if opts.layerwise then
      if path then err.raise('E_ARG', op, 'layerwise is for the whole model, without a path') end
      return layerwise(sharded, fn)
   end
   local list, held = units_of(op, sharded, path), {}
   local r = pack(pcall(function()
      for _, unit in ipairs(list) do
         unit.holds = unit.holds + 1
         held[#held + 1] = unit
         unit:gather(sharded.opts.overlap_param_gather)
      end
      for _, unit in ipairs(list) do unit:wait() end
      return fn()
   end))
   for _, unit in ipairs(held) do
      unit.holds = unit.holds - 1
      unit:reshard(false)
   end
   if not r[1] then error(r[2], 0) end
   return unpack(r, 2, r.n)
end

-- Ends the communication of this run. An interrupt meanwhile is not answered, and one
-- that came before is still there afterwards.
function unshard.destroy_dist_connection()
   local ctx = tide.default()
   local before = ctx:interrupted()
   dist.close()
   ctx:interrupted()
   if before then ctx:interrupt() end
end

return unshard
