-- Whole numbers as little-endian bytes: the form of token ids in files and of many file formats.

local little = {}

-- Returns the n lowest bytes of a number in [0, 2^53).
function little.write(v, n)
   local text = ''
   for _ = 1, n do text, v = text .. string.char(v % 256), math.floor(v / 256) end
   return text
end

-- Returns the number of the n bytes from byte `at` of a text on, counted from 1.
function little.read(text, at, n)
   local v, scale = 0, 1
   for i = at, at + n - 1 do v, scale = v + text:byte(i) * scale, scale * 256 end
   return v
end

return little
