-- Families of published folders over ranks: logits, and one step of plain gradient descent on a
-- mesh, which changes every parameter by the gradient that transformers has (numbers of
-- spec/golden/folders.py).

local tide = require 'tide'
local case = require 'spec.lua.folder_case'
local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'
local tmp = require 'spec.support.tmp'

local golden = dofile 'spec/golden/folders.lua'

-- A rate at which a step is the gradients: rounding of the parameters is small beside them.
local rate = 2 ^ 12

-- On a rank: the logits of all rows (not of parts of a sequence) and the loss of a step, after
-- which the model is written to `out`.
local function step_of(rank, _, dir, mesh, out, lr)
   local t = require 'tide'
   local model, run = t.model.load(dir, { mesh = mesh })
   local ids, labels = require('spec.lua.decoder_case').inputs()
   if not mesh.cp then
      local logits = model(ids):detach()
      if rank == 0 then t.util.fs.io().safetensors_save(out .. '.logits', { logits = logits }) end
   end
   local n = run.data.size
   if n > 1 then
      ids, labels = ids:narrow(1, run.data.rank + 1, 1), labels:narrow(1, run.data.rank + 1, 1)
   end
   local step = t.train.step.new { model = model:train(), parallel = run.sharded, comm = run.comm,
      optim = t.optim.SGD(run.params, { lr = lr }) }
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

local function load_cut(_, _, dir) require('tide').model.load(dir, { mesh = { tp = 2 } }) end

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

-- Families with one head of keys, which no tensor parallelism cuts.
local one_head = { gemma2_uncapped = true, llama_mqa_bias = true, olmo2_mqa = true }

-- Meshes by name.
local function meshes(name)
   local list = { ['cp 2'] = { cp = 2 } }
   if one_head[name] then
      list['dp_shard 2'] = { dp_shard = 2 }
   else
      list['dp_shard 2 x tp 2'] = { dp_shard = 2, tp = 2 }
   end
   return list
end

describe('one head of keys', function()
   it('is refused by tensor parallelism, with what to do', function()
      tmp.with(function(dir)
         tide.model.save(case.model(golden.llama_mqa_bias), dir .. '/in')
         for _, row in ipairs(ranks.try(2, load_cut, dir .. '/in')) do
            assert.matches('num_key_value_heads (1) must be divisible by the tensor parallel size '
               .. '(2); take a size that divides it, or dp_shard or cp in place of tp', row.message,
               1, true)
         end
      end)
   end)
end)

describe('a family over ranks', function()
   for _, name in ipairs(case.names(golden)) do
      for what, mesh in each(meshes(name)) do
         it(('has the numbers of transformers: %s, %s'):format(name, what), function()
            tmp.with(function(dir)
               local row, out = golden[name], dir .. '/out'
               tide.model.save(case.model(row), dir .. '/in')
               local n = (mesh.cp or mesh.dp_shard) * (mesh.tp or 1)
               local losses = ranks.run(n, step_of, dir .. '/in', mesh, out, rate)
               for _, loss in ipairs(losses) do assert.near(row.loss, loss, 2e-5 * row.loss) end
               if not mesh.cp then
                  local stored = tide.train.checkpoint.tensors(out .. '.logits')
                  case.check_logits(name, stored.logits)
               end
               local after, got = tensors(out), {}
               for key, t in each(tensors(dir .. '/in')) do
                  got[#got + 1] = { name = key, grad = ((t - after[key]) / rate) }
               end
               case.check_grads(name, got)
            end)
         end)
      end
   end
end)
