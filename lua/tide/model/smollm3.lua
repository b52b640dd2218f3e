-- SmolLM3 decoder: Llama whose layers do not all have rotary positions (no_rope_layers: 0 for those
-- without, by default every fourth), and windows on those that layer_types names.

local class = require 'tide.class'
local config_ = require 'tide.model.config'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local Llama = require 'tide.model.llama'
local published = require 'tide.model.published'

local SmolLM3 = class('SmolLM3', Llama)

local op = 'model.smollm3'

local flag, count = 'boolean', 'integer >= 1'

-- Reads a list with a number for each layer: 1 with rotary positions, 0 without.
local function layers(o, name, v)
   for i, has in ipairs(err.type(o, name, v, 'table')) do
      err.choice(o, ('%s[%d]'):format(name, i), has, { 0, 1 })
   end
end

local function every(c)
   local list = {}
   for i = 1, c.num_hidden_layers do list[i] = i % c.no_rope_layer_interval ~= 0 and 1 or 0 end
   return list
end

SmolLM3.family = {
   op = op,
   fields = {
      { 'no_rope_layer_interval', 4, count }, { 'no_rope_layers', every, layers },
      { 'use_sliding_window', false, flag }, { 'layer_types', published.optional },
   },
   defaults = { rope_theta = 2e6, tie_word_embeddings = true, max_position_embeddings = 32768 },
   free = 'max_window_layers',
   where = signature.options {
      "where #no_rope_layers == num_hidden_layers -- argument 'no_rope_layers': expected "
         .. '{num_hidden_layers} numbers, one for each layer, got {#no_rope_layers}',
   },
   complete = config_.check_window,
   window = function(c, i) return c.no_rope_layers[i] == 0 end,
   layer = function(c, i, mixer)
      if c.no_rope_layers[i] == 0 then mixer.rope = nil end
   end,
}

return SmolLM3
