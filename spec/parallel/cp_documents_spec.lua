-- Fields of a batch that say which tokens see each other: combined by one rule, or refused, on one
-- rank and on several, in every function that makes batches. The oracle is the rule of the guide,
-- token by token.

local cp = require 'tide.parallel.cp'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tide = require 'tide'

local function ints(list) return tide.tensor(list, { dtype = 'i64' }) end
local function axis(size, rank) return { size = size, rank = rank or 0 } end

-- ---- the oracle ------------------------------------------------------------------------------

-- What a field says of token t (from 1) of row b: a document, false for padding, nil for no word.
local word = {}

function word.index(f, b, t)
   local pair = (f[b] or f[1])[t]
   return pair[1] >= 0 and pair[1]
end

function word.packed_seq_ids(f, b, t) return f[b][t] > 0 and f[b][t] end

-- Beside other fields a mask of 1 and 0 marks padding only.
function word.attention_mask(f, b, t, alone)
   local most = 0
   for _, row in ipairs(f) do most = math.max(most, unpack(row)) end
   if f[b][t] <= 0 then return false end
   if most > 1 or alone then return f[b][t] end
end

function word.padding_mask(f, b, t)
   if f[b][t] then return false end
end

function word.cu_real(f, _, t, _, batch)
   local slot = batch.cu_slot or f
   for d = 1, #slot - 1 do
      if t > slot[d] and t <= slot[d + 1] then return t - slot[d] <= f[d + 1] - f[d] and d end
   end
   return false
end

