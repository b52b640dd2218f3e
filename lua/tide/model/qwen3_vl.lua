-- Qwen3-VL: a Qwen3 decoder that reads texts with images and videos (arXiv 2511.21631). Each frame
-- of a video is apart in the text, behind its time in words. The positions of time, height and
-- width take turns over the frequencies, and the first layers add deepstack features of the tower.
--
-- Published files call the parts model.visual and model.language_model; parameters have the names
-- of Qwen3 and visual.* here.

local Qwen3 = require 'tide.model.qwen3'
local Vision = require 'tide.model.qwen3_vl_vision'
local class = require 'tide.class'
local config_ = require 'tide.model.vision_config'
local copy = require 'tide.util.copy'
local decoder = require 'tide.model.vision_decoder'
local err = require 'tide.util.err'
local stored = require 'tide.model.stored'

local op = 'model.qwen3_vl'

local VL = class('Qwen3_VL', Qwen3)

local Tower = class('Qwen3_VL_Vision', Vision)
Tower.described = Vision._of(op, { 'qwen3_vl', 'qwen3_vl_vision' })

VL.Vision, VL.text_types, VL.ties_outside = Tower, { 'qwen3_vl_text', 'qwen3_vl' }, true
VL.frames_apart = true

local fields = {}
for _, row in ipairs(config_.fields) do
   if row[1] ~= 'vision_token_id' then fields[#fields + 1] = row end
end
VL._own_fields = fields

-- Returns the sections of the positions of n frequencies where a file has none: time, height and
-- width take turns, the latter two below the frequencies `high` and `wide`.
function VL._sections(n, high, wide)
   local counts, ends = { 0, 0, 0 }, { n, high, wide }
   for i = 0, n - 1 do
      local turn = i < ends[i % 3 + 1] and i % 3 + 1 or 1
      counts[turn] = counts[turn] + 1
   end
   return counts
end

-- Checks and completes a configuration of the family `name`.
local function complete(c, name)
   config_.check_tokens(name, c)
   c.rope_scaling = config_.rope_scaling(name, c, VL._sections(c.head_dim / 2, 60, 60),
      true)
end

-- Refuses more deepstack features than layers that add them. name: of the family in errors.
function VL._check_parts(name, c)
   local n = #c.vision_config.deepstack_visual_indexes
   err.arg_if(n > c.num_hidden_layers, name, 'vision_config.deepstack_visual_indexes',
      ('at most %d blocks, one for each layer of the text'):format(c.num_hidden_layers), n)
end

-- What a family of these models has beside that of its text model.
VL._shared_family = {
   -- names of modules in transformers, and the reverse
   peft = config_.transformers_name, from_peft = config_.own_name,
   -- fields that count layers, and fields that are a factor of the size of a tensor
   counts = { 'depth' }, sizes = { 'num_heads', 'out_hidden_size', 'in_channels',
      'num_position_embeddings', 'moe_intermediate_size' },
}

VL.family = copy(VL._shared_family, copy(Qwen3.family))
copy({
   op = op, fields = fields, complete = complete, window = false,
   defaults = { head_dim = 128, max_position_embeddings = 128000, rope_theta = 500000 },
   without = copy(Qwen3.family.without, { sliding_window = {
      why = 'the text of a Qwen3-VL attends to all tokens before' } }),
}, VL.family)

-- Returns the tensors of a published file, whose names differ (see model/stored.lua).
function VL:stored() return stored.all_renamed(self, config_.transformers_name) end

-- Makes the fields of config.json of c, a complete configuration. kind: its model_type.
function VL._publish_as(c, kind)
   config_.nest(c, kind .. '_text', config_.published_tower(c.vision_config, kind))
end

-- Makes the fields of config.json of c, a complete configuration.
function VL.publish(c) VL._publish_as(c, 'qwen3_vl') end

return decoder.extend(VL)
