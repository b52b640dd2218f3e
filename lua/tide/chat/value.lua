-- Values of a template, with Python's types.
--
--    Python          here
--    None            json.null
--    bool, str       boolean, string (UTF-8)
--    int             number with an integral value below 2^53
--    float           Float { v }
--    list, tuple     List, Tuple: Lua lists with a metatable
--    dict            Dict { keys, map }: keys in order of insertion, map by hash key
--    generator       Gen { list, at }: consumed once
--    range           Range { start, stop, step } with its members as a list
--    Markup          Markup { s }: text that `escape` leaves alone
--    Undefined       Undefined { message }
--
-- A value is never nil.

local fault = require 'tide.chat.fault'
local fs = require 'tide.util.fs'
local sorted_keys = require('tide.util.pretty').sorted_keys
local utf = require 'tide.chat.unicode'

local value = {}

-- Returns a class: a metatable whose name is what Python calls the type.
local function kind(name)
   local class = { type_name = name }
   class.__index = class
   return class
end

local Float, List, Tuple, Dict = kind 'float', kind 'list', kind 'tuple', kind 'dict'
local Gen, Range, Markup = kind 'generator', kind 'range', kind 'Markup'
local Undefined = kind 'Undefined'
local Group = kind 'tuple'
local Callable, Namespace, Big = kind 'function', kind 'Namespace', kind 'int'

value.Float, value.List, value.Tuple, value.Dict = Float, List, Tuple, Dict
value.Gen, value.Range, value.Markup, value.Undefined = Gen, Range, Markup, Undefined
value.Callable, value.Namespace, value.Big, value.Group = Callable, Namespace, Big, Group

-- Returns an attribute of a pair of groupby, a tuple with names.
function Group.attribute(v, name)
   return name == 'grouper' and v[1] or name == 'list' and v[2] or nil
end

local none = fs.io().json.null
value.none = none

-- ---- constructors ------------------------------------------------------------------------------

-- Returns a float.
function value.float(v) return setmetatable({ v = v }, Float) end
-- Returns a list; the table is kept.
function value.list(items) return setmetatable(items or {}, List) end
-- Returns a tuple; the table is kept.
function value.tuple(items) return setmetatable(items or {}, Tuple) end
-- Returns an empty dict.
function value.dict() return setmetatable({ keys = {}, map = {} }, Dict) end
-- Returns a generator over a list; `what` is its name in Python.
function value.gen(items) return setmetatable({ list = items, at = 1 }, Gen) end
-- Returns text that needs no escaping.
function value.markup(s) return setmetatable({ s = s }, Markup) end
-- Returns an undefined value; using it raises `message`.
function value.undefined(message) return setmetatable({ message = message }, Undefined) end
-- Returns a function fn(rt, args, kwargs) of a template.
function value.callable(name, fn) return setmetatable({ name = name, fn = fn }, Callable) end

-- ---- types -------------------------------------------------------------------------------------

local plain = { string = 'str', boolean = 'bool', number = 'int' }

-- Returns the name of the type of a value in Python.
function value.type_name(v)
   if v == none then return 'NoneType' end
   return plain[type(v)] or getmetatable(v).type_name
end

-- Returns the class of a value that is a table, else nil.
function value.class(v) return type(v) == 'table' and getmetatable(v) or nil end

-- Returns whether a value is undefined.
function value.is_undefined(v) return value.class(v) == Undefined end

-- Returns the text of a str or Markup, else nil.
function value.text(v)
   if type(v) == 'string' then return v end
   return value.class(v) == Markup and v.s or nil
end

-- Returns the number of an int, float or bool, else nil; and whether it is a float.
function value.number(v)
   local t = type(v)
   if t == 'number' then return v, false end
   if t == 'boolean' then return v and 1 or 0, false end
   if value.class(v) == Float then return v.v, true end
   return nil
end

-- Returns the integer of an int or bool, else nil.
function value.integer(v)
   if type(v) == 'number' then return v end
   if type(v) == 'boolean' then return v and 1 or 0 end
   return nil
end

-- Whether a class is one of ordered sequences.
local sequence = { [List] = true, [Tuple] = true, [Range] = true, [Group] = true }
value.sequence = sequence

-- Returns bool(v) as Python does.
function value.truth(v)
   local t = type(v)
   if t == 'boolean' then return v end
   if t == 'string' then return v ~= '' end
   if t == 'number' then return v ~= 0 end
   if v == none then return false end
   local class = getmetatable(v)
   if sequence[class] then return #v > 0 end
   if class == Dict then return #v.keys > 0 end
   if class == Float then return v.v ~= 0 end
   if class == Markup then return v.s ~= '' end
   return class ~= Undefined
end

-- ---- keys of dicts -----------------------------------------------------------------------------

-- Returns the Lua key under which a dict keeps a value: equal values have equal keys.
local function hash_key(v)
   if type(v) == 'boolean' then return v and 1 or 0 end
   if type(v) ~= 'table' or v == none then return v end
   local class = getmetatable(v)
   if class == Float then return v.v == v.v and v.v or v end     -- NaN equals nothing but itself
   if class == Markup then return v.s end
   if class == Tuple then
      local parts = {}
      for i, item in ipairs(v) do
         local key = hash_key(item)
         parts[i] = type(key):sub(1, 1) .. #tostring(key) .. ':' .. tostring(key)
      end
      return '\0tuple ' .. table.concat(parts, ',')
   end
   if class == List or class == Dict then
      fault.raise("unhashable type: '%s'", class.type_name)
   end
   return v
end
value.hash_key = hash_key

