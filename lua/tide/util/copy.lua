-- copy(t): a new table with the fields of t; copy(t, into) writes them into a table and returns it.
-- The values are shared.

local each = require 'tide.util.each'

return function(t, into)
   into = into or {}
   for k, v in each(t) do into[k] = v end
   return into
end
