-- What a way of sharding costs, before it is done: bytes a rank and bytes on the wire.
--
-- The same integers as the run uses: the units of units.lua, the cuts of layout.lua. Bytes on the
-- wire are what a rank sends on average: (n - 1) / n of the whole for a gather and for a reduction,
-- twice that for an all-reduce.

local bytes_of = require('tide').dtype_size
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'

local price = {}

-- Adds what rank `rank` keeps of bucket b. unreduced: micro-batches add whole gradients up before
-- the reduction.
local function add_kept(sum, b, rank, state_bytes, unreduced, block)
   local compute, shard = bytes_of(b.opts.dtype), bytes_of(b.opts.shard_dtype)
   local count, whole = b.layout.counts[rank + 1], b.layout.total * compute
   if not b.apart then                            -- the shard is a part of the whole
      sum.parameters, sum.kept = sum.parameters + whole, sum.kept + block(whole)
   else
      sum.parameters = sum.parameters + count * shard + (b.full and 0 or whole)
      sum.kept = sum.kept + block(count * shard) + (b.full and 0 or block(whole))
      if b.full then sum.gathered = sum.gathered + whole end
   end
   if not b:wants_grad() then return end
   local bytes = count * bytes_of(b.grad_dtype)
   sum.kept = sum.kept + block(bytes)
   if unreduced then bytes = math.max(bytes, b.layout.total * bytes_of(b.sum_dtype)) end
   sum.gradients = sum.gradients + bytes
   for _, p in ipairs(b.layout.pieces[rank + 1]) do
      local each = state_bytes
      if type(each) == 'function' then
         each = err.number('parallel.fsdp.price', 'state_bytes(..)',
            each(b.entries[p.index], b.opts.shard_dtype), 0)
      end
      sum.optimizer = sum.optimizer + p.numel * each
      sum.kept = sum.kept + block(p.numel * 4) * math.floor(each / 4)
         + block(p.numel * (each % 4))
   end
end

local function add_gathers(sum, b, among, times)
   if among > 1 then sum.collectives.gather = sum.collectives.gather + times end
   sum.gather = sum.gather
      + (among - 1) / among * b.layout.total * bytes_of(b.opts.dtype) * times
end

-- Adds the collectives of one bucket in a step: gathers before forward, again before backward, and
-- reductions.
local function add_wire(sum, b, gathers, again, reductions)
   local o, n, m = b.opts, b.comm.size, b.replicas.size
   local share, c = (n - 1) / n, sum.collectives
   add_gathers(sum, b, n, gathers)
   add_gathers(sum, b, b.small and b.small.comm.size or n, again)
   if not b:wants_grad() then return end
   local bytes = b.layout.total * bytes_of(o.reduce_dtype) * reductions
   if n > 1 then c.reduce = c.reduce + reductions end
   if m > 1 then c.replicas = c.replicas + reductions end
   sum.reduce = sum.reduce + share * bytes + 2 * (m - 1) / m * bytes / n
end

-- Returns the units that backward runs through, those that hold or follow a trained parameter, in
-- the order of declaration.
local function with_backward(sharded)
   local of, set, begun = {}, {}, false
   for _, unit in ipairs(sharded:all_units()) do
      for _, e in ipairs(unit.entries) do of[e] = unit end
   end
   for _, e in ipairs(sharded.entries) do
      begun = begun or e.view.requires_grad
      set[of[e]] = begun
   end
   return set
end

-- Counts the cost of a Sharded. Returns bytes: parameters, gradients (at most: shards, or the whole
-- ones of micro-batches that are reduced at the last), optimizer, kept (the three between steps,
-- each tensor rounded by block), unit (the largest unit gathered), stays (what
-- reshard_after_forward = k keeps from forward to backward); gather and reduce (sent a step) and
-- their sum wire; collectives a step: { gather, reduce, replicas }.
function price.sharded(sharded, opts)
   local op = 'parallel.fsdp.price'
   local o, micro, block = sharded.opts, opts.micro, opts.block or function(n) return n end
   err.number(op, 'result of block', (block(1)), 0)
   err.integer(op, 'rank', opts.rank or sharded.shard_comm.rank, 0, sharded.shard_comm.size - 1)
   local sum = { parameters = 0, gradients = 0, optimizer = 0, kept = 0, unit = 0, stays = 0,
      gather = 0, reduce = 0, collectives = { gather = 0, reduce = 0, replicas = 0 } }
   local unreduced, runs = micro > 1 and not o.sync_each_backward, with_backward(sharded)
   for _, unit in ipairs(sharded:all_units()) do
      sum.gathered = 0
      for _, b in ipairs(unit.buckets) do
         -- ep_size neighbours have one place among the ranks of their experts' shards
         local rank = opts.rank and math.floor(opts.rank / b.opts.ep_size) or b.comm.rank
         add_kept(sum, b, rank, opts.state_bytes, unreduced, block)
         local again = b.full and unit.reshard_after_forward and runs[unit] and micro or 0
         add_wire(sum, b, b.full and micro or 1, again, unreduced and 1 or micro)
         if b.small then sum.stays = sum.stays + b:small_count() * bytes_of(b.opts.dtype) end
      end
      sum.unit = math.max(sum.unit, sum.gathered)
   end
   sum.gathered, sum.wire = nil, sum.gather + sum.reduce
   return sum
end

return signature.doors('parallel.fsdp.price', price, {
   sharded = { 'sharded: sharded', op = 'parallel.fsdp.price', opts = {
      'rank: integer? >= 0 -- rank among the shards; this one by default',
      'micro: integer >= 1 = 1 -- micro-batches of a step',
      'state_bytes: number >= 0 | function = 8 -- of the optimiser for an element, or a function '
         .. 'of the entry and the dtype of its shards; 8 for AdamW over f32',
      'block: function? -- the bytes that an allocation of n takes' } },
})
