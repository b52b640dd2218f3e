-- A Mamba-2 layer over two ranks against the same layer on one rank with two threads:
-- `tide run -n 2 -t 1 kernels/bench/mamba_cp.lua [rounds [tokens [dtype [width]]]]`.
--
-- The same two cores do the same work, forward and backward: cut over two rank
-- threads of one thread each, by each method and layout, or whole on rank 0 with two threads while
-- rank 1 waits. The two take turns, so both meet the same machine. Printed for each way: medians of
-- seconds and of processor seconds (of the whole process), the median of the ratios (1: nothing is
-- lost), and bytes sent by kind of collective.
--
-- With one rank (`tide run kernels/bench/mamba_cp.lua ...`) collectives are simulated: what is left
-- is a rank's own work, in CPU seconds, against the plain layer on half of the tokens.

local tide = require 'tide'
local stats = require 'kernels.bench.stats'
local turns = require 'kernels.bench.turns'

local comm, ctx = tide.comm.world(), tide.default()
local words = { ... }
local rounds, T = tonumber(words[1]) or 7, tonumber(words[2]) or 4096
local dtype, width = words[3] or 'f32', tonumber(words[4]) or 512
local ways = { { 'hidden', 'zigzag' }, { 'hidden', 'contiguous' }, { 'state', 'zigzag' },
   { 'state', 'contiguous' } }

local function layer_of()
   return tide.nn.Mamba2 { dim = width, heads = width / 32, head_dim = 64, state = 128,
      dtype = dtype, seed = 1 }
end

local function tokens(n) return tide.randn({ 1, n, width }):to(dtype) end

-- One pass forward and backward of all tokens of h; the gradients of parameters are dropped.
local function pass(layer, h, context)
   return function()
      tide.scope(function()
         layer(h:clone():requires_grad_(), { context = context }):backward(h)
      end)
      layer:zero_grad()
   end
end

-- ---- simulated -------------------------------------------------------------------------------

local function cpu(fn)
   local begin = os.clock()
   fn()
   return 1e3 * (os.clock() - begin)
end

local function simulated()
   ctx:set_nthread(1)
   local axis, layer, h = tide.comm.simulate(2, 0), layer_of(), tokens(T / 2)
   local plain = pass(layer_of(), h)
   for _, way in ipairs(ways) do
      local map = tide.parallel.cp_map.new { kind = way[2], size = 2, length = T }
      local on = tide.parallel.mamba_cp.attach(layer, axis, { method = way[1] })
      local part = pass(layer, h, tide.parallel.cp.context { axis = axis, map = map })
      local a, b, ratio = {}, {}, {}
      part()
      plain()
      for i = 1, rounds do
         a[i], b[i] = cpu(part), cpu(plain)
         ratio[i] = b[i] / a[i]
      end
      on:restore()
      print(('%-6s %-10s %s, %d tokens: %.1f ms of a rank, half of the plain layer %.1f ms: ratio '
         .. '%.3f'):format(way[1], way[2], dtype, T, stats.median(a), stats.median(b),
         stats.median(ratio)))
   end
   print(tide.parallel.mamba_cp.explain(layer,
      tide.parallel.cp_map.new { kind = 'zigzag', size = 2, length = T }, { dtype = dtype }))
end

-- ---- over ranks ------------------------------------------------------------------------------

-- What a call of fn sends: calls and bytes of each kind of collective, as text.
local function sent(fn)
   local list, kinds = {}, { 'all_to_all_v', 'all_to_all_into', 'all_gather_into', 'all_gather',
      'reduce_scatter', 'all_gather_v', 'reduce_scatter_v' }
   local inside = false
   for _, kind in ipairs(kinds) do
      local call, n, bytes = comm[kind], 0, 0
      comm[kind] = call and function(...)
         if inside then return call(...) end
         inside = true
         local before = comm:traffic().nbyte[1]
         local out = call(...)
         n, bytes, inside = n + 1, bytes + comm:traffic().nbyte[1] - before, false
         list[kind] = ('%s %d in %d calls'):format(kind, bytes, n)
         return out
      end
   end
   local before = comm:traffic().nbyte[1]
   fn()
   local total, text = comm:traffic().nbyte[1] - before, {}
   for _, kind in ipairs(kinds) do
      comm[kind], text[#text + 1] = nil, list[kind]
   end
   return ('%d bytes (%s)'):format(total, table.concat(text, ', '))
end

local function compare(way)
   local layer, whole = layer_of(), comm.rank == 0 and layer_of()
   local on = tide.parallel.mamba_cp.attach(layer, comm, { method = way[1] })
   local map = tide.parallel.cp_map.new { kind = way[2], axis = comm, length = T }
   local part = pass(layer, tokens(T / comm.size),
      tide.parallel.cp.context { axis = comm, map = map })
   local alone = whole and pass(whole, tokens(T)) or function() end
   local function on_one()
      if not whole then return end
      ctx:set_nthread(comm.size)
      alone()
      ctx:set_nthread(1)
   end
   part()
   on_one()
   local bytes = sent(part)
   local t = turns.compare(comm, rounds, part, on_one)
   on:restore()
   if comm.rank > 0 then return end
   print(('%-6s %-10s over %d ranks, %d tokens, %s: %.3f s (cpu %.3f); one rank, %d threads: '
      .. '%.3f s (cpu %.3f); speed %.3f of it (by cpu time %.3f); a rank sends %s'):format(
      way[1], way[2], comm.size, T, dtype, t.a, t.a_cpu, comm.size, t.b, t.b_cpu, t.ratio,
      t.cpu_ratio, bytes))
end

if comm.size == 1 then return simulated() end
ctx:set_nthread(1)
for _, way in ipairs(ways) do compare(way) end
