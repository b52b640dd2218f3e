-- What the MPI specs run on every rank: `tide run spec/comm/mpi_case.lua NAME WORDS`. Each case
-- prints what the spec looks for and raises when something is wrong.

local tide = require 'tide'
local fd = require 'tide.ffi.dist'
local tensor = tide.tensor

local case = {}
local name, words = ..., { select(2, ...) }

local function world(opts) return tide.comm.init(opts or { timeout = 1000 }) end

function case.probe()
   print(world { transport = 'mpi' })
end

local collectives = require 'spec.comm.kinds'

-- The table of all transports.
function case.table(check)
   local table_of = require 'spec.comm.cases'
   local comm, total = world { check = check ~= 'unchecked' }, 0
   for _, op in ipairs(collectives) do
      local n = table_of(comm, op)
      if type(n) ~= 'number' then error(op .. ': ' .. n) end
      total = total + n
   end
   print(('%s: %d cases'):format(comm.transport, total))
end

-- One number for the bits of many reductions, to compare with other transports.
function case.bits()
   local comm, bytes = world(), {}
   local function put(t) bytes[#bytes + 1] = t:to_string_bytes() end
   for _, dtype in ipairs { 'f32', 'bf16', 'f16', 'f64' } do
      for _, op in ipairs { 'sum', 'mean', 'prod' } do
         for _, count in ipairs { 3, 1021, 12 * 1001 } do
            tide.seed(17 + comm.rank)
            local x = (tide.randn { count } * 3):to(dtype)
            put(comm:all_reduce(x:clone(), op))
            local list = { x:slice(1, 1, 2):contiguous(), x:clone(), x:slice(1, 3, 3):contiguous() }
            for _, t in ipairs(comm:all_reduce(list, op)) do put(t) end
            if count % comm.size == 0 then
               put(comm:all_gather(comm:reduce_scatter(x, op)))
            end
            local root = comm.size - 1
            put(comm:broadcast(comm:reduce(x:clone(), root, op), root))
         end
      end
   end
   local hash = require('tide.ffi.io').xxh64(table.concat(bytes))
   if comm.rank == 0 then print('bits ' .. tostring(hash)) end
end

-- Beyond a chunk, uneven, in place, and as a list of many.
function case.large()
   local comm = world()
   local n, me, size = 3 * 1500000 + 1, comm.rank, comm.size
   local sum = size * (size + 1) / 2
   assert(comm:all_reduce(tide.full({ n }, me + 1)):equal(tide.full({ n }, sum)), 'all_reduce')
   local r = comm:reduce(tide.full({ n }, me + 1), 1)
   assert(r:equal(tide.full({ n }, me == 1 and sum or me + 1)), 'reduce')
   assert(comm:broadcast(tide.full({ n }, me), 1):equal(tide.full({ n }, 1)), 'broadcast')
   local part = comm:reduce_scatter(tide.full({ size * n }, me + 1))
   assert(part:equal(tide.full({ n }, sum)), 'reduce_scatter')
   local s = comm:shift(tide.full({ n }, me), 1)
   assert(s:equal(tide.full({ n }, (me - 1) % size)), 'shift')
   local list = {}
   for i = 1, 300 do
      list[i] = tide.full({ i * 50 }, me + i, { dtype = i % 7 == 0 and 'f64' or 'f32' })
   end
   comm:all_reduce(list)
   for i = 1, 300 do
      assert(list[i]:at(1) == sum + size * (i - 1) and list[i]:at(i * 50) == list[i]:at(1), 'list')
   end
   print 'large fine'
end

function case.split()
   local comm = world()
   for round = 1, 200 do
      local half = comm:split(comm.rank % 2, -comm.rank, 'half')
      local none = comm:split(comm.rank == 0 and 0 or nil)
      assert((none ~= nil) == (comm.rank == 0), 'color nil')
      local t, u = tensor { comm.rank }, tensor { 1 }
      local work = half:all_reduce(t, 'sum', { async = true })
      comm:all_reduce(u)
      work:wait()
      local want = 0
      for r = comm.rank % 2, comm.size - 1, 2 do want = want + r end
      assert(t:item() == want and u:item() == comm.size, 'round ' .. round)
      half:close()
      if none then none:close() end
   end
   local all = comm:all_gather_object { rank = comm.rank, s = 'a\0b' }
   for r = 0, comm.size - 1 do assert(all[r + 1].rank == r and all[r + 1].s == 'a\0b') end
   print 'split fine'
end

-- ---- calls that differ ----------------------------------------------------------------------

-- What one rank does, and what the others do.
local different = {
   { 'op', function(c) c:all_reduce(tensor { 1, 2 }) end, function(c) c:barrier() end },
   { 'reduce op', function(c) c:all_reduce(tensor { 1, 2 }) end,
     function(c) c:all_reduce(tensor { 1, 2 }, 'max') end },
   { 'dtype', function(c) c:all_reduce(tensor { 1, 2 }) end,
     function(c) c:all_reduce(tensor({ 1, 2 }, { dtype = 'f64' })) end },
   { 'count', function(c) c:all_reduce(tensor { 1, 2 }) end,
     function(c) c:all_reduce(tensor { 1, 2, 3 }) end },
   { 'large count', function(c) c:all_gather(tide.zeros { 100000 }) end,
     function(c) c:all_gather(tide.zeros { 100001 }) end },
   { 'root', function(c) c:broadcast(tensor { 1, 2 }, 0) end,
     function(c) c:broadcast(tensor { 1, 2 }, 1) end },
   { 'order', function(c) c:all_gather(tensor { 1 }) c:all_reduce(tensor { 1 }) end,
     function(c) c:all_reduce(tensor { 1 }) c:all_gather(tensor { 1 }) end },
   { 'list', function(c) c:all_reduce { tensor { 1, 2 }, tensor { 3 } } end,
     function(c) c:all_reduce { tensor { 1 }, tensor { 3, 2 } } end },
   { 'counts', function(c) c:all_gather_v(tide.zeros { c.rank == 0 and 1 or 0 },
        c.size == 2 and { 1, 0 } or { 1, 0, 0 }) end,
     function(c) c:all_gather_v(tide.zeros { c.rank == 0 and 2 or 0 },
        c.size == 2 and { 2, 0 } or { 2, 0, 0 }) end },
   { 'receiver', function(c) c:send_recv(tide.zeros { 2 }, (c.rank - 1) % c.size, tide.zeros { 2 },
        (c.rank + 1) % c.size) end,
     function(c) c:send_recv(tide.zeros { 3 }, (c.rank - 1) % c.size, tide.zeros { 2 },
        (c.rank + 1) % c.size) end },
   { 'split', function(c) c:split(0) end, function(c) c:barrier() end },
}

function case.mismatch()
   local total = 0
   for odd = 0, world().size - 1 do
      for _, row in ipairs(different) do
         local comm = fd.mpi(nil, { timeout = 1000 })
         local ok, e = pcall(row[comm.rank == odd and 2 or 3], comm)
         local what = ('%s, rank %d differs'):format(row[1], odd)
         assert(not ok and e.code == 'E_COMM', what .. ': ' .. tostring(e))
         local _, sites = e.message:gsub('mpi_case.lua:%d+', '')
         assert(sites >= 2 and e.message:find 'no data was moved', what .. ': ' .. e.message)
         local again, e2 = pcall(comm.barrier, comm)
         assert(not again and e2.code == 'E_COMM' and e2.message == e.message, 'poison: ' .. what)
         comm:close()
         total = total + 1
      end
   end
   world():barrier()                        -- untouched by the others' ends
   print(('%d mismatches'):format(total))
end

-- Calls of two communicators in another order end at once, unless the ranks would meet later. A
-- call that has failed does not wait any more.
function case.crossed()
   local comm = world()
   local a, b, first = comm:split(0, 0, 'a'), comm:split(0, 0, 'b'), comm.rank == 0
   local function nap()
      local till = tide.clock() + 0.4
      while tide.clock() < till do end
   end
   local left = comm:split(0, 0, 'left')
   left:set_timeout(0.05)
   if not first then assert(not pcall(left.barrier, left)) else nap() end
   if not first then nap() nap() end
   comm:barrier()
   for late = 0, 1 do
      if comm.rank == late then nap() end
      local work = a:all_reduce(tensor { 1 }, 'sum', { async = comm.rank == 1 })
      b:barrier()
      if comm.rank == 1 then work:wait() end
   end
   local ok, e = pcall(function()
      if first then a:all_reduce(tensor { 1 }) else b:barrier() end
      if first then b:barrier() else a:all_reduce(tensor { 1 }) end
   end)
   assert(not ok and e.code == 'E_COMM', tostring(e))
   for _, line in ipairs { 'ranks wait for each other; no data was moved',
      "rank 0 waits in #3 all_reduce(sum, f32, 1 elements) on 'a' at ",
      "rank 1 waits in #3 barrier() on 'b' at " } do
      assert(e.message:find(line, 1, true), e.message)
   end
   comm:barrier()
   print 'crossed calls ended'
end

-- Worlds made and closed leave nothing that fills up.
function case.cycles()
   local comm
   for _ = 1, 100 do
      comm = fd.mpi(nil, { timeout = 1000 })
      assert(comm:all_reduce(tensor { 1 }):item() == comm.size)
      comm:close()
   end
   print 'cycles fine'
end

-- ---- faults: rank 1 does something else than the second all_reduce ---------------------------

local fault = {
   error = function() error 'planned failure' end,
   leave = function() os.exit(0) end,
   kill = function() os.execute 'kill -9 $PPID' end,
   stop = function() os.execute 'kill -STOP $PPID' end,
   loop = function() while true do end end, -- luacheck: ignore 542
   exit = function() os.exit(3) end,
}

function case.fault(kind)
   local comm = world()
   local t = comm:all_reduce(tide.ones { 4 })
   if kind == 'stop' or kind == 'loop' then comm:set_timeout(2) end
   if comm.rank == 1 then fault[kind]() end
   comm:all_reduce(t)
   print 'not reached'
end

-- The failure is caught; the process lives on and says what it saw.
function case.caught()
   local comm, over = world(), fd.mpi(nil, { timeout = 1000 })
   comm:barrier()
   comm:set_timeout(2)
   if comm.rank == 1 then
      over:barrier()                        -- late: the others have given up
      local ok, e = pcall(comm.all_reduce, comm, tide.ones { 4 })
      assert(not ok and e.code == 'E_TIMEOUT', tostring(e))
   else
      local ok, e = pcall(comm.all_reduce, comm, tide.ones { 4 })
      assert(not ok and e.code == 'E_TIMEOUT', tostring(e))
      assert(e.message:find('rank 1 has not arrived', 1, true), e.message)
      assert(comm:failure().code == 'E_TIMEOUT')
      over:barrier()
   end
   local again = fd.mpi(nil, { timeout = 1000 })
   assert(again:all_reduce(tensor { 1 }):item() == again.size)
   print 'goes on'
end

-- Every rank fails, by itself.
function case.all()
   world():barrier()
   error 'planned failure of all'
end

-- Rank 0 catches the timeout and ends well, rank 1 hangs.
function case.hung()
   local comm = world()
   comm:barrier()
   if comm.rank == 1 then fault.loop() end
   comm:set_timeout(1)
   print(select(2, pcall(comm.barrier, comm)).code)
end

-- Waiting costs little processor time, also in an asynchronous call's thread.
function case.idle()
   local comm = world()
   comm:barrier()
   local work
   if comm.rank == 0 then
      os.execute 'sleep 2'
   end
   local start = os.clock()
   if comm.rank > 0 then
      work = comm:barrier { async = true }
      work:wait()
   else
      comm:barrier()
   end
   local used = os.clock() - start
   assert(used < 0.5, ('%.2f s of processor time in a wait of 2 s'):format(used))
   print(('idle fine, %.3f s'):format(used))
end

-- An interrupt that a collective has answered does not stop the next op.
function case.interrupt()
   local comm, ctx = world { timeout = 1000 }, tide.default()
   comm:barrier()
   if comm.rank == 0 then
      ctx:interrupt()
      ctx:interrupt()
   else
      os.execute 'sleep 0.5'                -- the barrier must not end before the interrupt is seen
   end
   local ok, e = pcall(comm.barrier, comm)
   assert(not ok and e.code == (comm.rank == 0 and 'E_INTERRUPT' or 'E_PEER'), tostring(e))
   assert((tide.ones { 2 } + 1):sum():item() == 4)
   print 'went on'
end

-- One rank ends the others' waits.
function case.abort()
   local comm = world { timeout = 1000 }
   if comm.rank == 1 then
      comm:abort 'no more data'
      print 'aborted'
   else
      local ok, e = pcall(comm.barrier, comm)
      assert(not ok and e.code == 'E_PEER', tostring(e))
      assert(e.message:find('no more data', 1, true), e.message)
      print 'told'
   end
end

-- ---- measures -------------------------------------------------------------------------------

-- The share-th smallest; a busy machine spoils the larger half.
local function quantile(list, share)
   table.sort(list)
   return list[math.max(1, math.ceil(#list * share))]
end

-- all_reduce of so many bytes, with and without the comparison of calls, against the MPI calls of
-- the same algorithm (all-to-all, sum, all-gather), alternated. Open MPI only.
function case.bench(bytes, rounds)
   local ffi, C = require 'ffi', require('tide.ffi.lib').C
   ffi.cdef [[
      int MPI_Alltoall(const void *, int, void *, void *, int, void *, void *);
      int MPI_Allgather(const void *, int, void *, void *, int, void *, void *);
      extern char ompi_mpi_comm_world[], ompi_mpi_byte[];
   ]]
   local comm, bare = world(), fd.mpi(nil, { check = false })
   local M = ffi.load 'libmpi.so.40'
   local byte, all = ffi.cast('void *', M.ompi_mpi_byte), ffi.cast('void *', M.ompi_mpi_comm_world)
   local n, size = tonumber(bytes or 2^20) / 4, comm.size
   local part = n / size * 4
   local t, parts, rows = tide.ones { n }, tide.ones { size, n / size }, {}
   for r = 1, size do rows[r] = parts:select(1, r) end
   local from, to = C.tide_tensor_data(t), C.tide_tensor_data(parts)
   local run = {
      checked = function() comm:all_reduce(t, 'mean') end,
      unchecked = function() bare:all_reduce(t, 'mean') end,
      raw = function()
         M.MPI_Alltoall(from, part, byte, to, part, byte, all)
         for r = 2, size do rows[1]:add_(rows[r]) end
         M.MPI_Allgather(to, part, byte, from, part, byte, all)
      end,
      calls = function()
         M.MPI_Alltoall(from, part, byte, to, part, byte, all)
         M.MPI_Allgather(to, part, byte, from, part, byte, all)
      end,
   }
   local spans = { checked = {}, unchecked = {}, raw = {}, calls = {} }
   for _ = 1, tonumber(rounds or 200) do
      for _, kind in ipairs { 'checked', 'raw', 'unchecked', 'calls' } do
         comm:barrier()
         local start = C.tide_trace_clock()
         run[kind]()
         table.insert(spans[kind], (C.tide_trace_clock() - start) * 1e6)
      end
   end
   if comm.rank > 0 then return end
   for _, share in ipairs { 0.25, 0.5 } do
      local raw = quantile(spans.raw, share)
      for _, kind in ipairs { 'checked', 'unchecked', 'raw', 'calls' } do
         local us = quantile(spans[kind], share)
         print(('%3d %% %-10s %8.1f us  %5.2f of raw with sum'):format(share * 100, kind, us,
            us / raw))
      end
   end
end

function case.threads() print('threads ' .. tide.default():nthread()) end

assert(case[name], 'no case ' .. tostring(name))(unpack(words))