-- Returns the value at a key, or nil.
function Dict:get(key) return self.map[hash_key(key)] end

-- Sets the value at a key; a new key is last in the order.
function Dict:set(key, v)
   local k = hash_key(key)
   if self.map[k] == nil then self.keys[#self.keys + 1] = key end
   self.map[k] = v
end

-- ---- iteration ---------------------------------------------------------------------------------

local function rest_of(gen)
   local items, at = gen.list, gen.at
   gen.at = #items + 1
   if at == 1 then return items end
   local list = {}
   for i = at, #items do list[#list + 1] = items[i] end
   return list
end

-- Returns the members of an iterable as a Lua list, which must not be changed; nil for values that
-- are not iterable. Consumes a generator.
function value.members(v)
   if type(v) == 'string' then return utf.chars(v) end
   local class = value.class(v)
   if sequence[class] then return v end
   if class == Dict then return v.keys end
   if class == Gen then return rest_of(v) end
   if class == Markup then return utf.chars(v.s) end
   if class == Undefined then return {} end
   return nil
end

-- Returns value.members(v), but raises Python's error for values that are not iterable.
function value.iterate(v)
   local items = value.members(v)
   if not items then fault.raise("'%s' object is not iterable", value.type_name(v)) end
   return items
end

-- Returns a copy of a Lua list.
function value.copied(list)
   local out = {}
   for i = 1, #list do out[i] = list[i] end
   return out
end

-- Returns Python's len(v), or nil.
function value.length(v)
   if type(v) == 'string' then return utf.length(v) end
   local class = value.class(v)
   if sequence[class] then return #v end
   if class == Dict then return #v.keys end
   if class == Markup then return utf.length(v.s) end
   if class == Undefined then return 0 end
   if class and class.length then return class.length(v) end
   return nil
end

-- ---- comparison --------------------------------------------------------------------------------

local equal

-- Returns whether a and b count as the same member of a list or dict: they are one object (NaN,
-- too), or equal.
local function same(a, b) return rawequal(a, b) or equal(a, b) end
value.same = same

local function equal_lists(a, b)
   if #a ~= #b then return false end
   for i = 1, #a do
      if not same(a[i], b[i]) then return false end
   end
   return true
end

local function equal_dicts(a, b)
   if #a.keys ~= #b.keys then return false end
   for _, key in ipairs(a.keys) do
      local other = b:get(key)
      if other == nil or not same(a:get(key), other) then return false end
   end
   return true
end

-- Returns a == b as Python does.
function equal(a, b)
   if rawequal(a, b) then return not (value.class(a) == Float and a.v ~= a.v) end
   local x, y = value.number(a), value.number(b)
   if x or y then return x == y end
   x, y = value.text(a), value.text(b)
   if x or y then return x == y end
   local class = value.class(a)
   if not class or class ~= value.class(b) then return false end
   if sequence[class] then return equal_lists(a, b) end
   if class == Dict then return equal_dicts(a, b) end
   if class == Big then return a.text == b.text end
   return class == Undefined
end
value.equal = equal

local less

local function less_lists(a, b)
   for i = 1, math.min(#a, #b) do
      if not same(a[i], b[i]) then return less(a[i], b[i]) end
   end
   return #a < #b
end

-- Returns a < b as Python does; sign is the operator of the message.
function less(a, b, sign)
   local x, y = value.number(a), value.number(b)
   if x and y then return x < y end
   x, y = value.text(a), value.text(b)
   if x and y then return x < y end
   local class = value.class(a)
   if class and class == value.class(b) and (class == List or class == Tuple) then
      return less_lists(a, b)
   end
   for _, v in ipairs { a, b } do
      if value.is_undefined(v) then fault.raise('%s', v.message) end
   end
   fault.raise("'%s' not supported between instances of '%s' and '%s'", sign or '<',
      value.type_name(a), value.type_name(b))
end
value.less = less

-- ---- from Lua ----------------------------------------------------------------------------------

local from_lua

-- Returns the keys of a Lua table: first those that json.decode noted, in its order, then the
-- others, sorted.
local function keys_of(t)
   local list, seen = {}, {}
   for _, key in ipairs(fs.io().json.keys(t) or {}) do
      list[#list + 1], seen[key] = key, key
   end
   for _, key in ipairs(sorted_keys(t)) do
      if not seen[key] then list[#list + 1] = key end
   end
   return list
end

local function from_table(t, depth)
   if depth > 200 then fault.raise 'data are nested deeper than 200 tables' end
   if fs.is_list(t) then
      local list = value.list()
      for i, item in ipairs(t) do list[i] = from_lua(item, depth + 1) end
      return list
   end
   local dict = value.dict()
   for _, key in ipairs(keys_of(t)) do
      if t[key] ~= nil then dict:set(key, from_lua(t[key], depth + 1)) end
   end
   return dict
end

-- Returns the value of plain Lua data: strings, numbers, booleans, json.null, lists and tables with
-- names. Whole numbers are ints; an empty table is a dict unless json.array made it.
function from_lua(v, depth)
   local t = type(v)
   if t == 'string' or t == 'boolean' or v == none then return v end
   if t == 'number' then
      if v == math.floor(v) and math.abs(v) < 2^53 then return v end
      return value.float(v)
   end
   if t == 'table' then return from_table(v, depth or 0) end
   if t == 'cdata' then
      local text = tostring(v)
      local digits = text:match '^(%-?%d+)U?LL$'
      if digits then return setmetatable({ text = digits }, Big) end
      return value.float(tonumber(v))
   end
   fault.raise('a %s is no data of a template', t)
end
value.from_lua = from_lua

return value
