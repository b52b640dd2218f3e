-- Images against Pillow and transformers (files and numbers of spec/golden/image.py): pixels,
-- patches and sizes are equal; what is no picture, damaged or too large is refused.

local tide = require 'tide'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local child = require 'spec.support.child'
local refused = require 'spec.support.refused'
local tmp = require 'spec.support.tmp'

local image, vision = tide.data.image, tide.data.vision
local fields = { patch_size = 2, merge_size = 2, temporal_patch_size = 2, min_pixels = 60,
   max_pixels = 120 }

-- Returns the tensors of the golden file by name, and the bytes of its pictures.
local function golden()
   local file, numbers, bytes = fs.open_tensors('spec', 'spec/golden/image.safetensors'), {}, {}
   for _, name in ipairs(file:names()) do
      local info = file:info(name)
      local t = tide.empty(info.shape, { dtype = info.dtype, device = 'cpu' })
      file:read(name, t)
      numbers[name] = t
      local picture = name:match '^file/(.*)'
      if picture then
         local list = t:tolist()
         for i, v in ipairs(list) do list[i] = string.char(v) end
         bytes[picture] = table.concat(list)
      end
   end
   file:close()
   return numbers, bytes
end
local numbers, bytes = golden()

-- Returns how far pixels are from those of Pillow at most.
local function far(name, got)
   local want = numbers['pixels/' .. name]
   assert.same(want.shape, got.shape)
   return (got:to 'f32' - want:to 'f32'):abs():amax():item()
end

-- Other versions of a decoder may round otherwise; 16 bits with alpha are rounded, not cut.
local function most_of(name)
   return (name:find '^jpeg' or name:find '^webp') and 2 or name:find '_16_[24]' and 1 or 0
end

describe('data.image', function()
   it('decodes every kind of picture as Pillow does', function()
      local n = 0
      for name, text in each(bytes) do
         local got = image.decode(text)
         local off = far(name, got)
         assert.is_true(off <= most_of(name), ('%s: %g'):format(name, off))
         n = n + 1
      end
      assert.is_true(n >= 38, n)
   end)

   -- make test-asan finds loads of 16 bits at an odd address
   it('converts values of 16 bits that begin at any byte', function()
      local ffi, own = require 'ffi', require 'tide.ffi.own'
      local C = require('tide.ffi.lib').C
      local memory = tide.tensor({ 0, 1, 2, 3, 4, 5, 6, 200, 0 }, { dtype = 'u8' })
      local function rgb(first, n, layout)
         local box, x = ffi.new 'tide_tensor *[1]', memory:narrow(1, first, n):reshape { 1, 1, n }
         own.check(x, C.tide_image_rgb(box, x, layout))
         return own.take(box):reshape(3):tolist()
      end
      assert.same({ 2, 4, 6 }, rgb(2, 6, C.TIDE_PIXELS_RGB16))
      assert.same({ 3, 5, 200 }, rgb(3, 6, C.TIDE_PIXELS_RGB16))
      assert.same({ 200, 200, 200 }, rgb(8, 2, C.TIDE_PIXELS_GREY16))
      assert.same({ 255, 255, 255 }, rgb(2, 2, C.TIDE_PIXELS_GREY16))
   end)

   it('reads sizes from the header alone, upright', function()
      tmp.with(function(dir)
         for name, text in each(bytes) do
            local path, want = dir .. '/picture', numbers['pixels/' .. name]
            fs.write('spec', path, text)
            assert.same({ want:size(1), want:size(2) }, { image.size(path) }, name)
            assert.is_true(image.open(path):equal(image.decode(text)), name)
         end
      end)
   end)

   it('makes the patches of transformers', function()
      local proc, n = image.processor(fields), 0
      for name, want in each(numbers) do
         local picture = name:match '^patches/(.*)'
         if picture then
            local pixels = numbers['pixels/' .. picture]
            local got, grid = proc:read(pixels)
            assert.is_true(got:equal(want), name)
            assert.same(numbers['grid/' .. picture]:tolist()[1], grid)
            assert.same(grid, proc:grid(pixels:size(1), pixels:size(2)))
            assert.equal(got:size(1) / 4, proc:tokens(grid))
            n = n + 1
         end
      end
      assert.equal(5, n)
   end)

   it('makes the patches of frames; the last one of an odd number twice', function()
      local proc, frames = image.processor(fields), {}
      for i, name in ipairs { 'rgb', 'rgb_interlaced', 'rgba' } do
         frames[i] = numbers['pixels/' .. name]
      end
      local got, grid = proc:frames(frames)
      assert.is_true(got:equal(numbers.video))
      assert.same(numbers.video_grid:tolist()[1], grid)
      assert.same(grid, proc:video_grid(3, 9, 13))
      frames[2] = numbers['pixels/tall']
      refused('E_SHAPE', 'list[2] has 31 x 4 pixels; expected 9 x 13, as the first frame',
         proc.frames, proc, frames)
   end)

   it('chooses the sizes of smart_resize', function()
      for _, row in ipairs(numbers.sizes:tolist()) do
         local h, w, factor, least, most, rows, columns = unpack(row)
         local proc = image.processor { patch_size = factor, merge_size = 1, min_pixels = least,
            max_pixels = most }
         assert.same({ 1, rows / factor, columns / factor }, proc:grid(h, w))
      end
      refused('E_SHAPE', 'expected an aspect ratio of at most 200', image.processor({}).grid,
         image.processor {}, 1, 201)
   end)
end)

