-- JSON as Lua values: decode walks the flat nodes of tide_json_parse, encode is Lua.
--
-- An array becomes a list with the metatable json.array (so that an empty one stays an array), an
-- object a plain table, null the value json.null. Integers are Lua numbers up to 2^53 and boxed
-- 64-bit integers (int64_t) beyond, so no digit is ever lost; other numbers are doubles.
-- encode(decode(text)) has the same values as text; keys are sorted.
--
-- JSON has no infinite numbers and no NaN. Both ways of writing them that published configurations
-- use are an option, `nonfinite`: the bare words of Python, and { "__float__": "Infinity" }.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local status = require 'tide.ffi.status'
local ctx_of = require 'tide.ffi.ctx'
local each = pairs -- by another name: see "faults" in bindings/README.md
local C = lib.C

local M = {}

-- The identity of null and of array survives a reload of the Lua modules.
lib.state.json = lib.state.json or {
   null = setmetatable({}, { __tostring = function() return 'null' end, __name = 'json.null' }),
   array = { __name = 'json.array' },
}
M.null = lib.state.json.null
local null, array_mt = M.null, lib.state.json.array

local double_t = ffi.typeof 'double'

-- Returns a number that encode writes with a decimal point or exponent: for readers that
-- distinguish 1.0 from 1.
function M.float(v)
   if type(v) ~= 'number' then status.bad_arg('json.float', 'v', 'a number', v) end
   return double_t(v)
end

-- Marks a list (default: a new one) as an array and returns it; needed for empty ones only.
function M.array(list)
   if type(list) == 'nil' then list = {} end
   if type(list) ~= 'table' then status.bad_arg('json.array', 'list', 'a list or nil', list) end
   return setmetatable(list, array_mt)
end

-- ---- decode ------------------------------------------------------------------------------------

local new_json_box = ffi.typeof 'tide_json *[1]'
local EXACT = arg.exact

-- Numbers that are not finite, by the words for them.
local words = { Infinity = math.huge, ['-Infinity'] = -math.huge, NaN = 0 / 0 }

-- Returns the number of an object { "__float__": word }; else the object.
local function tagged(object)
   local number = words[object.__float__]
   return number and next(object, next(object)) == nil and number or object
end

-- (nodes, text, index, how: { tags: tagged objects are numbers; lossless }) -> value, next index
local read

local function read_array(nodes, text, index, how)
   local list = setmetatable({}, array_mt)
   local at = index + 1
   for i = 1, nodes[index].count do list[i], at = read(nodes, text, at, how) end
   return list, at
end

-- Returns the metatable of an object whose keys have an order.
local function ordered(keys) return { __name = 'json.object', json_keys = keys } end

local function read_object(nodes, text, index, how)
   local object, keys = {}, how.lossless and {}
   local at = index + 1
   for i = 1, nodes[index].count do
      local key = nodes[at]
      local name = ffi.string(text + key.v.i, key.count)
      if keys then keys[i] = name end
      object[name], at = read(nodes, text, at + 1, how)
   end
   if how.tags and object.__float__ then return tagged(object), at end
   return keys and setmetatable(object, ordered(keys)) or object, at
end

-- Returns the names of an object that decode made with `lossless`, in the order of the text; nil of
-- any other value. Names that were set later are not in the list.
function M.keys(object)
   local mt = type(object) == 'table' and getmetatable(object)
   return type(mt) == 'table' and rawget(mt, 'json_keys') or nil
end

-- Returns whether a value is a list that decode or json.array made.
function M.is_array(t) return type(t) == 'table' and getmetatable(t) == array_mt end

