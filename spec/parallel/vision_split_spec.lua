-- Cutting images and videos into parts: stated vectors, brute force, every small case.

local split = require 'tide.parallel.names.vision_split'
local refused = require 'spec.support.refused'

local function numbers(text)
   local list = {}
   for n in text:gmatch '%-?%d+' do list[#list + 1] = tonumber(n) end
   return list
end

describe('cuts by the published rule', function()
   local rows = {
      { '16', 4, 4, '0 4 8 12 16' }, { '10', 1, 5, '0 2 4 6 8 10' }, { '4 2', 4, 2, '0 4 6' },
      { '3', 2, 3, '0 2 2 3' }, { '24', 4, 3, '0 8 16 24' }, { '8 8', 8, 2, '0 8 16' },
      { '8 4 12', 4, 4, '0 4 12 20 24' }, { '4', 4, 2, '0 4 4' }, { '5', 2, 2, '0 2 5' },
      { '7', 2, 2, '0 4 7' }, { '6', 2, 4, '0 2 4 4 6' }, { '10', 4, 2, '0 4 10' },
      { '10', 4, 3, '0 4 8 10' }, { '12', 4, 2, '0 8 12' }, { '9', 2, 3, '0 4 6 9' },
      { '6 6', 4, 3, '0 4 10 12' }, { '5 5', 2, 4, '0 2 5 7 10' }, { '3 3 3', 2, 3, '0 3 6 9' },
      { '20', 4, 8, '0 4 4 8 8 12 16 16 20' }, { '1', 2, 2, '0 0 1' },
   }
   for _, row in ipairs(rows) do
      it(('of %s frames by %d over %d'):format(row[1], row[2], row[3]), function()
         assert.same(numbers(row[4]), split.points(numbers(row[1]), row[2], row[3]))
      end)
   end

   it('use whole numbers where published code rounds', function()
      -- 122 frames over 14: 7 * 122 / 14 is 61 exactly
      assert.equal(61, split.points({ 122 }, 1, 14)[8])
      assert.equal(115, split.points({ 230 }, 1, 14)[8])
   end)

   it('with empty frames, or not at all', function()
      for _, row in ipairs { { '6', 2, 4, '0 2 4 6 8', 2 }, { '3', 2, 4, '0 2 3 4 6', 3 },
         { '4', 4, 2, '0 4 5', 1 }, { '1', 2, 4, '0 1 2 3 4', 3 },
         { '4 1', 2, 4, '0 2 4 5 8', 3 }, { '3 1', 2, 3, '0 2 3 4', 0 },
         { '', 2, 3, '0 1 2 3', 3 } } do
         local bounds, added = split.compatible(numbers(row[1]), row[2], row[3])
         assert.same(numbers(row[4]), bounds)
         assert.equal(row[5], added)
      end
      assert.is_nil(split.compatible({ 1, 5 }, 3, 3))
      assert.is_nil(split.compatible({ 6 }, 3, 4))
      assert.same({ { 0, 1, 2, 3, 7 }, 0 }, { split.even(7, 4) })
      assert.equal(8, split.even(15, 8)[9] - split.even(15, 8)[8])
   end)

   it('clip videos', function()
      local v = { 8, 4, 12 }
      for _, row in ipairs { { 0, 24, '8 4 12' }, { 0, 8, '8' }, { 8, 16, '4 4' },
         { 5, 15, '3 4 3' }, { 10, 10, '' }, { 100, 200, '' } } do
         assert.same(numbers(row[3]), split.clip(v, row[1], row[2]))
      end
      assert.same({}, split.clip({}, 0, 4))
   end)
end)

describe('cuts by cost', function()
   -- Least largest part over all ways to cut, every part with an element.
   local function brute(costs, parts, first)
      local n = #costs
      if parts == 1 then
         local sum = 0
         for i = first, n do sum = sum + costs[i] end
         return sum
      end
      local best, sum = math.huge, 0
      for i = first, n - parts + 1 do
         sum = sum + costs[i]
         best = math.min(best, math.max(sum, brute(costs, parts - 1, i + 1)))
      end
      return best
   end

   it('are optimal', function()
      local rnd = 3
      for case = 1, 400 do
         local costs, fraction = {}, case % 4 == 0 and 0.37 or 0
         for i = 1, 1 + case % 9 do
            rnd = (rnd * 48271) % 2147483647
            costs[i] = 1 + rnd % 50 + fraction * (rnd % 7)
         end
         for parts = 1, math.min(5, #costs) do
            local bounds, most = split.partition(costs, parts), 0
            assert.equal(parts + 1, #bounds)
            for r = 1, parts do
               local sum = 0
               for i = bounds[r] + 1, bounds[r + 1] do sum = sum + costs[i] end
               assert.is_true(bounds[r + 1] > bounds[r])
               most = math.max(most, sum)
            end
            assert.is_true(math.abs(brute(costs, parts, 1) - most) <= 1e-9)
         end
      end
   end)

   it('lose no frame, cut no tubelet, leave no part empty needlessly: 7008 cases', function()
      local count, fallbacks = 0, 0
      local function check(frames, T, W)
         count = count + 1
         local total, edge, units = 0, { [0] = true }, 0
         for _, n in ipairs(frames) do
            for at = T, n + T - 1, T do
               edge[total + math.min(at, n)] = true
               units = units + 1
            end
            total = total + n
         end
         local bounds, filled = split.balanced(frames, T, W), 0
         if bounds[1] ~= 0 or bounds[W + 1] ~= total or #bounds ~= W + 1 then error 'ends' end
         for r = 1, W do
            if bounds[r + 1] < bounds[r] or not edge[bounds[r + 1]] then error 'cut' end
            filled = filled + (bounds[r + 1] > bounds[r] and 1 or 0)
         end
         if filled ~= math.min(W, units) then error 'empty' end
         local c = split.compatible(frames, T, W)
         if not c then
            fallbacks = fallbacks + 1
         else
            for r = 1, W do
               if c[r + 1] <= c[r] or c[r + 1] <= total and not edge[c[r + 1]] then error 'c' end
            end
            if c[W + 1] < total then error 'lost' end
         end
      end
      for T = 2, 4 do
         for W = 2, 5 do
            for a = 1, 8 do
               check({ a }, T, W)
               for b = 1, 8 do
                  check({ a, b }, T, W)
                  for c = 1, 8 do check({ a, b, c }, T, W) end
               end
            end
         end
      end
      assert.equal(7008, count)
      assert.is_true(fallbacks > 0 and fallbacks < 320)   -- published code leaves 313 parts empty
   end)

   it('or in proportion', function()
      local function bounds(patches, W, alpha)
         local costs = {}
         for i, p in ipairs(patches) do costs[i] = split.frame_cost(p, alpha) end
         return split.proportional(costs, W)
      end
      assert.same({ 0, 2, 3 }, bounds({ 3, 4, 5 }, 2))
      assert.same({ 0, 2, 3 }, bounds({ 1, 1, 2 }, 2))
      assert.same({ 0, 2, 4 }, bounds({ 1, 1, 1, 1 }, 2))
      assert.same({ 0, 2, 4, 6 }, bounds({ 5, 5, 5, 5, 5, 5 }, 3))
      assert.is_nil(bounds({ 1, 1 }, 3))
      local many = {}
      for i = 1, 404 do many[i] = i <= 4 and 1024 or 112 end
      assert.same(numbers '0 1 2 3 36 128 220 312 404', bounds(many, 8, 0))
      assert.same(numbers '0 13 69 125 181 236 292 348 404', bounds(many, 8, 3456))
      refused('E_ARG', "'costs[2]': expected a number > 0", split.proportional, { 1, 0 }, 2)
      for _, row in ipairs { { 4, 4, 96, 23 }, { 8, 4, 96, 22 }, { 92, 4, 96, 1 }, { 96, 4, 96, 0 },
         { 100, 4, 96, 0 }, { 4, 0, 96, 0 } } do
         assert.equal(row[4], split.pad_frames(row[1], row[2], row[3]))
      end
      for _, bad in ipairs { -1, true, 1.5, '96' } do
         refused('E_ARG', 'least_rows', split.pad_frames, 4, 4, bad)
      end
   end)
end)

describe('random cuts', function()
   local rnd = 11
   local function draw(lo, hi)
      rnd = (rnd * 48271) % 2147483647
      return lo + rnd % (hi - lo + 1)
   end
   local function drawn(n, lo, hi)
      local list = {}
      for i = 1, n do list[i] = draw(lo, hi) end
      return list
   end
   local function sum(list, from, to)
      local n = 0
      for i = from or 1, to or #list do n = n + list[i] end
      return n
   end

   -- Whether elements from + 1 and on fill `parts` parts of at most `limit`, none of them empty.
   local function can(costs, from, parts, limit)
      if parts == 0 then return from == #costs end
      for to = from + 1, #costs do
         if sum(costs, from + 1, to) <= limit and can(costs, to, parts - 1, limit) then
            return true
         end
      end
      return false
   end

   it('by cost are the nearest to an even share that the least largest part allows', function()
      for _ = 1, 250 do
         local costs, parts = drawn(draw(0, 7), 1, 4), draw(1, 5)
         local used, limit, want = math.min(parts, #costs), 0, { 0 }
         while not can(costs, 0, used, limit) do limit = limit + 1 end
         for r = 1, used - 1 do
            local at, best = want[r], nil
            for cut = at + 1, #costs do
               local off = math.abs(sum(costs, 1, cut) - sum(costs) * r / used)
               if sum(costs, at + 1, cut) <= limit and can(costs, cut, used - r, limit)
                  and (not best or off < best) then
                  want[r + 1], best = cut, off
               end
            end
         end
         for r = math.max(used, 1), parts do want[r + 1] = #costs end
         assert.same(want, split.partition(costs, parts))
      end
   end)

   it('in proportion lie before the first element that passes the share', function()
      for _ = 1, 200 do
         local costs = drawn(draw(1, 9), 1, 5)
         local parts = draw(1, #costs)
         local want = { 0 }
         for r = 1, parts - 1 do
            local at = 0
            while at < #costs and sum(costs, 1, at + 1) * parts <= r * sum(costs) do
               at = at + 1
            end
            want[r + 1] = math.max(want[r] + 1, math.min(at, #costs - (parts - r)))
         end
         want[parts + 1] = #costs
         assert.same(want, split.proportional(costs, parts))
      end
   end)

   it('of videos: tubelets, parts and costs of frames', function()
      for _ = 1, 200 do
         local videos, T, parts = drawn(draw(0, 4), 0, 7), draw(1, 4), draw(1, 5)
         local total, units, costs, lb = sum(videos), {}, {}, draw(0, 9)
         local ub, inside, first = lb + draw(0, 9), {}, 0
         for i, n in ipairs(videos) do
            inside[i] = 0
            for f = 0, n - 1 do
               if f % T == 0 then units[#units + 1] = 0 end
               units[#units] = units[#units] + 1
               if first + f >= lb and first + f < ub then inside[i] = inside[i] + 1 end
            end
            first = first + n
         end
         for i = #inside, 1, -1 do if inside[i] == 0 then table.remove(inside, i) end end
         assert.same(units, split.units(videos, T))
         assert.same(inside, split.clip(videos, lb, ub))
         local of_units, at = {}, 0
         for f = 1, total do costs[f] = draw(1, 5) end
         for u, n in ipairs(units) do
            of_units[u], at = sum(costs, at + 1, at + n), at + n
         end
         for _, given in ipairs { false, costs } do
            local want = split.partition(given and of_units or units, parts)
            for r, u in ipairs(want) do want[r] = sum(units, 1, u) end
            assert.same(want, split.balanced(videos, T, parts, given or nil))
         end
      end
   end)

   it('by the published rule are at the nearest edge, an even one of two', function()
      for _ = 1, 300 do
         local videos, T, parts = drawn(draw(1, 4), 0, 12), draw(1, 5), draw(1, 6)
         local total, want = sum(videos), { 0 }
         for r = 1, parts - 1 do
            local t, a, near, best = math.floor(r * total / parts), 0, nil, math.huge
            for _, n in ipairs(videos) do
               local b = a + n
               if t == a or t == b then near, best = t, -1 end
               if t > a and t < b and best > 0 then
                  local edges = {}
                  for e = a + T, b - 1, T do edges[#edges + 1] = { e, (e - a) / T % 2 } end
                  if not edges[1] then edges = { { a, 1 }, { b, 0 } } end
                  for _, e in ipairs(edges) do
                     local off = math.abs(e[1] - t) + e[2] / 4
                     if off < best then near, best = e[1], off end
                  end
               end
               a = b
            end
            want[r + 1] = math.max(want[r], near)
         end
         want[parts + 1] = total
         assert.same(want, split.points(videos, T, parts))
      end
   end)

   it('of images are even, the last part taking what is left', function()
      for n = 0, 12 do
         for parts = 1, 6 do
            local bounds, added = split.even(n, parts)
            assert.equal(math.max(0, parts - n), added)
            for r = 0, parts - 1 do
               assert.equal(r * math.floor((n + added) / parts), bounds[r + 1])
            end
            assert.equal(n + added, bounds[parts + 1])
            assert.equal(parts + 1, #bounds)
         end
      end
      assert.equal(6, split.frame_cost(2, 1))
      assert.equal(4, split.frame_cost(2))
      for rows = 0, 9 do
         for per = 0, 3 do
            for least = 0, 9 do
               local added, want = 0, split.pad_frames(rows, per, least)
               while per > 0 and rows + added * per < least do added = added + 1 end
               assert.equal(added, want)
            end
         end
      end
   end)
end)
