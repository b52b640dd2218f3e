-- Runs a function on N ranks, each a thread with its own Lua state, joined to one group.

local host = require 'tide.ffi.host'
local dist = require 'tide.ffi.dist'

local ranks = {}

-- What each rank runs. A failure is told to the group first, as a launcher does.
local function body(rank, _, address, code, opts, ...)
   local fd = require 'tide.ffi.dist'
   local comm = fd.join(nil, address, rank)
   local fn = assert(loadstring(code))
   if opts.untold then return fn(comm, ...) end
   local result = { pcall(fn, comm, ...) }
   if not result[1] then
      fd.group_at(address):leave(rank, result[2])
      error(result[2], 0)
   end
   return unpack(result, 2, table.maxn(result))
end

-- fn(comm, ...) without upvalues. opts: timeout (of the group), untold (the group is not
-- told of failures). Returns rows { status =, values = | message = }, and .first.
function ranks.try(n, opts, fn, ...)
   opts = opts or {}
   local group = dist.group(n, { timeout = opts.timeout or 300 })
   local rows = host.try(n, { nthread = 1 }, body, group:address(), string.dump(fn),
      { untold = opts.untold }, ...)
   rows.group = group                       -- held until the ranks have joined and ended
   return rows
end

-- The first value of each rank; raises what a rank raised.
function ranks.run(n, fn, ...)
   local rows, values = ranks.try(n, nil, fn, ...), {}
   for i, row in ipairs(rows) do
      if row.status ~= 'OK' then
         error(('rank %d: %s'):format(i - 1, row.message or row.status), 0)
      end
      values[i] = row.values[1]
   end
   return values
end

return ranks
