-- Pixels of images: u8 tensors [height, width, 3] on the host. Decodes by libraries that are opened
-- at first use: libturbojpeg (JPEG), libpng (PNG), libwebp (WebP). Programs use tide.data.image,
-- which reads the header and checks sizes before it calls these functions.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local ctx_of = require 'tide.ffi.ctx'
local C = lib.C

local M = {}

jit.off(true, true) -- no loops over pixels here, and texts must stay alive during calls

lib.once('image', function()
   ffi.cdef [[
      void *tjInitDecompress(void);
      int tjDecompress2(void *handle, const uint8_t *from, unsigned long size, uint8_t *to,
                        int width, int pitch, int height, int format, int flags);
      char *tjGetErrorStr2(void *handle);
      int tjDestroy(void *handle);
      typedef struct tide_png_image {
         void *opaque;
         uint32_t version, width, height, format, flags, entries, problem;
         char message[64];
      } tide_png_image;
      int png_image_begin_read_from_memory(tide_png_image *image, const void *from, size_t size);
      int png_image_finish_read(tide_png_image *image, const void *background, void *to,
                                int32_t stride, void *colormap);
      void png_image_free(tide_png_image *image);
      uint8_t *WebPDecodeRGBInto(const uint8_t *from, size_t size, uint8_t *to, size_t room,
                                 int stride);
   ]]
end)

-- By format: the names of the library, and the package of Debian that has it.
local libraries = {
   JPEG = { { 'libturbojpeg.so.0', 'libturbojpeg.so' }, 'libturbojpeg0' },
   PNG = { { 'libpng16.so.16', 'libpng16.so' }, 'libpng16-16' },
   WebP = { { 'libwebp.so.7', 'libwebp.so' }, 'libwebp7' },
}
local opened = {}

-- Returns the library of a format; nil and a sentence where it is not installed.
local function library(format)
   if opened[format] then return opened[format] end
   local names, package = unpack(libraries[format])
   for _, name in ipairs(names) do
      local ok, found = pcall(ffi.load, name)
      if ok then
         opened[format] = found
         return found
      end
   end
   return nil, ('%s images need %s, which is not installed; install the Debian package %s')
      :format(format, names[1], package)
end
M.library = library

-- Returns a new tensor of u8 on the host, and its bytes.
local function room(shape)
   local x = ctx_of.default():empty(shape, { dtype = 'u8', device = 'cpu' })
   return x, ffi.cast('uint8_t *', C.tide_tensor_data(x))
end

local new_box = ffi.typeof 'tide_tensor *[1]'

-- Returns the tensor that fn, a function of C, makes of x.
local function made(fn, x, ...)
   local box = new_box()
   local rc = fn(box, x, ...)
   if rc ~= 0 and own.again(x, rc) then own.check(x, fn(box, x, ...)) end
   return own.take(box)
end

-- Returns x, pixels of a layout that it spends, as an RGB image.
local function rgb(x, layout)
   return own.replace(x, made(C.tide_image_rgb, x, layout))
end

-- ---- decoders ----------------------------------------------------------------------------------
-- Each takes the bytes of a file, its height and its width, and returns pixels; nil, what is wrong
-- and, where that is not the file, a code.

local TJPF_RGB, TJPF_CMYK, TJFLAG_LIMITSCANS = 0, 11, 32768

-- Begins of warnings: the decoder repaired the data and went on, as in Pillow. The code of the
-- error does not tell, as it is that of a warning after any; an error has the last word.
local mild = { '^Corrupt JPEG data', '^Inconsistent progression', '^Unknown Adobe', '^Warning:' }

-- Returns nil, or what is wrong after a call that failed. Data that end early are refused.
local function jpeg_problem(said)
   for _, pattern in ipairs(mild) do
      if said:find(pattern) and not said:find 'premature end' then return nil end
   end
   return said
end

-- Returns pixels of a JPEG. components: 4 for CMYK.
function M.JPEG(bytes, h, w, components)
   local jpeg, why = library 'JPEG'
   if not jpeg then return nil, why, 'E_UNSUPPORTED' end
   local depth = components == 4 and 4 or 3
   local x, to = room { h, w, depth }
   local handle = jpeg.tjInitDecompress()
   if handle == nil then return nil, 'no memory for a decoder' end
   local rc = jpeg.tjDecompress2(handle, ffi.cast('const uint8_t *', bytes), #bytes, to, w,
      w * depth, h, depth == 4 and TJPF_CMYK or TJPF_RGB, TJFLAG_LIMITSCANS)
   local problem = rc ~= 0 and jpeg_problem(ffi.string(jpeg.tjGetErrorStr2(handle))) or nil
   jpeg.tjDestroy(handle)
   if problem then return nil, problem end
   return depth == 4 and rgb(x, C.TIDE_PIXELS_CMYK) or x
