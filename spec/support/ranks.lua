-- Ranks as threads in specs: ranks.run(n, fn, ...) gives a list of what fn(rank, nrank, ...)
-- returned on each rank (0-based), and raises if one failed; ranks.try(n, fn, ...) returns the rows
-- { status =, message =, values = } and .first; ranks.fail(n, fn, words, ...) raises unless each
-- rank ends with an error and one says `words`. fn must not use upvalues: require inside it.
--
-- Ranks collect garbage at four times the live bytes, as busted does (helper.lua). host.run leaves
-- LuaJIT's pause as it is.

local host = require 'tide.ffi.host'

local M = {}

-- On a rank: runs code, a source text or bytecode.
local function begin(rank, nrank, code, ...)
   collectgarbage('setpause', 400)
   return assert(loadstring(code, '=ranks'))(rank, nrank, ...)
end

local function code_of(fn)
   if type(fn) == 'string' then return 'local rank, nrank = ...\n' .. fn end
   assert(debug.getinfo(fn, 'u').nups == 0, 'fn uses upvalues')
   return string.dump(fn)
end

function M.run(n, fn, ...) return host.run(n, begin, code_of(fn), ...) end

function M.try(n, fn, ...) return host.try(n, nil, begin, code_of(fn), ...) end

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
