-- train/checkpoint: complete or not there; damage is found before anything is loaded.

local tide = require 'tide'
local fs = require 'tide.util.fs'
local tmp = require 'spec.support.tmp'
local files = require 'spec.support.files'
local raised = require 'spec.support.raised'

local read, write = files.read, files.write

local checkpoint, state = tide.train.checkpoint, tide.train.state

local function new_run(step)
   local model = tide.nn.Linear(4, 3, { seed = 1 })
   model.config = { vocab_size = 4 }
   local optim = tide.optim.AdamW(model, { lr = 1e-2 })
   model(tide.ones { 2, 4 }):sum():backward()
   optim:step()
   return { model = model, optim = optim, step = step, ctx = tide.default(),
            recipe = { lr = 0.01, nested = { name = 'x' } } }
end

local function save(dir, step, opts)
   return checkpoint.save(dir, state.collect(new_run(step)), opts)
end

describe('the folder of a run', function()
   it('is told apart and cleared, other files stay', function()
      tmp.with(function(dir)
         assert.is_nil(checkpoint.step_in(dir .. '/none'))
         checkpoint.clear(dir .. '/none')
         local run = new_run(7)
         run.recipe = { lr = 1, mesh = { dp = 2 } }
         checkpoint.save(dir, state.collect(run))
         write(dir .. '/metrics.jsonl', '{}')
         write(dir .. '/notes.txt', 'mine')
         assert.equal(7, checkpoint.step_in(dir))
         assert.same(run.recipe, checkpoint.recipe(dir))
         checkpoint.clear(dir)
         assert.is_nil(checkpoint.step_in(dir))
         assert.same({ 'notes.txt' }, tide.util.fs.list('spec', dir))
      end)
   end)
end)

