-- Decoder families against the transformers package (numbers of spec/golden/decoders.py).

local tide = require 'tide'
local each = require 'tide.util.each'
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
      bad('phi3', "'partial_rotary_factor'", { partial_rotary_factor = 0.75 })
      bad('gemma3', "'final_logit_softcapping'", { final_logit_softcapping = 30 })
      bad('gemma3', "'hidden_activation'", { hidden_activation = 'silu' })
      bad('qwen3', "did you mean 'head_dim'", { head_dm = 4 })
      bad('llama', "unknown field 'query_pre_attn_scalar'", { query_pre_attn_scalar = 4 })
   end)
end)
