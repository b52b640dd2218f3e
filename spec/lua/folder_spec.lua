-- train/folder: links, kills between any two calls, checkpoints set aside, runs not written over.

local tide = require 'tide'
local fs = require 'tide.util.fs'
local folder = require 'tide.train.folder'
local tmp = require 'spec.support.tmp'
local files = require 'spec.support.files'
local raised = require 'spec.support.raised'

local read, write = files.read, files.write
local checkpoint, state = tide.train.checkpoint, tide.train.state

local function save(dir, step, opts)
   local model = tide.nn.Linear(2, 2, { seed = step })
   local run = { model = model, optim = tide.optim.SGD(model, { lr = 1 }), step = step }
   return checkpoint.save(dir, state.collect(run), opts)
end

local function exists(path) return fs.exists(path) end

-- A folder of the user beside the run, and a link to it at `name` in the run.
local function linked(dir, name)
   fs.mkdirs('spec', dir .. '/archive')
   fs.mkdirs('spec', dir .. '/run')
   write(dir .. '/archive/thesis.txt', 'mine')
   fs.io().symlink(dir .. '/archive', dir .. '/run/' .. name)
end

-- Calls fn with primitives of which the n-th call that changes anything kills: it and all later
-- ones do nothing but raise. Returns whether there were so many.
local function killed_at(n, fn)
   local real, left, dead = fs.io(), n, false
   local mortal = setmetatable({}, { __index = real })
   for _, name in ipairs { 'safetensors_save', 'write_file_atomic', 'rename', 'mkdir', 'remove',
                           'fsync_file', 'fsync_dir', 'symlink' } do
      mortal[name] = function(...)
         left = left - 1
         dead = dead or left == 0
         if dead then error('killed', 0) end
         return real[name](...)
      end
   end
   fs.use(mortal)
   local ok, why = pcall(fn)
   fs.use(real)
   assert(ok or why == 'killed' or dead, why)
   return dead
end

local function names_in(dir)
   local list = fs.list('spec', dir)
   for i = #list, 1, -1 do
      if list[i] == '.lock' then table.remove(list, i) end
   end
   return list
end

describe('a link in the folder of a run', function()
   it('goes, and what it leads to stays, in retention', function()
      tmp.with(function(dir)
         linked(dir, 'step-00000000')
         write(dir .. '/archive/manifest.json', '{}')
         for s = 1, 3 do save(dir .. '/run', s, { keep = 2 }) end
         assert.equal('mine', read(dir .. '/archive/thesis.txt'))
         assert.same({ 'step-00000002', 'step-00000003' }, checkpoint.list(dir .. '/run'))
      end)
   end)

   it('the same where a checkpoint of that step is saved', function()
      tmp.with(function(dir)
         for _, name in ipairs { 'step-00000005', '.staging-step-00000005',
                                 '.old-step-00000005' } do
            linked(dir, name)
            save(dir .. '/run', 5)
            assert.equal('mine', read(dir .. '/archive/thesis.txt'), name)
            assert.equal(5, checkpoint.load(dir .. '/run').plain.step)
            assert.same({ 'LATEST', 'step-00000005' }, names_in(dir .. '/run'))
         end
      end)
   end)

   it('the same when the run is removed, or swept after a kill', function()
      tmp.with(function(dir)
         for _, name in ipairs { 'step-00000005', '.staging-step-00000005', '.old-step-00000005',
                                 '.gone-step-00000005' } do
            linked(dir, name)
            if name:find '^%.' then checkpoint.lock(dir .. '/run'):release() end
            checkpoint.clear(dir .. '/run')
            assert.equal('mine', read(dir .. '/archive/thesis.txt'), name)
            assert.same({}, names_in(dir .. '/run'))
         end
      end)
   end)

   it('may hold a checkpoint that was moved elsewhere', function()
      tmp.with(function(dir)
         save(dir .. '/run', 1)
         save(dir .. '/run', 2)
         fs.io().rename(dir .. '/run/step-00000001', dir .. '/moved')
         fs.io().symlink(dir .. '/moved', dir .. '/run/step-00000001')
         assert.equal(1, checkpoint.load(dir .. '/run/step-00000001').plain.step)
         save(dir .. '/run', 3, { keep = 2 })
         assert.equal(1, checkpoint.load(dir .. '/moved').plain.step)
      end)
   end)
end)

