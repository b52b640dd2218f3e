-- Ownership: finalizers in any order, garbage under pressure, release by hand, failing allocations.

local tide = require 'tide'
local leak = require 'spec.support.leak'

describe('own', function()
   it('gives everything back when handles are dropped in any order', function()
      leak.check(function()
         local list = {}
         for i = 1, 200 do
            local x = tide.ones({ 4, 4 }, { requires_grad = i % 3 == 0 })
            list[i] = (x * i):t():reshape(16)
         end
         local state = 1
         for i = #list, 2, -1 do            -- shuffle, then drop in that order with collections
            state = state * 16807 % 2147483647
            local j = state % i + 1
            list[i], list[j] = list[j], list[i]
         end
         for i = 1, #list do
            list[i] = nil
            if i % 20 == 0 then collectgarbage() end
         end
      end)
   end)

   it('keeps a tensor alive after its context was closed', function()
      local ctx = assert(tide.open {})
      local x = ctx:ones { 3 }
      ctx:close()
      ctx:close()
      assert.equal(6, (x + 1):sum():item())
      local ok, err = pcall(ctx.ones, ctx, { 2 })
      assert.is_false(ok)
      assert.equal('E_STATE', err.code)
   end)

   it('ends contexts and tensors of many states without an order', function()
      for _ = 1, 20 do
         local ctx = assert(tide.open { nthread = 1 })
         local keep = ctx:rand { 8 }
         ctx = nil                          -- luacheck: ignore
         collectgarbage()
         assert.equal(8, keep:numel())
      end
   end)

   it('collects contexts that were dropped without close', function()
      local seen = setmetatable({}, { __mode = 'k' })
      for _ = 1, 20 do
         local ctx = assert(tide.open { nthread = 1 })
         ctx:ones { 8 }
         seen[ctx] = true
      end
      leak.clear()
      collectgarbage()
      collectgarbage()
      local n = 0
      for _ in pairs(seen) do n = n + 1 end
      assert.is_true(n <= 1, n .. ' of 20 are left')   -- the last may still be on the stack
   end)

   it('counts what is made since a mark, whatever older goes meanwhile', function()
      local ctx = assert(tide.open { nthread = 1 })
      local old = ctx:zeros { 1024 }
      ctx:mark()
      assert.equal(0, ctx:stats().since)
      local new, gone = ctx:zeros { 256 }, ctx:zeros { 512 }
      assert.equal(3072, ctx:stats().since)
      old:release()
      assert.equal(3072, ctx:stats().since)
      gone:release()
      assert.equal(1024, ctx:stats().since)
      assert.equal(3072, ctx:stats().since_peak)
      ctx:mark()
      new:release()
      assert.equal(0, ctx:stats().since)
      ctx:close()
   end)

   it('bounds memory when large tensors are dropped in a loop', function()
      local ctx = tide.default()
      ctx:collect()
      ctx:mark()
      for _ = 1, 2000 do
         local _ = tide.empty({ 16, 1024, 1024 })   -- 64 MiB, never touched
      end
      local peak = leak.peak()
      assert.is_true(peak <= 256 * 2^20, ('peak grew by %.0f MiB'):format(peak / 2^20))
      assert.is_true(leak.since() <= 64 * 2^20)     -- the last may still be on the Lua stack
   end)

   it('bounds memory when results of ops are dropped', function()
      local ctx = tide.default()
      ctx:collect()
      local x = tide.zeros { 1024, 1024 }
      ctx:mark()
      for _ = 1, 500 do local _ = x + 1 end
      assert.is_true(leak.peak() <= 256 * 2^20)
   end)

   it('gives the bytes back at release, keeps the handle', function()
      local ctx = tide.default()
      ctx:collect()
      local x = tide.ones { 1024, 1024 }
      local view = x:t()
      local live = ctx:stats().live
      x:release()
      assert.is_true(ctx:stats().live <= live - 4 * 2^20)
      assert.same({ 1024, 1024 }, x.shape)
      assert.is_true(x:is_gone())
      assert.is_true(view:is_gone())
      for _, use in ipairs { function() return x + 1 end, function() return view:sum() end,
         function() return x:item() end, function() return x:tolist() end,
         function() return x:to_string_bytes() end, function() return x:fill_(1) end } do
         local ok, err = pcall(use)
         assert.is_false(ok)
         assert.is_true(tide.is_error(err))
      end
      assert.is_true(tostring(x):find 'dropped' ~= nil)
      x:release()                           -- changes nothing
   end)

   it('collects and tries again when memory runs out', function()
      local ctx = assert(tide.open { params = 'memory=64m debt=32m', nthread = 1 })
      for _ = 1, 200 do
         local x = ctx:empty { 4, 1024, 1024 }      -- 16 MiB each, garbage at once
         assert.equal(4, x:size(1))
      end
      local held = {}
      local ok, err = pcall(function()
         for i = 1, 8 do held[i] = ctx:empty { 4, 1024, 1024 } end
      end)
      assert.is_false(ok)
      assert.equal('E_NOMEM', err.code)
      assert.is_true(err.message:find 'live' ~= nil)
      assert.is_true(#held >= 2 and #held <= 4)
      held = nil                            -- luacheck: ignore
      assert.equal(1, ctx:ones({ 1 }):item())
      ctx:close()
   end)

   it('does so in place, where a source that overlaps is copied first', function()
      local ctx = assert(tide.open { params = 'memory=64m debt=1g', nthread = 1 })
      local x, held = ctx:ones { 4, 1024, 1024 }, {}
      for i = 1, 8 do
         if not pcall(function() held[i] = ctx:empty { 4, 1024, 1024 } end) then break end
      end
      assert.equal(3, #held)
      collectgarbage 'stop'
      held = nil                            -- luacheck: ignore
      local ok, err = pcall(x.add_, x, x:transpose(2, 3), 2)
      collectgarbage 'restart'
      assert.is_true(ok, tostring(err))
      assert.equal(3, x:amax():item())
      assert.equal(3, x:amin():item())
      ctx:close()
   end)

   it('keeps what a scope returns, also inside tables, and drops the rest', function()
      local outside = tide.ones { 2 }
      local inner
      local a, t = tide.scope(function()
         inner = outside + 1
         return inner * 2, { deep = { inner * 3 } }
      end)
      assert.equal(8, a:sum():item())
      assert.equal(12, t.deep[1]:sum():item())
      assert.is_true(inner:is_gone())
      assert.equal(2, outside:sum():item())
      local kept
      local ok = pcall(tide.scope, function()
         kept = outside + 1
         error 'stop'
      end)
      assert.is_false(ok)
      assert.is_true(kept:is_gone())
   end)
end)
