-- Host time spans and rates.
--
-- The clock is passed in (default: the library's monotonic one when it is loaded, else processor
-- time), so that tests can drive it.

local err = require 'tide.util.err'

local timer = {}

local Timer = {}
Timer.__index = Timer

local function default_clock()
   local ok, tide = pcall(require, 'tide')
   if ok and type(tide) == 'table' and tide.clock then return tide.clock end
   return os.clock
end

-- Returns a timer that begins now. clock: a function that gives seconds (default above).
function timer.new(clock)
   clock = err.func('util.timer.new', 'clock', clock or default_clock())
   local now = clock()
   err.arg_if(type(now) ~= 'number', 'util.timer.new', 'clock', 'a function that returns seconds',
      clock)
   return setmetatable({ clock = clock, start = now, mark = now }, Timer)
end

-- Returns the seconds since the timer was made.
function Timer:total() return self.clock() - self.start end

-- Returns the seconds since the last lap.
function Timer:lap()
   local now = self.clock()
   local span = now - self.mark
   self.mark = now
   return span
end

-- Returns a function that gives the moving average of a rate: the last `half` observations have
-- half of the weight.
function timer.rate(half)
   half = err.number('util.timer.rate', 'half', half or 10, 1e-9)
   local keep, amount, seconds = 0.5 ^ (1 / half), 0, 0
   return function(n, span)
      amount, seconds = amount * keep + n, seconds * keep + span
      return seconds > 0 and amount / seconds or 0
   end
end

return timer
