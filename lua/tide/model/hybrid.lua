-- Hybrid decoder from a pattern of layers, as in Nemotron-H (arXiv 2504.03624): M is a Mamba-2
-- layer, * attention, - an MLP, each with its norm and residual. Field and parameter names are
-- those of the published checkpoints; see model/backbone.lua for calls.

local class = require 'tide.class'
local err = require 'tide.util.err'
local nn = require 'tide.nn'
local Backbone = require 'tide.model.backbone'

local op = 'model.hybrid'

local function count(o, name, v) return err.integer(o, name, v, 1) end
local function number(o, name, v) return err.number(o, name, v, 0) end
-- false: the library's choice; results do not depend on it.
local function grain(o, name, v) return v and err.integer(o, name, v, 1) end
local function flag(o, name, v) return err.type(o, name, v, 'boolean') end

local function pattern(o, name, v)
   err.type(o, name, v, 'string')
   if v == '' or v:find '[^M%*%-]' then
      err.arg(o, name, "a string of 'M' (Mamba), '*' (attention) and '-' (MLP)", v)
   end
   return v
end

local function limit(o, name, v) return v and err.type(o, name, v, 'table') end
local function theta(o, name, v) return v and err.number(o, name, v, 1) end

local function head_dim_of(c)
   if c.hidden_size % c.num_attention_heads ~= 0 then
      err.raise('E_ARG', op, 'hidden_size (%d) must be a multiple of num_attention_heads (%d), or '
         .. 'give head_dim', c.hidden_size, c.num_attention_heads)
   end
   return c.hidden_size / c.num_attention_heads
end

-- rope_theta false (the default): attention without positions, the state keeps the order.
local known = {
   { 'vocab_size', nil, count }, { 'hidden_size', nil, count },
   { 'hybrid_override_pattern', nil, pattern },
   { 'num_hidden_layers', function(c) return #tostring(c.hybrid_override_pattern) end, count },
   { 'num_attention_heads', function(c)
      return c.hybrid_override_pattern:find('*', 1, true) and c.hidden_size / 64 or 1
   end, count },
   { 'num_key_value_heads', function(c) return c.num_attention_heads end, count },
   { 'head_dim', head_dim_of, count },
   { 'intermediate_size', function(c) return 4 * c.hidden_size end, count },
   { 'mlp_hidden_act', 'relu2', function(o, name, v)
      return err.choice(o, name, v, { 'relu2', 'swiglu', 'gelu', 'gelu_tanh', 'relu', 'silu' })
   end },
   { 'attention_bias', false, flag }, { 'mlp_bias', false, flag }, { 'rope_theta', false, theta },
   { 'ssm_state_size', 128, count }, { 'mamba_head_dim', 64, count }, { 'expand', 2, number },
   { 'mamba_num_heads', function(c) return c.expand * c.hidden_size / c.mamba_head_dim end, count },
   { 'n_groups', 1, count }, { 'conv_kernel', 4, count }, { 'chunk_size', false, grain },
   { 'use_bias', false, flag }, { 'use_conv_bias', true, flag },
   { 'layer_norm_epsilon', 1e-5, number }, { 'initializer_range', 0.02, number },
   { 'time_step_min', 0.001, number }, { 'time_step_max', 0.1, number },
   { 'time_step_floor', 1e-4, number }, { 'time_step_limit', false, limit },
   { 'tie_word_embeddings', false, flag }, { 'max_position_embeddings', 4096, count },
}

-- Projections into the residual stream start smaller by sqrt(layers).
local function common(c, opts, extra)
   extra.std = c.initializer_range
   extra.out_std = c.initializer_range / math.sqrt(c.num_hidden_layers)
   extra.dim = c.hidden_size
   return nn.Module.inner(opts, extra)
end

local make = {}

function make.M(c, opts)
   return nn.Mamba2(common(c, opts, {
      state = c.ssm_state_size, conv = c.conv_kernel, heads = c.mamba_num_heads,
      head_dim = c.mamba_head_dim, groups = c.n_groups, chunk = c.chunk_size or nil,
      bias = c.use_bias, conv_bias = c.use_conv_bias, norm_eps = c.layer_norm_epsilon,
      dt_range = { c.time_step_min, c.time_step_max }, dt_floor = c.time_step_floor,
      dt_limit = c.time_step_limit or nil,
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

local Hybrid = class('HybridModel', Backbone)

-- opts: dtype, device ('null' for shapes only), seed, init.
function Hybrid:init(config, opts)
   opts = nn.Module.options(op, opts, {})
   local c = Backbone.read(op, config, known, Backbone.ignored)
   local kinds = c.hybrid_override_pattern
   if c.num_hidden_layers ~= #kinds then
      err.raise('E_ARG', op, "num_hidden_layers (%d) is not the length of the pattern '%s' (%d)",
         c.num_hidden_layers, kinds, #kinds)
   end
   if c.num_attention_heads % c.num_key_value_heads ~= 0 then
      err.raise('E_ARG', op, 'num_attention_heads (%d) must be a multiple of '
         .. 'num_key_value_heads (%d)', c.num_attention_heads, c.num_key_value_heads)
   end
   local rope = c.rope_theta and nn.rope.new { dim = c.head_dim, theta = c.rope_theta } or nil
   local mixers = {}
   for i = 1, #kinds do mixers[i] = make[kinds:sub(i, i)](c, opts, rope) end
   Backbone.init(self, op, c, mixers, opts)
end

return Hybrid
