-- Losses of an output head without the logits of all tokens: a chunk of tokens at a time.
--
-- Legend: N tokens, n tokens of a chunk, C width, W vocabulary rows of this rank.

local tide = require 'tide'
local err = require 'tide.util.err'
local private = require 'tide.util.private'

local chunked = {}

-- Returns t as one column [n, 1].
function chunked.column(t) return t:reshape { t:numel(), 1 } end

-- Returns logits under a soft cap, if there is one; gives z up.
function chunked.capped(z, cap)
   if not cap then return z end
   z = private.replace(z, z * (1 / cap))
   z = private.replace(z, z:tanh())
   return private.replace(z, z * cap)
end

-- Returns the logits [n, W] of a chunk in dtype acc, under the soft cap if there is one.
function chunked.logits(x_nC, w_WC, cap, acc)
   return chunked.capped(tide.linear(x_nC, w_WC):to(acc), cap)
end

-- Raises E_SHAPE unless labels has a label for each of n tokens.
function chunked.check_labels(op, labels, n)
   err.raise_if(labels:numel() ~= n, 'E_SHAPE', op, 'expected %d labels, one for each token, got '
      .. '%d', n, labels:numel())
end

-- Returns how a loss of x and the head w is made by chunks; further fields are the caller's. opts:
-- ignore, cap and chunk; part: { comm, first (rows before those of this rank) } where w has some of
-- the rows of a head, or nil.
function chunked.way(x, w, opts, part)
   local record = tide.is_grad_enabled()
   return { acc = x.dtype == 'f64' and 'f64' or 'f32', ignore = opts.ignore, cap = opts.cap,
      comm = part and part.comm, first = part and part.first or 0,
      rows = opts.chunk or chunked.rows(w:size(1)),
      want_x = record and x.requires_grad, want_w = record and w.requires_grad }
end

-- Returns how many tokens a chunk has, so that its logits take at most `bytes` (16 MiB), with
-- `size` (4) bytes a logit.
function chunked.rows(W, bytes, size)
   return math.max(1, math.floor((bytes or 2 ^ 24) / ((size or 4) * math.max(1, W))))
end

-- Returns the results of all chunks as one tensor.
function chunked.joined(list) return #list == 1 and list[1] or tide.cat(list, 1) end

-- Calls fn(first, n) for chunks of N tokens.
function chunked.each(N, rows, fn)
   for first = 1, N, rows do fn(first, math.min(rows, N - first + 1)) end
end

-- Returns the gradients of x and w from those of chunks, which fn(first, n) returns. A gradient
-- that fn returns as nil is nil.
function chunked.gradients(N, rows, fn)
   local dx, dw = {}, nil
   chunked.each(N, rows, function(first, n)
      local dx_nC, part = fn(first, n)
      dx[#dx + 1] = dx_nC
      if dw and part then
         dw:add_(part)
         private.spend(part)
      else
         dw = part
      end
   end)
   return #dx > 0 and chunked.joined(dx) or nil, dw
end

-- Returns a host function of x, w, .. by fn, which gives the loss and with it the gradients of x
-- and w (nil: not wanted); backward only scales them.
function chunked.loss(name, fn)
   return private.func {
      name = name,
      forward = function(self, ...)
         local loss, dx, dw = fn(...)
         self.has_x = dx ~= nil
         if dx and dw then self:save(dx, dw) elseif dx or dw then self:save(dx or dw) end
         return loss
      end,
      backward = function(self, dy)
         local dx, dw = self:saved()
         if not self.has_x then dx, dw = nil, dx end
         local function scaled(t) return t and (t * dy):to(t.dtype) or nil end
         return scaled(dx), scaled(dw), nil
      end,
   }
end

return chunked
