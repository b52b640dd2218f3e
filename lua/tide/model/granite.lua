-- Granite decoder: Llama with four multipliers: of the embeddings, of attention's scores, of both
-- branches of a block, and (as a divisor) of the logits.

local class = require 'tide.class'
local Llama = require 'tide.model.llama'

local Granite = class('Granite', Llama)

local number, positive = 'number', 'number > 0'

Granite.family = {
   op = 'model.granite',
   fields = {
      { 'embedding_multiplier', 1, number, float = true },
      { 'attention_multiplier', 1, number, float = true },
      { 'residual_multiplier', 1, number, float = true },
      { 'logits_scaling', 1, positive, float = true },
   },
   without = { sliding_window = { why = 'a Granite attends to all tokens before' } },
   layer = function(c, _, mixer) mixer.scale = c.attention_multiplier end,
   embed_scale = function(c) return c.embedding_multiplier end, scales_given = true,
   residual = function(c) return c.residual_multiplier end,
   out_scale = function(c) return 1 / c.logits_scaling end,
}

return Granite
