-- OLMo 2 decoder: Llama whose norms come after each branch, x + norm(mixer(x)), and an RMSNorm over
-- all heads together of the queries, and of the keys.

local class = require 'tide.class'
local private = require 'tide.util.private'
local nn = require 'tide.nn'
local Llama = require 'tide.model.llama'

local names = {
   mixer = 'self_attn', norm1 = 'post_attention_layernorm', mlp = 'mlp',
   norm2 = 'post_feedforward_layernorm',
}

local Block = class('Olmo2Block', nn.Module)
Block.mixes = false

-- parts: mixer, norm1, mlp, norm2, each norm after the part before it.
function Block:init(parts)
   nn.Module.init(self)
   for _, part in ipairs { 'mixer', 'mlp', 'norm1', 'norm2' } do
      self:child(names[part], parts[part])
   end
end

-- x [B, T, C] -> the same shape. at: as of nn.Block.
function Block:forward(x, at)
   local a = self.self_attn(x, at)
   a = private.replace(a, self.post_attention_layernorm(a))
   local h = private.replace(a, x + a)
   local y = self.mlp(h)
   y = private.replace(y, self.post_feedforward_layernorm(y))
   local sum = h + y
   private.spend(h, y)
   return sum
end
private.note(Block.forward)

local Olmo2 = class('Olmo2', Llama)

Olmo2.family = {
   op = 'model.olmo2',
   defaults = { rms_norm_eps = 1e-5 },
   layer = function(c, _, mixer)
      mixer.qk_norm, mixer.qk_norm_whole = { eps = c.rms_norm_eps }, true
   end,
   Block = Block, names = names, norms = { 'norm1', 'norm2' },
}

return Olmo2
