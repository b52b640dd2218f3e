-- optim/schedule: learning rates as pure functions of the step.

local refused = require 'spec.support.refused'
local schedule = require 'tide.optim.schedule'

local function near(a, b) assert.is_true(math.abs(a - b) < 1e-12, a .. ' ~= ' .. b) end

describe('optim.schedule', function()
   it('warms up linearly', function()
      for _, name in ipairs(schedule.names) do
         local f = schedule.make(name, { lr = 1, warmup = 4, steps = 20, min_lr = 0.1 })
         near(0.25, f(1))
         near(0.5, f(2))
         near(1, f(4))
      end
   end)

   it('ends where it says and stays there', function()
      for _, name in ipairs { 'linear', 'cosine', 'wsd' } do
         local f = schedule.make(name, { lr = 1, warmup = 4, steps = 20, min_lr = 0.1 })
         near(0.1, f(20))
         near(0.1, f(99))
      end
      near(1, schedule.constant { lr = 1, warmup = 4 }(1000))
   end)

   it('has lr at its only step', function()
      for _, name in ipairs(schedule.names) do
         near(1, schedule.make(name, { lr = 1, warmup = 0, steps = 1, min_lr = 0 })(1))
      end
      near(1, schedule.wsd { lr = 1, steps = 1, decay = 1 }(1))
      near(0, schedule.linear { lr = 1, steps = 2 }(2))
   end)

   it('has the middle of its shape', function()
      near(0.55, schedule.cosine { lr = 1, warmup = 4, steps = 20, min_lr = 0.1 }(12))
      near(0.55, schedule.linear { lr = 1, warmup = 4, steps = 20, min_lr = 0.1 }(12))
      local f = schedule.wsd { lr = 1, steps = 20, decay = 10 }
      near(1, f(10))
      near(0.9, f(11))
      near(0.5, f(15))
   end)

   it('never goes up after the warm-up', function()
      for _, name in ipairs { 'linear', 'cosine', 'wsd', 'constant' } do
         local f, last = schedule.make(name, { lr = 1, warmup = 3, steps = 50, min_lr = 0 }), 1
         for s = 3, 60 do
            assert.is_true(f(s) <= last + 1e-15)
            last = f(s)
         end
      end
   end)

   it('refuses what makes no sense', function()
      for _, opts in ipairs { { lr = -1, steps = 3 }, { lr = 1 }, { lr = 1, steps = 0 },
                              { lr = 1, steps = 3, warmup = 3 }, { lr = 1, steps = 3.5 },
                              { lr = 1, steps = 3, min_lr = 2 }, { lr = 0 / 0, steps = 3 },
                              { lr = 1, steps = 3, wramup = 1 } } do
         assert.has_error(function() schedule.cosine(opts) end)
      end
      assert.has_error(function() schedule.make('cosin', { lr = 1, steps = 3 }) end)
      assert.has_error(function() schedule.constant { lr = 1 } (0) end)
      assert.has_error(function() schedule.wsd { lr = 1, steps = 5, decay = 6 } end)
      refused('E_ARG', "'warmup': expected fewer than the 5 steps, got 9", schedule.wsd,
         { lr = 1, steps = 5, warmup = 9 })
      near(1, schedule.wsd { lr = 1, steps = 10, warmup = 9 }(9))
   end)
end)
