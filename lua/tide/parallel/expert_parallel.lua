-- Expert parallelism: each rank of a group keeps some experts of every nn.MoE, whole in training as
-- between steps, and tokens travel to the ranks of their experts and back (Lepikhin et al., arXiv
-- 2006.16668). Without it, sharding gathers the weights of all experts before each layer.
--
-- fully_shard does it with its option ep_size. Ranks of the group have data of their own, so the
-- gradient of an expert is, on the rank that keeps it, already the sum over the group.
--
--    rows of a rank, sorted by expert -> all_to_all -> sorted by expert again -> experts
--       -> all_to_all -> rows as before
--
-- How many rows a rank gets depends on the routing, so each call waits once for the counts. On the
-- null device and on simulated ranks each rank sends equally many rows to each.
-- Legend: E experts, k ranks of the group, n rows, C width.

local tide = require 'tide'
local collective = require 'tide.parallel.collective_op'
local err = require 'tide.util.err'
local layout = require 'tide.parallel.layout'
local mixtures = require 'tide.nn.mixtures'
local placement = require 'tide.parallel.placement'
local private = require 'tide.util.private'
local spread = require 'tide.nn.spread'
local subgroup = require 'tide.parallel.subgroup'

local experts = {}

-- ---- rows to their experts and back ------------------------------------------------------------

local Exchange = {}
Exchange.__index = Exchange

-- Returns how many rows this rank sends to each rank of the group, and how many it gets from each.
-- offsets: i64 [E + 1], where the rows of each expert begin; n: rows. Waits for the device.
local function counts_of(self, offsets, n)
   local comm = self.axis.comm
   if comm.transport == 'sim' or offsets.device == 'null' then
      local sent, taken = layout.balanced(n, comm.size), {}
      -- the gather of the counts, for its price
      if comm.transport == 'sim' then comm:all_gather(offsets:narrow(1, 1, comm.size)) end
      for r = 1, comm.size do taken[r] = sent[comm.rank + 1] end
      return sent, taken
   end
   return tide.no_grad(function()
      local first = offsets:index_select(1, tide.tensor(self.first, { dtype = 'i64',
         device = offsets.device }))
      local all = comm:all_gather(first:narrow(1, 2, comm.size) - first:narrow(1, 1, comm.size))
      local list, sent, taken = all:tolist(), {}, {}
      for r = 1, comm.size do
         sent[r] = list[comm.rank * comm.size + r]
         taken[r] = list[(r - 1) * comm.size + comm.rank + 1]
      end
      return sent, taken
   end)
end

-- Returns the results [n, ..] of compute for rows x [n, C] sorted by expert. of: i64 [n], the
-- expert of each; offsets: as of tide.group_rows. compute(x, offsets, of) gets the rows of all
-- ranks for the experts of this one, which count from 0. Collective.
function Exchange:run(x, of, offsets, compute)
   local comm, here = self.axis.comm, self.counts[self.axis.rank + 1]
   local sent, taken = counts_of(self, offsets, x:size(1))
   local got = tide.no_grad(function()
      return comm:all_to_all_v(of, sent, taken) - self.begins
   end)
   local rows, place, here_offsets = tide.group_rows(got, here)
   local y = collective.all_to_all_v(x, comm, sent, taken)
   y = private.replace(y, y:index_select(1, rows))
   y = private.replace(y, compute(y, here_offsets, got:index_select(1, rows)))
   y = private.replace(y, y:index_select(1, place))
   return private.replace(y, collective.all_to_all_v(y, comm, taken, sent))
end

-- ---- dealing experts out -----------------------------------------------------------------------

-- Returns the group of this rank: `size` neighbours of comm, as an axis. deals_experts
-- marks its layouts, as a mesh may have an axis of the same name. Collective.
function experts.axis(comm, size)
   local group = size == comm.size and comm or subgroup.near(comm, size, 'ep')
   return { name = 'ep', size = size, rank = group.rank, comm = group, deals_experts = true }
end

-- Returns the rows of a tensor that this rank keeps by a layout.
local function part_of(entry, t)
   if t.device ~= 'null' then return tide.no_grad(entry.cut_further, entry, t:detach()) end
   return tide.empty(entry:local_shape(), { dtype = t.dtype, device = 'null' })
end

-- Replaces a parameter, whose dim 1 counts experts, by the experts of this rank. made: what has
-- replaced the parameters so far, { entry, param } by id, as modules may share one.
local function place(m, field, axis, made)
   local t, before = m[field], layout.get(m, field)
   local new = made[t.id]
   local entry = layout.set(m, field, new and new.entry or { axis = axis,
      placement = placement.shard(1), shape = before and before.shape or t.shape,
      within = before and before.blocks and before or nil })
   new = new or { entry = entry, param = part_of(entry, t):requires_grad_(t.requires_grad) }
   made[t.id], m[field] = new, new.param
end

-- Replaces a buffer of codes or scales, [E, ..], by the rows of this rank's experts.
local function place_buffer(m, field, axis)
   local t, all = m[field], rawget(m, '_dealt') or {}
   all[field] = layout.new { axis = axis, placement = placement.shard(1), shape = t.shape }
   rawset(m, '_dealt', all)
   m[field] = part_of(all[field], t)
end

-- Returns the exchange of a module whose experts are dealt out.
local function exchange_of(m, axis)
   local counts, first = layout.balanced(m.experts, axis.size), { 0 }
   for r = 1, axis.size do first[r + 1] = first[r] + counts[r] end
   return setmetatable({ axis = axis, counts = counts, begins = first[axis.rank + 1],
      first = first }, Exchange)
end

local function check_size(op, m, path, size)
   err.raise_if(size > m.experts, 'E_ARG', op, "ep_size (%d) is more than the %d experts of '%s'; "
      .. 'give at most as many ranks as a layer has experts', size, m.experts, path)
end

-- Refuses a model whose experts an earlier fully_shard has dealt out: other ranks have the rest.
function experts.check_whole(op, model)
   model:walk(function(m, path)
      local exchange = rawget(m, '_exchange')
      err.raise_if(exchange, 'E_STATE', op, "the experts of '%s' lie on %d ranks already (ep_size "
         .. 'of an earlier fully_shard); give a new model, and load a checkpoint into it', path,
         exchange and exchange.axis.size)
   end)
end

-- Deals the experts of all nn.MoE of a model out over an axis. Each rank keeps neighbours; where
-- their number does not divide, the first ranks keep one more. A stage of a pipeline may have no
-- experts, where others do.
function experts.deal(op, model, axis)
   local list, made, stage = mixtures(model), {}, spread.of(model).pp
   err.raise_if((stage and stage.mixtures or #list) == 0, 'E_ARG', op, 'ep_size (%d): the model '
      .. 'has no experts (nn.MoE); leave it out', axis.size)
   for _, layer in ipairs(list) do check_size(op, layer.m, layer.path, axis.size) end
   for _, layer in ipairs(list) do
      local m = layer.m
      for _, field in ipairs(m:_of_experts(m._param)) do place(m, field, axis, made) end
      for _, field in ipairs(m:_of_experts(m._buffer)) do place_buffer(m, field, axis) end
      rawset(m, '_exchange', exchange_of(m, axis))
   end
end

return experts
