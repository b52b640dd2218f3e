-- Granite 4 decoder: Mamba-2 layers and attention (layer_types), each followed by a gated MLP
-- (shared_mlp) and, where num_local_experts is not 0, by experts beside it; the four multipliers of
-- Granite. Attention has rotary positions (position_embedding_type 'rope'), or none ('nope').

local class = require 'tide.class'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local mixtures = require 'tide.nn.mixtures'
local nn = require 'tide.nn'
local Backbone = require 'tide.model.backbone'
local Bamba = require 'tide.model.bamba'
local Llama = require 'tide.model.llama'
local granite = require('tide.model.granite').family
local config_ = require 'tide.model.config'
local experts = require 'tide.model.experts'
local part = require 'tide.model.part'
local published = require 'tide.model.published'
local stored = require 'tide.model.stored'
local time_step = require 'tide.model.time_step'

local op = 'model.granitemoehybrid'

local count, number, flag = 'integer >= 1', 'number >= 0', 'boolean'

local function has_positions(c) return c.position_embedding_type == 'rope' end

local function layers_of(c)
   local list = {}
   for i = 1, type(c.num_hidden_layers) == 'number' and c.num_hidden_layers or 0 do
      list[i] = 'mamba'
   end
   return list
end

local own = {
   { 'vocab_size', nil, count }, { 'hidden_size', nil, count },
   { 'num_hidden_layers', nil, count }, { 'num_attention_heads', nil, count },
   { 'num_key_value_heads', function(c) return c.num_attention_heads end, count },
   { 'head_dim', config_.head_dim, count },
   { 'layer_types', layers_of, 'table' }, { 'shared_intermediate_size', 1024, count },
   { 'intermediate_size', 11008, count },
   { 'mamba_expand', 2, count }, { 'mamba_n_heads', 128, count },
   { 'mamba_d_head', function(c) return c.mamba_expand * c.hidden_size / c.mamba_n_heads end,
      count },
   { 'mamba_n_groups', 1, count }, { 'mamba_d_state', 256, count },
   { 'mamba_d_conv', 4, 'integer in [2, 4]' },
   { 'mamba_chunk_size', 256, count }, { 'mamba_conv_bias', true, flag },
   { 'mamba_proj_bias', false, flag }, { 'attention_bias', false, flag },
   time_step.limit,
   { 'position_embedding_type', 'nope', "'rope' | 'nope'" },
   { 'rope_theta', function(c) return has_positions(c) and 10000 or published.optional end,
      'number >= 1' },
   { 'rope_scaling', published.optional, function(o, _, v) nn.rope.check_scaling(o, v) end },
   { 'rms_norm_eps', 1e-6, number, float = true },
   { 'initializer_range', 0.02, number, float = true, neutral = true },
   { 'tie_word_embeddings', false, flag },
   { 'max_position_embeddings', 2048, count, neutral = true },
   { 'hidden_act', 'silu', "'silu'", neutral = true },
}

local rows = published._rows(own, granite.fields,
   experts.fields('num_local_experts', 8, 2, { least = 0 }))

-- Names of the kinds of layers in published lists.
local kinds = { mamba = 'mamba', linear_attention = 'mamba', attention = 'attention',
   full_attention = 'attention' }

-- Returns a list of kinds by the names that every reader knows; another value as it is.
local function named(list)
   if type(list) ~= 'table' then return list end
   local out = {}
   for i, kind in ipairs(list) do out[i] = kinds[kind] or kind end
   return out
end

