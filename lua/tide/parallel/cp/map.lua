-- Which token lies on which rank: the plan of a sharded sequence.
--
--    local plan = cp_map.new { kind = 'zigzag', axis = mesh:axis 'cp', length = 1000 }
--    local mine = plan:shard(ids, 2, 0)       -- this rank's tokens, padding filled with 0
--    local all  = plan:gather(hidden, 2)      -- every token again, in order, without padding
--
-- A plan owns the layout, the padding and the documents, and gives everything else as
-- index data: what a rank keeps, where each token is, which document and position each carries.
-- Code downstream does not need to know the layout.
--
-- Kinds: contiguous; zigzag (head-tail: 2 W chunks, rank r has chunks r and 2 W - 1 - r); document
-- (zigzag of every document); balanced (blocks dealt so that tokens are equal and work nearly so);
-- custom (a permutation in rank order).
--
-- Three coordinates: a source position counts the caller's tokens; a whole position counts those
-- and the padding; a place counts tokens in rank order. All from 0. Padding belongs to document -1.

local tide = require 'tide'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local gcd = require 'tide.util.gcd'
local signature = require 'tide.util.signature'
local axis_of = require 'tide.parallel.axis_of'
local balance = require 'tide.parallel.cp.balance'
local zigzag = require 'tide.parallel.zigzag'

local cp_map = { deal = balance.deal }

local Map = { class_name = 'Map' }
Map.__index = Map

-- ---- multiples -------------------------------------------------------------------------------

-- Returns the least common multiple.
local function lcm(a, b) return a / gcd(a, b) * b end
cp_map.lcm = lcm

local function round_up(n, unit) return math.ceil(n / unit) * unit end

-- Returns what the length of a sharded sequence must be a multiple of, so that all active rules
-- hold.
function cp_map.multiple(o) return lcm(o.size * o.tp * lcm(o.halves, o.block), o.multiple) end

-- ---- documents -------------------------------------------------------------------------------

local function list_of(op, name, v)
   if tide.is_tensor(v) then
      if v.ndim ~= 1 then err.arg(op, name, 'a list of numbers or a tensor of one dim', v) end
      return v:tolist()
   end
   err.arg_if(type(v) ~= 'table' or type(v[1]) == 'table', op, name, 'a list of numbers or a '
      .. 'tensor of one dim', v)
   return v
end

-- Returns cumulative lengths, given as a list or tensor, as a list; they begin at 0, are integers
-- and do not decrease.
function cp_map.cu(op, name, v)
   local cu = list_of(op, name, v)
   if cu[1] ~= 0 then err.arg(op, name .. '[1]', '0', cu[1]) end
   for i = 2, #cu do
      local n = cu[i]
      if type(n) ~= 'number' or n % 1 ~= 0 or n < cu[i - 1] or n > 2^53 then
         err.arg(op, ('%s[%d]'):format(name, i), ('an integer >= %d (cumulative lengths never '
            .. 'decrease; padding entries must be dropped)'):format(cu[i - 1]), n)
      end
   end
   return cu
end

signature.reader('cu', 'cumulative lengths', cp_map.cu)
signature.kind('plan', 'a plan (parallel.cp_map)', function(v)
   return type(v) == 'table' and type(v.size) == 'number' and type(v.shard) == 'function'
end)

