-- Single inheritance in plain metatables.
--
-- A class is the metatable of its instances and its own __index, so a method call costs one table
-- look-up and a stack trace shows ordinary functions. The parent's constructor is called by name:
-- `Module.init(self)`.
--
--    local Linear = class('Linear', Module)
--    function Linear:init(n_in, n_out) Module.init(self) ... end
--    local m = Linear(3, 4)          -- or Linear.new(3, 4)
--    m:is(Linear)  m:is(Module)      -- true, true; class.is(x, Linear) takes any value
--    Linear.super == Module          Linear.class_name == 'Linear'
--
-- Metamethods (__call, __newindex, ...) of a parent are copied when the child is made, so define
-- them before making children; an __index of a parent only if it is a function. The method `made`
-- is called when the constructor has returned. Instances of a class without __tostring print as
-- "Linear: 0x...".

local each = require 'tide.util.each'

local class = {}

-- Returns whether value, of any type, is an instance of cls or of a class made from it.
function class.is(value, cls)
   local mt = type(value) == 'table' and getmetatable(value) or nil
   while type(mt) == 'table' do
      if mt == cls then return true end
      mt = rawget(mt, 'super')
   end
   return false
end

local function default_tostring(self)
   local cls = getmetatable(self)
   local saved = cls.__tostring
   cls.__tostring = nil                    -- the plain form holds the address
   local plain = tostring(self)
   cls.__tostring = saved
   return (plain:gsub('^table', cls.class_name))
end

local class_meta = {
   __call = function(cls, ...) return cls.new(...) end,
   __tostring = function(cls) return 'class ' .. cls.class_name end,
}

local function inherit(cls, parent)
   for key, value in each(parent) do
      if type(key) == 'string' and key:find('^__') and (key ~= '__index' or value ~= parent) then
         cls[key] = value
      end
   end
   return { __index = parent, __call = class_meta.__call, __tostring = class_meta.__tostring }
end

-- Makes a class. name is for messages; parent (optional) is a class made here.
local function define(_, name, parent)
   if type(name) ~= 'string' then
      error('class: the name must be a string, got ' .. type(name), 2)
   end
   if parent ~= nil and not (type(parent) == 'table' and rawget(parent, 'class_name')) then
      error('class ' .. name .. ': the parent must be a class, got ' .. type(parent), 2)
   end
   local cls = { class_name = name, super = parent }
   local meta = parent and inherit(cls, parent) or class_meta
   cls.__index = rawget(cls, '__index') or cls
   cls.__tostring = cls.__tostring or default_tostring
   cls.is = class.is
   function cls.new(...)
      local self = setmetatable({}, cls)
      local init = cls.init
      if init then init(self, ...) end
      local made = cls.made
      if made then made(self) end
      return self
   end
   return setmetatable(cls, meta)
end

return setmetatable(class, { __call = define })
