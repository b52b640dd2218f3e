-- The ranks of a run, and small helpers over any communicator.
--
-- `world()` is the communicator of this Lua state. A program that runs N ranks as threads opens one
-- state a rank and leaves group and rank in package.loaded['tide.host']; without that, variables of
-- a launcher (comm/env.lua) that name several processes mean MPI; else it is one rank. The
-- interface is described in tide.ffi.comm; comm/solo.lua names what training needs.

local env = require 'tide.comm.env'
local err = require 'tide.util.err'
local instead = require 'tide.util.instead'
local signature = require 'tide.util.signature'
local solo = require 'tide.comm.solo'

local dist = { solo = solo.new }

local world

-- Returns what the host has handed over: fields group, rank and timeout (seconds).
local function of_host()
   local host = package.loaded['tide.host']
   return type(host) == 'table' and host or {}
end

local function join(opts)
   local how, host = opts.transport, of_host()
   local group = host.group
   err.raise_if(how == 'local' and not group, 'E_STATE', 'comm.init', "transport 'local' needs "
      .. 'ranks that are threads: tide run -n N')
   if how ~= 'mpi' and how ~= 'self' and group then
      return require('tide.ffi.dist').join(opts.ctx, group, host.rank)
   end
   local here = how ~= 'self' and env.detect() or nil
   if how == 'mpi' or here and here.size > 1 then
      local library = opts.library or os.getenv 'TIDE_MPI_LIBRARY'
      if how ~= 'mpi' and not library then env.check_launched(here) end
      local comm = require('tide.ffi.dist').mpi(opts.ctx, { check = opts.check,
         timeout = opts.timeout, library = library })
      env.check_world(here, comm)
      return comm
   end
   return require('tide.ffi.dist').join(opts.ctx, nil, 0)
end

-- Refuses options that only the first call can apply.
local function check_joined(opts)
   local late = opts.transport ~= nil and opts.transport ~= world.transport and 'transport'
   for _, name in ipairs { 'ctx', 'check', 'library' } do
      late = late or opts[name] ~= nil and name
   end
   err.raise_if(late, 'E_STATE', 'comm.init', "this rank has joined already (transport '%s'), so "
      .. '%s has no effect now; give it to the first call, before any use of the world, or leave '
      .. 'the group with tide.comm.close()', tostring(world.transport), late)
end

-- Joins the group of this run once and returns the communicator of all its ranks. A later call may
-- change the timeout only, which is that of `tide run --timeout` by default.
function dist.init(opts)
   if world then
      check_joined(opts)
   else
      opts.timeout = opts.timeout or of_host().timeout
      world = join(opts)
   end
   if opts.timeout then world:set_timeout(opts.timeout) end
   return world
end

-- Returns the communicator of all ranks of this run (rank, size, all_reduce, ...; ?tide.comm.solo
-- names the file that lists them); joined by dist.init with its defaults at the first call.
function dist.world() return world or dist.init() end

-- Returns the communicator that was given as an argument or option `comm` of op; nil means the
-- world.
function dist.comm_of(op, comm)
   if comm == nil then return dist.world() end
   return signature.check(op, 'comm', comm, 'comm')
end

-- Sets what world returns: an object with rank, size, all_reduce, broadcast, barrier.
function dist.set_world(comm)
   for _, name in ipairs(comm.size > 1 and { 'all_reduce', 'broadcast', 'barrier' } or {}) do
      err.arg_if(type(comm[name]) ~= 'function', 'comm.set_world', 'comm.' .. name, ('a method, of '
         .. 'a communicator of %d ranks (as comm.world() or comm.gpus() gives one)'):format(
         comm.size), comm[name])
   end
   world = comm
   return comm
end

-- Leaves the group. Afterwards this state is a single rank, until set_world.
function dist.close()
   if world and world.close then world:close() end
   world = nil
end

-- Closes the world and ends MPI, if it runs. Programs that own their process, such as plain luajit,
-- call it last, in every process of the job; the `tide` program does so itself.
function dist.shutdown()
   dist.close()
   collectgarbage()
   require('tide.ffi.dist').mpi_end()
end

-- Makes an NCCL communicator of the ranks of another one; each rank needs a GPU of its own. opts:
-- check (false: calls are not compared), library (file of NCCL). Collective; dist.gpus chooses the
-- GPUs.
function dist.nccl(over, opts) return require('tide.ffi.dist').nccl(over, opts) end

-- Assigns a GPU to every rank of comm and returns the communicator between them; see comm/gpus.lua.
-- A program of several ranks calls it first: tide.comm.set_world(tide.comm.gpus()).
function dist.gpus(comm, opts) return require 'tide.comm.gpus'(comm, opts) end

-- Makes the group through which N threads of this process communicate; see tide.ffi.dist.
function dist.group(nrank, opts) return require('tide.ffi.dist').group(nrank, opts) end

-- Makes one simulated rank of n, for planning: it counts calls and bytes and moves nothing.
function dist.simulate(n, rank, host_size)
   return require('tide.ffi.dist').simulate(n, rank, host_size)
end

-- Returns the element-wise sums of a list of numbers over ranks. Collective.
function dist.sum(comm, numbers)
   if comm.size == 1 then return numbers end
   local tide = require 'tide'
   local t = tide.tensor(numbers, { dtype = 'f64', device = 'cpu' })
   comm:all_reduce(t)
   return t:tolist()
end

-- Returns true on every rank if `flag` is true on any. Collective.
function dist.any(comm, flag) return dist.sum(comm, { flag and 1 or 0 })[1] > 0 end

-- Runs fn on rank 0 and a barrier on all; an error on rank 0 is an error on every rank.
function dist.on_first(comm, op, fn)
   local ok, result = true, nil
   if comm.rank == 0 then ok, result = pcall(fn) end
   if not dist.any(comm, not ok) then return result end
   if not ok then error(result, 0) end
   err.raise('E_PEER', op, 'rank 0 failed; its message says why')
end

-- Runs fn on every rank; if it raises on one, raises on all. Returns every rank's result.
function dist.together(comm, op, fn)
   local ok, result = pcall(fn)
   local all = comm:all_gather_object { ok = ok, result = ok and result or tostring(result) }
   if not ok then error(result, 0) end
   local list = {}
   for rank = 1, comm.size do
      if not all[rank].ok then
         err.raise('E_PEER', op, 'rank %d failed: %s', rank - 1, all[rank].result)
      end
      list[rank] = all[rank].result
   end
   return list
end

signature.doors('comm', dist, {
   init = { op = 'comm.init', opts = {
      'timeout: any? -- seconds that a call waits for the other ranks',
      "ctx: any? -- a context; the state's own by default",
      "transport: 'self' | 'local' | 'mpi'? -- by default as the run was started",
      'check: any? -- false: ranks do not compare MPI calls before data moves; give all the same',
      'library: any? -- file of the MPI library' } },
   sum = 'comm: comm; numbers: table', any = 'comm: comm', on_first = 'comm: comm; fn: function',
   together = 'comm: comm; fn: function', set_world = 'comm: comm',
})

-- A name of another library raises an error that names its counterpart here.
return setmetatable(dist, { __index = function(_, key)
   local other = instead.comm[key]
   if other then err.raise('E_ARG', 'comm', "no '%s'; instead: %s", key, other) end
end })
