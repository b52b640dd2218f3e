-- Ops beyond elementwise, movement and attention: reductions, products, norms, losses, in place
--. The table returned holds every op; the other files are merged into it.
--
-- One plain function per op: check, call, own.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local status = require 'tide.ffi.status'
local each = pairs -- by another name: see "faults" in bindings/README.md
local C = lib.C

local M = {}
local new_box, take, again, check = own.new_box, own.take, own.again_t, own.check_t
local tensor, number, finite, int = arg.tensor, arg.number, arg.finite, arg.int
local tensor_or_nil, flag, dim_of, ndim_of = arg.tensor_or_nil, arg.flag, arg.dim, arg.ndim
local dims_of, bad = arg.dims, status.bad_arg

for _, part in ipairs { 'elementwise', 'move', 'attention', 'sequence', 'ssm' } do
   for name, fn in each(require('tide.ffi.' .. part)) do M[name] = fn end
end

-- ---- reductions: dim is an integer, a list, or nil for all -----------------------------------

-- Sum over dim (an integer, a list, or nil for all). keepdim (false): dims stay with size 1.
function M.sum(x, dim, keepdim)
   tensor('sum', 'x', x)
   local keep, n, dims = flag('sum', 'keepdim', keepdim), dims_of('sum', x, dim)
   local box = new_box()
   local rc = C.tide_sum(box, x, n, dims, keep)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_sum(box, x, n, dims, keep)) end
   return take(box)
end

-- Mean over dim (an integer, a list, or nil for all). keepdim (false): dims stay with size 1.
function M.mean(x, dim, keepdim)
   tensor('mean', 'x', x)
   local keep, n, dims = flag('mean', 'keepdim', keepdim), dims_of('mean', x, dim)
   local box = new_box()
   local rc = C.tide_mean(box, x, n, dims, keep)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_mean(box, x, n, dims, keep)) end
   return take(box)
end

-- Product over dim (an integer, a list, or nil for all). keepdim (false): dims stay with size 1.
function M.prod(x, dim, keepdim)
   tensor('prod', 'x', x)
   local keep, n, dims = flag('prod', 'keepdim', keepdim), dims_of('prod', x, dim)
   local box = new_box()
   local rc = C.tide_prod(box, x, n, dims, keep)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_prod(box, x, n, dims, keep)) end
   return take(box)
end

-- Largest element over dim (an integer, a list, or nil for all). keepdim (false): dims stay with
-- size 1.
function M.amax(x, dim, keepdim)
   tensor('amax', 'x', x)
   local keep, n, dims = flag('amax', 'keepdim', keepdim), dims_of('amax', x, dim)
   local box = new_box()
   local rc = C.tide_amax(box, x, n, dims, keep)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_amax(box, x, n, dims, keep)) end
   return take(box)
end

-- Smallest element over dim (an integer, a list, or nil for all). keepdim (false): dims stay
-- with size 1.
function M.amin(x, dim, keepdim)
   tensor('amin', 'x', x)
   local keep, n, dims = flag('amin', 'keepdim', keepdim), dims_of('amin', x, dim)
   local box = new_box()
   local rc = C.tide_amin(box, x, n, dims, keep)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_amin(box, x, n, dims, keep)) end
   return take(box)
end

-- bool: whether any element is not 0, over dim (an integer, a list, or nil for all). keepdim
-- (false): dims stay with size 1.
function M.any(x, dim, keepdim)
   tensor('any', 'x', x)
   local keep, n, dims = flag('any', 'keepdim', keepdim), dims_of('any', x, dim)
   local box = new_box()
   local rc = C.tide_any(box, x, n, dims, keep)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_any(box, x, n, dims, keep)) end
   return take(box)
end

-- bool: whether no element is 0, over dim (an integer, a list, or nil for all). keepdim (false):
-- dims stay with size 1.
function M.all(x, dim, keepdim)
   tensor('all', 'x', x)
   local keep, n, dims = flag('all', 'keepdim', keepdim), dims_of('all', x, dim)
   local box = new_box()
   local rc = C.tide_all(box, x, n, dims, keep)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_all(box, x, n, dims, keep)) end
   return take(box)
