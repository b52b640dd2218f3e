-- Images of chats: the files that messages name, and the tokens that stand for them.
--
-- A message's content is a list of parts, of which some are images:
--
--    { "type": "image", "image": PATH }           also path, url (file://..), image_url { url }
--    { "type": "image" }                          the next of the record's list `images`
--    "text <image> text"                          the same, in a record with images (or image)
--
-- Paths are relative to the file of the records. The template writes one token for each image; it
-- is repeated as often as the image has features. A source of such tokens has `images`, a list in
-- the order of its tokens.

local copy = require 'tide.util.copy'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local image_source = require 'tide.data.image_source'
local jsonl = require 'tide.data.jsonl'

local parts = {}

-- ---- what reads them ---------------------------------------------------------------------------

-- Returns what data.chat.load needs to read chats with images: the option `images`. model: of a
-- family that reads images, on any device; processor: makes patches of image files (data.image);
-- decode: whether files are decoded to find damaged ones.
function parts.of(model, processor, decode)
   local c = model.config or {}
   err.arg_if(type(model.placed) ~= 'function' or c.image_token_id == nil, 'data.chat.images',
      'model', 'a model that reads images, such as one of tide.model.qwen2_5_vl', model)
   local vision = c.vision_config or {}
   for _, names in ipairs { { 'patch_size', 'patch_size' }, { 'merge_size', 'spatial_merge_size' },
      { 'temporal_patch_size', 'temporal_patch_size' } } do
      local has, want = (processor.config or {})[names[1]], vision[names[2]]
      err.arg_if(has ~= want, 'data.chat.images', 'processor.' .. names[1], ('%s, as '
         .. 'vision_config.%s of the model'):format(tostring(want), names[2]), has)
   end
   return { processor = processor, decode = decode,
      image = c.image_token_id, video = c.video_token_id,
      first = c.vision_start_token_id, last = c.vision_end_token_id,
      place = function(batch, index) return model:placed(batch, index) end }
end

-- ---- parts of messages -------------------------------------------------------------------------

-- A template leaves these out, or writes a token that stands for nothing.
local not_read = {}
for name in ([[video video_url input_video audio audio_url input_audio file input_file]])
   :gmatch '%S+' do
   not_read[name] = true
end

-- Returns the path of an image, relative ones below dir. field: names it in errors.
local function path_of(v, field, dir)
   if type(v) ~= 'string' or v == '' then jsonl._wrong(field, 'the path of an image', v) end
   local path, scheme = image_source._path(v, dir)
   if not path then
      jsonl._wrong(field, 'the path of an image file', v, ('%s (%s: is not read; save the image as '
         .. 'a file)'):format(#v > 40 and v:sub(1, 40) .. '..' or v, scheme))
   end
   return path
end

-- Returns the list `images` (or image) of a record, which may be empty.
local function listed(t)
   local name = not fs.is_null(t.images) and 'images' or 'image'
   local v = t[name]
   if fs.is_null(v) then return {}, name end
   return (jsonl._is_list(v) or type(v) == 'table' and next(v) == nil) and v or { v }, name
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

-- Returns the parts of a text in which each mark stands for an image.
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

-- Returns an image with its size in tokens: { path, grid, n, place, field, reader }.
local function surveyed(path, field, place, o)
   local proc = o.processor
   local grid, n = jsonl._guard(field .. ': ', function()
      local image = require 'tide.data.image'
      local grid = proc:grid(image.size(path))
      if o.decode then image.open(path) end
      return grid, proc:tokens(grid)
   end)
   return { path = path, grid = grid, n = n, place = place, field = field, reader = o }
end

-- Returns the images of a record's messages (nil: it is no chat) in the order of the text, sized
-- but not decoded. Messages get their parts in one spelling. file: of the record, beside which
-- relative paths begin; place: 'FILE, line N'; o: of parts.of, { refused = why }, or nil.
-- name_of(i): the name of message i in errors.
function parts._take(t, messages, file, place, o, name_of)
   name_of = name_of or name_of_message
   if messages and jsonl._is_list(t.videos) and #t.videos > 0 then
      jsonl._broken 'videos: expected none, got a list; videos are not read'
   end
   local field = first_field(t, messages, name_of)
   if not field then return {} end
   if not o or o.refused then
      jsonl._broken('%s: the record has an image, and %s', field, o and o.refused or no_images)
   elseif not messages then
      jsonl._broken('%s: an image belongs to a chat; give messages, whose content is a list of '
         .. 'parts', field)
   end
   local list, name = listed(t)
   local found, used = {}, 0
   if #list > 0 then place_marks(messages, #list) end
   local function take(part, at)
      local v = (image_source._given(part))
      if v == nil then
         used = used + 1
         v, at = image_source._given(list[used]), list[used] and ('%s[%d]'):format(name, used) or at
      end
      found[#found + 1] = surveyed(path_of(v, at, fs.above(file)), at, place, o)
      return found[#found].path
   end
   for i, message in ipairs(messages) do
      if jsonl._is_table(message.content) then
         local new = {}
         for k, part in ipairs(message.content) do
            new[k] = settled(part, ('%s.content[%d]'):format(name_of(i), k), take)
         end
         message.content = new
      end
   end
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

-- Returns the patches of an image of a source.
local function read_one(e)
   local proc, text = e.reader.processor, nil
   local ok, patches, grid = pcall(proc.read, proc, e.path)
   if not ok then
      text = err.fault(patches)
   elseif not dims.equal(grid, e.grid) then
      text = e.path .. ' has another size than when the chats were read; start again'
   end
   if text then err.raise('E_FORMAT', 'data.packed.make', '%s: %s: %s', e.place, e.field, text) end
   return patches
end

-- Raises where a piece begins or ends inside an image: a sampler without the source makes such
-- rows, and tokens of an image without its features would be read as text.
local function check_whole(images, rows)
   for _, row in ipairs(rows) do
      for _, piece in ipairs(row) do
         for _, p in ipairs { piece[1], piece[1] + piece[2] } do
            local e = images[before(images, p)]
            err.raise_if(e and p < e.stop, 'E_ARG', 'data.packed.make', '%s: %s: the rows cut %s; '
               .. 'give data.packed.new the source of the images', e and e.place, e and e.field,
               e and e.path)
         end
      end
   end
end

-- Returns the fields of a batch of the images of rows: pixel_values [N, P] and image_grid_thw
-- [images, 3], on the host; nil without images.
function parts._fields(images, rows)
   local tide = require 'tide'
   check_whole(images, rows)
   local list = parts._of_rows(images, rows)
   if #list == 0 then return nil end
   local all, at, grids = nil, 0, {}
   for i, e in ipairs(list) do
      local patches = read_one(e)
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
