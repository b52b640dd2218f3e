-- Tensor and sequence parallelism of Mamba-2 and hybrid models: N ranks against one.

local all_true = require('spec.parallel.tp_case').check

local function hybrid_of(n, heads, groups, opts)
   return { family = 'hybrid', opts = opts, config = { vocab_size = 23, hidden_size = 24,
      hybrid_override_pattern = 'M*-M', num_attention_heads = 4 * n, num_key_value_heads = 2 * n,
      head_dim = 4, intermediate_size = 22, mamba_num_heads = heads, n_groups = groups,
      mamba_head_dim = 4, ssm_state_size = 5, chunk_size = 4 } }
end

describe('tensor parallelism', function()
   -- heads and groups of Mamba-2 in every relation to the ranks
   for _, n in ipairs { 1, 2, 3, 4 } do
      it(('of Mamba-2 and hybrids on %d ranks is the whole model'):format(n), function()
         local list = {}
         for k, g in ipairs { { 12, 1 }, { 12, 12 }, { 12, 3 }, { 7, 1 }, { 10, 5 } } do
            list[k] = hybrid_of(n, g[1], g[2], { sequence_parallel = k ~= 2 })
         end
         for _, policy in ipairs { 'none', 'full' } do
            local case = hybrid_of(n, 4, 1, { sequence_parallel = true, async_tp = true })
            case.tokens, case.config.tie_word_embeddings, case.recompute = 9, true, policy
            list[#list + 1] = case
         end
         for _, opts in ipairs { {}, { sequence_parallel = true } } do
            list[#list + 1] = { family = 'mamba2', opts = opts, config = { vocab_size = 23,
               hidden_size = 24, num_hidden_layers = 2, head_dim = 4, state_size = 5, n_groups = 4,
               use_bias = true, use_conv_bias = opts.sequence_parallel or false } }
         end
         all_true(n, list)
      end)
   end

   it('gathers B and C only where ranks share a group', function()
      local plan = require('tide.parallel.tp.mamba').plan
      local function layer(groups)
         return { head_dim = 4, state = 5, groups = groups, heads = 12, norm = {} }
      end
      local own = plan(layer(2), 2)
      assert.is_nil(own.gathered)
      assert.same({ { 24, 24 }, { 5, 5 }, { 5, 5 } }, own.conv)
      local shared = plan(layer(1), 2)
      assert.same({ 5, 5 }, shared.gathered)
      assert.same({ { 24, 24 }, { 5, 5 } }, shared.conv)
   end)

   it('knows the size of the whole hybrid', function()
      local parallel = require('tide').parallel
      local model = require('tide').model.hybrid(hybrid_of(2, 6, 1).config, { device = 'null' })
      local flops = model:flops_per_token(8)
      parallel.tensor_parallel(model,
         { size = 2, rank = 1, comm = require('tide').dist.simulate(2, 1) })
      assert.equal(flops, model:flops_per_token(8))
   end)

   it('refuses fewer heads of Mamba-2 than ranks, and a layer that is cut in part', function()
      local tide = require 'tide'
      local refused = require 'spec.support.refused'
      local axis = { size = 4, rank = 1, comm = tide.comm.simulate(4, 1) }
      refused('E_ARG', 'number of heads (3)', tide.parallel.tensor_parallel,
         tide.model.hybrid(hybrid_of(4, 3, 1).config, { device = 'null' }), axis)
      local model = tide.model.hybrid(hybrid_of(4, 4, 1).config, { device = 'null' })
      refused('E_ARG', 'all or none', tide.parallel.parallelize_module, model, axis,
         { ['backbone.layers.0.mixer.in_proj'] = 'colwise' })
      refused('E_ARG', 'all or none', tide.parallel.parallelize_module, model, axis,
         { ['backbone.layers.0.mixer.out_proj'] = 'rowwise' })
   end)
end)
