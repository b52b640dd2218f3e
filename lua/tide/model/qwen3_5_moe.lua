-- The decoder of Qwen3.5 with experts, for texts alone (model_type qwen3_5_moe_text): Qwen3.5 with
-- experts and a gated shared expert in each layer.
--
-- Files hold each expert apart, or each projection of all experts of a layer in one tensor, the
-- gate beside the up projection; transformers 5 writes either, after what it has read.

local copy = require 'tide.util.copy'
local delta = require 'tide.model.delta'
local experts = require 'tide.model.experts'
local lora_moe = require 'tide.nn.lora_moe'
local mixtures = require 'tide.nn.mixtures'
local qwen3_5 = require('tide.model.qwen3_5').family

local count = 'integer >= 1'

local Qwen3_5Moe = delta.of(experts.derive('Qwen3_5Moe', experts.usual))

local fields = delta.fields(experts.fields('num_experts', 256, 8))
for _, row in ipairs { { 'moe_intermediate_size', 512, count },
   { 'shared_expert_intermediate_size', 512, count } } do fields[#fields + 1] = row end

Qwen3_5Moe.family = copy({
   op = 'model.qwen3_5_moe', fields = fields,
   peft_experts = { router = 'gate' },
   alias = { num_local_experts = 'num_experts' },
   without = { mlp_bias = experts.no_bias, sliding_window = qwen3_5.without.sliding_window,
      intermediate_size = { why = 'each layer has experts, of moe_intermediate_size' } },
   where = delta.where { 'where num_experts_per_tok <= num_experts -- num_experts_per_tok '
      .. '({num_experts_per_tok}) must be at most num_experts ({num_experts})' },
   experts = function(c)
      return { hidden = c.moe_intermediate_size, experts = c.num_experts,
         topk = c.num_experts_per_tok, norm_topk = true,
         shared = { hidden = c.shared_expert_intermediate_size, gate = true,
            names = delta.shared } }
   end,
}, copy(qwen3_5))

-- Returns the tensors of a file that holds each expert apart.
Qwen3_5Moe._stored_apart = Qwen3_5Moe.stored

-- Returns the tensors of a file with all experts of a layer together.
function Qwen3_5Moe:_stored_together()
   local list = {}
   for _, layer in ipairs(mixtures(self)) do
      experts.add_together(list, layer, lora_moe.block(layer.path))
   end
   return list
end

return Qwen3_5Moe
