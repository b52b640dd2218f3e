-- Mamba-2 language model (arXiv 2405.21060) from a configuration with the field names of published
-- checkpoints; see model/backbone.lua for names and calls.

local class = require 'tide.class'
local err = require 'tide.util.err'
local nn = require 'tide.nn'
local Backbone = require 'tide.model.backbone'
local part = require 'tide.model.part'
local published = require 'tide.model.published'
local time_step = require 'tide.model.time_step'

local op = 'model.mamba2'

local count, taps, number = 'integer >= 1', 'integer in [2, 4]', 'number >= 0'
-- false: the library's choice; results do not depend on it.
local grain, flag, silu = 'false | integer >= 1', 'boolean', "'silu' | 'swish'"
local function yes(o, name, v)
   return v == true or err.arg(o, name, 'true: the only norm there is', v)
end

local rows = published._rows(time_step.fields, {
   { 'vocab_size', nil, count }, { 'hidden_size', nil, count },
   { 'num_hidden_layers', nil, count },
   { 'state_size', 128, count }, { 'head_dim', 64, count }, { 'expand', 2, number },
   { 'num_heads', function(c) return c.expand * c.hidden_size / c.head_dim end, count },
   { 'n_groups', 1, count }, { 'conv_kernel', 4, taps },
   { 'chunk_size', false, grain, neutral = true },
   { 'use_bias', false, flag }, { 'use_conv_bias', true, flag },
   { 'layer_norm_epsilon', 1e-5, number, float = true },
   { 'initializer_range', 0.1, number, float = true, neutral = true },
   { 'tie_word_embeddings', true, flag }, { 'hidden_act', 'silu', silu, neutral = true },
   { 'rms_norm', true, yes },
   { 'max_position_embeddings', 2^31 - 1, count, neutral = true },
})

-- The gate is applied before the norm whatever norm_before_gate says, as in the published model.
local rules = {
   free = 'residual_in_fp32 rescale_prenorm_residual time_step_rank norm_before_gate',
}

local Mamba2 = class('Mamba2Model', Backbone)
Mamba2.op, Mamba2._rows, Mamba2._rules = op, rows, rules
Mamba2._options = { 'recurrence_dtype' }
Mamba2.family = { sizes = { 'num_heads', 'n_groups', 'state_size', 'conv_kernel' },
   peft_refuses = 'out_proj' }

-- Makes the fields of config.json of c, a complete configuration: choices of the library become
-- values that every reader accepts.
function Mamba2.publish(c)
   c.chunk_size, c.time_step_limit = c.chunk_size or 256, c.time_step_limit or { 0, math.huge }
   c.expand = c.num_heads * c.head_dim / c.hidden_size
end

-- Returns the mixer of each layer.
function Mamba2._mixers(c, opts)
   local mixers = {}
   for i = 1, c.num_hidden_layers do
      mixers[i] = nn.Mamba2(part.options(c, opts, c.num_hidden_layers, {
         state = c.state_size, conv = c.conv_kernel, heads = c.num_heads,
         head_dim = c.head_dim, groups = c.n_groups, chunk = c.chunk_size or nil, bias = c.use_bias,
         conv_bias = c.use_conv_bias, norm_eps = c.layer_norm_epsilon,
         dt_range = time_step.range(c), dt_floor = c.time_step_floor,
         dt_limit = c.time_step_limit or nil, recurrence_dtype = opts.recurrence_dtype,
      }))
   end
   return mixers
end

return Mamba2
