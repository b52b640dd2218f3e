-- Images and videos over context-parallel ranks: padding rules, packed parameters, and the split
-- and gather of what a vision tower reads and writes.
--
-- A split is a plan (which rank has which frames, which has no frames) that the gather reads again,
-- so the result is exactly what went in: no frame lost, empty ranks known by a flag and not
-- guessed from their number. Towers of different length on each rank are joined by a true
-- all-gather of unequal parts, whose adjoint is the reduce-scatter of the same parts.
--
-- Before ranks gather they compare what must be the same on all: tensors of as many numbers but
-- another shape would be joined to another result on each.
--
-- axis: an axis of a mesh or a communicator; nil is one rank.

local tide = require 'tide'
local agree = require 'tide.comm.agree'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'
local grid = require 'tide.model.vision_grid'
local signature = require 'tide.util.signature'
local axis_of = require 'tide.parallel.axis_of'
local cp_map = require 'tide.parallel.cp.map'
local collective = require 'tide.parallel.collective_op'
local split = require 'tide.parallel.names.vision_split'

local multimodal = {}

local solo = { size = 1, rank = 0 }

-- Returns the axis; nil is one rank.
local function or_solo(op, axis)
   if axis == nil then return solo end
   axis_of(op, 'axis', axis, true)
   return axis
end

-- Raises on all ranks unless they have tensors of one dtype and, but for dim `free` (nil: none),
-- one shape. more: what else must be the same, an item of agree.check. Returns the axis.
local function check_alike(op, axis, x, free, more)
   axis = or_solo(op, axis)
   if axis.size == 1 then return axis end
   local shape = x.shape
   if free then shape[free] = '*' end
   agree.check(axis.comm or axis, op, 'E_SHAPE', {
      { 'tensors', ('%s [%s]'):format(x.dtype, table.concat(shape, ', ')), 'shown',
        hint = free and 'only dim ' .. free .. ' may differ' },
      more,
   })
   return axis
end

-- Returns the FP8 block of a recipe.
local function block_of(opts)
   if not opts.fp8_enabled then return 1 end
   return opts.fp8_recipe == 'mxfp8' and 32 or 16
end

-- ---- padding ---------------------------------------------------------------------------------

-- Returns the number of tokens to add to a sequence of seq_len.
function multimodal.get_padding(seq_len, opts)
   local cp, tp = opts.cp_size, opts.tp_size
   if opts.has_sp and opts.decoder_tp_comm_overlap then return opts.decoder_seq_len - seq_len end
   local factor
   if opts.rule == 'first' then        -- published code leaves the FP8 block out with several ranks
      factor = cp > 1 and 2 * cp * (opts.has_sp and tp or 1) or opts.has_sp and tp or block_of(opts)
   else
      factor = cp_map.multiple { size = cp, halves = cp > 1 and 2 or 1,
         tp = opts.has_sp and tp or 1, block = block_of(opts) }
   end
   return math.ceil(seq_len / factor) * factor - seq_len
end

local function i32(list) return tide.tensor(list, { dtype = 'i32' }) end

-- Returns packed parameters of rows that all have the same number of tokens. tokens: a tensor [B,
-- S]; img_seq_len more tokens in each row; padding_needed of the sum are padding; packed (false):
-- 'thd' without padding, too, where there are several ranks.
function multimodal.get_packed_seq_params(tokens, img_seq_len, padding_needed, cp_size,
   use_packed_sequence)
   local B, whole = tokens:size(1), tokens:size(2) + img_seq_len
   local valid = whole - padding_needed
   local cu, slots = { 0 }, { 0 }
   for b = 1, B do cu[b + 1], slots[b + 1] = b * valid, b * whole end
   local thd = cp_size > 1 and (padding_needed > 0 or use_packed_sequence)
   local q, padded = i32(cu), thd and i32(slots) or nil
   return {
      cu_seqlens_q = q, cu_seqlens_kv = q, cu_seqlens_q_padded = padded,
      cu_seqlens_kv_padded = padded, max_seqlen_q = whole, max_seqlen_kv = whole,
      qkv_format = thd and 'thd' or 'sbhd',
   }
end

-- ---- even parts ------------------------------------------------------------------------------

-- Distributes the rows of x over the ranks, ceil(N / W) each; missing rows at the end are pad_value
-- (0). Returns this rank's rows and the number of padding rows over all ranks.
function multimodal.split_to_context_parallel_ranks(x, axis, pad_value)
   local op = 'parallel.multimodal.split_to_context_parallel_ranks'
   axis = or_solo(op, axis)
   if axis.size == 1 then return x, 0 end
   local plan = cp_map.new { kind = 'contiguous', axis = axis, length = x:size(1) }
   return plan:shard(x, 1, pad_value or 0), plan.padded - plan.length