end

-- 0-based positions (i64) along dim; the first of equals.
function M.argmax(x, dim, keepdim)
   tensor('argmax', 'x', x)
   dim = dim_of('argmax', 'dim', dim, ndim_of(x))
   local keep = flag('argmax', 'keepdim', keepdim)
   local box = new_box()
   local rc = C.tide_argmax(box, x, dim, keep)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_argmax(box, x, dim, keep)) end
   return take(box)
end

-- 0-based positions (i64) along dim; the first of equals.
function M.argmin(x, dim, keepdim)
   tensor('argmin', 'x', x)
   dim = dim_of('argmin', 'dim', dim, ndim_of(x))
   local keep = flag('argmin', 'keepdim', keepdim)
   local box = new_box()
   local rc = C.tide_argmin(box, x, dim, keep)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_argmin(box, x, dim, keep)) end
   return take(box)
end

-- Running sum along dim; same shape.
function M.cumsum(x, dim)
   tensor('cumsum', 'x', x)
   dim = dim_of('cumsum', 'dim', dim, ndim_of(x))
   local box = new_box()
   local rc = C.tide_cumsum(box, x, dim)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_cumsum(box, x, dim)) end
   return take(box)
end

-- Euclidean length over all elements or over dim; differentiable.
function M.norm(x, dim, keepdim)
   tensor('norm', 'x', x)
   return M.sqrt(M.sum(M.square(x), dim, keepdim))
end

-- ---- products --------------------------------------------------------------------------------

-- c[..., M, N] = a[..., M, K] b[..., K, N]; leading dims broadcast.
function M.matmul(a, b)
   tensor('matmul', 'a', a)
   tensor('matmul', 'b', b)
   local box = new_box()
   local rc = C.tide_matmul(box, a, b)
   if rc ~= 0 and again(a, rc) then check(a, C.tide_matmul(box, a, b)) end
   return take(box)
end

local function linear_operands(name, x, w, bias)
   tensor(name, 'x', x)
   tensor(name, 'w', w)
   tensor_or_nil(name, 'bias', bias)
end

-- y[..., N] = x[..., K] w_NK^T (+ bias_N)
function M.linear(x, w, bias)
   linear_operands('linear', x, w, bias)
   local box = new_box()
   local rc = C.tide_linear(box, x, w, bias)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_linear(box, x, w, bias)) end
   return take(box)
end

local activations = { relu = C.TIDE_ACT_RELU, gelu_tanh = C.TIDE_ACT_GELU_TANH }

-- The activation of linear(x, w, bias) in one op: 'relu' or 'gelu_tanh'.
function M.linear_act(x, w, bias, activation)
   linear_operands('linear_act', x, w, bias)
   local act = activations[activation]
   if not act then bad('linear_act', 'activation', "'relu' or 'gelu_tanh'", activation) end
   local box = new_box()
   local rc = C.tide_linear_act(box, x, w, bias, act)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_linear_act(box, x, w, bias, act)) end
   return take(box)
end

-- As linear, of x and w rounded to FP8 (e4m3), each scaled by its own largest magnitude; backward
-- rounds the gradient of y to e5m2. f32, bf16 or f16, which y has too; sums in f32. A GPU needs
-- compute capability 8.9.
function M.linear_fp8(x, w, bias)
   linear_operands('linear_fp8', x, w, bias)
   local box = new_box()
   local rc = C.tide_linear_fp8(box, x, w, bias)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_linear_fp8(box, x, w, bias)) end
   return take(box)
end

-- ---- normalisation, activations --------------------------------------------------------------

-- exp(x) over its sum along dim.
function M.softmax(x, dim)
   tensor('softmax', 'x', x)
   dim = dim_of('softmax', 'dim', dim, ndim_of(x))
   local box = new_box()
   local rc = C.tide_softmax(box, x, dim)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_softmax(box, x, dim)) end
   return take(box)
end

-- Logarithm of softmax along dim.
function M.log_softmax(x, dim)
   tensor('log_softmax', 'x', x)
   dim = dim_of('log_softmax', 'dim', dim, ndim_of(x))
   local box = new_box()
   local rc = C.tide_log_softmax(box, x, dim)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_log_softmax(box, x, dim)) end
   return take(box)
