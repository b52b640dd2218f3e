-- Ranks that are threads of one process and share one GPU: every collective on CUDA tensors, and
-- what trains over it.
--
-- Not found by its name: emulated_device_spec.lua runs it on emulated threads.

local ranks = require 'spec.comm.ranks'
local wide = require 'spec.support.wide'

local collectives = require 'spec.comm.kinds'

describe('collectives of ranks on one GPU', function()
   for _, n in ipairs(wide and { 1, 3 } or { 3 }) do
      for _, name in ipairs(collectives) do
         it(('%s on %d ranks'):format(name, n), function()
            local out = ranks.run(n, function(comm, which)
               require('tide').default().device = 'cuda'
               return require('spec.comm.cases')(comm, which)
            end, name)
            for _, ncase in ipairs(out) do assert.equal(64, ncase) end
         end)
      end
   end

   for _, name in ipairs(collectives) do
      it(name .. ' of a rank alone', function()
         local out = ranks.run(1, function(_, which)
            local tide = require 'tide'
            tide.default().device = 'cuda'
            local alone = tide.comm.solo()
            assert(alone.transport == 'self')
            return require('spec.comm.cases')(alone, which)
         end, name)
         assert.same({ 64 }, out)
      end)
   end

   it('give the bits that ranks on the host get', function()
      for _, dtype in ipairs { 'f32', 'bf16', 'f16', 'f64' } do
         local out = ranks.run(3, function(comm, kind)
            local tide = require 'tide'
            tide.seed(comm.rank)
            local x = tide.randn({ 5003 }):to(kind)
            local bits = {}
            for i, where in ipairs { 'cpu', 'cuda' } do
               bits[i] = comm:all_reduce(x:to(where):clone()):to('cpu'):to_string_bytes()
                  .. comm:all_reduce(x:to(where):clone(), 'mean'):to('cpu'):to_string_bytes()
            end
            return bits[1] == bits[2]
         end, dtype)
         assert.same({ true, true, true }, out)
      end
   end)

   it('refuse what is half on the host', function()
      local rows = ranks.run(2, function(comm)
         local tide = require 'tide'
         local mixed = { tide.ones { 2 }, tide.ones({ 2 }, { device = 'cuda' }) }
         local _, e = pcall(comm.all_reduce, comm, mixed)
         local where = comm.rank == 0 and 'cpu' or 'cuda'
         local _, f = pcall(comm.all_reduce, comm, tide.ones({ 2 }, { device = where }))
         return { e.code, f.code, tostring(f) }
      end)
      for r = 1, 2 do
         assert.same({ 'E_DEVICE', 'E_COMM' }, { rows[r][1], rows[r][2] })
         assert.is_truthy(rows[r][3]:find('on a device', 1, true), rows[r][3])
      end
   end)

   it('send and receive while another rank does neither', function()
      local out = ranks.run(4, function(comm)
         local tide = require 'tide'
         local r = comm.rank
         local device = r < 2 and 'cuda' or 'cpu'
         local x = tide.full({ 5000 }, r + 1, { device = device })
         local y = tide.zeros({ 5000 }, { device = device })
         local sends, takes = r == 0 or r == 2, r == 1 or r == 2       -- 0 to 1, 2 to itself
         for i = 1, 3 do
            local work = comm:send_recv(takes and y or nil, takes and (r == 2 and 2 or 0) or nil,
               sends and x or nil, sends and (r == 2 and 2 or 1) or nil, { async = i > 1 })
            if i > 1 then work:wait() end
         end
         return y:sum():item() / 5000
      end)
      assert.same({ 0, 1, 3, 0 }, out)
      local rows = ranks.run(2, function(comm)
         local tide = require 'tide'
         local x = tide.ones({ 2 }, { device = comm.rank == 0 and 'cuda' or 'cpu' })
         local _, e = pcall(comm.send_recv, comm, comm.rank == 1 and x or nil,
            comm.rank == 1 and 0 or nil, comm.rank == 0 and x or nil, comm.rank == 0 and 1 or nil)
         return { e.code, tostring(e) }
      end)
      for r = 1, 2 do
         assert.equal('E_COMM', rows[r][1])
         assert.matches('rank 0 sends from a device to rank 1, which receives on the host',
            rows[r][2], 1, true)
      end
   end)
end)

-- fn(rank, n, where) on two ranks, for the host and for the GPU that they share.
local function both(fn)
   local host = require 'spec.support.ranks'
   return host.run(2, fn, 'cpu'), host.run(2, fn, 'cuda')
