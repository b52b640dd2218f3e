-- Which rank of how many this process is, from the environment that launchers set.
--
-- A launcher is a row of variable names; the first row with something set decides:
-- RANK and WORLD_SIZE (as torchrun sets them), Open MPI, PMI (MPICH), Slurm. None: one process.
-- Slurm's variables also exist outside of steps, in a shell of salloc and in the batch script;
-- there they say nothing about this process. Inconsistent values are an error in one sentence.

local err = require 'tide.util.err'

local env = {}

local rows = {
   { name = 'RANK/WORLD_SIZE', rank = 'RANK', size = 'WORLD_SIZE',
     local_rank = 'LOCAL_RANK', local_size = 'LOCAL_WORLD_SIZE' },
   { name = 'Open MPI', rank = 'OMPI_COMM_WORLD_RANK', size = 'OMPI_COMM_WORLD_SIZE',
     local_rank = 'OMPI_COMM_WORLD_LOCAL_RANK', local_size = 'OMPI_COMM_WORLD_LOCAL_SIZE' },
   { name = 'PMI', rank = 'PMI_RANK', size = 'PMI_SIZE',
     local_rank = 'MPI_LOCALRANKID', local_size = 'MPI_LOCALNRANKS' },
   { name = 'Slurm', rank = 'SLURM_PROCID', size = { 'SLURM_STEP_NUM_TASKS', 'SLURM_NTASKS' },
     local_rank = 'SLURM_LOCALID', per_node = 'SLURM_STEP_TASKS_PER_NODE', node = 'SLURM_NODEID',
     local_size = 'SLURM_NTASKS_PER_NODE', step = { 'SLURM_STEP_ID', 'SLURM_STEPID' } },
}

-- Ids of Slurm's steps that are not ours: interactive, batch script, extern.
local other_steps = { ['4294967290'] = true, ['4294967291'] = true, ['4294967292'] = true,
                      batch = true, extern = true, interactive = true }

-- Returns the first of one or several variables that is set: its name and value.
local function first(get, names)
   for _, name in ipairs(type(names) == 'table' and names or { names }) do
      local value = get(name)
      if value and value ~= '' then return name, value end
   end
   return type(names) == 'table' and names[#names] or names, nil
end

local function number(get, names)
   local name, value = first(get, names)
   if value == nil then return nil, name end
   local n = value:match '^%d+$' and tonumber(value)
   err.usage_if(not n or n > 2^31 - 1, 'comm.env', 'the environment has %s=%s; expected a whole '
      .. 'number', name, err.show(value))
   return n, name
end

local function applies(row, get)
   if row.step then
      local _, step = first(get, row.step)
      if not step or other_steps[step] then return false end
   end
   local _, rank = first(get, row.rank)
   local _, size = first(get, row.size)
   return rank ~= nil or size ~= nil
end

local function check_pair(rank, rank_name, size, size_name)
   if rank and size and rank < size then return end
   if rank and size then
      err.usage('comm.env', 'the environment has %s=%d, but %s=%d: ranks count from 0 to %d',
         rank_name, rank, size_name, size, size - 1)
   end
   local have, value, lack = rank_name, rank, size_name
   if size then have, value, lack = size_name, size, rank_name end
   err.usage('comm.env', 'the environment has %s=%d without %s; set both (mpirun does), or neither '
      .. '(tide run -n N starts ranks as threads)', have, value, lack)
end

-- Returns the number of tasks on node `node` (from 0) of a text of Slurm such as "2(x3),1".
local function tasks_of(text, node)
   for item in (text or ''):gmatch '[^,]+' do
      local n, times = item:match '^(%d+)%(x(%d+)%)$'
      n, times = tonumber(n or item:match '^(%d+)$'), tonumber(times or 1)
      if not n then return nil end
      if node < times then return n end
      node = node - times
   end
   return nil
end

local function local_part(row, get, size)
   local local_rank, rank_name = number(get, row.local_rank)
   local local_size, size_name
   if row.per_node then
      local_size = tasks_of(get(row.per_node), (number(get, row.node)) or 0)
      size_name = row.per_node
   end
   if not local_size then local_size, size_name = number(get, row.local_size) end
   if local_rank and local_size then check_pair(local_rank, rank_name, local_size, size_name) end
   err.usage_if(local_size and local_size > size, 'comm.env', 'the environment has %s=%d, more '
      .. 'than the %d ranks of the job', size_name, local_size, size)
   return local_rank, local_size
end

-- Returns nil for one process without a launcher, else { rank, size, local_rank, local_size (either
-- may be nil), launcher, rank_name, size_name }. get: os.getenv, or a function in its place.
function env.detect(get)
   get = get or os.getenv
   for _, row in ipairs(rows) do
      if applies(row, get) then
         local rank, rank_name = number(get, row.rank)
         local size, size_name = number(get, row.size)
         check_pair(rank, rank_name, size, size_name)
         local local_rank, local_size = local_part(row, get, size)
         return {
            rank = rank, size = size, local_rank = local_rank, local_size = local_size,
            launcher = row.name, rank_name = rank_name, size_name = size_name,
         }
      end
   end
   return nil
end

-- Variables of which an MPI launcher sets one in each process that it starts.
local of_mpi = { 'OMPI_COMM_WORLD_RANK', 'PMIX_RANK', 'PMI_RANK', 'PMI_FD', 'MPI_LOCALRANKID',
   'MV2_COMM_WORLD_RANK', 'SLURM_PROCID', 'PALS_RANKID', 'ALPS_APP_PE', 'JSM_NAMESPACE_RANK',
   'FLUX_TASK_RANK' }

-- Raises E_ARG where the environment names several ranks and no MPI launcher has started this
-- process, as under torchrun: MPI would make each such process a world of its own.
function env.check_launched(here, get)
   local _, started = first(get or os.getenv, of_mpi)
   if here.launcher ~= 'RANK/WORLD_SIZE' or started then return end
   local n = here.size
   err.usage('comm.env', 'the environment has %s=%d, but no MPI launcher has started this process, '
      .. 'and tide does not join the processes of torchrun; start processes by mpirun -np %d (or '
      .. 'srun --mpi=...), or threads by tide run -n %d; for one rank alone unset %s and %s',
      here.size_name, n, n, n, here.rank_name, here.size_name)
end

-- Raises unless MPI and the environment agree. world: { rank, size }.
function env.check_world(here, world)
   if here and here.size ~= world.size then
      err.raise('E_STATE', 'comm.env', 'the environment has %s=%d, but MPI counts %d process%s; '
         .. 'start the ranks with the mpirun of the MPI library that is opened (or srun --mpi=...)',
         here.size_name, here.size, world.size, world.size == 1 and '' or 'es')
   end
   if here and here.rank ~= world.rank then
      err.raise('E_STATE', 'comm.env', 'the environment has %s=%d, but MPI says rank %d',
         here.rank_name, here.rank, world.rank)
   end
end

return env
