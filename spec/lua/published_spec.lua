-- Published configurations of mamba2 and nemotron_h: read in the dialects of transformers 4 and 5,
-- refused as a whole where something does not fit, written so that every reader understands them.

local raised = require 'spec.support.raised'
local tide = require 'tide'
local family = require 'tide.model.family'
local each = require 'tide.util.each'
local refused = require 'spec.support.refused'
local time_step = require 'tide.model.time_step'
local tmp = require 'spec.support.tmp'

-- What transformers 5.23 saves of a Mamba2Config, in its own order.
local mamba2_text = [[{
  "architectures": ["Mamba2ForCausalLM"], "bos_token_id": 0, "chunk_size": 256, "conv_kernel": 4,
  "dtype": "float32", "eos_token_id": 2, "expand": 2, "head_dim": 8, "hidden_act": "silu",
  "hidden_size": 16, "initializer_range": 0.1, "layer_norm_epsilon": 1e-05,
  "model_type": "mamba2", "n_groups": 2, "num_heads": 4, "num_hidden_layers": 2,
  "pad_token_id": 1, "rescale_prenorm_residual": false, "residual_in_fp32": true,
  "state_size": 8, "tie_word_embeddings": false, "time_step_floor": 0.0001,
  "time_step_limit": [0.0, {"__float__": "Infinity"}], "time_step_max": 0.1,
  "time_step_min": 0.001, "time_step_rank": 1, "transformers_version": "5.23.0",
  "use_bias": false, "use_cache": true, "use_conv_bias": true, "vocab_size": 29
}]]

-- The same of a NemotronHConfig.
local nemotron_text = [[{
  "architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4, "dtype": "float32", "eos_token_id": 2,
  "expand": 2, "head_dim": 8, "hidden_dropout": 0.0, "hidden_size": 16,
  "initializer_range": 0.02, "intermediate_size": 24, "layer_norm_epsilon": 1e-05,
  "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
  "mamba_head_dim": 8, "mamba_hidden_act": "silu", "mamba_num_heads": 4,
  "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32", "max_position_embeddings": 4096,
  "mlp_bias": false, "mlp_hidden_act": "relu2", "model_type": "nemotron_h",
  "moe_intermediate_size": 7688, "moe_latent_size": null,
  "moe_shared_expert_intermediate_size": 7688, "moe_shared_expert_overlap": true,
  "mtp_layers_block_type": ["full_attention", "moe"], "n_group": 1, "n_groups": 2,
  "n_routed_experts": 8, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2,
  "num_logits_to_keep": 1, "num_nextn_predict_layers": 0, "output_router_logits": false,
  "pad_token_id": 0, "rescale_prenorm_residual": true, "residual_in_fp32": false,
  "routed_scaling_factor": 1.0, "sliding_window": null, "ssm_state_size": 8,
  "tie_word_embeddings": false, "time_step_floor": 0.0001,
  "time_step_limit": [0.0, {"__float__": "Infinity"}], "time_step_max": 0.1,
  "time_step_min": 0.001, "topk_group": 1, "transformers_version": "5.23.0", "use_bias": false,
  "use_cache": true, "use_conv_bias": true, "use_mamba_kernels": true, "vocab_size": 29
}]]

local function decode(text) return tide.json.decode(text, { nonfinite = true }) end

local function make(kind, config) return tide.model[kind](config, { device = 'null' }) end

-- The complete configuration that text means, after changes of fields ('none': taken out).
local function read(kind, text, changes)
   local c = decode(text)
   for k, v in each(changes or {}) do
      if v == 'none' then c[k] = nil else c[k] = v end
   end
   return make(kind, c).config
end

