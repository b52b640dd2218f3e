-- The micro-batches of a step, and of an evaluation, on a rank of a pipeline.
--
-- Each rank runs the forwards and backwards that parallel/pipeline/schedule.lua puts in order. What
-- a forward keeps for its backward outlives other micro-batches, so forwards run in no step scope:
-- the modules free their temporaries at the last use.

local tide = require 'tide'
local each = require 'tide.util.each'
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

-- Runs n micro-batches of the pipeline. does: see parallel/pipeline/micros.lua.
local function run(self, ids_of, n, does)
   local stage = self.stage
   local program = stage:begin(ids_of, n)
   finally(function(failed) stage:finish(failed) end, stage.run, stage, program, does)
end

-- Runs the forward of a micro-batch on a part, and notes what it gives in losses.
local function run_forward(self, losses, batch, count)
   local loss, record = reduce.forward(self, batch, count)
   self.stage:check_called()
   local counts, topk
   if record then counts, topk = record:counts() end
   reduce.note(losses, #losses + 1, counted(self, loss), counts, topk, record and record:_places())
   return loss
end

-- Returns the losses of all parts as one list. Layers with experts follow each other, part by part.
local function joined(parts)
   local out = { places = {} }
   for _, losses in ipairs(parts) do
      for _, loss in ipairs(losses) do out[#out + 1] = loss end
      if losses.counts then
         local before = out.counts and out.counts:size(1) or 0
         for layer, place in each(losses.places) do out.places[layer] = before + place end
         out.counts = out.counts and tide.cat({ out.counts, losses.counts }, 1) or losses.counts
         out.topk = losses.topk
      end
   end
   return out
end

-- Does what reduce.sharded_micros does, on a rank of a pipeline.
function pipelined.micros(self, batches, count)
   local mine, parts, stage = {}, {}, self.stage
   for i, batch in ipairs(batches) do mine[i] = cut(self, batch) end
   for v = 1, stage.virtual do parts[v] = {} end
   local does = {
      forward = function(event)
         return run_forward(self, parts[event.part], mine[event.i], count)
      end,
      backward = function(loss)
         reduce.sync_at(self, stage:is_complete())
         loss:backward()
      end,
      finish = function() self.parallel:finish() end,
   }
   reduce.with_sharded(self, function()
      run(self, function(i) return mine[i].ids end, #batches, does)
      self.parallel:_report_bad()
   end)
   return reduce.summed(self, joined(parts))
end

-- Evaluates n batches. batch_of(i) returns one and the count of its loss; add(i, loss) takes the
-- loss of one, 0 before the last stage.
function pipelined.evaluate(self, n, batch_of, add)
   local made = {}
   local function at(i)
      if not made[i] then
         local batch, count = batch_of(i)
         made[i] = { mine = cut(self, batch), count = count }
      end
      return made[i]
   end
   tide.no_grad(run, self, function(i) return at(i).mine.ids end, n, {
      forward = function(event)
         local b = at(event.i)
         local loss = reduce.loss_of(self, b.mine, b.count)
         self.stage:check_called()
         add(event.i, counted(self, loss))
         if event.part == self.stage.virtual then made[event.i] = nil end
      end,
   })
end

return pipelined
