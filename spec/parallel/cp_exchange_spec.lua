-- The exchange of tokens for channels, on ranks with random runs of both, against the whole tensor.

local exchange = require 'tide.parallel.cp.exchange'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tide = require 'tide'

-- On a rank: the first thing that is wrong in `cases` random exchanges, or nothing.
local function check(rank, size, seed, cases)
   local t = require 'tide'
   local ex, comm = require 'tide.parallel.cp.exchange', t.comm.world()
   local at = seed
   local function draw(lo, hi)
      at = at * 48271 % 2147483647
      return lo + at % (hi - lo + 1)
   end
   local function same(a, b, what)
      if not (a:reshape(-1):equal(b:reshape(-1))) then error(what .. ' ' .. tostring(a)) end
   end
   local function pick(x, dim, list)
      return x:index_select(dim, t.tensor(list, { dtype = 'i64' }))
   end
   for case = 1, cases do
      -- channels: families of runs, which some ranks share
      local families, width, parts = draw(1, 3), 0, {}
      for r = 1, size do parts[r] = {} end
      local edges = {}
      for k = 1, families do
         local first = width
         for r = 1, size do
            local count = draw(0, 3)
            local back = (case % 2 == 0 and r > 1) and draw(0, parts[r - 1][k][2]) or 0
            parts[r][k] = { math.max(first, width - back), count }
            width = math.max(width, parts[r][k][1] + count)
         end
         edges[k] = width - first
      end
      -- tokens: pieces of a permutation of runs
      local total, cuts, rows = 0, {}, {}
      for i = 1, size * draw(1, case % 5 == 0 and 70 or 3) do
         cuts[i] = { total, draw(0, 2) }
         total = total + cuts[i][2]
      end
      for i = #cuts, 2, -1 do
         local j = draw(1, i)
         cuts[i], cuts[j] = cuts[j], cuts[i]
      end
      local places = {}
      for r = 1, size do rows[r], places[r] = {}, {} end
      for i, run in ipairs(cuts) do
         local r = (i - 1) % size + 1
         rows[r][#rows[r] + 1], rows[r][#rows[r] + 2] = run[1], run[2]
         for k = 0, run[2] - 1 do places[r][#places[r] + 1] = run[1] + k end
      end
      local cols, lines = ex.columns(parts, width), ex.rows(rows)
      local mine, wanted, counted = places[rank + 1], {}, {}
      for c = 1, width do counted[c] = 0 end
      for r = 1, size do
         for _, run in ipairs(parts[r]) do
            for c = run[1] + 1, run[1] + run[2] do counted[c] = counted[c] + 1 end
         end
      end
      for _, run in ipairs(parts[rank + 1]) do
         for c = run[1], run[1] + run[2] - 1 do wanted[#wanted + 1] = c end
      end
      if total > 0 and width > 0 then
         local B = draw(1, 2)
         local whole = (t.arange(B * total * width, { dtype = 'f64' }) + 1)
            :reshape { B, total, width }
         local x = pick(whole, 2, mine):requires_grad_(true)
         local list = x
         if case % 3 == 0 and families > 1 then      -- side by side, as queries and keys
            local first = edges[1]
            list = { x:narrow(3, 1, first), x:narrow(3, first + 1, width - first) }
         end
         local y = ex.enter(list, comm, cols, lines)
         if families > 1 then                         -- two results, and channels that stay
            local one = parts[rank + 1][1][2]
            local kept = case % 3 == 0 and math.min(1, edges[1]) or draw(0, width)
            local a, b, c = ex.enter(list, comm, cols, lines, { one, #wanted - one }, kept)
            same(t.cat({ a, b }, 3), y:detach(), 'two results')
            if kept > 0 then same(c, x:detach():narrow(3, 1, kept), 'kept') end
            if kept == 0 and c ~= nil then error 'a third result' end
         end
         local want = #wanted > 0 and pick(whole, 3, wanted) or whole:narrow(3, 1, 0)
         if #wanted > 0 then same(y, want, 'enter') end
         if y:size(2) ~= total or y:size(3) ~= #wanted then error 'shape' end
         -- the gradient of a token's channel: a sum over the ranks that took it
         local w = (t.arange(total, { dtype = 'f64' }) + 1):reshape { 1, total, 1 }
         ;(y * w):sum():backward()
         local times = t.tensor(counted, { dtype = 'f64' }):reshape { 1, 1, width }
         local dx = x.grad
         for c = 1, width do
            if counted[c] > 0 then
               same(dx:narrow(3, c, 1), (pick(w, 2, mine) * times:narrow(3, c, 1))
                  :expand { B, #mine, 1 }:contiguous(), 'gradient')
            end
         end
         if case % 2 == 1 then                        -- every channel on one rank: there and back
            local z = y:detach():requires_grad_(true)
            local back = ex.leave(z, comm, cols, lines)
            same(back, x:detach(), 'leave')
            ;(back * pick(w, 2, mine)):sum():backward()
            same(z.grad, w:expand { B, total, #wanted }:contiguous(), 'gradient of leave')
         end
         local go, home = ex.bytes(cols, rank, #mine, 8)
         local others = 0
         for r = 1, size do others = others + (r == rank + 1 and 0 or cols.widths[r]) end
         if go ~= others * #mine * 8 or home ~= (size - 1) * #wanted * #mine * 8 then
            error 'bytes'
         end
      end
   end
   return 'right'
end

describe('an exchange', function()
   for n = 1, 4 do
      it(('of random tokens and channels on %d ranks is that of the whole'):format(n), function()
         for _, said in ipairs(ranks.run(n, check, 40 + n, n == 1 and 10 or 20)) do
            assert.equal('right', said)
         end
      end)
   end

   it('refuses tensors of other sizes', function()
      local cols = exchange.columns({ { { 0, 2 } } }, 2)
      local rows, comm = exchange.rows { { 0, 3 } }, tide.comm.solo()
      local function enter(x) return exchange.enter(x, comm, cols, rows) end
      local function x(...) return tide.zeros { ... } end
      assert.same({ 1, 3, 2 }, enter(x(1, 3, 2)).shape)
      refused('E_SHAPE', 'expected 2 channels, got 3', enter, x(1, 3, 3))
      refused('E_SHAPE', 'expected 3 tokens, got 2', enter, x(1, 2, 2))
      refused('E_ARG', 'a tensor [B, T, channels]', enter, x(3, 2))
      refused('E_ARG', 'one dtype and batch', enter, { x(1, 3, 1), x(2, 3, 1) })
      refused('E_ARG', 'one dtype and batch', enter, { x(1, 3, 1), x(1, 3, 1):double() })
   end)
end)
