-- Llama-family decoder from a configuration table with the field names of published checkpoints.
--
-- Parameter names follow those checkpoints too (model.layers.0.self_attn.q_proj.weight), so a
-- state dict loads without a renaming table. Layers are numbered from 0 in names only.
-- Other families are subclasses with a `family` table: what their configuration has more (`fields`)
-- or does not have (`without`), and how their layers differ (see qwen2.lua). A plan that spreads
-- the vocabulary over ranks replaces the field head_loss(h, weight, labels, options) and sets
-- head_logits(h, weight).
-- Legend: B batch, T tokens, C model width, V vocabulary.

local tide = require 'tide'
local CausalLM = require 'tide.model.causal_lm'
local class = require 'tide.class'
local config_ = require 'tide.model.config'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local mask_ = require 'tide.nn.mask'
local nn = require 'tide.nn'

local Module = nn.Module

local required = { 'vocab_size', 'hidden_size', 'num_hidden_layers', 'num_attention_heads' }
local optional = {
   'intermediate_size', 'num_key_value_heads', 'head_dim', 'rms_norm_eps', 'rope_theta',
   'rope_scaling', 'tie_word_embeddings', 'attention_bias', 'mlp_bias', 'sliding_window',
   'max_position_embeddings', 'initializer_range', 'hidden_act', 'attention_dropout',
}

-- Usual hidden size of a gated MLP: 8/3 of the width, up to a multiple of 32.
local function default_hidden(dim) return math.ceil(dim * 8 / 3 / 32) * 32 end

local function check_heads(c, op)
   local H, K = c.num_attention_heads, c.num_key_value_heads
   if H % K ~= 0 then
      err.raise('E_ARG', op, 'num_attention_heads (%d) must be a multiple of '
         .. 'num_key_value_heads (%d)', H, K)
   end
   if not c.head_dim and c.hidden_size % H ~= 0 then
      err.raise('E_ARG', op, 'hidden_size (%d) must be a multiple of num_attention_heads (%d), '
         .. 'or give head_dim', c.hidden_size, H)
   end
   c.head_dim = err.integer(op, 'head_dim', c.head_dim or c.hidden_size / H, 2)
   if c.head_dim % 2 ~= 0 then
      err.raise('E_ARG', op, 'head_dim (%d) must be even for rotary positions', c.head_dim)
   end
end

-- A checked copy of a configuration with every default filled in.
local function complete(config, family)
   local op = family.op
   err.type(op, 'config', config, 'table')
   local c, null = {}, tide.json.null
   config_.check_names(op, config, { required, optional, family.fields or {} }, null)
   for k, v in each(family.defaults or {}) do c[k] = v end
   for k, v in each(config) do
      if v ~= null then c[k] = v else c[k] = nil end
   end
   config_.check_without(op, c, family.without)
   for _, k in ipairs(required) do err.integer(op, k, c[k], 1) end
   c.intermediate_size = err.integer(op, 'intermediate_size',
      c.intermediate_size or default_hidden(c.hidden_size), 1)
   c.num_key_value_heads = err.integer(op, 'num_key_value_heads',
      c.num_key_value_heads or c.num_attention_heads, 1)
   check_heads(c, op)
   c.rms_norm_eps = err.number(op, 'rms_norm_eps', c.rms_norm_eps or 1e-6, 0)
   c.rope_theta = err.number(op, 'rope_theta', c.rope_theta or 10000, 1)
   c.max_position_embeddings = err.integer(op, 'max_position_embeddings',
      c.max_position_embeddings or 2048, 1)
   c.initializer_range = err.number(op, 'initializer_range', c.initializer_range or 0.02, 0)
   for _, k in ipairs { 'tie_word_embeddings', 'attention_bias', 'mlp_bias' } do
      if c[k] ~= nil or not (family.without and family.without[k]) then
         c[k] = err.type(op, k, c[k] or false, 'boolean')
      end
   end
   if c.sliding_window ~= nil then err.integer(op, 'sliding_window', c.sliding_window, 1) end
   c.attention_dropout = err.number(op, 'attention_dropout', c.attention_dropout or 0, 0,
      1 - 1e-12)
   if c.rope_scaling ~= nil then nn.rope.check_scaling(op, c.rope_scaling) end
   config_.check_layer_types(op, c)
   local act = family.act or 'silu'
   if c.hidden_act then err.choice(op, 'hidden_act', c.hidden_act, { act }) end
   if family.complete then family.complete(c) end
   return c
end

local layer_names = {
   norm1 = 'input_layernorm', mixer = 'self_attn', norm2 = 'post_attention_layernorm', mlp = 'mlp',
}

