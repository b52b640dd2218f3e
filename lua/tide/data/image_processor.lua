-- The processor of images of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5, and that of Gemma 3, with
-- the numbers of transformers: smart_resize to whole patches, bicubic resizing of 8-bit pixels,
-- rescaling, normalising, patches. That of Gemma 3 makes all images of one size, bilinear; the
-- sides of patches and tokens are those of the model in the same folder. Limits of pixels of a
-- video are those of a frame; where each frame is apart in a text (Qwen3-VL, Qwen3.5), those of all
-- frames.

local copy = require 'tide.util.copy'
local decoders = require 'tide.ffi.image'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local image = require 'tide.data.image'
local near = require 'tide.util.near'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local upload = require 'tide.util.upload'
require 'tide.nn.module'                -- the kind 'module'

local op = 'data.image.processor'

local Processor = {}
Processor.__index = Processor

-- ---- fields ------------------------------------------------------------------------------------

local defaults = {
   do_resize = true, do_rescale = true, do_normalize = true, do_convert_rgb = true, resample = 3,
   rescale_factor = 1 / 255, patch_size = 14, temporal_patch_size = 2, merge_size = 2,
   image_mean = { 0.48145466, 0.4578275, 0.40821073 },
   image_std = { 0.26862954, 0.26130258, 0.27577711 },
   max_video_tokens = 128000, cap_pixels_per_frame = false,
}
-- Least and most pixels of an image, and of a frame or of all frames.
local sizes = { image = { 56 * 56, 28 * 28 * 1280 }, video = { 128 * 28 * 28, 28 * 28 * 768 },
   whole = { 128 * 32 * 32, 32 * 32 * 768 } }
-- What the processor of videos of Qwen3-VL has in place of defaults.
local whole_defaults = { patch_size = 16, image_mean = { 0.5, 0.5, 0.5 },
   image_std = { 0.5, 0.5, 0.5 }, max_video_tokens = 768 }
-- What the processor of images of Gemma 3 has in place of defaults: those of published models.
local fixed_defaults = { resample = 2, patch_size = 14, temporal_patch_size = 1, merge_size = 4,
   image_mean = { 0.5, 0.5, 0.5 }, image_std = { 0.5, 0.5, 0.5 } }
local is_sized = { size = true, min_pixels = true, max_pixels = true }

-- Fields that change nothing here: names of classes, and what other processors read.
local unused = {}
for name in ([[image_processor_type video_processor_type feature_extractor_type
   processor_class default_to_square do_center_crop crop_size do_pad pad_size data_format
   input_data_format device disable_grouping return_tensors return_metadata do_sample_frames
   fps num_frames min_frames max_frames video_metadata image_processor video_processor
   image_seq_length do_pan_and_scan pan_and_scan_min_crop_size pan_and_scan_max_num_crops
   pan_and_scan_min_ratio_to_activate
   ]]):gmatch '%S+' do
   unused[name] = true
end

local known = { Qwen2VLImageProcessor = true, Qwen2VLImageProcessorFast = true,
   Qwen2VLImageProcessorPil = true, Qwen2_5_VLImageProcessor = true, Qwen2VLVideoProcessor = true,
   Qwen3VLVideoProcessor = true, Gemma3ImageProcessor = true, Gemma3ImageProcessorFast = true,
   Gemma3ImageProcessorPil = true }

-- Returns whether fields are those of a processor that makes all images of one size.
local function is_fixed(fields)
   local kind = fields.image_processor_type
   if fs.is_null(kind) then kind = fields.feature_extractor_type end
   return type(kind) == 'string' and kind:find '^Gemma3ImageProcessor' ~= nil
end

