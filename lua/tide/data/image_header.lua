-- Headers of image files: format, size, and the orientation that EXIF or XMP metadata give.
--
-- A source is read(first, n): bytes first to first + n - 1 of the file, fewer at its end. Pictures
-- of other formats are refused by name. What is wrong is the second result, a text.

local header = {}

-- ---- numbers -----------------------------------------------------------------------------------

-- Returns the whole number of the bytes of a text; big: the first byte is the highest.
local function number(text, big)
   local v = 0
   for i = 1, #text do v = v * 256 + text:byte(big and i or #text + 1 - i) end
   return v
end
local function high(text) return number(text, true) end
local function low(text) return number(text, false) end

-- ---- metadata ----------------------------------------------------------------------------------

local ORIENTATION, SHORT = 0x0112, 3
local widths = { 1, [SHORT] = 2, [4] = 4 }

-- Returns the orientation of a TIFF structure, the content of EXIF metadata; nil without one.
local function of_exif(text)
   local at = text:sub(1, 6) == 'Exif\0\0' and 6 or 0
   local order = text:sub(at + 1, at + 2)
   if order ~= 'II' and order ~= 'MM' then return nil end
   local function read(first, n)
      return number(text:sub(at + first, at + first + n - 1), order == 'MM')
   end
   local directory = read(5, 4)
   for i = 0, read(directory + 1, 2) - 1 do
      local entry = directory + 3 + 12 * i
      if at + entry + 11 > #text then return nil end
      if read(entry, 2) == ORIENTATION then
         local width = widths[read(entry + 2, 2)]
         return width and read(entry + 8, width) or nil
      end
   end
end

-- Returns the orientation of XMP metadata, or nil.
local function of_xmp(text)
   return tonumber(text:match 'tiff:Orientation="(%d)' or text:match 'tiff:Orientation>(%d)')
end

-- Returns the orientation to apply, 1 to 8. exif, xmp: metadata, or nil.
local function orientation_of(exif, xmp)
   local found = exif and of_exif(exif) or xmp and of_xmp(xmp) or 1
   return found >= 1 and found <= 8 and found or 1
end

-- ---- formats -----------------------------------------------------------------------------------

local readers = {}

local not_frames = { [0xC4] = true, [0xC8] = true, [0xCC] = true }
local early = 'the file ends in its header'

-- Returns the code of the marker at byte `at`, after a few fill bytes, and where its segment
-- begins.
local function marker_at(read, at)
   for i = at, at + 1000 do
      local two = read(i, 2)
      if #two < 2 then return nil, early end
      if two:byte(1) ~= 0xFF then return nil, ('no marker at byte %d'):format(i) end
      if two:byte(2) ~= 0xFF then return two:byte(2), i + 2 end
   end
   return nil, ('no marker at byte %d'):format(at)
end

-- Readers return what they found; or nil, what is wrong, and whether the file is whole.

-- Segments up to that of the frame (SOF), which has the size.
function readers.JPEG(read)
   local at, exif, xmp = 3, nil, nil
   while true do
      local code, from = marker_at(read, at)
      if not code then return nil, from end
      local alone = code == 1 or code >= 0xD0 and code <= 0xD8
      if code == 0xD9 or code == 0xDA then return nil, 'it has no frame' end
      local text = alone and '\0\0' or read(from, 2)
      if #text < 2 then return nil, early end
      local n = alone and 0 or high(text)
      if code >= 0xC0 and code <= 0xCF and not not_frames[code] then
         local frame = read(from + 2, 6)
         if #frame < 6 then return nil, early end
         return { h = high(frame:sub(2, 3)), w = high(frame:sub(4, 5)),
            components = frame:byte(6), orientation = orientation_of(exif, xmp) }
      elseif code == 0xE1 then
         local body = read(from + 2, n - 2)
         if not exif and body:sub(1, 6) == 'Exif\0\0' then exif = body end
         if body:sub(1, 29) == 'http://ns.adobe.com/xap/1.0/\0' then xmp = body end
      end
      at = from + n
   end
end

