-- What the environment of launchers means, and the world of a rank.

local env = require 'tide.comm.env'
local launch = require 'tide.comm.launch'

local function detect(vars) return env.detect(function(name) return vars[name] end) end

local function place(vars)
   local here = detect(vars)
   return here and ('%d/%d %s/%s %s'):format(here.rank, here.size, tostring(here.local_rank),
      tostring(here.local_size), here.launcher)
end

local function refused(vars, ...)
   local good, e = pcall(detect, vars)
   assert.is_false(good)
   for _, text in ipairs { ... } do assert.matches(text, tostring(e.message), 1, true) end
   assert.is_nil(e.message:find '\n')
end

describe('the environment', function()
   it('without a launcher is one process', function()
      assert.is_nil(detect {})
      assert.is_nil(detect { SLURM_JOB_ID = '7', SLURM_NTASKS = '4', SLURM_PROCID = '0' })
      for _, step in ipairs { '4294967290', '4294967291', '4294967292', 'batch' } do
         assert.is_nil(detect { SLURM_STEP_ID = step, SLURM_NTASKS = '4', SLURM_PROCID = '0' })
      end
   end)

   it('of each launcher is understood', function()
      assert.equal('1/4 1/2 RANK/WORLD_SIZE', place { RANK = '1', WORLD_SIZE = '4',
         LOCAL_RANK = '1', LOCAL_WORLD_SIZE = '2' })
      assert.equal('3/4 1/2 Open MPI', place { OMPI_COMM_WORLD_RANK = '3',
         OMPI_COMM_WORLD_SIZE = '4', OMPI_COMM_WORLD_LOCAL_RANK = '1',
         OMPI_COMM_WORLD_LOCAL_SIZE = '2' })
      assert.equal('0/2 0/2 PMI', place { PMI_RANK = '0', PMI_SIZE = '2', MPI_LOCALRANKID = '0',
         MPI_LOCALNRANKS = '2' })
      assert.equal('5/7 1/2 Slurm', place { SLURM_STEP_ID = '0', SLURM_PROCID = '5',
         SLURM_NTASKS = '99', SLURM_STEP_NUM_TASKS = '7', SLURM_LOCALID = '1',
         SLURM_STEP_TASKS_PER_NODE = '3,2(x2)', SLURM_NODEID = '2' })
      assert.equal('0/1 nil/nil Open MPI', place { OMPI_COMM_WORLD_RANK = '0',
         OMPI_COMM_WORLD_SIZE = '1' })
   end)

   it('is believed in the order RANK, Open MPI, PMI, Slurm', function()
      local vars = { RANK = '0', WORLD_SIZE = '2', OMPI_COMM_WORLD_RANK = '1',
         OMPI_COMM_WORLD_SIZE = '3', PMI_RANK = '2', PMI_SIZE = '4', SLURM_STEP_ID = '1',
         SLURM_PROCID = '3', SLURM_NTASKS = '5' }
      local order = { { 'RANK', 'WORLD_SIZE', 2 },
         { 'OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 3 }, { 'PMI_RANK', 'PMI_SIZE', 4 },
         { 'SLURM_PROCID', 'SLURM_NTASKS', 5 } }
      for _, row in ipairs(order) do
         assert.equal(row[3], detect(vars).size)
         vars[row[1]], vars[row[2]] = nil, nil
      end
      assert.is_nil(detect(vars))
   end)

   it('that contradicts itself is refused in a sentence', function()
      refused({ RANK = '4', WORLD_SIZE = '4' }, 'RANK=4', 'WORLD_SIZE=4', '0 to 3')
      refused({ RANK = '1' }, 'RANK=1', 'without WORLD_SIZE')
      refused({ PMI_SIZE = '2' }, 'PMI_SIZE=2', 'without PMI_RANK')
      refused({ RANK = 'x', WORLD_SIZE = '4' }, 'RANK=', 'x', 'whole number')
      refused({ RANK = '-1', WORLD_SIZE = '4' }, 'RANK=', 'whole number')
      refused({ RANK = '1', WORLD_SIZE = '1e3' }, 'WORLD_SIZE=', 'whole number')
      refused({ RANK = '1', WORLD_SIZE = '4', LOCAL_RANK = '2', LOCAL_WORLD_SIZE = '2' },
         'LOCAL_RANK=2', 'LOCAL_WORLD_SIZE=2')
      refused({ RANK = '1', WORLD_SIZE = '4', LOCAL_WORLD_SIZE = '8' }, 'LOCAL_WORLD_SIZE=8', '4')
      assert.equal('3/4 3/4 RANK/WORLD_SIZE', place { RANK = '3', WORLD_SIZE = '4',
         LOCAL_RANK = '3', LOCAL_WORLD_SIZE = '4' })
      refused({ SLURM_STEP_ID = '0', SLURM_PROCID = '1' }, 'without SLURM_NTASKS;')
      assert.is_nil(detect { RANK = '', WORLD_SIZE = '' })
      refused({ RANK = '0', WORLD_SIZE = '' }, 'RANK=0 without WORLD_SIZE; set both')
      assert.equal(2^31 - 1, detect { RANK = '0', WORLD_SIZE = '2147483647' }.size)
      refused({ RANK = '0', WORLD_SIZE = '2147483648' }, 'WORLD_SIZE=', 'whole number')
   end)

   it('of Slurm says how many ranks each node has', function()
      local function sizes(text, more)
         local list = {}
         for node = 0, 6 do
            local vars = { SLURM_STEP_ID = '0', SLURM_PROCID = '0', SLURM_NTASKS = '20',
               SLURM_STEP_TASKS_PER_NODE = text, SLURM_NODEID = tostring(node) }
            for k, v in require 'tide.util.each'(more or {}) do vars[k] = v end
            list[node + 1] = tostring(detect(vars).local_size)
         end
         return table.concat(list, ' ')
      end
      assert.equal('2 2 2 1 nil nil nil', sizes '2(x3),1')
      assert.equal('3 4 4 5 6 nil nil', sizes '3,4(x2),5,6(x1)')
      assert.equal('7 nil nil nil nil nil nil', sizes '7')
      assert.equal('2 8 8 8 8 8 8', sizes('2,?', { SLURM_NTASKS_PER_NODE = '8' }))
      assert.equal('8 8 8 8 8 8 8', sizes(nil, { SLURM_NTASKS_PER_NODE = '8' }))
      assert.equal(5, detect { SLURM_STEPID = '1', SLURM_PROCID = '0', SLURM_NTASKS = '9',
         SLURM_STEP_TASKS_PER_NODE = '5,4' }.local_size)
   end)

   it('names the job of the launcher', function()
      local function job(vars) return launch.job_of_launcher(function(k) return vars[k] end) end
      assert.is_nil(job {})
      assert.is_nil(job { RANK = '0', WORLD_SIZE = '1', PMI_JOBID = 'x' })
      local vars = { RANK = '0', WORLD_SIZE = '2' }
      assert.equal('job', job(vars))
      vars.SLURM_JOB_ID = '7'
      assert.equal('7.', job(vars))
      vars.SLURM_STEP_ID = '3'
      assert.equal('7.3', job(vars))
      for _, name in ipairs { 'PMI_JOBID', 'OMPI_MCA_ess_base_jobid', 'PMIX_NAMESPACE' } do
         vars[name] = 'of ' .. name
         assert.equal('of ' .. name, job(vars))
      end
   end)

   it('with several ranks wants a launcher that MPI knows', function()
      local function check(vars)
         local good, e = pcall(env.check_launched, detect(vars), function(k) return vars[k] end)
         return good or e.message
      end
      assert.equal(true, check { RANK = '0', WORLD_SIZE = '2', PMIX_RANK = '0' })
      assert.equal(true, check { PMI_RANK = '0', PMI_SIZE = '2' })
      assert.matches('WORLD_SIZE=2, but no MPI launcher .* mpirun %-np 2 .* tide run %-n 2',
         check { RANK = '0', WORLD_SIZE = '2' })
   end)

   it('must agree with MPI', function()
      local here = detect { RANK = '1', WORLD_SIZE = '4' }
      env.check_world(here, { rank = 1, size = 4 })
      env.check_world(nil, { rank = 1, size = 4 })
      local good, e = pcall(env.check_world, here, { rank = 0, size = 1 })
      assert.is_false(good)
      assert.matches('WORLD_SIZE=4, but MPI counts 1 process;', e.message, 1, true)
      good, e = pcall(env.check_world, here, { rank = 1, size = 2 })
      assert.is_false(good)
      assert.matches('WORLD_SIZE=4, but MPI counts 2 processes;', e.message, 1, true)
      good, e = pcall(env.check_world, here, { rank = 0, size = 4 })
      assert.is_false(good)
      assert.matches('RANK=1, but MPI says rank 0', e.message, 1, true)
   end)
end)

describe('the world of a rank', function()
   it('of several ranks must be able to communicate', function()
      local ok, e = pcall(require('tide.comm').set_world, { rank = 0, size = 2 })
      assert.is_false(ok)
      assert.equal('E_ARG', e.code)
      assert.matches("argument 'comm.all_reduce'", e.message, 1, true)
      assert.matches('comm.world()', e.message, 1, true)
   end)

   it('of one rank needs no methods', function()
      local comm = require 'tide.comm'
      local before, alone = comm.world(), { rank = 0, size = 1 }
      local ok, world = pcall(comm.set_world, alone)
      comm.set_world(before)
      assert.is_true(ok, tostring(world))
      assert.equal(alone, world)
   end)

   it('has its module under the older name, too', function()
      local comm = require 'tide.comm'
      assert.equal(comm, require 'tide.dist')
      assert.equal(comm, require 'tide'.comm)
      assert.equal(comm, require 'tide'.dist)
   end)

   it('takes its options with the first call, and says so', function()
      local dist = require 'tide.comm'
      dist.close()
      finally(dist.close)
      local comm = dist.init { transport = 'self' }
      assert.equal(comm, dist.init { transport = 'self', timeout = 5 })
      for _, opts in ipairs { { transport = 'mpi' }, { check = false }, { library = 'x.so' } } do
         local good, e = pcall(dist.init, opts)
         assert.is_false(good)
         assert.equal('E_STATE', e.code)
         assert.matches((next(opts)) .. ' has no effect now', e.message, 1, true)
      end
   end)
end)