end

local function equal(want, got, room)
   assert.equal(#want, #got)
   for i = 1, #want do
      local good = math.abs(want[i] - got[i]) <= room * math.max(1, math.abs(want[i]))
      assert.is_true(good, ('number %d: %.9g, expected %.9g'):format(i, got[i], want[i]))
   end
end

describe('training of ranks on one GPU', function()
   it('shards a model as on the host', function()
      local want, got = both(function(_, _, where)
         require('tide').default().device = where
         local r = require('spec.parallel.fsdp_case').train { fsdp = { device = where }, steps = 2 }
         return { losses = r.losses, weights = r.weights }
      end)
      for r = 1, 2 do
         equal(want[r].losses, got[r].losses, 1e-4)
         equal(want[r].weights, got[r].weights, 2e-3)
      end
   end)

   it('cuts a sequence as on the host', function()
      local want, got = both(function(rank, n, where)
         require('tide').default().device = where
         return (require('spec.parallel.cp_case').losses(rank, n, { sizes = { cp = 2 }, steps = 1,
            rows = 2, seq = 12 }))
      end)
      for r = 1, 2 do equal(want[r], got[r], 1e-4) end
   end)
end)

-- ---- calls without a wait --------------------------------------------------------------------

local driver = require('spec.cuda.emulated').driver()

-- body sees comm, tide and what follows; its value on each rank.
local function values(n, body, ...)
   return ranks.run(n, function(comm, text, ...)
      local tide = require 'tide'
      tide.default().device = 'cuda'
      return assert(loadstring('local comm, tide = ... ' .. text))(comm, tide, ...)
   end, body, ...)
end

-- What a collective of two ranks makes of x, 4000 numbers 32 (rank + 1): its call, and for each
-- rank the sum of what it has then.
local calls = {
   { 'comm:all_reduce(x, "sum", opts)', 4000 * 96, 4000 * 96 },
   { 'comm:reduce(x, 1, "sum", opts)', 4000 * 32, 4000 * 96 },
   { 'comm:broadcast(x, 1, opts)', 4000 * 64, 4000 * 64 },
   { 'comm:all_gather(x, opts)', 4000 * 96, 4000 * 96 },
   { 'comm:all_gather_v(x, { 4000, 4000 }, nil, opts)', 4000 * 96, 4000 * 96 },
   { 'comm:reduce_scatter(x, "sum", opts)', 2000 * 96, 2000 * 96 },
   { 'comm:reduce_scatter_v(x, { 1500, 2500 }, "sum", nil, opts)', 1500 * 96, 2500 * 96 },
   { 'comm:all_to_all(x, opts)', 2000 * 96, 2000 * 96 },
   { 'comm:all_to_all_v(x, { 2000, 2000 }, { 2000, 2000 }, nil, opts)', 2000 * 96, 2000 * 96 },
   { 'comm:gather(x, 1, opts)', 0, 4000 * 96 },
   { 'comm:scatter(tide.zeros { 2000 }, comm.rank == 1 and x or nil, 1, opts)', 2000 * 64,
      2000 * 64 },
   { 'comm:shift(x, 1, opts)', 4000 * 64, 4000 * 32 },
}

describe('collectives of ranks on one GPU that are under way', function()
   -- Whichever rank's device runs first, it finds what the others' kernels compute; what a rank
   -- overwrites after the call is not what the others find; where a result goes, other numbers were
   -- on their way before.
   for _, case in ipairs(calls) do
      it('are in order with what ranks compute: ' .. case[1]:match '^comm:([%w_]+)', function()
         local out = values(2, ([[
            local sums = {}
            for _, opts in ipairs { false, { async = true } } do
               opts = opts or nil
               for first = 0, 1 do
                  local x = tide.full({ 4000 }, comm.rank + 1)
                  for _ = 1, 5 do x = x + x end
                  local other = tide.full({ 8000 }, -7)
                  other:release()
                  local y = %s
                  if opts then y = y:wait() end
                  if y then y = y:clone() end
                  x:fill_(-1)
                  if comm.rank ~= first then comm:barrier() end
                  assert(x:sum():item() == -4000)
                  sums[#sums + 1] = y and y:sum():item() or 0
                  if comm.rank == first then comm:barrier() end
               end
            end
            return sums
         ]]):format(case[1]))
         for r = 1, 2 do
            local want = case[r + 1]
            assert.same({ want, want, want, want }, out[r])
         end
      end)
   end

   it('do not make the host wait, called either way', function()
      if not driver then return end
      local out = values(2, [[
         local driver = require('spec.cuda.emulated').driver()
         local function waits() comm:barrier() return tonumber(driver.tide_emulate_waits()) end
         local x = comm:all_reduce(tide.ones { 300 })       -- memory, stream, events
         local before = waits()
         for _ = 1, 3 do
            comm:all_reduce(x)
            local a = comm:all_gather(x, { async = true })
            local b = comm:reduce_scatter(a:wait(), 'sum', { async = true })
            comm:shift(b:wait())
            a, b = nil, nil
            collectgarbage()
         end
         local after = waits()
         comm:barrier()
         local sum = x:sum():item()
         return { after - before, sum, waits() > after }
      ]])
      assert.same({ { 0, 4800, true }, { 0, 4800, true } }, out)
   end)

   it('follow one another where nobody has waited for the first', function()
      local out = values(3, [[
         local sums = {}
         for first = 0, 2 do
            local x = tide.full({ 4000 }, comm.rank + 1)
            local a = comm:broadcast(x, 0, { async = true })
            comm:all_reduce(x)
            a:wait()
            local y = x:clone()
            if comm.rank ~= first then comm:barrier() end
            sums[#sums + 1] = y:sum():item()
            if comm.rank == first then comm:barrier() end
         end
         return sums
      ]])
      for r = 1, 3 do assert.same({ 12000, 12000, 12000 }, out[r]) end
   end)

   it('give memory back in time, and no sooner', function()
      local out = values(3, [[
         local sum = 0
         for i = 1, 30 do
            local x = tide.full({ 1000 }, i) + comm.rank
            local y = comm:all_gather(x)
            x:release()
            local work = comm:all_reduce(tide.full({ 1000 }, i), 'sum', { async = true })
            local other = tide.full({ 1000 }, -100) * 3         -- perhaps where x was
            local z = work:wait()
            work = nil
            comm:all_reduce(other)
            sum = sum + y:sum() / 1000 + z:sum() / 1000 + other:sum() / 1000 + 900
         end
         return sum:item()
      ]])
      for r = 1, 3 do assert.equal(465 * 6 + 30 * 3, out[r]) end
   end)

   it('leave alone what is never waited for', function()
      local out = values(2, [[
         local x = tide.ones { 4000 }
         comm:all_reduce(x, 'sum', { async = true })
         for _ = 1, 5 do comm:all_gather(tide.ones { 4000 }, { async = true }) end
         collectgarbage()
         for _ = 1, 10 do tide.full({ 4000 }, 7) end       -- not where those are
         for _ = 1, 20 do comm:barrier() end               -- each lets go of what is done
         return x:sum():item()
      ]])
      assert.same({ 8000, 8000 }, out)
   end)

   it('are under way when their communicator goes', function()
      local out = values(2, [[
         local sums = {}
         for i = 1, 40 do
            local part = comm:split(0)
            local x = tide.full({ 3000 }, i + comm.rank)
            local work = i % 2 == 0 and part:all_gather(x, { async = true })
            local y = work and work:wait() or part:all_gather(x)
            work = nil
            x:release()
            part:close()
            local other = tide.full({ 3000 }, -5)
            if comm.rank == i % 2 then comm:barrier() end
            sums[i] = y:sum():item() / 3000
            if comm.rank ~= i % 2 then comm:barrier() end
            other:release()
         end
         return sums
      ]])
      for r = 1, 2 do
         assert.equal(40, #out[r])
         for i = 1, 40 do assert.equal(2 * i + 1, out[r][i]) end
      end
   end)

   -- Each rank has its turn to be first: until it has looked, the other one does not take part, so
   -- none of its collectives is done.
   it('give back all that was never waited for when it goes', function()
      local mark = os.tmpname()
      local out = values(2, [[
         local mark, seen = select(3, ...), {}
         local function live()
            collectgarbage()
            collectgarbage()
            return tide.stats().live
         end
         local function has_looked(rank)
            for line in io.lines(mark) do
               if line == tostring(rank) then return true end
            end
         end
         comm:all_reduce(tide.ones { 4000 })
         for first = 0, 1 do
            local before, part = live(), comm:split(0)
            while comm.rank ~= first and not has_looked(first) do end
            for _ = 1, 20 do part:all_gather(tide.ones { 4000 }, { async = true }) end
            if comm.rank == first then
               seen[1] = live() - before > 0
               local f = io.open(mark, 'a')
               f:write(first, '\n')
               f:close()
            end
            part:close()
            seen[2 + first] = live() - before
         end
         return seen
      ]], mark)
      os.remove(mark)
      assert.same({ { true, 0, 0 }, { true, 0, 0 } }, out)
   end)

   it('end by the timeout where a rank does not come', function()
      local out = values(2, [[
         local part = comm:split(0)
         local x = part:all_reduce(tide.ones { 50 })
         if comm.rank == 1 then comm:barrier() else part:set_timeout(0.3) end
         local _, e = pcall(part.all_reduce, part, tide.ones { 4000 })
         local _, f = pcall(part.all_gather, part, x)
         if comm.rank == 0 then comm:barrier() end
         return { e.code, f.code, x:sum():item() }
      ]])
      for r = 1, 2 do assert.same({ 'E_TIMEOUT', 'E_TIMEOUT', 100 }, out[r]) end
   end)

   -- One copy of one rank is refused: every rank is told by the call, by whatever looks at the
   -- device next, once, and by every later call.
   for _, async in ipairs { false, true } do
      it('fail on every rank if one device call fails' .. (async and ', asynchronous' or ''),
         function()
            if not driver then return end
            local out = values(2, [[
               local driver = require('spec.cuda.emulated').driver()
               local opts = select(3, ...) and { async = true } or nil
               local x = comm:all_gather(tide.ones { 4000 })
               assert(x:sum():item() == 8000)
               comm:barrier()
               if comm.rank == 0 then driver.tide_emulate_refuse(3) end
               comm:barrier()
               local function gather()
                  local y = comm:all_gather(x, opts)
                  return opts and y:wait() or y
               end
               local list = {}
               local function try(fn, ...)
                  local good, e = pcall(fn, ...)
                  list[#list + 1] = good and 'ok' or e.code
                  return tostring(e)
               end
               local said = try(gather)
               try(function() return x:sum():item() end)
               try(function() return x:sum():item() end)
               try(gather)
               list[#list + 1] = said:find('its device failed in #', 1, true) and 'told' or said
               return list
            ]], async)
            local want = { 'E_PEER', 'E_PEER', 'ok', 'E_PEER', 'told' }
            assert.same({ want, want }, out)
         end)
   end
end)

describe('a training step of ranks on one GPU', function()
   for _, kind in ipairs { 'dp', 'fsdp', 'tp', 'cp' } do
      it('does not make the host wait: ' .. kind, function()
         if not driver then return end
         local out = require('spec.support.ranks').run(2, function(rank, n, name)
            local tide = require 'tide'
            tide.default().device = 'cuda'
            local comm, emulator = tide.comm.world(), require('spec.cuda.emulated').driver()
            local function waits()
               comm:barrier()
               local now = tonumber(emulator.tide_emulate_waits())
               comm:barrier()
               return now
            end
            local step = require('spec.cuda.near_steps')[name](rank, n)
            local before_all = step():item()
            step()                                     -- memory and state are there
            local before = waits()
            step()
            local loss = step()
            local after = waits()
            return { after - before, loss:item() < before_all, waits() > after }
         end, kind)
         assert.same({ { 0, true, true }, { 0, true, true } }, out)
      end)
   end

   it('tells of ids and targets that are none, though it does not wait', function()
      local out = require('spec.support.ranks').run(2, function(_, n)
         local tide = require 'tide'
         tide.default().device = 'cuda'
         local axis = tide.parallel.mesh({ { 'tp', n } }):axis 'tp'
         local model = tide.parallel.tensor_parallel(
            tide.model.llama(require('spec.parallel.cp_case').config, { seed = 3 }), axis)
         local function tokens(last)
            return tide.tensor({ { 1, 2, 28, last } }, { dtype = 'i64' })
         end
         local list = {}
         for _, row in ipairs { { 3, 4 }, { 29, 4 }, { -1, 4 }, { 3, 29 }, { 3, -100 },
                                { 3, -1 } } do
            local good, e = pcall(function()
               return model:loss(tokens(row[1]), tokens(row[2]), { count = 4 }):item()
            end)
            list[#list + 1] = good and 'ok' or e.code .. tostring(e):match ' index %-?%d+ '
         end
         return list
      end)
      local want = { 'ok', 'E_ARG index 29 ', 'E_ARG index -1 ', 'E_ARG index 29 ', 'ok',
         'E_ARG index -1 ' }
      assert.same({ want, want }, out)
   end)
end)
