-- Gemma 3 with images: a Gemma-3 text decoder behind a SigLIP tower (arXiv 2503.19786). Each image
-- is mm_tokens_per_image tokens, which see each other, later ones too; all else is causal. Rotary
-- positions are those of a text.
--
-- Published files call the parts language_model.model, vision_tower.vision_model and
-- multi_modal_projector; parameters have the names of Gemma 3 and visual.* here.

local Gemma3 = require 'tide.model.gemma3'
local Vision = require 'tide.model.gemma3_vl_vision'
local class = require 'tide.class'
local config_ = require 'tide.model.vision_config'
local copy = require 'tide.util.copy'
local decoder = require 'tide.model.vision_decoder'
local each = require 'tide.util.each'
local published = require 'tide.model.published'
local stored = require 'tide.model.stored'

local op = 'model.gemma3_vl'

local VL = class('Gemma3_VL', Gemma3)

VL.Vision, VL.text_types, VL.ties_outside = Vision, { 'gemma3_text', 'gemma3' }, true
VL.only_images, VL.plain_positions, VL.sees_whole_images = true, true, true
VL.wraps_images = true

-- ---- names of tensors --------------------------------------------------------------------------

-- Returns the name here of a tensor or module of a file, in any of the spellings of transformers;
-- nil for the pooling head of the tower, which nothing reads.
local function own_name(name)
   local inner = name:gsub('^model%.(vision_tower%.)', '%1'):gsub('^model%.(multi_modal_)', '%1')
      :gsub('^model%.language_model%.', 'language_model.model.')
   inner = inner:gsub('^vision_tower%.vision_model%.', 'vision_tower.')
   if inner:find '^vision_tower%.head%.' then return nil end
   return (inner:gsub('^vision_tower%.', 'visual.')
      :gsub('^multi_modal_projector%.', 'visual.projector.')
      :gsub('^language_model%.model%.', 'model.'):gsub('^language_model%.lm_head', 'lm_head'))
end

-- Returns the name in published files of a parameter.
local function published_name(name)
   return (name:gsub('^model%.', 'language_model.model.')
      :gsub('^lm_head', 'language_model.lm_head')
      :gsub('^visual%.projector%.', 'multi_modal_projector.')
      :gsub('^visual%.', 'vision_tower.vision_model.'))
end

-- Returns the name of a module in transformers 5.
local function module_name(name)
   return (name:gsub('^model%.', 'model.language_model.')
      :gsub('^visual%.projector%.', 'model.multi_modal_projector.')
      :gsub('^visual%.', 'model.vision_tower.'))
end

-- Returns the tensors of a published file, whose names differ (see model/stored.lua).
function VL:stored() return stored.all_renamed(self, published_name) end

-- ---- configurations ----------------------------------------------------------------------------

local token, count = 'integer >= 0', 'integer >= 1'

local fields = published._rows({
   { 'vision_config', nil, function(_, _, v) return v end },
   { 'image_token_id', 262144, token }, { 'vision_start_token_id', 255999, token },
   { 'vision_end_token_id', 256000, token }, { 'mm_tokens_per_image', 256, count },
}, Gemma3.family.fields)

-- Names of files for fields that other families with a tower have, too.
local alias = { image_token_index = 'image_token_id', boi_token_index = 'vision_start_token_id',
   eoi_token_index = 'vision_end_token_id' }

-- Checks and completes a configuration.
local function complete(c, name)
   config_.check_token(name, c, 'image_token_index', c.image_token_id)
   Gemma3.family.complete(c, name)
end

-- Completes the configuration of the tower with that of the text.
function VL._check_parts(name, c) Vision.complete(name, c.vision_config, c.mm_tokens_per_image) end

VL.family = copy({
   op = op, fields = fields, complete = complete,
   alias = copy(alias, copy(Gemma3.family.alias)),
   defaults = copy({ vocab_size = 262208, hidden_size = 2304, intermediate_size = 9216,
      num_hidden_layers = 26, num_attention_heads = 8, num_key_value_heads = 4 },
      copy(Gemma3.family.defaults)),
   rename = own_name, peft = module_name,
   counts = { 'depth' }, sizes = { 'num_heads', 'in_channels' },
}, copy(Gemma3.family))

-- Makes the fields of config.json of c, a complete configuration.
function VL.publish(c)
   config_.nest(c, 'gemma3_text', Vision.published(c.vision_config))
   for name, own in each(alias) do c[name], c[own] = c[own], nil end
end

return decoder.extend(VL)
