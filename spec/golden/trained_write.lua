-- Trains the models of golden/folders.lua and golden/backbone for three steps on two shards by two
-- parts of tensor parallelism (one head of keys: two shards), and writes each as a published folder
-- in three ways, NAME.save, NAME.export and NAME.consolidate, with the logits that tide computes:
--
--    luajit spec/golden/trained_write.lua DIR
--
-- Then `python spec/golden/folders.py DIR` compares them with those of transformers.

local tide = require 'tide'
local case = require 'spec.lua.folder_case'
local fs = require 'tide.util.fs'
local inputs = require('spec.lua.decoder_case').inputs
local ranks = require 'spec.support.ranks'

local dir = assert(arg[1], 'give the folder to write to')

-- On a rank: three steps; the model as a folder `out`.save and a checkpoint in `run`.
local function train(_, _, from, mesh, out, rows, folder)
   local t = require 'tide'
   local model, run = t.model.load(from, { mesh = mesh })
   local ids = t.tensor({ rows[run.data.rank + 1] }, { dtype = 'i64' })
   local labels = t.nn.loss.shift(ids)
   local step = t.train.step.new { model = model:train(), parallel = run.sharded, comm = run.comm,
      optim = t.optim.AdamW(run.params, { lr = 1e-2 }) }
   for _ = 1, 3 do step:run { { ids = ids, labels = labels } } end
   t.model.save(run.sharded, out .. '.save', { overwrite = true })
   t.train.checkpoint.save(folder, require('tide.train.state').weights(run.sharded))
end

-- The rows of ids of golden/folders.py, for a vocabulary of this size.
local function rows_of(vocab)
   local rows = (inputs()):tolist()
   for _, row in ipairs(rows) do
      for i, id in ipairs(row) do row[i] = tonumber(id) % vocab end
   end
   return rows
end

-- Writes the logits of a folder beside its weights.
local function logits(out, rows)
   local model, list = tide.model.load(out), {}
   local y = model(tide.tensor(rows, { dtype = 'i64' }))
   for _, v in ipairs(y:detach():to('f64'):reshape { -1 }:tolist()) do
      list[#list + 1] = ('%.9g'):format(v)
   end
   fs.write('trained_write', fs.join(out, 'logits.txt'), table.concat(list, '\n'))
end

local function write(name, from, config)
   local out, run = fs.join(dir, name), fs.join(dir, '.run-' .. name)
   local heads, rows = config.num_key_value_heads, rows_of(config.vocab_size)
   local mesh = { dp_shard = 2, tp = heads ~= 1 and 2 or nil }
   fs.mkdirs('trained_write', run)
   ranks.run(heads ~= 1 and 4 or 2, train, from, mesh, out, rows, run)
   tide.model.export(run, out .. '.export', { overwrite = true })
   tide.train.checkpoint.consolidate(run, out .. '.consolidate')
   for _, way in ipairs { 'save', 'export', 'consolidate' } do
      logits(out .. '.' .. way, rows)
   end
end

local golden = dofile 'spec/golden/folders.lua'
for _, name in ipairs(case.names(golden)) do
   local from = fs.join(dir, '.in-' .. name)
   tide.model.save(case.model(golden[name]), from, { overwrite = true })
   write(name, from, (case.config(golden[name])))
end
for _, name in ipairs(fs.list('trained_write', 'spec/golden/backbone')) do
   local from = 'spec/golden/backbone/' .. name
   write(name, from, tide.json.decode(fs.read('trained_write', from .. '/config.json'),
      { nonfinite = true }))
end
