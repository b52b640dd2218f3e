-- Embeddings in place of ids, in calls of every family: the numbers and gradients of ids, on one
-- rank and on several; what does not fit is refused.

local tide = require 'tide'
local each = require 'tide.util.each'
local raised = require 'spec.support.raised'
local ranks = require 'spec.support.ranks'

local common = { vocab_size = 31, hidden_size = 16, num_hidden_layers = 2,
   num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 12 }
local function with(changes)
   local c = {}
   for k, v in each(common) do c[k] = v end
   for k, v in each(changes or {}) do c[k] = v end
   return c
end

local mamba = { vocab_size = 31, hidden_size = 16, num_hidden_layers = 2, head_dim = 8,
   state_size = 4, chunk_size = 4 }
local hybrid = { vocab_size = 31, hidden_size = 16, hybrid_override_pattern = 'M*-',
   num_attention_heads = 2, mamba_head_dim = 8, ssm_state_size = 4, intermediate_size = 12 }
local configs = {
   llama = with(), mistral = with { sliding_window = 3 }, qwen2 = with(),
   qwen3 = with { head_dim = 6 },
   phi3 = with(), ministral = with { sliding_window = 3 }, smollm3 = with(), olmo2 = with(),
   granite = with { embedding_multiplier = 3 }, gemma2 = with { head_dim = 6, sliding_window = 3 },
   gemma3 = with { head_dim = 6, sliding_window = 2, sliding_window_pattern = 2 },
   mamba2 = mamba, hybrid = hybrid,
   bamba = with { attn_layer_indices = { 1 }, mamba_n_heads = 4, mamba_d_head = 8,
      mamba_n_groups = 1, mamba_d_state = 4, mamba_expand = 2 },
   granitemoehybrid = with { layer_types = { 'mamba', 'attention' }, mamba_n_heads = 4,
      mamba_d_state = 4, num_local_experts = 3, shared_intermediate_size = 12,
      residual_multiplier = 0.5, embedding_multiplier = 3 },
   qwen3_next = with { layer_types = { 'linear_attention', 'full_attention' }, head_dim = 8,
      linear_num_key_heads = 1, linear_num_value_heads = 2, linear_key_head_dim = 3,
      linear_value_head_dim = 4, num_experts = 3, num_experts_per_tok = 2,
      moe_intermediate_size = 6, shared_expert_intermediate_size = 5 },
   qwen3_5 = with { layer_types = { 'linear_attention', 'full_attention' }, head_dim = 8,
      linear_num_key_heads = 2, linear_num_value_heads = 2, linear_key_head_dim = 3,
      linear_value_head_dim = 4 },
   gpt2 = { vocab_size = 31, n_embd = 16, n_layer = 2, n_head = 4, n_positions = 32,
      resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0 },
}

-- What the family multiplies embeddings of ids by, and not given ones.
local scales = { gemma2 = 4, gemma3 = 4 }

local ids = tide.tensor({ { 3, 1, 4, 1, 5, 9 }, { 2, 6, 5, 3, 5, 8 } }, { dtype = 'i64' })
local labels = tide.tensor({ { 1, 4, 1, -100, 9, 2 }, { 6, -100, 3, 5, 8, 9 } }, { dtype = 'i64' })

local function far(a, b) return (a - b):abs():amax():item() end

