-- Device memory that runs out while a collective waits for another rank: cached memory goes back
-- when the collective is over, since the runtime waits in each free for all work of the device.
--
-- Not found by its name: emulated_nccl_spec.lua runs it with 192 MiB a device.

local nccl = require 'spec.cuda.nccl_ranks'

it('memory that runs out beside a call under way comes back from the cache', function()
   local out = nccl.values(2, { timeout = 20 }, [[
      local MiB = 2 ^ 20
      local function block(n) return tide.empty { n * MiB / 4 } end
      for _ = 1, 2 do
         local small = {}
         for i = 1, 3 do small[i] = block(33) end
         for i = 1, 3 do small[i]:release() end
      end
      tide.cuda.synchronize()
      local now = tide.clock()
      local function wait(seconds) while tide.clock() < now + seconds do end end
      if comm.rank == 1 then wait(2) end              -- rank 0 waits for this call
      local work = comm:all_reduce(tide.ones { 3 }, 'sum', { async = true })
      if comm.rank == 0 then wait(1) end              -- until its helper thread has made it
      local large = block(130)                        -- fits without the three
      return work:wait():sum():item() + large:size(1) / MiB * 4
   ]])
   assert.same({ 6 + 130, 6 + 130 }, out)
end)
