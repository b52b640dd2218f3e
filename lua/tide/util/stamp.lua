-- A stamp says that some tensors of a table were made together and agree, so nothing has to read
-- them to compare them. It holds while the table has these tensors and nothing writes into them.

local stamp = {}

local Stamp = { class_name = 'Stamp' }
Stamp.__index = Stamp

-- Returns a stamp of the fields `names` of a table of tensors.
function stamp.of(t, names)
   local self = setmetatable({ id = {}, version = {} }, Stamp)
   for _, name in ipairs(names) do
      local x = t[name]
      if x ~= nil then self.id[name], self.version[name] = x.id, x:version() end
   end
   return self
end

-- Returns whether v is a stamp that holds for the fields `names` of a table. A field that is nil
-- agrees with all others.
function stamp.holds(v, t, names)
   if getmetatable(v) ~= Stamp then return false end
   for _, name in ipairs(names) do
      local x = t[name]
      if x ~= nil and (v.id[name] ~= x.id or v.version[name] ~= x:version()) then return false end
   end
   return true
end

return stamp
