-- Ministral decoder: Mistral whose windows are on the layers that layer_types names.

local class = require 'tide.class'
local config_ = require 'tide.model.config'
local Llama = require 'tide.model.llama'
local published = require 'tide.model.published'

local Ministral = class('Ministral', Llama)

Ministral.family = {
   op = 'model.ministral',
   fields = { { 'layer_types', published.optional } },
   defaults = { sliding_window = 4096, max_position_embeddings = 131072 },
   without = { attention_bias = config_.no_attention_bias, mlp_bias = config_.no_mlp_bias },
}

return Ministral
