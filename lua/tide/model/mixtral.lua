-- Mixtral decoder: Mistral with experts in each layer; the factors of a token sum to 1.

local copy = require 'tide.util.copy'
local experts = require 'tide.model.experts'

local Mixtral = experts.derive('Mixtral', { block = 'block_sparse_moe', gate_proj = 'w1',
   up_proj = 'w3', down_proj = 'w2' })

Mixtral.family = {
   op = 'model.mixtral',
   fields = experts.fields('num_local_experts', 8, 2), peft_experts = experts.peft,
   alias = { num_experts = 'num_local_experts' },
   defaults = { rms_norm_eps = 1e-5, rope_theta = 1e6, max_position_embeddings = 131072 },
   only = copy(experts.only, { router_jitter_noise = 0 }),
   without = { mlp_bias = experts.no_bias,
      attention_bias = { written = false, why = 'the projections of a Mixtral have no biases' } },
   free = experts.free, where = experts.fit 'num_local_experts',
   experts = function(c)
      return { hidden = c.intermediate_size, experts = c.num_local_experts,
         topk = c.num_experts_per_tok, norm_topk = true }
   end,
}

return Mixtral
