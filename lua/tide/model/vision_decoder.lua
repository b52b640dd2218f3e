-- Decoders that read texts with images and videos: the classes of published families.
--
-- A vision tower, `model.visual`, makes a feature for each token of image_token_id or
-- video_token_id, which takes the place of its embedding. Rotary positions have three rows (M-RoPE:
-- time, height and width). A tower may make deepstack features, too, which the outputs of the first
-- layers get added. Parameters have the names visual.* and those of the text model.
--
-- The parts: vision_config reads configurations; vision_grid counts patches, positions and pictures
-- of rows of ids; vision_place makes positions and feature rows of a batch; vision_tower has what
-- towers share; vision_features runs a tower, also over ranks; vision_inputs puts its features into
-- embeddings; vision_spans makes tokens of an image see each other. vision.lua is a tower by
-- itself, apart from these families.
--
-- Legend: B batch, T tokens, N and M patches, P numbers of a patch.

local Backbone = require 'tide.model.backbone'
local CausalLM = require 'tide.model.causal_lm'
local Llama = require 'tide.model.llama'
local config_ = require 'tide.model.vision_config'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local features = require 'tide.model.vision_features'
local image_fields = require 'tide.nn.image_fields'
local inputs = require 'tide.model.vision_inputs'
local place = require 'tide.model.vision_place'
local signature = require 'tide.util.signature'
local spread = require 'tide.nn.spread'

local decoder, methods = {}, {}

-- ---- the parts ---------------------------------------------------------------------------------

-- Returns the blocks of the text, after the tower: parts are named in the order in which they run.
function methods:_blocks(c, opts)
   self:child('visual', self.Vision(c.vision_config, opts))
   return Llama._blocks(self, c, opts)
end

-- Returns how many numbers multiply something for each token: those of the text.
function methods:multiplying()
   if spread.of(self).pp then return CausalLM.multiplying(self) end
   return CausalLM.multiplying(self) - CausalLM._whole_numel(self.visual)
end

-- Returns how many blocks the first stage of a pipeline needs: those that add deepstack features.
function methods:first_blocks()
   return math.max(1, #(self.config.vision_config.deepstack_visual_indexes or {}))
end

-- Keeps what a stage of parallel.pipeline_parallel runs: the tower lies on the first one, with the
-- blocks that add deepstack features.
function methods:_cut_stage(stage)
   local least, n = self:first_blocks(), stage.counts[1]
   err.raise_if(least > n, 'E_ARG', self.op, 'the first %d layers add deepstack features of '
      .. 'images, and the first of %d pipeline stages has %d; give it as many (layers of '
      .. 'pipeline_parallel, --pp.layers), or take fewer stages', least, stage.size, n)
   Llama._cut_stage(self, stage)
   if not stage.first then self:_remove 'visual' end
end

-- ---- options of a call -------------------------------------------------------------------------

local of_images = {
   'pixel_values: tensor? [N, P] of f32, f64, bf16, f16 -- patches of all images, as image '
      .. 'processors make them',
   'image_grid_thw: any? -- frames, rows and columns of patches of each image, [images, 3]',
   'where (pixel_values ~= nil) == (image_grid_thw ~= nil) -- pixel_values and image_grid_thw: '
      .. 'give both of them or none',
}

local of_videos = {
   'pixel_values_videos: tensor? [M, P] of f32, f64, bf16, f16 -- those of all videos',
   'video_grid_thw: any? -- frames, rows and columns of patches of each video, [videos, 3]',
   'where (pixel_values_videos ~= nil) == (video_grid_thw ~= nil) -- pixel_values_videos and '
      .. 'video_grid_thw: give both of them or none',
}

local of_seconds = 'second_per_grid_ts: any? -- seconds from frame to frame of each video; 1 by '
   .. 'default'

local of_rows = 'feature_rows: tensor? [batch, tokens] of i64 -- the feature of each token, see '
   .. 'feature_rows'

-- ---- classes -----------------------------------------------------------------------------------

-- Returns the names of lists, joined.
local function names_of(...)
   local names = {}
   for _, list in ipairs { ... } do
      for _, name in ipairs(list) do names[#names + 1] = name end
   end
   return names
end

-- Returns whether a list has a name.
local function has(list, name)
   for _, other in ipairs(list) do
      if other == name then return true end
   end
   return false
end

-- Returns the signature of a door that takes ids and where images lie. seconds: the list of its
-- option of seconds, or an empty one.
local function door_of(op, seconds)
   return { 'ids: tensor [B, T] of i64, i32', op = op, opts = {
      'image_grid_thw: any? -- frames, rows and columns of patches of each image, [images, 3]',
      'video_grid_thw: any? -- those of each video', seconds,
      'attention_mask: tensor? [B or 1, T] -- 1 and 0, or documents from 1',
      'index: tensor? [B or 1, T, 2 or 3] -- in its place: pairs (document, position)' } }
end

-- Completes a class of text models derived from llama.lua, whose own _blocks, _read, _cut_stage and
-- _inputs give way to those of models with a tower. It has `family` and
--    Vision         the class of its tower
--    text_types     values of text_config.model_type
--    frames_apart   whether each frame of a video is apart in the text, behind its time in words;
--                   otherwise the frames are one run of tokens, whose positions follow from
--                   second_per_grid_ts
--    ties_outside   whether tie_word_embeddings beside text_config decides, also where it is
--                   absent; otherwise it counts only if it is true
--    only_images    whether the family reads no videos
--    plain_positions   whether tokens of images have the positions of a text, one row of them
--    sees_whole_images   whether the tokens of an image see each other (see vision_spans)
--    wraps_images   whether templates get the tokens around an image (see data.image_text)
--    _check_parts   nil, or a function (op, complete configuration) that compares its parts
-- with what all such models have. Returns it.
function decoder.extend(Model)
   for _, part in ipairs { config_, place, features, inputs, { methods = methods } } do
      copy(part.methods, Model)
   end
   local op = Model.family.op
   -- fields of images and videos, and those of a batch that a call takes beside the place of its
   -- tokens
   Model.image_fields = Model.only_images and { 'pixel_values', 'image_grid_thw' }
      or image_fields.list
   Model.input_fields = names_of({ 'feature_rows' }, Model.image_fields)
   local keeps_state = has(Model.at_fields, 'sequence')
   Model.at_fields = names_of(Model.at_fields, Model.input_fields)
   local seconds = { not (Model.frames_apart or Model.only_images) and of_seconds or nil }
   Model._read_place = signature.options { Backbone._place_options, of_rows, of_images,
      Model.only_images and {} or of_videos, seconds, keeps_state and 'sequence: tensor?' or {} }
   local images = door_of(op, seconds)
   local rope_index = images
   if Model.plain_positions then Model.rope_index, rope_index = nil, nil end
   return signature.doors(op, Model, { rope_index = rope_index, feature_rows = images,
      placed = { 'batch: table; index: tensor? [B or 1, T, 2 or 3]', op = op },
      priced = { 'grids: table; B: integer >= 1; T: integer >= 1', op = op } })
end

return decoder