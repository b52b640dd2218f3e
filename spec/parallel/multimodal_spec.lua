-- Vision over ranks: padding rules, even parts, images of any size, and a tower whose gathered
-- features and gradients are those of one rank.

local tide = require 'tide'
local mm = require 'tide.parallel.names.multimodal'
local close = require 'spec.support.close'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'

local function numbers(text)
   local list = {}
   for n in text:gmatch '%-?%d+' do list[#list + 1] = tonumber(n) end
   return list
end

local function axis(size, rank) return { size = size, rank = rank or 0 } end

describe('padding of a sequence', function()
   local function pad(n, cp, tp, sp, more)
      local o = { cp_size = cp, tp_size = tp, has_sp = sp }
      for k, v in require 'tide.util.each'(more or {}) do o[k] = v end
      return mm.get_padding(n, o)
   end
   it('follows each rule', function()
      local fp8, mx = { fp8_enabled = true }, { fp8_enabled = true, fp8_recipe = 'mxfp8' }
      for _, rule in ipairs { 'all', 'first' } do
         fp8.rule, mx.rule = rule, rule
         local r = { rule = rule }
         for _, row in ipairs { { 0, 100, 1, 1, false, r }, { 0, 100, 2, 1, false, r },
            { 3, 101, 2, 1, false, r }, { 1, 1023, 4, 1, false, r }, { 63, 1025, 4, 8, true, r },
            { 7, 1025, 1, 8, true, r }, { 8, 1000, 1, 1, false, fp8 },
            { 24, 1000, 1, 1, false, mx },
            { 15, 257, 1, 1, false, fp8 }, { 0, 256, 1, 1, false, fp8 }, { 0, 0, 2, 1, false, r },
            { 63, 1, 8, 4, true, r } } do
            assert.equal(row[1], pad(row[2], row[3], row[4], row[5], row[6]))
         end
      end
      assert.equal(3, pad(1001, 2, 1, false, { fp8_enabled = true, fp8_recipe = 'mxfp8',
         rule = 'first' }))
   end)

   it('has a flag that is one', function()
      for _, flag in ipairs { 1, 'yes' } do
         local ok, e = pcall(mm.get_packed_seq_params, tide.zeros { 2, 4 }, 4, 0, 2, flag)
         assert.is_false(ok)
         assert.matches('use_packed_sequence', tostring(e), 1, true)
      end
      assert.equal('thd', mm.get_packed_seq_params(tide.zeros { 2, 4 }, 4, 0, 2, true).qkv_format)
   end)

   it('refuses recipes and flags that are none', function()
      local get = tide.parallel.multimodal.get_padding
      refused('E_ARG', 'fp8_recipe', get, 5, { fp8_enabled = true, fp8_recipe = 'mxpf8' })
      refused('E_ARG', 'has_sp', get, 5, { tp_size = 2, has_sp = 'no' })
      refused('E_ARG', 'parts', tide.parallel.vision_split.compatible, { 4 }, 2, 0)
   end)

   it('satisfies all rules at once by default', function()
      assert.equal(23, pad(1001, 2, 1, false, { fp8_enabled = true, fp8_recipe = 'mxfp8' }))
      for _, cp in ipairs { 1, 2, 3, 4 } do
         for _, tp in ipairs { 1, 2, 3 } do
            for n = 0, 300, 7 do
               local whole = n + pad(n, cp, tp, true, { fp8_enabled = true })
               assert.equal(0, whole % (cp * tp * 16))
               if cp > 1 then assert.equal(0, whole % (2 * cp * tp)) end
            end
         end
      end
   end)

   it('reaches the decoder, never beyond it', function()
      local over = { decoder_tp_comm_overlap = true, decoder_seq_len = 1024 }
      assert.equal(23, pad(1001, 1, 8, true, over))
      refused('E_ARG', '1030', pad, 1030, 1, 8, true, over)
      refused('E_ARG', 'decoder_seq_len', pad, 10, 1, 8, true, { decoder_tp_comm_overlap = true })
      refused('E_ARG', 'seq_len', pad, -1, 1, 1, false)
   end)
end)

describe('packed parameters', function()
   it('count rows of one length', function()
      for _, row in ipairs {
         { 2, 10, 4, 2, 2, false, '0 12 24', '0 14 28', 14, 'thd' },
         { 2, 10, 4, 0, 2, false, '0 14 28', nil, 14, 'sbhd' },
         { 2, 10, 4, 0, 2, true, '0 14 28', '0 14 28', 14, 'thd' },
         { 2, 10, 4, 2, 1, true, '0 12 24', nil, 14, 'sbhd' },
         { 1, 1024, 576, 32, 4, false, '0 1568', '0 1600', 1600, 'thd' },
         { 2, 1, 1, 2, 2, false, '0 0 0', '0 2 4', 2, 'thd' } } do
         local p = mm.get_packed_seq_params(tide.zeros { row[1], row[2] }, row[3], row[4], row[5],
            row[6])
         assert.same(numbers(row[7]), p.cu_seqlens_q:tolist())
         assert.is_true(rawequal(p.cu_seqlens_q, p.cu_seqlens_kv))
         assert.same(row[8] and numbers(row[8]), p.cu_seqlens_q_padded
            and p.cu_seqlens_q_padded:tolist())
         assert.same({ row[9], row[9], row[10] }, { p.max_seqlen_q, p.max_seqlen_kv, p.qkv_format })
      end
      refused('E_ARG', 'padding_needed', mm.get_packed_seq_params, tide.zeros { 1, 2 }, 0, 3, 2)
   end)
end)

describe('even parts', function()
   it('are padded at the end', function()
      for _, row in ipairs { { 8, 2, 4, 0 }, { 7, 2, 4, 1 }, { 5, 4, 2, 3 }, { 1, 4, 1, 3 },
         { 9, 4, 3, 3 } } do
         local x = tide.arange(row[1]):reshape { row[1], 1 } + 1
         for r = 0, row[2] - 1 do
            local part, pad = mm.split_to_context_parallel_ranks(x, axis(row[2], r), -1)
            assert.same({ row[3], 1 }, part.shape)
            assert.equal(row[4], pad)
            for i, v in ipairs(part:tolist()) do
               local g = r * row[3] + i
               assert.equal(g <= row[1] and g or -1, v[1])
            end
         end
      end
      local x = tide.ones { 4, 3 }
      local same, pad = mm.split_to_context_parallel_ranks(x, axis(1))
      assert.is_true(rawequal(x, same))
      assert.equal(0, pad)
   end)

   it('come back together, with summed gradients', function()
      local out = ranks.run(2, function()
         local tide_ = require 'tide'
         local m, comm = require 'tide.parallel.names.multimodal', tide_.dist.world()
         local x = tide_.ones({ 1, 3, 4 }):requires_grad_(true)
         local y = m.gather_from_context_parallel_ranks(x, 2, comm)
         y:sum():backward()
         local part = m.split_to_context_parallel_ranks(tide_.arange(5):reshape { 5, 1 }, comm)
         local back = m.gather_from_context_parallel_ranks(part:t(), 1, comm)
         local rs = m.reduce_scatter_along_second_dim(tide_.ones { 1, 4 }, comm)
         return { y.shape, x.grad:sum({ 1, 3 }):tolist(), back:tolist(), rs:tolist() }
      end)
      assert.same({ 1, 4, 4 }, out[1][1])
      assert.same({ 8, 8, 8 }, out[1][2])
      assert.same({ 8, 0, 0 }, out[2][2])
      for r = 1, 2 do
         assert.same({ { 0, 1, 2, 3, 4 } }, out[r][3])
         assert.same({ { 2, 2 } }, out[r][4])
      end
   end)
end)

describe('images of any size', function()
   local patch = 2
   local function stream(lens)
      local cu, sizes = { 0 }, {}
      for i, n in ipairs(lens) do cu[i + 1], sizes[i] = cu[i] + n, { patch, patch * n } end
      local x = tide.arange(cu[#cu] * 12):reshape { 1, cu[#cu], 12 }
      return x, sizes, cu
   end
   local function go(lens, W, r, opts)
      local x, sizes, cu = stream(lens)
      opts = opts or {}
      opts.axis, opts.patch_dim = axis(W, r), patch
      return mm.split_to_context_parallel_ranks_dynamic_res(x, sizes, cu, opts), x
   end

   it('are spread whole', function()
      for r = 0, 1 do
         local part, x = go({ 16, 16 }, 2, r)
         assert.is_true(part.tokens:equal(x:narrow(2, 16 * r + 1, 16)))
         assert.same({ { 2, 32 } }, part.sizes:tolist())
         assert.same({ 0, 16 }, part.packed.cu_seqlens_q:tolist())
         assert.same({ false, 0 }, { part.has_padding, part.num_padded_ranks })
         assert.is_nil(part.num_frames)
         local video = go({ 4, 4, 4, 4, 4, 4, 4, 4 }, 2, r, { num_frames = { 4, 4 },
            temporal_patch_size = 2 })
         assert.same({ 1, 16, 12 }, video.tokens.shape)
         assert.same({ 4 }, video.num_frames)
         assert.same({ 4, 2 }, video.sizes.shape)
         for _, partition in ipairs { 'balanced', 'compatible' } do       -- frames one by one, too
            video = go({ 4, 4, 4, 4 }, 2, r, { num_frames = { 1, 3 }, partition = partition })
            assert.same({ { 1, 1 }, { 2 } }, { r == 0 and video.num_frames or { 1, 1 },
               r == 1 and video.num_frames or { 2 } })
         end
      end
   end)

   it('leave a rank with a token of zeros, and say so', function()
      local one = go({ 16 }, 2, 0)
      assert.same({ 1, { false, true } }, { one.num_padded_ranks, one.plan.empty })
      local none = go({ 16 }, 2, 1)
      assert.same({ 0, 1 }, none.packed.cu_seqlens_q:tolist())
      assert.equal(0, none.tokens:abs():sum():item())
      assert.same({ 1, 1, 12 }, none.tokens.shape)
      assert.same({ { 2, 2 } }, none.sizes:tolist())
   end)

   it('give a rank without frames a path for gradients, where x has one', function()
      local function none(dtype, tracked)
         local x = tide.zeros({ 1, 4, 12 }, { dtype = dtype, requires_grad = tracked or nil })
         return x, mm.split_to_context_parallel_ranks_dynamic_res(x, { { 2, 8 } }, { 0, 4 },
            { axis = axis(2, 1), patch_dim = patch }).tokens
      end
      local x, tokens = none('f32', true)
      tokens:sum():backward()
      assert.equal(0, x.grad:abs():sum():item())
      local _, plain = none 'f32'
      assert.is_false(plain.requires_grad)
      assert.equal('u8', select(2, none 'u8').dtype)
   end)

   it('without tokens are cut like others', function()
      for _, partition in ipairs { 'balanced', 'compatible' } do
         local lens = { 0, 16, 0, 16, 0 }
         local sum, images = 0, 0
         for r = 0, 1 do
            local part = go(lens, 2, r, { partition = partition })
            sum, images = sum + part.tokens:size(2), images + part.sizes:size(1)
            assert.equal(0, part.num_padded_ranks)
            assert.equal(part.plan.bounds[r + 2] - part.plan.bounds[r + 1], part.sizes:size(1))
         end
         assert.same({ 32, 5 }, { sum, images })
      end
   end)

   it('of a video give a rank without frames videos of one frame', function()
      for r = 0, 3 do
         local part = go({ 4, 4, 4 }, 4, r, { num_frames = { 3 }, temporal_patch_size = 2,
            partition = 'compatible' })
         assert.same(({ { 2 }, { 1 }, { 1 }, { 1, 1 } })[r + 1], part.num_frames)
         assert.equal(({ 8, 4, 1, 2 })[r + 1], part.tokens:size(2))
         assert.same({ part.tokens:size(2) / #part.sizes:tolist() * patch, patch },
            { part.sizes:tolist()[1][2], part.sizes:tolist()[1][1] })
      end
      local empty = go({ 4, 4 }, 4, 3, { num_frames = { 2 }, temporal_patch_size = 2 })
      assert.same({ { 1 }, true, 3 }, { empty.num_frames, empty.plan.empty[4],
         empty.num_padded_ranks })
   end)

   it('are gathered by one rank without those of the last ranks, and no more than its plan has',
      function()
         local gather = mm.gather_from_context_parallel_ranks_dynamic_res
         local x = tide.arange(10):reshape { 5, 2 }
         assert.is_true(gather(x):equal(x) and gather(x, 0):equal(x))
         assert.same({ 0, 2 }, gather(x, 1).shape)
         refused('E_ARG', 'what', gather, x, 2)
         local part = go({ 3, 5 }, 1, 0)
         assert.same({ 4, 2 }, gather(x, part.plan, nil, { merge = 2 }).shape)
         assert.is_true(gather(x, part.plan, nil, { merge = 2 }):equal(x:narrow(1, 1, 4)))
         refused('E_ARG', 'at least 8 rows', gather, x, part.plan)
         refused('E_ARG', 'rank 0 has 8 tokens, which do not join by 3', gather, x, part.plan, nil,
            { merge = 3 })
         refused('E_ARG', 'a plan of 1 ranks', gather, x, go({ 3, 5 }, 2, 0).plan)
      end)

   it('are padded to FP8 blocks, and the longest segment counts that', function()
      local want = { { '0 10 30 32', 20 }, { '0 30 70 120 128', 50 } }
      local compat = { { '0 10 16', 10 }, { '0 20 32', 20 }, { '0 30 70 120 128', 50 } }
      for r = 0, 2 do
         local part = go({ 10, 20, 30, 40, 50 }, 3, r, { fp8_enabled = true,
            partition = 'compatible' })
         assert.same(numbers(compat[r + 1][1]), part.packed.cu_seqlens_q:tolist())
         assert.equal(compat[r + 1][2], part.packed.max_seqlen_q)
         assert.is_true(part.has_padding)
         if r < 2 then
            part = go({ 10, 20, 30, 40, 50 }, 2, r, { fp8_enabled = true,
               partition = 'compatible' })
            assert.same(numbers(want[r + 1][1]), part.packed.cu_seqlens_q:tolist())
            assert.equal(want[r + 1][2], part.packed.max_seqlen_q)
         end
         local mx = go({ 100, 60, 7 }, 3, r, { fp8_enabled = true, fp8_recipe = 'mxfp8' })
         assert.same(({ { 0, 100, 128 }, { 0, 60, 64 }, { 0, 7, 32 } })[r + 1],
            mx.packed.cu_seqlens_q:tolist())
         assert.equal(({ 100, 60, 25 })[r + 1], mx.packed.max_seqlen_q)
         assert.same({ patch, patch * ({ 28, 4, 25 })[r + 1] }, mx.sizes:tolist()[2])
      end
   end)

   it('follow the published rule on request', function()
      local function bounds(lens, W, opts)
         opts.partition = 'compatible'
         local p = go(lens, W, 0, opts)
         return p.plan.bounds, p.num_padded_ranks
      end
      assert.same({ 0, 1, 2, 3, 7 }, (bounds({ 1, 1, 1, 1, 1, 1, 1 }, 4, {})))
      assert.same({ 0, 1, 2, 3, 7 }, (bounds({ 1, 1, 1, 1, 1, 1, 1 }, 4, { num_frames = { 7 },
         temporal_patch_size = 1 })))
      local b, padded = bounds({ 4, 4, 4, 4, 4, 4 }, 4, { num_frames = { 6 },
         temporal_patch_size = 2 })
      assert.same({ { 0, 2, 4, 6, 6 }, 1 }, { b, padded })
      b, padded = bounds({ 4, 4, 4 }, 4, { num_frames = { 3 }, temporal_patch_size = 2 })
      assert.same({ { 0, 2, 3, 3, 3 }, 2 }, { b, padded })
      b = bounds({ 2, 2, 2, 2, 2, 2 }, 3, { num_frames = { 1, 5 }, temporal_patch_size = 3 })
      assert.same({ 0, 1, 4, 6 }, b)
   end)

   it('refuse what does not fit', function()
      local x, sizes, cu = stream { 4, 4 }
      local function bad(code, words, x_, sizes_, cu_, opts)
         opts.axis = axis(2)
         refused(code, words, mm.split_to_context_parallel_ranks_dynamic_res, x_, sizes_, cu_, opts)
      end
      bad('E_ARG', '3*patch_dim*patch_dim', x:narrow(3, 1, 11), sizes, cu, { patch_dim = 2 })
      bad('E_ARG', 'num_frames must be provided', x, sizes, cu,
         { patch_dim = 2, temporal_patch_size = 2 })
      bad('E_ARG', 'num_frames', x, sizes, cu, { patch_dim = 2, num_frames = { 3 } })
      bad('E_ARG', 'sizes', x, { { 2, 8 } }, cu, { patch_dim = 2 })
      for _, size in ipairs { 4, { 2 }, { 2, 8, 1 }, { 2, 6 }, { 8, 4 }, { 1, 16 }, { 2, 'x' } } do
         bad('E_ARG', 'sizes[2]', x, { { 2, 8 }, size }, cu, { patch_dim = 2 })
      end
      bad('E_ARG', 'sizes[1]', x, tide.tensor { 2, 8 }, cu, { patch_dim = 2 })
      bad('E_ARG', 'x has 8', x, sizes, { 0, 4, 7 }, { patch_dim = 2 })
      bad('E_ARG', 'partition', x, sizes, cu, { patch_dim = 2, partition = 'best' })
   end)

   it('are gathered, parts of any size', function()
      local out = ranks.run(2, function(rank)
         local tide_ = require 'tide'
         local m, comm = require 'tide.parallel.names.multimodal', tide_.dist.world()
         local gather = m.gather_from_context_parallel_ranks_dynamic_res
         local x = tide_.full({ rank + 1, 4, 8 }, rank):requires_grad_(true)
         local y = gather(x, 0, comm)
         y:sum():backward()
         local ok, e = pcall(gather, tide_.zeros { 1, 2 + rank }, 0, comm)
         return { y:select(2, 1):select(2, 1):tolist(), x.grad:sum():item(),
            gather(x, 1, comm).shape, ok, tostring(e) }
      end)
      for r = 1, 2 do
         assert.same({ 0, 1, 1 }, out[r][1])
         assert.equal(2 * r * 32, out[r][2])
         assert.same({ 1, 4, 8 }, out[r][3])
         assert.is_false(out[r][4])
         assert.is_truthy(out[r][5]:find('only dim 1 may differ', 1, true))
      end
   end)

   it('are not gathered where ranks differ in anything but rows', function()
      local out = ranks.run(2, function(rank)
         local t = require 'tide'
         local m, comm = require 'tide.parallel.names.multimodal', t.dist.world()
         local list = {}
         local function try(fn, ...)
            local ok, e = pcall(fn, ...)
            list[#list + 1] = ok and 'ok' or e.code .. ' ' .. e.message
         end
         local function zeros(a, b) return t.zeros(rank == 0 and a or b) end
         local dynamic = m.gather_from_context_parallel_ranks_dynamic_res
         local even = m.gather_from_context_parallel_ranks
         local plan = { size = 2, tokens = { 2, 2 } }
         try(dynamic, zeros({ 2, 4, 2 }, { 2, 8 }), 0, comm)
         try(dynamic, zeros({ 2, 4, 2 }, { 2, 8 }), plan, comm)
         try(dynamic, zeros({ 2, 3 }, { 2, 3 }), rank, comm)
         try(even, zeros({ 2, 4, 2 }, { 2, 2, 4 }), 0, comm)
         try(even, zeros({ 2, 4 }, { 2, 4 }), rank, comm)
         try(m.gather_along_second_dim, zeros({ 2, 4 }, { 4, 2 }), comm)
         try(m.reduce_scatter_along_second_dim, zeros({ 2, 4 }, { 1, 8 }), comm)
         plan.tokens = rank == 0 and { 2, 2 } or { 1, 2 }
         try(dynamic, t.zeros { 2, 3 }, plan, comm)
         return list
      end)
      assert.same(out[1], out[2])
      for i, words in ipairs { 'tensors', 'tensors', 'numbers of ranks left out', 'tensors',
         'global_pad', 'tensors', 'tensors', 'plans' } do
         assert.matches('E_SHAPE', out[1][i], 1, true)
         assert.matches('different ' .. words, out[1][i], 1, true)
      end
   end)
end)

describe('a tower over ranks', function()
   -- Features of all images and the gradients of weighted features, on each rank.
   local function tower(_, _, lens, opts)
      local tide_ = require 'tide'
      local m, comm = require 'tide.parallel.names.multimodal', tide_.dist.world()
      local cu, sizes = { 0 }, {}
      for i, s in ipairs(lens) do
         cu[i + 1], sizes[i] = cu[i] + s[1] * s[2], { 2 * s[1], 2 * s[2] }
      end
      local n = cu[#cu]
      local x = (tide_.arange(n * 12) * 0.37):sin():reshape { 1, n, 12 }
      local net = tide_.model.vision({ patch_dim = 2, hidden_size = 16, num_hidden_layers = 2,
         num_attention_heads = 2, out_size = 6 }, { seed = 5 })
      opts.axis, opts.patch_dim = comm, 2
      local part = m.split_to_context_parallel_ranks_dynamic_res(x, sizes, cu, opts)
      local y = m.gather_from_context_parallel_ranks_dynamic_res(
         net(part.tokens, { sizes = part.sizes, index = part.packed.index }), part.plan, comm)
      local w = (tide_.arange(n * 6) * 0.11):cos():reshape { n, 6 }
      local loss = (y * w):sum()
      loss:backward()
      local grads = {}
      for _, p in ipairs(net:named_parameters()) do
         local g = comm:all_reduce(p.param.grad:clone())
         grads[#grads + 1] = (g * (1 / comm.size)):flatten():tolist()
      end
      return { y:tolist(), grads }
   end

   for _, case in ipairs {
      { 'images', { { 3, 4 }, { 1, 1 }, { 5, 5 }, { 2, 6 }, { 4, 4 } }, {} },
      { 'fewer images than ranks', { { 3, 4 }, { 2, 2 } }, {} },
      { 'video', { { 2, 2 }, { 2, 2 }, { 2, 2 }, { 3, 3 }, { 3, 3 }, { 1, 2 } },
         { num_frames = { 3, 3 }, temporal_patch_size = 2, fp8_enabled = true } },
   } do
      it('gives the features and gradients of one rank: ' .. case[1], function()
         local one = ranks.run(1, tower, case[2], case[3])[1]
         for _, n in ipairs { 2, 3, 4 } do
            for _, partition in ipairs { 'balanced', 'compatible' } do
               case[3].partition = partition
               local out = ranks.run(n, tower, case[2], case[3])
               for r = 1, n do
                  close(out[r][1], one[1], { rel = 1e-5, abs = 1e-5 })
                  close(out[r][2], one[2], { rel = 1e-4, abs = 1e-4 })
               end
            end
         end
      end)
   end

   local function small()
      return tide.model.vision({ patch_dim = 2, hidden_size = 8, num_hidden_layers = 1,
         num_attention_heads = 2 }, { seed = 2 })
   end

   it('keeps images apart without an index', function()
      local net, sizes = small(), { { 2, 4 }, { 6, 2 }, { 4, 4 } }
      local x = (tide.arange(9 * 12) * 0.37):sin():reshape { 1, 9, 12 }
      local parts = { net(x:narrow(2, 1, 2), { sizes = { sizes[1] } }),
         net(x:narrow(2, 3, 3), { sizes = { sizes[2] } }),
         net(x:narrow(2, 6, 4), { sizes = { sizes[3] } }) }
      local want = tide.cat(parts, 1):tolist()
      close(net(x, { sizes = sizes }):tolist(), want, { rel = 1e-5, abs = 1e-6 })
      close(net(x, { sizes = tide.tensor(sizes, { dtype = 'i64' }) }):tolist(), want,
         { rel = 1e-5, abs = 1e-6 })
      local one = tide.document_index(tide.tensor({ 0, 9 }, { dtype = 'i64' }), 9)
      local joined = net(x, { sizes = sizes, index = one }):tolist()
      assert.is_true(math.abs(joined[1][1] - want[1][1]) > 1e-4)
   end)

   it('refuses sizes that do not tell of its patches', function()
      local net = small()
      for _, sizes in ipairs { {}, 7, tide.zeros { 0, 2 } } do
         refused('E_ARG', 'at least one image', net, tide.zeros { 1, 1, 12 }, { sizes = sizes })
      end
      for _, size in ipairs { { 2 }, { 2, 2, 2 }, 4, { 2, 'x' }, { 2, -2 } } do
         refused('E_ARG', 'sizes[2]', net, tide.zeros { 1, 2, 12 }, { sizes = { { 2, 2 }, size } })
      end
      refused('E_ARG', 'index', net, tide.zeros { 1, 1, 12 }, { sizes = { { 2, 2 } }, index = 3 })
      refused('E_SHAPE', '4 patches', net, tide.zeros { 1, 3, 12 }, { sizes = { { 4, 4 } } })
      refused('E_ARG', 'sizes[1]', net, tide.zeros { 1, 3, 12 }, { sizes = { { 3, 4 } } })
      refused('E_ARG', 'hidden_size', tide.model.vision, { patch_dim = 2, hidden_size = 6,
         num_hidden_layers = 1, num_attention_heads = 2 })
   end)
end)
