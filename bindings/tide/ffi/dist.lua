-- How ranks meet: groups of threads, MPI, NCCL over either, and simulated ranks.
--
-- Each call returns this rank's communicator (comm.lua) of all ranks; smaller ones are split off.
-- rank counts from 0.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local status = require 'tide.ffi.status'
local comm = require 'tide.ffi.comm'
local ctx_of = require 'tide.ffi.ctx'
local C = lib.C

local M = { Comm = comm.Comm, Work = comm.Work, open = comm.open }
local bad = status.bad_arg
local new_box = comm.new_box

lib.state.dist = lib.state.dist or { Group = {} }
local Group = lib.state.dist.Group
Group.__index, Group.__name = Group, 'Group'
M.Group = Group

-- ---- groups ---------------------------------------------------------------------------------

local group_opts = arg.set { 'timeout' }

-- Returns the shared state of nrank threads of this process. opts: timeout (seconds).
function M.group(nrank, opts)
   arg.int('comm.group', 'nrank', nrank, 1, 1024)
   opts = arg.opts('comm.group', opts, group_opts)
   local o = ffi.new 'tide_group_opts'
   C.tide_group_opts_init(o)
   if opts.timeout then o.timeout = arg.finite('comm.group', 'timeout', opts.timeout, 1e-3, 1e8) end
   local box, text = ffi.new 'tide_group *[1]', ffi.new 'char[256]'
   local rc = C.tide_group_new(box, nrank, o, text, 256)
   if rc < 0 then status.raise(rc, 'comm.group', ffi.string(text)) end
   local handle = own.handle(box[0], C.tide_group_release)
   return own.adopt(setmetatable({ handle = handle, size = nrank }, Group))
end

local function group_of(self, op)
   if not self.handle then
      status.raise(C.TIDE_E_STATE, op, 'the group was released: its Lua state is closing')
   end
   return self.handle
end

-- Returns a number that another Lua state of this process can pass to join while this group is
-- alive.
function Group:address() return tonumber(ffi.cast('intptr_t', group_of(self, 'address'))) end

-- Reports the end of a rank's program: a success, or a failure with a message.
function Group:leave(rank, message)
   arg.int('comm.leave', 'rank', rank, 0, self.size - 1)
   local rc = message and C.TIDE_E_HOST or 0
   C.tide_group_leave(group_of(self, 'comm.leave'), rank, rc, message and tostring(message) or nil)
end

-- Ends a turn of this rank: it makes no calls until resume. Blocks until its asynchronous calls
-- have ended; see tide_group_pause. ctx: a Context, nil for the default one.
function Group:pause(rank, ctx)
   local handle = (ctx or ctx_of.default()).handle
   arg.int('comm.pause', 'rank', rank, 0, self.size - 1)
   own.check(handle, C.tide_group_pause(group_of(self, 'comm.pause'), rank, handle))
end

-- Begins a turn of this rank.
function Group:resume(rank, ctx)
   local handle = (ctx or ctx_of.default()).handle
   arg.int('comm.resume', 'rank', rank, 0, self.size - 1)
   own.check(handle, C.tide_group_resume(group_of(self, 'comm.resume'), rank, handle))
end

-- Returns a Group from its address or from a host's light userdata.
function M.group_at(pointer)
   if type(pointer) == 'number' then pointer = ffi.cast('intptr_t', pointer) end
   local handle = ffi.cast('tide_group *', pointer)
   if handle == nil or C.tide_group_retain(handle) < 0 then
      bad('comm.join', 'group', 'a group, or the address of one', pointer)
   end
   handle = own.handle(handle, C.tide_group_release)
   return own.adopt(setmetatable({ handle = handle, size = C.tide_group_size(handle) }, Group))
end

-- Returns this state's rank of a group. ctx: a Context, nil for the default one. group nil: one
-- rank.
function M.join(ctx, group, rank)
   local handle = (ctx or ctx_of.default()).handle
   if group ~= nil and getmetatable(group) ~= Group then group = M.group_at(group) end
   rank = arg.int('comm.join', 'rank', rank or 0, 0, 2^31 - 1)
   local box, of = new_box(), group and group_of(group, 'comm.join') or nil
   own.check(handle, C.tide_comm_join(box, handle, of, rank))
   return comm.wrap(box)
end

local mpi_opts = arg.set { 'timeout', 'check', 'library' }

-- Returns the processes of an MPI job as ranks; see tide_comm_mpi. opts: timeout, check (true),
-- library.
function M.mpi(ctx, opts)
   local op, handle = 'comm.mpi', (ctx or ctx_of.default()).handle
   opts = arg.opts(op, opts, mpi_opts)
   local o = ffi.new 'tide_mpi_opts'
   C.tide_mpi_opts_init(o)
   if opts.timeout then o.timeout = arg.finite(op, 'timeout', opts.timeout, 1e-3, 1e8) end
   if opts.check ~= nil then o.check = arg.flag(op, 'check', opts.check) and 1 or 0 end
   if opts.library then o.library = arg.string(op, 'library', opts.library) end
   local box = new_box()
   own.check(handle, C.tide_comm_mpi(box, handle, o))
   return comm.wrap(box)
end

-- Ends MPI in this process, after its last communicator; see tide_mpi_end.
function M.mpi_end()
   if C.tide_mpi_end() == 0 then return end
   status.raise(C.TIDE_E_PEER, 'comm.mpi_end', 'not all ranks have come to the end of the job '
      .. 'after a call that failed; end the process with a code other than 0')
end

local nccl_opts = arg.set { 'check', 'library' }

-- Returns the ranks of a communicator again, for tensors on CUDA devices; see tide_comm_nccl. opts:
-- check (false), library (a file, or nil for the usual one).
function M.nccl(over, opts)
   local op = 'comm.nccl'
   if getmetatable(over) ~= comm.Comm or not over.handle then
      bad(op, 'over', 'an open communicator', over)
   end
   opts = arg.opts(op, opts, nccl_opts)
   local o = ffi.new 'tide_nccl_opts'
   C.tide_nccl_opts_init(o)
   o.check = arg.flag(op, 'check', opts.check) and 1 or 0
   if opts.library then o.library = arg.string(op, 'library', opts.library) end
   local box = new_box()
   own.check(over.ctx, C.tide_comm_nccl(box, over.handle, o))
   return comm.wrap(box, 'nccl/' .. over.id)
end

-- Returns one rank of a simulated n; see tide_comm_simulate.
function M.simulate(n, rank, host_size)
   local handle = ctx_of.default().handle
   arg.int('comm.simulate', 'n', n, 1, 2^31 - 1)
   arg.int('comm.simulate', 'rank', rank or 0, 0, n - 1)
   arg.int('comm.simulate', 'host_size', host_size or n, 1, 2^31 - 1)
   local box = new_box()
   own.check(handle, C.tide_comm_simulate(box, handle, n, rank or 0, host_size or n))
   local made = comm.wrap(box)
   made.host_size = host_size or n
   return made
end

return M
