-- Qwen3-VL-MoE: Qwen3-VL whose text model has experts, as Qwen3 MoE has them. The weights of the
-- experts that a token chooses always add up to 1.
--
-- Files hold each projection of all experts of a layer in one tensor, the gate beside the up
-- projection. Published files have them transposed, those of transformers 5 do not; a square one is
-- not.

local Llama = require 'tide.model.llama'
local Qwen3VL = require 'tide.model.qwen3_vl'
local Vision = require 'tide.model.qwen3_vl_vision'
local class = require 'tide.class'
local config_ = require 'tide.model.vision_config'
local copy = require 'tide.util.copy'
local decoder = require 'tide.model.vision_decoder'
local experts = require 'tide.model.experts'
local lora_moe = require 'tide.nn.lora_moe'
local mixtures = require 'tide.nn.mixtures'
local nn = require 'tide.nn'
local published = require 'tide.model.published'
local qwen3_moe = require('tide.model.qwen3_moe').family

local op = 'model.qwen3_vl_moe'

local VL = class('Qwen3_VL_MoE', Llama)

local Tower = class('Qwen3_VL_MoE_Vision', Vision)
Tower.described = Vision._of(op, { 'qwen3_vl_moe', 'qwen3_vl_moe_vision', 'qwen3_vl' })

VL.Vision, VL.ties_outside, VL._check_parts = Tower, true, Qwen3VL._check_parts
VL.text_types, VL.frames_apart = { 'qwen3_vl_moe_text', 'qwen3_vl_moe' }, true

local fields = published._rows(Qwen3VL._own_fields, experts.fields('num_experts', 60, 4),
   experts.layer_fields, { { 'moe_intermediate_size', 1408, 'integer >= 1' } })

VL.family = copy(Qwen3VL._shared_family, {
   op = op, fields = fields, alias = { num_local_experts = 'num_experts' },
   peft_experts = { router = 'gate' },
   defaults = { max_position_embeddings = 128000, rope_theta = 500000 },
   without = Qwen3VL.family.without,
   where = experts.fit 'num_experts', free = 'norm_topk_prob', window = false,
   layer = qwen3_moe.layer,
   complete = function(c)
      qwen3_moe.complete(c, op)
      Qwen3VL.family.complete(c, op)
   end,
   experts = function(c, i)
      return experts.is_in_layer(c, i) and { hidden = c.moe_intermediate_size,
         experts = c.num_experts, topk = c.num_experts_per_tok, norm_topk = true } or nil
   end,
})

-- Returns the entry of a tensor of a file, in which parameters of a layer lie side by side; nil of
-- one whose numbers lie in NF4. names: of the parameters.
local function turned_entry(name, layer, names)
   local plain = experts.joined(name, layer, names)
   if not plain or plain.shape[2] == plain.shape[3] then return plain end
   return copy({ also = plain }, experts.joined(name, layer, names, { transposed = true }))
end

-- Returns the tensors of a published file that holds each projection of all experts of a layer in
-- one. entry_of: as of experts.add_together.
function VL:_stored_as(entry_of)
   local list, is_expert = {}, {}
   for _, e in ipairs(self:named_parameters()) do is_expert[e.name] = class.is(e.owner, nn.MoE) end
   for _, layer in ipairs(mixtures(self)) do
      local block = config_.transformers_name(lora_moe.block(layer.path))
      experts.add_together(list, layer, block, entry_of)
   end
   for _, e in ipairs(Qwen3VL.stored(self)) do
      if not is_expert[e.parts[1].name] then list[#list + 1] = e end
   end
   return list
end

-- Returns the tensors of a published file, whose names differ (see model/stored.lua).
function VL:stored() return self:_stored_as(turned_entry) end

-- Makes the fields of config.json of c, a complete configuration.
function VL.publish(c) Qwen3VL._publish_as(c, 'qwen3_vl_moe') end

return decoder.extend(VL)
