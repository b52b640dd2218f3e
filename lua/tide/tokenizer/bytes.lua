-- The byte tokenizer: ids 0 to 255 are bytes, 257 ends a document, 256 is free.
--
-- It has the fields and methods of a tokenizer of tide.tokenizer, so that a program takes either.
-- It encodes any bytes, UTF-8 or not, and has no special tokens in texts: the options about both
-- change nothing.

local old = require 'tide.util.old'
local options = require 'tide.tokenizer.options'
local signature = require 'tide.util.signature'
local widen = require 'tide.ffi.widen'

local Bytes = {}
Bytes.__index = Bytes

local function encoded(text, opts)
   if opts.width then return widen(text, opts.width) end
   local ids, places = {}, opts.offsets and {} or nil
   for i = 1, #text do
      ids[i] = text:byte(i)
      if places then places[i] = { i, i } end
   end
   return ids, places
end

-- Returns the list of ids of a text and, with opts.offsets, their places, { i, i } for byte i; with
-- opts.width (2 or 4) the ids as a string of so many bytes each, as data.tokens.memory takes them.
function Bytes:encode(text, opts) return encoded(text, opts) end

-- Encodes a list of texts. Returns the list of ids and, with offsets, the list of places.
function Bytes:encode_batch(texts, opts)
   local all, places = {}, opts.offsets and {} or nil
   for i, text in ipairs(texts) do
      local ids, at = encoded(text, opts)
      all[i] = ids
      if places then places[i] = at end
   end
   return all, places
end

local function text_of(ids)
   local out = {}
   for i, id in ipairs(ids) do out[i] = id < 256 and string.char(id) or '' end
   return table.concat(out)
end

-- Returns the text of a list of ids; ids above 255 give none.
function Bytes:decode(ids) return text_of(ids) end

-- Returns the id of a text of one byte, else nil.
function Bytes:id(name) return #name == 1 and name:byte() or nil end

-- Returns the byte of an id as a text; nil above 255.
function Bytes:token(id) return id >= 0 and id < 256 and string.char(id) or nil end

-- Returns nil: no byte of a text is invalid.
function Bytes:first_invalid() return nil end

-- Returns an empty list.
function Bytes:special_texts() return {} end

local Stream = {}
Stream.__index = Stream

-- Returns how many bytes at the end of a text begin a character of UTF-8 that is not whole.
local function open_bytes(text)
   for n = 1, math.min(3, #text) do
      local b = text:byte(-n)
      if b >= 0xC0 then
         local width = b >= 0xF0 and 4 or b >= 0xE0 and 3 or 2
         return n < width and n or 0
      elseif b < 0x80 then
         return 0
      end
   end
   return 0
end

-- Takes an id and returns the text that is complete, never half a character.
function Stream:push(id)
   local text = self.held .. text_of { id }
   local n = open_bytes(text)
   self.held = text:sub(#text - n + 1)
   return text:sub(1, #text - n)
end

-- Returns the rest.
function Stream:finish()
   local text = self.held
   self.held = ''
   return text
end

-- Returns a decoder that takes ids one by one: push(id), finish().
function Bytes:stream() return setmetatable({ held = '' }, Stream) end

signature.doors('data.bytes', Bytes, {
   encode = { 'text: string', opts = options.encode },
   encode_batch = { 'texts: string[]', opts = options.batch },
   decode = 'ids: integer[] >= 0', id = 'name: string', token = 'id: integer',
})

local bytes = setmetatable({ eos = 257, vocab_size = 258, unit = 'byte', special = {},
   config = {}, added = {}, is_special = {} }, Bytes)

-- Returns the list of ids of a text, its bytes; with opts.width (2 or 4) the ids as a string of so
-- many bytes each. With a text alone (the 0.1 spelling) it returns ids of two bytes.
function bytes.encode(self, text, opts)
   if self == bytes then return Bytes.encode(self, text, opts) end
   old('data.bytes.encode(text)', 'data.bytes:encode(text, { width = 2 })')
   return Bytes.encode(bytes, self, { width = 2 })
end

-- Returns the text of a list of ids; ids above 255 give none. A list alone is the 0.1 spelling.
function bytes.decode(self, ids)
   if self == bytes then return Bytes.decode(self, ids) end
   old('data.bytes.decode(ids)', 'data.bytes:decode(ids)')
   return Bytes.decode(bytes, self)
end

-- Returns the list of ids of a text (the 0.1 spelling).
function bytes.ids(text)
   old('data.bytes.ids(text)', 'data.bytes:encode(text)')
   return Bytes.encode(bytes, text)
end

return bytes
