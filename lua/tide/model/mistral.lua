-- Mistral decoder: Llama with grouped keys and, unless it is null, a sliding window on each layer.

local class = require 'tide.class'
local config_ = require 'tide.model.config'
local Llama = require 'tide.model.llama'

local Mistral = class('Mistral', Llama)

Mistral.family = { op = 'model.mistral',
   defaults = { sliding_window = 4096, max_position_embeddings = 131072 },
   without = { attention_bias = config_.no_attention_bias, mlp_bias = config_.no_mlp_bias } }

return Mistral
