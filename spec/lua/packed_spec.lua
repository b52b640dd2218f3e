-- data/packed: every document once an epoch, whole where it fits, the same rows on any number of
-- ranks, exact resumption, and streams whose attention and loss are those of each document alone.

local tide = require 'tide'
local packed = require 'tide.data.packed'
local tokens = require 'tide.data.tokens'
local close = require 'spec.support.close'
local refused = require 'spec.support.refused'

local function cu_of(...)
   local cu = { 0 }
   for i, n in ipairs { ... } do cu[i + 1] = cu[i] + n end
   return cu
end

local function new(o)
   return packed.new { cu = o.cu or cu_of(3, 7, 1, 12, 5, 5, 2, 30, 8, 4), seq = o.seq or 12,
      batch = o.batch or 2, seed = o.seed or 1, rank = o.rank, size = o.size, cp = o.cp }
end

local function text_of(rows)
   local out = {}
   for i, row in ipairs(rows) do
      local t = {}
      for k, p in ipairs(row) do t[k] = p[1] .. '+' .. p[2] end
      out[i] = table.concat(t, ' ')
   end
   return table.concat(out, ' | ')
end

describe('data.packed', function()
   it('finds the documents of a source', function()
      local source = tokens.memory('ab;c;;def', 1)
      assert.same({ 0, 3, 5, 6, 9 }, packed.boundaries(source, (';'):byte()))
      local wide = tokens.memory('\1\0\2\1\1\0', 2)
      assert.same({ 0, 2, 3 }, packed.boundaries(wide, 258))
   end)

   it('gives every token once an epoch, in rows that hold', function()
      for _, cp in ipairs { 1, 2, 3 } do
         local s = new { batch = 1, cp = cp }
         local seen, n = {}, 0
         repeat
            local row, used = s:next()[1], 0
            for _, p in ipairs(row) do
               used = used + p[4]
               assert.is_true(p[4] >= p[2] and p[4] % (cp > 1 and 2 * cp or 1) == 0)
               for t = p[1], p[1] + p[2] - 1 do
                  assert.is_nil(seen[t])
                  seen[t], n = true, n + 1
               end
            end
            assert.is_true(used <= 12)
         until s:epochs() >= 1
         assert.equal(77, n)
         assert.equal(1, s:epochs())
      end
   end)

   it('puts documents into the fullest row with room, or each into one of its own', function()
      local lengths = {}
      for i = 1, 200 do lengths[i] = 1 + (i * 7) % 40 end
      local cu, rows, total = cu_of(unpack(lengths)), {}, 0
      for _, fit in ipairs { 'next', 'best', 'alone' } do
         local s = packed.new { cu = cu, seq = 40, batch = 1, fit = fit }
         local used, seen = 0, 0
         rows[fit] = s:rows_per_epoch()
         for _ = 1, rows[fit] do
            for _, piece in ipairs(s:next()[1]) do used, seen = used + piece[2], seen + 1 end
         end
         assert.equal(1, s:epochs())
         assert.equal(cu[#cu], used)
         assert.equal(200, seen)
         total = used
      end
      assert.equal(200, rows.alone)
      assert.is_true(rows.best < rows.next)
      assert.is_true(rows.best <= 1.05 * total / 40 + 1)
      local best = packed.new { cu = cu, seq = 40, batch = 1, fit = 'best' }
      refused('E_ARG', 'saved with fit = best, this run has next', function()
         packed.new({ cu = cu, seq = 40, batch = 1 }):restore(best:state())
      end)
      local old = best:state()
      old.fit, old.long, old.masked = nil, nil, nil
      packed.new({ cu = cu, seq = 40, batch = 1 }):restore(old)
   end)

   it('splits, cuts or refuses long documents, leaves out what has no label', function()
      local cu = cu_of(3, 25, 10)
      local function pieces(o)
         o.cu, o.seq, o.batch = cu, 10, 1
         local s, out = packed.new(o), {}
         for _ = 1, s:rows_per_epoch() do
            for _, p in ipairs(s:next()[1]) do out[#out + 1] = ('%d+%d'):format(p[1], p[2]) end
         end
         table.sort(out)
         return table.concat(out, ' ')
      end
      assert.equal('0+3 13+10 23+5 28+10 3+10', pieces {})
      assert.equal('0+3 28+10 3+10', pieces { long = 'cut' })
      refused('E_ARG', '1 of 3 documents are longer than seq (10 tokens), the longest', function()
         pieces { long = 'refuse' }
      end)
      local mask = ('\1'):rep(3) .. ('\0'):rep(10) .. '\1' .. ('\0'):rep(24)
      local source = tokens.memory(('a'):rep(38), 1, mask)
      assert.equal('0+3 3+10', pieces { source = source })      -- the label of its last token
      source = tokens.memory(('a'):rep(38), 1, '\1' .. ('\0'):rep(37))
      refused('E_ARG', 'no label of the documents counts within seq', function()
         pieces { source = source }
      end)
   end)

   it('does not depend on the number of ranks, and resumes on another', function()
      local whole, a, b = new { batch = 4 }, new { batch = 4, size = 2, rank = 0 },
         new { batch = 4, size = 2, rank = 1 }
      for i = 1, 30 do
         local want = text_of(whole:next())
         assert.equal(want, text_of(a:next()) .. ' | ' .. text_of(b:next()))
         if i == 17 then
            local c = new { batch = 4 }
            c:restore(whole:state())
            assert.equal(text_of(a:next()) .. ' | ' .. text_of(b:next()), text_of(c:next()))
            whole:next()
         end
      end
      assert.are_not.equal(text_of(new({ seed = 1 }):next()), text_of(new({ seed = 2 }):next()))
   end)

   it('lays the rows of an epoch once, also where it goes back within it', function()
      local s = new { batch = 1 }
      local before = s:state()
      local first = text_of(s:next())
      local rows = s.rows
      s:restore(before)
      assert.equal(first, text_of(s:next()))
      assert.equal(rows, s.rows)
   end)

   it('makes streams that say where each document is', function()
      local source = tokens.memory('abc;DEFGHIJ;x', 1)
      local rows = { { { 0, 4, false, 4 }, { 12, 1, false, 4 } }, { { 4, 6, true, 8 } } }
      local b = packed.make(source, rows, 10, { pad = 1 })
      assert.same({ 1, 20 }, b.ids.shape)
      assert.same({ 97, 98, 99, 59, 120, 1, 1, 1, 1, 1, 68, 69, 70, 71, 72, 73, 1, 1, 1, 1 },
         b.ids:tolist()[1])
      assert.same({ 98, 99, 59, -100, -100, -100, -100, -100, -100, -100, 69, 70, 71, 72, 73, 74,
         -100, -100, -100, -100 }, b.labels:tolist()[1])
      assert.same({ 0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 },
         b.positions:tolist()[1])
      assert.same({ 0, 4, 5, 11 }, b.cu_real:tolist())
      assert.same({ 0, 4, 10, 20 }, b.cu_slot:tolist())
      assert.equal(9, b.count)
      assert.same({ 0, 0, 0, 0, 1, -1, -1, -1, -1, -1, 2, 2, 2, 2, 2, 2, -1, -1, -1, -1 },
         b.index:select(3, 1):tolist()[1])
   end)

   it('trains as if each document stood alone', function()
      local model = tide.model.llama({ vocab_size = 128, hidden_size = 16, num_hidden_layers = 2,
         num_attention_heads = 2 }, { seed = 3 })
      local text = 'hello world;a;packed streams;the end;'
      local source = tokens.memory(text, 1)
      local cu = packed.boundaries(source, 59)
      local s = packed.new { cu = cu, seq = 20, batch = 4, cp = 2 }
      local rows = s:next()
      local b = packed.make(source, rows, 20)
      local sum = model:loss(b.ids, b.labels, { positions = b.positions, index = b.index,
         count = 1 }):item()
      local want, pieces = 0, 0
      for _, row in ipairs(rows) do
         for _, p in ipairs(row) do
            local ids = {}
            for i = p[1] + 1, p[1] + p[2] do ids[#ids + 1] = text:byte(i) end
            local t = tide.tensor({ ids }, { dtype = 'i64' })
            want = want + model:loss(t, t, { shift = true, count = 1 }):item()
            pieces = pieces + 1
         end
      end
      assert.is_true(pieces > 4)
      close(sum, want, { rel = 1e-5 })
   end)

   it('lays what is held out into rows in order, evenly spaced', function()
      local s = new { seq = 12 }
      refused('E_STATE', 'val_cu', s.held_out, s, 3)
      s = packed.new { cu = cu_of(4), val_cu = cu_of(5, 6, 30, 1, 2), seq = 12, batch = 1,
         seed = 9 }
      assert.equal('0+5 5+6 | 11+12 | 23+12 | 35+6 41+1 42+2', text_of(s:held_out(9)))
      assert.equal('0+5 5+6 | 23+12', text_of(s:held_out(2)))
      refused('E_ARG', 'limit', s.held_out, s, 0)
   end)

   it('is evaluated as it is trained: documents by themselves', function()
      local model = tide.model.llama({ vocab_size = 128, hidden_size = 16, num_hidden_layers = 1,
         num_attention_heads = 2 }, { seed = 3 })
      local text = 'hello world;a;packed streams;the end;'
      local source = tokens.memory(text, 1)
      local cu = packed.boundaries(source, 59)
      local function loop(o)
         local s = packed.new { cu = cu, val_cu = o.val_cu, seq = 20, batch = 2 }
         return tide.train.loop { model = model, train = source, val = source, sampler = s,
            optim = tide.optim.AdamW(model, { lr = 1e-2 }), steps = 1, val_every = 1,
            progress = { update = function() end, note = function() end,
            finish = function() end } }
      end
      refused('E_ARG', 'val_cu', loop, {})
      local got = loop({ val_cu = cu }).val_loss
      local sum, count = 0, 0
      for i = 1, #cu - 1 do
         local ids, n = {}, cu[i + 1] - cu[i]
         for k = 1, n do ids[k] = text:byte(cu[i] + k) end
         local t = tide.tensor({ ids }, { dtype = 'i64' })
         sum = sum + model:loss(t, t, { shift = true, count = 1 }):item()
         count = count + n - 1
      end
      close(got, sum / count, { rel = 1e-5 })
   end)

   it('refuses bad input', function()
      refused('E_ARG', 'multiple of 4', new, { seq = 10, cp = 2 })
      refused('E_ARG', 'data-parallel', new, { batch = 3, size = 2 })
      refused('E_ARG', 'cu[1]', new, { cu = { 1, 2 } })
      refused('E_ARG', 'cu[3]', new, { cu = { 0, 4, 2 } })
      refused('E_ARG', 'no tokens', new, { cu = { 0 } })
      refused('E_ARG', 'rank', new, { size = 2, rank = 2 })
      local s = new {}
      local other = s:state()
      other.seq = 3
      refused('E_ARG', 'seq', s.restore, s, other)
      other = s:state()
      other.row = 99
      refused('E_ARG', 'row', s.restore, s, other)
      local source = tide.data.tokens.memory('abcd', 1)
      refused('E_ARG', 'source', packed.boundaries, nil, 0)
      refused('E_ARG', 'source', packed.boundaries, {}, 0)
      refused('E_ARG', 'source', packed.make, {}, {}, 4)
      refused('E_ARG', 'seq', packed.make, source, {})
      refused('E_ARG', 'rows[1]', packed.make, source, { { 1 } }, 4)
   end)
end)
