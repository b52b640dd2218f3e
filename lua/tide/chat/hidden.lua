-- Names that a template sets at its top level before it reads them there. Until the assignment,
-- Jinja hides variables of these names from the whole template, inner blocks included.

local each = require 'tide.util.each'
local tree = require 'tide.chat.tree'

-- Adds the names that a tree of expressions reads to `seen`.
local function read_in(node, seen)
   for name in each(tree.names(node)) do seen[name] = seen[name] or 'read' end
end

-- Notes the names of a target as set.
local function set_in(target, seen)
   if target.kind == 'name' then
      seen[target.name] = seen[target.name] or 'set'
   elseif target.kind == 'tuple' then
      for _, item in ipairs(target.items) do set_in(item, seen) end
   else
      read_in(target, seen)
   end
end

local walk

-- Functions by statement, which record the top-level names that it reads and sets; its body is a
-- scope of its own.
local touch = {
   output = function(node, seen) read_in(node.value, seen) end,
   set = function(node, seen)
      read_in(node.value, seen)
      set_in(node.target, seen)
   end,
   set_block = function(node, seen) set_in(node.target, seen) end,
   macro = function(node, seen) seen[node.name] = seen[node.name] or 'set' end,
   ['for'] = function(node, seen) read_in(node.iter, seen) end,
   call_block = function(node, seen) read_in(node.call, seen) end,
   filter_block = function(node, seen) read_in(node.filter, seen) end,
   with = function(node, seen) read_in(node.values, seen) end,
}

-- A name that only one branch sets is read from outside in the other branch.
touch['if'] = function(node, seen)
   local inside = {}
   for name, how in each(seen) do inside[name] = how end
   for _, branch in ipairs(node.branches) do
      read_in(branch.test, inside)
      walk(branch.body, inside)
   end
   if node.other then walk(node.other, inside) end
   for name in each(inside) do seen[name] = seen[name] or 'read' end
end

function walk(body, seen)
   for _, node in ipairs(body) do
      if touch[node.kind] then touch[node.kind](node, seen) end
   end
end

-- Returns the hidden names of a template's body as a list.
return function(body)
   local seen, list = {}, {}
   walk(body, seen)
   for name, how in each(seen) do
      if how == 'set' then list[#list + 1] = name end
   end
   return list
end
