-- Features of a call of a decoder with a vision tower: its patches through the tower, cut over the
-- ranks of a context.
--
-- Legend: F features, C their width.

local tide = require 'tide'
local grid_ = require 'tide.model.vision_grid'
local place = require 'tide.model.vision_place'
local spread = require 'tide.nn.spread'

local features, methods = {}, {}

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
function methods:_pictures(ids, inputs)
   local o, patches = self._read_place(self.op, inputs), { image = {}, video = {} }
   for _, stream in ipairs(streams_of(self, o)) do
      local at = 1
      local is_apart = stream.kind == 'video' and self.frames_apart
      for i, g in ipairs(is_apart and grid_.frames(stream.grids) or stream.grids) do
         local n = grid_.patches { g }
         patches[stream.kind][i], at = stream.patches:narrow(1, at, n), at + n
      end
   end
   local said = place.said(self, { ids }, o)
   local list, seconds = grid_.pictures(said), {}
   if not self.frames_apart then
      seconds = place.seconds(self.op, o.second_per_grid_ts, #said.grids.video)
   end
   for _, p in ipairs(list) do
      p.grid, p.patches = said.grids[p.kind][p.number], patches[p.kind][p.number]
      p.seconds = p.kind == 'video' and seconds[p.number] or nil
   end
   return list
end

-- Returns the features of all images on every rank of a context. Each rank runs the tower on frames
-- of about equal cost. The gradient of a feature is the sum over ranks.
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

-- Returns the features [F, C] of a call; nil without images. A sharded model runs the tower in
-- every call, because its ranks gather weights together. Without images it reads a blank one
-- (Tower:blank).
function features.of(self, o, context)
   local patches, grids = patches_of(self, o)
   self.visual:note_rows(patches and patches:size(1) or 0)
   if patches and context and context.size > 1 then return shared(self, patches, grids, context) end
   if patches then return self.visual(patches, grids) end
   if not spread.of(self).inside then return nil end
   local like = self:embedding().weight                     -- the first stage of a pipeline has it
   return self.visual(self.visual:blank(like))
end

-- Methods of every class with a tower.
features.methods = methods

return features
