-- Decoders that read texts with images and videos: what published families share.
--
-- A vision tower, `model.visual`, makes a feature for each token of image_token_id or
-- video_token_id, which takes the place of its embedding. Rotary positions have three rows (M-RoPE:
-- time, height and width). A tower may make deepstack features, too, which the outputs of the first
-- layers get added. Parameters have the names visual.* and those of the text model.
--
-- Legend: B batch, T tokens, C model width, N patches, P numbers of a patch, F features, K layers
-- with deepstack features.

local tide = require 'tide'
local Backbone = require 'tide.model.backbone'
local CausalLM = require 'tide.model.causal_lm'
local Llama = require 'tide.model.llama'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local grid_ = require 'tide.model.vision_grid'
local image_fields = require 'tide.nn.image_fields'
local mask_ = require 'tide.nn.mask'
local private = require 'tide.util.private'
local published = require 'tide.model.published'
local signature = require 'tide.util.signature'
local spread = require 'tide.nn.spread'

local decoder = {}

-- Methods of every class that decoder.extend completes.
local VL = {}

-- ---- the configuration -------------------------------------------------------------------------

local token = 'integer >= 0'

-- Fields of all families, before those of their text model.
decoder.fields = {
   { 'vision_config', nil, function(_, _, v) return v end },
   { 'image_token_id', 151655, token }, { 'video_token_id', 151656, token },
   { 'vision_start_token_id', published.optional, token },
   { 'vision_end_token_id', published.optional, token },
   { 'vision_token_id', published.optional, token },
}

-- Raises unless the two tokens of a complete configuration are in the vocabulary, and differ.
function decoder.check_tokens(op, c)
   for _, name in ipairs { 'image_token_id', 'video_token_id' } do
      err.arg_if(c[name] >= c.vocab_size, op, name, ('an id below vocab_size (%d)'):format(
         c.vocab_size), c[name])
   end
   err.arg_if(c.image_token_id == c.video_token_id, op, 'video_token_id', 'another id than '
      .. 'image_token_id', c.video_token_id)
end

-- Returns the name in transformers of a module with this name here.
function decoder.inner_name(name)
   return (name:gsub('^model%.', 'model.language_model.'):gsub('^visual%.', 'model.visual.'))
end

-- Returns the name here of a module with this name in transformers.
function decoder.own_name(name)
   return (name:gsub('^model%.visual%.', 'visual.'):gsub('^model%.language_model%.', 'model.'))
end

-- Returns rope_scaling of a configuration in one spelling. sections: mrope_section where the file
-- has none; is_interleaved: whether the family has them interleaved, as no field changes.
function decoder.rope_scaling(op, c, sections, is_interleaved)
   local s = copy(c.rope_scaling or {})
   local kind = s.rope_type or s.type or 'default'
   s.rope_type, s.type = kind == 'mrope' and 'default' or kind, nil
   s.mrope_section = s.mrope_section or sections
   err.raise_if(s.mrope_interleaved ~= nil and s.mrope_interleaved ~= is_interleaved, 'E_ARG', op,
      "field 'rope_scaling.mrope_interleaved' is %s; only %s is supported",
      tostring(s.mrope_interleaved), tostring(is_interleaved))
   s.mrope_interleaved = is_interleaved or nil
   return s
end

-- Returns the fields of config.json of a tower's complete configuration.
function decoder.published_tower(c, kind)
   local v = copy(c)
   v.model_type, v.rope_theta = kind, nil
   v.rope_parameters = { rope_type = 'axial', rope_theta = c.rope_theta }
   return v
end

-- Ids of tokens, which are read beside text_config alone, as transformers does.
local of_tokens = { 'image_token_id', 'video_token_id', 'vision_start_token_id',
   'vision_end_token_id', 'vision_token_id' }
local of_rope = { 'rope_parameters', 'rope_scaling', 'rope_theta' }

