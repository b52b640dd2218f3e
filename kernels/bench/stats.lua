-- Order statistics over lists of numbers.

local stats = {}

-- Value below which the part q of the list lies, by linear interpolation; nan of nothing.
function stats.quantile(list, q)
   local v = {}
   for _, x in ipairs(list) do
      if x == x then v[#v + 1] = x end
   end
   if #v == 0 then return 0 / 0 end
   table.sort(v)
   local at = q * (#v - 1) + 1
   local i = math.floor(at)
   if i >= #v then return v[#v] end
   return v[i] + (at - i) * (v[i + 1] - v[i])
end

function stats.median(list) return stats.quantile(list, 0.5) end

return stats