describe('a checkpoint', function()
   it('brings everything back', function()
      tmp.with(function(dir)
         local run = new_run(7)
         tide.default():seed(11)
         tide.randn { 5 }
         local rng = tide.default():rng_state()
         local folder = checkpoint.save(dir .. '/out', state.collect(run))
         assert.equal(dir .. '/out/step-00000007', folder)
         assert.equal('step-00000007\n', read(dir .. '/out/LATEST'))
         tide.default():seed(0)
         local other = { model = tide.nn.Linear(4, 3, { seed = 2 }), ctx = tide.default() }
         other.optim = tide.optim.AdamW(other.model, { lr = 1e-2 })
         local saved = checkpoint.load(dir .. '/out')
         assert.equal(7, state.restore(other, saved))
         assert.is_true(other.model.weight:equal(run.model.weight))
         assert.is_true(other.optim.state.weight.v:equal(run.optim.state.weight.v))
         assert.equal(1, other.optim.steps)
         assert.same(rng, tide.default():rng_state())
         assert.equal('x', saved.plain.recipe.nested.name)
         assert.same(saved.plain, checkpoint.load(folder).plain)
      end)
   end)

   it('brings back random numbers where the run names no context', function()
      tmp.with(function(dir)
         local run = new_run(1)
         run.ctx = nil
         tide.default():seed(5)
         tide.rand { 3 }
         checkpoint.save(dir, state.collect(run))
         local want = tide.rand { 4 }
         tide.default():seed(9)
         state.restore(run, checkpoint.load(dir))
         assert.is_true(want:equal(tide.rand { 4 }))
      end)
   end)

   it('has weights alone when asked', function()
      tmp.with(function(dir)
         save(dir, 1)
         local saved = checkpoint.load(dir, { model_only = true })
         assert.is_nil(saved.optim)
         assert.same({ 3, 4 }, saved.model.weight.shape)
      end)
   end)

   it('keeps the newest few', function()
      tmp.with(function(dir)
         for s = 1, 5 do save(dir, s, { keep = 2 }) end
         assert.same({ 'step-00000004', 'step-00000005' }, checkpoint.list(dir))
         save(dir, 5, { keep = 2 })
         assert.same({ 'step-00000004', 'step-00000005' }, checkpoint.list(dir))
      end)
   end)

   it('that is damaged anywhere is refused', function()
      tmp.with(function(dir)
         local folder = save(dir, 1)
         for _, name in ipairs(fs.list('spec', folder)) do
            local path = folder .. '/' .. name
            local good = read(path)
            if name ~= 'manifest.json' then
               local middle = math.floor(#good / 2)
               local flipped = good:sub(1, middle)
                  .. string.char((good:byte(middle + 1) + 1) % 256) .. good:sub(middle + 2)
               write(path, flipped)
               assert.equal('E_FORMAT', raised(checkpoint.load, dir).code)
            end
            write(path, good:sub(1, #good - 3))
            local e = raised(checkpoint.load, dir)
            assert.equal('E_FORMAT', e.code)
            assert.matches(name, e.message, 1, true)
            write(path, '')
            assert.equal('E_FORMAT', raised(checkpoint.load, dir).code)
            os.remove(path)
            local code = raised(checkpoint.load, dir).code
            assert.is_true(code == 'E_FORMAT' or code == 'E_IO')
            write(path, good)
         end
         checkpoint.load(dir)
      end)
   end)

   it('with a manifest that leads elsewhere is refused', function()
      tmp.with(function(dir)
         local folder = save(dir, 1)
         local path = folder .. '/manifest.json'
         local good = read(path)
         write(path, (good:gsub('state%.json', '../LATEST')))
         assert.matches('bad entry', raised(checkpoint.load, dir).message, 1, true)
         write(path, (good:gsub('"version":1', '"version":9')))
         assert.matches('version', raised(checkpoint.load, dir).message, 1, true)
         write(path, '[]')
         raised(checkpoint.load, dir)
         write(dir .. '/LATEST', '../../etc\n')
         assert.equal('E_FORMAT', raised(checkpoint.load, dir).code)
         write(dir .. '/LATEST', 'step-00000009\n')
         assert.matches('no manifest.json', raised(checkpoint.load, dir).message, 1, true)
      end)
   end)

   it('that is not there is an error', function()
      tmp.with(function(dir)
         assert.matches('no checkpoint', raised(checkpoint.load, dir).message, 1, true)
         assert.equal('E_IO', raised(checkpoint.load, dir .. '/none').code)
         assert.equal('E_ARG', raised(checkpoint.load, 3).code)
      end)
   end)
end)

describe('a save that fails', function()
   -- Lets the n-th call of any primitive that writes fail, for n = 1, 2, ... until none is left.
   it('leaves the earlier checkpoint in place, whatever step fails', function()
      tmp.with(function(dir)
         save(dir, 1)
         local real = fs.io()
         local names = { 'safetensors_save', 'write_file_atomic', 'fsync_file', 'fsync_dir',
                         'rename', 'xxh64_file' }
         local failures, at = 0, 0
         repeat
            at = at + 1
            local left, hit = at, false
            local broken = setmetatable({}, { __index = real })
            for _, name in ipairs(names) do
               broken[name] = function(...)
                  left = left - 1
                  if left == 0 then
                     hit = true
                     error('injected: ' .. name, 0)
                  end
                  return real[name](...)
               end
            end
            fs.use(broken)
            local ok = pcall(save, dir, 2)
            fs.use(real)
            if hit then
               assert.is_false(ok)
               failures = failures + 1
               local saved = checkpoint.load(dir)
               assert.is_true(saved.plain.step == 1 or saved.plain.step == 2)
               for _, name in ipairs(fs.list('spec', dir)) do
                  assert.is_nil(name:match '^%.staging', name)
               end
            end
         until not hit
         assert.is_true(failures >= 10)
         assert.equal(2, checkpoint.load(dir).plain.step)
      end)
   end)

   it('says where it could not write', function()
      local e = raised(save, '/proc/nowhere', 1)
      assert.equal('E_IO', e.code)
      assert.matches('/proc/nowhere', e.message, 1, true)
   end)
end)
