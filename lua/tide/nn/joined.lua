-- Linear children that read the same input (field shared_input of a class): one product for all.
--
-- Their weights lie one after another in one tensor, and their biases in another, so that
-- tide.linear_joined makes one product of them. Each is a parameter of its own as before. A child
-- with a replaced weight, or whose call is more than its product, has a product of its own.
-- Children in FP8 have a product each, because each weight has its scales, but x is rounded once.

local tide = require 'tide'
local Linear = require 'tide.nn.linear'
local product = require 'tide.nn.product'

local joined = {}

local fields = { 'weight', 'bias' }

-- Returns whether two children round alike. A call that backward makes again keeps no codes.
local function same_codes(a, b)
   if not a.fp8 and not b.fp8 then return true end
   return a.fp8 == b.fp8 and a._fp8.keep == b._fp8.keep and b._call == Linear._call
end

-- Returns the results for x of the children of m with these names, as a list; nil if one is absent,
-- is more than a product, or does not round as the first does.
function joined.call(m, names, x)
   local ws, biases, any, first = {}, {}, false, m[names[1]]
   for i = 1, #names do
      local child = m[names[i]]
      if not child or not product.is_all(child) or not same_codes(first, child) then return nil end
      ws[i], biases[i] = child.weight, child.bias or false
      any = any or child.bias ~= nil
   end
   if first.fp8 then
      return tide.linear_fp8_joined(x, ws, any and biases or nil, first._fp8)
   end
   return tide.linear_joined(x, ws, any and biases or nil)
end

-- Returns the parameters of one field of the children: a list of { owner =, field =, param = },
-- empty unless all children of m have it, each its own.
local function group_of(m, names, field)
   local list, seen = {}, {}
   for i = 1, #names do
      local child = m[names[i]]
      if child then
         local t = child[field]
         if not tide.is_tensor(t) or seen[t.id] then return {} end
         seen[t.id] = true
         list[#list + 1] = { owner = child, field = field, param = t }
      end
   end
   return list
end

-- Returns the common goal of all parameters of a list, or nil if goals differ or the parameters do
-- not fit side by side.
local function fits(list, goal)
   local first = list[1].param
   local K, place = first:size(-1), goal(first)
   for _, e in ipairs(list) do
      local t, at = e.param, goal(e.param)
      if t.ndim ~= first.ndim or t.ndim == 2 and t:size(2) ~= K or at.dtype ~= place.dtype
         or at.device ~= place.device then
         return nil
      end
   end
   return place
end

local function moves(list, place)
   for _, e in ipairs(list) do
      if e.param.device ~= place.device or e.param.dtype ~= place.dtype then return true end
   end
   return false
end

-- Allocates the parameters of a list side by side, as views without values.
local function views(list, place)
   local rows, at, parts = 0, 1, {}
   for _, e in ipairs(list) do rows = rows + e.param:size(1) end
   local shape = list[1].param.ndim == 2 and { rows, list[1].param:size(2) } or { rows }
   local all = tide.empty(shape, place)
   for i, e in ipairs(list) do
      local n = e.param:size(1)
      parts[i] = all:narrow(1, at, n):detach()
      at = at + n
   end
   return parts
end

-- Allocates the parameters below m that move: a tensor by the id of the parameter. goal(t): { dtype
-- =, device = } of what replaces t. Groups whose goal is device 'null', and those that are at their
-- goal, get none.
function joined.places(m, goal)
   local into = {}
   m:walk(function(parent)
      local names = parent.shared_input
      for _, field in ipairs(names and fields or {}) do
         local list = group_of(parent, names, field)
         local place = #list > 1 and fits(list, goal)
         if place and place.device ~= 'null' and moves(list, place) then
            for i, t in ipairs(views(list, place)) do into[list[i].param.id] = t end
         end
      end
   end)
   return into
end

-- Allocates adjacent memory on a device (nil: the default one) for the children of a module, whose
-- parameters are on device 'null', unless that device is 'null', too.
function joined.lay(m, device)
   if device == 'null' then return end
   local names = m.shared_input
   for _, field in ipairs(fields) do
      local list = group_of(m, names, field)
      if #list > 0 then
         local parts = views(list, { dtype = list[1].param.dtype, device = device })
         for i, e in ipairs(list) do
            e.owner[field] = parts[i]:requires_grad_(true)
            e.param:release()
         end
      end
   end
end

return joined
