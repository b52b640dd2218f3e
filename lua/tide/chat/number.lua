-- Arithmetic of templates: Python's operators over numbers, texts and lists.

local fault = require 'tide.chat.fault'
local percent = require 'tide.chat.percent'
local utf = require 'tide.chat.unicode'
local value = require 'tide.chat.value'

local number = {}

local floor = math.floor

-- Returns an int, which must stay below 2^53 and is not -0.
local function int(v)
   if math.abs(v) >= 2^53 then
      fault.coded('E_UNSUPPORTED', 'integers of 2^53 and more are not supported')
   end
   return v + 0
end
number.int = int

-- Returns a % b of numbers as Python does.
local function modulo(a, b)
   local r = math.fmod(a, b)
   if r == 0 then return 0 / b end                     -- a zero with the sign of b
   return (r < 0) == (b < 0) and r or r + b
end

-- Returns a // b of floats as Python does.
local function floor_float(a, b)
   local r = math.fmod(a, b)
   local q = (a - r) / b                               -- whole but for rounding
   if modulo(a, b) ~= r then q = q - 1 end
   if q == 0 then return 0 * (a / b) end
   local whole = floor(q)
   return q - whole > 0.5 and whole + 1 or whole
end

local function int_power(a, b)
   local result = 1
   if a == 0 or a == 1 then return b == 0 and 1 or a end
   if a == -1 then return b % 2 == 0 and 1 or -1 end
   for _ = 1, b do result = int(result * a) end
   return result
end

local function nonzero(b, what)
   if b == 0 then fault.raise('%s', what) end
   return b
end

local ints = {
   ['+'] = function(a, b) return int(a + b) end,
   ['-'] = function(a, b) return int(a - b) end,
   ['*'] = function(a, b) return int(a * b) end,
   ['/'] = function(a, b) return value.float(a / nonzero(b, 'division by zero')) end,
   ['//'] = function(a, b)
      nonzero(b, 'integer division or modulo by zero')
      return (a - modulo(a, b)) / b + 0
   end,
   ['%'] = function(a, b)
      return modulo(a, nonzero(b, 'integer modulo by zero')) + 0
   end,
   ['**'] = function(a, b)
      if b < 0 then
         return value.float(nonzero(a, '0.0 cannot be raised to a negative power') ^ b)
      end
      return int_power(a, b)
   end,
}

local floats = {
   ['+'] = function(a, b) return a + b end,
   ['-'] = function(a, b) return a - b end,
   ['*'] = function(a, b) return a * b end,
   ['/'] = function(a, b) return a / nonzero(b, 'float division by zero') end,
   ['//'] = function(a, b) return floor_float(a, nonzero(b, 'float floor division by zero')) end,
   ['%'] = function(a, b) return modulo(a, nonzero(b, 'float modulo')) end,
   ['**'] = function(a, b)
      if a == 0 and b < 0 then fault.raise '0.0 cannot be raised to a negative power' end
      local r = a ^ b
      if r ~= r and a == a and b == b then
         fault.coded('E_UNSUPPORTED', 'complex numbers are not supported')
      end
      return r
   end,
}

-- ---- texts and lists ---------------------------------------------------------------------------

local function escape(v)
   if value.class(v) == value.Markup then return v.s end
   return number.escaped(value.text(v))
end

local entity = { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ["'"] = '&#39;', ['"'] = '&#34;' }

-- Returns a text with the five characters of HTML escaped.
function number.escaped(s) return (s:gsub('[&<>\'"]', entity)) end

