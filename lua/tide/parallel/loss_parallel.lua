-- Cross entropy over a vocabulary cut over ranks: logits are never gathered.
--
-- As in the fused tide.linear_cross_entropy, gradients are made in the forward pass,
-- chunk by chunk over tokens, while this rank's logits of the chunk are held; backward only scales
-- them. The ranks exchange three numbers a token: the largest logit, and the sum of
-- exponentials, the logit of the target and (for label smoothing) the sum of logits (Shoeybi et
-- al., arXiv 1909.08053). The loss is the same on every rank; the gradient of x is this rank's
-- part, to be added over ranks by the op that made x alike on them (copy_to, or the gather of a
-- sequence).
--
-- Legend: N tokens, n tokens of a chunk, C width, W vocabulary rows of this rank, V of all.

local tide = require 'tide'
local chunked = require 'tide.nn.chunked'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local private = require 'tide.util.private'
local axis_of = require 'tide.parallel.axis_of'
local in_range = require 'tide.nn.in_range'
local rows_ = require 'tide.nn.rows'

local loss_parallel = {}

-- Logits of a chunk, in two forms, take at most this many bytes.
local chunk_bytes = 2 ^ 21

local column = chunked.column

-- Returns the sums over ranks of the columns given, as a list of columns.
local function summed(comm, columns)
   local all = tide.cat(columns, 2)
   comm:all_reduce(all)
   local list = {}
   for i = 1, #columns do list[i] = all:narrow(2, i, 1) end
   return list
end

-- Returns the sum of the losses of a chunk and its derivative by the logits; tokens that do not
-- count give 0.
local function chunk_loss(z_nW, ids_n, at, want)
   local comm, W = at.comm, z_nW:size(2)
   local counted = column(ids_n:ne(at.ignore)):to(z_nW.dtype)
   local here = column(tide.logical_and(ids_n:ge(at.first), ids_n:lt(at.first + W)))
   local place = column((ids_n - at.first):clamp(0, W - 1))
   here = here:to(z_nW.dtype)
   local max = comm:all_reduce(z_nW:amax(2, true), 'max')
   local columns = { false, z_nW:gather(2, place) * here }
   if at.smoothing ~= 0 then columns[3] = z_nW:sum(2, true) end
   local below_nW = private.replace(z_nW, z_nW - max)
   local e_nW = private.replace(below_nW, below_nW:exp())
   columns[1] = e_nW:sum(2, true)
   local total = summed(comm, columns)
   local logsum = total[1]:log()
   local lse = max + logsum
   local value = (1 - at.smoothing) * ((max - total[2]) + logsum)
   if at.smoothing ~= 0 then
      value = value + at.smoothing * ((max - total[3] * (1 / at.V)) + logsum)
   end
   if at.z_loss ~= 0 then value = value + at.z_loss * lse:square() end
   local sum = (value * counted):sum()
   if not want then return sum end
   local slope = (at.z_loss ~= 0 and (lse * (2 * at.z_loss) + 1) or 1) * counted / total[1]
   local dz_nW = private.replace(e_nW, e_nW * slope)
   if at.smoothing ~= 0 then
      dz_nW = private.replace(dz_nW, dz_nW - counted * (at.smoothing / at.V))
   end
   return sum, private.replace(dz_nW,
      dz_nW:scatter_add(2, place, counted * here * (at.smoothing - 1)))
end

local function acc_dtype(x) return x.dtype == 'f64' and 'f64' or 'f32' end

-- Computes a chunk of tokens. Returns the sum of losses, and its gradients of x and w that are
-- wanted (else nil).
local function run_chunk(x_nC, w_WC, ids_n, at, want_x, want_w)
   local acc = acc_dtype(x_nC)
   local z_nW = tide.linear(x_nC, w_WC):to(acc)
   local sum, dz = chunk_loss(z_nW, ids_n, at, want_x or want_w)
   if dz then dz = dz:to(x_nC.dtype) end
   return sum, want_x and tide.matmul(dz, w_WC) or nil,
      want_w and tide.matmul(dz:t(), x_nC):to(acc) or nil
end

-- Returns the sum of the losses of all tokens, and the gradients that are wanted. What a chunk has
-- made goes with it.
local loss_fn = chunked.loss('parallel.linear_cross_entropy', function(x_NC, w_WC, ids_N, at,
   want_x, want_w)
   local acc, rows = acc_dtype(x_NC), chunked.rows(w_WC:size(1), chunk_bytes, 8)
   local loss = tide.zeros({}, { dtype = acc, device = x_NC.device })
   local dx, dw = chunked.gradients(x_NC:size(1), rows, function(first, n)
      local sum, dx_nC, part = private.frame(run_chunk, x_NC:narrow(1, first, n), w_WC,
         ids_N:narrow(1, first, n), at, want_x, want_w)
      loss:add_(sum)
      return dx_nC, part
   end)
   if want_x then dx = dx or x_NC:clone() end
   if want_w then
      dw = (dw or tide.zeros(w_WC.shape, { dtype = acc, device = w_WC.device })):to(w_WC.dtype)
   end
   return loss, dx, dw
end)

local function check(name, x, w, ids, counts, axis)
   if x.ndim ~= 2 or w.ndim ~= 2 or ids.ndim ~= 1 or x:size(2) ~= w:size(2)
      or x:size(1) ~= ids:size(1) or x.dtype ~= w.dtype then
      err.raise('E_SHAPE', name, 'expected x [N, C], w [rows of this rank, C] of one dtype and '
         .. 'targets [N], got %s, %s and %s', tostring(x), tostring(w), tostring(ids))
   end
   local _, size, rank = axis_of(name, 'axis', axis)
   if #counts ~= size then err.arg(name, 'counts', ('a list of %d counts'):format(size), counts) end
   if counts[rank + 1] ~= w:size(1) then
      err.arg(name, 'counts', ('%d for this rank, the rows of w'):format(w:size(1)),
         counts[rank + 1])
   end
end

-- Returns tide.linear_cross_entropy(x, w, nil, targets, opts) of a weight whose rows are split over
-- the ranks of an axis. w: this rank's rows; counts: how many rows each rank has. x and targets
-- must be the same on every rank. The gradient of x is this rank's part. Collective.
function loss_parallel.linear_cross_entropy(x, w, targets, axis, counts, opts)
   local name = 'parallel.linear_cross_entropy'
   check(name, x, w, targets, counts, axis)
   if axis.size == 1 then return tide.linear_cross_entropy(x, w, nil, targets, opts) end
   local at = { comm = axis.comm or axis, first = dims.sum(counts, axis.rank),
      V = dims.sum(counts), ignore = opts.ignore_index, smoothing = opts.label_smoothing,
      z_loss = opts.z_loss }
   -- Targets outside the vocabulary are an error on one rank, so they are one here.
   in_range(name, tide.where(targets:eq(at.ignore), 0, targets), at.V,
      'a target lies outside [0, %d) and is not ignore_index (%d)', at.ignore)
   local record = tide.is_grad_enabled()
   x, targets = rows_.only(x, targets, at.ignore)
   return loss_fn(x, w, targets, at, record and x.requires_grad, record and w.requires_grad)
end

return signature.doors('parallel', loss_parallel, {
   linear_cross_entropy = { 'x: tensor; w: tensor; targets: tensor; counts: table', opts = {
      'ignore_index: integer = -100 -- label of tokens that do not count',
      'label_smoothing: number in [0, 1) = 0', 'z_loss: number >= 0 = 0' } },
})
