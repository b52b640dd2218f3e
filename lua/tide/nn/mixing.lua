-- Whether tokens see each other in a module: its field or method `mixes` (see nn.Module).

local Module = require 'tide.nn.module'

-- Returns false, 'context' or true; nil if the class that its forward is of says nothing.
local function mixing(m)
   local class_ = m
   while type(class_) == 'table' and class_ ~= Module do
      local said = rawget(class_, 'mixes')
      if type(said) == 'function' then return m:mixes() end
      if said ~= nil then return said end
      if class_ ~= m and (rawget(class_, 'forward') or rawget(class_, 'hidden')) then return nil end
      class_ = class_ == m and getmetatable(m) or rawget(class_, 'super')
   end
   return false
end

return mixing
