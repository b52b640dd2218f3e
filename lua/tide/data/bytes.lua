-- Byte tokenizer: ids 0 to 255 are bytes, 256 begins and 257 ends a document.
--
-- Encoded text is a Lua string of little-endian 16-bit ids, the form of memory token sources.

local little = require 'tide.util.little'
local signature = require 'tide.util.signature'

local bytes = { bos = 256, eos = 257, vocab_size = 258, width = 2, name = 'bytes' }

-- A text as a string of ids of two bytes each, for data.tokens.memory.
function bytes.encode(text)
   return (text:gsub('.', '%0\0'))
end

-- An id as two bytes.
function bytes.id(n)
   return little.write(n, 2)
end

-- List of ids of a text.
function bytes.ids(text)
   local list = {}
   for i = 1, #text do list[i] = text:byte(i) end
   return list
end

-- Text of a list of ids; bos and eos give nothing.
function bytes.decode(ids)
   local out = {}
   for i, id in ipairs(ids) do out[i] = id < 256 and string.char(id) or '' end
   return table.concat(out)
end

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

-- Takes in an id; returns the text that is certain now, never half a character.
function Stream:push(id)
   local text = self.held .. bytes.decode { id }
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

-- Returns a decoder of ids that come one by one: push(id), finish().
function bytes.stream() return setmetatable({ held = '' }, Stream) end

return signature.doors('data.bytes', bytes, {
   encode = 'text: string', id = 'n: integer in [0, 65535]', ids = 'text: string',
   decode = 'ids: integer[] in [0, 257]',
})
