-- Mamba-2 and context parallelism called wrongly: ranks that differ, lists written over between
-- calls, arguments of other types; and what a handle keeps of plans that are gone.

local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tide = require 'tide'
local cp, mamba_cp = tide.parallel.cp, tide.parallel.mamba_cp

local methods = { 'hidden', 'state' }

local function i64(rows) return tide.tensor(rows, { dtype = 'i64' }) end

-- Runs on a rank: one call of an attached layer with documents or a layout of the rank's own;
-- the code and text of the error, or what came out.
local differ = [[
   local rank, size, method, what = ...
   local tide = require 'tide'
   local comm = tide.comm.world()
   local layer = tide.nn.Mamba2 { dim = 8, heads = 4, head_dim = 4, state = 3, seed = 1 }
   tide.parallel.mamba_cp.attach(layer, comm, { method = method })
   local opts, index = { axis = comm, length = 24, kind = 'contiguous' }, nil
   local odd = rank == 1
   if what == 'documents' then opts.cu = odd and { 0, 9, 24 } or { 0, 5, 24 } end
   if what == 'layout' and odd then opts.kind = 'zigzag' end
   if what == 'index' then
      index = tide.zeros({ 1, 24, 2 }, { dtype = 'i32' })
      if odd then index:slice(2, 10, 24):fill_(1) end
   end
   local context = tide.parallel.cp.context { map = tide.parallel.cp_map.new(opts), index = index }
   local x = tide.ones { odd and what == 'rows' and 2 or 1, 24 / size, 8 }
   local ok, e = pcall(layer, x, { context = context })
   return ok and 'no error' or e.code, tostring(e)
]]

describe('ranks that differ', function()
   for _, method in ipairs(methods) do
      it(('in documents, layout or rows all say so (%s)'):format(method), function()
         for _, what in ipairs { 'documents', 'layout', 'index', 'rows' } do
            for r, row in ipairs(ranks.try(3, differ, method, what)) do
               local code, text = row.values[1], row.values[2]
               assert.equal('E_COMM', code, ('%s, rank %d'):format(what, r - 1))
               assert.truthy(text:find('different Mamba-2 batches; rank 1: ', 1, true))
            end
         end
      end)
   end
end)

-- Runs on a rank: an attached layer with options of the rank's own (`other` on rank 1), called with
-- a plain context; the code and text of the error, or 'no error'.
local odd_layer = [[
   local rank, size, method, whole, other = ...
   local tide = require 'tide'
   local comm = tide.comm.world()
   local opts = { dim = 8, heads = 4, head_dim = 4, state = 3, seed = 1 }
   for k, v in pairs(rank == 1 and other or {}) do opts[k] = v end
   local layer = tide.nn.Mamba2(opts)
   local model = layer
   if whole then
      model = tide.nn.Module()
      model:child('first', tide.nn.Mamba2 { dim = 8, heads = 4, head_dim = 4, state = 3, seed = 1 })
      model:child('mixer', layer)
   end
   tide.parallel.mamba_cp.attach(model, comm, { method = method })
   local map = tide.parallel.cp_map.new { axis = comm, length = 24, kind = 'contiguous' }
   local context = tide.parallel.cp.context { map = map }
   local ok, e = pcall(layer, tide.ones { 1, 24 / size, 8 }, { context = context })
   return ok and 'no error' or e.code, tostring(e)
]]

describe('layers that differ between ranks', function()
   for _, method in ipairs(methods) do
      it(('are named, with the field (%s)'):format(method), function()
         for field, other in pairs { dt_limit = { dt_limit = { 0, 0.001 } }, taps = { conv = 3 },
            chunk = { chunk = 16 }, ['norm.eps'] = { norm_eps = 1e-3 }, groups = { groups = 2 },
            ['norm.gate_last'] = { gate_last = true },
            per_channel_D = { per_channel_D = true } } do
            for r, row in ipairs(ranks.try(2, odd_layer, method, true, other)) do
               local code, text = row.values[1], row.values[2]
               assert.equal('E_COMM', code, ('%s, rank %d'):format(field, r - 1))
               assert.truthy(text:find('other Mamba-2 layers', 1, true), text)
               assert.truthy(text:find('; mixer.' .. field .. ' (rank 1: ', 1, true)
                  or text:find(', mixer.' .. field .. ' (rank 1: ', 1, true), field .. ': ' .. text)
               assert.falsy(text:find('first.', 1, true), text)
            end
         end
         local row = ranks.try(2, odd_layer, method, false, { dt_limit = { 0, 0.001 } })[1]
         assert.truthy(row.values[2]:find('the layer.dt_limit (rank 1: ', 1, true), row.values[2])
         for _, same in ipairs(ranks.try(2, odd_layer, method, true, {})) do
            assert.equal('no error', same.values[1])
         end
      end)
   end
end)

