-- OLMo 2 decoder: Llama whose norms follow each branch, x + norm(mixer(x)), and an RMSNorm over
-- all heads together of the queries, and of the keys.

local class = require 'tide.class'
local config_ = require 'tide.model.config'
local Gemma3 = require 'tide.model.gemma3'
local Llama = require 'tide.model.llama'

local Olmo2 = class('Olmo2', Llama)

Olmo2.family = {
   op = 'model.olmo2',
   defaults = { rms_norm_eps = 1e-5 },
   without = { sliding_window = { why = 'an OLMo 2 attends to all tokens before' },
      mlp_bias = config_.no_mlp_bias },
   layer = function(c, _, mixer)
      mixer.qk_norm, mixer.qk_norm_whole = { eps = c.rms_norm_eps }, true
   end,
   Block = class('Olmo2Block', Gemma3.Block), names = Gemma3.family.names,
   norms = { 'norm1_out', 'norm2_out' },
}

return Olmo2
