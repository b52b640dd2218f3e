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

-- Returns a function (k) that makes batch k of this rank. It returns the batch, the labels that its
-- loss counts, and whether the batch is spare: what a rank runs only to run as often as others.
local function maker(self, mine, batch, make, other)
   return function(k)
      local first = (k - 1) * batch + 1
      local here = { unpack(mine, first, math.min(first + batch - 1, #mine)) }
      local b = make(#here > 0 and here or { other })
      b = batches_.settled('train.step.evaluate', 'batch of make', b)
      local is_spare = #here == 0
      if self.loss then b.spare = is_spare end
      return b, batches_.count_of { b }, is_spare
   end
end

-- Evaluates `runs` batches that make_one gives. Returns the sum of the losses of their labels, and
-- how many these are.
local function sums(self, runs, make_one)
   local sum, count, labels = 0, 0, {}
   local function batch_of(k)
      local b, n, is_spare = make_one(k)
      labels[k] = is_spare and 0 or n
      count = count + labels[k]
      return b, math.max(n, 1)
   end
   local function add(k, loss)
      if labels[k] > 0 then sum = sum + loss:item() * labels[k] end
   end
   if self.stage then
      pipelined.evaluate(self, runs, batch_of, add)
      return self.stage:sum({ sum })[1], count
   end
   for k = 1, runs do
      local b, n = batch_of(k)
      add(k, tide.no_grad(function()
         return tide.scope(function() return reduce.loss_of(self, b, n) end)
      end))
   end
   return sum, count
end

-- Returns the mean loss per token; see Step:evaluate.
return function(self, starts, batch, make)
   local model = self.model
   local was_training = model.training
   model:eval()
   local mine, runs = share(self, starts, batch)
   local sum, count = sums(self, runs, maker(self, mine, batch, make, starts[1]))
   if self.parallel then self.parallel:release() end
   model:train(was_training)
   local all = dist.sum(self.comm, { sum, count })
   all[2] = all[2] * self.groups / self.comm.size
   return all[2] > 0 and all[1] / all[2] or nil
end
