-- Token sources: one long sequence of ids that can be read at any place.
--
-- A source has `count` (tokens), `width` (bytes a token, little-endian) and raw(start, n), the
-- bytes of n tokens from token `start`, counted from 0. Sources are memory strings, raw .bin files
-- (u16 or u32 ids, read where needed), slices, and concatenations of these.
-- Files that begin with a header of 256 32-bit words and the magic 20240520 (u16) or 20240801
-- (u32) are recognised, and the .idx of a Megatron data set beside its .bin; all others are taken
-- as raw ids. A source may have mask(start, n), too: a byte for each of n tokens, 1 where the token
-- counts as a label; without it every token counts.

local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local image_parts = require 'tide.data.image_parts'
local index_ = require 'tide.data.megatron_index'
local kind = require 'tide.data.kind'
local little = require 'tide.util.little'
local signature = require 'tide.util.signature'

local tokens = {}

-- A source is one made here, or an object with the same methods.
signature.kind('source', 'a token source (data.tokens)', function(v)
   return type(v) == 'table' and type(v.raw) == 'function' and type(v.count) == 'number'
      and type(v.width) == 'number'
end, 'tide.Source')

local function check_range(op, self, start, n)
   err.integer(op, 'n', n, 0, self.count)
   err.integer(op, 'start', start, 0, self.count - n)
end

local Memory = {}
Memory.__index = Memory

-- Returns the bytes of tokens start (from 0) to start + n - 1; raises outside the source.
function Memory:raw(start, n)
   check_range('data.tokens.raw', self, start, n)
   return self.text:sub(start * self.width + 1, (start + n) * self.width)
end

-- Returns the mask of tokens start to start + n - 1: a byte each, 1 where the token counts as a
-- label.
local function memory_mask(self, start, n)
   check_range('data.tokens.mask', self, start, n)
   return self.bytes_of_mask:sub(start + 1, start + n)
end

-- Makes a source of a string of encoded ids. mask: a byte for each token, '\1' where it counts as a
-- label.
function tokens.memory(text, width, mask)
   return setmetatable({ text = text, width = width, count = #text / width, bytes_of_mask = mask,
      mask = mask and memory_mask }, Memory)
end

local File = {}
File.__index = File

-- Returns the bytes of n tokens from `start` on, read from the file; raises E_IO if it has become
-- shorter.
function File:raw(start, n)
   local op = 'data.tokens.raw'
   check_range(op, self, start, n)
   if n == 0 then return '' end
   local ok, why = self.file:seek('set', self.offset + start * self.width)
   local text = ok and self.file:read(n * self.width)
   err.raise_if(not text or #text ~= n * self.width, 'E_IO', op, 'cannot read %d tokens at %d of '
      .. '%s: %s', n, start, self.path, why or 'the file is shorter than when it was opened')
   return text
end

-- Closes the file.
function File:close() self.file:close() end

