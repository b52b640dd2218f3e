-- Starting ranks: one recipe under every launcher, restarts.
-- Mostly waits.

local child = require 'spec.support.child'
local tmp = require 'spec.support.tmp'
local mpi = require 'spec.comm.mpi_run'
local files = require 'spec.support.files'

local read, write = files.read, files.write

local it_mpi = mpi.cases(it, pending)

local small = '--mesh.dp 2 --steps 6 --dim 16 --heads 2 --layers 1 --seq 32 --batch 4 --warmup 2 '
   .. '--sample 0 --val-windows 2 --threads 1 '

-- Step and losses of each line of metrics.jsonl, as text.
local function losses(folder)
   local list = {}
   for line in io.lines(folder .. '/metrics.jsonl') do
      list[#list + 1] = line:match '^{("step":.-),"grad_norm"'
   end
   return list
end

local function with_data(fn)
   tmp.with(function(dir)
      write(dir .. '/text.txt', ('abcdefgh ijklmnop. '):rep(400))
      fn(dir, 'recipes/pretrain.lua --data ' .. dir .. '/text.txt ')
   end)
end

describe('one recipe', function()
   it_mpi('gives the same losses and weights on processes as on threads', function()
      with_data(function(dir, recipe)
         local out, status = mpi.threads(2, recipe .. small .. '--out ' .. dir .. '/threads')
         assert.equal(0, status, out)
         out, status = mpi.job(2, recipe .. small .. '--out ' .. dir .. '/mpi')
         assert.equal(0, status, out)
         for line in out:gmatch '[^\n]+' do assert.matches('^%[r%d%] ', line) end
         local a, b = losses(dir .. '/threads'), losses(dir .. '/mpi')
         assert.equal(6, #a)
         assert.same(a, b)
         assert.equal(read(dir .. '/threads/step-00000006/model.safetensors'),
            read(dir .. '/mpi/step-00000006/model.safetensors'))
      end)
   end)

   it_mpi('refuses threads and restarts inside a job of processes', function()
      local out, status = mpi.job(2, '-n 2 spec/comm/mpi_case.lua probe')
      assert.equal(2, status, out)
      assert.matches('inside a job of 2 processes', out, 1, true)
      out, status = mpi.job(2, '--max-restarts 1 spec/comm/mpi_case.lua probe')
      assert.equal(2, status, out)
      assert.matches('start the job again with --resume', out, 1, true)
   end)

   it('opens as many files as the system allows', function()
      tmp.with(function(dir)
         write(dir .. '/many.lua', [[
            local list = {}
            for i = 1, 200 do list[i] = assert(io.open(arg[0])) end
            print 'opened']])
         local out, status = mpi.shell(('ulimit -Sn 100; %s run %s/many.lua'):format(mpi.program,
            dir))
         assert.equal(0, status, out)
         assert.matches('opened', out, 1, true)
      end)
   end)

   it('says what is wrong with the environment', function()
      local out, status = mpi.shell('env RANK=2 WORLD_SIZE=2 ' .. mpi.program
         .. ' run spec/comm/mpi_case.lua threads')
      assert.equal(2, status, out)
      assert.matches('RANK=2, but WORLD_SIZE=2', out, 1, true)
      out, status = mpi.shell('env RANK=0 WORLD_SIZE=2 TIDE_MPI_LIBRARY=/nowhere/libmpi.so '
         .. mpi.program .. ' run spec/comm/mpi_case.lua abort')
      assert.equal(1, status, out)
      assert.matches('cannot open MPI: /nowhere/libmpi.so', out, 1, true)
   end)

   it('refuses processes that torchrun started, in one line and before MPI is opened', function()
      local out, status = mpi.shell('env RANK=0 WORLD_SIZE=2 ' .. mpi.program
         .. ' run spec/comm/mpi_case.lua abort')
      assert.equal(2, status, out)
      assert.matches('WORLD_SIZE=2, but no MPI launcher has started this process', out, 1, true)
      assert.matches('tide run -n 2', out, 1, true)
      assert.equal(1, select(2, out:gsub('\n', '\n')), out)
   end)

   it('refuses them in a program of plain luajit, at the first use of the ranks', function()
      local vars = { env = 'RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2' }
      for _, use in ipairs { 'tide.comm.world()', 'tide.comm.init()',
         'tide.train.step { model = m, optim = tide.optim.SGD(m) }' } do
         local out, status = child([[
            local tide = require 'tide'
            local m = tide.nn.Linear(2, 2)
            m.loss = function() end
            print('alone', tide.comm.init { transport = 'self' }.size)
            tide.comm.close()
         ]] .. use, vars)
         assert.equal(1, status, out)
         assert.matches('alone\t1', out)
         assert.matches('for one rank alone unset RANK and WORLD_SIZE', out, 1, true)
      end
   end)

   it_mpi('notices a world that MPI does not have', function()
      local out, status = mpi.shell('env RANK=0 WORLD_SIZE=2 FLUX_TASK_RANK=0 ' .. mpi.program
         .. ' run spec/comm/mpi_case.lua abort')
      assert.equal(1, status, out)
      assert.matches('WORLD_SIZE=2, but MPI counts 1 process', out, 1, true)
   end)

   it_mpi('runs under plain luajit, which ends MPI itself', function()
      tmp.with(function(dir)
         write(dir .. '/own.lua', [[
            package.path = 'bindings/?.lua;lua/?.lua;lua/?/init.lua;' .. package.path
            local build = os.getenv 'TIDE_BUILD' or 'build'
            package.cpath = build .. '/?.so;' .. package.cpath
            local tide = require 'tide'
            local comm = tide.comm.world()
            io.write('sum ' .. comm:all_reduce(tide.ones { 1 }):item() .. '\n')
            comm = nil
            tide.comm.shutdown()
         ]])
         local out, status = mpi.shell(mpi.mpirun .. ' -np 2 luajit ' .. dir .. '/own.lua')
         assert.equal(0, status, out)
         assert.equal('sum 2\nsum 2\n', out)
      end)
   end)
end)

describe('the exit code of a wrong command', function()
   it('is 2, with a sentence', function()
      for _, row in ipairs {
         { 'run -p', '-p needs parameters' }, { 'run -n 0 x.lua', '-n needs a number' },
         { 'run -t', '-t needs a number' }, { 'run', 'a recipe is missing' },
         { 'run --bogus', "unknown option '--bogus'" }, { 'run no.lua', "cannot read 'no.lua'" },
         { 'run -p bogus=1 recipes/pretrain.lua', "no parameter is called 'bogus'" },
         { 'run -n 2 -p bogus=1 recipes/pretrain.lua', "no parameter is called 'bogus'" },
         { 'run recipes/pretrain.lua --bogus 1', "unknown option '--bogus'" },
         { 'repl x', "repl: unexpected argument 'x'" }, { 'help a b', 'expected one topic' },
         { 'trace', 'expected one folder' }, { 'bogus', "unknown command 'bogus'" },
      } do
         local out, status = mpi.shell(mpi.program .. ' ' .. row[1])
         assert.equal(2, status, row[1] .. ': ' .. out)
         assert.matches(row[2], out, 1, true)
         assert.is_nil(out:find 'stack traceback')
      end
   end)

   it('is 2 for a device that is absent, on one rank and on several', function()
      tmp.with(function(dir)
         write(dir .. '/a.lua', [[
            local err = require 'tide.util.err'
            err.people({ 'E_DEVICE', 'E_UNSUPPORTED' }, function()
               err.raise('E_DEVICE', 'open', 'the device is absent')
            end)
         ]])
         for _, n in ipairs { 1, 2 } do
            local out, status = mpi.threads(n, dir .. '/a.lua')
            assert.equal(2, status, out)
            assert.matches('the device is absent', out, 1, true)
         end
      end)
   end)
end)

-- A recipe that trains and fails once after a checkpoint, told by a file.
local failing = [[
   local tide = require 'tide'
   local dir = ...
   local comm = tide.comm.world()
   local steps = 0
   local run = tide.train.step.new
   tide.train.step.new = function(opts)
      local s = run(opts)
      local step = s.run
      function s:run(...)
         steps = steps + 1
         local f = io.open(dir .. '/failed')
         if steps == 5 and not f and comm.rank == comm.size - 1 then
            io.open(dir .. '/failed', 'w'):close()
            error 'a fault of one step'
         end
         if f then f:close() end
         return step(self, ...)
      end
      return s
   end
   arg[0] = 'recipes/pretrain.lua'
   assert(loadfile 'recipes/pretrain.lua')(select(2, ...))
]]

local function options_of(recipe)
   return recipe:gsub('^%S+', '') .. small:gsub('dp 2', 'dp 0')
end

describe('--max-restarts', function()
   for _, n in ipairs { 1, 2 } do
      it(('goes on from the last checkpoint with %d rank%s'):format(n, n > 1 and 's' or ''),
         function()
            with_data(function(dir, recipe)
               write(dir .. '/failing.lua', failing)
               local words = options_of(recipe) .. '--save-every 2 '
               local out, status = mpi.threads(n, 'recipes/pretrain.lua' .. words .. '--out ' .. dir
                  .. '/straight')
               assert.equal(0, status, out)
               out, status = mpi.shell(('%s run -n %d --max-restarts 2 %s/failing.lua %s %s --out '
                  .. '%s/run'):format(mpi.program, n, dir, dir, words, dir))
               assert.equal(0, status, out)
               assert.matches('a fault of one step', out, 1, true)
               assert.matches('starting again (restart 1 of 2)', out, 1, true)
               assert.is_nil(out:find('restart 2 of 2', 1, true))
               assert.same(losses(dir .. '/straight'), losses(dir .. '/run'))
               assert.equal(read(dir .. '/straight/step-00000006/model.safetensors'),
                  read(dir .. '/run/step-00000006/model.safetensors'))
            end)
         end)
   end

   it('goes on from its own checkpoint where it began from a given one', function()
      with_data(function(dir, recipe)
         write(dir .. '/failing.lua', failing)
         local words = options_of(recipe) .. '--save-every 2 --keep 9 '
         local function run(text)
            local out, status = mpi.shell(('%s run --max-restarts 1 %s'):format(mpi.program, text))
            assert.equal(0, status, out)
            return out
         end
         run('recipes/pretrain.lua' .. words .. '--steps 8 --out ' .. dir .. '/run')
         local want = losses(dir .. '/run')
         for _, out in ipairs { dir .. '/run', dir .. '/fork' } do
            os.remove(dir .. '/failed')
            local text = run(('%s/failing.lua %s --resume-from %s/run/step-00000002 --steps 8 '
               .. '--out %s'):format(dir, dir, dir, out))
            assert.matches('step 7/8', text:match 'starting again.*', 1, true)
            assert.is_nil(io.open(out .. '/aside-2/LATEST'))
         end
         assert.same(want, losses(dir .. '/run'))
         assert.equal(read(dir .. '/run/step-00000008/model.safetensors'),
            read(dir .. '/fork/step-00000008/model.safetensors'))
      end)
   end)

   it('ends with the failure after the last attempt', function()
      tmp.with(function(dir)
         write(dir .. '/bad.lua', "error 'always'")
         local out, status = mpi.shell(mpi.program .. ' run -n 2 --max-restarts 2 ' .. dir
            .. '/bad.lua')
         assert.equal(1, status, out)
         assert.matches('restart 2 of 2', out, 1, true)
      end)
   end)

   it('does not take an earlier run for its own', function()
      with_data(function(dir, recipe)
         write(dir .. '/failing.lua', failing)
         local words = options_of(recipe) .. '--out ' .. dir .. '/run '
         local out, status = mpi.threads(1, 'recipes/pretrain.lua' .. words .. '--seed 9')
         assert.equal(0, status, out)
         out, status = mpi.shell(('%s run --max-restarts 1 %s/failing.lua %s %s --overwrite')
            :format(mpi.program, dir, dir, words))
         assert.equal(0, status, out)
         assert.equal(6, #losses(dir .. '/run'))
         assert.matches('step 1/6', out:match 'starting again.*', 1, true)
      end)
   end)

   it('knows its checkpoints by the name of the job', function()
      local launch = require 'tide.comm.launch'
      local host = package.loaded['tide.host']
      finally(function() package.loaded['tide.host'] = host end)
      tmp.with(function(dir)
         os.execute('mkdir ' .. dir .. '/step-00000002')
         write(dir .. '/step-00000002/state.json', '{"job":"7-1"}')
         local function from(job, restart)
            package.loaded['tide.host'] = { job = job, restart = restart }
            return launch.resume_from(dir)
         end
         assert.is_nil(from('7-1', 1))               -- no LATEST yet
         write(dir .. '/LATEST', 'step-00000002\n')
         assert.equal(dir, from('7-1', 1))
         assert.is_nil(from('7-1', 0))
         assert.is_nil(from('7-2', 1))
         assert.is_nil(from(nil, 0))
         write(dir .. '/step-00000002/state.json', '{}')
         assert.is_nil(from('7-1', 1))
      end)
   end)

   it('wants a number', function()
      local out, status = mpi.shell(mpi.program .. ' run --max-restarts x recipes/pretrain.lua')
      assert.equal(2, status, out)
      assert.matches('--max-restarts needs a number', out, 1, true)
   end)
end)

-- Rank 1 fails; rank 0 is in a loop that calls nothing of tide and ends when a file appears.
describe('the first failure of a rank', function()
   it('is shown while another rank goes on, and once', function()
      tmp.with(function(dir)
         local f = assert(io.open(dir .. '/loop.lua', 'w'))
         f:write [[
            local dir = ...
            local comm = require('tide').dist.world()
            if comm.rank == 1 then error 'planned failure' end
            while not io.open(dir .. '/go') do end
         ]]
         f:close()
         local out, status = mpi.shell(([[sh -c '%s run -n 2 %s/loop.lua %s >%s/out 2>&1 & p=$!
            for i in $(seq 2500); do sleep 0.1; grep -q planned %s/out && echo early && break; done
            touch %s/go; wait $p; echo code=$?; cat %s/out']]):format(mpi.program, dir, dir, dir,
            dir, dir, dir))
         assert.equal(0, status, out)
         assert.equal(1, mpi.count(out, 'early'), out)
         assert.equal(1, mpi.count(out, 'code=1'), out)
         assert.equal(1, mpi.count(out, 'planned failure'), out)
      end)
   end)
end)
