-- Device memory over training steps: how often the driver is asked for it, and how much is held.
--
-- Not found by its name: emulated_device_spec.lua runs it on emulated threads.

local tide = require 'tide'

local MiB = 2 ^ 20
local device = 'cuda'

-- Requests to the driver in fn(ctx) on a context of its own, and that context's statistics.
local function requests(fn)
   local ctx = tide.open {}
   ctx:param('trace', 1)
   fn(ctx)
   local path = os.tmpname()
   ctx:trace_dump(path)
   local n = 0
   for line in io.lines(path) do
      if line:find('"cat":"mem"', 1, true) and line:find('cuda', 1, true) then n = n + 1 end
   end
   os.remove(path)
   local stats = ctx:stats()
   ctx:close()
   return n, stats
end

-- A forward and backward as the allocator sees them: n tensors live together, then all are freed.
local function step(ctx, n, bytes)
   local acts = {}
   for i = 1, n do acts[i] = ctx:empty({ bytes / 4 }, { device = device }) end
   for i = n, 1, -1 do acts[i]:release() end
end

describe('device memory', function()
   it('of activations far above the parameters is asked for once, not each step', function()
      local first
      local function run(steps)
         return function(ctx)
            local keep = ctx:empty({ 8 * MiB / 4 }, { device = device })
            for _ = 1, steps do step(ctx, 8, 64 * MiB) end
            keep:release()
         end
      end
      first = requests(run(1))
      assert.is_true(first >= 1)
      assert.equal(first, (requests(run(4))))
   end)

   it('of many small tensors is asked for in large pieces', function()
      local n = requests(function(ctx) step(ctx, 64, MiB) end)
      assert.is_true(n <= 3, n .. ' requests')
   end)

   it('of a captured step replaces that of the steps before', function()
      local ctx = tide.default()
      local function body()
         return tide.scope(function()
            local acts = {}
            for i = 1, 4 do acts[i] = tide.empty({ 16 * MiB / 4 }, { device = device }) end
            return acts[1]:slice(1, 1, 4):mul(0)
         end)
      end
      body()
      local before = ctx:stats().cached
      local graph = tide.cuda.graph(body, { warmup = 0 })
      local after = ctx:stats().cached
      assert.is_true(after < before + 16 * MiB, ('%d MiB cached, %d before'):format(after / MiB,
         before / MiB))
      graph:replay()
   end)
end)
