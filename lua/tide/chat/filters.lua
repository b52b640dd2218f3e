-- Filters of templates over single values: fn(rt, v, args, kwargs). Those over sequences are in
-- tide.chat.filters_of_lists.

local bind = require 'tide.chat.bind'
local each = require 'tide.util.each'
local fault = require 'tide.chat.fault'
local field = require 'tide.chat.field'
local methods = require 'tide.chat.methods'
local number = require 'tide.chat.number'
local show = require 'tide.chat.show'
local split = require 'tide.chat.split'
local text = require 'tide.chat.text_methods'
local utf = require 'tide.chat.unicode'
local value = require 'tide.chat.value'

local F = {}

F.tojson = require 'tide.chat.tojson'

-- Returns fn over the text of a value; of Markup the result is Markup again.
local function over_text(fn)
   return function(rt, v, args, kwargs)
      local result = fn(rt, show.str(v), args, kwargs)
      if value.class(v) == value.Markup and type(result) == 'string' then
         return value.markup(result)
      end
      return result
   end
end

-- ---- text --------------------------------------------------------------------------------------

F.upper = over_text(function(_, s) return utf.upper(s) end)
F.lower = over_text(function(_, s) return utf.lower(s) end)
F.capitalize = over_text(function(_, s) return text.capitalize(s) end)

function F.string(_, v) return value.class(v) == value.Markup and v or show.str(v) end

F.trim = over_text(function(_, s, args, kwargs)
   local chars = bind.values('trim', args, kwargs, { 'chars' })
   return utf.strip(s, text.dropped(chars), true, true)
end)

