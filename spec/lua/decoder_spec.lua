-- Decoder families against the transformers package (numbers of spec/golden/decoders.py).

local tide = require 'tide'
local each = require 'tide.util.each'
local family = require 'tide.model.family'
local refused = require 'spec.support.refused'
local case_ = require 'spec.lua.decoder_case'

local fill, inputs, near = case_.fill, case_.inputs, case_.near
local golden = dofile 'spec/golden/decoders.lua'

local base = {
   vocab_size = case_.V, hidden_size = 24, intermediate_size = 20, num_hidden_layers = 3,
   num_attention_heads = 6, num_key_value_heads = 2, head_dim = 6, rms_norm_eps = 1e-5,
   max_position_embeddings = 64,
}

local function with(changes)
   local c = {}
   for k, v in each(base) do c[k] = v end
   for k, v in each(changes or {}) do c[k] = v end
   return c
end

local function check(name, case, dtype, tolerance)
   local model = fill(tide.model[name](with(case.config), { dtype = dtype }),
      name == 'gemma3' and 0 or 1)
   local ids, labels = inputs()
   local logits = model(ids)
   near(case.logits[1], logits:at(1, 1, 1), tolerance, 'logit')
   near(case.logits[2], logits:at(2, 9, 23), tolerance, 'logit')
   near(case.logits[3], logits:at(1, 5, 12), tolerance, 'logit')
   local loss = model:loss(ids, labels)
   near(case.loss, loss:item(), tolerance, 'loss')
   loss:backward()
   local norms, square = {}, 0
   for _, e in ipairs(model:named_parameters()) do
      norms[e.name] = e.param.grad:norm():item()
      square = square + norms[e.name] ^ 2
   end
   near(case.norm, math.sqrt(square), tolerance, 'norm of all gradients')
   for parameter, norm in each(case.grads) do
      near(norm, norms[parameter], tolerance, parameter)
   end
end

