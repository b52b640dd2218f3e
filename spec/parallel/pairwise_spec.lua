-- The rows of a pairwise sweep hold every pair of values of any two options.

local pairwise = require 'spec.support.pairwise'

describe('a pairwise sweep', function()
   it('covers every pair with few rows', function()
      for _, sizes in ipairs { { 5, 4, 4, 4 }, { 3, 4, 3, 2, 3 }, { 2, 2 }, { 1, 3 },
         { 7, 2, 5 } } do
         local options, most = {}, 0
         for i, n in ipairs(sizes) do
            local values = {}
            for v = 1, n do values[v] = ('%d.%d'):format(i, v) end
            options[i] = { 'o' .. i, values }
            for k = 1, i - 1 do most = math.max(most, n * sizes[k]) end
         end
         local rows, seen = pairwise(options), {}
         for _, row in ipairs(rows) do
            for i = 1, #sizes do
               for j = i + 1, #sizes do seen[row['o' .. i] .. ' ' .. row['o' .. j]] = true end
            end
         end
         for i = 1, #sizes do
            for j = i + 1, #sizes do
               for a = 1, sizes[i] do
                  for b = 1, sizes[j] do
                     assert.is_true(seen[('%d.%d %d.%d'):format(i, a, j, b)])
                  end
               end
            end
         end
         assert.is_true(#rows <= 1.5 * most)
      end
   end)
end)
