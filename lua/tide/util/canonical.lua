-- Plain data as one text: canonical(v).
--
-- Equal meanings have equal texts, on every rank and after a round trip through JSON. So keys are
-- sorted, and false, nil and JSON's null are alike ('none'; as entries of a table they are left
-- out). Objects, functions, tensors and keys that begin with '_' are left out, too, because they
-- are not data. An object whose class has `constant = true` counts as the data it holds.

local each = require 'tide.util.each'

local plain = { number = true, string = true, boolean = true }

local function is_data(v, json)
   if type(v) ~= 'table' or v == json.null then return false end
   local meta = getmetatable(v)
   return meta == nil or meta == getmetatable(json.array())
      or type(meta) == 'table' and meta.constant == true
end

local text_of

-- Returns a table as text, "{a=1 b={..}}". above: the tables that contain this one.
local function table_text(t, json, above)
   local list = {}
   above[t] = true
   for k, v in each(t) do
      if type(k) == 'number' or type(k) == 'string' and k:sub(1, 1) ~= '_' then
         local text = text_of(v, json, above)
         if text then list[#list + 1] = tostring(k) .. '=' .. text end
      end
   end
   above[t] = nil
   table.sort(list)
   return '{' .. table.concat(list, ' ') .. '}'
end

function text_of(v, json, above)
   if plain[type(v)] then return v ~= false and tostring(v) or nil end
   return is_data(v, json) and not above[v] and table_text(v, json, above) or nil
end

return function(v) return text_of(v, require('tide').json, {}) or 'none' end
