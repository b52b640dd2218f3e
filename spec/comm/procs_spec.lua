-- `tide run --procs N`: ranks as processes that mpirun starts.

local mpi = require 'spec.comm.mpi_run'

local run = mpi.program .. ' run '

-- Output and exit status of the program with a recipe of one line.
local function with(code, options, after)
   local path = os.tmpname()
   local f = assert(io.open(path, 'w'))
   f:write(code)
   f:close()
   local out, status = mpi.shell(('%s %s %s %s'):format(mpi.program, options, path, after or ''))
   os.remove(path)
   return out, status
end

local it_mpi = mpi.cases(it, pending)

describe('tide run --procs', function()
   it_mpi('starts a process a rank, with the words of the recipe', function()
      local out, status = with([[
         local tide = require 'tide'
         local world = tide.comm.world()
         local x = tide.full({ 3 }, world.rank + 1)
         world:all_reduce(x)
         local pid = io.open('/proc/self/stat'):read '*n'
         local pids = world:all_gather_object(pid)
         print(world.size, world.transport, x:sum():item(), pids[1] ~= pids[2], unpack(arg))
      ]], 'run -t 1 --procs 2', '--procs 7 last')
      assert.equal(0, status, out)
      for r = 0, 1 do
         assert.is_truthy(out:find(('[r%d] 2\tmpi\t9\ttrue\t--procs\t7\tlast'):format(r), 1, true),
            out)
      end
   end)

   it_mpi('has the exit code of the job where its parent ignores SIGCHLD', function()
      local out, status = mpi.shell(('env --ignore-signal=CHLD %s --procs 1 %s'):format(run,
         'spec/comm/mpi_case.lua probe'))
      assert.equal(0, status, out)
   end)

   it_mpi('trains as threads do', function()
      local function losses(how)
         local dir = os.tmpname()
         os.remove(dir)
         local out, status = mpi.shell(('%s run %s -t 1 recipes/pretrain.lua --data core/base '
            .. '--steps 3 --batch 4 --seq 16 --layers 1 --dim 16 --heads 2 --val-windows 1 '
            .. '--sample 0 --log-every 1 --out %s'):format(mpi.program, how, dir))
         os.execute('rm -rf ' .. dir)
         assert.equal(0, status, out)
         local list = {}
         for loss in out:gmatch 'loss (%d+%.%d+)' do list[#list + 1] = loss end
         assert.is_true(#list >= 3, out)
         return list
      end
      assert.same(losses '-n 2', losses '--procs 2')
   end)

   it_mpi('ends with the code of a rank that fails, and shows its error', function()
      local out, status = with("if require('tide').comm.world().rank == 1 then error 'no rain' end "
         .. 'require("tide").comm.world():barrier()', 'run -t 1 --procs 2')
      assert.equal(1, status, out)
      assert.is_truthy(out:find('no rain', 1, true), out)
   end)

   it_mpi('ends with 128 + signal, and its processes with it', function()
      local path = os.tmpname()
      os.remove(path)
      local code = ([[local tide = require 'tide'
         if tide.comm.world().rank == 0 then io.open('%s', 'w'):close() end
         while not tide.interrupted() do tide.ones { 4 } end]]):format(path)
      local out, status = with(code, 'run -t 1 --procs 2', ('& p=$!; for i in $(seq 100); do '
         .. 'test -e %s && break; sleep 0.1; done; kill -TERM $p; wait $p'):format(path))
      os.remove(path)
      assert.equal(143, status, out)
   end)

   local function names_late(how, stop)
      local code = "local w = require('tide').comm.world() w:barrier() "
         .. 'if w.rank == 1 then os.execute "%s" end w:barrier()'
      local out, status = with(code:format(stop), 'run -t 1 --timeout 1 ' .. how)
      assert.equal(1, status, out)
      assert.is_truthy(out:find('rank 0 waited 1 s in #2 barrier', 1, true), out)
      assert.is_truthy(out:find('rank 1 has not arrived; its last call here was #1', 1, true), out)
   end

   it('with --timeout names a late rank (threads)', function() names_late('-n 2', 'sleep 2') end)

   it_mpi('with --timeout names a stopped rank (processes)', function()
      names_late('--procs 2', 'kill -STOP $PPID')
   end)

   it('is refused where it cannot be meant', function()
      for words, says in require 'tide.util.each' {
         ['--procs 2 -n 2'] = 'give one of them',
         ['--timeout 0'] = '--timeout needs a number of seconds in [1, 100000000]',
         ['--procs 0'] = '--procs needs a number of processes in [1, 1024]',
         ['--procs 2 --max-restarts 1'] = '--max-restarts is for ranks of one process',
      } do
         local out, status = mpi.shell(run .. words .. ' recipes/pretrain.lua')
         assert.equal(2, status)
         assert.is_truthy(out:find(says, 1, true), out)
      end
      local out, status = mpi.shell('env RANK=0 WORLD_SIZE=2 ' .. run
         .. '--procs 2 recipes/pretrain.lua')
      assert.equal(2, status)
      assert.is_truthy(out:find('inside the job of a launcher', 1, true), out)
      out, status = mpi.shell('env PATH=/nowhere ' .. run .. '--procs 2 recipes/pretrain.lua')
      assert.equal(2, status)
      assert.is_truthy(out:find('--procs needs mpirun', 1, true), out)
   end)
end)
