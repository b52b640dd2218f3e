-- A call that must raise an error of the library: raised(fn, ...) returns it. Where code and words
-- are known beforehand: refused.lua.

local tide = require 'tide'

return function(fn, ...)
   local ok, e = pcall(fn, ...)
   if ok then error('raised: nothing was raised', 2) end
   local library = type(e) == 'table' and e.code and e.op    -- raised by lua/tide
   if not tide.is_error(e) and not library then
      error('raised: not an error of tide: ' .. tostring(e), 2)
   end
   return e
end
