-- Escapes of string literals, as Python's.

local utf = require 'tide.chat.unicode'

local escapes = {}

local simple = { n = '\n', t = '\t', r = '\r', a = '\a', b = '\b', f = '\f', v = '\v',
   ['\\'] = '\\', ["'"] = "'", ['"'] = '"', ['\n'] = '' }

local widths = { x = 2, u = 4, U = 8 }

-- Returns the character of the escape at byte i (after the backslash) and the byte after it; or nil
-- and an error text.
local function one(s, i)
   local c = s:sub(i, i)
   if simple[c] then return simple[c], i + 1 end
   local octal = s:match('^[0-7][0-7]?[0-7]?', i)
   if octal then return utf.char(tonumber(octal, 8)), i + #octal end
   local n = widths[c]
   if c == 'N' then return nil, 'names of characters (\\N{..}) are not supported' end
   if c:find '[\128-\255]' then return nil, 'a backslash precedes a letter beyond ASCII' end
   if not n then return '\\' .. c, i + 1 end
   local hex = s:match('^%x+', i + 1) or ''
   local code = #hex >= n and tonumber(hex:sub(1, n), 16)
   if not code or code > 0x10FFFF or code >= 0xD800 and code < 0xE000 then
      return nil, ('\\%s needs %d hexadecimal digits of a character'):format(c, n)
   end
   return utf.char(code), i + 1 + n
end

-- Returns the text of a string literal's body; or nil and an error text.
function escapes.read(s)
   if not s:find('\\', 1, true) then return s end
   local out, at = {}, 1
   while true do
      local back = s:find('\\', at, true)
      if not back then break end
      out[#out + 1] = s:sub(at, back - 1)
      local text, next_at = one(s, back + 1)
      if not text then return nil, next_at end
      out[#out + 1], at = text, next_at
   end
   out[#out + 1] = s:sub(at)
   return table.concat(out)
end

return escapes