-- Runs on a rank: code(m, comm, rank) given as text, twice with what all ranks have in common and
-- then with something of the rank's own; codes and texts of the errors.
local odd_call = [[
   local rank, _, common, own = ...
   local tide = require 'tide'
   local m, comm = tide.parallel.mamba_cp, tide.comm.world()
   local object = m.MambaContextParallel(comm, 4, 2, 2, 3)
   local function call(text)
      local fn = assert(loadstring('local m, comm, rank, object, tide = ... ' .. text))
      local ok, e = pcall(fn, m, comm, rank, object, tide)
      return ok and 'no error' or e.code .. ' ' .. e.message
   end
   local before = common and call(common) or 'no error'
   return before, call(own)
]]

describe('the pieces of MambaContextParallel', function()
   local cases = {
      { 'documents', 'return object:pre_conv_ssm(tide.ones { 16, object.width }, '
         .. 'rank == 0 and { 0, 8, 32 } or { 0, 24, 32 })', 'documents at 0 24 32' },
      { 'packed or not', 'return object:pre_conv_ssm(tide.ones { 1, 16, object.width }, '
         .. 'rank == 0 and { 0, 8, 32 } or nil)', 'not packed' },
      { 'rows', 'return object:pre_conv_ssm(tide.ones { rank == 0 and 2 or 1, '
         .. 'rank == 0 and 4 or 8, object.width })', '[1, 8, 32] f32' },
      { 'rows of the way back', 'return object:post_conv_ssm(tide.ones { rank == 0 and 2 or 1, '
         .. 'rank == 0 and 8 or 16, 4 })', '[1, 16, 4] f32' },
      { 'groups', 'local o = m.MambaContextParallel(comm, 4, 2, rank + 1, 3); '
         .. 'return o:pre_conv_ssm(tide.ones { 1, 4, o.width })', '2 groups' },
      { 'heads', 'local o = m.MambaContextParallel(comm, rank == 0 and 4 or 8, '
         .. 'rank == 0 and 2 or 1, 2, 3); return o:pre_conv_ssm(tide.ones { 1, 4, o.width })',
         '8 heads of 1' },
      { 'shapes of cp2hp', 'return m.all_to_all_cp2hp(tide.zeros { rank == 0 and 2 or 4, '
         .. 'rank == 0 and 4 or 2, 8 }, comm)', '[4, 2, 8] f32' },
      { 'dims of cp2hp', 'return m.all_to_all_cp2hp(rank == 0 and tide.zeros { 8, 8 } '
         .. 'or tide.zeros { 1, 8, 8 }, comm)', '[1, 8, 8] f32' },
      { 'shapes of hp2cp', 'return m.all_to_all_hp2cp(tide.zeros { rank == 0 and 2 or 4, '
         .. 'rank == 0 and 4 or 2, 8 }, comm)', '[4, 2, 8] f32' },
      { 'dims of all_to_all', 'return m.all_to_all(rank == 0 and tide.zeros { 8 } '
         .. 'or tide.zeros { 4, 2 }, comm)', '[4, 2] f32' },
   }

   for _, case in ipairs(cases) do
      it('refuse ranks that differ in ' .. case[1], function()
         for r, row in ipairs(ranks.try(2, odd_call, nil, case[2])) do
            local text = row.values[2]
            assert.equal('E_COMM', text:match '^%S+', ('rank %d: %s'):format(r - 1, text))
            assert.truthy(text:find('rank 1: ', 1, true), text)
            assert.truthy(text:find(case[3], 1, true), text)
         end
      end)
   end

   it('refuse a rank that changes its documents where the others repeat theirs', function()
      local function of(cu)
         return ('return object:pre_conv_ssm(tide.ones { 16, object.width }, %s)'):format(cu)
      end
      for r, row in ipairs(ranks.try(2, odd_call, of '{ 0, 8, 32 }',
         of 'rank == 0 and { 0, 8, 32 } or { 0, 24, 32 }')) do
         assert.equal('no error', row.values[1])
         assert.equal('E_COMM', row.values[2]:match '^%S+',
            ('rank %d: %s'):format(r - 1, row.values[2]))
      end
   end)

   it('compare what repeats once', function()
      local calls = ranks.run(2, [[
         local tide = require 'tide'
         local comm = tide.comm.world()
         local m = tide.parallel.mamba_cp.MambaContextParallel(comm, 4, 2, 2, 3)
         local x, list = tide.ones { 16, m.width }, {}
         for i = 1, 3 do
            local before = comm:traffic().ncall
            m:pre_conv_ssm(x, { 0, 8, 32 })
            list[i] = comm:traffic().ncall - before
         end
         return list
      ]])[1]
      assert.is_true(calls[1] > 1)
      assert.same({ 1, 1 }, { calls[2], calls[3] })
   end)

   it('name the argument that does not fit', function()
      local m = mamba_cp.MambaContextParallel(tide.comm.simulate(2, 0), 4, 2, 2, 3)
      local says = "argument '%s': expected a tensor [batch, tokens, %d]"
      refused('E_ARG', 'pre_conv_ssm: ' .. says:format('projected', 32), m.pre_conv_ssm, m,
         tide.ones { 4 })
      refused('E_ARG', 'pre_conv_ssm: ' .. says:format('projected', 32), m.pre_conv_ssm, m,
         tide.ones { 1, 4, 31 })
      refused('E_ARG', 'post_conv_ssm: ' .. says:format('y', 4), m.post_conv_ssm, m,
         tide.ones { 1, 4, 8 })
      refused('E_SHAPE', 'all_to_all: x: dim 1 has 3 elements, which do not divide among 2',
         mamba_cp.all_to_all, tide.ones { 3 }, tide.comm.simulate(2, 0))
      refused('E_SHAPE', 'x: dim 3 has 7 elements', mamba_cp.all_to_all_cp2hp,
         tide.ones { 2, 4, 7 }, tide.comm.simulate(2, 0))
   end)
end)

