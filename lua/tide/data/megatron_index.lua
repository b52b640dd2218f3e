-- The head of the index of a Megatron data set: PREFIX.idx, beside the ids in PREFIX.bin.
--
-- The index is: 'MMIDIDX\0\0', u64 version 1, u8 dtype code, u64 sequences, u64 entries of the last
-- array, i32 lengths, i64 byte offsets, i64 first sequences of documents with the end. Numbers are
-- little-endian.

local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local number_at = require('tide.util.little').read

local index = { magic = 'MMIDIDX\0\0', head = 34 }     -- head: bytes before the lengths

-- Bytes an id and names by dtype code, as Megatron's DType.
local widths = { [4] = 4, [8] = 2 }
local names = { 'uint8', 'int8', 'int16', 'int32', 'int64', 'float64', 'float32', 'uint16' }

-- Returns width, number of sequences and of document entries from the first bytes of an index of
-- `size` bytes; raises unless it is an index.
function index.header(op, path, text, size)
   err.raise_if(text:sub(1, 9) ~= index.magic, 'E_FORMAT', op, '%s is no index of a Megatron data '
      .. 'set', path)
   err.raise_if(#text < index.head, 'E_FORMAT', op, '%s has %d bytes; the head of an index has %d',
      path, #text, index.head)
   local version = number_at(text, 10, 8)
   err.raise_if(version ~= 1, 'E_UNSUPPORTED', op, '%s has version %.0f; version 1 can be read',
      path, version)
   local code = text:byte(18)
   if not widths[code] then
      err.raise('E_UNSUPPORTED', op, '%s holds ids of %s; uint16 and int32 can be read', path,
         names[code] or 'dtype code ' .. code)
   end
   local sequences, entries = number_at(text, 19, 8), number_at(text, 27, 8)
   local wanted = index.head + 12 * sequences + 8 * entries
   err.raise_if(size ~= wanted, 'E_FORMAT', op, '%s has %.0f bytes; its %.0f sequences and %.0f '
      .. 'entries of documents need %.0f', path, size, sequences, entries, wanted)
   return widths[code], sequences, entries
end

-- Returns n bytes of an open file from byte `at`, from 0.
local function bytes(file, at, n)
   file:seek('set', at)
   return file:read(n) or ''
end

-- Returns width and number of the ids that an open index is about, from its head and the last
-- sequence; nil: it is the index of something else.
local function read(op, path, file)
   local text = bytes(file, 0, index.head)
   err.raise_if(text == '', 'E_FORMAT', op, '%s is empty; copy the index of the data set again',
      path)
   if text:sub(1, 9) ~= index.magic then return nil end
   local width, sequences = index.header(op, path, text, file:seek 'end')
   if sequences == 0 then return width, 0 end
   local length = bytes(file, index.head + 4 * (sequences - 1), 4)
   local start = bytes(file, index.head + 4 * sequences + 8 * (sequences - 1), 8)
   return width, number_at(start, 1, 8) / width + number_at(length, 1, 4)
end

-- Returns { path, width, count } of the index beside a file of ids: bytes an id, and how many there
-- are; nil without one.
function index.beside(op, bin)
   local path = bin:gsub('%.bin$', '') .. '.idx'
   local file = path ~= bin and fs.size(path) and io.open(path, 'rb')
   if not file then return nil end
   local ok, width, count = pcall(read, op, path, file)
   file:close()
   if not ok then error(width, 0) end
   return width and { path = path, width = width, count = count } or nil
end

return index
