-- Packers: greedy in order, knapsack, rows that result, packs balanced over data ranks, degrees.

local pack = require 'tide.parallel.pack'
local refused = require 'spec.support.refused'

-- Samples of these lengths, tokens counted through from 1.
local function samples(...)
   local list, at = {}, 0
   for i, n in ipairs { ... } do
      local s = { input_ids = {}, labels = {} }
      for k = 1, n do
         at = at + 1
         s.input_ids[k], s.labels[k] = at, at + 100
      end
      list[i] = s
   end
   return list
end

local function zero_based(bins)
   local out = {}
   for b, bin in ipairs(bins) do
      out[b] = {}
      for k, i in ipairs(bin) do out[b][k] = i - 1 end
   end
   return out
end

describe('bins of random lengths', function()
   -- Each document, longest first, in the open bin that `is_better(room, than)` picks, or a new
   -- one.
   local function plain(lengths, size, most, is_better)
      local order, skipped, bins, room = {}, {}, {}, {}
      for i, n in ipairs(lengths) do table.insert(n > size and skipped or order, i) end
      table.sort(order, function(a, b)
         return lengths[a] > lengths[b] or lengths[a] == lengths[b] and a < b
      end)
      for _, i in ipairs(order) do
         local at
         for b = 1, #bins do
            if not at or is_better(room[b], room[at]) then
               if room[b] >= lengths[i] then at = b end
            end
         end
         at = at or #bins + 1
         bins[at], room[at] = bins[at] or {}, (room[at] or size) - lengths[i]
         table.insert(bins[at], i)
      end
      for b = #bins, (most or #bins) + 1, -1 do bins[b] = nil end
      return bins, skipped
   end

   it('are those of the rule, written out', function()
      math.randomseed(3)
      for case = 1, 60 do
         local lengths, size = {}, math.random(1, 20)
         for i = 1, math.random(0, 30) do lengths[i] = math.random(1, 22) end
         local most = case % 2 == 0 and math.random(1, 8) or nil
         for name, is_better in pairs {
            knapsack = function(a, b) return a > b end,
            best_fit = function(a, b) return a < b end } do
            assert.same({ plain(lengths, size, most, is_better) },
               { pack[name](lengths, size, most) }, name)
         end
      end
   end)
end)

