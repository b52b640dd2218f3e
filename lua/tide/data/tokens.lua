-- Token sources: one long sequence of ids that can be read at any place.
--
-- A source has `count` (tokens), `width` (bytes a token, little-endian) and raw(start, n), the
-- bytes of n tokens from token `start`, counted from 0. Sources are memory strings, raw .bin files
-- (u16 or u32 ids, read where needed), slices, and concatenations of these.
-- Files that begin with a header of 256 32-bit words and the magic 20240520 (u16) or 20240801
-- (u32) are recognised; all others are taken as raw ids.

local err = require 'tide.util.err'
local fs = require 'tide.util.fs'

local tokens = {}

-- Raises unless source is one of the sources made here, or works as they do.
function tokens.check(op, source, name)
   name = name or 'source'
   err.type(op, name, source, 'table')
   if type(source.raw) ~= 'function' or type(source.count) ~= 'number'
      or type(source.width) ~= 'number' then
      err.arg(op, name, 'a token source (data.tokens)', source)
   end
   return source
end

local function check_range(op, self, start, n)
   err.integer(op, 'n', n, 0, self.count)
   err.integer(op, 'start', start, 0, self.count - n)
end

local Memory = {}
Memory.__index = Memory

-- The bytes of tokens start (from 0) to start + n - 1; raises outside the source.
function Memory:raw(start, n)
   check_range('data.tokens.raw', self, start, n)
   return self.text:sub(start * self.width + 1, (start + n) * self.width)
end

-- From a string of encoded ids.
function tokens.memory(text, width)
   err.integer('data.tokens.memory', 'width', width, 1, 4)
   err.type('data.tokens.memory', 'text', text, 'string')
   if #text % width ~= 0 then
      err.arg('data.tokens.memory', 'text', ('a multiple of %d bytes'):format(width), #text)
   end
   return setmetatable({ text = text, width = width, count = #text / width }, Memory)
end

local File = {}
File.__index = File

-- The same, read from the file; raises E_IO where it has become shorter.
function File:raw(start, n)
   local op = 'data.tokens.raw'
   check_range(op, self, start, n)
   if n == 0 then return '' end
   local ok, why = self.file:seek('set', self.offset + start * self.width)
   local text = ok and self.file:read(n * self.width)
   if not text or #text ~= n * self.width then
      err.raise('E_IO', op, 'cannot read %d tokens at %d of %s: %s', n, start, self.path,
         why or 'the file is shorter than when it was opened')
   end
   return text
end

-- Closes the file.
function File:close() self.file:close() end

local function u32(text, at)
   local a, b, c, d = text:byte(at, at + 3)
   return a + b * 256 + c * 65536 + d * 16777216
end

-- Offset, width and count of a file; the header, if there is one, wins over `width`.
local function layout(op, path, f, width)
   local size = f:seek 'end'
   f:seek('set', 0)
   local head = f:read(1024)
   local magic = head and #head == 1024 and u32(head, 1)
   if magic == 20240520 or magic == 20240801 then
      width = magic == 20240520 and 2 or 4
      local count = u32(head, 9)
      if 1024 + count * width ~= size then
         err.raise('E_FORMAT', op, '%s: the header says %d tokens of %d bytes, the file has %d '
            .. 'bytes after it', path, count, width, size - 1024)
      end
      return 1024, width, count
   end
   if size % width ~= 0 then
      err.raise('E_FORMAT', op, '%s: %d bytes is no multiple of the token width %d', path, size,
         width)
   end
   return 0, width, size / width
end

-- opts: width (2) of raw files.
function tokens.file(path, opts)
   local op = 'data.tokens.file'
   err.type(op, 'path', path, 'string')
   opts = err.options(op, opts, { 'width' })
   local width = opts.width or 2
   if width ~= 2 and width ~= 4 then err.arg(op, 'width', '2 or 4', width) end
   if fs.exists(path) and not fs.size(path) then      -- a pipe would be waited for
      err.raise('E_FORMAT', op, '%s is no regular file', path)
   end
   local f, why = io.open(path, 'rb')
   if not f then err.raise('E_IO', op, 'cannot read %s', why) end
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

-- The same, counted from the first token of the slice.
function Slice:raw(start, n)
   check_range('data.tokens.raw', self, start, n)
   return self.source:raw(self.first + start, n)
end

-- Tokens first .. first + count - 1 of a source.
function tokens.slice(source, first, count)
   tokens.check('data.tokens.slice', source)
   err.integer('data.tokens.slice', 'first', first, 0, source.count)
   err.integer('data.tokens.slice', 'count', count, 0, source.count - first)
   return setmetatable({
      source = source, first = first, count = count, width = source.width,
   }, Slice)
end

-- Pieces that are hashed: all of a source up to 64 MiB, else so many spread evenly over it.
local piece, whole, samples = 2^20, 2^26, 64

-- What tells one source from another: a text of count, width and an XXH64 of the bytes.
function tokens.fingerprint(source)
   tokens.check('data.tokens.fingerprint', source)
   local hash = require('tide.ffi.io').xxh64
   local width = source.width or 1
   local n = math.floor(piece / width)
   local pieces = math.ceil(source.count / n)
   local stride = pieces * piece <= whole and 1 or pieces / samples
   local chain, i = '', 0
   while math.floor(i) < pieces do
      local start = math.floor(i) * n
      chain = hash(chain .. source:raw(start, math.min(n, source.count - start)))
      i = i + stride
   end
   return ('%d:%d:%s'):format(source.count, width, chain)
end

local Joined = {}
Joined.__index = Joined

-- The same, over the ends of the parts.
function Joined:raw(start, n)
   check_range('data.tokens.raw', self, start, n)
   local pieces = {}
   for i, source in ipairs(self.sources) do
      local offset = self.starts[i]
      local from = math.max(start, offset)
      local to = math.min(start + n, offset + source.count)
      if from < to then pieces[#pieces + 1] = source:raw(from - offset, to - from) end
   end
   return table.concat(pieces)
end

-- Sources one after another; all of the same width.
function tokens.join(sources)
   err.type('data.tokens.join', 'sources', sources, 'table')
   if #sources == 0 then err.arg('data.tokens.join', 'sources', 'at least one', 'none') end
   for i, source in ipairs(sources) do
      tokens.check('data.tokens.join', source, ('sources[%d]'):format(i))
   end
   if #sources == 1 then return sources[1] end
   local self = setmetatable({ sources = sources, starts = {}, count = 0 }, Joined)
   for i, source in ipairs(sources) do
      self.width = self.width or source.width
      if source.width ~= self.width then
         err.raise('E_ARG', 'data.tokens.join', 'source %d has tokens of %d bytes, the others %d',
            i, source.width, self.width)
      end
      self.starts[i] = self.count
      self.count = self.count + source.count
   end
   return self
end

return tokens
