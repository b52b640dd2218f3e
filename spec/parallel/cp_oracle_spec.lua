-- The reference of cp.self_check against the rule of documents.lua and tide.attention, on random
-- batches: neither shares code with the other.

local tide = require 'tide'
local documents = require 'tide.parallel.cp.documents'
local oracle = require 'tide.parallel.cp.oracle'

local function ints(list, dtype) return tide.tensor(list, { dtype = dtype or 'i64' }) end

-- A batch of B rows of T tokens with some of the fields that number documents, alike in what they
-- say, and padding that each may add.
local function drawn(B, T)
   local real, slot, docs = { 0 }, { 0 }, {}
   for b = 1, B do
      docs[b] = {}
      local d, t = 0, 0
      while t < T do
         local size = math.random(1, T - t)
         local tokens = B == 1 and math.random(0, size) or size
         d = d + 1
         if B == 1 then
            slot[d + 1], real[d + 1] = slot[d] + size, real[d] + tokens
         end
         for k = 1, size do docs[b][t + k] = k <= tokens and d or 0 end
         t = t + size
      end
   end
   if B == 1 and #slot > 2 and math.random(3) == 1 then   -- places behind the last document
      for t = slot[#slot - 1] + 1, T do docs[1][t] = 0 end
      slot[#slot], real[#real] = nil, nil
   end
   local batch, numbers, index, padding = {}, {}, {}, {}
   local sees_on = math.random(2) == 1                    -- whether tokens see later ones
   for b = 1, B do
      numbers[b], index[b], padding[b] = {}, {}, {}
      for t = 1, T do
         local doc = docs[b][t]
         numbers[b][t] = doc
         index[b][t] = { math.random(8) == 1 and -1 or doc - 1, 3 * t,
            sees_on and 3 * t + math.random(0, 9) or nil }
         padding[b][t] = math.random(6) == 1
      end
   end
   if math.random(2) == 1 then batch.index = ints(index, 'i32') end
   if math.random(2) == 1 then batch.packed_seq_ids = ints(numbers) end
   if math.random(3) == 1 then batch.attention_mask = ints(numbers) end
   if math.random(2) == 1 then batch.padding_mask = tide.tensor(padding) end
   if B == 1 and math.random(2) == 1 then
      batch.cu_real, batch.cu_slot = real, math.random(2) == 1 and slot or nil
      if not batch.cu_slot then batch.cu_real = slot end
      if not batch.cu_slot then
         for _, name in ipairs { 'index', 'packed_seq_ids', 'attention_mask' } do
            batch[name] = nil
         end
      end
   end
   return batch
end

-- Which tokens share a document, as rows of first tokens; 0 is padding.
local function parted(rows)
   local out = {}
   for b, row in ipairs(rows) do
      local first = {}
      out[b] = {}
      for t, doc in ipairs(row) do
         first[doc] = first[doc] or t
         out[b][t] = doc < 0 and 0 or first[doc]
      end
   end
   return out
end

describe('the reference of the self-check', function()
   it('parts the tokens of a batch as the rule does, and attends to them alike', function()
      math.randomseed(17)
      local tried = {}
      for case = 1, 120 do
         local B, T = math.random(1, 3), math.random(1, 9)
         local batch = drawn(B, T)
         local said = documents.of('spec', batch, B, T, 'cpu')
         local got, want = oracle.documents(batch, B, T), said.index
         if not want and said.cu_real then
            want = documents.cu_index(said.cu_real, said.cu_slot, T, 'cpu')
         end
         assert.equal(want == nil, got == nil, case)
         if want then
            local rows = want:select(3, 1):tolist()
            for b = 2, B do rows[b] = rows[b] or rows[1] end
            assert.same(parted(rows), parted(got))
         end
         for name in require 'tide.util.each'(batch) do tried[name] = true end

         local H, D = 4, 3
         local q, k = tide.randn { B, T, H, D }, tide.randn { B, T, 2, D }
         local v = tide.randn { B, T, 2, 5 }
         local o = { causal = math.random(2) == 1, softcap = case % 3 == 0 and 1.5 or nil,
            scale = case % 4 == 0 and 0.3 or nil,
            window = ({ 1, 2, { 1, 3 }, { -1, 1 }, { 0, -1 }, { -1, 0 } })[math.random(1, 9)] }
         if case % 5 == 0 then o.softcap = 0 end
         if case % 2 == 0 then q, k, v = q:double(), k:double(), v:double() end
         local y = oracle.attention(batch, B, T)(q, k, v, o)
         local positions = {}
         for b = 1, B do
            positions[b] = {}
            for t = 1, T do
               positions[b][t] = { got and got[b][t] or 0,
                  batch.index and batch.index:at(b, t, 2) or t - 1,
                  batch.index and batch.index:size(3) > 2 and batch.index:at(b, t, 3) or nil }
            end
         end
         local w = o.window
         local index = ints(positions, 'i32')
         local z = tide.attention(q, k, v, { causal = o.causal, softcap = o.softcap,
            scale = o.scale, window = type(w) == 'number' and { w, w } or w, q_index = index,
            k_index = index })
         assert.is_true((y - z):abs():amax():item() < (case % 2 == 0 and 1e-12 or 1e-5), case)
      end
      for _, name in ipairs(documents.fields) do assert.is_true(tried[name], name) end
   end)

   it('reads flags as numbers, and padding as numbers', function()
      local flags = tide.tensor { { true, true, false } }
      assert.same({ { 0, 0, -1 } }, oracle.documents({ attention_mask = flags }, 1, 3))
      assert.same({ { 0, -1, 0 } }, oracle.documents({ padding_mask = ints { { 0, 1, 0 } } }, 1, 3))
      assert.is_nil(oracle.documents({}, 1, 3))
   end)

   it('gives one rank the documents, and labels that do not train at padding', function()
      local ids, labels = ints { { 5, 6, 7 }, { 1, 2, 3 } }, ints { { 6, 7, 8 }, { 2, 3, 4 } }
      local probe = { ids = ids, labels = labels,
         packed_seq_ids = ints { { 1, 2, 0 }, { 1, 1, 1 } } }
      local out = oracle.batch(probe)
      assert.same({ { 6, 7, -100 }, { 2, 3, 4 } }, out.labels:tolist())
      assert.same({ { { 0, 0 }, { 1, 1 }, { -1, 2 } }, { { 0, 0 }, { 0, 1 }, { 0, 2 } } },
         out.index:tolist())
      assert.equal(ids, out.ids)
      local plain = oracle.batch { ids = ids, labels = labels, positions = 'kept' }
      assert.same({ labels, 'kept' }, { plain.labels, plain.positions })
      assert.is_nil(plain.index)
   end)
end)