describe('a handle', function()
   -- Runs on a rank: the plans kept after 30 batches, each with a plan of its own.
   local source = [[
      local _, size, method = ...
      local tide = require 'tide'
      local comm = tide.comm.world()
      local layer = tide.nn.Mamba2 { dim = 8, heads = 4, head_dim = 4, state = 3 }
      local on = tide.parallel.mamba_cp.attach(layer, comm, { method = method })
      for _ = 1, 30 do
         local map = tide.parallel.cp_map.new { axis = comm, length = 24, cu = { 0, 5, 24 } }
         layer(tide.ones { 1, 24 / size, 8 }, { context = tide.parallel.cp.context { map = map } })
      end
      collectgarbage()
      collectgarbage()
      local n = 0
      for _ in pairs(on.batches) do n = n + 1 end
      return n
   ]]

   it('lets go of plans that nobody has', function()
      for _, method in ipairs(methods) do
         for _, n in ipairs(ranks.run(2, source, method)) do
            assert.is_true(n <= 3, ('%s: %d of 30 kept'):format(method, n))
         end
      end
   end)
end)

describe('the null context', function()
   it('means a whole sequence on this rank, as it does to attention', function()
      local m = tide.model.hybrid { vocab_size = 11, hidden_size = 8, mamba_num_heads = 2,
         hybrid_override_pattern = 'M*', mamba_head_dim = 4, num_attention_heads = 2 }
      local ids = i64 { { 1, 2, 3, 4, 5 } }
      local want = m(ids):to_string_bytes()
      local handle = cp.attach(m, tide.comm.simulate(2, 0))
      assert.is_true(want == m(ids, { context = cp.null }):to_string_bytes())
      refused('E_STATE', 'no context', m.forward, m, ids)
      handle:restore()
   end)
end)

