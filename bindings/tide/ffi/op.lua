-- Ops beyond elementwise, movement and attention: reductions, products, norms, losses, in place.
-- The table returned holds every op; the other files are merged into it.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local status = require 'tide.ffi.status'
local each = pairs -- by another name: see "faults" in bindings/README.md
local C = lib.C

local M = {}
local make, place, _, two, three = require('tide.ffi.row').adders(M)
local raw = {}                              -- C functions behind wrappers that check the arguments
local call, write = require('tide.ffi.row').adders(raw, 'raw')
call 'linear_act(x, w, bias, activation)'
call 'linear_fp8(x, w, bias)'
call 'linear_fp8_scaled(x, w, bias, scaling, keep_weight)'
call 'rope(x, positions, inv_freq, interleaved, inverse)'
call 'cross_entropy(logits, targets, attrs)'
call 'linear_cross_entropy(x, w, bias, targets, attrs)'
call 'contiguous(x)'
write 'foreach_copy_(ctx, n, dsts, srcs)'
call 'to_device(x, device)'
call 'to_device_async(x, device)'
write 'fill_(x, value)'
local tensor, finite, int = arg.tensor, arg.finite, arg.int
local tensor_or_nil, flag, ndim_of = arg.tensor_or_nil, arg.flag, arg.ndim
local bad = status.bad_arg
local take, again, check = own.take, own.again, own.check

for _, part in ipairs { 'elementwise', 'move', 'attention', 'sequence', 'ssm' } do
   for name, fn in each(require('tide.ffi.' .. part)) do M[name] = fn end
end

-- ---- reductions: dim is an integer, a list, or nil for all -----------------------------------

-- Returns the sum over dim (an integer, a list, or nil for all). keepdim (false): dims stay with
-- size 1.
make 'sum(x, dim: dims, keepdim: flag)'
-- Returns the mean over dim (an integer, a list, or nil for all). keepdim (false): dims stay with
-- size 1.
make 'mean(x, dim: dims, keepdim: flag)'
-- Returns the product over dim (an integer, a list, or nil for all). keepdim (false): dims stay
-- with size 1.
make 'prod(x, dim: dims, keepdim: flag)'
-- Returns the largest element over dim (an integer, a list, or nil for all). keepdim (false): dims
-- stay with size 1.
make 'amax(x, dim: dims, keepdim: flag)'
-- Returns the smallest element over dim (an integer, a list, or nil for all). keepdim (false): dims
-- stay with size 1.
make 'amin(x, dim: dims, keepdim: flag)'
-- Returns bool: whether any element is not 0, over dim (an integer, a list, or nil for all).
-- keepdim (false): dims stay with size 1.
make 'any(x, dim: dims, keepdim: flag)'
-- Returns bool: whether no element is 0, over dim (an integer, a list, or nil for all). keepdim
-- (false): dims stay with size 1.
make 'all(x, dim: dims, keepdim: flag)'
-- Returns the 0-based positions (i64) of the largest elements along dim; the first of equals.
make 'argmax(x, dim: dim, keepdim: flag)'
-- Returns the 0-based positions (i64) of the smallest elements along dim; the first of equals.
make 'argmin(x, dim: dim, keepdim: flag)'
-- Returns the k largest elements along dim (-1), or with smallest the k smallest, in order, and
-- their 0-based positions (i64); k = x:size(dim) sorts. NaN counts as larger than every number; of
-- equal elements the first is first. Values get gradients.
two 'topk(x, k: int 0, dim: dim = -1, smallest: flag)'
-- Returns the running sum along dim, in the shape of x.
make 'cumsum(x, dim: dim)'

-- Returns the Euclidean length over all elements or over dim. Its gradient is 0 where the length is
-- 0. 16-bit types are computed in f32.
function M.norm(x, dim, keepdim)
   tensor('norm', 'x', x)
   local dtype = C.tide_tensor_dtype(x)
   if dtype == C.TIDE_F16 or dtype == C.TIDE_BF16 then
      return M.cast(M.norm(M.cast(x, 'f32'), dim, keepdim), arg.dtype_name[dtype])
   end
   local sum = M.sum(M.square(x), dim, keepdim)
   local none = M.eq(sum, 0)                 -- there the root has no slope, and 1 is rooted instead
   return M.where(none, sum, M.sqrt(M.add(sum, M.cast(none, 'f32'))))
