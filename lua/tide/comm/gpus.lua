-- A GPU for each rank, and NCCL between them.
--
-- Ranks exchange their machine, its GPUs and the GPU they were given, so all choose alike from one
-- table. With a GPU for each rank NCCL connects them. Threads that share a GPU move data there
-- themselves. Anything else would leave GPUs idle, or is not possible.

local tide = require 'tide'
local dist = require 'tide.comm'
local err = require 'tide.util.err'

local op = 'comm.gpus'

-- Returns the name of the machine that this process runs on, or 'process' if the ranks are threads.
local function place_of(comm)
   if comm.transport == 'local' then return 'process' end
   local file = io.open '/proc/sys/kernel/hostname'
   local name = file and file:read '*l'
   if file then file:close() end
   return name or err.raise('E_UNSUPPORTED', op, 'the name of this machine cannot be read '
      .. '(/proc/sys/kernel/hostname); set parameter cuda_device on each rank to its GPU')
end

-- Sets `device` in each row: what was given, else the ranks of a machine take its GPUs in order,
-- or all of them the only one.
local function choose(rows)
   local n, at = {}, {}
   for _, row in ipairs(rows) do n[row.place] = (n[row.place] or 0) + 1 end
   for r, row in ipairs(rows) do
      local i, ranks = at[row.place] or 0, n[row.place]
      at[row.place] = i + 1
      err.raise_if(row.given < 0 and row.count > 1 and row.count < ranks, 'E_DEVICE', op,
         'rank %d is one of %d on a machine with %d GPUs: start one rank a GPU, or let all of them '
         .. 'see a single one (CUDA_VISIBLE_DEVICES=0, ranks as threads), or give each its GPU as '
         .. 'parameter cuda_device', r - 1, ranks, row.count)
      row.device = row.given >= 0 and row.given or row.count == 1 and 0 or i
   end
end

-- Returns how many GPUs there are among the rows.
local function distinct(rows)
   local seen, n = {}, 0
   for _, row in ipairs(rows) do
      local key = row.place .. '/' .. row.device
      if not seen[key] then seen[key], n = true, n + 1 end
   end
   return n
end

-- Gives every rank of comm (default: all of the run) a GPU and returns the communicator that their
-- tensors there travel over: a new one over NCCL where each has its own, comm itself where ranks
-- that are threads share one, or where there is one rank. A GPU that a rank was given (parameter
-- cuda_device) stays. Tensors of the host go over comm all the same. Collective, before a rank has
-- used its GPU. opts: library (file of NCCL; default: TIDE_NCCL_LIBRARY, else the usual names),
-- check (false: calls are not compared). E_DEVICE: no GPU, or another number than of ranks.
return function(comm, opts)
   opts = err.options(op, opts, { 'library', 'check' })
   comm = dist.comm_of(op, comm)
   if comm.size == 1 or comm.transport == 'nccl' then return comm end
   local rows = dist.together(comm, op, function()
      local count, why = tide.cuda.device_count()
      err.raise_if(count == 0, 'E_DEVICE', op, '%s', why)
      -- given: the GPU that this rank must take, or -1
      return { place = place_of(comm), count = count, given = tonumber(tide.param 'cuda_device') }
   end)
   choose(rows)
   tide.param('cuda_device', rows[comm.rank + 1].device)
   local n = distinct(rows)
   if n == comm.size then
      return dist.nccl(comm, { check = opts.check,
         library = opts.library or os.getenv 'TIDE_NCCL_LIBRARY' })
   end
   if n == 1 and comm.transport == 'local' then return comm end
   err.raise('E_DEVICE', op, '%d ranks have %d GPUs among them: start one rank a GPU, or ranks as '
      .. 'threads (tide run -n %d) that all share one', comm.size, n, comm.size)
end