-- Returns the kinds of the layers from two fields that mean the same.
local function kinds_of(f, problems)
   local list, other = named(f.layer_types), named(f.layers_block_type)
   if list == nil or other == nil then return list or other end
   if type(list) ~= 'table' or type(other) ~= 'table' or not dims.equal(list, other) then
      problems[#problems + 1] = "fields 'layer_types' and 'layers_block_type' mean the same and "
         .. 'differ; remove one'
   end
   return list
end

-- Gives layer_types the names that every reader knows. Files without positions have fields of
-- rotary ones, too.
local function translate(f, problems)
   f.layer_types, f.layers_block_type = kinds_of(f, problems), nil
   if f.mamba_d_head == 'auto' then f.mamba_d_head = nil end
   config_.translate_rope(f, problems)
   if f.model_type and f.position_embedding_type ~= 'rope' then
      f.rope_theta, f.rope_scaling = nil, nil
   end
end

local function complete(c)
   err.raise_if(#c.layer_types ~= c.num_hidden_layers, 'E_ARG', op, "argument 'layer_types': "
      .. 'expected a list of %d names, one for each layer, got a list of %d', c.num_hidden_layers,
      #c.layer_types)
   for i, kind in ipairs(c.layer_types) do
      err.choice(op, ('layer_types[%d]'):format(i), kind, { 'mamba', 'attention' })
   end
   for _, name in ipairs { 'rope_theta', 'rope_scaling' } do
      err.arg_if(c[name] ~= nil and not has_positions(c), op, name, "nil where "
         .. "position_embedding_type is 'nope'; give position_embedding_type = 'rope'", c[name])
   end
end

local rules = {
   translate = translate, complete = complete,
   only = { attention_dropout = 0, normalization_function = 'rmsnorm' }, free = 'init_method',
   where = signature.options { config_.whole_groups,
      'where mamba_n_heads * mamba_d_head == mamba_expand * hidden_size -- mamba_n_heads '
         .. '({mamba_n_heads}) * mamba_d_head ({mamba_d_head}) must be mamba_expand '
         .. '({mamba_expand}) * hidden_size ({hidden_size})',
      'where num_local_experts == 0 or num_experts_per_tok <= num_local_experts -- '
         .. 'num_experts_per_tok ({num_experts_per_tok}) must be at most num_local_experts '
         .. '({num_local_experts})',
      'where num_local_experts > 0 or not output_router_logits -- output_router_logits is of '
         .. 'experts, and num_local_experts is 0; leave it out' },
}

local GraniteMoeHybrid = class('GraniteMoeHybrid', Backbone)
GraniteMoeHybrid.op, GraniteMoeHybrid._rows, GraniteMoeHybrid._rules = op, rows, rules
GraniteMoeHybrid._options = { 'recurrence_dtype' }
GraniteMoeHybrid.family = { sizes = { 'shared_intermediate_size', unpack(Bamba.family.sizes) },
   peft_experts = { router = 'router' } }

GraniteMoeHybrid.form = { name = 'GraniteMoeHybridModel', body = 'model', embed = 'embed_tokens',
   norm = 'norm', eps = 'rms_norm_eps' }

-- ---- layers ------------------------------------------------------------------------------------

local function attention(c, opts, rope)
   return nn.Attention(part.of_layer(c, opts, {
      heads = c.num_attention_heads, kv_heads = c.num_key_value_heads, head_dim = c.head_dim,
      rope = rope, bias = c.attention_bias, out_bias = c.attention_bias,
      scale = c.attention_multiplier,
   }))
end

local function block(c, mixer, opts)
   local norm = nn.Module.inner(opts, { eps = c.rms_norm_eps })
   return nn.Block {
      names = { norm1 = 'input_layernorm', norm2 = 'post_attention_layernorm', mlp = 'shared_mlp',
         experts = 'block_sparse_moe', mixer = class.is(mixer, nn.Mamba2) and 'mamba'
            or 'self_attn' },
      scale = c.residual_multiplier, mixer = mixer, norm1 = nn.RMSNorm(c.hidden_size, norm),
      norm2 = nn.RMSNorm(c.hidden_size, norm),
      mlp = nn.MLP(part.of_layer(c, opts, { hidden = c.shared_intermediate_size, fused = true,
         names = { gate_up_proj = 'input_linear', down_proj = 'output_linear' } })),
      experts = c.num_local_experts > 0 and nn.MoE(part.of_layer(c, opts, {
         hidden = c.intermediate_size, experts = c.num_local_experts,
         topk = c.num_experts_per_tok, norm_topk = true })) or nil,
   }
end

-- Returns the blocks, the mixer of each, and fields of the body.
function GraniteMoeHybrid._blocks(_, c, opts)
   local rope = has_positions(c) and Llama._rope_of(c, {}) or nil
   local blocks, mixers = {}, {}
   for i, kind in ipairs(c.layer_types) do
      mixers[i] = kind == 'attention' and attention(c, opts, rope) or Bamba._mamba(c, opts)
      blocks[i] = block(c, mixers[i], opts)
   end
   return blocks, mixers, { rope = rope, embed_scale = c.embedding_multiplier, scales_given = true,
      out_scale = 1 / c.logits_scaling }
end

-- ---- published files ---------------------------------------------------------------------------

-- Makes the fields of config.json of c, a complete configuration.
function GraniteMoeHybrid.publish(c)
   c.time_step_limit = c.time_step_limit or { 0, math.huge }
end

-- Returns the tensors of a published file that hold the experts of a layer together (see
-- model/stored.lua): gate_proj and up_proj of each expert one after the other.
function GraniteMoeHybrid:stored()
   local list = {}
   for _, layer in ipairs(mixtures(self)) do
      local m, path = layer.m, layer.path
      local function add(name, field)
         list[#list + 1] = stored.renamed(('%s.%s.weight'):format(path, name),
            path .. '.' .. field, m[field].shape)
      end
      add('router.layer', 'router')
      add('output_linear', 'down_proj')
      list[#list + 1] = experts.joined(path .. '.input_linear.weight', layer,
         { 'gate_proj', 'up_proj' })
   end
   return list
end

return GraniteMoeHybrid