-- Refuses the processor of another family. where: the file, or the name of the argument.
local function check_type(where, fields)
   for _, key in ipairs { 'image_processor_type', 'video_processor_type',
      'feature_extractor_type' } do
      local kind = fields[key]
      err.raise_if(not fs.is_null(kind) and not known[kind], 'E_UNSUPPORTED', op, '%s: %s is %s; '
         .. 'tide has Qwen2VLImageProcessor, Qwen2VLVideoProcessor, Qwen3VLVideoProcessor and '
         .. 'Gemma3ImageProcessor',
         where, key, err.show(kind))
   end
end

local function check_three(name, v)
   err.type(op, name, v, 'table')
   for c = 1, 3 do err.number(op, ('%s[%d]'):format(name, c), v[c], -1e6, 1e6) end
   err.arg_if(#v ~= 3, op, name, 'three numbers, one for each channel', v)
end

local function check_size(f, name, value)
   err.integer(op, name, value, 1, 2 ^ 40)
   f[name] = value
end

local of_size = { min_pixels = true, max_pixels = true, shortest_edge = true, longest_edge = true }

-- Returns the table `size` of fields. Heights, widths and sides to crop belong to other processors.
local function size_of(given)
   if fs.is_null(given.size) then return {} end
   for name, value in each(err.type(op, 'size', given.size, 'table')) do
      err.raise_if(not of_size[name] and not fs.is_null(value), 'E_UNSUPPORTED', op, "size has the "
         .. "field '%s'; expected shortest_edge and longest_edge, the least and most pixels of an "
         .. 'image', tostring(name))
   end
   return given.size
end

-- Returns the numbers of pixels that fields give, in their spellings, or the defaults.
local function pixels_of(f, given, usual)
   local size = size_of(given)
   for i, names in ipairs { { 'min_pixels', 'shortest_edge' }, { 'max_pixels', 'longest_edge' } } do
      local value = usual[i]
      for _, v in ipairs { size[names[1]] or false, size[names[2]] or false,
         given[names[1]] or false } do
         if v and not fs.is_null(v) then value = v end
      end
      check_size(f, names[1], value)
   end
   local is_given = f.min_pixels ~= usual[1] and f.max_pixels ~= usual[2]
   err.arg_if(is_given and f.max_pixels < f.min_pixels, op, 'max_pixels',
      ('at least min_pixels (%d)'):format(f.min_pixels), f.max_pixels)
end

local checks = {
   patch_size = { 1, 1024 }, merge_size = { 1, 64 }, temporal_patch_size = { 1, 64 },
   max_video_tokens = { 1, 2 ^ 40 },
}

-- Returns complete fields. usual: least and most pixels where `given` has none, or nil of images of
-- one size; own: further defaults, or nil.
local function complete(given, usual, own)
   local f = copy(own or {}, copy(defaults))
   for name in each(defaults) do
      if not fs.is_null(given[name]) then f[name] = given[name] end
   end
   for name, v in each(f) do
      if type(defaults[name]) == 'boolean' then err.type(op, name, v, 'boolean') end
      if checks[name] then err.integer(op, name, v, unpack(checks[name])) end
   end
   check_three('image_mean', f.image_mean)
   check_three('image_std', f.image_std)
   for c = 1, 3 do
      err.arg_if(f.image_std[c] == 0, op, ('image_std[%d]'):format(c), 'a number that is not 0',
         f.image_std[c])
   end
   err.number(op, 'rescale_factor', f.rescale_factor, 1e-9, 1e9)
   local filter = usual and 3 or 2
   err.raise_if(f.resample ~= filter, 'E_UNSUPPORTED', op, 'resample: expected %d (%s), got %s',
      filter, usual and 'bicubic' or 'bilinear', err.show(f.resample))
   if usual then pixels_of(f, given, usual) end
   return f
end

-- Returns the side in pixels of images that fields make all of one size.
local function side_of(given)
   local size = fs.is_null(given.size) and { height = 224, width = 224 }
      or err.type(op, 'size', given.size, 'table')
   local h, w = size.height, size.width
   err.raise_if(not err.is_count(h) or h ~= w or h < 1 or h > 65536, 'E_UNSUPPORTED', op, 'size: '
      .. 'expected height and width in pixels, the same, from 1 to 65536, got %s and %s',
      err.show(h), err.show(w))
   return h
end

-- Returns complete fields of a processor that makes all images of one size.
local function complete_fixed(given)
   err.raise_if(not fs.is_null(given.do_pan_and_scan) and given.do_pan_and_scan, 'E_UNSUPPORTED',
      op, 'do_pan_and_scan is on, which adds crops of long images; tide reads an image as one '
      .. 'alone: set it to false')
   local f = complete(given, nil, fixed_defaults)
   f.side = side_of(given)
   local factor = f.patch_size * f.merge_size
   err.raise_if(f.side % factor ~= 0, 'E_ARG', op, 'size: expected a multiple of %d pixels '
      .. '(patch_size x merge_size), got %d', factor, f.side)
   return f
end

-- ---- where fields are --------------------------------------------------------------------------

local function read_optional(dir, name)
   local path = fs.join(dir, name)
   return fs.size(path) and fs.read_json(op, path) or nil
end

-- Returns the fields of a folder for images and for videos, as transformers finds them.
local function of_folder(dir)
   err.raise_if(not fs.is_dir(dir), 'E_IO', op, '%s is not a folder', dir)
   local all = read_optional(dir, 'processor_config.json') or {}
   local plain = read_optional(dir, 'preprocessor_config.json')
   local images = type(all.image_processor) == 'table' and all.image_processor or plain
   local videos = type(all.video_processor) == 'table' and all.video_processor
      or read_optional(dir, 'video_preprocessor_config.json') or plain or images
   err.raise_if(not images, 'E_IO', op, '%s has neither preprocessor_config.json nor '
      .. 'processor_config.json with image_processor: it is no model of images', dir)
   return images, videos
end

-- Returns fields with the sides of patches and of tokens, which such a processor does not have:
-- they are those of a model, or of that in the folder. Fields that are given as a table may have
-- them.
local function with_patches(fields, dir, model)
   local v = model and (model.config or {}).vision_config
   if v then
      return copy({ patch_size = v.patch_size, merge_size = v.spatial_merge_size }, copy(fields))
   end
   if not dir then return fields end
   local published = read_optional(dir, 'config.json') or {}
   local tokens = published.mm_tokens_per_image
   v = published.vision_config
   err.raise_if(type(v) ~= 'table', 'E_IO', op, '%s has no config.json with vision_config, which '
      .. 'says how large patches are; give the model as the second argument, or take its folder',
      dir)
   local side = (v.image_size or 224) / (v.patch_size or 16)
   return copy({ patch_size = v.patch_size or 16,
      merge_size = side / math.sqrt(fs.is_null(tokens) and 256 or tokens) }, copy(fields))
end

local function check_names(given)
   local names = { 'size', 'min_pixels', 'max_pixels' }
   for name in each(defaults) do names[#names + 1] = name end
   for name in each(given) do
      err.raise_if(defaults[name] == nil and not is_sized[name] and not unused[name], 'E_ARG', op,
         "source: unknown field '%s'%s", tostring(name), near.hint(tostring(name), names))
   end
end

-- Returns the fields of a table for images and for videos.
local function of_table(given)
   check_names(given)
   local part = function(name)
      return given[name] and err.type(op, 'source.' .. name, given[name], 'table')
   end
   return part 'image_processor' or given, part 'video_processor' or given
end

-- ---- smart_resize ------------------------------------------------------------------------------

-- Returns a number rounded to the nearest whole one; a half to the even one, as Python's round.
local function rounded(x)
   local whole = math.floor(x)
   local rest = x - whole
   return (rest > 0.5 or rest == 0.5 and whole % 2 == 1) and whole + 1 or whole
end

-- Returns rows and columns of pixels, multiples of `factor`, of an image of h x w pixels.
local function smart_resize(h, w, factor, least, most)
   local rows, columns = rounded(h / factor) * factor, rounded(w / factor) * factor
   if rows * columns > most then
      local beta = math.sqrt(h * w / most)
      rows = math.max(factor, math.floor(h / beta / factor) * factor)
      columns = math.max(factor, math.floor(w / beta / factor) * factor)
   elseif rows * columns < least then
      local beta = math.sqrt(least / (h * w))
      rows = math.ceil(h * beta / factor) * factor
      columns = math.ceil(w * beta / factor) * factor
   end
   return rows, columns
end

-- Returns rows and columns of pixels of a frame, multiples of `factor`, of a video of n frames of
-- h x w pixels, whose frames have these pixels together. depth: frames of a patch.
local function smart_resize_whole(n, depth, h, w, factor, least, most)
   if h < factor or w < factor then
      local scale = math.max(factor / h, factor / w)
      h, w = math.floor(h * scale), math.floor(w * scale)
   end
   local frames = rounded(n / depth) * depth
   local rows, columns = rounded(h / factor) * factor, rounded(w / factor) * factor
   if frames * rows * columns > most then
      local beta = math.sqrt(n * h * w / most)
      rows = math.max(factor, math.floor(h / beta / factor) * factor)
      columns = math.max(factor, math.floor(w / beta / factor) * factor)
   elseif frames * rows * columns < least then
      local beta = math.sqrt(least / (n * h * w))
      rows = math.ceil(h * beta / factor) * factor
      columns = math.ceil(w * beta / factor) * factor
   end
   return rows, columns
end

-- Returns the most pixels of all of n frames.
local function most_of_whole(f, n)
   if not f.cap_pixels_per_frame then return f.max_pixels end
   local most = math.min(f.max_video_tokens * (f.patch_size * f.merge_size) ^ 2,
      math.floor(f.max_pixels / n))
   return n * math.max(most, math.floor(f.min_pixels * 1.05))
end

-- Returns the size in pixels that fields f give an image, or a frame, of h x w. name: of the image
-- in messages; resize(factor): returns the size that fits.
local function target(what, name, f, h, w, resize)
   local factor = f.patch_size * f.merge_size
   if f.side then
      err.raise_if(not f.do_resize and (h ~= f.side or w ~= f.side), 'E_SHAPE', what, '%s has %d x '
         .. '%d pixels; without do_resize expected %d x %d', name, h, w, f.side, f.side)
      return f.side, f.side
   end
   if not f.do_resize then
      err.raise_if(h % factor ~= 0 or w % factor ~= 0, 'E_SHAPE', what, '%s has %d x %d pixels; '
         .. 'without do_resize expected multiples of %d', name, h, w, factor)
      return h, w
   end
   err.raise_if(math.max(h, w) / math.min(h, w) > 200, 'E_SHAPE', what, '%s has %d x %d pixels; '
      .. 'expected an aspect ratio of at most 200', name, h, w)
   return resize(factor)
end

-- Returns the size in pixels of an image of h x w.
local function image_target(what, name, f, h, w)
   return target(what, name, f, h, w, function(factor)
      return smart_resize(h, w, factor, f.min_pixels, f.max_pixels)
   end)
end

-- Returns the most pixels of each of n frames.
local function most_of_frame(f, n)
   if not f.cap_pixels_per_frame then return f.max_pixels end
   local budget = math.floor(f.max_video_tokens * (f.patch_size * f.merge_size) ^ 2 * 0.9)
   return math.max(math.min(f.max_pixels, math.floor(budget * f.temporal_patch_size / n)),
      math.floor(f.min_pixels * 1.05))
end

-- Returns the size in pixels of each of n frames of h x w.
local function video_target(what, name, f, n, h, w)
   return target(what, name, f, h, w, function(factor)
      if not f.frames_apart then
         return smart_resize(h, w, factor, f.min_pixels, most_of_frame(f, n))
      end
      local depth = f.temporal_patch_size
      err.raise_if(n < depth, 'E_SHAPE', what, '%s is a video of %d frames; expected at least %d '
         .. '(temporal_patch_size)', name, n, depth)
      return smart_resize_whole(n, depth, h, w, factor, f.min_pixels, most_of_whole(f, n))
   end)
end

-- ---- a processor -------------------------------------------------------------------------------

local function form_of(f)
   return decoders.form { patch = f.patch_size, merge = f.merge_size, depth = f.temporal_patch_size,
      factor = f.do_rescale and f.rescale_factor or nil,
      mean = f.do_normalize and f.image_mean or nil, std = f.image_std }
end

-- Refuses videos of a processor that makes all images of one size.
local function check_videos(what, self)
   err.raise_if(self.config.side, 'E_UNSUPPORTED', what, 'the processor of Gemma 3 reads no '
      .. 'videos; give frames as images')
end

local processor = {}

-- Makes a processor. Fields: config (of images) and video_config, complete, with frames_apart
-- (whether each frame is apart in a text); folder: the one that it was read from, or nil. model:
-- where a folder lacks its configuration, the model with the sizes of patches.
function processor.new(source, model)
   local dir, images, videos = type(source) == 'string' and source or nil
   if dir then images, videos = of_folder(dir) else images, videos = of_table(source) end
   check_type(dir or 'source', images)
   local self = setmetatable({ folder = dir }, Processor)
   if is_fixed(images) then
      self.config = complete_fixed(with_patches(images, dir, model))
      self.video_config = copy(self.config)
      self.video_config.frames_apart = false
      self.form = form_of(self.config)
      return self
   end
   check_type(dir or 'source', videos)
   local frames_apart = videos.video_processor_type == 'Qwen3VLVideoProcessor'
   self.config = complete(images, sizes.image)
   self.video_config = frames_apart and complete(videos, sizes.whole, whole_defaults)
      or complete(videos, sizes.video)
   self.video_config.frames_apart = frames_apart
   self.form, self.video_form = form_of(self.config), form_of(self.video_config)
   return self
end

-- Returns the grid { 1, rows, columns } of patches of an image of h x w pixels.
function Processor:grid(h, w)
   local f = self.config
   local rows, columns = image_target('data.image_processor.grid', 'an image', f, h, w)
   return { 1, rows / f.patch_size, columns / f.patch_size }
end

-- Returns the grid of patches of a video of n frames of h x w pixels.
function Processor:video_grid(n, h, w)
   check_videos('data.image_processor.video_grid', self)
   local f = self.video_config
   local rows, columns = video_target('data.image_processor.video_grid', 'a video', f, n, h, w)
   return { math.ceil(n / f.temporal_patch_size), rows / f.patch_size, columns / f.patch_size }
end

-- Returns the number of tokens that stand for a grid in a text.
function Processor:tokens(grid)
   local m = self.config.merge_size
   err.arg_if(#grid ~= 3 or grid[2] % m ~= 0 or grid[3] % m ~= 0, 'data.image_processor.tokens',
      'grid', ('{ frames, rows, columns } of patches, rows and columns multiples of %d'):format(m),
      '{ ' .. table.concat(grid, ', ') .. ' }')
   return grid[1] * grid[2] * grid[3] / m ^ 2
end

-- Returns pixels of a path, or of a tensor of pixels, contiguous on the host. name: in messages.
local function pixels(what, name, x)
   if type(x) == 'string' then return image.open(x) end
   signature.check(what, name, x, 'tensor [H, W, 3] of u8')
   return (x.device == 'cpu' and x or x:to 'cpu'):contiguous()
end

-- Writes pixels x, resized, into slots first to last of frame `at` of patches. Spends x where it is
-- not what the caller gave.
local function write(patches, form, x, given, rows, columns, at, first, last)
   local fits = x:size(1) == rows and x:size(2) == columns
   local y = fits and x or decoders.resize(x, rows, columns)
   decoders.write(patches, form, y, at, first, last)
   if not fits then private.spend(y) end
   if not rawequal(x, given) then private.spend(x) end
end

-- Returns patches on the device of options.
local function sent(patches, opts)
   local device = opts and opts.device or 'cpu'
   if device == 'cpu' then return patches end
   return private.replace(patches, upload(function(at) return patches:to(at) end, device))
end

-- Returns the pixels of an image, u8 [rows, columns, 3], resized to whole patches, and their grid.
-- x: as of read.
function Processor:_resized(x)
   local what, f = 'data.image_processor.read', self.config
   local name = type(x) == 'string' and x or 'x'
   local shown = pixels(what, name, x)
   local rows, columns = image_target(what, name, f, shown:size(1), shown:size(2))
   local y, grid = shown, { 1, rows / f.patch_size, columns / f.patch_size }
   if shown:size(1) == rows and shown:size(2) == columns then return y, grid end
   y = decoders.resize(shown, rows, columns, f.resample == 2)
   if not rawequal(shown, x) then private.spend(shown) end
   return y, grid
end

-- Returns the patches of pixels of _resized.
function Processor:_patches(y)
   local patches = decoders.patches(self.form, 1, y:size(1), y:size(2))
   decoders.write(patches, self.form, y, 0, 0, self.config.temporal_patch_size - 1)
   return patches
end

-- Returns the patches of an image, f32 [patches, 3 x temporal_patch_size x patch_size^2], and its
-- grid { 1, rows, columns }. x: the path of a file, or pixels of image.decode or image.open.
-- opts: device.
function Processor:read(x, opts)
   local y, grid = self:_resized(x)
   local patches = self:_patches(y)
   if not rawequal(y, x) then private.spend(y) end
   return sent(patches, opts), grid
end

-- Returns the patches of a video, given as a list of frames (paths or pixels) of one size, and its
-- grid. The last frame fills the last patches. opts: device.
function Processor:frames(list, opts)
   local what, f, patches, grid, rows, columns = 'data.image_processor.frames', self.video_config
   check_videos(what, self)
   local depth, h, w = f.temporal_patch_size, nil, nil
   err.arg_if(#list == 0, what, 'list', 'at least one frame', list)
   for i, frame in ipairs(list) do
      local name = type(frame) == 'string' and frame or ('list[%d]'):format(i)
      local x = pixels(what, name, frame)
      if i == 1 then
         h, w = x:size(1), x:size(2)
         rows, columns = video_target(what, name, f, #list, h, w)
         grid = { math.ceil(#list / depth), rows / f.patch_size, columns / f.patch_size }
         patches = decoders.patches(self.video_form, grid[1], rows, columns)
      end
      err.raise_if(x:size(1) ~= h or x:size(2) ~= w, 'E_SHAPE', what, '%s has %d x %d pixels; '
         .. 'expected %d x %d, as the first frame', name, x:size(1), x:size(2), h, w)
      local slot = (i - 1) % depth
      write(patches, self.video_form, x, frame, rows, columns, math.floor((i - 1) / depth), slot,
         i == #list and depth - 1 or slot)
   end
   return sent(patches, opts), grid
end

local grid_rows = 'h: integer >= 1; w: integer >= 1'
local placed = { 'device: string? -- where the patches are; cpu by default' }
signature.doors('data.image_processor', Processor, {
   grid = grid_rows, video_grid = 'n: integer >= 1; ' .. grid_rows, tokens = 'grid: integer[]',
   read = { 'x: string | tensor', opts = placed }, frames = { 'list: table', opts = placed },
})

return signature.doors('data.image_processor', processor, {
   new = { 'source: string | table; model: module?', op = op } })
