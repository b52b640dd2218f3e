-- Qwen3 decoder: Llama with an RMSNorm over each head of the queries and keys, heads whose size is
-- given apart from the width, and Qwen2's rule for the sliding window.

local class = require 'tide.class'
local config_ = require 'tide.model.config'
local Llama = require 'tide.model.llama'
local qwen2 = require('tide.model.qwen2').family

local Qwen3 = class('Qwen3', Llama)

Qwen3.family = {
   op = 'model.qwen3', fields = qwen2.fields,
   defaults = { head_dim = 128, max_position_embeddings = 32768 },
   without = { mlp_bias = config_.no_mlp_bias },
   complete = config_.check_window, window = qwen2.window,
   layer = function(c, _, mixer) mixer.qk_norm = { eps = c.rms_norm_eps } end,
}

return Qwen3
