-- Checks indices into a dim that is cut over ranks against the bounds of the whole dim.
--
-- A rank holds a part of the classes and takes an index beyond its part for another rank's, so an
-- index outside the whole needs a check of its own. On the host it is an error at once. On a device
-- a kernel finds it, which the host does not wait for: the next call that reads the device raises
-- E_ARG, as for every index there.

local tide = require 'tide'
local err = require 'tide.util.err'

-- Raises in the name of op unless every element of ids is in [0, V). what: a format of V and ...
return function(op, ids, V, what, ...)
   if ids.device == 'null' or ids:numel() == 0 then return end
   if ids.device == 'cuda' then
      local one = tide.zeros({ 1 }, { device = ids.device })
      tide.index_select(one:expand { V }, 1, ids:reshape { ids:numel() })
   elseif tide.logical_or(ids:lt(0), ids:ge(V)):any():item() then
      err.raise('E_ARG', op, what, V, ...)
   end
end