-- Returns the fields of a configuration without the table text_config, whose fields go before those
-- beside it; tie_word_embeddings is that beside it, where there is one.
local function flattened(self, config)
   local op, c, null = self.family.op, copy(config), tide.json.null
   local text = c.text_config
   c.text_config = nil
   if text == nil or text == null then return c end
   text = copy(err.type(op, 'text_config', text, 'table'))
   if text.model_type ~= nil then
      err.choice(op, 'text_config.model_type', text.model_type, self.text_types)
   end
   local tied = c.tie_word_embeddings
   text.model_type, text.architectures = nil, nil
   for _, name in ipairs(of_tokens) do text[name] = nil end        -- some files repeat them as null
   for _, name in ipairs(of_rope) do
      if text[name] ~= nil then
         for _, other in ipairs(of_rope) do c[other] = nil end
      end
   end
   copy(text, c)
   if tied == true or self.ties_outside then c.tie_word_embeddings = tied end
   return c
end

-- Returns the complete configuration, and the names of fields that change nothing.
function VL:_read(config)
   local op = self.family.op
   local c, unused = Llama._read(self, flattened(self, err.type(op, 'config', config, 'table')))
   local more
   c.vision_config, more = self.Vision:read(c.vision_config, c.hidden_size)
   if self._check_parts then self._check_parts(op, c) end
   for _, name in ipairs(more) do unused[#unused + 1] = 'vision_config.' .. name end
   return c, unused
end

-- ---- the parts ---------------------------------------------------------------------------------

-- Returns the blocks of the text, after the tower: parts are named in the order in which they run.
function VL:_blocks(c, opts)
   self:child('visual', self.Vision(c.vision_config, opts))
   return Llama._blocks(self, c, opts)
end

-- Returns how many numbers multiply something for each token: those of the text.
function VL:multiplying() return CausalLM.multiplying(self) - CausalLM._whole_numel(self.visual) end

-- ---- images of a call --------------------------------------------------------------------------

local of_pixels = {
   'pixel_values: tensor? [N, P] of f32, f64, bf16, f16 -- patches of all images, as image '
      .. 'processors make them',
   'image_grid_thw: any? -- frames, rows and columns of patches of each image, [images, 3]',
   'pixel_values_videos: tensor? [M, P] of f32, f64, bf16, f16 -- those of all videos',
   'video_grid_thw: any? -- frames, rows and columns of patches of each video, [videos, 3]',
   'where (pixel_values ~= nil) == (image_grid_thw ~= nil) -- pixel_values and image_grid_thw: '
      .. 'give both of them or none',
   'where (pixel_values_videos ~= nil) == (video_grid_thw ~= nil) -- pixel_values_videos and '
      .. 'video_grid_thw: give both of them or none',
}

local of_seconds = 'second_per_grid_ts: any? -- seconds from frame to frame of each video; 1 by '
   .. 'default'

-- Options of a call beside those of images.
local of_place = {
   'positions: tensor? -- [batch or 1, tokens], or [3, batch or 1, tokens]', 'caches: table?',
   'index: tensor? [batch or 1, tokens, 2] of i32, i64',
   'q_index: tensor? [batch or 1, tokens, 2] of i32, i64',
   'k_index: tensor? [batch or 1, keys, 2] of i32, i64', 'attention_mask: any?', 'context: any?',
   'balance: balance?',
   'feature_rows: tensor? [batch, tokens] of i64 -- the feature of each token, see feature_rows',
}

-- Returns the seconds of each of n videos.
local function seconds_of(op, list, n)
   local out = {}
   if list == nil then
      for i = 1, n do out[i] = 1 end
      return out
   end
   if tide.is_tensor(list) then list = list:reshape(list:numel()):tolist() end
   err.type(op, 'second_per_grid_ts', list, 'table')
   err.arg_if(#list ~= n, op, 'second_per_grid_ts', ('%d numbers, one for each row of '
      .. 'video_grid_thw'):format(n), #list)
   for i = 1, n do
      out[i] = err.number(op, ('second_per_grid_ts[%d]'):format(i), list[i], 0, 1e9)
   end
   return out
end

-- Returns the document numbers [B or 1, T] of a call, as lists; nil without any.
local function documents_of(op, o)
   local index = o.q_index or o.index
   if o.attention_mask ~= nil then
      index = mask_.index(op, 'attention_mask', o.attention_mask)
   end
   return index and (index:select(3, 1):to 'i64' + 1):tolist() or nil
end

-- Returns the first position of each frame of videos, from 0: lists of whole numbers, of products
-- in f32 as transformers makes them.
local function times_of(self, o, grids)
   local times, rate = {}, self.config.vision_config.tokens_per_second
   for i, s in ipairs(seconds_of(self.op, o.second_per_grid_ts, #grids)) do
      local step = tide.tensor({ s }, { dtype = 'f32' }) * rate
      times[i] = (tide.arange(grids[i][1], { dtype = 'f32' }) * step):floor():tolist()
   end
   return times
end

-- Returns what rows of ids (lists) and the grids of a call say, for vision_grid. Where frames are
-- apart in a text, each is a grid of its own.
local function said_of(self, rows, o)
   local c, op = self.config, self.op
   local merge = c.vision_config.spatial_merge_size
   local image = grid_.read(op, 'image_grid_thw', o.image_grid_thw, merge)
   local video = grid_.read(op, 'video_grid_thw', o.video_grid_thw, merge)
   local by_frame = not self.has_seconds
   return { op = op, rows = rows, docs = documents_of(op, o), merge = merge, by_frame = by_frame,
      grids = { image = image, video = by_frame and grid_.frames(video) or video },
      ids = { image = c.image_token_id, video = c.video_token_id },
      times = by_frame and {} or times_of(self, o, video) }
end

local function i64(list, device) return tide.tensor(list, { dtype = 'i64', device = device }) end

local function positions_of(said, device)
   local lists, deltas = grid_.positions(said)
   return i64(lists, device), i64(deltas, device):reshape(#deltas, 1)
end

-- Returns the positions of a text with images, i64 [3, B, T] (time, height, width), and
-- rope_deltas, i64 [B, 1]: what a token that continues a row adds to the number of tokens before
-- it. The tokens of an image start at the position behind the text, and the text continues behind
-- its rows or columns, whichever are more, as in transformers 5. attention_mask [B, T]: 0 at
-- padding, which has position 0; it may number documents from 1, whose positions start at 0 each.
function VL:rope_index(ids, opts)
   return positions_of(said_of(self, ids:tolist(), opts), ids.device)
end

local function features_index(said, device) return i64(grid_.features(said), device) end

-- Completes the fields positions and feature_rows of o that are nil. has_positions: positions are
-- there under another name. place: where the images and documents of ids lie.
local function complete_place(self, ids, o, place, has_positions)
   has_positions = has_positions or o.positions ~= nil
   if has_positions and o.feature_rows ~= nil then return end
   local said = said_of(self, ids:tolist(), place)
   if o.feature_rows == nil then o.feature_rows = features_index(said, ids.device) end
   if not has_positions then o.positions = positions_of(said, ids.device) end
end

-- Returns the number of the feature, i64 [B, T], that each token represents, counted from 0 through
-- all rows of ids, those of videos behind those of images; -1 for text. A call whose tokens are cut
-- over ranks (a context) needs its part of them.
function VL:feature_rows(ids, opts)
   return features_index(said_of(self, ids:tolist(), opts), ids.device)
end

-- Returns a batch (ids or input_ids, and images) with positions and feature_rows, where it has
-- images and not these; cuts over ranks need them. index: its documents, pairs [B or 1, T, 2], or
-- nil.
function VL:placed(batch, index)
   if batch.image_grid_thw == nil and batch.video_grid_thw == nil then return batch end
   local name, out = batch.ids == nil and 'input_ids' or 'ids', copy(batch)
   local ids = signature.check(self.op, 'batch.' .. name, batch[name], 'tensor [B, T] of i64, i32')
   local sizes = { B = ids:size(1), T = ids:size(2) }
   signature.check(self.op, 'index', index, 'tensor? [B or 1, T, 2]', sizes)
   local o = { image_grid_thw = batch.image_grid_thw, video_grid_thw = batch.video_grid_thw,
      second_per_grid_ts = batch.second_per_grid_ts, index = index }
   complete_place(self, ids, out, o, out.position_ids ~= nil)
   return out
end

-- Returns the fields of a batch [B, T] with images of these grids, without bytes: for a price.
function VL:priced(grids, B, T)
   local null = { dtype = 'i64', device = 'null' }
   local c = self.config.vision_config
   grids = grid_.read(self.op, 'images', grids, c.spatial_merge_size)
   local n = grid_.patches(grids)
   err.raise_if(n / c.spatial_merge_size ^ 2 > B * T, 'E_ARG', self.op, 'images: they take %d '
      .. 'tokens, and a batch of %d x %d has %d', n / c.spatial_merge_size ^ 2, B, T, B * T)
   return { image_grid_thw = grids, feature_rows = tide.empty({ B, T }, null),
      positions = tide.empty({ 3, B, T }, null),
      pixel_values = tide.empty({ n, self.visual:patch_numel() }, { dtype = 'f32',
         device = 'null' }) }
end

-- ---- features ----------------------------------------------------------------------------------

-- Returns patches of images and those of videos as one tensor, of the wider dtype.
local function joined_patches(list)
   local a, b = list[1].dtype, list[2].dtype
   local dtype = a == b and a or (a == 'f64' or b == 'f64') and 'f64' or 'f32'
   return tide.cat({ list[1]:to(dtype), list[2]:to(dtype) }, 1)
end

-- Returns the patches of images and those of videos of a call, checked: a list of
-- { kind, patches, grids }.
local function streams_of(self, o)
   local m, list = self.config.vision_config.spatial_merge_size, {}
   for _, names in ipairs { { 'image', 'pixel_values', 'image_grid_thw' },
      { 'video', 'pixel_values_videos', 'video_grid_thw' } } do
      local patches = o[names[2]]
      if patches then
         local grids = grid_.read(self.op, names[3], o[names[3]], m)
         self.visual:check_patches(names[2], patches, grids)
         list[#list + 1] = { kind = names[1], patches = patches, grids = grids }
      end
   end
   return list
end

-- Returns the patches of a call, images before videos, and their grids; nil without any.
local function patches_of(self, o)
   local list, grids = {}, {}
   for i, stream in ipairs(streams_of(self, o)) do
      list[i] = stream.patches
      for _, g in ipairs(stream.grids) do grids[#grids + 1] = g end
   end
   if not list[1] then return nil end
   return #list == 1 and list[1] or joined_patches(list), grids
end

-- Returns the pictures of a text (a list of ids) in the order of their tokens: { kind, first, last,
-- number, grid, patches, seconds }, seconds of videos alone, where they have any. A frame that is
-- apart is a picture of its own. inputs: fields of images of a call.
function VL:_pictures(ids, inputs)
   local o, patches = self._read_place(self.op, inputs), { image = {}, video = {} }
   for _, stream in ipairs(streams_of(self, o)) do
      local at = 1
      local by_frame = stream.kind == 'video' and not self.has_seconds
      for i, g in ipairs(by_frame and grid_.frames(stream.grids) or stream.grids) do
         local n = grid_.patches { g }
         patches[stream.kind][i], at = stream.patches:narrow(1, at, n), at + n
      end
   end
   local said = said_of(self, { ids }, o)
   local list, seconds = grid_.pictures(said), {}
   if self.has_seconds then
      seconds = seconds_of(self.op, o.second_per_grid_ts, #said.grids.video)
   end
   for _, p in ipairs(list) do
      p.grid, p.patches = said.grids[p.kind][p.number], patches[p.kind][p.number]
      p.seconds = p.kind == 'video' and seconds[p.number] or nil
   end
   return list
end

-- Returns the features of all ranks of a context. Each rank runs the tower on frames of about the
-- same cost, all have all features, and the gradients of all add up for each.
local function shared(self, patches, grids, context)
   local c, frames = self.config.vision_config, grid_.frames(grids)
   local costs, counts, first, mine = {}, {}, 0, nil
   for i, g in ipairs(frames) do costs[i] = self.visual:cost(g) end
   local bounds = context:share(costs)
   for r = 0, context.size - 1 do
      local part = {}
      for i = bounds[r + 1] + 1, bounds[r + 2] do part[#part + 1] = frames[i] end
      local n = grid_.patches(part)
      counts[r + 1] = n / c.spatial_merge_size ^ 2
      if r < context.rank then first = first + n end
      if r == context.rank then mine = part end
   end
   local own, x = counts[context.rank + 1]
   if own > 0 then
      x = patches:narrow(1, first + 1, grid_.patches(mine))
   else
      x, mine = self.visual:blank(patches)
   end
   return context:all_rows(self.visual(x, mine):narrow(1, 1, own), counts)
end

-- Returns the features [F, C] of a call; nil without images. A model that is sharded runs the tower
-- in every call, on nothing where there is nothing, since its ranks gather weights together.
local function features_of(self, o, context)
   local patches, grids = patches_of(self, o)
   self.visual:note_rows(patches and patches:size(1) or 0)
   if patches and context and context.size > 1 then return shared(self, patches, grids, context) end
   if patches then return self.visual(patches, grids) end
   if not spread.of(self).inside then return nil end
   local like = self[self.form.body][self.form.norm].weight
   return self.visual(self.visual:blank(like))
end

-- Refuses rows of features, of a call that gives them, whose shape is not that of ids.
local function check_rows(op, ids, rows)
   if rows == nil or rows:size(1) == ids:size(1) and rows:size(2) == ids:size(2) then return end
   err.raise('E_SHAPE', op, 'feature_rows: expected [%d, %d] as ids, got [%d, %d]', ids:size(1),
      ids:size(2), rows:size(1), rows:size(2))
end

-- Refuses tokens that stand for images without any. Ids on a device are not read. Beside caches
-- they may be those of an answer.
local function check_text(self, ids, o)
   if ids.device ~= 'cpu' or o.caches or ids.ndim ~= 2 then return end
   local c = self.config
   local found = tide.logical_or(ids:eq(c.image_token_id), ids:eq(c.video_token_id))
   err.raise_if(ids:numel() > 0 and found:any():item(), 'E_ARG', self.op, 'ids have tokens of '
      .. 'image_token_id (%d) or video_token_id (%d), but the call has no images; give '
      .. 'pixel_values and image_grid_thw, or pixel_values_videos and video_grid_thw',
      c.image_token_id, c.video_token_id)
end

-- Returns embeddings x [B, T, C], given up, in which the first features [F, C or more] take the
-- places that rows name; all of features may hold those of deepstack beside them.
local function joined(x, rows, features)
   local B, T, C = unpack(x.shape)
   local n = B * T
   local text = tide.arange(n, { dtype = 'i64', device = x.device })
   local from = tide.where(rows:ge(0), rows + n, text:reshape(B, T)):reshape(n)
   local first = features:size(2) > C and features:narrow(2, 1, C) or features
   local cast = private.replace(first, first:to(x.dtype))
   x = private.replace(x, x:reshape(n, C))
   local all = tide.cat({ x, cast }, 1)
   private.spend(x, cast)
   local y = private.replace(all, all:index_select(1, from))
   return private.replace(y, y:reshape(B, T, C))
end

-- Returns the functions of the outputs of the first K layers and of features [F, C + K C] (see
-- nn.Stack) that add deepstack features to tokens of images.
local function added_after(rows, F, C, K)
   local B, T = rows:size(1), rows:size(2)
   local from = tide.where(rows:ge(0), rows, F):reshape(B * T)
   local after = {}
   for k = 1, K do
      after[k] = function(h, features)
         local deep = features:narrow(2, k * C + 1, C)
         deep = private.replace(deep, deep:to(h.dtype))
         local none = tide.zeros({ 1, C }, { dtype = h.dtype, device = h.device })
         local all = tide.cat({ deep, none }, 1)
         private.spend(deep, none)
         local more = private.replace(all, all:index_select(1, from))
         more = private.replace(more, more:reshape(B, T, C))
         local sum = h + more
         private.spend(more)
         return sum
      end
   end
   return after
end

-- Refuses images beside what shows no place for them: embeddings, positions of a text, and a part
-- of a row without the numbers that the whole row gives.
local function check_images(op, ids, o, context)
   err.arg_if(ids.ndim ~= 2, op, 'ids', 'ids beside images: embeddings have their features already',
      ids)
   for _, name in ipairs(context and context.size > 1 and { 'positions', 'feature_rows' } or {}) do
      err.arg_if(o[name] == nil, op, name, "this rank's part of those of whole rows, beside a "
         .. 'context: cut a batch that model:placed(batch) completed (handle:cut does so)', nil)
   end
   err.arg_if(o.positions and o.positions.ndim ~= 3, op, 'positions', 'positions [3, B, T] of '
      .. 'tokens and images: leave them out, or give those of model:rope_index', o.positions)
   err.arg_if(o.positions == nil and Backbone._has_keys(o.caches), op, 'positions', 'those of the '
      .. 'tokens in the whole sequence, [3, B, T], beside caches that hold earlier ones', nil)
end

-- Returns ids or given embeddings as embeddings on which features hang that stand for no token, so
-- that backward reaches the tower.
local function beside(self, x, features)
   local made = x.ndim == 2 and self[self.form.body][self.form.embed](x) or nil
   x = made or Backbone._inputs(self, x)
   local y = x + features:narrow(1, 1, 0):sum():to(x.dtype)
   private.spend(made, features)
   return y
end

-- Completes the positions of a call, see Backbone._inputs.
function VL:_inputs(ids, o, context)
   local has = o.pixel_values or o.pixel_values_videos
   if has then check_images(self.op, ids, o, context) else check_text(self, ids, o) end
   local features = features_of(self, o, context)
   if not features then return ids end
   if not has then return beside(self, ids, features) end
   local where = o
   if context and context.size == 1 then
      where = copy({ index = context:q_index(ids.device) }, copy(o))
      where.attention_mask = nil
   end
   check_rows(self.op, ids, o.feature_rows)
   complete_place(self, ids, o, where)
   local x, tp, rows = self[self.form.body][self.form.embed](ids), spread.of(self).tp,
      o.feature_rows
   if tp and tp.sequence then                       -- this rank has its tokens between layers
      rows, features = tp.cut(rows), tp.copy(features)
   end
   local F, C = features:size(1), x:size(3)
   if features:size(2) > C then
      o.after, o.beside = added_after(rows, F, C, features:size(2) / C - 1), features
   end
   return joined(x, rows, features)
end
private.note(VL._inputs)

-- ---- classes -----------------------------------------------------------------------------------

-- Returns the names of lists, joined.
local function names_of(...)
   local names = {}
   for _, list in ipairs { ... } do
      for _, name in ipairs(list) do names[#names + 1] = name end
   end
   return names
end

-- Returns the signature of a door that takes ids and where images lie.
local function door_of(op, has_seconds)
   return { 'ids: tensor [B, T] of i64, i32', op = op, opts = {
      'image_grid_thw: any? -- frames, rows and columns of patches of each image, [images, 3]',
      'video_grid_thw: any? -- those of each video', { has_seconds and of_seconds or nil },
      'attention_mask: tensor? [B or 1, T] -- 1 and 0, or documents from 1',
      'index: tensor? [B or 1, T, 2] -- in its place: pairs (document, position)' } }
end

-- Completes a class of text models, which has `family` and
--    Vision         the class of its tower
--    text_types     values of text_config.model_type
--    has_seconds    whether frames of a video lie in one run of tokens, whose positions follow from
--                   second_per_grid_ts; otherwise each frame is apart, behind its time in words
--    ties_outside   whether tie_word_embeddings of text_config says nothing
--    _check_parts   nil, or a function (op, complete configuration) that compares its parts
-- with what all such models have. Returns it.
function decoder.extend(Model)
   copy(VL, Model)
   local op = Model.family.op
   -- fields of images and videos, and those of a batch that a call takes beside the place of its
   -- tokens
   Model.image_fields = image_fields.list
   Model.input_fields = names_of({ 'feature_rows' }, Model.image_fields)
   Model.at_fields = names_of(Llama.at_fields, Model.input_fields)
   Model._read_place = signature.options { of_place, of_pixels,
      { Model.has_seconds and of_seconds or nil } }
   local images = door_of(op, Model.has_seconds)
   return signature.doors(op, Model, { rope_index = images, feature_rows = images,
      placed = { 'batch: table; index: tensor? [B or 1, T, 2]', op = op },
      priced = { 'grids: table; B: integer >= 1; T: integer >= 1', op = op } })
end

return decoder
