-- Random cases: rows of chats with images, and pixels. The pieces in the rows of every rank, their
-- tokens, labels, positions and patches are held against the definition; orientation, layouts,
-- resizing and patches against plain loops over pixels.

local oracle = require 'spec.deep.oracle.pictures'
local choice = require 'spec.deep.fuzz.choice'

local domain = { limit = 60 }

-- Tokens that stand for an image, a video, and what is around an image; texts have others.
local IMAGE, VIDEO, FIRST, LAST = 60, 61, 62, 63
local MERGE, NUMEL = 2, 24                 -- patches along a side of a feature; numbers of a patch

-- ---- cases -------------------------------------------------------------------------------------

local make = {}

-- A document: runs of text { n, c = whether they count } and images { h, w (features), marks }.
local function document(c)
   local list = {}
   for i = 1, c:int(1, 6) do
      if c:chance(0.5) then
         list[i] = { h = c:few(1, 3), w = c:few(1, 3), marks = c:pick { 'both', 'none', 'first' } }
      else
         list[i] = { n = c:few(1, 12), c = c:chance(0.8) }
      end
   end
   return list
end

function make.rows(c, o)
   o.docs, o.seed = {}, c:int(0, 99)
   o.together = c:chance(0.2) and 2 or 1
   for i = 1, c:few(1, 6) * o.together do o.docs[i] = document(c) end
   o.cp = c:pick { 1, 1, 2, 3 }
   o.seq = 2 * o.cp * math.ceil(c:int(11, 40) / (2 * o.cp))
   o.fit = c:pick { 'next', 'best', 'alone' }
   o.long = o.together == 2 and 'cut' or c:pick { 'split', 'cut' }
   o.sizes = { c:pick { 1, 2, 3 }, c:pick { 1, 2, 3 } }
   o.steps = { c:few(1, 4), c:few(1, 4) }
end

function make.pixels(c, o)
   o.h, o.w, o.seed = c:few(1, 40), c:few(1, 40), c:int(0, 99)
   o.to = { c:chance(0.2) and o.h or c:few(1, 40), c:chance(0.2) and o.w or c:few(1, 40) }
   o.wild = c:chance(0.4)
   o.patch, o.merge, o.depth = c:few(1, 4), c:few(1, 3), c:few(1, 3)
   o.cells = { c:few(1, 3), c:few(1, 3) }
   o.first = c:int(0, o.depth - 1)
   o.last = c:int(o.first, o.depth - 1)
   o.frames, o.shift = c:few(1, 3), c:int(0, 1)
end

-- A case; kind says of what.
function domain.make(c)
   local o = { kind = c:pick { 'rows', 'pixels' } }
   make[o.kind](c, o)
   return o
end

-- ---- chats with images -------------------------------------------------------------------------

