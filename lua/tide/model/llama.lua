-- Llama-family decoder from a configuration table with the field names of published checkpoints.
--
-- Parameter names follow those checkpoints too (model.layers.0.self_attn.q_proj.weight), so a
-- state dict loads without a renaming table. Layers are numbered from 0 in names only.
-- Other families are subclasses with a table `family`, which model/family.lua describes.

local tide = require 'tide'
local Backbone = require 'tide.model.backbone'
local class = require 'tide.class'
local config_ = require 'tide.model.config'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local part = require 'tide.model.part'
local published = require 'tide.model.published'
local nn = require 'tide.nn'

local Module = nn.Module

local optional = published.optional

-- Returns the usual hidden size of a gated MLP: 8/3 of the width, up to a multiple of 32.
local function default_hidden(c) return math.ceil(c.hidden_size * 8 / 3 / 32) * 32 end

local count, number, flag = 'integer >= 1', 'number >= 0', 'boolean'
local base, share = 'number >= 1', 'number in [0, 1)'

-- Tokens that a model is for, where neither configuration nor family says it.
local context = 2048

-- Fields of all families of this form (see published.read).
local common = {
   { 'vocab_size', nil, count }, { 'hidden_size', nil, count },
   { 'num_hidden_layers', nil, count }, { 'num_attention_heads', nil, count },
   { 'intermediate_size', default_hidden, count },
   { 'num_key_value_heads', function(c) return c.num_attention_heads end, count },
   { 'head_dim', config_.head_dim, 'integer >= 2' },
   { 'rms_norm_eps', 1e-6, number, float = true }, { 'rope_theta', 10000, base },
   { 'rope_scaling', optional, function(op, _, v) nn.rope.check_scaling(op, v) end },
   { 'tie_word_embeddings', false, flag }, { 'attention_bias', false, flag },
   { 'mlp_bias', false, flag }, { 'sliding_window', optional, count },
   { 'max_position_embeddings', context, count, neutral = true },
   { 'initializer_range', 0.02, number, float = true, neutral = true },
   { 'attention_dropout', 0, share, float = true, neutral = true },
}

