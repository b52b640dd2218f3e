-- Phi-3 decoder: Llama with one matrix for queries, keys and values and one for gate and up.

local class = require 'tide.class'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local Llama = require 'tide.model.llama'

local Phi3 = class('Phi3', Llama)

local op = 'model.phi3'

Phi3.family = {
   op = op,
   fields = { 'resid_pdrop', 'embd_pdrop', 'original_max_position_embeddings',
      'partial_rotary_factor' },
   defaults = { resid_pdrop = 0, embd_pdrop = 0, partial_rotary_factor = 1 },
   complete = function(c)
      for k, v in each { resid_pdrop = 0, embd_pdrop = 0, partial_rotary_factor = 1 } do
         if not err.same(c[k], v) then err.arg(op, k, tostring(v), c[k]) end
      end
      local n = c.original_max_position_embeddings
      if n ~= nil then err.integer(op, 'original_max_position_embeddings', n, 1) end
   end,
   -- where it is not given, transformers takes 32000, which a small vocabulary does not have
   written = { 'eos_token_id', 'pad_token_id' },
   layer = function(_, _, mixer, mlp) mixer.fused, mlp.fused = true, true end,
}

return Phi3
