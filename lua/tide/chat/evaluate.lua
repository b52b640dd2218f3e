-- Values of expressions: evaluate[kind](rt, node, scope).

local access = require 'tide.chat.access'
local bind = require 'tide.chat.bind'
local fault = require 'tide.chat.fault'
local number = require 'tide.chat.number'
local show = require 'tide.chat.show'
local tests = require 'tide.chat.tests'
local value = require 'tide.chat.value'

local E = {}

-- Returns the value of a tree. Counts a step and sets rt.node, whose place errors report.
local function evaluate(rt, node, scope)
   rt:step(node)
   return E[node.kind](rt, node, scope)
end

function E.const(_, node) return node.value end
function E.float(_, node) return value.float(node.value) end
function E.none() return value.none end
function E.block_text(rt) return rt.captured end

function E.name(rt, node, scope)
   local name = node.name
   local at = scope
   while at do
      local v = at.vars[name]
      if v ~= nil then return v end
      at = at.parent
   end
   local v = rt.context[name]
   if v == nil then v = rt.globals[name] end
   if v ~= nil then return v end
   return value.undefined(("'%s' is undefined"):format(name))
end

-- ---- displays ----------------------------------------------------------------------------------

local function all(rt, nodes, scope)
   local list = {}
   for i, node in ipairs(nodes) do list[i] = evaluate(rt, node, scope) end
   return list
end

function E.list(rt, node, scope) return value.list(all(rt, node.items, scope)) end
function E.tuple(rt, node, scope) return value.tuple(all(rt, node.items, scope)) end

function E.dict(rt, node, scope)
   local dict = value.dict()
   for i, key in ipairs(node.keys) do
      local k = evaluate(rt, key, scope)
      dict:set(k, evaluate(rt, node.values[i], scope))
   end
   return dict
end

-- ---- operators ---------------------------------------------------------------------------------

E['or'] = function(rt, node, scope)
   local left = evaluate(rt, node.left, scope)
   if value.truth(left) then return left end
   return evaluate(rt, node.right, scope)
end

E['and'] = function(rt, node, scope)
   local left = evaluate(rt, node.left, scope)
   if not value.truth(left) then return left end
   return evaluate(rt, node.right, scope)
end

E['not'] = function(rt, node, scope)
   return not value.truth(evaluate(rt, node.value, scope))
end

function E.cond(rt, node, scope)
   if value.truth(evaluate(rt, node.test, scope)) then return evaluate(rt, node.yes, scope) end
   if node.no then return evaluate(rt, node.no, scope) end
   return value.undefined 'an inline if without else was false, so it has no value'
end

function E.compare(rt, node, scope)
   local left = evaluate(rt, node.first, scope)
   for _, row in ipairs(node.rest) do
      local right = evaluate(rt, row.value, scope)
      rt.node = node
      if not tests.compare[row.sign](left, right) then return false end
      left = right
   end
   return true
end

function E.binary(rt, node, scope)
   local left = evaluate(rt, node.left, scope)
   local right = evaluate(rt, node.right, scope)
   rt.node = node
   return number.binary(rt, node.sign, left, right)
end

function E.unary(rt, node, scope)
   local v = evaluate(rt, node.value, scope)
   rt.node = node
   return number.unary(node.sign, v)
end

function E.concat(rt, node, scope)
   local parts, size = {}, 0
   for i, part in ipairs(node) do
      parts[i] = show.str(evaluate(rt, part, scope))
      size = size + #parts[i]
   end
   rt:room(size)
   return table.concat(parts)
end

-- ---- parts of values ---------------------------------------------------------------------------

function E.attribute(rt, node, scope)
   local v = evaluate(rt, node.value, scope)
   rt.node = node
   return access.attribute(rt, v, node.name)
end

function E.item(rt, node, scope)
   local v = evaluate(rt, node.value, scope)
   local key = evaluate(rt, node.index, scope)
   rt.node = node
   return access.item(rt, v, key)
end

function E.slice(rt, node, scope)
   local v, part = evaluate(rt, node.value, scope), {}
   for i = 1, 3 do part[i] = node[i] and evaluate(rt, node[i], scope) end
   rt.node = node
   return access.slice(v, part[1], part[2], part[3])
end

-- ---- calls -------------------------------------------------------------------------------------

local function name_argument(kwargs, name, v)
   if kwargs.map[name] == nil then kwargs.names[#kwargs.names + 1] = name
   else fault.raise("got multiple values for keyword argument '%s'", name) end
   kwargs.map[name] = v
end

-- Returns the values of a call's arguments: a list, and those by name or nil.
local function arguments(rt, args, scope)
   local list, kwargs = all(rt, args, scope), nil
   if args.star then
      for _, v in ipairs(value.iterate(evaluate(rt, args.star, scope))) do list[#list + 1] = v end
   end
   if args.named[1] or args.stars then kwargs = bind.none() end
   for _, row in ipairs(args.named) do
      name_argument(kwargs, row.name, evaluate(rt, row.value, scope))
   end
   if args.stars then
      local more = evaluate(rt, args.stars, scope)
      if value.class(more) ~= value.Dict then
         fault.raise('argument after ** must be a mapping, not %s', value.type_name(more))
      end
      for _, key in ipairs(more.keys) do name_argument(kwargs, show.str(key), more:get(key)) end
   end
   return list, kwargs
end

-- Calls a value of a template.
local function call(rt, callee, args, kwargs)
   local class = value.class(callee)
   if class == value.Callable then return callee.fn(rt, args, kwargs) end
   if class and class.call then return class.call(rt, callee, args, kwargs) end
   if class == value.Undefined then fault.raise('%s', callee.message) end
   fault.raise("'%s' object is not callable", value.type_name(callee))
end

function E.call(rt, node, scope)
   local callee = evaluate(rt, node.callee, scope)
   local args, kwargs = arguments(rt, node.args, scope)
   if node.caller then
      kwargs = kwargs or bind.none()
      name_argument(kwargs, 'caller', node.caller)
   end
   rt.node = node
   return call(rt, callee, args, kwargs)
end

for _, kind in ipairs { 'filter', 'test' } do
   E[kind] = function(rt, node, scope)
      local v = evaluate(rt, node.value, scope)
      local args, kwargs = arguments(rt, node.args, scope)
      rt.node = node
      local fn = rt[kind .. 's'][node.name]
      if not fn then fault.coded('E_UNSUPPORTED', "there is no %s '%s'", kind, node.name) end
      return fn(rt, v, args, kwargs)
   end
end

return evaluate
