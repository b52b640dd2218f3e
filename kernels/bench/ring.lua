-- Ring attention over two ranks against the same attention on one rank with two threads:
-- `tide run -n 2 -t 1 kernels/bench/ring.lua [rounds [tokens [dtype]]]`.
--
-- The same two cores do the same work, causal, forward and backward: cut head-tail
-- over two rank threads of one thread each, or whole on rank 0 with two threads while rank 1 waits.
-- The two take turns, so both meet the same machine. Printed: medians of seconds and of processor
-- seconds (of the whole process), and the median of the ratios; 1 means that the ring costs
-- nothing. peer_ring.py does the ring with PyTorch.

local tide = require 'tide'
local cp = tide.parallel.cp
local cp_attention = require 'tide.parallel.cp.attention'
local turns = require 'kernels.bench.turns'

local comm, ctx = tide.comm.world(), tide.default()
local rounds, T = tonumber((...)) or 7, tonumber((select(2, ...))) or 8192
local dtype = select(3, ...) or 'f32'
local H, D = 4, 64

local function inputs(n)
   local list = {}
   for i = 1, 4 do list[i] = tide.randn({ 1, n, H, D }):to(dtype) end
   for i = 1, 3 do list[i]:requires_grad_(true) end
   return list
end

local context = cp.context { map = tide.parallel.cp_map.new { kind = 'zigzag', axis = comm,
   length = T } }
local ring = cp_attention.new { axis = comm, method = 'ring' }
local part, whole = inputs(T / comm.size), comm.rank == 0 and inputs(T) or nil

local function pass(list, fn)
   tide.scope(function()
      fn(list[1], list[2], list[3]):backward(list[4])
      return list[1].grad, list[2].grad, list[3].grad
   end)
   for i = 1, 3 do list[i]:zero_grad() end
end

local function over_ranks()
   pass(part, function(q, k, v) return ring(q, k, v, { causal = true, context = context }) end)
end

local function on_one()
   if not whole then return end
   ctx:set_nthread(comm.size)
   pass(whole, function(q, k, v) return tide.attention(q, k, v, { causal = true }) end)
   ctx:set_nthread(1)
end

ctx:set_nthread(1)
over_ranks()
on_one()
local t = turns.compare(comm, rounds, over_ranks, on_one)
if comm.rank == 0 then
   print(('ring over %d ranks, %d tokens, %d heads of %d, %s: %.3f s (cpu %.3f); one rank, %d '
      .. 'threads: %.3f s (cpu %.3f); speed of the ring %.3f of it (by cpu time %.3f)'):format(
      comm.size, T, H, D, dtype, t.a, t.a_cpu, comm.size, t.b, t.b_cpu, t.ratio, t.cpu_ratio))
end