describe('a process that is killed', function()
   -- Whatever is named step-N is whole, and the run can be loaded.
   local function check_whole(dir, n)
      local ok, saved = pcall(checkpoint.load, dir)
      assert.is_true(ok, ('killed at call %d: %s'):format(n, tostring(saved)))
      for _, name in ipairs(fs.list('spec', dir)) do
         if name:find '^step' then checkpoint.verify(dir .. '/' .. name) end
      end
      return saved.plain.step
   end

   local function sweep(before, fn, after)
      local n = 0
      repeat
         n = n + 1
         local hit
         tmp.with(function(dir)
            before(dir)
            hit = killed_at(n, function() fn(dir) end)
            check_whole(dir, n)
            after(dir, n)
            for _, name in ipairs(fs.list('spec', dir)) do
               assert.is_nil(name:match '^%.old' or name:match '^%.gone', name)
            end
         end)
      until not hit
      return n - 1
   end

   it('in a save of a step that is there loses nothing; the next save repairs', function()
      local n = sweep(function(dir) save(dir, 1) end, function(dir) save(dir, 1) end,
         function(dir)
            save(dir, 2)
            assert.equal(1, checkpoint.load(dir .. '/step-00000001').plain.step)
         end)
      assert.is_true(n > 15)
   end)

   it('in retention leaves no half of a checkpoint under its name', function()
      sweep(function(dir)
         save(dir, 1)
         save(dir, 2)
      end, function(dir) save(dir, 3, { keep = 1 }) end, function(dir)
         checkpoint.lock(dir):release()
         save(dir, 4, { keep = 1 })
         assert.same({ 'step-00000004' }, checkpoint.list(dir))
      end)
   end)

   it('while checkpoints are set aside loses none; going on ends it', function()
      sweep(function(dir)
         for s = 1, 3 do save(dir, s) end
         write(dir .. '/metrics.jsonl', '{"step":1}\n')
      end, function(dir) folder.set_aside('spec', dir, 1) end, function(dir, n)
         local latest = checkpoint.load(dir).plain.step
         local aside = folder.set_aside('spec', dir, latest)
         if latest == 3 then                            -- nothing was moved yet
            assert.is_nil(aside, n)
            assert.equal(3, #checkpoint.list(dir))
         else
            assert.same({ 'step-00000001' }, checkpoint.list(dir))
            assert.equal(3, checkpoint.load(dir .. '/aside-1').plain.step)
            assert.same({ 'step-00000002', 'step-00000003' }, checkpoint.list(dir .. '/aside-1'))
            assert.equal('{"step":1}\n', read(dir .. '/aside-1/metrics.jsonl'))
         end
      end)
   end)
end)

describe('finding a checkpoint', function()
   it('takes one that was killed between its two renames', function()
      tmp.with(function(dir)
         save(dir, 1)
         fs.io().rename(dir .. '/step-00000001', dir .. '/.old-step-00000001')
         assert.equal(1, checkpoint.load(dir).plain.step)
         assert.equal(1, checkpoint.load(dir .. '/step-00000001').plain.step)
         checkpoint.lock(dir):release()
         assert.same({ 'step-00000001' }, checkpoint.list(dir))
      end)
   end)

   it('names those that are there, if any', function()
      tmp.with(function(dir)
         local e = raised(checkpoint.load, dir .. '/step-00000007')
         assert.matches('there is no such folder$', e.message)
         for s = 1, 2 do save(dir, s) end
         e = raised(checkpoint.load, dir .. '/step-00000007')
         assert.matches('step-00000007: there is no such folder; there are ' .. dir
            .. '/step-00000001, ' .. dir .. '/step-00000002', e.message, 1, true)
         os.remove(dir .. '/LATEST')
         e = raised(checkpoint.load, dir)
         assert.matches('LATEST is not there; name one (--resume-from); there are ' .. dir
            .. '/step-00000001', e.message, 1, true)
         assert.equal(2, checkpoint.step_in(dir))
      end)
   end)

   it('offers the one before a damaged one', function()
      tmp.with(function(dir)
         for s = 1, 3 do save(dir, s) end
         for _, name in ipairs { 'model.safetensors', 'optim.safetensors', 'state.json',
                                 'manifest.json' } do
            local path = dir .. '/step-00000003/' .. name
            local good = read(path)
            write(path, good:sub(1, -4))
            assert.matches('the checkpoint before it is ' .. dir .. '/step-00000002',
               raised(checkpoint.load, dir).message, 1, true)
            write(path, good)
         end
         checkpoint.load(dir)
         write(dir .. '/step-00000001/state.json', '')
         assert.is_nil(raised(checkpoint.load, dir .. '/step-00000001').message:find 'before it')
      end)
   end)

   it('knows no incomplete folder as a checkpoint', function()
      tmp.with(function(dir)
         save(dir, 1)
         fs.mkdirs('spec', dir .. '/step-00000009')
         assert.same({ 'step-00000001' }, checkpoint.list(dir))
         assert.equal(1, checkpoint.load(dir).plain.step)
      end)
   end)
end)

describe('a checkpoint', function()
   it('is no folder to write a run into', function()
      tmp.with(function(dir)
         local path = save(dir, 1)
         for _, fn in ipairs { checkpoint.lock, function(out) save(out, 2) end } do
            local e = raised(fn, path)
            assert.equal('E_ARG', e.code)
            assert.matches(path .. ' is a checkpoint; give the folder of a run, which is ' .. dir,
               e.message, 1, true)
         end
         assert.is_false(exists(path .. '/LATEST'))
         assert.is_false(exists(path .. '/.lock'))
      end)
   end)
end)
