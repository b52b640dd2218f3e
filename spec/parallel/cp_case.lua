-- Training over a context axis beside the same run on one rank, for the specs: case.train(rank, n,
-- c) on every rank of c.sizes. c: family (llama) and config of the model, sizes (of the mesh),
-- attach (options of cp.attach), shard (a strategy of fully_shard), sequence (tensor parallel with
-- the sequence cut), recompute, packed, accum, steps, rows, seq, clip, delay (seconds at most
-- before each collective).

local case = {}

case.config = { vocab_size = 29, hidden_size = 24, num_hidden_layers = 2, num_attention_heads = 4,
   num_key_value_heads = 2, head_dim = 4, intermediate_size = 40 }

-- 3,000 tokens that can be learnt, and the cumulative lengths of uneven documents.
local function data(t)
   local text, cu = {}, { 0 }
   for i = 1, 3000 do text[i] = string.char((i * i + math.floor(i / 7)) % 29, 0) end
   while cu[#cu] < 3000 do cu[#cu + 1] = math.min(3000, cu[#cu] + (#cu * 17) % 41 + 1) end
   return t.data.tokens.memory(table.concat(text), 2), cu
end

local function sampler(t, c, source, cu, place, size)
   local o = { seq = c.seq or 24, batch = c.rows or 4, seed = 2, rank = place, size = size }
   if c.packed then
      o.cu, o.val_cu = cu, cu
      return t.data.packed.new(o)
   end
   o.count = source.count
   return t.data.sampler.new(o)
end

local function run_over(t, c, mesh, model, opts)
   local tp, data_axis = mesh:find 'tp', mesh:find 'dp' or mesh:find 'dp_shard'
   if tp then t.parallel.tensor_parallel(model, tp, { sequence_parallel = c.sequence }) end
   t.parallel.recompute(model, c.recompute)
   local attach = { axis = mesh:axis 'cp' }
   for k, v in require 'tide.util.each' (c.attach or {}) do attach[k] = v end
   opts.handle = t.parallel.cp.attach(model, attach)
   opts.comm, opts.place, opts.size = mesh:axis('cp').comm, 0, 1
   if data_axis then
      opts.comm = mesh:flatten({ data_axis.name, 'cp' }).comm
      opts.place, opts.size = data_axis.rank, data_axis.size
   end
   if c.shard then
      opts.parallel = t.parallel.fully_shard(model, mesh, { strategy = c.shard })
   end
end

-- The losses of all steps and the last validation loss.
local function run(t, c, mesh)
   local source, cu = data(t)
   local model = t.model[c.family or 'llama'](c.config or case.config, { seed = 5 })
   local o, losses = { comm = t.dist.solo(), place = 0, size = 1 }, {}
   if mesh then run_over(t, c, mesh, model, o) end
   local quiet = { note = function() end, finish = function() end }
   function quiet.update(_, r) losses[#losses + 1] = r.loss end
   local result = t.train.loop { model = model, parallel = o.parallel, train = source, val = source,
      optim = t.optim.AdamW(o.parallel or model, { lr = 3e-3 }), steps = c.steps,
      sampler = sampler(t, c, source, cu, o.place, o.size), accum = c.accum or 1,
      clip = c.clip or 0, comm = o.comm, progress = quiet, val_every = c.steps, val_windows = 5 }
   losses[#losses + 1] = result.val_loss
   if o.handle then o.handle:restore() end
   return losses, model
end

-- Makes every collective of this Lua state begin up to `most` seconds late, each call by its own.
local function delay(t, rank, most)
   local Comm, seed = getmetatable(t.dist.world()).__index, rank + 1
   for _, name in ipairs { 'send_recv', 'all_reduce', 'all_gather', 'reduce_scatter',
      'all_to_all' } do
      local plain = Comm[name]
      Comm[name] = function(...)
         seed = (seed * 48271) % 2147483647
         local stop = t.clock() + most * seed / 2147483647
         while t.clock() < stop do seed = seed % 2147483647 end
         return plain(...)
      end
   end
end

-- The losses over ranks, with c.delay late.
function case.losses(rank, _, c)
   local t = require 'tide'
   if c.delay then
      require('spec.parallel.cp_case').delay(t, rank, c.delay)
   end
   return (require('spec.parallel.cp_case').run(t, c, t.parallel.mesh(c.sizes)))
end
case.run, case.delay = run, delay

-- The losses of one rank.
function case.alone(_, _, c)
   return (require('spec.parallel.cp_case').run(require 'tide', c))
end

-- True, or what differs from one rank (c.want: its losses, if they are known).
function case.train(rank, _, c)
   local t = require 'tide'
   local run_ = require('spec.parallel.cp_case').run
   local got, want = run_(t, c, t.parallel.mesh(c.sizes)), c.want or run_(t, c)
   if #got ~= c.steps + 1 or #want ~= #got then return 'too few losses' end
   for i = 1, #want do
      if math.abs(got[i] / want[i] - 1) > 1e-5 or got[i] ~= got[i] then
         return ('rank %d, step %d: %.9g, one rank %.9g'):format(rank, i, got[i], want[i])
      end
   end
   return want[c.steps] < 0.98 * want[1] or 'nothing is learnt'
end

-- Losses of a run of the recipe on n ranks, those of training and validation in one list.
function case.recipe(dir, n, words)
   local seconds = require 'spec.support.limit' (300)
   local command = ('timeout %d %s/tide run -n %d -t 1 recipes/pretrain.lua --data lua/tide/nn '
      .. '--out %s/run %s --batch 4 --seq 64 --layers 2 --dim 32 --heads 4 --sample 8 '
      .. '--val-windows 8 %s >%s/log 2>&1'):format(seconds, os.getenv 'TIDE_BUILD' or 'build', n,
      dir, words:find '--resume' and '' or '--overwrite', words, dir)
   if os.execute(command) ~= 0 then
      local f = io.open(dir .. '/log')
      error(command .. '\n' .. f:read '*a')
   end
   local list = {}
   for line in io.lines(dir .. '/run/metrics.jsonl') do
      for _, name in ipairs { 'loss', 'val_loss' } do
         list[#list + 1] = tonumber(line:match('"' .. name .. '":%s*([%d.e+-]+)'))
      end
   end
   return list
end

return case
