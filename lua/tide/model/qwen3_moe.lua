-- Qwen3 MoE decoder: Qwen3 with experts in each n-th layer, n being decoder_sparse_step, but those
-- of mlp_only_layers, which count from 0.

local config_ = require 'tide.model.config'
local experts = require 'tide.model.experts'
local published = require 'tide.model.published'
local qwen3 = require('tide.model.qwen3').family

local op = 'model.qwen3_moe'

local Qwen3Moe = experts.derive('Qwen3Moe', experts.usual)

local fields = published._rows(experts.fields('num_experts', 128, 8), experts.layer_fields, {
   { 'moe_intermediate_size', 768, 'integer >= 1' }, { 'norm_topk_prob', false, 'boolean' },
   { 'use_sliding_window', false, 'boolean' },
})

-- Refuses a window without its size, and layers that the model does not have.
local function complete(c, name)
   config_.check_window(c, name)
   experts.check_layers(c, name)
end

Qwen3Moe.family = {
   op = op, fields = fields, sizes = { 'moe_intermediate_size' },
   peft_experts = experts.peft,
   alias = { num_local_experts = 'num_experts' },
   defaults = { max_position_embeddings = 32768 },
   without = { mlp_bias = experts.no_bias },
   only = experts.only, where = experts.fit 'num_experts',
   free = experts.free .. ' max_window_layers',    -- every layer has the window
   complete = complete, layer = qwen3.layer,
   experts = function(c, i)
      return experts.is_in_layer(c, i) and { hidden = c.moe_intermediate_size,
         experts = c.num_experts, topk = c.num_experts_per_tok,
         norm_topk = c.norm_topk_prob } or nil
   end,
}

return Qwen3Moe
