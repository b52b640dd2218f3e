-- N ranks as threads of this process, from Lua: runs a function on each, returns their values.
--
-- Nothing is shared. The function travels as source or bytecode (without upvalues), arguments and
-- results as text that holds plain data: nil, booleans, numbers, strings and tables of these.
-- libtide_host is loaded only when this is used; a stock luajit can call it.
--
-- The function runs as fn(rank, nrank, ...): rank counts from 0. It requires the modules that it
-- uses.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local arg = require 'tide.ffi.arg'
local status = require 'tide.ffi.status'
local own = require 'tide.ffi.own'
local plain = require 'tide.ffi.plain'

local M = {}

lib.once('host', function() ffi.cdef 'const char *tide_host_abi_text(void);' end)

-- Returns the namespace of libtide_host, loaded at first use and kept. It carries its declarations.
local function host()
   if not lib.state.host then
      local H, path = lib.load 'tide_host'
      if not H then status.raise(lib.C.TIDE_E_IO, 'ranks', path) end
      local text = ffi.string(H.tide_host_abi_text())
      lib.check_build(text, path, { 'bindings/host/ranks_abi.h' })
      ffi.cdef(text)
      lib.state.host = H
   end
   return lib.state.host
end

-- Returns the table of files that the ranks of this state's jobs have compiled: a second job
-- compiles only new or changed files. nil without memory: then each job has a table of its own.
local function chunks(H)
   if not lib.state.chunks then
      local table_of_chunks = H.tide_host_chunks_new()
      if table_of_chunks == nil then return nil end
      lib.state.chunks = own.handle(table_of_chunks, H.tide_host_chunks_free)
   end
   return lib.state.chunks
end

-- ---- plain data as text ----------------------------------------------------------------------

-- Arguments of a rank are texts without zero bytes: bytes travel as hex digits.
local hex, unhex = plain.hex, plain.unhex

-- Returns any number of plain values as one string; decode undoes it.
function M.encode(...) return plain.encode({ n = select('#', ...), ... }, 'ranks') end
-- Returns the values in a text that encode made.
function M.decode(text)
   local values = plain.decode(text)
   return unpack(values, 1, values.n)
end

-- ---- running ---------------------------------------------------------------------------------

-- The program of each rank: ... is the code of the function, its name and the arguments.
local launcher = [[
   local path, cpath, code, name, args = ...
   package.path, package.cpath = path, cpath
   return require('tide.ffi.host').launch(code, name, args)
]]

-- Runs code with arguments, both in hex digits, on this rank; returns its results as a text.
function M.launch(code, name, args)
   local info, fn = package.loaded['tide.host'], assert(loadstring(unhex(code), name))
   return M.encode(fn(info.rank, info.nrank, M.decode(unhex(args))))
end

local function code_of(fn)
   if type(fn) == 'string' then return 'local rank, nrank = ...\n' .. fn, '=ranks' end
   if type(fn) ~= 'function' then
      status.bad_arg('ranks', 'fn', 'a Lua function or source text', fn)
   end
   local info = debug.getinfo(fn, 'Su')
   if info.what == 'C' or info.nups > 0 then
      -- upvalues would be nil on the other side: refuse them here
      for i = 1, info.nups do
         local up = debug.getupvalue(fn, i)
         status.raise('E_ARG', 'ranks', "argument 'fn': expected a function without upvalues "
            .. "(require inside it), got one with the upvalue '%s'", tostring(up))
      end
      status.bad_arg('ranks', 'fn', 'a Lua function or source text', fn)
   end
   return string.dump(fn), info.source
end

local function check_rc(rc, what)
   if rc < 0 then status.raise(rc, 'ranks', what) end
end

local function fill(H, job, fn, opts, ...)
   local code, name = code_of(fn)
   check_rc(H.tide_host_ranks_chunks(job, chunks(H)), 'chunks')
   check_rc(H.tide_host_ranks_code(job, launcher, #launcher, '=tide.ranks'), 'code')
   for _, value in ipairs { package.path, package.cpath, hex(code), name, hex(M.encode(...)) } do
      if value:find('%z') then status.bad_arg('ranks', 'args', 'text without zero bytes', value) end
      check_rc(H.tide_host_ranks_arg(job, value), 'argument')
   end
   if opts.nthread then
      check_rc(H.tide_host_ranks_nthread(job, arg.int('ranks', 'nthread', opts.nthread, 1, 1024)),
         'nthread')
   end
   if opts.params ~= nil then
      local params = arg.string('ranks', 'params', opts.params)
      check_rc(H.tide_host_ranks_params(job, params, 0), 'params')
   end
   if opts.grace then
      check_rc(H.tide_host_ranks_grace(job, arg.finite('ranks', 'grace', opts.grace, 0, 1e8)),
         'grace')
   end
end

local function collect(H, job, n)
   local size = ffi.new 'size_t[1]'
   local ranks = { first = H.tide_host_ranks_first(job) }
   for rank = 0, n - 1 do
      local rc = H.tide_host_ranks_status(job, rank)
      local row = { status = status.code[rc] or 'OK' }
      local text = H.tide_host_ranks_result(job, rank, size)
      if rc < 0 then
         row.message = ffi.string(H.tide_host_ranks_message(job, rank))
      elseif text ~= nil then
         row.values = { n = 0, M.decode(ffi.string(text, size[0])) }
      end
      ranks[rank + 1] = row
   end
   return ranks
end

local run_opts = arg.set { 'nthread', 'params', 'grace' }

-- Runs fn (function without upvalues, or source) on n ranks. Returns a list with one row per rank:
-- { status = 'OK', values = {...} } or { status =, message = }, and .first, the rank (0-based) that
-- failed first or -1. opts: nthread, params, grace (30): seconds that the ranks have to end after
-- one has failed. A rank that still runs then has the status E_TIMEOUT; its thread keeps its state
-- and context until it ends or the process does. os.exit on a rank ends that rank.
function M.try(n, opts, fn, ...)
   arg.int('ranks', 'n', n, 1, 1024)
   opts = arg.opts('ranks', opts, run_opts)
   local H = host()
   local job = H.tide_host_ranks_new(n, nil)
   if job == nil then status.raise(lib.C.TIDE_E_NOMEM, 'ranks', 'no memory for the job') end
   job = own.handle(job, H.tide_host_ranks_free)
   fill(H, job, fn, opts, ...)
   H.tide_host_ranks_run(job)
   local ranks = collect(H, job, n)
   own.finish(job, H.tide_host_ranks_free)
   return ranks
end

-- Runs fn on n ranks as try does, but raises when a rank failed. Returns a list of the first value
-- of each rank.
function M.run(n, fn, ...)
   local ranks = M.try(n, nil, fn, ...)
   if ranks.first >= 0 then
      local row = ranks[ranks.first + 1]
      status.raise(status.code[row.status], 'ranks', 'rank %d: %s', ranks.first, row.message)
   end
   local values = {}
   for i = 1, n do values[i] = ranks[i].values and ranks[i].values[1] end
   return values
end

return M
