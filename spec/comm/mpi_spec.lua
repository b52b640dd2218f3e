-- comm_mpi: the case table on processes, the same bits as threads. Needs mpirun and libmpi; each
-- job is spec/comm/mpi_case.lua. Calls that differ and faults: mpi_fault_spec.lua.

local mpi = require 'spec.comm.mpi_run'

local it_mpi = mpi.cases(it, pending)

local ok, count, script = mpi.ok, mpi.count, mpi.script

-- The same with MPICH, where its launcher is: another binary interface behind the same names.
local _, no_mpich = mpi.shell 'mpirun.mpich -np 2 true'
local it_mpich = no_mpich == 0 and it or function(text) pending(text .. ' (no mpirun.mpich)') end

-- Some bytes of its own are never freed, which a sanitized build would tell of.
local function mpich(n, words)
   local out, status = mpi.shell(('env ASAN_OPTIONS=detect_leaks=0 mpirun.mpich -np %d %s run %s')
      :format(n, mpi.program, script .. words))
   assert.equal(0, status, out)
   return out
end

describe('comm_mpi', function()
   for _, n in ipairs { 3, 4 } do            -- on 2: without comparing calls, below
      it_mpi(('moves and reduces every dtype and count on %d processes'):format(n), function()
         assert.equal(n, count(ok(n, 'table'), 'mpi: 896 cases'))
      end)

      it_mpi(('gives the bits of as many threads on %d processes'):format(n), function()
         local threads = mpi.threads(n, script .. 'bits'):match 'bits %x+'
         assert.is_string(threads)
         assert.equal(threads, ok(n, 'bits'):match 'bits %x+')
      end)
   end

   it_mpi('works without comparing calls', function()
      assert.equal(2, count(ok(2, 'table unchecked'), 'mpi: 896 cases'))
   end)

   it_mpi('moves more than a chunk', function() assert.equal(3, count(ok(3, 'large'), 'fine')) end)

   it_mpi('splits, runs asynchronous calls, carries objects', function()
      assert.equal(3, count(ok(3, 'split'), 'split fine'))
   end)

   it_mpi('makes and closes worlds', function()
      assert.equal(2, count(ok(2, 'cycles'), 'cycles fine'))
   end)

   it_mpi('leaves the processors to others while it waits', function()
      assert.equal(4, count(ok(4, 'idle'), 'idle fine'))
   end)

   it_mpich('works on MPICH', function()
      assert.equal(3, count(mpich(3, 'table'), 'mpi: 896 cases'))
      assert.equal(3, count(mpich(3, 'large'), 'fine'))
      assert.equal(3, count(mpich(3, 'split'), 'split fine'))
      assert.equal(2, count(mpich(2, 'cycles'), 'cycles fine'))
      assert.equal(mpi.threads(3, script .. 'bits'):match 'bits %x+',
         mpich(3, 'bits'):match 'bits %x+')
   end)
end)
