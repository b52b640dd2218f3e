-- Batches over ranks: every field cut by one plan, documents as data, scopes that unwind, regions
-- whose gradients survive, packed streams, refusals.

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
      assert.same({ { 2, 3, 4, 5, 6, 7, -100, -100 } }, whole(b, 'labels'))
      assert.same({ { 0, 1, 2, 3, 4, 5, 0, 0 } }, whole(b, 'position_ids'))
      assert.same({ { 1, 2, 3, 4, 5, 6, 0, 0 } }, whole(b, 'input_ids'))
      assert.same({ { 1, 2, 3, 4, 5, 6, 9, 9 } }, whole(b, 'input_ids', { padding_token_id = 9 }))
      assert.same({ { false, false, false, false, true, true, true, true } },
         whole(b, 'padding_mask'))
      assert.same({ { 1, 1, 0, 1, 1, 1, 0, 0 } },
         whole(b, 'loss_mask', { loss_mask = tide.tensor { { 1, 1, 0, 1, 1, 1 } } }))
      assert.same({ 1, 6 }, b.input_ids.shape)
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
         labels = b.labels, cu_real = { 0, 4, 8 }, cu_slot = { 0, 4, 8 } }, { kind = 'document' })
      assert.same({ { 1, 4, 5, 8 } }, list(mine.ids))
      assert.is_nil(mine.cu_real)
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

describe('a region', function()
   it('hands out shards and leaves its buffers alone', function()
      local a, b = ints { { 0, 1, 2, 3, 4, 5, 6, 7 } }, tide.ones({ 8, 2 }):requires_grad_(true)
      local region = cp.create_context_parallel_ctx(axis(2, 1), { a, b }, { 2, 1 }, { a })
      local n = region:run(function(shards, context, more)
         assert.same({ { 2, 3, 4, 5 } }, list(shards[1]))
         assert.equal('allgather', context.method)
         shards[2]:sum():backward()
         return more + 1
      end, 4)
      assert.equal(5, n)
      assert.same({ 1, 8 }, a.shape)
      assert.equal(8, b.grad:sum():item())
      assert.same({ 1, 4 }, region:after()[1].shape)
      assert.is_true(rawequal(b, region:after()[2]))
      local ring = cp.create_context_parallel_ctx(axis(2), { a }, { 2 }, nil, 'alltoall')
      assert.equal('ring', ring.context.method)
      local padded = cp.create_context_parallel_ctx(axis(2), { tide.ones { 6 } }, { 1 }, nil, nil,
         { fills = { 9 } })
      assert.same({ 1, 1, 9, 9 }, list(padded:shards()[1]))
   end)

   it('refuses what would go wrong in silence', function()
      local a, b = tide.ones { 8 }, tide.ones { 6 }
      local function go(...) return cp.create_context_parallel_ctx(axis(2), ...) end
      refused('E_ARG', 'no_restore[1]', go, { a }, { 1 }, { b })
      refused('E_ARG', '1 buffers and 2 dims', go, { a }, { 1, 1 })
      refused('E_ARG', 'multiple of 4', go, { b }, { 1 })
      refused('E_ARG', 'buffer 2 has 6', go, { a, b }, { 1, 1 })
      refused('E_ARG', 'rotate_method', go, { a }, { 1 }, nil, 'addtoall')
      refused('E_ARG', 'dims[1]', go, { a }, { 2 })
      refused('E_ARG', 'buffers', go, {}, {})
   end)
end)

