-- Batches over ranks: every field cut by one plan, documents as data, contiguous and packed
-- streams, targets, refusals.

local tide = require 'tide'
local cp = require 'tide.parallel.cp'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'

local function ints(list) return tide.tensor(list, { dtype = 'i64' }) end
local function axis(size, rank) return { size = size, rank = rank or 0 } end
local function list(t) return t:tolist() end

describe('positions', function()
   it('are 0, 1, ... unless they are there', function()
      local b = { input_ids = ints { { 0, 1, 2, 3, 4, 5 } } }
      assert.equal(b, cp.build_position_ids(b))
      assert.same({ { 0, 1, 2, 3, 4, 5 } }, list(b.position_ids))
      assert.equal('i64', b.position_ids.dtype)
      local given = ints { { 5, 4, 3 } }
      b = { input_ids = ints { { 1, 2, 3 } }, position_ids = given }
      assert.is_true(rawequal(given, cp.build_position_ids(b).position_ids))
      refused('E_ARG', 'input_ids', cp.build_position_ids, {})
   end)
end)

describe('a batch over ranks', function()
   local function six(more)
      local b = { input_ids = ints { { 1, 2, 3, 4, 5, 6 } },
         labels = ints { { 2, 3, 4, 5, 6, 7 } } }
      for k, v in require "tide.util.each"(more or {}) do b[k] = v end
      return b
   end
   -- The two ranks' parts of a field, joined in order.
   local function whole(batch, name, opts, dim)
      local parts, map = {}, nil
      for r = 0, 1 do
         local c, out = cp.make_cp_batch_and_ctx(axis(2, r), batch, opts)
         parts[r + 1], map = out[name], c.map
      end
      return list(tide.cat(parts, dim or 2):index_select(dim or 2, map:restore()))
   end

   it('is itself without context parallelism', function()
      local b = six()
      for _, mesh in ipairs { false, axis(1) } do
         local c, out = cp.make_cp_batch_and_ctx(mesh or nil, b)
         assert.equal(cp.null, c)
         assert.equal(b, out)
         assert.is_nil(b.position_ids)
      end
      assert.equal(7, cp.null:run(function(c) return c.size + 6 end))
   end)

   it('is padded with the value of each field', function()
      local mask = tide.tensor { { false, false, false, false, true, true } }
      local b = six { padding_mask = mask }
      assert.same({ { 2, 3, 4, 5, -100, -100, -100, -100 } }, whole(b, 'labels'))
      assert.same({ { 2, 3, 4, 5, 6, 7, -100, -100 } }, whole(six(), 'labels'))
      assert.same({ { 0, 1, 2, 3, 4, 5, 0, 0 } }, whole(b, 'position_ids'))
      assert.same({ { 1, 2, 3, 4, 5, 6, 0, 0 } }, whole(b, 'input_ids'))
      assert.same({ { 1, 2, 3, 4, 5, 6, 9, 9 } }, whole(b, 'input_ids', { padding_token_id = 9 }))
      assert.same({ { false, false, false, false, true, true, true, true } },
         whole(b, 'padding_mask'))
      assert.same({ { 1, 1, 0, 1, 0, 0, 0, 0 } },
         whole(b, 'loss_mask', { loss_mask = tide.tensor { { 1, 1, 0, 1, 1, 1 } } }))
      assert.same({ 1, 6 }, b.input_ids.shape)
   end)

   it('counts positions in documents, however those are given', function()
      local pairs_ = { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 }, { 1, 2 }, { -1, 0 } }
      local index = tide.tensor({ pairs_ }, { dtype = 'i32' })
      local model = tide.model.gpt2({ vocab_size = 9, n_embd = 8, n_layer = 1, n_head = 2,
         n_positions = 8, initializer_range = 0.5 }, { seed = 1 })
      model:eval()
      local ids = six().input_ids
      local given = { 0, 1, 0, 1, 2, 0 }
      local want = model(ids, { index = index, positions = ints { given } }):narrow(2, 1, 5)
      for _, says in ipairs { { index = index }, { cu_real = { 0, 2, 5 }, cu_slot = { 0, 2, 6 } },
         { cu_real = { 0, 2, 5 } } } do
         assert.same({ { 0, 1, 0, 1, 2, 0, 0, 0 } }, whole(six(says), 'position_ids'))
         local c = cp.make_cp_batch_and_ctx(nil, six(says))
         assert.is_true(model(ids, { context = c }):narrow(2, 1, 5):equal(want))
      end
      assert.is_true(model(ids, { index = index }):narrow(2, 1, 5):equal(want))
   end)

   it('goes over the ranks head and tail', function()
      local b = { input_ids = ints { { 1, 2, 3, 4, 5, 6, 7, 8 } },
         labels = ints { { 10, 20, 30, 40, 50, 60, 70, 80 } } }
      for r, want in ipairs { { 1, 2, 7, 8 }, { 3, 4, 5, 6 } } do
         local c, out = cp.make_cp_batch_and_ctx(axis(2, r - 1), b)
         assert.same({ want }, list(out.input_ids))
         for i, v in ipairs(want) do assert.equal(10 * v, list(out.labels)[1][i]) end
         assert.equal('ring', c.method)
         assert.equal(8, c.map.padded)
      end
      local _, mine = cp.make_cp_batch_and_ctx(axis(2), { ids = ints { { 1, 2, 3, 4, 5, 6, 7, 8 } },
         labels = b.labels, counted = ints { 0, 2, 3 }, cu_real = { 0, 4, 8 },
         cu_slot = { 0, 4, 8 } }, { kind = 'document' })
      assert.same({ { 1, 4, 5, 8 } }, list(mine.ids))
      assert.is_nil(mine.cu_real)
      assert.is_nil(mine.counted)                  -- places in the whole, not in this part
      assert.is_truthy(mine.positions)
   end)

   it('takes embeddings and further values for each token', function()
      local function part(b, opts) return select(2, cp.make_cp_batch_and_ctx(axis(2), b, opts)) end
      local out = part { inputs_embeds = tide.zeros { 1, 12, 32 }, labels = ints { { 1, 2, 3, 4, 5,
         6, 7, 8, 9, 10, 11, 12 } } }
      assert.same({ 1, 6 }, out.position_ids.shape)
      assert.same({ 1, 6, 32 }, out.inputs_embeds.shape)
      out = part { inputs_embeds = tide.zeros { 3, 8, 16 }, labels = tide.zeros { 3, 8 } }
      assert.same({ 3, 4 }, out.position_ids.shape)
      out = part(six { position_ids = ints { { { 0, 1, 2, 3, 4, 5 } }, { { 0, 1, 2, 3, 4, 5 } },
         { { 0, 1, 2, 3, 4, 5 } } } })
      assert.same({ 3, 1, 4 }, out.position_ids.shape)
      out = part(six { mm_token_type_ids = ints { { 0, 1, 0, 1, 1, 1 } }, note = 'x' })
      assert.same({ { 0, 1, 0, 0 } }, list(out.mm_token_type_ids))
      assert.equal('x', out.note)
      out = part(six { weight = tide.tensor { { 1, 2, 3, 4, 5, 6 } }, bias = tide.zeros { 1, 6 } },
         { fields = { weight = { dim = 2, fill = -1 }, bias = false } })
      assert.same({ { 1, 2, -1, -1 } }, list(out.weight))
      assert.same({ 1, 6 }, out.bias.shape)
      refused('E_ARG', { "'weight' looks like", 'fields' }, part,
         six { weight = tide.zeros { 1, 6 } })
   end)

   it('keeps gradients of embeddings', function()
      local x = tide.ones({ 1, 6, 2 }):requires_grad_(true)
      local _, out = cp.make_cp_batch_and_ctx(axis(2, 1), { inputs_embeds = x,
         labels = tide.zeros { 1, 6 } })
      out.inputs_embeds:sum():backward()
      assert.same({ { { 0, 0 }, { 0, 0 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, { 1, 1 } } }, list(x.grad))
   end)

   it('needs one kind of tokens, and labels', function()
      local function go(b, o) return cp.make_cp_batch_and_ctx(axis(2), b, o) end
      refused('E_ARG', 'exactly one of', go, six { inputs_embeds = tide.zeros { 1, 6, 2 } })
      refused('E_ARG', 'exactly one of', go, { labels = tide.zeros { 1, 6 } })
      refused('E_ARG', 'labels', go, { input_ids = ints { { 1, 2 } } })
      refused('E_ARG', 'labels', go,
         { input_ids = ints { { 1, 2 } }, labels = tide.zeros { 1, 3 } })
      refused('E_ARG', 'position_ids', go, six { position_ids = tide.zeros { 1, 5 } })
      local two = ints { { 1, 2 }, { 3, 4 } }
      for _, labels in ipairs { ints { { 1, 2 } }, ints { { 1, 2 }, { 1, 2 }, { 1, 2 } },
         { { 1, 2 }, { 1, 2 } }, ints { 1, 2 } } do
         refused('E_ARG', { "'labels'", '[2, 2]' }, go, { ids = two, labels = labels })
      end
      refused('E_ARG', { "'loss_mask'", '[1, 6]' }, go, six(), { loss_mask = 'x' })
      refused('E_ARG', { "'loss_mask'", '[1, 6]' }, go, six { loss_mask = tide.ones { 6 } })
      refused('E_ARG', 'token_type_ids', go, six { token_type_ids = { { 1, 1, 1, 1, 1, 1 } } })
      for name, shape in require 'tide.util.each' { cache_position = { 6 }, mask = { 1, 1, 6 },
         bias = { 1, 1, 6, 6 }, planes = { 3, 1, 6 } } do
         refused('E_ARG', { name, 'fields' }, go, six { [name] = tide.zeros(shape) })
         local _, out = go(six { [name] = tide.zeros(shape) }, { fields = { [name] = false } })
         assert.same(shape, out[name].shape)
      end
      refused('E_ARG', 'paddding', go, six(), { paddding = 1 })
      refused('E_ARG', 'fill', go, six(), { fields = { a = { dim = 2 } } })
      refused('E_ARG', 'one row', go, { input_ids = ints { { 1, 2 }, { 3, 4 } },
         labels = ints { { 1, 2 }, { 3, 4 } }, cu_real = { 0, 2, 4 } })
      refused('E_ARG', 'mesh', cp.make_cp_batch_and_ctx, 3, six())
   end)

   it('tells documents and padding as data, and drops the mask', function()
      local function pairs_of(b)
         local c, out = cp.make_cp_batch_and_ctx(axis(2), b)
         assert.is_nil(out.attention_mask)
         local all = {}
         for r = 0, 1 do all[r + 1] = c:k_index(r) end
         return list(tide.cat(all, 2):index_select(2, c.map:restore())), c
      end
      local function docs(rows)
         local out = {}
         for i, p in ipairs(rows) do out[i] = p[1] end
         return out
      end
      assert.same({ 0, 0, 0, 0, 0, 0, -1, -1 }, docs(pairs_of(six())[1]))
      assert.same({ 0, 0, 0, 0, -1, -1, -1, -1 },
         docs(pairs_of(six { attention_mask = ints { { 1, 1, 1, 1, 0, 0 } } })[1]))
      assert.same({ 0, 0, 1, 1, 1, -1, -1, -1 },
         docs(pairs_of(six { attention_mask = ints { { 1, 1, 2, 2, 2, 0 } } })[1]))
      assert.same({ 0, 0, 0, 0, 0, -1, -1, -1 }, docs(pairs_of(six { padding_mask =
         tide.tensor { { false, false, false, false, false, true } } })[1]))
      local rows, c = pairs_of(six { packed_seq_ids = ints { { 1, 1, 2, 2, 2, 0 } } })
      assert.same({ 0, 1, 2, 3, 4 }, { rows[1][1][2], rows[1][2][2], rows[1][3][2], rows[1][4][2],
         rows[1][5][2] })
      assert.same(list(c:q_index()), list(c:k_index(0)))
      refused('E_UNSUPPORTED', 'documents', pairs_of, six { attention_mask =
         tide.zeros { 1, 1, 6, 6 } })
      refused('E_UNSUPPORTED', 'documents', pairs_of, six { attention_mask = tide.zeros { 1, 6 } })
      refused('E_ARG', 'attention_mask', pairs_of, six { attention_mask = ints { { 1, 1 } } })
   end)

   it('says with its documents which pairs attention sees', function()
      local index = cp.document_index_of(ints { { 1, 1, 2, 2, 0 } })
      local q = tide.zeros { 1, 5, 1, 4 }
      local v = tide.eye(5):reshape { 1, 5, 1, 5 }
      local w = tide.attention(q, q, v, { causal = true, q_index = index, k_index = index })
      assert.same({ { 1, 0, 0, 0, 0 }, { 0.5, 0.5, 0, 0, 0 }, { 0, 0, 1, 0, 0 },
         { 0, 0, 0.5, 0.5, 0 }, { 0, 0, 0, 0, 0 } }, list(w:reshape { 5, 5 }))
   end)

   it('may be cut by the model', function()
      local seen
      local function own(cp_axis, tp_axis, b, more)
         seen = { cp_axis, tp_axis, b.make_cp_batch_fn, more.padding_token_id, more.loss_mask }
         return 'context', 'batch'
      end
      local b = six { make_cp_batch_fn = own }
      local c, out = cp.make_cp_batch_and_ctx(nil, b, { use_te = true, padding_token_id = 5 })
      assert.same({ 'context', 'batch' }, { c, out })
      assert.equal(5, seen[4])
      assert.is_nil(seen[1])
      assert.is_nil(seen[3])
      assert.equal(own, b.make_cp_batch_fn)
   end)
end)

