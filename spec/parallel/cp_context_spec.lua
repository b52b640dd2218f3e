-- The context of a batch: how it is put together, that one rank computes what any number does, and
-- that it is all attention needs.

local tide = require 'tide'
local cp = require 'tide.parallel.cp'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'

local function ints(list) return tide.tensor(list, { dtype = 'i64' }) end
local function axis(size, rank) return { size = size, rank = rank or 0 } end
local function list(t) return t:tolist() end

describe('a context', function()
   local map = require('tide.parallel.cp.map').new { size = 4, length = 16, axis = nil }
   it('checks how it is put together', function()
      local a = axis(4)
      assert.equal('ring', cp.context { map = map, axis = a }.method)
      local c = cp.context { map = map, axis = a, method = 'a2a+p2p', inner = axis(2),
         outer = axis(2) }
      assert.equal(2, c.inner.size)
      local function go(o)
         o.map = map
         return cp.context(o)
      end
      refused('E_ARG', 'axis', go, {})
      refused('E_ARG', 'axis', go, { axis = axis(2) })
      refused('E_ARG', 'method', go, { axis = a, method = 'rings' })
      refused('E_ARG', 'inner', go, { axis = a, method = 'a2a+p2p' })
      refused('E_ARG', 'inner', go, { axis = a, inner = axis(2), outer = axis(2) })
      refused('E_ARG', 'must equal', go, { axis = a, method = 'a2a+p2p', inner = axis(2),
         outer = axis(3) })
      refused('E_ARG', 'index', go, { axis = a, index = tide.zeros { 1, 16, 2 } })
   end)
end)