describe('a published configuration', function()
   it('of mamba2 is read in every form of its infinite limit', function()
      local want = read('mamba2', mamba2_text)
      assert.equal(4, want.num_heads)
      assert.is_false(want.time_step_limit)
      local four = mamba2_text:gsub('{"__float__": "Infinity"}', 'Infinity')
      assert.same(want, read('mamba2', four))
      -- decoded as strict JSON, the tag is still a table
      assert.same(want, make('mamba2', tide.json.decode(mamba2_text)).config)
      assert.same(want, read('mamba2', mamba2_text, { norm_before_gate = true, rms_norm = true,
         hidden_act = 'silu', max_position_embeddings = 'none' }))
      assert.same({ 0.01, math.huge },
         read('mamba2', (mamba2_text:gsub('%[0%.0,', '[0.01,'))).time_step_limit)
   end)

   it('of nemotron_h is read by pattern or list of kinds', function()
      local want = read('hybrid', nemotron_text)
      assert.equal('M-*M', want.hybrid_override_pattern)
      assert.same(want, read('hybrid', nemotron_text, { layers_block_type = 'none',
         hybrid_override_pattern = 'M-*M', num_hidden_layers = 4 }))
      assert.same(want, read('hybrid', nemotron_text, { layers_block_type = 'none',
         layer_types = { 'mamba', 'mlp', 'attention', 'mamba' } }))
      assert.same(want, read('hybrid', nemotron_text, { hybrid_override_pattern = 'M-*M' }))
      assert.same(want, read('hybrid', nemotron_text, { head_dim = 'none', attention_head_dim = 8,
         n_groups = 'none', mamba_n_groups = 2, time_step_limit = 'none',
         mamba_dt_limit = { 0, math.huge }, rms_norm_eps = 1e-5 }))
   end)

   it('of nemotron_h has no rotary positions whatever it says of them', function()
      local c = read('hybrid', nemotron_text, { rope_theta = 10000, partial_rotary_factor = 1 })
      assert.is_false(c.rope_theta)
      local own = { vocab_size = 9, hidden_size = 16, hybrid_override_pattern = '*',
         num_attention_heads = 2, rope_theta = 10000 }
      assert.equal(10000, make('hybrid', own).config.rope_theta)
   end)

   it('is refused with all that would change the numbers, in one message', function()
      local c = decode(nemotron_text)
      c.attention_dropout, c.sliding_window, c.mamba_hidden_act = 0.1, 64, 'gelu'
      c.mamba_proj_bias, c.hidden_sise = true, 3
      c.rms_norm_eps, c.layers_block_type[2] = 1e-6, 'conv'
      local want = "field 'attention_dropout' is 0.1; only 0 is supported; "
         .. 'field \'layers_block_type[2]\' is "conv"; supported kinds are '
         .. 'linear_attention (mamba), full_attention (attention), mlp and moe; '
         .. 'field \'mamba_hidden_act\' is "gelu"; only "silu" is supported; '
         .. "field 'mamba_proj_bias' is true, which is not supported; "
         .. "field 'rms_norm_eps' is 1e-06, but 'layer_norm_epsilon', which means the same, is "
         .. "1e-05; field 'sliding_window' is 64, which is not supported; "
         .. "unknown field 'hidden_sise'; did you mean 'hidden_size'?"
      refused('E_ARG', 'model.hybrid: ' .. want, make, 'hybrid', c)
   end)

   it('is refused where two fields say different things', function()
      local c = decode(nemotron_text)
      c.hybrid_override_pattern = 'MM'
      refused('E_ARG', 'is "MM", \'layers_block_type\' says "M-*M"', make,
         'hybrid', c)
      c = decode(mamba2_text)
      for _, limit in ipairs { { 0.1, 0.01 }, { -1, 2 }, { 0, 1, 2 }, { 'a' } } do
         c.time_step_limit = limit
         refused('E_ARG', "'time_step_limit'", make, 'mamba2', c)
      end
      refused('E_ARG', 'field \'model_type\' is "mamba2"; only "nemotron_h" is supported', make,
         'hybrid', { vocab_size = 9, hidden_size = 16, hybrid_override_pattern = 'M',
            mamba_head_dim = 8, model_type = 'mamba2' })
      refused('E_ARG', 'field \'model_type\' is "llama"; only "mamba2" is supported', make,
         'mamba2', { vocab_size = 9, hidden_size = 16, num_hidden_layers = 1, head_dim = 8,
            model_type = 'llama' })
      c.time_step_limit, c.rms_norm = nil, false
      refused('E_ARG', "'rms_norm'", make, 'mamba2', c)
      refused('E_ARG', "'-' (MLP) and 'E' (experts)", make, 'hybrid', { vocab_size = 9,
         hidden_size = 16, hybrid_override_pattern = 'MQ', mamba_head_dim = 8 })
   end)
end)

