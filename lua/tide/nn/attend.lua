-- Attention whose probabilities pass through dropout, which tide.attention does not do.
--
-- attend(q, k, v, options) is tide.attention(q, k, v, options) unless options.dropout is given.
-- Then probabilities are made in full, for a block of queries at a time, and made again in
-- backward: memory is that of one block. The generator draws the dropout masks, which
-- recomputation replays.
-- Legend: B batch, n queries of a block, T keys, H query heads, K key heads, G = H / K, D head
-- size.

local tide = require 'tide'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local window = require 'tide.nn.window'

local known = require('tide.nn.mask')._options()

local most = 2 ^ 22                     -- probabilities of a block, at most (or one query's)

-- Returns column i (1 document, 2 position, 3 until) of an index [B or 1, T, 2 or 3], as [B or 1,
-- 1, 1, T, 1] or, of keys, [B or 1, 1, 1, 1, T].
local function column(index, i, keys)
   local c = index:select(3, i)
   local B, T = c:size(1), c:size(2)
   return keys and c:reshape(B, 1, 1, 1, T) or c:reshape(B, 1, 1, T, 1)
end

local function range(first, n, t, keys)
   local p = tide.arange(n, { dtype = 'i32', device = t.device }) + first
   return keys and p:reshape(1, 1, 1, 1, n) or p:reshape(1, 1, 1, n, 1)
end

-- Returns which of n queries, from `first` (0-based) on, see which of T keys, as bool that
-- broadcasts to [B, K, G, n, T]. It returns nil if every query sees every key.
local function seen_by(o, first, n, T, q)
   local left, right = window.sides(o.window)
   if not o.q_index and not o.causal and left < 0 and right < 0 then return nil end
   local from, to, until_, seen
   if o.q_index then
      local part = o.q_index:narrow(2, first + 1, n)
      local doc = column(part, 1)
      seen = tide.logical_and(doc:eq(column(o.k_index, 1, true)), doc:ge(0))
      from, to = column(part, 2), column(o.k_index, 2, true)
      until_ = part:size(3) > 2 and column(part, 3) or nil
   else
      from, to = range((o.q_start or 0) + first, n, q), range(0, T, q, true)
   end
   local distance = from - to
   local function also(more) seen = seen and tide.logical_and(seen, more) or more end
   if o.causal then also(to:le(until_ or from)) end
   if left >= 0 then also(distance:le(left)) end
   if right >= 0 then also(distance:ge(-right)) end
   return seen
end

-- Returns x [B, n, H, D] as [B, K, G n, D], so keys [B, T, K, D] as [B, K, T, D]; in f32, or in f64
-- if x is f64.
local function by_head(x, K)
   local B, n, H, D = unpack(x.shape)
   if x.dtype ~= 'f64' then x = x:to 'f32' end
   return x:reshape(B, n, K, H / K, D):permute(1, 3, 4, 2, 5):reshape(B, K, H / K * n, D)
end

-- Returns the probabilities of scores [B, K, G, n, T]; sinks [H] take their share and are left out.
local function softmax(scores, sinks)
   if not sinks then return scores:softmax(-1) end
   local B, K, G, n, T = unpack(scores.shape)
   local column_ = sinks:to(scores.dtype):reshape(1, K, G, 1, 1):expand(B, K, G, n, 1)
   return tide.cat({ scores, column_ }, -1):softmax(-1):narrow(-1, 1, T)
end

local function block(q, k, v, sinks, o, first)
   local B, n, H, D = unpack(q.shape)
   local T, K = k:size(2), k:size(3)
   local scores = tide.matmul(by_head(q, K), by_head(k, K):transpose(3, 4))
      * (o.scale or 1 / math.sqrt(D))
   scores = scores:reshape(B, K, H / K, n, T)
   if o.softcap and o.softcap > 0 then scores = (scores * (1 / o.softcap)):tanh() * o.softcap end
   if o.bias then
      scores = scores + o.bias:expand(B, H, o.bias:size(3), T):narrow(3, first + 1, n)
         :reshape(B, K, H / K, n, T):to(scores.dtype)
   end
   local seen = seen_by(o, first, n, T, q)
   if seen then scores = scores:masked_fill(tide.logical_not(seen), -1e30) end
   local p = softmax(scores, sinks)
   if seen then p = p * seen:to(p.dtype) end         -- a query that sees nothing gives 0
   p = tide.dropout(p, o.dropout):reshape(B, K, H / K * n, T)
   local y = tide.matmul(p, by_head(v, K)):reshape(B, K, H / K, n, v:size(4))
   return y:permute(1, 4, 2, 3, 5):reshape(B, n, H, v:size(4)):to(q.dtype)
end

local function dropped(q, k, v, o)
   local B, n, H = unpack(q.shape)
   local step = math.max(1, math.floor(most / math.max(1, B * H * k:size(2))))
   local parts = {}
   for first = 0, n - 1, step do
      local count = math.min(step, n - first)
      local function run(a, b, c, sinks) return block(a, b, c, sinks, o, first) end
      local part = q:narrow(2, first + 1, count)
      parts[#parts + 1] = tide.is_grad_enabled() and private.checkpoint(run, part, k, v, o.sinks)
         or run(part, k, v, o.sinks)
   end
   return #parts == 1 and parts[1] or tide.cat(parts, 2)
end

return function(q, k, v, options)
   local dropout = err.type('nn.attend', 'options', options, 'table').dropout
   if dropout == nil then return tide.attention(q, k, v, options) end
   local op = 'nn.attend'
   err.options(op, options, known)
   err.number(op, 'dropout', dropout, 0, 1)
   if q:numel() > 0 and k:numel() > 0 then return dropped(q, k, v, options) end
   local rest = copy(options)                -- no probability to drop, as on a rank without heads
   rest.dropout, rest.context = nil, nil
   return tide.attention(q, k, v, rest)
end
