-- Qwen3 MoE decoder: Qwen3 with experts in each n-th layer, n being decoder_sparse_step, but those
-- of mlp_only_layers, which count from 0.

local err = require 'tide.util.err'
local experts = require 'tide.model.experts'
local published = require 'tide.model.published'
local qwen2 = require('tide.model.qwen2').family
local qwen3 = require('tide.model.qwen3').family

local op = 'model.qwen3_moe'

local Qwen3Moe = experts.derive('Qwen3Moe', experts.usual)

local fields = experts.fields('num_experts', 128, 8)
for _, row in ipairs {
   { 'moe_intermediate_size', 768, 'integer >= 1' }, { 'norm_topk_prob', false, 'boolean' },
   { 'decoder_sparse_step', 1, 'integer >= 1' },
   { 'mlp_only_layers', published.optional, 'integer[] >= 0' },
   { 'use_sliding_window', false, 'boolean' },
} do fields[#fields + 1] = row end

-- Returns a check of a family: it refuses a window without its size, and layers that the model does
-- not have.
local function complete_for(name)
   local check_window = qwen2.complete_for(name)
   return function(c)
      check_window(c)
      for i, layer in ipairs(c.mlp_only_layers or {}) do
         err.arg_if(layer >= c.num_hidden_layers, name, ('mlp_only_layers[%d]'):format(i),
            ('a layer from 0 to %d'):format(c.num_hidden_layers - 1), layer)
      end
   end
end

-- Returns whether layer i, from 1, has experts.
local function has_experts(c, i)
   for _, layer in ipairs(c.mlp_only_layers or {}) do
      if layer == i - 1 then return false end
   end
   return i % c.decoder_sparse_step == 0
end

Qwen3Moe.family = {
   op = op, fields = fields, sizes = { 'moe_intermediate_size' },
   peft_experts = experts.peft,
   alias = { num_local_experts = 'num_experts' },
   defaults = { max_position_embeddings = 32768 },
   without = { mlp_bias = experts.no_bias },
   only = experts.only, where = experts.fit 'num_experts',
   free = experts.free .. ' max_window_layers',    -- every layer has the window
   complete = complete_for(op), layer = qwen3.layer, complete_for = complete_for,
   has_experts = has_experts,
   experts = function(c, i)
      return has_experts(c, i) and { hidden = c.moe_intermediate_size, experts = c.num_experts,
         topk = c.num_experts_per_tok, norm_topk = c.norm_topk_prob } or nil
   end,
}

return Qwen3Moe
