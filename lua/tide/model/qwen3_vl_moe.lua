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
local nn = require 'tide.nn'
local published = require 'tide.model.published'
local qwen3_moe = require('tide.model.qwen3_moe').family

local op = 'model.qwen3_vl_moe'

local VL = class('Qwen3_VL_MoE', Llama)

local Tower = class('Qwen3_VL_MoE_Vision', Vision)
Tower.described = Vision._of(op, { 'qwen3_vl_moe', 'qwen3_vl_moe_vision', 'qwen3_vl' })

VL.Vision, VL.ties_outside, VL._check_parts = Tower, true, Qwen3VL._check_parts
VL.text_types = { 'qwen3_vl_moe_text', 'qwen3_vl_moe' }

local fields = copy(Qwen3VL._own_fields)
for _, list in ipairs { experts.fields('num_experts', 60, 4), {
   { 'moe_intermediate_size', 1408, 'integer >= 1' }, { 'decoder_sparse_step', 1, 'integer >= 1' },
   { 'mlp_only_layers', published.optional, 'integer[] >= 0' },
} } do
   for _, row in ipairs(list) do fields[#fields + 1] = row end
end

local check_layers, check_vision = qwen3_moe.complete_for(op), Qwen3VL._complete_for(op)

VL.family = copy(Qwen3VL._shared_family, {
   op = op, fields = fields, alias = { num_local_experts = 'num_experts' },
   peft_experts = { router = 'gate' },
   defaults = { max_position_embeddings = 128000, rope_theta = 500000 },
   without = Qwen3VL.family.without,
   where = experts.fit 'num_experts', free = 'norm_topk_prob', window = false,
   layer = qwen3_moe.layer, has_experts = qwen3_moe.has_experts,
   complete = function(c)
      check_layers(c)
      check_vision(c)
   end,
   experts = function(c, i)
      return qwen3_moe.has_experts(c, i) and { hidden = c.moe_intermediate_size,
         experts = c.num_experts, topk = c.num_experts_per_tok, norm_topk = true } or nil
   end,
})

-- Returns the entry of a tensor of a file, in which parameters lie side by side; nil of one whose
-- numbers lie in NF4. shapes: of the parameters, by name.
local function entry_of(name, parts, shapes)
   local list, rows = {}, 0
   for i, own in ipairs(parts) do
      if not shapes[own] then return nil end
      list[i] = { name = own, shape = shapes[own], first = rows }
      rows = rows + shapes[own][2]
   end
   local n, _, columns = unpack(shapes[parts[1]])
   local plain = { name = name, parts = list, along = 2, shape = { n, rows, columns } }
   if rows == columns then return plain end
   return { name = name, parts = list, along = 2, shape = { n, columns, rows }, transposed = true,
      also = plain }
end

-- Tensors of a file that hold experts of a layer, and the parameters that lie in each.
local tensors = { { 'gate_up_proj', { 'gate_proj', 'up_proj' } }, { 'down_proj', { 'down_proj' } } }

-- Adds the entries of the experts of a layer to a list.
local function add_entries(list, path, shapes)
   local outer = config_.inner_name(path)
   for _, row in ipairs(tensors) do
      local parts = {}
      for i, field in ipairs(row[2]) do parts[i] = path .. '.' .. field end
      list[#list + 1] = entry_of(('%s.experts.%s'):format(outer, row[1]), parts, shapes)
   end
   local router = path .. '.router'
   list[#list + 1] = experts.renamed(outer .. '.gate.weight', router, shapes[router])
end

-- Returns the tensors of a published file, whose names differ (see model/stored.lua).
function VL:stored()
   local list, shapes, is_expert = {}, {}, {}
   for _, e in ipairs(self:named_parameters()) do
      shapes[e.name] = e.param.shape
      is_expert[e.name] = class.is(e.owner, nn.MoE)
   end
   for _, m in ipairs(self:named_modules()) do
      if class.is(m.module, nn.MoE) then add_entries(list, m.name, shapes) end
   end
   for _, e in ipairs(Qwen3VL.stored(self)) do
      if not is_expert[e.parts[1].name] then list[#list + 1] = e end
   end
   return list
end

-- Makes the fields of config.json of c, a complete configuration.
function VL.publish(c) Qwen3VL._publish_as(c, 'qwen3_vl_moe') end

return decoder.extend(VL)
