-- Qwen3.5: the decoder of qwen3_5 that reads texts with images and videos, as all published folders
-- of Qwen3.5 have it. Tower, frames of videos, positions and names of files are those of Qwen3-VL,
-- without deepstack features. Layers with attention turn a part of each head by the positions of
-- time, height and width; gated delta nets have no positions.

local Qwen3VL = require 'tide.model.qwen3_vl'
local Qwen3_5 = require 'tide.model.qwen3_5'
local Vision = require 'tide.model.qwen3_vl_vision'
local class = require 'tide.class'
local config_ = require 'tide.model.vision_config'
local copy = require 'tide.util.copy'
local decoder = require 'tide.model.vision_decoder'
local published = require 'tide.model.published'

local op = 'model.qwen3_5_vl'

local VL = class('Qwen3_5_VL', Qwen3_5)

local Tower = class('Qwen3_5_Vision', Vision)
Tower.described = Vision._of(op, { 'qwen3_5', 'qwen3_5_vision' }, { deepstack = false })

VL.Vision, VL.text_types, VL.ties_outside = Tower, { 'qwen3_5_text' }, true
VL.frames_apart = true

-- Ids of tokens where a file has none.
local ids = { image_token_id = 248056, video_token_id = 248057 }

-- Fields of images, before those of the text.
VL._own_fields = {}
for i, row in ipairs(Qwen3VL._own_fields) do
   VL._own_fields[i] = ids[row[1]] and { row[1], ids[row[1]], row[3] } or row
end

-- Checks and completes the fields of images of the family `name`.
function VL._complete_images(c, name)
   config_.check_tokens(name, c)
   c.rope_scaling = config_.rope_scaling(name, c, Qwen3VL._sections(
      math.floor(c.head_dim * c.partial_rotary_factor) / 2, 33, 30), true)
end

-- Returns the entries of a family of these models, but its own. text: the family of its text model.
function VL._family_of(text)
   local family = copy(Qwen3VL._shared_family, copy(text))
   family.rename, family.sizes = nil, { unpack(Qwen3VL._shared_family.sizes) }
   for _, name in ipairs(text.sizes) do family.sizes[#family.sizes + 1] = name end
   family.only = copy(text.only, { language_model_only = false })
   return family
end

VL.family = copy({
   op = op, fields = published._rows(VL._own_fields, Qwen3_5.family.fields),
   complete = function(c, name)
      Qwen3_5.family.complete(c, name)
      VL._complete_images(c, name)
   end,
}, VL._family_of(Qwen3_5.family))

VL.stored = Qwen3VL.stored

-- Makes the fields of config.json of c, a complete configuration.
function VL.publish(c) Qwen3VL._publish_as(c, 'qwen3_5') end

return decoder.extend(VL)
