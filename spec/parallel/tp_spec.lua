-- Tensor and sequence parallelism: N ranks against one, for each family of models.

local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'

-- Runs on a rank: loss, logits and gathered gradients of a model cut over all ranks against the
-- whole model, and its weights against those of the whole. Returns true or what is wrong.
local function check(_, n, case)
   local tide = require 'tide'
   local parallel = tide.parallel
   local axis = parallel.mesh({ { 'tp', n } }):axis 'tp'
   local function inputs()
      local B, T, V = case.batch or 2, case.tokens or 7, case.config.vocab_size
      local ids, labels = {}, {}
      for b = 1, B do
         ids[b], labels[b] = {}, {}
         for t = 1, T do
            ids[b][t] = (7 * t + 3 * b + t * t) % V
            labels[b][t] = (t + b) % 5 == 0 and -100 or (5 * t + b * t) % V
         end
      end
      return tide.tensor(ids, { dtype = 'i64' }), tide.tensor(labels, { dtype = 'i64' })
   end
   local function make(device)
      local model = tide.model[case.family](case.config, { device = device, seed = 3 })
      if device ~= 'null' then
         -- weights that are not all alike, so that sums over ranks show
         tide.no_grad(function()
            for k, e in ipairs(model:named_parameters()) do
               if e.param.ndim == 1 then
                  local wave = (tide.arange(e.param:numel(), { dtype = 'f32' }) + k):sin()
                  e.param:add_(wave * 0.2)
               end
            end
         end)
      end
      return model
   end
   local whole = make()
   local cut = parallel.tensor_parallel(make(), axis, case.opts)
   if case.frozen then
      for _, m in ipairs { whole, cut } do
         for _, e in ipairs(m:named_parameters()) do
            if e.name:find(case.frozen) then e.param:requires_grad_(false) end
         end
      end
   end
   if case.recompute then parallel.recompute(cut, case.recompute) end
   local function far(a, b, what)
      local d = (a:double() - b:double()):abs():amax():item()
      local scale = math.max(1e-2, b:double():abs():amax():item())
      if d ~= d or d > 1e-5 * scale then return ('%s: off by %g of %g'):format(what, d, scale) end
   end
   local ids, labels = inputs()
   local wrong = far(tide.no_grad(cut, ids), tide.no_grad(whole, ids), 'logits')
   if wrong then return wrong end
   local loss_opts = case.loss
   local a, b = cut:loss(ids, labels, loss_opts), whole:loss(ids, labels, loss_opts)
   wrong = far(a:detach(), b:detach(), 'loss')
   if wrong then return wrong end
   a:backward()
   b:backward()
   local grads = parallel.layout.gathered(cut, true)
   for _, e in ipairs(whole:named_parameters()) do
      if (grads[e.name] ~= nil) ~= (e.param.grad ~= nil) then return 'gradient of ' .. e.name end
      wrong = grads[e.name] and far(grads[e.name], e.param.grad, 'gradient of ' .. e.name)
      if wrong then return wrong end
   end
   -- the same numbers when the model is cut before it has bytes
   local plain = tide.model[case.family](case.config, { seed = 3 })
   local late = tide.model[case.family](case.config, { device = 'null' })
   parallel.tensor_parallel(late, axis, case.opts):materialise('cpu', 3)
   local values = parallel.layout.gathered(late)
   for _, e in ipairs(plain:named_parameters()) do
      if not values[e.name]:equal(e.param) then return 'initial values of ' .. e.name end
   end
   -- something is really cut
   if n > 1 and late:num_parameters() >= plain:num_parameters() then return 'nothing is cut' end
   return true
end

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

local function hybrid_of(n, heads, groups, opts)
   return { family = 'hybrid', opts = opts, config = { vocab_size = 23, hidden_size = 24,
      hybrid_override_pattern = 'M*-M', num_attention_heads = 4 * n, num_key_value_heads = 2 * n,
      head_dim = 4, intermediate_size = 22, mamba_num_heads = heads, n_groups = groups,
      mamba_head_dim = 4, ssm_state_size = 5, chunk_size = 4 } }
end

local function all_true(n, case)
   local out = ranks.run(n, check, case)
   for r = 1, n do assert.equal(true, out[r]) end
end

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

   -- heads and groups of Mamba-2 in every relation to the ranks
   for _, n in ipairs { 1, 2, 3, 4 } do
      it(('of Mamba-2 and hybrids on %d ranks is the whole model'):format(n), function()
         for _, g in ipairs { { 12, 1 }, { 12, 12 }, { 12, 2 }, { 12, 3 }, { 7, 1 }, { 7, 7 },
                              { 10, 5 }, { 6, 2 } } do
            all_true(n, hybrid_of(n, g[1], g[2]))
            all_true(n, hybrid_of(n, g[1], g[2], { sequence_parallel = true }))
         end
         local case = hybrid_of(n, 4, 1, { sequence_parallel = true, async_tp = true })
         case.tokens, case.config.tie_word_embeddings = 9, true
         all_true(n, case)
         case.recompute = 'full'
         all_true(n, case)
         for _, opts in ipairs { {}, { sequence_parallel = true } } do
            all_true(n, { family = 'mamba2', opts = opts, config = { vocab_size = 23,
               hidden_size = 24, num_hidden_layers = 2, head_dim = 4, state_size = 5, n_groups = 4,
               use_bias = true, use_conv_bias = opts.sequence_parallel or false } })
         end
      end)
   end

   it('knows the size of the whole hybrid', function()
      local parallel = require('tide').parallel
      local model = require('tide').model.hybrid(hybrid_of(2, 6, 1).config, { device = 'null' })
      local flops = model:flops_per_token(8)
      parallel.tensor_parallel(model, { size = 2, rank = 1, comm = { size = 2, rank = 1 } })
      assert.equal(flops, model:flops_per_token(8))
   end)

   it('refuses fewer heads of Mamba-2 than ranks, and a layer that is cut in part', function()
      local tide = require 'tide'
      local refused = require 'spec.support.refused'
      local axis = { size = 4, rank = 1, comm = { size = 4, rank = 1 } }
      refused('E_ARG', 'number of heads (3)', tide.parallel.tensor_parallel,
         tide.model.hybrid(hybrid_of(4, 3, 1).config, { device = 'null' }), axis)
      local model = tide.model.hybrid(hybrid_of(4, 4, 1).config, { device = 'null' })
      refused('E_ARG', 'all or none', tide.parallel.parallelize_module, model, axis,
         { ['backbone.layers.0.mixer.in_proj'] = 'colwise' })
      refused('E_ARG', 'all or none', tide.parallel.parallelize_module, model, axis,
         { ['backbone.layers.0.mixer.out_proj'] = 'rowwise' })
   end)

   it('knows the size of the whole', function()
      local parallel = require('tide').parallel
      local model = require('tide').model.llama(config(2), { device = 'null' })
      local flops = model:flops_per_token(8)
      parallel.tensor_parallel(model, { size = 2, rank = 1, comm = { size = 2, rank = 1 } })
      assert.equal(flops, model:flops_per_token(8))
   end)

   it('has the options of the loss', function()
      local case = case_of('llama tied', 3, { sequence_parallel = true })
      case.loss = { label_smoothing = 0.1, z_loss = 0.01, count = 5 }
      all_true(3, case)
   end)
end)
