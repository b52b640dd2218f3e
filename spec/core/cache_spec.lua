-- The caching allocator and the counters that tell of it.

local ffi = require 'ffi'
local tide = require 'tide'
local C = require('tide.ffi.lib').C
local refused = require 'spec.support.refused'

local M = 2 ^ 20
-- Elements and bytes of a large block.
local N, BYTES = 4 * M, 16 * M

local function open(params, device)
   local ctx = assert(tide.open { params = params, device = device })
   finally(function() ctx:close() end)
   return ctx
end

local function drop(ctx, list)
   for _, x in ipairs(list) do x:release() end
   return ctx:stats()
end

local function address(x)
   return tonumber(ffi.cast('uintptr_t', C.tide_tensor_data(x)))
end

-- Numbers from 1 to n by a linear congruence: the same on every run.
local function generator(seed)
   local state = seed
   return function(n)
      state = state * 16807 % (2 ^ 31 - 1)
      return math.floor(state / (2 ^ 31 - 1) * n) + 1
   end
end

-- No two of { at, size } share a byte.
local function check_apart(list)
   local sorted = { unpack(list) }
   table.sort(sorted, function(a, b) return a.at < b.at end)
   for i = 2, #sorted do
      assert.is_true(sorted[i - 1].at + sorted[i - 1].size <= sorted[i].at, 'blocks overlap')
   end
end

