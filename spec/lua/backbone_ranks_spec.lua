-- Checkpoints of Mamba-2 and Nemotron-H as the transformers package writes them, on meshes: logits,
-- loss and every element of every gradient (numbers of spec/golden/backbones.py).

local tide = require 'tide'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local step = require 'spec.lua.folder_step'

local root = 'spec/golden/backbone/'

local meshes = { ['dp_shard 2'] = { dp_shard = 2 }, ['tp 2'] = { tp = 2 }, ['cp 2'] = { cp = 2 },
   ['dp_shard 2 x tp 2'] = { dp_shard = 2, tp = 2 } }

-- A golden folder, or a copy of it where transformers limits the steps of scans by time_step_min
-- and tide by time_step_limit.
local function folder_of(name, work)
   local dir = root .. name
   if name ~= 'nemotron_limit' then return dir end
   local config = tide.json.decode(fs.read('spec', dir .. '/config.json'), { nonfinite = true })
   config.time_step_limit = { 0.3, math.huge }
   fs.mkdirs('spec', work .. '/in')
   fs.write('spec', work .. '/in/config.json', tide.json.encode(config, { nonfinite = 'object' }))
   fs.write('spec', work .. '/in/model.safetensors', fs.read('spec', dir .. '/model.safetensors'))
   return work .. '/in'
end

local function off(got, want)
   return (got:to 'f64' - want:to 'f64'):abs():amax():item() / want:to('f64'):abs():amax():item()
end

local function expected(name)
   return tide.train.checkpoint.tensors(root .. name .. '/expected.safetensors')
end

local function folder(work, name, mesh)
   local want = expected(name)
   return folder_of(name, work), mesh, want.ids, want.labels
end

-- The steps of this file, by the number of ranks: one start for all of them.
local steps = { [2] = step.batch(2, folder), [4] = step.batch(4, folder) }

local function check(name, got)
   local want, grads = expected(name), got.grads
   local want_loss = want.loss:item()
   for _, loss in ipairs(got.losses) do assert.near(want_loss, loss, 2e-5 * want_loss) end
   local error_ = off(got.logits, want.logits)
   assert.is_true(error_ <= 2e-5, 'logits off by ' .. error_)
   local left = -#grads
   for key in each(want) do left = left + (key:find '^grad ' and 1 or 0) end
   assert.equal(0, left, 'parameters of one side alone')
   for _, g in ipairs(grads) do
      error_ = off(g.grad, want['grad ' .. g.name])
      assert.is_true(error_ <= 1e-4, ('gradient of %s off by %g'):format(g.name, error_))
   end
end

describe('a backbone over ranks', function()
   for _, name in ipairs(fs.list('spec', root)) do
      for what, mesh in each(meshes) do
         local runs, key = steps[step.count(mesh)], ('%s, %s'):format(name, what)
         runs:add(key, name, mesh)
         it('has the numbers of transformers: ' .. key, function()
            check(name, runs:get(key))
         end)
      end
   end
end)
