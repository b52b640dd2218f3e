-- Qwen3-Next decoder: gated delta nets and, in each n-th layer (full_attention_interval, or as
-- layer_types says), attention with a gate on its output and rotary positions on a part of each
-- head; norms with weights around zero; experts and a gated shared expert as in Qwen2 MoE.
--
-- Files also hold layers that predict further tokens (mtp). Neither tide nor a plain transformers
-- model has them.

local nn = require 'tide.nn'
local signature = require 'tide.util.signature'
local Backbone = require 'tide.model.backbone'
local experts = require 'tide.model.experts'
local part = require 'tide.model.part'
local published = require 'tide.model.published'

local op = 'model.qwen3_next'

local count = 'integer >= 1'

local Qwen3Next = experts.derive('Qwen3Next', experts.usual)
Qwen3Next._options = { 'recurrence_dtype' }
Qwen3Next._read_place, Qwen3Next.at_fields = Backbone._read_place, Backbone.at_fields

-- Returns the kind of each layer of a configuration that does not list them.
local function kinds_of(c)
   local list = {}
   for i = 1, c.num_hidden_layers do
      list[i] = i % c.full_attention_interval == 0 and 'full_attention' or 'linear_attention'
   end
   return list
end

local fields = published._rows(experts.fields('num_experts', 512, 10, { least = 0 }),
   experts.layer_fields, {
   { 'partial_rotary_factor', 0.25, 'number in [1e-9, 1]' },
   { 'full_attention_interval', 4, count }, { 'layer_types', kinds_of },
   { 'linear_conv_kernel_dim', 4, 'integer in [2, 4]' },
   { 'linear_key_head_dim', 128, count }, { 'linear_value_head_dim', 128, count },
   { 'linear_num_key_heads', 16, count }, { 'linear_num_value_heads', 32, count },
   { 'moe_intermediate_size', 512, count }, { 'shared_expert_intermediate_size', 512, count },
   { 'norm_topk_prob', true, 'boolean' },
})

local relations = { 'where linear_num_value_heads % linear_num_key_heads == 0 -- '
   .. 'linear_num_value_heads ({linear_num_value_heads}) must be a multiple of '
   .. 'linear_num_key_heads ({linear_num_key_heads})' }

-- Refuses layers that the model does not have.
local function complete(c, name)
   experts.check_layers(c, name)
   c.full_attention_interval = nil                           -- layer_types says it now
end

-- Returns the gated delta net of layer i and its name; nil: the layer has attention. apart: the
-- form of its projections.
local function mixer(c, _, i, opts, apart)
   if c.layer_types[i] ~= 'linear_attention' then return nil end
   return nn.GatedDeltaNet(part.options(c, opts, 2 * c.num_hidden_layers, {
      heads = c.linear_num_value_heads, head_dim = c.linear_value_head_dim,
      key_heads = c.linear_num_key_heads, key_dim = c.linear_key_head_dim,
      conv = c.linear_conv_kernel_dim, norm_eps = c.rms_norm_eps, apart = apart,
      recurrence_dtype = opts.recurrence_dtype })), 'linear_attn'
end

local names = { shared = 'shared_expert', gate = 'shared_expert_gate' }

Qwen3Next.family = {
   op = op, fields = fields, kinds = { 'linear_attention', 'full_attention' },
   sizes = { 'moe_intermediate_size', 'shared_expert_intermediate_size', 'linear_key_head_dim',
      'linear_value_head_dim', 'linear_num_key_heads', 'linear_num_value_heads',
      'linear_conv_kernel_dim' },
   peft_experts = experts.peft,
   alias = { num_local_experts = 'num_experts' },
   defaults = { head_dim = 256, max_position_embeddings = 32768 },
   without = { mlp_bias = experts.no_bias,
      sliding_window = { why = 'a Qwen3-Next attends to all tokens before' } },
   only = experts.only, free = experts.free,
   where = signature.options { relations,
      'where num_experts == 0 or num_experts_per_tok <= num_experts -- num_experts_per_tok '
         .. '({num_experts_per_tok}) must be at most num_experts ({num_experts})',
      'where num_experts > 0 or not output_router_logits -- output_router_logits is of experts, '
         .. 'and num_experts is 0; leave it out' },
   complete = complete, norm_offset = 1, mixer = mixer,
   layer = function(c, _, o)
      o.gate, o.qk_norm = true, { eps = c.rms_norm_eps, offset = 1 }
   end,
   experts = function(c, i)
      return c.num_experts > 0 and experts.is_in_layer(c, i) and {
         hidden = c.moe_intermediate_size, experts = c.num_experts, topk = c.num_experts_per_tok,
         norm_topk = c.norm_topk_prob,
         shared = { hidden = c.shared_expert_intermediate_size, gate = true, names = names } }
         or nil
   end,
}

-- Returns whether a file's tensor is of a layer that predicts further tokens, which is left out.
function Qwen3Next._leaves_out(_, name) return name:find '^mtp%.' ~= nil end

return Qwen3Next
