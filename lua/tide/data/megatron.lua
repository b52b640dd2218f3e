-- Data sets of Megatron: PREFIX.bin, the ids of all sequences one after the other, and PREFIX.idx,
-- their lengths and the documents they make up.
--
--    local set = tide.data.megatron.open 'corpus_text_document'
--    local sampler = tide.data.packed { cu = set.cu, seq = 4096, batch = 8 }

local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local index = require 'tide.data.megatron_index'
local little = require 'tide.util.little'
local signature = require 'tide.util.signature'
local tokens = require 'tide.data.tokens'

local megatron = {}

local bytes_of, number_at = little.write, little.read

local function prefix_of(path) return (path:gsub('%.bin$', ''):gsub('%.idx$', '')) end

-- ---- reading -----------------------------------------------------------------------------------

-- Returns the ends of the sequences in tokens, from 0 on.
local function ends_of(op, path, text, width, sequences)
   local ends, pointers = { 0 }, 35 + 4 * sequences
   for i = 1, sequences do
      local at = number_at(text, pointers + 8 * (i - 1), 8)
      err.raise_if(at ~= ends[i] * width, 'E_UNSUPPORTED', op, '%s: sequence %d begins at byte '
         .. '%.0f, not after the one before it (%.0f)', path, i - 1, at, ends[i] * width)
      ends[i + 1] = ends[i] + number_at(text, 35 + 4 * (i - 1), 4)
   end
   return ends
end

-- Returns the cumulative lengths of the documents.
local function documents_of(op, path, text, ends, sequences, entries)
   local cu, at = { 0 }, 35 + 12 * sequences
   local first = entries > 0 and number_at(text, at, 8) or 0
   err.raise_if(first ~= 0, 'E_FORMAT', op, '%s: document 0 begins with sequence %.0f, expected 0',
      path, first)
   for i = 2, entries do
      local last = number_at(text, at + 8 * (i - 1), 8)
      err.raise_if(not ends[last + 1] or ends[last + 1] < cu[#cu], 'E_FORMAT', op,
         '%s: document %d ends with sequence %.0f of %d', path, i - 2, last, sequences)
      if ends[last + 1] > cu[#cu] then cu[#cu + 1] = ends[last + 1] end
   end
   if cu[#cu] ~= ends[#ends] then
      err.raise('E_FORMAT', op, '%s: the documents have %.0f tokens, the sequences %.0f', path,
         cu[#cu], ends[#ends])
   end
   return cu
end

-- Opens a data set. path: its prefix, or the path of either file. Returns
-- { source, cu, sequences }: a token source, the cumulative lengths of its documents for
-- data.packed, and the number of sequences. E_FORMAT: the two files do not belong together.
function megatron.open(path)
   local op, prefix = 'data.megatron.open', prefix_of(path)
   local name = prefix .. '.idx'
   local text = fs.read(op, name)
   local width, sequences, entries = index.header(op, name, text, #text)
   local ends = ends_of(op, name, text, width, sequences)
   local cu = documents_of(op, name, text, ends, sequences, entries)
   return { source = tokens.file(prefix .. '.bin', { width = width }), sequences = sequences,
      cu = cu }
end

-- ---- writing -----------------------------------------------------------------------------------

local Writer = {}
Writer.__index = Writer

-- Starts a data set; its files are there under their names after finish(). path: the prefix.
function megatron.writer(path, opts)
   local op, prefix = 'data.megatron.writer', prefix_of(path)
   if opts.width ~= 2 and opts.width ~= 4 then err.arg(op, 'width', '2 or 4', opts.width) end
   local part = prefix .. '.bin.part'
   local file, why = io.open(part, 'wb')
   if not file then err.raise('E_IO', op, 'cannot write %s', why) end
   return setmetatable({ prefix = prefix, width = opts.width, file = file, part = part,
      lengths = {}, count = 0 }, Writer)
end

-- Adds a document: a list of ids.
function Writer:add(ids)
   local op, limit = 'data.megatron.add', self.width == 2 and 65535 or 2^31 - 1
   if not self.file then err.raise('E_STATE', op, '%s is finished', self.prefix) end
   local out = {}
   for i, id in ipairs(ids) do
      out[i] = bytes_of(err.integer(op, ('ids[%d]'):format(i), id, 0, limit), self.width)
   end
   local ok, why = self.file:write(table.concat(out))
   if not ok then err.raise('E_IO', op, 'cannot write %s: %s', self.part, why) end
   self.lengths[#self.lengths + 1] = #ids
   self.count = self.count + #ids
end

-- Returns the text of the index.
local function index_of(self)
   local n = #self.lengths
   local out = { index.magic, bytes_of(1, 8), bytes_of(self.width == 2 and 8 or 4, 1),
      bytes_of(n, 8), bytes_of(n + 1, 8) }
   for _, length in ipairs(self.lengths) do out[#out + 1] = bytes_of(length, 4) end
   local at = 0
   for _, length in ipairs(self.lengths) do
      out[#out + 1], at = bytes_of(at * self.width, 8), at + length
   end
   for i = 0, n do out[#out + 1] = bytes_of(i, 8) end
   return table.concat(out)
end

-- Ends the data set: both files get their names. Returns the numbers of documents and tokens.
function Writer:finish()
   local op = 'data.megatron.finish'
   if not self.file then err.raise('E_STATE', op, '%s is finished', self.prefix) end
   local size = self.file:seek 'end'
   local ok, why = self.file:close()
   self.file = nil
   if not ok then err.raise('E_IO', op, 'cannot write %s: %s', self.part, why) end
   -- A compiled write tries again after a failure, and may report success for bytes that are lost.
   err.raise_if(size ~= self.count * self.width, 'E_IO', op, '%s has %s of %d bytes: the disk was '
      .. 'full for a time; write it again', self.part, size, self.count * self.width)
   fs.write(op, self.prefix .. '.idx', index_of(self))
   fs.io().rename(self.part, self.prefix .. '.bin')
   return #self.lengths, self.count
end

signature.doors('data.megatron', Writer, { add = 'ids: table' })
return signature.doors('data.megatron', megatron, {
   open = 'path: string',
   writer = { 'path: string', opts = { 'width: integer = 4 -- bytes of an id, 2 or 4' } },
})
