-- Qwen3.5 with experts that reads texts with images and videos: qwen3_5_vl whose text model is that
-- of qwen3_5_moe.
--
-- Published files hold each projection of all experts of a layer in one tensor, the gate beside the
-- up projection; transformers 5 writes each expert apart, and so do files in FP8.

local Moe = require 'tide.model.qwen3_5_moe'
local Qwen3VL = require 'tide.model.qwen3_vl'
local Qwen3VLMoe = require 'tide.model.qwen3_vl_moe'
local Qwen3_5VL = require 'tide.model.qwen3_5_vl'
local Vision = require 'tide.model.qwen3_vl_vision'
local class = require 'tide.class'
local config_ = require 'tide.model.vision_config'
local copy = require 'tide.util.copy'
local decoder = require 'tide.model.vision_decoder'
local published = require 'tide.model.published'

local op = 'model.qwen3_5_moe_vl'

local VL = class('Qwen3_5_MoE_VL', Moe)

local Tower = class('Qwen3_5_MoE_Vision', Vision)
Tower.described = Vision._of(op, { 'qwen3_5_moe', 'qwen3_5_moe_vision' }, { deepstack = false })

VL.Vision, VL.text_types, VL.ties_outside = Tower, { 'qwen3_5_moe_text' }, true
VL.frames_apart = true

VL.family = copy({
   op = op, fields = published._rows(Qwen3_5VL._own_fields, Moe.family.fields),
   complete = function(c, name)
      Moe.family.complete(c, name)
      Qwen3_5VL._complete_images(c, name)
   end,
}, Qwen3_5VL._family_of(Moe.family))

-- Returns the tensors of a published file, whose names differ (see model/stored.lua).
function VL:stored() return Qwen3VLMoe._stored_as(self) end

-- Returns the tensors of a file with all experts of a layer together.
VL._stored_together = VL.stored

-- Returns the tensors of a file that holds each expert apart.
function VL:_stored_apart()
   local list, is_taken = {}, {}
   for i, entry in ipairs(Moe.stored(self)) do
      entry.name = config_.transformers_name(entry.name)
      list[i], is_taken[entry.parts[1].name] = entry, true
   end
   for _, entry in ipairs(Qwen3VL.stored(self)) do
      if not is_taken[entry.parts[1].name] then list[#list + 1] = entry end
   end
   return list
end

-- Makes the fields of config.json of c, a complete configuration.
function VL.publish(c) Qwen3VL._publish_as(c, 'qwen3_5_moe') end

return decoder.extend(VL)
