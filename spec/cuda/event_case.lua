-- Timing events of a GPU, and the ranges that profilers show.
--
-- Not found by its name: emulated_device_spec.lua runs it on emulated threads, whose events keep
-- the host's clock.

local ffi = require 'ffi'
local tide = require 'tide'
local refused = require 'spec.support.refused'

local driver = require('spec.cuda.emulated').driver()

local function work() return (tide.ones({ 200, 200 }, { device = 'cuda' }) * 2):sum() end

describe('an event', function()
   it('keeps the time at which the device reached it', function()
      local from, middle, to = tide.cuda.event(), tide.cuda.event(), tide.cuda.event()
      from:record()
      work()
      middle:record()
      for _ = 1, 50 do work() end
      to:record()
      local first, whole = from:elapsed_time(middle), from:elapsed_time(to)
      assert.is_true(first > 0)
      assert.is_true(whole > first)
      assert.is_true(math.abs(whole + to:elapsed_time(from)) < 1e-6)
      assert.equal(0, to:elapsed_time(to))
   end)

   it('is reached when what was enqueued before it is done', function()
      local e = tide.cuda.event()
      work()
      assert.equal(e, e:record())
      e:synchronize()
      assert.is_true(e:query())
      work()
      e:record()                               -- again: it moves
      local n = 0
      while not e:query() do n = n + 1 end
      if driver then assert.is_true(n > 0) end
   end)

   it('does not make the host wait when it is recorded', function()
      if not driver then return end
      local e = tide.cuda.event():record()
      local before = tonumber(driver.tide_emulate_waits())
      for _ = 1, 10 do
         work()
         e:record()
      end
      assert.equal(before, tonumber(driver.tide_emulate_waits()))
      e:synchronize()
      assert.is_true(tonumber(driver.tide_emulate_waits()) > before)
   end)

   it('is refused in a captured step, and measures a replay from outside', function()
      local e = tide.cuda.event()
      refused('E_STATE', 'replays would not record the event', tide.cuda.graph, function()
         work()
         e:record()
      end)
      local g = tide.cuda.graph(work)
      local from = tide.cuda.event():record()
      local sum = g:replay()
      assert.is_true(from:elapsed_time(e:record()) > 0)
      assert.equal(80000, sum:item())
   end)

   it('refuses an event that was not recorded, and other values', function()
      local e, other = tide.cuda.event(), tide.cuda.event():record()
      refused('E_STATE', 'event.elapsed_time: the event is not recorded', e.elapsed_time, e, other)
      refused('E_STATE', 'not recorded', other.elapsed_time, other, e)
      refused('E_STATE', 'not recorded', e.query, e)
      refused('E_STATE', 'not recorded', e.synchronize, e)
      refused('E_ARG', "'to': expected an event", other.elapsed_time, other, 3)
      other:release()
      other:release()
      refused('E_STATE', 'it was released', other.query, other)
      assert.is_true(other:record():elapsed_time(e:record()) >= 0)
   end)
end)

describe('a range', function()
   local function ranges()
      pcall(ffi.cdef, 'const char *tide_emulate_ranges(void);')
      return ffi.string(driver.tide_emulate_ranges())
   end

   it('returns what its function returns, holes too', function()
      local function count(...) return select('#', ...), ... end
      local n, a, b, c = count(tide.cuda.range('r', function(...) return ... end, 1, nil, nil))
      assert.same({ 3, 1 }, { n, a, b, c })
   end)

   it('is seen by profilers, in its order, also after an error', function()
      if not driver then return end
      work()
      ranges()
      tide.cuda.range('a', function()
         tide.cuda.range('b', function() end)
         pcall(tide.cuda.range, 'c', function() error 'no' end)
      end)
      assert.equal('a{b{}c{}}', ranges())
   end)

   it('stands around each op and derivative where that is asked for', function()
      if not driver then return end
      local x = tide.ones({ 3 }, { device = 'cuda' }):requires_grad_(true)
      local w = tide.ones({ 3 }, { device = 'cuda' })
      ranges()
      tide.cuda.range_ops(true)
      local y = (x * w):sum()
      tide.cuda.range_ops(false)
      assert.equal('mul{}sum{}', ranges())
      tide.cuda.range_ops(true)
      y:backward()
      tide.cuda.range_ops(false)
      local text = ranges()
      assert.is_truthy(text:find('mul{mul{}', 1, true), text)
      local _ = x + 1
      assert.equal('', ranges())
   end)

   it('stands around each module of a model until it is removed', function()
      if not driver then return end
      local nn = tide.nn
      local model = nn.Stack { nn.Linear(3, 4, { device = 'cuda' }), nn.Linear(4, 2,
         { device = 'cuda' }) }
      local x = tide.ones({ 2, 3 }, { device = 'cuda' })
      local remove = tide.cuda.range_modules(model)
      ranges()
      model(x)
      assert.equal('Stack{0 Linear{}1 Linear{}}', ranges())
      remove()
      model(x)
      assert.equal('', ranges())
   end)

   it('without a name, a function or a model is refused', function()
      refused('E_ARG', "'name'", tide.cuda.range, 3, function() end)
      refused('E_ARG', "'fn'", tide.cuda.range, 'a', 3)
      refused('E_ARG', "'model': expected a module", tide.cuda.range_modules, {})
      refused('E_ARG', "'on'", tide.cuda.range_ops, 1)
   end)
end)