end

-- ---- products --------------------------------------------------------------------------------

-- Returns the matrix product [..., M, N] of a [..., M, K] and b [..., K, N]; leading dims
-- broadcast.
make 'matmul(a, b)'

-- Returns x w^T + bias, [..., N], of x [..., K] and a weight w [N, K]; bias [N] may be nil.
make 'linear(x, w, bias: maybe)'

-- Returns x (w + scale b a)^T + bias: linear with a low-rank update (LoRA) of a [R, K] and b [N,
-- R]. scale (1); bias may be nil.
make 'linear_lora(x, w, a, b, scale: finite = 1, bias: maybe) -> x, w, bias, a, b, scale'

local new_boxes = require('tide.ffi.buffer').of 'tide_tensor *'

-- Returns the tensors in n boxes, as a list.
local function take_all(boxes, n)
   local outs = {}
   for i = 1, n do outs[i] = take(boxes + i - 1) end
   return outs
end

-- Checks a list of 1 to 6 tensors; returns it as (buffer, length).
local function few_tensors(op, name, list)
   local buf, n = arg.tensors(op, name, list)
   if n < 1 or n > C.TIDE_MAX_JOINED then
      bad(op, name, ('1 to %d tensors'):format(C.TIDE_MAX_JOINED), n)
   end
   return buf, n
end

-- Checks x, weights and biases (a list with false for what has no bias, or nil); returns the number
-- of weights and both lists as buffers.
local function joined_operands(op, x, ws, biases)
   tensor(op, 'x', x)
   local w, n = few_tensors(op, 'ws', ws)
   if biases == nil then return n, w, nil end
   local b, nb = arg.tensors(op, 'biases', biases, true)
   if nb ~= n then bad(op, 'biases', ('%d entries, as in ws'):format(n), nb) end
   return n, w, b
end

-- Returns linear(x, w, bias) for each of 1 to 6 weights, as a list. If the weights follow each
-- other in memory, as slices of one weight do, one product computes all results, which are its
-- columns; the same holds for the gradients. biases: nil, or a list with false for a weight without
-- bias.
function M.linear_joined(x, ws, biases)
   local n, w, b = joined_operands('linear_joined', x, ws, biases)
   local boxes = new_boxes(n)
   local rc = C.tide_linear_joined(boxes, x, n, w, b)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_linear_joined(boxes, x, n, w, b)) end
   return take_all(boxes, n)
end

-- Sorts rows by group: ids [n] or [n, k], i64 or i32, has the groups that a row is in, from 0 and
-- below `groups`; another number means no group. Returns i64 tensors: rows [n k], the row of each
-- slot; place, of the shape of ids, the slot of each choice; offsets [groups + 1]: group g has the
-- slots offsets[g] <= s < offsets[g + 1], in the order of ids. All count from 0; slots of no group
-- are last.
three 'group_rows(ids, groups: int 1)'

-- Returns the products of rows of x [rows, K] in groups, each with a weight of its own, w [groups,
-- N, K]: y[r] = x[r] w[g]' for offsets[g] <= r < offsets[g + 1]. Offsets count rows from 0: i64 or
-- i32 [groups + 1], on x's device. A group may be empty; a row in no group has y = 0.
make 'grouped_linear(x, w, offsets)'

local activations = { relu = C.TIDE_ACT_RELU, gelu_tanh = C.TIDE_ACT_GELU_TANH }

-- Returns the activation of linear(x, w, bias) in one op: 'relu' or 'gelu_tanh'.
function M.linear_act(x, w, bias, activation)
   tensor('linear_act', 'x', x)
   tensor('linear_act', 'w', w)
   tensor_or_nil('linear_act', 'bias', bias)
   local act = activations[activation]
   if not act then bad('linear_act', 'activation', "'relu' or 'gelu_tanh'", activation) end
   return raw.linear_act(x, w, bias, act)
