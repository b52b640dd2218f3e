-- The filter tojson: Python's json.dumps as chat templates see it.

local bind = require 'tide.chat.bind'
local fault = require 'tide.chat.fault'
local show = require 'tide.chat.show'
local utf = require 'tide.chat.unicode'
local value = require 'tide.chat.value'

local short = { ['"'] = '\\"', ['\\'] = '\\\\', ['\n'] = '\\n', ['\r'] = '\\r', ['\t'] = '\\t',
   ['\b'] = '\\b', ['\f'] = '\\f' }

local function control(c) return short[c] or ('\\u%04x'):format(c:byte()) end

-- Returns the \u escapes of a non-ASCII character: a surrogate pair above U+FFFF.
local function wide(c)
   local code = utf.code(c)
   if #c < 4 then return ('\\u%04x'):format(code) end
   code = code - 65536
   return ('\\u%04x\\u%04x'):format(0xD800 + math.floor(code / 1024), 0xDC00 + code % 1024)
end

local function quoted(s, ascii)
   s = s:gsub('[%c"\\]', function(c) return c == '\127' and not ascii and c or control(c) end)
   if ascii and not utf.is_ascii(s) then
      local list = utf.chars(s)
      for i, c in ipairs(list) do list[i] = #c > 1 and wide(c) or c end
      s = table.concat(list)
   end
   return '"' .. s .. '"'
end

local function float_text(v)
   if v ~= v then return 'NaN' end
   if v == math.huge then return 'Infinity' end
   if v == -math.huge then return '-Infinity' end
   return show.float(v)
end

local write

local function write_items(o, open, close, n, item, level)
   if n == 0 then return o:put(open .. close) end
   local line = o.indent and '\n' .. o.indent:rep(level + 1)
   o:put(open)
   for i = 1, n do
      if i > 1 then o:put(o.comma) end
      if line then o:put(line) end
      item(i)
   end
   if line then o:put('\n' .. o.indent:rep(level)) end
   o:put(close)
end

local function key_text(key)
   if value.text(key) then return value.text(key) end
   if type(key) == 'number' then return show.int(key) end
   if type(key) == 'boolean' then return key and 'true' or 'false' end
   if key == value.none then return 'null' end
   if value.class(key) == value.Float then return float_text(key.v) end
   fault.raise('keys must be str, int, float, bool or None, not %s', value.type_name(key))
end

local function write_dict(o, v, level)
   local keys = v.keys
   if o.sorted then
      keys = value.copied(keys)
      table.sort(keys, function(a, b) return value.less(a, b) end)
   end
   write_items(o, '{', '}', #keys, function(i)
      o:put(quoted(key_text(keys[i]), o.ascii) .. o.colon)
      write(o, v:get(keys[i]), level + 1)
   end, level)
end

function write(o, v, level)
   if level > 200 then fault.raise 'a value is nested deeper than 200 levels' end
   local t, class = type(v), value.class(v)
   if value.text(v) then return o:put(quoted(value.text(v), o.ascii)) end
   if t == 'boolean' then return o:put(v and 'true' or 'false') end
   if t == 'number' then return o:put(show.int(v)) end
   if v == value.none then return o:put 'null' end
   if class == value.Float then return o:put(float_text(v.v)) end
   if class == value.Big then return o:put(v.text) end
   if class == value.Dict then return write_dict(o, v, level) end
   if value.sequence[class] and class ~= value.Range then
      return write_items(o, '[', ']', #v, function(i) write(o, v[i], level + 1) end, level)
   end
   fault.raise('Object of type %s is not JSON serializable', value.type_name(v))
end

local Out = {}
Out.__index = Out

-- Appends a piece of the text.
function Out:put(text)
   self.size = self.size + #text
   self.rt:room(self.size)
   self[#self + 1] = text
end

local function indent_of(indent)
   local n = value.integer(indent)
   if n then return (' '):rep(math.min(math.max(n, 0), 1000)) end
   return value.text(indent)
end

-- The filter: tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
return function(rt, v, args, kwargs)
   local ascii, indent, separators, sorted = bind.values('tojson', args, kwargs,
      { 'ensure_ascii', 'indent', 'separators', 'sort_keys' })
   local o = setmetatable({ rt = rt, size = 0, comma = ', ', colon = ': ' }, Out)
   if indent ~= nil and indent ~= value.none then o.indent, o.comma = indent_of(indent), ',' end
   if separators ~= nil and separators ~= value.none then
      o.comma, o.colon = show.str(separators[1]), show.str(separators[2])
   end
   o.ascii = ascii ~= nil and value.truth(ascii)
   o.sorted = sorted ~= nil and value.truth(sorted)
   write(o, v, 0)
   return table.concat(o)
end
