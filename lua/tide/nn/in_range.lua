-- Indices into what is cut over ranks, looked at as the whole op would look at them.
--
-- A rank holds a part of the classes and takes an index beyond it for another rank's,
-- so what is no index at all must be found apart. On the host that is an error at once; on a device
-- by a kernel that the host does not wait for: the next call that reads the device raises E_ARG, as
-- of any index there.

local tide = require 'tide'
local err = require 'tide.util.err'

-- Raises, by the name of op, unless every element of ids is in [0, V). what: a format of V and ...
return function(op, ids, V, what, ...)
   if ids.device == 'null' or ids:numel() == 0 then return end
   if ids.device == 'cuda' then
      local one = tide.zeros({ 1 }, { device = ids.device })
      tide.index_select(one:expand { V }, 1, ids:reshape { ids:numel() })
   elseif tide.logical_or(ids:lt(0), ids:ge(V)):any():item() then
      err.raise('E_ARG', op, what, V, ...)
   end
end
