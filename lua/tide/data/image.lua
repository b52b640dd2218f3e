-- Images: files and bytes as pixels, and as the patches that a vision tower reads.
--
--    local proc = tide.data.image.processor 'models/qwen2_5_vl'
--    local patches, grid = proc:read 'cat.jpg'
--
-- Pixels are a u8 tensor [height, width, 3] on the host: red, green and blue, upright by the EXIF
-- orientation. They are what Pillow's exif_transpose and convert('RGB') return: grey becomes three
-- channels, alpha is dropped, CMYK is converted. JPEG, PNG and WebP are read by libraries of the
-- system, which are opened at first use.

local decoders = require 'tide.ffi.image'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local header = require 'tide.data.image_header'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
require 'tide.nn.module'                -- the kind 'module'

local image = {}

-- Pillow's limit for an image that it takes for an attack.
local MOST = 2 * 89478485

-- Returns a source for image_header of a string.
local function of_bytes(bytes) return function(at, n) return bytes:sub(at, at + n - 1) end end

-- Returns a source of an open file. It reads no more bytes than there are, whatever a header says.
local function of_file(file)
   local last = file:seek 'end'
   return function(at, n)
      n = math.min(n, last - at + 1)
      return n > 0 and file:seek('set', at - 1) and file:read(n) or ''
   end
end

-- Returns what the header says; raises for what is no picture. name: of the source in messages.
local function checked(op, name, read)
   local found, why = header.read(read)
   err.raise_if(not found, 'E_FORMAT', op, '%s: %s', name, why)
   err.raise_if(found.h * found.w > MOST, 'E_FORMAT', op, '%s: its header says %d x %d pixels; '
      .. 'expected at most %d pixels', name, found.h, found.w, MOST)
   return found
end

-- Returns the height and the width as the picture is seen.
local function seen(found)
   if found.orientation >= 5 then return found.w, found.h end
   return found.h, found.w
end

-- Returns pixels of the bytes of a file.
local function decoded(op, name, bytes)
   local found = checked(op, name, of_bytes(bytes))
   local plain = found.format == 'PNG' and header.plain_png(bytes) or bytes
   local x, why, code = decoders[found.format](plain, found.h, found.w, found.components)
   err.raise_if(not x, code or 'E_FORMAT', op, '%s: %s%s', name, code and '' or
      'it is a damaged ' .. found.format .. ': ', why)
   if found.orientation == 1 then return x end
   return private.replace(x, decoders.orient(x, found.orientation))
end

-- Returns height and width in pixels, as the picture is seen, from the header of a file alone.
function image.size(path)
   local op = 'data.image.size'
   err.raise_if(fs.exists(path) and not fs.size(path), 'E_IO', op,
      "cannot open '%s': it is not a regular file", path)
   local file, why = io.open(path, 'rb')
   err.raise_if(not file, 'E_IO', op, "cannot open '%s': %s", path,
      (why or ''):match '([^:%s][^:]*)$')
   local ok, found = pcall(checked, op, path, of_file(file))
   file:close()
   if not ok then error(found, 0) end
   return seen(found)
end

-- Does what size does for a file in memory.
function image._size_of(bytes)
   return seen(checked('data.image.size', 'the bytes', of_bytes(bytes)))
end

-- Returns the pixels of a file in memory, u8 [height, width, 3].
function image.decode(bytes) return decoded('data.image.decode', 'the bytes', bytes) end

-- Returns the pixels of a file, u8 [height, width, 3].
function image.open(path)
   local op = 'data.image.open'
   return decoded(op, path, fs.read(op, path))
end

-- Returns pixels resized to rows x columns: bicubic with antialias, the numbers of PyTorch's
-- interpolate on uint8.
function image.resize(pixels, rows, columns)
   if pixels.device ~= 'cpu' then pixels = pixels:to 'cpu' end
   return decoders.resize(pixels:contiguous(), rows, columns)
end

-- Returns the folder that says how images become patches, of the places of a path (util.fs.places):
-- a folder of a model or a checkpoint, or the run that holds it. Nil if none does.
function image.find(path)
   for _, dir in ipairs(fs.places(path)) do
      for _, name in ipairs { 'preprocessor_config.json', 'processor_config.json' } do
         if fs.exists(fs.join(dir, name)) then return dir end
      end
   end
end

-- Returns a processor of images (see tide.data.image_processor). source: the folder of a published
-- model, or the fields of its preprocessor_config.json; model: nil, or the model that reads the
-- images, with the sizes of patches where the folder lacks config.json (Gemma 3).
function image.processor(source, model)
   return require('tide.data.image_processor').new(source, model)
end

return signature.doors('data.image', image, {
   size = 'path: string', decode = 'bytes: string', open = 'path: string',
   resize = 'pixels: tensor [H, W, 3] of u8; rows: integer in [1, 65536]; '
      .. 'columns: integer in [1, 65536]',
   find = 'path: string', processor = 'source: string | table; model: module?',
})
