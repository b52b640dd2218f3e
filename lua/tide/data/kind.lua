-- Recognises the format of a file by its first bytes, for messages about files of the wrong format.

local kind = {}

-- First bytes of files, with what they are.
local heads = {
   { 'MMIDIDX', 'it is the index of a Megatron data set; give its .bin' },
   { '\127ELF', 'it is a program' }, { 'PK\3\4', 'it is a zip archive' },
   { '\31\139', 'it is compressed with gzip' }, { '\40\181\47\253', 'it is compressed with zstd' },
   { '\253\55zXZ', 'it is compressed with xz' }, { 'BZh', 'it is compressed with bzip2' },
   { 'PAR1', 'it is a Parquet file' }, { 'ARROW1', 'it is an Arrow file' },
   { '\137PNG', 'it is a picture' }, { '\255\216\255', 'it is a picture' },
   { '%PDF', 'it is a PDF' }, { '\147NUMPY', 'it is an array of NumPy' },
   { 'SQLite format 3', 'it is a database' },
   { '\255\254', 'it is UTF-16; convert it to UTF-8' },
   { '\254\255', 'it is UTF-16; convert it to UTF-8' },
}

-- Returns the kind of a file with known first bytes, or nil. least: how many bytes must agree (2).
function kind.of(bytes, least)
   for _, row in ipairs(heads) do
      local head = row[1]
      if #head >= (least or 2) and bytes:sub(1, #head) == head then return row[2] end
   end
end

return kind
