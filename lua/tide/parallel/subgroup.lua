-- Communicators of ranks that lie at equal distances in another one.
--
-- The parts of a simulated communicator are simulated, too, with the number of neighbours that
-- share a host.

local dist = require 'tide.comm'

local subgroup = {}

-- Returns how many neighbours along a line of ranks share a host of `host` ranks: the shortest full
-- run.
function subgroup.neighbours(ranks, host)
   local least, run = #ranks, 0
   for i, r in ipairs(ranks) do
      run = run + 1
      local after = ranks[i + 1]
      if after and math.floor(after / host) ~= math.floor(r / host) then
         least, run = math.min(least, run), 0
      end
   end
   return least
end

-- Returns the n ranks from `first` on that are `step` apart, of which this one is a member.
local function apart(comm, first, step, n, name)
   local at = (comm.rank - first) / step
   if comm.transport ~= 'sim' then return comm:split(first, at, name) end
   local ranks = {}
   for i = 1, n do ranks[i] = first + (i - 1) * step end
   return dist.simulate(n, at, subgroup.neighbours(ranks, comm.host_size))
end

-- Returns the n consecutive ranks around this one. n divides comm.size. Collective.
function subgroup.near(comm, n, name) return apart(comm, comm.rank - comm.rank % n, 1, n, name) end

-- Returns the ranks with the same place among n consecutive ones. n divides comm.size. Collective.
function subgroup.far(comm, n, name) return apart(comm, comm.rank % n, n, comm.size / n, name) end

return subgroup
