-- What each rank needs from the others when documents lie contiguously over ranks.
--
-- With causal attention inside documents a rank's queries see one stretch of keys,
-- from where its first document (or the window) begins to its own end. That stretch is what
-- blocks.lua finds for any layout; here it is given as numbers of tokens: nothing, a halo from the
-- left neighbour, or an exchange of exactly the needed parts.
--
-- ids: the document of each token, from 1; 0 is padding, which is at the end only. All positions
-- count from 0.

local tide = require 'tide'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local blocks = require 'tide.parallel.cp.blocks'

local need = {}

local function list_of(op, ids)
   if tide.is_tensor(ids) then
      if ids.ndim == 2 and ids:size(1) == 1 then ids = ids:select(1, 1) end
      err.arg_if(ids.ndim ~= 1, op, 'ids', 'document numbers of one row (local_batch_size=1)', ids)
      ids = ids:tolist()
   end
   local ended = false
   for i, d in ipairs(err.type(op, 'ids', ids, 'table')) do
      err.integer(op, ('ids[%d]'):format(i), d, 0)
      if d == 0 then
         ended = true
      elseif ended then
         err.raise('E_ARG', op, 'token %d belongs to document %d, after padding', i - 1, d)
      end
   end
   return ids
end

-- Returns (document, position) of the tokens from position `first` on, i32 [1, n, 2].
local function pairs_of(ids, first, n)
   if n == 0 then return tide.zeros({ 1, 0, 2 }, { dtype = 'i32', device = 'cpu' }) end
   local list = {}
   for i = 1, n do list[i] = { ids[first + i] - 1, first + i - 1 } end
   return tide.tensor({ list }, { dtype = 'i32', device = 'cpu' })
end

local function mask_of(window) return { causal = true, window = { window or -1, -1 } } end

-- Returns segments of the n tokens from position `first`: { n_real (tokens without padding),
-- s_first and real_end (the keys they see), cu_q, cu_k (cumulative lengths of the pieces of
-- documents, among the tokens and among those keys), back (keys before first) }. window: how far a
-- token sees back.
function need.segments(ids, first, n, window)
   local op = 'parallel.cp_need.segments'
   ids = list_of(op, ids)
   err.integer(op, 'first', first, 0, #ids)
   err.integer(op, 'n', n, 0, #ids - first)
   local real = 0
   while real < n and ids[first + real + 1] ~= 0 do real = real + 1 end
   local seg = { n_real = real, s_first = first, real_end = first + real, back = 0, cu_q = { 0 },
      cu_k = { 0 } }
   if real == 0 then return seg end
   local before = blocks.need({ pairs_of(ids, first, real), pairs_of(ids, 0, first) }, 0, 1,
      mask_of(window))
   seg.back = before.count
   seg.s_first = first - seg.back
   for i = 1, real do
      if i == real or ids[first + i + 1] ~= ids[first + i] then
         seg.cu_q[#seg.cu_q + 1], seg.cu_k[#seg.cu_k + 1] = i, i + seg.back
      end
   end
   return seg
end

-- Checks segments against the tokens and keys at hand: rows of each must add up.
function need.check(seg, slice)
   local op, keys = 'parallel.cp_need.check', seg.cu_k[#seg.cu_k]
   err.raise_if(keys ~= slice, 'E_ARG', op, 'cu_k ends at %d, there are %d keys', keys, slice)
   for i = 1, #seg.cu_q - 1 do
      err.raise_if(seg.cu_q[i + 1] - seg.cu_q[i] > seg.cu_k[i + 1] - seg.cu_k[i], 'E_ARG', op,
         'piece %d has more queries than keys', i)
   end
   return seg
end

-- Returns what each of `size` ranks with equal shares needs, as lists over ranks: n_real, s_first,
-- real_end, recv (keys from ranks to the left) and send (what the right neighbour needs, if one
-- neighbour exchange is enough). halo says whether that is so. give[src][dst] and take[dst][src]
-- are the tokens that an exchange moves, own ones included.
function need.plan(ids, size, window)
   local op = 'parallel.cp_need.plan'
   ids = list_of(op, ids)
   err.raise_if(#ids % size ~= 0, 'E_ARG', op, '%d tokens over %d ranks: expected a multiple', #ids,
      size)
   local share, index = #ids / size, {}
   for r = 1, size do index[r] = pairs_of(ids, (r - 1) * share, share) end
   local plan = { halo = true, n_real = {}, s_first = {}, real_end = {}, recv = {}, send = {},
      give = {}, take = {} }
   for r = 1, size do
      local seg = need.segments(ids, (r - 1) * share, share, window)
      plan.n_real[r], plan.s_first[r], plan.real_end[r] = seg.n_real, seg.s_first, seg.real_end
      plan.recv[r], plan.send[r] = seg.back, 0
      if r > 1 then plan.send[r - 1] = seg.back end
      plan.halo = plan.halo and seg.back <= share
      plan.give[r], plan.take[r] = {}, {}
   end
   for src = 1, size do
      for dst = 1, size do
         local n = blocks.need(index, dst - 1, src - 1, mask_of(window)).count
         plan.give[src][dst], plan.take[dst][src] = n, n
      end
   end
   return plan
end

signature.record('segments', 'a table { cu_q =, cu_k =, n_real = }', { 'cu_q: integer[] >= 0',
   'cu_k: integer[] >= 0', 'n_real: integer >= 0' })
return signature.doors('parallel.cp_need', need, {
   plan = 'size: integer >= 1',
   check = { { 'seg: segments', 'slice: integer >= 0',
      'where last(seg.cu_q) == seg.n_real -- cu_q ends at {last(seg.cu_q)}, there are {seg.n_real} '
         .. 'tokens',
      'where #seg.cu_q == #seg.cu_k -- {#seg.cu_q - 1} pieces of queries and {#seg.cu_k - 1} of '
         .. 'keys' } },
})
