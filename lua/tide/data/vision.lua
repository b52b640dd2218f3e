-- Images and videos of messages as what a model with a vision tower takes: fields of patches and
-- grids, and ids in which a placeholder is as many tokens as its picture has features.
--
-- A message's content may be a list of parts. Parts with pictures, in the order of the text:
--    { type = 'image', image = PATH }           or url, path: a file; or pixels of data.image
--    { type = 'image', base64 = TEXT }          bytes of a file; so is url = 'data:..;base64,..'
--    { type = 'image_url', image_url = { url = PATH } }
--    { type = 'video', video = { PATH, .. }, fps = 2 }       frames of one size; or path
-- A part without a source takes the next entry of opts.images or opts.videos.

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local image = require 'tide.data.image'
local image_source = require 'tide.data.image_source'
local signature = require 'tide.util.signature'
local tide = require 'tide'

local vision = {}

-- Frames a second of a video that does not say, as in transformers.
local FPS = 24

-- ---- sources -----------------------------------------------------------------------------------

-- Returns a source of a file (see data.image_source), or pixels. dir: of relative paths.
local function source_of(op, name, v, dir)
   if tide.is_tensor(v) then return v end
   err.arg_if(type(v) ~= 'string' or v == '', op, name, 'the path of a file, or pixels', v)
   local source, problem = image_source._of(v, dir)
   local code = v:find '^[Dd][Aa][Tt][Aa]:' and 'E_FORMAT' or 'E_ARG'
   err.raise_if(not source, code, op, '%s: expected the path of a file (tide fetches nothing) or a '
      .. 'data: URL in base64, got %s (%s)', name, image_source._shown(v), problem)
   return source
end

-- Returns the source of a part of an image; nil where the part has none.
local function image_source_of(op, name, part, dir)
   local v, field = image_source._given(part)
   return v ~= nil and source_of(op, name .. field, v, dir) or nil
end

-- Returns the frames of a part of a video; nil where the part has none.
local function video_source(op, name, part, dir)
   local key = fs.is_null(part.video) and 'path' or 'video'
   local list = part[key]
   if fs.is_null(list) then return nil end
   err.arg_if(type(list) ~= 'table' or #list == 0, op, name .. '.' .. key, 'a list of frames '
      .. '(tide reads no files of videos)', list)
   local frames = {}
   for i, v in ipairs(list) do
      frames[i] = source_of(op, ('%s.%s[%d]'):format(name, key, i), v, dir)
   end
   return frames
end

-- ---- messages ----------------------------------------------------------------------------------

-- Calls fn(kind, part, name) for the parts of messages that are pictures, in their order.
local function each_picture(messages, fn)
   for i, message in ipairs(messages) do
      for j, part in ipairs(type(message.content) == 'table' and message.content or {}) do
         local kind = type(part) == 'table' and (image_source._is_image(part) and 'image'
            or part.type == 'video' and 'video')
         if kind then fn(kind, part, ('messages[%d].content[%d]'):format(i, j)) end
      end
   end
end

