-- Operands of a collective under way: what it sends may be read and not written, what it receives
-- neither, whatever the collective; after wait everything is as before.

local ranks = require 'spec.support.ranks'

describe('operands in flight', function()
   it('may be read while they are sent, and nothing else', function()
      local rows = ranks.run(2, function(rank)
         local tide = require 'tide'       -- luacheck: ignore
         local comm = tide.comm.world()
         local mine, other = tide.full({ 3 }, rank + 1), tide.zeros { 3 }
         local view, result = mine:slice(1, 2, 3), {}
         local work = comm:send_recv(other, 1 - rank, mine, 1 - rank, { async = true })
         local function try(fn, ...)
            local ok, e = pcall(fn, ...)
            result[#result + 1] = ok and 'ok' or e.code
         end
         try(function() return mine:sum():item() end)
         try(function() return view + 1 end)
         try(mine.add_, mine, 1)
         try(view.fill_, view, 0)
         try(mine.uniform_, mine)
         try(mine.release, mine)
         try(function() return other:sum() end)
         try(other.zero_ or other.fill_, other, 0)
         try(other.release, other)
         work:wait()
         try(function() return mine:add_(1):sum() end)
         try(function() return other:add_(1):sum() end)
         return { result, mine:sum():item(), other:sum():item() }
      end)
      local want = { 'ok', 'ok', 'E_STATE', 'E_STATE', 'E_STATE', 'E_STATE', 'E_STATE', 'E_STATE',
         'E_STATE', 'ok', 'ok' }
      assert.same({ want, 6, 9 }, rows[1])
      assert.same({ want, 9, 6 }, rows[2])
   end)

   it('are not read where a collective of parts writes them', function()
      local rows = ranks.run(2, function(rank)
         local tide, result = require 'tide', {}
         local comm, all = tide.comm.world(), tide.ones { 8 }
         local async, part = { async = true }, rank == 0 and all or nil
         local calls = {
            function(out) return comm:all_gather_into(out, tide.ones { 4 }, async) end,
            function(out) return comm:all_gather_v(tide.ones { 4 }, { 4, 4 }, out, async) end,
            function(out) return comm:all_to_all_into(out, all, async) end,
            function(out) return comm:all_to_all_v(all, { 4, 4 }, { 4, 4 }, out, async) end,
            function(out)
               return comm:reduce_scatter_into(out:narrow(1, 1, 4), all, 'sum', async)
            end,
            function(out)
               return comm:reduce_scatter_v(all, { 4, 4 }, 'sum', out:narrow(1, 1, 4), async)
            end,
            function(out) return comm:scatter(out:narrow(1, 1, 4), part, 0, async) end,
         }
         for i, call in ipairs(calls) do
            local out = tide.zeros { 8 }
            local work = call(out)
            local ok, e = pcall(function() return out:sum() end)
            result[i] = ok and 'ok' or e.code
            assert(pcall(function() return all:sum() end))
            work:wait()
            result[i] = result[i] .. ' ' .. out:sum():item()
         end
         return result
      end)
      local want = { 'E_STATE 8', 'E_STATE 8', 'E_STATE 8', 'E_STATE 8', 'E_STATE 8', 'E_STATE 8',
         'E_STATE 4' }
      assert.same({ want, want }, rows)
   end)
end)