end

local fp8_opts = arg.set { 'scaling', 'keep' }
local fp8_scalings = {
   tensor = C.TIDE_FP8_TENSOR, block = C.TIDE_FP8_BLOCK, block_f32 = C.TIDE_FP8_BLOCK_F32,
}
local fp8_kept = { codes = false, weight = true }

-- Returns the scaling and keep_weight of options, which may be nil.
local function fp8_how(op, opts)
   opts = opts ~= nil and arg.opts(op, opts, fp8_opts) or {}
   local scaling, keep = opts.scaling or 'tensor', opts.keep or 'codes'
   if not fp8_scalings[scaling] then
      bad(op, 'opts.scaling', "'tensor', 'block' or 'block_f32'", scaling)
   end
   if fp8_kept[keep] == nil then bad(op, 'opts.keep', "'codes' or 'weight'", keep) end
   return fp8_scalings[scaling], fp8_kept[keep]
end

-- Returns linear of x and w rounded to FP8 (e4m3). x is f32, bf16 or f16, and y has its dtype; sums
-- are in f32. In place of x and w the tape keeps codes, a byte an element. opts.scaling: 'tensor'
-- (default) scales by the largest magnitude of each operand, and backward rounds the gradient of y
-- to e5m2; 'block' scales by that of 128 neighbours of x and of the gradient and of 128 x 128 of w,
-- all in e4m3, with powers of two as scales; 'block_f32' is the same with any f32 as scale.
-- opts.keep: 'codes' of w (default), or 'weight', which backward rounds again. A GPU needs compute
-- capability 8.9, for blocks 9.0 and cuBLAS 12.9.
function M.linear_fp8(x, w, bias, opts)
   tensor('linear_fp8', 'x', x)
   tensor('linear_fp8', 'w', w)
   tensor_or_nil('linear_fp8', 'bias', bias)
   if opts == nil then return raw.linear_fp8(x, w, bias) end
   return raw.linear_fp8_scaled(x, w, bias, fp8_how('linear_fp8', opts))
end

-- Returns linear_fp8(x, w, bias, opts) for each of 1 to 6 weights, as a list; x is rounded once for
-- all of them. biases: nil, or a list with false for a weight without bias.
function M.linear_fp8_joined(x, ws, biases, opts)
   local op = 'linear_fp8_joined'
   local n, w, b = joined_operands(op, x, ws, biases)
   local scaling, keep = fp8_how(op, opts)
   local boxes = new_boxes(n)
   local rc = C.tide_linear_fp8_joined(boxes, x, n, w, b, scaling, keep)
   if rc ~= 0 and again(x, rc) then
      check(x, C.tide_linear_fp8_joined(boxes, x, n, w, b, scaling, keep))
   end
   return take_all(boxes, n)
end

-- Rounds x (f32, bf16 or f16) to NF4 with double quantisation, as bitsandbytes does: codes (u8) and
-- scale (f32), 4.13 bits an element.
two 'quantize_nf4(x)'

-- Returns the n numbers (f32 [n]) that codes and scale of quantize_nf4 represent.
make 'dequantize_nf4(codes, scale, n: int 0)'

-- Returns linear with a weight [n, K] that quantize_nf4 has rounded. The weight is read a part at a
-- time, in the dtype of x (f32, bf16 or f16). x and bias get gradients.
make 'linear_nf4(x, codes, scale, n: int 0, bias: maybe) -> x, codes, scale, bias, n'

-- Returns linear_nf4 with a part of a weight. Row r of the part has the numbers of the weight from
-- first + r * stride on (both even), counted from 0. codes are those of the part (tide_abi.h
-- defines their order); scale is that of the whole weight.
make 'linear_nf4_part(x, codes, scale, bias: maybe, n: int 0, first: int 0, stride: int 0)'

-- Returns grouped_linear with a weight [n, K] in NF4 for each group: row g of codes [groups, bytes]
-- and of scale [groups, ..] is that of group g. first and stride: 0 and K for whole weights, else
-- the part of each that the codes have (see linear_nf4_part). x gets a gradient.
make 'grouped_linear_nf4(x, codes, scale, offsets, n: int 0, first: int 0, stride: int 0)'

