-- OLMoE decoder: Llama with experts in each layer and OLMo 2's RMSNorm over all heads together of
-- the queries, and of the keys.

local experts = require 'tide.model.experts'
local olmo2 = require('tide.model.olmo2').family

local Olmoe = experts.derive('Olmoe', experts.usual)

local fields = experts.fields('num_experts', 64, 8, { coef = 0.01 })
fields[#fields + 1] = { 'norm_topk_prob', false, 'boolean' }

Olmoe.family = {
   op = 'model.olmoe', fields = fields, peft_experts = experts.peft,
   alias = { num_local_experts = 'num_experts' },
   defaults = { rms_norm_eps = 1e-5, max_position_embeddings = 4096 },
   without = { sliding_window = { why = 'an OLMoE attends to all tokens before' },
      mlp_bias = experts.no_bias,
      clip_qkv = { why = 'clipped queries, keys and values are not supported' } },
   only = experts.only, free = experts.free, where = experts.fit 'num_experts',
   layer = olmo2.layer,
   experts = function(c)
      return { hidden = c.intermediate_size, experts = c.num_experts,
         topk = c.num_experts_per_tok, norm_topk = c.norm_topk_prob }
   end,
}

return Olmoe
