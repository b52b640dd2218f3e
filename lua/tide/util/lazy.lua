-- A namespace whose entries are loaded at first use; an unknown name is an error that lists them.
--
-- lazy('nn', { Linear = 'linear', RMSNorm = { 'norm', 'RMSNorm' } }): tide.nn.linear, and the
-- field RMSNorm of tide.nn.norm; a file may be given whole ('tide.nn.linear'). Third argument: a
-- table that has entries already.

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local instead = require 'tide.util.instead'
local near = require 'tide.util.near'

-- What has a constructor `new` is called for it, as a class is: tide.train.step { .. }.
local function make_callable(value)
   if type(value) ~= 'table' or getmetatable(value) or type(rawget(value, 'new')) ~= 'function' then
      return
   end
   setmetatable(value, { calls = value.new,
      __call = function(_, ...) return value.new(...) end })
end

return function(name, entries, have)
   return setmetatable(have or {}, {
      entries = entries,
      __index = function(t, key)
         local entry = entries[key]
         if entry == nil then
            local other, list = (instead[name] or {})[key], {}
            for k in each(entries) do list[#list + 1] = k end
            table.sort(list)
            err.raise('E_ARG', name, "no '%s'%s", tostring(key), other and '; instead: ' .. other
               or near.hint(tostring(key), list))
         end
         local file, field = entry, nil
         if type(entry) == 'table' then file, field = entry[1], entry[2] end
         if not file:find '^tide%.' then file = 'tide.' .. name .. '.' .. file end
         local value = require(file)
         if field then value = value[field] end
         make_callable(value)
         rawset(t, key, value)
         return value
      end,
   })
end
