-- Hybrid decoder from a pattern of layers, as in Nemotron-H (arXiv 2504.03624): M is a Mamba-2
-- layer, * attention, - an MLP, E experts beside a shared one (Nemotron 3), each with its norm and
-- residual. Field and parameter names are those of the published checkpoints; see
-- model/backbone.lua for calls.
--
-- The published model's attention uses no positions. `rope_theta` of a configuration without
-- model_type gives it rotary ones; files of nemotron_h may have the field, without effect.

local class = require 'tide.class'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local nn = require 'tide.nn'
local Backbone = require 'tide.model.backbone'
local config_ = require 'tide.model.config'
local experts = require 'tide.model.experts'
local part = require 'tide.model.part'
local published = require 'tide.model.published'
local time_step = require 'tide.model.time_step'

local op = 'model.hybrid'

local count, taps, number = 'integer >= 1', 'integer in [2, 4]', 'number >= 0'
-- false: the library's choice; results do not depend on it.
local grain, flag = 'false | integer >= 1', 'boolean'

local function pattern(o, name, v)
   err.type(o, name, v, 'string')
   err.arg_if(v == '' or v:find '[^M%*%-E]', o, name, "a string of 'M' (Mamba), '*' (attention), "
      .. "'-' (MLP) and 'E' (experts)", v)
   return v
end

local theta = 'false | number >= 1'

