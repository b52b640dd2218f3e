-- Arguments of functions, filters and methods of a template.
--
-- A call has a Lua list of values, and { names, map } of those given by name, or nil.

local fault = require 'tide.chat.fault'
local value = require 'tide.chat.value'

local bind = {}

-- Returns no arguments by name.
function bind.none() return { names = {}, map = {} } end

-- Returns the arguments in the order of names; nil where one is not given. need: how many must be
-- given (0).
function bind.values(op, args, kwargs, names, need)
   local out = {}
   if #args > #names then
      fault.raise('%s() takes at most %d arguments, got %d', op, #names, #args)
   end
   for i = 1, #args do out[i] = args[i] end
   for _, name in ipairs(kwargs and kwargs.names or {}) do
      local at
      for i, known in ipairs(names) do
         if known == name then at = i end
      end
      if not at then fault.raise("%s() got an unexpected keyword argument '%s'", op, name) end
      if out[at] ~= nil then fault.raise("%s() got multiple values for argument '%s'", op, name) end
      out[at] = kwargs.map[name]
   end
   for i = 1, need or 0 do
      if out[i] == nil then fault.raise("%s() misses the argument '%s'", op, names[i]) end
   end
   return unpack(out, 1, #names)
end

-- Returns an argument that must be an integer.
function bind.integer(op, name, v)
   return value.integer(v) or fault.raise("%s() takes an integer as '%s', got %s", op, name,
      value.type_name(v))
end

return bind
