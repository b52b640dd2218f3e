-- Qwen2 decoder: Llama with biases on the query, key and value projections, and a sliding window,
-- if it is switched on, from layer max_window_layers (counted from 0) on.

local class = require 'tide.class'
local Llama = require 'tide.model.llama'

local Qwen2 = class('Qwen2', Llama)

-- Whether the layer (from 1) has a window; layer_types, one name a layer, goes first.
local function has_window(c, i)
   if c.layer_types then return c.layer_types[i] == 'sliding_attention' end
   return c.use_sliding_window and i > c.max_window_layers
end

Qwen2.family = {
   op = 'model.qwen2',
   fields = { 'use_sliding_window', 'max_window_layers', 'layer_types' },
   defaults = { use_sliding_window = false, max_window_layers = 28 },
   layer = function(c, i, mixer)
      mixer.bias, mixer.out_bias = true, false
      if not has_window(c, i) then mixer.window = nil end
   end,
   has_window = has_window,
}

return Qwen2
