-- Rows of documents and mixtures of sources, of random sizes, against plain loops over their ids.

local tide = require 'tide'
local choice = require 'spec.deep.fuzz.choice'
local little = require 'tide.util.little'
local mixture = require 'tide.data.mixture'
local packed = require 'tide.data.packed'
local refused = require 'spec.support.refused'
local some = require('spec.lua.source_case').some
local tokens = require 'tide.data.tokens'

describe('the documents of a source', function()
   it('end at their id, also where pieces of the source meet', function()
      for _, width in ipairs { 1, 2 } do
         local plain, eos = little.write(1, width), little.write(2, width)
         local text = plain:rep(2 ^ 18 - 1) .. eos .. eos .. plain:rep(3) .. eos
         assert.same({ 0, 2 ^ 18, 2 ^ 18 + 1, 2 ^ 18 + 5 },
            packed.boundaries(tokens.memory(text, width), 2))
         assert.same({ 0, 2 ^ 18, 2 ^ 18 + 1, 2 ^ 18 + 5, 2 ^ 18 + 6 },
            packed.boundaries(tokens.memory(text .. plain, width), 2))
      end
      assert.same({ 0 }, packed.boundaries(tokens.memory('', 1), 2))
   end)
end)

-- What a stream of rows must hold, by a loop over its pieces.
local function stream_of(rows, seq, ids, mask, pad)
   local want = { ids = {}, labels = {}, positions = {}, count = 0, real = { 0 }, slots = { 0 } }
   for r, row in ipairs(rows) do
      for k, piece in ipairs(row) do
         local start, n, goes_on = piece[1], piece[2], piece[3]
         local slot = k == #row and r * seq - #want.ids or piece[4]
         for i = 1, slot do
            local has_label = i < n or i == n and goes_on
            local label = has_label and mask:byte(start + i + 1) == 1 and ids[start + i + 1] or -100
            local at = #want.ids + 1
            want.ids[at], want.labels[at] = i <= n and ids[start + i] or pad, label
            want.positions[at], want.count = i - 1, want.count + (label >= 0 and 1 or 0)
         end
         want.real[#want.real + 1], want.slots[#want.slots + 1] = want.real[#want.real] + n,
            #want.ids
      end
   end
   return want
end

describe('rows of documents', function()
   it('are the tokens of their pieces, each once, with the labels that the mask lets count',
      function()
      for seed = 1, 40 do
         local pick = choice.drawn('rows', seed)
         local cu, width = { 0 }, pick:pick { 1, 2, 4 }
         for i = 1, pick:int(1, 9) do cu[i + 1] = cu[i] + pick:few(1, 20) end
         local ids, text, mask = some(pick, cu[#cu], width)
         if pick:chance(0.5) then mask = ('\1'):rep(#ids) end
         local source = tokens.memory(text, width, mask)
         local cp = pick:int(1, 2)
         local o = { cu = cu, seq = 4 * pick:int(2, 4), batch = pick:int(1, 3), cp = cp,
            seed = seed, fit = pick:pick { 'next', 'best', 'alone' },
            long = pick:pick { 'split', 'cut' } }
         local s = packed.new(o)
         local rows, seen = s:all(), {}
         for _, row in ipairs(rows) do
            local used = 0
            for _, piece in ipairs(row) do
               used = used + piece[4]
               assert.same({ 0, true }, { piece[4] % (cp > 1 and 2 * cp or 1),
                  piece[4] - piece[2] < 2 * cp })
               for t = piece[1], piece[1] + piece[2] - 1 do
                  assert.is_nil(seen[t])
                  seen[t] = true
               end
            end
            assert.is_true(used <= o.seq and (o.fit ~= 'alone' or #row == 1))
         end
         for r = 2, o.fit == 'next' and #rows or 0 do     -- a row ends where the next does not fit
            local used = rows[r][1][4]
            for _, piece in ipairs(rows[r - 1]) do used = used + piece[4] end
            assert.is_true(used > o.seq)
         end
         for d = 1, #cu - 1 do
            for t = cu[d], cu[d + 1] - 1 do
               assert.equal(o.long == 'split' or t - cu[d] < o.seq, seen[t] == true)
            end
         end
         local got, want = packed.make(source, rows, o.seq, { pad = 9 }),
            stream_of(rows, o.seq, ids, mask, 9)
         assert.same({ { want.ids }, { want.labels }, { want.positions }, want.count, want.real,
            want.slots }, { got.ids:tolist(), got.labels:tolist(), got.positions:tolist(),
            got.count, got.cu_real:tolist(), got.cu_slot:tolist() })
         -- with the mask known, exactly the pieces that have a label are left
         o.cu, o.source = cu, source
         local trained = 0
         for _, row in ipairs(rows) do
            for _, p in ipairs(row) do
               local last = p[3] and p[1] + p[2] + 1 or p[1] + p[2]
               trained = trained + (mask:sub(p[1] + 2, last):find '\1' and 1 or 0)
            end
         end
         local kept = 0
         for _, row in ipairs(packed.new(o):all()) do kept = kept + #row end
         assert.equal(trained, kept)
      end
   end)

   it('keep groups of documents together, each cut to its share of a row', function()
      for seed = 1, 30 do
         local pick = choice.drawn('groups', seed)
         local cu, k = { 0 }, pick:int(2, 3)
         for i = 1, k * pick:int(1, 5) do cu[i + 1] = cu[i] + pick:int(1, 9) end
         local cp = pick:int(1, 2)
         local unit = cp > 1 and 2 * cp or 1
         local function rounded(n) return math.ceil(n / unit) * unit end
         local s = packed.new { cu = cu, seq = 12 * k / (k == 3 and 1 or 2), batch = 1, cp = cp,
            long = 'cut', together = k, fit = pick:pick { 'next', 'best', 'alone' } }
         local found = {}
         for _, row in ipairs(s:all()) do
            assert.equal(0, #row % k)
            for _, p in ipairs(row) do found[p[1]] = p end
         end
         for g = 0, (#cu - 1) / k - 1 do
            local slot, most = 0, math.huge
            for d = g * k + 1, g * k + k do slot = slot + rounded(cu[d + 1] - cu[d]) end
            if slot > s.seq then most = math.floor(s.seq / k / unit) * unit end
            for d = g * k + 1, g * k + k do
               local n = math.min(most, cu[d + 1] - cu[d])
               assert.same({ cu[d], n, false, rounded(n) }, found[cu[d]])
            end
         end
      end
      local o = { cu = { 0, 2, 4, 6 }, seq = 8, batch = 1, together = 2, long = 'cut' }
      refused('E_ARG', 'cu has 3 documents, which is no multiple of together (2)', packed.new, o)
      o = { cu = { 0, 2, 4 }, val_cu = { 0, 2 }, seq = 8, batch = 1, together = 2, long = 'cut' }
      refused('E_ARG', 'val_cu has 1 documents, which is no multiple', packed.new, o)
      o = { cu = { 0, 2, 4 }, seq = 8, batch = 1, together = 2 }
      refused('E_ARG', "give long = 'cut' or 'refuse'", packed.new, o)
      o = { cu = { 0, 2, 4 }, seq = 4, cp = 2, batch = 1, together = 2, long = 'cut' }
      refused('E_ARG', 'seq (4) has no room for 2 documents', packed.new, o)
      packed.new { cu = { 0, 2, 4 }, seq = 8, cp = 2, batch = 1, together = 2, long = 'cut' }
      packed.new { cu = { 0, 2, 4 }, seq = 2, batch = 1, together = 2, long = 'cut' }
      o = { cu = { 0, 2, 4, 6 }, seq = 8, cp = 2, batch = 1, together = 3, long = 'cut' }
      refused('E_ARG', 'seq (8) has no room for 3 documents', packed.new, o)
      refused('E_ARG', 'seq (4) must be a multiple of 6, to be cut over 3 ranks', packed.new,
         { cu = { 0, 2 }, seq = 4, cp = 3, batch = 1 })
      o = { cu = { 0, 5, 10, 11, 12 }, seq = 9, batch = 1, together = 2, long = 'refuse' }
      refused('E_ARG', 'new: 1 of 2 groups of 2 documents are longer than seq (9 tokens), the '
         .. "longest has 10; give a larger seq, or long = 'cut'", packed.new, o)
      packed.new { cu = { 0, 5, 10, 11, 12 }, seq = 10, batch = 1, together = 2, long = 'refuse' }
   end)

   it('are 512 documents at a time with the best fit, in the order of their first ones', function()
      local cu = { 0 }
      for i = 1, 1030 do cu[i + 1] = cu[i] + 1 + i * 7 % 10 end
      local rows = packed.new({ cu = cu, seq = 10, batch = 1, fit = 'best' }):all()
      local place, before = {}, {}
      for d = 1, #cu - 1 do place[cu[d]] = d end
      for _, row in ipairs(rows) do
         local group = math.floor((place[row[1][1]] - 1) / 512)
         assert.is_true(place[row[1][1]] > (before[group] or 0))
         before[group] = place[row[1][1]]
         for k = 2, #row do
            assert.is_true(place[row[k][1]] > place[row[k - 1][1]])
            assert.equal(group, math.floor((place[row[k][1]] - 1) / 512))
         end
      end
   end)

   it('give the epochs that were read, and invalid rows and states are refused', function()
      local s = packed.new { cu = { 0, 4, 8, 12, 16 }, seq = 4, batch = 1 }
      local passes = {}
      for i = 1, 6 do
         passes[i] = s:epochs()
         s:next()
      end
      assert.same({ 0, 0.25, 0.5, 0.75, 1, 1.25 }, passes)
      assert.same({}, s:all(true))
      local source = tokens.memory('abcdef', 1)
      for _, piece in ipairs { { 0, 2, false, 1 }, { -1, 2, false, 2 }, { 0, 2, 1, 2 },
         { 0, 0.5, false, 2 }, { 0, 2, false } } do
         refused('E_ARG', { 'rows[2]', 'a row that next() of a sampler gave' }, packed.make, source,
            { { { 0, 1, false, 1 } }, { piece } }, 4)
      end
      refused('E_ARG', { 'rows', 'at least one row, got none' }, packed.make, source, {}, 4)
      local state = s:state()
      for key, value in pairs { seed = 4, seq = 5, unit = 2, documents = 3, tokens = 15,
         fit = 'best', long = 'cut', masked = true, together = 2 } do
         local other = {}
         for k, v in pairs(state) do other[k] = v end
         other[key] = value
         refused('E_ARG', 'the state was saved with ' .. key .. ' = ' .. tostring(value), s.restore,
            s, other)
      end
   end)
end)

describe('a mixture', function()
   it('takes from each part its share, within one item, at the part\'s own places', function()
      for seed = 1, 12 do
         local pick = choice.drawn('mixture', seed)
         local parts, total, at = {}, 0, { 0 }
         for i = 1, pick:int(1, 4) do
            parts[i] = { weight = pick:int(i == 1 and 1 or 0, 5),
               source = tokens.memory(('x'):rep(pick:int(20, 60)), 1) }
            total, at[i + 1] = total + parts[i].weight, at[i] + parts[i].source.count
         end
         local mix = mixture.new { parts = parts, seq = 4, batch = 6, seed = seed }
         local halves = {}
         for r = 0, 1 do
            halves[r + 1] = mixture.new { parts = parts, seq = 4, batch = 6, seed = seed, size = 2,
               rank = r }
         end
         assert.equal(at[#at], mix.source.count)
         local counts, items = {}, 0
         for _ = 1, 15 do
            local starts = mix:next()
            local a, b = halves[1]:next(), halves[2]:next()
            assert.same(starts, { a[1], a[2], a[3], b[1], b[2], b[3] })
            for _, start in ipairs(starts) do
               local i, first, lag = 1, nil, -math.huge
               for k, part in ipairs(parts) do          -- the one that lags most is next
                  local behind = (items + 1) * part.weight / total - (counts[k] or 0)
                  if behind > lag + 1e-9 then first, lag = k, behind end
               end
               while start >= at[i + 1] do i = i + 1 end
               assert.is_true(start + 4 < at[i + 1] and i == first)
               counts[i], items = (counts[i] or 0) + 1, items + 1
               for k, part in ipairs(parts) do
                  local due = items * part.weight / total
                  assert.is_true(math.abs((counts[k] or 0) - due) < 1 + 1e-6, k)
               end
            end
         end
         local again = mixture.new { parts = parts, seq = 4, batch = 3, seed = seed }
         again:restore(mix:state())
         assert.same({ unpack(mix:next(), 1, 3) }, again:next())
         local most = 0
         for i, part in ipairs(parts) do
            local s = tide.data.sampler { count = part.source.count, seq = 4, batch = 1 }
            most = math.max(most, again.counts[i] / s.windows)
         end
         assert.equal(most, again:epochs())
      end
   end)

   it('gives the first of parts that lag alike, and rows by the places of the whole', function()
      local a, b = tokens.memory(('a'):rep(24), 1), tokens.memory(('b'):rep(24), 1)
      local mix = mixture.new { seq = 8, batch = 4, val_cu = { 0, 3, 9 }, parts = {
         { source = a, weight = 1, cu = { 0, 24 } }, { source = b, weight = 1, cu = { 0, 24 } } } }
      local rows = mix:next()
      for k, row in ipairs(rows) do
         assert.same({ (k % 2 == 1 and 0 or 24) + (k > 2 and 8 or 0), 8, true, 8 }, row[1])
      end
      local b1 = mix:make(mix.source, rows)
      assert.same({ 97, 98, 97, 98 }, { b1.ids:tolist()[1][1], b1.ids:tolist()[1][9],
         b1.ids:tolist()[1][17], b1.ids:tolist()[1][25] })
      assert.same({ { 0, 3, false, 3 } }, mix:held_out(9)[1])
      local windows = mixture.new { seq = 8, batch = 1, parts = { { source = a, weight = 2 } } }
      assert.is_nil(windows.make)
   end)

   it('is refused where its parts make no sense, or its state is of others', function()
      local a = tokens.memory(('a'):rep(24), 1)
      local function new(...) return mixture.new { seq = 4, batch = 1, parts = { ... } } end
      refused('E_ARG', "'parts': expected weights with a finite sum above 0, got 0", new,
         { source = a, weight = 0 })
      refused('E_ARG', 'a finite sum above 0, got inf', new, { source = a, weight = 1.7e308 },
         { source = a, weight = 1e308 })
      refused('E_ARG', 'got 1 of 2', new, { source = a, weight = 1, cu = { 0, 24 } },
         { source = a, weight = 1 })
      refused('E_ARG', 'at least one { source, weight }', new)
      local one, two = new { source = a, weight = 1 },
         new({ source = a, weight = 1 }, { source = a, weight = 3 })
      refused('E_ARG', 'saved with 1 parts, this run has 2', two.restore, two, one:state())
      refused('E_ARG', 'saved with share 0.75 for part 1, this run has 0.25', two.restore, two,
         new({ source = a, weight = 3 }, { source = a, weight = 1 }):state())
      local state = two:state()
      state.position = -1
      refused('E_ARG', "'position'", two.restore, two, state)
   end)
end)
