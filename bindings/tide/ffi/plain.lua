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

local new_number = ffi.typeof 'double[1]'

local put = {}

put['nil'] = function(_, out) out[#out + 1] = 'n' end
put['boolean'] = function(v, out) out[#out + 1] = v and 't' or 'f' end
put['string'] = function(v, out)
   out[#out + 1] = 's' .. #v .. ':'
   out[#out + 1] = v
end
put['number'] = function(v, out)
   out[#out + 1] = 'd' .. ffi.string(new_number(v), 8)
end
put['table'] = function(t, out, depth, op)
   if depth > MAX_DEPTH then
      bad(op, 'value', ('tables nested at most %d deep'):format(MAX_DEPTH), t)
   end
   local at, n = #out + 1, 0
   out[at] = ''
   for key, value in each(t) do
      n = n + 1
      put[type(key)](key, out, depth + 1, op)
      put[type(value)](value, out, depth + 1, op)
   end
   out[at] = '{' .. n .. ':'
end

setmetatable(put, { __index = function(_, kind)
   return function(v, _, _, op)
      bad(op, 'value', 'plain data (nil, booleans, numbers, strings, tables)',
         kind == 'cdata' and v or 'a ' .. kind)
   end
end })

-- Returns a value as a string. op: the function in errors.
function M.encode(value, op)
   local out = {}
   put[type(value)](value, out, 0, op or 'encode')
   return table.concat(out)
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
   local low, high = text:sub(at, at + 5), { text:byte(at + 6, at + 7) }
   if high[2] % 128 == 127 and (high[1] > 240 or high[1] == 240 and low:find '[^%z]') then
      return 0 / 0
   end
   local number = new_number()
   ffi.copy(number, text:sub(at, at + 7), 8)
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
   local kind = text:sub(at, at)
   if kind == 'n' then return nil, at + 1 end
   if kind == 't' then return true, at + 1 end
   if kind == 'f' then return false, at + 1 end
   if kind == 'd' and #text >= at + 8 then
      return get_number(text, at + 1), at + 9
   end
   if kind == 's' then
      local n, from = count_at(text, at)
      if from + n - 1 > #text then malformed() end
      return text:sub(from, from + n - 1), from + n
   end
   if kind == '{' then return get_table(text, at) end
   return malformed()
end

-- Returns the value in a text that encode made. Raises E_FORMAT if it is something else.
function M.decode(text)
   local value, at = get(text, 1)
   if at ~= #text + 1 then malformed() end
   return value
end

-- Returns bytes as hex digits, for texts that must not hold a zero byte.
function M.hex(text)
   return (text:gsub('.', function(c) return ('%02x'):format(c:byte()) end))
end
-- Returns the bytes of hex digits.
function M.unhex(text)
   return (text:gsub('%x%x', function(h) return string.char(tonumber(h, 16)) end))
end

return M
