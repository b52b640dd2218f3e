-- A communicator whose methods are the collectives, under the names of MPI and NCCL.
--
-- A Comm is a table around one `tide_comm` handle with rank and size as fields. A method checks its
-- arguments, sets the call site, and makes one C call. With {async = true} it returns a Work
-- instead; work:wait() returns the result of the method.
--
-- rank and root count from 0. Collectives over parts cut or join dim 1. For a rank's first
-- communicator see dist.lua.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local buffer = require 'tide.ffi.buffer'
local arg = require 'tide.ffi.arg'
local create = require 'tide.ffi.create'
local status = require 'tide.ffi.status'
local plain = require 'tide.ffi.plain'
local site = require 'tide.ffi.site'
local C = lib.C

local M = {}
local bad = status.bad_arg

-- ---- classes --------------------------------------------------------------------------------

lib.state.comm = lib.state.comm or { Comm = {}, Work = {} }
local Comm, Work = lib.state.comm.Comm, lib.state.comm.Work
Comm.__index, Work.__index = Comm, Work
Comm.__name, Work.__name = 'communicator', 'Work'
M.Comm, M.Work = Comm, Work

Comm.__tostring = function(self)
   return ("communicator '%s' (rank %d of %d, %s)"):format(self.name, self.rank, self.size,
      self.handle and self.transport or 'closed')
end

local new_box, new_work_box = ffi.typeof 'tide_comm *[1]', ffi.typeof 'tide_work *[1]'
local new_blob_box = ffi.typeof 'tide_blob *[1]'
M.new_box = new_box                        -- for the communicator that wrap takes

-- The communicators of this state, in the order of creation. A traced run keeps them all, so that
-- their calls can be written at its end.
local made = lib.state.comm.made
if not made then
   made = setmetatable({ n = 0 }, os.getenv 'TIDE_TRACE_DIR' and {} or { __mode = 'v' })
   lib.state.comm.made = made
end

