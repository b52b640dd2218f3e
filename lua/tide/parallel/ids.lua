-- Whether ids are rows of a table that is cut over ranks (layer 8).
--
-- The one idea: what lies outside of every rank's rows would be zeros without a word, and an error
-- on one rank leaves the others waiting; so ids that are alike on all ranks are looked at on all.
-- In a captured step the host cannot look: a table of the whole height that is read by the ids
-- makes the device tell, to whoever looks at it next.

local tide = require 'tide'
local graph = require 'tide.ffi.graph'

-- Calls fail() if an id, but for `ignore` (may be nil), lies outside [0, V).
return function(ids, V, ignore, fail)
   if ids.device == 'null' or ids:numel() == 0 then return end
   tide.no_grad(function()
      if graph.is_capturing() then
         local rows = ignore and ids * ids:ne(ignore):to(ids.dtype) or ids
         tide.embedding(tide.zeros({ V, 1 }, { dtype = 'u8', device = ids.device }), rows)
         return
      end
      local bad = tide.logical_or(ids:lt(0), ids:ge(V))
      if ignore then bad = tide.logical_and(bad, ids:ne(ignore)) end
      if bad:any():item() then fail() end
   end)
end