-- The projections into the residual stream start smaller by sqrt(2 layers), which keeps the
-- variance of the stream independent of depth (Radford et al., 2019).
local function layer(c, rope, opts, family, i)
   local std = c.initializer_range
   local out_std = std / math.sqrt(2 * c.num_hidden_layers)
   local norm = Module.inner(opts, { eps = c.rms_norm_eps })
   local mixer = Module.inner(opts, {
      dim = c.hidden_size, heads = c.num_attention_heads, kv_heads = c.num_key_value_heads,
      head_dim = c.head_dim, bias = c.attention_bias, out_bias = c.attention_bias,
      rope = rope, std = std, out_std = out_std, dropout = c.attention_dropout,
      window = nn.window.of_tokens(family.op, 'sliding_window', c.sliding_window or nil),
   })
   local mlp = Module.inner(opts, {
      dim = c.hidden_size, hidden = c.intermediate_size, bias = c.mlp_bias, std = std,
      out_std = out_std,
   })
   if family.layer then family.layer(c, i, mixer, mlp) end
   local parts = { names = layer_names, mixer = nn.Attention(mixer), mlp = nn.MLP(mlp) }
   for _, name in ipairs(family.norms or { 'norm1', 'norm2' }) do
      norm.offset = family.norm_offset
      parts[name] = nn.RMSNorm(c.hidden_size, norm)
   end
   if family.norms then parts.names = family.names end
   return (family.Block or nn.Block)(parts)
end

local Body = class('LlamaModel', Module)
Body.mixes = false

-- c: the complete configuration; opts: as of every module; family: the fields of a family.
function Body:init(c, opts, family)
   Module.init(self)
   local rope = nn.rope.new { dim = c.head_dim, theta = c.rope_theta, scaling = c.rope_scaling }
   self:child('embed_tokens', nn.Embedding(c.vocab_size, c.hidden_size,
      Module.inner(opts, { std = c.initializer_range })))
   local blocks = {}
   for i = 1, c.num_hidden_layers do blocks[i] = layer(c, rope, opts, family, i) end
   self:child('layers', nn.Stack(blocks))
   self:child('norm', nn.RMSNorm(c.hidden_size,
      Module.inner(opts, { eps = c.rms_norm_eps, offset = family.norm_offset })))
   self.embed_scale = family.embed_scale and family.embed_scale(c)
end

-- ids [B, T] -> final hidden states [B, T, C]. at: where the tokens lie.
function Body:forward(ids_BT, at)
   local x_BTC = self.embed_tokens(ids_BT)
   if self.embed_scale then x_BTC = private.replace(x_BTC, x_BTC * self.embed_scale) end
   x_BTC = private.replace(x_BTC, self.layers(x_BTC, at))
   return private.replace(x_BTC, self.norm(x_BTC))
end
private.note(Body.forward)

local Llama = class('Llama', CausalLM)
Llama.mixes = false

Llama.family = {
   op = 'model.llama',
   -- files of Llama may have the field, and no program reads it there
   complete = function(c)
      if c.sliding_window ~= nil then
         err.arg('model.llama', 'sliding_window', 'nil or null: a Llama attends to all tokens '
            .. 'before; tide.model.mistral is the same with a window', c.sliding_window)
      end
   end,
}

-- opts: dtype, device ('null' for shapes only), seed, init.
function Llama:init(config, opts)
   local family = self.family
   opts = Module.options(family.op, opts, {})
   CausalLM.init(self, family.op, complete(config, family))
   self:child('model', Body(self.config, opts, family))
   self:make_head(opts)
   self:ready(opts)
end

-- The table that a tied head shares.
function Llama:embedding() return self.model.embed_tokens end

Llama.at_fields = { 'positions', 'index', 'q_index', 'k_index', 'attention_mask', 'caches',
   'context' }

-- opts: positions [B or 1, T] (default 0, 1, ...), index [B or 1, T, 2] of (document, position)
-- for packed streams, or q_index and k_index apart; attention_mask [B, T], 1 and 0 or documents
-- numbered from 1, in place of an index; caches, one table a layer, for generation;
-- context, of a sequence of which ids are this rank's part (parallel.cp), which gives positions.
local function placement(op, ids, opts)
   opts = err.options(op, opts, Llama.at_fields)
   local context = nn.context.of(op, opts, ids)
   local of_mask = mask_.of_call(op, opts, ids, context)
   local positions = opts.positions or context and context:positions(ids.device)
   if not positions then
      positions = tide.arange(ids:size(2), { dtype = 'i64', device = ids.device })
         :reshape(1, ids:size(2))
   end
   return {
      positions = positions, q_index = opts.q_index or opts.index,
      k_index = opts.k_index or opts.index, caches = opts.caches, context = opts.context,
      attention_mask = opts.attention_mask, mask_index = of_mask, mask_checked = true,
   }
end

-- Final hidden states [B, T, C].
function Llama:hidden(ids_BT, opts)
   self:check_ids(ids_BT)
   return self.model(ids_BT, placement(self.op, ids_BT, opts))
end
private.note(Llama.hidden)

-- Multiply-adds count two: 6 N for the weights plus causal attention, per token of training.
function Llama:flops_per_token(seq)
   err.number(self.op, 'seq', seq, 0)
   local c = self.config
   local mixing = c.num_hidden_layers * c.num_attention_heads * c.head_dim
   return 6 * (self:multiplying() + mixing * seq)
end

return Llama
