-- A namespace whose entries are loaded at first use; an unknown name is an error that lists them.
--
-- lazy('nn', { Linear = 'linear', RMSNorm = { 'norm', 'RMSNorm' } }): tide.nn.linear, and the
-- field RMSNorm of tide.nn.norm; a file may be given whole ('tide.nn.linear'). Third argument: a
-- table that has entries already.

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local instead = require 'tide.util.instead'
local near = require 'tide.util.near'

-- Returns the public names of a table, sorted.
local function names(t)
   local list = {}
   for k in each(t) do list[#list + 1] = type(k) == 'string' and k:find '^[^_]' and k or nil end
   table.sort(list)
   return list
end

-- Guards the table of functions that a file returns: an unknown name is an error, as in the
-- namespace above it. A constructor `new` makes the table callable, as a class is:
-- tide.train.step { .. }. Classes and tables with a metatable are left as they are.
local function guard(where, value)
   if type(value) ~= 'table' or getmetatable(value) then return end
   local new, meta = rawget(value, 'new'), {}
   if type(new) == 'function' then
      meta.calls, meta.__call = new, function(_, ...) return new(...) end
   end
   if rawget(value, '__index') == nil then
      function meta.__index(t, key)
         if type(key) ~= 'string' then return nil end
         err.raise('E_ARG', where, "no '%s'%s", key, near.hint(key, names(t)))
      end
   end
   setmetatable(value, meta)
end

return function(name, entries, have)
   return setmetatable(have or {}, {
      entries = entries,
      __index = function(t, key)
         local entry = entries[key]
         if entry == nil then
            local other = (instead[name] or {})[key]
            err.raise('E_ARG', name, "no '%s'%s", tostring(key), other and '; instead: ' .. other
               or near.hint(tostring(key), names(entries)))
         end
         local file, field = entry, nil
         if type(entry) == 'table' then file, field = entry[1], entry[2] end
         if not file:find '^tide%.' then file = 'tide.' .. name .. '.' .. file end
         local value = require(file)
         if field then value = value[field] end
         guard(name .. '.' .. key, value)
         rawset(t, key, value)
         return value
      end,
   })
end
