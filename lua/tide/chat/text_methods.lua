-- Methods of texts, as those of Python's str.

local bind = require 'tide.chat.bind'
local fault = require 'tide.chat.fault'
local field = require 'tide.chat.field'
local split = require 'tide.chat.split'
local utf = require 'tide.chat.unicode'
local value = require 'tide.chat.value'

local text = {}

local str = {}

-- Returns the text of an argument, which must be a str.
local function wanted(op, v)
   return value.text(v) or fault.raise('%s() argument must be str, not %s', op, value.type_name(v))
end

local function plain(fn)
   return function(_, s) return fn(s) end
end

str.upper, str.lower, str.casefold = plain(utf.upper), plain(utf.lower), plain(utf.lower)

-- Returns a text with its first character in upper case and the rest in lower case.
function text.capitalize(s)
   local n = utf.length(s)
   return utf.upper(utf.sub(s, 0, 1)) .. utf.lower(utf.sub(s, 1, n))
end

str.capitalize = plain(text.capitalize)

str.title = plain(function(s)
   local list, inside = utf.chars(s), false
   for i, c in ipairs(list) do
      list[i] = inside and utf.lower(c) or utf.upper(c)
      inside = utf.is_cased(c)
   end
   return table.concat(list)
end)

str.swapcase = plain(function(s)
   local list = utf.chars(s)
   for i, c in ipairs(list) do
      local up = utf.upper(c)
      list[i] = up ~= c and up or utf.lower(c)
   end
   return table.concat(list)
end)

-- ---- ends --------------------------------------------------------------------------------------

-- Returns a predicate of characters to strip: those of a text, or white space.
function text.dropped(chars)
   if chars == nil or chars == value.none then return utf.is_space end
   local set = {}
   for _, c in ipairs(utf.chars(wanted('strip', chars))) do set[c] = true end
   return function(c) return set[c] == true end
end

local function stripper(op, left, right)
   return function(_, s, args, kwargs)
      local chars = bind.values(op, args, kwargs, { 'chars' })
      return utf.strip(s, text.dropped(chars), left, right)
   end
end

str.strip = stripper('strip', true, true)
str.lstrip, str.rstrip = stripper('lstrip', true, false), stripper('rstrip', false, true)

-- Returns the texts of an argument that is a str or a tuple of them.
local function alternatives(op, v)
   if value.class(v) ~= value.Tuple then return { wanted(op, v) } end
   local list = {}
   for i, item in ipairs(v) do list[i] = wanted(op, item) end
   return list
end

-- Returns the part of s between two places in characters, and where it starts in bytes; nil if it
-- starts beyond the end.
local function window(s, first, stop)
   if first == nil and stop == nil then return s, 0 end
   local n = utf.length(s)
   local function place(v, default)
      if v == nil or v == value.none then return default end
      local i = value.integer(v) or fault.raise 'slice indices must be integers or None'
      return math.max(i < 0 and i + n or i, 0)
   end
   local from, to = place(first, 0), math.min(place(stop, n), n)
   if from > n then return nil end
   return utf.sub(s, from, to), from
end

local function ends(op, matches)
   return function(_, s, args, kwargs)
      local what, first, stop = bind.values(op, args, kwargs, { 'prefix', 'start', 'end' }, 1)
      local list, part = alternatives(op, what), window(s, first, stop)
      for _, item in ipairs(list) do
         if part and matches(part, item) then return true end
      end
      return false
   end
end

