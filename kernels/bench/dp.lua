-- What communication costs a training step: `tide run -n 2 -t 1 kernels/bench/dp.lua`, or under
-- mpirun.
--
-- On the same ranks, with equal models and the same data, rounds of steps with the
-- world's communicator and with one of a rank alone take turns, a barrier between; so both meet the
-- same machine. Printed: seconds a step and the median of the ratios.

local tide = require 'tide'
local step = require 'tide.train.step'
local turns = require 'kernels.bench.turns'

local comm = tide.comm.world()
local rounds, steps = tonumber((...)) or 15, 4
local batch, seq = 4, 256

local function batches()
   local ids, labels = {}, {}
   for b = 1, batch do
      ids[b], labels[b] = {}, {}
      for t = 1, seq do
         ids[b][t] = (b * 31 + t * 7 + comm.rank) % 256
         labels[b][t] = (b * 31 + t * 7 + 7 + comm.rank) % 256
      end
   end
   return { { ids = tide.tensor(ids, { dtype = 'i64' }),
              labels = tide.tensor(labels, { dtype = 'i64' }), count = batch * seq } }
end

local data = batches()

-- What makes steps of a model of its own, over the ranks of `with`; how many parameters it has.
local function trainer(with)
   local model = tide.model.llama({ vocab_size = 256, hidden_size = 256, num_hidden_layers = 4,
      num_attention_heads = 4, num_key_value_heads = 4, max_position_embeddings = seq },
      { seed = 1 })
   local s = step.new { model = model, optim = tide.optim.AdamW(model, { lr = 1e-4 }), comm = with,
      clip = 1 }
   return function()
      for _ = 1, steps do s:run(data) end
   end, model:num_parameters()
end

local together, nparam = trainer(comm)
local alone = trainer(tide.comm.solo())
together()
alone()
local t = turns.compare(comm, rounds, alone, together)
if comm.rank == 0 then
   print(('data parallel, %d ranks (%s), %.1f M parameters: %.1f ms a step, %.1f ms without '
      .. 'communication, cost %+.1f %%'):format(comm.size, comm.transport, nparam / 1e6,
      t.b / steps * 1e3, t.a / steps * 1e3, (t.ratio - 1) * 100))
end
