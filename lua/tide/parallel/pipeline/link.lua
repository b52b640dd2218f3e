-- What two neighbouring stages of a pipeline send each other: hidden states forward, gradients
-- back. Both ends make the same calls in the same order.

local tide = require 'tide'
local dist = require 'tide.comm'

local link = {}

-- Tensors that are under way at a time: their bytes stay until they have arrived.
local most = 2

local Link = {}
Link.__index = Link

-- Returns the communicator of stages 2k + odd and 2k + odd + 1 where this stage is one of them; nil
-- at an end of the pipeline, which gets no communicator of its own: to drop one waits for all work
-- of the device. Collective.
local function pair(comm, odd)
   local first = comm.rank - (comm.rank + odd) % 2
   local is_pair = first >= 0 and first + 1 < comm.size
   if comm.transport == 'sim' then
      return is_pair and dist.simulate(2, comm.rank - first, comm.host_size > 1 and 2 or 1) or nil
   end
   return comm:split(is_pair and first + 1 or nil, comm.rank - first, 'pipeline')
end

-- Returns the link over a communicator of two stages.
local function new(comm) return comm and setmetatable({ comm = comm, sent = {} }, Link) end

-- Returns the links to the stage before and after; nil at an end. comm: of all stages. Collective.
function link.both(comm)
   local even, odd = pair(comm, 0), pair(comm, 1)
   if comm.rank % 2 == 0 then return new(odd), new(even) end
   return new(even), new(odd)
end

-- Returns an empty tensor that fits `like` { shape, dtype, device }.
local function empty(like)
   return tide.empty(like.shape, { dtype = like.dtype, device = like.device })
end

-- Sends t, or nothing (nil), and receives a tensor like `like`, or nothing (nil). Returns what it
-- received. What is only sent travels while the stage goes on.
function Link:exchange(t, like)
   local other, got = 1 - self.comm.rank, like and empty(like)
   if t then t = t:contiguous() end
   if got then
      return self.comm:send_recv(got, other, t, t and other)
   end
   if #self.sent == most then table.remove(self.sent, 1):wait() end
   self.sent[#self.sent + 1] = self.comm:send_recv(nil, nil, t, other, { async = true })
end

-- Blocks until the other end has received all that was sent.
function Link:flush()
   for _, work in ipairs(self.sent) do work:wait() end
   self.sent = {}
end

-- Sends a plain value (from the stage before) or receives it (value nil).
function Link:tell(value)
   if self.comm.transport == 'sim' then return value end
   return self.comm:broadcast_object(value, 0)
end

link.empty = empty

return link
