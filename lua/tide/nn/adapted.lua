-- The rows of an adapted weight that a rank holds, the norms of all of them, and what DoRA makes of
-- these.
--
-- A view of a layer: m (the layer), A, B and magnitude (its parameters lora_A, lora_B and lora_m,
-- whole but for tensor parallelism), each(fn), which calls fn(W, row, n, at) with n rows of the
-- weight in f32 from `row` (counted from 0); at: the tensor that holds them, nil of NF4. A rank
-- sees the rows of its own shards of a sharded layer, and sums(t) adds up those of all ranks.
-- Numbers of NF4 are made for a panel of rows at a time.

local tide = require 'tide'
local low_rank = require 'tide.nn.low_rank'
local nf4_part = require 'tide.nn.nf4_part'

local adapted = {}

local function no_sum() end

-- Calls fn(W, e, 1, at) for the weights of experts in t [n, out, in], the first of them number
-- `first` (from 0).
local function each_expert(t, first, fn)
   for e = 0, t:size(1) - 1 do
      local at = t:select(1, e + 1)
      tide.scope(function() fn(at:to 'f32', first + e, 1, at) end)
   end
end

-- Returns the view of an adapted router or of adapted experts, at a field of an nn.MoE. Of experts
-- each gives one weight at a time, and `row` counts experts. sharded: what fully_shard returned, or
-- nil.
function adapted.of_moe(m, field, sharded)
   local a, b = low_rank.fields(field)
   local is_router = field == 'router'
   local function each(t, first, fn)
      if is_router then return fn(t:to 'f32', first, t:size(1), t) end
      return each_expert(t, first, fn)
   end
   local view = { m = m, is_stack = not is_router, sums = no_sum,
      A = sharded and sharded:unsharded(m, a) or m[a],
      B = sharded and sharded:unsharded(m, b) or m[b] }
   function view.each(fn)
      if not sharded then return each(m[field]:detach(), 0, fn) end
      for _, p in ipairs(sharded:pieces(m, field)) do
         each(p.param:detach(), p.parts[1].offset[1], fn)
      end
   end
   return view
end

-- Returns the view of a layer whose parameters are whole.
function adapted.whole(m)
   return { m = m, A = m.lora_A, B = m.lora_B, magnitude = m.lora_m, sums = no_sum,
      device = (m.weight or m.weight_nf4).device,
      each = function(fn)
         if not m.weight then return nf4_part.each_rows(m, fn) end
         fn(m.weight:to 'f32', 0, m.nout, m.weight)
      end }
end

-- Returns the view of a layer of a sharded model (what fully_shard returned). Collective, as is
-- sums.
function adapted.sharded(m, sharded)
   local whole = {}
   for _, field in ipairs { 'lora_A', 'lora_B', 'lora_m' } do
      whole[field] = m[field] and sharded:unsharded(m, field)
   end
   return { m = m, A = whole.lora_A, B = whole.lora_B, magnitude = whole.lora_m,
      device = whole.lora_A.device,
      sums = function(t)
         if m.weight and sharded.shard_comm.size > 1 then sharded.shard_comm:all_reduce(t) end
      end,
      each = function(fn)
         if not m.weight then return nf4_part.each_rows(m, fn) end
         for _, p in ipairs(sharded:pieces(m, 'weight')) do
            fn(p.param:to { dtype = 'f32', device = whole.lora_A.device }, p.at.row, p.at.rows,
               p.param)
         end
      end }
end

-- ---- norms -------------------------------------------------------------------------------------

local function squares(W) return (W * W):sum(2) end

-- Returns the weight of rows `row` to row + n with their change, in f32.
function adapted.changed(view, W, row, n, scale)
   if view.is_stack then
      return W + low_rank.change(view.A:select(1, row + 1), view.B:select(1, row + 1), scale)
   end
   return W + low_rank.change(view.A, view.B:narrow(1, row + 1, n), scale)
end

-- Returns norms from the squares of this rank's rows, summed over the ranks of the shards and over
-- those that the columns are cut over.
local function norms(view, sums)
   view.sums(sums)
   local places = rawget(view.m, '_layout')
   local at = places and places.lora_A
   if at and at.blocks then at.axis.comm:all_reduce(sums) end
   return sums:sqrt()
end

-- Returns the norms of the rows of the weight, f32 [out].
function adapted.norms(view)
   local sums = tide.zeros({ view.m.nout }, { device = view.device })
   view.each(function(W, row, n) sums:narrow(1, row + 1, n):copy_(squares(W)) end)
   return norms(view, sums)
end

-- Returns the norms of the rows of the weight and of the weight with its change: |W| and
-- |W + scale B A|.
function adapted.both_norms(view, scale)
   local like = { device = view.device }
   local before, after = tide.zeros({ view.m.nout }, like), tide.zeros({ view.m.nout }, like)
   view.each(function(W, row, n)
      before:narrow(1, row + 1, n):copy_(squares(W))
      after:narrow(1, row + 1, n):copy_(squares(adapted.changed(view, W, row, n, scale)))
   end)
   return norms(view, before), norms(view, after)
end

return adapted
