-- Which heads and groups of a Mamba-2 layer each rank works on. Integers only.
--
-- Heads go to ranks in runs as even as can be, each with the groups that its heads
-- read. Where a run begins or ends inside a group and the layer's rule (heads / groups equal for
-- all) would not hold among the local ones, a group is named several times, so that it does again;
-- it still travels once.
-- Legend: H heads, P head size, G groups, N state size, K taps, I = H P.

local gcd = require 'tide.util.gcd'
local signature = require 'tide.util.signature'
local balanced = require('tide.parallel.layout').balanced

local split = {}

-- Returns the local groups of heads [h, h + n) where each group has g heads: first group, their
-- count, and a list of them (from 0 among the local ones) as the layer's rule wants it; nil: as
-- they are.
local function groups_of(h, n, g)
   if n == 0 then return 0, 0 end
   local first, last = math.floor(h / g), math.floor((h + n - 1) / g)
   local unit, sizes = 0, {}
   for k = first, last do
      local size = math.min(h + n, (k + 1) * g) - math.max(h, k * g)
      sizes[#sizes + 1] = size
      unit = gcd(unit, size)
   end
   local count = last - first + 1
   if n / unit == count then return first, count end
   local list = {}
   for k, size in ipairs(sizes) do
      for _ = 1, size / unit do list[#list + 1] = k - 1 end
   end
   return first, count, list
end

-- Returns a list a rank of { head, heads, group, groups, list }: the first head and group (from 0),
-- how many, and see groups_of.
function split.heads(heads, groups, size)
   local out, h = {}, 0
   for r, n in ipairs(balanced(heads, size)) do
      local first, count, list = groups_of(h, n, heads / groups)
      out[r] = { head = h, heads = n, group = first, groups = count, list = list }
      h = h + n
   end
   return out
end

-- Runs { first, count } of what a part reads of a vector of channels [x | B | C] (and, with
-- after = true, of dt after them), which begins at `base`.
function split.runs(part, s, base, after)
   local P, N, I = s.head_dim, s.state, s.heads * s.head_dim
   local group, all = part.groups * N, s.groups * N
   local runs = {
      { base + part.head * P, part.heads * P },
      { base + I + part.group * N, group },
      { base + I + all + part.group * N, group },
   }
   if after then runs[4] = { base + I + 2 * all + part.head, part.heads } end
   return runs
end

-- Returns the channels (from 0) of B and then of C that groups have, of which the list counts from
-- group `first`; B begins at channel `base` and has G groups of N.
function split.channels(list, first, base, G, N)
   local out = {}
   for half = 0, 1 do
      for _, k in ipairs(list) do
         local at = base + (half * G + first + k) * N
         for i = 0, N - 1 do out[#out + 1] = at + i end
      end
   end
   return out
end

return signature.doors('parallel.mamba_cp', split, { heads = { {
   'heads: integer >= 1', 'groups: integer >= 1', 'size: integer >= 1',
   'where heads % groups == 0 -- heads ({heads}) must be a multiple of groups ({groups})' },
   op = 'parallel.mamba_cp.split' } })
