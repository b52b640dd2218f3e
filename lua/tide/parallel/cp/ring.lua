-- Ring attention: blocks of keys and values travel around the ranks, queries stay.
--
-- A rank attends to one block at a time and merges the results by log-sum-exp (Liu et al., arXiv
-- 2310.01889). The next block travels while the present one is worked on. A block travels straight
-- from its owner and only with the rows that are needed (blocks.lua).
--
-- Backward walks the same hops: each block's gradients, made from the output and log-sum-exp over
-- all blocks, are sent straight back to the owner, one hop later, and are added there in the order
-- of the hops, in f32. So results do not depend on timing.
--
-- Memory: keys and values of one block are worked on while those of one more arrive; in backward
-- the gradients of one block are made while those of one more are sent back and as many rows
-- arrive. More is never held, whatever the number of ranks: everything is released after its last
-- use, not when the collector runs.

local tide = require 'tide'
local private = require 'tide.util.private'

local ring = {}

local function wide_of(dtype) return dtype == 'f64' and 'f64' or 'f32' end

local function release(list)
   for _, t in ipairs(list) do t:release() end
end

-- Returns t as another dtype, t itself released if that is another tensor.
local function into(t, dtype)
   if t.dtype == dtype then return t end
   local r = t:to(dtype)
   t:release()
   return r
end

local function room(like, run)
   return tide.empty({ like:size(1), run.count, like:size(3), like:size(4) },
      { dtype = like.dtype, device = like.device })
end

-- Returns the rows of dim 2, a view.
local function view_of(t, run) return t:slice(2, run.first, run.first + run.count - 1) end

-- Returns the rows of a run of each tensor, contiguous, and those that had to be copied for it.
local function rows(list, run)
   local out, copies, views = {}, {}, {}
   for i, t in ipairs(list) do
      local view = view_of(t, run)
      out[i] = view
      if not view:is_contiguous() then
         out[i] = room(t, run)
         copies[#copies + 1], views[#views + 1] = out[i], view
      end
   end
   tide.foreach_copy_(copies, views)
   return out, copies
end

-- Starts the transfer of a hop's keys and values; returns { work =, got = { k, v }, copies = }.
local function start(self, hop, k, v)
   local got, sent, copies = { room(k, hop.recv), room(v, hop.recv) }, rows({ k, v }, hop.send)
   local work = self.comm:send_recv(got, hop.from, sent, hop.to, { async = true })
   return { work = work, got = got, copies = copies }
end

-- Returns what each block sees: the options of one attention call.
local function options(self, hop)
   local o, k_index = {}, self.index[(hop and hop.from or self.comm.rank) + 1]
   for _, name in ipairs { 'causal', 'window', 'softcap', 'scale' } do o[name] = self.mask[name] end
   o.q_index = self.index[self.comm.rank + 1]
   o.k_index = hop and view_of(k_index, hop.recv) or k_index
   o.q_tiles = self.tiles
   if not hop then o.k_tiles = self.tiles end
   return o
end

-- Calls fn(hop or nil, { k, v }) for the own block and then for every hop, transfers running ahead.
-- fn releases the block of a hop.
local function each_block(self, k, v, fn)
   local hops = self.hops
   local ahead = hops[1] and start(self, hops[1], k, v)
   fn(nil, { k, v })
   for i, hop in ipairs(hops) do
      local block = ahead
      block.work:wait()
      release(block.copies)
      ahead = hops[i + 1] and start(self, hops[i + 1], k, v)
      fn(hop, block.got)
   end
end

-- Sinks are part of the own block: one more key, with the value 0, of each query.
local function forward(self, q, k, v, sinks)
   local opts = { dtype = wide_of(q.dtype), device = q.device }
   local B, T, H = q:size(1), q:size(2), q:size(3)
   local out, lse
   each_block(self, k, v, function(hop, block)
      if hop and hop.recv.count == 0 then return release(block) end
      local o = options(self, hop)
      o.return_lse, o.sinks = true, not hop and sinks or nil
      local part, part_lse = tide.attention(q, block[1], block[2], o)
      if not out then
         out, lse = into(part, opts.dtype), part_lse
      else
         tide.attention_merge_(out, lse, part, part_lse)
         release { part, part_lse }
      end
      if hop then release(block) end
   end)
   return out or tide.zeros({ B, T, H, v:size(4) }, opts),
      lse or tide.full({ B, H, T }, -math.huge, opts)
end

-- Sends the gradients of a hop's block home and takes those of the own rows; returns the transfer.
local function give_back(self, hop, dk, dv, k, v)
   local got, sent = { room(k, hop.send), room(v, hop.send) }, { dk, dv }
   local work = self.comm:send_recv(got, hop.to, sent, hop.from, { async = true })
   return { work = work, hop = hop, got = got, sent = sent }
end

local function collect(back, dk, dv)
   if not back then return end
   back.work:wait()
   local run = back.hop.send
   if run.count > 0 then tide.foreach_add_({ view_of(dk, run), view_of(dv, run) }, back.got) end
   release(back.got)
   release(back.sent)
end

local function backward(self, dout, q, k, v, out, lse)
   local opts = { dtype = wide_of(q.dtype), device = q.device }
   local dq, dk, dv, back
   each_block(self, k, v, function(hop, block)
      local a, b, c
      if not hop or hop.recv.count > 0 then
         a, b, c = tide.attention_backward(dout, q, block[1], block[2], out, lse,
            options(self, hop))
      else
         b, c = room(k, hop.recv), room(v, hop.recv)
      end
      if not hop then
         dq, dk, dv = into(a, opts.dtype), into(b, opts.dtype), into(c, opts.dtype)
         return
      end
      release(block)
      if a then
         dq:add_(a)
         a:release()
      end
      collect(back, dk, dv)
      back = give_back(self, hop, b, c, k, v)
   end)
   collect(back, dk, dv)
   return into(dq, q.dtype), into(dk, k.dtype), into(dv, v.dtype)
end

local attend = private.func {
   name = 'parallel.ring_attention',
   forward = function(self, q, k, v, plan, sinks)
      self.plan = plan
      local wide, lse = forward(plan, q, k, v, sinks)
      local out = into(wide, q.dtype)
      self:save(unpack { q, k, v, out, lse, sinks })
      return out
   end,
   backward = function(self, dout)
      local q, k, v, out, lse, sinks = self:saved()
      dout = dout:contiguous()
      local dq, dk, dv = backward(self.plan, dout, q, k, v, out, lse)
      return dq, dk, dv, nil, sinks and tide.attention_sinks_backward(dout, out, lse, sinks)
   end,
}

-- Returns attention by a ring of blocks. q, k, v: this rank's tokens. plan: { comm =, index = pairs
-- of every rank's tokens, tiles = those of this rank or nil, mask = { causal, window, softcap,
-- scale }, hops = of blocks.lua for this rank }. sinks: [H] or nil.
function ring.attention(q, k, v, plan, sinks) return attend(q, k, v, plan, sinks) end

return ring
