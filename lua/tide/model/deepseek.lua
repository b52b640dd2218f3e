-- What the families with latent attention share: their fields, and the layer's options.

local config_ = require 'tide.model.config'
local experts = require 'tide.model.experts'
local nn = require 'tide.nn'
local signature = require 'tide.util.signature'

local deepseek = {}

local count = 'integer >= 1'

-- Returns the rows of the fields of latent attention, with the defaults of a family.
function deepseek.latent_fields(default)
   return {
      { 'q_lora_rank', default.q_latent, count }, { 'kv_lora_rank', 512, count },
      { 'qk_nope_head_dim', default.nope, count }, { 'qk_rope_head_dim', 64, 'integer >= 2' },
      { 'v_head_dim', default.value, count },
   }
end

-- Relations of these fields.
deepseek.fit = {
   'where num_key_value_heads == num_attention_heads -- num_key_value_heads '
      .. '({num_key_value_heads}) must be num_attention_heads ({num_attention_heads}): each head '
      .. 'has keys of its own',
}

-- Completes the fields f of a configuration: head_dim is the size that rotates.
function deepseek.translate(f, problems)
   local size = f.qk_rope_head_dim or 64
   if f.head_dim ~= nil and f.head_dim ~= size then
      problems[#problems + 1] = ("field 'head_dim': expected nil or qk_rope_head_dim (%s), got %s")
         :format(tostring(size), tostring(f.head_dim))
   end
   if type(size) == 'number' and size % 2 ~= 0 then
      problems[#problems + 1] = ("field 'qk_rope_head_dim': expected an even number, got %g")
         :format(size)
   end
   f.head_dim = size
end

-- Returns the factor of scores: with YaRN and mscale_all_dim larger than 1 / sqrt(channels).
local function scale_of(c)
   local s, scale = c.rope_scaling, (c.qk_nope_head_dim + c.qk_rope_head_dim) ^ -0.5
   if not s or (s.mscale_all_dim or 0) == 0 then return scale end
   return scale * nn.rope._mscale(s.factor, s.mscale_all_dim) ^ 2
end

-- Returns the mixer of a layer. o: options of nn.Attention.
function deepseek.mixer(c, o)
   o.kv_heads, o.head_dim, o.window = nil, nil, nil
   o.nope_dim, o.rope_dim, o.value_dim = c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim
   o.latent_dim, o.q_latent_dim = c.kv_lora_rank, c.q_lora_rank
   o.scale = scale_of(c)
   return nn.LatentAttention(o)
end

-- Returns the relations of a family with latent attention and experts in groups.
function deepseek.where()
   local list = {}
   for _, rows in ipairs { deepseek.fit, experts.fit_groups } do
      for _, row in ipairs(rows) do list[#list + 1] = row end
   end
   return signature.options(list)
end

deepseek.without = {
   sliding_window = { why = 'a DeepSeek model attends to all tokens before' },
   mlp_bias = config_.no_mlp_bias,
}

return deepseek
