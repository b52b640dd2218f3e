-- Decoders of Mamba-2, attention and experts: what their configurations and folders say, beside the
-- numbers of transformers (folder_golden_spec.lua, backbone_golden_spec.lua).

local tide = require 'tide'
local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tmp = require 'spec.support.tmp'

local nn = tide.nn
local ids = tide.tensor({ { 3, 1, 4, 1, 5, 9, 2, 6 } }, { dtype = 'i64' })

local function with(config, changes)
   local c = {}
   for _, t in ipairs { config, changes or {} } do
      for k, v in each(t) do c[k] = v end
   end
   return c
end

local function tensors(dir) return tide.train.checkpoint.tensors(dir .. '/model.safetensors') end

-- On a rank: the bytes read from a folder whose model is sharded over two.
local function bytes_read(_, _, dir)
   return select(2, require('tide').model.load(dir, { mesh = { dp_shard = 2 } })).nbyte
end

local granite = { vocab_size = 29, hidden_size = 16, num_hidden_layers = 2,
   layer_types = { 'mamba', 'attention' }, num_attention_heads = 4, num_key_value_heads = 2,
   mamba_n_heads = 4, mamba_d_state = 4, shared_intermediate_size = 12, intermediate_size = 5,
   num_local_experts = 24, num_experts_per_tok = 2 }

describe('a Granite with Mamba-2 layers', function()
   local function make(changes) return tide.model.granitemoehybrid, with(granite, changes) end

   it('holds the experts of a layer together in its folder, however many there are', function()
      tmp.with(function(dir)
         local model = tide.model.granitemoehybrid(granite, { seed = 2 })
         tide.model.save(model, dir .. '/m')
         local all, at = tensors(dir .. '/m'), 'model.layers.0.block_sparse_moe.'
         assert.same({ 24, 10, 16 }, all[at .. 'input_linear.weight'].shape)
         assert.same({ 24, 16, 5 }, all[at .. 'output_linear.weight'].shape)
         assert.same({ 24, 16 }, all[at .. 'router.layer.weight'].shape)
         assert.is_nil(all[at .. 'gate_proj'])
         local again = tide.model.load(dir .. '/m')          -- 24 experts a layer, 31 tensors
         assert.equal(0, (again(ids) - model(ids)):abs():amax():item())
      end)
   end)

   it('is read by each rank but for what others keep', function()
      tmp.with(function(dir)
         tide.model.save(tide.model.granitemoehybrid(granite), dir .. '/m')
         local _, run = tide.model.load(dir .. '/m')
         for _, n in ipairs(ranks.run(2, bytes_read, dir .. '/m')) do
            assert.is_true(n < 0.6 * run.nbyte, ('%d of %d bytes'):format(n, run.nbyte))
         end
      end)
   end)

   it('has no experts where its configuration has none', function()
      local c = with(granite, { num_local_experts = 0 })
      local model = tide.model.granitemoehybrid(c)
      for _, e in ipairs(model:named_modules()) do
         assert.is_false(nn.MoE == getmetatable(e.module))
      end
      assert.equal(model:num_parameters() - 29 * 16, model:multiplying())
      local idle = 2 * 22 * 3 * 5 * 16                  -- layers, idle experts, projections
      local routed = tide.model.granitemoehybrid(granite)
      assert.equal(routed:num_parameters() - 29 * 16 - idle, routed:multiplying())
   end)

   it('names its adapters as PEFT does', function()
      tmp.with(function(dir)
         local model = tide.model.granitemoehybrid(granite)
         nn.lora.attach(model, { rank = 2, targets = 'input_linear|in_proj' })
         tide.model.save_adapter(model, dir .. '/a')
         local all = tide.train.checkpoint.tensors(dir .. '/a/adapter_model.safetensors')
         local at = 'base_model.model.model.layers.%d.%s.lora_A.weight'
         assert.is_truthy(all[at:format(1, 'shared_mlp.input_linear')])
         assert.is_truthy(all[at:format(0, 'mamba.in_proj')])
      end)
   end)

   it('writes kinds of layers that all versions of transformers read', function()
      tmp.with(function(dir)
         local c = with(granite, { layer_types = { 'linear_attention', 'full_attention' },
            layers_block_type = { 'mamba', 'attention' } })
         tide.model.save(tide.model.granitemoehybrid(c), dir .. '/m')
         local text = tide.util.fs.read('spec', dir .. '/m/config.json')
         assert.matches('"layer_types": ?%["mamba", ?"attention"%]', text)
      end)
   end)

   it('has rotary positions only where its configuration says so', function()
      local rope = with(granite, { position_embedding_type = 'rope', num_local_experts = 0 })
      assert.equal(10000, tide.model.granitemoehybrid(rope).config.rope_theta)
      local file = with(granite, { model_type = 'granitemoehybrid', rope_theta = 500 })
      assert.is_nil(tide.model.granitemoehybrid(file).config.rope_theta)
      refused('E_ARG', { 'rope_theta', "position_embedding_type = 'rope'" },
         make { rope_theta = 500 })
   end)

   it('refuses what it would ignore', function()
      refused('E_ARG', { 'layer_types', '2 names', 'list of 1' },
         make { layer_types = { 'mamba' } })
      refused('E_ARG', { 'layer_types[2]', 'sliding' },
         make { layer_types = { 'mamba', 'sliding_attention' } })
      refused('E_ARG', { 'layer_types', 'layers_block_type', 'differ' },
         make { layers_block_type = { 'mamba', 'mamba' } })
      refused('E_ARG', { 'num_experts_per_tok (25)', 'num_local_experts (24)' },
         make { num_experts_per_tok = 25 })
      refused('E_ARG', { 'mamba_n_heads (4)', 'hidden_size (16)' }, make { mamba_d_head = 4 })
      refused('E_ARG', 'position_embedding_type', make { position_embedding_type = 'alibi' })
      refused('E_ARG', 'normalization_function', make { normalization_function = 'layernorm' })
      refused('E_ARG', { 'output_router_logits', 'num_local_experts is 0' },
         make { output_router_logits = true, num_local_experts = 0 })
   end)

   it('has a term that balances its experts in training', function()
      local model = tide.model.granitemoehybrid(with(granite, { output_router_logits = true,
         router_aux_loss_coef = 0.1 }), { seed = 2 })
      local more = model:train():loss(ids, ids, { shift = true }):item()
      more = more - model:eval():loss(ids, ids, { shift = true }):item()
      assert.is_true(more > 0.1 * 2 * 0.9 and more < 0.1 * 24, tostring(more))
   end)
end)

