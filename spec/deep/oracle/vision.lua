-- Splits of images and videos over ranks by their definitions, in whole numbers.

local vision = {}

local function gcd(a, b)
   while b ~= 0 do a, b = b, a % b end
   return a
end

-- What a sequence is padded to a multiple of. o: cp, tp, sp, block (1: no FP8), first (only the
-- first of context parallelism, sequence parallelism and FP8 counts).
function vision.multiple(o)
   if o.first then
      if o.cp > 1 then return 2 * o.cp * (o.sp and o.tp or 1) end
      return o.sp and o.tp or o.block
   end
   local halves = o.cp > 1 and 2 or 1
   return o.cp * (o.sp and o.tp or 1) * halves * o.block / gcd(halves, o.block)
end

-- Frames of each tubelet of T frames.
function vision.units(frames, T)
   local list = {}
   for _, n in ipairs(frames) do
      while n > 0 do
         list[#list + 1] = math.min(n, T)
         n = n - T
      end
   end
   return list
end

-- The least size of the largest of `parts` parts in order, none empty if that can be.
function vision.least(costs, parts)
   local n = #costs
   parts = math.min(parts, n)
   local best = { [0] = { [0] = 0 } }
   for p = 1, parts do
      best[p] = {}
      for last = p, n do
         local sum, least = 0, math.huge
         for first = last, p, -1 do
            sum = sum + costs[first]
            local before = best[p - 1][first - 1]
            if before then least = math.min(least, math.max(before, sum)) end
         end
         best[p][last] = least
      end
   end
   return best[parts][n]
end

-- Frame indices at even counts moved to the edge of a tubelet, with the rules of published code.
function vision.points(frames, T, W)
   local edges, total = { 0 }, 0
   for i, n in ipairs(frames) do
      total = total + n
      edges[i + 1] = total
   end
   local function point(t)
      for _, e in ipairs(edges) do
         if t == e then return t end
      end
      local i = 1
      while i < #frames and edges[i + 1] <= t do i = i + 1 end
      local a, b = edges[i], edges[i + 1]
      local n = math.ceil((b - a) / T)
      if n <= 1 then return t - a < b - t and a or b end
      local k = math.floor((t - a) / T)
      local rest = (t - a) / T - k
      if rest > 0.5 or rest == 0.5 and k % 2 == 1 then k = k + 1 end
      return math.min(a + math.max(1, math.min(k, n - 1)) * T, b)
   end
   local list = { 0 }
   for r = 1, W - 1 do list[r + 1] = math.max(list[r], point(math.floor(r * total / W))) end
   list[W + 1] = total
   return list
end

-- Cut r lies before the first frame whose running cost exceeds r / W of the whole; each part has
-- one. nil with fewer frames than parts.
function vision.proportional(costs, W)
   local n, sum = #costs, { 0 }
   if n < W then return nil end
   for i, cost in ipairs(costs) do sum[i + 1] = sum[i] + cost end
   local list = { 0 }
   for r = 1, W - 1 do
      local at = n
      for i = n, 1, -1 do
         if sum[i + 1] * W > r * sum[n + 1] then at = i - 1 end
      end
      list[r + 1] = math.max(list[r] + 1, math.min(at, n - (W - r)))
   end
   list[W + 1] = n
   return list
end

return vision
