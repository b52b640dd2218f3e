-- Configurations as transformers writes them: logits, loss and the gradient of every parameter
-- (numbers of spec/golden/folders.py), and the way through a folder.

local tide = require 'tide'
local case = require 'spec.lua.folder_case'
local inputs = require('spec.lua.decoder_case').inputs
local tmp = require 'spec.support.tmp'

local golden = dofile 'spec/golden/folders.lua'

describe('a configuration of transformers', function()
   for _, name in ipairs(case.names(golden)) do
      it('gives its logits, loss and gradients: ' .. name, function()
         for _, dtype in ipairs { 'f64', 'f32' } do
            local ids, labels = inputs()
            local got = case.run(case.model(golden[name], { dtype = dtype }), ids, labels)
            case.check_logits(name, got.logits)
            assert.near(golden[name].loss, got.loss, 2e-5 * golden[name].loss)
            case.check_grads(name, got.grads)
         end
      end)

      it('is consolidated to a folder that loads: ' .. name, function()
         tmp.with(function(dir)
            local model = case.model(golden[name])
            local ids = inputs()
            local optim = tide.optim.SGD(model, { lr = 1 })
            tide.train.checkpoint.save(dir, tide.train.state.collect { model = model,
               optim = optim, step = 1 })
            tide.train.checkpoint.consolidate(dir, dir .. '/whole')
            local again = tide.model.load(dir .. '/whole')
            assert.equal(0, (again(ids):detach() - model(ids):detach()):abs():amax():item())
         end)
      end)

      it('goes out to a folder and in again: ' .. name, function()
         tmp.with(function(dir)
            local model, kind = case.model(golden[name])
            local ids = inputs()
            local want = model(ids):detach()
            tide.model.save(model, dir .. '/out', { max_shard = 4000 })
            local again, run = tide.model.load(dir .. '/out')
            assert.equal(kind, run.family)
            assert.equal(0, (again(ids):detach() - want):abs():amax():item())
            local half = tide.model.load(dir .. '/out', { dtype = 'bf16' })
            assert.equal('bf16', half:parameters()[1].dtype)
         end)
      end)
   end
end)
