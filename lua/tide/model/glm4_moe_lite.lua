-- GLM-4.7-Flash decoder: DeepSeek-V3 with a list of the layers that have experts (mlp_layer_types;
-- by default all but the first).

local copy = require 'tide.util.copy'
local deepseek = require 'tide.model.deepseek'
local deepseek_v3 = require 'tide.model.deepseek_v3'
local err = require 'tide.util.err'
local experts = require 'tide.model.experts'
local published = require 'tide.model.published'

local op = 'model.glm4_moe_lite'

local Glm4MoeLite = experts.derive('Glm4MoeLite', experts.usual)

local of_experts = {}
for _, row in ipairs(experts.sigmoid_fields { experts = 64, topk = 4, hidden = 1536, scale = 1.8,
   groups = 1, topk_groups = 1, dense = 1 }) do
   if row[1] ~= 'first_k_dense_replace' then of_experts[#of_experts + 1] = row end
end
local fields = published._rows(deepseek.latent_fields { q_latent = 768, nope = 192, value = 256 },
   of_experts, { { 'mlp_layer_types', published.optional }, { 'rope_interleave', true, 'boolean' },
      { 'num_nextn_predict_layers', 0, 'integer >= 0' } })

-- Refuses a list that does not say of each layer what it has.
local function complete(c)
   local list = c.mlp_layer_types
   if list == nil then return end
   err.raise_if(#err.type(op, 'mlp_layer_types', list, 'table') ~= c.num_hidden_layers, 'E_ARG', op,
      "argument 'mlp_layer_types': expected a list of %d names, one for each layer, got a list of "
      .. '%d', c.num_hidden_layers, #list)
   for i, v in ipairs(list) do
      err.choice(op, ('mlp_layer_types[%d]'):format(i), v, { 'dense', 'sparse' })
   end
end

local of_v3 = deepseek_v3.family

Glm4MoeLite.family = copy({                      -- the rest is DeepSeek-V3's
   op = op, fields = fields, complete = complete, defaults = { rms_norm_eps = 1e-5,
      max_position_embeddings = 202752 },
   only = copy(of_v3.only, { first_k_dense_replace = 1 }),
   experts = function(c, i)
      local kinds = c.mlp_layer_types
      if kinds and kinds[i] == 'dense' or not kinds and i == 1 then return nil end
      return experts.of_sigmoid(c)
   end,
}, copy(of_v3))

experts.without_further_layers(Glm4MoeLite)

return Glm4MoeLite
