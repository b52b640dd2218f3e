-- Images of chats: the files that messages name, and their tokens.
--
-- A message's content is a list of parts, of which some are images:
--
--    { "type": "image", "image": PATH }           also path, url (file://..), image_url { url }
--    { "type": "image", "image": "data:image/png;base64,.." }      the same keys; also base64
--    { "type": "image" }                          the next of the record's list `images`
--    "text <image> text"                          the same, in a record with images (or image)
--
-- Paths are relative to the file of the records; images inside records stay in memory. The template
-- writes one token for each image; it is repeated as often as the image has features. A source of
-- such tokens has `images`, a list in the order of its tokens.

local copy = require 'tide.util.copy'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local image_share = require 'tide.data.image_share'
local image_source = require 'tide.data.image_source'
local image_text = require 'tide.data.image_text'
local jsonl = require 'tide.data.jsonl'
local vision = require 'tide.data.vision'

local parts = {}

-- ---- what reads them ---------------------------------------------------------------------------

-- Returns what data.chat.load needs to read chats with images: the option `images`. model: of a
-- family that reads images, on any device; processor: makes patches of image files (data.image);
-- decode: whether files are decoded to find damaged ones.
function parts.of(model, processor, decode)
   local c = model.config or {}
   err.arg_if(type(model.placed) ~= 'function' or c.image_token_id == nil, 'data.chat.images',
      'model', 'a model that reads images, such as one of tide.model.qwen2_5_vl', model)
   vision._check_fit('data.chat.images', processor, c.vision_config or {})
   return copy({ processor = processor, decode = decode,
      place = function(batch, index) return model:placed(batch, index) end },
      image_text.ids(model))
end

-- ---- parts of messages -------------------------------------------------------------------------

-- A template leaves these out, or writes a token without an image.
local not_read = {}
for name in ([[video video_url input_video audio audio_url input_audio file input_file]])
   :gmatch '%S+' do
   not_read[name] = true
end

-- Returns the source of an image, a relative path below dir. field: names it in errors.
local function source_of(v, field, dir)
   if type(v) ~= 'string' or v == '' then jsonl._wrong(field, 'the path of an image', v) end
   local source, problem = image_source._of(v, dir)
   if not source then
      jsonl._wrong(field, 'the path of an image file, or a data: URL in base64', v,
         ('%s (%s)'):format(image_source._shown(v), problem))
   end
   return source
end

-- Returns the list `images` (or image) of a record, which may be empty.
local function listed(t)
   local name = not fs.is_null(t.images) and 'images' or 'image'
   local v = t[name]
   if fs.is_null(v) then return {}, name end
   return (fs.is_list(v) or type(v) == 'table' and next(v) == nil) and v or { v }, name
end

-- Returns the name of the first field of a record that has an image, or nil; refuses parts of other
-- media. name_of(i): of message i.
local function first_field(t, messages, name_of)
   local first
   for i, message in ipairs(messages or {}) do
      for k, part in ipairs(jsonl._is_table(message.content) and message.content or {}) do
         local field = ('%s.content[%d]'):format(name_of(i), k)
         local kind, is_image = part.type:lower(), image_source._is_image(part)
         if not_read[kind] or not is_image and image_source._is_image { type = kind } then
            jsonl._wrong(field .. '.type', 'text or image', part.type)
         end
         first = first or is_image and field
      end
   end
   if first then return first end
   local list, name = listed(t)
   return #list > 0 and name or nil
end

local no_images = 'images are not read here; give a model that reads images (data.chat.images, '
   .. 'recipes/finetune.lua), or leave the record out'

local function name_of_message(i) return ('messages[%d]'):format(i) end

local mark = '<image>'

-- Returns the parts of a text in which each mark is an image.
local function split(text)
   local list, at = {}, 1
   while true do
      local first, last = text:find(mark, at, true)
      local piece = text:sub(at, (first or #text + 1) - 1)
      if piece ~= '' then list[#list + 1] = { type = 'text', text = piece } end
      if not first then return list end
      list[#list + 1], at = { type = 'image' }, last + 1
   end
end

-- Turns texts with marks into lists of parts. Where no message says where the images are, they
-- begin the first message of the user, as in trl.
local function place_marks(messages, n)
   local has, user = false, nil
   for _, message in ipairs(messages) do
      local content = message.content
      if type(content) == 'string' and content:find(mark, 1, true) then
         message.content = split(content)
      end
      for _, part in ipairs(jsonl._is_table(message.content) and message.content or {}) do
         has = has or image_source._is_image(part)
      end
      user = user or message.role == 'user' and message
   end
   if has or not user then return end
   local list = type(user.content) == 'string' and { { type = 'text', text = user.content } }
      or user.content
   for _ = 1, n do table.insert(list, 1, { type = 'image' }) end
   user.content = list
end

-- Returns a part in the spelling that templates read; calls take(part, field) for an image.
local function settled(part, field, take)
   if image_source._is_image(part) then return { type = 'image', image = take(part, field) } end
   if part.type ~= 'text' then
      jsonl._wrong(field .. '.type', 'text or image', part.type)
   end
   return { type = 'text', text = part.text }
end

-- Returns the height and the width of a source in pixels. decode: whether it is decoded, too.
local function size_of(source, decode)
   local image, of_file = require 'tide.data.image', type(source) == 'string'
   local x = of_file and source or source.bytes
   local h, w = (of_file and image.size or image._size_of)(x)
   if decode then (of_file and image.open or image.decode)(x) end
   return h, w
end

-- Returns an image with its size in tokens: { path, bytes, grid, n, place, field, reader }. Bytes
-- inside the record have a hash in place of a path.
local function surveyed(source, field, place, o)
   local proc, bytes = o.processor, type(source) == 'table' and source.bytes or nil
   local grid, n = jsonl._guard(field .. ': ', function()
      local grid = proc:grid(size_of(source, o.decode))
      return grid, proc:tokens(grid)
   end)
   return { path = bytes and 'data:' .. fs.io().xxh64(bytes) or source, bytes = bytes, grid = grid,
      n = n, place = place, field = field, reader = o }
end

-- Refuses a record with videos, or with images where none can be read. field: of its first image.
-- Returns whether it has images.
local function has_images(t, messages, field, o)
   if messages and fs.is_list(t.videos) and #t.videos > 0 then
      jsonl._broken 'videos: expected none, got a list; videos are not read'
   end
   if not field then return false end
   if not o or o.refused then
      jsonl._broken('%s: the record has an image, and %s', field, o and o.refused or no_images)
   elseif not messages then
      jsonl._broken('%s: an image belongs to a chat; give messages, whose content is a list of '
         .. 'parts', field)
   end
   return true
end

-- Gives the parts of messages the spelling that templates read. name_of: as of parts._take; take:
-- as of settled.
local function settle(messages, name_of, take)
   for i, message in ipairs(messages) do
      if jsonl._is_table(message.content) then
         local new = {}
         for k, part in ipairs(message.content) do
            new[k] = settled(part, ('%s.content[%d]'):format(name_of(i), k), take)
         end
         message.content = new
      end
   end
end

-- Returns the images of a record's messages (nil: it is no chat) in the order of the text, sized
-- but not decoded. Messages get their parts in one spelling. file: of the record, beside which
-- relative paths begin; place: 'FILE, line N'; o: of parts.of, { refused = why }, or nil.
-- name_of(i): the name of message i in errors.
function parts._take(t, messages, file, place, o, name_of)
   name_of = name_of or name_of_message
   if not has_images(t, messages, first_field(t, messages, name_of), o) then return {} end
   local list, name = listed(t)
   local found, used = {}, 0
   if #list > 0 then place_marks(messages, #list) end
   local function take(part, at)
      local v = (image_source._given(part))
      if v == nil then
         used = used + 1
         v, at = image_source._given(list[used]), list[used] and ('%s[%d]'):format(name, used) or at
      end
      found[#found + 1] = surveyed(source_of(v, at, fs.above(file)), at, place, o)
      return found[#found].path
   end
   settle(messages, name_of, take)
   if used < #list then
      jsonl._wrong(name, ('%d images, one for each %s or image part without a path'):format(used,
         mark), list, ('%d'):format(#list))
   end
   return found
end

-- ---- tokens ------------------------------------------------------------------------------------

local function refuse_number(found, seen)
   jsonl._broken('the template writes %d tokens that stand for images, and the record has %d '
      .. 'image%s; use the template of the model, and no such token in a text', seen, #found,
      #found == 1 and '' or 's')
end

-- Returns ids and mask with the token of each image repeated, and the images with their places from
-- 0: tokens at .. at + n - 1, in a block first .. stop - 1 with the tokens around an image. No
-- token of a block counts as a label.
function parts._expanded(ids, mask, found, o)
   local out, kept, seen = {}, {}, 0
   for i, id in ipairs(ids) do
      if id == o.video then
         jsonl._broken 'a token stands for a video, and videos are not read'
      elseif id ~= o.image then
         out[#out + 1], kept[#kept + 1] = id, mask[i]
      else
         seen = seen + 1
         local e = found[seen] or refuse_number(found, seen)
         local n = #out
         for k = n + 1, n + e.n do out[k], kept[k] = id, '\0' end
         e.at, e.first, e.stop = n, n, n + e.n
         if i > 1 and ids[i - 1] == o.first then e.first, kept[n] = n - 1, '\0' end
         if ids[i + 1] == o.last and o.last ~= nil then e.stop, mask[i + 1] = e.stop + 1, '\0' end
      end
   end
   if seen ~= #found then refuse_number(found, seen) end
   return out, kept
end

-- ---- images of a source ------------------------------------------------------------------------

-- Returns images moved by `offset` tokens, added to `list`.
function parts._add(list, images, offset)
   for _, e in ipairs(images) do
      list[#list + 1] = copy({ at = e.at + offset, first = e.first + offset,
         stop = e.stop + offset }, copy(e))
   end
   return list
end

-- Returns the number of images whose block begins before token p.
local function before(list, p)
   local lo, hi = 0, #list
   while lo < hi do
      local mid = math.ceil((lo + hi) / 2)
      if list[mid].first < p then lo = mid else hi = mid - 1 end
   end
   return lo
end

-- Returns where a piece of a document that would end before token p ends: p, or where the image
-- begins that p would cut.
function parts._break(images, p)
   local e = images and images[before(images, p)]
   return e and p < e.stop and e.first or p
end

-- Returns the images of rows of pieces { start, n, .. }, in order.
function parts._of_rows(images, rows)
   local list = {}
   for _, row in ipairs(rows) do
      for _, piece in ipairs(row) do
         local i, stop = before(images, piece[1]) + 1, piece[1] + piece[2]
         while images[i] and images[i].first < stop do
            list[#list + 1], i = images[i], i + 1
         end
      end
   end
   return list
end

-- Returns the patches of images.
function parts._patches(list)
   local n = 0
   for _, e in ipairs(list) do n = n + e.grid[1] * e.grid[2] * e.grid[3] end
   return n
end

-- Raises where an image alone does not fit in a row of seq tokens.
function parts._check_fit(where, images, seq)
   for _, e in ipairs(images or {}) do
      if e.stop - e.first > seq then
         err.raise('E_ARG', where, '%s: %s: %s takes %d tokens, more than seq (%d); an image is '
            .. 'not cut: give a larger seq, or a processor with fewer max_pixels', e.place, e.field,
            e.path, e.stop - e.first, seq)
      end
   end
end

local make_op = 'data.packed.make'

-- Returns what a method of the processor makes of an image of a source; or nil and the problem.
local function tried(e, method)
   local proc, text = e.reader.processor, nil
   local ok, x, grid = pcall(function()
      return proc[method](proc, e.bytes and require('tide.data.image').decode(e.bytes) or e.path)
   end)
   if not ok then
      text = err.fault(x)
   elseif not dims.equal(grid, e.grid) then
      text = e.path .. ' has another size than when the chats were read; start again'
   end
   if text then return nil, ('%s: %s: %s'):format(e.place, e.field, text) end
   return x
end

-- Returns a function that gives the patches of image i of a list.
local function reader(list)
   return function(i)
      local patches, problem = tried(list[i], 'read')
      err.raise_if(problem, 'E_FORMAT', make_op, '%s', problem)
      return patches
   end
end

-- Returns whether the processors of all images decode and cut into patches apart.
local function can_share(list)
   for _, e in ipairs(list) do
      if not e.reader.processor._resized then return false end
   end
   return true
end

-- Does what reader does, for images that all ranks of comm read at once: one rank decodes each.
local function shared_reader(list, comm)
   local sizes, texts = {}, {}
   for i, e in ipairs(list) do
      local p = e.reader.processor.config.patch_size
      sizes[i], texts[i] = { e.grid[2] * p, e.grid[3] * p, 3 }, ('%s %s %d'):format(e.place,
         e.field, e.first)
   end
   local pixels = image_share(make_op, comm, { sizes = sizes, what = table.concat(texts, '\n'),
      read = function(i) return tried(list[i], '_resized') end })
   return function(i) return list[i].reader.processor:_patches(pixels[i]) end
end

-- Raises where a piece begins or ends inside an image: a sampler without the source makes such
-- rows, and tokens of an image without its features would be read as text.
local function check_whole(images, rows)
   for _, row in ipairs(rows) do
      for _, piece in ipairs(row) do
         for _, p in ipairs { piece[1], piece[1] + piece[2] } do
            local e = images[before(images, p)]
            err.raise_if(e and p < e.stop, 'E_ARG', make_op, '%s: %s: the rows cut %s; '
               .. 'give data.packed.new the source of the images', e and e.place, e and e.field,
               e and e.path)
         end
      end
   end
end

-- Returns the fields of a batch of the images of rows: pixel_values [N, P] and image_grid_thw
-- [images, 3], on the host; nil without images. same: ranks that make the same batch, or nil.
function parts._fields(images, rows, same)
   local tide = require 'tide'
   check_whole(images, rows)
   local list = parts._of_rows(images, rows)
   if #list == 0 then return nil end
   local is_shared = same and same.size > 1 and can_share(list)
   local read = is_shared and shared_reader(list, same) or reader(list)
   local all, at, grids = nil, 0, {}
   for i, e in ipairs(list) do
      local patches = read(i)
      if #list == 1 then all = patches end
      all = all or tide.empty({ parts._patches(list), patches:size(2) }, { dtype = 'f32',
         device = 'cpu' })
      if all ~= patches then all:narrow(1, at + 1, patches:size(1)):copy_(patches) end
      at, grids[i] = at + patches:size(1), e.grid
   end
   return { pixel_values = all,
      image_grid_thw = tide.tensor(grids, { dtype = 'i64', device = 'cpu' }) }
end

-- Completes a batch with these fields, ids and index on the host by what its model reads off whole
-- rows: positions, and the feature of each token.
function parts._placed(images, batch, index) return images[1].reader.place(batch, index) end

-- Returns a text that changes with the names and grids of images. A damaged file can be replaced.
function parts._identity(images)
   local list = {}
   for i, e in ipairs(images) do
      list[i] = ('%s %s'):format(e.path:match '[^/]*$', table.concat(e.grid, ' '))
   end
   return table.concat(list, '\n')
end

-- Adds the images of a source to those of a joined one, in which it begins at token `offset`.
function parts._join(joined, source, offset)
   if not source.images then return end
   joined.images = parts._add(joined.images or {}, source.images, offset)
end

return parts
