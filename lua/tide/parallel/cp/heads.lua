-- Attention by heads: an all-to-all trades the sequence for the heads.
--
-- Before attention a rank holds all heads of its tokens, during it all tokens of its
-- heads (Jacobs et al., arXiv 2309.14509). Query heads go to ranks in runs that never straddle two
-- key heads, uneven where they do not divide; a key head that serves the queries of several ranks
-- goes to each of them, and its gradients are added up. Queries, keys and values travel in one
-- exchange (exchange.lua), as runs of channels: a head of D is D of them.

local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local exchange = require 'tide.parallel.cp.exchange'
local balanced = require('tide.parallel.layout').balanced
local replace, spend_list = private.replace, private.spend_list

local heads = {}

-- Assigns whole key heads to each rank, with their query heads.
local function by_key_head(H, K, W)
   local list, at, g = {}, 0, H / K
   for r, n in ipairs(balanced(K, W)) do
      list[r] = { q = at * g, nq = n * g, k = at, nk = n }
      at = at + n
   end
   return list
end

-- Assigns several ranks to each key head, and splits its query heads among them.
local function by_query_head(H, K, W)
   local list, g = {}, H / K
   for k, nrank in ipairs(balanced(W, K)) do
      local at = (k - 1) * g
      for _, n in ipairs(balanced(g, nrank)) do
         list[#list + 1] = { q = at, nq = n, k = k - 1, nk = n > 0 and 1 or 0 }
         at = at + n
      end
   end
   return list
end

-- Returns which heads each of W ranks works on: list of { q =, nq =, k =, nk = }, first ones from
-- 0.
function heads.split(H, K, W)
   return K >= W and by_key_head(H, K, W) or by_query_head(H, K, W)
end

-- Returns the tokens of all ranks in rank order: tokens[r + 1] of rank r.
local function rows_of(tokens)
   local list, at = {}, 0
   for r, n in ipairs(tokens) do
      list[r] = { at, n }
      at = at + n
   end
   return exchange.rows(list)
end

-- Returns x [B, T, heads, D] with heads and D as one dim of channels; heads_of undoes it.
local function channels(x) return x:reshape { x:size(1), x:size(2), x:size(3) * x:size(4) } end

local function heads_of(x, n, D) return x:reshape { x:size(1), x:size(2), n, D } end

-- Returns q, k, v of all tokens and this rank's heads, and what leave needs to go back. q, k, v:
-- this rank's tokens and all heads; tokens: tokens a rank.
function heads.enter(q, k, v, comm, tokens)
   local H, K, D, E = q:size(3), k:size(3), q:size(4), v:size(4)
   local list, go, back = heads.split(H, K, comm.size), {}, {}
   for r, part in ipairs(list) do
      go[r] = { { part.q * D, part.nq * D }, { H * D + part.k * D, part.nk * D },
                { (H + K) * D + part.k * E, part.nk * E } }
      back[r] = { { part.q * E, part.nq * E } }
   end
   local own, rows, shared = list[comm.rank + 1], rows_of(tokens), K < comm.size
   local xs = { channels(q), channels(k), channels(v) }
   local qh, kh, vh = exchange.enter(xs, comm, exchange.columns(go, (H + K) * D + K * E), rows,
      { own.nq * D, own.nk * D, own.nk * E }, 0, { false, shared, shared })
   spend_list(xs)
   return replace(qh, heads_of(qh, own.nq, D)), replace(kh, heads_of(kh, own.nk, D)),
      replace(vh, heads_of(vh, own.nk, E)),
      { cols = exchange.columns(back, H * E), rows = rows, heads = H, width = E, own = own }
end

-- Returns those of x [H], a number a query head, that are this rank's; nil of nil.
function heads.own(x, way) return x and x:narrow(1, way.own.q + 1, way.own.nq) end

-- Undoes enter: o of all tokens and this rank's heads -> of this rank's tokens and all heads.
function heads.leave(o, comm, way)
   local x = channels(o)
   local y = exchange.leave(x, comm, way.cols, way.rows)
   spend_list { x }
   return replace(y, heads_of(y, way.heads, way.width))
end

return signature.doors('parallel.cp', heads, { split = { {
   'H: integer >= 1', 'K: integer >= 1', 'W: integer >= 1',
   "where H % K == 0 -- argument 'K': expected a divisor of H ({H}), got {K}" },
   op = 'parallel.cp.split_heads' } })
