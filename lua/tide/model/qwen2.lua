-- Qwen2 decoder: Llama with biases on the query, key and value projections, and a sliding window,
-- if it is switched on, from layer max_window_layers (counted from 0) on.

local class = require 'tide.class'
local config_ = require 'tide.model.config'
local err = require 'tide.util.err'
local Llama = require 'tide.model.llama'
local published = require 'tide.model.published'

local Qwen2 = class('Qwen2', Llama)

local flag, layers = 'boolean', 'integer >= 0'

local function complete_for(op)
   return function(c)
      err.arg_if(c.use_sliding_window and c.sliding_window == nil, op, 'sliding_window',
         'tokens that a layer sees, with use_sliding_window', nil)
      for i = 1, c.layer_types and not c.use_sliding_window and #c.layer_types or 0 do
         if c.layer_types[i] == 'sliding_attention' then
            err.arg(op, ('layer_types[%d]'):format(i), "'full_attention' where "
               .. 'use_sliding_window is false', c.layer_types[i])
         end
      end
   end
end

Qwen2.family = {
   op = 'model.qwen2',
   fields = {
      { 'use_sliding_window', false, flag }, { 'max_window_layers', 28, layers },
      { 'layer_types', published.optional },
   },
   defaults = { max_position_embeddings = 32768 },
   without = { mlp_bias = config_.no_mlp_bias, attention_bias = { written = false,
      why = 'q_proj, k_proj and v_proj of a Qwen2 always have biases, o_proj never' } },
   complete = complete_for 'model.qwen2',
   window = function(c, i) return i > c.max_window_layers end,
   layer = function(_, _, mixer) mixer.bias, mixer.out_bias = true, false end,
   complete_for = complete_for,
}

return Qwen2
