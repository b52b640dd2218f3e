-- Token cross entropy as a sum over counted tokens, to be divided by a global count, so that
-- every later reduction (micro-batches, ranks) is a plain sum.

local tide = require 'tide'
local chunked = require 'tide.nn.chunked'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'

local loss = {}

loss.ignore = -100

-- Returns the number of labels that count.
function loss.count(labels, ignore) return labels:ne(ignore or loss.ignore):sum():item() end

-- Returns the labels of next-token prediction from ids (i64): labels[t] = ids[t + 1], the last one
-- ignored.
function loss.shift(ids, ignore)
   local ids_BT = ids
   local B, T = ids_BT:size(1), ids_BT:size(2)
   local last = tide.full({ B, 1 }, ignore or loss.ignore,
      { dtype = ids_BT.dtype, device = ids_BT.device })
   if T == 1 then return last end
   return tide.cat({ ids_BT:slice(2, 2, T), last }, 2)
end

-- Options of a loss of hidden states and labels.
loss.known = { 'count', 'ignore', 'label_smoothing', 'z_loss' }

-- Splits the options of a loss into those of the op and the count to divide by.
function loss.options(op, opts)
   opts = err.options(op, opts, loss.known)
   return {
      ignore_index = opts.ignore or loss.ignore, label_smoothing = opts.label_smoothing,
      z_loss = opts.z_loss,
   }, opts.count
end

-- Returns the sum of a loss over tokens, divided by count (default: the counted labels of this
-- call). x is [B, T, C] or [N, C]; labels have its leading shape; fn(x_NC, labels_N, options of the
-- op) returns the sum. op: the name in errors, if the caller called another function.
function loss.per_count(fn, x, labels, opts, op)
   op = op or 'nn.loss.per_count'
   err.type('nn.loss.per_count', 'op', op, 'string')
   err.func(op, 'fn', fn)
   signature.check(op, 'x', x, 'tensor')
   local attrs, count = loss.options(op, opts)
   local C = x:size(-1)
   local n = x:numel() / C
   signature.check(op, 'labels', labels, 'tensor')
   chunked.check_labels(op, labels, n)
   count = count or math.max(1, loss.count(labels, attrs.ignore_index))
   err.number(op, 'count', count, 1e-300)
   local flat = x:reshape(n, C)
   local sum = private.call(fn, flat, labels:reshape(n), attrs)
   signature.check(op, 'result of fn', sum, 'tensor')
   private.spend(flat)
   return sum * (1 / count)
end

-- Returns the cross entropy of x w', summed over the tokens that count and divided by opts.count
-- (default: their number). x [.., C], w [V, C], labels i64 of the leading shape of x. Further
-- options: ignore (label of tokens that do not count, -100), label_smoothing, z_loss. labels[t] is
-- the token after x[t] already (loss.shift makes them).
function loss.linear(x, w_VC, labels, opts)
   return loss.per_count(private.note(function(x_NC, labels_N, attrs)
      return tide.linear_cross_entropy(x_NC, w_VC, nil, labels_N, attrs)
   end), x, labels, opts, 'nn.loss.linear')
end
private.note(loss.linear)

-- Returns the cross entropy of logits [.., V], with the labels and options of loss.linear.
function loss.of_logits(logits, labels, opts)
   return loss.per_count(private.note(function(z_NV, labels_N, attrs)
      attrs.reduction = 'sum'
      return tide.cross_entropy(z_NV, labels_N, attrs)
   end), logits, labels, opts, 'nn.loss.of_logits')
end

return signature.doors('nn.loss', loss, {
   count = 'labels: tensor', shift = 'ids: tensor [batch, tokens]',
})