end

-- Returns every rank's x joined along dim 2; the gradients of all are summed and each rank gets its
-- own.
function multimodal.gather_along_second_dim(x, axis)
   local op = 'parallel.multimodal.gather_along_second_dim'
   axis = check_alike(op, axis, x)
   return axis.size == 1 and x or collective.all_gather(x, axis, 2)
end

-- Returns the sum over ranks, cut along dim 2 in equal parts: the adjoint of the gather.
function multimodal.reduce_scatter_along_second_dim(x, axis)
   local op = 'parallel.multimodal.reduce_scatter_along_second_dim'
   axis = check_alike(op, axis, x)
   return axis.size == 1 and x or collective.reduce_scatter(x, axis, 2)
end

-- Returns what split_to_context_parallel_ranks has cut (rows now lie along dim 2), joined, without
-- its global_pad rows of padding. A loss that every rank computes alike gives W times its gradient.
function multimodal.gather_from_context_parallel_ranks(x, global_pad, axis)
   local op = 'parallel.multimodal.gather_from_context_parallel_ranks'
   axis = or_solo(op, axis)
   err.integer(op, 'global_pad', global_pad, 0, x:size(2) * axis.size)
   check_alike(op, axis, x, nil, { 'global_pad', tostring(global_pad), 'shown' })
   local all = axis.size == 1 and x or collective.all_gather(x, axis, 2)
   local n = all:size(2)
   return global_pad == 0 and all or all:narrow(2, 1, n - global_pad):contiguous()
end

-- ---- images and videos of any size: the plan -------------------------------------------------

signature.reader('rows', 'a list or a tensor', function(op, name, v)
   return signature.check(op, name, tide.is_tensor(v) and v:tolist() or v, 'table')
end)
signature.reader('counts', 'a list or a tensor of counts', function(op, name, v)
   return signature.check(op, name, tide.is_tensor(v) and v:tolist() or v, 'integer[] >= 0')
end)

-- Returns the bounds by frames, and how many empty frames follow the last.
local function bounds_of(opts, frames, T, cu, W)
   local n = #cu - 1
   if opts.partition == 'compatible' then
      local bounds, added
      if frames and T > 1 then
         bounds, added = split.compatible(frames, T, W)
      else
         bounds, added = split.even(n, W)          -- the rule of images
      end
      if bounds then return bounds, added end
   end
   local costs, singles = {}, {}
   for i = 1, n do
      costs[i], singles[i] = split.frame_cost(cu[i + 1] - cu[i], opts.alpha), 1
      if costs[i] == 0 then costs[i] = 1 end             -- an image without tokens is still cut
   end
   return split.balanced(frames or singles, T, W, costs), 0
end

-- Decides which rank has which frames. cu: cumulative tokens of the frames (a list). Returns the
-- plan that split and gather share: bounds (frames), tokens (real ones of each rank), empty
-- (flags), and for each rank the number of its empty frames.
local function plan_of(opts, frames, T, cu, W)
   local n = #cu - 1
   local bounds, added = bounds_of(opts, frames, T, cu, W)
   local plan = { bounds = {}, tokens = {}, empty = {}, dummies = {}, size = W, added = added }
   for r = 0, W - 1 do
      local lo, hi = bounds[r + 1], bounds[r + 2]
      plan.dummies[r + 1] = math.max(0, hi - math.max(lo, n))
      lo, hi = math.min(lo, n), math.min(hi, n)
      plan.bounds[r + 1], plan.bounds[r + 2] = lo, hi
      plan.tokens[r + 1] = cu[hi + 1] - cu[lo + 1]
      plan.empty[r + 1] = lo == hi
      if lo == hi then plan.dummies[r + 1] = math.max(1, plan.dummies[r + 1]) end
   end
   return plan
end

-- ---- images and videos of any size: split ----------------------------------------------------

-- Raises unless each size is (height, width) in whole patches, as many as its image has tokens: the
-- tower would place patches of one image in another.
local function check_sizes(op, sizes, cu, patch)
   for i, s in ipairs(sizes) do
      local name, tokens = ('sizes[%d]'):format(i), cu[i + 1] - cu[i]
      local h, w = grid.of_size(op, name, s, patch, 0)
      if h * w ~= tokens then
         err.arg_text(op, name, ('a size of the %d tokens that cu gives, in patches of %d'):format(
            tokens, patch), ('%d x %d'):format(s[1], s[2]))
      end
   end
end

local function zeros_like(x, n)
   return tide.zeros({ 1, n, x:size(3) }, { dtype = x.dtype, device = x.device })
end