describe('embeddings in place of ids', function()
   for name, config in each(configs) do
      it('give the numbers of ids, with gradients: ' .. name, function()
         local model = tide.model[name](config, { dtype = 'f64', seed = 2 })
         local table_ = model:embedding().weight
         local x = (tide.embedding(table_:detach(), ids) * (scales[name] or 1))
            :detach():requires_grad_(true)
         assert.is_true(far(model(ids), model(x)) <= 1e-12)
         assert.is_true(far(model(ids, { last_only = true }), model(x, { last_only = true }))
            <= 1e-12)
         assert.is_true(far(model:label_logprobs(ids, labels), model:label_logprobs(x, labels))
            <= 1e-12)
         local loss = model:loss(ids, labels)
         loss:backward()
         local want = {}
         for _, e in ipairs(model:named_parameters()) do want[e.name] = e.param.grad:clone() end
         model:zero_grad()
         local given = model:loss(x, labels)
         given:backward()
         assert.near(loss:item(), given:item(), 1e-12)
         -- a tied table has the gradient of the head besides
         local rows = tide.zeros(table_.shape, { dtype = 'f64' }):index_add(1, ids:reshape(12),
            x.grad:reshape(12, 16)) * (scales[name] or 1)
         for _, e in ipairs(model:named_parameters()) do
            if e.param.id ~= table_.id then
               assert.is_true(far(want[e.name], e.param.grad) <= 1e-12, e.name)
            else
               assert.is_true(far(want[e.name], e.param.grad and rows + e.param.grad or rows)
                  <= 1e-12)
            end
         end
         assert.has_no_error(function() return x:sum():item() end)       -- still the caller's
      end)
   end

   it('are read again where blocks are recomputed', function()
      local model = tide.model.llama(configs.llama, { dtype = 'f64', seed = 2 })
      local x = tide.randn({ 2, 6, 16 }, { dtype = 'f64' }):requires_grad_(true)
      model:loss(x, labels):backward()
      local want = x.grad:clone()
      x:zero_grad()
      tide.parallel.recompute(model, 'full')
      model:loss(x, labels):backward()
      assert.is_true(far(want, x.grad) <= 1e-12)
   end)

   it('must have the width of the model, and be numbers', function()
      local model = tide.model.llama(configs.llama, { seed = 2 })
      local function message(x) return raised(model, x).message end
      for got, x in each {
         ['f32 [2, 6, 15]'] = tide.zeros { 2, 6, 15 }, ['i64 [2, 6, 16]'] = tide.zeros({ 2, 6, 16 },
            { dtype = 'i64' }), ['f32 [16]'] = tide.zeros { 16 } } do
         local said = message(x)
         assert.matches("argument 'ids': expected a tensor [batch, tokens], or embeddings [batch, "
            .. 'tokens, 16], got', said, 1, true)
         assert.matches(got:match '%[.*', said, 1, true)
      end
   end)

   -- On a rank: the loss and the gradient of given embeddings.
   local function on_rank(rank, _, config, mesh, options, family)
      local t = require 'tide'
      local model = t.model[family or 'llama'](config, { dtype = 'f64', device = 'null' })
      local plan = t.parallel.plan(model, mesh, options)
      local run = plan:materialise { seed = 3 }
      local x = t.empty({ 1, 8, 16 }, { dtype = 'f64' }):normal_(0, 1, { seed = 5, stream = 1,
         offset = 0 })
      local batch = { embeds = x, labels = t.tensor({ { 1, 4, 1, 5, 9, 2, 6, -100 } },
         { dtype = 'i64' }) }
      if run.context then batch = run.context:cut(batch) end
      local part = batch.embeds:detach():requires_grad_(true)
      local loss = run.model:loss(part, batch.labels, { context = batch.context, count = 7 })
      loss:backward()
      if run.sharded then run.sharded:finish() end
      local g = part.grad
      if batch.context then g = batch.context.map:gather(g, 2) end
      return { rank, g:tolist(), loss:item(), batch.context ~= nil }
   end

   for what, row in each { ['cp 2'] = { { cp = 2 }, { cp = {} } },
      ['tp 2'] = { { tp = 2 }, { tp = {} } },
      ['tp 2 with sequence_parallel'] = { { tp = 2 }, { tp = { sequence_parallel = true } } },
      ['dp_shard 2'] = { { dp_shard = 2 }, {} } } do
      it('work over ranks: ' .. what, function()
         local want = ranks.run(1, on_rank, configs.llama, { dp_shard = 1 }, {})[1]
         local sum = 0
         for _, got in ipairs(ranks.run(2, on_rank, configs.llama, row[1], row[2])) do
            local a, b = tide.tensor(want[2], { dtype = 'f64' }), tide.tensor(got[2],
               { dtype = 'f64' })
            assert.is_true(far(a, b) <= 1e-9, what .. ' gradient off by ' .. far(a, b))
            sum = sum + got[3] / (got[4] and 1 or 2)
         end
         assert.near(want[3], sum, 1e-9)
      end)
   end

   it('work over ranks of a model with a tower, without images', function()
      local config = tide.json.decode(dofile('spec/golden/qwen3_vl.lua').text)
      config.text_config.num_key_value_heads = 2
      local want = ranks.run(1, on_rank, config, { tp = 1 }, {}, 'qwen3_vl')[1]
      local options = { tp = { sequence_parallel = true } }
      for _, got in ipairs(ranks.run(2, on_rank, config, { tp = 2 }, options, 'qwen3_vl')) do
         assert.near(want[3], got[3], 1e-9)
         assert.is_true(far(tide.tensor(want[2]), tide.tensor(got[2])) <= 1e-6)
      end
   end)
end)
