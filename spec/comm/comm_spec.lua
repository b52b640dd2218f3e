-- Every collective x dtype x count on worlds of threads, against plain Lua sums.

local ranks = require 'spec.comm.ranks'
local wide = require 'spec.support.wide'

local cases = require 'spec.comm.cases'

local collectives = require 'spec.comm.kinds'

describe('send_recv', function()
   it('has tensors on some ranks only, and lists of other lengths on each pair', function()
      local out = ranks.run(4, function(comm)
         local tide = require 'tide'
         local a, b = tide.full({ 3 }, comm.rank + 1), tide.full({ 2 }, comm.rank + 10)
         if comm.rank == 0 then comm:send_recv(nil, nil, { a, b }, 1)
         elseif comm.rank == 1 then comm:send_recv({ a, b }, 0, nil, nil)
         elseif comm.rank == 2 then comm:send_recv(nil, nil, { a }, 3)
         else comm:send_recv({ a }, 2, nil, nil) end
         return { a:sum():item(), b:sum():item() }
      end)
      assert.same({ { 3, 20 }, { 3, 20 }, { 9, 24 }, { 9, 26 } }, out)
   end)
end)

describe('collectives', function()
   for _, n in ipairs(wide and { 1, 2, 3, 8 } or { 1, 2, 3 }) do
      for _, name in ipairs(collectives) do
         it(('%s on %d ranks'):format(name, n), function()
            for _, ncase in ipairs(ranks.run(n, cases, name)) do assert.equal(64, ncase) end
         end)
      end
   end

   it('give the same bits as sums in rank order', function()
      for _, n in ipairs { 2, 3, 5, 16 } do
         local out = ranks.run(n, function(comm)
            local tide = require 'tide'
            local me, size, count = comm.rank, comm.size, 10007
            local function data(r, dtype)
               tide.seed(100 + r)
               local x = tide.randn({ count }) * 10
               return dtype == 'f32' and x or x:to(dtype)
            end
            for _, dtype in ipairs { 'f32', 'bf16', 'f16', 'f64' } do
               local sums = dtype == 'f64' and 'f64' or 'f32'
               local want = data(0, dtype):to(sums)
               for r = 1, size - 1 do want = want + data(r, dtype):to(sums) end
               local mean = (want / size):to(dtype):to_string_bytes()
               want = want:to(dtype):to_string_bytes()
               local t = comm:all_reduce(data(me, dtype))
               if t:to_string_bytes() ~= want then return 'all_reduce ' .. dtype end
               t = comm:all_reduce(data(me, dtype), 'mean')
               if t:to_string_bytes() ~= mean then return 'mean ' .. dtype end
               t = comm:all_reduce(data(me, dtype), 'sum', { async = true }):wait()
               if t:to_string_bytes() ~= want then return 'async ' .. dtype end
               local counts = {}
               for r = 1, size do counts[r] = r < size and 500 or count - 500 * (size - 1) end
               t = comm:reduce_scatter_v(data(me, dtype), counts)
               t = comm:all_gather_v(t, counts)
               if t:to_string_bytes() ~= want then return 'reduce_scatter_v ' .. dtype end
            end
            return 'same'
         end)
         for r = 1, n do assert.equal('same', out[r]) end
      end
   end)

   it('let NaN through and order signed numbers', function()
      local out = ranks.run(3, function(comm)
         local tide = require 'tide'
         local function each(op, values, dtype)
            local t = tide.tensor({ values[comm.rank + 1] }, { dtype = dtype })
            return comm:all_reduce(t, op):item()
         end
         for _, dtype in ipairs { 'f32', 'f64', 'bf16', 'f16' } do
            for at = 1, 3 do
               local values = { 1, 2, 3 }
               values[at] = 0 / 0
               for _, op in ipairs { 'min', 'max' } do
                  local v = each(op, values, dtype)
                  if v == v then return dtype .. ' ' .. op .. ' lost a NaN at rank ' .. at - 1 end
               end
            end
         end
         for _, dtype in ipairs { 'i64', 'i32', 'f32' } do
            if each('min', { 3, -7, 2 }, dtype) ~= -7 then return 'min ' .. dtype end
            if each('max', { -3, -7, -2 }, dtype) ~= -2 then return 'max ' .. dtype end
         end
         if each('sum', { 200, 100, 1 }, 'u8') ~= 45 then return 'u8 does not wrap' end
         return 'fine'
      end)
      for r = 1, 3 do assert.equal('fine', out[r]) end
   end)

   -- Ranks that pass the gate late must still find what the others left for this call: a seat with
   -- one page would hold the next call's already.
   it('keep small payloads of one call after the other apart', function()
      for _, n in ipairs { 2, 4, 8 } do
         local out = ranks.run(n, function(comm)
            local tide = require 'tide'
            local me, size = comm.rank, comm.size
            local t, total = tide.zeros { 512 }, size * (size + 1) / 2
            for i = 1, 1500 do
               comm:all_reduce(t:fill_(i * (me + 1)))
               if t:amin():item() ~= i * total or t:amax():item() ~= i * total then
                  return 'all_reduce ' .. i
               end
               comm:broadcast(t:fill_(me == i % size and -i or i), i % size)
               if t:amin():item() ~= -i or t:amax():item() ~= -i then return 'broadcast ' .. i end
               if i % 4 == 0 then
                  local all = comm:all_gather(t:fill_(i + me))
                  local want = size * (i + (size - 1) / 2)
                  if all:sum():item() ~= 512 * want then return 'all_gather ' .. i end
               end
            end
            return 'fine'
         end)
         for r = 1, n do assert.equal('fine', out[r]) end
      end
   end)

   it('move large blocks', function()
      local out = ranks.run(3, function(comm)
         local tide = require 'tide'
         local n, me = 3 * 1500000 + 1, comm.rank
         local t = tide.full({ n }, me + 1)
         comm:all_reduce(t)
         if not t:equal(tide.full({ n }, 6)) then return 'all_reduce' end
         local g = comm:all_gather(tide.full({ n }, me))
         for r = 1, 3 do
            local part = g:slice(1, (r - 1) * n + 1, r * n)
            if not part:equal(tide.full({ n }, r - 1)) then return 'all_gather' end
         end
         local s = comm:shift(t + me, 1)
         if not s:equal(tide.full({ n }, 6 + (me - 1) % 3)) then return 'shift' end
         return 'fine'
      end)
      for r = 1, 3 do assert.equal('fine', out[r]) end
   end)

   it('take strided inputs and parts of themselves', function()
      local out = ranks.run(2, function(comm)
         local tide = require 'tide'
         local me = comm.rank
         local t = (tide.arange(6):reshape(2, 3) + 10 * me):t()
         local g = comm:all_gather(t)
         local want = tide.cat({ tide.arange(6):reshape(2, 3):t(),
            (tide.arange(6):reshape(2, 3) + 10):t() }, 1)
         if not g:equal(want) then return 'strided all_gather: ' .. tostring(g) end
         local whole = tide.zeros { 8 }
         local part = whole:slice(1, me * 4 + 1, me * 4 + 4)
         part:fill_(me + 1)
         comm:all_gather_into(whole, part)
         if not whole:equal(tide.tensor { 1, 1, 1, 1, 2, 2, 2, 2 }) then return 'in place' end
         comm:reduce_scatter_into(part, whole)
         if not part:equal(tide.full({ 4 }, 2 * (me + 1))) then return 'reduce_scatter in place' end
         local ok, e = pcall(comm.all_reduce, comm, tide.zeros { 2, 3 }:t())
         if ok or e.code ~= 'E_SHAPE' then return 'strided output: ' .. tostring(e) end
         ok, e = pcall(comm.all_to_all_into, comm, whole, whole)
         if ok or e.code ~= 'E_ARG' then return 'shared memory: ' .. tostring(e) end
         ok, e = pcall(comm.all_reduce, comm, { whole, whole:slice(1, 8, 8) })
         if ok or e.code ~= 'E_ARG' then return 'shared list: ' .. tostring(e) end
         comm:barrier()                     -- refused calls have not counted
         return 'fine'
      end)
      for r = 1, 2 do assert.equal('fine', out[r]) end
   end)

   it('carry plain data', function()
      local out = ranks.run(3, function(comm)
         local data = { rank = comm.rank, list = { 1, 2.5, 'a\0b' }, [7] = { yes = true } }
         local all = comm:all_gather_object(data)
         for r = 0, 2 do
            local v = all[r + 1]
            if v.rank ~= r or v.list[3] ~= 'a\0b' or v[7].yes ~= true then return 'gathered' end
         end
         local got = comm:broadcast_object(comm.rank == 2 and { n = 1e300, e = {} } or nil, 2)
         if got.n ~= 1e300 or type(got.e) ~= 'table' then return 'broadcast' end
         if comm:broadcast_object(nil, 1) ~= nil then return 'nil' end
         local ok, e = pcall(comm.broadcast_object, comm, print, comm.rank)
         if ok or e.code ~= 'E_ARG' then return 'function: ' .. tostring(e) end
         return 'fine'
      end)
      for r = 1, 3 do assert.equal('fine', out[r]) end
   end)
end)

