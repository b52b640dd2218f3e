-- Sharded training against PyTorch's fully_shard: `tide run kernels/bench/fsdp.lua [rounds
-- [python]]`.
--
-- Two ranks of one thread each train the same model from the same weights on the same
-- rows, ours as threads of this process, the peer's as two processes over Gloo (peer_fsdp.py), in
-- turns; while one runs the other waits. Printed: medians of tokens a second, the median of the
-- ratios, and how far the losses of the first steps are apart, which must be rounding.

local child = require 'kernels.bench.child'
local json = require 'tide.ffi.json'
local median = require('kernels.bench.stats').median
local turns = require 'kernels.bench.turns'

local steps = 8
local config = {
   vocab_size = 4096, hidden_size = 256, num_hidden_layers = 4, num_attention_heads = 8,
   intermediate_size = 704, rms_norm_eps = 1e-6, rope_theta = 10000, batch = 4, seq = 256,
   lr = 1e-4,
}

-- On a rank: the median seconds of a step and the losses; with `save`, writes the first weights
-- there and trains nothing.
local function body(_, _, c, n, save)
   local tide = require 'tide'
   local model = {}
   for k, v in require 'tide.util.each' (c) do model[k] = v end
   model.batch, model.seq, model.lr, model.max_position_embeddings = nil, nil, nil, c.seq
   local run = tide.parallel.plan({ family = 'llama', config = model },
      { dp_shard = tide.comm.world().size }, { fsdp = {} }):materialise { seed = 1 }
   if save then
      return tide.util.fs.io().safetensors_save(save, run.sharded:full_state_dict(), {}) or true
   end
   local world, rows = tide.comm.world(), c.batch / run.data.size
   local step = tide.train.step.new { model = run.model, parallel = run.sharded, clip = 1,
      optim = tide.optim.AdamW(run.params, { lr = c.lr }) }
   local function rows_of(shift)
      local list = {}
      for i = 1, rows do
         list[i] = {}
         for t = 1, c.seq do
            list[i][t] = (((run.data.rank * rows + i - 1) * c.seq + t - 1 + shift) * 7919) % 4093
         end
      end
      return tide.tensor(list, { dtype = 'i64' })
   end
   local data = { { ids = rows_of(0), labels = rows_of(1), count = rows * c.seq } }
   local times, losses = {}, {}
   for i = 1, n do
      world:barrier()
      local begin = tide.clock()
      losses[i] = step:run(data).loss
      times[i] = tide.clock() - begin
   end
   return { require('kernels.bench.stats').median(times), losses }
end

local function main(rounds, python, folder)
   local weights, settings = folder .. '/weights.safetensors', folder .. '/config.json'
   local f = assert(io.open(settings, 'w'))
   f:write(json.encode(config))
   f:close()
   turns.on(1, body, config, 0, weights)
   local peer = child.start(('%s kernels/bench/peer_fsdp.py %s %s'):format(python,
      child.quote(weights), child.quote(settings)))
   local ours, theirs, ratio, apart = {}, {}, {}, 0
   for i = 1, rounds do
      local a = turns.on(2, body, config, steps)
      local b = peer:numbers(tostring(steps))
      if i == 1 then                       -- later rounds of the peer go on from there
         for k, loss in ipairs(a[2]) do
            apart = math.max(apart, math.abs(b[k + 1] / loss - 1))
         end
      end
      local tokens = config.batch * config.seq
      ours[i], theirs[i], ratio[i] = tokens / a[1], tokens / b[1], b[1] / a[1]
   end
   peer:close()
   print(('fully sharded, 2 ranks: %.0f tokens/s; PyTorch fully_shard over Gloo: %.0f; ratio %.2f; '
      .. 'losses of %d steps apart by %.1e'):format(median(ours), median(theirs), median(ratio),
      steps, apart))
   if apart > 1e-4 then error('the losses are not those of the peer', 0) end
end

local folder = os.tmpname()
os.remove(folder)
assert(os.execute('mkdir ' .. child.quote(folder)) == 0)
local ok, problem = pcall(main, tonumber((...)) or 9, select(2, ...) or 'python3', folder)
os.execute('rm -rf ' .. child.quote(folder))
if not ok then error(problem, 0) end
