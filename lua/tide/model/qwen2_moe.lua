-- Qwen2 MoE decoder: Qwen2 with experts and a gated shared expert in each n-th layer, n being
-- decoder_sparse_step, but those of mlp_only_layers; a window, if it is switched on, in each second
-- layer before max_window_layers.

local experts = require 'tide.model.experts'
local published = require 'tide.model.published'
local qwen3_moe = require('tide.model.qwen3_moe').family

local op = 'model.qwen2_moe'

local Qwen2Moe = experts.derive('Qwen2Moe', experts.usual)

local fields = published._rows(experts.fields('num_experts', 60, 4), experts.layer_fields, {
   { 'moe_intermediate_size', 1408, 'integer >= 1' },
   { 'shared_expert_intermediate_size', 5632, 'integer >= 1' },
   { 'norm_topk_prob', false, 'boolean' },
   { 'use_sliding_window', false, 'boolean' }, { 'max_window_layers', 28, 'integer >= 0' },
   { 'layer_types', published.optional }, { 'qkv_bias', true, 'boolean' },
})

local names = { shared = 'shared_expert', gate = 'shared_expert_gate' }

-- Drops a window of 0, which transformers writes where there is no window.
local function translate(f)
   if f.sliding_window == 0 and not f.use_sliding_window then f.sliding_window = nil end
end

Qwen2Moe.family = {
   op = op, fields = fields,
   sizes = { 'moe_intermediate_size', 'shared_expert_intermediate_size' },
   peft_experts = { router = 'gate' },
   alias = { num_local_experts = 'num_experts' },
   defaults = { max_position_embeddings = 32768 },
   without = { mlp_bias = experts.no_bias, attention_bias = { written = false,
      why = 'qkv_bias says whether q_proj, k_proj and v_proj have biases' } },
   only = experts.only, where = experts.fit 'num_experts', free = experts.free,
   complete = qwen3_moe.complete, translate = translate,
   window = function(c, i) return i % 2 == 1 and i <= c.max_window_layers end,
   layer = function(c, _, mixer) mixer.bias, mixer.out_bias = c.qkv_bias, false end,
   experts = function(c, i)
      return experts.is_in_layer(c, i) and { hidden = c.moe_intermediate_size,
         experts = c.num_experts, topk = c.num_experts_per_tok, norm_topk = c.norm_topk_prob,
         shared = { hidden = c.shared_expert_intermediate_size, gate = true, names = names } }
         or nil
   end,
}

return Qwen2Moe