-- Returns the lengths and sizes of a rank's frames, with the dummies of an empty rank.
local function local_rows(plan, rank, sizes, cu, patch)
   local lens, local_sizes = {}, {}
   for i = plan.bounds[rank + 1] + 1, plan.bounds[rank + 2] do
      lens[#lens + 1], local_sizes[#local_sizes + 1] = cu[i + 1] - cu[i], sizes[i]
   end
   for _ = 1, plan.empty[rank + 1] and plan.dummies[rank + 1] or 0 do
      lens[#lens + 1], local_sizes[#local_sizes + 1] = 1, { patch, patch }
   end
   return lens, local_sizes
end

local function packed_of(lens)
   local cu, most = { 0 }, 0
   for i, n in ipairs(lens) do cu[i + 1], most = cu[i] + n, math.max(most, n) end
   local t = i32(cu)
   return { qkv_format = 'thd', cu_seqlens_q = t, cu_seqlens_kv = t, max_seqlen_q = most,
      max_seqlen_kv = most, index = tide.document_index(t, cu[#cu]) }
end

-- Returns the local counts of frames of each video; an empty rank's frames are videos of their own.
local function local_frames(plan, rank, frames)
   if not frames then return nil end
   if plan.empty[rank + 1] then
      local ones = {}
      for i = 1, plan.dummies[rank + 1] do ones[i] = 1 end
      return ones
   end
   return split.clip(frames, plan.bounds[rank + 1], plan.bounds[rank + 2])
end

-- Returns this rank's images or frames. x: patches [1, tokens, 3 * patch_dim^2]; sizes: (height,
-- width) in pixels of each image or frame, a list or tensor [N, 2]; cu: cumulative tokens [N + 1].
-- The partition 'compatible' falls back to 'balanced' where its own rule would lose or cut
-- something. Returns { tokens, sizes (i64 [n, 2]), packed (cu_seqlens_q, max_seqlen_q, ..., index),
-- has_padding, num_padded_ranks, num_frames (a list or nil), plan }. A rank without frames has a
-- token of zeros, so that its tower runs with the others; plan.empty says so, and the gather leaves
-- it out.
function multimodal.split_to_context_parallel_ranks_dynamic_res(x, sizes, cu, opts)
   local op = 'parallel.multimodal.split_to_context_parallel_ranks_dynamic_res'
   local patch, frames, T = opts.patch_dim, opts.num_frames, opts.temporal_patch_size
   local axis = or_solo(op, opts.axis)
   check_sizes(op, sizes, cu, patch)
   local plan = plan_of(opts, frames, T, cu, axis.size)
   local rank, padded = axis.rank, 0
   local lens, mine = local_rows(plan, rank, sizes, cu, patch)
   local first, n = cu[plan.bounds[rank + 1] + 1], plan.tokens[rank + 1]
   local tokens
   if plan.empty[rank + 1] then
      tokens = zeros_like(x, plan.dummies[rank + 1])
      -- hangs on x, so that backward reaches the collectives of the gather here as elsewhere
      if x.requires_grad then tokens = tokens + x:narrow(2, 1, 0):sum() end
   else
      tokens = x:narrow(2, first + 1, n)
   end
   local extra = multimodal.get_padding(tokens:size(2),
      { fp8_enabled = opts.fp8_enabled, fp8_recipe = opts.fp8_recipe })
   if extra > 0 then
      tokens = tide.cat({ tokens, zeros_like(x, extra) }, 2)
      lens[#lens + 1], mine[#mine + 1] = extra, { patch, patch * extra }
   end
   for r = 1, axis.size do padded = padded + (plan.empty[r] and 1 or 0) end
   plan.total = tokens:size(2)
   return {
      tokens = tokens, sizes = tide.tensor(mine, { dtype = 'i64' }), packed = packed_of(lens),
      has_padding = extra > 0, num_padded_ranks = padded,
      num_frames = local_frames(plan, rank, frames), plan = plan,
   }
end

-- ---- images and videos of any size: gather ---------------------------------------------------

-- Returns the features of all ranks along dim 1, in order. what: the plan of the split (rows of
-- empty ranks and of padding are left out), or the number of last ranks whose rows are left out
-- (0). opts: merge (1: tokens that the tower joins to one feature). Every rank gets the sum of all
-- ranks' gradients for its own rows.
function multimodal.gather_from_context_parallel_ranks_dynamic_res(x, what, axis, opts)
   local op = 'parallel.multimodal.gather_from_context_parallel_ranks_dynamic_res'
   axis = or_solo(op, axis)
   local merge, counts = opts.merge, {}
   if type(what) == 'table' then
      err.integers(op, 'what.tokens', what.tokens, 0)
      err.arg_if(what.size ~= axis.size, op, 'what', ('a plan of %d ranks'):format(axis.size),
         what.size)
      for r = 1, axis.size do
         counts[r] = what.tokens[r] / merge
         err.raise_if(counts[r] % 1 ~= 0, 'E_ARG', op, 'rank %d has %d tokens, which do not join '
            .. 'by %d', r - 1, what.tokens[r], merge)
      end
      local want = counts[axis.rank + 1]
      if x:size(1) < want then
         err.arg(op, 'x', ('at least %d rows, a feature for each token'):format(want), x:size(1))
      end
      x = x:narrow(1, 1, want)
      check_alike(op, axis, x, 1,
         { 'plans', ('rows %s, merge %d'):format(table.concat(counts, ' '), merge), 'shown' })
      return axis.size == 1 and x or collective.all_gather_v(x, axis, 1, counts)
   end
   local dropped = err.integer(op, 'what', what == nil and 0 or what, 0, axis.size)
   if axis.size == 1 then return dropped == 1 and x:narrow(1, 1, 0) or x end
   check_alike(op, axis, x, 1, { 'numbers of ranks left out', tostring(dropped), 'shown' })
   counts = collective.counts(x:size(1), axis.comm or axis)
   local all = collective.all_gather_v(x, axis, 1, counts)
   if dropped == 0 then return all end
   return all:narrow(1, 1, dims.sum(counts, axis.size - dropped)):contiguous()
end

local rows = 'x: tensor [B, N, ..]'
return signature.doors('parallel.multimodal', multimodal, {
   get_packed_seq_params = { { 'tokens: tensor [B, S, ..]', 'img_seq_len: integer >= 0',
      'padding_needed: integer >= 0', 'cp_size: integer >= 1 = 1', 'use_packed_sequence: boolean?',
      'where padding_needed <= tokens:size(2) + img_seq_len -- padding_needed ({padding_needed}) '
         .. 'is more than the {tokens:size(2) + img_seq_len} tokens of a row' } },
   split_to_context_parallel_ranks = 'x: tensor [N, ..]', gather_along_second_dim = rows,
   reduce_scatter_along_second_dim = rows,
   gather_from_context_parallel_ranks = rows .. '; global_pad: integer >= 0',
   split_to_context_parallel_ranks_dynamic_res = {
      'x: tensor [1, tokens, width]; sizes: rows; cu: cu', opts = {
      'axis: any? -- the ranks', 'patch_dim: integer >= 1 -- pixels of a side of a patch',
      'num_frames: counts? -- frames of each video', 'temporal_patch_size: integer >= 1 = 1',
      'fp8_enabled: boolean?', "fp8_recipe: 'delayed' | 'tensorwise' | 'blockwise' | 'mxfp8'?",
      "partition: 'balanced' | 'compatible' = 'balanced' -- by cost, or by the rule of published "
         .. 'code', 'alpha: number >= 0 = 0 -- a frame of p patches costs p * (p + alpha)',
      'where x:size(3) == 3 * patch_dim * patch_dim -- x: expected a last dim of '
         .. '3*patch_dim*patch_dim = {3 * patch_dim * patch_dim}, got {x:size(3)}',
      'where #sizes == #cu - 1 -- {#sizes} sizes and {#cu - 1} lengths: one for each image or '
         .. 'frame',
      'where last(cu) == x:size(2) -- the lengths add up to {last(cu)} tokens, x has {x:size(2)}',
      'where num_frames or temporal_patch_size == 1 -- num_frames must be provided with a '
         .. 'temporal_patch_size of {temporal_patch_size}',
      'where not num_frames or sum(num_frames) == #cu - 1 -- num_frames: expected counts that add '
         .. 'up to the {#cu - 1} frames, got {sum(num_frames)}' } },
   gather_from_context_parallel_ranks_dynamic_res = { 'x: tensor [rows, ..]', opts = {
      'merge: integer >= 1 = 1 -- tokens that the tower joins to one feature' } },
   get_padding = { 'seq_len: integer >= 0', opts = {
      'cp_size: integer >= 1 = 1', 'tp_size: integer >= 1 = 1',
      'has_sp: boolean? -- sequence parallel',
      'decoder_tp_comm_overlap: boolean? -- with it: up to decoder_seq_len',
      'decoder_seq_len: integer? >= 0', 'fp8_enabled: boolean?',
      "fp8_recipe: 'delayed' | 'tensorwise' | 'blockwise' | 'mxfp8'? -- mxfp8: blocks of 32, "
         .. 'else 16',
      "rule: 'all' | 'first' = 'all' -- every active rule holds at once; or only the first of cp, "
         .. 'sp, fp8, as published code has it',
      'where not (has_sp and decoder_tp_comm_overlap) or decoder_seq_len -- argument '
         .. "'decoder_seq_len': expected an integer >= 0, got nil",
      'where not (has_sp and decoder_tp_comm_overlap) or decoder_seq_len >= seq_len -- the '
         .. 'sequence has {seq_len} tokens, decoder_seq_len only {decoder_seq_len}' } },
})
