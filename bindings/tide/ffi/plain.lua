-- Plain Lua data as bytes and back: nil, booleans, numbers, strings, tables of these.
--
-- Every value starts with one letter and its own length, so reading needs no parser and runs no
-- code. Numbers keep all their bits (NaN payloads aside). Tables may not refer to themselves;
-- metatables are not kept. For control data between ranks, not for tensors.

local ffi = require 'ffi'
local status = require 'tide.ffi.status'
local each = pairs -- by another name: see "faults" in bindings/README.md

local M = {}
local bad = status.bad_arg
local MAX_DEPTH = 64
local BRACE, LETTER_D, LETTER_F, LETTER_N, LETTER_S, LETTER_T = ('{dfnst'):byte(1, 6)

local new_number, new_bytes = ffi.typeof 'double[1]', require('tide.ffi.buffer').of 'uint8_t'
local bytes_of = ffi.typeof 'const uint8_t *'

-- Makes room for n more bytes. out: { data =, n = (bytes that are written), room = }.
local function reserve(out, n)
   local need = out.n + n
   if need <= out.room then return end
   local more = new_bytes(2 * need)
   ffi.copy(more, out.data, out.n)
   out.data, out.room = more, 2 * need
end

local function append(out, text)
   reserve(out, #text)
   ffi.copy(out.data + out.n, text, #text)
   out.n = out.n + #text
end

local put = {}

put['nil'] = function(_, out) append(out, 'n') end
put['boolean'] = function(v, out) append(out, v and 't' or 'f') end
put['string'] = function(v, out)
   append(out, 's' .. #v .. ':')
   append(out, v)
end
put['number'] = function(v, out)
   append(out, 'd')
   reserve(out, 8)
   ffi.copy(out.data + out.n, new_number(v), 8)
   out.n = out.n + 8
end
put['table'] = function(t, out, depth, op)
   if depth > MAX_DEPTH then
      bad(op, 'value', ('tables nested at most %d deep'):format(MAX_DEPTH), t)
   end
   local n = 0
   for _ in each(t) do n = n + 1 end
   append(out, '{' .. n .. ':')
   for key, value in each(t) do
      put[type(key)](key, out, depth + 1, op)
      put[type(value)](value, out, depth + 1, op)
   end
end

setmetatable(put, { __index = function(_, kind)
   return function(v, _, _, op)
      bad(op, 'value', 'plain data (nil, booleans, numbers, strings, tables)',
         kind == 'cdata' and v or 'a ' .. kind)
   end
end })

-- Returns a value as a string. op: the function in errors.
function M.encode(value, op)
   local out = { data = new_bytes(512), n = 0, room = 512 }
   put[type(value)](value, out, 0, op or 'encode')
   return ffi.string(out.data, out.n)
end

local function malformed() status.raise(status.code.E_FORMAT, 'decode', 'not plain data') end

-- Returns the count after a letter at `at`, and the start of its payload.
local function count_at(text, at)
   local digits, colon = text:match('^(%d+):()', at + 1)
   if not digits then malformed() end
   return tonumber(digits), colon
end

-- Returns the number whose 8 bytes begin at `at`. A NaN is always the plain one: LuaJIT keeps types
-- in the bits of NaNs, and would take the bytes of a damaged file for a value of another type.
local function get_number(text, at)
   local bytes, number = bytes_of(text) + at - 1, new_number()
   if bytes[7] % 128 == 127 and bytes[6] >= 240 then
      local is_infinite = bytes[6] == 240 and not text:sub(at, at + 5):find '[^%z]'
      return is_infinite and (bytes[7] > 127 and -math.huge or math.huge) or 0 / 0
   end
   ffi.copy(number, bytes, 8)
   return number[0]
end

local get

local function get_table(text, at)
   local t, n = {}
   n, at = count_at(text, at)
   for _ = 1, n do
      local key, value
      key, at = get(text, at)
      value, at = get(text, at)
      if key == nil or key ~= key then malformed() end
      t[key] = value
   end
   return t, at
end

function get(text, at)
   local kind = text:byte(at)
   if kind == LETTER_D and #text >= at + 8 then
      return get_number(text, at + 1), at + 9
   end
   if kind == LETTER_N then return nil, at + 1 end
   if kind == LETTER_T then return true, at + 1 end
   if kind == LETTER_F then return false, at + 1 end
   if kind == LETTER_S then
      local n, from = count_at(text, at)
      if from + n - 1 > #text then malformed() end
      return text:sub(from, from + n - 1), from + n
   end
   if kind == BRACE then return get_table(text, at) end
   return malformed()
end

-- Returns the value in a text that encode made. Raises E_FORMAT if it is something else.
function M.decode(text)
   local value, at = get(text, 1)
   if at ~= #text + 1 then malformed() end
   return value
end

-- Returns the byte of the hex digit with a value.
local function letter(value) return value + (value > 9 and 87 or 48) end

-- Returns bytes as hex digits, for texts that must not hold a zero byte.
function M.hex(text)
   local bytes, out = bytes_of(text), new_bytes(2 * #text)
   for i = 0, #text - 1 do
      local low = bytes[i] % 16
      out[2 * i], out[2 * i + 1] = letter((bytes[i] - low) / 16), letter(low)
   end
   return ffi.string(out, 2 * #text)
end

-- Returns the value of a hex digit, given as its byte.
local function digit(byte) return byte % 16 + (byte > 57 and 9 or 0) end

-- Returns the bytes of hex digits. Raises E_FORMAT if the text is something else.
function M.unhex(text)
   if #text % 2 == 1 or text:find '%X' then malformed() end
   local bytes, n = bytes_of(text), #text / 2
   local out = new_bytes(n)
   for i = 0, n - 1 do out[i] = 16 * digit(bytes[2 * i]) + digit(bytes[2 * i + 1]) end
   return ffi.string(out, n)
end

return M