str.startswith = ends('startswith', function(s, item) return s:sub(1, #item) == item end)
str.endswith = ends('endswith', function(s, item)
   return item == '' or s:sub(-#item) == item
end)

function str.removeprefix(_, s, args, kwargs)
   local head = wanted('removeprefix', bind.values('removeprefix', args, kwargs, { 'prefix' }, 1))
   return s:sub(1, #head) == head and s:sub(#head + 1) or s
end

function str.removesuffix(_, s, args, kwargs)
   local tail = wanted('removesuffix', bind.values('removesuffix', args, kwargs, { 'suffix' }, 1))
   return tail ~= '' and s:sub(-#tail) == tail and s:sub(1, -#tail - 1) or s
end

-- ---- search ------------------------------------------------------------------------------------

-- Returns the byte of the first (or last) occurrence of `what` in s, or nil.
local function search(s, what, from_right)
   if not from_right then return (s:find(what, 1, true)) end
   for at = #s - #what + 1, 1, -1 do
      if s:sub(at, at + #what - 1) == what then return at end
   end
end

local function finder(op, from_right, must)
   return function(_, s, args, kwargs)
      local what, first, stop = bind.values(op, args, kwargs, { 'sub', 'start', 'end' }, 1)
      local part, offset = window(s, first, stop)
      local at = part and search(part, wanted(op, what), from_right)
      if at then return offset + utf.length(part:sub(1, at - 1)) end
      if must then fault.raise 'substring not found' end
      return -1
   end
end

str.find, str.rfind = finder('find', false), finder('rfind', true)
str.index, str.rindex = finder('index', false, true), finder('rindex', true, true)

function str.count(_, s, args, kwargs)
   local what, first, stop = bind.values('count', args, kwargs, { 'sub', 'start', 'end' }, 1)
   local part, n, at = window(s, first, stop), 0, 1
   what = wanted('count', what)
   if not part then return 0 end
   if what == '' then return utf.length(part) + 1 end
   while true do
      local from = part:find(what, at, true)
      if not from then return n end
      n, at = n + 1, from + #what
   end
end

-- Returns s with up to `count` (negative: all) of `old` replaced by `new`.
function text.replaced(rt, s, old, new, count)
   local out, at, n = {}, 1, 0
   local chars = old == '' and utf.chars(s)
   if chars then
      rt:room(#s + #new * (#chars + 1))
      for i = 0, #chars do
         if count < 0 or n < count then out[#out + 1], n = new, n + 1 end
         out[#out + 1] = chars[i + 1]
      end
      return table.concat(out)
   end
   while count < 0 or n < count do
      local from = s:find(old, at, true)
      if not from then break end
      out[#out + 1], out[#out + 2] = s:sub(at, from - 1), new
      at, n = from + #old, n + 1
      rt:room(n * #new + #s)
   end
   out[#out + 1] = s:sub(at)
   return table.concat(out)
end

function str.replace(rt, s, args, kwargs)
   local old, new, count = bind.values('replace', args, kwargs, { 'old', 'new', 'count' }, 2)
   return text.replaced(rt, s, wanted('replace', old), wanted('replace', new),
      bind.integer('replace', 'count', count == nil and -1 or count))
end

-- ---- parts -------------------------------------------------------------------------------------

local function splitter(op, fn)
   return function(_, s, args, kwargs)
      local sep, most = bind.values(op, args, kwargs, { 'sep', 'maxsplit' })
      if sep == value.none then sep = nil end
      most = bind.integer(op, 'maxsplit', most == nil and -1 or most)
      return value.list(fn(s, sep and wanted(op, sep), most))
   end
end

str.split, str.rsplit = splitter('split', split.left), splitter('rsplit', split.right)

function str.splitlines(_, s, args, kwargs)
   local keep = bind.values('splitlines', args, kwargs, { 'keepends' })
   return value.list(split.lines(s, keep ~= nil and value.truth(keep)))
end

local function partitioner(op, from_right)
   return function(_, s, args)
      local sep = wanted(op, args[1] or value.none)
      if sep == '' then fault.raise 'empty separator' end
      local at = search(s, sep, from_right)
      if not at then
         return value.tuple(from_right and { '', '', s } or { s, '', '' })
      end
      return value.tuple { s:sub(1, at - 1), sep, s:sub(at + #sep) }
   end
end

str.partition, str.rpartition = partitioner('partition', false), partitioner('rpartition', true)

function str.join(rt, s, args)
   local parts, size = {}, 0
   for i, item in ipairs(value.iterate(args[1] or value.none)) do
      parts[i] = value.text(item) or fault.raise(
         'sequence item %d: expected str instance, %s found', i - 1, value.type_name(item))
      size = size + #parts[i] + #s
      rt:room(size)
   end
   return table.concat(parts, s)
end

function str.format(rt, s, args, kwargs) return require 'tide.chat.format'(rt, s, args, kwargs) end

-- ---- width -------------------------------------------------------------------------------------

local function padder(op, align)
   return function(rt, s, args, kwargs)
      local width, fill = bind.values(op, args, kwargs, { 'width', 'fillchar' }, 1)
      width = bind.integer(op, 'width', width)
      rt:room(width)
      return field.padded(s, { width = width, align = align,
         fill = fill and wanted(op, fill) or ' ' })
   end
end

str.ljust, str.rjust = padder('ljust', '<'), padder('rjust', '>')

-- Returns s centred in a width, as str.center does.
function text.centered(rt, s, width, fill)
   rt:room(width)
   local missing = width - utf.length(s)
   local left = math.floor(missing / 2) + (missing % 2 == 1 and width % 2 == 1 and 1 or 0)
   return fill:rep(left) .. s .. fill:rep(missing - left)
end

function str.center(rt, s, args, kwargs)
   local width, fill = bind.values('center', args, kwargs, { 'width', 'fillchar' }, 1)
   return text.centered(rt, s, bind.integer('center', 'width', width),
      fill and wanted('center', fill) or ' ')
end

function str.zfill(rt, s, args, kwargs)
   local width = bind.integer('zfill', 'width', bind.values('zfill', args, kwargs, { 'width' }, 1))
   rt:room(width)
   local sign, body = s:match '^([+-]?)(.*)$'
   return sign .. ('0'):rep(width - utf.length(s)) .. body
end

-- ---- questions ---------------------------------------------------------------------------------

-- Returns a method: whether a text is not empty and all of it ASCII characters of a pattern.
local function all_of(name, pattern)
   return plain(function(s)
      if not utf.is_ascii(s) then
         fault.coded('E_UNSUPPORTED', 'str.%s of text beyond ASCII is not supported', name)
      end
      return s:find(pattern) ~= nil
   end)
end

str.isdigit, str.isdecimal = all_of('isdigit', '^%d+$'), all_of('isdecimal', '^%d+$')
str.isnumeric, str.isalpha = all_of('isnumeric', '^%d+$'), all_of('isalpha', '^%a+$')
str.isalnum, str.isidentifier = all_of('isalnum', '^%w+$'), all_of('isidentifier', '^[%a_][%w_]*$')
str.isascii = plain(utf.is_ascii)
str.isspace = plain(function(s) return s ~= '' and utf.skip_space(s, 1) > #s end)

str.isupper = plain(function(s) return utf.is_in_case(s, utf.upper) end)
str.islower = plain(function(s) return utf.is_in_case(s, utf.lower) end)

-- ---- finding -----------------------------------------------------------------------------------

local outside = {}
for name in ('encode expandtabs format_map isprintable istitle maketrans translate'):gmatch '[%a_]+'
do
   outside[name] = true
end

-- Returns a method of Markup, whose texts are Markup again.
local function of_markup(method)
   return function(rt, v, args, kwargs)
      local result = method(rt, v.s, args, kwargs)
      if type(result) == 'string' then return value.markup(result) end
      for i, item in ipairs(value.class(result) and value.members(result) or {}) do
         result[i] = value.markup(item)
      end
      return result
   end
end

-- Returns the method of a text with a name, or nil.
function text.find(v, name)
   if outside[name] then
      fault.coded('E_UNSUPPORTED', 'the method str.%s is not supported', name)
   end
   local method = str[name]
   return method and type(v) ~= 'string' and of_markup(method) or method
end

return text
