-- Tensor and sequence parallelism: N ranks against one, for each family of models.

local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'

local function config(n, changes)
   local c = {
      vocab_size = 23, hidden_size = 24, num_hidden_layers = 2, num_attention_heads = 4 * n,
      num_key_value_heads = 2 * n, head_dim = 4, intermediate_size = 22,
   }
   for k, v in each(changes or {}) do c[k] = v end
   return c
end

local families = {
   llama = {}, ['llama tied'] = { tie_word_embeddings = true },
   ['llama with biases'] = { attention_bias = true, mlp_bias = true, num_key_value_heads = false },
   qwen2 = { head_dim = 6 }, qwen3 = { tie_word_embeddings = true },
   mistral = { sliding_window = 3 }, phi3 = {},
   gemma3 = { sliding_window = 3, sliding_window_pattern = 2 },
}

local function case_of(name, n, opts)
   local c = config(n, families[name])
   if c.num_key_value_heads == false then c.num_key_value_heads = c.num_attention_heads end
   return { family = name:match '%w+', config = c, opts = opts }
end

local all_true = require('spec.parallel.tp_case').check

describe('tensor parallelism', function()
   for _, n in ipairs { 1, 2, 3, 4 } do
      for name in each(families) do
         it(('of %s on %d ranks is the whole model'):format(name, n), function()
            all_true(n, case_of(name, n))
         end)
         it(('of %s on %d ranks with the sequence cut too'):format(name, n), function()
            all_true(n, case_of(name, n, { sequence_parallel = true }))
         end)
      end
   end

   it('is the same with products that overlap with their collectives', function()
      for _, n in ipairs { 2, 3 } do
         for name in each(families) do
            all_true(n, case_of(name, n, { sequence_parallel = true, async_tp = true }))
         end
      end
      for _, T in ipairs { 2, 8 } do
         local case = case_of('qwen2', 3, { sequence_parallel = true, async_tp = true })
         case.tokens, case.recompute = T, 'mlp'
         all_true(3, case)
      end
   end)

   it('takes sequences of any length, also shorter than the ranks', function()
      for _, T in ipairs { 1, 2, 5, 8 } do
         local case = case_of('llama', 3, { sequence_parallel = true })
         case.tokens = T
         all_true(3, case)
      end
   end)

   it('composes with recomputation', function()
      for _, policy in ipairs { 'full', 'mlp', 2, 'self_attn,mlp', 'input_layernorm' } do
         local case = case_of('qwen3', 2, { sequence_parallel = true })
         case.recompute = policy
         all_true(2, case)
         case.opts = nil
         all_true(2, case)
      end
   end)

   it('leaves frozen weights without gradients', function()
      for _, frozen in ipairs { '_proj.weight$', 'lm_head', 'norm', 'embed' } do
         for _, async in ipairs { false, true } do
            local case = case_of('llama with biases', 2, { sequence_parallel = true,
               async_tp = async })
            case.frozen = frozen
            all_true(2, case)
         end
      end
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
