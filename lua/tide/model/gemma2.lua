-- Gemma-2 text decoder: the block of Gemma-3 without norms of queries and keys, one rotary base,
-- windows on every other layer, soft caps on the scores of attention and on the logits.

local class = require 'tide.class'
local config_ = require 'tide.model.config'
local signature = require 'tide.util.signature'
local Gemma3 = require 'tide.model.gemma3'
local Llama = require 'tide.model.llama'
local published = require 'tide.model.published'

local op = 'model.gemma2'

local Gemma2 = class('Gemma2', Llama)

local positive = 'number > 0'

local gemma3 = Gemma3.family

Gemma2.family = {
   op = op, act = 'gelu_pytorch_tanh',
   fields = {
      { 'query_pre_attn_scalar', 256, positive },
      { 'attn_logit_softcapping', 50, positive, float = true },
      { 'final_logit_softcapping', 30, positive, float = true },
      { 'hidden_activation', 'gelu_pytorch_tanh', "'gelu_pytorch_tanh'" },
      { 'layer_types', published.optional },
   },
   defaults = {
      tie_word_embeddings = true, head_dim = 256, sliding_window = 4096,
      max_position_embeddings = 8192,
   },
   without = { mlp_bias = config_.no_mlp_bias },
   nullable = { 'attn_logit_softcapping', 'final_logit_softcapping' },
   only = { use_bidirectional_attention = false },
   where = signature.options { 'where sliding_window or layer_types -- argument '
      .. "'sliding_window': expected tokens that every other layer sees, got nil" },
   window = function(_, i) return i % 2 == 1 end,
   layer = function(c, _, mixer, mlp)
      mixer.scale = c.query_pre_attn_scalar ^ -0.5
      mixer.softcap = c.attn_logit_softcapping
      mlp.act = 'geglu_tanh'
   end,
   Block = Gemma3.Block, names = gemma3.names, norms = gemma3.norms, norm_offset = 1,
   embed_scale = gemma3.embed_scale,
}

return Gemma2
