-- Packing documents into rows of one size, and distributing packs and long documents over ranks.
--
-- Packers work on lengths and give lists of indices (from 1); building the rows is a
-- separate step, so any packer can feed any row format. Slots are rounded up to what head-tail
-- sharding needs before the fit is tested.

local err = require 'tide.util.err'
local fit = require 'tide.util.bins'
local signature = require 'tide.util.signature'

local pack = {}

local function round_up(n, unit) return math.ceil(n / unit) * unit end

-- ---- choosing what goes together -------------------------------------------------------------

-- Returns the indices of lengths that fit a bin, longest first, and of those that do not, in order.
local function longest_first(lengths, size)
   local order, skipped = {}, {}
   for i, n in ipairs(lengths) do
      local list = n > size and skipped or order
      list[#list + 1] = i
   end
   return fit.longest_first(order, lengths), skipped
end

-- Moves bin heap[1], which got fuller, down to its place: a heap of bins by fill, then by number.
local function sift_down(heap, used)
   local function before(a, b) return used[a] < used[b] or used[a] == used[b] and a < b end
   local at, n = 1, #heap
   while true do
      local least = at
      for child = 2 * at, math.min(2 * at + 1, n) do
         if before(heap[child], heap[least]) then least = child end
      end
      if least == at then return end
      heap[at], heap[least] = heap[least], heap[at]
      at = least
   end
end

-- Moves the last bin of the heap up to its place.
local function sift_up(heap, used)
   local at = #heap
   while at > 1 do
      local up = math.floor(at / 2)
      if used[heap[at]] >= used[heap[up]] then return end
      heap[at], heap[up], at = heap[up], heap[at], up
   end
end

-- Puts each document into the emptiest bin, the first of equal ones, or into a new bin where it
-- does not fit.
local function emptiest(lengths, order, size)
   local bins, used, heap = {}, {}, {}
   for _, i in ipairs(order) do
      local top = heap[1]
      if top and used[top] + lengths[i] <= size then
         bins[top][#bins[top] + 1], used[top] = i, used[top] + lengths[i]
         sift_down(heap, used)
      else
         local new = #bins + 1
         bins[new], used[new], heap[new] = { i }, lengths[i], new
         sift_up(heap, used)
      end
   end
   return bins
end

local function fill(rule, lengths, size, max_bins)
   local order, skipped = longest_first(lengths, size)
   local bins = rule(lengths, order, size)
   for b = #bins, (max_bins or #bins) + 1, -1 do bins[b] = nil end
   return bins, skipped
end

-- Packs documents, longest first, each into the emptiest bin, or into a new bin if it does not fit.
-- Returns bins (lists of indices, longest first) of total length <= size. The second result lists
-- documents longer than a bin, which are left out. max_bins: bins beyond it are dropped. O(n log
-- n).
function pack.knapsack(lengths, size, max_bins) return fill(emptiest, lengths, size, max_bins) end

-- Packs documents, longest first, each into the fullest bin that has room (best fit). It nearly
-- always makes as many bins as knapsack, full ones first. The results are those of knapsack. O(n
-- bins).
function pack.best_fit(lengths, size, max_bins)
   return fill(fit.fullest, lengths, size, max_bins)
end

-- Packs documents in order: a bin ends where the next document does not fit. unit: slots are
-- multiples of it.
local function in_order(lengths, size, unit)
   local bins, used = {}, nil
   for i, n in ipairs(lengths) do
      local slot = round_up(n, unit)
      if not used or used + slot > size then bins[#bins + 1], used = {}, 0 end
      bins[#bins][#bins[#bins] + 1] = i
      used = used + slot
   end
   return bins
end

-- ---- building rows ---------------------------------------------------------------------------

-- Returns the samples that fit into packs of `size` tokens.
local function fitting(op, samples, size, drop)
   local kept = {}
   for i, s in ipairs(samples) do
      if #s.input_ids <= size then
         kept[#kept + 1] = s
      elseif not drop then
         err.raise('E_ARG', op, 'sample %d is too long: %d tokens for a pack of %d (drop_long '
            .. 'leaves it out)', i, #s.input_ids, size)
      end
   end
   if #kept == 0 then err.raise('E_ARG', op, 'no packs: no sample fits into %d tokens', size) end
   return kept
end

local function label_of(s, i)
   local keep = not s.loss_mask or s.loss_mask[i]
   if keep == 0 or keep == false then return -100 end
   return s.labels[i]
end

-- Returns the samples of a bin one after the other, in slots; the last slot takes the rest.
-- indexed: number the documents in attention_mask, positions 0 in padding.
local function build(samples, bin, size, unit, pad, indexed)
   local row = { input_ids = {}, labels = {}, position_ids = {}, seq_lens = {},
      seq_lens_padded = {}, attention_mask = indexed and {} or nil }
   local at = 0
   for k, i in ipairs(bin) do
      local s = samples[i]
      local n = #s.input_ids
      local slot = k == #bin and size - at or round_up(n, unit)
      row.seq_lens[k], row.seq_lens_padded[k] = n, slot
      for p = 1, slot do
         local real = p <= n
         row.input_ids[at + p] = real and s.input_ids[p] or pad
         row.labels[at + p] = real and label_of(s, p) or -100
         row.position_ids[at + p] = (real or not indexed) and p - 1 or 0
         if indexed then row.attention_mask[at + p] = real and k or 0 end
      end
      at = at + slot
   end
   return row
end

-- Returns the rows of the samples that fit, in the bins of choose(lengths, size, unit of a slot).
local function rows(op, samples, opts, choose, indexed)
   local size, unit, lengths, list = opts.size, opts.cp > 1 and 2 * opts.cp or 1, {}, {}
   local kept = fitting(op, samples, size, opts.drop_long)
   for i, s in ipairs(kept) do lengths[i] = #s.input_ids end
   local bins = choose(lengths, size, unit)
   for b = 1, math.min(#bins, opts.max_packs or #bins) do
      list[b] = build(kept, bins[b], size, unit, opts.padding_token_id, indexed)
   end
   return list
end

-- Packs samples ({ input_ids =, labels =, loss_mask = } of lists) in order. Returns rows for
-- thd.collate.
function pack.greedy(samples, opts)
   return rows('parallel.pack.greedy', samples, opts, in_order, false)
end

-- Packs samples tightly, with a mask that numbers documents from 1, 0 for padding, and positions
-- that count from 0 in each.
function pack.neat(samples, opts)
   return rows('parallel.pack.neat', samples, opts, function(slots, size, unit)
      for i, n in ipairs(slots) do slots[i] = round_up(n, unit) end
      return (opts.fit == 'best' and pack.best_fit or pack.knapsack)(slots, size)
   end, true)
end

-- ---- ranks -----------------------------------------------------------------------------------

-- Returns the ranks that a document of `length` tokens needs, a power of two, for at most `most` on
-- each.
function pack.cp_degree(length, most)
   local n = 1
   while n * most < length do n = 2 * n end
   return n
end

-- Returns the last document of the last pack that has more than one, as a pack of its own.
local function move_last(packs)
   for p = #packs, 1, -1 do
      local n = #packs[p]
      if n > 1 then
         packs[#packs + 1] = { packs[p][n] }
         packs[p][n] = nil
         return true
      end
   end
   return false
end

-- Packs documents in order into packs of at most `size` tokens, and raises the number of packs to a
-- multiple of dp. Pack i * dp + j is micro-batch i of data rank j.
function pack.dp_balanced(lengths, opts)
   local op = 'parallel.pack.dp_balanced'
   local dp, size = opts.dp, opts.size * opts.cp
   for i, n in ipairs(lengths) do
      err.raise_if(n > size, 'E_ARG', op, 'document %d is too long: %d tokens for a pack of %d', i,
         n, size)
   end
   local packs = in_order(lengths, size, 1)
   while #packs % dp ~= 0 do
      err.raise_if(not move_last(packs), 'E_ARG', op, 'not enough documents: %d packs of one each, '
         .. '%d data ranks', #packs, dp)
   end
   return packs
end

-- Distributes documents over ranks by work. Each document, longest first, gets cp_degree ranks:
-- those with the least load. Returns a list of { index, ranks (0-based), work a rank } and the load
-- of each rank.
function pack.dynamic_cp(lengths, opts)
   local op = 'parallel.pack.dynamic_cp'
   local n, linear = opts.ranks, opts.linear
   local load, order, plan = {}, {}, {}
   for r = 1, n do load[r] = 0 end
   for i in ipairs(lengths) do order[i] = i end
   for _, i in ipairs(fit.longest_first(order, lengths)) do
      local need = pack.cp_degree(lengths[i], opts.most)
      err.raise_if(need > n, 'E_ARG', op, 'document %d has %d tokens and needs %d ranks of %d, '
         .. 'there are %d', i, lengths[i], need, opts.most, n)
      local first, least = 1, math.huge            -- aligned groups: their communicators exist
      for f = 1, n - need + 1, need do
         local top = 0
         for r = f, f + need - 1 do top = math.max(top, load[r]) end
         if top < least then first, least = f, top end
      end
      local work = lengths[i] * ((lengths[i] + 1) / 2 + linear) / need
      local ranks = {}
      for r = first, first + need - 1 do ranks[#ranks + 1], load[r] = r - 1, least + work end
      plan[#plan + 1] = { index = i, ranks = ranks, work = work }
   end
   return plan, load
end

local building = {
   'size: integer >= 1 -- tokens of a row', 'cp: integer >= 1 = 1 -- ranks each slot is cut over',
   'padding_token_id: integer = 0', 'drop_long: boolean? -- leaves out samples that do not fit',
   'max_packs: integer? >= 0 -- rows, at most',
   'where cp == 1 or size % (2 * cp) == 0 -- a pack of {size} tokens cannot be cut over {cp} '
      .. 'ranks: expected a multiple of {2 * cp}',
}
signature.kind('flag', '0, 1 or a boolean', function(v)
   return v == 0 or v == 1 or type(v) == 'boolean'
end, 'any')
signature.record('sample', 'a table { input_ids =, labels = }', {
   'input_ids: table', 'labels: table', 'loss_mask: flag[]? -- 1 or true where a label counts',
   'where #input_ids == #labels -- it has {#input_ids} tokens and {#labels} labels',
   'where not loss_mask or #loss_mask == #labels -- it has {#labels} labels and a loss mask of '
      .. '{#loss_mask}',
})
local bins = 'lengths: integer[] >= 0; size: integer >= 1; max_bins: integer? >= 0'
return signature.doors('parallel.pack', pack, {
   knapsack = bins, best_fit = bins, cp_degree = 'length: integer >= 0; most: integer >= 1',
   greedy = { 'samples: sample[]', opts = building },
   neat = { 'samples: sample[]', opts = { building,
      "fit: 'emptiest' | 'best' = 'emptiest' -- which bin takes the next: knapsack or best_fit" } },
   dp_balanced = { 'lengths: integer[] >= 0', opts = {
      'size: integer >= 1 -- tokens of a pack on a rank', 'dp: integer >= 1 -- data-parallel ranks',
      'cp: integer >= 1 = 1 -- ranks that share a pack' } },
   dynamic_cp = { 'lengths: integer[] >= 0', opts = {
      'ranks: integer >= 1', 'most: integer >= 1 -- tokens a rank may hold',
      'linear: number >= 0 = 0 -- pairs a token costs beside attention' } },
})