local nemotron = { vocab_size = 29, hidden_size = 16, hybrid_override_pattern = 'ME*E',
   num_attention_heads = 4, num_key_value_heads = 2, ssm_state_size = 4, mamba_head_dim = 8,
   intermediate_size = 12, n_routed_experts = 4, num_experts_per_tok = 2, moe_intermediate_size = 5,
   moe_shared_expert_intermediate_size = 7 }

describe('a Nemotron with experts', function()
   local function make(changes) return tide.model.hybrid, with(nemotron, changes) end

   it('names the tensors of each expert as published files do', function()
      tmp.with(function(dir)
         local model = tide.model.hybrid(nemotron, { seed = 2, dtype = 'bf16' })
         tide.model.save(model, dir .. '/m')
         local all, at = tensors(dir .. '/m'), 'backbone.layers.3.mixer.'
         assert.same({ 5, 16 }, all[at .. 'experts.3.up_proj.weight'].shape)
         assert.same({ 16, 5 }, all[at .. 'experts.0.down_proj.weight'].shape)
         assert.same({ 7, 16 }, all[at .. 'shared_experts.up_proj.weight'].shape)
         assert.same({ 4, 16 }, all[at .. 'gate.weight'].shape)
         assert.equal('f32', all[at .. 'gate.e_score_correction_bias'].dtype)
         assert.is_nil(all[at .. 'experts.0.gate_proj.weight'])
         all['mtp.layers.0.norm.weight'] = tide.ones { 16 }      -- predicts further tokens
         tide.util.fs.io().safetensors_save(dir .. '/m/model.safetensors', all, { format = 'pt' })
         local again = tide.model.load(dir .. '/m')
         assert.equal(0, (again(ids):to 'f32' - model(ids):to 'f32'):abs():amax():item())
      end)
   end)

   it('counts the experts that a token uses, and its latents whole', function()
      local layers, idle, projections = 2, 2, 2
      for _, latent in ipairs { false, 3 } do
         local model = tide.model.hybrid(with(nemotron, { moe_latent_size = latent or nil }))
         assert.equal(model:num_parameters() - 29 * 16 - layers * idle * projections
            * (latent or 16) * 5, model:multiplying())
      end
   end)

   it('has a configuration without fields of experts where it has none', function()
      local dense = tide.model.hybrid(with(nemotron, { hybrid_override_pattern = 'M*' }))
      assert.is_nil(dense.config.n_routed_experts)
      local unused = table.concat(dense.unused_fields, ' ')
      assert.matches('n_routed_experts', unused, 1, true)
      local listed = tide.model.hybrid { vocab_size = 29, hidden_size = 16, mamba_head_dim = 8,
         layers_block_type = { 'mamba', 'moe' }, num_local_experts = 3 }
      assert.equal('ME', listed.config.hybrid_override_pattern)
      assert.equal(3, listed.config.n_routed_experts)
      assert.equal(64, listed.config.moe_shared_expert_intermediate_size)
   end)

   it('reads adapters of PEFT, which calls its body model, and of files', function()
      tmp.with(function(dir)
         local model, file = tide.model.hybrid(nemotron), dir .. '/a/adapter_model.safetensors'
         nn.lora.attach(model, { rank = 2, targets = 'shared_experts.up_proj|in_proj' })
         tide.no_grad(function()
            for _, e in ipairs(model:named_parameters()) do
               if e.field == 'lora_B' then e.param:add_(0.1) end
            end
         end)
         tide.model.save_adapter(model, dir .. '/a')
         local theirs = {}
         for name, t in each(tide.train.checkpoint.tensors(file)) do
            theirs[(name:gsub('%.backbone%.', '.model.'))] = t
         end
         for _, written in ipairs { false, theirs } do
            if written then tide.util.fs.io().safetensors_save(file, written, { format = 'pt' }) end
            local again = tide.model.load_adapter(tide.model.hybrid(nemotron), dir .. '/a')
            assert.equal(0, (again(ids) - model(ids)):abs():amax():item())
         end
      end)
   end)

   it('refuses what it would ignore', function()
      local e = refused('E_ARG', { 'num_experts_per_tok (5)', 'n_routed_experts (4)' },
         make { num_experts_per_tok = 5 })
      assert.is_nil(e.message:find 'group')                -- it has none
      refused('E_ARG', { 'num_experts_per_tok (3)', 'in topk_group (1) of n_group (2)' },
         make { num_experts_per_tok = 3, n_group = 2, topk_group = 1 })
      refused('E_ARG', { 'n_group (3)' }, make { n_group = 3, topk_group = 3 })
      refused('E_ARG', { 'n_shared_experts', '2' }, make { n_shared_experts = 2 })
      refused('E_ARG', { 'mlp_bias', 'moe_latent_size' },
         make { mlp_bias = true, moe_latent_size = 3 })
      refused('E_ARG', 'output_router_logits', make { output_router_logits = true })
   end)
end)

