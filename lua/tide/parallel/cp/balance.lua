-- Work of attention over documents, and blocks of a packed stream dealt to ranks so that all have
-- as many tokens and (nearly) as much work.
--
-- Work is a count of (query, key) pairs, a closed form for any stretch of a document; a stream cut
-- into equal blocks is dealt from the costliest block down, back and forth over the ranks, and then
-- improved by exchanging blocks of one size. Equal blocks keep the token counts equal whatever the
-- costs are.
--
-- Legend: a document has `real` tokens in a slot; l, r reach of a query to the left and right.

local bins = require 'tide.util.bins'
local signature = require 'tide.util.signature'
local window = require 'tide.nn.window'
local dims = require 'tide.util.dims'

local balance = {}

local floor, min, max, huge = math.floor, math.min, math.max, math.huge

-- ---- pairs -----------------------------------------------------------------------------------

-- Returns the sum of min(p, reach) for p = 0 .. n - 1.
local function reach_sum(n, reach)
   if n <= reach + 1 then return n * (n - 1) / 2 end
   return reach * (reach + 1) / 2 + (n - reach - 1) * reach
end

-- Returns how many keys the queries at positions a .. b - 1 of a document with n tokens see, in
-- sum.
local function pairs_of(a, b, n, left, right)
   return b - a + reach_sum(b, left) - reach_sum(a, left)
      + reach_sum(n - a, right) - reach_sum(n - b, right)
end

local read_mask = signature.options { 'causal: boolean = true', 'window: any?',
   'linear: number >= 0 = 0' }

-- Returns a mask { causal = true, window = n | { left, right }, linear = 0 } as what the sums need.
-- linear: pairs that a token costs beside its attention.
function balance.mask(op, mask)
   mask = read_mask(op, mask)
   local left, right = huge, huge
   local w = window.check(op, 'mask.window', mask.window)
   if w then left, right = w[1] < 0 and huge or w[1], w[2] < 0 and huge or w[2] end
   if mask.causal then right = 0 end
   return { left = left, right = right, linear = mask.linear }
end

-- Returns the index of the last document whose slot begins at or before position g.
function balance.document_at(slot, g)
   local lo, hi = 1, #slot - 1
   while lo < hi do
      local mid = floor((lo + hi + 1) / 2)
      if slot[mid] <= g then lo = mid else hi = mid - 1 end
   end
   return lo
end

-- Returns the work of positions from .. from + n - 1 of a stream of documents.
function balance.cost_of(slot, real, from, n, mask)
   local sum, stop, d = n * mask.linear, from + n, balance.document_at(slot, from)
   while n > 0 and d < #slot and slot[d] < stop do
      local size = real[d + 1] - real[d]
      local a, b = max(0, from - slot[d]), min(size, stop - slot[d])
      if a < b then sum = sum + pairs_of(a, b, size, mask.left, mask.right) end
      d = d + 1
   end
   return sum
end

-- ---- dealing ---------------------------------------------------------------------------------

