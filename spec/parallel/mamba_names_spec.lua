-- Hidden-parallel Mamba under the names it has elsewhere: orders of tokens and sizes against listed
-- numbers, the fused exchange against its five separate ones, parameters, and bad input.

local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tide = require 'tide'
local mamba_cp = tide.parallel.mamba_cp

local function numbers(text)
   local list = {}
   for w in text:gmatch '%-?%d+' do list[#list + 1] = tonumber(w) end
   return list
end

local function arange(n, width) return tide.arange(n * (width or 1), { dtype = 'f32' }) end

describe('orders of tokens', function()
   it('undo and redo the balance of attention', function()
      local rows = {
         { 1, '0 1', '0 1' }, { 2, '0 2 3 1', '0 3 1 2' }, { 3, '0 2 4 5 3 1', '0 5 1 4 2 3' },
         { 4, '0 2 4 6 7 5 3 1', '0 7 1 6 2 5 3 4' },
         { 5, '0 2 4 6 8 9 7 5 3 1', '0 9 1 8 2 7 3 6 4 5' },
         { 6, '0 2 4 6 8 10 11 9 7 5 3 1', '0 11 1 10 2 9 3 8 4 7 5 6' },
         { 7, '0 2 4 6 8 10 12 13 11 9 7 5 3 1', '0 13 1 12 2 11 3 10 4 9 5 8 6 7' },
         { 8, '0 2 4 6 8 10 12 14 15 13 11 9 7 5 3 1',
            '0 15 1 14 2 13 3 12 4 11 5 10 6 9 7 8' },
      }
      for _, row in ipairs(rows) do
         assert.same(numbers(row[2]), mamba_cp.undo_order(row[1]))
         assert.same(numbers(row[3]), mamba_cp.redo_order(row[1]))
      end
      local x = tide.tensor({ { 1, 6, 2, 5, 3, 4 } }, { dtype = 'f32' })
      local y = mamba_cp.undo_attention_load_balancing(x, 3)
      assert.same({ { 1, 2, 3, 4, 5, 6 } }, y:tolist())
      assert.same(x:tolist(), mamba_cp.redo_attention_load_balancing(y, 3):tolist())
   end)

   it('reorder chunks, of every document for itself', function()
      local x = arange(12):reshape { 1, 12 }
      assert.same({ { 8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7 } },
         mamba_cp.reorder_chunks(x, { 2, 0, 1 }):tolist())
      assert.same({ 2, 3, 0, 1, 8, 9, 10, 11, 4, 5, 6, 7 },
         mamba_cp.reorder_chunks(arange(12), { 1, 0 }, { 0, 4, 12 }):tolist())
      assert.same({ { 1, 0, 2, 3 }, { 5, 4, 6, 7 } }, mamba_cp.reorder_chunks(
         arange(8):reshape { 2, 4 }:reshape { 2, 4, 1 }, { 0 }):squeeze(3)
         :index_select(2, tide.tensor({ 1, 0, 2, 3 }, { dtype = 'i64' })):tolist())
   end)

   it('de- and re-interleave packed documents', function()
      local rows = {
         { 12, '0 2 6', 2, '0 1 6 7 2 3 4 5 8 9 10 11', '0 1 4 5 6 7 2 3 8 9 10 11' },
         { 16, '0 4 8', 2, '0 1 2 3 8 9 10 11 4 5 6 7 12 13 14 15',
            '0 1 2 3 8 9 10 11 4 5 6 7 12 13 14 15' },
         { 18, '0 2 6', 3, '0 1 6 7 12 13 2 3 4 5 8 9 10 11 14 15 16 17',
            '0 1 6 7 8 9 2 3 10 11 12 13 4 5 14 15 16 17' },
         { 20, '0 2 4 10', 2, '0 1 10 11 2 3 12 13 4 5 6 7 8 9 14 15 16 17 18 19',
            '0 1 4 5 8 9 10 11 12 13 2 3 6 7 14 15 16 17 18 19' },
      }
      for _, row in ipairs(rows) do
         local x, cu = arange(row[1]), numbers(row[2])
         local y = mamba_cp.deinterleave_packed_seqs(x, cu, row[3])
         assert.same(numbers(row[4]), y:tolist())
         assert.same(numbers(row[5]), mamba_cp.reinterleave_packed_seqs(x, cu, row[3]):tolist())
         assert.same(x:tolist(), mamba_cp.reinterleave_packed_seqs(y, cu, row[3]):tolist())
      end
      assert.same(arange(6):tolist(),
         mamba_cp.deinterleave_packed_seqs(arange(6), { 0, 3 }, 2):tolist())
   end)

   it('are one index, which restores the order of the sequence', function()
      local rows = {
         { '0 8 16', 2, '0 1 8 9 10 11 2 3 4 5 12 13 14 15 6 7' },
         { '0 8 12', 2, '0 1 6 7 8 9 2 3 4 10 11 5' },
         { '0 4 12 16', 2, '0 8 9 1 2 3 10 11 12 13 4 5 6 14 15 7' },
      }
      for _, row in ipairs(rows) do
         assert.same(numbers(row[3]), mamba_cp.pre_index(numbers(row[1]), row[2]):tolist())
      end
      for _, case in ipairs { { '0 8', 2 }, { '0 12', 2 }, { '0 16', 4 }, { '0 24', 3 },
         { '0 8 16', 2 }, { '0 8 12', 2 }, { '0 4 12 16', 2 }, { '0 8 24 40', 4 },
         { '0 12 24', 3 } } do
         local cu, W = numbers(case[1]), case[2]
         local T = cu[#cu]
         local map = tide.parallel.cp_map.new { kind = 'document', size = W, cu = cu }
         local parts, local_cu = {}, {}
         for r = 0, W - 1 do parts[r + 1] = map:shard(arange(T), 1, 0, r) end
         for i, n in ipairs(cu) do local_cu[i] = n / W end
         local all = tide.cat(parts, 1)
         assert.same(arange(T):tolist(), all:index_select(1, mamba_cp.pre_index(cu, W)):tolist())
         local apart = mamba_cp.deinterleave_packed_seqs(all, local_cu, W)
         assert.same(arange(T):tolist(),
            mamba_cp.undo_attention_load_balancing(apart, W, cu):tolist())
      end
   end)

   it('number the sequences', function()
      for _, row in ipairs { { '0 7', '0 0 0 0 0 0 0' }, { '0 4 8', '0 0 0 0 1 1 1 1' },
         { '0 3 5 9', '0 0 0 1 1 2 2 2 2' }, { '0 1 2 3 4 5', '0 1 2 3 4' } } do
         local cu = numbers(row[1])
         assert.same({ numbers(row[2]) }, tide.sequence_index(
            tide.tensor(cu, { dtype = 'i32' }), cu[#cu]):tolist())
      end
      local last = tide.sequence_index(tide.tensor({ 0, 100, 101, 102, 103 }, { dtype = 'i32' }),
         103):tolist()[1]
      assert.same({ 0, 1, 2, 3 }, { last[100], last[101], last[102], last[103] })
   end)
end)

-- ---- MambaContextParallel ----------------------------------------------------------------------

local function at(size, rank, ...)
   return mamba_cp.MambaContextParallel(tide.comm.simulate(size, rank), ...)
end

describe('MambaContextParallel', function()
   it('derives its sizes', function()
      for _, row in ipairs { { 8, 8, 2, 4, 8, 4, 1 }, { 8, 8, 4, 2, 4, 2, 1 },
         { 16, 8, 4, 4, 8, 2, 1 }, { 8, 1, 2, 4, 8, 1, 2 }, { 8, 2, 4, 2, 4, 1, 2 },
         { 16, 1, 4, 4, 8, 1, 4 }, { 8, 4, 1, 8, 16, 4, 1 } } do
         local m = at(row[3], 0, row[1], 2, row[2], 3)
         assert.same({ row[4], row[5], row[6], row[7] },
            { m.num_heads_local, m.d_inner_local, m.n_groups_local, m.group_repeat_count })
      end
      refused('E_ARG', 'num_heads (7)', at, 4, 0, 7, 2, 1, 3)
      refused('E_ARG', 'n_groups (3)', at, 4, 0, 12, 2, 3, 3)
      refused('E_ARG', 'n_groups (5)', at, 4, 0, 12, 2, 5, 3)
      refused('E_ARG', 'num_heads (3)', at, 2, 0, 3, 2, 2, 3)
   end)

   it('takes its rows of the convolution', function()
      for _, row in ipairs {
         { 8, 4, 4, 16, 2, 0, '0-16 32-64 96-128' }, { 8, 4, 4, 16, 2, 1, '16-32 64-96 128-160' },
         { 8, 2, 1, 3, 2, 0, '0-8 16-19 19-22' }, { 8, 2, 1, 3, 2, 1, '8-16 16-19 19-22' },
         { 8, 2, 2, 3, 4, 0, '0-4 16-19 22-25' }, { 8, 2, 2, 3, 4, 1, '4-8 16-19 22-25' },
         { 8, 2, 2, 3, 4, 2, '8-12 19-22 25-28' }, { 16, 2, 8, 4, 4, 0, '0-8 32-40 64-72' },
         { 16, 2, 8, 4, 4, 3, '24-32 56-64 88-96' },
      } do
         local H, P, G, N = unpack(row)
         local channels, want = H * P + 2 * G * N, {}
         local mixer = { conv1d = { weight = arange(channels):reshape { channels, 1, 1 } } }
         for first, last in row[7]:gmatch '(%d+)%-(%d+)' do
            for i = first, last - 1 do want[#want + 1] = { i } end
         end
         local m = at(row[5], row[6], H, P, G, N, mixer)
         assert.same(want, m:get_conv1d_weight():tolist())
         assert.is_nil(m:get_conv1d_bias())
      end
   end)

   it('takes views of the vectors, whose gradients reach the whole', function()
      local mixer = { dt_bias = arange(8), A_log = (arange(8) * 1 + 100),
         D = (arange(8) * 1 + 200) }
      local m = at(2, 1, 8, 2, 1, 3, mixer)
      assert.same({ 4, 5, 6, 7 }, m:get_dt_bias():tolist())
      assert.same({ 104, 105, 106, 107 }, m:get_A_log():tolist())
      assert.same({ 204, 205, 206, 207 }, m:get_D():tolist())
      assert.is_true(m:get_D():same_storage(mixer.D))
      assert.equal(8, m:get_D(arange(16)):numel())                 -- per channel
      mixer.dt_bias = (arange(8) * 2 + 0):requires_grad_()
      m:get_dt_bias():sum():backward()
      assert.same({ 0, 0, 0, 0, 1, 1, 1, 1 }, mixer.dt_bias.grad:tolist())
   end)

   it('repeats groups one behind the other', function()
      local m = at(4, 0, 8, 2, 2, 2)
      local s = arange(4):reshape { 1, 1, 4 }:requires_grad_()
      local y = m:repeat_group_state(s)
      assert.same({ { { 0, 1, 0, 1, 2, 3, 2, 3 } } }, y:tolist())
      y:sum():backward()
      assert.same({ { { 2, 2, 2, 2 } } }, s.grad:tolist())
      assert.same({ { 0, 1, 0, 1, 2, 3, 2, 3 } }, m:repeat_group_state(arange(4):reshape { 1, 4 })
         :tolist())
   end)

   it('is the identity on one rank', function()
      local m = at(1, 0, 8, 2, 2, 2)
      local x, y = tide.zeros { 1, 4, m.width }, tide.zeros { 1, 4, m.d_inner_local }
      assert.is_true(rawequal(x, m:pre_conv_ssm(x)))
      assert.is_true(rawequal(y, m:post_conv_ssm(y)))
      -- of the width that it needs on several
      refused('E_ARG', "'projected': expected", m.pre_conv_ssm, m, tide.zeros { 1, 4, m.width + 1 })
      refused('E_ARG', "'y': expected", m.post_conv_ssm, m, tide.zeros { 1, 4, 1 })
   end)
end)

-- Runs on a rank: the fused exchange against the five separate ones with their copies, forward and
-- backward; returns the first difference, or 'ok'.
local fused = [[
   local rank, n, c = ...
   local tide = require 'tide'
   local mamba_cp = tide.parallel.mamba_cp
   local comm = tide.comm.world()
   local m = mamba_cp.MambaContextParallel(comm, c.heads, 2, c.groups, 3)
   local I, S = c.heads * 2, c.groups * 3
   local L, cu = c.length / n, c.cu
   local shape = c.flat and { L, m.width } or { c.rows, L, m.width }
   local x = tide.empty(shape, { dtype = 'f32' }):normal_(0, 1, { seed = 7 + rank })
   local one, two = x:clone():requires_grad_(), x:clone():requires_grad_()
   local function pieces(p)
      local list, d = p:split({ I, I, S, S, c.heads }, -1), p.ndim
      if type(list) ~= 'table' then list = { p:split({ I, I, S, S, c.heads }, -1) } end
      list[3], list[4] = m:repeat_group_state(list[3]), m:repeat_group_state(list[4])
      for i, t in ipairs(list) do list[i] = mamba_cp.all_to_all_cp2hp(t, comm) end
      local y = tide.cat(list, d)
      if cu then
         local local_cu = {}
         for i, k in ipairs(cu) do local_cu[i] = k / n end
         y = mamba_cp.deinterleave_packed_seqs(y, local_cu, n)
      end
      return mamba_cp.undo_attention_load_balancing(y, n, cu)
   end
   local want, got = pieces(one), m:pre_conv_ssm(two, cu)
   if not want:equal(got) then return 'pre' end
   local dy = tide.empty(got.shape, { dtype = 'f32' }):normal_(0, 1, { seed = 50 + rank })
   want:backward(dy)
   got:backward(dy)
   local off = (one.grad - two.grad):abs():amax():item()
   if not (off < 1e-5) then return 'gradient of pre' end
   local back = m:post_conv_ssm(got:narrow(got.ndim, 1, m.d_inner_local), cu)
   if not back:equal(x:narrow(x.ndim, 1, I)) then return 'round trip' end
   local y = got:narrow(got.ndim, 1, m.d_inner_local):detach():clone():requires_grad_()
   local dz = tide.empty(back.shape, { dtype = 'f32' }):normal_(0, 1, { seed = 90 + rank })
   m:post_conv_ssm(y, cu):backward(dz)
   local full = tide.zeros(x.shape)
   full:narrow(full.ndim, 1, I):copy_(dz)
   if not y.grad:equal(m:pre_conv_ssm(full, cu):narrow(got.ndim, 1, m.d_inner_local)) then
      return 'gradient of post'
   end
   local w = x:clone():narrow(x.ndim, 1, 2 * n):contiguous()
   if not mamba_cp.all_to_all_hp2cp(mamba_cp.all_to_all_cp2hp(w, comm), comm):equal(w) then
      return 'cp2hp'
   end
   local block = tide.arange(n * 2, { dtype = 'f32' }) + 100 * rank
   local b = mamba_cp.all_to_all(block, comm):tolist()
   for j = 0, n - 1 do
      if b[2 * j + 1] ~= 100 * j + 2 * rank then return 'all_to_all' end
   end
   return 'ok'
]]

describe('the fused exchange', function()
   for _, n in ipairs { 2, 3, 4 } do
      it(('is the five separate ones and their copies, %d ranks'):format(n), function()
         local function all(c)
            for _, r in ipairs(ranks.run(n, fused, c)) do assert.equal('ok', r) end
         end
         for _, g in ipairs { 1, n, 2 * n } do
            all { heads = 4 * n, groups = g, length = 8 * n, rows = 2 }
            all { heads = 2 * n, groups = g, length = 8 * n, rows = 1,
               cu = { 0, 2 * n, 6 * n, 8 * n } }
            all { heads = 2 * n, groups = g, length = 8 * n, flat = true, cu = { 0, 4 * n, 8 * n } }
         end
      end)
   end
end)

describe('mistakes', function()
   local x = tide.zeros { 12, 3 }
   local world = tide.comm.world()

   it('of boundaries and lengths are errors', function()
      refused('E_ARG', { 'document 0', 'multiple of 4' }, mamba_cp.reorder_chunks, x,
         { 0, 1, 2, 3 }, { 0, 6, 12 })
      refused('E_ARG', 'multiple of 5', mamba_cp.reorder_chunks, tide.zeros { 1, 12 },
         { 0, 1, 2, 3, 4 })
      refused('E_ARG', { 'ends at 8', '12 tokens' }, mamba_cp.undo_attention_load_balancing, x, 2,
         { 0, 8 })
      refused('E_ARG', 'order: expected each of', mamba_cp.reorder_chunks, x, { 0, 0 }, { 0, 12 })
      refused('E_ARG', 'the chunks 0 .. 0 once', mamba_cp.reorder_chunks, x, { 1 }, { 0, 12 })
      refused('E_ARG', { 'ends at 4', '6 tokens' }, mamba_cp.deinterleave_packed_seqs, x, { 0, 4 },
         2)
      refused('E_ARG', 'do not divide', mamba_cp.deinterleave_packed_seqs, x, { 0, 2 }, 5)
      refused('E_ARG', 'cu', mamba_cp.pre_index, { 0, 8, 4 }, 2)
      refused('E_ARG', {}, mamba_cp.pre_index, { 0, 6, 12 }, 2)
      refused('E_ARG', 'W', mamba_cp.undo_order, 0)
      refused('E_ARG', 'batch_size', mamba_cp.all_to_all_cp2hp, tide.zeros { 2, 3, 4 }, world, 3)
      refused('E_ARG', 'x', mamba_cp.all_to_all_hp2cp, tide.zeros { 4 }, world)
   end)

   it('of sizes are errors', function()
      local m = at(2, 0, 8, 2, 1, 3)
      refused('E_ARG', "'projected': expected a tensor [batch, tokens, 46]",
         m.pre_conv_ssm, m, tide.zeros { 1, 4, 7 })
      refused('E_ARG', 'multiple of 4', m.pre_conv_ssm, m, tide.zeros { 1, 3, m.width })
      local of3 = at(3, 0, 6, 2, 1, 3)
      refused('E_ARG', 'the sequence has 9 tokens, expected a multiple of 6', of3.pre_conv_ssm, of3,
         tide.zeros { 1, 3, of3.width })
      refused('E_ARG', 'document 1 has 6 tokens', m.pre_conv_ssm, m, tide.zeros { 1, 5, m.width },
         { 0, 4, 10 })
      refused('E_ARG', { 'ends at 4', '8 tokens' }, m.pre_conv_ssm, m, tide.zeros { 4, m.width },
         { 0, 4 })
      refused('E_ARG', "'y': expected a tensor [batch, tokens, 8]", m.post_conv_ssm, m,
         tide.zeros { 1, 8, 3 })
      refused('E_ARG', 'x', m.pre_conv_ssm, m, tide.zeros { 4 })
      refused('E_ARG', 'cp_group', mamba_cp.MambaContextParallel, {}, 8, 2, 1, 3)
   end)

   it('of the mixer are errors', function()
      local m = at(2, 0, 8, 2, 2, 3)
      local other = at(2, 0, 8, 2, 2, 3, tide.nn.Mamba2 { dim = 16, head_dim = 8, state = 4 })
      refused('E_ARG', { "'mixer'", 'conv1d' }, m.get_conv1d_weight, m)
      refused('E_ARG', '[channels = 28, ..]', other.get_conv1d_weight, other)
      refused('E_ARG', '[heads = 8]', other.get_dt_bias, other)
      refused('E_ARG', '[heads = 8]', m.get_D, m, tide.zeros { 7 })
      refused('E_ARG', '2 groups', m.repeat_group_state, m, tide.zeros { 1, 7 })
      refused('E_ARG', "'map'", mamba_cp.price, other.mixer, {})
   end)

   it('of attach are errors', function()
      local layer = tide.nn.Mamba2 { dim = 8, head_dim = 4, state = 3 }
      local mix, two = layer.mix, tide.comm.simulate(2, 0)
      refused('E_ARG', 'axis', mamba_cp.attach, layer, {})
      refused('E_ARG', { 'method', 'hidden' }, mamba_cp.attach, layer,
         { axis = two, method = 'heads' })
      refused('E_ARG', "'methods'", mamba_cp.attach, layer, { axis = two, methods = 'state' })
      refused('E_ARG', 'nn.Mamba2', mamba_cp.attach, tide.nn.Linear(2, 2), { axis = two })
      local alone = mamba_cp.attach(layer, world)
      assert.is_true(rawequal(mix, layer.mix))
      alone:restore()
      local on = mamba_cp.attach(layer, two)
      refused('E_STATE', 'wrapped', mamba_cp.attach, layer, { axis = two })
      on:restore()
      assert.is_true(rawequal(mix, layer.mix))
      assert.is_nil(rawget(layer, 'takes_context'))
      assert.same({ 1, 8, 8 }, layer(tide.zeros { 1, 8, 8 }).shape)
   end)

   it('of a batch are errors', function()
      local layer = tide.nn.Mamba2 { dim = 8, head_dim = 4, state = 3 }
      local axis = tide.comm.simulate(2, 0)
      local on = mamba_cp.attach(layer, axis)
      local function context(kind, size, rank)
         local map = tide.parallel.cp_map.new { kind = kind, size = size, rank = rank, length = 16 }
         return tide.parallel.cp.context { map = map, axis = size == 2 and rank == 0 and axis
            or { size = size, rank = rank } }
      end
      local h, good = tide.zeros { 1, 8, 8 }, context('zigzag', 2, 0)
      refused('E_STATE', 'no context', layer.forward, layer, h)
      refused('E_ARG', 'rank 1 of 2', layer.forward, layer, h,
         { context = context('zigzag', 2, 1) })
      refused('E_ARG', 'rank 0 of 4', layer.forward, layer, h,
         { context = context('zigzag', 4, 0) })
      refused('E_SHAPE', '8 tokens', layer.forward, layer, tide.zeros { 1, 7, 8 },
         { context = good })
      refused('E_UNSUPPORTED', 'cache', layer.forward, layer, h, { context = good, cache = {} })
      local pair = tide.zeros({ 1, 8, 2 }, { dtype = 'i32' })
      refused('E_UNSUPPORTED', 'no plan', layer.forward, layer, h,
         { context = tide.parallel.cp.context { axis = axis, pairs = { pair, pair } } })
      on:restore()
   end)

   it('of ranks that chose different methods are errors on every rank', function()
      local source = [[
         local rank = ...
         local tide = require 'tide'
         local layer = tide.nn.Stack { tide.nn.Mamba2 { dim = 8, head_dim = 4, state = 3 } }
         local ok, e = pcall(tide.parallel.cp.attach, layer, { axis = tide.comm.world(),
            mamba = rank == 0 and 'state' or 'hidden' })
         return { ok, e.code, layer:at(1).mix == tide.nn.Mamba2.mix }
      ]]
      for _, got in ipairs(ranks.run(2, source)) do
         assert.same({ false, 'E_COMM', true }, got)
      end
   end)

   it('of a layout that the hand-over cannot take are errors on every rank', function()
      local source = [[
         local tide = require 'tide'
         local layer = tide.nn.Mamba2 { dim = 8, head_dim = 4, state = 3 }
         local map = tide.parallel.cp_map.new { kind = 'document', axis = tide.comm.world(),
            cu = { 0, 8, 16 } }
         local on = tide.parallel.mamba_cp.attach(layer,
            { axis = tide.comm.world(), method = 'state' })
         local ok, e = pcall(layer, tide.zeros { 1, 8, 8 },
            { context = tide.parallel.cp.context { map = map } })
         on:restore()
         return { ok, e.code, tostring(e) }
      ]]
      for _, got in ipairs(ranks.run(2, source)) do
         assert.is_false(got[1])
         assert.equal('E_UNSUPPORTED', got[2])
         assert.is_truthy(got[3]:find("use 'hidden'", 1, true))
      end
   end)
end)

describe('prices', function()
   local layer = tide.nn.Mamba2 { dim = 512, head_dim = 64, state = 128, device = 'null' }
   local function plan(kind, length, W)
      return tide.parallel.cp_map.new { kind = kind, size = W, length = length }
   end

   -- Counted on simulated ranks and tensors without bytes, for every rank.
   for _, W in ipairs { 2, 3, 4 } do
      it(('are the bytes that %d ranks send at 64 k tokens'):format(W), function()
         for _, kind in ipairs { 'contiguous', 'zigzag' } do
            for rank = 0, W - 1 do
               local comm = tide.comm.simulate(W, rank)
               local map = tide.parallel.cp_map.new { kind = kind, size = W, rank = rank,
                  length = 65536 }
               for _, method in ipairs { 'hidden', 'state' } do
                  local on = mamba_cp.attach(layer, comm, { method = method })
                  local x = tide.zeros({ 1, map.count, 512 }, { device = 'null' }):requires_grad_()
                  local before = comm:traffic().nbyte[1]
                  local y = layer(x, { context = tide.parallel.cp.context { map = map,
                     axis = comm } })
                  y:backward(tide.zeros(y.shape, { device = 'null' }))
                  on:restore()
                  assert.equal(mamba_cp.price(layer, map, { rank = rank })[method].bytes,
                     comm:traffic().nbyte[1] - before)
               end
            end
         end
      end)
   end

   it('of the hand-over do not grow with the tokens, those of the heads do', function()
      local short, long = mamba_cp.price(layer, plan('contiguous', 128, 2)),
         mamba_cp.price(layer, plan('contiguous', 65536, 2))
      assert.equal(short.state.bytes, long.state.bytes)
      assert.equal(512 * short.hidden.bytes, long.hidden.bytes)
      assert.equal('hidden', short.best)
      assert.equal('state', long.best)
      -- 32768 tokens to the other rank: its 8 heads of x and dt, B and C; y of 8 heads
      assert.equal(32768 * 4 * (8 * 64 + 8 + 256 + 512), long.hidden.forward)
      assert.equal(4 * (16 * (64 * 128 + 1) + 3 * 1280), long.state.forward)
   end)

   it('say why a method is not there, and print', function()
      local map = plan('document', 64, 2)
      local p = mamba_cp.price(layer, map)
      assert.equal('hidden', p.best)
      assert.is_nil(p.state)
      assert.is_truthy(p.why:find 'contiguous and zigzag')
      assert.is_truthy(mamba_cp.explain(layer, map):find 'not for a .document. layout')
      assert.is_truthy(mamba_cp.explain(layer, plan('zigzag', 65536, 4)):find 'state.*<%- auto')
      refused('E_ARG', 'layer', mamba_cp.price, {}, map)
      refused('E_ARG', 'dtype', mamba_cp.price, layer, map, { dtype = 'i32' })
      refused('E_ARG', 'rank', mamba_cp.price, layer, map, { rank = 2 })
   end)
end)