describe('greedy packing', function()
   it('fills in order and gives the tail to the last slot', function()
      local rows = pack.greedy(samples(3, 4, 2, 5), { size = 10 })
      assert.equal(2, #rows)
      assert.same({ 1, 2, 3, 4, 5, 6, 7, 8, 9, 0 }, rows[1].input_ids)
      assert.same({ 3, 4, 2 }, rows[1].seq_lens)
      assert.same({ 3, 4, 3 }, rows[1].seq_lens_padded)
      assert.same({ 0, 1, 2, 0, 1, 2, 3, 0, 1, 2 }, rows[1].position_ids)
      assert.same({ 10, 11, 12, 13, 14, 0, 0, 0, 0, 0 }, rows[2].input_ids)
      assert.same({ 110, 111, 112, 113, 114, -100, -100, -100, -100, -100 }, rows[2].labels)
      assert.same({ 5 }, rows[2].seq_lens)
      assert.same({ 10 }, rows[2].seq_lens_padded)
   end)

   it('rounds slots up to what the ranks need', function()
      local function slots(size, cp, ...)
         return pack.greedy(samples(...), { size = size, cp = cp })[1].seq_lens_padded
      end
      assert.same({ 3, 2, 8 }, slots(13, 1, 3, 2, 4))
      assert.same({ 4, 12 }, slots(16, 2, 3, 5))
      assert.same({ 16 }, slots(16, 4, 5))
      assert.same({ 8, 16 }, slots(24, 4, 5, 3))
      assert.same({ 4, 4, 12 }, slots(20, 2, 3, 2, 1))
      assert.same({ 4 }, slots(4, 2, 4))
      refused('E_ARG', 'multiple of 4', slots, 10, 2, 5)
   end)

   it('refuses what is too long, or drops it', function()
      refused('E_ARG', 'too long', pack.greedy, samples(3, 12), { size = 10 })
      assert.same({ 3 }, pack.greedy(samples(3, 12), { size = 10, drop_long = true })[1].seq_lens)
      refused('E_ARG', 'no packs', pack.greedy, samples(12), { size = 10, drop_long = true })
      refused('E_ARG', 'no packs', pack.greedy, {}, { size = 10 })
      refused('E_ARG', 'labels', pack.greedy, { { input_ids = { 1 }, labels = {} } }, { size = 4 })
      refused('E_ARG', 'samples[1].input_ids', pack.greedy, { {} }, { size = 4 })
      refused('E_ARG', 'samples[1]', pack.greedy, { 3 }, { size = 4 })
      for _, o in ipairs { { 'drop_long', 'no' }, { 'max_packs', 0.5 }, { 'max_packs', 'x' } } do
         refused('E_ARG', o[1], pack.greedy, samples(3), { size = 4, [o[1]] = o[2] })
      end
      refused('E_ARG', 'max_bins', pack.knapsack, { 1, 2 }, 3, 'x')
   end)

   it('leaves out of the loss what the mask says, as numbers or booleans', function()
      local function labels(mask)
         return pack.greedy({ { input_ids = { 1, 2 }, labels = { 5, 6 }, loss_mask = mask } },
            { size = 3 })[1].labels
      end
      assert.same({ -100, 6, -100 }, labels { 0, 1 })
      assert.same({ -100, 6, -100 }, labels { false, true })
      refused('E_ARG', 'loss_mask[2]', labels, { 1, 0.5 })
      refused('E_ARG', 'length', pack.greedy, samples(3), { length = 10 })
   end)

   it('feeds the stream', function()
      local thd = require 'tide.parallel.names.thd'
      local out = thd.process_input_for_thd(thd.collate(
         pack.greedy(samples(3, 5, 2), { size = 8, cp = 2 })))
      assert.same({ 0, 3, 8, 10 }, out.cu_real:tolist())
      assert.same({ 0, 8, 16, 24 }, out.cu_slot:tolist())
   end)
end)

describe('knapsack packing', function()
   -- The rule by its definition: a search for the emptiest bin, the first of equal ones, each time.
   local function by_definition(lengths, cap)
      local bins, used, order = {}, {}, {}
      for i, n in ipairs(lengths) do order[#order + 1] = n <= cap and i or nil end
      table.sort(order, function(a, b)
         return lengths[a] > lengths[b] or lengths[a] == lengths[b] and a < b
      end)
      for _, i in ipairs(order) do
         local least
         for b = 1, #bins do if not least or used[b] < used[least] then least = b end end
         if not least or used[least] + lengths[i] > cap then
            least = #bins + 1
            bins[least], used[least] = {}, 0
         end
         table.insert(bins[least], i)
         used[least] = used[least] + lengths[i]
      end
      return bins
   end

   local rule = pack.knapsack
   local function check(lengths, cap, most)
      local bins, skipped = rule(lengths, cap)
      local seen = {}
      for _, bin in ipairs(bins) do
         local sum = 0
         for _, i in ipairs(bin) do
            assert.is_nil(seen[i])
            seen[i] = true
            sum = sum + lengths[i]
         end
         assert.is_true(sum <= cap)
      end
      for _, i in ipairs(skipped) do
         assert.is_true(lengths[i] > cap and not seen[i])
         seen[i] = true
      end
      for i in ipairs(lengths) do assert.is_true(seen[i]) end
      if most then assert.is_true(#bins <= most) end
      return bins, skipped
   end

   it('uses every document once and no bin too far', function()
      check({ 3, 2, 4, 1 }, 5, 2)
      check({ 3, 3, 2, 2, 1, 1, 1, 1 }, 5, 3)
      assert.equal(3, #check({ 5, 5, 5 }, 5))
      local _, skipped = check({ 3, 10, 2 }, 5, 1)
      assert.same({ 2 }, skipped)
      assert.same({}, (pack.knapsack({}, 5)))
      local rnd = 5
      for _ = 1, 300 do
         local lengths, sum = {}, 0
         for i = 1, 1 + rnd % 23 do
            rnd = (rnd * 48271) % 2147483647
            lengths[i] = rnd % 40
            sum = sum + lengths[i]
         end
         rule = pack.best_fit
         local tight = check(lengths, 39)
         assert.is_true(#tight <= 2 * sum / 39 + 1)
         rule = pack.knapsack
         local bins = check(lengths, 39)
         assert.is_true(#bins <= 2 * sum / 39 + 1)
         assert.same(by_definition(lengths, 39), bins)
      end
   end)

   it('puts a document into the emptiest bin, best fit into the fullest that has room', function()
      assert.same({ { 1, 4 }, { 2, 3 } }, (pack.knapsack({ 6, 5, 2, 1 }, 10)))
      assert.same({ { 1, 3, 4 }, { 2 } }, (pack.best_fit({ 6, 5, 2, 1 }, 10)))
      local function masks(fit)
         local out = {}
         for i, row in ipairs(pack.neat(samples(1, 6, 2, 5), { size = 10, fit = fit })) do
            out[i] = row.seq_lens
         end
         return out
      end
      assert.same({ { 6, 1 }, { 5, 2 } }, masks())
      assert.same({ { 6, 2, 1 }, { 5 } }, masks 'best')
      refused('E_ARG', { 'fit', 'emptiest' }, masks, 'worst')
      refused('E_ARG', 'fit', pack.greedy, samples(3), { size = 4, fit = 'best' })
      refused('E_ARG', 'max_bins', pack.best_fit, { 1, 2 }, 3, 'x')
   end)

   it('builds rows with numbered documents', function()
      local rows = pack.neat({ { input_ids = { 1, 2, 3 }, labels = { -100, -100, 10 } },
         { input_ids = { 4, 5 }, labels = { 20, 30 } } }, { size = 8 })
      assert.equal(1, #rows)
      assert.same({ 1, 2, 3, 4, 5, 0, 0, 0 }, rows[1].input_ids)
      assert.same({ -100, -100, 10, 20, 30, -100, -100, -100 }, rows[1].labels)
      assert.same({ 1, 1, 1, 2, 2, 0, 0, 0 }, rows[1].attention_mask)
      assert.same({ 0, 1, 2, 0, 1, 0, 0, 0 }, rows[1].position_ids)
      refused('E_ARG', 'too long', pack.neat, samples(9), { size = 8 })
      local singles = {}
      for i = 1, 20 do singles[i] = { input_ids = { i }, labels = { i } } end
      assert.equal(2, #pack.neat(singles, { size = 3, max_packs = 2 }))
      local masked = pack.neat({ { input_ids = { 1, 2, 3 }, labels = { 10, 20, 30 },
         loss_mask = { 0, 1, 1 } } }, { size = 3 })
      assert.same({ -100, 20, 30 }, masked[1].labels)
   end)
end)

describe('packs over data ranks', function()
   local function go(lengths, size, dp)
      return zero_based(pack.dp_balanced(lengths, { size = size, dp = dp }))
   end
   it('come in multiples of them', function()
      assert.same({ { 0, 1 }, { 2 }, { 4 }, { 3 } }, go({ 2, 2, 2, 2, 2 }, 4, 2))
      assert.same({ { 0, 1 }, { 2 }, { 4 }, { 3 } }, go({ 4, 1, 1, 1, 4 }, 5, 2))
      assert.same({ { 0, 1, 2 }, { 3 }, { 5 }, { 4 } }, go({ 1, 1, 1, 1, 1, 1 }, 3, 4))
      assert.same({ { 0, 1 }, { 3 }, { 4 }, { 2 } }, go({ 1024, 2048, 512, 1536, 3072 }, 4096, 2))
      refused('E_ARG', 'not enough', go, { 5, 5, 5 }, 5, 2)
      refused('E_ARG', 'too long', go, { 6 }, 5, 1)
   end)
end)

describe('degrees', function()
   it('are powers of two', function()
      for _, row in ipairs { { 1, 1 }, { 1024, 1 }, { 1025, 2 }, { 2048, 2 }, { 2049, 4 },
         { 4096, 4 }, { 4097, 8 }, { 8193, 16 } } do
         assert.equal(row[2], pack.cp_degree(row[1], 1024))
      end
   end)

   it('spread documents as the rule does, written out', function()
      math.randomseed(5)
      for _ = 1, 60 do
         local lengths, n, linear = {}, 2 ^ math.random(0, 3), math.random(0, 2) * 3
         for i = 1, math.random(0, 9) do lengths[i] = math.random(0, 4 * n) end
         local order, load, want = {}, {}, {}
         for i in ipairs(lengths) do order[i] = i end
         table.sort(order, function(a, b)
            return lengths[a] > lengths[b] or lengths[a] == lengths[b] and a < b
         end)
         for r = 1, n do load[r] = 0 end
         for _, i in ipairs(order) do
            local need, best, least = pack.cp_degree(lengths[i], 4), nil, nil
            for group = 0, n / need - 1 do
               local most = math.max(unpack(load, group * need + 1, (group + 1) * need))
               if not best or most < least then best, least = group, most end
            end
            local pairs_ = 0                       -- of a query and a key that it sees
            for q = 1, lengths[i] do pairs_ = pairs_ + q + linear end
            local ranks = {}
            for k = 1, need do
               ranks[k] = best * need + k - 1
               load[ranks[k] + 1] = least + pairs_ / need
            end
            want[#want + 1] = { index = i, ranks = ranks, work = pairs_ / need }
         end
         assert.same({ want, load },
            { pack.dynamic_cp(lengths, { ranks = n, most = 4, linear = linear }) })
      end
   end)

   it('spread documents by work', function()
      local lengths = { 4096, 100, 3000, 900, 1024, 1024, 512, 2000, 700, 64, 64, 3500 }
      local plan, load = pack.dynamic_cp(lengths, { ranks = 8, most = 1024 })
      local seen, sum = {}, {}
      for _, p in ipairs(plan) do
         assert.is_nil(seen[p.index])
         seen[p.index] = true
         assert.equal(pack.cp_degree(lengths[p.index], 1024), #p.ranks)
         assert.equal(0, p.ranks[1] % #p.ranks)
         for _, r in ipairs(p.ranks) do sum[r + 1] = (sum[r + 1] or 0) + p.work end
      end
      assert.equal(#lengths, #plan)
      for r = 1, 8 do assert.is_true((sum[r] or 0) <= load[r] + 1e-9) end
      refused('E_ARG', 'needs 16', pack.dynamic_cp, { 8193 }, { ranks = 8, most = 1024 })
   end)
end)
