-- A training step over pipeline stages against the same step on one rank with as many threads:
-- `tide run -n 2 -t 1 kernels/bench/pipeline.lua [rounds [micro-batches [virtual stages]]]`.
--
-- The same cores do the same work: 16 rows of 256 tokens through a Llama of 8 layers, in stages of
-- one thread each, or on rank 0 alone while the others wait. The two take turns, so both meet the
-- same machine. Printed: medians of seconds, and of the ratios; 1 means that stages cost nothing.
-- The schedule alone lets a rank wait (p - 1) / (v m + p - 1) of the time.

local tide = require 'tide'
local turns = require 'kernels.bench.turns'

local comm, ctx = tide.comm.world(), tide.default()
local rounds, m = tonumber((...)) or 5, tonumber((select(2, ...))) or 16
local virtual = tonumber((select(3, ...))) or 1
local rows, seq = 16, 256

-- Returns a function that makes a step. mesh: its axes; over: its ranks; n: micro-batches; pp: of
-- the plan.
local function stepper(mesh, over, n, pp)
   local model = tide.model.llama({ vocab_size = 8192, hidden_size = 256, num_hidden_layers = 8,
      num_attention_heads = 4, intermediate_size = 704 }, { device = 'null' })
   local run = tide.parallel.plan(model, tide.parallel.mesh(mesh, { comm = over }), { pp = pp })
      :materialise { seed = 1 }
   local step = tide.train.step.new { model = run.model:train(), parallel = run.sharded,
      comm = run.comm, optim = tide.optim.AdamW(run.params, { lr = 1e-3 }) }
   local batches = {}
   for k = 1, n do
      local ids = tide.zeros({ rows / n, seq }, { dtype = 'i64' }):add_(k)
      batches[k] = { ids = ids, labels = ids }
   end
   return function() step:run(batches) end
end

ctx:set_nthread(1)
local staged = stepper({ { 'pp', comm.size }, { 'dp', 1 } }, comm, m,
   { virtual = virtual })
local whole = comm.rank == 0 and stepper({ { 'dp', 1 } }, tide.comm.solo(), m) or nil

local function on_one()
   if not whole then return end
   ctx:set_nthread(comm.size)
   whole()
   ctx:set_nthread(1)
end

staged()
on_one()
local t = turns.compare(comm, rounds, staged, on_one)
if comm.rank == 0 then
   local allowed = virtual * m / (virtual * m + comm.size - 1)
   print(('%d ranks with %d stage(s) each, %d micro-batches: %.3f s; one rank, %d threads: %.3f s; '
      .. 'speed of the stages %.3f of it (the schedule allows %.3f)'):format(comm.size, virtual, m,
      t.a, comm.size, t.b, t.ratio, allowed))
end
