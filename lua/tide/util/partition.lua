-- The optimal linear partition of a list of costs: parts of neighbours of which the largest is as
-- small as it can be, found by bisection on that size.

local dims = require 'tide.util.dims'

-- Returns the last position b with sum[b] - sum[a] <= limit.
local function reach(sum, a, limit)
   local lo, hi = a, #sum
   while lo < hi do
      local mid = math.floor((lo + hi + 1) / 2)
      if sum[mid] - sum[a] <= limit then lo = mid else hi = mid - 1 end
   end
   return lo
end

local function fits(sum, parts, limit)
   local at = 1
   for _ = 1, parts do at = reach(sum, at, limit) end
   return at == #sum
end

-- Returns the least size of the largest of `parts` parts, found exactly: halving ends where no
-- number lies between the two. lo: a size that none is below.
local function least(sum, parts, lo)
   local hi = sum[#sum]
   if fits(sum, parts, lo) then return lo end
   while true do
      local mid = (lo + hi) / 2
      if mid == lo or mid == hi then return hi end
      if fits(sum, parts, mid) then hi = mid else lo = mid end
   end
end

-- Returns the first position of each part if parts are filled from the end: no cut may come before
-- it.
local function earliest(sum, parts, limit)
   local first, at = {}, #sum
   for r = parts, 1, -1 do
      local lo, hi = 1, at
      while lo < hi do
         local mid = math.floor((lo + hi) / 2)
         if sum[at] - sum[mid] <= limit then hi = mid else lo = mid + 1 end
      end
      at = lo
      first[r] = at
   end
   return first
end

-- Bounds of `parts` parts of a list of positive costs in order: the largest sum is least, every
-- part has an element if there are enough (else the first ones have one each), and within that
-- each cut is as near as possible to an even share.
return function(costs, parts)
   local sum, n = dims.cumulative(costs), #costs
   local used, bounds = math.min(parts, n), { 0 }
   local most = 0
   for _, c in ipairs(costs) do most = math.max(most, c) end
   local limit = least(sum, used, most)
   local first, at = earliest(sum, used, limit), 1
   for r = 1, used - 1 do
      local lo = math.max(first[r + 1], at + 1)
      local hi = math.min(reach(sum, at, limit), n + 1 - (used - r))
      local want = sum[n + 1] * r / used
      local cut = lo
      while cut < hi and math.abs(sum[cut + 1] - want) < math.abs(sum[cut] - want) do
         cut = cut + 1
      end
      at = cut
      bounds[r + 1] = cut - 1
   end
   for r = math.max(used, 1), parts do bounds[r + 1] = n end
   return bounds
end
