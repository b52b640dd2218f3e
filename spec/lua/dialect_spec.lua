-- Configurations in the words of versions 4 and 5 of transformers mean the same model; what would
-- change the numbers is refused, all of a file in one message; what changes nothing is listed.

local tide = require 'tide'
local each = require 'tide.util.each'
local refused = require 'spec.support.refused'

local base = { vocab_size = 23, hidden_size = 24, intermediate_size = 20, num_hidden_layers = 3,
   num_attention_heads = 6, num_key_value_heads = 2, head_dim = 4, max_position_embeddings = 64 }

local function with(changes)
   local c = {}
   for k, v in each(base) do c[k] = v end
   for k, v in each(changes or {}) do c[k] = v end
   return c
end

local function config(name, changes)
   return tide.model[name](with(changes), { device = 'null' }).config
end

local null = tide.json.null

describe('rope_parameters', function()
   it('is rope_theta and rope_scaling', function()
      assert.same(config('llama', { rope_theta = 500 }),
         config('llama', { rope_parameters = { rope_type = 'default', rope_theta = 500 } }))
      local s = { rope_type = 'llama3', factor = 8, low_freq_factor = 1, high_freq_factor = 4,
         original_max_position_embeddings = 32 }
      local p = { rope_theta = 500 }
      for k, v in each(s) do p[k] = v end
      assert.same(config('llama', { rope_theta = 500, rope_scaling = s }),
         config('llama', { rope_parameters = p }))
      assert.same(config('llama'), config('llama', { rope_parameters = null,
         rope_scaling = null }))
   end)

   it('by kind of layer is the two bases of Gemma-3', function()
      local new = config('gemma3', { _sliding_window_pattern = 2, rope_parameters = {
         full_attention = { rope_type = 'linear', factor = 8, rope_theta = 1e5 },
         sliding_attention = { rope_type = 'default', rope_theta = 500 } } })
      assert.same(config('gemma3', { sliding_window_pattern = 2, rope_theta = 1e5,
         rope_local_base_freq = 500, rope_scaling = { rope_type = 'linear', factor = 8 } }), new)
      refused('E_ARG', 'rope_parameters.sliding_attention.rope_type', config, 'gemma3',
         { rope_parameters = { sliding_attention = { rope_type = 'linear', factor = 2 } } })
   end)

   it('by kind of layer is refused where it says two things of one base', function()
      local one = { rope_type = 'default', rope_theta = 500 }
      assert.equal(500, config('qwen3', { rope_parameters = { full_attention = one,
         sliding_attention = one } }).rope_theta)
      refused('E_ARG', 'different things', config, 'qwen3', { rope_parameters = {
         full_attention = one, sliding_attention = { rope_theta = 100 } } })
   end)

   it('takes what it leaves out from other fields', function()
      local lists = { short_factor = { 1, 1 }, long_factor = { 2, 3 } }
      local function phi(more)
         local s = { type = 'longrope' }
         for k, v in each(lists) do s[k] = v end
         for k, v in each(more or {}) do s[k] = v end
         return config('phi3', { rope_scaling = s, original_max_position_embeddings = 16 })
      end
      assert.equal(4, phi().rope_scaling.factor)
      assert.equal(16, phi().rope_scaling.original_max_position_embeddings)
      assert.same(phi().rope_scaling.factor, phi({ type = 'su' }).rope_scaling.factor)
      assert.equal(64, config('llama', { rope_scaling = { rope_type = 'yarn', factor = 2 } })
         .rope_scaling.original_max_position_embeddings)
      assert.equal(0.5, config('phi3', { rope_parameters = { rope_theta = 100,
         rope_type = 'default', partial_rotary_factor = 0.5 } }).partial_rotary_factor)
   end)

   it('and rope_theta that differ are refused', function()
      refused('E_ARG', "field 'rope_theta' is 3, 'rope_parameters' says 4", config, 'llama',
         { rope_theta = 3, rope_parameters = { rope_theta = 4 } })
   end)
end)