-- Returns the rows of a family: those of all with its own defaults, without those that it does not
-- have, and its own.
local function rows_of(family)
   local rows, own = {}, {}
   for _, row in ipairs(family.fields or {}) do own[row[1]] = row end
   for _, row in ipairs(common) do
      local name, default = row[1], (family.defaults or {})[row[1]]
      if not (family.without or {})[name] and not own[name] then
         rows[#rows + 1] = default == nil and row or copy({ [2] = default }, copy(row))
      end
   end
   for _, row in ipairs(family.fields or {}) do rows[#rows + 1] = row end
   rows[#rows + 1] = { 'hidden_act', optional, ("'%s'"):format(family.act or 'silu'),
      neutral = true }
   return rows
end

-- Returns whether a family has a field of its own.
local function has_field(family, name)
   for _, row in ipairs(family.fields or {}) do
      if row[1] == name then return true end
   end
   return false
end

local heads_fit = signature.options { config_.whole_groups,
   'where head_dim % 2 == 0 -- head_dim ({head_dim}) must be even for rotary positions',
}

-- Checks fields against each other, and fills in those that depend on others.
local function complete_together(c, family)
   c.head_dim = c.head_dim or config_.head_dim(c)
   heads_fit(family.op, {}, c)
   config_.check_layer_types(family.op, c, family.kinds)
   if family.where then family.where(family.op, {}, c) end
   if family.complete then family.complete(c, family.op) end
end

-- Changes the fields f of a file for a family. Null takes away what the family has by default
-- (defaults, nullable).
local function translate(family, f, problems, config)
   local null = tide.json.null
   for name in each(family.defaults or {}) do
      if config[name] == null then f[name] = optional end
   end
   for _, name in ipairs(family.nullable or {}) do
      if config[name] == null then f[name] = optional end
   end
   if f.max_position_embeddings == nil then             -- rope_scaling may leave a factor to it
      f.max_position_embeddings = (family.defaults or {}).max_position_embeddings or context
   end
   config_.translate_rope(f, problems, family.local_theta)
   if f.partial_rotary_factor == 1 and not has_field(family, 'partial_rotary_factor') then
      f.partial_rotary_factor = nil                     -- whole heads, as without the field
   end
   config_.check_without(f, problems, family.without)
   if family.translate then family.translate(f, problems, config) end
end

local layer_names = {
   norm1 = 'input_layernorm', mixer = 'self_attn', norm2 = 'post_attention_layernorm', mlp = 'mlp',
}

local function layer(c, rope, opts, family, i)
   local branches = 2 * c.num_hidden_layers
   local window = config_.has_window(c, i, family.window) and c.sliding_window or nil
   local norm = Module.inner(opts, { eps = c.rms_norm_eps })
   local mixer = part.options(c, opts, branches, {
      heads = c.num_attention_heads, kv_heads = c.num_key_value_heads, head_dim = c.head_dim,
      bias = c.attention_bias, out_bias = c.attention_bias, rope = rope,
      dropout = c.attention_dropout,
      window = nn.window.of_tokens(family.op, 'sliding_window', window),
   })
   local mlp = part.options(c, opts, branches, {
      hidden = c.intermediate_size, bias = c.mlp_bias })
   if family.layer then family.layer(c, i, mixer, mlp) end
   local experts = family.experts and family.experts(c, i)
   local own, own_name
   if family.mixer then own, own_name = family.mixer(c, mixer, i, opts) end
   local parts = { names = copy({ mixer = own_name }, copy(layer_names)),
      mixer = own or nn.Attention(mixer), mlp = experts
      and part.experts(c, opts, branches, experts) or nn.MLP(mlp) }
   for _, name in ipairs(family.norms or { 'norm1', 'norm2' }) do
      norm.offset = family.norm_offset
      parts[name] = nn.RMSNorm(c.hidden_size, norm)
   end
   if family.norms then parts.names = family.names end
   if family.residual then parts.scale = family.residual(c) end
   return (family.Block or nn.Block)(parts), parts.mixer
end

-- Returns the rotary positions of a configuration. The kind dynamic is measured against the length
-- that the model is for.
local function rope_of(c, family)
   local scaling = c.rope_scaling
   if scaling and (scaling.rope_type or scaling.type) == 'dynamic' then
      scaling = copy(scaling)
      scaling.original_max_position_embeddings = c.max_position_embeddings
   end
   local turning = c.partial_rotary_factor
   local dim = math.floor(c.head_dim * (turning or 1))
   err.raise_if(turning and (dim < 2 or dim % 2 > 0), 'E_ARG', family.op, 'head_dim (%d) times '
      .. 'partial_rotary_factor (%g) is %d channels that turn; expected an even number of at '
      .. 'least 2', c.head_dim, turning, dim)
   return nn.rope.new { dim = dim, theta = c.rope_theta, scaling = scaling,
      interleaved = c.rope_interleave or (family.rope or {}).interleaved }
end

local Llama = class('Llama', Backbone)
Llama.mixes = false
Llama._rope_of = rope_of

Llama.form = { name = 'LlamaModel', body = 'model', embed = 'embed_tokens', norm = 'norm',
   eps = 'rms_norm_eps' }

Llama.family = {
   op = 'model.llama',
   -- files of Llama may have the field, and no program reads it there
   without = { sliding_window = { why = 'a Llama attends to all tokens before; '
      .. 'tide.model.mistral is the same with a window' } },
}

-- Returns the rows of the fields of configurations (see published.read).
function Llama:_fields() return rows_of(self.family) end

-- Returns the complete configuration, and the names of fields that change nothing.
function Llama:_read(config)
   local family = self.family
   return published.read(family.op, config, self:_fields(), {
      translate = function(f, problems, given) translate(family, f, problems, given) end,
      complete = function(c) complete_together(c, family) end,
      only = family.only, free = family.free, alias = family.alias, packing = family.packing,
   })
end

-- Returns the blocks, and the mixer of each.
function Llama:_blocks(c, opts)
   local family, blocks, mixers = self.family, {}, {}
   local rope = rope_of(c, family)
   for i = 1, c.num_hidden_layers do
      blocks[i], mixers[i] = layer(c, rope, opts, family, i)
   end
   return blocks, mixers, { rope = rope, norm_offset = family.norm_offset,
      embed_scale = family.embed_scale and family.embed_scale(c),
      scales_given = family.scales_given,
      out_scale = family.out_scale and family.out_scale(c) }
end

Llama._read_place = Backbone._read_without_sequence
Llama.at_fields = { 'positions', 'index', 'q_index', 'k_index', 'attention_mask', 'caches',
   'context', 'balance' }

return Llama
