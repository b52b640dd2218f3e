-- A rank that fails, leaves, hangs: the others end in time with the cause, and the process goes on.

local ranks = require 'spec.comm.ranks'
local tide = require 'tide'

local function seconds(fn)
   local begin = tide.clock()
   fn()
   return tide.clock() - begin
end

-- Less than the timeout of the group, and enough for a machine that is busy with other things.
local SOON = 120

describe('a Lua error on one rank', function()
   for _, n in ipairs { 2, 3, 8 } do
      it('ends ' .. n .. ' ranks at once, with the cause', function()
         local rows
         local time = seconds(function()
            rows = ranks.try(n, nil, function(comm)
               local t = require('tide').ones { 10 }
               for i = 1, 1000 do
                  comm:all_reduce(t)
                  if i == 17 and comm.rank == 1 then error('boom on purpose') end
               end
            end)
         end)
         assert.is_true(time < SOON, time)
         for rank = 0, n - 1 do
            local row = rows[rank + 1]
            assert.is_truthy(row.message:find('boom on purpose', 1, true), row.message)
            assert.equal(rank == 1 and 'E_HOST' or 'E_PEER', row.status)
         end
      end)
   end

   it('reaches ranks that wait in another communicator', function()
      local rows
      local time = seconds(function()
         rows = ranks.try(4, nil, function(comm)
            local half = comm:split(comm.rank < 2 and 0 or 1, 0, 'half')
            half:barrier()
            if comm.rank == 0 then error('boom on purpose') end
            half:barrier()
            half:barrier()
            comm:barrier()
         end)
      end)
      assert.is_true(time < SOON, time)
      for rank = 1, 3 do
         assert.equal('E_PEER', rows[rank + 1].status)
         assert.is_truthy(rows[rank + 1].message:find('rank 0 failed first', 1, true))
      end
   end)

   it('is seen even if nobody tells the group', function()
      local rows
      local time = seconds(function()
         rows = ranks.try(3, { untold = true }, function(comm)
            comm:barrier()
            if comm.rank == 2 then error('boom on purpose') end
            comm:barrier()
         end)
      end)
      assert.is_true(time < SOON, time)
      for rank = 0, 1 do
         assert.equal('E_PEER', rows[rank + 1].status)
         assert.is_truthy(rows[rank + 1].message:find('rank 2', 1, true), rows[rank + 1].message)
      end
   end)
end)

describe('a failure while the others have asynchronous calls queued', function()
   -- Calls after the failure once overwrote what a slow rank still read of the call before it.
   it('ends all ranks, and no call returns what another call left', function()
      for _ = 1, 25 do
         local rows = ranks.try(8, nil, function(comm)
            local lib = require 'tide'
            local works, n = {}, comm.size
            comm:set_timeout(60)
            for i = 1, 4 do comm:all_reduce(lib.full({ 4 }, i)) end
            local t = comm:all_reduce(lib.full({ 4 }, 5000 + comm.rank))
            assert(t:at(1) == 5000 * n + n * (n - 1) / 2, 'foreign data')
            if comm.rank == 0 then error('boom on purpose') end
            for i = 1, 8 do works[i] = comm:all_reduce(lib.ones { 4 }, 'sum', { async = true }) end
            comm:barrier()
            return #works
         end)
         for rank = 0, 7 do
            assert.equal(rank == 0 and 'E_HOST' or 'E_PEER', rows[rank + 1].status)
            assert.is_truthy(rows[rank + 1].message:find('boom on purpose', 1, true))
         end
      end
   end)
end)

describe('an early return', function()
   it('ends those who wait, naming rank and last call', function()
      local rows
      local time = seconds(function()
         rows = ranks.try(3, nil, function(comm)
            comm:barrier()
            if comm.rank == 0 then return 'early' end
            comm:barrier()
         end)
      end)
      assert.is_true(time < SOON, time)
      assert.equal('OK', rows[1].status)
      for rank = 1, 2 do
         assert.equal('E_PEER', rows[rank + 1].status)
         local text = rows[rank + 1].message
         assert.is_truthy(text:find("rank 0 has left 'world' after #1 barrier", 1, true), text)
         assert.is_truthy(text:find('fault_spec.lua:%d+'), text)
      end
   end)

   it('lets asynchronous calls of the others fail, too', function()
      local rows = ranks.try(2, nil, function(comm)
         if comm.rank == 0 then return end
         local t = require('tide').ones { 4 }
         local work = comm:all_reduce(t, 'sum', { async = true })
         local ok, e = pcall(work.wait, work)
         local ok2, e2 = pcall(work.wait, work)
         return ok, e.code, ok2, e2.code, work:test()
      end)
      assert.same({ false, 'E_PEER', false, 'E_PEER', true },
         { unpack(rows[2].values, 1, 5) })
   end)
end)