-- The config.json of a model: its text and its fields.
local function file_of(kind, config)
   local model = tide.model[kind](config, { device = 'null' })
   local text = family.config_file({ family = kind, config = family.config(model) }, 'f32')
   return text, decode(text), model
end

describe('config.json', function()
   local small = { vocab_size = 29, hidden_size = 16, mamba_head_dim = 8, ssm_state_size = 8,
      num_attention_heads = 2 }

   local function hybrid(changes)
      local c = { hybrid_override_pattern = 'M-*' }
      for k, v in each(small) do c[k] = v end
      for k, v in each(changes or {}) do c[k] = v end
      return c
   end

   it('has values that readers with strict types take', function()
      for kind, config in each { hybrid = hybrid(), mamba2 = { vocab_size = 29, hidden_size = 16,
         num_hidden_layers = 1, head_dim = 8, initializer_range = 1, time_step_max = 1 } } do
         local text, c, model = file_of(kind, config)
         assert.same({ 0, math.huge }, c.time_step_limit)
         assert.truthy(text:find('"time_step_limit":[0.0,Infinity]', 1, true), text)
         assert.equal('number', type(c.chunk_size))
         assert.equal(2, c.expand)
         for _, name in ipairs { 'initializer_range', 'layer_norm_epsilon', 'time_step_max',
            'time_step_floor' } do
            assert.truthy(text:match(('"%s":[%%d.e-]+'):format(name)):find '[.e]', name)
         end
         for k, v in each(c) do       -- false only where a boolean is meant
            assert.is_true(v ~= false or type(model.config[k]) == 'boolean' and k ~= 'rope_theta'
               and k ~= 'chunk_size' and k ~= 'time_step_limit', k)
         end
         local again = make(kind, c).config
         for _, name in ipairs { 'time_step_limit', 'num_heads', 'mamba_num_heads' } do
            assert.same(model.config[name], again[name])
         end
      end
   end)

   it('of nemotron_h has a whole number for expand, of any number of heads', function()
      for heads, expand in each { [3] = 1, [5] = 2, [1] = 1 } do
         local _, c = file_of('hybrid', hybrid { mamba_num_heads = heads })
         assert.equal(expand, c.expand)
         assert.equal(heads, make('hybrid', c).config.mamba_num_heads)
      end
   end)

   it('of bamba says how much of a head turns where transformers reads it', function()
      local config = { vocab_size = 29, hidden_size = 16, num_hidden_layers = 1, rope_theta = 100,
         num_attention_heads = 2, mamba_n_heads = 4, attn_layer_indices = { 0 } }
      for _, turned in ipairs { 0.5, 1 } do
         config.partial_rotary_factor = turned
         local _, c = file_of('bamba', config)
         assert.same({ rope_type = 'default', rope_theta = 100, partial_rotary_factor = turned },
            c.rope_parameters)
         assert.is_nil(c.partial_rotary_factor)
         assert.equal(turned, make('bamba', c).config.partial_rotary_factor)
         c.rope_parameters = nil
         assert.equal(0.5, make('bamba', c).config.partial_rotary_factor)
         c.partial_rotary_factor = 1
         assert.matches("field 'partial_rotary_factor' (or attn_rotary_emb) says 1, and "
            .. 'transformers turns 0.5 of each head', raised(make, 'bamba', c).message, 1, true)
         c.rope_parameters = { partial_rotary_factor = 1 }
         assert.equal(1, make('bamba', c).config.partial_rotary_factor)
      end
   end)

   it('of nemotron_h makes transformers limit steps as here', function()
      local _, c = file_of('hybrid', hybrid())
      assert.equal(0, c.time_step_min)
      _, c = file_of('hybrid', hybrid { time_step_limit = { 0.02 }, mlp_hidden_act = 'gelu_tanh' })
      assert.equal(0.02, c.time_step_min)
      assert.equal('gelu_pytorch_tanh', c.mlp_hidden_act)
      assert.same({ 0.02, math.huge }, c.time_step_limit)
      assert.equal('gelu_tanh', make('hybrid', c).config.mlp_hidden_act)
      -- a least step above the range of initial ones: the file is read back
      _, c = file_of('hybrid', hybrid { time_step_limit = { 0.3 } })
      assert.same({ 0.3, math.huge }, make('hybrid', c).config.time_step_limit)
   end)

   it('is of another model type where nemotron_h would compute something else', function()
      for _, changes in ipairs { { rope_theta = 100 }, { attention_bias = true },
         { mlp_hidden_act = 'swiglu' }, { time_step_limit = { 0, 0.1 } },
         { tie_word_embeddings = true } } do
         local _, c, model = file_of('hybrid', hybrid(changes))
         assert.equal('tide_hybrid', c.model_type)
         assert.equal('hybrid', family.saved('spec', { config = c }))
         c.architectures = nil
         assert.equal('hybrid', family.saved('spec', { config = c }))
         local again = make('hybrid', c).config
         for k in each(changes) do assert.same(model.config[k], again[k]) end
      end
   end)
end)