end

-- Over the last dim. weight and bias may be nil; eps is 1e-5 by default.
function M.layer_norm(x, weight, bias, eps)
   tensor('layer_norm', 'x', x)
   tensor_or_nil('layer_norm', 'weight', weight)
   tensor_or_nil('layer_norm', 'bias', bias)
   eps = finite('layer_norm', 'eps', eps == nil and 1e-5 or eps, 0)
   local box = new_box()
   local rc = C.tide_layer_norm(box, x, weight, bias, eps)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_layer_norm(box, x, weight, bias, eps)) end
   return take(box)
end

-- offset is added to the weight (1 for Gemma). eps is 1e-6 by default.
function M.rms_norm(x, weight, eps, offset)
   tensor('rms_norm', 'x', x)
   tensor_or_nil('rms_norm', 'weight', weight)
   eps = finite('rms_norm', 'eps', eps == nil and 1e-6 or eps, 0)
   offset = finite('rms_norm', 'offset', offset == nil and 0 or offset)
   local box = new_box()
   local rc = C.tide_rms_norm(box, x, weight, eps, offset)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_rms_norm(box, x, weight, eps, offset)) end
   return take(box)
end

-- rms_norm(x + residual) and x + residual, in one pass.
function M.add_rms_norm(x, residual, weight, eps, offset)
   tensor('add_rms_norm', 'x', x)
   tensor('add_rms_norm', 'residual', residual)
   tensor_or_nil('add_rms_norm', 'weight', weight)
   eps = finite('add_rms_norm', 'eps', eps == nil and 1e-6 or eps, 0)
   offset = finite('add_rms_norm', 'offset', offset == nil and 0 or offset)
   local box, box2 = new_box(), new_box()
   local rc = C.tide_add_rms_norm(box, box2, x, residual, weight, eps, offset)
   if rc ~= 0 and again(x, rc) then
      check(x, C.tide_add_rms_norm(box, box2, x, residual, weight, eps, offset))
   end
   local sum = take(box2)
   return take(box), sum
end

local rope_opts = arg.set { 'interleaved', 'inverse' }

-- x_BTHD turned by positions [B or 1, T] with frequencies inv_freq. opts: interleaved, inverse.
function M.rope(x, positions, inv_freq, opts)
   tensor('rope', 'x', x)
   tensor('rope', 'positions', positions)
   tensor('rope', 'inv_freq', inv_freq)
   opts = arg.opts('rope', opts, rope_opts)
   local inter = flag('rope', 'opts.interleaved', opts.interleaved)
   local inverse = flag('rope', 'opts.inverse', opts.inverse)
   local box = new_box()
   local rc = C.tide_rope(box, x, positions, inv_freq, inter, inverse)
   if rc ~= 0 and again(x, rc) then
      check(x, C.tide_rope(box, x, positions, inv_freq, inter, inverse))
   end
   return take(box)
end

-- silu(gate) * up
function M.swiglu(gate, up)
   tensor('swiglu', 'gate', gate)
   tensor('swiglu', 'up', up)
   local box = new_box()
   local rc = C.tide_swiglu(box, gate, up)
   if rc ~= 0 and again(gate, rc) then check(gate, C.tide_swiglu(box, gate, up)) end
   return take(box)
end

-- Zeroes with probability p, scales the rest by 1 / (1 - p); mask from the context's generator.
function M.dropout(x, p)
   tensor('dropout', 'x', x)
   finite('dropout', 'p', p, 0, 1)
   local box = new_box()
   local rc = C.tide_dropout(box, x, p)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_dropout(box, x, p)) end
   return take(box)
end

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

