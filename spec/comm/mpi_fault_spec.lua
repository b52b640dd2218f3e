-- comm_mpi when ranks do not do the same: calls that differ, timeouts, aborts, faults. Each job is
-- spec/comm/mpi_case.lua.
-- Mostly waits.

local mpi = require 'spec.comm.mpi_run'

local it_mpi = mpi.cases(it, pending)

local ok, count, script = mpi.ok, mpi.count, mpi.script

describe('comm_mpi', function()
   for _, n in ipairs { 2, 3 } do
      it_mpi(('finds calls that differ on %d processes'):format(n), function()
         assert.equal(n, count(ok(n, 'mismatch'), ('%d mismatches'):format(11 * n)))
      end)

      it_mpi(('goes on in the process after a timeout on %d processes'):format(n), function()
         assert.equal(n, count(ok(n, 'caught'), 'goes on'))
      end)
   end

   it_mpi('ends calls of two communicators that two processes make in another order', function()
      assert.equal(2, count(ok(2, 'crossed'), 'crossed calls ended'))
   end)

   it_mpi('answers a double interrupt once', function()
      assert.equal(2, count(ok(2, 'interrupt'), 'went on'))
   end)

   it_mpi('tells the others of an abort', function()
      assert.equal(2, count(ok(3, 'abort'), 'told'))
   end)
end)

describe('a rank that', function()
   -- Output of a job of 3 in which rank 1 fails after its first call. The timeout is longer than
   -- the job may take: a rank that waited for it would end with 124.
   local function fails(kind)
      local out, status = mpi.job(3, script .. 'fault ' .. kind)
      assert.is_true(status ~= 0 and status ~= 124, kind .. ': ' .. status .. '\n' .. out)
      assert.equal(0, count(out, 'not reached'), out)
      return out, status
   end

   it_mpi('raises ends the job with its message, once', function()
      local out = fails 'error'
      assert.equal(1, count(out, '[r1] tide: rank 1 failed: '), out)
      assert.equal(1, count(out, 'planned failure'), out)
   end)

   it_mpi('exits with a code ends the job with it', function()
      local out, status = fails 'exit'
      assert.equal(3, status)
      assert.equal(1, count(out, '[r1] tide: rank 1 ended the run with os.exit(3)'), out)
   end)

   it_mpi('returns early is named', function()
      local out = fails 'leave'
      assert.is_true(count(out, "rank 1 has left 'world' after #1 all_reduce(sum, f32") > 0, out)
      assert.is_true(count(out, 'E_PEER') > 0, out)
   end)

   it_mpi('fails like all others speaks for them', function()
      local out, status = mpi.job(4, script .. 'all')
      assert.equal(1, status, out)
      assert.equal(1, count(out, 'planned failure of all'), out)
      assert.equal(1, count(out, '[r0] tide: rank 0 failed: '), out)
   end)

   it_mpi('hangs does not keep those that end well', function()
      local out, status = mpi.job(2, script .. 'hung')
      assert.equal(1, status, out)
      assert.equal(1, count(out, 'E_TIMEOUT'), out)
      assert.equal(1, count(out, 'not all ranks have come to the end'), out)
   end)

   it_mpi('is killed ends the job, with a line even if mpirun is quiet', function()
      local out = fails 'kill'
      assert.equal(1, count(out, '[r0] tide: the launcher ends this rank'), out)
   end)

   it_mpi('is stopped is named after the timeout, with its last call', function()
      local out = fails 'stop'
      assert.is_true(count(out, 'waited 2 s in #2 all_reduce') > 0, out)
      assert.is_true(count(out, 'rank 1 has not arrived; its last call here was #1') > 0, out)
   end)

   it_mpi('loops for ever is named too', function()
      assert.is_true(count(fails 'loop', 'rank 1 has not arrived') > 0)
   end)
end)
