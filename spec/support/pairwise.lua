-- Rows of options that cover every pair: for any two options each value of the one meets each value
-- of the other in some row. A sweep over them finds what goes wrong between two options at a cost
-- near the product of the two longest, not of all.
--
--    pairwise { { 'method', { 'ring', 'a2a' } }, { 'ranks', { 1, 2, 3 } }, ... }
--       -> list of { method = .., ranks = .. }
--
-- Greedy and without chance: each row begins with the first pair that no row has yet, and takes for
-- the other options the values that add most new pairs.

local function key(i, a, j, b)
   if i > j then i, a, j, b = j, b, i, a end
   return i .. ' ' .. a .. ' ' .. j .. ' ' .. b
end

local function all_pairs(options)
   local list, left = {}, {}
   for i = 1, #options do
      for j = i + 1, #options do
         for a = 1, #options[i][2] do
            for b = 1, #options[j][2] do
               list[#list + 1] = { i, a, j, b }
               left[key(i, a, j, b)] = true
            end
         end
      end
   end
   return list, left
end

-- The value of option i that makes most new pairs with those that the row has; ties go round.
local function best_value(options, row, left, i, turn)
   local n, best, most = #options[i][2], nil, -1
   for step = 0, n - 1 do
      local a, gain = (turn + step) % n + 1, 0
      for j, b in pairs(row) do
         if left[key(i, a, j, b)] then gain = gain + 1 end
      end
      if gain > most then best, most = a, gain end
   end
   return best
end

return function(options)
   local list, left = all_pairs(options)
   local rows = {}
   for _, p in ipairs(list) do
      if left[key(unpack(p))] then
         local row = { [p[1]] = p[2], [p[3]] = p[4] }
         for i = 1, #options do
            row[i] = row[i] or best_value(options, row, left, i, #rows)
         end
         local named = {}
         for i = 1, #options do
            named[options[i][1]] = options[i][2][row[i]]
            for j = i + 1, #options do left[key(i, row[i], j, row[j])] = nil end
         end
         rows[#rows + 1] = named
      end
   end
   return rows
end