-- Returns the numbers of a part of a weight in NF4 (see linear_nf4_part), f32 [rows, cols].
make 'dequantize_nf4_part(codes, scale, rows: int 0, cols: int 0, first: int 0, stride: int 0)'

-- ---- normalisation, activations --------------------------------------------------------------

-- Returns exp(x) divided by its sum along dim.
make 'softmax(x, dim: dim)'
-- Returns the logarithm of softmax along dim.
make 'log_softmax(x, dim: dim)'
-- Returns x normalised to mean 0 and variance 1 over the last dim, times weight, plus bias. weight
-- and bias may be nil; eps is 1e-5 by default.
make 'layer_norm(x, weight: maybe, bias: maybe, eps: finite 0 = 1e-5)'
-- Returns x divided by its root mean square over the last dim, times weight + offset. weight may be
-- nil; offset is 1 for Gemma; eps is 1e-6 by default.
make 'rms_norm(x, weight: maybe, eps: finite 0 = 1e-6, offset: finite = 0)'

-- Returns rms_norm(x + residual) and x + residual, in one pass.
two 'add_rms_norm(x, residual, weight: maybe, eps: finite 0 = 1e-6, offset: finite = 0)'

local rope_opts = arg.set { 'interleaved', 'inverse' }
local joined_opts = arg.set { 'interleaved', 'inverse', 'reuse' }

-- Rotates x_BTHD by positions [B or 1, T] with frequencies inv_freq. opts: interleaved, inverse.
function M.rope(x, positions, inv_freq, opts)
   tensor('rope', 'x', x)
   tensor('rope', 'positions', positions)
   tensor('rope', 'inv_freq', inv_freq)
   opts = arg.opts('rope', opts, rope_opts)
   local inter = flag('rope', 'opts.interleaved', opts.interleaved)
   local inverse = flag('rope', 'opts.inverse', opts.inverse)
   return raw.rope(x, positions, inv_freq, inter, inverse)
end

-- Returns rope(x, positions, inv_freq) for each of 1 to 6 tensors of one batch and sequence, as a
-- list, in one pass if their heads follow each other in memory. opts: interleaved; inverse; reuse:
-- the results take the memory of the list, which must not be read afterwards.
function M.rope_joined(list, positions, inv_freq, opts)
   local op = 'rope_joined'
   local xs, n = few_tensors(op, 'list', list)
   tensor(op, 'positions', positions)
   tensor(op, 'inv_freq', inv_freq)
   opts = arg.opts(op, opts, joined_opts)
   local inter = flag(op, 'opts.interleaved', opts.interleaved)
   local inverse, reuse = flag(op, 'opts.inverse', opts.inverse), flag(op, 'opts.reuse', opts.reuse)
   local boxes = new_boxes(n)
   check(list[1], C.tide_rope_joined(boxes, n, xs, positions, inv_freq, inter, inverse, reuse))
   return take_all(boxes, n)
end

-- Returns silu(gate) * up.
make 'swiglu(gate, up)'
-- Returns (u + 1) g sigmoid(alpha g), g = min(gate, limit), u = up clamped to [-limit, limit].
make 'swiglu_clamped(gate, up, limit: finite = 7, alpha: finite = 1.702)'
-- Zeroes with probability p, scales the rest by 1 / (1 - p); mask from the context's generator.
make 'dropout(x, p: finite 0 1)'

-- ---- losses ----------------------------------------------------------------------------------

local loss_opts = arg.set { 'ignore_index', 'label_smoothing', 'z_loss', 'reduction' }
local sum_opts = arg.set { 'ignore_index', 'label_smoothing', 'z_loss' }
local new_loss_attrs = ffi.typeof 'tide_cross_entropy_attrs'