-- Returns the pictures of messages: { images = list of sources (a path, { bytes = } of a file, or
-- pixels), videos = list of { frames, fps } }. opts: dir, the folder of relative paths; images and
-- videos, sources of parts that have none. Reads no file.
function vision.sources(messages, opts)
   local op, out = 'data.vision.sources', { images = {}, videos = {} }
   local used = { image = 0, video = 0 }
   local rest = { image = opts.images or {}, video = opts.videos or {} }
   each_picture(messages, function(kind, part, name)
      local read = kind == 'image' and image_source_of or video_source
      local source = read(op, name, part, opts.dir)
      if source == nil then
         used[kind] = used[kind] + 1
         local other = rest[kind][used[kind]]
         local where = ('opts.%ss[%d]'):format(kind, used[kind])
         err.arg_if(other == nil, op, where, ('the source of %s, which names none'):format(name),
            nil)
         source = read(op, where, { [kind] = other }, opts.dir)
      end
      local list = out[kind .. 's']
      local fps = not fs.is_null(part.fps) and part.fps or nil
      if fps then err.number(op, name .. '.fps', fps, 1e-3, 1e6) end
      list[#list + 1] = kind == 'image' and source or { frames = source, fps = fps }
   end)
   for kind, list in each(rest) do
      err.arg_if(#list > used[kind], op, ('opts.%ss'):format(kind), ('%d of them, one for each '
         .. 'part without a source'):format(used[kind]), #list)
   end
   return out
end

-- Returns a source as a processor reads it: a path or pixels.
local function readable(source)
   return type(source) == 'table' and image.decode(source.bytes) or source
end

-- Returns the times in seconds of rows of patches of a video of n frames: each is halfway between
-- its first and its last frame. depth: frames of a row, of which the last may be given again.
local function times_of(n, depth, fps)
   local list = {}
   for first = 0, n - 1, depth do
      list[#list + 1] = (first + math.min(first + depth, n) - 1) / 2 / fps
   end
   return list
end

-- Reads sources with a processor: returns { images = list of { patches, grid }, videos = list of
-- { patches, grid, seconds, times } }; seconds: from one row of patches to the next; times: in
-- place of it, the seconds of each row, where each is apart in a text (Qwen3-VL, Qwen3.5).
function vision.read(processor, sources, opts)
   local out = { images = {}, videos = {} }
   for i, source in ipairs(sources.images or {}) do
      local patches, grid = processor:read(readable(source), { device = opts.device })
      out.images[i] = { patches = patches, grid = grid }
   end
   for i, video in ipairs(sources.videos or {}) do
      local frames = {}
      for k, frame in ipairs(video.frames) do frames[k] = readable(frame) end
      local patches, grid = processor:frames(frames, { device = opts.device })
      local f, fps = processor.video_config, video.fps or FPS
      out.videos[i] = { patches = patches, grid = grid,
         seconds = not f.frames_apart and f.temporal_patch_size / fps or nil,
         times = f.frames_apart and times_of(#frames, f.temporal_patch_size, fps) or nil }
   end
   return out
end

-- ---- ids and fields ----------------------------------------------------------------------------

-- Returns the number of tokens of each placeholder of a list of pictures; f: fields of their
-- processor.
local function counts_of(f, list)
   local counts = {}
   for _, picture in ipairs(list) do
      local t, rows, columns = unpack(picture.grid)
      local places = f.frames_apart and t or 1
      for _ = 1, places do
         counts[#counts + 1] = t * rows * columns / f.merge_size ^ 2 / places
      end
   end
   return counts
end

-- Raises unless a processor makes the patches of a model with this vision_config.
function vision._check_fit(op, processor, of)
   for _, names in ipairs { { 'patch_size', 'patch_size' }, { 'merge_size', 'spatial_merge_size' },
      { 'temporal_patch_size', 'temporal_patch_size' }, { 'side', 'image_size' } } do
      local has, want = (processor.config or {})[names[1]], of[names[2]]
      err.arg_if(has ~= want, op, 'processor.' .. names[1], ('%s, as vision_config.%s of the '
         .. 'model%s'):format(tostring(want), names[2], processor.folder
            and ' (the processor is that of ' .. processor.folder .. ')' or ''), has)
   end
end

-- Returns ids in which each placeholder (config.image_token_id, config.video_token_id) is repeated
-- as often as its picture has features, and a list with the number of copies of each given id.
-- Rows of patches of a video that are apart have a placeholder each. pictures: of vision.read.
function vision.expand(processor, config, ids, pictures)
   local op, out, copies = 'data.vision.expand', {}, {}
   if config.vision_config then vision._check_fit(op, processor, config.vision_config) end
   local kind_of = { [config.image_token_id] = 'images' }
   if config.video_token_id then kind_of[config.video_token_id] = 'videos' end
   local used = { images = 0, videos = 0 }
   local counts = { images = counts_of(processor.config, pictures.images or {}),
      videos = counts_of(processor.video_config, pictures.videos or {}) }
   for i, id in ipairs(ids) do
      local kind, n = kind_of[id], 1
      if kind then
         used[kind] = used[kind] + 1
         n = counts[kind][used[kind]] or 0
      end
      copies[i] = n
      for _ = 1, n do out[#out + 1] = id end
   end
   for kind, n in each(used) do
      local is_apart = kind == 'videos' and processor.video_config.frames_apart
      err.raise_if(n ~= #counts[kind], 'E_ARG', op, 'ids: expected a placeholder for each of %d '
         .. '%s, got %d; %s', #counts[kind], is_apart and 'rows of patches of videos' or kind, n,
         is_apart and 'write each behind its time in words' or 'the chat template writes them')
   end
   return out, copies
end

local function joined(list)
   local patches, grids = {}, {}
   for i, picture in ipairs(list) do patches[i], grids[i] = picture.patches, picture.grid end
   return #patches == 1 and patches[1] or tide.cat(patches, 1),
      tide.tensor(grids, { dtype = 'i64', device = 'cpu' })
end

-- Returns the fields of a call of the model: pixel_values and image_grid_thw where there are
-- images; pixel_values_videos, video_grid_thw and, of videos with seconds, second_per_grid_ts where
-- there are videos.
function vision.fields(pictures)
   local out = {}
   local images, videos = pictures.images or {}, pictures.videos or {}
   if images[1] then out.pixel_values, out.image_grid_thw = joined(images) end
   if videos[1] then
      out.pixel_values_videos, out.video_grid_thw = joined(videos)
      out.second_per_grid_ts = videos[1].seconds and {} or nil
      for i, video in ipairs(videos[1].seconds and videos or {}) do
         out.second_per_grid_ts[i] = video.seconds
      end
   end
   return out
end

signature.record('image_processor', 'a processor of data.image.processor', { 'config: table',
   'video_config: table' })
return signature.doors('data.vision', vision, {
   sources = { 'messages: table', opts = {
      'dir: string? -- folder of relative paths', 'images: table? -- sources of parts without one',
      'videos: table? -- sources of parts without one, each a list of frames' } },
   read = { 'processor: image_processor; sources: table',
      opts = { 'device: string? -- where the patches are; cpu by default' } },
   expand = 'processor: image_processor; config: table; ids: table; pictures: table',
   fields = 'pictures: table',
})
