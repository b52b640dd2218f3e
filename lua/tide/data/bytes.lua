-- Byte tokenizer: ids 0 to 255 are bytes, 256 begins and 257 ends a document.
--
-- Encoded text is a Lua string of little-endian 16-bit ids, the form of memory token sources.

local signature = require 'tide.util.signature'

local bytes = { bos = 256, eos = 257, vocab_size = 258, width = 2, name = 'bytes' }

-- A text as a string of ids of two bytes each, for data.tokens.memory.
function bytes.encode(text)
   return (text:gsub('.', '%0\0'))
end

-- An id as two bytes.
function bytes.id(n)
   return string.char(n % 256, math.floor(n / 256))
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

return signature.doors('data.bytes', bytes, {
   encode = 'text: string', id = 'n: integer in [0, 65535]', ids = 'text: string',
   decode = 'ids: integer[] in [0, 257]',
})
