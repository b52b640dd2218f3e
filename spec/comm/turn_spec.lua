-- Ranks that pause between turns: a wait for a paused rank ends soon and names it, and what has
-- failed works again when all have paused.
-- Mostly waits.

local dist = require 'tide.ffi.dist'
local host = require 'tide.ffi.host'

-- What each rank runs: the turns, and after each a turn that sums over `comm` and over `sub`.
local function body(rank, _, address, meeting, turns)
   local tide = require 'tide'
   local fd = require 'tide.ffi.dist'
   local group, meet = fd.group_at(address), fd.join(nil, meeting, rank)
   local comm = fd.join(nil, address, rank)
   local env = setmetatable({ comm = comm, me = rank, tide = tide, keep = {},
      sub = comm:split(math.floor(rank / 2), rank) }, { __index = _G })
   local function turn(fn)
      group:resume(rank)
      local ok, e = pcall(fn)
      group:pause(rank)
      tide.default():interrupted()
      meet:barrier()
      return ok and 'well' or tostring(e)
   end
   local said = {}
   for i, source in ipairs(turns) do
      local row = { text = turn(setfenv(assert(loadstring(source)), env)) }
      row.after = turn(function()
         for k, c in ipairs { comm, env.sub } do
            row[k] = c:all_reduce(tide.full({ 3 }, rank + 1)):tolist()[1]
         end
      end)
      said[i] = row
   end
   return said
end

-- Runs turns (source that sees comm, sub, me, tide and keep) on n ranks. Returns what each rank
-- says: [turn][rank + 1] = { text, after, sum over comm, sum over sub }.
local function play(n, turns)
   local group, meeting = dist.group(n), dist.group(n)
   local rows, by_turn = host.try(n, { nthread = 1 }, body, group:address(), meeting:address(),
      turns), {}
   for r, row in ipairs(rows) do
      assert.equal('OK', row.status, row.message)
      for i = 1, #turns do
         by_turn[i] = by_turn[i] or {}
         by_turn[i][r] = row.values[1][i]
      end
   end
   return by_turn
end

-- All is well after the turn on each of n ranks, in both communicators.
local function check_mended(said, n)
   for r = 1, n do
      local pair = r - (r - 1) % 2
      assert.equal('well', said[r].after)
      assert.equal(n * (n + 1) / 2, said[r][1])
      assert.equal(pair < n and 2 * pair + 1 or pair, said[r][2])
   end
end

local cases = {
   { 'one rank is missing', 'if me ~= 2 then comm:barrier() end', 'missing: rank 2 ',
      { 0, 1, 3 } },
   { 'several ranks are missing', 'if me == 1 then comm:all_reduce(tide.ones { 5000 }) end',
      'all_reduce%(sum, f32, 5000 elements%).*missing: ranks 0, 2, 3 ', { 1 } },
   { 'a rank has failed before', 'if me == 0 then error "planned" end comm:barrier()',
      'missing: rank 0 ', { 1, 2, 3 } },
   { 'a part is not complete', 'if me == 2 then sub:barrier() end', 'missing: rank 1 ', { 2 } },
   { 'calls differ', 'comm:all_reduce(tide.ones { me == 3 and 2 or 1 })', '2 elements',
      { 0, 1, 2, 3 } },
   { 'the time runs out', 'if me == 0 then comm:set_timeout(0.1) comm:barrier() end',
      'waited 0.1 s', { 0 } },
   { 'a rank is interrupted', [[if me == 0 then
      tide.interrupt() tide.interrupt()
      comm:barrier()
   end]], 'interrupt', { 0 } },
   { 'an asynchronous call is left alone', [[if me == 3 then
      keep.t = tide.ones { 4 }
      keep.work = comm:all_reduce(keep.t, 'sum', { async = true })
   else keep.work = nil end]], nil, {} },
   { 'its failure is seen by its wait', 'if keep.work then keep.work:wait() end',
      'missing: ranks 0, 1, 2 ', { 3 } },
   { 'all ranks call', 'comm:barrier()', nil, {} },
}

describe('turns', function()
   it('end waits for paused ranks, and mend what has failed', function()
      local turns = {}
      for i, case in ipairs(cases) do turns[i] = case[2] end
      local said = play(4, turns)
      for i, case in ipairs(cases) do
         local fails = {}
         for _, r in ipairs(case[4]) do fails[r + 1] = true end
         for r = 1, 4 do
            if fails[r] then assert.matches(case[3], said[i][r].text, nil, nil, case[1])
            elseif case[1] ~= 'a rank has failed before' then
               assert.equal('well', said[i][r].text, case[1])
            end
         end
         check_mended(said[i], 4)
      end
   end)

   it('mend any number of times, whichever rank is missing where', function()
      local turns = {}
      math.randomseed(7)
      for i = 1, 12 do
         turns[i] = ('local n, on = %d, %s for k = 1, n do on:barrier() end if me ~= %d then '
            .. 'on:all_gather(tide.ones { 2 }) end'):format(math.random(0, 5),
            math.random() < 0.5 and 'sub' or 'comm', math.random(0, 2))
      end
      for _, said in ipairs(play(3, turns)) do check_mended(said, 3) end
   end)

   it('do not mend what a rank has left', function()
      local said = play(2, { 'if me == 0 then sub:close() end sub:barrier()' })
      assert.matches('closed', said[1][1].after, 1, true)
      assert.matches('left', said[1][2].after, 1, true)
   end)

   it('refuse ranks that the group does not have', function()
      local group = dist.group(2)
      assert.error_matches(function() group:pause(2) end, 'comm.pause.*rank')
      assert.error_matches(function() group:resume(-1) end, 'comm.resume.*rank')
      group:pause(0)
      group:pause(0)
      group:resume(0)
   end)
end)
