-- The context: what attention over ranks needs of one batch.
--
-- It is an argument of every call that attends (model:loss(ids, labels, { context = context })), so
-- a layer that is computed again in backward sees the same, and nothing is process-global.
--
-- Fields
--    map      the cp_map plan: which rank holds what; map:shard, map:gather (nil if `pairs` was
--    given)
--    axis     axis of a mesh (or communicator) along which the sequence is cut
--    comm     its communicator
--    size, rank
--    method   'ring', 'allgather', 'a2a' or 'a2a+p2p': how queries meet keys
--    inner    a2a+p2p: the axis of the all-to-all inside; the ring runs along `outer`
--    window, causal   mask of calls that name none
--    batch    a line for the batch that the context is of, compared among the ranks
--    whole_hops   a ring moves all rows, whatever the documents (see replayed.lua)
-- and, as data, the index (see nn.mask) of tokens: k_index(rank, device), q_index(device) of this
-- rank, i32 [1 or B, count, 2 or 3], pairs(device) of all ranks, positions(device).
-- What has been found out about them (which rank needs which rows, what the ranks agree on) is kept
-- here.

local tide = require 'tide'
local agree = require 'tide.comm.agree'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local in_documents = require('tide.nn.context')._in_documents
local axis_of = require 'tide.parallel.axis_of'
local blocks = require 'tide.parallel.cp.blocks'
local collective = require 'tide.parallel.collective_op'
local fingerprint = require 'tide.parallel.fingerprint'
local kept = require 'tide.parallel.kept'
local partition = require 'tide.util.partition'
local signature = require 'tide.util.signature'
local tiles = require 'tide.nn.tiles'
local window = require 'tide.nn.window'
require 'tide.parallel.cp.map'          -- the kind 'plan'

local Context = { class_name = 'Context' }
Context.__index = Context

local methods = { 'ring', 'allgather', 'a2a', 'a2a+p2p' }
-- Names that others use for them.
local synonyms = { p2p = 'ring', all_gather = 'allgather', ['all-gather'] = 'allgather',
   all_to_all = 'a2a', ulysses = 'a2a' }

local context_ = { Context = Context, methods = methods }

-- Returns the method of this name, or of one that it has elsewhere; raises for others.
function context_.method(op, name)
   return err.choice(op, 'method', synonyms[name] or name, methods)
end

signature.reader('cp_method', 'a method', function(op, _, name)
   return context_.method(op, name)
end, "'ring'|'allgather'|'a2a'|'a2a+p2p'")

-- Raises unless `inner` are the neighbours of this rank among `size`, and `outer` the ranks with
-- the same place among theirs: the two exchanges would join other tokens than the plan says.
-- names: of the two arguments.
function context_.check_split(op, inner, outer, size, rank, names)
   names = names or { 'inner', 'outer' }
   local _, n, near = axis_of(op, names[1], inner, true)
   local _, m, far = axis_of(op, names[2], outer, true)
   err.raise_if(n * m ~= size, 'E_ARG', op, '%s (%d) x %s (%d) must equal the %d ranks of the plan',
      names[1], n, names[2], m, size)
   err.raise_if(near + n * far ~= rank, 'E_ARG', op, '%s must be the %d neighbours of rank %d, and '
      .. '%s the ranks with the same place among theirs; rank %d of %d in %s and %d of %d in %s is '
      .. 'the place of rank %d (are the two exchanged?)', names[1], n, rank, names[2], near, n,
      names[1], far, m, names[2], near + n * far)
end

-- Returns the ranks: those of a plan, or of the axis given with pairs.
local function ranks_of(op, opts)
   if opts.map == nil then
      local _, size, rank = axis_of(op, 'axis', opts.axis, true)
      local list = opts.pairs
      err.arg_if(#err.type(op, 'index', list, 'table') ~= size, op, 'index',
         ('a list of %d tensors of (document, position), one a rank'):format(size), list)
      for r = 1, size do
         signature.check(op, ('index[%d]'):format(r), list[r], 'tensor [B or 1, T, 2 or 3] of i32')
      end
      return opts.axis, size, rank
   end
   local map = opts.map
   local axis = opts.axis or map.axis
   err.arg_if(map.size > 1 and (type(axis) ~= 'table' or axis.size ~= map.size), op, 'axis',
      ('an axis of %d ranks, as the plan has'):format(map.size), axis)
   local rank = map.size > 1 and axis.rank or map.rank
   err.raise_if(rank ~= map.rank, 'E_ARG', op, 'the plan is for rank %d of %d, but the axis has '
      .. 'rank %s; make the plan with the axis, or use map:at(rank)', map.rank, map.size, rank)
   return axis, map.size, map.rank
