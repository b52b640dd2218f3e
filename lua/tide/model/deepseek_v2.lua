-- DeepSeek-V2 decoder (arXiv 2405.04434): latent attention, and from layer first_k_dense_replace
-- (from 0) on experts that are chosen by softmax, of all or of the best groups (topk_method), with
-- shared experts.

local copy = require 'tide.util.copy'
local deepseek = require 'tide.model.deepseek'
local experts = require 'tide.model.experts'
local published = require 'tide.model.published'

local DeepseekV2 = experts.derive('DeepseekV2', experts.usual)

local count = 'integer >= 1'
local latent = deepseek.latent_fields { q_latent = 1536, nope = 128, value = 128 }
local fields = published._rows(latent, {
   { 'n_routed_experts', 64, count }, { 'num_experts_per_tok', nil, count },
   { 'moe_intermediate_size', 1407, count }, { 'n_shared_experts', 2, count },
   { 'routed_scaling_factor', 1, 'number', float = true },
   { 'n_group', 1, count }, { 'topk_group', 1, count },
   { 'topk_method', 'greedy', "'greedy' | 'group_limited_greedy'" },
   { 'first_k_dense_replace', 0, 'integer >= 0' },
})

DeepseekV2.family = {
   op = 'model.deepseek_v2', fields = fields, sizes = { 'moe_intermediate_size' },
   peft_experts = experts.peft,
   alias = { num_experts = 'n_routed_experts', num_local_experts = 'n_routed_experts' },
   nullable = { 'q_lora_rank' },
   without = deepseek.without, where = deepseek.where(), translate = deepseek.translate,
   only = copy(experts.only, { scoring_func = 'softmax', moe_layer_freq = 1,
      norm_topk_prob = false }),
   free = experts.free .. ' aux_loss_alpha seq_aux ep_size qk_head_dim',
   rope = { interleaved = true },      -- pairs of channels lie side by side in every file
   mixer = deepseek.mixer,
   experts = function(c, i)
      if i <= c.first_k_dense_replace then return nil end
      local grouped = c.topk_method == 'group_limited_greedy'
      return { wide_router = true, hidden = c.moe_intermediate_size, experts = c.n_routed_experts,
         topk = c.num_experts_per_tok, scale = c.routed_scaling_factor,
         groups = grouped and c.n_group or 1, topk_groups = grouped and c.topk_group or 1,
         shared = { names = { shared = 'shared_experts' },
            hidden = c.n_shared_experts * c.moe_intermediate_size } }
   end,
}

return DeepseekV2