describe('MambaContextParallel', function()
   it('sees what is written into a list of lengths it was given before', function()
      local same = ranks.run(2, [[
         local rank = ...
         local tide = require 'tide'
         local comm, mamba_cp = tide.comm.world(), tide.parallel.mamba_cp
         local m = mamba_cp.MambaContextParallel(comm, 4, 2, 1, 3)
         local x = tide.arange(8 * m.width, { dtype = 'f32' }):reshape { 1, 8, m.width } + rank
         local cu = { 0, 8, 16 }
         m:pre_conv_ssm(x, cu)
         cu[2] = 4
         local got = m:pre_conv_ssm(x, cu)
         local want = mamba_cp.MambaContextParallel(comm, 4, 2, 1, 3):pre_conv_ssm(x, { 0, 4, 16 })
         return got:to_string_bytes() == want:to_string_bytes()
      ]])
      assert.same({ true, true }, same)
   end)
end)

-- ---- arguments ---------------------------------------------------------------------------------

local function model() return tide.model.mamba2 { vocab_size = 11, hidden_size = 8,
   num_hidden_layers = 1, num_heads = 2, head_dim = 4, state_size = 3 } end

describe('mistakes', function()
   it('of ids and labels are errors', function()
      local m = model()
      refused('E_ARG', "'ids'", m.forward, m, 1LL)
      refused('E_ARG', "'ids'", m.forward, m, require('ffi').new 'int[3]')
      refused('E_ARG', "'labels'", m.loss, m, i64 { { 1, 2 } })
      refused('E_ARG', "'labels'", m.loss, m, i64 { { 1, 2 } }, 5)
   end)

   it('of numbers of sequences beside a context are errors', function()
      local m = model()
      local map = tide.parallel.cp_map.new { length = 4 }
      local o = { context = cp.context { map = map }, sequence = i64 { { 0, 0, 1, 1 } } }
      refused('E_ARG', "'sequence'", m.forward, m, i64 { { 1, 2, 3, 4 } }, o)
      local layer = tide.nn.Mamba2 { dim = 8, heads = 2, head_dim = 4, state = 3 }
      local axis = tide.comm.simulate(2, 0)
      mamba_cp.attach(layer, axis)
      o.context = cp.context { axis = axis, map = tide.parallel.cp_map.new { axis = axis,
         length = 8 } }
      refused('E_ARG', "'sequence'", layer.forward, layer, tide.zeros { 1, 4, 8 }, o)
      o.context = { size = 2, rank = 0, map = o.context.map }
      refused('E_ARG', "'context'", layer.forward, layer, tide.zeros { 1, 4, 8 }, o)
   end)

   it('of names of layers are errors in a model without attention', function()
      refused('E_ARG', "'nix'", cp.attach, model(), { axis = tide.comm.simulate(2, 0),
         layers = { nix = 'ring' } })
   end)

   it('of batches are errors', function()
      local handle = cp.attach(model(), tide.comm.simulate(2, 0))
      refused('E_ARG', "'batch'", handle.cut, handle)
      local function cut(more)
         local batch = { ids = i64 { { 1, 2, 3, 4 } }, labels = i64 { { 1, 2, 3, 4 } } }
         for k, v in pairs(more) do batch[k] = v end
         return handle:cut(batch)
      end
      refused('E_ARG', "'padding_mask'", cut, { padding_mask = 'x' })
      refused('E_ARG', "'padding_mask'", cut, { padding_mask = tide.zeros { 1, 4, 1 } })
      refused('E_ARG', "'index'", cut, { index = 'x', padding_mask = i64 { { 0, 0, 0, 1 } } })
      refused('E_ARG', "'make_cp_batch_fn'", cut, { make_cp_batch_fn = 5 })
      refused('E_ARG', "'batch'", cp.shard_thd_chunk)
      refused('E_ARG', "'rows'", mamba_cp.deinterleave_index, { 0, 4 }, 2)
   end)

   it('of rows of packed documents are errors', function()
      local source = tide.data.tokens.memory(('a\0'):rep(50), 2)
      for _, piece in ipairs { { 1, 'a', 3, 4 }, { 0, 2, false, 0 / 0 }, { 0, 8, false, 4 },
         { 0, 2.5, false, 4 }, { 0, 2, 1, 4 } } do
         refused('E_ARG', 'rows[1]', tide.data.packed.make, source, { { piece } }, 8)
      end
   end)
end)
