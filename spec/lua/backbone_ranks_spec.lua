-- Checkpoints of Mamba-2 and Nemotron-H as the transformers package writes them, on meshes: logits,
-- loss and every element of every gradient (numbers of spec/golden/backbones.py).

local tide = require 'tide'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local step = require 'spec.lua.folder_step'
local tmp = require 'spec.support.tmp'

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

local function check(name, mesh, work)
   local want = tide.train.checkpoint.tensors(root .. name .. '/expected.safetensors')
   local losses, logits, grads = step(folder_of(name, work), mesh, want.ids, want.labels, work)
   for _, loss in ipairs(losses) do assert.near(want.loss:item(), loss, 2e-5 * want.loss:item()) end
   local error_ = off(logits, want.logits)
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
         it(('has the numbers of transformers: %s, %s'):format(name, what), function()
            tmp.with(function(work) check(name, mesh, work) end)
         end)
      end
   end
end)