end

-- Makes the context of a batch, of a plan (map) or of pairs.
function context_.new(opts)
   local op = 'parallel.cp.context'
   local axis, size, rank = ranks_of(op, opts)
   if opts.inner ~= nil then context_.check_split(op, opts.inner, opts.outer, size, rank) end
   if opts.index ~= nil then
      signature.check(op, 'index', opts.index, 'tensor [rows, length, 2 or 3] of i32',
         { length = opts.map.length })
   end
   return setmetatable({
      map = opts.map, axis = axis, comm = axis and axis.comm or axis, size = size, rank = rank,
      method = opts.method, inner = opts.inner, outer = opts.outer, window = opts.window,
      causal = opts.causal, index = opts.index,
      given = opts.pairs, keep = {}, hop_lists = {}, agreed = {},
   }, Context)
end

-- ---- which rank holds what -------------------------------------------------------------------

-- Returns the index of a rank's tokens, i32 [1 or B, count, 2 or 3] (see nn.mask).
function Context:k_index(rank, device)
   if self.given then
      local t = self.given[rank + 1]
      if device == nil or t.device == device then return t end
      return kept(self, rank .. device, function() return t:to(device) end)
   end
   if not self.index then return self.map:document_index(device, rank) end
   device = device or self.index.device
   return kept(self, rank .. device, function()
      return self.map:shard(self.index:to(device), 2, -1, rank)
   end)
end

-- Returns the index of this rank's tokens; see k_index.
function Context:q_index(device) return self:k_index(self.rank, device) end

-- Returns a context like this one, of one rank, whose tokens have another index [1 or B, count,
-- 2 or 3].
function Context:_seen(index)
   local new = copy(self)
   new.given, new.index, new.keep, new.hop_lists, new.agreed = { index }, nil, {}, {}, {}
   return setmetatable(new, Context)
end

-- Returns the index of every rank's tokens (see k_index), in rank order.
function Context:pairs(device)
   local list = {}
   for r = 0, self.size - 1 do list[r + 1] = self:k_index(r, device) end
   return list
end

-- Returns the positions of this rank's tokens in their documents, i64 [1 or B, count].
function Context:positions(device) return in_documents(self:q_index(device)) end

-- Returns the number of tokens of each rank.
function Context:tokens()
   local list = {}
   for r = 0, self.size - 1 do
      list[r + 1] = self.given and self.given[r + 1]:size(2) or self.map.count
   end
   return list
end

local function join(list)
   local rows = 1
   for _, t in ipairs(list) do rows = math.max(rows, t:size(1)) end
   local out = {}
   for r, t in ipairs(list) do
      out[r] = t:size(1) == rows and t or t:expand { rows, t:size(2), t:size(3) }
   end
   return tide.cat(out, 2)
end

-- Returns the index of n ranks from rank `first` on, joined: i32 [1 or B, tokens, 2 or 3].
function Context:joined(device, first, n)
   n = n or self.size
   local key = ('%s %d %d'):format(device, first, n)
   return kept(self, key, function()
      return join { unpack(self:pairs(device), first + 1, first + n) }
   end)
end

-- Returns what tiles of this rank's own tokens span (see nn.tiles); nil on the host.
function Context:q_tiles(device)
   return kept(self, 'tiles ' .. self.rank .. device, function()
      return tiles.of(self:q_index(device))
   end)
end

-- Returns the spans of tiles (see nn.tiles) of the pairs that joined(device, first, n) returns.
function Context:joined_tiles(device, first, n)
   n = n or self.size
   return kept(self, ('tiles %s %d %d'):format(device, first, n), function()
      return tiles.of(self:joined(device, first, n))
   end)
end

-- ---- which rank needs what -------------------------------------------------------------------

-- Returns the pairs of each group of n neighbours.
function Context:groups(device, n)
   if n == 1 then return self:pairs(device) end
   local list = {}
   for g = 1, self.size / n do list[g] = self:joined(device, (g - 1) * n, n) end
   return list
end

-- Returns the hops of group `at` of a ring over groups of n neighbours, under a mask; found once,
-- from numbers on the host (see blocks.lua).
function Context:hops(n, at, mask)
   local key = ('%d %s %s %s'):format(n, tostring(mask.causal), window.sides(mask.window))
   local found = self.hop_lists[key]
   if not found then
      local find = self.whole_hops and blocks.whole or blocks.hops
      found = find(self:groups('cpu', n), at, { causal = mask.causal, window = mask.window })
      self.hop_lists[key] = found
   end
   return found
end

