-- recipes/parallel_tour.lua: every way to spread a model gives the losses of one rank.

local recipe = require 'spec.support.recipe'

-- The losses that each part prints, by its name.
local function losses(out)
   local list = {}
   for line in out:gmatch '[^\n]+' do
      local name, text = line:gsub('^%[r0%] ', ''):match '^(%l+) .-(%d%.%d[%d. ]+)$'
      if name then list[name] = text end
   end
   return list
end

describe('recipes/parallel_tour.lua', function()
   for _, n in ipairs { 1, 2, 4 } do
      it(('prints equal losses on %d rank%s'):format(n, n == 1 and '' or 's'), function()
         local out, status = recipe.ranks(n, 'parallel_tour.lua')
         assert.equal(0, status, out)
         assert.is_nil(out:find 'is a spelling of 0.1', out)
         local list = losses(out)
         for _, name in ipairs { 'hooks', 'dp', 'fsdp', 'tp', 'cp', 'pp' } do
            assert.equal(list.alone, list[name], out)
         end
         local first, last = list.alone:match '^(%S+).- (%S+)$'
         assert.is_true(tonumber(last) < 0.8 * tonumber(first))
         assert.matches('the hook was called 8 times', out, 1, true)
      end)
   end

   it('runs one part, and refuses other numbers of ranks', function()
      local out, status = recipe.ranks(2, 'parallel_tour.lua --part tp')
      assert.equal(0, status, out)
      assert.is_nil(losses(out).dp)
      assert.is_not_nil(losses(out).tp)
      out, status = recipe.ranks(3, 'parallel_tour.lua')
      assert.equal(2, status, out)
      assert.matches('1, 2 or 4 ranks, got 3', out, 1, true)
      assert.is_nil(out:find 'stack traceback', out)
   end)
end)
