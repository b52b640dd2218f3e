-- JSON as Lua values (layer 7): decode walks the flat nodes of tide_json_parse, encode is Lua.
--
-- An array becomes a list with the metatable json.array (so that an empty one stays an array), an
-- object a plain table, null the value json.null. Integers are Lua numbers up to 2^53 and boxed
-- 64-bit integers (int64_t) beyond, so no digit is ever lost; other numbers are doubles.
-- encode(decode(text)) has the same values as text; keys come sorted.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local status = require 'tide.ffi.status'
local ctx_of = require 'tide.ffi.ctx'
local each = pairs -- by another name: see "two faults" in bindings/README.md
local C = lib.C

local M = {}

-- The identity of null and of array survives a reload of the Lua modules.
lib.state.json = lib.state.json or {
   null = setmetatable({}, { __tostring = function() return 'null' end, __name = 'json.null' }),
   array = { __name = 'json.array' },
}
M.null = lib.state.json.null
local null, array_mt = M.null, lib.state.json.array

-- Marks a list (default: a new one) as an array and returns it; needed for empty ones only.
function M.array(list)
   if type(list) == 'nil' then list = {} end
   if type(list) ~= 'table' then status.bad_arg('json.array', 'list', 'a list or nil', list) end
   return setmetatable(list, array_mt)
end

-- ---- decode ------------------------------------------------------------------------------------

local json_box = ffi.new 'tide_json *[1]'
local EXACT = arg.exact

local read                                 -- (nodes, text, index) -> value, next index

local function read_array(nodes, text, index)
   local list = setmetatable({}, array_mt)
   local at = index + 1
   for i = 1, nodes[index].count do list[i], at = read(nodes, text, at) end
   return list, at
end

local function read_object(nodes, text, index)
   local object = {}
   local at = index + 1
   for _ = 1, nodes[index].count do
      local key = nodes[at]
      local name = ffi.string(text + key.v.i, key.count)
      object[name], at = read(nodes, text, at + 1)
   end
   return object, at
end

function read(nodes, text, index)
   local node = nodes[index]
   local kind = node.kind
   if kind == C.TIDE_JSON_STRING then return ffi.string(text + node.v.i, node.count), index + 1 end
   if kind == C.TIDE_JSON_NUMBER then return node.v.d, index + 1 end
   if kind == C.TIDE_JSON_INT then
      local v = node.v.i                    -- compared as a 64-bit integer, before any rounding
      if v >= -EXACT and v <= EXACT then return tonumber(v), index + 1 end
      return v, index + 1
   end
   if kind == C.TIDE_JSON_ARRAY then return read_array(nodes, text, index) end
   if kind == C.TIDE_JSON_OBJECT then return read_object(nodes, text, index) end
   if kind == C.TIDE_JSON_BOOL then return node.v.i ~= 0, index + 1 end
   return null, index + 1
end

local decode_opts = arg.set { 'name', 'limit' }

-- The value of a JSON text. Objects and arrays are tables, null is json.null; integers beyond 2^53
-- are 64-bit cdata. opts: name (put before messages), limit (most bytes accepted). Raises E_FORMAT
-- with line and column.
function M.decode(text, opts)
   arg.string('json.decode', 'text', text)
   opts = arg.opts('json.decode', opts, decode_opts)
   local limit = opts.limit and arg.int('json.decode', 'opts.limit', opts.limit, 1) or 0
   local name = opts.name and arg.string('json.decode', 'opts.name', opts.name)
   local ctx = ctx_of.default().handle
   own.check(ctx, C.tide_json_parse(json_box, ctx, text, #text, limit, name))
   local json = own.handle(json_box[0], C.tide_json_release)
   local value = read(C.tide_json_nodes(json), C.tide_json_text(json), 0)
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
   if bad >= 0 then
      refuse(path, 'byte %d of the string is not UTF-8', tonumber(bad) + 1)
   end
   return '"' .. s:gsub('[%c"\\]', function(c)
      return escapes[c] or ('\\u%04x'):format(c:byte())
   end) .. '"'
end

local function encode_number(v, path)
   if v ~= v or v == math.huge or v == -math.huge then
      refuse(path, 'JSON has no %s', tostring(v))
   end
   if v == math.floor(v) and v >= -EXACT and v <= EXACT then return ('%.0f'):format(v) end
   for digits = 15, 16 do
      local text = ('%.' .. digits .. 'g'):format(v)
      if tonumber(text) == v then return text end
   end
   return ('%.17g'):format(v)
end

-- Length of a list, or nil and a reason if t is not one.
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

-- The pieces between brackets, on lines of their own if indent is given.
local function enclose(left, pieces, right, indent, depth)
   if #pieces == 0 then return left .. right end
   if not indent then return left .. table.concat(pieces, ',') .. right end
   local inner = '\n' .. (' '):rep(indent * depth)
   return left .. inner .. table.concat(pieces, ',' .. inner) .. '\n'
      .. (' '):rep(indent * (depth - 1)) .. right
end

local function encode_table(t, path, indent, depth)
   if t == null then return 'null' end
   if depth > 64 then refuse(path, 'nested deeper than 64 (or a table inside itself)') end
   local pieces = {}
   if getmetatable(t) == array_mt or t[1] ~= nil then
      local n, reason = list_length(t)
      if not n then refuse(path, '%s', reason) end
      for i = 1, n do pieces[i] = encode(t[i], path .. '[' .. i .. ']', indent, depth + 1) end
      return enclose('[', pieces, ']', indent, depth)
   end
   local colon = indent and ': ' or ':'
   for i, key in ipairs(sorted_keys(t, path)) do
      local inner = path == '' and key or path .. '.' .. key
      pieces[i] = encode_string(key, inner) .. colon .. encode(t[key], inner, indent, depth + 1)
   end
   return enclose('{', pieces, '}', indent, depth)
end

function encode(v, path, indent, depth)
   local kind = type(v)
   if kind == 'string' then return encode_string(v, path) end
   if kind == 'number' then return encode_number(v, path) end
   if kind == 'boolean' then return tostring(v) end
   if kind == 'table' then return encode_table(v, path, indent, depth) end
   if ffi.istype('int64_t', v) or ffi.istype('uint64_t', v) then
      return (tostring(v):gsub('U?LL$', ''))
   end
   return refuse(path, 'JSON cannot hold %s', status.show(v))
end

local encode_opts = arg.set { 'indent' }

-- JSON text of a value. opts.indent: spaces a level, for people. Raises E_ARG naming the place.
function M.encode(value, opts)
   opts = arg.opts('json.encode', opts, encode_opts)
   local indent = opts.indent and arg.int('json.encode', 'opts.indent', opts.indent, 0, 16)
   return encode(value, '', indent, 1)
end

return M
