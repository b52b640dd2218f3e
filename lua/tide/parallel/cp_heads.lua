-- Attention by heads: an all-to-all trades the sequence for the heads (layer 8).
--
-- The one idea: before attention a rank holds all heads of its tokens, during it all tokens of its
-- heads (Jacobs et al., arXiv 2309.14509). Query heads go to ranks in runs that never straddle two
-- key heads, uneven where they do not divide; a key head that serves the queries of several ranks
-- goes to each of them. Queries, keys and values travel in one exchange, whose parts are picked by
-- one index; the tape derives it.

local tide = require 'tide'
local err = require 'tide.util.err'
local op = require 'tide.parallel.collective_op'

local heads = {}

-- n things in k runs as even as can be: the first n % k are one longer.
local function even_counts(n, k)
   local counts, each = {}, math.floor(n / k)
   for i = 1, k do counts[i] = each + (i <= n % k and 1 or 0) end
   return counts
end

-- Whole key heads to each rank, their query heads with them.
local function by_key_head(H, K, W)
   local list, at, g = {}, 0, H / K
   for r, n in ipairs(even_counts(K, W)) do
      list[r] = { q = at * g, nq = n * g, k = at, nk = n }
      at = at + n
   end
   return list
end

-- Several ranks to each key head, its query heads split among them.
local function by_query_head(H, K, W)
   local list, g = {}, H / K
   for k, nrank in ipairs(even_counts(W, K)) do
      local at = (k - 1) * g
      for _, n in ipairs(even_counts(g, nrank)) do
         list[#list + 1] = { q = at, nq = n, k = k - 1, nk = n > 0 and 1 or 0 }
         at = at + n
      end
   end
   return list
end

-- Which heads each of W ranks works on: list of { q =, nq =, k =, nk = }, first ones from 0.
function heads.split(H, K, W)
   local name = 'parallel.cp.split_heads'
   err.integer(name, 'H', H, 1)
   err.integer(name, 'K', K, 1)
   err.integer(name, 'W', W, 1)
   if H % K ~= 0 then err.arg(name, 'K', ('a divisor of H (%d)'):format(H), K) end
   return K >= W and by_key_head(H, K, W) or by_query_head(H, K, W)
end

-- Heads of [q | k | v], joined along the dim of heads, in the order in which ranks get them.
local function pick(list, H, K)
   local index, counts = {}, {}
   for r, part in ipairs(list) do
      for i = 0, part.nq - 1 do index[#index + 1] = part.q + i end
      for _, base in ipairs { H, H + K } do
         for i = 0, part.nk - 1 do index[#index + 1] = base + part.k + i end
      end
      counts[r] = part.nq + 2 * part.nk
   end
   return index, counts
end

-- q, k, v of this rank's tokens and all heads -> of all tokens and this rank's heads.
-- tokens: tokens a rank. Returns q, k, v and how to go back.
function heads.enter(q, k, v, comm, tokens)
   local H, K = q:size(3), k:size(3)
   if v:size(4) ~= q:size(4) then
      err.raise('E_UNSUPPORTED', 'parallel.cp', 'method a2a needs values as wide as the queries '
         .. '(%d), got %d; use ring or allgather', q:size(4), v:size(4))
   end
   local list = heads.split(H, K, comm.size)
   local index, counts = pick(list, H, K)
   local all = tide.cat({ q, k, v }, 3)
      :index_select(3, tide.tensor(index, { dtype = 'i64', device = q.device }))
   local mine = op.all_to_all(all, comm, 3, 2, counts, tokens)
   local own = list[comm.rank + 1]
   local function cut(first, n) return mine:slice(3, first + 1, first + n) end
   local sent = {}
   for r, part in ipairs(list) do sent[r] = part.nq end
   return cut(0, own.nq), cut(own.nq, own.nk), cut(own.nq + own.nk, own.nk), sent
end

-- The way back: o of all tokens and this rank's heads -> of this rank's tokens and all heads.
function heads.leave(o, comm, tokens, sent)
   return op.all_to_all(o, comm, 2, 3, tokens, sent)
end

return heads