-- Deals costs over n groups, largest first and back and forth; n must divide their number. Returns
-- lists of indices into costs, ascending. ranks (optional): the order in which groups are visited.
function balance.deal(costs, n, ranks)
   local order, groups = {}, {}
   for i = 1, #costs do order[i] = i end
   for g = 1, n do groups[g] = {} end
   for k, i in ipairs(bins.longest_first(order, costs)) do      -- equals keep their order
      local row, at = floor((k - 1) / n), (k - 1) % n
      local g = row % 2 == 0 and at + 1 or n - at
      g = ranks and ranks[g] or g
      groups[g][#groups[g] + 1] = i
   end
   for g = 1, n do table.sort(groups[g]) end
   return groups
end

-- ---- blocks ----------------------------------------------------------------------------------

-- Returns blocks of about equal size, equally many for each rank. Each rank gets `big` blocks of
-- size + 1; the rest have size. The second result is the number of big blocks of all ranks.
local function make_blocks(ranks, per, want, cost)
   local n = max(1, min(want or min(64, max(floor(per / 32), min(8, per))), per))
   local size = floor(per / n)
   local blocks, at, big = {}, 0, per - n * size
   for i = 1, n * ranks do
      local len = i <= big * ranks and size + 1 or size
      blocks[i] = { start = at, len = len, cost = cost(at, len) }
      at = at + len
   end
   return blocks, big * ranks
end

-- Deals blocks first .. last to the ranks; ranks with less work so far are served first.
local function deal_class(blocks, first, last, hands, load)
   local costs, ranks, n = {}, {}, #hands
   for i = first, last do costs[#costs + 1] = blocks[i].cost end
   for r = 1, n do ranks[r] = r end
   table.sort(ranks, function(a, b)
      if load[a] ~= load[b] then return load[a] < load[b] end
      return a < b
   end)
   for r, group in ipairs(balance.deal(costs, n, ranks)) do
      for _, i in ipairs(group) do
         local b = blocks[first + i - 1]
         hands[r][#hands[r] + 1] = b
         load[r] = load[r] + b.cost
      end
   end
end

-- Returns the exchange of one block of a for one of b, of equal size, that brings their loads
-- nearest.
local function best_swap(a, b, gap)
   local found, left, x, y = nil, gap / 2, nil, nil
   for i = 1, #a do
      for j = 1, #b do
         local d = a[i].cost - b[j].cost
         if a[i].len == b[j].len and math.abs(gap / 2 - d) < left then
            found, left, x, y = d, math.abs(gap / 2 - d), i, j
         end
      end
   end
   return found, x, y
end

local function extremes(load)
   local hi, lo = 1, 1
   for r = 2, #load do
      if load[r] > load[hi] then hi = r end
      if load[r] < load[lo] then lo = r end
   end
   return hi, lo
end

local function refine(hands, load)
   local total = dims.sum(load)
   for _ = 1, 16 * #hands do
      local hi, lo = extremes(load)
      local gap = load[hi] - load[lo]
      if gap * #load <= 1e-4 * total then return end
      local d, i, j = best_swap(hands[hi], hands[lo], gap)
      if not d then return end
      hands[hi][i], hands[lo][j] = hands[lo][j], hands[hi][i]
      load[hi], load[lo] = load[hi] - d, load[lo] + d
   end
end

-- Appends a run to { start, length, start, length, ... }, joined to the last one where they meet.
function balance._add_run(runs, start, length)
   local n = #runs
   if n > 0 and runs[n - 1] + runs[n] == start then
      runs[n] = runs[n] + length
   else
      runs[n + 1], runs[n + 2] = start, length
   end
end

-- Distributes a stream of ranks * per tokens over `ranks` ranks. slot, real: cumulative lengths.
-- want: blocks a rank (default: of 32 tokens or more, at most 64). Returns a list of runs for each
-- rank.
function balance.assign(slot, real, ranks, per, mask, want)
   local blocks, big = make_blocks(ranks, per, want, function(at, len)
      return balance.cost_of(slot, real, at, len, mask)
   end)
   local hands, load = {}, {}
   for r = 1, ranks do hands[r], load[r] = {}, 0 end
   deal_class(blocks, 1, big, hands, load)
   deal_class(blocks, big + 1, #blocks, hands, load)
   refine(hands, load)
   local list = {}
   for r, hand in ipairs(hands) do
      list[r] = {}
      table.sort(hand, function(a, b) return a.start < b.start end)
      for _, b in ipairs(hand) do balance._add_run(list[r], b.start, b.len) end
   end
   return list
end

return signature.doors('parallel.cp_map', balance, { deal = { { 'costs: table', 'n: integer >= 1',
   'where #costs % n == 0 -- {#costs} costs cannot be dealt to {n} groups of one size' } } })