-- Ids and mask of a document as a template writes them, and its images: one token each.
local function written(doc, d)
   local ids, mask, images = {}, {}, {}
   local function put(id, counts) ids[#ids + 1], mask[#mask + 1] = id, counts and '\1' or '\0' end
   for k, e in ipairs(doc) do
      if e.h then
         images[#images + 1] = { grid = { 1, e.h * MERGE, e.w * MERGE }, n = e.h * e.w,
            path = ('%d-%d'):format(d, k), place = 'a record', field = 'images' }
         if e.marks ~= 'none' then put(FIRST, true) end
         put(IMAGE, true)
         if e.marks == 'both' then put(LAST, true) end
      else
         for i = 1, e.n do put((7 * d + 3 * k + i) % 50, e.c) end
      end
   end
   return ids, mask, images
end

local models = {}

-- Fields of towers by family, which others do not have.
local towers = { qwen2_5_vl = { window_size = 8, fullatt_block_indexes = { 0 } },
   qwen3_vl = { deepstack_visual_indexes = { 0 } }, qwen3_5_vl = {} }
local families = { 'qwen2_5_vl', 'qwen3_vl', 'qwen3_5_vl' }

-- What completes batches: a model of a family without bytes.
local function model_of(t, family)
   local copy = require 'tide.util.copy'
   models[family] = models[family] or t.model[family]({ vocab_size = 64, hidden_size = 8,
      num_hidden_layers = 1, num_attention_heads = 1, num_key_value_heads = 1,
      head_dim = family == 'qwen3_5_vl' and 32 or 8,      -- of which a quarter turns
      intermediate_size = 8, image_token_id = IMAGE, video_token_id = VIDEO,
      rope_scaling = { rope_type = 'default', mrope_section = { 2, 1, 1 } },
      vision_config = copy(towers[family], { depth = 1, hidden_size = 8, num_heads = 1,
         intermediate_size = 8, out_hidden_size = 8, patch_size = 2, spatial_merge_size = MERGE,
         temporal_patch_size = 2 }) }, { device = 'null' })
   return models[family]
end

-- The patches of an image: a function of its path.
local function patches_of(t, path, grid)
   local numel = grid[2] * grid[3] * NUMEL
   local a, b = path:match '(%d+)-(%d+)'
   local x = t.arange(numel, { dtype = 'f32' }) + 1000 * a + 100 * b
   return x:reshape { numel / NUMEL, NUMEL }
end

-- The source of the documents, their cumulative lengths, and the same as plain lists.
local function source_of(t, o)
   local parts = require 'tide.data.image_parts'
   local all = { ids = {}, mask = {}, cu = { 0 }, blocks = {}, images = {} }
   local family = families[#o.docs % #families + 1]
   local m, list = model_of(t, family), {}
   for d, doc in ipairs(o.docs) do
      local ids, mask, images = written(doc, d)
      for _, e in ipairs(images) do
         e.reader = { place = function(batch, index) return m:placed(batch, index) end,
            processor = { read = function(_, path)
               return patches_of(t, path, e.grid), e.grid
            end } }
      end
      oracle.expand(all, doc, ids, mask, images)
      ids, mask = parts._expanded(ids, mask, images, { image = IMAGE, video = VIDEO, first = FIRST,
         last = LAST })
      parts._add(list, images, all.cu[d])
      for k = 1, #ids do
         if ids[k] ~= all.ids[all.cu[d] + k] or mask[k] ~= all.mask[all.cu[d] + k] then
            return nil, ('token %d of document %d is expanded to another'):format(k, d)
         end
      end
   end
   local bytes = {}
   for k, id in ipairs(all.ids) do bytes[k] = string.char(id, 0) end
   local source = t.data.tokens.memory(table.concat(bytes), 2, table.concat(all.mask))
   source.images = #list > 0 and list or nil
   return source, all
end

local function sampler_of(t, o, source, all, rank, size)
   return t.data.packed.new { cu = all.cu, source = source, seq = o.seq, batch = 6, seed = o.seed,
      rank = rank, size = size, cp = o.cp, fit = o.fit, long = o.long, together = o.together }
end

-- Rows of so many steps on `size` ranks, in order; and the state after them.
local function steps(t, o, source, all, size, n, state)
   local samplers, rows = {}, {}
   for r = 1, size do
      samplers[r] = sampler_of(t, o, source, all, r - 1, size)
      if state then samplers[r]:restore(state) end
   end
   for _ = 1, n do
      for r = 1, size do
         for _, row in ipairs(samplers[r]:next()) do rows[#rows + 1] = row end
      end
   end
   return rows, samplers[1]:state()
end

local function listed(x) return x and x:to 'f64':reshape(x:numel()):tolist() end

local function differ(name, got, want)
   if #got ~= #want then return ('%s: %d numbers, expected %d'):format(name, #got, #want) end
   for k = 1, #want do
      if want[k] ~= got[k] and want[k] ~= oracle.any then
         return ('%s[%d] is %s, expected %s'):format(name, k, tostring(got[k]), tostring(want[k]))
      end
   end
end

-- A batch against the tokens, places and patches of its rows.
local function compare_batch(t, o, source, all, rows)
   local got = t.data.packed.make(source, rows, o.seq, {})
   local want = oracle.batch(all, rows, o.seq, MERGE)
   local pixels, grids = {}, {}
   for _, e in ipairs(want.images) do
      for _, v in ipairs(listed(patches_of(t, e.path, e.grid))) do pixels[#pixels + 1] = v end
      for _, v in ipairs(e.grid) do grids[#grids + 1] = v end
   end
   return differ('ids', listed(got.ids), want.ids)
      or differ('labels', listed(got.labels), want.labels)
      or differ('count', { got.count }, { want.count })
      or differ('positions', listed(got.positions), want.positions)
      or differ('pixel_values', listed(got.pixel_values) or {}, pixels)
      or differ('image_grid_thw', listed(got.image_grid_thw) or {}, grids)
      or #want.images > 0 and differ('feature_rows', listed(got.feature_rows), want.features)
      or differ('cu_real', listed(got.cu_real), want.cu_real)
      or differ('cu_slot', listed(got.cu_slot), want.cu_slot)
      or differ('patches', { t.data.packed.images(source, rows).patches }, { #pixels / NUMEL })
end

local check = {}

function check.rows(o)
   local t = require 'tide'
   local source, all = source_of(t, o)
   if not source then return all end
   if not oracle.has_label(all, o) then
      local ok = pcall(function() sampler_of(t, o, source, all, 0, 1):next() end)
      if ok then return 'rows without a label' end
      return nil, 'no label'
   end
   local problem = oracle.check_rows(all, sampler_of(t, o, source, all, 0, 1):all(), o)
   if problem then return problem end
   local rows, state = steps(t, o, source, all, o.sizes[1], o.steps[1])
   local more = steps(t, o, source, all, o.sizes[2], o.steps[2], state)
   for _, row in ipairs(more) do rows[#rows + 1] = row end
   local whole = steps(t, o, source, all, 1, o.steps[1] + o.steps[2])
   for k, row in ipairs(whole) do
      for i = 1, math.max(#row, #rows[k]) do
         problem = differ(('piece %d of row %d on other ranks'):format(i, k),
            { unpack(rows[k][i] or {}, 1, 4) }, { unpack(row[i] or {}, 1, 4) })
         if problem then return problem end
      end
   end
   for k = 1, #whole, 2 do
      problem = compare_batch(t, o, source, all, { whole[k], whole[k + 1] })
      if problem then return ('rows %d and %d: %s'):format(k, k + 1, problem) end
   end
   return nil, #(source.images or {}) > 0 and 'with images' or 'of texts'
end

-- ---- pixels ------------------------------------------------------------------------------------

-- n bytes: noise, or one of two values.
local function noise(seed, n, wild)
   local next_, list = choice.stream('pixels ' .. seed), {}
   for i = 1, n do
      local v = next_()
      list[i] = wild and (v < 0.5 and 0 or 255) or math.floor(v * 256)
   end
   return list
end

-- A tensor of bytes that begins `shift` bytes into its memory.
local function bytes(t, list, shape, shift)
   local moved = {}
   for k = 1, shift do moved[k] = 0 end
   for k, v in ipairs(list) do moved[shift + k] = v end
   return t.tensor(moved, { dtype = 'u8' }):narrow(1, shift + 1, #list):reshape(shape)
end

-- Pixels of layouts against RGB: those of decoders, whose C functions programs do not call.
local function compare_layouts(t, o)
   local ffi = require 'ffi'
   local C = require('tide.ffi.lib').C
   for layout, channels in pairs { [C.TIDE_PIXELS_RGBA] = 4, [C.TIDE_PIXELS_CMYK] = 4,
      [C.TIDE_PIXELS_RGB16] = 6, [C.TIDE_PIXELS_GREY16] = 2 } do
      local list = noise(o.seed + channels, o.h * o.w * channels, o.wild)
      local x = bytes(t, list, { o.h, o.w, channels }, o.shift)
      local box = ffi.new 'tide_tensor *[1]'
      local own = require 'tide.ffi.own'
      own.check(x, C.tide_image_rgb(box, x, layout))
      local name = ({ [4] = layout == C.TIDE_PIXELS_CMYK and 'cmyk' or 'rgba', [6] = 'rgb16',
         [2] = 'grey16' })[channels]
      local problem = differ(name, listed(own.take(box)), oracle.rgb(list, name))
      if problem then return problem end
   end
end

local function compare_patches(t, o, decoders)
   local side = o.patch * o.merge
   local h, w = o.cells[1] * side, o.cells[2] * side
   local list = noise(o.seed + 1, h * w * 3, o.wild)
   local form = decoders.form { patch = o.patch, merge = o.merge, depth = o.depth,
      factor = 1 / 256 }
   local to = decoders.patches(form, o.frames, h, w):fill_(-1)
   decoders.write(to, form, bytes(t, list, { h, w, 3 }, o.shift), o.frames - 1, o.first, o.last)
   return differ('patches', listed(to), oracle.patches(list, h, w, o))
end

function check.pixels(o)
   local t, decoders = require 'tide', require 'tide.ffi.image'
   local list = noise(o.seed, o.h * o.w * 3, o.wild)
   local x = bytes(t, list, { o.h, o.w, 3 }, o.shift)
   for k = 1, 8 do
      local turned = decoders.orient(x, k)
      local want = oracle.orient(list, o.h, o.w, k)
      local problem = differ('orientation ' .. k, turned.shape, { want.h, want.w, 3 })
         or differ('orientation ' .. k, listed(turned), want)
      if problem then return problem end
   end
   return differ('resized', listed(decoders.resize(x, o.to[1], o.to[2])),
         oracle.resize(list, o.h, o.w, o.to[1], o.to[2]))
      or compare_layouts(t, o) or compare_patches(t, o, decoders), 'pixels'
end

-- What is wrong with a case, or nil and a word on it.
function domain.check(o) return check[o.kind](o) end

domain.idle = { ['no label'] = true }

return domain
