-- GPT-OSS decoder: attention with sinks (a learnt score of each head that no value has), a window
-- in each second layer, YaRN, experts with biases and clamped gates in each layer.
--
-- Files hold each projection of all experts of a layer in one tensor, transposed, gate and up in
-- turns. Files of OpenAI have the weights of experts in MXFP4, which are read as plain numbers (see
-- pretrained/mxfp4.lua). Written files are plain.

local class = require 'tide.class'
local err = require 'tide.util.err'
local experts = require 'tide.model.experts'
local Llama = require 'tide.model.llama'
local mixtures = require 'tide.nn.mixtures'
local published = require 'tide.model.published'
local stored = require 'tide.model.stored'

local op = 'model.gpt_oss'

local GptOss = class('GptOss', Llama)

local fields = published._rows(experts.fields('num_local_experts', 128, 4), {
   { 'swiglu_limit', 7, 'number > 0', float = true },
   { 'swiglu_alpha', 1.702, 'number > 0', float = true }, { 'layer_types', published.optional },
})

-- Returns the scaling of positions of a file without that field.
local function usual_scaling()
   return { rope_type = 'yarn', factor = 32, beta_fast = 32, beta_slow = 1, truncate = false,
      original_max_position_embeddings = 4096 }
end

-- Returns whether a field of a configuration is there, and not null.
local function given(v) return v ~= nil and v ~= require('tide').json.null end

-- Adds the scaling of positions: a file without one has the usual one.
local function translate(f, _, config)
   if f.rope_scaling ~= nil then return end
   f.rope_scaling = given(config.rope_parameters) and { rope_type = 'default' } or usual_scaling()
end

-- Returns whether layer i, from 1, has a window: the first, third ..
local function window(_, i) return i % 2 == 1 end

local function complete(c)
   for i = 1, c.num_hidden_layers do
      local has = c.layer_types and c.layer_types[i] == 'sliding_attention'
         or not c.layer_types and window(c, i)
      err.arg_if(has and c.sliding_window == nil, op, 'sliding_window',
         ('tokens that layer %d sees'):format(i - 1), nil)
   end
end

GptOss.family = {
   op = op, fields = fields,
   alias = { num_experts = 'num_local_experts', experts_per_token = 'num_experts_per_tok' },
   defaults = { rms_norm_eps = 1e-5, rope_theta = 150000, max_position_embeddings = 131072,
      sliding_window = 128, attention_bias = true, head_dim = 64 },
   without = { mlp_bias = { why = 'the experts of a GPT-OSS have biases' } },
   only = experts.only, where = experts.fit 'num_local_experts',
   free = experts.free .. ' initial_context_length',
   peft_experts = { router = 'router', in_turns = true, transposed = true },
   packing = { 'mxfp4' }, translate = translate, complete = complete, window = window,
   layer = function(_, _, mixer) mixer.sinks = true end,
   experts = function(c)
      return { hidden = c.intermediate_size, experts = c.num_local_experts, bias = true,
         topk = c.num_experts_per_tok, norm_topk = true, limit = c.swiglu_limit,
         alpha = c.swiglu_alpha }
   end,
}

-- Tensors of a file, and the parameters that lie in each; how: of experts.joined.
local tensors = {
   { 'router.weight', { 'router' } }, { 'router.bias', { 'logit_bias' } },
   { 'experts.gate_up_proj', { 'gate_proj', 'up_proj' },
      how = { alternate = true, transposed = true } },
   { 'experts.gate_up_proj_bias', { 'gate_proj_bias', 'up_proj_bias' },
      how = { alternate = true } },
   { 'experts.down_proj', { 'down_proj' }, how = { transposed = true } },
   { 'experts.down_proj_bias', { 'down_proj_bias' } },
}

-- Returns the tensors of a published file that hold parts of the experts (see model/stored.lua).
function GptOss:stored()
   local list = {}
   for _, layer in ipairs(mixtures(self)) do
      for _, row in ipairs(tensors) do
         local name, names = layer.path .. '.' .. row[1], row[2]
         if row.how then
            list[#list + 1] = experts.joined(name, layer, names, row.how)
         else
            local own = names[1]
            list[#list + 1] = stored.renamed(name, layer.path .. '.' .. own, layer.m[own].shape)
         end
      end
   end
   return list
end

return GptOss
