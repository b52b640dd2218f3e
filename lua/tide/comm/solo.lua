-- The communicator of one rank: reductions are the identity, the rest are copies.
--
-- It has the methods of every communicator (tide.ffi.comm), among them what training code uses:
--   comm.rank (from 0), comm.size
--   comm:all_reduce(t | list, op)   sums over ranks in place, in a fixed rank order
--   comm:broadcast(t | list, root)  in place
--   comm:barrier()

local solo = {}

-- Returns the communicator of one rank; its methods are at the top of this file.
function solo.new() return require('tide.ffi.dist').join() end

return solo
