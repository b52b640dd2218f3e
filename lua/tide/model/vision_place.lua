-- Where images and videos lie in texts of decoders with a vision tower: the positions of tokens and
-- the feature that each token represents, of ids and grids.
--
-- Legend: B batch, T tokens.

local tide = require 'tide'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local grid_ = require 'tide.model.vision_grid'
local mask_ = require 'tide.nn.mask'
local signature = require 'tide.util.signature'
local spans = require 'tide.model.vision_spans'

local place, methods = {}, {}

-- Returns the seconds of each of n videos.
function place.seconds(op, list, n)
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
   for i, s in ipairs(place.seconds(self.op, o.second_per_grid_ts, #grids)) do
      local step = tide.tensor({ s }, { dtype = 'f32' }) * rate
      times[i] = (tide.arange(grids[i][1], { dtype = 'f32' }) * step):floor():tolist()
   end
   return times
end

-- Returns what rows of ids (lists) and the grids of a call say, for vision_grid. Where frames are
-- apart in a text, each is a grid of its own.
function place.said(self, rows, o)
   local c, op = self.config, self.op
   local merge = c.vision_config.spatial_merge_size
   local image = grid_.read(op, 'image_grid_thw', o.image_grid_thw, merge)
   local video = grid_.read(op, 'video_grid_thw', o.video_grid_thw, merge)
   local apart = self.frames_apart
   return { op = op, rows = rows, docs = documents_of(op, o), merge = merge, frames_apart = apart,
      grids = { image = image, video = apart and grid_.frames(video) or video },
      ids = { image = c.image_token_id, video = c.video_token_id },
      times = apart and {} or times_of(self, o, video) }
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
function methods:rope_index(ids, opts)
   return positions_of(place.said(self, ids:tolist(), opts), ids.device)
end

local function features_index(said, device) return i64(grid_.features(said), device) end

-- Completes the fields positions and feature_rows of o that are nil. where: the images and
-- documents of ids; has_positions: positions are there under another name.
function place.complete(self, ids, o, where, has_positions)
   has_positions = has_positions or o.positions ~= nil
   if has_positions and o.feature_rows ~= nil then return end
   local said = place.said(self, ids:tolist(), where)
   if o.feature_rows == nil then o.feature_rows = features_index(said, ids.device) end
   if not has_positions then o.positions = positions_of(said, ids.device) end
end

-- Returns the number of the feature, i64 [B, T], that each token represents, counted from 0 through
-- all rows of ids, those of videos behind those of images; -1 for text. A call whose tokens are cut
-- over ranks (a context) needs its part of them.
function methods:feature_rows(ids, opts)
   return features_index(place.said(self, ids:tolist(), opts), ids.device)
end

-- Returns a batch (ids or input_ids, and images) with feature_rows and positions, where it has
-- images and not these; cuts over ranks need them. A family that sees whole images gets an index
-- [B, T, 3] (see vision_spans); one with plain_positions gets no positions. index: the documents of
-- the batch, pairs [B or 1, T, 2 or 3], or nil.
function methods:placed(batch, index)
   if batch.image_grid_thw == nil and batch.video_grid_thw == nil then return batch end
   local name, out = batch.ids == nil and 'input_ids' or 'ids', copy(batch)
   local ids = signature.check(self.op, 'batch.' .. name, batch[name], 'tensor [B, T] of i64, i32')
   local sizes = { B = ids:size(1), T = ids:size(2) }
   signature.check(self.op, 'index', index, 'tensor? [B or 1, T, 2 or 3]', sizes)
   local o = { image_grid_thw = batch.image_grid_thw, video_grid_thw = batch.video_grid_thw,
      second_per_grid_ts = batch.second_per_grid_ts, index = index }
   place.complete(self, ids, out, o, self.plain_positions or out.position_ids ~= nil)
   if self.sees_whole_images and ids.device ~= 'null' then
      out.index = spans.index(self, ids, index)
   end
   return out
end

-- Returns the fields of a batch [B, T] with images of these grids, without bytes: for a price.
function methods:priced(grids, B, T)
   local null = { dtype = 'i64', device = 'null' }
   local c = self.config.vision_config
   grids = grid_.read(self.op, 'images', grids, c.spatial_merge_size)
   local n = grid_.patches(grids)
   err.raise_if(n / c.spatial_merge_size ^ 2 > B * T, 'E_ARG', self.op, 'images: they take %d '
      .. 'tokens, and a batch of %d x %d has %d', n / c.spatial_merge_size ^ 2, B, T, B * T)
   return { image_grid_thw = grids, feature_rows = tide.empty({ B, T }, null),
      positions = not self.plain_positions and tide.empty({ 3, B, T }, null) or nil,
      pixel_values = tide.empty({ n, self.visual:patch_numel() }, { dtype = 'f32',
         device = 'null' }) }
end

-- Methods of every class with a tower.
place.methods = methods

return place