describe('the dtype of config.json', function()
   it('is that of most numbers, not of one parameter', function()
      tmp.with(function(dir)
         local model = tide.model.mamba2({ vocab_size = 29, hidden_size = 16, head_dim = 8,
            num_hidden_layers = 1, state_size = 8 }, { dtype = 'bf16', recurrence_dtype = 'f32' })
         local folder = tide.train.checkpoint.save(dir, tide.train.state.collect { model = model,
            optim = tide.optim.SGD(model, { lr = 1 }), step = 1 })
         local function dtype_in(where)
            return decode(tide.util.fs.read('spec', where .. '/config.json')).torch_dtype
         end
         assert.equal('bfloat16', dtype_in(folder))
         tide.train.checkpoint.consolidate(dir, dir .. '/whole')
         assert.equal('bfloat16', dtype_in(dir .. '/whole'))
         tide.train.checkpoint.consolidate(dir, dir .. '/single', { dtype = 'f32' })
         assert.equal('float32', dtype_in(dir .. '/single'))
         refused('E_ARG', { "'to'", 'is a checkpoint, which would be damaged' },
            tide.train.checkpoint.consolidate, dir, folder)
         tide.train.checkpoint.load(folder)
         tide.util.fs.write('spec', dir .. '/single/model.safetensors.index.json', '{}')
         refused('E_ARG', 'holds a model in several files', tide.train.checkpoint.consolidate, dir,
            dir .. '/single')
      end)
   end)
end)

describe('a model whose steps have no upper limit', function()
   for kind, config in each {
      hybrid = { vocab_size = 29, hidden_size = 16, hybrid_override_pattern = 'M-',
         mamba_head_dim = 8, ssm_state_size = 8, time_step_limit = { 0.002, math.huge } },
      mamba2 = { vocab_size = 29, hidden_size = 16, num_hidden_layers = 1, head_dim = 8,
         state_size = 8, time_step_limit = { 0.002, math.huge } },
   } do
      it('is saved, goes on and is consolidated: ' .. kind, function()
         tmp.with(function(dir)
            local function run_of(model)
               return { model = model, optim = tide.optim.SGD(model, { lr = 1 }), step = 1 }
            end
            local model = tide.model[kind](config, { seed = 3 })
            local run = run_of(model)
            run.val_loss = math.huge
            tide.train.checkpoint.save(dir, tide.train.state.collect(run))
            local saved = tide.train.checkpoint.load(dir)
            assert.same({ 0.002, math.huge }, saved.plain.config.time_step_limit)
            assert.equal(math.huge, saved.plain.val_loss)
            tide.train.state.restore(run_of(tide.model[kind](config, { seed = 4 })), saved)
            local to = dir .. '/whole'
            tide.train.checkpoint.consolidate(dir, to)
            local c = decode(tide.util.fs.read('spec', to .. '/config.json'))
            assert.same({ 0.002, math.huge }, c.time_step_limit)
            assert.same({ 0.002, math.huge }, make(kind, c).config.time_step_limit)
         end)
      end)
   end
end)

describe('time_step.range', function()
   it('is a range also where a file has no least step', function()
      assert.same({ 0.001, 0.1 }, time_step.range { time_step_min = 0.001,
         time_step_max = 0.1, time_step_floor = 1e-4 })
      assert.same({ 1e-4, 0.1 }, time_step.range { time_step_min = 0, time_step_max = 0.1,
         time_step_floor = 1e-4 })
      assert.same({ 1e-4, 0.1 }, time_step.range { time_step_min = 0, time_step_max = 0.1,
         time_step_floor = 0 })
   end)
end)