-- Returns the communicators that are not closed, oldest first.
function M.open()
   local list = {}
   for i = 1, made.n do
      if made[i] and made[i].handle then list[#list + 1] = made[i] end
   end
   return list
end

-- Returns the Comm of a box. id: the same on every rank of the communicator ('world').
function M.wrap(box, id)
   local handle = own.handle(box[0], C.tide_comm_release)
   made.n = made.n + 1
   local comm = own.adopt(setmetatable({
      id = id or 'world',
      handle = handle, ctx = C.tide_comm_ctx(handle),
      rank = C.tide_comm_rank(handle), size = C.tide_comm_size(handle),
      name = ffi.string(C.tide_comm_name(handle)),
      transport = ffi.string(C.tide_comm_transport(handle)), site = '',
   }, Comm))
   made[made.n] = comm
   return comm
end

-- ---- calls ----------------------------------------------------------------------------------

-- Returns the handle of a method's self, with the call site set.
local function begin(self, op)
   if type(self) ~= 'table' or getmetatable(self) ~= Comm then
      bad(op, 'comm', 'a communicator (call with a colon)', self)
   end
   local handle = self.handle
   if not handle then
      status.raise(C.TIDE_E_STATE, op, "the communicator '%s' is closed", self.name)
   end
   local at = site.place()
   if at ~= self.site then
      self.site = at
      C.tide_comm_site(handle, at)
   end
   local context = lib.state.default
   if context and context.capturing then context.capturing:call(self, op) end
   return handle
end

local call_opts = arg.set { 'async' }

-- Returns the out-parameter of a call: nil, or a box for its work.
local function box_for(op, opts)
   if opts == nil then return nil end
   opts = arg.opts(op, opts, call_opts)
   return arg.flag(op, 'opts.async', opts.async) and new_work_box() or nil
end

local function finish(self, rc, box, value)
   if rc < 0 then own.fail(self.ctx, rc) end
   if box == nil then return value end
   local handle = own.handle(box[0], C.tide_work_release)
   return own.adopt(setmetatable({ handle = handle, ctx = self.ctx, value = value }, Work))
end

local function check_work(op, self)
   if type(self) ~= 'table' or getmetatable(self) ~= Work then
      bad(op, 'work', 'a work (call with a colon)', self)
   end
end

-- Returns the handle of a method's self.
local function work_of(self, op)
   check_work(op, self)
   if not self.handle then
      status.raise(C.TIDE_E_STATE, op, 'this work was released; keep it until its result is used')
   end
   return self.handle
end

-- Blocks until the collective is done and returns its result.
function Work:wait()
   local rc = C.tide_work_wait(work_of(self, 'work_wait'))
   if rc < 0 then own.fail(self.ctx, rc) end
   return self.value
end

-- Returns whether wait would return at once.
function Work:test() return C.tide_work_test(work_of(self, 'work_test')) == 1 end

-- Returns when the collective began and ended, in seconds of tide.clock; nil while it runs.
function Work:times()
   if C.tide_work_test(work_of(self, 'work_times')) ~= 1 then return nil end
   local times = ffi.new 'double[2]'
   C.tide_work_times(self.handle, times, times + 1)
   return times[0], times[1]
end

-- Drops the handle now instead of when it is collected; the collective continues. Idempotent.
function Work:release()
   check_work('work_release', self)
   own.close(self, C.tide_work_release)
end

-- ---- arguments ------------------------------------------------------------------------------

local reduce_code = {}
for code = 0, C.TIDE_NREDUCE - 1 do reduce_code[ffi.string(C.tide_reduce_name(code))] = code end

local function reduce_of(op, name)
   local code = name == nil and C.TIDE_SUM or type(name) == 'string' and reduce_code[name]
   if not code then bad(op, 'op', 'sum, mean, min, max or prod', name) end
   return code
end

local function rank_of(self, op, name, v, none)
   if v == nil then return none and -1 or 0 end
   return arg.int(op, name, v, none and -1 or 0, self.size - 1)
end

-- Returns a tensor or a list of them as (buffer, count).
local function list_of(op, name, t)
   if not arg.is_tensor(t) then return arg.tensors(op, name, t) end
   local one = own.new_box()
   one[0] = t
   return one, 1
end

-- Returns the shape of t with dim 1 of `rows` as (ndim, buffer); a scalar counts as one row.
local function shape_with(t, rows)
   local ndim, buf = C.tide_tensor_ndim(t), arg.new_shape()
   for d = 1, ndim - 1 do buf[d] = C.tide_tensor_dim(t, d) end
   buf[0] = rows
   return ndim == 0 and 1 or ndim, buf
end

local function rows_of(t)
   return C.tide_tensor_ndim(t) == 0 and 1 or tonumber(C.tide_tensor_dim(t, 0))
end

-- Returns a new tensor like t with dim 1 of `rows`.
local function like(t, rows)
   local device, dtype = C.tide_tensor_device(t), C.tide_tensor_dtype(t)
   return create.empty(C.tide_tensor_ctx(t), device, dtype, shape_with(t, rows))
end

local function share(self, op, t)
   local rows = rows_of(t)
   if rows % self.size ~= 0 then
      bad(op, 't', ('a first dim that divides among %d ranks'):format(self.size), t)
   end
   return rows / self.size
end

local new_counts = buffer.of 'int64_t'

-- Converts rows for each rank to elements; returns these, and the sum of the rows.
local function counts_of(self, op, name, counts, t)
   if type(counts) ~= 'table' or #counts ~= self.size then
      bad(op, name, ('a list of %d counts of rows'):format(self.size), counts)
   end
   local row, buf, sum = 1, new_counts(self.size), 0
   for d = 1, C.tide_tensor_ndim(t) - 1 do row = row * tonumber(C.tide_tensor_dim(t, d)) end
   for i = 1, self.size do
      local n = arg.int(op, name .. '[' .. i .. ']', counts[i], 0)
      buf[i - 1] = n * row
      sum = sum + n
   end
   return buf, sum
end

-- ---- collectives ----------------------------------------------------------------------------

-- Reduces a tensor or a list of tensors over the ranks, in place, and returns it. op: sum
-- (default), mean, min, max, prod.
function Comm:all_reduce(t, op, opts)
   local handle = begin(self, 'all_reduce')
   local list, n = list_of('all_reduce', 't', t)
   local code, box = reduce_of('all_reduce', op), box_for('all_reduce', opts)
   return finish(self, C.tide_comm_all_reduce(box, handle, n, list, code), box, t)
end

-- Reduces as all_reduce does, but only the tensors of root (0) change.
function Comm:reduce(t, root, op, opts)
   local handle = begin(self, 'reduce')
   local list, n = list_of('reduce', 't', t)
   local code, box = reduce_of('reduce', op), box_for('reduce', opts)
   root = rank_of(self, 'reduce', 'root', root)
   return finish(self, C.tide_comm_reduce(box, handle, n, list, code, root), box, t)
end

-- Sends root's (0) contents into every rank's tensor, or list of tensors, in place.
function Comm:broadcast(t, root, opts)
   local handle = begin(self, 'broadcast')
   local list, n = list_of('broadcast', 't', t)
   local box = box_for('broadcast', opts)
   root = rank_of(self, 'broadcast', 'root', root)
   return finish(self, C.tide_comm_broadcast(box, handle, n, list, root), box, t)
end

-- Returns all ranks' tensors joined along dim 1, in rank order, as a new tensor.
function Comm:all_gather(t, opts)
   begin(self, 'all_gather')
   arg.tensor('all_gather', 't', t)
   return self:all_gather_into(like(t, rows_of(t) * self.size), t, opts)
end

-- Gathers as all_gather does, into a tensor of size times as many elements. t may be the part of
-- `out` that belongs to this rank.
function Comm:all_gather_into(out, t, opts)
   local handle = begin(self, 'all_gather')
   arg.tensor('all_gather', 'out', out)
   arg.tensor('all_gather', 't', t)
   local box = box_for('all_gather', opts)
   return finish(self, C.tide_comm_all_gather(box, handle, out, t), box, out)
end

-- Gathers as all_gather does, with counts[rank + 1] rows from each rank. out: a tensor for the
-- result, or nil.
function Comm:all_gather_v(t, counts, out, opts)
   local handle = begin(self, 'all_gather_v')
   arg.tensor('all_gather_v', 't', t)
   local buf, sum = counts_of(self, 'all_gather_v', 'counts', counts, t)
   out = arg.tensor('all_gather_v', 'out', out or like(t, sum))
   local box = box_for('all_gather_v', opts)
   return finish(self, C.tide_comm_all_gather_v(box, handle, out, t, buf), box, out)
end

-- Cuts dim 1 among the ranks; each gets its part of the reduction as a new tensor.
function Comm:reduce_scatter(t, op, opts)
   begin(self, 'reduce_scatter')
   arg.tensor('reduce_scatter', 't', t)
   return self:reduce_scatter_into(like(t, share(self, 'reduce_scatter', t)), t, op, opts)
end

-- Reduces and scatters as reduce_scatter does, into a tensor; out may be the part of t that belongs
-- to this rank.
function Comm:reduce_scatter_into(out, t, op, opts)
   local handle = begin(self, 'reduce_scatter')
   arg.tensor('reduce_scatter', 'out', out)
   arg.tensor('reduce_scatter', 't', t)
   local code, box = reduce_of('reduce_scatter', op), box_for('reduce_scatter', opts)
   return finish(self, C.tide_comm_reduce_scatter(box, handle, out, t, code), box, out)
end

-- Reduces and scatters as reduce_scatter does, with counts[rank + 1] rows for each rank.
function Comm:reduce_scatter_v(t, counts, op, out, opts)
   local handle = begin(self, 'reduce_scatter_v')
   arg.tensor('reduce_scatter_v', 't', t)
   local buf = counts_of(self, 'reduce_scatter_v', 'counts', counts, t)
   out = arg.tensor('reduce_scatter_v', 'out', out or like(t, counts[self.rank + 1]))
   local code, box = reduce_of('reduce_scatter_v', op), box_for('reduce_scatter_v', opts)
   return finish(self, C.tide_comm_reduce_scatter_v(box, handle, out, t, buf, code), box, out)
end

-- Cuts dim 1 in size parts: part r goes to rank r; the result holds one from each, in order.
function Comm:all_to_all(t, opts)
   begin(self, 'all_to_all')
   arg.tensor('all_to_all', 't', t)
   share(self, 'all_to_all', t)
   return self:all_to_all_into(like(t, rows_of(t)), t, opts)
end

-- Exchanges as all_to_all does, into out, which has the shape and dtype of t and other memory.
-- opts: async. Returns out, or the work.
function Comm:all_to_all_into(out, t, opts)
   local handle = begin(self, 'all_to_all')
   arg.tensor('all_to_all', 'out', out)
   arg.tensor('all_to_all', 't', t)
   local box = box_for('all_to_all', opts)
   return finish(self, C.tide_comm_all_to_all(box, handle, out, t), box, out)
end

-- Sends in_counts[r + 1] rows to rank r and receives out_counts[r + 1] rows from it.
function Comm:all_to_all_v(t, in_counts, out_counts, out, opts)
   local op = 'all_to_all_v'
   local handle = begin(self, op)
   arg.tensor(op, 't', t)
   local give = counts_of(self, op, 'in_counts', in_counts, t)
   local take, sum = counts_of(self, op, 'out_counts', out_counts, t)
   out = arg.tensor(op, 'out', out or like(t, sum))
   local box = box_for(op, opts)
   return finish(self, C.tide_comm_all_to_all_v(box, handle, out, take, t, give), box, out)
end

-- Returns all ranks' tensors joined along dim 1 on root (0); nil on the others.
function Comm:gather(t, root, opts)
   local handle = begin(self, 'gather')
   arg.tensor('gather', 't', t)
   root = rank_of(self, 'gather', 'root', root)
   local out = self.rank == root and like(t, rows_of(t) * self.size) or nil
   local box = box_for('gather', opts)
   return finish(self, C.tide_comm_gather(box, handle, out, t, root), box, out)
end

-- Sends part r of root's (0) t into rank r's out. t is nil on the others. Returns out.
function Comm:scatter(out, t, root, opts)
   local handle = begin(self, 'scatter')
   arg.tensor('scatter', 'out', out)
   root = rank_of(self, 'scatter', 'root', root)
   if self.rank == root then arg.tensor('scatter', 't', t) else t = nil end
   local box = box_for('scatter', opts)
   return finish(self, C.tide_comm_scatter(box, handle, out, t, root), box, out)
end

-- Sends a tensor (or list) to rank `to` and receives into `out` (or list) from rank `from`. nil
-- for out and from, or for t and to: nothing in that direction. Returns out.
function Comm:send_recv(out, from, t, to, opts)
   local op = 'send_recv'
   local handle = begin(self, op)
   from, to = rank_of(self, op, 'from', from, true), rank_of(self, op, 'to', to, true)
   local outs, ins, nout, nin
   if from >= 0 then outs, nout = list_of(op, 'out', out) end
   if to >= 0 then ins, nin = list_of(op, 't', t) end
   if nin and nout and nin ~= nout then
      bad(op, 'out', ('%d tensors, as many as are sent'):format(nin), nout)
   end
   local box, n = box_for(op, opts), nin or nout or 0
   return finish(self, C.tide_comm_send_recv(box, handle, n, outs, from, ins, to), box, out)
end

-- Sends t (or a list) to the rank `by` (1) above, around a ring. Returns the tensors of the rank
-- `by` below, as new ones.
function Comm:shift(t, by, opts)
   begin(self, 'send_recv')
   by = arg.int('shift', 'by', by or 1)
   local out
   if arg.is_tensor(t) then
      out = like(t, rows_of(t))
   else
      local _, n = arg.tensors('shift', 't', t)
      out = {}
      for i = 1, n do out[i] = like(t[i], rows_of(t[i])) end
   end
   return self:send_recv(out, (self.rank - by) % self.size, t, (self.rank + by) % self.size, opts)
end

-- Returns when every rank has called it.
function Comm:barrier(opts)
   local handle = begin(self, 'barrier')
   local box = box_for('barrier', opts)
   return finish(self, C.tide_comm_barrier(box, handle), box, nil)
end

-- ---- byte strings and plain data ------------------------------------------------------------

-- Returns the string of root (0) on every rank.
function Comm:broadcast_bytes(text, root)
   local handle = begin(self, 'broadcast_bytes')
   root = rank_of(self, 'broadcast_bytes', 'root', root)
   if self.rank == root then arg.string('broadcast_bytes', 'text', text) else text = '' end
   local box = new_blob_box()
   own.check(self.ctx, C.tide_comm_broadcast_bytes(box, handle, text, #text, root))
   return own.take_blob(box)
end

-- Returns every rank's string, as a list.
function Comm:all_gather_bytes(text)
   local handle = begin(self, 'all_gather_bytes')
   arg.string('all_gather_bytes', 'text', text)
   local sizes, list, at = new_counts(self.size), {}, 1
   local box = new_blob_box()
   own.check(self.ctx, C.tide_comm_all_gather_bytes(box, handle, text, #text, sizes))
   local all = own.take_blob(box)
   for i = 1, self.size do
      local n = tonumber(sizes[i - 1])
      list[i] = all:sub(at, at + n - 1)
      at = at + n
   end
   return list
end

-- Returns the plain data (see plain.lua) of root (0) on every rank.
function Comm:broadcast_object(value, root)
   begin(self, 'broadcast_object')
   root = rank_of(self, 'broadcast_object', 'root', root)
   local text = self.rank == root and plain.encode(value, 'broadcast_object') or nil
   return plain.decode(self:broadcast_bytes(text, root))
end

-- Returns every rank's plain data as a list; a nil is a hole at rank + 1.
function Comm:all_gather_object(value)
   begin(self, 'all_gather_object')
   local list = self:all_gather_bytes(plain.encode(value, 'all_gather_object'))
   for i = 1, self.size do list[i] = plain.decode(list[i]) end
   return list
end

-- ---- the communicator itself ----------------------------------------------------------------

-- Splits the communicator: ranks with the same color form one of their own, in the order of key
-- (default: the rank here). Returns it; nil for a rank with color nil.
function Comm:split(color, key, name)
   local handle = begin(self, 'split')
   color = color == nil and -1 or arg.int('split', 'color', color, 0, 2^31 - 1)
   key = arg.int('split', 'key', key == nil and self.rank or key, -2^31, 2^31 - 1)
   if name ~= nil then arg.string('split', 'name', name) end
   local box = new_box()
   local rc = own.check(self.ctx, C.tide_comm_split(box, handle, color, key, name))
   if rc ~= 0 then return nil end
   return M.wrap(box, ('%s/%d.%d'):format(self.id, self:traffic().ncall, color))
end

-- Sets how many seconds a call waits for the other ranks.
function Comm:set_timeout(seconds)
   local handle = begin(self, 'set_timeout')
   arg.finite('set_timeout', 'seconds', seconds, 1e-3, 1e8)
   own.check(self.ctx, C.tide_comm_set_timeout(handle, seconds))
end

-- Prepares the memory of t for many collectives: see tide_comm_register.
function Comm:register(t)
   local handle = begin(self, 'register')
   own.check(self.ctx, C.tide_comm_register(handle, arg.tensor('register', 't', t)))
   return t
end

-- Makes every call of every rank fail from now on, with this reason.
function Comm:abort(reason)
   C.tide_comm_abort(begin(self, 'abort'), reason and tostring(reason) or nil)
end

-- Ends a turn of this rank of an MPI job's world; see tide_comm_pause.
function Comm:pause() own.check(self.ctx, C.tide_comm_pause(begin(self, 'pause'))) end

-- Begins a turn of this rank.
function Comm:resume() own.check(self.ctx, C.tide_comm_resume(begin(self, 'resume'))) end

-- Returns the error that every call now raises, or nil.
function Comm:failure()
   local rc = C.tide_comm_status(begin(self, 'failure'))
   if rc == 0 then return nil end
   return status.new(rc, 'comm', ffi.string(C.tide_error(self.ctx).message))
end

-- Returns the last (at most 256) collectives, oldest first: a list of tables.
function Comm:history()
   local handle, list, r = begin(self, 'history'), {}, ffi.new 'tide_comm_record'
   while own.check(self.ctx, C.tide_comm_history(handle, #list, r)) == 0 do
      list[#list + 1] = {
         seq = tonumber(r.seq), count = tonumber(r.count), begin = r.begin, finish = r['end'],
         op = ffi.string(C.tide_coll_name(r.op)), async = r.async == 1, site = ffi.string(r.site),
         status = r.status == C.TIDE_MORE and 'under way' or status.code[r.status],
         reduce = r.reduce >= 0 and ffi.string(C.tide_reduce_name(r.reduce)) or nil,
         dtype = r.dtype >= 0 and arg.dtype_name[r.dtype] or nil,
         root = r.root >= 0 and r.root or nil,
      }
   end
   return list
end

local function traffic_of(self, op)
   local stats = ffi.new 'tide_comm_stats'
   own.check(self.ctx, C.tide_comm_traffic(begin(self, op), stats))
   return stats
end

-- Calls, and messages and bytes sent within a host ([1]) and between hosts ([2]).
function Comm:traffic()
   local stats = traffic_of(self, 'traffic')
   return {
      ncall = tonumber(stats.ncall),
      nmessage = { tonumber(stats.nmessage[0]), tonumber(stats.nmessage[1]) },
      nbyte = { tonumber(stats.nbyte[0]), tonumber(stats.nbyte[1]) },
   }
end

-- Returns the seconds that this rank has spent in blocking collectives and in waiting for
-- asynchronous ones.
function Comm:waited() return traffic_of(self, 'waited').seconds end

-- Leaves the communicator now instead of when it is collected. Idempotent.
function Comm:close() own.close(self, C.tide_comm_release) end

return M