-- Returns a text in title case. Words end at white space and at one of -({[<.
function F.title(_, v)
   local out, inside = {}, false
   for i, c in ipairs(utf.chars(show.str(v))) do
      local stops = utf.is_space(c) or c:find '^[-({%[<]$' ~= nil
      out[i] = stops and c or inside and utf.lower(c) or utf.upper(c)
      inside = not stops
   end
   return table.concat(out)
end

function F.replace(rt, v, args, kwargs)
   local old, new, count = bind.values('replace', args, kwargs, { 'old', 'new', 'count' }, 2)
   if count == nil or count == value.none then count = -1 end
   return text.replaced(rt, show.str(v), show.str(old), show.str(new),
      bind.integer('replace', 'count', count))
end

function F.center(rt, v, args, kwargs)
   local width = bind.values('center', args, kwargs, { 'width' })
   return text.centered(rt, show.str(v), bind.integer('center', 'width', width or 80), ' ')
end

function F.indent(rt, v, args, kwargs)
   local width, first, blank = bind.values('indent', args, kwargs, { 'width', 'first', 'blank' })
   local s = value.text(v)
   if not s then
      fault.raise('indent takes a str, got %s', value.is_undefined(v) and v.message
         or value.type_name(v))
   end
   local pad = width and value.text(width)
   if not pad then
      local places = bind.integer('indent', 'width', width or 4)
      rt:room(places)
      pad = (' '):rep(places)
   end
   blank = blank ~= nil and value.truth(blank)
   local lines = split.lines(s .. '\n')
   rt:room(#lines * #pad + #s)
   for i = 2, #lines do
      if blank or lines[i] ~= '' then lines[i] = pad .. lines[i] end
   end
   if first ~= nil and value.truth(first) then lines[1] = pad .. lines[1] end
   local result = table.concat(lines, '\n')
   return type(v) == 'string' and result or value.markup(result)
end

function F.truncate(_, v, args, kwargs)
   local length, kill, tail, leeway = bind.values('truncate', args, kwargs,
      { 'length', 'killwords', 'end', 'leeway' })
   length = bind.integer('truncate', 'length', length or 255)
   tail = tail and show.str(tail) or '...'
   leeway = leeway and leeway ~= value.none and value.integer(leeway) or 5
   if length < utf.length(tail) then
      fault.raise('expected length >= %d, got %d', utf.length(tail), length)
   end
   if (value.length(v) or math.huge) <= length + leeway then return v end
   local s = value.text(v) or fault.raise('truncate takes a str, got %s', value.type_name(v))
   local head = utf.sub(s, 0, length - utf.length(tail))
   if kill ~= nil and value.truth(kill) then return head .. tail end
   return split.right(head, ' ', 1)[1] .. tail
end

function F.wordcount(_, v)
   local s = show.str(v)
   if not utf.is_ascii(s) then
      fault.coded('E_UNSUPPORTED', 'wordcount of text beyond ASCII is not supported')
   end
   local _, n = s:gsub('[%w_]+', '')
   return n
end

function F.format(rt, v, args, kwargs)
   local percent = require 'tide.chat.percent'
   if kwargs and #kwargs.names > 0 then
      local dict = value.dict()
      for _, name in ipairs(kwargs.names) do dict:set(name, kwargs.map[name]) end
      return percent(rt, show.str(v), dict)
   end
   return percent(rt, show.str(v), value.tuple(args))
end

function F.safe(_, v) return value.markup(show.str(v)) end

function F.escape(_, v)
   if value.class(v) == value.Markup then return v end
   return value.markup(number.escaped(show.str(v)))
end
F.e = F.escape

function F.forceescape(_, v) return value.markup(number.escaped(show.str(v))) end

function F.urlencode(_, v)
   local function quoted(s, keep)
      return (s:gsub('[^%w_.~' .. keep .. '-]', function(c) return ('%%%02X'):format(c:byte()) end))
   end
   local class = value.class(v)
   if class ~= value.Dict and class ~= value.List and class ~= value.Tuple then
      return quoted(show.str(v), '/')
   end
   local parts = {}
   for i, pair in ipairs(class == value.Dict and methods.items(v) or v) do
      parts[i] = quoted(show.str(pair[1]), ''):gsub('%%20', '+') .. '='
         .. quoted(show.str(pair[2]), ''):gsub('%%20', '+')
   end
   return table.concat(parts, '&')
end

-- ---- numbers -----------------------------------------------------------------------------------

-- Raises where an undefined value is used as a number.
local function defined(v)
   if value.is_undefined(v) then fault.raise('%s', v.message) end
   return v
end

-- Returns a number truncated towards zero; nil for inf and nan.
local function cut(n)
   if n ~= n or math.abs(n) == math.huge then return nil end
   return number.int(n - math.fmod(n, 1))
end

F.int = function(_, v, args, kwargs)
   local default, base = bind.values('int', args, kwargs, { 'default', 'base' })
   local s = value.text(defined(v))
   local n
   if s then
      n = number.parse_int(s, base and value.integer(base) or 10) or number.parse_float(s)
   else
      n = value.number(v)
   end
   n = n and cut(n)
   if n then return n end
   return default == nil and 0 or default
end

F.float = function(_, v, args, kwargs)
   local default = bind.values('float', args, kwargs, { 'default' })
   local s = value.text(defined(v))
   local n
   if s then n = number.parse_float(s) else n = value.number(v) end
   if n then return value.float(n) end
   if default == nil then return value.float(0) end
   return default
end

function F.abs(_, v)
   local n, is_float = value.number(v)
   if not n then
      fault.raise('%s', value.is_undefined(v) and v.message
         or 'bad operand type for abs(): ' .. value.type_name(v))
   end
   return is_float and value.float(math.abs(n)) or math.abs(n)
end

-- Returns n rounded half to even at a decimal place, as Python's round.
local function rounded(n, places)
   if places > 99 or n - n ~= 0 then return n end
   if places < 0 then
      local scale = 10 ^ -places
      local low = math.floor(n / scale)
      local over = n / scale - low
      if over > 0.5 or over == 0.5 and low % 2 == 1 then low = low + 1 end
      return low * scale
   end
   local v = tonumber(field.fixed(math.abs(n), places))
   return (n < 0 or 1 / n < 0) and -v or v
end

-- Raises for NaN and infinities, which Python makes no int of.
local function check_finite(n)
   if n ~= n then fault.raise 'cannot convert float NaN to integer' end
   if n - n ~= 0 then fault.raise 'cannot convert float infinity to integer' end
end

-- Returns round(v, precision) as Python does: without a precision (None) the result is an int.
local function round_common(v, precision)
   local n, is_float = value.number(v)
   if not n then
      fault.raise("type %s doesn't define __round__ method", value.type_name(v))
   end
   if precision == value.none then
      check_finite(n)
      return number.int(rounded(n, 0))
   end
   local places = value.integer(precision)
   if not places then
      fault.raise("'%s' object cannot be interpreted as an integer", value.type_name(precision))
   end
   local r = rounded(n, places)
   return is_float and value.float(r) or r
end

function F.round(rt, v, args, kwargs)
   local precision, method = bind.values('round', args, kwargs, { 'precision', 'method' })
   precision, method = precision == nil and 0 or precision, method == nil and 'common'
      or value.text(method)
   if method == 'common' then return round_common(v, precision) end
   if method ~= 'ceil' and method ~= 'floor' then
      fault.raise 'method must be common, ceil or floor'
   end
   local scale = number.binary(rt, '**', 10, precision)
   local scaled = number.binary(rt, '*', v, scale)
   local n = value.number(scaled)
   if not n then fault.raise('must be real number, not %s', value.type_name(scaled)) end
   check_finite(n)
   return number.binary(rt, '/', math[method](n), scale)
end

-- ---- any value ---------------------------------------------------------------------------------

function F.default(_, v, args, kwargs)
   local default, boolean = bind.values('default', args, kwargs, { 'default_value', 'boolean' })
   if value.is_undefined(v) or boolean ~= nil and value.truth(boolean) and not value.truth(v) then
      return default == nil and '' or default
   end
   return v
end
F.d = F.default

function F.length(_, v)
   local n = value.length(v)
   if not n then fault.raise("object of type '%s' has no len()", value.type_name(v)) end
   return n
end
F.count = F.length

function F.attr(rt, v, args)
   local name = value.text(args[1] or value.none) or fault.raise 'attr takes a name'
   local found = require('tide.chat.access').own(rt, v, name)
   if found ~= nil then return found end
   return value.undefined(("'%s object' has no attribute '%s'"):format(value.type_name(v), name))
end

for name, fn in each(require 'tide.chat.filters_of_lists') do F[name] = fn end

return F
