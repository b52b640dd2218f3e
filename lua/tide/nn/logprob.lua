-- Log-probabilities of labels under an output head, one for each token, without logits, for losses
-- over whole answers.
--
-- The gradient of such a loss differs by token and is known only after forward. So logits are made
-- twice, for a chunk of tokens at a time: in forward, which keeps the log-sum-exp of a token,
-- and in backward. Where the vocabulary is cut over ranks, forward exchanges three numbers a token
-- and backward none; the gradient of x is this rank's part (see parallel.linear_cross_entropy).
--
-- Legend: N tokens, n tokens of a chunk, C width, W vocabulary rows of this rank.

local tide = require 'tide'
local chunked = require 'tide.nn.chunked'
local rows_ = require 'tide.nn.rows'
local err = require 'tide.util.err'
local in_range = require 'tide.nn.in_range'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'

local logprob = {}

local column, joined = chunked.column, chunked.joined

-- Returns the columns [n, 1] of targets: their place among the rows of this rank, whether they lie
-- there, and whether they count.
local function places(ids_n, at, W)
   local ids = column(ids_n)
   local counted = ids:ne(at.ignore)
   local here = tide.logical_and(tide.logical_and(ids:ge(at.first), ids:lt(at.first + W)), counted)
   return (ids - at.first):clamp(0, W - 1), here:to(at.acc), counted:to(at.acc)
end

-- Returns log-probabilities and log-sum-exp of a chunk, [n] each.
local function forward_chunk(x_nC, w_WC, ids_n, at)
   local n, W = x_nC:size(1), w_WC:size(1)
   local z = chunked.logits(x_nC, w_WC, at.cap, at.acc)
   local place, here, counted = places(ids_n, at, W)
   local max = z:amax(2, true)
   if at.comm then at.comm:all_reduce(max, 'max') end
   local target = z:gather(2, place) * here
   local below = private.replace(z, z - max)
   local sums = tide.cat({ private.replace(below, below:exp()):sum(2, true), target }, 2)
   if at.comm then at.comm:all_reduce(sums) end
   local logsum = sums:narrow(2, 1, 1):log()
   local value = ((sums:narrow(2, 2, 1) - max) - logsum) * counted
   return value:reshape { n }, (max + logsum):reshape { n }
end

-- Returns the gradients of a chunk by x and w (nil where not wanted). dy_n: those of the
-- log-probabilities.
local function backward_chunk(x_nC, w_WC, ids_n, lse_n, dy_n, at)
   local z = chunked.logits(x_nC, w_WC, at.cap, at.acc)
   local place, here, counted = places(ids_n, at, w_WC:size(1))
   local dy = column(dy_n):to(at.acc) * counted
   local slope = at.cap and 1 - (z * (1 / at.cap)):square()
   local dz = private.replace(z, z - column(lse_n))
   dz = private.replace(dz, dz:exp())
   dz = private.replace(dz, dz * -dy)
   dz = private.replace(dz, dz:scatter_add(2, place, dy * here))
   if slope then dz = private.replace(dz, dz * slope) end
   dz = private.replace(dz, dz:to(x_nC.dtype))
   return at.want_x and tide.matmul(dz, w_WC) or nil,
      at.want_w and tide.matmul(dz:t(), x_nC):to(at.acc) or nil
end

local labels_fn = private.func {
   name = 'nn.logprob',
   forward = function(self, x, w, ids, at)
      local values, lses = {}, {}
      chunked.each(x:size(1), at.rows, function(first, n)
         values[#values + 1], lses[#lses + 1] = private.frame(forward_chunk, x:narrow(1, first, n),
            w, ids:narrow(1, first, n), at)
      end)
      self.at = at
      self:save(x, w, ids, joined(lses))
      return joined(values)
   end,
   backward = function(self, dy)
      local x, w, ids, lse = self:saved()
      local at = self.at
      local dx, dw = chunked.gradients(x:size(1), at.rows, function(first, n)
         return private.frame(backward_chunk, x:narrow(1, first, n), w, ids:narrow(1, first, n),
            lse:narrow(1, first, n), dy:narrow(1, first, n), at)
      end)
      return dx, dw and dw:to(w.dtype) or nil, nil
   end,
}

-- Returns the log-probabilities, as of_labels does, of a head whose rows are cut over ranks. part:
-- { comm, first (rows before those of this rank), size (rows of all ranks) }, or nil.
function logprob._of_part(op, x, w, labels, opts, part)
   local C = x:size(-1)
   local n = x:numel() / C
   err.raise_if(C ~= w:size(2) or x.dtype ~= w.dtype, 'E_SHAPE', op, 'expected x [.., C] and w '
      .. '[V, C] of one dtype, got %s and %s', tostring(x), tostring(w))
   chunked.check_labels(op, labels, n)
   local at = chunked.way(x, w, opts, part)
   in_range(op, tide.where(labels:eq(at.ignore), 0, labels), part and part.size or w:size(1),
      'a label lies outside [0, %d) and is not ignore (%d)', at.ignore)
   if n == 0 then return tide.zeros(labels.shape, { dtype = at.acc, device = x.device }) end
   local x_KC, ids_K, rows = rows_.only(x:reshape(n, C), labels:reshape(n), at.ignore)
   local values = labels_fn(x_KC, w, ids_K, at)
   return rows and rows_.spread(values, rows, labels.shape) or values:reshape(labels.shape)
end

-- Returns the natural log-probabilities of labels under the logits x w', in the shape of labels: 0
-- for those that do not count. f32, or f64 where x is. x [.., C] hidden states, w [V, C], labels
-- i64 of the leading shape of x: labels[t] is the token after x[t]. x and w get gradients. The
-- logits of `chunk` tokens exist at a time, in forward and in backward.
function logprob.of_labels(x, w, labels, opts)
   return logprob._of_part('nn.logprob.of_labels', x, w, labels, opts)
end

return signature.doors('nn.logprob', logprob, {
   of_labels = { 'x: tensor; w: tensor; labels: tensor', opts = {
      'ignore: integer = -100 -- label of tokens that do not count',
      'chunk: integer? >= 1 -- tokens whose logits exist at a time; by default those of 16 MiB',
      'cap: number? > 0 -- soft cap of the logits' } },
})
