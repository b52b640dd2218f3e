-- What the stages of a pipeline do together beside calls of the model: sums, whole states, and the
-- weight that the first and the last one share. Methods of a stage (stage.lua).

local tide = require 'tide'
local copy = require 'tide.util.copy'
local dist = require 'tide.comm'
local schedule = require 'tide.parallel.pipeline.schedule'
local sorted_keys = require('tide.util.pretty').sorted_keys

local across = {}

-- Returns whether the first and the last stage share a parameter.
function across:is_tied(t) return self.tied ~= nil and t.id == self.tied.id end

-- Returns the communicator of the ranks of `replicas` on the first stage and on the last one; on a
-- stage between of those of this stage. root: the communicator of the mesh. Collective.
function across:ends(root, replicas)
   local n = replicas.size
   if root.transport == 'sim' then
      if not (self.first or self.last) then return replicas end
      return dist.simulate(2 * n, (self.last and n or 0) + replicas.rank)
   end
   local each = root.size / self.size                  -- the axis pp is the outermost
   local place = root.rank % each
   for _, r in ipairs(n > 1 and replicas:all_gather_object(place) or {}) do
      place = math.min(place, r)
   end
   local is_end = self.first or self.last
   return root:split((is_end and 0 or self.rank) * each + place, root.rank, 'tied')
end

-- Returns the share of a step of n micro-batches in which a stage waits, if all take equally long.
function across:idle(n)
   return schedule.idle { size = self.size, virtual = self.virtual, n = n, first = 0 }
end

-- Returns a list of the plain values that the stages give. Collective.
function across:gather(value)
   if self.comm.transport == 'sim' then return { value } end
   return self.comm:all_gather_object(value)
end

-- Returns the tensors of all stages by name. state: those of this one; device: of the others.
-- Collective.
function across:joined(state, device)
   local mine, out = {}, copy(state)
   for _, name in ipairs(sorted_keys(state)) do
      mine[#mine + 1] = { name = name, shape = state[name].shape, dtype = state[name].dtype }
   end
   for s, list in ipairs(self.comm:all_gather_object(mine)) do
      for _, row in ipairs(list) do
         local t = s - 1 == self.rank and state[row.name]:contiguous()
            or tide.empty(row.shape, { dtype = row.dtype, device = device })
         self.comm:broadcast(t, s - 1)
         out[row.name] = out[row.name] or t
      end
   end
   return out
end

-- Returns the element-wise sums of a list of numbers over the stages. Collective.
function across:sum(numbers) return dist.sum(self.comm, numbers) end

return across