-- What opening a file that holds a text raises: code and part of the message, and no crash.
local function refuses(code, part, text)
   tmp.with(function(dir)
      local path = dir .. '/picture'
      fs.write('spec', path, text)
      local e = refused(code, part, image.open, path)
      assert.truthy(e.message:find(path, 1, true), e.message)
   end)
end

describe('files that are no pictures', function()
   it('are refused by name', function()
      refuses('E_FORMAT', 'it is empty', '')
      refuses('E_FORMAT', 'it is a GIF; expected a JPEG, a PNG or a WebP', 'GIF89a.........')
      refuses('E_FORMAT', 'it is no picture; expected', 'a text')
      refuses('E_FORMAT', 'picture: it is an animated WebP; expected one picture',
         'RIFF\0\0\0\0WEBPVP8X\10\0\0\0\2' .. ('\0'):rep(9))
      refused('E_IO', 'cannot open', image.open, '/no/such/file')
      refused('E_IO', "cannot open '/no/such/file': No such file", image.size, '/no/such/file')
      refused('E_IO', 'not a regular file', image.size, '/tmp')
      tmp.with(function(dir)                                   -- opening a pipe would wait
         assert.equal(0, os.execute('mkfifo ' .. dir .. '/pipe'))
         refused('E_IO', 'not a regular file', image.size, dir .. '/pipe')
      end)
   end)

   it('need a library that is named where it is missing, and others work without it', function()
      tmp.with(function(dir)
         for _, name in ipairs { 'jpeg', 'rgb', 'webp' } do
            fs.write('spec', dir .. '/' .. name, bytes[name])
         end
         local out, status = child(([[
            local ffi = require 'ffi'
            local load, tide = ffi.load, require 'tide'
            function ffi.load(name, ...)
               if name:find(arg[1]) then error 'no such file' end
               return load(name, ...)
            end
            for _, name in ipairs { 'jpeg', 'rgb', 'webp' } do
               local ok, e = pcall(tide.data.image.open, arg[2] .. '/' .. name)
               local why = ok and {} or tide.error_of(e)
               print(name, ok, why.code, why.message)
               print(tide.data.image.size(arg[2] .. '/' .. name))
            end
         ]]), { args = 'turbojpeg ' .. dir })
         assert.equal(0, status, out)
         assert.truthy(out:find('jpeg\tfalse\tE_UNSUPPORTED\t' .. dir .. '/jpeg: JPEG images need '
            .. 'libturbojpeg.so.0, which is not installed; install the Debian package '
            .. 'libturbojpeg0\n9\t13\nrgb\ttrue', 1, true), out)
         assert.truthy(out:find('webp\ttrue', 1, true), out)
      end)
   end)

   it('of a size that would fill the memory are refused', function()
      local at = bytes.rgb:find 'IHDR'
      local huge = bytes.rgb:sub(1, at + 3) .. ('\0\1\0\0'):rep(2) .. bytes.rgb:sub(at + 12)
      refuses('E_FORMAT', 'its header says 65536 x 65536 pixels; expected at most 178956970', huge)
      refuses('E_FORMAT', 'its header says 0 x 0 pixels', bytes.rgb:sub(1, at + 3)
         .. ('\0'):rep(8) .. bytes.rgb:sub(at + 12))
   end)

   it('whose header promises more bytes than there are take no memory for them', function()
      local chunk = bytes.rgb:find 'IHDR' + 21
      local png = bytes.rgb:sub(1, chunk - 1) .. '\255\255\255\240eXIf' .. bytes.rgb:sub(chunk)
      local jpeg = bytes.jpeg:sub(1, 2) .. '\255\225\0\0' .. bytes.jpeg:sub(3)
      local webp = bytes.webp_exif
      local at = webp:find('EXIF', 1, true) + 4
      webp = webp:sub(1, at - 1) .. '\240\255\255\255' .. webp:sub(at + 4)
      tmp.with(function(dir)
         for _, text in ipairs { png, jpeg, webp } do
            fs.write('spec', dir .. '/x', text)
            local ok, e = pcall(image.size, dir .. '/x')
            assert.is_true(ok or (tide.error_of(e) or {}).code == 'E_FORMAT', e)
         end
      end)
   end)

   it('that end early, at any byte, are refused or read whole', function()
      for _, name in ipairs { 'rgb', 'palette', 'jpeg', 'jpeg_exif_6', 'jpeg_progressive', 'webp',
         'webp_lossless', 'webp_exif', 'channels_16_3' } do
         local text, n_refused = bytes[name], 0
         for n = 0, #text - 1 do
            local ok, e = pcall(image.decode, text:sub(1, n))
            if not ok then
               assert.equal('E_FORMAT', tide.error_of(e).code)
               n_refused = n_refused + 1
            else
               assert.is_true(far(name, e) <= 2, name .. ' ' .. n)
            end
         end
         assert.is_true(n_refused > 0.75 * #text, name)
      end
   end)

   it('with damaged bytes end in pixels or an error', function()
      for name, text in each(bytes) do
         for k = 0, 39 do
            local at = 1 + (k * 7919 + #name * 31) % #text
            local damaged = text:sub(1, at - 1) .. string.char((text:byte(at) + 1 + k * 37) % 256)
               .. text:sub(at + 1)
            local ok, e = pcall(image.decode, damaged)
            assert.is_true(ok or tide.error_of(e).code == 'E_FORMAT', name)
         end
      end
   end)
end)

describe('data.image.processor', function()
   it('reads the fields of a folder as transformers does', function()
      tmp.with(function(dir)
         refused('E_IO', 'neither preprocessor_config.json nor', image.processor, dir)
         local function write(name, t) fs.write_json('spec', dir .. '/' .. name, t) end
         write('preprocessor_config.json', { image_processor_type = 'Qwen2VLImageProcessor',
            min_pixels = 100, max_pixels = 200, size = { shortest_edge = 1, longest_edge = 2 },
            image_mean = { 0.5, 0.5, 0.5 }, future = true })
         local proc = image.processor(dir)
         assert.same({ 100, 200, { 0.5, 0.5, 0.5 }, 14 }, { proc.config.min_pixels,
            proc.config.max_pixels, proc.config.image_mean, proc.config.patch_size })
         assert.equal(100, proc.video_config.min_pixels)
         write('video_preprocessor_config.json', { size = { shortest_edge = 7, longest_edge = 9 } })
         assert.equal(7, image.processor(dir).video_config.min_pixels)
         write('processor_config.json', { image_processor = { size = { shortest_edge = 300,
            longest_edge = 400 } }, video_processor = { merge_size = 1 } })
         proc = image.processor(dir)
         assert.same({ 300, 400, 1 }, { proc.config.min_pixels, proc.config.max_pixels,
            proc.video_config.merge_size })
         write('processor_config.json', { image_processor = { image_processor_type = 'Other' } })
         refused('E_UNSUPPORTED', dir .. ': image_processor_type is "Other"; tide has '
            .. 'Qwen2VLImageProcessor', image.processor, dir)
      end)
   end)

   it('has the defaults of Qwen2.5-VL, and refuses what it does not know', function()
      local proc = image.processor {}
      assert.same({ 3136, 1003520, 100352, 602112 }, { proc.config.min_pixels,
         proc.config.max_pixels, proc.video_config.min_pixels, proc.video_config.max_pixels })
      local function wrong(part, t, code) refused(code or 'E_ARG', part, image.processor, t) end
      wrong("unknown field 'min_pixel'", { min_pixel = 3 })
      wrong('resample: expected 3 (bicubic), got 2', { resample = 2 }, 'E_UNSUPPORTED')
      wrong('max_pixels', { min_pixels = 5, max_pixels = 4 })
      proc = image.processor { max_pixels = 2000 }             -- less than the least of a video
      assert.same({ 1, 2, 4 }, proc:grid(500, 1000))
      wrong("size has the field 'height'; expected shortest_edge and longest_edge", { size = {
         height = 224 } }, 'E_UNSUPPORTED')
      for _, grid in ipairs { { 1, 2 }, { 1, 3, 4 } } do
         refused('E_ARG', 'expected { frames, rows, columns } of patches', proc.tokens, proc, grid)
      end
      wrong('image_std[2]', { image_std = { 1, 0, 1 } })
      wrong('patch_size', { patch_size = 0 })
      wrong('do_resize', { do_resize = 1 })
   end)

   it('leaves out steps', function()
      local pixels = numbers['pixels/rgb']:narrow(1, 1, 8):narrow(2, 1, 12):contiguous()
      local function first(more)
         local t = { patch_size = 2, do_resize = false, do_normalize = false, do_rescale = false }
         for k, v in each(more) do t[k] = v end
         return image.processor(t):read(pixels):at(1, 1)
      end
      local v = pixels:at(1, 1, 1)
      assert.equal(v, first {})
      assert.near(v / 255, first { do_rescale = true }, 1e-7)
      assert.near((v - 0.48145466) / 0.26862954, first { do_normalize = true }, 1e-3)
      refused('E_SHAPE', 'without do_resize expected multiples of 4', function()
         return image.processor { patch_size = 2, do_resize = false }:read(numbers['pixels/rgb'])
      end)
   end)
end)

describe('a model that reads pictures', function()
   local case = require 'spec.lua.vlm_case'
   local texts = { one = { 'jpeg' }, turned = { 'jpeg_exif_6' },
      two = { 'grey_alpha', 'webp_exif' }, three = { 'palette', 'tall', 'jpeg_cmyk' }, none = {} }

   it('computes of files what transformers does, and goes on as it does', function()
      local model, proc = case.model 'images', image.processor(fields)
      for name, names in each(texts) do
         local sources, ids = {}, { 1, 5 }
         for i, picture in ipairs(names) do
            sources[i] = image.decode(bytes[picture])
            for _, id in ipairs { 38, 36, 39, 7 } do ids[#ids + 1] = id end
         end
         ids[#ids + 1], ids[#ids + 2] = 9, 3
         local pictures = vision.read(proc, { images = sources })
         ids = vision.expand(proc, model.config, ids, pictures)
         local want, inputs = numbers['ids/' .. name]:tolist(), vision.fields(pictures)
         for t, id in ipairs(want) do assert.equal(tonumber(id), ids[t]) end
         assert.equal(#want, #ids)
         local logits = tide.no_grad(model, tide.tensor({ ids }, { dtype = 'i64' }), inputs)
         logits = logits:select(1, 1):select(1, #ids)
         local off = (logits - numbers['logits/' .. name]):abs():amax():item()
         assert.is_true(off <= 2e-3 * logits:abs():amax():item(), ('%s: %g'):format(name, off))
         local answer = tide.train.sample.generate(model, ids, { tokens = 6, temperature = 0,
            inputs = names[1] and inputs or nil })
         for t, id in ipairs(numbers['answer/' .. name]:tolist()) do
            assert.equal(tonumber(id), answer[t], name)
         end
      end
   end)
end)

describe('data.vision', function()
   local proc = image.processor(fields)
   local config = { image_token_id = 36, video_token_id = 37 }
   local rgb = numbers['pixels/rgb']

   it('finds the pictures of messages in order, and expands their placeholders', function()
      tmp.with(function(dir)
         fs.write('spec', dir .. '/a.png', bytes.rgb)
         fs.write('spec', dir .. '/b.jpg', bytes.jpeg)
         local messages = {
            { role = 'system', content = 'a text' },
            { role = 'user', content = { { type = 'image', image = 'a.png' },
               { type = 'text', text = 'and' }, { type = 'image' },
               { type = 'video', video = { 'a.png', 'b.jpg', 'a.png' }, fps = 4 } } },
            { role = 'user', content = { { type = 'image_url',
               image_url = { url = 'file://' .. dir .. '/b.jpg' } } } },
         }
         local sources = vision.sources(messages, { dir = dir, images = { rgb } })
         assert.same({ dir .. '/a.png', dir .. '/b.jpg' }, { sources.images[1], sources.images[3] })
         local pictures = vision.read(proc, sources)
         local ids, copies = vision.expand(proc, config, { 1, 36, 2, 36, 37, 3, 36 }, pictures)
         local n = proc:tokens(proc:grid(9, 13))
         assert.same({ 1, n, 1, n, 2 * n, 1, n }, copies)
         assert.equal(5 * n + 3, #ids)
         local o = vision.fields(pictures)
         assert.same({ 3 * 4 * n, 24 }, o.pixel_values.shape)
         assert.same({ 3, 3 }, o.image_grid_thw.shape)
         assert.same({ 2 * 4 * n, 24 }, o.pixel_values_videos.shape)
         assert.same({ 0.5 }, o.second_per_grid_ts)
         assert.same({}, vision.fields(vision.read(proc, vision.sources { messages[1] })))
      end)
   end)

   it('reads videos of Qwen3-VL, whose rows of patches are apart behind their times', function()
      local apart = image.processor { image_processor = fields, video_processor = {
         video_processor_type = 'Qwen3VLVideoProcessor', patch_size = 2, min_pixels = 4,
         max_pixels = 4096 } }
      local pictures = vision.read(apart, { videos = { { frames = { rgb, rgb, rgb }, fps = 4 } } })
      local video = pictures.videos[1]
      assert.same({ 0.125, 0.5 }, video.times)
      assert.is_nil(video.seconds)
      assert.same({ 2, 4, 6 }, video.grid)
      local ids, copies = vision.expand(apart, config, { 1, 37, 2, 37 }, pictures)
      assert.same({ 1, 6, 1, 6 }, copies)
      assert.equal(14, #ids)
      assert.is_nil(vision.fields(pictures).second_per_grid_ts)
      refused('E_ARG', 'ids: expected a placeholder for each of 2 rows of patches of videos, got '
         .. '1; write each behind its time in words', vision.expand, apart, config, { 37 },
         pictures)
   end)

   it('gives frames of Qwen3-VL the sizes of transformers', function()
      -- frames, height and width, and what smart_resize of transformers makes of them; with
      -- cap_pixels_per_frame
      for _, row in ipairs { { 2, 480, 640, 480, 640 }, { 5, 480, 640, 320, 448 },
         { 16, 1080, 1920, 160, 288 }, { 3, 20, 100, 96, 480 }, { 4, 40, 33, 224, 192 },
         { 768, 720, 1280, 32, 32 }, { 16, 1080, 1920, 256, 480, true },
         { 7, 1500, 100, 1408, 64, true } } do
         local proc_ = image.processor { image_processor = {}, video_processor = {
            video_processor_type = 'Qwen3VLVideoProcessor', cap_pixels_per_frame = row[6] } }
         assert.same({ math.ceil(row[1] / 2), row[4] / 16, row[5] / 16 },
            proc_:video_grid(row[1], row[2], row[3]))
         refused('E_SHAPE', 'a video of 1 frames; expected at least 2', proc_.video_grid, proc_, 1,
            row[2], row[3])
      end
   end)

   it('reads bytes in base64', function()
      local text = 'R0lGODlh'                                  -- GIF89a
      for _, part in ipairs { { type = 'image', base64 = text },
         { type = 'image', url = 'data:image/gif;base64,' .. text } } do
         local sources = vision.sources { { content = { part } } }
         assert.same({ { bytes = 'GIF89a' } }, sources.images)
         refused('E_FORMAT', 'it is a GIF', vision.read, proc, sources)
      end
      refused('E_FORMAT', 'base64: expected the path of a file (tide fetches nothing) or a data: '
         .. 'URL in base64, got data:;base64,* (its base64 has other characters)', vision.sources,
         { { content = { { type = 'image', base64 = '*' } } } })
   end)

   it('refuses pictures without a place, and places without a picture', function()
      local part = { { content = { { type = 'image' } } } }
      refused('E_ARG', 'opts.images[1]', vision.sources, part)
      refused('E_ARG', 'messages[1].content[1].image', vision.sources,
         { { content = { { type = 'image', image = {} } } } }, { images = { rgb } })
      assert.same({ 'a' }, vision.sources { { content = { { type = 'image',
         image = { path = 'a' } } } } }.images)
      refused('E_ARG', 'opts.images', vision.sources, part, { images = { rgb, rgb } })
      refused('E_ARG', 'tide fetches nothing', vision.sources,
         { { content = { { type = 'image', url = 'https://a.b/c.png' } } } })
      refused('E_ARG', 'tide reads no files of videos', vision.sources,
         { { content = { { type = 'video', video = 'a.mp4' } } } })
      local pictures = vision.read(proc, { images = { rgb } })
      refused('E_ARG', 'ids: expected a placeholder for each of 1 images, got 2',
         vision.expand, proc, config, { 36, 36 }, pictures)
      refused('E_ARG', 'of 1 images, got 0', vision.expand, proc, config, { 1 }, pictures)
      local other = { image_token_id = 36, video_token_id = 37, vision_config = {
         patch_size = proc.config.patch_size, spatial_merge_size = proc.config.merge_size,
         temporal_patch_size = proc.config.temporal_patch_size } }
      assert.equal('table', type(vision.expand(proc, other, { 36 }, pictures)))
      other.vision_config.patch_size = 99
      refused('E_ARG', "'processor.patch_size': expected 99, as vision_config.patch_size of the "
         .. 'model', vision.expand, proc, other, { 36 }, pictures)
   end)
end)