describe('split', function()
   it('makes communicators that work side by side', function()
      local out = ranks.run(6, function(comm)
         local tide = require 'tide'
         local row = comm:split(math.floor(comm.rank / 3), comm.rank, 'row')
         local col = comm:split(comm.rank % 3, -comm.rank, 'col')
         local none = comm:split(comm.rank < 2 and 0 or nil)
         if (none == nil) ~= (comm.rank >= 2) then return 'negative color' end
         for _ = 1, 50 do
            local t = tide.full({ 100 }, comm.rank)
            local u = tide.full({ 100 }, comm.rank)
            local work = row:all_reduce(t, 'sum', { async = true })
            col:all_reduce(u)
            work:wait()
            local base = math.floor(comm.rank / 3) * 3
            if t:at(100) ~= 3 * base + 3 then return 'row' end
            if u:at(1) ~= 2 * (comm.rank % 3) + 3 then return 'col' end
         end
         comm:barrier()
         if row.size ~= 3 or row.rank ~= comm.rank % 3 or row.name ~= 'row' then return 'shape' end
         if col.rank ~= 1 - math.floor(comm.rank / 3) then return 'key order' end
         return 'fine'
      end)
      for r = 1, 6 do assert.equal('fine', out[r]) end
   end)
end)

describe('work', function()
   it('keeps operands alive, in order, whatever is collected', function()
      local out = ranks.run(2, function(comm)
         local tide = require 'tide'
         local works = {}
         tide.scope(function()
            for i = 1, 100 do
               works[i] = comm:all_reduce(tide.full({ 5000 }, i), 'sum', { async = true })
            end
         end)
         collectgarbage()
         local t = comm:all_reduce(tide.ones { 3 })   -- after those before it
         for i = 1, 100 do
            if not works[i]:test() then return 'a later blocking call went first' end
            if works[i]:wait():at(5000) ~= 2 * i then return 'work ' .. i end
         end
         comm:barrier { async = true }                -- not waited for
         collectgarbage()
         local begin, finish = works[1]:times()
         if finish < begin then return 'times' end
         return t:at(1) == 2 and 'fine' or 'value'
      end)
      for r = 1, 2 do assert.equal('fine', out[r]) end
   end)

   it('that was released is told, not followed', function()
      local out = ranks.run(2, function(comm)
         local work = comm:all_reduce(require('tide').ones { 3000 }, 'sum', { async = true })
         work:wait()
         work:release()
         work:release()
         local list = {}
         for i, name in ipairs { 'wait', 'test', 'times' } do
            list[i] = tostring(select(2, pcall(work[name], work)))
            list[i + 3] = tostring(select(2, pcall(work[name], {})))
         end
         list[7] = tostring(select(2, pcall(work.release, 3)))
         return list
      end)
      for r = 1, 2 do
         for i, text in ipairs(out[r]) do
            assert.matches(i <= 3 and 'this work was released' or "argument 'work'", text, 1, true)
         end
      end
   end)

   it('proceeds during other work of its rank', function()
      local out = ranks.run(2, function(comm)
         local tide = require 'tide'
         comm:barrier()
         local t = tide.ones { 1000000 }
         local work = comm:all_reduce(t, 'sum', { async = true })
         local a = tide.ones { 700, 700 }
         local begin = tide.clock()
         for _ = 1, 1000 do
            a:matmul(a):release()
            if work:test() and tide.clock() - begin > 0.05 then break end
         end
         local finish = tide.clock()
         local _, done = work:times()
         work:wait()
         return done ~= nil and done < finish and t:at(1) == 2
      end)
      assert.is_true(out[1] and out[2])
   end)
end)

