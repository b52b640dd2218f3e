-- Ranks as threads in specs: ranks.run(n, fn, ...) gives a list of what fn(rank, nrank, ...)
-- returned on each rank (0-based), and raises if one failed; ranks.try(n, fn, ...) returns the rows
-- { status =, message =, values = } and .first; ranks.fail(n, fn, words, ...) raises unless each
-- rank ends with an error and one says `words`. fn must not use upvalues: require inside it.

local host = require 'tide.ffi.host'

local M = { run = host.run }

function M.try(n, fn, ...) return host.try(n, nil, fn, ...) end

function M.fail(n, fn, words, ...)
   local rows, said = M.try(n, fn, ...), ''
   for _, row in ipairs(rows) do
      if row.status == 'OK' then error('ranks.fail: a rank ended well, expected: ' .. words, 2) end
      said = said .. row.message
   end
   if not said:find(words, 1, true) then
      error(('ranks.fail: expected: %s\nsaid: %s'):format(words, said), 2)
   end
end

return M
