-- Qwen3-Next decoder: gated delta nets and, in each n-th layer (full_attention_interval, or as
-- layer_types says), attention with a gate on its output and rotary positions on a part of each
-- head; norms with weights around zero; experts and a gated shared expert as in Qwen2 MoE.

local delta = require 'tide.model.delta'
local experts = require 'tide.model.experts'
local published = require 'tide.model.published'

local op = 'model.qwen3_next'

local count = 'integer >= 1'

local Qwen3Next = delta.of(experts.derive('Qwen3Next', experts.usual))

local fields = published._rows(
   delta.fields(experts.fields('num_experts', 512, 10, { least = 0 })), experts.layer_fields, {
   { 'moe_intermediate_size', 512, count }, { 'shared_expert_intermediate_size', 512, count },
   { 'norm_topk_prob', true, 'boolean' },
})

Qwen3Next.family = {
   op = op, fields = fields, kinds = delta.kinds, sizes = delta.sizes,
   peft_experts = experts.peft,
   alias = { num_local_experts = 'num_experts' },
   defaults = { head_dim = 256, max_position_embeddings = 32768 },
   without = { mlp_bias = experts.no_bias,
      sliding_window = { why = 'a Qwen3-Next attends to all tokens before' } },
   only = { use_sliding_window = false }, free = experts.free .. ' max_window_layers',
   where = delta.where {
      'where num_experts == 0 or num_experts_per_tok <= num_experts -- num_experts_per_tok '
         .. '({num_experts_per_tok}) must be at most num_experts ({num_experts})',
      'where num_experts > 0 or not output_router_logits -- output_router_logits is of experts, '
         .. 'and num_experts is 0; leave it out' },
   complete = function(c, name)
      experts.check_layers(c, name)
      delta.complete(c)
   end,
   norm_offset = 1, mixer = delta.mixer(false), layer = delta.layer,
   experts = function(c, i)
      return c.num_experts > 0 and experts.is_in_layer(c, i) and {
         hidden = c.moe_intermediate_size, experts = c.num_experts, topk = c.num_experts_per_tok,
         norm_topk = c.norm_topk_prob,
         shared = { hidden = c.shared_expert_intermediate_size, gate = true,
            names = delta.shared } } or nil
   end,
}

return Qwen3Next