describe('a communicator', function()
   it('of one rank is the identity', function()
      local tide = require 'tide'
      local comm = require('tide.comm.solo').new()
      local t = tide.tensor { 1, 2, 3 }
      assert.equal(1, comm.size)
      for _, op in ipairs { 'sum', 'mean', 'min', 'max', 'prod' } do
         assert.same({ 1, 2, 3 }, comm:all_reduce(t, op):tolist())
      end
      assert.same({ 1, 2, 3 }, comm:all_gather(t):tolist())
      assert.same({ 1, 2, 3 }, comm:shift(t):tolist())
      assert.same({ 4 }, comm:all_gather_object(4))
      assert.equal(1, comm:split(0).size)
      comm:barrier()
      comm:close()
      comm:close()
      local ok, e = pcall(comm.barrier, comm)
      assert.is_false(ok)
      assert.equal('E_STATE', e.code)
   end)

   it('names function and argument of a wrong call', function()
      local tide = require 'tide'
      local comm = require('tide.comm.solo').new()
      local t = tide.ones { 4 }
      local wrong = {
         { 'all_reduce', nil }, { 'all_reduce', 5 }, { 'all_reduce', { 1 } },
         { 'all_reduce', t, 'avg' }, { 'all_reduce', t, 'sum', { sync = true } },
         { 'broadcast', t, 1 }, { 'broadcast', t, -1 }, { 'broadcast', t, 0.5 },
         { 'all_gather', nil }, { 'all_gather_into', tide.ones { 5 }, t },
         { 'all_gather_v', t, { 5 } }, { 'all_gather_v', t, { 1, 2 } }, { 'all_gather_v', t, 4 },
         { 'reduce_scatter_into', tide.ones { 3 }, t }, { 'all_to_all_v', t, { 4 }, { 3 } },
         { 'send_recv', t, 0, nil, nil }, { 'send_recv', t, 0, t, 0 },
         { 'send_recv', tide.ones { 3 }, 0, t, 0 }, { 'scatter', nil, t },
         { 'all_reduce', tide.ones({ 2 }, { dtype = 'i32' }), 'mean' },
         { 'all_reduce', tide.ones({ 2 }, { dtype = 'bool' }), 'sum' },
         { 'all_gather_into', tide.ones({ 4 }, { dtype = 'f64' }), t },
         { 'broadcast_bytes', 3 }, { 'all_gather_bytes', nil }, { 'split', -2 }, { 'split', 'a' },
         { 'set_timeout', 0 }, { 'set_timeout', 0 / 0 },
      }
      for i, case in ipairs(wrong) do
         local ok, e = pcall(comm[case[1]], comm, unpack(case, 2, 6))
         assert.is_false(ok, 'case ' .. i)
         assert.is_true(tide.is_error(e), 'case ' .. i .. ': ' .. tostring(e))
         assert.is_truthy(tostring(e):find('tide.' .. case[1]:gsub('_into', ''), 1, true),
            'case ' .. i .. ': ' .. tostring(e))
      end
      local x = tide.ones({ 2 }, { requires_grad = true })
      local ok, e = pcall(comm.all_reduce, comm, x * 2)
      assert.is_false(ok)
      assert.equal('E_STATE', e.code)
      tide.no_grad(function() comm:all_reduce(x) end)
      local gone = tide.ones { 2 }
      tide.scope(function() gone = tide.ones { 2 } end)
      ok, e = pcall(comm.all_reduce, comm, gone)
      assert.is_false(ok)
      assert.equal('E_GONE', e.code)
   end)

   it('takes an empty tensor that is sent for what it is', function()
      -- A view of no elements points anywhere, also at the tensor that is being received.
      local said = ranks.run(2, function(comm)
         local tide = require 'tide'
         for row = 1, 64 do
            local empty, got = tide.zeros { 1, 64, 0, 16 }, tide.empty { 1, 1, 0, 16 }
            local peer = 1 - comm.rank
            local work = comm:send_recv({ got }, peer, { empty:slice(2, row, row) }, peer,
               { async = true })
            local ok, e = pcall(empty.sum, empty)
            work:wait()
            if not ok then return ('row %d: %s'):format(row, tostring(e)) end
         end
         return 'read'
      end)
      assert.same({ 'read', 'read' }, said)
   end)

   it('remembers its last calls', function()
      local out = ranks.run(2, function(comm)
         local tide = require 'tide'
         for _ = 1, 300 do comm:barrier() end
         comm:all_reduce(tide.ones({ 4 }, { dtype = 'bf16' }), 'max')
         local list = comm:history()
         local last = list[#list]
         if #list ~= 256 or last.seq ~= 301 or list[1].seq ~= 46 then return 'window' end
         if last.op ~= 'all_reduce' or last.reduce ~= 'max' or last.dtype ~= 'bf16' then
            return 'fields'
         end
         if last.count ~= 4 or last.status ~= 'OK' or last.finish < last.begin then
            return 'result'
         end
         return last.site
      end)
      for r = 1, 2 do assert.is_truthy(out[r]:find('comm_spec.lua:%d+$')) end
   end)

   it('counts calls and bytes, simulated too', function()
      local tide = require 'tide'
      local comm = tide.comm.simulate(8, 3, 4)
      comm:all_reduce(tide.ones { 1000 })
      comm:all_gather(tide.ones { 1000 })
      comm:all_to_all(tide.ones { 800 })
      local s = comm:traffic()
      assert.equal(3, s.ncall)
      -- rank 3 is the last of its host: the ring's next rank is on the other one
      assert.same({ 3, 14 + 7 + 4 }, s.nmessage)
      assert.same({ 3 * 400, 7000 + 28000 + 4 * 400 }, s.nbyte)
   end)

   it('joins once, and only as a rank of its group', function()
      local dist = require 'tide.ffi.dist'
      local group = dist.group(2)
      local comm = dist.join(nil, group, 1)
      for _, rank in ipairs { 1, 2 } do
         local ok, e = pcall(dist.join, nil, group, rank)
         assert.is_false(ok)
         assert.equal(rank == 1 and 'E_STATE' or 'E_ARG', e.code)
      end
      comm:close()
   end)
end)