local function add_texts(rt, a, b)
   local x, y = value.text(a), value.text(b)
   rt:room(#x + #y)
   if type(a) == 'string' and type(b) == 'string' then return x .. y end
   return value.markup(escape(a) .. escape(b))
end

local function add_lists(rt, a, b)
   rt:spend(#a + #b)
   local list = setmetatable({}, getmetatable(a))
   for i = 1, #a do list[i] = a[i] end
   for i = 1, #b do list[#a + i] = b[i] end
   return list
end

local function repeated(rt, v, n)
   n = math.max(n, 0)
   local s = value.text(v)
   if s then
      rt:room(#s * n)
      return type(v) == 'string' and s:rep(n) or value.markup(s:rep(n))
   end
   rt:spend(#v * n)
   local list = setmetatable({}, getmetatable(v))
   for k = 0, n - 1 do
      for i = 1, #v do list[k * #v + i] = v[i] end
   end
   return list
end

-- Returns whether a value can be repeated by *.
local function repeats(v)
   local class = value.class(v)
   return value.text(v) ~= nil or class == value.List or class == value.Tuple
end

-- Returns the result for operands that are not both numbers, or nil.
local function other(rt, sign, a, b)
   local class = value.class(a)
   if sign == '+' then
      if value.text(a) and value.text(b) then return add_texts(rt, a, b) end
      if (class == value.List or class == value.Tuple) and class == value.class(b) then
         return add_lists(rt, a, b)
      end
   elseif sign == '*' then
      if repeats(a) and value.integer(b) then return repeated(rt, a, value.integer(b)) end
      if repeats(b) and value.integer(a) then return repeated(rt, b, value.integer(a)) end
   elseif sign == '%' and value.text(a) then
      local result = percent(rt, value.text(a), b)
      return type(a) == 'string' and result or value.markup(result)
   end
end

local function refuse(sign, a, b)
   for _, v in ipairs { a, b } do
      if value.is_undefined(v) then fault.raise('%s', v.message) end
   end
   if sign == '+' and value.text(a) then
      fault.raise('can only concatenate str (not "%s") to str', value.type_name(b))
   end
   fault.raise("unsupported operand type(s) for %s: '%s' and '%s'", sign, value.type_name(a),
      value.type_name(b))
end

-- Returns a sign b.
function number.binary(rt, sign, a, b)
   if type(a) == 'number' and type(b) == 'number' then return ints[sign](a, b) end
   local x, x_float = value.number(a)
   local y, y_float = value.number(b)
   if x and y then
      if x_float or y_float then return value.float(floats[sign](x, y)) end
      return ints[sign](x, y)
   end
   local result = other(rt, sign, a, b)
   if result == nil then refuse(sign, a, b) end
   return result
end

-- Returns -v or +v.
function number.unary(sign, v)
   local x, is_float = value.number(v)
   if not x then
      if value.is_undefined(v) then fault.raise('%s', v.message) end
      fault.raise("bad operand type for unary %s: '%s'", sign, value.type_name(v))
   end
   if sign == '-' then x = is_float and -x or 0 - x end
   return is_float and value.float(x) or x
end

-- Parses a text as an int in a base from 2 to 36 (0: by its prefix); nil if it is not one, or in
-- any other base.
function number.parse_int(s, base)
   local text = utf.strip(s, utf.is_space, true, true):lower()
   local sign, body = text:match '^([+-]?)(.*)$'
   local prefix = body:match '^0([box])'
   local of = { b = 2, o = 8, x = 16 }
   if prefix and (base == 0 or of[prefix] == base) then
      base, body = of[prefix], body:sub(3):gsub('^_', '', 1)
   elseif base == 0 then
      if body:find '^0[%d_]*[1-9]' then return nil end
      base = 10
   end
   if base < 2 or base > 36 then return nil end
   if body:find '^_' or body:find '__' or body:find '_$' then return nil end
   local digits = body:gsub('_', '')
   local all = base < 11 and '0-' .. base - 1 or '%da-' .. string.char(('a'):byte() + base - 11)
   if not digits:find('^[' .. all .. ']+$') then return nil end
   local n = int(tonumber(digits, base))
   return sign == '-' and 0 - n or n
end

-- Parses a text as Python's float does; nil if it is not a number.
function number.parse_float(s)
   local text = utf.strip(s, utf.is_space, true, true):lower()
   local sign, body = text:match '^([+-]?)(.*)$'
   local words = { inf = math.huge, infinity = math.huge, nan = 0 / 0 }
   local n = words[body]
   if not n then
      if body:find '^_' or body:find '_$' or body:find '_%D' or body:find '%D_' then return nil end
      body = body:gsub('_', '')
      local is_number = body:find '^%d+%.?%d*$' or body:find '^%.%d+$'
         or body:find '^%d+%.?%d*e[+-]?%d+$' or body:find '^%.%d+e[+-]?%d+$'
      n = is_number and tonumber(body)
   end
   return n and (sign == '-' and -n or n) or nil
end

return number
