-- Walks over the trees of templates, without recursion: sums of many terms are deep.

local each = require 'tide.util.each'

local tree = {}

-- Returns the names that a tree reads, or whose fields it sets, as a set.
function tree.names(root)
   local stack, found = { root }, {}
   while #stack > 0 do
      local node = stack[#stack]
      stack[#stack] = nil
      if node.kind == 'name' or node.kind == 'field' then found[node.name] = true end
      for _, part in each(node) do
         if type(part) == 'table' then stack[#stack + 1] = part end
      end
   end
   return found
end

return tree
