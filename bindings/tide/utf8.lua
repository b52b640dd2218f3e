-- Characters of UTF-8 and their code points. Plain Lua, which the binding and the library use.

local utf8 = {}

local byte, char, floor = string.byte, string.char, math.floor

-- Returns the code point of a character; of one that is not whole, its first byte.
function utf8.code(c)
   local a, b, d, e = byte(c, 1, 4)
   if not b then return a end
   if a < 0xE0 then return (a - 0xC0) * 64 + b - 128 end
   if a < 0xF0 and d then return ((a - 0xE0) * 64 + b - 128) * 64 + d - 128 end
   if e then return (((a - 0xF0) * 64 + b - 128) * 64 + d - 128) * 64 + e - 128 end
   return a
end

-- Returns the character of a code point.
function utf8.char(n)
   if n < 0x80 then return char(n) end
   if n < 0x800 then return char(0xC0 + floor(n / 64), 0x80 + n % 64) end
   if n < 0x10000 then
      return char(0xE0 + floor(n / 4096), 0x80 + floor(n / 64) % 64, 0x80 + n % 64)
   end
   return char(0xF0 + floor(n / 262144), 0x80 + floor(n / 4096) % 64, 0x80 + floor(n / 64) % 64,
      0x80 + n % 64)
end

return utf8
