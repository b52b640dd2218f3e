-- Keys of a terminal: characters of UTF-8, and names for all others ('left', 'ctrl-a', 'alt-b').

local keys = {}

local named = {
   ['\r'] = 'enter', ['\n'] = 'enter', ['\t'] = 'tab', ['\127'] = 'backspace', ['\8'] = 'backspace',
}
-- By what follows ESC [ or ESC O.
local sequences = {
   A = 'up', B = 'down', C = 'right', D = 'left', H = 'home', F = 'end', Z = 'shift-tab',
   ['1~'] = 'home', ['7~'] = 'home', ['4~'] = 'end', ['8~'] = 'end', ['3~'] = 'delete',
   ['1;5C'] = 'alt-f', ['1;5D'] = 'alt-b', ['1;3C'] = 'alt-f', ['1;3D'] = 'alt-b',
   ['5C'] = 'alt-f', ['5D'] = 'alt-b', ['200~'] = 'paste',
}

-- Reads the rest of a character that begins with this byte; nil if it is not UTF-8.
local function character(first, byte)
   local b = first:byte()
   local more = b < 0x80 and 0 or b >= 0xf0 and b < 0xf8 and 3 or b >= 0xe0 and b < 0xf0 and 2
      or b >= 0xc2 and b < 0xe0 and 1
   if not more then return nil end
   local text = first
   for _ = 1, more do
      local next_byte = byte()
      if not next_byte or next_byte:byte() < 0x80 or next_byte:byte() >= 0xc0 then return nil end
      text = text .. next_byte
   end
   return text
end

-- Returns a key that begins with ESC: a sequence, or alt and a key.
local function escaped(byte)
   local b = byte(50)
   if not b then return 'escape' end
   if b == '\r' or b == '\n' then return 'alt-enter' end
   if b ~= '[' and b ~= 'O' then return 'alt-' .. b end
   local text = ''
   repeat
      b = byte(50)
      text = text .. (b or '')
   until not b or b:match '[%a~]' or #text > 12
   return sequences[text] or 'unknown'
end

-- Returns the pasted text up to its end mark, with line ends of one kind.
local function pasted(byte)
   local parts, tail = {}, ''
   repeat
      local b = byte()
      parts[#parts + 1] = b
      tail = (tail .. (b or '')):sub(-6)
   until not b or tail == '\27[201~'
   local text = table.concat(parts)
   if tail == '\27[201~' then text = text:sub(1, -7) end
   return (text:gsub('\r\n?', '\n'):gsub('\t', '   '):gsub('[%z\1-\9\11-\31\127]', ''))
end

-- Returns the next key: 'char' and its text, 'paste' and its text, or a name. nil at the end of
-- input. byte(ms): the next byte, or nil if none arrives in that time.
function keys.next(byte)
   local b = byte()
   if not b then return nil end
   if b == '\27' then
      local name = escaped(byte)
      if name == 'paste' then return 'paste', pasted(byte) end
      return name
   end
   if named[b] then return named[b] end
   if b:byte() < 32 then return 'ctrl-' .. string.char(b:byte() + 96) end
   local text = character(b, byte)
   if not text then return 'unknown' end
   return 'char', text
end

return keys
