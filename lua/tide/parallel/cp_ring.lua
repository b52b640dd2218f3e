-- Ring attention: keys and values come by block, queries stay (layer 8).
--
-- The one idea: attend to one block at a time and merge by log-sum-exp (Liu et al., arXiv
-- 2310.01889). The next block travels while the present one is worked on. A block comes straight
-- from its owner and only with the rows that are needed (cp_blocks.lua), so at any time a rank
-- holds its own block, one that is worked on and one that arrives, whatever the number of ranks.
--
-- Backward walks the same hops: each block's gradients, made from the output and log-sum-exp over
-- all blocks, go straight back to the owner, one hop behind, and are added there in the order of
-- the hops, in f32. So results do not depend on timing.

local tide = require 'tide'

local ring = {}

local function wide_of(dtype) return dtype == 'f64' and 'f64' or 'f32' end

-- Rows of dim 2 as a dense tensor; all of them: t itself if it is dense.
local function rows(t, run)
   if run.count == t:size(2) then return t:contiguous() end
   return t:slice(2, run.first, run.first + run.count - 1):contiguous()
end

local function room(like, run)
   return tide.empty({ like:size(1), run.count, like:size(3), like:size(4) },
      { dtype = like.dtype, device = like.device })
end

local function index_rows(index, run)
   return index:slice(2, run.first, run.first + run.count - 1)
end

-- Starts the transfer of a hop's keys and values; returns { work =, k =, v = }.
local function start(self, hop, k, v)
   local out = { room(k, hop.recv), room(v, hop.recv) }
   local work = self.comm:send_recv(out, hop.from, { rows(k, hop.send), rows(v, hop.send) },
      hop.to, { async = true })
   return { work = work, k = out[1], v = out[2] }
end

-- What each block sees: the options of one attention call.
local function options(self, hop)
   local o, k_index = {}, self.index[(hop and hop.from or self.comm.rank) + 1]
   for _, name in ipairs { 'causal', 'window', 'softcap', 'scale' } do o[name] = self.mask[name] end
   o.q_index = self.index[self.comm.rank + 1]
   o.k_index = hop and index_rows(k_index, hop.recv) or k_index
   return o
end

-- Calls fn(hop or nil, k, v) for the own block and then for every hop, transfers running ahead.
-- Blocks go at once and not when the collector comes, so memory does not grow with the hops.
local function each_block(self, k, v, fn)
   local hops = self.hops
   local ahead = hops[1] and start(self, hops[1], k, v)
   fn(nil, k, v)
   for i, hop in ipairs(hops) do
      local block = ahead
      block.work:wait()
      ahead = hops[i + 1] and start(self, hops[i + 1], k, v)
      fn(hop, block.k, block.v)
      block.k:release()
      block.v:release()
   end
end

local function forward(self, q, k, v)
   local opts = { dtype = wide_of(q.dtype), device = q.device }
   local B, T, H = q:size(1), q:size(2), q:size(3)
   local out, lse
   each_block(self, k, v, function(hop, kb, vb)
      if hop and hop.recv.count == 0 then return end
      local o = options(self, hop)
      o.return_lse = true
      local part, part_lse = tide.attention(q, kb, vb, o)
      if not out then
         out, lse = part:to(opts.dtype), part_lse
         if part.dtype == opts.dtype then out = part end
      else
         tide.attention_merge_(out, lse, part, part_lse)
         part:release()
         part_lse:release()
      end
   end)
   return out or tide.zeros({ B, T, H, v:size(4) }, opts),
      lse or tide.full({ B, H, T }, -math.huge, opts)
end

-- dt[rows of run] += part.
local function add_rows(dt, run, part)
   if run.count > 0 then dt:slice(2, run.first, run.first + run.count - 1):add_(part) end
end

-- Sends the gradients of a hop's block home and takes those of the own rows; returns the transfer.
local function give_back(self, hop, dk, dv, k, v)
   local out = { room(k, hop.send), room(v, hop.send) }
   local work = self.comm:send_recv(out, hop.to, { dk, dv }, hop.from, { async = true })
   return { work = work, hop = hop, k = out[1], v = out[2], sent = { dk, dv } }
end

local function collect(back, dk, dv)
   if not back then return end
   back.work:wait()
   add_rows(dk, back.hop.send, back.k)
   add_rows(dv, back.hop.send, back.v)
   for _, t in ipairs { back.k, back.v, unpack(back.sent) } do t:release() end
end

local function backward(self, dout, q, k, v, out, lse)
   local opts = { dtype = wide_of(q.dtype), device = q.device }
   local dq, dk, dv, back
   each_block(self, k, v, function(hop, kb, vb)
      local a, b, c
      if not hop or hop.recv.count > 0 then
         a, b, c = tide.attention_backward(dout, q, kb, vb, out, lse, options(self, hop))
      else
         b, c = room(k, hop.recv), room(v, hop.recv)
      end
      if not hop then
         dq, dk, dv = a:to(opts.dtype), b:to(opts.dtype), c:to(opts.dtype)
         return
      end
      if a then
         dq:add_(a)
         a:release()
      end
      collect(back, dk, dv)
      back = give_back(self, hop, b, c, k, v)
   end)
   collect(back, dk, dv)
   return dq:to(q.dtype), dk:to(k.dtype), dv:to(v.dtype)
end

local attend = tide.grad.func {
   name = 'parallel.ring_attention',
   forward = function(self, q, k, v, plan)
      self.plan = plan
      local wide, lse = forward(plan, q, k, v)
      local out = wide:to(q.dtype)
      self:save(q, k, v, out, lse)
      return out
   end,
   backward = function(self, dout)
      local q, k, v, out, lse = self:saved()
      return backward(self.plan, dout:contiguous(), q, k, v, out, lse)
   end,
}

-- plan: { comm =, index = pairs of every rank's tokens, mask = { causal, window, softcap, scale },
-- hops = of cp_blocks.hops for this rank }. q, k, v: this rank's tokens.
function ring.attention(q, k, v, plan) return attend(q, k, v, plan) end

return ring
