-- Ranks that disagree: every way to differ in every collective is found before data moves, on all
-- ranks, with both places in the message.

local ranks = require 'spec.comm.ranks'
local dist = require 'tide.ffi.dist'

-- { op, kind } of every case; the last rank is the one that differs.
local function all_cases()
   local rooted = { reduce = true, broadcast = true, gather = true, scatter = true }
   local reducing = { all_reduce = true, reduce = true, reduce_scatter = true,
      reduce_scatter_v = true }
   local counted = { all_gather_v = true, reduce_scatter_v = true, all_to_all_v = true }
   local shaped = { all_reduce = true, reduce = true, broadcast = true, all_gather = true,
      reduce_scatter = true, all_to_all = true }
   local list = {}
   for _, op in ipairs { 'all_reduce', 'reduce', 'broadcast', 'all_gather', 'all_gather_v',
      'reduce_scatter', 'reduce_scatter_v', 'all_to_all', 'all_to_all_v', 'gather', 'scatter',
      'send_recv', 'barrier', 'split' } do
      local function add(kind) list[#list + 1] = { op, kind } end
      add 'op'
      add 'order'
      add 'missing'
      if op ~= 'barrier' and op ~= 'split' then
         add 'dtype'
         add 'count'
      end
      if rooted[op] then add 'root' end
      if reducing[op] then add 'reduce' end
      if counted[op] then add 'counts' end
      if op == 'all_reduce' or op == 'broadcast' then add 'length' end
      if op == 'send_recv' then add 'partner' end
      if shaped[op] then add 'shape' end
   end
   return list
end

-- On each rank: joins one group a case, calls, returns status and message of each.
local function run_cases(comm, cases, addresses)
   local tide = require 'tide'
   local fd = require 'tide.ffi.dist'
   local n, me = comm.size, comm.rank

   -- x: count, dtype, root, reduce, shift, length, counts
   local function call(c, op, x)
      local function new(count)
         return tide.ones(x.shape and { count / 2, 2 } or { count }, { dtype = x.dtype or 'f32' })
      end
      local k, counts = x.count or 6, {}
      for r = 1, n do counts[r] = k end
      if x.counts then
         if op == 'all_to_all_v' then
            counts[1] = k + 1
         else
            counts[1], counts[2] = k + 1, k - 1   -- the sum and the own count stay (n > 2)
            if n == 2 then counts[1], counts[2] = k + 1, k end
         end
      end
      local sum = 0
      for r = 1, n do sum = sum + counts[r] end
      local root, red = x.root or 0, x.reduce or 'sum'
      local list = { new(k) }
      for i = 2, x.length or 2 do list[i] = new(k) end
      if op == 'all_reduce' then return c:all_reduce(x.length and list or new(k), red) end
      if op == 'reduce' then return c:reduce(new(k), root, red) end
      if op == 'broadcast' then return c:broadcast(x.length and list or new(k), root) end
      if op == 'all_gather' then return c:all_gather(new(k)) end
      if op == 'all_gather_v' then return c:all_gather_v(new(counts[me + 1]), counts) end
      if op == 'reduce_scatter' then return c:reduce_scatter(new(k * n), red) end
      if op == 'reduce_scatter_v' then return c:reduce_scatter_v(new(sum), counts, red) end
      if op == 'all_to_all' then return c:all_to_all(new(k * n)) end
      if op == 'all_to_all_v' then
         local take = {}
         for r = 1, n do take[r] = r == me + 1 and counts[r] or k end
         return c:all_to_all_v(new(sum), counts, take)
      end
      if op == 'gather' then return c:gather(new(k), root) end
      if op == 'scatter' then return c:scatter(new(k), new(k * n), root) end
      if op == 'send_recv' then return c:shift(new(k), x.shift or 1) end
      if op == 'split' then return c:split(0) end
      return c:barrier()
   end

   local differ = { op = {}, dtype = { dtype = 'i32' }, count = { count = 12 }, root = { root = 1 },
      reduce = { reduce = 'max' }, counts = { counts = true }, length = { length = 4 },
      partner = { shift = 0 }, shape = { shape = true } }

   local function odd(c, op, kind)
      local other = op == 'barrier' and 'all_gather' or 'barrier'
      if kind == 'op' then
         call(c, op == 'all_reduce' and 'broadcast' or 'all_reduce', {})
      elseif kind == 'order' then
         call(c, other, {})
         call(c, op, {})
      elseif kind == 'missing' then
         c:close()
      else
         call(c, op, differ[kind])
      end
   end
   local function usual(c, op, kind)
      call(c, op, kind == 'length' and { length = 3 } or {})
      if kind == 'order' then call(c, op == 'barrier' and 'all_gather' or 'barrier', {}) end
   end

   local results = {}
   for i, case in ipairs(cases) do
      local c = fd.join(nil, addresses[i], me)
      c:barrier()
      local ok, e = pcall(me == n - 1 and odd or usual, c, case[1], case[2])
      local again, e2 = true, nil
      if c.handle then again, e2 = pcall(c.barrier, c) end
      results[i] = { ok = ok, code = not ok and (e.code or tostring(e)) or nil,
         text = tostring(e), again = again, same = again or e2.message == e.message }
      c:close()
      comm:barrier()
   end
   return results
end

local total = 0

describe('a mismatch', function()
   for _, n in ipairs { 2, 3, 4, 8 } do
      local cases = all_cases()
      local groups, addresses = {}, {}
      local results

      setup(function()
         for i = 1, #cases do
            groups[i] = dist.group(n, { timeout = 60 })
            addresses[i] = groups[i]:address()
         end
         results = ranks.run(n, run_cases, cases, addresses)
         groups = nil
      end)

      for i, case in ipairs(cases) do
         total = total + 1
         it(('of %s in %s on %d ranks'):format(case[2], case[1], n), function()
            for rank = 0, n - 1 do
               local r = results[rank + 1][i]
               local last = rank == n - 1
               if case[2] == 'missing' and last then
                  assert.is_true(r.ok)
               else
                  assert.is_false(r.ok, 'rank ' .. rank .. ' returned a result')
                  assert.equal(case[2] == 'missing' and 'E_PEER' or 'E_COMM', r.code, r.text)
                  assert.is_false(r.again, 'the communicator works after ' .. r.text)
                  assert.is_true(r.same, 'another error afterwards')
                  if case[2] == 'missing' then
                     assert.is_truthy(r.text:find('rank ' .. n - 1 .. ' has left', 1, true), r.text)
                  else
                     local places = {}
                     local count = 0
                     for line in r.text:gmatch('mismatch_spec%.lua:(%d+)') do
                        if not places[line] then count = count + 1 end
                        places[line] = true
                     end
                     assert.is_truthy(r.text:find('rank ' .. n - 1, 1, true), r.text)
                     assert.is_truthy(r.text:find('rank 0', 1, true), r.text)
                     assert.is_true(count >= 1, r.text)
                  end
               end
            end
         end)
      end
   end

   it('is tried in at least 150 ways', function() assert.is_true(total >= 150) end)

   it('shows the places of both sides', function()
      local rows = ranks.try(2, nil, function(comm)
         local tide = require 'tide'
         local t = tide.zeros { 4 }
         local ok, e
         if comm.rank == 0 then ok, e = pcall(function() comm:all_reduce(t) end)
         else
            ok, e = pcall(function() comm:all_reduce(t, 'max') end)
         end
         return ok, e.message, t:tolist()[1]
      end)
      for r = 1, 2 do
         assert.is_false(rows[r].values[1])
         local a, b = rows[r].values[2]:match(
            'rank 0: all_reduce%(sum, f32, 4 elements%) at .-mismatch_spec.lua:(%d+)\n'
            .. '  rank 1: all_reduce%(max, f32, 4 elements%) at .-mismatch_spec.lua:(%d+)$')
         assert.equal(2, tonumber(b) - tonumber(a), rows[r].values[2])
      end
   end)
end)
