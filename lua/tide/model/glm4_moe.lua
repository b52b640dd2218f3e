-- GLM-4.5 decoder: rotary positions on a part of each head, an RMSNorm over each head of the
-- queries and keys where use_qk_norm says so, and from layer first_k_dense_replace (from 0) on
-- experts that are chosen by sigmoid, with shared experts.
--
-- Files also hold layers that predict further tokens (num_nextn_predict_layers). Neither tide nor a
-- plain transformers model has them.

local experts = require 'tide.model.experts'
local published = require 'tide.model.published'
local signature = require 'tide.util.signature'

local Glm4Moe = experts.derive('Glm4Moe', experts.usual)

local fields = published._rows(experts.sigmoid_fields { experts = 128, topk = 8, hidden = 1408,
   scale = 1, groups = 1, topk_groups = 1, dense = 1 }, {
   { 'use_qk_norm', false, 'boolean' },
   { 'partial_rotary_factor', 0.5, 'number in [1e-9, 1]', float = true },
   { 'num_nextn_predict_layers', 0, 'integer >= 0' },
})

Glm4Moe.family = {
   op = 'model.glm4_moe', fields = fields, sizes = { 'moe_intermediate_size' },
   peft_experts = experts.peft,
   alias = { num_local_experts = 'n_routed_experts', num_mtp_layers = 'num_nextn_predict_layers' },
   defaults = { rms_norm_eps = 1e-5, max_position_embeddings = 131072 },
   without = { sliding_window = { why = 'a GLM-4.5 attends to all tokens before' },
      mlp_bias = experts.no_bias },
   only = experts.only, where = signature.options(experts.fit_groups), free = experts.free,
   layer = function(c, _, mixer)
      mixer.out_bias = false
      if c.use_qk_norm then mixer.qk_norm = { eps = c.rms_norm_eps } end
   end,
   experts = experts.by_sigmoid,
}

experts.without_further_layers(Glm4Moe)

return Glm4Moe
