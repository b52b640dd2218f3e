-- Which rank and tensor brought a number that is not finite into a step.
--
-- After the sum over ranks every rank has the same NaN. So each rank searches its own gradients
-- before it: one pass, which makes names only where it finds something. Ranks exchange what they
-- found when a step is left out, which all of them know.

local tide = require 'tide'

local nonfinite = {}

-- Returns whether a number is neither infinite nor NaN.
function nonfinite.is_finite(v) return v == v and math.abs(v) ~= math.huge end

-- Returns the names of those of a list of { name, param } whose gradient is not finite: the first,
-- and how many more; nil if all are finite.
local function first_bad(named)
   local first, more = nil, 0
   for _, entry in ipairs(named) do
      local g = entry.param.grad
      if g ~= nil and not tide.isfinite(g):all():item() then
         if first then more = more + 1 else first = entry.name end
      end
   end
   return first, more
end

-- Returns what is not finite here, as text: loss (a number) and the gradients of `named`, a list of
-- { name, param }; nil if nothing is.
function nonfinite.find(loss, named)
   local grads, parts = {}, {}
   if not nonfinite.is_finite(loss) then parts[1] = 'its loss' end
   for _, entry in ipairs(named) do grads[#grads + 1] = entry.param.grad end
   tide.no_grad(function()
      -- a square may overflow where the gradient does not
      if nonfinite.is_finite(tide.update.norm(grads, 2, true):item()) then return end
      local name, more = first_bad(named)
      if not name then return end
      parts[#parts + 1] = ("the gradient of '%s'"):format(name)
         .. (more > 0 and (' and %d more'):format(more) or '')
   end)
   return #parts > 0 and table.concat(parts, ', ') or nil
end

-- Returns what the ranks of comm found (text or nil each), in one clause. sum: what this rank found
-- in its part of the sums over ranks, where the gradients of each are not known. Every rank calls
-- it.
function nonfinite.tell(comm, own, sum)
   local mine, list, summed = { own = own, sum = sum }, {}, nil
   local rows = comm.size > 1 and comm:all_gather_object(mine) or { mine }
   for r = 1, comm.size do
      if rows[r].own then list[#list + 1] = ('rank %d: %s'):format(r - 1, rows[r].own) end
      summed = summed or rows[r].sum
   end
   if #list > 4 then list[5] = ('%d more ranks'):format(#list - 4) end
   local parts = {}
   if #list > 0 then
      parts[1] = 'not finite on ' .. table.concat(list, '; ', 1, math.min(#list, 5))
   end
   if summed then
      parts[#parts + 1] = ('not finite, summed over ranks: %s (check_for_nan_in_grad of '
         .. 'fully_shard names the rank)'):format(summed)
   end
   if #parts == 0 then return 'each rank has finite ones, their sum or its norm is not' end
   return table.concat(parts, '; ')
end

return nonfinite
