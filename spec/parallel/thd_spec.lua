-- Packed streams: rows to a stream, absorption of trailing padding, chunks, masks by layout,
-- collating, and refusals.

local tide = require 'tide'
local thd = require 'tide.parallel.names.thd'
local refused = require 'spec.support.refused'

local X = -1000

local function ints(list) return tide.tensor(list, { dtype = 'i64' }) end

-- A batch of B x S tokens numbered from 100, labels one more.
local function batch(B, S, lens, slots, more)
   local ids = (tide.arange(B * S, { dtype = 'i64' }) + 100):reshape { B, S }
   local out = {
      input_ids = ids, labels = ids + 1,
      position_ids = tide.arange(S, { dtype = 'i64' }):reshape { 1, S }:expand(B, S):contiguous(),
      seq_lens = lens, seq_lens_padded = slots == nil and lens or slots,
   }
   for k, v in require 'tide.util.each'(more or {}) do out[k] = v end
   return out
end

local function list(t) return t and t:tolist() end

local function flags(text)
   local out = {}
   for c in text:gmatch '[01]' do out[#out + 1] = c == '1' end
   return out
end

describe('rows to a stream', function()
   local five, nine, three = {}, {}, {}
   for i = 1, 5 do five[i] = 112 end
   for i = 1, 9 do nine[i] = 112 end
   for b = 1, 16 do three[b] = { 128, 128, 128 } end
   local rows = {
      { 2, 6, { { 6 }, { 6 } }, nil, { 0, 6, 12 }, nil, 6 },
      { 2, 6, { { 3, 2 }, { 2, 3 } }, { { 4, 2 }, { 3, 3 } }, { 0, 3, 5, 7, 10 },
         { 0, 4, 6, 9, 12 }, 3 },
      { 2, 6, { { 3, 2 }, { 6, X } }, { { 4, 2 }, { 6, X } }, { 0, 3, 5, 11 }, { 0, 4, 6, 12 }, 6 },
      { 1, 4, { { 4 } }, nil, { 0, 4 }, nil, 4 },
      { 1, 1024, { five }, nil, { 0, 112, 224, 336, 448, 1024 }, nil, 576 },
   }
   for i, row in ipairs(rows) do
      it('gives cumulative lengths, case ' .. i, function()
         local b = batch(row[1], row[2], row[3], row[4])
         local out = thd.process_input_for_thd(b)
         assert.same(row[5], list(out.cu_seqlens))
         assert.same(row[6], list(out.cu_seqlens_padded))
         assert.equal(row[7], out.max_seqlen)
         assert.equal('i32', out.cu_seqlens.dtype)
         assert.same(b.input_ids:flatten():tolist(), list(out.input_ids))
         assert.same(b.labels:flatten():tolist(), list(out.labels))
         assert.same(b.position_ids:flatten():tolist(), list(out.position_ids))
         assert.equal(row[6] == nil, out.gapless)
      end)
   end

   it('gives trailing padding to the last document, for attention only', function()
      local out = thd.process_input_for_thd(batch(1, 1024, { nine }))
      assert.equal(1024, out.cu_seqlens:tolist()[10])
      assert.equal(896, out.cu_seqlens:tolist()[9])
      assert.equal(128, out.max_seqlen)
      assert.equal(1008, out.cu_real:tolist()[10])
      assert.equal(16, out.padding_mask:sum():item())
      local full = thd.process_input_for_thd(batch(1, 1024, { nine }), { causal = false })
      assert.equal(1008, full.cu_seqlens:tolist()[10])
      local many = thd.process_input_for_thd(batch(16, 384, three))
      assert.equal(49, many.cu_seqlens:size(1))
      assert.equal(6144, many.cu_seqlens:tolist()[49])
      assert.equal(128, many.max_seqlen)
   end)

   it('takes embeddings, further dims of size 1 too', function()
      for _, H in ipairs { 128, 1 } do
         local b = batch(2, 6, { { 6 }, { 6 } }, nil, { input_ids = tide.zeros { 2, 6, H } })
         assert.same({ 12, H }, thd.process_input_for_thd(b).input_ids.shape)
      end
   end)

   it('takes three rows of positions', function()
      local row = { { 0, 1, 2, 3, 0, 1, 2, 3 } }
      local out = thd.process_input_for_thd(batch(1, 8, { { 4, 4 } }, nil,
         { position_ids = ints { row, row, row } }))
      assert.same({ 3, 1, 8 }, out.position_ids.shape)
      assert.same({ 0, 1, 2, 3, 0, 1, 2, 3 }, out.position_ids:tolist()[1][1])
   end)

   it('drops another sentinel', function()
      local out = thd.process_input_for_thd(batch(2, 6, ints { { 3, 2 }, { 6, -999 } },
         ints { { 4, 2 }, { 6, -999 } }), { seq_lens_padding_value = -999 })
      assert.same({ 0, 3, 5, 11 }, list(out.cu_seqlens))
   end)

   it('knows padding from the layout', function()
      local function mask(ids, lens, slots, opts)
         return list(thd.process_input_for_thd({ input_ids = ints { ids }, labels = ints { ids },
            position_ids = false, seq_lens = lens, seq_lens_padded = slots }, opts).padding_mask)
      end
      local E = 99
      assert.same(flags '0 0 0 1 0 0 0 1', mask({ 7, 8, E, E, 9, 10, E, E }, { { 3, 3 } },
         { { 4, 4 } }, { padding_token_id = E }))
      assert.same(flags '0 0 0 1 0 0 0 1', mask({ 5, 0, 6, E, 7, 8, 9, E }, { { 3, 3 } },
         { { 4, 4 } }))
      assert.same(flags '0 0 0 1 1 1', mask({ 1, 2, 3, 0, 0, 0 }, { { 3 } }, { { 3 } }))
      assert.same(flags '0 0 1 1', mask({ 5, 6, 0, 0 }, false, false))
      assert.same(flags '0 0 0 1 0 0 1 1', list(thd.padding_mask({ 0, 3, 5 }, { 0, 4, 8 }, 8)))
      assert.same(flags '1 1', mask({ 0, 0 }, false, false))
      refused('E_ARG', 'also occurs as content (row 1, token 1)', mask, { 5, 0, 6, 0 }, false,
         false)
   end)

   it('keeps each document with its tokens where rows are not full', function()
      local b = batch(2, 6, { { 4 }, { 2, 3 } }, { { 4 }, { 3, 3 } })
      local out = thd.process_input_for_thd(b)
      assert.same({ 0, 4, 7, 10 }, list(out.cu_seqlens_padded))
      assert.same({ 100, 101, 102, 103, 106, 107, 108, 109, 110, 111, 104, 105 },
         list(out.input_ids))
      assert.same({ 0, 0, 0, 0, 1, 1, -1, 2, 2, 2, -1, -1 },
         out.index:select(3, 1):select(1, 1):tolist())
   end)

   it('says in which order it laid rows that are not full', function()
      local b = batch(2, 4, { { 2 }, { 4 } })
      local out = thd.process_input_for_thd(b)
      assert.same({ 100, 101, 104, 105, 106, 107, 102, 103 }, list(out.input_ids))
      assert.same({ 0, 1, 4, 5, 6, 7, 2, 3 }, list(out.order))
      assert.same(list(b.input_ids), list(thd.to_rows(out.input_ids, out, 2)))
      local wide = tide.stack({ out.labels, out.input_ids }, 2)
      assert.same(list(tide.stack({ b.labels, b.input_ids }, 3)), list(thd.to_rows(wide, out, 2)))
      local full = thd.process_input_for_thd(batch(2, 4, { { 4 }, { 2, 1 } }))
      assert.is_nil(full.order)                     -- only the last row has a tail
      assert.same({ { 104, 105, 106, 107 } }, list(thd.to_rows(full.input_ids:narrow(1, 5, 4), {},
         1)))
      refused('E_ARG', { '8', '3 rows' }, thd.to_rows, out.input_ids, out, 3)
      refused('E_ARG', 'expected the 8 tokens', thd.to_rows, tide.zeros { 4 }, out, 2)
   end)

   it('gives padding to the last document only where slots are given', function()
      local lens = { { 9, 17, 1, 3 } }
      local out = thd.process_input_for_thd(batch(1, 36, lens, false))
      assert.same({ 0, 9, 26, 27, 30 }, list(out.cu_seqlens))
      assert.is_nil(out.cu_seqlens_padded)
      assert.equal(17, out.max_seqlen)
      assert.equal(6, out.padding_mask:sum():item())
      out = thd.process_input_for_thd(batch(1, 36, lens, lens))
      assert.same({ 0, 9, 26, 27, 36 }, list(out.cu_seqlens))
   end)

   it('takes rows without documents, and documents without tokens', function()
      local out = thd.process_input_for_thd(batch(2, 4, { { 2 }, { X } }))
      assert.is_nil(out.order)                      -- nothing is behind the gap
      assert.same({ 0, 8 }, list(out.cu_seqlens))
      out = thd.process_input_for_thd(batch(1, 4, { { X } }))
      assert.same({ { 0 }, 0, 4 }, { list(out.cu_seqlens), out.max_seqlen,
         out.padding_mask:sum():item() })
      out = thd.process_input_for_thd(batch(1, 4, { { 0, 0 } }), { causal = false })
      assert.same({ { 0, 0, 0 }, 0 }, { list(out.cu_seqlens), out.max_seqlen })
   end)

   it('gives the last document the padding of its slot, if no other has any', function()
      local out = thd.process_input_for_thd(batch(1, 9, { { 4, 3 } }, { { 4, 4 } }))
      assert.same({ 0, 4, 9 }, list(out.cu_seqlens))
      assert.is_nil(out.cu_seqlens_padded)
      out = thd.process_input_for_thd(batch(1, 9, { { 3, 4 } }, { { 4, 4 } }))
      assert.same({ { 0, 3, 7 }, { 0, 4, 8 } }, { list(out.cu_seqlens),
         list(out.cu_seqlens_padded) })
   end)

   it('takes as many documents as there are tokens', function()
      local ones = {}
      for i = 1, 10000 do ones[i] = 1 end
      local out = thd.process_input_for_thd(batch(1, 10001, { ones }))
      assert.equal(10001, list(out.cu_seqlens)[10001])
      assert.equal(2, out.max_seqlen)
   end)

   it('spreads one row of positions over all rows', function()
      local out = thd.process_input_for_thd(batch(2, 3, { { 3 }, { 3 } }, nil,
         { position_ids = ints { { 4, 5, 6 } } }))
      assert.same({ 4, 5, 6, 4, 5, 6 }, list(out.position_ids))
   end)

   it('passes what else there is, and flattens what has a value a token', function()
      local out = thd.process_input_for_thd(batch(2, 6, { { 6 }, { 6 } }, nil,
         { kinds = tide.zeros { 2, 6 }, name = 'x', scale = tide.ones { 3 },
            attention_mask = tide.ones({ 2, 6 }, { dtype = 'i64' }) }))
      assert.same({ 12 }, out.kinds.shape)
      assert.equal('x', out.name)
      assert.same({ 3 }, out.scale.shape)
      assert.is_nil(out.attention_mask)
   end)
end)

describe('chunks of a batch', function()
   -- What each chunk should be: the stream of its rows, cut by hand.
   it('have the rows of every field with a value a token', function()
      local B, S = 4, 6
      local lens = { { 3, 2 }, { 6 }, { 4 }, { 2, 3 } }
      local slots = { { 4, 2 }, { 6 }, { 4 }, { 3, 3 } }
      local padded = ints { { 3, 2 }, { 6, X }, { 4, X }, { 2, 3 } }
      for _, form in ipairs { 'lists', 'tensors' } do
         local function positions(first, n)
            local p = tide.arange(3 * B * S, { dtype = 'i64' }):reshape { 3, B, S }
            return p:narrow(2, first, n):contiguous()
         end
         local kinds = tide.arange(B * S * 2):reshape { B, S, 2 }
         local more = { position_ids = positions(1, B), kinds = kinds, scale = tide.ones { B },
            wide = tide.ones { B, S + 1 }, one = tide.ones {}, name = 'x',
            notes = { 1, 2, 3, 4 } }
         local of_lens = form == 'lists' and lens or padded
         local whole = batch(B, S, of_lens, slots, more)
         for _, n in ipairs { 2, 4 } do
            local out, rows = thd.split_batch_into_thd_chunks(whole, n), B / n
            for i = 1, n do
               local first = (i - 1) * rows + 1
               local part = batch(B, S, { unpack(lens, first, first + rows - 1) },
                  { unpack(slots, first, first + rows - 1) }, more)
               for _, name in ipairs { 'input_ids', 'labels', 'kinds' } do
                  part[name] = part[name]:narrow(1, first, rows)
               end
               part.position_ids = positions(first, rows)
               local want, got = thd.process_input_for_thd(part), out.chunks[i]
               for name, v in require 'tide.util.each'(want) do
                  if tide.is_tensor(v) then
                     assert.same(list(v), list(got[name]), name)
                  else
                     assert.equal(v, got[name])
                  end
               end
            end
            assert.equal('x', out.name)
            assert.is_false(out.gapless)
            assert.is_true(rawequal(out.wide, more.wide) and rawequal(out.one, more.one))
            assert.same({ n, B / n * S, 2 }, out.kinds.shape)
         end
      end
      local full = batch(2, 4, { { 4 }, { 4 } })
      assert.is_true(thd.split_batch_into_thd_chunks(full, 2).gapless)
   end)
end)

describe('chunks of rows', function()
   local function split(B, S, lens, slots, n, opts)
      return thd.split_batch_into_thd_chunks(batch(B, S, lens, slots), n, opts)
   end
   local function full(B, n)
      local rows = {}
      for b = 1, B do rows[b] = { n } end
      return rows
   end

   it('are streams of their own', function()
      local out = split(4, 6, full(4, 6), nil, 2)
      assert.same({ 2, 12 }, out.input_ids.shape)
      assert.same({ { 0, 6, 12 }, { 0, 6, 12 } }, list(out.cu_seqlens))
      assert.equal(2, #out.chunks)
      assert.same(out.chunks[2].input_ids:tolist(), out.input_ids:tolist()[2])
      local packed = { { 3, 2 }, { 2, 3 }, { 3, 2 }, { 2, 3 } }
      out = split(4, 6, packed, { { 4, 2 }, { 3, 3 }, { 4, 2 }, { 3, 3 } }, 2)
      for i = 1, 2 do
         assert.same({ 0, 3, 5, 7, 10 }, list(out.cu_seqlens)[i])
         assert.same({ 0, 4, 6, 9, 12 }, list(out.cu_seqlens_padded)[i])
      end
      out = split(4, 6, { { 3, 2 }, { 6 }, { 4 }, { 2, 3 } }, { { 4, 2 }, { 6 }, { 4 }, { 3, 3 } },
         2)
      assert.same({ { 0, 3, 5, 11 }, { 0, 4, 6, 9 } }, list(out.cu_seqlens))
      assert.same({ { 0, 4, 6, 12 }, { 0, 4, 7, 10 } }, list(out.cu_seqlens_padded))
      out = split(16, 32, full(16, 32), nil, 8)
      for i = 1, 8 do assert.same({ 0, 32, 64 }, list(out.cu_seqlens)[i]) end
   end)

   it('fill up with the sentinel', function()
      local out = split(2, 6, { { 6, -999 }, { 3, 3 } }, nil, 2, { seq_lens_padding_value = -999 })
      assert.same({ { 0, 6, -999 }, { 0, 3, 6 } }, list(out.cu_seqlens))
   end)

   it('decide on trailing padding each for itself', function()
      local short, long = {}, {}
      for i = 1, 5 do short[i] = 112 end
      for i = 1, 8 do long[i] = 128 end
      local out = split(2, 1024, { long, short }, nil, 2)
      assert.same({ 128, 576 }, out.max_seqlen)
   end)

   it('keep the order of each', function()
      local out = split(4, 4, { { 4 }, { 4 }, { 1 }, { 3 } }, nil, 2)
      assert.same({ { 0, 1, 2, 3, 4, 5, 6, 7 }, { 0, 4, 5, 6, 1, 2, 3, 7 } }, list(out.order))
   end)

   it('need rows that divide', function()
      refused('E_ARG', { 'num_chunks', 'expected an integer, got 1.5' }, split, 4, 4, full(4, 4),
         nil, 1.5)
      refused('E_ARG', { '5 rows', '2 chunks' }, split, 5, 4, full(5, 4), nil, 2)
      local one = split(2, 4, full(2, 4), nil, 1)
      assert.same({ 8 }, one.input_ids.shape)
   end)
end)

describe('the sequence index', function()
   it('counts boundaries at or below each token', function()
      assert.same({ { 0, 0, 0, 1, 1, 2, 2, 2, 2 } }, list(thd.sequence_index { 0, 3, 5, 9 }))
      assert.same({ { 0, 0, 0, 0, 1, 1, 1, 1 } }, list(thd.sequence_index { 0, 4, 8 }))
      assert.same({ { 0, 1, 2, 3, 4 } }, list(thd.sequence_index { 0, 1, 2, 3, 4, 5 }))
      assert.same({ { 0, 0, 0, 0, 0, 0, 0 } }, list(thd.sequence_index { 0, 7 }))
      local long = thd.sequence_index(ints { 0, 100, 101, 102, 103 }):tolist()[1]
      assert.same({ 0, 0, 1, 2, 3 }, { long[1], long[100], long[101], long[102], long[103] })
      assert.equal('i32', thd.sequence_index({ 0, 2 }).dtype)
   end)

   it('agrees with a loop on random lengths, empty documents too', function()
      for seed = 1, 200 do
         local rnd, cu = seed, { 0 }
         for i = 1, seed % 7 + 1 do
            rnd = (rnd * 48271) % 2147483647
            cu[i + 1] = cu[i] + rnd % 5
         end
         local n = cu[#cu] + seed % 3
         local want = {}
         for p = 0, n - 1 do
            local k = 0
            for i = 2, #cu do k = k + (cu[i] <= p and 1 or 0) end
            want[p + 1] = k
         end
         assert.same({ want }, list(thd.sequence_index(cu, n)))
      end
   end)
end)

describe('companions', function()
   it('make padding harmless', function()
      local mask = tide.tensor { false, false, true, false, true }
      local out = thd.sanitize({ tokens = ints { 11, 12, -1, 21, -1 },
         labels = ints { 12, 13, -1, 22, -1 }, loss_mask = tide.ones { 5 },
         positions = ints { 0, 1, 2, 0, 1 }, n = 3 }, mask)
      assert.same({ 11, 12, 0, 21, 0 }, list(out.tokens))
      assert.same({ 12, 13, 0, 22, 0 }, list(out.labels))
      assert.same({ 1, 1, 0, 1, 0 }, list(out.loss_mask))
      assert.same({ 0, 1, 0, 0, 0 }, list(out.positions))
      assert.equal(3, out.n)
      local one = tide.tensor({ 0, 1 }):gt(0)
      local kept = thd.sanitize({ on = tide.ones({ 2 }, { dtype = 'bool' }) }, one)
      assert.equal('bool', kept.on.dtype)
      assert.same({ true, false }, list(kept.on))
      refused('E_ARG', 'fill.ids', thd.sanitize, { ids = ints { 1, 2 } }, one, { ids = 0.5 })
   end)

   it('fill whole tokens, in tensors that have a value for each', function()
      local mask = tide.tensor { true, false }
      local out = thd.sanitize({ embeds = tide.ones { 2, 2 }, three = tide.ones { 3, 2 } }, mask)
      assert.same({ { 0, 0 }, { 1, 1 } }, list(out.embeds))
      assert.same({ { 0, 1 }, { 0, 1 }, { 0, 1 } }, list(out.three))
      local rows = tide.tensor { { true, false }, { false, false } }
      local few = thd.sanitize({ positions = ints { { 1, 2 } },
         position_ids = tide.ones { 2, 2, 2 } }, rows)
      assert.same({ { 0, 2 }, { 1, 2 } }, list(few.positions))
      assert.same({ { { 0, 1 }, { 1, 1 } }, { { 0, 1 }, { 1, 1 } } }, list(few.position_ids))
      local all = thd.sanitize({ embeds = tide.ones { 2, 2, 1 } }, mask:reshape { 1, 2 })
      assert.same({ { { 0 }, { 1 } }, { { 0 }, { 1 } } }, list(all.embeds))
      refused('E_SHAPE', 'fields.cu', thd.sanitize, { cu = ints { 0, 2, 4 } }, mask)
   end)

   it('refuse rows whose mask does not begin with their tokens', function()
      local function one(mask)
         return thd.collate { { input_ids = { 5, 6, 7 }, labels = { 6, 7, 8 },
            attention_mask = mask } }
      end
      assert.same({ { 0 } }, list(one({ 0, 0, 0 }).seq_lens))
      assert.same({ { 2 } }, list(one({ true, true, false }).seq_lens))
      refused('E_ARG', 'token 1 counts after padding', one, { 0, 1, 1 })
      refused('E_ARG', 'token 2 counts after padding', one, { 1, 0, 1 })
      refused('E_ARG', 'attention_mask[3]', one, { 1, 1, 2 })
      refused('E_ARG', '3 entries', one, { 1, 1 })
   end)

   it('refuse packed rows of which one has positions', function()
      local function row(positions)
         return { input_ids = { 1, 2 }, labels = { 1, 2 }, seq_lens = { 2 },
            position_ids = positions }
      end
      assert.is_false(thd.collate({ row(), row() }).position_ids)
      refused('E_ARG', 'position_ids', thd.collate, { row { 0, 1 }, row() })
      refused('E_ARG', 'position_ids', thd.collate, { row(), row { 0, 1 } })
   end)

   it('collate rows', function()
      assert.same({}, thd.collate {})
      local b = thd.collate { { input_ids = { 5, 6, 7 }, labels = { 6, 7, 8 } },
         { input_ids = { 9 }, labels = { 9 } } }
      assert.same({ { 5, 6, 7 }, { 9, 0, 0 } }, list(b.input_ids))
      assert.same({ { 6, 7, 8 }, { 9, -100, -100 } }, list(b.labels))
      assert.same({ { 0, 1, 2 }, { 0, 1, 2 } }, list(b.position_ids))
      assert.same({ { 3 }, { 1 } }, list(b.seq_lens))
      assert.same({ { 3 }, { 3 } }, list(b.seq_lens_padded))
      assert.same({ 0, 3, 4 }, list(thd.process_input_for_thd(b).cu_real))
      b = thd.collate { { input_ids = { 5, 6, 7 }, labels = { 6, 7, 8 },
         attention_mask = { 1, 1, 0 } } }
      assert.same({ { { 2 } }, { { 3 } } }, { list(b.seq_lens), list(b.seq_lens_padded) })
      local packed = { input_ids = { 1, 2, 3 }, labels = { 1, 2, 3 }, position_ids = { 0, 1, 0 },
         seq_lens = { 2, 1 }, seq_lens_padded = { 2, 1 } }
      local one = { input_ids = { 1, 2, 3 }, labels = { 1, 2, 3 }, position_ids = { 0, 1, 2 },
         seq_lens = { 3 }, seq_lens_padded = { 3 } }
      b = thd.collate { packed, one }
      assert.same({ { 2, 1 }, { 3, X } }, list(b.seq_lens))
      one.input_ids, one.labels = { 1, 2 }, { 1, 2 }
      refused('E_ARG', 'rows[1].input_ids', thd.collate, { {} })
      refused('E_ARG', 'rows[2]', thd.collate, { packed, 3 })
      refused('E_ARG', 'one length', thd.collate, { packed, one })
      refused('E_ARG', 'packed', thd.collate, { packed, { input_ids = { 1, 2, 3 },
         labels = { 1, 2, 3 } } })
   end)
end)

describe('a stream refuses', function()
   local function go(b, opts) return thd.process_input_for_thd(b, opts) end
   it('what is missing', function()
      for _, name in ipairs { 'input_ids', 'labels', 'position_ids', 'seq_lens',
         'seq_lens_padded' } do
         local b = batch(2, 6, { { 6 }, { 6 } })
         b[name] = nil
         refused('E_ARG', name, go, b)
      end
   end)

   it('document tables that do not fit', function()
      refused('E_ARG', 'row 2: seq_lens has 2', go,
         batch(2, 6, { { 6 }, { 3, 3 } }, { { 6 }, { 6 } }))
      refused('E_ARG', 'row 1: document 0 has 4 tokens, its slot 3', go,
         batch(1, 6, { { 4 } }, { { 3 } }))
      refused('E_ARG', 'row 1: the documents take 7', go, batch(1, 6, { { 4, 3 } }))
      refused('E_ARG', 'rows', go, batch(2, 6, { { 6 } }))
      refused('E_ARG', 'after an entry of padding', go, batch(1, 6, { { 3, X, 3 } }))
      refused('E_ARG', 'seq_lens[1][2]', go, batch(1, 6, { { 3, -999 } }))
      refused('E_ARG', 'seq_lens[1][1]', go, batch(1, 6, { { 2.5 } }))
      refused('E_ARG', "'seq_lens_padding_value': expected an integer <= -1", go,
         batch(1, 6, { { 6 } }), { seq_lens_padding_value = 6 })
      refused('E_ARG', 'seq_lens', go, batch(1, 6, false, { { 6 } }))
      refused('E_ARG', 'sentinel', go, batch(1, 6, { { 6 } }), { sentinel = -1 })
   end)

   it('tensors of other shapes', function()
      refused('E_ARG', 'labels', go, batch(1, 6, { { 6 } }, nil, { labels = tide.zeros { 1, 5 } }))
      refused('E_ARG', 'input_ids', go,
         batch(1, 6, { { 6 } }, nil, { input_ids = tide.zeros { 6 } }))
      refused('E_ARG', 'position_ids', go,
         batch(1, 6, { { 6 } }, nil, { position_ids = tide.zeros { 1, 5 } }))
   end)
end)
