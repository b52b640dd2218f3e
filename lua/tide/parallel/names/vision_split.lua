-- Cutting images and videos into parts for ranks: where the cuts may be, and where they are best.
--
-- Cuts are only legal between units (an image; a tubelet, the frames of a video that enter one
-- temporal patch), so no frame is lost and no tubelet cut by construction. `balanced` is the
-- optimal linear partition (util.partition). `compatible` follows the rule of published code (even
-- frame counts, nearest tubelet), in integers throughout.
--
-- All results are positions from 0: part r is bounds[r + 1] .. bounds[r + 2] - 1.

local signature = require 'tide.util.signature'

local split = {}

local floor, min, max = math.floor, math.min, math.max
local dims = require 'tide.util.dims'
local sum_of = dims.sum

-- ---- units -----------------------------------------------------------------------------------

-- Returns the number of frames of each tubelet: T, or fewer for the last one of a video.
function split.units(num_frames, T)
   local list = {}
   for _, n in ipairs(num_frames) do
      for at = 0, n - 1, T do list[#list + 1] = min(T, n - at) end
   end
   return list
end

-- Returns the number of frames of each video that lie in [lb, ub), without videos that have none
-- there.
function split.clip(num_frames, lb, ub)
   local out, at = {}, 0
   for _, n in ipairs(num_frames) do
      local over = min(ub, at + n) - max(lb, at)
      if over > 0 then out[#out + 1] = over end
      at = at + n
   end
   return out
end

-- ---- the optimal partition -------------------------------------------------------------------

-- Bounds of `parts` parts of a list of positive costs in order: see util.partition.
split.partition = require 'tide.util.partition'

-- Returns the bounds, in frames, of a partition of whole tubelets. Frame i costs costs[i] (1 by
-- default).
function split.balanced(num_frames, T, parts, costs)
   local units = split.units(num_frames, T)
   local sums, ends, at = {}, { 0 }, 0
   for u, n in ipairs(units) do
      local c = costs and 0 or n
      for i = at + 1, costs and at + n or at do c = c + costs[i] end
      at = at + n
      sums[u], ends[u + 1] = c, at
   end
   local bounds = split.partition(sums, parts)
   for r, u in ipairs(bounds) do bounds[r] = ends[u + 1] end
   return bounds
end

-- ---- the rule of published code --------------------------------------------------------------

-- Returns (t - a) / T rounded, halves to even.
local function nearest(d, T)
   local k = floor(d / T)
   local rest = 2 * (d - k * T)
   if rest > T or rest == T and k % 2 == 1 then k = k + 1 end
   return k
end

-- Returns the edge of a tubelet that is nearest to frame t, inside the video if it has one there.
local function snap(num_frames, T, t)
   local a = 0
   for _, n in ipairs(num_frames) do
      local b = a + n
      if t < b then
         if t == a then return t end
         local count = math.ceil(n / T)
         if count == 1 then return t - a < b - t and a or b end
         return a + max(1, min(nearest(t - a, T), count - 1)) * T
      end
      a = b
   end
   return a
end

-- Returns bounds at equal numbers of frames, each moved to the nearest edge of a tubelet. Parts may
-- be empty.
function split.points(num_frames, T, parts)
   local total, bounds = sum_of(num_frames), { 0 }
   for r = 1, parts do
      bounds[r + 1] = max(bounds[r], snap(num_frames, T, floor(r * total / parts)))
   end
   return bounds
end

-- Returns whether every cut before `total` lies between units, and no part is empty.
local function sound(bounds, num_frames, T, total)
   local edge, at = { [0] = true }, 0
   for _, n in ipairs(split.units(num_frames, T)) do
      at = at + n
      edge[at] = true
   end
   for r = 1, #bounds - 1 do
      if bounds[r + 1] <= bounds[r] then return false end
      if not edge[min(bounds[r + 1], total)] then return false end
   end
   return true
end

-- Returns the bounds that published code takes, with so many empty frames appended that no part is
-- empty, and their number. nil where that rule would lose a frame, cut a tubelet or leave a part
-- empty.
function split.compatible(num_frames, T, parts)
   local total = sum_of(num_frames)
   local frames, added = dims.copy(num_frames), 0
   local function append(n)
      for _ = 1, n do frames[#frames + 1] = 1 end
      added = added + n
   end
   append(max(0, parts - #split.units(num_frames, T)))
   local bounds
   for _ = 1, parts do
      bounds = split.points(frames, T, parts)
      local empty = 0
      for r = 1, parts do empty = empty + (bounds[r + 1] == bounds[r] and 1 or 0) end
      if empty == 0 then break end
      append(empty)
   end
   for r = 1, parts do                   -- empty frames begin a part of their own
      if bounds[r] < total then bounds[r + 1] = min(bounds[r + 1], total) end
   end
   if not sound(bounds, num_frames, T, total) then return nil end
   return bounds, bounds[parts + 1] - total
end

-- Splits images into equal counts; the last part takes the rest. Empty images are appended up to
-- one for each part. Returns bounds and the number of appended images.
function split.even(n, parts)
   local added = max(0, parts - n)
   local each, bounds = floor((n + added) / parts), {}
   for r = 0, parts do bounds[r + 1] = r < parts and r * each or n + added end
   return bounds, added
end

-- ---- a proportional rule ---------------------------------------------------------------------

-- Cuts in proportion: cut r lies before the first element whose running cost exceeds r / parts of
-- the whole, moved so that every part has one; nil with fewer elements than parts.
function split.proportional(costs, parts)
   local sum, n = dims.cumulative(costs), #costs
   if n < parts then return nil end
   local bounds, at = { 0 }, 0
   for r = 1, parts do
      while at < n and sum[at + 2] * parts <= r * sum[n + 1] do at = at + 1 end
      at = max(bounds[r] + 1, min(at, n - (parts - r)))
      bounds[r + 1] = at
   end
   return bounds
end

-- Returns the work of a frame of `patches` patches that attend to one another: patches * (patches +
-- alpha).
function split.frame_cost(patches, alpha) return patches * (patches + alpha) end

-- Returns the number of empty frames to add so that a rank has at least `least` rows of patches.
function split.pad_frames(rows, rows_per_frame, least_rows)
   if rows_per_frame == 0 then return 0 end
   return math.ceil(max(0, least_rows - rows) / rows_per_frame)
end

local frames = 'num_frames: integer[] >= 0; T: integer >= 1'
return signature.doors('parallel.vision_split', split, {
   units = frames, clip = 'num_frames: integer[] >= 0; lb: integer >= 0; ub: integer >= 0',
   partition = 'costs: number[] > 0; parts: integer >= 1',
   balanced = { { 'num_frames: integer[] >= 0', 'T: integer >= 1', 'parts: integer >= 1',
      'costs: number[]? > 0',
      'where not costs or #costs == sum(num_frames) -- expected {sum(num_frames)} costs, one for '
         .. 'each frame, got {#costs}' } },
   points = frames .. '; parts: integer >= 1', compatible = frames .. '; parts: integer >= 1',
   even = 'n: integer >= 0; parts: integer >= 1',
   proportional = 'costs: number[] > 0; parts: integer >= 1',
   frame_cost = 'patches: number >= 0; alpha: number >= 0 = 0',
   pad_frames = 'rows: integer >= 0; rows_per_frame: integer >= 0; least_rows: integer >= 0',
})
