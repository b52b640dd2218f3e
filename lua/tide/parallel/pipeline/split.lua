-- How many blocks of a model each stage of a pipeline gets.
--
-- Without a list of the caller the blocks are split so that the stage with the most work has as
-- little as possible. Work counts the weights that multiply a token; the output projection counts
-- for the last stage. Of equal splits the one with more blocks on early stages is taken.

local dims = require 'tide.util.dims'
local err = require 'tide.util.err'

local split = {}

-- Returns how many of the next blocks a stage may take without more than `most` work, but at least
-- `least`, leaving at least `rest` blocks; and their work.
local function fill(costs, first, most, least, rest)
   local sum, n = 0, 0
   while first + n <= #costs - rest and (n < least or sum + costs[first + n] <= most) do
      sum, n = sum + costs[first + n], n + 1
   end
   return n, sum
end

-- Returns the counts of blocks with at most `most` work a stage, or nil. o: of split.by_cost.
local function within(costs, size, most, o)
   local counts, at = {}, 1
   for s = 1, size - 1 do
      local n, sum = fill(costs, at, most, s == 1 and o.least or 1, size - s)
      if sum > most then return nil end
      counts[s], at = n, at + n
   end
   local sum = o.last
   for i = at, #costs do sum = sum + costs[i] end
   counts[size] = #costs - at + 1
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
   err.raise_if(#layers ~= size, 'E_ARG', op, "argument 'layers': expected %d numbers, one for "
      .. 'each stage, got %d', size, #layers)
   for i, k in ipairs(layers) do err.integer(op, ('layers[%d]'):format(i), k, 1, n) end
   err.raise_if(dims.sum(layers) ~= n, 'E_ARG', op, "argument 'layers': expected numbers that add "
      .. 'up to the %d blocks of the model, got a sum of %d', n, dims.sum(layers))
   return layers
end

return split