end

local ALPHA, COLOR, LINEAR = 1, 2, 4
local PNG_16BIT_SRGB = 4

-- Returns the format to read, bytes of a pixel, and its layout as RGB (nil: it is RGB). Values are
-- never changed: of 16 bits as of 8 bits, and a file without alpha has none added.
local function png_plan(format)
   local has = function(flag) return bit.band(format, flag) ~= 0 end
   if has(ALPHA) then return ALPHA + COLOR, 4, C.TIDE_PIXELS_RGBA end
   if not has(LINEAR) then return COLOR, 3, nil end
   if has(COLOR) then return LINEAR + COLOR, 6, C.TIDE_PIXELS_RGB16 end
   return LINEAR, 2, C.TIDE_PIXELS_GREY16
end

local function png_read(png, image, h, w)
   local format, size, layout = png_plan(image.format)
   if image.height ~= h or image.width ~= w then return nil, 'two sizes' end
   if bit.band(format, ALPHA) ~= 0 then image.flags = PNG_16BIT_SRGB end
   image.format = format
   local x, to = room { h, w, size }
   if png.png_image_finish_read(image, nil, to, 0, nil) == 0 or image.problem > 1 then
      return nil, ffi.string(image.message)
   end
   return layout and rgb(x, layout) or x
end

-- Returns pixels of a PNG without chunks about colour spaces, which would change values.
function M.PNG(bytes, h, w)
   local png, why = library 'PNG'
   if not png then return nil, why, 'E_UNSUPPORTED' end
   local image = ffi.new 'tide_png_image'
   image.version = 1
   if png.png_image_begin_read_from_memory(image, bytes, #bytes) == 0 then
      why = ffi.string(image.message)
      png.png_image_free(image)
      return nil, why
   end
   local ok, x, problem = pcall(png_read, png, image, h, w)
   png.png_image_free(image)
   if not ok then error(x, 0) end
   return x, problem
end

-- Returns pixels of a WebP that is no animation.
function M.WebP(bytes, h, w)
   local webp, why = library 'WebP'
   if not webp then return nil, why, 'E_UNSUPPORTED' end
   local x, to = room { h, w, 3 }
   local from = ffi.cast('const uint8_t *', bytes)
   if webp.WebPDecodeRGBInto(from, #bytes, to, h * w * 3, w * 3) == nil then
      return nil, 'libwebp cannot decode it: it is damaged or ends early'
   end
   return x
end

-- ---- pixels ------------------------------------------------------------------------------------

-- Returns pixels as their EXIF orientation (2 to 8) says that they are seen.
function M.orient(x, orientation) return made(C.tide_image_orient, x, orientation) end

-- Returns pixels resized to rows x columns: bicubic, or bilinear.
function M.resize(x, rows, columns, is_bilinear)
   return made(C.tide_image_resize, x, rows, columns,
      is_bilinear and C.TIDE_RESIZE_BILINEAR or C.TIDE_RESIZE_BICUBIC)
end

-- Returns what patches() takes. t: patch, merge, depth; factor (nil: pixels are not rescaled), mean
-- and std (nil: not normalised). Numbers are those of f32, one rounding for each operation, as in
-- PyTorch.
function M.form(t)
   local form, f = ffi.new 'tide_image_patches_attrs', ffi.new 'float[3]'
   C.tide_image_patches_attrs_init(form)
   form.patch, form.merge, form.depth = t.patch, t.merge, t.depth
   local function f32(v)
      f[0] = v
      return f[0]
   end
   local scale = t.factor and f32(1 / t.factor) or 1
   for c = 0, 2 do
      local mean = t.mean and f32(f32(t.mean[c + 1]) * scale)
      local std = t.mean and f32(f32(t.std[c + 1]) * scale)
      for v = 0, 255 do
         form.value[256 * c + v] = t.mean and f32(f32(v - mean) / std)
            or t.factor and v * f32(t.factor) or v
      end
   end
   return form
end

-- Returns room for the patches of `frames` times `depth` frames of rows x columns pixels.
function M.patches(form, frames, rows, columns)
   local p = form.patch
   return ctx_of.default():empty({ frames * rows * columns / p ^ 2, 3 * form.depth * p ^ 2 },
      { dtype = 'f32', device = 'cpu' })
end

-- Writes pixels x into slots first to last of frame `at` of patches, all counted from 0.
function M.write(patches, form, x, at, first, last)
   own.check(x, C.tide_image_patches(patches, x, at, first, last, form))
end

return M