describe('a batch on one rank', function()
   local ids = ints { { 1, 2, 3 }, { 4, 5, 6 } }
   it('stays as it is, unless an option says more of its rows', function()
      local b = { input_ids = ids, labels = ids }
      local c, out = cp.make_cp_batch_and_ctx(nil, b)
      assert.is_true(c == cp.null and out == b)
      c, out = cp.make_cp_batch_and_ctx(axis(1), b)
      assert.is_true(c == cp.null and out == b)
      for _, opts in ipairs { { loss_mask = tide.ones { 2, 3 } }, { window = { 1, 1 } },
         { causal = false } } do
         c, out = cp.make_cp_batch_and_ctx(nil, b, opts)
         assert.is_true(c ~= cp.null and out ~= b)
         assert.same({ { 0, 1, 2 }, { 0, 1, 2 } }, list(out.position_ids))
         assert.equal(opts.loss_mask ~= nil, out.loss_mask ~= nil)
      end
   end)

   it('of one token has values of [B, 1, ..]', function()
      local one = ids:narrow(2, 1, 1):contiguous()
      local function go(more)
         return select(2, cp.make_cp_batch_and_ctx(axis(2), { input_ids = one, labels = one,
            more = more }))
      end
      for _, shape in ipairs { { 2, 1, 4 }, { 1, 1 }, { 2, 1 } } do
         refused('E_ARG', "'more' looks like a value for each token (dim 2 has 1", go,
            tide.zeros(shape))
      end
      for _, shape in ipairs { { 2, 2 }, { 2 }, { 1 }, { 3, 1 }, {} } do
         assert.same(shape, go(tide.zeros(shape)).more.shape)
      end
   end)
end)