-- logits_NV against targets_N. reduction: 'mean' over the counted targets (default; 0 if there
-- are none), 'sum', or 'none' for one loss per token.
function M.cross_entropy(logits, targets, opts)
   tensor('cross_entropy', 'logits', logits)
   tensor('cross_entropy', 'targets', targets)
   local a, o = fill_loss('cross_entropy', opts, loss_opts)
   local reduction = o.reduction or 'mean'
   if not reductions[reduction] then
      bad('cross_entropy', 'opts.reduction', "'mean', 'sum' or 'none'", reduction)
   end
   local ignore = tonumber(a.ignore_index)
   local box = new_box()
   local rc = C.tide_cross_entropy(box, logits, targets, a)
   if rc ~= 0 and again(logits, rc) then
      check(logits, C.tide_cross_entropy(box, logits, targets, a))
   end
   local loss = take(box)
   if reduction == 'none' then return loss end
   local total = M.sum(loss)
   if reduction == 'sum' then return total end
   return M.div(total, M.cast(M.clamp(M.sum(M.ne(targets, ignore)), 1, nil), 'f32'))
end

-- Sum over tokens of the cross entropy of x_ND w_VD^T (+ bias_V), without the whole logits.
function M.linear_cross_entropy(x, w, bias, targets, opts)
   tensor('linear_cross_entropy', 'x', x)
   tensor('linear_cross_entropy', 'w', w)
   tensor_or_nil('linear_cross_entropy', 'bias', bias)
   tensor('linear_cross_entropy', 'targets', targets)
   local a = fill_loss('linear_cross_entropy', opts, sum_opts)
   local box = new_box()
   local rc = C.tide_linear_cross_entropy(box, x, w, bias, targets, a)
   if rc ~= 0 and again(x, rc) then
      check(x, C.tide_linear_cross_entropy(box, x, w, bias, targets, a))
   end
   return take(box)
end

-- ---- copies ----------------------------------------------------------------------------------

-- x itself if its elements lie in order, else a copy that has them so.
function M.contiguous(x)
   tensor('contiguous', 'x', x)
   if C.tide_tensor_is_contiguous(x) == 1 then return x end
   local box = new_box()
   local rc = C.tide_contiguous(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_contiguous(box, x)) end
   return take(box)
end

-- A copy of its own, recorded for backward.
function M.clone(x)
   tensor('clone', 'x', x)
   local box = new_box()
   local rc = C.tide_clone(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_clone(box, x)) end
   return take(box)
end

-- x on another device ('cpu'); x itself if it is there. Not recorded. non_blocking: the copy may be
-- under way on return, and what uses it waits; towards a GPU x must be pinned (see pin_memory).
function M.to_device(x, device, non_blocking)
   tensor('to_device', 'x', x)
   local code = arg.device('to_device', 'device', device)
   if C.tide_tensor_device(x) == code then return x end
   local box = new_box()
   if non_blocking then
      local failed = C.tide_to_device_async(box, x, code)
      if failed ~= 0 and again(x, failed) then check(x, C.tide_to_device_async(box, x, code)) end
      return take(box)
   end
   local rc = C.tide_to_device(box, x, code)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_to_device(box, x, code)) end
   return take(box)
end

-- ---- in place: these change x and return it --------------------------------------------------

-- They take what memory they need (a copy of an overlapping source) before they write, so that a
-- second try after a lack of it begins from the same x.

-- src, broadcast and converted, into x.
function M.copy_(x, src)
   tensor('copy_', 'x', x)
   tensor('copy_', 'src', src)
   local rc = C.tide_copy_(x, src)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_copy_(x, src)) end
   return x
end

-- x with every element set to value, in place.
function M.fill_(x, value)
   tensor('fill_', 'x', x)
   value = arg.element('fill_', 'value', value, C.tide_tensor_dtype(x))
   local rc = C.tide_fill_(x, value)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_fill_(x, value)) end
   return x
end

-- x with every element set to 0, in place.
function M.zero_(x)
   tensor('zero_', 'x', x)
   local rc = C.tide_fill_(x, 0)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_fill_(x, 0)) end
   return x
end

-- x += alpha * src; src may be a number.
function M.add_(x, src, alpha)
   tensor('add_', 'x', x)
   src = arg.operand('add_', 'src', x, src)
   alpha = number('add_', 'alpha', alpha == nil and 1 or alpha)
   local rc = C.tide_axpy_(x, src, alpha)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_axpy_(x, src, alpha)) end
   return x
end