local function fill_loss(op, opts, allowed)
   local a = new_loss_attrs()
   C.tide_cross_entropy_attrs_init(a)
   opts = arg.opts(op, opts, allowed)
   if opts.ignore_index ~= nil then
      a.ignore_index = int(op, 'opts.ignore_index', opts.ignore_index)
   end
   if opts.label_smoothing ~= nil then
      a.label_smoothing = finite(op, 'opts.label_smoothing', opts.label_smoothing, 0, 1)
   end
   if opts.z_loss ~= nil then a.z_loss = finite(op, 'opts.z_loss', opts.z_loss, 0) end
   return a, opts
end

local reductions = arg.set { 'none', 'sum', 'mean' }

-- Returns the cross entropy of logits [N, V] against targets [N]. reduction: 'mean' over the
-- counted targets (default; 0 without any), 'sum', or 'none' for one loss per token.
function M.cross_entropy(logits, targets, opts)
   tensor('cross_entropy', 'logits', logits)
   tensor('cross_entropy', 'targets', targets)
   local a, o = fill_loss('cross_entropy', opts, loss_opts)
   local reduction = o.reduction or 'mean'
   if not reductions[reduction] then
      bad('cross_entropy', 'opts.reduction', "'mean', 'sum' or 'none'", reduction)
   end
   local ignore = tonumber(a.ignore_index)
   local loss = raw.cross_entropy(logits, targets, a)
   if reduction == 'none' then return loss end
   local total = M.sum(loss)
   if reduction == 'sum' then return total end
   return M.div(total, M.cast(M.clamp(M.sum(M.ne(targets, ignore)), 1, nil), 'f32'))
end

-- Returns the sum over tokens of the cross entropy of x w^T (+ bias), without the whole logits. x
-- [N, D], w [V, D], bias [V] or nil.
function M.linear_cross_entropy(x, w, bias, targets, opts)
   tensor('linear_cross_entropy', 'x', x)
   tensor('linear_cross_entropy', 'w', w)
   tensor_or_nil('linear_cross_entropy', 'bias', bias)
   tensor('linear_cross_entropy', 'targets', targets)
   local a = fill_loss('linear_cross_entropy', opts, sum_opts)
   return raw.linear_cross_entropy(x, w, bias, targets, a)
end

-- ---- copies ----------------------------------------------------------------------------------

-- Returns x itself if it is contiguous, else a contiguous copy.
function M.contiguous(x)
   tensor('contiguous', 'x', x)
   if C.tide_tensor_is_contiguous(x) == 1 then return x end
   return raw.contiguous(x)
end

-- Returns a copy with memory of its own, recorded for backward.
make 'clone(x)'

-- Returns x on another device ('cpu'), or x itself if it is there. Not recorded. non_blocking:
-- returns before the copy is complete, and the next use waits; to a GPU x must be pinned (see
-- pin_memory).
function M.to_device(x, device, non_blocking)
   tensor('to_device', 'x', x)
   local code = arg.device('to_device', 'device', device)
   if C.tide_tensor_device(x) == code then return x end
   return (non_blocking and raw.to_device_async or raw.to_device)(x, code)
end

-- ---- in place: these change x and return it --------------------------------------------------

-- They allocate (a copy of an overlapping source) before they write, so that a second try after a
-- lack of memory starts from the same x.

-- Copies src, broadcast and converted, into x.
place 'copy_(x, src)'

-- Sets every element of x to value, in place.
function M.fill_(x, value)
   tensor('fill_', 'x', x)
   value = arg.element('fill_', 'value', value, C.tide_tensor_dtype(x))
   return raw.fill_(x, value)
end

-- Sets every element of x to 0, in place.
function M.zero_(x)
   tensor('zero_', 'x', x)
   return raw.fill_(x, 0)
end

-- Adds alpha * src to x, in place; src may be a number.
place 'axpy_: add_(x, src: operand, alpha: number = 1)'
-- Adds the product a b to x, in place, for matrices x [M, N], a [M, K], b [K, N]; each element is
-- rounded once. x may be f32 where a and b have 16 bits.
place 'addmm_(x, a, b)'
-- Adds a_g' b_g, the product of the rows of each group (see grouped_linear), to x[g], in place, for
-- x [groups, M, N], a [rows, M], b [rows, N]; each element is rounded once. x may be f32 where a
-- and b have 16 bits.
place 'grouped_addmm_(x, a, b, offsets)'
-- Multiplies x by a number, in place.
place 'scale_: mul_(x, factor: number)'