-- Checks that every document fits its slot.
function cp_map.check_slots(op, real, slot)
   err.integers(op, 'cu_real', real, 0)
   err.integers(op, 'cu_slot', slot, 0)
   err.raise_if(#real ~= #slot, 'E_ARG', op, 'cu_real has %d entries, cu_slot %d; both must have '
      .. 'one for each document', #real, #slot)
   for d = 1, #real - 1 do
      err.raise_if(real[d + 1] - real[d] > slot[d + 1] - slot[d], 'E_ARG', op,
         'document %d has %d tokens, its slot %d', d - 1, real[d + 1] - real[d],
         slot[d + 1] - slot[d])
   end
end

-- Returns the documents of the source stream: lists of real lengths and slots, and its length.
local function documents(op, o)
   local real, slot = o.cu or o.cu_real, o.cu or o.cu_slot
   if not slot then return { 0, o.length }, { 0, o.length }, o.length, false end
   if real ~= slot then cp_map.check_slots(op, real, slot) end
   return real, slot, o.length or slot[#slot], true
end

-- ---- padding ---------------------------------------------------------------------------------

local function refuse_padding(op, what, n, unit)
   err.raise('E_ARG', op, '%s has %d tokens, expected a multiple of %d (pad = false)', what, n,
      unit)
end

-- Assigns each document a slot, rounded up to a multiple; the rest at the end is a slot without
-- tokens.
local function pad_documents(self, op, real, slot, unit, whole, may_pad)
   local starts, lengths, to = { 0 }, { 0 }, 0
   for d = 1, #slot - 1 do
      local n = slot[d + 1] - slot[d]
      if n % unit ~= 0 and not may_pad then
         refuse_padding(op, ('document %d'):format(d - 1), n, unit)
      end
      to = to + round_up(n, unit)
      starts[d + 1], lengths[d + 1] = to, real[d + 1]
   end
   local tail = self.length - slot[#slot]
   local padded = round_up(to + round_up(tail, unit), whole)
   if not may_pad and padded ~= to + tail then
      refuse_padding(op, 'the stream', to + tail, whole)
   end
   if padded > to then starts[#starts + 1], lengths[#lengths + 1] = padded, real[#real] end
   self.padded, self.cu_slot, self.cu_real, self.cut = padded, starts, lengths, starts
   self.from = slot
end

-- ---- making a plan ---------------------------------------------------------------------------

local function ranks_of(op, o)
   if o.axis == nil then return o.size or 1, o.rank or 0 end
   local _, size, rank = axis_of(op, 'axis', o.axis, true)
   return size, rank
end

-- Returns a permutation in rank order as runs of each rank.
local function custom_runs(self, op, index)
   local list = list_of(op, 'index', index)
   err.arg_if(#list ~= self.padded, op, 'index',
      ('%d positions (%d tokens and the padding)'):format(self.padded, self.length), #list)
   self.custom = list
   -- raises unless it is a permutation
   tide.inverse_index(tide.tensor(list, { dtype = 'i64', device = 'cpu' }))
   local per, all = self.count, {}
   for r = 1, self.size do
      local runs = {}
      for i = (r - 1) * per + 1, r * per do balance._add_run(runs, list[i], 1) end
      all[r] = runs
   end
   return all
end

-- Makes a plan of length tokens, of documents, or of both.
function cp_map.new(opts)
   local op = 'parallel.cp_map.new'
   local self = setmetatable({ keep = {}, agreed = {}, kind = opts.kind }, Map)
   self.size, self.rank = ranks_of(op, opts)
   self.axis, self.mask = opts.axis, opts.mask
   err.arg_if((opts.index ~= nil) ~= (self.kind == 'custom'), op, 'index',
      "an index with kind = 'custom', and only then", opts.index)
   local real, slot, length, given = documents(op, opts)
   self.length = length
   local halves = self.size > 1 and (self.kind == 'zigzag' or self.kind == 'document') and 2 or 1
   local may_pad = opts.pad
   local whole = cp_map.multiple { size = self.size, halves = halves, tp = opts.tp,
      block = opts.block, multiple = opts.multiple }
   if self.kind == 'document' then
      local unit = cp_map.multiple { size = self.size, halves = halves, tp = opts.tp }
      pad_documents(self, op, real, slot, unit, whole, may_pad)
   else                                  -- padding at the very end only
      self.padded = round_up(self.length, whole)
      if self.padded ~= self.length and not may_pad then
         refuse_padding(op, 'the sequence', self.length, whole)
      end
      self.cu_real, self.cu_slot = real, given and slot or { 0, self.padded }
      self.cut = { 0, self.padded }
   end
   self.count = self.padded / self.size
   self.gapless = self.padded == self.length
   if self.size == 1 then self.all_runs = { { 0, self.padded } } end
   if self.kind == 'custom' then self.all_runs = custom_runs(self, op, opts.index) end
   if self.kind == 'balanced' then
      self.all_runs = balance.assign(self.cu_slot, self.cu_real, self.size, self.count,
         balance.mask(op, opts.mask), opts.blocks)
   end
   return self
end

-- Returns the same plan as another rank sees it.
function Map:at(rank)
   local other = setmetatable(copy(self), Map)
   other.rank, other.keep, other.agreed = rank, {}, {}
   return other
end

-- ---- runs, closed forms ----------------------------------------------------------------------

-- Returns { start, length, start, length, ... }: whole positions of a rank (its own by default).
function Map:runs(rank)
   rank = rank or self.rank
   if self.all_runs then return self.all_runs[rank + 1] end
   if self.kind == 'contiguous' then return { rank * self.count, self.count } end
   return zigzag(self.cut, self.size, rank)
end

-- Returns the whole position of token i (from 0) of a rank.
function Map:position(rank, i)
   if self.kind == 'contiguous' then return rank * self.count + i end
   if self.all_runs then
      local runs = self.all_runs[rank + 1]
      for k = 1, #runs, 2 do
         if i < runs[k + 1] then return runs[k] + i end
         i = i - runs[k + 1]
      end
   end
   local cut, W = self.cut, self.size
   local d = balance.document_at(cut, i * W)
   local half = (cut[d + 1] - cut[d]) / (2 * W)
   local off = i - cut[d] / W < half and rank or 2 * (W - 1) - rank
   return i - cut[d] / W + cut[d] + half * off
end

-- Returns the rank and place in that rank (from 0) of whole position g.
function Map:place(g)
   local W = self.size
   if self.kind == 'contiguous' then return math.floor(g / self.count), g % self.count end
   if not self.all_runs then
      local cut = self.cut
      local d = balance.document_at(cut, g)
      local c = (cut[d + 1] - cut[d]) / (2 * W)
      local k = math.floor((g - cut[d]) / c)
      local i = cut[d] / W + (g - cut[d]) % c
      if k < W then return k, i end
      return 2 * W - 1 - k, i + c
   end
   for r, runs in ipairs(self.all_runs) do
      local i = 0
      for k = 1, #runs, 2 do
         if g >= runs[k] and g < runs[k] + runs[k + 1] then return r - 1, i + g - runs[k] end
         i = i + runs[k + 1]
      end
   end
end

require 'tide.parallel.cp.index' (Map)

-- ---- work ------------------------------------------------------------------------------------

-- Returns the (query, key) pairs of each rank under a mask ({ causal, window, linear }; the plan's
-- by default).
function Map:cost(mask)
   mask = balance.mask('parallel.cp_map.cost', mask or self.mask)
   local list = {}
   for r = 0, self.size - 1 do
      local runs, sum = self:runs(r), 0
      for i = 1, #runs, 2 do
         sum = sum + balance.cost_of(self.cu_slot, self.cu_real, runs[i], runs[i + 1], mask)
      end
      list[r + 1] = sum
   end
   return list
end

-- Returns the largest work of a rank over the mean; 1 is perfect.
function Map:imbalance(mask)
   local most, sum = 0, 0
   for _, c in ipairs(self:cost(mask)) do most, sum = math.max(most, c), sum + c end
   return sum == 0 and 1 or most * self.size / sum
end

function Map:__tostring()
   local ndoc = #self.cu_real - 1
   return ('%s plan: %d tokens%s in %d document%s, %d on each of %d ranks, imbalance %.4f'):format(
      self.kind, self.length, self.gapless and '' or (' padded to %d'):format(self.padded), ndoc,
      ndoc == 1 and '' or 's', self.count, self.size, self:imbalance())
end

local rules = {
   'tp: integer >= 1 = 1 -- ranks that split the tokens of a rank further (sequence parallelism)',
   'block: integer >= 1 = 1 -- the parts have a multiple of it (FP8)',
   'multiple: integer >= 1 = 1 -- the whole length is a multiple of it',
}
signature.doors('parallel.cp_map', Map, {
   at = 'rank: integer in [0, self.size - 1]', runs = 'rank: integer? in [0, self.size - 1]',
   position = 'rank: integer in [0, self.size); i: integer in [0, self.count)',
   place = 'g: integer in [0, self.padded)',
})
return signature.doors('parallel.cp_map', cp_map, {
   lcm = 'a: integer >= 1; b: integer >= 1',
   multiple = { opts = { 'size: integer >= 1 = 1 -- ranks',
      'halves: integer >= 1 = 1 -- 2 for head-tail layouts', rules } },
   new = { opts = {
      "kind: 'contiguous' | 'zigzag' | 'document' | 'balanced' | 'custom' = 'zigzag' -- the layout",
      'axis: any? -- the ranks; or size and rank', 'size: integer? in [1, 2147483647]',
      'rank: integer? >= 0',
      'length: integer? >= 0 -- tokens of the sequence; by default those of the documents',
      'cu: cu? -- cumulative lengths of the documents, a list or a tensor',
      'cu_real: cu? -- cumulative lengths of documents in larger slots',
      'cu_slot: cu? -- cumulative lengths of the slots',
      'where axis == nil or not size and not rank -- axis and size: give the axis, or size and '
         .. 'rank',
      "where (rank or 0) < (size or 1) -- argument 'rank': expected one of the {size or 1} ranks, "
         .. 'got {rank}',
      'where not cu or not cu_real and not cu_slot -- cu and cu_real: give cu, or cu_real and '
         .. 'cu_slot',
      'where not cu_real == not cu_slot -- cu_real and cu_slot are given together',
      "where length or cu or cu_slot -- argument 'length': expected an integer >= 0, got nil",
      'where not length or not (cu or cu_slot) or last(cu or cu_slot) <= length -- the documents '
         .. 'end at {last(cu or cu_slot)}, there are {length} tokens',
      'pad: boolean = true -- lengths are rounded up inside the plan; false: they must fit', rules,
      'index: any? -- for custom: positions in the sequence, in rank order',
      'mask: any? -- { causal, window, linear }: what balanced balances',
      'blocks: integer? >= 1 -- for balanced: blocks of a rank' } },
})
