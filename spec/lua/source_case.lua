-- Random ids for specs of token sources.

local little = require 'tide.util.little'

local case = {}

-- n ids below 256 ^ width (2^31 at most), as a list and as bytes, and a mask.
function case.some(pick, n, width)
   local ids, text, mask = {}, {}, {}
   for i = 1, n do
      ids[i] = pick:int(0, math.min(256 ^ width, 2 ^ 31) - 1)
      text[i] = little.write(ids[i], width)
      mask[i] = pick:chance(0.6) and '\1' or '\0'
   end
   return ids, table.concat(text), table.concat(mask)
end

return case
