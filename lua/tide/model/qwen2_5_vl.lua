-- Qwen2.5-VL: a Qwen2 decoder that reads texts with images and videos (arXiv 2502.13923). The times
-- of frames follow from second_per_grid_ts.

local Qwen2 = require 'tide.model.qwen2'
local Vision = require 'tide.model.qwen2_5_vl_vision'
local class = require 'tide.class'
local config_ = require 'tide.model.vision_config'
local copy = require 'tide.util.copy'
local decoder = require 'tide.model.vision_decoder'

local op = 'model.qwen2_5_vl'

local VL = class('Qwen2_5_VL', Qwen2)

VL.Vision, VL.text_types = Vision, { 'qwen2_5_vl_text', 'qwen2_5_vl' }

local fields = copy(config_.fields)
for _, row in ipairs(Qwen2.family.fields) do
   fields[#fields + 1] = row[1] == 'max_window_layers' and { row[1], 80, row[3] } or row
end

-- Sections of the positions for time, height and width, where a file has none: those of published
-- models, 16, 24 and 24 of 64.
local function sections(head_dim)
   local n = head_dim / 2
   local side = math.floor(n * 3 / 8)
   return { n - 2 * side, side, side }
end

local function complete(c)
   Qwen2.family.complete(c, op)
   config_.check_tokens(op, c)
   c.rope_scaling = config_.rope_scaling(op, c, sections(c.head_dim), false)
end

VL.family = copy(Qwen2.family)
copy({
   op = op, fields = fields, complete = complete,
   counts = { 'depth' }, sizes = { 'num_heads', 'out_hidden_size', 'in_channels', 'in_chans' },
   defaults = { max_position_embeddings = 32768, rope_theta = 1e6, rms_norm_eps = 1e-5 },
   rename = config_.own_name,                -- from names in transformers
   peft = config_.transformers_name,                -- the reverse
}, VL.family)

-- Makes the fields of config.json of c, a complete configuration: those of text beside the table of
-- the tower, as all versions of transformers read them.
function VL.publish(c)
   local v, rope = config_.published_tower(c.vision_config, 'qwen2_5_vl'), copy(c.rope_scaling)
   v.in_chans = v.in_channels
   if rope.rope_type == 'default' then rope.rope_type, rope.type = nil, 'mrope' end
   c.vision_config, c.rope_scaling = v, rope
end

return decoder.extend(VL)