describe('experts without a gate', function()
   local function random(seed, shape)
      return tide.empty(shape, { dtype = 'f64' }):normal_(0, 1, { seed = seed })
   end

   it('are down(act(up x)), in the width of latents where they have some', function()
      local x = random(3, { 5, 6 })
      for _, act in ipairs { 'relu2', 'relu', 'silu', 'gelu', 'gelu_tanh' } do
         for _, latent in ipairs { false, 3 } do
            local m = nn.MoE { dim = 6, hidden = 4, experts = 3, topk = 3, act = act,
               latent = latent or nil, dtype = 'f64', seed = 2 }
            assert.is_nil(m.gate_proj)
            local inner = latent and tide.linear(x, m.fc1_latent_proj) or x
            local p, want = tide.linear(x, m.router):softmax(-1), 0
            for e = 1, 3 do
               local h = tide.linear(inner, m.up_proj:select(1, e))
               h = act == 'relu2' and h:relu():square() or act ~= 'relu2' and h[act](h)
               want = want + tide.linear(h, m.down_proj:select(1, e)) * p:narrow(2, e, 1)
            end
            if latent then want = tide.linear(want, m.fc2_latent_proj) end
            assert.is_true((m(x) - want):abs():amax():item() < 1e-12, act)
         end
      end
   end)

   it('are coded in NF4, and adapted, by their two projections', function()
      local model = tide.model.hybrid(with(nemotron, { moe_latent_size = 6 }), { seed = 2 })
      nn.lora.attach(model, { rank = 2, targets = 'experts.up_proj' })
      model:loss(ids, ids, { shift = true }):backward()
      local routed = model.backbone.layers[2].mixer.experts
      assert.same({ 4, 2, 6 }, routed.up_proj_lora_A.shape)
      assert.is_truthy(routed.up_proj_lora_B.grad)
      local plain = tide.model.hybrid(with(nemotron, { moe_latent_size = 6 }), { seed = 2 })
      nn.nf4.quantise_(plain)
      local coded = plain(ids)
      nn.nf4.dequantise_(plain)
      assert.is_true((plain(ids) - coded):abs():amax():item() < 1e-5)
      assert.matches('relu2 in 6 channels', tostring(routed))
   end)

   it('have the gradients of differences', function()
      local m = nn.MoE { dim = 4, hidden = 3, experts = 3, topk = 2, act = 'relu2', latent = 2,
         score = 'sigmoid', dtype = 'f64', seed = 2 }
      tide.debug.gradcheck(function(x) return m(x):square():sum() end, { random(1, { 5, 4 }) })
   end)
end)

describe('a block', function()
   it('has experts beside an MLP only', function()
      local norm, mixer = nn.RMSNorm(8), nn.MLP { dim = 8, hidden = 4 }
      refused('E_ARG', { 'mlp', 'beside experts' }, nn.Block, { norm1 = norm, mixer = mixer,
         experts = nn.MoE { dim = 8, hidden = 4, experts = 2, topk = 1 } })
   end)
end)