-- Rows of document names, '' for padding; nil if two fields disagree.
local function expected(batch, B, S)
   local rows, fields = {}, {}
   for name in require 'tide.util.each'(word) do
      if batch[name] then fields[#fields + 1] = name end
   end
   table.sort(fields)
   local said = {}
   for b = 1, B do
      rows[b] = {}
      for t = 1, S do
         local words, pad = {}, false
         for i, name in ipairs(fields) do
            local w = word[name](batch[name], b, t, #fields == 1, batch)
            pad = pad or w == false
            words[i] = tostring(w)
         end
         rows[b][t], said[#said + 1] = pad and '' or table.concat(words, ' '), not pad and
            { b = b, words = words } or nil
      end
   end
   for _, x in ipairs(said) do
      for _, y in ipairs(said) do
         local same, other
         for i, w in ipairs(x.words) do
            if x.b == y.b and w ~= 'nil' then
               if w == y.words[i] then same = true else other = true end
            end
         end
         if same and other then return nil end
      end
   end
   return rows
end

-- Whether numbers (-1: padding) part each row as names ('': padding) do.
local function alike(numbers, names)
   for b, row in ipairs(names) do
      local got = numbers[b] or numbers[1]
      for i = 1, #row do
         if (got[i] < 0) ~= (row[i] == '') then return false end
         for j = 1, i do
            if row[i] ~= '' and row[j] ~= '' and (got[i] == got[j]) ~= (row[i] == row[j]) then
               return false
            end
         end
      end
   end
   return true
end

-- ---- batches ---------------------------------------------------------------------------------

local function rows_of(fn, B, S)
   local rows = {}
   for b = 1, B do
      rows[b] = {}
      for t = 1, S do rows[b][t] = fn(b, t) end
   end
   return rows
end

-- A generator of whole numbers below m.
local function numbers(seed)
   return function(m)
      seed = (seed * 48271 + 11) % 2147483647
      return math.floor(seed / 7) % m
   end
end

-- Documents from 1 that begin at drawn places; 0 where `hole`.
local function draw_documents(rnd, B, S)
   local rows = {}
   for b = 1, B do
      local doc, end_ = 1, rnd(3) == 0 and S - rnd(S) or S
      rows[b] = {}
      for t = 1, S do
         if t > 1 and rnd(3) == 0 then doc = doc + 1 end
         rows[b][t] = t <= end_ and doc or 0
      end
   end
   return rows
end

local function cu_of(row)
   local cu = { 0 }
   for t, doc in ipairs(row) do
      if doc > 0 and t > 1 and doc ~= row[t - 1] then cu[#cu + 1] = t - 1 end
   end
   local last = 0
   for t, doc in ipairs(row) do if doc > 0 then last = t end end
   if last > 0 then cu[#cu + 1] = last end
   return cu
end

-- A batch of lists: fields drawn from the same documents, some of them made to differ.
local function draw(rnd)
   local B, S = 1 + rnd(2), 1 + rnd(9)
   local docs = draw_documents(rnd, B, S)
   local function numbered(offset)
      return rows_of(function(b, t) return docs[b][t] > 0 and docs[b][t] + offset or 0 end, B, S)
   end
   local batch = {}
   if rnd(2) == 0 then batch.packed_seq_ids = numbered(rnd(2) * 3) end
   if rnd(2) == 0 then
      batch.index = rows_of(function(b, t) return { docs[b][t] * 2 - 1, t + 5 } end, B, S)
   end
   local kind = rnd(4)
   if kind == 1 then batch.attention_mask = numbered(1) end
   if kind == 2 then batch.attention_mask = rows_of(function() return 1 end, B, S) end
   if kind == 3 then batch.attention_mask = rows_of(function() return rnd(2) end, B, S) end
   if rnd(3) == 0 then
      batch.padding_mask = rows_of(function() return rnd(4) == 0 end, B, S)
   end
   if B == 1 and rnd(2) == 0 then batch.cu_real = cu_of(docs[1]) end
   if batch.packed_seq_ids and rnd(4) == 0 then
      local b, t = 1 + rnd(B), 1 + rnd(S)
      batch.packed_seq_ids[b][t] = 1 + rnd(4)
   end
   return batch, B, S
end

local function tensors_of(batch, B, S)
   local out = { ids = tide.arange(B * S, { dtype = 'i64' }):reshape { B, S },
      labels = tide.arange(B * S, { dtype = 'i64' }):reshape { B, S } }
   for name, v in require 'tide.util.each'(batch) do
      if name == 'padding_mask' then
         v = tide.tensor(v)
      elseif name ~= 'cu_real' and name ~= 'cu_slot' then
         v = tide.tensor(v, { dtype = name == 'index' and 'i32' or 'i64' })
      end
      out[name] = v
   end
   return out
end

-- Documents and labels that all ranks of a layout hold, in the order of the rows.
local function over_ranks(make, W, S)
   local docs, labels, context = {}, {}, nil
   for r = 0, W - 1 do
      local c, mine = make(axis(W, r))
      docs[r + 1], labels[r + 1], context = c:q_index():select(3, 1), mine.labels, c
   end
   local function whole(list)
      return context.map:unshard(tide.cat(list, 2), 2):narrow(2, 1, S):tolist()
   end
   return whole(docs), whole(labels)
end

local function check_labels(labels, names, S)
   for b, row in ipairs(names) do
      for t, name in ipairs(row) do
         assert.equal(name == '' and -100 or (b - 1) * S + t - 1, labels[b][t])
      end
   end
end

local makers = {
   plain = function(opts)
      return function(a, batch) return cp.make_cp_batch_and_ctx(a, batch, opts) end
   end,
   contiguous = function()
      local fn = cp.contiguous_batch()
      return function(a, batch) return fn(a, nil, batch) end
   end,
}

describe('fields of a batch that tell of documents', function()
   for name, make in require 'tide.util.each' {
      zigzag = makers.plain(), document = makers.plain { kind = 'document' },
      balanced = makers.plain { kind = 'balanced' }, contiguous = makers.contiguous(),
   } do
      it('are combined by the rule, or refused: ' .. name, function()
         local rnd, combined, apart = numbers(17), 0, 0
         for _ = 1, 250 do
            local lists, B, S = draw(rnd)
            local names, batch, W = expected(lists, B, S), tensors_of(lists, B, S), 1 + rnd(3)
            if not names then
               apart = apart + 1
               refused('E_ARG', 'different documents', make, axis(W), batch)
            elseif next(lists) then
               combined = combined + 1
               local docs, labels = over_ranks(function(a) return make(a, batch) end, W, S)
               assert.is_true(alike(docs, names))
               check_labels(labels, names, S)
            end
         end
         assert.is_true(combined > 100 and apart > 5)
      end)
   end

   it('are handed on as what they say together', function()
      local pad = tide.tensor { { false, false, true, false } }
      local fn = cp.contiguous_batch()
      local _, out = fn(axis(1), nil, { input_ids = ints { { 5, 6, 7, 8 } }, cu_real = { 0, 2, 3 },
         labels = ints { { 5, 6, 7, 8 } }, padding_mask = pad })
      assert.same({ { 1, 1, 0, 0 } }, out.packed_seq_ids:tolist())
      assert.same({ { false, false, true, true } }, out.padding_mask:tolist())
      assert.is_nil(out.cu_real)
      assert.same({ { false, false, true, false } }, pad:tolist())
   end)

   it('of packed rows are compared where one of them was replaced or written', function()
      local source = tide.data.tokens.memory(('\1\2\3\5'):rep(9), 1)
      local sampler = tide.data.packed.new { cu = { 0, 9, 20, 36 }, seq = 16, batch = 1 }
      local function go(change)
         local batch = sampler:make(source, { sampler:all()[1] })
         if change then change(batch) end
         return (select(2, cp.make_cp_batch_and_ctx(axis(2), batch)))
      end
      assert.is_nil(go().cu_real)
      for _, change in ipairs {
         function(batch) batch.cu_real, batch.cu_slot = { 0, 3, 16 }, { 0, 3, 16 } end,
         function(batch) batch.index = tide.document_index(tide.tensor({ 0, 3, 16 },
            { dtype = 'i32' }), 16) end,
         function(batch) batch.index:narrow(2, 1, 3):fill_(5) end,
      } do
         refused('E_ARG', "'index' and 'cu_real' describe different documents", go, change)
      end
   end)

   it('call every number below 1 padding', function()
      local _, out = cp.make_cp_batch_and_ctx(nil, { ids = ints { { 1, 2, 3 } },
         labels = ints { { 1, 2, 3 } }, attention_mask = ints { { 1, 1 - 2^32, 0 } } })
      assert.same({ { 1, -100, -100 } }, out.labels:tolist())
   end)

   it('keep the third number of an index, also beside padding', function()
      local context = cp.make_cp_batch_and_ctx(nil, { ids = ints { { 1, 2, 3 } },
         labels = ints { { 1, 2, 3 } }, padding_mask = tide.tensor { { false, false, true } },
         index = tide.tensor({ { { 4, 0, 1 }, { 4, 1, 1 }, { 4, 2, 2 } } }, { dtype = 'i32' }) })
      assert.same({ { { 4, 0, 1 }, { 4, 1, 1 }, { -1, 2, 2 } } }, context:q_index('cpu'):tolist())
   end)

   it('must fit the rows', function()
      local function go(more)
         more.ids, more.labels = ints { { 1, 2 }, { 3, 4 } }, ints { { 1, 2 }, { 3, 4 } }
         return cp.make_cp_batch_and_ctx(axis(2), more)
      end
      local i32 = { dtype = 'i32' }
      refused('E_ARG', "'index'", go, { index = tide.zeros({ 3, 2, 2 }, i32) })
      refused('E_ARG', "'index'", go, { index = tide.zeros({ 1, 2, 4 }, i32) })
      refused('E_ARG', "'index'", go, { index = tide.zeros { 1, 2, 2 } })
      refused('E_ARG', "'packed_seq_ids'", go, { packed_seq_ids = ints { { 1, 1 } } })
      refused('E_ARG', "'padding_mask'", go, { padding_mask = { { false, true } } })
      refused('E_ARG', 'below 2^31', go, { packed_seq_ids = ints { { 1, 2^32 + 1 }, { 1, 1 } } })
      refused('E_ARG', 'positions >= 0', go,
         { index = tide.tensor({ { { -1, -1 }, { 0, -2 } } }, i32) })
      refused('E_ARG', 'end at 4', cp.make_cp_batch_and_ctx, axis(2),
         { ids = ints { { 1, 2, 3 } }, labels = ints { { 1, 2, 3 } }, cu_real = { 0, 4 } })
      for _, name in ipairs { 'cu_seqlens', 'seq_lens' } do
         refused('E_ARG', { name, 'use_te' }, go, { [name] = ints { 0, 2 } })
         refused('E_ARG', { name, 'use_te' }, cp.make_cp_batch_and_ctx, nil,
            { ids = ints { { 1, 2 } }, labels = ints { { 1, 2 } }, [name] = ints { 0, 2 } })
      end
   end)
end)

-- On a rank: the loss of a small model over ranks on a batch with documents and a mask.
local function losses(_, n, extra)
   local t = require 'tide'
   local function int(list) return t.tensor(list, { dtype = 'i64' }) end
   local model = t.model.llama({ vocab_size = 29, hidden_size = 24, num_hidden_layers = 2,
      num_attention_heads = 4, intermediate_size = 40 }, { seed = 5 })
   local ids, labels = int { { 1, 2, 3, 4, 5, 6, 7, 8 } }, int { { 2, 3, 4, 5, 6, 7, 8, 9 } }
   local cu = t.tensor({ 0, 3, 8 }, { dtype = 'i32' })
   local want = model:loss(ids, labels, { index = t.document_index(cu, 8), count = 8 }):item()
   local handle = t.parallel.cp.attach(model, t.parallel.mesh({ cp = n }):axis 'cp')
   local batch = { ids = ids, labels = labels, cu_real = { 0, 3, 8 } }
   if extra == 'attention_mask' then batch.attention_mask = int { { 1, 1, 1, 1, 1, 1, 1, 1 } } end
   if extra == 'padding_mask' then batch.padding_mask = t.zeros({ 1, 8 }):to 'bool' end
   local mine = handle:cut(batch)
   local part = model:loss(mine.ids, mine.labels, { context = mine.context, count = 8 }):item()
   return math.abs(t.dist.sum(handle.comm, { part })[1] - want) < 1e-5
end

describe('documents beside a mask', function()
   it('give the loss of the documents, on one rank and on two', function()
      for _, extra in ipairs { 'nothing', 'attention_mask', 'padding_mask' } do
         for n = 1, 2 do
            for _, ok in ipairs(ranks.run(n, losses, extra)) do assert.is_true(ok) end
         end
      end
   end)
end)

-- On a rank: the losses of two steps and one evaluation of a model, attached or not, on batches
-- whose documents stand in `fields`.
local function trained(_, n, name)
   local t = require 'tide'
   local function int(list) return t.tensor(list, { dtype = 'i64' }) end
   local docs = int { { 1, 1, 1, 2, 2, 3, 3, 0 } }
   local fields = ({
      index = { index = t.parallel.cp.document_index_of(docs) },
      packed_seq_ids = { packed_seq_ids = docs }, attention_mask = { attention_mask = docs },
      cu_real = { cu_real = { 0, 3, 5, 7 } },
      two = { cu_real = { 0, 3, 5, 8 }, padding_mask = docs:eq(0) },
      three = { packed_seq_ids = docs, attention_mask = int { { 1, 1, 1, 1, 1, 1, 1, 0 } },
         index = t.parallel.cp.document_index_of(docs:masked_fill(docs:eq(0), 9)) },
   })[name]
   local model = t.model.llama({ vocab_size = 29, hidden_size = 24, num_hidden_layers = 2,
      num_attention_heads = 4, intermediate_size = 40 }, { seed = 5 })
   local comm = n > 1 and t.parallel.mesh({ cp = n }):axis('cp').comm or t.dist.solo()
   if n > 1 then t.parallel.cp.attach(model, comm) end
   local step = t.train.step.new { model = model, comm = comm,
      optim = t.optim.AdamW(model, { lr = 1e-2 }) }
   local function batch()
      local b = { ids = int { { 1, 2, 3, 4, 5, 6, 7, 8 } },
         labels = int { { 2, 3, 4, 5, 6, 7, 8, 9 } } }
      for k, v in require 'tide.util.each'(fields) do b[k] = v end
      return b
   end
   local first, second = step:run { batch(), batch() }.loss, step:run { batch() }.loss
   return { first, second, step:evaluate({ 1, 2 }, 1, batch) }
end

describe('a step of training', function()
   it('heeds what any field says, on one rank and on two', function()
      local want = ranks.run(1, trained, 'index')[1]
      for _, name in ipairs { 'index', 'packed_seq_ids', 'attention_mask', 'cu_real', 'two',
         'three' } do
         for n = 1, 2 do
            for _, got in ipairs(ranks.run(n, trained, name)) do
               for i, v in ipairs(want) do assert.near(v, got[i], 2e-5) end
            end
         end
      end
   end)
end)

describe('packed rows', function()
   local function rows(more)
      local b = { input_ids = ints { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } },
         labels = ints { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } }, position_ids = false,
         seq_lens = { { 1, 2 }, { 4, -1000 } }, seq_lens_padded = { { 2, 2 }, { 4, -1000 } } }
      for k, v in require 'tide.util.each'(more) do b[k] = v end
      return b
   end
   local function go(more) return cp.make_cp_batch_for_te(axis(1), rows(more)) end

   it('do not train what lies behind a document, on any number of ranks', function()
      for _, a in ipairs { axis(1), axis(2), axis(2, 1) } do
         local out = cp.make_cp_batch_for_te(a, rows {})
         local pad = out.padding_mask:tolist()
         for i, label in ipairs(out.labels:tolist()) do assert.equal(pad[i], label == -100) end
      end
      local out = cp.shard_thd_chunk({ input_ids = ints { 1, 2, 3, 4, 5, 6, 7, 8 },
         labels = ints { 1, 2, 3, 4, 5, 6, 7, 8 }, cu_seqlens = { 0, 4 } }, axis(2))
      assert.same({ 1, 4, -100, -100 }, out.labels:tolist())
   end)

   it('take masks that say what the lengths say', function()
      go { attention_mask = ints { { 1, 1, 1, 1 }, { 1, 1, 1, 1 } } }
      go { attention_mask = ints { { 1, 0, 2, 2 }, { 3, 3, 3, 3 } } }
      go { packed_seq_ids = ints { { 1, 0, 2, 2 }, { 1, 1, 1, 1 } } }
      go { padding_mask = tide.tensor { { false, true, false, false }, { false, false, false,
         false } } }
      refused('E_ARG', { "'attention_mask'", 'token 3 of row 1' }, go,
         { attention_mask = ints { { 1, 1, 0, 1 }, { 1, 1, 1, 1 } } })
      refused('E_ARG', { "'padding_mask'", 'token 4 of row 2' }, go, { padding_mask = tide.tensor {
         { false, true, false, false }, { false, false, false, true } } })
      refused('E_ARG', "'seq_lens' and 'attention_mask' describe different documents: row 1", go,
         { attention_mask = ints { { 1, 1, 1, 1 }, { 2, 2, 2, 2 } } })
      refused('E_ARG', "'packed_seq_ids' describe different documents: row 2, token 4", go,
         { packed_seq_ids = ints { { 1, 0, 2, 2 }, { 1, 1, 1, 2 } } })
   end)

   it('without lengths keep the padding of a mask, and refuse documents', function()
      local unknown = { seq_lens = false, seq_lens_padded = false }
      local function bare(more)
         for k, v in require 'tide.util.each'(unknown) do more[k] = v end
         return tide.parallel.thd.process_input_for_thd(rows(more))
      end
      local mask = tide.tensor { { false, false, false, true }, { false, false, true, true } }
      local flat = { false, false, false, true, false, false, true, true }
      assert.same(flat, bare({ padding_mask = mask }).padding_mask:tolist())
      assert.same(flat, bare({ padding_mask = mask, input_ids = tide.zeros { 2, 4, 3 } })
         .padding_mask:tolist())
      assert.same(flat, bare({ attention_mask = ints { { 1, 1, 1, 0 }, { 1, 1, 0, 0 } } })
         .padding_mask:tolist())
      refused('E_ARG', 'seq_lens', bare, { attention_mask = ints { { 1, 1, 2, 2 },
         { 1, 1, 1, 1 } } })
      refused('E_ARG', "'packed_seq_ids'", bare, { packed_seq_ids = ints { { 1, 1, 1, 1 },
         { 1, 1, 1, 1 } } })
   end)
end)
