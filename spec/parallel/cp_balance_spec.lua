-- Blocks of a packed stream dealt to ranks: the rule written out with counted pairs.

local balance = require 'tide.parallel.cp.balance'

-- What each token of a stream costs: the pairs that it sees, one by one, and `linear`.
local function token_costs(slot, real, m)
   local list = {}
   for i = 1, slot[#slot] do list[i] = m.linear end
   for d = 1, #slot - 1 do
      local n = real[d + 1] - real[d]
      for p = 0, n - 1 do
         for k = 0, n - 1 do
            if p - k <= m.left and k - p <= m.right then
               local at = slot[d] + p + 1
               list[at] = list[at] + 1
            end
         end
      end
   end
   return list
end

local function plain(costs, R, per, want)
   local n = want or math.min(64, math.max(math.floor(per / 32), math.min(8, per)))
   n = math.max(1, math.min(n, per))
   local short, blocks, at = math.floor(per / n), {}, 0
   for i = 1, n * R do
      local len = i <= (per - n * short) * R and short + 1 or short
      local cost = 0
      for t = at + 1, at + len do cost = cost + (costs[t] or 0) end
      blocks[i] = { start = at, len = len, cost = cost, i = i }
      at = at + len
   end
   local hands, load, total = {}, {}, 0
   for r = 1, R do hands[r], load[r] = {}, 0 end
   for _, class in ipairs { short + 1, short } do
      local order, ranks = {}, {}
      for _, b in ipairs(blocks) do if b.len == class then order[#order + 1] = b end end
      for r = 1, R do ranks[r] = r end
      local before = { unpack(load) }
      table.sort(ranks, function(a, b)
         return before[a] < before[b] or before[a] == before[b] and a < b
      end)
      table.sort(order, function(a, b) return a.cost > b.cost or a.cost == b.cost and a.i < b.i end)
      local got = {}
      for r = 1, R do got[r] = {} end
      for k, b in ipairs(order) do
         local row, place = math.floor((k - 1) / R), (k - 1) % R + 1
         local r = ranks[row % 2 == 0 and place or R + 1 - place]
         table.insert(got[r], b)
         load[r] = load[r] + b.cost
      end
      for r = 1, R do
         table.sort(got[r], function(a, b) return a.i < b.i end)
         for _, b in ipairs(got[r]) do table.insert(hands[r], b) end
      end
   end
   for r = 1, R do total = total + load[r] end
   for _ = 1, 16 * R do
      local hi, lo = 1, 1
      for r = 1, R do
         if load[r] > load[hi] then hi = r end
         if load[r] < load[lo] then lo = r end
      end
      local gap, x, y = load[hi] - load[lo], nil, nil
      if gap * R <= total / 10000 then break end
      local best = gap / 2
      for i, a in ipairs(hands[hi]) do
         for j, b in ipairs(hands[lo]) do
            local left = math.abs(gap / 2 - (a.cost - b.cost))
            if a.len == b.len and left < best then best, x, y = left, i, j end
         end
      end
      if not x then break end
      local a, b = hands[hi][x], hands[lo][y]
      hands[hi][x], hands[lo][y] = b, a
      load[hi], load[lo] = load[hi] - a.cost + b.cost, load[lo] + a.cost - b.cost
   end
   local out = {}
   for r = 1, R do
      table.sort(hands[r], function(a, b)
         return a.start < b.start or a.start == b.start and a.len < b.len
      end)
      local runs = {}
      for _, b in ipairs(hands[r]) do
         if #runs > 0 and runs[#runs - 1] + runs[#runs] == b.start then
            runs[#runs] = runs[#runs] + b.len
         else
            runs[#runs + 1], runs[#runs + 2] = b.start, b.len
         end
      end
      out[r] = runs
   end
   return out
end

describe('blocks of a stream', function()
   it('go to ranks as the rule says, written out', function()
      math.randomseed(21)
      for case = 1, 150 do
         local R, per = math.random(1, 4), math.random(1, case % 10 == 0 and 80 or 14)
         local slot, real = { 0 }, { 0 }
         while slot[#slot] < R * per do
            local n = math.random(0, math.min(R * per - slot[#slot], 20))
            slot[#slot + 1] = slot[#slot] + n
            real[#real + 1] = real[#real] + (math.random(3) == 1 and math.random(0, n) or n)
         end
         local given = { causal = math.random(2) == 1, linear = math.random(0, 2) * 1.5,
            window = ({ { 0, 1 }, 2, { 1, -1 }, { -1, 2 } })[math.random(1, 5)] }
         local mask = balance.mask('spec', given)
         local w = given.window
         w = type(w) == 'number' and { w, w } or w or { -1, -1 }
         local left, right = w[1] < 0 and math.huge or w[1], w[2] < 0 and math.huge or w[2]
         if given.causal then right = 0 end
         assert.same({ left = left, right = right, linear = given.linear }, mask)
         local costs, sums = token_costs(slot, real, mask), { 0 }
         for i, c in ipairs(costs) do sums[i + 1] = sums[i] + c end
         for _ = 1, 10 do
            local a = math.random(0, R * per)
            local n = math.random(0, R * per - a)
            assert.equal(sums[a + n + 1] - sums[a + 1],
               balance.cost_of(slot, real, a, n, mask))
         end
         local want = math.random(2) == 1 and math.random(1, 9) or nil
         assert.same(plain(costs, R, per, want),
            balance.assign(slot, real, R, per, mask, want), case)
      end
   end)

   it('lie in the last document that begins at or before them', function()
      local slot = { 0, 3, 3, 3, 7, 9, 9 }
      for g = 0, 8 do
         local d = 1
         for k = 1, #slot - 1 do if slot[k] <= g then d = k end end
         assert.equal(d, balance.document_at(slot, g))
      end
   end)
end)
