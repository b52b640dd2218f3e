-- Each option of fully_shard by its effect.

local on = require 'spec.parallel.fsdp_on'
local tide = require 'tide'

local function raised(opts, n)
   local ok, e = pcall(function()
      local group = { size = n or 1 }
      local model = tide.nn.Stack { tide.nn.Linear(2, 2) }
      return tide.parallel.fully_shard(model, opts), group
   end)
   assert.is_false(ok)
   return tostring(e)
end

describe('what ranks must have in common', function()
   it('is every option that changes what they do', function()
      local options = require 'tide.parallel.fsdp.options'
      local function text(o) return options.text(options.check(o)) end
      local usual = text {}
      for name, words in require 'tide.util.each' { param_dtype = 'bf16', reduce_dtype = 'bf16',
         output_dtype = 'bf16' } do
         local other = text { mp_policy = { [name] = words } }
         assert.matches(name .. ' ' .. words, other, 1, true)
         assert.not_equal(usual, other)
      end
      assert.not_equal(usual, text { strategy = 'optim' })
      assert.not_equal(usual, text { forward_prefetch = 2 })
   end)
end)

describe('precision', function()
   it('computes in param_dtype over f32 shards, reduces in its own dtype', function()
      local r = on(2, [[
         local out = {}
         for i, opts in ipairs {
            { mp_policy = { param_dtype = 'bf16' } },
            { mp_policy = { param_dtype = 'bf16' }, grad_reduce_in_fp32 = true },
            { mp_policy = { param_dtype = 'bf16', reduce_dtype = 'f32' },
              preserve_fp32_weights = false },
         } do
            local r = case.train { fsdp = opts, steps = 1, weights = false }
            local seen = { field = r.model.model.norm.weight.dtype,
               shard = r.sharded:named_parameters()[1].param.dtype, loss = r.losses[1] }
            for _, h in ipairs(r.sharded.shard_comm:history()) do
               if h.op == 'reduce_scatter_v' then seen.reduce = h.dtype end
               -- bytes are what ranks compare in words
               if h.op == 'all_gather_v' and h.dtype ~= 'u8' then seen.gather = h.dtype end
            end
            out[i] = seen
         end
         return out
      ]])[1]
      assert.same({ 'bf16', 'f32', 'bf16', 'bf16' },
         { r[1].field, r[1].shard, r[1].reduce, r[1].gather })
      assert.same({ 'f32', 'f32' }, { r[2].shard, r[2].reduce })
      assert.same({ 'bf16', 'f32' }, { r[3].shard, r[3].reduce })
   end)

   it('learns as one rank of the same dtypes does', function()
      local body = [[
         local r = case.train { rows = 24, steps = 3, accum = 3,
            fsdp = { mp_policy = { param_dtype = 'bf16', reduce_dtype = 'f32' } } }
         return { losses = r.losses, weights = r.weights }
      ]]
      local case = require 'spec.parallel.fsdp_case'
      local one = on(1, body)[1]
      for _, n in ipairs { 2, 3 } do
         local many = on(n, body)[1]
         assert.is_true(case.distance(many.losses, one.losses) < 2e-3)
         assert.is_true(case.distance(many.weights, one.weights) < 1e-2)
      end
   end)

   it('casts inputs and outputs', function()
      local r = on(1, [[
         local out = {}
         for i, cast in ipairs { true, false } do
            local block = tide.nn.Linear(4, 4, { bias = false })
            local model = tide.nn.Stack { block, tide.nn.Linear(4, 4) }
            tide.parallel.fully_shard(model, { mp_policy = { param_dtype = 'bf16',
               output_dtype = cast and 'f32' or nil, cast_forward_inputs = cast } })
            local x
            function block:forward(v)
               x = v.dtype
               return tide.linear(v:to 'bf16', self.weight)
            end
            local y = block(tide.ones { 2, 4 })
            out[i] = { x, y.dtype }
         end
         return out
      ]])[1]
      assert.same({ { 'bf16', 'f32' }, { 'f32', 'bf16' } }, r)
   end)
end)

