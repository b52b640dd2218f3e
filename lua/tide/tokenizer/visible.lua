-- Bytes as visible characters, as in files of byte-level vocabularies, and base64. Printable bytes
-- of Latin-1 are themselves; the others, in order, are U+0100 and on.

local bit = require 'bit'
local utf8 = require 'tide.utf8'

local visible = {}

local to_byte, to_char, n = {}, {}, 0
for b = 0, 255 do
   local printable = b >= 33 and b <= 126 or b >= 161 and b ~= 173
   local c = utf8.char(printable and b or 256 + n)
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

local band, rshift = bit.band, bit.rshift

-- Returns the number that four digits make.
local function number(text, i)
   local a, b, c, d = text:byte(i, i + 3)
   return values[a] * 262144 + values[b] * 4096 + values[c] * 64 + values[d]
end

-- Returns the bytes of 16 digits from place i on.
local function twelve(text, i)
   local v, w = number(text, i), number(text, i + 4)
   local x, y = number(text, i + 8), number(text, i + 12)
   return string.char(rshift(v, 16), band(rshift(v, 8), 255), band(v, 255),
      rshift(w, 16), band(rshift(w, 8), 255), band(w, 255),
      rshift(x, 16), band(rshift(x, 8), 255), band(x, 255),
      rshift(y, 16), band(rshift(y, 8), 255), band(y, 255))
end

-- Returns the bytes of a text in base64, or nil if it is something else.
function visible.base64(text)
   local k = (text:find '[^%w+/]' or #text + 1) - 1
   local is_padded = k == #text or k >= #text - 2 and text:find('^==?$', k + 1)
   if #text % 4 ~= 0 or not is_padded then return nil end
   local out, whole = {}, text:sub(1, k) .. ('A'):rep(-k % 16)
   for i = 1, #whole, 16 do out[#out + 1] = twelve(whole, i) end
   return table.concat(out):sub(1, math.floor(k * 3 / 4))
end

return visible
