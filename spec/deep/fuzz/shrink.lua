-- A smaller record of choices that still fails (see choice.lua). shrink(record, try, more): try(r)
-- makes the case of a record and returns the record that it really took if the case still fails,
-- else nil; more() is false when there is no time for another try. Returns the smallest found.
--
-- Smaller: fewer choices, then the smaller number at the first difference.

local function smaller(a, b)
   if #a ~= #b then return #a < #b end
   for i = 1, #a do
      if a[i] ~= b[i] then return a[i] < b[i] end
   end
   return false
end

local function without(record, first, n)
   local out = {}
   for i, v in ipairs(record) do
      if i < first or i >= first + n then out[#out + 1] = v end
   end
   return out
end

local function with(record, first, n, value)
   local out = { unpack(record) }
   for i = first, math.min(#record, first + n - 1) do out[i] = value end
   return out
end

return function(record, try, more)
   local best = record

   -- True if the candidate is smaller and fails, too; it is the best from then on.
   local function take(candidate)
      if not more() or not smaller(candidate, best) then return false end
      local took = try(candidate)
      if not took or not smaller(took, best) then return false end
      best = took
      return true
   end

   -- Over blocks of n choices from the end: as `change` makes them.
   local function blocks(change)
      for _, n in ipairs { 16, 8, 4, 2, 1 } do
         local at = #best - n + 1
         while at >= 1 and more() do
            if not take(change(best, at, n)) then at = at - 1 end
            at = math.min(at, #best - n + 1)
         end
      end
   end

   -- Each choice as small as it goes: 0, else by halves.
   local function lower()
      local i = 1
      while i <= #best and more() do
         if best[i] > 0 and not take(with(best, i, 1, 0)) then
            local low = 0                           -- does not fail
            while i <= #best and best[i] - low > 1 and more() do
               local mid = math.floor((low + best[i]) / 2)
               if not take(with(best, i, 1, mid)) then low = mid end
            end
         end
         i = i + 1
      end
   end

   -- The first choices are the largest matters (ranks, sizes), so single ones go first.
   local before
   repeat
      before = best
      lower()
      blocks(without)
      blocks(function(r, at, n) return with(r, at, n, 0) end)
   until best == before or not more()
   return best
end
