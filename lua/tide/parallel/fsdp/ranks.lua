-- The ranks of a sharded model: which of them hold which parameters.
--
-- A Sharded has these communicators: comm (all ranks of the model), data_comm (ranks with data of
-- their own), stage_comm (all with the same stage of a pipeline; comm without one), shard_comm and
-- replicas (of the shards, and of ranks with the same shard). `over` has, by entry.over of a
-- parameter, what it lies over:
--
--    sharded   most parameters
--    dealt     experts that ep_size deals out
--    tied      the weight that the first and the last stage of a pipeline share
--
-- each { shards, replicas, ep_size (ranks over which the gradient on one rank is a sum before it is
-- reduced), mean_scale (the factor of a mean over shards and replicas) }.

local axis_of = require 'tide.parallel.axis_of'
local dist = require 'tide.comm'
local err = require 'tide.util.err'
local experts = require 'tide.parallel.expert_parallel'
local subgroup = require 'tide.parallel.subgroup'

local ranks = {}

local op = 'parallel.fully_shard'

-- Sets the communicators but stage_comm. given: a mesh, an axis, a communicator or nil.
function ranks.set(self, given)
   local all, shard, replicas, data
   if given and given.fsdp_mesh then
      local axes = given:fsdp_mesh().axes
      all, shard = given.root.comm, axes[#axes].comm
      replicas = axes[2] and axes[1].comm or nil
      data = replicas and given:flatten({ axes[1].name, axes[2].name }).comm or shard
   else
      all = given and axis_of(op, 'ranks', given) or dist.world()
      shard, data = all, all
   end
   if self.opts.strategy == 'no_shard' then shard, replicas = dist.solo(), data end
   self.comm, self.shard_comm, self.replicas, self.data_comm = all, shard,
      replicas or dist.solo(), data
end

-- Returns every n-th rank of comm from this one on.
local function every(comm, n)
   if comm.size == n then return dist.solo() end
   return n == 1 and comm or subgroup.far(comm, n, 'expert_data')
end

-- Deals the experts out over ep_size neighbours, where it is more than 1.
local function deal_experts(self)
   local k, shards = self.opts.ep_size, self.shard_comm
   if k == 1 then return end
   local wide = self.opts.strategy == 'no_shard' and self.data_comm or shards
   err.raise_if(wide.size % k ~= 0, 'E_ARG', op, 'ep_size (%d) must divide the number of ranks '
      .. 'that can share experts (dp_shard x cp; with no_shard all of dp x cp), which is %d; give '
      .. 'a divisor of %d, or a mesh with more of these ranks', k, wide.size, wide.size)
   self.ep = experts.axis(wide, k)
   experts.deal(op, self.model, self.ep)
   local rest, is_sharded = every(wide, k), wide == shards
   self.over.dealt = { shards = is_sharded and rest or shards,
      replicas = is_sharded and self.replicas or rest, ep_size = k, mean_scale = 1 / k }
end

-- Returns the communicator of the ranks of a mesh with the same stage of a pipeline.
local function stage_comm(mesh)
   local names = {}
   for _, axis in ipairs(mesh.root.axes) do
      if axis.name ~= 'pp' then names[#names + 1] = axis.name end
   end
   return #names == 0 and dist.solo() or mesh.root:flatten(names, 'stage').comm
end

-- Sets stage_comm, and over.tied where two stages share a weight: its gradient is the sum of those
-- of both, each a mean over its own ranks if means are asked for.
local function join_stages(self, mesh)
   local stage = self.stage
   err.raise_if(not (mesh and mesh.fsdp_mesh), 'E_ARG', op, 'ranks: a model in stages of a '
      .. 'pipeline needs the mesh, whose axes say which ranks hold the same stage; give '
      .. 'fully_shard(model, mesh, opts)')
   self.stage_comm = stage_comm(mesh)
   if not stage.tied then return end
   self.over.tied = { shards = self.shard_comm, ep_size = 1, mean_scale = 2,
      replicas = stage:ends(mesh.root.comm, self.replicas) }
end

-- Sets `over` and stage_comm. given: as of set. Collective.
function ranks.divide(self, given)
   self.stage_comm = self.comm
   self.over = { sharded = { shards = self.shard_comm, replicas = self.replicas, ep_size = 1,
      mean_scale = 1 } }
   deal_experts(self)
   if self.stage then join_stages(self, given) end
end

return ranks
