-- Methods of values: fn(rt, v, args, kwargs).

local bind = require 'tide.chat.bind'
local each = require 'tide.util.each'
local fault = require 'tide.chat.fault'
local value = require 'tide.chat.value'

local methods = {}

local dict, list, range = {}, {}, {}

function dict.get(_, v, args, kwargs)
   local key, default = bind.values('get', args, kwargs, { 'key', 'default' }, 1)
   local found = v:get(key)
   if found ~= nil then return found end
   return default == nil and value.none or default
end

-- Marks a list as a view of a dict, which Python prints with its name.
local function as_view(list_, name)
   list_.view = name
   return list_
end

function dict.keys(_, v) return as_view(value.list(value.copied(v.keys)), 'dict_keys') end

function dict.values(_, v)
   local out = value.list()
   for i, key in ipairs(v.keys) do out[i] = v:get(key) end
   return as_view(out, 'dict_values')
end

-- Returns the entries of a dict as a list of tuples.
function methods.items(v)
   local out = value.list()
   for i, key in ipairs(v.keys) do out[i] = value.tuple { key, v:get(key) } end
   return out
end

function dict.items(_, v) return as_view(methods.items(v), 'dict_items') end

function dict.copy(_, v)
   local out = value.dict()
   for _, key in ipairs(v.keys) do out:set(key, v:get(key)) end
   return out
end

function list.count(_, v, args, kwargs)
   local wanted, n = bind.values('count', args, kwargs, { 'value' }, 1), 0
   for _, item in ipairs(v) do
      if value.same(item, wanted) then n = n + 1 end
   end
   return n
end

function list.index(_, v, args, kwargs)
   local wanted = bind.values('index', args, kwargs, { 'value' }, 1)
   for i, item in ipairs(v) do
      if value.same(item, wanted) then return i - 1 end
   end
   fault.raise 'the list does not have the value that index() looks for'
end

function list.copy(_, v) return value.list(value.copied(v)) end

range.count, range.index = list.count, list.index

local by_class = {
   [value.Dict] = dict, [value.List] = list, [value.Tuple] = { count = list.count,
      index = list.index }, [value.Range] = range,
}

-- Methods that change a value; a template must not call them.
local unsafe = {}
for class, names in each {
   [value.Dict] = 'clear pop popitem setdefault update',
   [value.List] = 'append clear pop reverse insert sort extend remove',
} do
   unsafe[class] = {}
   for name in names:gmatch '%a+' do unsafe[class][name] = true end
end

-- Returns the method of a value by name, or nil. Raises at a method that changes the value.
function methods.find(v, name)
   local class = value.class(v)
   if value.text(v) then return require('tide.chat.text_methods').find(v, name) end
   if unsafe[class] and unsafe[class][name] then
      fault.raise("access to attribute '%s' of '%s' object is unsafe; templates change no values",
         name, value.type_name(v))
   end
   return by_class[class] and by_class[class][name]
end

return methods
