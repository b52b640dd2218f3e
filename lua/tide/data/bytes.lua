-- Byte tokenizer: ids 0 to 255 are bytes, 256 begins and 257 ends a document.
--
-- Encoded text is a Lua string of little-endian 16-bit ids, the form of memory token sources.

local err = require 'tide.util.err'

local bytes = { bos = 256, eos = 257, vocab_size = 258, width = 2, name = 'bytes' }

-- A text as a string of ids of two bytes each, for data.tokens.memory.
function bytes.encode(text)
   err.type('data.bytes.encode', 'text', text, 'string')
   return (text:gsub('.', '%0\0'))
end

-- An id as two bytes.
function bytes.id(n)
   err.integer('data.bytes.id', 'n', n, 0, 65535)
   return string.char(n % 256, math.floor(n / 256))
end

-- List of ids of a text.
function bytes.ids(text)
   local list = {}
   err.type('data.bytes.ids', 'text', text, 'string')
   for i = 1, #text do list[i] = text:byte(i) end
   return list
end

-- Text of a list of ids; bos and eos give nothing.
function bytes.decode(ids)
   local out = {}
   for i, id in ipairs(err.type('data.bytes.decode', 'ids', ids, 'table')) do
      err.integer('data.bytes.decode', ('ids[%d]'):format(i), id, 0, bytes.vocab_size - 1)
      out[i] = id < 256 and string.char(id) or ''
   end
   return table.concat(out)
end

return bytes
