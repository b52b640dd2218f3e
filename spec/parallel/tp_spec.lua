-- Tensor and sequence parallelism: N ranks against one, for each family of models.

local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'
local tp = require 'spec.parallel.tp_case'

local all_true, case_of, config, families = tp.check, tp.of, tp.config, tp.families

describe('tensor parallelism', function()
   it('of a model on one rank is the whole model', function()
      all_true(1, { case_of('llama', 1), case_of('llama', 1, { sequence_parallel = true }) })
   end)

   -- On 4 ranks, two families: spec/deep/tp_spec.lua has the others.
   for _, n in ipairs { 2, 3, 4 } do
      for name in each(n < 4 and families or { ['llama tied'] = true, gemma3 = true }) do
         it(('of %s on %d ranks is the whole model, with the sequence cut too'):format(name, n),
            function()
               all_true(n, { case_of(name, n), case_of(name, n, { sequence_parallel = true }) })
            end)
      end
   end

   it('is the same with products that overlap with their collectives', function()
      for _, n in ipairs { 2, 3 } do
         local list = {}
         for name in each(families) do
            list[#list + 1] = case_of(name, n, { sequence_parallel = true, async_tp = true })
         end
         all_true(n, list)
      end
      local list = {}
      for i, T in ipairs { 2, 8 } do
         list[i] = case_of('qwen2', 3, { sequence_parallel = true, async_tp = true })
         list[i].tokens, list[i].recompute = T, 'mlp'
      end
      all_true(3, list)
   end)

   it('takes sequences of any length, also shorter than the ranks', function()
      local list = {}
      for i, T in ipairs { 1, 2, 5, 8 } do
         list[i] = case_of('llama', 3, { sequence_parallel = true })
         list[i].tokens = T
      end
      all_true(3, list)
   end)

   it('composes with recomputation', function()
      local list = {}
      for _, policy in ipairs { 'full', 'mlp', 2, 'self_attn,mlp', 'input_layernorm' } do
         for _, opts in ipairs { { sequence_parallel = true }, {} } do
            local case = case_of('qwen3', 2, opts)
            case.recompute = policy
            list[#list + 1] = case
         end
      end
      all_true(2, list)
   end)

   it('leaves no hidden states of a cut embedding to the collector', function()
      local function left(_, n)
         local t = require 'tide'
         local model = t.model.llama({ vocab_size = 9, hidden_size = 64, num_hidden_layers = 1,
            num_attention_heads = 4, intermediate_size = 8 }, { seed = 1 })
         t.parallel.tensor_parallel(model, t.parallel.mesh({ tp = n }):axis 'tp')
         local ids, embed = t.zeros({ 2, 32 }, { dtype = 'i64' }), model.model.embed_tokens
         embed(ids)
         collectgarbage()
         collectgarbage 'stop'
         local before = t.stats().live
         local y = embed(ids)
         local bytes = t.stats().live - before
         collectgarbage 'restart'
         return bytes / (4 * y:numel())
      end
      for _, rows in ipairs { ranks.run(2, left) } do
         for _, times in ipairs(rows) do assert.is_true(times < 1.5, times) end
      end
   end)

   it('leaves frozen weights without gradients', function()
      local list = {}
      for _, frozen in ipairs { '_proj.weight$', 'lm_head', 'norm', 'embed' } do
         for _, async in ipairs { false, true } do
            local case = case_of('llama with biases', 2, { sequence_parallel = true,
               async_tp = async })
            case.frozen = frozen
            list[#list + 1] = case
         end
      end
      all_true(2, list)
   end)

   -- Each rank scales by the largest element of its own part, so results are equal but for FP8's
   -- rounding; that there is such a difference shows that the products are in FP8.
   it('multiplies in FP8 where the model does', function()
      local all = ranks.run(2, function(_, n, c)
         local tide = require 'tide'
         local axis = tide.parallel.mesh({ { 'tp', n } }):axis 'tp'
         local function make(fp8) return tide.model.llama(c, { seed = 3, fp8 = fp8 }) end
         local ids = tide.tensor({ { 1, 5, 2, 7, 11, 3 } }, { dtype = 'i64' })
         local want = tide.no_grad(make(false), ids)
         local function off(model)
            return (tide.no_grad(model, ids) - want):norm():item() / want:norm():item()
         end
         for _, sequence in ipairs { false, true } do
            local o = { sequence_parallel = sequence }
            local plain = off(tide.parallel.tensor_parallel(make(false), axis, o))
            local fp8 = off(tide.parallel.tensor_parallel(make(true), axis, o))
            if plain > 1e-5 then return 'without FP8: off by ' .. plain end
            if fp8 < 1e-4 or fp8 > 0.1 then return 'with FP8: off by ' .. fp8 end
         end
         local ok, e = pcall(tide.parallel.tensor_parallel, make(true), axis,
            { sequence_parallel = true, async_tp = true })
         return not ok and tostring(e):find('leave out fp8', 1, true) ~= nil or tostring(e)
      end, config(2, { attention_bias = true, mlp_bias = true }))
      assert.same({ true, true }, all)
   end)

   -- Sums that are rounded otherwise may move a number to the next code, here and there.
   it('has the scales of one rank in FP8 of blocks where cuts are multiples of 128', function()
      local all = ranks.run(2, function(_, n, c)
         local tide = require 'tide'
         local axis = tide.parallel.mesh({ { 'tp', n } }):axis 'tp'
         local ids = tide.tensor({ { 1, 5, 2, 7, 11, 3 } }, { dtype = 'i64' })
         local function off(fp8)
            local function make() return tide.model.llama(c, { seed = 3, fp8 = fp8 }) end
            local want = tide.no_grad(make(), ids)
            local got = tide.no_grad(tide.parallel.tensor_parallel(make(), axis), ids)
            return (got - want):norm():item() / want:norm():item()
         end
         return { off 'block', off 'tensor' }
      end, { vocab_size = 37, hidden_size = 256, num_hidden_layers = 2, num_attention_heads = 2,
             intermediate_size = 256 })
      for _, r in ipairs(all) do
         assert.is_true(r[1] < 2e-3 and r[1] < r[2] / 10, r[1] .. ' and ' .. r[2])
      end
   end)

   it('knows the size of the whole', function()
      local parallel = require('tide').parallel
      local model = require('tide').model.llama(config(2), { device = 'null' })
      local flops = model:flops_per_token(8)
      parallel.tensor_parallel(model,
         { size = 2, rank = 1, comm = require('tide').dist.simulate(2, 1) })
      assert.equal(flops, model:flops_per_token(8))
   end)

   it('has the options of the loss', function()
      local case = case_of('llama tied', 3, { sequence_parallel = true })
      case.loss = { label_smoothing = 0.1, z_loss = 0.01, count = 5 }
      all_true(3, case)
   end)
end)
