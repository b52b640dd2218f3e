-- Chats with images and pixels by their definitions, in plain Lua: pieces of documents, the streams
-- that rows make, and loops over pixels. Calls nothing of tide.

local pictures = { any = {} }              -- any: a number that may be anything

local max, min, floor, ceil = math.max, math.min, math.floor, math.ceil

-- ---- documents ---------------------------------------------------------------------------------

-- Adds a document to `all`, with the token of each image repeated. Tokens of images and the marks
-- around them are no labels. ids, mask: one token for each image; images: of the document.
function pictures.expand(all, doc, ids, mask, images)
   local from, seen, first = 1, 0, #all.ids
   local function put(counts)
      all.ids[#all.ids + 1] = ids[from]
      all.mask[#all.mask + 1] = counts and mask[from] or '\0'
   end
   for _, e in ipairs(doc) do
      if e.h then
         seen = seen + 1
         local block = { first = #all.ids, path = images[seen].path, grid = images[seen].grid }
         if e.marks ~= 'none' then
            put(false)
            from = from + 1
         end
         block.at, block.n = #all.ids, e.h * e.w
         for _ = 1, block.n do put(false) end
         from = from + 1
         if e.marks == 'both' then
            put(false)
            from = from + 1
         end
         block.stop = #all.ids
         all.blocks[#all.blocks + 1] = block
      else
         for _ = 1, e.n do
            put(true)
            from = from + 1
         end
      end
   end
   all.cu[#all.cu + 1] = #all.ids
   assert(from == #ids + 1 and #all.ids > first)
end

-- Whether a piece of tokens at .. stop - 1 has a label that counts.
local function counts(all, at, stop, goes_on)
   for k = at + 2, goes_on and stop + 1 or stop do
      if all.mask[k] == '\1' then return true end
   end
   return false
end

-- Where a piece ends that would end at p.
local function whole(all, p)
   for _, b in ipairs(all.blocks) do
      if b.first < p and p < b.stop then return b.first end
   end
   return p
end

local function rounded(n, unit) return ceil(n / unit) * unit end

-- Groups of pieces { start, n, goes_on, slot } that share a row.
local function groups(all, o)
   local list, unit = {}, o.cp > 1 and 2 * o.cp or 1
   for d = 1, #all.cu - 1, o.together do
      local slots, most, group = 0, o.seq, {}
      for k = d, d + o.together - 1 do
         slots = slots + rounded(all.cu[k + 1] - all.cu[k], unit)
      end
      if o.together > 1 and slots > o.seq then
         most = floor(o.seq / o.together / unit) * unit
      elseif o.together > 1 then
         most = math.huge
      end
      for k = d, d + o.together - 1 do
         local at, last = all.cu[k], all.cu[k + 1]
         repeat
            local stop = min(at + most, last)
            if stop < last then stop = whole(all, stop) end
            local goes_on = o.together == 1 and stop < last
            if counts(all, at, stop, goes_on) then
               group[#group + 1] = { at, stop - at, goes_on, rounded(stop - at, unit) }
            end
            at = stop
         until at == last or o.long == 'cut'
      end
      if o.together == 1 then
         for _, piece in ipairs(group) do list[#list + 1] = { piece } end
      elseif #group == o.together then
         list[#list + 1] = group
      end
   end
   return list
end

-- Whether some row has a label.
function pictures.has_label(all, o) return #groups(all, o) > 0 end

local function text_of(piece)
   return ('%d+%d%s in %d'):format(piece[1], piece[2], piece[3] and ' goes on' or '', piece[4])
end

-- What is wrong with rows of all documents in their order, or nil.
function pictures.check_rows(all, rows, o)
   local want, got = groups(all, o), {}
   for r, row in ipairs(rows) do
      local used, i = 0, 1
      while i <= #row do
         local group = {}
         for k = i, i + o.together - 1 do group[#group + 1] = row[k] and text_of(row[k]) or '-' end
         got[#got + 1] = { first = row[i][1], text = table.concat(group, ', ') }
         i = i + o.together
      end
      for _, piece in ipairs(row) do used = used + piece[4] end
      if used > o.seq then return ('row %d takes %d places of %d'):format(r, used, o.seq) end
      if o.fit == 'alone' and #row ~= o.together then return ('row %d has more'):format(r) end
   end
   if o.fit == 'best' then table.sort(got, function(a, b) return a.first < b.first end) end
   for i = 1, max(#want, #got) do
      local group = {}
      for k, piece in ipairs(want[i] or {}) do group[k] = text_of(piece) end
      local text = table.concat(group, ', ')
      if not got[i] or got[i].text ~= text then
         return ('piece %d is %s, expected %s'):format(i, got[i] and got[i].text or 'none', text)
      end
   end
end

-- ---- a stream ----------------------------------------------------------------------------------

-- Three positions of each token of a piece, from 0 on: a text goes on behind the rows or columns of
-- an image, whichever are more.
local function places(all, piece, merge)
   local list, at, stop, p = {}, piece[1], piece[1] + piece[2], 0
   while at < stop do
      local image
      for _, b in ipairs(all.blocks) do
         if b.at == at then image = b end
      end
      if image then
         local h, w = image.grid[2] / merge, image.grid[3] / merge
         for y = 0, h - 1 do
            for x = 0, w - 1 do list[#list + 1] = { p, p + y, p + x } end
         end
         at, p = at + h * w, p + max(h, w)
      else
         list[#list + 1] = { p, p, p }
         at, p = at + 1, p + 1
      end
   end
   return list
end

-- What a batch of rows holds: ids, labels, count, positions, features, images, cu_real, cu_slot.
function pictures.batch(all, rows, seq, merge)
   local out = { ids = {}, labels = {}, count = 0, features = {}, images = {}, cu_real = { 0 },
      cu_slot = { 0 } }
   local three, total, of_image = { {}, {}, {} }, #rows * seq, 0
   for r, row in ipairs(rows) do
      for i, piece in ipairs(row) do
         local first, slots = #out.ids, out.cu_slot[#out.cu_slot]
         local slot = i == #row and r * seq - slots or piece[4]
         local at = places(all, piece, merge)
         for _, b in ipairs(all.blocks) do
            if piece[1] <= b.first and b.stop <= piece[1] + piece[2] then
               out.images[#out.images + 1] = b
            end
         end
         for k = 1, slot do
            local t, real = piece[1] + k, k <= piece[2]
            local counted = (k < piece[2] or real and piece[3]) and all.mask[t + 1] == '\1'
            out.ids[first + k] = real and all.ids[t] or 0
            out.labels[first + k] = counted and all.ids[t + 1] or -100
            out.count = out.count + (counted and 1 or 0)
            for axis = 1, 3 do three[axis][first + k] = real and at[k][axis] or pictures.any end
            out.features[first + k] = -1
            for _, b in ipairs(real and all.blocks or {}) do
               if b.at < t and t <= b.at + b.n then
                  out.features[first + k], of_image = of_image, of_image + 1
               end
            end
         end
         out.cu_real[#out.cu_real + 1] = out.cu_real[#out.cu_real] + piece[2]
         out.cu_slot[#out.cu_slot + 1] = slots + slot
      end
   end
   out.positions = {}
   for axis = 1, #out.images > 0 and 3 or 1 do
      for k = 1, total do out.positions[#out.positions + 1] = three[axis][k] end
   end
   return out
end

-- ---- pixels ------------------------------------------------------------------------------------

-- Where a pixel of a picture as it is seen lies in the file of this orientation (EXIF).
local from = {
   function(y, x) return y, x end,
   function(y, x, _, w) return y, w - 1 - x end,
   function(y, x, h, w) return h - 1 - y, w - 1 - x end,
   function(y, x, h) return h - 1 - y, x end,
   function(y, x) return x, y end,
   function(y, x, h) return h - 1 - x, y end,
   function(y, x, h, w) return h - 1 - x, w - 1 - y end,
   function(y, x, _, w) return x, w - 1 - y end,
}

-- Pixels as a file of h x w pixels with this orientation shows them; fields h and w.
function pictures.orient(list, h, w, orientation)
   local out = { h = orientation >= 5 and w or h, w = orientation >= 5 and h or w }
   for y = 0, out.h - 1 do
      for x = 0, out.w - 1 do
         local fy, fx = from[orientation](y, x, h, w)
         for c = 1, 3 do out[#out + 1] = list[(fy * w + fx) * 3 + c] end
      end
   end
   return out
end

local layouts = {}

function layouts.rgba(p, i, c) return p[4 * i + c] end

-- Inverted, as Adobe writes it. a b / 255 is rounded as Pillow rounds it.
function layouts.cmyk(p, i, c)
   local key = p[4 * i + 4]
   return key - floor((255 - p[4 * i + c]) * key / 255 + 0.5)
end

function layouts.rgb16(p, i, c) return p[6 * i + 2 * c] end

function layouts.grey16(p, i) return min(255, p[2 * i + 1] + 256 * p[2 * i + 2]) end

-- Pixels of a layout as RGB.
function pictures.rgb(list, name)
   local n = #list / ({ rgba = 4, cmyk = 4, rgb16 = 6, grey16 = 2 })[name]
   local out = {}
   for i = 0, n - 1 do
      for c = 1, 3 do out[#out + 1] = layouts[name](list, i, c) end
   end
   return out
end

local function cubic(x)
   x = math.abs(x)
   if x < 1 then return (1.5 * x - 2.5) * x * x + 1 end
   if x < 2 then return ((-0.5 * x + 2.5) * x - 4) * x + 2 end
   return 0
end

-- The weights of one direction, { first, list of doubles } for each output.
local function weights(nin, nout)
   local scale, all, largest = nin / nout, {}, 0
   local wide = max(scale, 1)
   for i = 0, nout - 1 do
      local center = scale * (i + 0.5)
      local first, last = max(0, floor(center - 2 * wide + 0.5)),
         min(nin, floor(center + 2 * wide + 0.5))
      local list, sum = {}, 0
      for k = first, last - 1 do
         list[#list + 1] = cubic((k - center + 0.5) / wide)
         sum = sum + list[#list]
      end
      for k = 1, #list do
         list[k] = list[k] / sum
         largest = max(largest, list[k])
      end
      all[i] = { first, list }
   end
   return all, largest
end

-- Filters the rows of pixels to `nout` columns; whole numbers of 16 bits, as in PyTorch.
local function filtered(list, h, w, nout)
   local all, largest = weights(w, nout)
   local shift = 0
   while shift < 22 and floor(0.5 + largest * 2 ^ (shift + 1)) < 2 ^ 15 do shift = shift + 1 end
   local out = {}
   for y = 0, h - 1 do
      for x = 0, nout - 1 do
         local first, list_ = all[x][1], all[x][2]
         for c = 1, 3 do
            local sum = 2 ^ (shift - 1)
            for k, v in ipairs(list_) do
               local unit = v * 2 ^ shift
               unit = unit < 0 and ceil(unit - 0.5) or floor(unit + 0.5)
               sum = sum + unit * list[(y * w + first + k - 1) * 3 + c]
            end
            out[#out + 1] = max(0, min(255, floor(sum / 2 ^ shift)))
         end
      end
   end
   return out
end

local function turned(list, h, w)
   local out = {}
   for x = 0, w - 1 do
      for y = 0, h - 1 do
         for c = 1, 3 do out[#out + 1] = list[(y * w + x) * 3 + c] end
      end
   end
   return out
end

-- Pixels resized to rows x columns, rows first, as PyTorch does it: bicubic with antialiasing.
function pictures.resize(list, h, w, rows, columns)
   if columns ~= w then list = filtered(list, h, w, columns) end
   if rows == h then return list end
   return turned(filtered(turned(list, h, columns), columns, h, rows), columns, rows)
end

-- Patches of o.frames frames in which the last has these pixels in slots o.first to o.last, in
-- units of 1 / 256; -1 elsewhere.
function pictures.patches(list, h, w, o)
   local p, m, out = o.patch, o.merge, {}
   local width = 3 * o.depth * p * p
   for k = 1, o.frames * h * w / p ^ 2 * width do out[k] = -1 end
   for y = 0, h - 1 do
      for x = 0, w - 1 do
         local row, column = floor(y / p), floor(x / p)
         local block = floor(row / m) * (w / p / m) + floor(column / m)
         local number = (o.frames - 1) * h * w / p ^ 2 + block * m * m + row % m * m + column % m
         for c = 0, 2 do
            for slot = o.first, o.last do
               out[number * width + ((c * o.depth + slot) * p + y % p) * p + x % p + 1]
                  = list[(y * w + x) * 3 + c + 1] / 256
            end
         end
      end
   end
   return out
end

return pictures
