-- The micro-batches of a step, and of an evaluation, on a stage of a pipeline.
--
-- Each stage runs the forwards and backwards that parallel/pipeline/schedule.lua puts in order.
-- What a forward keeps for its backward outlives other micro-batches, so forwards run in no step
-- scope: the modules free their temporaries at the last use.

local tide = require 'tide'
local err = require 'tide.util.err'
local finally = require 'tide.util.finally'
local reduce = require 'tide.train.reduce'

local pipelined = {}

-- Returns the part of a batch that this rank computes.
local function cut(self, batch)
   err.arg_if(not tide.is_tensor(batch.ids), 'train.step', 'ids', 'a tensor [batch, tokens] in '
      .. 'each batch, as stages of a pipeline must know the shape of hidden states', batch.ids)
   return self.cp and not batch.context and self.cp:cut(batch) or batch
end

-- Returns the loss as the step counts it: that of the last stage, and what the routers of the
-- others add.
local function counted(self, loss)
   if self.stage:gave_placeholder() then return tide.zeros({}, { device = loss.device }) end
   return loss:detach()
end

-- Calls fn(events) within n micro-batches of the pipeline.
local function within(self, ids, n, fn)
   local events = self.stage:begin(ids, n)
   finally(function(failed) self.stage:finish(failed) end, fn, events)
end

local function run_forward(self, losses, i, batch, count)
   local loss, record = reduce.forward(self, batch, count)
   self.stage:check_called()
   local counts, topk
   if record then counts, topk = record:counts() end
   reduce.note(losses, i, counted(self, loss), counts, topk, record and record:_places())
   return loss
end

-- Does what reduce.sharded_micros does, on a stage of a pipeline.
function pipelined.micros(self, batches, count)
   local losses, mine, ids = {}, {}, {}
   for i, batch in ipairs(batches) do
      mine[i] = cut(self, batch)
      ids[i] = mine[i].ids
   end
   local does = {
      forward = function(i) return run_forward(self, losses, i, mine[i], count) end,
      backward = function(loss, is_last)
         reduce.sync_at(self, is_last)
         reduce.backward(self, loss)
      end,
   }
   reduce.with_sharded(self, function()
      within(self, ids, #batches, function(events)
         if self.stage:run(events, does) then self.parallel:finish() end
      end)
      self.parallel:_report_bad()
   end)
   return reduce.summed(self, losses)
end

-- Calls fn(loss_of), which evaluates n batches: loss_of(self, batch, count) returns the loss of
-- one, on the last stage and 0 elsewhere.
function pipelined.evaluate(self, n, fn)
   local ids, i = {}, 0
   tide.no_grad(within, self, ids, n, function(events)
      fn(function(_, batch, count)
         local mine = cut(self, batch)
         i = i + 1
         ids[i] = mine.ids
         self.stage:at(events[i])
         local loss = reduce.loss_of(self, mine, count)
         self.stage:check_called()
         return counted(self, loss)
      end)
   end)
end

return pipelined
