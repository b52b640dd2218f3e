-- Gemma-3 text decoder: norms before and after each branch with weights around zero, an RMSNorm
-- over each head of queries and keys, two rotary bases (local layers have a window and the short
-- one), GELU-gated MLP, embeddings scaled by sqrt(width), tied head.

local class = require 'tide.class'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local nn = require 'tide.nn'
local config_ = require 'tide.model.config'
local Llama = require 'tide.model.llama'
local published = require 'tide.model.published'

local op = 'model.gemma3'

local names = {
   norm1 = 'input_layernorm', mixer = 'self_attn', norm1_out = 'post_attention_layernorm',
   norm2 = 'pre_feedforward_layernorm', mlp = 'mlp', norm2_out = 'post_feedforward_layernorm',
}

local Block = class('Gemma3Block', nn.Module)
Block.mixes = false
Block.holds_parts = true

-- Makes a block. parts: mixer and mlp; norm1_out and norm2_out, which follow them; norm1 and norm2,
-- which precede them, or neither of these two.
function Block:init(parts)
   nn.Module.init(self)
   for _, part in ipairs { 'mixer', 'mlp', 'norm1', 'norm1_out', 'norm2', 'norm2_out' } do
      if parts[part] then self:child(names[part], parts[part]) end
   end
end

-- Returns the output [B, T, C] of an input x of the same shape. at: as for nn.Block.
function Block:forward(x, at)
   local n = self.input_layernorm and self.input_layernorm(x)
   local a = self.self_attn(n or x, at)
   if n then private.spend(n) end
   a = private.replace(a, self.post_attention_layernorm(a))
   local m, h
   if self.pre_feedforward_layernorm then
      m, h = self.pre_feedforward_layernorm(a, x)
      private.spend(a)
   else
      h = private.replace(a, x + a)
   end
   local y = nn.Block._call_mlp(self.mlp, m or h, at)
   if m then private.spend(m) end
   y = private.replace(y, self.post_feedforward_layernorm(y))
   local sum = h + y
   private.spend(h, y)
   return sum
end
private.note(Block.forward)

local Gemma3 = class('Gemma3', Llama)

local function window(c, i) return i % c.sliding_window_pattern ~= 0 end

local function complete(c)
   for i = 1, c.num_hidden_layers do
      err.arg_if(config_.has_window(c, i, window) and c.sliding_window == nil, op, 'sliding_window',
         ('tokens that the local layer %d sees'):format(i - 1), nil)
   end
end

local function layer(c, _, mixer, mlp)
   mixer.qk_norm = { eps = c.rms_norm_eps, offset = 1 }
   mixer.scale = c.query_pre_attn_scalar ^ -0.5
   mlp.act = 'geglu_tanh'
   if mixer.window then
      mixer.rope = nn.rope.new { dim = c.head_dim, theta = c.rope_local_base_freq }
   end
end

local count, positive = 'integer >= 1', 'number > 0'

-- Soft caps would change the numbers; Gemma-3 has none, and a file that has is of another family.
Gemma3.family = {
   op = op, act = 'gelu_pytorch_tanh',
   fields = {
      { 'query_pre_attn_scalar', 256, positive },
      { 'hidden_activation', 'gelu_pytorch_tanh', "'gelu_pytorch_tanh'" },
      { 'rope_local_base_freq', 1e4, 'number >= 1' },
      { 'layer_types', published.optional }, { 'sliding_window_pattern', 6, count },
   },
   defaults = {
      tie_word_embeddings = true, head_dim = 256, rope_theta = 1e6, sliding_window = 4096,
      max_position_embeddings = 131072,
   },
   alias = { _sliding_window_pattern = 'sliding_window_pattern' },
   only = { attn_logit_softcapping = false, final_logit_softcapping = false,
      use_bidirectional_attention = false },
   without = { mlp_bias = config_.no_mlp_bias },
   local_theta = 'rope_local_base_freq',
   complete = complete, window = window, layer = layer, Block = Block, names = names,
   norm_offset = 1,
   norms = { 'norm1', 'norm1_out', 'norm2', 'norm2_out' },
   embed_scale = function(c) return math.sqrt(c.hidden_size) end,
}

Gemma3.Block = Block

return Gemma3
