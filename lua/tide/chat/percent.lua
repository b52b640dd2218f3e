-- Python's formatting with %: text % values.

local fault = require 'tide.chat.fault'
local field = require 'tide.chat.field'
local show = require 'tide.chat.show'
local value = require 'tide.chat.value'

-- Returns the next value: of a tuple in order, else the one value.
local function taker(v)
   local at, items = 0, value.class(v) == value.Tuple and v or { v }
   local function take()
      at = at + 1
      if at > #items then fault.raise 'not enough arguments for format string' end
      return items[at]
   end
   return take, function() return at < #items end
end

-- Returns width or precision: digits, '*' (the next value) or nil.
local function count(text, take)
   if text == '*' then return value.integer(take()) or fault.raise '* wants int' end
   return tonumber(text)
end

local function number_of(conversion, v)
   local n, is_float = value.number(v)
   if not n then
      fault.raise('%%%s format: a real number is required, not %s', conversion, value.type_name(v))
   end
   return n, is_float
end

-- Formatters by the letter of the conversion.
local texts = {
   s = function(v, spec) return field.cut(show.str(v), spec.precision) end,
   r = function(v, spec) return field.cut(show.repr(v), spec.precision) end,
   a = function(v, spec) return field.cut(show.repr(v), spec.precision) end,
   d = function(v, spec, letter) return field.integer(number_of(letter, v), 'd', spec) end,
   x = function(v, spec, letter)
      if not value.integer(v) then
         fault.raise('%%%s format: an integer is required, not %s', letter, value.type_name(v))
      end
      return field.integer(value.integer(v), letter, spec)
   end,
   f = function(v, spec, letter) return field.float(number_of(letter, v), letter, spec) end,
   c = function(v) return value.text(v) or require('tide.chat.unicode').char(value.integer(v)) end,
}
texts.i, texts.u, texts.o, texts.X = texts.d, texts.d, texts.x, texts.x
texts.e, texts.g, texts.E, texts.F, texts.G = texts.f, texts.f, texts.f, texts.f, texts.f

-- Returns one conversion as text.
local function converted(rt, flags, width, precision, letter, v)
   local convert = texts[letter]
   if not convert then fault.raise("unsupported format character '%s'", letter) end
   local spec = { precision = precision, alternate = flags:find '#' ~= nil,
      sign = flags:find '[+]' and '+' or flags:find ' ' and ' ' or '-' }
   local is_number = not (letter == 's' or letter == 'r' or letter == 'a' or letter == 'c')
   if letter == 'd' or letter == 'i' or letter == 'u' then
      spec.precision, spec.digits = nil, precision
   end
   spec.align = flags:find '%-' and '<' or '>'
   spec.fill = is_number and flags:find '0' and spec.align == '>' and '0' or ' '
   if spec.fill == '0' then spec.align = '=' end
   spec.width = width
   rt:room((width or 0) + (precision or 0))
   return field.padded(convert(v, spec, letter), spec)
end

-- Returns text % v.
return function(rt, text, v)
   local take, is_more = taker(v)
   local out, at = {}, 1
   while true do
      local open = text:find('%', at, true)
      if not open then break end
      out[#out + 1] = text:sub(at, open - 1)
      local name, after = text:match('^%(([^)]*)%)()', open + 1)
      local flags, width, dot, precision, letter, stop =
         text:match('^([-+ #0]*)(%*?%d*)(%.?)(%*?%d*)[hlL]?(.)()', after or open + 1)
      if not letter then fault.raise 'incomplete format' end
      local w = count(width, take)
      local p = dot == '.' and (count(precision, take) or 0) or nil
      if letter == '%' then
         out[#out + 1] = '%'
      else
         local item
         if name then
            if value.class(v) ~= value.Dict then fault.raise 'format requires a mapping' end
            item = v:get(name)
            if item == nil then fault.raise("the mapping has no key '%s'", name) end
         else
            item = take()
         end
         out[#out + 1] = converted(rt, flags, w, p, letter, item)
      end
      at = stop
   end
   out[#out + 1] = text:sub(at)
   local class = value.class(v)
   if is_more() and class ~= value.Dict and class ~= value.List then
      fault.raise 'not all arguments converted during string formatting'
   end
   return table.concat(out)
end