describe('an endless loop on one rank', function()
   it('ends the others after the timeout, naming rank, call and place', function()
      local rows
      local time = seconds(function()
         rows = ranks.try(3, nil, function(comm)
            comm:barrier()
            comm:barrier()
            comm:set_timeout(2)             -- from here on: starting may take longer
            if comm.rank == 2 then
               repeat until comm:failure()  -- what a launcher's interrupt would end
               error(comm:failure(), 0)
            end
            comm:all_reduce(require('tide').ones { 3 })
         end)
      end)
      assert.is_true(time >= 2 and time < SOON, time)
      for rank = 0, 1 do
         local row = rows[rank + 1]
         assert.equal('E_TIMEOUT', row.status)
         assert.is_truthy(row.message:find('waited 2 s in #3 all_reduce(sum, f32, 3 elements)', 1,
            true), row.message)
         assert.is_truthy(row.message:find('rank 2 has not arrived; its last call here was #2 '
            .. 'barrier%(%) at [^\n]-fault_spec.lua:%d+'), row.message)
      end
   end)

   it('is told from waiting in another communicator', function()
      local rows = ranks.try(3, nil, function(comm)
         local other = comm:split(comm.rank > 0 and 1 or 0, 0, 'other')
         other:barrier()
         comm:barrier()                     -- from here all come soon
         if comm.rank == 2 then
            repeat until comm:failure()     -- so rank 1 waits for it, and rank 0 for both
         elseif comm.rank == 1 then
            other:barrier()
         else
            comm:set_timeout(2)
            comm:barrier()
         end
      end)
      local text = rows[1].message
      assert.equal('E_TIMEOUT', rows[1].status)
      assert.is_truthy(text:find('rank 1 has not arrived; its last call here was #2 '
         .. 'barrier() at', 1, true), text)
      assert.is_truthy(text:find("it is in #2 barrier() on 'other' at", 1, true), text)
   end)
end)

describe('ranks that wait for each other in different communicators', function()
   -- fn(comm, pair): as a function of each rank; pair: of ranks 0 and 1, 2 and 3.
   local function check(n, fn)
      local rows
      local time = seconds(function()
         rows = ranks.try(n, nil, function(comm, code)
            local pair = comm:split(math.floor(comm.rank / 2), 0, 'pair')
            return loadstring(code)(comm, pair, require 'tide')
         end, string.dump(fn))
      end)
      assert.is_true(time < SOON, time)
      return rows
   end

   it('are told so at once, each with its call', function()
      for _, async in ipairs { false, true } do
         local rows = check(4, async and function(comm, pair, lib)
            local x = lib.ones { 3 }
            if comm.rank == 3 then comm:barrier() end
            pair:all_reduce(x, 'sum', { async = true }):wait()
            comm:barrier()
         end or function(comm, pair, lib)
            if comm.rank == 3 then comm:barrier() end
            pair:all_reduce(lib.ones { 3 })
            comm:barrier()
         end)
         for rank = 2, 3 do
            local text = rows[rank + 1].message
            assert.equal('E_COMM', rows[rank + 1].status, text)
            assert.is_truthy(text:find('ranks wait for each other', 1, true), text)
            assert.is_truthy(text:find("rank 2 waits in #1 all_reduce(sum, f32, 3 elements) on "
               .. "'pair' at [^\n]-fault_spec.lua:%d+ for rank 3") or text:find("rank 2 waits in "
               .. "#1 all_reduce(sum, f32, 3 elements) on 'pair'", 1, true), text)
            assert.is_truthy(text:find("rank 3 waits in #2 barrier() on 'world'", 1, true), text)
         end
      end
   end)

   it('are not thought of where a rank only is late', function()
      local rows = check(4, function(comm, pair, lib)
         local function nap(span)
            local limit = lib.clock() + span
            while lib.clock() < limit do end
         end
         local x = lib.ones { 3 }
         for i = 1, 3 do
            local work = comm:all_reduce(x, 'sum', { async = true })
            if comm.rank == i then nap(0.9) end
            pair:all_reduce(lib.ones { 3 })
            if comm.rank == 3 - i then nap(0.9) end
            work:wait()
         end
         return 'fine'
      end)
      for rank = 0, 3 do assert.equal('fine', (rows[rank + 1].values or {})[1]) end
   end)
end)

