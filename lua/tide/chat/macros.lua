-- Macros: arguments and calls.

local fault = require 'tide.chat.fault'
local value = require 'tide.chat.value'

local Macro = { type_name = 'Macro' }

-- Returns an attribute of a macro, or nil.
function Macro.attribute(v, name)
   if name == 'name' then return v.name end
   if name == 'caller' then return v.node.uses_caller end
   if name == 'catch_kwargs' then return v.node.uses_kwargs end
   if name == 'catch_varargs' then return v.node.uses_varargs end
   if name ~= 'arguments' then return nil end
   local list = {}
   for i, row in ipairs(v.node.parameters) do list[i] = row.name end
   return value.tuple(list)
end

-- Returns a copy of the keyword arguments of a call, from which entries are removed.
local function taken(kwargs)
   local map = {}
   for _, name in ipairs(kwargs and kwargs.names or {}) do map[name] = kwargs.map[name] end
   return map
end

-- Sets the parameters of a macro from a call's arguments.
local function set_parameters(macro, vars, args, map, default_of)
   local missing = {}
   for i, row in ipairs(macro.node.parameters) do
      local v = args[i]
      if v == nil then v, map[row.name] = map[row.name], nil end
      if v == nil then missing[#missing + 1] = row else vars[row.name] = v end
   end
   for _, row in ipairs(missing) do
      vars[row.name] = value.undefined(("parameter '%s' was not provided"):format(row.name))
      if row.default then vars[row.name] = default_of(row.default) end
   end
end

-- Returns the keyword arguments that no parameter took, as a dict (`kwargs`).
local function left_over(kwargs, map)
   local dict = value.dict()
   for _, name in ipairs(kwargs and kwargs.names or {}) do
      if map[name] ~= nil then dict:set(name, map[name]) end
   end
   return dict
end

-- Sets the variables `caller`, `varargs` and `kwargs` of a macro.
local function set_special(macro, vars, args, kwargs, map)
   local node, n = macro.node, #macro.node.parameters
   if node.uses_caller and vars.caller == nil then
      vars.caller, map.caller = map.caller, nil
      vars.caller = vars.caller or value.undefined 'No caller defined'
   end
   local rest = left_over(kwargs, map)
   if node.uses_kwargs then
      vars.kwargs = rest
   elseif rest.keys[1] then
      fault.raise("macro '%s' takes no keyword argument '%s'", macro.name, rest.keys[1])
   end
   if node.uses_varargs then
      vars.varargs = value.tuple { unpack(args, n + 1) }
   elseif #args > n then
      fault.raise("macro '%s' takes not more than %d argument(s)", macro.name, n)
   end
end

-- Calls a macro; returns the text it writes.
function Macro.call(rt, v, args, kwargs)
   rt:enter()
   local text = v.run(rt, function(vars, default_of)
      local map = taken(kwargs)
      set_parameters(v, vars, args, map, default_of)
      set_special(v, vars, args, kwargs, map)
   end)
   rt:leave()
   return text
end

local macros = {}

-- Returns a macro. run(rt, fill): calls fill(vars, default_of), runs the body, returns its text.
function macros.new(node, name, run)
   return setmetatable({ node = node, name = name, run = run }, Macro)
end

return macros
