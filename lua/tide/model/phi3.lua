-- Phi-3 and Phi-4 decoder: Llama with one matrix for queries, keys and values and one for gate and
-- up; rotary positions on the first channels of a head (partial_rotary_factor).

local class = require 'tide.class'
local config_ = require 'tide.model.config'
local Llama = require 'tide.model.llama'
local published = require 'tide.model.published'

local Phi3 = class('Phi3', Llama)

local count, share = 'integer >= 1', 'number in [1e-9, 1]'

Phi3.family = {
   op = 'model.phi3',
   fields = {
      { 'original_max_position_embeddings', published.optional, count },
      { 'partial_rotary_factor', 1, share, float = true },
   },
   defaults = { rms_norm_eps = 1e-5, max_position_embeddings = 4096 },
   without = { attention_bias = config_.no_attention_bias, mlp_bias = config_.no_mlp_bias },
   only = { resid_pdrop = 0, embd_pdrop = 0, full_attn_mod = 1, interpolate_factor = 1,
      lm_head_bias = false },
   layer = function(_, _, mixer, mlp) mixer.fused, mlp.fused = true, true end,
}

return Phi3
