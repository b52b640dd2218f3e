-- The loss of held-out batches, shared among the ranks of a step.

local tide = require 'tide'
local batches_ = require 'tide.train.batches'
local dist = require 'tide.comm'
local pipelined = require 'tide.train.pipelined'
local reduce = require 'tide.train.reduce'

-- Returns those of `starts` that this rank evaluates, and how often it runs the model: a sharded
-- model, or a loss of its own, runs equally often on all ranks.
local function share(self, starts, batch)
   local mine = {}
   for i = self.group + 1, #starts, self.groups do mine[#mine + 1] = starts[i] end
   local most = (self.parallel or self.loss) and math.ceil(#starts / self.groups) or #mine
   return mine, math.ceil(most / batch)
end

-- Adds up losses and labels of the batches of this rank. Returns both sums.
local function sums(self, mine, runs, batch, make, loss_of, first_start)
   local op, sum, count = 'train.step.evaluate', 0, 0
   for k = 1, runs do
      local first = (k - 1) * batch + 1
      local here = { unpack(mine, first, math.min(first + batch - 1, #mine)) }
      local b = make(#here > 0 and here or { first_start })
      b = batches_.settled(op, 'batch of make', b)
      -- what a rank runs only to run as often as others counts nothing
      if self.loss then b.spare = #here == 0 end
      local n = batches_.count_of { b }
      local loss = tide.no_grad(function()
         return tide.scope(function() return loss_of(self, b, math.max(n, 1)) end)
      end)
      if #here > 0 then sum, count = sum + loss:item() * n, count + n end
   end
   return sum, count
end

-- Returns the mean loss per token; see Step:evaluate.
return function(self, starts, batch, make)
   local model = self.model
   local was_training = model.training
   model:eval()
   local mine, runs = share(self, starts, batch)
   local sum, count
   local function run(loss_of)
      sum, count = sums(self, mine, runs, batch, make, loss_of, starts[1])
   end
   if self.stage then pipelined.evaluate(self, runs, run) else run(reduce.loss_of) end
   if self.parallel then self.parallel:release() end
   model:train(was_training)
   if self.stage then sum = self.stage:sum({ sum })[1] end
   local all = dist.sum(self.comm, { sum, count })
   all[2] = all[2] * self.groups / self.comm.size
   return all[2] > 0 and all[1] / all[2] or nil
end
