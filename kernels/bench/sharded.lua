-- What spreading a model costs: `tide run kernels/bench/sharded.lua [rounds]`.
--
-- The same global batch on two threads of the machine in every way, in turns, each
-- time with ranks of its own (threads of this process); printed is the median over rounds of the
-- ratio to the first row of its group, and what a rank holds against one that holds all.

local median = require('kernels.bench.stats').median
local turns = require 'kernels.bench.turns'

-- On a rank: seconds a step (the median), bytes of parameters, gradients and optimiser.
local function body(_, _, axes, opts, steps)
   local tide = require 'tide'
   local batch, seq = 4, 256
   local plan = tide.parallel.plan({ family = 'llama', config = {
      vocab_size = 4096, hidden_size = 256, num_hidden_layers = 4, num_attention_heads = 8,
      intermediate_size = 704, max_position_embeddings = seq } }, axes, opts)
   local state = plan:price({ batch = 1, seq = 8 }).state
   local run = plan:materialise { seed = 1 }
   local world = tide.comm.world()
   local step = tide.train.step.new { model = run.model, parallel = run.sharded, comm = run.comm,
      optim = tide.optim.AdamW(run.params, { lr = 1e-4 }), clip = 1 }
   local rows = batch / run.data.size
   local ids = (tide.arange(rows * seq, { dtype = 'i64' }) * 37):clamp(0, 4000):reshape(rows, seq)
   local data, times = { { ids = ids, labels = ids, count = rows * seq } }, {}
   for i = 1, steps + 2 do
      world:barrier()
      local begin = tide.clock()
      step:run(data)
      world:barrier()
      if i > 2 then times[i - 2] = tide.clock() - begin end
   end
   return { require('kernels.bench.stats').median(times), state, batch * seq }
end

local sequence = { sequence_parallel = true }
local groups = {
   { 'plain data parallel, 2 ranks', 2, { dp = 2 }, {},
      { 'optim', 2, { dp_shard = 2 }, { fsdp = { strategy = 'optim' } } },
      { 'optim_grads', 2, { dp_shard = 2 }, { fsdp = { strategy = 'optim_grads' } } },
      { 'optim_grads_params', 2, { dp_shard = 2 }, { fsdp = {} } } },
   { 'one rank, 2 threads', 1, { dp = 1 }, {},
      { 'tp 2', 2, { tp = 2 }, {} },
      { 'tp 2, sequence parallel', 2, { tp = 2 }, { tp = sequence } },
      { 'tp 2, sequence parallel, async', 2, { tp = 2 },
         { tp = { sequence_parallel = true, async_tp = true } } } },
}

local function measure(case) return turns.on(case[2], body, case[3], case[4], 6) end

local rounds = tonumber((...)) or 9
for _, group in ipairs(groups) do
   local ratio, rate, state = {}, {}, {}
   for i = 1, rounds do
      local first = measure(group)
      for k = 4, #group do
         local r = k == 4 and first or measure(group[k])
         ratio[k], rate[k] = ratio[k] or {}, rate[k] or {}
         ratio[k][i], rate[k][i], state[k] = first[1] / r[1], r[3] / r[1], r[2] / first[2]
      end
   end
   for k = 4, #group do
      print(('%-34s %7.0f tokens/s   %.3f of the first   state %.3f'):format(
         k == 4 and group[1] or '  ' .. group[k][1], median(rate[k]), median(ratio[k]), state[k]))
   end
end