describe('contiguous batches of a model', function()
   local function go(rank, b, opts, more)
      b.make_cp_batch_fn = cp.contiguous_batch(opts)
      return select(2, cp.make_cp_batch_and_ctx(axis(2, rank), b, more))
   end
   it('keep order, and go on counting', function()
      local four = ints { { 10, 20, 30, 40 } }
      local out = go(0, { input_ids = four, labels = four }, nil,
         { loss_mask = tide.ones { 1, 4 } })
      assert.same({ { 10, 20 } }, list(out.input_ids))
      assert.same({ { 10, 20 } }, list(out.labels))
      assert.same({ { 0, 1 } }, list(out.position_ids))
      assert.same({ { 1, 1 } }, list(out.loss_mask))
      local three = ints { { 1, 2, 3 } }
      out = go(1, { input_ids = three, labels = three, packed_seq_ids = ints { { 1, 1, 2 } },
         mm_token_type_ids = ints { { 0, 1, 0 } } }, nil, { padding_token_id = 99 })
      assert.same({ { 3, 99 } }, list(out.input_ids))
      assert.same({ { 3, -100 } }, list(out.labels))
      assert.same({ { 2, 0 } }, list(out.packed_seq_ids))
      assert.same({ { 0, 0 } }, list(out.mm_token_type_ids))
      assert.same({ { 2, 3 } }, list(out.position_ids))
      out = go(0, { input_ids = four, labels = four,
         padding_mask = tide.tensor { { true, false, true, true } } })
      assert.same({ { true, false } }, list(out.padding_mask))
      local p = ints { { 0, 1, 2, 3, 4, 5, 6, 7 } }
      out = go(0, { input_ids = p, labels = p, position_ids = tide.stack({ p, p, p }, 1) })
      assert.same({ 3, 1, 4 }, out.position_ids.shape)
      assert.same({ 0, 1, 2, 3 }, list(out.position_ids)[3][1])
      local six = ints { { 1, 2, 3, 4, 5, 6 } }
      assert.same({ { 0, 1, 2, 3 } }, list(go(0, { input_ids = six, labels = six }).position_ids))
      assert.same({ { 4, 5, 6, 7 } }, list(go(1, { input_ids = six, labels = six }).position_ids))
      out = go(0, { inputs_embeds = tide.zeros { 1, 4, 8 }, labels = ints { { 1, 2, 3, 4 } },
         per_layer_inputs = tide.zeros { 1, 4, 2, 3 } })
      assert.same({ 1, 2, 8 }, out.inputs_embeds.shape)
      assert.same({ 1, 2, 2, 3 }, out.per_layer_inputs.shape)
      assert.same({ 1, 2 }, out.position_ids.shape)
      assert.same({ { 1, 2 } }, list(out.labels))
   end)

   it('are padded to a multiple for each rank, with token 0 by default', function()
      local fn = cp.contiguous_batch { pad_multiple = 4 }
      local five = ints { { 1, 2, 3, 4, 5 }, { 6, 7, 8, 9, 10 } }
      local _, out = fn(axis(2, 1), nil, { input_ids = five, labels = five })
      assert.same({ { 5, 0, 0, 0 }, { 10, 0, 0, 0 } }, list(out.input_ids))
      assert.same({ { 1, 0, 0, 0 }, { 1, 0, 0, 0 } }, list(out.packed_seq_ids))
      assert.same({ { 4, 5, 6, 7 }, { 4, 5, 6, 7 } }, list(out.position_ids))
      local _, one = cp.contiguous_batch()(nil, nil, { input_ids = five, labels = five,
         position_ids = ints { { { 0, 1, 2, 3, 4 }, { 0, 1, 2, 3, 4 } } } })
      assert.same({ 2, 6 }, one.input_ids.shape)
      assert.same({ 1, 2, 6 }, one.position_ids.shape)
   end)

   it('number documents from the padding', function()
      local six = ints { { 1, 2, 3, 4, 5, 6 } }
      local mask = tide.tensor { { false, false, false, false, true, true } }
      local function ids(b)
         local all = {}
         for r = 0, 1 do all[r + 1] = go(r, b).packed_seq_ids end
         return list(tide.cat(all, 2))
      end
      assert.same({ { 1, 1, 1, 1, 0, 0, 0, 0 } },
         ids { input_ids = six, labels = six, padding_mask = mask })
      assert.same({ { 1, 1, 2, 2, 0, 0, 0, 0 } }, ids { input_ids = six, labels = six,
         packed_seq_ids = ints { { 1, 1, 2, 2, 0, 0 } } })
   end)
end)

