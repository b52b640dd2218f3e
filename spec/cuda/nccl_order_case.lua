-- Several communicators of a rank: their NCCL kernels are launched in the order of the program, on
-- every rank, whatever their helper threads do.
--
-- Not found by its name: emulated_nccl_spec.lua runs it with an emulated NCCL that makes some
-- communicators of rank 1 slow, and fails where orders differ.

local nccl = require 'spec.cuda.nccl_ranks'

local function orders(check, body)
   return nccl.values(2, { check = check, timeout = 20 }, ([[
      local a, b = comm:split(0, comm.rank), comm:split(0, comm.rank)
      local sum = 0
      for i = 1, 8 do
         %s
      end
      return sum
   ]]):format(body))
end

describe('calls of two communicators', function()
   for _, check in ipairs { false, true } do
      local name = check and ', compared' or ''

      it('that are under way at once keep the order of the program' .. name, function()
         assert.same({ 8 * 18, 8 * 18 }, orders(check, [[
            local x, y = tide.ones { 3 }, tide.full({ 3 }, 2)
            local one = a:all_reduce(x, 'sum', { async = true })
            local two = b:all_reduce(y, 'sum', { async = true })
            sum = sum + one:wait():sum():item() + two:wait():sum():item()
         ]]))
      end)

      it('of which one blocks keep it, too' .. name, function()
         assert.same({ 8 * 24, 8 * 24 }, orders(check, [[
            local x, y = tide.ones { 3 }, tide.full({ 3 }, 2)
            local one = a:all_reduce(x, 'sum', { async = true })
            local last = b:all_reduce(y):sum():item() + b:all_reduce(tide.ones { 3 }):sum():item()
            sum = sum + one:wait():sum():item() + last
         ]]))
      end)
   end

   it('keep it in a captured step, and beside its replays', function()
      assert.same({ 4 * 4 + 8 * 6, 4 * 4 + 8 * 6 }, nccl.values(2, { timeout = 20 }, [[
         local a, b = comm:split(0, comm.rank), comm:split(0, comm.rank)
         local x, y = tide.ones { 4 }, tide.ones { 4 }
         local graph = tide.cuda.graph(function()
            local one = a:all_reduce(x + 0, 'sum', { async = true })
            local two = b:all_reduce(y + 0, 'sum', { async = true })
            return one:wait() + two:wait()
         end)
         local late, sum = {}, 0
         for i = 1, 8 do
            late[i] = b:all_reduce(tide.ones { 3 }, 'sum', { async = true })
            graph:replay()
         end
         for i = 1, 8 do sum = sum + late[i]:wait():sum():item() end
         return graph:replay():sum():item() + sum
      ]]))
   end)
end)
