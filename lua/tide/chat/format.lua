-- Python's str.format: fields {}, {0}, {name}, {name.attribute[0]}, !r, and :spec.

local access = require 'tide.chat.access'
local fault = require 'tide.chat.fault'
local field = require 'tide.chat.field'
local show = require 'tide.chat.show'
local value = require 'tide.chat.value'

-- Parses the format spec after the colon of a field.
local function spec_of(text)
   local fill, align, rest = text:match '^([%z\1-\127\194-\244][\128-\191]*)([<>=^])(.*)$'
   if not align then align, rest = text:match '^([<>=^]?)(.*)$' end
   local sign, alternate, zero, width, comma, precision, kind =
      rest:match '^([-+ ]?)(#?)(0?)(%d*)([,_]?)%.?(%d*)([a-zA-Z%%]?)$'
   if not sign then fault.raise("invalid format specifier '%s'", text) end
   local spec = { sign = sign == '' and '-' or sign, alternate = alternate ~= '',
      width = tonumber(width), comma = comma ~= '' and comma or nil,
      precision = tonumber(precision), kind = kind, fill = fill or ' ' }
   spec.align = align ~= '' and align or nil
   if zero ~= '' and not spec.align then spec.align, spec.fill = '=', '0' end
   return spec
end

local is_float = { f = true, F = true, e = true, E = true, g = true, G = true, ['%'] = true }

local is_int = { [''] = true, d = true, x = true, X = true, o = true, b = true }

local function unknown(spec, v)
   fault.raise("unknown format code '%s' for object of type '%s'", spec.kind, value.type_name(v))
end

local function number_text(v, n, float, spec)
   if spec.comma and (spec.fill == '0' or spec.kind:find '[xXob]') then
      fault.coded('E_UNSUPPORTED', "a format with '%s' and zeros or a base is not supported",
         spec.comma)
   end
   if is_float[spec.kind] then return field.float(n, spec.kind, spec) end
   if not float and is_int[spec.kind] then
      return field.integer(n, spec.kind == '' and 'd' or spec.kind, spec)
   end
   if spec.kind ~= '' then unknown(spec, v) end
   local text = field.float(n, spec.precision and 'g' or '', spec)
   if not text:find '[.en]' then                       -- Python has rules of its own for these
      fault.coded('E_UNSUPPORTED', 'a whole float with a precision needs f, e or g')
   end
   return text
end

-- Returns format(v, text).
local function formatted(rt, v, text)
   if text == '' then return show.str(v) end
   local spec = spec_of(text)
   rt:room((spec.width or 0) + (spec.precision or 0))
   local n, float = value.number(v)
   if n and not (type(v) == 'boolean' and spec.kind == '') then
      spec.align = spec.align or '>'
      return field.padded(number_text(v, n, float, spec), spec)
   end
   if not value.text(v) then
      fault.raise('unsupported format string passed to %s.__format__', value.type_name(v))
   end
   if spec.kind ~= '' and spec.kind ~= 's' then unknown(spec, v) end
   spec.align = spec.align or '<'
   return field.padded(field.cut(value.text(v), spec.precision), spec)
end

-- Returns the value that a field names. auto: number of `{}` fields before it.
local function lookup(rt, name, args, kwargs, auto)
   local first, rest = name:match '^([^%.%[]*)(.*)$'
   local v
   if first == '' or first:find '^%d+$' then
      local how = first == '' and 'automatic' or 'manual'
      if auto.how and auto.how ~= how then
         fault.raise('cannot switch from %s field numbering to %s', auto.how, how)
      end
      auto.how = how
   end
   if first == '' then
      auto.n = auto.n + 1
      v = args[auto.n]
   elseif first:find '^%d+$' then
      v = args[tonumber(first) + 1]
   else
      v = kwargs and kwargs.map[first]
   end
   if v == nil then fault.raise("format has no argument for '{%s}'", first) end
   while rest ~= '' do
      local attribute, more = rest:match '^%.([^%.%[]+)(.*)$'
      if attribute then
         v, rest = access.attribute(rt, v, attribute), more
      else
         local index, after = rest:match '^%[([^%]]+)%](.*)$'
         if not index then fault.raise("expected '}' in the field '%s'", name) end
         v, rest = access.item(rt, v, tonumber(index) or index), after
      end
   end
   return v
end

local function replacement(rt, inner, args, kwargs, auto)
   local name, conversion, spec = inner:match '^([^:!]*)!?([rsa]?):?(.*)$'
   local v = lookup(rt, name, args, kwargs, auto)
   if conversion == 'r' or conversion == 'a' then v = show.repr(v) end
   if conversion == 's' then v = show.str(v) end
   if spec:find('{', 1, true) then
      spec = spec:gsub('{([^{}]*)}', function(inside)
         return show.str(lookup(rt, inside, args, kwargs, auto))
      end)
   end
   return formatted(rt, v, spec)
end

-- Returns text.format(*args, **kwargs).
return function(rt, text, args, kwargs)
   local out, at, auto = {}, 1, { n = 0 }
   while true do
      local open = text:find('[{}]', at)
      if not open then break end
      out[#out + 1] = text:sub(at, open - 1)
      local c = text:sub(open, open)
      if text:sub(open + 1, open + 1) == c then
         out[#out + 1], at = c, open + 2
      elseif c == '}' then
         fault.raise "single '}' encountered in format string"
      else
         local inner, stop = text:match('^(%b{})()', open)
         if not inner then fault.raise "expected '}' before end of string" end
         out[#out + 1], at = replacement(rt, inner:sub(2, -2), args, kwargs, auto), stop
      end
   end
   out[#out + 1] = text:sub(at)
   return table.concat(out)
end
