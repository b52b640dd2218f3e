-- Where the patches of images and videos lie, as numbers: rows and columns, frames and windows of a
-- vision tower, and the positions and features of the tokens that represent them in a text.
--
-- A grid is { t, h, w }: frames, and rows and columns of patches of a frame. Patches of a stream
-- lie frame by frame, and in a frame block by block: `merge` x `merge` neighbours become one
-- feature. So a grid has t h w patches and t (h / merge) (w / merge) features. Functions of
-- numbers, and the index that attention takes of them.

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local upload = require 'tide.util.upload'

local grid_ = {}

local max, min = math.max, math.min

-- Returns the rows and columns of patches of an image of size s, (height, width) in pixels: whole
-- patches of `patch` pixels a side. least: number of pixels of a side.
function grid_.of_size(op, name, s, patch, least)
   err.integers(op, name, s, least)
   err.arg_if(#s ~= 2, op, name, 'two numbers, height and width in pixels', s)
   local h, w = s[1] / patch, s[2] / patch
   if h % 1 ~= 0 or w % 1 ~= 0 then
      err.arg_text(op, name, ('multiples of the patch (%d)'):format(patch),
         ('%d x %d'):format(s[1], s[2]))
   end
   return h, w
end

-- Returns a list of grids { t, h, w } from a tensor [N, 3] or such a list; an empty one for nil.
-- name: of the argument; merge: what rows and columns must be multiples of.
function grid_.read(op, name, grids, merge)
   local list = {}
   if require('tide').is_tensor(grids) then
      err.arg_if(grids.ndim ~= 2 or grids:size(2) ~= 3, op, name, 'a tensor [N, 3] of frames, rows '
         .. 'and columns of patches, one row for each image or video', grids)
      grids = grids:tolist()
   end
   for i, g in ipairs(grids == nil and {} or err.type(op, name, grids, 'table')) do
      local row = ('%s[%d]'):format(name, i)
      err.integers(op, row, g, 1)
      if #g ~= 3 or g[2] % merge ~= 0 or g[3] % merge ~= 0 then
         err.arg_text(op, row, ('{ frames, rows, columns } of patches, rows and columns multiples '
            .. 'of %d (spatial_merge_size)'):format(merge), '{ ' .. table.concat(g, ', ') .. ' }')
      end
      list[i] = { g[1], g[2], g[3] }
   end
   return list
end

-- Returns the number of patches of grids.
function grid_.patches(grids)
   local n = 0
   for _, g in ipairs(grids) do n = n + g[1] * g[2] * g[3] end
   return n
end

-- Returns grids with a grid { 1, h, w } for each frame. A tower computes each frame by itself.
function grid_.frames(grids)
   local list = {}
   for _, g in ipairs(grids) do
      for _ = 1, g[1] do list[#list + 1] = { 1, g[2], g[3] } end
   end
   return list
end

-- Returns the pairs (run, patch), an index of attention on a device, of runs with these cumulative
-- patches; nil of one run, in which all patches see all.
function grid_.index(cu, device)
   if #cu == 2 then return nil end
   local tide = require 'tide'
   local t = tide.document_index(tide.tensor(cu, { dtype = 'i64', device = 'cpu' }), cu[#cu])
   return upload(function(here) return t:to(here) end, device)
end

-- ---- in the tower ------------------------------------------------------------------------------

-- Calls fn(y, x, is_first) for the blocks of a frame of rows x columns blocks, window by window of
-- `side` blocks a side, each window row by row. is_first: the block begins a window.
local function each_window(rows, columns, side, fn)
   for top = 0, rows - 1, side do
      for left = 0, columns - 1, side do
         for y = top, min(top + side, rows) - 1 do
            for x = left, min(left + side, columns) - 1 do
               fn(y, x, y == top and x == left)
            end
         end
      end
   end
end

-- Returns how a tower reads the patches of grids, a table of lists:
--    order    the place of each block of patches in the stream, from 0, in the order of the windows
--    back     the place of each block of the stream in that order, from 0
--    rows, columns   of each patch, in that order
--    frames, windows   cumulative patches, from 0
-- side: blocks along a side of a window; math.huge: frames are windows, and the order is that of
-- the stream.
function grid_.layout(grids, merge, side)
   local order, back, rows, columns = {}, {}, {}, {}
   local frames, windows, first, n = { 0 }, {}, 0, 0
   for _, g in ipairs(grids) do
      local high, wide = g[2] / merge, g[3] / merge
      for _ = 1, g[1] do
         each_window(high, wide, side, function(y, x, is_first)
            if is_first then windows[#windows + 1] = n end
            local place = first + y * wide + x
            order[#order + 1], back[place + 1] = place, #order
            for dy = 0, merge - 1 do
               for dx = 0, merge - 1 do
                  n = n + 1
                  rows[n], columns[n] = y * merge + dy, x * merge + dx
               end
            end
         end)
         first = first + high * wide
         frames[#frames + 1] = n
      end
   end
   windows[#windows + 1] = n
   return { order = order, back = back, rows = rows, columns = columns,
      frames = frames, windows = windows }
end

-- Returns for each of n places on an axis, from 0, the two nearest of `side` entries, from 0, whose
-- first and last lie at the ends of the axis, and their weights.
local function nearest(n, side)
   local list = {}
   for i = 0, n - 1 do
      local at = i * (side - 1) / max(n - 1, 1)
      local first = math.floor(at)
      local near = 1 - (at - first)
      list[i] = { first, min(first + 1, side - 1), near, 1 - near }
   end
   return list
end

-- Returns the four entries of a square table that are nearest to each patch, and their weights, two
-- flat lists: bilinear interpolation of the table to each grid. lay: of grid_.layout; side: entries
-- along a side of the table.
function grid_.nearest(lay, grids, side)
   local ids, weights, n, at = {}, {}, 0, 0
   for _, g in ipairs(grids) do
      local high, wide = nearest(g[2], side), nearest(g[3], side)
      for _ = 1, g[1] * g[2] * g[3] do
         n = n + 1
         local y, x = high[lay.rows[n]], wide[lay.columns[n]]
         for i = 1, 2 do
            for j = 1, 2 do
               at = at + 1
               ids[at], weights[at] = y[i] * side + x[j], y[i + 2] * x[j + 2]
            end
         end
      end
   end
   return ids, weights
end

-- ---- in the text -------------------------------------------------------------------------------

local kinds = { image = 'image_grid_thw', video = 'video_grid_thw' }

-- Returns what a grid of a kind is: a row of the argument, or a frame of the videos of its rows.
local function part_of(o, kind) return o.frames_apart and kind == 'video' and 'frame' or 'row' end

local function no_grid(o, b, t, kind)
   local part = part_of(o, kind)
   err.raise('E_ARG', o.op, 'ids[%d][%d] is %s_token_id (%d), but %s has no %s for it; give a %s '
      .. 'for each %s, or leave its tokens out of ids', b, t, kind, o.ids[kind], kinds[kind], part,
      part, part == 'frame' and 'run of such tokens' or kind)
end

local function cut_off(o, b, kind, i, n, got)
   local is_frame = part_of(o, kind) == 'frame'
   err.raise('E_ARG', o.op, '%s is %d tokens, but only %d of %s_token_id (%d) follow one another '
      .. 'in row %d of ids; repeat the token %s / %d times', is_frame
      and ('frame %d of %s'):format(i, kinds[kind]) or ('%s[%d]'):format(kinds[kind], i), n, got,
      kind, o.ids[kind], b, is_frame and 'h w' or 't h w', o.merge ^ 2)
end

-- Returns 'image' or 'video' for a token of one, else nil.
local function kind_of(o, id)
   return id == o.ids.image and 'image' or id == o.ids.video and 'video' or nil
end

-- Returns the last of at most `most` tokens from t on that have the kind and the document of t.
local function last_alike(o, row, docs, t, most)
   local kind, doc, last = kind_of(o, row[t]), docs and docs[t], t
   while last - t + 1 < most and last < #row and kind_of(o, row[last + 1]) == kind
      and (not docs or docs[last + 1] == doc) do
      last = last + 1
   end
   return last
end

-- Raises if ids have tokens of fewer images or videos than there are grids. used: of how many.
local function check_used(o, used)
   for kind, name in each(kinds) do
      local part = part_of(o, kind)
      err.raise_if(used[kind] < #o.grids[kind], 'E_ARG', o.op, '%s has %d %ss, but ids have '
         .. 'tokens (%s_token_id %d) of only %d; leave the other %ss out, or add their tokens',
         name, #o.grids[kind], part, kind, o.ids[kind], used[kind], part)
   end
end

-- Calls fn(b, kind, first, last, i) for what each row of tokens consists of, in order: a run of
-- text (kind nil), or the tokens of image or video number i. Padding (document 0 of docs) is in no
-- run, a document begins a new one. o: op, rows (lists of ids), docs (lists of documents or nil),
-- ids (the tokens { image, video }), grids ({ image, video }, lists), merge, frames_apart (grids of
-- videos are those of their frames).
local function each_run(o, fn)
   local used = { image = 0, video = 0 }
   for b, row in ipairs(o.rows) do
      local t, docs = 1, o.docs and (o.docs[b] or o.docs[1])
      while t <= #row do
         local is_padding, i, n = docs and docs[t] == 0, nil, math.huge
         local kind = not is_padding and kind_of(o, row[t]) or nil
         if kind then
            i = used[kind] + 1
            local g = o.grids[kind][i] or no_grid(o, b, t, kind)
            used[kind], n = i, g[1] * g[2] * g[3] / o.merge ^ 2
         end
         local last = last_alike(o, row, docs, t, n)
         if kind and last - t + 1 < n then cut_off(o, b, kind, i, n, last - t + 1) end
         if not is_padding then fn(b, kind, t, last, i) end
         t = last + 1
      end
   end
   check_used(o, used)
end

-- Puts the three positions of the tokens of a grid from column `first` on, `at` being the position
-- behind the text before. times: how much later than that the frames are; nil: an image.
local function put_grid(rows, first, at, g, merge, times)
   local high, wide, t = g[2] / merge, g[3] / merge, first
   for frame = 0, g[1] - 1 do
      local time = at + (times and times[frame + 1] or frame)
      for y = 0, high - 1 do
         for x = 0, wide - 1 do
            rows[1][t], rows[2][t], rows[3][t] = time, at + y, at + x
            t = t + 1
         end
      end
   end
end

-- Returns the positions of tokens, three lists (time, height, width) of rows, and how much the
-- largest position of each row exceeds that of its last token in a plain text. o: as of each_run,
-- and times (of the frames of each video).
function grid_.positions(o)
   local lists, deltas, at, doc_of, most, n = { {}, {}, {} }, {}, {}, {}, {}, {}
   for b, row in ipairs(o.rows) do
      for axis = 1, 3 do
         lists[axis][b] = {}
         for t = 1, #row do lists[axis][b][t] = 0 end
      end
      at[b], most[b], n[b] = 0, -1, 0
   end
   each_run(o, function(b, kind, first, last, i)
      local rows = { lists[1][b], lists[2][b], lists[3][b] }
      local docs = o.docs and (o.docs[b] or o.docs[1])
      if docs and docs[first] ~= doc_of[b] then
         at[b], doc_of[b] = 0, docs[first]
      end
      n[b] = n[b] + last - first + 1
      if kind then
         local g = o.grids[kind][i]
         put_grid(rows, first, at[b], g, o.merge, kind == 'video' and o.times[i] or nil)
         at[b] = at[b] + max(g[2], g[3]) / o.merge
      else
         for t = first, last do
            rows[1][t], rows[2][t], rows[3][t] = at[b], at[b], at[b]
            at[b] = at[b] + 1
         end
      end
      for axis = 1, 3 do
         for t = first, last do most[b] = max(most[b], rows[axis][t]) end
      end
   end)
   for b in ipairs(o.rows) do deltas[b] = most[b] + 1 - n[b] end
   return lists, deltas
end

-- Returns the pictures of rows in the order of their tokens: { kind, first, last, number }, which
-- is image or video number `number`. o: as of each_run.
function grid_.pictures(o)
   local list = {}
   each_run(o, function(_, kind, first, last, i)
      if kind then
         list[#list + 1] = { kind = kind, first = first, last = last, number = i }
      end
   end)
   return list
end

-- Returns rows of the feature of each token, from 0, those of videos behind those of images; -1 for
-- text. o: as of each_run.
function grid_.features(o)
   local lists = {}
   for b, row in ipairs(o.rows) do
      lists[b] = {}
      for t = 1, #row do lists[b][t] = -1 end
   end
   local at = { image = 0, video = grid_.patches(o.grids.image) / o.merge ^ 2 }
   each_run(o, function(b, kind, first, last)
      for t = first, kind and last or first - 1 do
         lists[b][t], at[kind] = at[kind], at[kind] + 1
      end
   end)
   return lists
end

return grid_