describe('a frozen target', function()
   it('gets contiguous inputs, padded by the ranks alone', function()
      local ids = tide.arange(10, { dtype = 'i64' }):reshape { 1, 10 }
      local region, a, p, n = cp.make_target_cp_ctx(axis(4, 3), ids)
      assert.same({ 1, 12 }, a.shape)
      assert.same({ { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0 } }, list(p))
      assert.same({ 2, 2 }, region.dims)
      assert.equal(2, #region.buffers)
      assert.equal(10, n)
      region:run(function(shards, context)
         assert.same({ { 9, 0, 0 } }, list(shards[1]))
         assert.equal('allgather', context.method)
         assert.same({ 0, -1, -1 }, list(context:q_index():select(3, 1):select(1, 1)))
      end)
      local eight = tide.zeros({ 2, 8 }, { dtype = 'i64' })
      region, a, p, n = cp.make_target_cp_ctx(axis(2), eight,
         tide.arange(8, { dtype = 'i64' }):reshape { 1, 8 })
      assert.same({ 2, 8 }, a.shape)
      assert.same({ 2, 8 }, p.shape)
      assert.is_false(rawequal(a, eight) or a:same_storage(eight))
      assert.equal(8, n)
      assert.equal('contiguous', region.map.kind)
      refused('E_ARG', 'positions', cp.make_target_cp_ctx, axis(2), eight, tide.zeros { 1, 7 })
   end)

   it('is gathered of a list alone, behind the ranks', function()
      local x = tide.ones { 1, 8, 4 }
      refused('E_ARG', 'tensors', cp.gather_cp_seq, axis(1), x, 2, 8)
      refused('E_ARG', 'tensors', cp.gather_cp_seq, nil, axis(1), x, 2, 8)
      refused('E_ARG', 'axis', cp.gather_cp_seq, x, {}, 2, 8)
   end)

   it('is gathered again, whatever the layout', function()
      local out = cp.gather_cp_seq(nil, { tide.ones { 1, 8, 4 }, tide.ones { 1, 8, 6 } }, 2, 6)
      assert.same({ 1, 6, 4 }, out[1].shape)
      assert.same({ 1, 6, 6 }, out[2].shape)
      assert.same({ 1, 0, 4 }, cp.gather_cp_seq(nil, { tide.ones { 1, 8, 4 } }, 2, 0)[1].shape)
      local got = ranks.run(3, function()
         local tide_ = require 'tide'
         local cp_, comm = require 'tide.parallel.cp', tide_.dist.world()
         local x = tide_.arange(10, { dtype = 'i64' }):reshape { 1, 10 }
         local region = cp_.make_target_cp_ctx(comm, x)
         local ok = region:run(function(shards)
            local y = cp_.gather_cp_seq(region, { shards[1]:to 'f32' }, 2)[1]
            local z = cp_.gather_cp_seq(comm, { shards[1] }, 2, 10)[1]
            return y:equal(x:to 'f32') and z:equal(x) and not y.requires_grad
         end)
         local zig = cp_.create_context_parallel_ctx(comm, { x }, { 2 }, nil, nil,
            { fills = { 0 } })
         return ok and cp_.gather_cp_seq(zig, zig:shards(), 2)[1]:equal(x)
      end)
      assert.same({ true, true, true }, got)
   end)
end)

describe('packed streams over ranks', function()
   local function two()
      return { input_ids = ints { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } },
         labels = ints { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } },
         position_ids = ints { { 0, 1, 2, 3 }, { 0, 1, 2, 3 } },
         seq_lens = { { 4 }, { 4 } }, seq_lens_padded = { { 4 }, { 4 } } }
   end

   it('takes a mesh as well as its axis, and nothing else', function()
      local function mesh(rank)
         return { find = function(_, name) return name == 'cp' and axis(2, rank) or nil end }
      end
      assert.same({ 2, 3, 6, 7 }, list(cp.make_cp_batch_for_te(mesh(1), two()).input_ids))
      refused('E_ARG', 'mesh', cp.make_cp_batch_for_te, 3, two())
   end)

   it('cut each document', function()
      for r, want in ipairs { { 1, 4, 5, 8 }, { 2, 3, 6, 7 } } do
         local out = cp.make_cp_batch_for_te(axis(2, r - 1), two())
         assert.same(want, list(out.input_ids))
         assert.same({ 0, 4, 8 }, list(out.cu_seqlens))
         assert.equal('i32', out.cu_seqlens.dtype)
         assert.same({ 0, 2, 4 }, list(out.cu_local))
         assert.same({ 4, 'thd', 2, r - 1 },
            { out.max_seqlen, out.qkv_format, out.cp_size, out.cp_rank })
         assert.same({ false, false, false, false }, list(out.padding_mask))
         assert.same({ 1, 4, 2 }, out.index.shape)
         assert.is_nil(out.cu_seqlens_padded)
         assert.is_nil(out.attention_mask)
      end
      local context, out = cp.make_cp_batch_and_ctx(axis(2), two(), { use_te = true })
      assert.equal(context, out.context)
      assert.equal('document', context.map.kind)
   end)

   it('stay whole on one rank, and may come in chunks', function()
      local b = two()
      local out = cp.make_cp_batch_for_te(nil, b)
      assert.same({ 8 }, out.input_ids.shape)
      for r, want in ipairs { { { 1, 4 }, { 5, 8 } }, { { 2, 3 }, { 6, 7 } } } do
         out = cp.make_cp_batch_for_te(axis(2, r - 1), two(), { num_chunks = 2 })
         assert.same(want, list(out.input_ids))
         assert.same({ 0, 4 }, list(out.chunks[2].cu_seqlens))
      end
      b.seq_lens, b.seq_lens_padded = { { 1, 2 }, { 4, -7 } }, { { 2, 2 }, { 4, -7 } }
      local opts = { num_chunks = 2, seq_lens_padding_value = -7 }
      for _, a in ipairs { axis(1), axis(2, 0), axis(2, 1) } do
         out = cp.make_cp_batch_for_te(a, b, opts)
         local W = a.size
         assert.same(W == 1 and { { 0, 1, 3 }, { 0, 4, -7 } } or { { 0, 4, 8 }, { 0, 4, -7 } },
            list(out.cu_seqlens))
         assert.same({ { 0, 1, 3 }, { 0, 4, -7 } }, list(out.cu_real))
         assert.same(W == 1 and { 2, 4 } or nil, W == 1 and out.max_seqlen or nil)
         assert.same({ out.chunks[1].max_seqlen, out.chunks[2].max_seqlen }, out.max_seqlen)
         assert.is_true(W == 1 or out.input_ids == nil)       -- chunks of 4 and of 2 tokens
      end
      out = cp.make_cp_batch_for_te(axis(1), b, opts)
      assert.same({ { 1, -100, 3, 4 }, { 5, 6, 7, 8 } }, list(out.labels))
   end)

   it('keep real lengths, drop sentinels, and know padding by layout', function()
      local b = { input_ids = ints { 7, 0, 9, 99, 5, 6, 99, 99 }, labels = ints { 1, 2, 3, -100, 4,
         5, -100, -100 }, cu_seqlens = ints { 0, 3, 5, -1000 },
         cu_seqlens_padded = ints { 0, 4, 8, -1000 } }
      local out = cp.shard_thd_chunk(axis(2, 0), b)
      assert.same(list(out.input_ids), list(cp.shard_thd_chunk(b, axis(2, 0)).input_ids))
      assert.same({ 7, 99, 5, 99 }, list(out.input_ids))
      assert.same({ false, true, false, true }, list(out.padding_mask))
      assert.same({ 0, 4, 8 }, list(out.cu_seqlens))
      assert.same({ 0, 3, 5 }, list(out.cu_real))
      assert.same({ { 0, 0 }, { -1, 0 }, { 1, 0 }, { -1, 0 } }, list(out.index)[1])
      -- numbers of documents [T] may stand beside lengths where they agree
      b = { input_ids = ints { 1, 2, 3, 4, 5, 6, 7, 8 }, labels = ints { 1, 2, 3, 4, 5, 6, 7, 8 },
         cu_seqlens = ints { 0, 4, 8 }, packed_seq_ids = ints { 1, 1, 1, 1, 2, 2, 2, 2 } }
      assert.same({ 1, 4, 5, 8 }, list(cp.shard_thd_chunk(axis(2, 0), b).input_ids))
      b.packed_seq_ids = ints { 1, 1, 1, 1, 1, 2, 2, 2 }
      refused('E_ARG', 'describe different documents', cp.shard_thd_chunk, axis(2, 0), b)
      -- slots that do not divide are padded inside the plan
      b = { input_ids = ints { 1, 2, 3, 4, 5 }, labels = ints { 1, 2, 3, 4, 5 },
         cu_seqlens = { 0, 2, 5 } }
      out = cp.shard_thd_chunk(axis(2, 0), b, { padding_token_id = 9 })
      assert.same({ 1, 9, 3, 9 }, list(out.input_ids))
      assert.same({ 1, -100, 3, -100 }, list(out.labels))
      assert.same({ 0, 4, 8 }, list(out.cu_slot))
   end)

   it('take lengths under either name, and leave a single token and what lies behind it', function()
      local ids = ints { 1, 2, 3, 4, 5, 6, 7, 8 }
      local function of(more)
         local b = { input_ids = ids, labels = ids, gapless = true, attention_mask = ints { 1, 1, 1,
            1, 1, 1, 1, 1 } }
         for k, v in pairs(more) do b[k] = v end
         return cp.shard_thd_chunk(axis(2, 0), b)
      end
      for _, more in ipairs { { cu_real = { 0, 4, 8 }, cu_slot = { 0, 4, 8 } },
         { cu_seqlens = { 0, 4, 8 }, cu_seqlens_padded = { 0, 4, 8 }, cu_slot = { 0, 8 } },
         { cu_seqlens = { 0, 4, 8 }, cu_real = { 0, 8 } } } do
         more.attention_mask = ints { 1, 1, 1, 1, 2, 2, 2, 2 }
         local out = of(more)
         assert.same({ 1, 4, 5, 8 }, list(out.input_ids))
         assert.is_nil(out.cu_seqlens_padded)
         assert.is_nil(out.gapless)
         assert.is_nil(out.attention_mask)
      end
      local one = cp.shard_thd_chunk(axis(2, 0), { input_ids = ints { 7 }, labels = ints { 7 },
         cu_seqlens = { 0, 1 }, scale = tide.ones { 1 } }, { padding_token_id = 3 })
      assert.same({ { 7, 3 }, { 1 } }, { list(one.input_ids), list(one.scale) })
      local wide = cp.shard_thd_chunk(axis(2, 0), { input_ids = tide.ones { 3, 2 },
         labels = ints { 1, 2, 3 }, cu_seqlens = { 0, 3 } }, { padding_token_id = 3 })
      assert.same({ { 1, 1 }, { 0, 0 } }, list(wide.input_ids))
   end)

   it('cut embeddings by their first dim, and positions of several rows by their last', function()
      local x = tide.arange(16):reshape(8, 2)
      local b = { input_ids = x, labels = ints { 1, 2, 3, 4, 5, 6, 7, 8 }, cu_seqlens = { 0, 4, 8 },
         position_ids = ints { { 0, 1, 2, 3, 0, 1, 2, 3 }, { 9, 8, 7, 6, 5, 4, 3, 2 } },
         weights = tide.arange(16):reshape(8, 2), name = 'kept' }
      local fields = { weights = { fill = 0 } }
      for rank, at in ipairs { { 1, 4, 5, 8 }, { 2, 3, 6, 7 } } do
         local out = cp.shard_thd_chunk(axis(2, rank - 1), b, { fields = fields })
         local rows, firsts, seconds = {}, {}, {}
         for i, k in ipairs(at) do
            rows[i] = { 2 * (k - 1), 2 * k - 1 }
            firsts[i], seconds[i] = (k - 1) % 4, 10 - k
         end
         assert.same(rows, list(out.input_ids))
         assert.same(rows, list(out.weights))
         assert.same({ firsts, seconds }, list(out.position_ids))
         assert.same(at, list(out.labels))
         assert.equal('kept', out.name)
      end
   end)

   it('refuse what they cannot cut', function()
      local ids = ints { 1, 2, 3, 4 }
      refused('E_ARG', 'thd', cp.make_cp_batch_for_te, axis(2), two(), { qkv_format = 'bshd' })
      refused('E_ARG', 'BSHD', cp.shard_thd_chunk, { input_ids = ids, labels = ids }, axis(2))
      local rows = ints { { 1, 2, 3, 4 } }
      refused('E_ARG', { 'input_ids', '[T]', '[1, 4]' }, cp.shard_thd_chunk,
         { input_ids = rows, labels = rows, cu_seqlens = { 0, 4 } }, axis(2))
      refused('E_ARG', { 'cu_seqlens', 'one dim' }, cp.shard_thd_chunk,
         { input_ids = ids, labels = ids, cu_seqlens = ints { { 0, 4 } } }, axis(2))
      refused('E_ARG', { 'cu_seqlens', 'one dim' }, cp.shard_thd_chunk,
         { input_ids = ids, labels = ids, cu_seqlens = { { 0, 4 } } }, axis(2))
      refused('E_ARG', 'dim 2 has 4 places', cp.shard_thd_chunk,
         { input_ids = ids, labels = ids, pairs = tide.zeros { 2, 4 }, cu_seqlens = { 0, 4 } },
         axis(2))
      refused('E_ARG', { 'position_ids', '2 or 1, 4' }, cp.make_cp_batch_for_te, axis(2),
         { input_ids = tide.zeros { 2, 4 }, labels = tide.zeros { 2, 4 }, seq_lens = false,
            seq_lens_padded = false, position_ids = ints { { 1 } } })
      refused('E_ARG', 'after an entry of padding', cp.shard_thd_chunk,
         { input_ids = ids, labels = ids, cu_seqlens = { 0, -1000, 4 } }, axis(2))
      refused('E_ARG', 'end at 8', cp.shard_thd_chunk,
         { input_ids = ids, labels = ids, cu_seqlens = { 0, 8 } }, axis(2))
      refused('E_ARG', 'looks like', cp.shard_thd_chunk,
         { input_ids = ids, labels = ids, kinds = ids, cu_seqlens = { 0, 4 } }, axis(2))
      local b = two()
      b.seq_lens = nil
      refused('E_ARG', 'seq_lens', cp.make_cp_batch_for_te, axis(2), b)
   end)
end)
