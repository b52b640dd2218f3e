-- Index maps of sharded sequences: stated vectors, bijectivity, a slow twin that cuts chunk lists,
-- shard and gather, padding rules, work and balance, refusals.

local tide = require 'tide'
local cp_map = require 'tide.parallel.cp.map'
local balance = require 'tide.parallel.cp.balance'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'

local function numbers(text)
   local list = {}
   for n in text:gmatch '%-?%d+' do list[#list + 1] = tonumber(n) end
   return list
end

local function cu_of(lengths)
   local cu = { 0 }
   for i, n in ipairs(lengths) do cu[i + 1] = cu[i] + n end
   return cu
end

-- ---- the slow twin: lists of chunks ----------------------------------------------------------

local function twin_zigzag(cu, W, r)
   local out = {}
   for d = 1, #cu - 1 do
      local chunks, c = {}, (cu[d + 1] - cu[d]) / (2 * W)
      for k = 0, 2 * W - 1 do
         chunks[k] = {}
         for i = 0, c - 1 do chunks[k][i + 1] = cu[d] + k * c + i end
      end
      for _, k in ipairs { r, 2 * W - 1 - r } do
         for _, g in ipairs(chunks[k]) do out[#out + 1] = g end
      end
   end
   return out
end

local function twin_order(plan)
   local out = {}
   for r = 0, plan.size - 1 do
      if plan.kind == 'contiguous' then
         for i = 0, plan.count - 1 do out[#out + 1] = r * plan.count + i end
      else
         for _, g in ipairs(twin_zigzag(plan.cut, plan.size, r)) do out[#out + 1] = g end
      end
   end
   return out
end

-- Pairs a query at position p of n sees, counted one by one.
local function twin_pairs(p, n, causal, left, right)
   local count = 0
   for k = 0, n - 1 do
      local d = p - k
      if (not causal or d >= 0) and (left < 0 or d <= left) and (right < 0 or -d <= right) then
         count = count + 1
      end
   end
   return count
end

describe('head-tail', function()
   local rows = {
      { '8', 2, '0 1 6 7 ; 2 3 4 5' },
      { '12', 2, '0 1 2 9 10 11 ; 3 4 5 6 7 8' },
      { '16', 2, '0 1 2 3 12 13 14 15 ; 4 5 6 7 8 9 10 11' },
      { '16', 4, '0 1 14 15 ; 2 3 12 13 ; 4 5 10 11 ; 6 7 8 9' },
      { '24', 3, '0 1 2 3 20 21 22 23 ; 4 5 6 7 16 17 18 19 ; 8 9 10 11 12 13 14 15' },
      { '32', 4, '0 1 2 3 28 29 30 31 ; 4 5 6 7 24 25 26 27 ; 8 9 10 11 20 21 22 23 ; '
         .. '12 13 14 15 16 17 18 19' },
      { '8', 4, '0 7 ; 1 6 ; 2 5 ; 3 4' },
      { '8 8', 2, '0 1 6 7 8 9 14 15 ; 2 3 4 5 10 11 12 13' },
      { '8 4', 2, '0 1 6 7 8 11 ; 2 3 4 5 9 10' },
      { '4 8 4', 2, '0 3 4 5 10 11 12 15 ; 1 2 6 7 8 9 13 14' },
      { '12 12', 3, '0 1 10 11 12 13 22 23 ; 2 3 8 9 14 15 20 21 ; 4 5 6 7 16 17 18 19' },
      { '8 16 16', 4, '0 7 8 9 22 23 24 25 38 39 ; 1 6 10 11 20 21 26 27 36 37 ; '
         .. '2 5 12 13 18 19 28 29 34 35 ; 3 4 14 15 16 17 30 31 32 33' },
   }
   for _, row in ipairs(rows) do
      it(('of documents %s over %d'):format(row[1], row[2]), function()
         local want = {}
         for part in (row[3] .. ' ;'):gmatch '(.-);' do want[#want + 1] = numbers(part) end
         for r = 0, row[2] - 1 do
            local cu = cu_of(numbers(row[1]))
            local plan = cp_map.new { kind = 'document', size = row[2], rank = r, cu = cu }
            assert.same(want[r + 1], plan:index('i64'):tolist())
            assert.same(want[r + 1], plan:index('i32'):tolist())
            if #cu == 2 then
               local one = cp_map.new { kind = 'zigzag', size = row[2], rank = r, length = cu[2] }
               assert.same(want[r + 1], one:index():tolist())
            end
         end
      end)
   end
end)

describe('a thousand random plans', function()
   it('agree with chunk lists, position by position, forward and inverse', function()
      local rnd = 11
      local function random(n)
         rnd = (rnd * 48271) % 2147483647
         return rnd % n
      end
      for case = 1, 1000 do
         local W = 1 + random(8)
         local kind = ({ 'contiguous', 'zigzag', 'document', 'balanced' })[1 + random(4)]
         local lengths = {}
         for d = 1, 1 + random(5) do lengths[d] = random(25) end
         local cu = cu_of(lengths)
         local length = cu[#cu] + random(3) * random(4)
         local plan = cp_map.new { kind = kind, size = W, rank = random(W), cu = cu,
            length = length, tp = 1 + random(2) }
         local order = plan:order():tolist()
         local what = ('case %d: %s'):format(case, tostring(plan))
         if kind ~= 'balanced' and W > 1 then assert.same(twin_order(plan), order, what) end
         local restore, at = plan:restore('i32'):tolist(), 0
         for r = 0, W - 1 do
            local mine = plan:index('i64', 'cpu', r):tolist()
            assert.equal(plan.count, #mine, what)
            for i, g in ipairs(mine) do
               at = at + 1
               if order[at] ~= g or restore[g + 1] ~= at - 1 or plan:position(r, i - 1) ~= g then
                  error(what)
               end
               local rank, place = plan:place(g)
               if rank ~= r or place ~= i - 1 then error(what) end
            end
         end
         assert.equal(plan.padded, at, what)
         if length > 0 then
            local x = tide.arange(length, { dtype = 'i64' })
            local parts = {}
            for r = 0, W - 1 do parts[r + 1] = plan:shard(x, 1, -1, r) end
            local all = tide.cat(parts, 1)
            assert.is_true(plan:unshard(all, 1):equal(x), what)
            assert.is_true(all:index_select(1, plan:restore()):equal(plan:pad(x, 1, -1)), what)
         end
      end
   end)

   it('are bijections for up to 16 ranks', function()
      for W = 1, 16 do
         for _, kind in ipairs { 'contiguous', 'zigzag', 'document', 'balanced' } do
            local plan = cp_map.new { kind = kind, size = W, cu = { 0, 1, 1, 40, 97 } }
            local seen, n = {}, 0
            for _, g in ipairs(plan:order():tolist()) do
               assert.is_true(g >= 0 and g < plan.padded and not seen[g])
               seen[g], n = true, n + 1
            end
            assert.equal(plan.padded, n)
         end
      end
   end)

   it('carry document and position of every token', function()
      for _, kind in ipairs { 'contiguous', 'zigzag', 'document', 'balanced' } do
         local plan = cp_map.new { kind = kind, size = 3, cu_real = { 0, 3, 3, 8 },
            cu_slot = { 0, 4, 5, 14 }, length = 16 }
         local doc = { 0, 0, 0, -1, -1, 2, 2, 2, 2, 2, -1, -1, -1, -1, -1, -1 }
         local x = tide.tensor(doc, { dtype = 'i64' })
         for r = 0, 2 do
            local got = plan:document_index('cpu', r):select(3, 1):select(1, 1):to 'i64'
            assert.same(plan:shard(x, 1, -1, r):tolist(), got:tolist())
         end
         local pairs_ = plan:documents():tolist()[1]
         local at = plan:restore():tolist()
         assert.equal(plan.padded, #pairs_)
         assert.equal(#at, #pairs_)
      end
   end)
end)

describe('padding', function()
   it('is what the rules ask for', function()
      for _, row in ipairs { { 5, 2, 8 }, { 6, 2, 8 }, { 8, 2, 8 }, { 12, 2, 12 }, { 13, 2, 16 },
         { 10, 4, 16 }, { 1, 2, 4 }, { 100, 8, 112 }, { 1000, 3, 1002 } } do
         assert.equal(row[3], cp_map.new { size = row[2], length = row[1] }.padded)
      end
      for _, row in ipairs { { 10, 4, 12 }, { 5, 2, 6 }, { 13, 2, 14 }, { 100, 8, 104 } } do
         assert.equal(row[3],
            cp_map.new { kind = 'contiguous', size = row[2], length = row[1] }.padded)
      end
   end)

   it('satisfies all rules at once', function()
      assert.equal(12, cp_map.multiple { size = 2, halves = 2, multiple = 3 })
      assert.equal(64, cp_map.multiple { size = 4, halves = 2, block = 16 })
      assert.equal(96, cp_map.multiple { size = 2, halves = 2, tp = 3, block = 16 })
      for _, kind in ipairs { 'contiguous', 'zigzag', 'document', 'balanced' } do
         local plan = cp_map.new { kind = kind, size = 3, cu = { 0, 7, 50 }, tp = 2, block = 16 }
         assert.equal(0, plan.count % 32)
      end
   end)

   it('of documents stays inside each of them', function()
      local plan = cp_map.new { kind = 'document', size = 2, cu = { 0, 3, 5, 9 } }
      assert.same({ 0, 4, 8, 12 }, plan.cu_slot)
      assert.same({ 0, 3, 5, 9 }, plan.cu_real)
      for _, row in ipairs { { { 0, 3, 5, 9 }, 4, { 0, 8, 16, 24 } },
         { { 0, 2, 9, 13, 23 }, 3, { 0, 6, 18, 24, 36 } },
         { { 0, 7, 18, 23 }, 2, { 0, 8, 20, 28 } } } do
         assert.same(row[3],
            cp_map.new { kind = 'document', size = row[2], cu = row[1] }.cu_slot)
      end
      local ids = tide.tensor({ 1, 1, 2, 2, 2 }, { dtype = 'i64' })
      local two = cp_map.new { kind = 'document', size = 2, cu = { 0, 2, 5 } }
      assert.same({ 1, 1, 0, 0, 2, 2, 2, 0 }, two:pad(ids, 1, 0):tolist())
      assert.same({ 1, 0, 2, 0 }, two:shard(ids, 1, 0):tolist())
   end)

   it('keeps dtype and accepts booleans', function()
      local plan = cp_map.new { size = 2, rank = 0, length = 6 }
      local mask = tide.tensor({ { true, false, true, true, false, true } })
      assert.same({ { true, false, true, true } }, plan:shard(mask, 2, true):tolist())
      assert.equal('bool', plan:shard(mask, -1, false).dtype)
      local x = tide.tensor({ 0, 1, 2, 3, 4, 5 })
      assert.same({ 0, 1, 0, 0 }, plan:shard(x, 1, 0):tolist())
      local c = cp_map.new { kind = 'contiguous', size = 2, rank = 0, length = 6, multiple = 8 }
      assert.same({ 0, 1, 2, 3 }, c:shard(tide.tensor({ 0, 1, 2, 3, 4, 5 }), 1, -1):tolist())
   end)

   it('holds more ranks than tokens, and none', function()
      for _, kind in ipairs { 'contiguous', 'zigzag', 'document', 'balanced' } do
         for length = 0, 3 do
            local plan = cp_map.new { kind = kind, size = 5, length = length }
            local x, parts = tide.arange(length), {}
            for r = 0, 4 do parts[r + 1] = plan:shard(x, 1, 9, r) end
            assert.is_true(plan:unshard(tide.cat(parts, 1), 1):equal(x))
         end
      end
   end)
end)

describe('a custom index', function()
   it('is kept as it is given', function()
      local plan = cp_map.new { kind = 'custom', size = 2, rank = 1, length = 4,
         index = { 3, 0, 1, 2 } }
      assert.same({ 1, 2 }, plan:index():tolist())
      assert.same({ 1, 2, 3, 0 }, plan:restore():tolist())
      assert.equal(0, (select(2, plan:place(3))))
      assert.equal(3, plan:position(0, 0))
      local x = tide.tensor { 10, 20, 30, 40 }
      assert.same({ 40, 10 }, plan:shard(x, 1, 0, 0):tolist())
   end)

   it('is runs of positions that follow one another', function()
      local plan = cp_map.new { kind = 'custom', size = 2, length = 6,
         index = { 4, 2, 3, 0, 1, 5 } }
      assert.same({ { 4, 1, 2, 2 }, { 0, 2, 5, 1 } }, { plan:runs(0), plan:runs(1) })
   end)

   it('must be a permutation of the padded length', function()
      local function new(index)
         return cp_map.new { kind = 'custom', size = 2, length = 4, index = index }
      end
      refused('E_ARG', 'twice', new, { 0, 1, 1, 3 })
      refused('E_ARG', 'outside', new, { 0, 1, 2, 4 })
      refused('E_ARG', 'index', new, { 0, 1, 2 })
      refused('E_ARG', 'index', new, nil)
      refused('E_ARG', 'index', cp_map.new, { kind = 'zigzag', length = 4, index = { 0, 1 } })
   end)
end)

describe('index tensors', function()
   it('outlive step scopes', function()
      for _, kind in ipairs { 'zigzag', 'balanced', 'document' } do
         local plan = cp_map.new { kind = kind, size = 2, rank = 1, cu = { 0, 5, 9 } }
         local x, want = tide.arange(9), nil
         for _ = 1, 3 do
            tide.scope(function()
               local got = { plan:shard(x, 1, -1):tolist(), plan:document_index():tolist(),
                  plan:unshard(tide.arange(plan.padded), 1):tolist() }
               want = want or got
               assert.same(want, got)
            end)
         end
      end
   end)

   it('are shapes alone on the null device', function()
      local plan = cp_map.new { size = 2, rank = 1, length = 6 }
      local x = tide.zeros({ 2, 6 }, { device = 'null' })
      assert.same({ 2, 4 }, plan:shard(x, 2, 0).shape)
      assert.equal('null', plan:shard(x, 2, 0).device)
   end)

   -- Ten times as many tokens and documents: processor time that grew with their square would
   -- grow a hundredfold.
   it('of long streams take time in proportion', function()
      local function span(kind, n)
         local cu, best = { 0 }, math.huge
         for i = 1, n do cu[i + 1] = cu[i] + (i % 2 == 0 and 112 or 96) end
         for _ = 1, 9 do
            local t = os.clock()
            local plan = cp_map.new { kind = kind, size = 8, rank = 3, cu = cu }
            plan:index()
            plan:restore()
            plan:document_index()
            best = math.min(best, os.clock() - t)
         end
         return best
      end
      for _, kind in ipairs { 'document', 'balanced' } do
         local short, long = span(kind, 1000), span(kind, 10000)
         assert.is_true(long < 40 * short, ('%s: %g ms, then %g ms'):format(kind, short * 1e3,
            long * 1e3))
      end
   end)
end)

describe('work', function()
   it('is counted as a loop over all pairs counts it', function()
      local real, slot = { 0, 5, 5, 16, 17 }, { 0, 6, 7, 20, 24 }
      for _, m in ipairs { { true }, { false }, { true, 3 }, { false, { 2, 4 } },
         { true, { 0, -1 } }, { false, { -1, 1 } } } do
         local w = type(m[2]) == 'number' and { m[2], m[2] } or m[2] or { -1, -1 }
         for _, kind in ipairs { 'contiguous', 'zigzag', 'document', 'balanced' } do
            local plan = cp_map.new { kind = kind, size = 3, cu_real = real, cu_slot = slot }
            local cost = plan:cost { causal = m[1], window = m[2] }
            local all = plan:documents():tolist()[1]
            for r = 0, 2 do
               local want = 0
               for _, g in ipairs(plan:index('i64', 'cpu', r):tolist()) do
                  local d, p = all[g + 1][1], all[g + 1][2]
                  if d >= 0 then
                     want = want + twin_pairs(p, plan.cu_real[d + 2] - plan.cu_real[d + 1], m[1],
                        w[1], w[2])
                  end
               end
               assert.equal(want, cost[r + 1])
            end
         end
      end
   end)

   it('is even: causal head-tail, and packed documents of any length', function()
      for _, W in ipairs { 2, 4, 8, 16 } do
         assert.is_true(cp_map.new { size = W, length = 8192 }:imbalance() <= 1 + 1e-12)
         for seed = 1, 12 do
            local rnd, cu = seed * 7919, { 0 }
            repeat
               rnd = (rnd * 48271) % 2147483647
               cu[#cu + 1] = cu[#cu] + math.floor(16000 ^ (rnd / 2147483647)) + 1
            until cu[#cu] > 60000
            for _, mask in ipairs { {}, { window = 512 }, { causal = false },
               { linear = 3000 } } do
               local plan = cp_map.new { kind = 'balanced', size = W, cu = cu, mask = mask }
               local even = plan:imbalance()
               assert.is_true(even <= 1.01, ('%d ranks: %g'):format(W, even))
            end
         end
      end
   end)

   it('is dealt to and fro', function()
      local costs = { 9, 14, 2, 20, 10, 15, 8, 14, 16, 19, 15, 3, 12, 1, 12, 10 }
      local function dealt(list, n)           -- counted from 0
         local groups = cp_map.deal(list, n)
         for _, group in ipairs(groups) do
            for k, i in ipairs(group) do group[k] = i - 1 end
         end
         return groups
      end
      assert.same({ { 3, 12, 13, 14 }, { 2, 4, 7, 9 }, { 1, 8, 11, 15 }, { 0, 5, 6, 10 } },
         dealt(costs, 4))
      refused('E_ARG', 'one size', cp_map.deal, costs, 3)
      -- a document mask of 4, 8, 4 blocks over two ranks: 28 pairs each
      local blocks = {}
      for _, n in ipairs { 4, 8, 4 } do
         for i = 1, n do blocks[#blocks + 1] = i end
      end
      assert.same({ { 2, 3, 5, 6, 8, 11, 12, 13 }, { 0, 1, 4, 7, 9, 10, 14, 15 } },
         dealt(blocks, 2))
   end)

   it('of a stretch does not depend on where it is cut', function()
      local mask = balance.mask('spec', { window = 5 })
      local slot, real = { 0, 9, 9, 30 }, { 0, 7, 7, 25 }
      for at = 0, 30 do
         local rest = balance.cost_of(slot, real, at, 30 - at, mask)
         assert.equal(balance.cost_of(slot, real, 0, 30, mask),
            balance.cost_of(slot, real, 0, at, mask) + rest)
      end
   end)
end)

describe('over ranks', function()
   it('gather undoes shard, and gradients reach their tokens', function()
      for _, n in ipairs { 1, 2, 3, 4 } do
         local out = ranks.run(n, function(rank, size)
            local tide_ = require 'tide'
            local map, comm = require 'tide.parallel.cp.map', tide_.dist.world()
            local wrong = {}
            for _, kind in ipairs { 'contiguous', 'zigzag', 'document', 'balanced' } do
               local plan = map.new { kind = kind, axis = comm, cu = { 0, 3, 4, 11 } }
               local x = (tide_.arange(22):reshape { 2, 11 }):requires_grad_(true)
               local y = plan:gather(plan:shard(x, 2, 7), 2)
               if not y:equal(x) then wrong[#wrong + 1] = kind end
               local w = (tide_.arange(11) + 1):reshape { 1, 11 }
               local loss = (y * w):sum()
               loss:backward()
               -- every rank's loss counts each token; a token's gradient is on its owner
               local sum = comm:all_reduce(x.grad:clone())
               if not sum:equal((w * size):expand { 2, 11 }:contiguous()) then
                  wrong[#wrong + 1] = kind .. ' sum'
               end
               x:zero_grad()
               loss = (plan:gather(plan:shard(x, 2, 7), 2, { once = true }) * w):sum()
               loss:backward()
               if not comm:all_reduce(x.grad:clone()):equal(w:expand { 2, 11 }:contiguous()) then
                  wrong[#wrong + 1] = kind .. ' once'
               end
               if plan.rank ~= rank then wrong[#wrong + 1] = 'rank' end
            end
            return table.concat(wrong, ', ')
         end)
         for r = 1, n do assert.equal('', out[r]) end
      end
   end)
end)

describe('shifting along the sequence', function()
   it('crosses from rank to rank', function()
      local out = ranks.run(2, function(rank)
         local tide_ = require 'tide'
         local map, comm = require 'tide.parallel.cp.map', tide_.dist.world()
         local x, got = tide_.arange(8):reshape { 1, 8, 1 } + 1, {}
         for _, kind in ipairs { 'zigzag', 'contiguous' } do
            local plan = map.new { kind = kind, axis = comm, length = 8 }
            for k = 1, 3 do
               got[#got + 1] = table.concat(
                  plan:shift(plan:shard(x, 2, 0), 2, k):flatten():tolist(), ' ')
            end
         end
         return got, rank
      end)
      assert.same({ '2 3 8 0', '3 4 0 0', '4 5 0 0', '2 3 4 5', '3 4 5 6', '4 5 6 7' }, out[1])
      assert.same({ '4 5 6 7', '5 6 7 8', '6 7 8 0', '6 7 8 0', '7 8 0 0', '8 0 0 0' }, out[2])
   end)
end)

describe('a plan refuses', function()
   local function new(o) return function() return cp_map.new(o) end end
   it('what breaks a rule', function()
      refused('E_ARG', { 'multiple of 4', '6' }, new { size = 2, length = 6, pad = false })
      refused('E_ARG', 'multiple of 2',
         new { kind = 'contiguous', size = 2, length = 5, pad = false })
      refused('E_ARG', 'document 1 has 3 tokens',
         new { kind = 'document', size = 2, cu = { 0, 4, 7 }, pad = false })
      assert.equal(8, cp_map.new { size = 2, length = 8, pad = false }.padded)
   end)

   it('bad documents, ranks and names', function()
      refused('E_ARG', 'cu[1]', new { cu = { 1, 3 } })
      refused('E_ARG', 'cu[3]', new { cu = { 0, 3, -1000 } })
      refused('E_ARG', 'cu[2]', new { cu = { 0, 2.5 } })
      refused('E_ARG', 'end at 5', new { cu = { 0, 5 }, length = 4 })
      refused('E_ARG', 'entries', new { cu_real = { 0, 3 }, cu_slot = { 0, 3, 4 } })
      refused('E_ARG', 'its slot', new { cu_real = { 0, 5 }, cu_slot = { 0, 4 } })
      refused('E_ARG', 'cu', new { cu = { 0, 3 }, cu_real = { 0, 3 } })
      refused('E_ARG', 'length', new {})
      refused('E_ARG', 'length', new { length = -1 })
      refused('E_ARG', 'rank', new { size = 2, rank = 2, length = 4 })
      refused('E_ARG', 'size', new { size = 0, length = 4 })
      refused('E_ARG', 'kind', new { kind = 'zig', length = 4 })
      refused('E_ARG', 'layout', new { layout = 'zigzag', length = 4 })
      refused('E_ARG', 'axis', new { axis = 3, length = 4 })
      local plan = cp_map.new { size = 2, rank = 0, length = 8 }
      assert.equal(1, plan:at(1).rank)
      assert.equal(0, plan.rank)
      for _, rank in ipairs { 2, -1, 0.5 } do
         refused('E_ARG', "'rank'", function() plan:at(rank) end)
      end
   end)

   it('tensors of other lengths, and padding without a value', function()
      local plan = cp_map.new { size = 2, length = 6 }
      refused('E_ARG', '6 tokens', plan.shard, plan, tide.zeros { 7 }, 1, 0)
      refused('E_ARG', 'fill', plan.shard, plan, tide.zeros { 6 }, 1)
      refused('E_ARG', 'dim', plan.shard, plan, tide.zeros { 6 }, 2, 0)
      refused('E_ARG', '4 tokens', plan.gather, plan, tide.zeros { 6 }, 1)
      refused('E_ARG', 'axis', plan.gather, plan, tide.zeros { 4 }, 1)
      refused('E_ARG', 'x', plan.shard, plan, { 1, 2 }, 1, 0)
   end)

   it('padding that the dtype does not hold, on every rank', function()
      for _, kind in ipairs { 'contiguous', 'zigzag' } do
         for rank = 0, 2 do
            local plan = cp_map.new { kind = kind, size = 3, rank = rank, length = 7 }
            for dtype, fills in require 'tide.util.each' { i64 = { 0.5, 0 / 0 }, u8 = { -100 } } do
               for _, fill in ipairs(fills) do
                  local x = tide.ones({ 7 }, { dtype = dtype })
                  refused('E_ARG', 'fill', plan.shard, plan, x, 1, fill)
                  refused('E_ARG', 'value', plan.pad, plan, x, 1, fill)
               end
            end
            assert.equal('i64', plan:shard(tide.ones({ 7 }, { dtype = 'i64' }), 1, -100).dtype)
         end
      end
   end)
end)

describe('the index functions in C refuse', function()
   local function ints(list) return tide.tensor(list, { dtype = 'i64' }) end
   it('what is no list of cumulative lengths', function()
      refused('E_ARG', 'document 1', tide.zigzag_index, ints { 0, 4, 6 }, 2)
      refused('E_ARG', '0 first', tide.zigzag_places, ints { 4, 8 }, 2)
      refused('E_ARG', 'decreases', tide.zigzag_index, ints { 0, 8, 4 }, 2)
      refused('E_SHAPE', 'cu', tide.zigzag_index, ints { { 0, 8 } }, 2)
      refused('E_DTYPE', 'cu', tide.zigzag_index, tide.tensor { 0, 8 }, 2)
      refused('E_ARG', 'rank', tide.zigzag_index, ints { 0, 8 }, 2, 2)
      refused('E_DTYPE', 'dtype', tide.zigzag_index, ints { 0, 8 }, 2, 0, 'f32')
      refused('E_ARG', 'slot', tide.slot_index, ints { 0, 2 }, ints { 0, 3 }, 4)
      refused('E_ARG', 'tokens', tide.slot_index, ints { 0, 5 }, ints { 0, 3 }, 4)
      refused('E_SHAPE', 'cu_real', tide.slot_index, ints { 0, 5 }, ints { 0 }, 5)
      refused('E_ARG', 'run 1', tide.run_index, ints { { 0, 2 }, { 3, -1 } })
      refused('E_SHAPE', 'runs', tide.run_index, ints { 0, 2 })
      refused('E_ARG', 'i32', tide.run_index, ints { { 2^31 - 2, 3 } }, 'i32')
      refused('E_SHAPE', 'index', tide.inverse_index, ints { { 0 } })
   end)
end)
