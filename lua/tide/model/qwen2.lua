-- Qwen2 decoder: Llama with biases on the query, key and value projections, and a sliding window,
-- if it is switched on, from layer max_window_layers (counted from 0) on.

local class = require 'tide.class'
local config_ = require 'tide.model.config'
local Llama = require 'tide.model.llama'
local published = require 'tide.model.published'

local Qwen2 = class('Qwen2', Llama)

local flag, layers = 'boolean', 'integer >= 0'

Qwen2.family = {
   op = 'model.qwen2',
   fields = {
      { 'use_sliding_window', false, flag }, { 'max_window_layers', 28, layers },
      { 'layer_types', published.optional },
   },
   defaults = { max_position_embeddings = 32768 },
   without = { mlp_bias = config_.no_mlp_bias, attention_bias = { written = false,
      why = 'q_proj, k_proj and v_proj of a Qwen2 always have biases, o_proj never' } },
   complete = config_.check_window,
   window = function(c, i) return i > c.max_window_layers end,
   layer = function(_, _, mixer) mixer.bias, mixer.out_bias = true, false end,
}

return Qwen2