describe('model families', function()
   for name, case in each(golden) do
      it(name .. ': logits, loss and gradients are those of transformers', function()
         check(name, case, 'f64', 2e-6)
         check(name, case, 'f32', 5e-5)
      end)
   end

   it('refuse what they cannot compute, naming the field', function()
      local function bad(name, pattern, changes)
         local ok, e = pcall(tide.model[name], with(changes), { device = 'null' })
         assert.is_false(ok)
         assert.equal('E_ARG', e.code)
         assert.matches(pattern, tostring(e), 1, true)
         assert.matches('model.' .. name, tostring(e), 1, true)
      end
      bad('phi3', "'resid_pdrop'", { resid_pdrop = 0.1 })
      bad('llama', "'partial_rotary_factor'", { partial_rotary_factor = 0.75 })
      bad('phi3', 'head_dim (2) times partial_rotary_factor (0.5) is 1 channels',
         { head_dim = 2, partial_rotary_factor = 0.5 })
      bad('gemma3', "'final_logit_softcapping'", { final_logit_softcapping = 30 })
      bad('gemma3', "'hidden_activation'", { hidden_activation = 'silu' })
      bad('qwen3', "did you mean 'head_dim'", { head_dm = 4 })
      bad('llama', "unknown field 'query_pre_attn_scalar'", { query_pre_attn_scalar = 4 })
      bad('llama', 'tide.model.mistral is the same with a window', { sliding_window = 3 })
      bad('phi3', "'original_max_position_embeddings'", { original_max_position_embeddings = '4k' })
   end)

   it('check every field of a file, also those that compute nothing', function()
      local function bad(name, field, value, with_more)
         local changes = { [field] = value }
         for k, v in each(with_more or {}) do changes[k] = v end
         local ok, e = pcall(tide.model[name], with(changes), { device = 'null' })
         assert.is_false(ok, name .. ' takes ' .. field .. ' = ' .. tostring(value))
         assert.equal('E_ARG', e.code)
         assert.matches(("field '%s"):format(field), tostring(e), 1, true)
      end
      local windows = { use_sliding_window = true, sliding_window = 3 }
      for _, name in ipairs { 'llama', 'mistral', 'qwen2', 'qwen3', 'phi3', 'gemma3' } do
         for field, values in each { attention_dropout = { 1, -0.1, '0' }, model_type = { 'gpt2',
               3 }, torch_dtype = { 'float99', 16 }, dtype = { 'int8' },
               pretraining_tp = { 0, '1' },
               architectures = { 'LlamaForCausalLM', { 3 }, { 'GPT2', 'Mamba2ForCausalLM' } },
               use_cache = { 1 }, eos_token_id = { 'two', { 1, 'x' } }, hidden_act = { 'gelu' },
               sliding_window = { 0, '3' }, rope_scaling = { 3, { type = 'ntk' } } } do
            for _, v in ipairs(values) do
               if not (name == 'gemma3' and field == 'hidden_act') then bad(name, field, v) end
            end
         end
      end
      for _, name in ipairs { 'qwen2', 'qwen3', 'gemma3' } do
         for _, list in ipairs { 'full_attention', {}, { 'full_attention' }, { 'full_attention',
            'full', 'full_attention' }, { 'full_attention', 'full_attention', 1 } } do
            bad(name, 'layer_types', list, name ~= 'gemma3' and windows or nil)
         end
      end
      for _, name in ipairs { 'qwen2', 'qwen3' } do
         bad(name, 'use_sliding_window', 'no')
         bad(name, 'sliding_window', tide.json.null, { use_sliding_window = true })
         bad(name, 'max_window_layers', '2', windows)
         bad(name, 'max_window_layers', -1)
         bad(name, 'layer_types[2]', nil, { layer_types = { 'full_attention', 'sliding_attention',
            'full_attention' }, sliding_window = 3 })
      end
      bad('gemma3', 'sliding_window', tide.json.null)
      for _, v in ipairs { true, false, 1 } do bad('qwen2', 'attention_bias', v) end
      bad('qwen2', 'attention_bias', true, { model_type = 'qwen2' })
   end)

   -- transformers makes no such biases in these families, so it would drop those of a folder
   it('refuse biases that their family does not have', function()
      for name, fields in each { mistral = 'attention_bias mlp_bias', qwen2 = 'mlp_bias',
         ministral = 'attention_bias mlp_bias', phi3 = 'attention_bias mlp_bias',
         qwen3 = 'mlp_bias', gemma2 = 'mlp_bias', gemma3 = 'mlp_bias', olmo2 = 'mlp_bias',
         qwen2_5_vl = 'mlp_bias', qwen3_vl = 'mlp_bias', gemma3_vl = 'mlp_bias' } do
         for field in fields:gmatch '%S+' do
            refused('E_ARG', { ("field '%s'"):format(field), 'no biases' }, tide.model[name],
               with { [field] = true }, { device = 'null' })
            if not name:find '_vl$' then
               local file = family.published(name)
               assert.has_no_error(function()
                  tide.model[name](with { [field] = false, model_type = file.model_type },
                     { device = 'null' })
               end)
            end
         end
      end
   end)

   it('take what published files say of themselves', function()
      for name, arch in each { llama = 'LlamaForCausalLM', gemma3 = 'Gemma3ForCausalLM' } do
         local model = tide.model[name](with { architectures = { arch }, dtype = 'bfloat16',
            model_type = name == 'gemma3' and 'gemma3_text' or name, torch_dtype = 'float16',
            pretraining_tp = 1, use_cache = true, eos_token_id = { 1, 2 }, bos_token_id = 1,
            pad_token_id = tide.json.null, transformers_version = '4.4', attention_dropout = 0.0 },
            { device = 'null' })
         assert.equal('f32', model:parameters()[1].dtype)   -- a file's dtype is that of its tensors
      end
      assert.has_no_error(function()
         tide.model.llama(with { architectures = { 'LlamaForSequenceClassification' } },
            { device = 'null' })
      end)
   end)

   it('have windows where the pattern, the number of layers or the list says', function()
      local function windows(name, changes)
         local list = {}
         local model = tide.model[name](with(changes), { device = 'null' })
         for i = 1, 3 do list[i] = model.model.layers:at(i).self_attn.window ~= nil end
         return list
      end
      local types = { 'sliding_attention', 'full_attention', 'sliding_attention' }
      assert.same({ true, false, true }, windows('gemma3', { sliding_window_pattern = 2 }))
      assert.same({ true, true, false }, windows('gemma3', { sliding_window_pattern = 3 }))
      assert.same({ true, true, true }, windows('gemma3', {}))            -- every sixth is global
      assert.same({ true, false, true }, windows('gemma3', { layer_types = types,
         sliding_window_pattern = 1 }))
      for _, name in ipairs { 'qwen2', 'qwen3' } do
         local on = { use_sliding_window = true, sliding_window = 3, max_window_layers = 1 }
         assert.same({ false, true, true }, windows(name, on))
         on.layer_types = types
         assert.same({ true, false, true }, windows(name, on))
         assert.same({ false, false, false }, windows(name, { sliding_window = 3 }))
      end
      assert.same({ true, true, true }, windows('mistral', { sliding_window = 3 }))
   end)
end)
