-- Attributes, items and slices of values.

local fault = require 'tide.chat.fault'
local show = require 'tide.chat.show'
local utf = require 'tide.chat.unicode'
local value = require 'tide.chat.value'

local access = {}

-- Returns the name of a value in Jinja's messages about missing attributes.
local function object_name(v)
   if v == value.none then return 'None' end
   return value.type_name(v) .. ' object'
end

-- Returns the undefined value of a name or index that a value does not have.
local function missing(v, key)
   if type(key) == 'string' then
      return value.undefined(("'%s' has no attribute '%s'"):format(object_name(v), key))
   end
   local shown = value.is_undefined(key) and 'Undefined' or show.repr(key)
   return value.undefined(('%s has no element %s'):format(object_name(v), shown))
end

-- Returns the member of a text or sequence at an index (negative: from its end), or nil.
local function member(v, index)
   local n = value.integer(index)
   if not n then return nil end
   local s, length = value.text(v), value.length(v)
   if n < 0 then n = n + length end
   if n < 0 or n >= length then return nil end
   if not s then return v[n + 1] end
   local c = utf.sub(s, n, n + 1)
   return type(v) == 'string' and c or value.markup(c)
end

-- Returns v[key] or nil.
local function subscript(v, key)
   local class = value.class(v)
   if class == value.Undefined then fault.raise('%s', v.message) end
   if class == value.Dict then
      local of = value.class(key)
      if of == value.List or of == value.Dict then return nil end
      return v:get(key)
   end
   if value.text(v) or value.sequence[class] then return member(v, key) end
   return nil
end

-- Returns v[key], else the attribute of that name, else undefined.
function access.item(rt, v, key)
   local found = subscript(v, key)
   if found ~= nil then return found end
   local name = value.text(key)
   found = name and access.own(rt, v, name)
   if found ~= nil and found ~= false then return found end
   return missing(v, key)
end

-- Returns an attribute that values of this type have, or nil.
function access.own(rt, v, name)
   local class = value.class(v)
   if class == value.Undefined then fault.raise('%s', v.message) end
   if class == value.Namespace then return v.fields:get(name) end
   if class and class.attribute then return class.attribute(v, name, rt) end
   local method = require('tide.chat.methods').find(v, name)
   if not method then return nil end
   return value.callable(name, function(runtime, args, kwargs)
      return method(runtime, v, args, kwargs)
   end)
end

-- Returns v.name, else v['name'], else undefined.
function access.attribute(rt, v, name)
   local found = access.own(rt, v, name)
   if found ~= nil then return found end
   found = subscript(v, name)
   if found ~= nil then return found end
   return missing(v, name)
end

-- ---- slices ------------------------------------------------------------------------------------

local function bound(v, length, low, high, default)
   if v == nil or v == value.none then return default end
   local n = value.integer(v)
   if not n then fault.raise 'slice indices must be integers or None' end
   if n < 0 then n = n + length end
   return math.max(low, math.min(high, n))
end

local function indices(length, first, stop, step)
   local by = (step == nil or step == value.none) and 1 or value.integer(step)
   if not by then fault.raise 'slice indices must be integers or None' end
   if by == 0 then fault.raise 'slice step cannot be zero' end
   local is_back = by < 0
   local low, high = is_back and -1 or 0, is_back and length - 1 or length
   local from = bound(first, length, low, high, is_back and high or low)
   local to = bound(stop, length, low, high, is_back and low or high)
   return from, to, by
end

local function picked(items, from, to, by, list)
   for i = from, to - by / math.abs(by), by do list[#list + 1] = items[i + 1] end
   return list
end

-- Returns v[first:stop:step].
function access.slice(v, first, stop, step)
   local s, class = value.text(v), value.class(v)
   if class == value.Undefined then fault.raise('%s', v.message) end
   if not s and not value.sequence[class] then
      fault.raise("'%s' object is not subscriptable", value.type_name(v))
   end
   local from, to, by = indices(value.length(v), first, stop, step)
   if s then
      local text = by == 1 and utf.sub(s, from, to)
         or table.concat(picked(utf.chars(s), from, to, by, {}))
      return type(v) == 'string' and text or value.markup(text)
   end
   if class == value.Range then
      local list = picked(v, from, to, by, {})
      list.start, list.step = v.start + from * v.step, v.step * by
      list.stop = v.start + to * v.step
      return setmetatable(list, value.Range)
   end
   return picked(v, from, to, by, setmetatable({}, class))
end

return access
