-- Whole parameters for a while, and the end of a run's communication.
--
-- A unit counts the calls that need it whole and drops its bytes after the last. So
-- scopes nest, overlap with a forward pass, and an error inside leaves everything as it was.

local tide = require 'tide'
local agree = require 'tide.comm.agree'
local dist = require 'tide.comm'
local spread = require 'tide.nn.spread'
local err = require 'tide.util.err'
local finally = require 'tide.util.finally'
local fingerprint = require 'tide.parallel.fingerprint'
local signature = require 'tide.util.signature'

local unshard = {}

local function sharded_of(op, model)
   local given = type(model) == 'table' and model.is_sharded
   local sharded = given and model or spread.of(model).sharded
   err.arg_if(not sharded, op, 'model', 'a model that fully_shard has sharded', model)
   return sharded
end

-- Returns the units that parameters below `path` lie in, in order.
local function units_of(sharded, path)
   if (path or '') == '' then return sharded:all_units() end
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

-- Runs fn with one unit at a time: no gather ahead, every unit dropped after its forward.
local function layerwise(sharded, fn)
   local o, before = sharded.opts, {}
   local depth = o.forward_prefetch
   o.forward_prefetch = 0
   for i, unit in ipairs(sharded.units) do
      before[i], unit.reshard_after_forward = unit.reshard_after_forward, true
   end
   return finally(function()
      o.forward_prefetch = depth
      for i, unit in ipairs(sharded.units) do unit.reshard_after_forward = before[i] end
      sharded:release()
   end, tide.no_grad, fn)
end

-- ---- what is written inside ------------------------------------------------------------------

-- Returns the buckets that fn wrote to, of the units that no outer scope holds.
local function written_of(list)
   local written = {}
   for _, unit in ipairs(list) do
      for _, b in ipairs(unit.holds == 1 and unit.buckets or {}) do
         if b:is_written() then written[#written + 1] = b end
      end
   end
   return written
end

-- Copies what every rank has written in a scope to the shards. All ranks must have written the
-- same: a rank keeps its own rows only. failed: fn has raised here.
local function keep_writes(op, sharded, list, failed)
   local written, flats, of_experts = failed and {} or written_of(list), {}, {}
   for _, b in ipairs(written) do
      local all = b.opts.ep_size > 1 and of_experts or flats
      all[#all + 1] = b.flat
   end
   agree.check(sharded.data_comm, op, 'E_STATE', {
      { 'ends of the scope', failed and 'an error' or 'a result', 'shown',
        hint = 'the function must end alike on all ranks' },
      { 'values of parameters', #flats > 0 and fingerprint.values(flats) or '',
        hint = 'what is written into whole parameters must be the same on every rank' },
      { 'values of experts', #of_experts > 0 and fingerprint.values(of_experts) or '',
        among = sharded.ep and sharded.ep.rank,
        hint = 'what is written into experts must be the same on every rank that keeps them' },
   })
   for _, b in ipairs(written) do b:write_back() end
end

-- ---- the scope -------------------------------------------------------------------------------

local function begin(sharded, list, held)
   for _, unit in ipairs(list) do
      unit.holds = unit.holds + 1
      held[#held + 1] = unit
      unit:gather(sharded.opts.overlap_param_gather)
   end
   for _, unit in ipairs(list) do
      unit:wait()
      for _, b in ipairs(unit.holds == 1 and unit.buckets or {}) do b:watch_writes() end
   end
end

-- Returns the results of fn(), in which every parameter of the model (or below `path`) is whole.
-- What fn writes into them in place is kept, the same on every rank, unless fn raises. Scopes may
-- nest; parameters are given back at the end of the outermost, also after an error. Collective.
-- opts.layerwise: for scoring text; fn runs the model without gradients, and instead of all units
-- only the root and the one that runs are whole; nothing may be written.
function unshard.unshard_fsdp2_model(model, fn, path, opts)
   local op = 'parallel.unshard_fsdp2_model'
   local sharded = sharded_of(op, model)
   if opts.layerwise then
      if path then err.raise('E_ARG', op, 'layerwise needs the whole model; leave out the path') end
      return layerwise(sharded, fn)
   end
   local list, held = units_of(sharded, path), {}
   return finally(function(failed)
      local ok, problem = pcall(keep_writes, op, sharded, held, failed)
      for _, unit in ipairs(held) do
         unit.holds = unit.holds - 1
         if ok and not failed then unit:reshard(false) else unit:forget_writes() end
      end
      if not ok and not failed then error(problem, 0) end
   end, function()
      begin(sharded, list, held)
      return fn()
   end)
end

-- Ends the communication of this run. Does not answer an interrupt, neither one
-- that arrives meanwhile nor an earlier one.
function unshard.destroy_dist_connection()
   local ctx = tide.default()
   local before = ctx:interrupted()
   dist.close()
   ctx:interrupted()
   if before then ctx:interrupt() end
end

return signature.doors('parallel', unshard, {
   unshard_fsdp2_model = { 'fn: function; path: string?', opts = {
      'layerwise: boolean = false -- only the root and the unit that runs are whole' } },
})