-- x += a b for matrices x [M, N], a [M, K], b [K, N]; each element is rounded once.
function M.addmm_(x, a, b)
   tensor('addmm_', 'x', x)
   tensor('addmm_', 'a', a)
   tensor('addmm_', 'b', b)
   local rc = C.tide_addmm_(x, a, b)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_addmm_(x, a, b)) end
   return x
end

-- x times a number, in place.
function M.mul_(x, factor)
   tensor('mul_', 'x', x)
   factor = number('mul_', 'factor', factor)
   local rc = C.tide_scale_(x, factor)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_scale_(x, factor)) end
   return x
end

-- ---- in place over lists ---------------------------------------------------------------------

-- Two lists of equally many tensors as buffers, and their length.
local function two_lists(op, dsts, srcs)
   local to, n = arg.tensors(op, 'dsts', dsts)
   local from, m = arg.tensors(op, 'srcs', srcs)
   if n ~= m then bad(op, 'srcs', ('%d tensors, as in dsts'):format(n), m) end
   return to, from, n
end

-- dsts[i] = srcs[i], pair after pair as by copy_, in one launch where the targets lie apart. Each
-- source has the shape of its target (use expand) and memory that no target has; dtypes may differ.
function M.foreach_copy_(dsts, srcs)
   local to, from, n = two_lists('foreach_copy_', dsts, srcs)
   if n == 0 then return end
   local ctx = C.tide_tensor_ctx(to[0])
   local rc = C.tide_foreach_copy_(ctx, n, to, from)
   if rc ~= 0 and own.again(ctx, rc) then own.check(ctx, C.tide_foreach_copy_(ctx, n, to, from)) end
end

-- dsts[i] += srcs[i], pair after pair: a target that comes several times gets its sources in the
-- order of the list. Floating targets take any source, integers take integers.
function M.foreach_add_(dsts, srcs, alpha)
   arg.no_alpha('foreach_add_', alpha)
   local to, from, n = two_lists('foreach_add_', dsts, srcs)
   if n == 0 then return end
   local ctx = C.tide_tensor_ctx(to[0])
   own.check(ctx, C.tide_foreach_add_(ctx, n, to, from))
end

-- ---- random values in place ------------------------------------------------------------------

-- One try: a failed call has taken its numbers from the generator, a second would give others.

local random_opts = arg.set { 'seed', 'stream', 'offset', 'start', 'stride' }
local new_random_attrs = ffi.typeof 'tide_random_attrs'

-- Without opts the context's generator gives the numbers and advances. With seed, element i is a
-- function of (seed, stream, offset + i) alone; start and stride place a shard in its whole.
local function fill_random(op, x, opts)
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

-- Uniform in [lo, hi), by default [0, 1).
function M.uniform_(x, lo, hi, opts)
   tensor('uniform_', 'x', x)
   lo = finite('uniform_', 'lo', lo == nil and 0 or lo)
   hi = finite('uniform_', 'hi', hi == nil and 1 or hi, lo)
   check(x, C.tide_uniform_(x, lo, hi, fill_random('uniform_', x, opts)))
   return x
end

-- Fills x in place with normal numbers of mean (0) and std (1).
function M.normal_(x, mean, std, opts)
   tensor('normal_', 'x', x)
   mean = finite('normal_', 'mean', mean == nil and 0 or mean)
   std = finite('normal_', 'std', std == nil and 1 or std, 0)
   check(x, C.tide_normal_(x, mean, std, fill_random('normal_', x, opts)))
   return x
end

-- Normal cut to [mean + std * lo, mean + std * hi]; lo and hi are -2 and 2 by default.
function M.trunc_normal_(x, mean, std, lo, hi, opts)
   tensor('trunc_normal_', 'x', x)
   mean = finite('trunc_normal_', 'mean', mean == nil and 0 or mean)
   std = finite('trunc_normal_', 'std', std == nil and 1 or std, 0)
   lo = finite('trunc_normal_', 'lo', lo == nil and -2 or lo)
   hi = finite('trunc_normal_', 'hi', hi == nil and 2 or hi, lo)
   check(x, C.tide_trunc_normal_(x, mean, std, lo, hi, fill_random('trunc_normal_', x, opts)))
   return x
end

return M