describe('the cache', function()
   it('cuts freed bytes to the next request and joins them again', function()
      local ctx = open ''
      local a, b = ctx:empty { N }, ctx:empty { N }
      local first = address(a)
      local s = drop(ctx, { a })
      assert.equal(BYTES, s.live)
      assert.equal(BYTES, s.cached)
      local c, d = ctx:empty { N / 2 }, ctx:empty { N / 4 }  -- both into the place of a
      assert.equal(first, address(c))
      assert.equal(BYTES / 4, ctx:stats().cached)
      s = drop(ctx, { c, b, d })
      assert.equal(0, s.live)
      assert.equal(2 * BYTES, s.cached)
      local e = ctx:empty { 2 * N }
      assert.equal(first, address(e))
      assert.equal(0, ctx:stats().cached)
      drop(ctx, { e })
   end)

   it('takes the smallest place that fits', function()
      local ctx = open ''
      local list, places = {}, {}
      for i, n in ipairs { 8, 1, 3, 1, 2, 1, 5, 1 } do
         list[i] = ctx:empty { n * M }
         places[n] = address(list[i])
      end
      drop(ctx, { list[1], list[3], list[5], list[7] })
      for _, n in ipairs { 3, 2, 8, 5 } do
         local x = ctx:empty { n * M - 1000 }
         assert.equal(places[n], address(x))
         list[#list + 1] = x
      end
      drop(ctx, list)
   end)

   it('wastes less than 64 bytes, or a page of large requests', function()
      local ctx = open('', 'null')
      for _, bytes in ipairs { 1, 64, 65, 256, 257, 1000, 65537, 262144, 262145, 3 * M + 1, 5 * M,
                               2 ^ 33 + 1 } do
         local x = ctx:empty({ bytes }, { dtype = 'u8' })
         local waste = ctx:stats().planned - bytes
         assert.is_true(waste >= 0 and waste < (bytes > 262144 and 4096 or 64),
                        bytes .. ' wastes ' .. waste)
         x:release()
      end
   end)

   it('stands up to a long random use, against a list of what is out', function()
      for seed = 1, 3 do
         local ctx = open ''
         local random, out, bytes, top, worst = generator(seed), {}, 0, 0, 0
         local low = math.huge
         for round = 1, 3000 do
            if #out > 0 and random(round % 1000 < 500 and 3 or 2) == 1 then
               local k = random(#out)
               bytes = bytes - out[k].size
               out[k].x:release()
               out[k] = out[#out]
               out[#out] = nil
            elseif bytes < 100 * M then
               local size = random(2 ^ random(22))
               local x = ctx:empty({ size }, { dtype = 'u8' })
               local at = address(x)
               assert.equal(0, at % 64)
               if size > 262144 then low = math.min(low, at) end
               out[#out + 1] = { x = x, at = at, size = size }
               bytes = bytes + size
            end
            if round % 50 == 0 then check_apart(out) end
            local s = ctx:stats()
            assert.is_true(s.live >= bytes and s.live <= bytes + #out * 4096)
            top, worst = math.max(top, s.live), math.max(worst, s.live + s.cached)
         end
         assert.is_true(worst < 1.5 * top, ('%.2f of what was needed'):format(worst / top))
         for _, o in ipairs(out) do o.x:release() end
         local whole = ctx:empty({ 90 * M }, { dtype = 'u8' })  -- all merged: one place from the
         assert.equal(low, address(whole))                   -- lowest address on
         whole:release()
         ctx:trim()
         assert.equal(0, ctx:stats().cached)
         assert.equal(0, ctx:stats().live)
      end
   end)

   it('fails cleanly at every allocation, and every byte comes home', function()
      local done
      for n = 1, 400 do
         local ctx = open ''
         ctx:param('fail_alloc', -n)                        -- from the n-th on
         local list, failed = {}, false
         for i = 1, 20 do
            local ok, x = pcall(ctx.empty, ctx, { i * 100000 })
            if ok then list[#list + 1] = x else failed = true end
            if i % 3 == 0 and list[1] then table.remove(list, 1):release() end
         end
         ctx:param('fail_alloc', 0)
         drop(ctx, list)
         ctx:trim()
         assert.equal(0, ctx:stats().live)
         assert.equal(0, ctx:stats().cached)
         ctx:close()
         if not failed then
            done = n
            break
         end
      end
      assert.is_true(done and done > 20)
   end)

   it('gives memory back when trimmed, and stays usable', function()
      local ctx = open ''
      local list = {}
      for i = 1, 8 do list[i] = ctx:empty { N + i * 400000 } end
      local s = drop(ctx, list)
      assert.is_true(s.cached > 0)
      ctx:trim()
      assert.equal(0, ctx:stats().cached)
      ctx:trim()
      assert.equal(100000, ctx:ones({ 100000 }):sum():item())
   end)

   it('gives memory back by itself when it holds far more than is in use', function()
      local ctx = open ''
      local list = {}
      for i = 1, 5 do list[i] = ctx:empty { 18 * M } end     -- 72 MB each
      local s = drop(ctx, list)
      assert.is_true(s.cached <= 2 ^ 28 + 90 * M, ('%.0f MB are kept'):format(s.cached / M))
   end)

   it('keeps nothing with cache=0', function()
      local ctx = open 'cache=0'
      local a = ctx:ones { M }
      local s = drop(ctx, { a })
      assert.equal(0, s.cached)
      assert.equal(0, s.live)
      assert.equal(M, ctx:ones({ M }):sum():item())
   end)

   it('returns every counter to zero in a loop of all sizes', function()
      local ctx = open ''
      for round = 1, 3 do
         local list = {}
         for i = 0, 24 do list[#list + 1] = ctx:empty { math.floor(1.7 ^ i) } end
         list[#list + 1] = ctx:empty { 0 }
         list[#list + 1] = ctx:empty {}
         drop(ctx, list)
         list = nil                                          -- luacheck: ignore
         ctx:collect()
         ctx:trim()
         local s = ctx:stats()
         for _, field in ipairs { 'live', 'cached', 'debt', 'ntensor', 'nnode' } do
            assert.equal(0, s[field], field .. ' in round ' .. round)
         end
      end
   end)

   it('counts the peak until it is reset', function()
      local ctx = open ''
      local a = ctx:empty { M }
      local b = ctx:empty { M }
      drop(ctx, { a, b })
      assert.equal(8 * M, ctx:stats().peak)
      ctx:reset_peak()
      assert.equal(0, ctx:stats().peak)
      local c = ctx:empty { M }
      assert.equal(4 * M, ctx:stats().peak)
      drop(ctx, { c })
   end)

   it('counts handed-out bytes as debt', function()
      local ctx = open ''
      local x = ctx:empty { M / 4 }
      for _ = 1, 5 do
         x:release()
         x = ctx:empty { M / 4 }
      end
      assert.equal(6 * M, ctx:stats().debt)
      ctx:collect()
      assert.equal(0, ctx:stats().debt)
      x:release()
   end)

   it('refuses what passes the memory parameter, and goes on', function()
      local ctx = open 'memory=8m'
      local x = ctx:empty { M }
      local err = refused('E_NOMEM', { 'alloc', '8388608', 'live' }, ctx.empty, ctx, { M + 1 })
      assert.is_truthy(err.message:find('peak', 1, true))    -- the statistics beside it
      local y = ctx:empty { M }
      refused('E_NOMEM', 'memory parameter', ctx.empty, ctx, { 1 })
      y:release()
      assert.equal(3, ctx:ones({ 3 }):sum():item())
      ctx:param('memory', 0)
      local z = ctx:empty { 4 * M }
      drop(ctx, { x, z })
   end)

   -- 32 TiB: more addresses than any machine of today can back, fewer than a process has.
   it('refuses at once what the machine does not have, on every device of the host', function()
      for _, device in ipairs { 'cpu', 'ref' } do
         local ctx = open ''
         local x = ctx:ones({ 1000 }, { device = device })
         refused('E_NOMEM', { 'alloc', '35184372088832 bytes', '4032 live',
            'memory of this machine', 'host_memory' }, ctx.empty, ctx, { 2 ^ 43 },
            { device = device })
         refused('E_NOMEM', 'memory of this machine', ctx.zeros, ctx, { 2 ^ 43 },
            { device = device })
         assert.equal(1000, x:sum():item())
         x:release()
      end
   end)

   it('refuses what passes host_memory: limit, live and request in the message', function()
      local ctx = open 'host_memory=8m'
      assert.equal('8388608', ctx:param 'host_memory')
      local x, y = ctx:empty { M }, ctx:empty({ M / 2 }, { device = 'ref' })
      refused('E_NOMEM', { '4194304 bytes', '6291456 live', 'host_memory parameter (8388608)' },
         ctx.empty, ctx, { M })
      y:release()
      local z = ctx:empty { M }
      ctx:param('host_memory', 0)
      local more = ctx:empty { M }
      drop(ctx, { x, z, more })
   end)

   it('refuses tensors that together are more than the machine has, touched or not', function()
      local total = tonumber(io.open('/proc/meminfo'):read '*a':match 'MemTotal:%s+(%d+)') * 1024
      local ctx, list = open 'cache=0', {}
      local ok, err = pcall(function()
         for i = 1, 40 do list[i] = ctx:empty({ math.floor(total / 16) }, { dtype = 'u8' }) end
      end)
      assert.is_false(ok)
      assert.equal('E_NOMEM', err.code)
      drop(ctx, list)
   end)

   it('fills fresh memory with NaN on demand', function()
      local ctx = open 'poison=1'
      for _, n in ipairs { 7, 100000 } do
         local x = ctx:empty { n }
         assert.is_false(x:isfinite():any():item())
         x:fill_(1)
         x:release()
         assert.is_false(ctx:empty({ n }):isfinite():any():item())
      end
   end)
end)