describe('one rank', function()
   -- On a rank: { name, loss } of a hybrid and an attention model for every way to tell of
   -- documents, over as many ranks as there are.
   local function losses(_, n)
      local t = require 'tide'
      local cp_ = t.parallel.cp
      local axis_ = t.parallel.mesh({ cp = n }):axis 'cp'
      local B, S = 2, 11
      local function draw(most, seed, rows)
         return t.zeros { rows or B, S }:uniform_(0, most, { seed = seed }):to 'i64'
      end
      local ids, labels = draw(29, 1), draw(29, 2)
      local one, one_labels = draw(29, 3, 1), draw(29, 4, 1)
      local docs = t.tensor({ { 1, 1, 1, 2, 2, 2, 2, 3, 3, 0, 0 },
         { 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2 } }, { dtype = 'i64' })
      local cu = t.tensor({ 0, 4, 5, 9 }, { dtype = 'i32' })
      local slots = t.tensor({ 0, 4, 6, 11 }, { dtype = 'i32' })
      one_labels = one_labels:masked_fill(t.parallel.thd.padding_mask(cu, slots, S)
         :reshape { 1, S }, -100)
      local te_labels = labels:masked_fill(t.tensor({ { 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1 },
         { 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1 } }):to 'bool', -100)
      local ways = {
         { 'nothing', {} }, { 'packed_seq_ids', { packed_seq_ids = docs } },
         { 'attention_mask', { attention_mask = docs } },
         { 'padding_mask', { padding_mask = docs:eq(0) } },
         { 'index', { index = cp_.document_index_of(docs) } },
         { 'cu', { ids = one, labels = one_labels, cu_real = cu, cu_slot = slots } },
         { 'window', {}, { window = { 2, -1 } } },
         { 'contiguous_batch', { make_cp_batch_fn = cp_.contiguous_batch(),
            packed_seq_ids = docs } },
         { 'use_te', { input_ids = ids, labels = te_labels, position_ids = false,
            seq_lens = { { 3, 5 }, { 9 } }, seq_lens_padded = { { 4, 7 }, { 11 } } },
            { use_te = true } },
      }
      local found = {}
      for _, family in ipairs { 'llama', 'hybrid' } do
         local model = family == 'llama' and t.model.llama({ vocab_size = 29, hidden_size = 16,
            num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 16 }, { seed = 3 })
            or t.model.hybrid({ vocab_size = 29, hidden_size = 16, hybrid_override_pattern = 'M*-',
               num_attention_heads = 2, num_key_value_heads = 2, intermediate_size = 16,
               mamba_num_heads = 4, mamba_head_dim = 8, ssm_state_size = 8, n_groups = 2 },
               { seed = 3 })
         if n > 1 then cp_.attach(model, axis_) end
         for _, way in ipairs(ways) do
            local batch = { labels = labels }
            for k, v in require 'tide.util.each' (way[2]) do batch[k] = v end
            if not batch.input_ids then batch.ids = batch.ids or ids end
            local context, mine = cp_.make_cp_batch_and_ctx(n > 1 and axis_ or nil, batch, way[3])
            local at, its = mine.ids or mine.input_ids, mine.labels
            if at.ndim == 1 then at, its = at:unsqueeze(1), its:unsqueeze(1) end
            local loss = t.no_grad(model.loss, model, at, its, { context = context, count = 7 })
            if n > 1 then axis_.comm:all_reduce(loss) end
            found[#found + 1] = { family .. ' ' .. way[1], loss:item() }
         end
      end
      return found
   end

   it('computes what any number of ranks does, however documents are told', function()
      local want = ranks.run(1, losses)[1]
      for _, n in ipairs { 2, 3 } do
         for _, got in ipairs(ranks.run(n, losses)) do
            for i, w in ipairs(want) do
               assert.equal(w[1], got[i][1])
               assert.is_true(math.abs(got[i][2] / w[2] - 1) < 1e-5, ('%s: %d ranks %.9g, one %.9g')
                  :format(w[1], n, got[i][2], w[2]))
            end
         end
      end
      assert.is_not_equal(want[1][2], want[2][2])      -- documents make a difference
   end)

   it('takes a context without being attached, and only of the whole', function()
      local attention = tide.nn.Attention { dim = 8, heads = 2 }
      local x = tide.randn { 1, 6, 8 }
      local docs = ints { { 1, 1, 2, 2, 2, 0 } }
      local context = cp.make_cp_batch_and_ctx(nil, { ids = docs, labels = docs,
         packed_seq_ids = docs })
      assert.equal(1, context.size)
      local index = cp.document_index_of(docs)
      assert.same(list(attention(x, { q_index = index, k_index = index })),
         list(attention(x, { context = context })))
   end)
end)

describe('what a context tells attention', function()
   -- Keys and values of all ranks, their (document, position) pairs beside them: outputs and
   -- gradients must be those of one rank, for every layout and mask.
   local function attend()
      local tide_ = require 'tide'
      local cp_, op = require 'tide.parallel.cp', tide_.parallel.op
      local mesh = tide_.parallel.mesh.new { { 'dp', 2 }, { 'cp', -1 } }
      local axis_ = mesh:axis 'cp'
      local B, S, H, D = 2, 13, 2, 4
      local function values(seed, heads)
         return (tide_.arange(B * S * heads * D, { dtype = 'f64' }) * 0.7 + seed):sin()
            :reshape { B, S, heads, D }
      end
      local packed = tide_.tensor({ { 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 0 },
         { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2 } }, { dtype = 'i64' })
      local index = cp_.document_index_of(packed)
      local worst = 0
      local function differ(a, b) worst = math.max(worst, (a - b):abs():amax():item()) end
      for _, kind in ipairs { 'zigzag', 'contiguous', 'balanced' } do
         for _, mask in ipairs { { causal = true }, { causal = false },
            { causal = true, window = { 3, -1 } } } do
            local q, k, v = values(1, H), values(2, 1), values(3, 1)
            local w = values(4, H)
            for _, t in ipairs { q, k, v } do t:requires_grad_(true) end
            local want = tide_.attention(q, k, v, { causal = mask.causal, window = mask.window,
               q_index = index, k_index = index })
            local total = (want * w):sum()
            total:backward()
            local grads = { q.grad:clone(), k.grad:clone(), v.grad:clone() }
            for _, t in ipairs { q, k, v } do t:zero_grad() end

            local c, mine = cp_.make_cp_batch_and_ctx(mesh, { inputs_embeds = q:reshape { B, S,
               H * D }, labels = packed, packed_seq_ids = packed }, { kind = kind })
            local ql = mine.inputs_embeds:reshape { B, c.map.count, H, D }
            local kl, vl = c.map:shard(k, 2, 0), c.map:shard(v, 2, 0)
            local pairs_ = {}
            for r = 0, c.size - 1 do pairs_[r + 1] = c:k_index(r) end
            local ka, va = op.all_gather(kl, axis_, 2), op.all_gather(vl, axis_, 2)
            local out = tide_.attention(ql, ka, va, { causal = mask.causal,
               window = mask.window, q_index = c:q_index(), k_index = tide_.cat(pairs_, 2) })
            differ(c.map:gather(out, 2), want)
            local loss = (out * c.map:shard(w, 2, 0)):sum()
            loss:backward()
            for i, t in ipairs { q, k, v } do
               differ(axis_.comm:all_reduce(t.grad:clone()), grads[i])
            end
         end
      end
      return worst
   end

   it('suffices, on any mesh', function()
      for _, n in ipairs { 4, 6, 8 } do
         for _, worst in ipairs(ranks.run(n, attend)) do assert.is_true(worst < 1e-12) end
      end
   end)
end)

describe('two contexts', function()
   -- On a rank: losses of two batches, one after the other and then in turns, forward and backward;
   -- with all gradients.
   local function turns(_, n)
      local t = require 'tide'
      local model = t.model.llama({ vocab_size = 29, hidden_size = 16, num_hidden_layers = 2,
         num_attention_heads = 2 }, { seed = 3 })
      local handle = n > 1 and t.parallel.cp.attach(model, t.dist.world())
      local function batch(T, cu)
         local ids = (t.arange(T, { dtype = 'i64' }) * 2):reshape(1, T)
         local b = { ids = ids, labels = ids, cu_real = cu }
         if handle then return handle:cut(b) end
         local context, mine = t.parallel.cp.make_cp_batch_and_ctx(nil, b)
         mine.context = context
         return mine
      end
      local function loss(b)
         return model:loss(b.ids, b.labels, { context = b.context, count = 9 })
      end
      local function grads()
         local sums = {}
         for i, p in ipairs(model:parameters()) do sums[i] = p.grad:to('f64'):sum():item() end
         model:zero_grad()
         return table.concat(sums, ' ')
      end
      local a, b = batch(12, { 0, 5, 12 }), batch(10, { 0, 3, 9 })
      local one, two = loss(a), loss(b)
      local want = { one:item(), two:item() }
      one:backward()
      two:backward()
      want[3] = grads()
      local second, first = loss(b), loss(a)
      first:backward()
      second:backward()
      return { want, { first:item(), second:item(), grads() } }
   end

   it('are of their calls alone: made and used in turns they change nothing', function()
      for n = 1, 2 do
         for _, r in ipairs(ranks.run(n, turns)) do assert.same(r[1], r[2]) end
      end
   end)
end)

describe('the two exchanges of a2a+p2p', function()
   it('are those of the ranks of the plan, else the error names the place that they say', function()
      local check = require('tide.parallel.cp.context').check_split
      check('spec', axis(2, 1), axis(3, 2), 6, 5)
      refused('E_ARG', 'inner (2) x outer (2) must equal the 6 ranks', check, 'spec', axis(2, 1),
         axis(2, 1), 6, 5)
      refused('E_ARG', { 'near must be the 2 neighbours of rank 4', 'rank 1 of 2 in near',
         '2 of 3 in far', 'the place of rank 5 ' }, check, 'spec', axis(2, 1), axis(3, 2), 6, 4,
         { 'near', 'far' })
   end)
end)
