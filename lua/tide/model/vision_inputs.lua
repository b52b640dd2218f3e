-- Inputs of the layers of a decoder with a vision tower: embeddings in which features take the
-- places of their tokens, and deepstack features for the outputs of the first layers.
--
-- Legend: B batch, T tokens, C model width, F features, K layers with deepstack features.

local tide = require 'tide'
local Backbone = require 'tide.model.backbone'
local context_ = require 'tide.nn.context'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local features_ = require 'tide.model.vision_features'
local place = require 'tide.model.vision_place'
local private = require 'tide.util.private'
local spans = require 'tide.model.vision_spans'
local spread = require 'tide.nn.spread'

local inputs, methods = {}, {}

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
   local found = ids:eq(c.image_token_id)
   if c.video_token_id then found = tide.logical_or(found, ids:eq(c.video_token_id)) end
   if ids:numel() == 0 or not found:any():item() then return end
   err.raise_if(not c.video_token_id, 'E_ARG', self.op, 'ids have tokens of image_token_id (%d), '
      .. 'but the call has no images; give pixel_values and image_grid_thw', c.image_token_id)
   err.raise('E_ARG', self.op, 'ids have tokens of '
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

-- Raises if a call with images gives embeddings, positions [B, T] of a text, or a rank's part of a
-- row without its feature_rows and positions.
local function check_images(self, ids, o, context)
   local op = self.op
   err.arg_if(ids.ndim ~= 2, op, 'ids', 'ids beside images: embeddings have their features already',
      ids)
   local needed = { 'feature_rows', not self.plain_positions and 'positions' or nil }
   for _, name in ipairs(context and context.size > 1 and needed or {}) do
      err.arg_if(o[name] == nil, op, name, "this rank's part of those of whole rows, beside a "
         .. 'context: cut a batch that model:placed(batch) completed (handle:cut does so)', nil)
   end
   if self.plain_positions then return end
   err.arg_if(o.positions and o.positions.ndim ~= 3, op, 'positions', 'positions [3, B, T] of '
      .. 'tokens and images: leave them out, or give those of model:rope_index', o.positions)
   err.arg_if(o.positions == nil and Backbone._has_keys(o.caches), op, 'positions', 'those of the '
      .. 'tokens in the whole sequence, [3, B, T], beside caches that hold earlier ones', nil)
end

-- Returns the embeddings of ids as the layers read them: features beside them are not scaled.
local function embedded(self, ids)
   local body = self[self.form.body]
   local x = body[self.form.embed](ids)
   if not body.embed_scale then return x end
   return private.replace(x, x * body.embed_scale)
end

-- Returns embeddings, of ids or as given, plus an empty sum of the features, so that backward
-- reaches a tower without images.
local function beside(self, x, features)
   local made = x.ndim == 2 and embedded(self, x) or nil
   x = made or Backbone._inputs(self, x)
   local y = x + features:narrow(1, 1, 0):sum():to(x.dtype)
   private.spend(made, features)
   return y
end

-- Completes where the tokens and images of a call lie: positions and feature_rows of o, and the
-- index of a family that sees whole images.
local function complete_place(self, ids, o, context)
   local index, where = context_._whole_index(context, ids.device), o
   if index then
      where = copy({ index = index }, copy(o))
      where.attention_mask = nil
   end
   check_rows(self.op, ids, o.feature_rows)
   place.complete(self, ids, o, where, self.plain_positions)
   if self.sees_whole_images then spans.complete(self, ids, o, context) end
end

-- Returns the embeddings of ids with the features in their places. It completes o for deepstack
-- features: after and beside (see nn.Stack).
local function with_features(self, ids, o, features)
   local x, tp, rows = embedded(self, ids), spread.of(self).tp, o.feature_rows
   if tp and tp.sequence then                       -- this rank has its tokens between layers
      rows, features = tp.cut(rows), tp.copy(features)
   end
   local F, C = features:size(1), x:size(3)
   if features:size(2) > C then
      o.after, o.beside = added_after(rows, F, C, features:size(2) / C - 1), features
   end
   return joined(x, rows, features)
end

-- Returns what the body reads of a call (see Backbone._inputs), and completes o: positions,
-- feature_rows, after and beside. Stages of a pipeline after the first need the place of the tokens
-- alone.
function methods:_inputs(ids, o, context)
   local has = o.pixel_values or o.pixel_values_videos
   if has then check_images(self, ids, o, context) else check_text(self, ids, o) end
   local stage = spread.of(self).pp
   local is_first = not stage or stage:at_start()
   local features = is_first and features_.of(self, o, context) or nil
   if has then complete_place(self, ids, o, context) end
   if has and is_first then return with_features(self, ids, o, features) end
   if has then return ids end                             -- a later stage receives its input
   return features and beside(self, ids, features) or Backbone._inputs(self, ids)
end
private.note(methods._inputs)

-- Methods of every class with a tower.
inputs.methods = methods

return inputs
