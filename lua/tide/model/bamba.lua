-- Bamba decoder: Mamba-2 layers and, at attn_layer_indices (from 0), attention, each followed by a
-- gated MLP; rotary positions on a part of each head.

local class = require 'tide.class'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local nn = require 'tide.nn'
local Backbone = require 'tide.model.backbone'
local config_ = require 'tide.model.config'
local part = require 'tide.model.part'
local published = require 'tide.model.published'
local time_step = require 'tide.model.time_step'

local op = 'model.bamba'

local count, number, flag = 'integer >= 1', 'number >= 0', 'boolean'
local share, base = 'number in [1e-9, 1]', 'number >= 1'

local function head_dim_of(c) return c.mamba_expand * c.hidden_size / c.mamba_n_heads end

local rows = {
   { 'vocab_size', nil, count }, { 'hidden_size', nil, count },
   { 'num_hidden_layers', nil, count }, { 'num_attention_heads', nil, count },
   { 'num_key_value_heads', function(c) return c.num_attention_heads end, count },
   { 'intermediate_size', function(c) return 4 * c.hidden_size end, count },
   { 'attn_layer_indices', published.optional, 'integer[] >= 0' },
   { 'mamba_expand', 2, number }, { 'mamba_n_heads', 128, count },
   { 'mamba_d_head', head_dim_of, count }, { 'mamba_n_groups', 1, count },
   { 'mamba_d_state', 256, count },
   { 'mamba_d_conv', 4, 'integer in [2, 4]' },
   { 'mamba_chunk_size', 256, count }, { 'mamba_conv_bias', true, flag },
   { 'mamba_proj_bias', false, flag }, { 'attention_bias', false, flag },
   { 'mlp_bias', false, flag }, { 'rms_norm_eps', 1e-5, number, float = true },
   { 'initializer_range', 0.02, number, float = true, neutral = true },
   { 'tie_word_embeddings', false, flag },
   time_step.limit,
   { 'rope_theta', 10000, base }, { 'partial_rotary_factor', 0.5, share, float = true },
   { 'max_position_embeddings', 262144, count, neutral = true },
   { 'hidden_act', 'silu', "'silu'", neutral = true },
}

-- Makes attn_layer_indices of the lists of kinds that some files have in its place.
local function translate_layers(f)
   for _, name in ipairs { 'layers_block_type', 'layer_types' } do
      local list, at = f[name], {}
      f[name] = nil
      for i, kind in ipairs(type(list) == 'table' and list or {}) do
         if kind == 'attention' or kind == 'full_attention' then at[#at + 1] = i - 1 end
      end
      if list ~= nil and f.attn_layer_indices == nil then f.attn_layer_indices = at end
   end
end

-- Makes partial_rotary_factor of attn_rotary_emb, the channels of a head that turn.
local function translate_turned(f)
   local turned, heads, width = f.attn_rotary_emb, f.num_attention_heads, f.hidden_size
   if type(turned) == 'number' and type(heads) == 'number' and type(width) == 'number' then
      f.partial_rotary_factor = f.partial_rotary_factor or turned * heads / width
      f.attn_rotary_emb = nil
   end
end

-- Changes the fields of a file. transformers turns the share that rope_parameters says, 0.5 by
-- default, and does not read the other two fields: a file in which these say another is refused.
local function translate(f, problems)
   translate_layers(f)
   translate_turned(f)
   if f.mamba_d_head == 'auto' then f.mamba_d_head = nil end
   local is_file, said = f.model_type ~= nil, f.partial_rotary_factor
   f.partial_rotary_factor = not is_file and said or nil
   config_.translate_rope(f, problems)
   local read = f.partial_rotary_factor or 0.5
   if is_file and said ~= nil and said ~= read then
      problems[#problems + 1] = ("field 'partial_rotary_factor' (or attn_rotary_emb) says %s, and "
         .. 'transformers turns %s of each head; the field that it reads is '
         .. "'rope_parameters.partial_rotary_factor'"):format(err.show(said), err.show(read))
   end
end

local function complete(c)
   for i, at in ipairs(c.attn_layer_indices or {}) do
      err.integer(op, ('attn_layer_indices[%d]'):format(i), at, 0, c.num_hidden_layers - 1)
   end
end

local rules = {
   translate = translate, complete = complete, only = { attention_dropout = 0 },
   where = signature.options {
      'where num_attention_heads % num_key_value_heads == 0 and hidden_size % num_attention_heads '
         .. '== 0 -- num_attention_heads ({num_attention_heads}) must be a multiple of '
         .. 'num_key_value_heads ({num_key_value_heads}) and divide hidden_size ({hidden_size})' },
}

local function mamba(c, opts)
   return nn.Mamba2(part.of_layer(c, opts, {
      state = c.mamba_d_state, conv = c.mamba_d_conv, heads = c.mamba_n_heads,
      head_dim = c.mamba_d_head, groups = c.mamba_n_groups, chunk = c.mamba_chunk_size,
      bias = c.mamba_proj_bias, conv_bias = c.mamba_conv_bias, norm_eps = c.rms_norm_eps,
      dt_limit = c.time_step_limit or nil, recurrence_dtype = opts.recurrence_dtype,
   }))
end

local function attention(c, opts, rope)
   return nn.Attention(part.of_layer(c, opts, {
      heads = c.num_attention_heads, kv_heads = c.num_key_value_heads, rope = rope,
      bias = c.attention_bias, out_bias = c.attention_bias,
   }))
end

local Bamba = class('Bamba', Backbone)
Bamba.op, Bamba._rows, Bamba._rules = op, rows, rules
Bamba._options = { 'recurrence_dtype' }
Bamba.family = { sizes = { 'mamba_n_heads', 'mamba_d_head', 'mamba_d_state', 'mamba_n_groups',
   'mamba_d_conv' } }
Bamba._mamba = mamba

Bamba.form = {
   body = 'model', embed = 'embed_tokens', norm = 'final_layernorm', eps = 'rms_norm_eps',
   block = function(c, mixer, norm, opts)
      return nn.Block {
         names = { norm1 = 'input_layernorm', norm2 = 'pre_ff_layernorm', mlp = 'feed_forward',
            mixer = class.is(mixer, nn.Mamba2) and 'mamba' or 'self_attn' },
         mixer = mixer, norm1 = nn.RMSNorm(c.hidden_size, norm),
         norm2 = nn.RMSNorm(c.hidden_size, norm),
         mlp = nn.MLP(part.of_layer(c, opts, { hidden = c.intermediate_size, bias = c.mlp_bias })),
      }
   end,
}

-- Makes the fields of config.json of c, a complete configuration.
function Bamba.publish(c)
   c.time_step_limit = c.time_step_limit or { 0, math.huge }
   c.rope_parameters = { rope_type = 'default', rope_theta = c.rope_theta,
      partial_rotary_factor = c.partial_rotary_factor }
   c.partial_rotary_factor = nil
end

-- Returns the mixer of each layer.
function Bamba._mixers(c, opts)
   local size = c.hidden_size / c.num_attention_heads
   local rope = nn.rope.new { dim = math.floor(size * c.partial_rotary_factor),
      theta = c.rope_theta }
   local attends, mixers = {}, {}
   for _, at in ipairs(c.attn_layer_indices or {}) do attends[at + 1] = true end
   for i = 1, c.num_hidden_layers do
      mixers[i] = attends[i] and attention(c, opts, rope) or mamba(c, opts)
   end
   return mixers
end

return Bamba
