-- axis_of(op, name, v, plain): the ranks that argument `name` of op says.
--
-- v is an axis of a mesh or a communicator. Returns the communicator, the number of ranks and this
-- one's among them, from 0. plain: the caller communicates nothing, so that size and rank alone
-- will do; the first result is then v itself.

local err = require 'tide.util.err'

local function talks(v)
   return type(v) == 'table' and type(v.all_reduce) == 'function'
end

return function(op, name, v, plain)
   local comm = talks(v) and v or type(v) == 'table' and talks(v.comm) and v.comm or nil
   if type(v) ~= 'table' or type(v.size) ~= 'number' or type(v.rank) ~= 'number'
      or not (comm or plain) then
      err.arg(op, name, 'an axis of a mesh or a communicator', v)
   end
   return comm or v, v.size, v.rank
end
