-- Which keys of which rank a rank's queries need. Integers only, alike on every rank.
--
-- Masks and layouts are data (the index of each token, see nn.mask), so what must
-- travel is found from the data: for every pair of ranks the shortest run of rows that may be
-- seen. A causal zigzag ring, a window's halo and packed documents are the same plan with other
-- numbers, and a distance at which no rank needs anything is left out.
--
--    hops: list of { from =, to =, recv = { first =, count = }, send = { first =, count = } }
-- one for each distance d in use: this rank gets rows of rank `from` (d below, cyclic), and sends
-- rows of its own to rank `to` (d above). first counts from 1.

local tide = require 'tide'

local blocks = {}

-- Returns the shortest run of rank k's rows that queries of rank q may see: { first =, count = }.
local function need(index, q, k, mask)
   local first, count = tide.attention_rows(index[q + 1], index[k + 1], mask)
   return { first = first, count = count }
end
blocks.need = need

-- Returns the hops of rank `rank`, and whether its queries see any key of its own. index: the pairs
-- of every rank's tokens; mask: { causal =, window = } of the attention call.
function blocks.hops(index, rank, mask)
   local n, list = #index, {}
   for d = 1, n - 1 do
      local used = false
      for q = 0, n - 1 do used = used or need(index, q, (q - d) % n, mask).count > 0 end
      if used then
         local from, to = (rank - d) % n, (rank + d) % n
         list[#list + 1] = {
            from = from, to = to, recv = need(index, rank, from, mask),
            send = need(index, to, rank, mask),
         }
      end
   end
   return list, need(index, rank, rank, mask).count > 0
end

-- Returns the hops of rank `rank` that move all rows of every rank, whatever the mask hides of
-- them.
function blocks.whole(index, rank)
   local n, list = #index, {}
   local function all(r) return { first = 1, count = index[r + 1]:size(2) } end
   for d = 1, n - 1 do
      local from = (rank - d) % n
      list[d] = { from = from, to = (rank + d) % n, recv = all(from), send = all(rank) }
   end
   return list, true
end

return blocks