describe('a configuration', function()
   it('is refused with every field that changes the numbers, in one message', function()
      refused('E_ARG', { "field 'hidden_act'", "field 'rms_norm_eps'", "unknown field 'moe_dim'",
         "field 'quantization_config'", "field 'is_decoder' is true, which is not supported",
         "'rope_scaling.rope_type'" }, config, 'llama', { hidden_act = 'gelu', rms_norm_eps = 'a',
         moe_dim = 3, quantization_config = { bits = 4 }, is_decoder = true,
         rope_scaling = { rope_type = 'ntk' } })
   end)

   it('is read with what published files have besides', function()
      for name, changes in each { llama = { is_llama_config = true, rope_interleaved = false,
            ['transformers.js_config'] = { dtype = 'q4' }, pretraining_tp = 2 },
         qwen2 = { use_mrope = false, max_window_layers = 21, sliding_window = 32768 },
         phi3 = { full_attn_mod = 1, interpolate_factor = 1, lm_head_bias = false,
            embd_pdrop = 0, auto_map = { AutoConfig = 'a.b' }, sliding_window = 2047 },
         gemma2 = { cache_implementation = 'hybrid', hidden_act = 'gelu_pytorch_tanh' },
         smollm3 = { max_window_layers = 28, use_sliding_window = false } } do
         assert.equal(24, config(name, changes).hidden_size)
      end
      refused('E_ARG', "'use_mrope' is true", config, 'qwen2', { use_mrope = true })
      local bamba = tide.model.bamba({ vocab_size = 9, hidden_size = 32, num_hidden_layers = 2,
         num_attention_heads = 2, attn_rotary_emb = 4, attn_layer_indices = { 1 },
         mamba_n_heads = 8, mamba_d_head = 'auto' }, { device = 'null' }).config
      assert.equal(0.25, bamba.partial_rotary_factor)
      assert.equal(8, bamba.mamba_d_head)
      for name, list in pairs { layers_block_type = { 'mamba', 'attention', 'mamba' },
         layer_types = { 'mamba', 'full_attention', 'mamba' } } do
         assert.same({ 1 }, tide.model.bamba({ vocab_size = 9, hidden_size = 32,
            num_hidden_layers = 3, num_attention_heads = 2, mamba_n_heads = 8, [name] = list },
            { device = 'null' }).config.attn_layer_indices)
      end
   end)

   it('of gated delta nets says by an interval or a list where attention is', function()
      local kinds = { 'linear_attention', 'full_attention', 'linear_attention' }
      local by_list = config('qwen3_next', { head_dim = 8, layer_types = kinds })
      assert.same(kinds, by_list.layer_types)
      assert.same(by_list, config('qwen3_next', { head_dim = 8, full_attention_interval = 2,
         mlp_only_layers = null, rope_scaling = null, use_sliding_window = false }))
      local of_file = { head_dim = 8, layer_types = kinds, attn_output_gate = true,
         mlp_only_layers = {}, mtp_num_hidden_layers = 1, mtp_use_dedicated_embeddings = false,
         mamba_ssm_dtype = 'float32', full_attention_interval = 4 }
      assert.same(config('qwen3_5', { head_dim = 8, layer_types = kinds }),
         config('qwen3_5', of_file))
      of_file.attn_output_gate = false
      refused('E_ARG', "'attn_output_gate' is false", config, 'qwen3_5', of_file)
      refused('E_ARG', "'scale_attn_weights' is false; only true is supported", config, 'gpt2',
         { scale_attn_weights = false })
      refused('E_ARG', 'layer_types[2]', config, 'qwen3_next', { head_dim = 8,
         layer_types = { 'linear_attention', 'sliding_attention', 'full_attention' } })
      refused('E_ARG', 'linear_num_value_heads (3) must be a multiple of', config, 'qwen3_next',
         { head_dim = 8, linear_num_key_heads = 2, linear_num_value_heads = 3 })
      refused('E_ARG', 'a Qwen3-Next attends to all tokens before', config, 'qwen3_next',
         { sliding_window = 4 })
   end)

   it('lists its fields that change nothing, once', function()
      local model = tide.model.llama(with { use_cache = true, torch_dtype = 'bfloat16',
         model_type = 'llama', architectures = { 'LlamaForCausalLM' }, eos_token_id = { 1, 2 },
         _name_or_path = 'x' }, { device = 'null' })
      assert.same({ '_name_or_path', 'torch_dtype', 'use_cache' }, model.unused_fields)
      assert.same({ 1, 2 }, model.config.eos_token_id)
   end)
end)
