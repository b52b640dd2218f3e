-- Text by characters, as Python's str sees it: UTF-8 in, UTF-8 out.
--
-- Each byte that is not UTF-8 counts as one character. ASCII text takes a fast path.

local utf8 = require 'tide.utf8'

local utf = { code = utf8.code, char = utf8.char }

local byte, sub = string.byte, string.sub

-- Returns whether a text is ASCII alone.
local function is_ascii(s) return not s:find '[\128-\255]' end
utf.is_ascii = is_ascii

-- Returns the bytes of the character that starts at byte i.
local function width_at(s, i)
   local b = byte(s, i)
   if b < 0xC2 then return 1 end
   local n = b < 0xE0 and 2 or b < 0xF0 and 3 or b < 0xF5 and 4 or 1
   for k = 1, n - 1 do
      local c = byte(s, i + k)
      if not c or c < 0x80 or c > 0xBF then return 1 end
   end
   return n
end

-- Returns the characters of a text as a list.
function utf.chars(s)
   local list, n, i = {}, 0, 1
   while i <= #s do
      local w = width_at(s, i)
      n = n + 1
      list[n] = sub(s, i, i + w - 1)
      i = i + w
   end
   return list
end

-- Returns the number of characters.
function utf.length(s)
   if is_ascii(s) then return #s end
   local n, i = 0, 1
   while i <= #s do
      n, i = n + 1, i + width_at(s, i)
   end
   return n
end

-- Returns characters first (from 0) to stop - 1.
function utf.sub(s, first, stop)
   if is_ascii(s) then return sub(s, first + 1, stop) end
   return table.concat(utf.chars(s), '', first + 1, math.max(first, math.min(stop, utf.length(s))))
end

-- ---- white space -------------------------------------------------------------------------------

-- Non-ASCII characters for which Python's str.isspace is true.
local wide_spaces = {}
for code in ([[133 160 5760 8192 8193 8194 8195 8196 8197 8198 8199 8200 8201 8202 8232 8233 8239
   8287 12288]]):gmatch '%d+' do
   wide_spaces[utf.char(tonumber(code))] = true
end

-- Returns whether a character is white space.
function utf.is_space(c)
   local b = byte(c, 1)
   if #c == 1 then return b == 32 or b >= 9 and b <= 13 or b >= 28 and b <= 31 end
   return wide_spaces[c] == true
end

-- Returns the byte after the white space that starts at byte i.
function utf.skip_space(s, i)
   while i <= #s do
      local w = width_at(s, i)
      if not utf.is_space(sub(s, i, i + w - 1)) then return i end
      i = i + w
   end
   return i
end

-- Returns the start of the character that ends at byte i.
local function start_of(s, i)
   for w = math.min(4, i), 2, -1 do
      local at = i - w + 1
      if width_at(s, at) == w then return at end
   end
   return i
end

-- Returns a text without the characters at its start and end for which drop(char) is true.
function utf.strip(s, drop, left, right)
   local first, last = 1, #s
   while left and first <= last do
      local w = width_at(s, first)
      if not drop(sub(s, first, first + w - 1)) then break end
      first = first + w
   end
   while right and last >= first do
      local at = start_of(s, last)
      if not drop(sub(s, at, last)) then break end
      last = at - 1
   end
   return sub(s, first, last)
end

-- ---- case and printing -------------------------------------------------------------------------

local maps, printable

local function read_map(text, special)
   local map = {}
   for first, count, step, delta in text:gmatch '(%d+):(%d+):(%d+):(%-?%d+)' do
      for k = 0, count - 1 do
         local code = first + k * step
         map[utf.char(code)] = utf.char(code + delta)
      end
   end
   for code, mapped in (special or ''):gmatch '(%d+)=(%S+)' do
      map[utf.char(tonumber(code))] = mapped
   end
   return map
end

local function case_maps()
   if not maps then
      local data = require 'tide.chat.unicode_data'
      maps = { upper = read_map(data.upper, data.upper_special), lower = read_map(data.lower) }
   end
   return maps
end

-- Returns whether a character has an upper or a lower case.
function utf.is_cased(c)
   if #c == 1 then return c:find '%a' ~= nil end
   local m = case_maps()
   return m.upper[c] ~= nil or m.lower[c] ~= nil
end

-- Returns a text in upper case.
function utf.upper(s)
   if is_ascii(s) then return s:upper() end
   local list, map = utf.chars(s), case_maps().upper
   for i, c in ipairs(list) do list[i] = #c == 1 and c:upper() or map[c] or c end
   return table.concat(list)
end

-- Returns whether the sigma at place i ends a word.
local function is_final(list, i)
   return i > 1 and utf.is_cased(list[i - 1]) and not (list[i + 1] and utf.is_cased(list[i + 1]))
end

-- Returns a text in lower case.
function utf.lower(s)
   if is_ascii(s) then return s:lower() end
   local list, map, out = utf.chars(s), case_maps().lower, {}
   for i, c in ipairs(list) do
      out[i] = #c == 1 and c:lower() or c == '\206\163' and is_final(list, i) and '\207\130'
         or c == '\196\176' and 'i\204\135' or map[c] or c
   end
   return table.concat(out)
end

-- Returns whether a text has cased characters and `convert` (upper or lower) leaves it unchanged.
function utf.is_in_case(s, convert)
   local cased = false
   for _, c in ipairs(utf.chars(s)) do cased = cased or utf.is_cased(c) end
   return cased and convert(s) == s
end

local function read_printable()
   local starts, at = {}, 128
   for n in require('tide.chat.unicode_data').printable:gmatch '%d+' do
      at = at + n
      starts[#starts + 1] = at
   end
   return starts
end

-- Returns whether Python's repr writes a character unescaped.
function utf.is_printable(c)
   if #c == 1 then return byte(c) >= 32 and byte(c) < 127 end
   printable = printable or read_printable()
   local code, low, high = utf.code(c), 0, #printable
   while low < high do                             -- runs that start at or before the code point
      local middle = math.ceil((low + high) / 2)
      if printable[middle] <= code then low = middle else high = middle - 1 end
   end
   return low % 2 == 1
end

return utf
