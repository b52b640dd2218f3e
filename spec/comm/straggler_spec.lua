-- The rank that keeps the others waiting: sums and medians against sorted lists, and a watch with a
-- clock of its own.

local straggler = require 'tide.comm.straggler'
local refused = require 'spec.support.refused'

local function median(list)
   local sorted = { unpack(list) }
   table.sort(sorted)
   local lower, upper = sorted[math.ceil(#list / 2)], sorted[math.floor(#list / 2) + 1]
   return (lower + upper) / 2
end

describe('the slowest rank', function()
   it('is the first of those with the largest sum, where that is beyond the median', function()
      math.randomseed(8)
      local found = 0
      for case = 1, 300 do
         local n, sections, rows, sums = math.random(1, 6), {}, {}, {}
         for i = 1, math.random(1, 4) do sections[i] = 's' .. i end
         for r = 1, n do
            rows[r], sums[r] = {}, 0
            for i in ipairs(sections) do
               rows[r][i] = case % 7 == 0 and 0 or math.random(0, 3)
               sums[r] = sums[r] + rows[r][i]
            end
         end
         local ratio = ({ 1, 1.5, 2, 3 })[math.random(1, 4)]
         assert.equal(median(sums), straggler.median(sums))
         local function usual(list)
            return n == 2 and math.min(unpack(list)) or median(list)
         end
         local most, base, slow, at, beyond = math.max(unpack(sums)), usual(sums), nil, nil, nil
         for r = n, 1, -1 do slow = sums[r] == most and r or slow end
         for i in ipairs(sections) do
            local column = {}
            for r = 1, n do column[r] = rows[r][i] end
            local here = rows[slow][i] - usual(column)
            if not at or here > beyond then at, beyond = i, here end
         end
         local want = n > 1 and base > 0 and most > ratio * base
            and { rank = slow - 1, ratio = most / base, section = sections[at],
               seconds = most - base } or nil
         found = found + (want and 1 or 0)
         assert.same(want, straggler.find(rows, sections, ratio))
      end
      assert.is_true(found > 50)
      local long = {}
      for i = 1, 20001 do long[i] = 20001 - i end
      assert.equal(10000, straggler.median(long))
   end)
end)

describe('a watch', function()
   -- A communicator of `size` ranks, the others of which take `seconds` for each section.
   local function made(size, seconds, steps)
      local tide, state = require 'tide', { now = 5, waited = 2, gathered = 0 }
      local comm = { rank = 0, size = size }
      function comm.waited() return state.waited end
      function comm.all_gather(_, mine)
         state.gathered = state.gathered + 1
         local rows = { mine }
         for r = 2, size do rows[r] = mine * 0 + seconds end
         return tide.cat(rows, 1)
      end
      return straggler.new { comm = comm, sections = { 'data', 'step' }, steps = steps,
         ratio = 1.2, clock = function() return state.now end }, state
   end

   it('counts what a rank does itself, and reports at the end of each window', function()
      local watch, state = made(3, 2, 2)
      for window = 1, 2 do
         for step = 1, 2 do
            watch:mark()
            state.now = state.now + 1
            watch:lap(1)
            state.now, state.waited = state.now + 7, state.waited + 5
            watch:lap(2)
            state.now = state.now + 100                 -- between steps: not counted
            local f = watch:next()
            if step == 1 then
               assert.is_nil(f)
            else
               assert.same({ 0, 'step', 2, 1.5 }, { f.rank, f.section, f.seconds, f.ratio })
               assert.equal("rank 0 is slow: 1.50 times the median over 2 steps, most of it in "
                  .. "'step' (1000 ms a step)", f.line)
            end
         end
         assert.equal(window, state.gathered)
      end
   end)

   it('counts nothing where waiting was longer than the clock says', function()
      local watch, state = made(2, 0.5, 1)
      watch:mark()
      state.waited = state.waited + 3
      watch:lap(1)
      state.now = state.now + 1
      watch:lap(2)
      assert.is_nil(watch:next())
      assert.same({ 0, 0 }, watch.own)
      refused('E_ARG', "'i'", watch.lap, watch, 3)
   end)

   it('of one rank compares nothing', function()
      local alone = straggler.new { comm = { rank = 0, size = 1 }, steps = 1 }
      alone:lap(1)
      assert.is_nil(alone:next())
      assert.equal(0, alone.waited)
   end)
end)
