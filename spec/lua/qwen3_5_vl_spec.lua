-- Qwen3.5 and Qwen3.5-MoE with a vision tower against transformers (numbers of
-- spec/golden/qwen3_5_vl.py): positions, logits, loss and gradients, greedy generation, folders;
-- and what does not fit is refused.

local tide = require 'tide'
local all = require 'spec.lua.vlm_case'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local raised = require 'spec.support.raised'
local stored = require 'tide.model.stored'
local tmp = require 'spec.support.tmp'

local case, far = all.qwen3_5_vl, all.far

describe('qwen3_5_vl', function()
   for _, name in ipairs(case.names()) do
      it('has the numbers of transformers: ' .. name, function() case.check_numbers(name) end)
      it('goes on as transformers does, and goes through a folder: ' .. name, function()
         case.check_answers(name)
      end)
   end

   it('reads packed documents as it reads them alone', function()
      case.check_packed('images', 3)
   end)

   it('computes texts as qwen3_5 does', function()
      for name, text in each { text = 'qwen3_5', moe_mixed = 'qwen3_5_moe' } do
         local model, c = case.model(name, { dtype = 'f64' }), case.config(name).text_config
         local plain, ids = tide.model[text](c, { dtype = 'f64' }):eval(), case.numbers('text').ids
         local state = {}
         for key, t in each(model:state_dict()) do
            if not key:find '^visual' then state[key] = t end
         end
         plain:load_state_dict(state)
         assert.equal(0, far(model(ids), plain(ids)))
      end
   end)

   it('takes the sequences of packed documents in place of its index', function()
      local model, ids = case.model('text', { dtype = 'f64' }), {}
      for t = 1, 9 do ids[t] = 3 * t end
      ids = tide.tensor({ ids }, { dtype = 'i64' })
      local cu = tide.tensor({ 0, 4, 9 }, { dtype = 'i64' })
      local index = tide.document_index(cu, 9)
      local want = model(ids, { index = index })
      assert.equal(0, far(model(ids, { index = index, sequence = tide.sequence_index(cu, 9) }),
         want))
      assert.is_true(far(model(ids, { index = index,
         sequence = tide.zeros({ 1, 9 }, { dtype = 'i32' }) }), want) > 1e-3)
   end)

   -- Writes the folder of a model with other tensors, or with other names of them. entries: what
   -- the file has, of model:stored(); change(state): changes the tensors.
   local function write(dir, model, entries, change)
      tide.model.save(model, dir)
      local state = stored.published(entries or model:stored(), model:state_dict())
      for name, t in each(state) do state[name] = t:contiguous():clone() end
      if change then change(state) end
      fs.io().safetensors_save(dir .. '/model.safetensors', state, { format = 'pt' })
   end

   it('reads files of experts together and apart, and leaves out further layers', function()
      tmp.with(function(dir)
         local model = case.model('moe_mixed', { dtype = 'f64' })
         local apart = model:_stored_apart()
         local function further(state)
            for _, name in ipairs { 'experts.0.gate_proj.weight', 'experts.gate_up_proj' } do
               state['mtp.layers.0.mlp.' .. name] = tide.zeros { 2, 2 }
            end
         end
         for i, entries in ipairs { model:stored(), apart } do
            write(dir .. '/' .. i, model, entries, further)
            local again = tide.model.load(dir .. '/' .. i)
            for k, e in ipairs(model:named_parameters()) do
               assert.is_true(e.param:equal(again:named_parameters()[k].param), e.name)
            end
         end
         local block = 'model.language_model.layers.1.mlp.experts.'
         write(dir .. '/3', model, apart, function(state)
            state[block .. '3.up_proj.weight'] = nil
         end)
         assert.matches("tensor '" .. block .. "3.up_proj.weight' is missing, and config.json says "
            .. 'that there are 4 such', raised(tide.model.load, dir .. '/3').message, 1, true)
         write(dir .. '/4', model, nil, function(state)
            assert.same({ 4, 12, 16 }, state[block .. 'gate_up_proj'].shape)
            state[block .. 'gate_up_proj'] = tide.zeros({ 4, 16, 12 }, { dtype = 'f64' })
         end)
         assert.matches(".experts.gate_up_proj' is [4, 16, 12], config.json says [4, 12, 16]",
            raised(tide.model.load, dir .. '/4').message, 1, true)
         write(dir .. '/5', model, nil, function(state)
            state[block .. '0.up_proj.weight'] = tide.zeros({ 6, 16 }, { dtype = 'f64' })
         end)
         assert.matches("tensor '" .. block .. "1.up_proj.weight' is missing",
            raised(tide.model.load, dir .. '/5').message, 1, true)
      end)
   end)

   it('reads what published folders say, and has as many parameters', function()
      local text = { attention_bias = false, attention_dropout = 0, attn_output_gate = true,
         dtype = 'bfloat16', full_attention_interval = 4, head_dim = 256, hidden_act = 'silu',
         hidden_size = 5120, intermediate_size = 17408, linear_conv_kernel_dim = 4,
         linear_key_head_dim = 128, linear_num_key_heads = 16, linear_num_value_heads = 48,
         linear_value_head_dim = 128, mamba_ssm_dtype = 'float32', mlp_only_layers = {},
         max_position_embeddings = 262144, mtp_num_hidden_layers = 1, num_hidden_layers = 64,
         mtp_use_dedicated_embeddings = false, num_attention_heads = 24, num_key_value_heads = 4,
         partial_rotary_factor = 0.25, rms_norm_eps = 1e-6, tie_word_embeddings = false,
         use_cache = true, vocab_size = 248320, rope_parameters = { mrope_interleaved = true,
            mrope_section = { 11, 11, 10 }, partial_rotary_factor = 0.25, rope_theta = 1e7,
            rope_type = 'default' } }
      local tower = { deepstack_visual_indexes = {}, depth = 27, hidden_size = 1152,
         hidden_act = 'gelu_pytorch_tanh', in_channels = 3, initializer_range = 0.02,
         intermediate_size = 4304, num_heads = 16, num_position_embeddings = 2304,
         out_hidden_size = 5120, patch_size = 16, spatial_merge_size = 2, temporal_patch_size = 2 }
      local function count(family, kind, tied)
         text.model_type, tower.model_type = kind .. '_text', kind
         local model = tide.model[family]({ model_type = kind, text_config = text,
            vision_config = tower, tie_word_embeddings = tied, language_model_only = false,
            architectures = { kind == 'qwen3_5' and 'Qwen3_5ForConditionalGeneration'
               or 'Qwen3_5MoeForConditionalGeneration' }, vision_start_token_id = 248053,
            vision_end_token_id = 248054 }, { device = 'null' })
         local c = model.config
         assert.same({ 11, 11, 10 }, c.rope_scaling.mrope_section)
         assert.same({ 248056, 248057 }, { c.image_token_id, c.video_token_id })
         assert.equal('full_attention', c.layer_types[4])
         return model:num_parameters()
      end
      assert.equal(27356728560, count('qwen3_5_vl', 'qwen3_5', false))
      copy({ hidden_size = 2048, num_hidden_layers = 40, num_attention_heads = 16,
         num_key_value_heads = 2, linear_num_value_heads = 32, num_experts = 256,
         num_experts_per_tok = 8, moe_intermediate_size = 512, router_aux_loss_coef = 0.001,
         shared_expert_intermediate_size = 512, output_router_logits = false }, text)
      text.intermediate_size, text.rope_parameters, tower.out_hidden_size = nil, nil, 2048
      assert.equal(35107181936, count('qwen3_5_moe_vl', 'qwen3_5_moe', false))
      copy({ hidden_size = 1024, intermediate_size = 3584, num_hidden_layers = 24,
         num_attention_heads = 8, linear_num_value_heads = 16 }, text)
      for _, name in ipairs { 'num_experts', 'num_experts_per_tok', 'moe_intermediate_size',
         'shared_expert_intermediate_size', 'router_aux_loss_coef', 'output_router_logits' } do
         text[name] = nil
      end
      copy({ depth = 12, hidden_size = 768, intermediate_size = 3072, num_heads = 12,
         out_hidden_size = 1024 }, tower)
      assert.equal(852985920, count('qwen3_5_vl', 'qwen3_5', true))
   end)

   it('is run again in backward, whole or in parts, with the same gradients', function()
      for _, name in ipairs { 'mixed', 'moe_mixed' } do
         local n, want = case.numbers(name), nil
         for _, policy in ipairs { 'none', 'full', 'selective', 'visual,layers' } do
            local model, grads = case.model(name, { dtype = 'f64' }):train(), {}
            tide.parallel.recompute(model, policy)
            model:loss(n.ids, n.labels, case.call_of(name, n, 'f64')):backward()
            for k, e in ipairs(case.parameters(model)) do grads[k] = e.param.grad end
            want = want or grads
            for k, t in ipairs(grads) do assert.is_true(t:equal(want[k]), policy) end
         end
      end
   end)

   it('has the price of what it keeps for backward', function()
      local config, grids, ids = case.config 'mixed', {}, {}
      for i = 1, 8 do
         grids[i] = { 1, 8, 8 }
         for _ = 1, 16 do ids[#ids + 1] = config.image_token_id end
         ids[#ids + 1] = 3
      end
      ids = tide.tensor({ ids }, { dtype = 'i64' })
      config.text_config.layer_types = { 'linear_attention', 'linear_attention' }
      local model = tide.model.qwen3_5_vl(config)
      local o = { pixel_values = tide.zeros { 512, 24 }, image_grid_thw = grids }
      model:loss(ids, ids, o):backward()
      collectgarbage()
      collectgarbage()
      collectgarbage 'stop'
      local before = tide.default():stats().live
      local loss = model:loss(ids, ids, o)
      local kept = tide.default():stats().live - before
      collectgarbage 'restart'
      loss:backward()
      local price = tide.parallel.plan(tide.model.qwen3_5_vl(config, { device = 'null' }),
         { dp_shard = 1 }):price { batch = 1, seq = ids:size(2), images = grids }
      assert.near(1, price.activations / kept, 0.01)
   end)

   it('has adapters, written under the names of modules in transformers', function()
      local n = case.numbers 'moe_mixed'
      local o = case.call_of('moe_mixed', n, 'f64')
      local model = case.model('moe_mixed', { dtype = 'f64' })
      tide.nn.lora.attach(model, { rank = 2, seed = 3, targets = 'visual.blocks.*.attn.qkv|'
         .. 'in_proj_qkv|q_proj|gate_proj|up_proj|down_proj' })
      tide.no_grad(function()
         for i, e in ipairs(model:named_parameters()) do
            if e.name:find 'lora_B' then e.param:fill_(0.02 * i) end
         end
      end)
      tmp.with(function(dir)
         tide.model.save_adapter(model, dir .. '/a')
         local tensors = tide.train.checkpoint.tensors(dir .. '/a/adapter_model.safetensors')
         for _, name in ipairs { 'visual.blocks.1.attn.qkv.lora_A',
            'language_model.layers.0.linear_attn.in_proj_qkv.lora_B',
            'language_model.layers.1.mlp.experts.base_layer.lora_A' } do
            assert.is_not_nil(tensors['base_model.model.model.' .. name .. '.weight'], name)
         end
         local again = case.model('moe_mixed', { dtype = 'f64' })
         tide.model.load_adapter(again, dir .. '/a')
         assert.is_true(far(again(n.ids, o), model(n.ids, o)) <= 1e-9)
         tide.model.save(model, dir .. '/merged')
         assert.is_true(far(tide.model.load(dir .. '/merged')(n.ids, o), model(n.ids, o)) <= 1e-6)
      end)
   end)

   it('refuses configurations of other models', function()
      local function message(change, name)
         name = name or 'mixed'
         local config = case.config(name)
         change(config, config.text_config, config.vision_config)
         return raised(tide.model[case.family_of(name)], config, { device = 'null' }).message
      end
      for words, change in each {
         ["image_token_id': expected an id below vocab_size (41), got 41"] = function(c)
            c.image_token_id = 41
         end,
         ["deepstack_visual_indexes': expected an empty list: this family takes features of the "
            .. 'last block alone'] = function(_, _, v) v.deepstack_visual_indexes = { 0 } end,
         ["vision_config.model_type': expected one of"] = function(_, _, v)
            v.model_type = 'qwen3_vl'
         end,
         ["text_config.model_type': expected one of"] = function(_, t)
            t.model_type = 'qwen3_5_moe_text'
         end,
         ["field 'rope_scaling.mrope_interleaved' is false; only true is supported"] =
            function(_, t) t.rope_parameters.mrope_interleaved = false end,
         ["field 'language_model_only' is true"] = function(c) c.language_model_only = true end,
         ["field 'attn_output_gate' is false"] = function(_, t) t.attn_output_gate = false end,
         ['a Qwen3.5 attends to all tokens before'] = function(_, t) t.sliding_window = 4 end,
         ["field 'model_type' is \"qwen3_5_moe\"; only \"qwen3_5\" is supported"] =
            function(c) c.model_type = 'qwen3_5_moe' end,
      } do
         assert.matches(words, message(change), 1, true)
      end
      assert.matches('each layer has experts', message(function(_, t) t.intermediate_size = 8 end,
         'moe_mixed'), 1, true)
   end)
end)