describe('the sum of gradients', function()
   it('is kept in the wider of the dtypes of shard and reduction', function()
      local r = on(2, [[
         local out = {}
         for i, opts in ipairs {
            { mp_policy = { param_dtype = 'bf16' }, preserve_fp32_weights = false },
            { mp_policy = { param_dtype = 'bf16' }, preserve_fp32_weights = false,
              grad_reduce_in_fp32 = true },
            { mp_policy = { param_dtype = 'bf16', reduce_dtype = 'f32' },
              preserve_fp32_weights = false },
            { mp_policy = { param_dtype = 'bf16' } },
            { mp_policy = { reduce_dtype = 'bf16' } } } do
            opts.seed = 3
            local model = case.model()
            local sharded = tide.parallel.fully_shard(model, opts)
            local b = case.batch(1, world.rank, 2, 12)
            model:loss(b.ids, b.labels, { count = 84 }):backward()
            sharded:finish()
            local piece = sharded:named_parameters()[1].param
            out[i] = { piece.dtype, piece.grad.dtype, sharded:price().gradients }
         end
         return out
      ]])[1]
      local n = r[1][3]
      assert.same({ { 'bf16', 'bf16', n }, { 'bf16', 'f32', 2 * n }, { 'bf16', 'f32', 2 * n },
         { 'f32', 'f32', 2 * n }, { 'f32', 'f32', 2 * n } }, r)
   end)

   it('of micro-batches is as exact as the reduction, reduced each or at the last', function()
      local rows = on(2, [[
         local function gradient(opts, dtype)
            opts.seed = 3
            local model = case.model { dtype = dtype }
            local sharded = tide.parallel.fully_shard(model, opts)
            for i = 1, 64 do
               sharded:set_requires_gradient_sync(i == 64 or sharded.opts.sync_each_backward)
               local b = case.batch(i, world.rank, 2, 12)
               model:loss(b.ids, b.labels, { count = 84 }):backward()
               sharded:finish()
            end
            local list = {}
            for _, p in ipairs(sharded:named_parameters()) do
               list[#list + 1] = p.param.grad:to('f64'):reshape { -1 }
            end
            return tide.cat(list, 1)
         end
         local out = {}
         for _, sync in ipairs { true, false } do
            for _, f32 in ipairs { false, true } do
               local g = gradient({ sync_each_backward = sync, strategy = 'optim_grads',
                  grad_reduce_in_fp32 = f32, preserve_fp32_weights = false }, 'bf16')
               out[#out + 1] = g
            end
         end
         local want = gradient({ strategy = 'optim_grads' }, 'f32')
         for i, g in ipairs(out) do
            out[i] = ((g - want):square():sum():sqrt() / want:square():sum():sqrt()):item()
         end
         return out
      ]])
      for _, r in ipairs(rows) do
         assert.is_true(r[2] < 0.75 * r[1], ('reduced each: f32 %g, bf16 %g'):format(r[2], r[1]))
         assert.is_true(r[4] < 0.75 * r[3], ('at the last: f32 %g, bf16 %g'):format(r[4], r[3]))
      end
   end)
end)

describe('the gradient over ranks', function()
   it('is a sum, or a mean before or in the collective', function()
      local r = on(2, [[
         local out = {}
         for i, opts in ipairs { {}, { calculate_per_token_loss = false },
            { calculate_per_token_loss = false, average_in_collective = true } } do
            opts.seed = 3
            local model = case.model()
            local sharded = tide.parallel.fully_shard(model, opts)
            local b = case.batch(1, world.rank, 2, 12)
            model:loss(b.ids, b.labels, { count = 84 }):backward()
            sharded:finish()
            local norm = tide.parallel.clip.norm(sharded):item()
            for _, h in ipairs(sharded.shard_comm:history()) do
               if h.op == 'reduce_scatter_v' then out[i] = { norm, h.reduce } end
            end
         end
         return out
      ]])[1]
      assert.near(r[1][1] / 2, r[2][1], 1e-6)
      assert.near(r[1][1] / 2, r[3][1], 1e-6)
      assert.same({ 'sum', 'sum', 'mean' }, { r[1][2], r[2][2], r[3][2] })
   end)

   it('trains the same as a sum and as a mean', function()
      for _, row in ipairs(on(3, [[
         local want, out = case.train { accum = 2 }, {}
         for i, opts in ipairs { { calculate_per_token_loss = false },
            { calculate_per_token_loss = false, average_in_collective = true } } do
            for _, strategy in ipairs { 'no_shard', 'optim', 'optim_grads_params' } do
               opts.strategy = strategy
               local got = case.train { accum = 2, fsdp = opts }
               for _, k in ipairs { 'losses', 'norms', 'weights' } do
                  out[#out + 1] = case.distance(got[k], want[k])
               end
            end
         end
         return out
      ]])) do
         assert.equal(18, #row)
         for _, d in ipairs(row) do assert.is_true(d < 1e-5, tostring(d)) end
      end
   end)

   it('is scaled where a 16-bit sum would overflow', function()
      local r = on(2, [[
         local out = {}
         for i, opts in ipairs { { calculate_per_token_loss = true },
            { calculate_per_token_loss = false } } do
            opts.mp_policy = { reduce_dtype = 'f16' }
            local model = tide.nn.Stack { tide.nn.Linear(1, 1, { bias = false }) }
            local sharded = tide.parallel.fully_shard(model, opts)
            model(tide.full({ 1, 1 }, 40000)):sum():backward()
            sharded:finish()
            local p = sharded:named_parameters()[1]
            out[i] = p and p.param.grad:item() or 0
         end
         return { math.huge == out[1] or out[1] == 0, out[2] }
      ]])
      for _, row in ipairs(r) do assert.is_true(row[1]) end
      assert.equal(40000, math.floor(math.max(r[1][2], r[2][2]) / 100 + 0.5) * 100)
   end)

   it('that is not finite is told on all ranks, with parameter and rank', function()
      local body = [[
         local model = tide.nn.Stack { tide.nn.Linear(3, 3, { seed = 1 }), tide.nn.Linear(3, 3) }
         local sharded = tide.parallel.fully_shard(model, { check_for_nan_in_grad = %s })
         local x = tide.ones { 1, 3 }
         if world.rank == 1 then x:fill_(1 / 0) end
         model(x):sum():backward()
         local ok, e = pcall(sharded.finish, sharded)
         sharded:reset()
         model(tide.ones { 1, 3 }):sum():backward()
         sharded:finish()
         return ok and 'fine' or tostring(e)
      ]]
      for _, text in ipairs(on(3, body:format 'true')) do
         assert.matches("gradient of '1.weight' on rank 1 is not finite", text, 1, true)
      end
      assert.same({ 'fine', 'fine', 'fine' }, on(3, body:format 'false'))
   end)
end)

describe('overlap', function()
   it('makes gathers and reductions asynchronous, or not', function()
      local r = on(2, [[
         local out = {}
         for i, on in ipairs { true, false } do
            local seen = { gather = {}, reduce = {} }
            for _, h in ipairs(watch(world, function()
               case.train { steps = 1, weights = false,
                  fsdp = { overlap_grad_reduce = on, overlap_param_gather = on } }
            end)) do
               if h.op == 'all_gather_v' and h.dtype == 'f32' then
                  seen.gather[tostring(h.async)] = true
               end
               if h.op == 'reduce_scatter_v' then seen.reduce[tostring(h.async)] = true end
            end
            out[i] = seen
         end
         return out
      ]])[1]
      assert.same({ ['true'] = true }, r[1].gather)
      assert.same({ ['true'] = true }, r[1].reduce)
      assert.same({ ['false'] = true }, r[2].gather)
      assert.same({ ['false'] = true }, r[2].reduce)
   end)

   it('reduces during backward, or after it', function()
      local r = on(2, [[
         local out = {}
         for i, on in ipairs { true, false } do
            local model = case.model()
            local sharded = tide.parallel.fully_shard(model, { overlap_grad_reduce = on })
            local b = case.batch(1, world.rank, 2, 12)
            local list = watch(sharded.shard_comm, function()
               model:loss(b.ids, b.labels, { count = 1 }):backward()
            end)
            local n = 0
            for _, h in ipairs(list) do n = n + (h.op == 'reduce_scatter_v' and 1 or 0) end
            sharded:finish()
            out[i] = n
         end
         return out
      ]])[1]
      assert.same({ 3, 0 }, r)
   end)

   it('begins gathers ahead, as deep as asked', function()
      local r = on(2, [[
         local out = {}
         for i, opts in ipairs { { 0, 0 }, { 1, 1 }, { 2, 2 }, { 1, 2 } } do
            local model = case.model { config = { num_hidden_layers = 5 } }
            local sharded = tide.parallel.fully_shard(model, { forward_prefetch = opts[1],
               backward_prefetch = opts[2] })
            local layers, seen = model.model.layers, {}
            local function ahead(step)
               local n = 0
               while true do
                  local unit = sharded.units[3 + (n + 1) * step]
                  if not unit or not unit:is_live() then return n end
                  n = n + 1
               end
            end
            layers:at(3):hook_pre(function() if not seen[1] then seen[1] = ahead(1) end end)
            layers:at(3):hook_backward(function() seen[2] = ahead(-1) end)
            local b = case.batch(1, world.rank, 2, 12)
            model:loss(b.ids, b.labels, { count = 1 }):backward()
            sharded:finish()
            out[i] = seen
         end
         return out
      ]])[1]
      assert.same({ { 0, 0 }, { 1, 1 }, { 2, 2 }, { 1, 2 } }, r)
   end)

   it('lets a gather end while the unit before it computes', function()
      local r = on(2, [[
         local model = case.model { config = { num_hidden_layers = 4 } }
         local sharded, n = tide.parallel.fully_shard(model, {}), 0
         for i, unit in ipairs(sharded.units) do
            -- in place of computation: it ends when the next gather has, without a wait
            unit.modules[1]:hook_pre(function()
               local after = sharded.units[i + 1]
               local work, limit = after and after.buckets[1].work, tide.clock() + 20
               while work and tide.clock() < limit do
                  if work:test() then
                     n = n + 1
                     break
                  end
               end
            end)
         end
         local b = case.batch(1, world.rank, 2, 12)
         tide.no_grad(function() model:loss(b.ids, b.labels, { count = 1 }) end)
         sharded:release()
         local list, spans = world:history(), 0
         for _, h in ipairs(list) do
            if h.op == 'all_gather_v' and h.async and h.finish >= h.begin then spans = spans + 1 end
         end
         return { n, spans }
      ]])
      assert.same({ { 3, 5 }, { 3, 5 } }, r)
   end)
end)

describe('weights in FP8', function()
   it('are rounded again in backward where their bytes were dropped, to the same codes', function()
      local r = on(2, [[
         local out = {}
         for _, fp8 in ipairs { 'tensor', 'block' } do
            local want
            for _, o in ipairs { { reshard_after_forward = false },
                                 { reshard_after_forward = true },
                                 { reshard_after_forward = true,
                                   keep_fp8_transpose_cache_when_using_custom_fsdp = true } } do
               local run = case.train { fp8 = fp8, fsdp = o, steps = 2 }
               local linear = run.model.model.layers[1].mlp.down_proj
               local kept = linear._fp8.keep or 'codes'
               want = want or run
               local same = #run.weights == #want.weights
               for i, v in ipairs(run.weights) do same = same and v == want.weights[i] end
               out[#out + 1] = kept .. (same and ' same' or ' other')
               run.sharded:close()
               out[#out] = out[#out] .. ' ' .. (linear._fp8.keep or 'codes')
            end
         end
         return table.concat(out, ', ')
      ]])
      local one = 'codes same codes, weight same codes, codes same codes'
      assert.same({ one .. ', ' .. one, one .. ', ' .. one }, r)
   end)
end)

describe('bad options', function()
   it('are refused with a reason', function()
      assert.matches('contradicts calculate_per_token_loss', raised {
         average_in_collective = true }, 1, true)
      assert.matches("contradicts mp_policy.reduce_dtype 'bf16'", raised {
         grad_reduce_in_fp32 = true, mp_policy = { reduce_dtype = 'bf16' } }, 1, true)
      assert.matches('contradicts units', raised { disable_bucketing = true, units = 3 }, 1, true)
      assert.matches('needs the strategy optim_grads_params', raised {
         strategy = 'optim', reshard_after_forward = 2 }, 1, true)
      assert.matches('must divide the 1 ranks', raised { reshard_after_forward = 3 }, 1, true)
      assert.matches('got "optim_grad"', raised { strategy = 'optim_grad' }, 1, true)
      assert.matches("overlap_grad_reduce", raised { overlap_grad_reduc = true }, 1, true)
      local named = tide.parallel.fully_shard(tide.model.llama({ vocab_size = 4, hidden_size = 4,
         num_hidden_layers = 1, num_attention_heads = 1, intermediate_size = 4 },
         { device = 'null' }), tide.comm.solo(), { units = { 'LlamaModel' } })
      assert.equal('model', named.units[1].name)               -- a name that only the module has
      assert.matches("no module of class 'Liner' in the model; did you mean 'Linear'?",
         raised { units = { 'Liner' } }, 1, true)
      assert.matches("no module of class 'Dropout' in the model; known: Stack, Linear",
         raised { units = { require('tide').nn.Dropout } }, 1, true)
      assert.matches('a boolean', raised { nccl_ub = 1 }, 1, true)
   end)
end)
