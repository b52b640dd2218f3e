-- Returns the layers nn.MoE of a model, { path, m } each. A layer in several places has the path of
-- the first one.

local MoE = require 'tide.nn.moe'
local class = require 'tide.class'

return function(model)
   local list, seen = {}, {}
   model:walk(function(m, path)
      if not class.is(m, MoE) or seen[m] then return end
      list[#list + 1], seen[m] = { path = path, m = m }, true
   end)
   return list
end