-- ---- agreement -------------------------------------------------------------------------------

-- Raises E_COMM on all ranks of comm unless they have the same sequence and call. Each rank
-- computes from its own copy of plan, documents and mask; if one copy differs, some methods would
-- still run and give wrong numbers. The batch that the context was made for (field batch, a line)
-- is compared with them. what: a plural; kind: the call in a line. Collective at the first call of
-- its kind with a context, not in each layer.
function Context:check_agreed(op, comm, what, kind)
   err.type('parallel.cp.context', 'kind', kind, 'string')
   if self.agreed[kind] then return end
   agree.check(comm, op, 'E_COMM', {
      { 'batches', self.batch or '', 'shown',
         hint = 'all ranks of the axis must get the same rows' },
      { what, function()
         self.line = self.line or fingerprint.context(self)
         return self.line .. ', ' .. kind
      end, 'shown' },
   })
   self.agreed[kind] = true
end

-- ---- what belongs to the sequence and is not cut with it ---------------------------------------

-- Returns how the ranks share pieces of these costs (a list of positive numbers, in order): the
-- pieces of rank r, from 0, are those behind list[r + 1] up to list[r + 2].
function Context:share(costs) return partition(costs, self.size) end

-- Returns the rows of all ranks, in rank order, of which rank r has counts[r + 1]: x [rows, ..] of
-- this one. Every rank gets the sum of all ranks' gradients for its own rows. Collective; the ranks
-- compare their counts at the first call with a context.
function Context:all_rows(x, counts)
   self:check_agreed('parallel.cp.context', self.comm, 'images',
      'rows ' .. table.concat(counts, ' '))
   return collective.all_gather_v(x, self.axis, 1, counts)
end

-- ---- the rest --------------------------------------------------------------------------------

-- Returns fn(context, ...). The context is a plain argument; nothing is entered or left.
function Context:run(fn, ...) return err.func('parallel.cp.context', 'fn', fn)(self, ...) end

function Context:__tostring()
   return ('context parallel (%s, rank %d of %d): %s'):format(self.method, self.rank, self.size,
      self.map and tostring(self.map) or 'pairs as given')
end

-- No context parallelism: one rank has the whole sequence.
context_.null = setmetatable({ size = 1, rank = 0, method = 'none', null = true }, {
   __index = { run = Context.run }, __tostring = function() return 'no context parallelism' end,
})

-- Returns v, which must be a context: one with pairs or a plan, or null.
function context_.check(op, name, v)
   if v == context_.null or type(v) == 'table' and getmetatable(v) == Context then return v end
   err.arg(op, name, 'a context (parallel.cp.context, or the first result of '
      .. 'make_cp_batch_and_ctx)', v)
end

signature.doors('parallel.cp.context', Context, {
   k_index = 'rank: integer in [0, self.size); device: string?',
   joined = 'device: string?; first: integer in [0, self.size) = 0; '
      .. 'n: integer? in [1, self.size - first]',
   q_tiles = 'device: string',
   joined_tiles = 'device: string; first: integer in [0, self.size) = 0; '
      .. 'n: integer? in [1, self.size - first]',
   share = 'costs: number[] > 0',
   all_rows = { 'x: tensor [rows, ..]; counts: integer[] >= 0' },
   groups = 'n: integer in [1, self.size]', hops = 'n: integer in [1, self.size]; mask: table',
})
return signature.doors('parallel.cp.context', context_, {
   new = { op = 'parallel.cp.context', opts = {
      'map: plan? -- a plan (parallel.cp_map)',
      'axis: any? -- the ranks; those of the plan by default',
      "method: cp_method = 'ring' -- how queries meet keys: ring, allgather, a2a, "
         .. 'a2a+p2p',
      'inner: any? -- for a2a+p2p: the axis of neighbours',
      'outer: any? -- for a2a+p2p: the axis of ranks with the same place among neighbours',
      'window: window? -- distances { left, right }', 'causal: boolean = true',
      "index: any? -- i32 [B or 1, length, 2] of (document, position) in the caller's order, where "
         .. 'rows differ, or [.., 3] with `until` (see tide.attention)',
      'pairs: any? -- in place of map: a list over ranks of i32 [B or 1, T_r, 2 or 3], alike on '
         .. 'all',
      'where map == nil or pairs == nil -- map and pairs: give one of them',
      'where map ~= nil or index == nil -- an index goes with a map; pairs say the same by '
         .. 'themselves',
      "where (inner ~= nil) == (method == 'a2a+p2p') and (inner == nil) == (outer == nil) -- inner "
         .. "and outer: expected both axes with method 'a2a+p2p', and only then" } },
})
