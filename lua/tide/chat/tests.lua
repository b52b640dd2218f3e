-- Tests of templates (`x is name`): fn(rt, v, args) -> boolean.

local each = require 'tide.util.each'
local fault = require 'tide.chat.fault'
local utf = require 'tide.chat.unicode'
local value = require 'tide.chat.value'

local tests = {}

-- Raises unless the test has n arguments.
local function wanted(name, args, n)
   if #args ~= n then fault.raise("the test '%s' takes %d argument(s), got %d", name, n, #args) end
   return args[1]
end

-- Returns whether a is a member of b, as Python's `a in b`.
function tests.contains(a, b)
   local s = value.text(b)
   if s then
      local part = value.text(a)
      if not part then
         fault.raise("'in <string>' requires string as left operand, not %s", value.type_name(a))
      end
      return s:find(part, 1, true) ~= nil
   end
   local class = value.class(b)
   if class == value.Dict then return b:get(a) ~= nil end
   if class == value.Gen then
      while b.at <= #b.list do
         b.at = b.at + 1
         if value.same(a, b.list[b.at - 1]) then return true end
      end
      return false
   end
   local items = value.members(b)
   if not items then
      fault.raise("argument of type '%s' is not iterable", value.type_name(b))
   end
   for _, item in ipairs(items) do
      if value.same(a, item) then return true end
   end
   return false
end

local T = {}
tests.table = T

function T.defined(_, v) return not value.is_undefined(v) end
function T.undefined(_, v) return value.is_undefined(v) end
function T.none(_, v) return v == value.none end
function T.string(_, v) return value.text(v) ~= nil end
function T.mapping(_, v) return value.class(v) == value.Dict end
function T.boolean(_, v) return type(v) == 'boolean' end
T['true'] = function(_, v) return v == true end
T['false'] = function(_, v) return v == false end
function T.number(_, v) return value.number(v) ~= nil or value.class(v) == value.Big end

function T.integer(_, v) return type(v) == 'number' or value.class(v) == value.Big end
function T.float(_, v) return value.class(v) == value.Float end
function T.iterable(_, v) return value.members(v) ~= nil end
function T.callable(_, v)
   local class = value.class(v)
   return class == value.Callable or class ~= nil and class.call ~= nil or class == value.Undefined
end

-- Returns whether v has len() and [..], as in Python; so dicts and texts are sequences, too.
function T.sequence(_, v) return value.length(v) ~= nil and value.class(v) ~= value.Namespace end

function T.escaped(_, v) return value.class(v) == value.Markup end
function T.sameas(_, v, args) return rawequal(v, wanted('sameas', args, 1)) end

function T.upper(_, v) return utf.is_in_case(require('tide.chat.show').str(v), utf.upper) end
function T.lower(_, v) return utf.is_in_case(require('tide.chat.show').str(v), utf.lower) end

-- ---- numbers -----------------------------------------------------------------------------------

local function remainder(rt, v, by)
   return value.number(require('tide.chat.number').binary(rt, '%', v, by))
end

function T.odd(rt, v) return remainder(rt, v, 2) == 1 end
function T.even(rt, v) return remainder(rt, v, 2) == 0 end
function T.divisibleby(rt, v, args)
   return remainder(rt, v, wanted('divisibleby', args, 1)) == 0
end

-- The tests above that take an argument; the others take none.
local with_argument = { sameas = true, divisibleby = true }

local function without_arguments(name, fn)
   return function(rt, v, args)
      wanted(name, args, 0)
      return fn(rt, v)
   end
end

local alone = {}
for name, fn in each(T) do
   if not with_argument[name] then alone[name] = without_arguments(name, fn) end
end
for name, fn in each(alone) do T[name] = fn end

-- ---- comparison --------------------------------------------------------------------------------

local function less_equal(a, b, sign) return value.less(a, b, sign) or value.equal(a, b) end

-- Comparisons by their sign: fn(a, b).
tests.compare = {
   ['=='] = value.equal,
   ['!='] = function(a, b) return not value.equal(a, b) end,
   ['<'] = function(a, b) return value.less(a, b, '<') end,
   ['<='] = function(a, b) return less_equal(a, b, '<=') end,
   ['>'] = function(a, b) return value.less(b, a, '>') end,
   ['>='] = function(a, b) return less_equal(b, a, '>=') end,
   ['in'] = tests.contains,
   ['not in'] = function(a, b) return not tests.contains(a, b) end,
}

for sign, names in each { ['=='] = 'eq equalto ==', ['!='] = 'ne !=',
   ['<'] = 'lt lessthan <', ['<='] = 'le <=', ['>'] = 'gt greaterthan >', ['>='] = 'ge >=',
   ['in'] = 'in' } do
   local compare = tests.compare[sign]
   for name in names:gmatch '%S+' do
      T[name] = function(_, v, args) return compare(v, wanted(name, args, 1)) end
   end
end

function T.filter(rt, v) return rt.filters[v] ~= nil end
function T.test(rt, v) return rt.tests[v] ~= nil end

return tests