describe('a number that is no group', function()
   it('cannot be joined', function()
      for _, number in ipairs { 12345, 0x10000, 4096 * 31, -8, 2^47 + 64 } do
         local ok, e = pcall(require('tide.ffi.dist').join, nil, number, 0)
         assert.is_false(ok)
         assert.equal('E_ARG', e.code)
      end
      local bytes = require('ffi').new('char[4096]')
      local address = tonumber(require('ffi').cast('intptr_t', bytes))
      assert.is_false(pcall(require('tide.ffi.dist').join, nil, address + (-address) % 128, 0))
   end)
end)

describe('abort', function()
   it('ends every rank with the reason', function()
      local rows
      local time = seconds(function()
         rows = ranks.try(3, nil, function(comm)
            if comm.rank == 1 then comm:abort('enough') end
            local ok, e = pcall(comm.barrier, comm)
            local failure = comm:failure()
            return ok, e.code, e.message, failure.code
         end)
      end)
      assert.is_true(time < SOON, time)
      for r = 1, 3 do
         assert.same({ false, 'E_PEER', "rank 1 aborted 'world': enough", 'E_PEER' },
            { unpack(rows[r].values, 1, 4) })
      end
   end)
end)

describe('after a failure', function()
   it('the process makes a new group and goes on', function()
      for _ = 1, 5 do
         local rows = ranks.try(2, nil, function(comm)
            if comm.rank == 0 then error('boom on purpose') end
            comm:barrier()
         end)
         assert.same({ 'E_HOST', 'E_PEER' }, { rows[1].status, rows[2].status })
         assert.same({ 3, 3 }, ranks.run(2, function(comm)
            return comm:all_reduce(require('tide').full({ 1 }, comm.rank + 1)):item()
         end))
      end
   end)
end)

describe('many groups', function()
   it('made and released leave no memory, thread or descriptor', function()
      local out = ranks.run(2, function(comm)
         local lua = require 'tide'
         local fd = require 'tide.ffi.dist'
         local function entries(folder) return #require('tide.ffi.io').listdir(folder) end
         local function pages()
            local f = io.open('/proc/self/statm')
            local rss = f:read('*a'):match('%d+ (%d+)')
            f:close()
            return tonumber(rss)
         end
         local function use(i)
            local group = comm.rank == 0 and fd.group(2) or nil
            local address = comm:broadcast_object(group and group:address())
            local c = fd.join(nil, address, comm.rank)
            local t = lua.ones { 100 }
            c:all_reduce(t, 'sum', { async = i % 2 == 0 })
            local s = c:split(0)
            s:barrier()
            if i % 3 == 0 then pcall(s.broadcast, s, lua.ones { comm.rank + 1 }) end
            comm:barrier()
            if i % 4 == 0 then c:close() end
         end
         local function cycle(i)
            use(i)
            collectgarbage()
            collectgarbage()
            comm:barrier()
         end
         -- compiled half way, a loop would leave other dead values on the Lua stack at the end
         require('spec.support.leak').interpret()
         for i = 1, 40 do cycle(i) end
         local stats, rss = lua.stats(), pages()
         local tasks, files = entries('/proc/self/task'), entries('/proc/self/fd')
         comm:barrier()
         for i = 1, 1000 do cycle(i) end
         comm:barrier()
         local after = lua.stats()
         local grown = pages() - rss
         comm:barrier()
         local tasks2, files2 = entries('/proc/self/task'), entries('/proc/self/fd')
         comm:barrier()
         return { nhost = after.nhost - stats.nhost, ntensor = after.ntensor - stats.ntensor,
            tasks = tasks2 - tasks, files = files2 - files, grown = grown }
      end)
      for r = 1, 2 do
         assert.equal(0, out[r].nhost)
         assert.equal(0, out[r].ntensor)
         assert.equal(0, out[r].tasks)
         assert.is_true(math.abs(out[r].files) <= 2, out[r].files)  -- the other rank's listing
         -- qemu-user keeps 70 pages of each thread that ended, of any program
         local native = not os.getenv 'TIDE_SPEC_SLOW'
         if native and tide.build_info():find('sanitizers: none', 1, true) then
            assert.is_true(out[r].grown < 512, out[r].grown)        -- pages
         end
      end
   end)
end)
