-- Bins of one size for things of given lengths: the order in which they are placed, and best fit.

local bins = {}

-- Sorts a list of indices into lengths: the longest first, equal ones by index. Returns it.
function bins.longest_first(order, lengths)
   table.sort(order, function(a, b)
      if lengths[a] ~= lengths[b] then return lengths[a] > lengths[b] end
      return a < b
   end)
   return order
end

-- Assigns each index of `order` to the fullest bin that has room, or to a new one. Returns the bins
-- as lists of indices.
function bins.fullest(lengths, order, size)
   local list, free = {}, {}
   for _, i in ipairs(order) do
      local best
      for b = 1, #list do
         if free[b] >= lengths[i] and (not best or free[b] < free[best]) then best = b end
      end
      if not best then
         best = #list + 1
         list[best], free[best] = {}, size
      end
      list[best][#list[best] + 1] = i
      free[best] = free[best] - lengths[i]
   end
   return list
end

return bins