-- Chunks: length, type, data, checksum. EXIF may lie behind the pixels.
function readers.PNG(read)
   local first = read(9, 16)
   if #first < 16 then return nil, early end
   if first:sub(5, 8) ~= 'IHDR' then return nil, 'its first chunk is not IHDR' end
   local at, exif, xmp = 9, nil, nil
   while not exif do
      local head = read(at, 8)
      local n, name = high(head:sub(1, 4)), head:sub(5, 8)
      if #head < 8 or name == 'IEND' then break end
      if name == 'eXIf' then exif = read(at + 8, n) end
      if name == 'iTXt' and read(at + 8, 22) == 'XML:com.adobe.xmp\0\0\0\0\0' then
         xmp = read(at + 8, n)
      end
      at = at + 12 + n
   end
   return { w = high(first:sub(9, 12)), h = high(first:sub(13, 16)),
      orientation = orientation_of(exif, xmp) }
end

local webp_sizes = {
   ['VP8 '] = function(data) return low(data:sub(7, 8)) % 2 ^ 14, low(data:sub(9, 10)) % 2 ^ 14 end,
   VP8L = function(data)
      local bits = low(data:sub(2, 5))
      return bits % 2 ^ 14 + 1, math.floor(bits / 2 ^ 14) % 2 ^ 14 + 1
   end,
   VP8X = function(data) return low(data:sub(5, 7)) + 1, low(data:sub(8, 10)) + 1 end,
}
local ANIMATION = 2

-- Chunks of a RIFF file, padded to whole pairs of bytes.
function readers.WebP(read)
   local name, data = read(13, 4), read(21, 10)
   local size = webp_sizes[name]
   if #data < 10 then return nil, early end
   if not size then return nil, 'its first chunk is not VP8, VP8L or VP8X' end
   if name == 'VP8X' and data:byte(1) % (2 * ANIMATION) >= ANIMATION then
      return nil, 'it is an animated WebP; expected one picture', true
   end
   local w, h = size(data)
   local at, exif, xmp = 13, nil, nil
   while name == 'VP8X' do
      local head = read(at, 8)
      if #head < 8 then break end
      local kind, n = head:sub(1, 4), low(head:sub(5, 8))
      if kind == 'EXIF' then exif = read(at + 8, n) end
      if kind == 'XMP ' then xmp = read(at + 8, n) end
      at = at + 8 + n + n % 2
   end
   return { h = h, w = w, orientation = orientation_of(exif, xmp) }
end

-- First bytes of formats that are read, and of those that are not.
local known = { { '\255\216', 'JPEG' }, { '\137PNG\r\n\26\n', 'PNG' } }
local foreign = {
   { 'GIF8', 'a GIF' }, { 'BM', 'a BMP' }, { 'II*\0', 'a TIFF' }, { 'MM\0*', 'a TIFF' },
   { '\0\0\0\12jP', 'JPEG 2000' }, { '\255\10', 'JPEG XL' }, { '\0\0\0\12JXL ', 'JPEG XL' },
}

local function format_of(head)
   for _, row in ipairs(known) do
      if head:sub(1, #row[1]) == row[1] then return row[2] end
   end
   if head:sub(1, 4) == 'RIFF' and head:sub(9, 12) == 'WEBP' then return 'WebP' end
   if head == '' then return nil, 'it is empty' end
   local what = head:sub(5, 8) == 'ftyp' and 'an AVIF, a HEIC or a video' or 'no picture'
   for _, row in ipairs(foreign) do
      if head:sub(1, #row[1]) == row[1] then what = row[2] end
   end
   return nil, ('it is %s; expected a JPEG, a PNG or a WebP'):format(what)
end

-- Returns { format, h, w (as stored), orientation, components (of a JPEG) }; nil and what is wrong.
function header.read(read)
   local format, why = format_of(read(1, 16))
   if not format then return nil, why end
   local found, is_whole
   found, why, is_whole = readers[format](read)
   if not found then
      return nil, is_whole and why or ('it is a damaged %s: %s'):format(format, why)
   end
   if found.h < 1 or found.w < 1 then
      return nil, ('its header says %d x %d pixels'):format(found.h, found.w)
   end
   found.format = format
   return found
end

-- Chunks of a PNG that make pixels. Those about colour spaces would change values, and a
-- transparent colour would add alpha.
local kept = { IHDR = true, PLTE = true, IDAT = true, IEND = true }

-- Returns the bytes of a PNG without other chunks.
function header.plain_png(bytes)
   local out, at = { bytes:sub(1, 8) }, 9
   while at <= #bytes do
      local n = high(bytes:sub(at, at + 3))
      if kept[bytes:sub(at + 4, at + 7)] then out[#out + 1] = bytes:sub(at, at + 11 + n) end
      at = at + 12 + n
   end
   return table.concat(out)
end

return header