-- rope_theta false (the default): attention without positions, the state keeps the order.
local rows = published._rows(time_step.fields, {
   { 'vocab_size', nil, count }, { 'hidden_size', nil, count },
   { 'hybrid_override_pattern', nil, pattern },
   { 'num_hidden_layers', function(c) return #tostring(c.hybrid_override_pattern) end, count },
   { 'num_attention_heads', function(c)
      return c.hybrid_override_pattern:find '%*' and c.hidden_size / 64 or 1
   end, count },
   { 'num_key_value_heads', function(c) return c.num_attention_heads end, count },
   { 'head_dim', config_.head_dim, count },
   { 'intermediate_size', function(c) return 4 * c.hidden_size end, count },
   { 'mlp_hidden_act', 'relu2', function(o, name, v)
      if v == 'gelu_pytorch_tanh' then return 'gelu_tanh' end
      return err.choice(o, name, v, { 'relu2', 'swiglu', 'gelu', 'gelu_tanh', 'relu', 'silu' })
   end },
   { 'attention_bias', false, flag }, { 'mlp_bias', false, flag }, { 'rope_theta', false, theta },
   { 'ssm_state_size', 128, count }, { 'mamba_head_dim', 64, count }, { 'expand', 2, number },
   { 'mamba_num_heads', function(c)
      return c.hybrid_override_pattern:find('M', 1, true)
         and c.expand * c.hidden_size / c.mamba_head_dim or 1
   end, count },
   { 'n_groups', 1, count }, { 'conv_kernel', 4, taps },
   { 'chunk_size', false, grain, neutral = true },
   { 'use_bias', false, flag }, { 'use_conv_bias', true, flag },
   { 'layer_norm_epsilon', 1e-5, number, float = true },
   { 'initializer_range', 0.02, number, float = true, neutral = true },
   { 'tie_word_embeddings', false, flag },
   { 'max_position_embeddings', 4096, count, neutral = true },
})

-- Fields of models with experts.
local rows_with_experts = published._rows(rows, {
   { 'n_routed_experts', 8, count }, { 'num_experts_per_tok', 2, count },
   { 'moe_intermediate_size', function(c) return c.intermediate_size end, count },
   { 'moe_shared_expert_intermediate_size', function(c) return c.moe_intermediate_size end, count },
   { 'moe_latent_size', published.optional, count },
   { 'routed_scaling_factor', 1, 'number', float = true },
   { 'n_group', 1, count }, { 'topk_group', 1, count }, { 'norm_topk_prob', true, flag },
})

-- Names of the kinds of layers in published lists.
local kinds = {
   mamba = 'M', linear_attention = 'M', attention = '*', full_attention = '*', mlp = '-',
   moe = 'E',
}

-- Returns the pattern of a list of kinds.
local function pattern_of(name, list, problems)
   local text = {}
   for i, kind in ipairs(type(list) == 'table' and list or {}) do
      text[i] = kinds[kind]
      if not text[i] then
         problems[#problems + 1] = ("field '%s[%d]' is %s; supported kinds are "
            .. 'linear_attention (mamba), full_attention (attention), mlp and moe'):format(name, i,
            err.show(kind))
         text[i] = '-'                          -- refused by now
      end
   end
   return table.concat(text)
end

-- Turns lists of kinds into the pattern; drops fields that the published model reads and ignores.
local function translate(f, problems)
   for _, name in ipairs { 'layers_block_type', 'layer_types' } do
      local list = f[name]
      f[name] = nil
      if list ~= nil then
         local text = pattern_of(name, list, problems)
         local had = f.hybrid_override_pattern
         if had ~= nil and had ~= text then
            problems[#problems + 1] = ("field 'hybrid_override_pattern' is %s, '%s' says %s")
               :format(err.show(had), name, err.show(text))
         end
         f.hybrid_override_pattern = text
      end
   end
   if f.mamba_proj_bias == f.use_bias then f.mamba_proj_bias = nil end
   if f.model_type == 'nemotron_h' then
      f.rope_theta, f.rope_scaling, f.rope_parameters, f.partial_rotary_factor = nil, nil, nil, nil
   end
end

-- Fields of experts and of further heads have no effect without them.
local free = [[residual_in_fp32 rescale_prenorm_residual time_step_rank use_mamba_kernels
   mamba_ssm_cache_dtype mtp_layers_block_type mtp_hybrid_override_pattern num_nextn_predict_layers
   moe_shared_expert_overlap]]
local relations = {
   'where num_hidden_layers == #hybrid_override_pattern -- num_hidden_layers '
      .. "({num_hidden_layers}) is not the length of the pattern '{hybrid_override_pattern}' "
      .. '({#hybrid_override_pattern})',
   config_.whole_groups }

local rules = {
   translate = translate, where = signature.options(relations),
   alias = {
      mamba_n_groups = 'n_groups', mamba_d_conv = 'conv_kernel', mamba_expand = 'expand',
      mamba_dt_min = 'time_step_min', mamba_dt_max = 'time_step_max',
      mamba_dt_limit = 'time_step_limit', mamba_dt_init_floor = 'time_step_floor',
      mamba_conv_bias = 'use_conv_bias', mamba_chunk_size = 'chunk_size',
      attention_head_dim = 'head_dim', rms_norm_eps = 'layer_norm_epsilon',
   },
   only = {
      attention_dropout = 0, hidden_dropout = 0, mamba_hidden_act = 'silu',
      mamba_proj_bias = false, sliding_window = false,
   },
   free = free .. [[ output_router_logits n_routed_experts num_local_experts n_shared_experts
      moe_intermediate_size moe_shared_expert_intermediate_size moe_latent_size num_experts_per_tok
      routed_scaling_factor n_group topk_group norm_topk_prob]],
}

-- The rules of models with experts. Each layer of them has one shared expert, as in transformers.
local rules_of_experts = copy(rules, {})
rules_of_experts.free = free
rules_of_experts.alias = copy(rules.alias, { num_local_experts = 'n_routed_experts' })
rules_of_experts.only = copy(rules.only, { output_router_logits = false, n_shared_experts = 1 })
rules_of_experts.where = signature.options { relations, experts.fit_groups,
   'where not mlp_bias or moe_latent_size == nil -- biases (mlp_bias) of the projections of '
      .. 'moe_latent_size are not supported' }

-- Returns whether a configuration has layers with experts.
local function names_experts(config)
   for _, field in ipairs { 'hybrid_override_pattern', 'layers_block_type', 'layer_types' } do
      local v = config[field]
      if type(v) == 'string' and v:find('E', 1, true) then return true end
      for _, kind in ipairs(type(v) == 'table' and v or {}) do
         if kind == 'moe' then return true end
      end
   end
   return false
end

local function common(c, opts, extra)
   return part.options(c, opts, c.num_hidden_layers, extra)
end

local make = {}

function make.M(c, opts)
   return nn.Mamba2(common(c, opts, {
      state = c.ssm_state_size, conv = c.conv_kernel, heads = c.mamba_num_heads,
      head_dim = c.mamba_head_dim, groups = c.n_groups, chunk = c.chunk_size or nil,
      bias = c.use_bias, conv_bias = c.use_conv_bias, norm_eps = c.layer_norm_epsilon,
      dt_range = time_step.range(c), dt_floor = c.time_step_floor,
      dt_limit = c.time_step_limit or nil, recurrence_dtype = opts.recurrence_dtype,
   }))
end

make['*'] = function(c, opts, rope)
   return nn.Attention(common(c, opts, {
      heads = c.num_attention_heads, kv_heads = c.num_key_value_heads, head_dim = c.head_dim,
      bias = c.attention_bias, out_bias = c.attention_bias, rope = rope,
   }))
end

make['-'] = function(c, opts)
   return nn.MLP(common(c, opts, {
      hidden = c.intermediate_size, act = c.mlp_hidden_act, bias = c.mlp_bias,
   }))
end

make.E = function(c, opts)
   return part.experts(c, opts, c.num_hidden_layers, {
      score = 'sigmoid', correction = true, wide_router = true, act = c.mlp_hidden_act,
      hidden = c.moe_intermediate_size, latent = c.moe_latent_size, experts = c.n_routed_experts,
      topk = c.num_experts_per_tok, norm_topk = c.norm_topk_prob, groups = c.n_group,
      topk_groups = c.topk_group, scale = c.routed_scaling_factor,
      shared = { hidden = c.moe_shared_expert_intermediate_size, bias = c.mlp_bias,
         names = { routed = 'experts', shared = 'shared_experts' } },
   })
end

local Hybrid = class('HybridModel', Backbone)
Hybrid.op, Hybrid._rows = op, rows_with_experts
Hybrid._options = { 'recurrence_dtype' }

Hybrid.family = {
   sizes = { 'ssm_state_size', 'mamba_head_dim', 'mamba_num_heads', 'n_groups', 'mamba_n_groups',
      'conv_kernel', 'mamba_d_conv', 'attention_head_dim', 'moe_intermediate_size',
      'moe_shared_expert_intermediate_size', 'moe_latent_size' },
   peft_experts = { router = 'gate' }, peft_refuses = 'out_proj',
   -- transformers 5 calls the body model; files, and programs before it, call it backbone. PEFT
   -- reads both in names of tensors, and finds a target by the end of its path.
   peft_target = function(path) return (path:gsub('^backbone%.', '')) end,
   from_peft = function(name) return (name:gsub('^model%.', 'backbone.')) end,
}

-- Returns the complete configuration, and the names of fields that change nothing.
function Hybrid._read(_, config)
   if type(config) ~= 'table' or not names_experts(config) then
      return published.read(op, config, rows, rules)
   end
   return published.read(op, config, rows_with_experts, rules_of_experts)
end

-- Returns whether a file's tensor is of a layer that predicts further tokens, which is left out.
function Hybrid._leaves_out(_, name) return name:find '^mtp%.' ~= nil end

experts.store_apart(Hybrid, { block = 'mixer', gate_proj = 'gate_proj', up_proj = 'up_proj',
   down_proj = 'down_proj' }, 'mixer')

-- Makes the fields of config.json of c, a complete configuration. A model that nemotron_h cannot
-- describe gets a model type of its own, so that readers refuse it.
function Hybrid.publish(c)
   local limit = c.time_step_limit or { 0, math.huge }
   c.chunk_size, c.time_step_limit = c.chunk_size or 128, limit
   -- no reader computes with it, and transformers takes whole numbers only
   c.expand = math.max(1, math.floor(c.mamba_num_heads * c.mamba_head_dim / c.hidden_size))
   c.rope_theta = c.rope_theta or nil
   if c.rope_theta or c.attention_bias or c.tie_word_embeddings or c.mlp_hidden_act == 'swiglu'
      or limit[2] < math.huge then
      c.model_type, c.architectures = 'tide_hybrid', { 'TideHybridForCausalLM' }
      return
   end
   if c.mlp_hidden_act == 'gelu_tanh' then c.mlp_hidden_act = 'gelu_pytorch_tanh' end
   c.time_step_min = limit[1]     -- transformers limits steps by it, not by time_step_limit
   c.time_step_max = math.max(c.time_step_max, limit[1])
end

-- Returns the mixer of each layer.
function Hybrid._mixers(c, opts)
   local layers = c.hybrid_override_pattern
   local rope = c.rope_theta and nn.rope.new { dim = c.head_dim, theta = c.rope_theta } or nil
   local mixers = {}
   for i = 1, #layers do mixers[i] = make[layers:sub(i, i)](c, opts, rope) end
   return mixers
end

return Hybrid
