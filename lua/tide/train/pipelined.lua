-- The micro-batches of a step, and of an evaluation, on a stage of a pipeline.
--
-- Each stage runs the forwards and backwards that parallel/pipeline/schedule.lua puts in order.
-- What a forward keeps for its backward outlives other micro-batches, so forwards run in no step
-- scope: the modules free their temporaries at the last use.

local tide = require 'tide'
local finally = require 'tide.util.finally'
local private = require 'tide.util.private'
local reduce = require 'tide.train.reduce'

local pipelined = {}

-- Returns the part of each batch that this rank computes, and its ids.
local function cut(self, batches)
   local mine, ids = {}, {}
   for i, batch in ipairs(batches) do
      mine[i] = self.cp and not batch.context and self.cp:cut(batch) or batch
      ids[i] = mine[i].ids
   end
   return mine, ids
end

-- Returns the loss as the step counts it: that of the last stage, and what the routers of the
-- others add.
local function counted(self, loss)
   if self.stage:gave_placeholder() then return tide.zeros({}, { device = loss.device }) end
   return loss:detach()
end

-- Calls fn(events, batches) within a step of the pipeline.
local function within(self, batches, fn)
   local mine, ids = cut(self, batches)
   local events = self.stage:begin(ids)
   finally(function(failed) self.stage:finish(failed) end, fn, events, mine)
end

local function run_forward(self, losses, i, batch, count)
   local loss, record = reduce.forward(self, batch, count)
   local counts, topk
   if record then counts, topk = record:counts() end
   reduce.note(losses, i, counted(self, loss), counts, topk, record and record:_places())
   return loss
end

local function run_backward(self, loss, is_last)
   reduce.sync_at(self, is_last)
   tide.scope(function()
      reduce.backward(self, loss)
      return self.stage:received()               -- the scope keeps the next input
   end)
   private.spend(loss)
end

-- Does what reduce.sharded_micros does, on a stage of a pipeline.
function pipelined.micros(self, batches, count)
   local losses, open = {}, {}
   reduce.with_sharded(self, function()
      within(self, batches, function(events, mine)
         for k, event in ipairs(events) do
            local i = event.i
            self.stage:at(event)
            if event.kind == 'forward' then
               open[i] = run_forward(self, losses, i, mine[i], count)
            else
               local loss = open[i]
               open[i] = nil
               run_backward(self, loss, k == #events)
            end
         end
         if next(open) then self.parallel:finish() end        -- nothing is trained up to this stage
      end)
   end)
   return reduce.summed(self, losses)
end

-- Returns the loss of one batch in an evaluation: on the last stage, what others add to it
-- elsewhere.
function pipelined.loss(self, batch, count)
   local loss
   within(self, { batch }, function(events, mine)
      self.stage:at(events[1])
      loss = counted(self, reduce.loss_of(self, mine[1], count))
   end)
   return loss
end

return pipelined
