-- What two neighbouring ranks of a pipeline send each other: hidden states forward, gradients
-- back. Both ends make the same calls in the same order.

local tide = require 'tide'
local dist = require 'tide.comm'

local link = {}

-- Tensors that are under way at a time: their bytes stay until they have arrived.
local most = 2

local Link = {}
Link.__index = Link

-- Returns the communicator of two ranks, of which the one with index 0 sends hidden states to the
-- other; nil on a rank that is not one of them. index: of this rank, or nil; color: equal on the
-- two ranks; reach: how many neighbours lie on one host if these two do. Collective.
local function pair(comm, index, color, reach)
   if comm.transport == 'sim' then
      return index and dist.simulate(2, index, comm.host_size >= reach and 2 or 1) or nil
   end
   return comm:split(index and color, index or 0, 'pipeline')
end

-- Returns the link over a communicator of two ranks.
local function new(comm) return comm and setmetatable({ comm = comm, sent = {} }, Link) end

-- Returns the communicator of ranks 2k + odd and 2k + odd + 1 where this rank is one of them; nil
-- at an end, which gets no communicator of its own: to drop one waits for all work of the device.
-- Collective.
local function neighbours(comm, odd)
   local first = comm.rank - (comm.rank + odd) % 2
   local is_pair = first >= 0 and first + 1 < comm.size
   return pair(comm, is_pair and comm.rank - first or nil, first + 1, 2)
end

-- Returns the links to the rank before and the one after; nil at an end. is_ring: the last rank has
-- one to the first. comm: of all ranks. Collective.
function link.both(comm, is_ring)
   local even, odd = new(neighbours(comm, 0)), new(neighbours(comm, 1))
   local before, after = odd, even
   if comm.rank % 2 == 1 then before, after = even, odd end
   if not is_ring then return before, after end
   local is_first, is_last = comm.rank == 0, comm.rank == comm.size - 1
   local ring = new(pair(comm, is_last and 0 or is_first and 1 or nil, 1, comm.size))
   return is_first and ring or before, is_last and ring or after
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

-- Returns what a tensor like t has, as Link:exchange takes it.
function link.like(t) return { shape = t.shape, dtype = t.dtype, device = t.device } end

link.empty = empty

return link