-- Returns whether these bytes of a file look like ids of 4 bytes: taken as ids of 2, every second
-- one is 0, or tiny beside the others.
local function looks_wide(text)
   local n, low, high = math.floor(#text / 4), 0, 0
   for i = 0, n - 1 do
      local a, b, c, d = text:byte(4 * i + 1, 4 * i + 4)
      low, high = math.max(low, a + 256 * b), math.max(high, c + 256 * d)
   end
   return n >= 16 and (high == 0 and low > 0 or high < 16 and low >= 4096)
end

-- Returns the bytes per id of a file without a header. given: the caller's width, or nil.
local function raw_width(op, path, f, size, given)
   local index = index_.beside(op, path)
   if index then
      err.raise_if(given and index.width ~= given, 'E_FORMAT', op, '%s says that ids have %d '
         .. 'bytes, not %d', index.path, index.width, given)
      err.raise_if(size ~= index.count * index.width, 'E_FORMAT', op, '%s has %g tokens, its index '
         .. 'says %.0f', path, size / index.width, index.count)
   end
   if given or index then return given or index.width end
   f:seek('set', 0)
   err.raise_if(size % 4 == 0 and looks_wide(f:read(2^18) or ''), 'E_FORMAT', op,
      '%s: every second id of 2 bytes is 0 or tiny, as if ids had 4 bytes; say which: width = 4 '
      .. '(--token-bytes 4), or width = 2', path)
   return 2
end

-- Returns offset, width and count of a file. If the file has a header, its width replaces the given
-- one.
local function layout(op, path, f, given)
   local size = f:seek 'end'
   f:seek('set', 0)
   local head = f:read(1024)
   local magic = head and #head == 1024 and little.read(head, 1, 4)
   local what = head and kind.of(head, 4)
   err.raise_if(what, 'E_FORMAT', op, '%s holds no token ids: %s', path, what)
   if magic == 20240520 or magic == 20240801 then
      local width = magic == 20240520 and 2 or 4
      local count = little.read(head, 9, 4)
      err.raise_if(1024 + count * width ~= size, 'E_FORMAT', op, '%s: the header says %d tokens of '
         .. '%d bytes, the file has %d bytes after it', path, count, width, size - 1024)
      return 1024, width, count
   end
   local width = raw_width(op, path, f, size, given)
   if size % width ~= 0 then
      what = kind.of(head)
      err.raise('E_FORMAT', op, '%s: %d bytes is no multiple of the token width %d%s', path, size,
         width, what and '; ' .. what or '')
   end
   return 0, width, size / width
end

-- Returns a source that reads a file of ids.
function tokens.file(path, opts)
   local op = 'data.tokens.file'
   local width = opts.width
   if fs.exists(path) and not fs.size(path) then      -- a pipe would be waited for
      err.raise('E_FORMAT', op, '%s is not a regular file', path)
   end
   local f, why = io.open(path, 'rb')
   if not f then
      err.raise('E_IO', op, 'cannot read %s%s', why, why:find('Too many open files', 1, true)
         and '; raise the limit (ulimit -n), or join the files into fewer' or '')
   end
   local self = setmetatable({ file = f, path = path }, File)
   self.offset, self.width, self.count = layout(op, path, f, width)
   if self.count == 0 then
      f:close()
      err.raise('E_FORMAT', op, '%s is empty', path)
   end
   return self
end

local Slice = {}
Slice.__index = Slice

-- Returns the bytes of n tokens from `start` on, counted from the first token of the slice.
function Slice:raw(start, n)
   check_range('data.tokens.raw', self, start, n)
   return self.source:raw(self.first + start, n)
end

local function slice_mask(self, start, n)
   check_range('data.tokens.mask', self, start, n)
   return self.source:mask(self.first + start, n)
end

-- Makes a source of tokens first .. first + count - 1 of another.
function tokens.slice(source, first, count)
   return setmetatable({
      source = source, first = first, count = count, width = source.width,
      mask = source.mask and slice_mask,
   }, Slice)
end

-- The pieces of a fingerprint: a whole source up to 64 MiB, else so many spread evenly over it.
local piece, whole, samples = 2^20, 2^26, 64

-- Calls fn(first token, bytes) for each piece of a source that its fingerprint covers: the whole
-- source up to 64 MiB, else 64 samples of 1 MiB.
function tokens.each_piece(source, fn)
   local n = math.floor(piece / source.width)
   local pieces = math.ceil(source.count / n)
   local stride, i = pieces * piece <= whole and 1 or pieces / samples, 0
   while math.floor(i) < pieces do
      local start = math.floor(i) * n
      fn(start, source:raw(start, math.min(n, source.count - start)))
      i = i + stride
   end
end

-- Returns the fingerprint of a source: a text of count, width and an XXH64 of the bytes, those of a
-- mask and of the names and grids of images included.
function tokens.fingerprint(source)
   local hash, chain = require('tide.ffi.io').xxh64, ''
   tokens.each_piece(source, function(start, text)
      local n = #text / source.width
      chain = hash(chain .. text .. (source.mask and source:mask(start, n) or ''))
   end)
   if source.images then chain = hash(chain .. image_parts._identity(source.images)) end
   return ('%d:%d:%s'):format(source.count, source.width, chain)
end

local Joined = {}
Joined.__index = Joined

-- Joins what read(source, start, n) returns of the parts of a range.
local function over_parts(op, self, start, n, read)
   check_range(op, self, start, n)
   local pieces = {}
   for i, source in ipairs(self.sources) do
      local offset = self.starts[i]
      local from = math.max(start, offset)
      local to = math.min(start + n, offset + source.count)
      if from < to then pieces[#pieces + 1] = read(source, from - offset, to - from) end
   end
   return table.concat(pieces)
end

-- Returns the bytes of n tokens from `start` on, which may lie in several parts.
function Joined:raw(start, n)
   return over_parts('data.tokens.raw', self, start, n, function(source, from, count)
      return source:raw(from, count)
   end)
end

local function joined_mask(self, start, n)
   return over_parts('data.tokens.mask', self, start, n, function(source, from, count)
      return source.mask and source:mask(from, count) or ('\1'):rep(count)
   end)
end

-- Makes one source of several, one after another; all of the same width.
function tokens.join(sources)
   if #sources == 1 then return sources[1] end
   local self = setmetatable({ sources = sources, starts = {}, count = 0 }, Joined)
   for i, source in ipairs(sources) do
      self.width = self.width or source.width
      err.raise_if(source.width ~= self.width, 'E_ARG', 'data.tokens.join',
         'source %d has tokens of %d bytes, the others %d', i, source.width, self.width)
      self.mask = self.mask or source.mask and joined_mask
      image_parts._join(self, source, self.count)
      self.starts[i] = self.count
      self.count = self.count + source.count
   end
   return self
end

return signature.doors('data.tokens', tokens, {
   memory = { { 'text: string', 'width: integer in [1, 4]', 'mask: string?',
      "where #text % width == 0 -- argument 'text': expected a multiple of {width} bytes, got "
         .. '{#text}',
      "where not mask or #mask == #text / width -- argument 'mask': expected a byte for each of "
         .. 'the {#text / width} tokens, got {#mask}' } },
   file = { 'path: string', opts = {
      'width: integer? -- bytes of an id, 2 or 4; by default as a Megatron index says, or 2',
      "where not width or width == 2 or width == 4 -- argument 'width': expected 2 or 4, got "
         .. '{width}' } },
   slice = 'source: source; first: integer in [0, source.count]; '
      .. 'count: integer in [0, source.count - first]',
   join = { { 'sources: source[]',
      "where #sources > 0 -- argument 'sources': expected at least one, got none" } },
   fingerprint = 'source: source',
   each_piece = 'source: source; fn: function',
})