function read(nodes, text, index, how)
   local node = nodes[index]
   local kind = node.kind
   if kind == C.TIDE_JSON_STRING then return ffi.string(text + node.v.i, node.count), index + 1 end
   if kind == C.TIDE_JSON_NUMBER then
      local v = node.v.d
      if how.lossless and v == math.floor(v) then return double_t(v), index + 1 end
      return v, index + 1
   end
   if kind == C.TIDE_JSON_INT then
      local v = node.v.i                    -- compared as a 64-bit integer, before any rounding
      if v >= -EXACT and v <= EXACT then return tonumber(v), index + 1 end
      return v, index + 1
   end
   if kind == C.TIDE_JSON_ARRAY then return read_array(nodes, text, index, how) end
   if kind == C.TIDE_JSON_OBJECT then return read_object(nodes, text, index, how) end
   if kind == C.TIDE_JSON_BOOL then return node.v.i ~= 0, index + 1 end
   return null, index + 1
end

local decode_opts = arg.set { 'name', 'limit', 'nonfinite', 'lossless' }

-- Returns the value of a JSON text. Objects and arrays are tables, null is json.null; integers
-- beyond 2^53 are 64-bit cdata. opts: name (put before messages), limit (most bytes accepted),
-- nonfinite (false: strict JSON; true: NaN, Infinity and { "__float__": "Infinity" } are numbers),
-- lossless (true: objects keep the order of their names, which json.keys returns, and numbers
-- written as 1.0 are boxed doubles, as of json.float). Raises E_FORMAT with line and column.
function M.decode(text, opts)
   arg.string('json.decode', 'text', text)
   opts = arg.opts('json.decode', opts, decode_opts)
   local limit = opts.limit and arg.int('json.decode', 'opts.limit', opts.limit, 1) or 0
   local name = opts.name and arg.string('json.decode', 'opts.name', opts.name)
   local how = {
      tags = opts.nonfinite and arg.flag('json.decode', 'opts.nonfinite', opts.nonfinite),
      lossless = opts.lossless and arg.flag('json.decode', 'opts.lossless', opts.lossless),
   }
   local flags = how.tags and C.TIDE_JSON_NONFINITE or 0
   local ctx = ctx_of.default().handle
   local box = new_json_box()
   own.check(ctx, C.tide_json_parse(box, ctx, text, #text, limit, flags, name))
   local json = own.handle(box[0], C.tide_json_release)
   local value = read(C.tide_json_nodes(json), C.tide_json_text(json), 0, how)
   own.finish(json, C.tide_json_release)
   return value
end

-- ---- encode ------------------------------------------------------------------------------------

local function refuse(path, message, ...)
   local place = path == '' and 'the value' or path
   status.raise(C.TIDE_E_ARG, 'json.encode', '%s: ' .. message, place, ...)
end

local escapes = { ['"'] = '\\"', ['\\'] = '\\\\', ['\b'] = '\\b', ['\f'] = '\\f', ['\n'] = '\\n',
   ['\r'] = '\\r', ['\t'] = '\\t' }

local function encode_string(s, path)
   local bad = C.tide_utf8_check(s, #s)
   if bad >= 0 then refuse(path, 'byte %d of the string is not UTF-8', tonumber(bad) + 1) end
   return '"' .. s:gsub('[%c"\\]', function(c)
      return escapes[c] or ('\\u%04x'):format(c:byte())
   end) .. '"'
end

local function encode_nonfinite(v, path, how)
   if not how.nonfinite then
      refuse(path, "JSON has no %s; opts.nonfinite = 'object' or 'word' writes it", tostring(v))
   end
   local word = v ~= v and 'NaN' or v > 0 and 'Infinity' or '-Infinity'
   return how.nonfinite == 'word' and word or ('{"__float__":"%s"}'):format(word)
end

local function encode_number(v, path, how)
   if v ~= v or v == math.huge or v == -math.huge then return encode_nonfinite(v, path, how) end
   if v == math.floor(v) and v >= -EXACT and v <= EXACT then return ('%.0f'):format(v) end
   local text
   for digits = 15, 17 do
      text = ('%.' .. digits .. 'g'):format(v)
      if tonumber(text) == v then break end
   end
   -- beyond 2^53, digits alone would be read as a boxed integer
   return text:find '^%-?%d+$' and text .. '.0' or text
end

local function encode_float(v, path, how)
   local text = encode_number(v, path, how)
   return text:find '^%-?%d+$' and text .. '.0' or text
end

-- Returns the length of a list, or nil and a reason if t is not a list.
local function list_length(t)
   local n = 0
   for key in each(t) do
      if type(key) ~= 'number' then return nil, 'a list with the key ' .. tostring(key) end
      n = n + 1
   end
   for i = 1, n do
      if t[i] == nil then return nil, 'a list with a hole at ' .. i end
   end
   return n
end

-- (value, path, how: { indent, nonfinite }, depth) -> text
local encode

local function sorted_keys(t, path)
   local keys = {}
   for key in each(t) do
      if type(key) ~= 'string' then
         refuse(path, 'a table with the key %s beside names', tostring(key))
      end
      keys[#keys + 1] = key
   end
   table.sort(keys)
   return keys
end

-- Returns the pieces between brackets, on lines of their own if indent is given.
local function enclose(left, pieces, right, indent, depth)
   if #pieces == 0 then return left .. right end
   if not indent then return left .. table.concat(pieces, ',') .. right end
   local inner = '\n' .. (' '):rep(indent * depth)
   return left .. inner .. table.concat(pieces, ',' .. inner) .. '\n'
      .. (' '):rep(indent * (depth - 1)) .. right
end

local function encode_table(t, path, how, depth)
   local indent = how.indent
   if t == null then return 'null' end
   if depth > 64 then refuse(path, 'nested deeper than 64 (or a table inside itself)') end
   local pieces = {}
   if getmetatable(t) == array_mt or t[1] ~= nil then
      local n, reason = list_length(t)
      if not n then refuse(path, '%s', reason) end
      for i = 1, n do pieces[i] = encode(t[i], path .. '[' .. i .. ']', how, depth + 1) end
      return enclose('[', pieces, ']', indent, depth)
   end
   local colon = indent and ': ' or ':'
   for i, key in ipairs(sorted_keys(t, path)) do
      local inner = path == '' and key or path .. '.' .. key
      pieces[i] = encode_string(key, inner) .. colon .. encode(t[key], inner, how, depth + 1)
   end
   return enclose('{', pieces, '}', indent, depth)
end

function encode(v, path, how, depth)
   local kind = type(v)
   if kind == 'string' then return encode_string(v, path) end
   if kind == 'number' then return encode_number(v, path, how) end
   if kind == 'boolean' then return tostring(v) end
   if kind == 'table' then return encode_table(v, path, how, depth) end
   if ffi.istype('int64_t', v) or ffi.istype('uint64_t', v) then
      return (tostring(v):gsub('U?LL$', ''))
   end
   if ffi.istype(double_t, v) then return encode_float(tonumber(v), path, how) end
   return refuse(path, 'JSON cannot hold %s', status.show(v))
end

local encode_opts = arg.set { 'indent', 'nonfinite' }

-- Returns the JSON text of a value. opts: indent (spaces a level), nonfinite (how infinite numbers
-- and NaN are written: 'object' as { "__float__": "Infinity" }, which is JSON; 'word' as Infinity,
-- which Python and its libraries read; nil: they are refused). Raises E_ARG naming the place.
function M.encode(value, opts)
   local op = 'json.encode'
   opts = arg.opts(op, opts, encode_opts)
   local nonfinite = opts.nonfinite
   if nonfinite ~= nil and nonfinite ~= 'object' and nonfinite ~= 'word' then
      status.bad_arg(op, 'opts.nonfinite', "'object', 'word' or nil", nonfinite)
   end
   return encode(value, '', { nonfinite = nonfinite,
      indent = opts.indent and arg.int(op, 'opts.indent', opts.indent, 0, 16) }, 1)
end

return M
