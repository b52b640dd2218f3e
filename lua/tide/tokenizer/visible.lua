-- Bytes as visible characters, as in files of byte-level vocabularies, and base64. Printable bytes
-- of Latin-1 are themselves; the others, in order, are U+0100 and on.

local visible = {}

-- Returns a code point below U+0800 as UTF-8.
local function char(c)
   if c < 128 then return string.char(c) end
   return string.char(0xC0 + math.floor(c / 64), 0x80 + c % 64)
end

local to_byte, to_char, n = {}, {}, 0
for b = 0, 255 do
   local printable = b >= 33 and b <= 126 or b >= 161 and b ~= 173
   local c = char(printable and b or 256 + n)
   if not printable then n = n + 1 end
   to_byte[c], to_char[b] = string.char(b), c
end

local one_char = '[%z\1-\127\192-\247][\128-\191]*'

-- Returns the bytes that a piece encodes; nil if one of its characters encodes no byte.
function visible.bytes(piece)
   if not piece:find '[^!-~]' then return piece end
   local good = true
   local text = piece:gsub(one_char, function(c)
      good = good and to_byte[c] ~= nil
      return to_byte[c]
   end)
   return good and text or nil
end

-- Returns the bytes as visible characters.
function visible.chars(bytes)
   return (bytes:gsub('.', function(b) return to_char[b:byte()] end))
end

-- The 256 characters by byte, 0 to 255.
visible.alphabet = to_char

local values = {}
local digits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'
for i = 1, 64 do values[digits:byte(i)] = i - 1 end

-- Returns the bytes of a text in base64, or nil if it is something else.
function visible.base64(text)
   if #text % 4 ~= 0 then return nil end
   local out = {}
   local tail = text:match '=*$'
   text = text:sub(1, #text - #tail) .. ('A'):rep(#tail)
   for i = 1, #text, 4 do
      local a, b, c, d = text:byte(i, i + 3)
      a, b, c, d = values[a], values[b], values[c], values[d]
      if not (a and b and c and d) then return nil end
      local v = a * 262144 + b * 4096 + c * 64 + d
      out[#out + 1] = string.char(math.floor(v / 65536), math.floor(v / 256) % 256, v % 256)
   end
   local bytes = table.concat(out)
   return #tail <= 2 and bytes:sub(1, #bytes - #tail) or nil
end

return visible
