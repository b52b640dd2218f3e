-- How many blocks of a model each stage of a pipeline gets.
--
-- Without a list of the caller the blocks are split so that the stage with the most work has as
-- little as possible. Work counts the weights that multiply a token; the output projection counts
-- for the last stage. Of equal splits the one with fewer blocks on early stages is taken, as these
-- keep the activations of more micro-batches.

local dims = require 'tide.util.dims'
local err = require 'tide.util.err'

local split = {}

-- Returns how many blocks up to `last` a stage may take without more than `most` work, but at least
-- one, leaving at least `rest` blocks; and their work. sum: of the stage without them.
local function fill(costs, last, most, rest, sum)
   local n = 0
   while last - n > rest and (n == 0 or sum + costs[last - n] <= most) do
      sum, n = sum + costs[last - n], n + 1
   end
   return n, sum
end

-- Returns the counts of blocks with at most `most` work a stage, or nil. The last stages take as
-- many as they can. o: of split.by_cost.
local function within(costs, size, most, o)
   local counts, left = {}, #costs
   for s = size, 2, -1 do
      local n, sum = fill(costs, left, most, o.least + s - 2, s == size and o.last or 0)
      if sum > most then return nil end
      counts[s], left = n, left - n
   end
   local sum = size == 1 and o.last or 0
   for i = 1, left do sum = sum + costs[i] end
   counts[1] = left
   return sum <= most and counts or nil
end

-- Returns the sums of neighbouring costs, with the last work where they reach the end: one of them
-- is the largest work of the best split.
local function candidates(costs, last)
   local list = {}
   for i = 1, #costs do
      local sum = 0
      for k = i, #costs do
         sum = sum + costs[k]
         list[#list + 1] = k == #costs and sum + last or sum
      end
   end
   table.sort(list)
   return list
end

-- Returns the blocks of each stage. costs: the work of each block; size: stages, at most as many as
-- blocks. o: last, the work of the last stage beside its blocks; least, the fewest blocks of the
-- first stage, which leave one for each other.
function split.by_cost(costs, size, o)
   local list = candidates(costs, o.last)
   local lo, hi = 1, #list
   while lo < hi do
      local mid = math.floor((lo + hi) / 2)
      if within(costs, size, list[mid], o) then hi = mid else lo = mid + 1 end
   end
   return within(costs, size, list[lo], o)
end

-- Returns the list of the caller, checked.
function split.given(op, layers, n, size)
   err.type(op, 'layers', layers, 'table')
   if #layers ~= size then
      err.arg_text(op, 'layers', ('%d numbers, one for each stage'):format(size), #layers)
   end
   for i, k in ipairs(layers) do err.integer(op, ('layers[%d]'):format(i), k, 1, n) end
   local sum = dims.sum(layers)
   if sum ~= n then
      err.arg_text(op, 'layers', ('numbers that add up to the %d blocks of the model'):format(n),
         ('a sum of %d'):format(sum))
   end
   return layers
end

return split
