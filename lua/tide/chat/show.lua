-- Values as text: Python's str and repr.

local fault = require 'tide.chat.fault'
local utf = require 'tide.chat.unicode'
local value = require 'tide.chat.value'

local show = {}

-- Returns the shortest digits that parse back to a positive number, and their exponent.
local function shortest(v)
   for precision = 0, 16 do
      local text = ('%%.%de'):format(precision):format(v)
      if tonumber(text) == v or precision == 16 then
         local head, rest, exponent = text:match '^(%d)%.?(%d*)e([+-]%d+)$'
         return ((head .. rest):gsub('0+$', '')), tonumber(exponent)
      end
   end
end

-- Returns Python's repr of a float.
function show.float(v)
   if v ~= v then return 'nan' end
   local sign = (v < 0 or 1 / v < 0) and '-' or ''
   v = math.abs(v)
   if v == math.huge then return sign .. 'inf' end
   if v == 0 then return sign .. '0.0' end
   local digits, e = shortest(v)
   if e < -4 or e >= 16 then
      local tail = #digits > 1 and '.' .. digits:sub(2) or ''
      return ('%s%s%se%+03d'):format(sign, digits:sub(1, 1), tail, e)
   end
   if e < 0 then return sign .. '0.' .. ('0'):rep(-e - 1) .. digits end
   if #digits <= e + 1 then return sign .. digits .. ('0'):rep(e + 1 - #digits) .. '.0' end
   return sign .. digits:sub(1, e + 1) .. '.' .. digits:sub(e + 2)
end

-- Returns an int as text.
function show.int(v) return ('%.0f'):format(v == 0 and 0 or v) end

local short = { ['\t'] = '\\t', ['\n'] = '\\n', ['\r'] = '\\r', ['\\'] = '\\\\' }

local function escaped(c)
   if short[c] then return short[c] end
   if utf.is_printable(c) then return c end
   local code = utf.code(c)
   if code < 256 then return ('\\x%02x'):format(code) end
   return (#c < 4 and '\\u%04x' or '\\U%08x'):format(code)
end

-- Returns Python's repr of a text.
function show.quoted(s)
   local mark = s:find "'" and not s:find '"' and '"' or "'"
   if s:find '[^ -~]' or s:find('\\', 1, true) then
      local list = utf.chars(s)
      for i, c in ipairs(list) do list[i] = escaped(c) end
      s = table.concat(list)
   end
   if mark == "'" then s = s:gsub("'", "\\'") end
   return mark .. s .. mark
end

local repr

local function joined(v, depth)
   local parts = {}
   for i, item in ipairs(v) do parts[i] = repr(item, depth + 1) end
   return table.concat(parts, ', ')
end

-- Texts of values that are tables, by class.
local by_class = {
   [value.Float] = function(v) return show.float(v.v) end,
   [value.Big] = function(v) return v.text end,
   [value.List] = function(v, depth)
      local text = '[' .. joined(v, depth) .. ']'
      return v.view and ('%s(%s)'):format(v.view, text) or text
   end,
   [value.Namespace] = function(v, depth) return '<Namespace ' .. repr(v.fields, depth) .. '>' end,
   [value.Tuple] = function(v, depth)
      return '(' .. joined(v, depth) .. (#v == 1 and ',)' or ')')
   end,
   [value.Dict] = function(v, depth)
      local parts = {}
      for i, key in ipairs(v.keys) do
         parts[i] = repr(key, depth + 1) .. ': ' .. repr(v:get(key), depth + 1)
      end
      return '{' .. table.concat(parts, ', ') .. '}'
   end,
   [value.Range] = function(v)
      local step = v.step == 1 and '' or ', ' .. show.int(v.step)
      return ('range(%s, %s%s)'):format(show.int(v.start), show.int(v.stop), step)
   end,
   [value.Markup] = function(v) return 'Markup(' .. show.quoted(v.s) .. ')' end,
   [value.Undefined] = function() return 'Undefined' end,
}

by_class[value.Group] = by_class[value.Tuple]

-- Returns Python's repr of a value.
function repr(v, depth)
   depth = depth or 0
   local t = type(v)
   if t == 'string' then return show.quoted(v) end
   if t == 'number' then return show.int(v) end
   if t == 'boolean' then return v and 'True' or 'False' end
   if v == value.none then return 'None' end
   if depth > 200 then fault.raise 'a value is nested deeper than 200 levels' end
   local fn = by_class[getmetatable(v)]
   if not fn then
      fault.coded('E_UNSUPPORTED', 'a %s has no text here; apply "list" to a generator before it '
         .. 'is printed', value.type_name(v))
   end
   return fn(v, depth)
end
show.repr = repr

-- Returns Python's str of a value.
function show.str(v)
   if type(v) == 'string' then return v end
   if type(v) == 'table' then
      local class = getmetatable(v)
      if class == value.Markup then return v.s end
      if class == value.Undefined then return '' end
   end
   return repr(v)
end

return show
