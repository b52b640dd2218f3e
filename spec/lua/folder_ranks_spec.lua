-- Families of published folders over ranks: one step of plain gradient descent on a mesh changes
-- every parameter by the gradient that transformers has (numbers of spec/golden/folders.py).

local tide = require 'tide'
local case = require 'spec.lua.folder_case'
local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'
local tmp = require 'spec.support.tmp'

local golden = dofile 'spec/golden/folders.lua'

-- One of each family, and each kind of positions that depends on more than one token.
local names = { 'llama', 'qwen3_bias', 'llama_dynamic', 'llama_yarn', 'llama_longrope',
   'ministral', 'qwen2', 'qwen3', 'phi4_partial', 'gemma2', 'gemma3', 'granite', 'olmo2',
   'smollm3_sliding', 'bamba', 'bamba_bias', 'gpt2',
   'gpt2_untied' }

-- On a rank: the loss of a step, after which the model is written to `out`.
local function step_of(_, _, dir, mesh, out)
   local t = require 'tide'
   local inputs = require('spec.lua.decoder_case').inputs
   local model, run = t.model.load(dir, { mesh = mesh, dtype = 'f64' })
   local ids, labels = inputs()
   local n = run.data.size
   if n > 1 then
      ids, labels = ids:narrow(1, run.data.rank + 1, 1), labels:narrow(1, run.data.rank + 1, 1)
   end
   local step = t.train.step.new { model = model:train(), parallel = run.sharded, comm = run.comm,
      optim = t.optim.SGD(run.params, { lr = 1 }) }
   local loss = step:run({ { ids = ids, labels = labels } }).loss
   t.model.save(run.sharded or model, out)
   return loss
end

-- On a rank: a forward of a GPT-2 whose stream is cut along the sequence.
local function cut_stream(_, _, dir)
   local t = require 'tide'
   local inputs = require('spec.lua.decoder_case').inputs
   local model = t.model.load(dir, { mesh = { tp = 2 },
      plan = { tp = { sequence_parallel = true } } })
   model((inputs()))
end

local function tensors(dir) return tide.train.checkpoint.tensors(dir .. '/model.safetensors') end

describe('learned positions', function()
   it('refuse sequence parallelism', function()
      tmp.with(function(dir)
         tide.model.save(case.model(golden.gpt2), dir .. '/in')
         for _, row in ipairs(ranks.try(2, cut_stream, dir .. '/in')) do
            assert.matches('sequence_parallel is not supported', row.message, 1, true)
         end
      end)
   end)
end)

describe('a family over ranks', function()
   for _, name in ipairs(names) do
      for what, mesh in each { ['dp_shard 2 x tp 2'] = { dp_shard = 2, tp = 2 },
         ['cp 2'] = { cp = 2 } } do
         it(('has the loss and gradients of transformers: %s, %s'):format(name, what), function()
            tmp.with(function(dir)
               local row = golden[name]
               tide.model.save(case.model(row, { dtype = 'f64' }), dir .. '/in')
               local n = mesh.cp or 4
               local losses = ranks.run(n, step_of, dir .. '/in', mesh, dir .. '/out')
               for _, loss in ipairs(losses) do assert.near(row.loss, loss, 2e-5) end
               local before, after, got = tensors(dir .. '/in'), tensors(dir .. '/out'), {}
               for key, t in each(before) do
                  got[#got + 1] = { name = key, norm = (t - after[key]):norm():item() }
               end
               case.check({ logits = {}, loss = row.loss, grads = row.grads },
                  { logits = {}, loss = losses[1], grads = got }, 2e-5)
            end)
         end)
      end
   end
end)