describe('the scopes of a step', function()
   local log
   local function scope(name, fails)
      return {
         enter = function(_, env)
            log[#log + 1] = '+' .. name
            env[name] = true
            if fails == 'enter' then error(name .. ' enter', 0) end
         end,
         exit = function(_, _, failed)
            log[#log + 1] = '-' .. name .. (failed and '!' or '')
            if fails == 'exit' then error(name .. ' exit', 0) end
         end,
      }
   end
   before_each(function() log = {} end)

   it('are entered in order and left in reverse, every time', function()
      local step = cp.get_train_context(scope 'loss', scope 'step', scope 'cp')
      for _ = 1, 2 do
         log = {}
         local a, b = step(function(env, x)
            log[#log + 1] = 'run'
            return env.loss and env.step and x, nil
         end, 3)
         assert.same({ 3 }, { a, b })
         assert.same({ '+loss', '+step', '+cp', 'run', '-cp', '-step', '-loss' }, log)
      end
   end)

   it('are left after an error, which goes on', function()
      local step = cp.get_train_context(scope 'loss', false, scope 'cp')
      assert.has_error(function() step(function() error('boom', 0) end) end, 'boom')
      assert.same({ '+loss', '+cp', '-cp!', '-loss!' }, log)
      log = {}
      assert.has_error(function()
         cp.get_train_context(scope 'loss', false, scope('cp', 'enter'))(function() end)
      end, 'cp enter')
      assert.same({ '+loss', '+cp', '-loss!' }, log)
      log = {}
      assert.has_error(function()
         cp.get_train_context(scope 'loss', false, scope('cp', 'exit'))(function() end)
      end, 'cp exit')
      assert.same({ '+loss', '+cp', '-cp', '-loss' }, log)
   end)

   it("default to nothing, and a scope gives the step's memory back", function()
      assert.equal(cp.null, cp.get_train_context(false, false)(function(env) return env.cp end))
      local inside
      for _, step in ipairs { cp.get_train_context(true, true),
         cp.get_train_context { loss_parallel = true, scope = true } } do
         step(function(env)
            inside = tide.ones { 4 }
            assert.same({ true, true, false }, { env.loss_parallel, env.scope, env.captured })
         end)
         assert.is_true(inside:is_gone())
      end
   end)

   it('are options of one table, too', function()
      local step = cp.get_train_context { cp = scope 'cp', loss_parallel = scope 'loss' }
      step(function() log[#log + 1] = 'run' end)
      assert.same({ '+loss', '+cp', 'run', '-cp', '-loss' }, log)
      assert.equal(cp.null, cp.get_train_context {}(function(env) return env.cp end))
      refused('E_ARG', 'captured', cp.get_train_context, { captured = 1 })
      refused('E_ARG', { "'scope'", 'enter and exit' }, cp.get_train_context, { scope = 1 })
      refused('E_ARG', { "'scope'", 'enter and exit' }, cp.get_train_context, false, {})
      refused('E_ARG', { 'captured', 'leave out scope' }, cp.get_train_context,
         { scope = true, captured = true })
   end)

   it('capture a step on a GPU alone', function()
      if tide.cuda.is_available() then return end
      refused('E_DEVICE', { 'cuda.captured', "'cuda'" }, cp.get_train_context, { captured = true })
      assert.equal(7, cp.get_train_context { captured = false }(function() return 7 end))
      refused('E_ARG', "'captur'", cp.get_train_context, { captured = true, captur = 1 })
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

   it('is gathered again, whatever the layout', function()
      local out = cp.gather_cp_seq(nil, { tide.ones { 1, 8, 4 }, tide.ones { 1, 8, 6 } }, 2, 6)
      assert.same({ 1, 6, 4 }, out[1].shape)
      assert.same({ 1, 6, 6 }, out[2].shape)
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
   end)

   it('keep real lengths, drop sentinels, and know padding by layout', function()
      local b = { input_ids = ints { 7, 0, 9, 99, 5, 6, 99, 99 }, labels = ints { 1, 2, 3, -100, 4,
         5, -100, -100 }, cu_seqlens = ints { 0, 3, 5, -1000 },
         cu_seqlens_padded = ints { 0, 4, 8, -1000 } }
      local out = cp.shard_thd_chunk(b, axis(2, 0))
      assert.same({ 7, 99, 5, 99 }, list(out.input_ids))
      assert.same({ false, true, false, true }, list(out.padding_mask))
      assert.same({ 0, 4, 8 }, list(out.cu_seqlens))
      assert.same({ 0, 3, 5 }, list(out.cu_real))
      assert.same({ { 0, 0 }, { -1, 0 }, { 1, 0 }, { -1, 0 } }, list(out.index)[1])
      -- slots that do not divide are padded inside the plan
      b = { input_ids = ints { 1, 2, 3, 4, 5 }, labels = ints { 1, 2, 3, 4, 5 },
         cu_seqlens = { 0, 2, 5 } }
      out = cp.shard_thd_chunk(b, axis(2, 0), { padding_token_id = 9 })
      assert.same({ 1, 9, 3, 9 }, list(out.input_ids))
      assert.same({ 1, -100, 3, -100 }, list(out.labels))
      assert.same({ 0, 4, 8 }, list(out.cu_slot))
   end)

   it('refuse what they cannot cut', function()
      local ids = ints { 1, 2, 3, 4 }
      refused('E_ARG', 'thd', cp.make_cp_batch_for_te, axis(2), two(), { qkv_format = 'bshd' })
      refused('E_ARG', 'BSHD', cp.shard_thd_chunk, { input_ids = ids, labels = ids }, axis(2))
      refused('E_ARG', 'behind', cp.shard_thd_chunk,
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

describe('a context', function()
   local map = require('tide.parallel.cp_map').new { size = 4, length = 16, axis = nil }
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
         if n > 1 then cp_.attach(model, { axis = axis_ }) end
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
