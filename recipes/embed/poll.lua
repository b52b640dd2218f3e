-- Long work in short steps, for programs whose event loop must not wait: an editor, a server.
--
--   local task = poll.start(function(pause)
--      sample.generate(model, prompt, { on_token = function() pause() end, .. })
--   end)
--   while task:step(5) do other_work() end        -- about 5 ms of the task, then of the program
--
-- The work calls pause() at its seams: after a token, a training step, a batch. A step returns at
-- the first pause after its time, so it lasts `ms` and at most one piece more.

local tide = require 'tide'

local poll = {}

local Task = {}
Task.__index = Task

-- Starts fn(pause) as a task; nothing of it runs before the first step.
function poll.start(fn)
   local self = setmetatable({}, Task)
   self.thread = coroutine.create(function()
      return fn(function()
         if tide.clock() >= self.deadline then coroutine.yield() end
      end)
   end)
   return self
end

-- Works for about ms milliseconds. Returns whether there is more to do. Raises what the work
-- raises; the task has then ended.
function Task:step(ms)
   if coroutine.status(self.thread) == 'dead' then return false end
   self.deadline = tide.clock() + ms / 1000
   local ok, value = coroutine.resume(self.thread)
   if not ok then error(value, 0) end
   self.value = value
   return coroutine.status(self.thread) ~= 'dead'
end

return poll
