-- Turns of MPI processes: a wait for a paused rank ends and names it, and what has failed works
-- again in the next turn.
-- Mostly waits.

local run = require 'spec.comm.mpi_run'

local case = run.cases(it, pending)

-- What each of n ranks says of the turns: [i][rank + 1] = { said, after }.
local function play(n, turns)
   local out, status = run.job(n, 'spec/comm/mpi_turn_case.lua ' .. table.concat(turns, ' '), 120)
   assert.equal(0, status, out)
   local said, i = {}, 0
   for name, rank, text, after in out:gmatch '%[r0%] ([%w_]+) (%d+): (.-) / ([^\n]*)' do
      if rank == '0' then
         i = i + 1
         assert.equal(turns[i], name)
         said[i] = {}
      end
      said[i][tonumber(rank) + 1] = { text = text, after = after }
   end
   assert.equal(#turns, i, out)
   for _, row in ipairs(said) do
      for rank = 0, n - 1 do
         local first = rank - rank % 2
         local half = first + 1 < n and 2 * first + 3 or first + 1
         assert.equal(('well %d %d'):format(n * (n + 1) / 2, half), row[rank + 1].after)
      end
   end
   return said
end

describe('MPI processes that pause', function()
   it('do so by their world', function()
      local solo = require('tide.ffi.dist').join(nil, nil, 0)
      for _, name in ipairs { 'pause', 'resume' } do
         local ok, e = pcall(solo[name], solo)
         assert.is_false(ok)
         assert.equal('E_ARG', e.code)
         assert.matches('the world of an MPI job', e.message, 1, true)
      end
      solo:close()
   end)

   case('name those that miss a call, and go on', function()
      local said = play(3, { 'missing', 'missing_two', 'in_part', 'error', 'missing' })
      for _, turn in ipairs { 1, 5 } do
         assert.matches('barrier() on \'world\' at spec/comm/mpi_turn_case.lua', said[turn][1].text,
            1, true)
         assert.matches('missing: rank 1 ', said[turn][1].text, 1, true)
         assert.equal('well', said[turn][2].text)
         assert.matches('missing: rank 1 ', said[turn][3].text, 1, true)
      end
      assert.matches('missing: ranks 0, 1 ', said[2][3].text, 1, true)
      assert.matches("on 'part' .*missing: rank 1 ", said[3][1].text)
      assert.equal('planned', said[4][1].text)
      assert.matches('missing: rank 0 ', said[4][2].text, 1, true)
      assert.matches('missing: rank 0 ', said[4][3].text, 1, true)
   end)

   case('go on after other failures, and after large sums', function()
      local said = play(4, { 'async', 'mismatch', 'large', 'interrupt', 'async', 'large' })
      for rank = 1, 4 do
         assert.matches('ranks disagree', said[2][rank].text, 1, true)
         assert.equal('well', said[3][rank].text)
         assert.matches('rank 1 was interrupted', said[4][rank].text, 1, true)
         assert.equal('well', said[6][rank].text)
      end
   end)
end)
