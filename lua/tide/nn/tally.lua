-- Sums that an objective keeps over steps for the metrics, apart for training and evaluation.
--
--    local figures = tally { 'pairs', 'margin' }          -- the first name is the count
--    figures:add(model, { 4, 2.5 })                       -- numbers in the order of the names
--    figures:take(comm, 'train')                          -- { margin = 0.625 }, over all ranks

local spread = require 'tide.nn.spread'

local Tally = {}
Tally.__index = Tally

local function zeros(n)
   local list = {}
   for i = 1, n do list[i] = 0 end
   return list
end

-- Adds numbers to the sums of training, or of evaluation if the model is in eval mode; not those
-- that a stage of a pipeline made of placeholders.
function Tally:add(model, numbers)
   local stage = spread.of(model).pp
   if stage and stage:gave_placeholder() then return end
   local sums = self.sums[model.training and 'train' or 'val']
   for i, v in ipairs(numbers) do sums[i] = sums[i] + v end
end

-- Returns the means since the last call, over the ranks of comm, by name, and begins again. Returns
-- nil if nothing was counted. which: 'train', or 'val' of evaluations. Collective.
function Tally:take(comm, which)
   local sums = require('tide.comm').sum(comm, self.sums[which])
   self.sums[which] = zeros(#self.names)
   if sums[1] == 0 then return nil end
   local means = {}
   for i = 2, #self.names do means[self.names[i]] = sums[i] / sums[1] end
   return means
end

-- Makes the sums of these names, the count first.
return function(names)
   return setmetatable({ names = names,
      sums = { train = zeros(#names), val = zeros(#names) } }, Tally)
end
