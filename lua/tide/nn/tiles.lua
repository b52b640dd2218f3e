-- What tiles of packed tokens span (tide.attention_tiles), found once for all layers of a call.
--
-- Only GPU kernels read them, so indices on the host have none.

local tide = require 'tide'

local tiles = {}

-- Returns the tiles of an index i32 [B or 1, T, 2 or 3]; nil without an index, and where no kernel
-- reads them.
function tiles.of(index)
   if not index or index.device == 'cpu' or index.dtype ~= 'i32' or index.ndim ~= 3 then
      return nil
   end
   return tide.no_grad(tide.attention_tiles, index)
end

-- Returns the tiles of up to two indices, by the id of the index: a layer that attends by another
-- index than that of the call (a hook may replace it) finds none.
function tiles.list(a, b)
   local list = {}
   for _, index in ipairs { a or b, b or a } do
      if not list[index.id] then list[index.id] = tiles.of(index) end
   end
   return list
end

-- Adds the tiles of its indices to the options of an attention call.
function tiles.put(options, list)
   local q, k = options.q_index, options.k_index
   options.q_tiles, options.k_tiles = q and list[q.id], k and list[k.id]
   return options
end

return tiles
