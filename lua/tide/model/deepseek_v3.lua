-- DeepSeek-V3 decoder (arXiv 2412.19437; also Kimi K2 and Moonlight): latent attention, and from
-- layer first_k_dense_replace (from 0) on experts that are chosen by sigmoid within groups, with
-- shared experts. Layers that predict further tokens are left out, as in glm4_moe.lua.

local copy = require 'tide.util.copy'
local deepseek = require 'tide.model.deepseek'
local experts = require 'tide.model.experts'
local published = require 'tide.model.published'

local DeepseekV3 = experts.derive('DeepseekV3', experts.usual)

local latent = deepseek.latent_fields { q_latent = 1536, nope = 128, value = 128 }
local fields = published._rows(latent,
   experts.sigmoid_fields { experts = 256, topk = 8, hidden = 2048, scale = 2.5, groups = 8,
      topk_groups = 4, dense = 3 },
   { { 'rope_interleave', true, 'boolean' }, { 'num_nextn_predict_layers', 0, 'integer >= 0' } })

DeepseekV3.family = {
   op = 'model.deepseek_v3', fields = fields, sizes = { 'moe_intermediate_size' },
   peft_experts = experts.peft,
   alias = { num_local_experts = 'n_routed_experts', num_mtp_layers = 'num_nextn_predict_layers' },
   defaults = { max_position_embeddings = 4096 }, nullable = { 'q_lora_rank' },
   without = deepseek.without, where = deepseek.where(), translate = deepseek.translate,
   only = copy(experts.only, { scoring_func = 'sigmoid', topk_method = 'noaux_tc',
      moe_layer_freq = 1 }),
   free = experts.free .. ' aux_loss_alpha seq_aux ep_size qk_head_dim',
   mixer = deepseek.mixer, experts = experts.by_sigmoid,
}

experts.without_further_layers(DeepseekV3)

return DeepseekV3