-- ---- in place over lists ---------------------------------------------------------------------

-- Returns two lists of equally many tensors as buffers, and their length.
local function two_lists(op, dsts, srcs)
   local to, n = arg.tensors(op, 'dsts', dsts)
   local from, m = arg.tensors(op, 'srcs', srcs)
   if n ~= m then bad(op, 'srcs', ('%d tensors, as in dsts'):format(n), m) end
   return to, from, n
end

-- Copies srcs[i] into dsts[i], pair after pair as copy_ does, in one launch where the targets lie
-- apart. Each source has the shape of its target (use expand) and shares no memory with any target;
-- dtypes may differ.
function M.foreach_copy_(dsts, srcs)
   local to, from, n = two_lists('foreach_copy_', dsts, srcs)
   if n == 0 then return end
   raw.foreach_copy_(C.tide_tensor_ctx(to[0]), n, to, from)
end

-- Adds srcs[i] to dsts[i], pair after pair: a target that is listed several times gets its sources
-- in the order of the list. Floating targets take any source, integers take integers.
function M.foreach_add_(dsts, srcs, alpha)
   arg.no_alpha('foreach_add_', alpha)
   local to, from, n = two_lists('foreach_add_', dsts, srcs)
   if n == 0 then return end
   local ctx = C.tide_tensor_ctx(to[0])
   own.check(ctx, C.tide_foreach_add_(ctx, n, to, from))
end

-- ---- random values in place ------------------------------------------------------------------

-- No second try: a failed call has advanced the generator, and a repetition would draw others.

local random_opts = arg.set { 'seed', 'stream', 'offset', 'start', 'stride' }
local new_random_attrs = ffi.typeof 'tide_random_attrs'

-- Reads the options of a random fill. Without opts the numbers are drawn from the context's
-- generator, which advances. With seed, element i is a function of (seed, stream, offset + i)
-- alone; start and stride place a shard in its whole.
local function fill_random(op, opts, x)
   local a = new_random_attrs()
   C.tide_random_attrs_init(a)
   if opts == nil then return a end
   opts = arg.opts(op, opts, random_opts)
   if next(opts) == nil then return a end
   if opts.start ~= nil then a.start = int(op, 'opts.start', opts.start, 0) end
   if opts.stride ~= nil then
      local n, stride = arg.ints(op, 'opts.stride', opts.stride, 0)
      if n ~= ndim_of(x) then
         bad(op, 'opts.stride', ('a list of %d strides'):format(ndim_of(x)), n)
      end
      a.ndim = n
      for i = 0, n - 1 do a.stride[i] = stride[i] end
   end
   if opts.seed == nil and (opts.stream ~= nil or opts.offset ~= nil) then
      bad(op, 'opts.seed', 'an integer, since stream or offset is given', nil)
   end
   if opts.seed ~= nil then
      a.use_ctx = 0
      a.seed = int(op, 'opts.seed', opts.seed, 0)
      a.stream = int(op, 'opts.stream', opts.stream or 0, 0)
      a.offset = int(op, 'opts.offset', opts.offset or 0, 0)
   end
   return a
end

local _, _, draw = require('tide.ffi.row').adders(M, nil, fill_random)

-- Fills x in place with uniform numbers in [lo, hi), by default [0, 1).
draw 'uniform_(x, lo: finite = 0, hi: finite lo = 1, opts: fill)'
-- Fills x in place with normal numbers of mean (0) and std (1).
draw 'normal_(x, mean: finite = 0, std: finite 0 = 1, opts: fill)'
-- Fills x in place with normal numbers cut to [mean + std * lo, mean + std * hi]; lo and hi are -2
-- and 2 by default.
draw 'trunc_normal_(x, mean: finite=0, std: finite 0=1, lo: finite=-2, hi: finite lo=2, opts: fill)'

return M
