-- Whether the ranks of an axis mean the same when they share a sequence (layer 8).
--
-- The one idea: what a rank's attention computes follows from its own copy of the plan, the
-- documents, the mask and the method. If one copy differs, some methods would still run, and give
-- numbers of no sequence at all. So each rank says in a line what it holds, all of them see all the
-- lines, and every rank raises the same error, which names those who differ. It is said once for
-- each context and kind of call, not for each layer.

local tide = require 'tide'
local err = require 'tide.util.err'

local agree = {}

-- ---- what a rank holds, in a line -------------------------------------------------------------

-- A number for a list of whole numbers.
local function number_of(list)
   local h = #list
   for _, n in ipairs(list) do h = (h * 1000003 + n % 2^32) % 4294967291 end
   return h
end

local function number_of_runs(all_runs)
   local list = {}
   for r, runs in ipairs(all_runs) do list[r] = number_of(runs) end
   return number_of(list)
end

-- A number for a tensor of integers: its shape, their sum, and their sum weighted by place.
local function number_of_tensor(t)
   local n = t:numel()
   local place = tide.arange(n, { dtype = 'i64', device = t.device }) + 1
   local flat = t:to 'i64':reshape { -1 }
   local list = t.shape
   list[#list + 1] = n > 0 and flat:sum():item() or 0
   list[#list + 1] = n > 0 and (flat * place):sum():item() or 0
   return number_of(list)
end

local function of_plan(map)
   local text = ('%s, %d tokens padded to %d, %d documents (%x)'):format(map.kind, map.length,
      map.padded, #map.cu_real - 1, number_of { number_of(map.cu_real), number_of(map.cu_slot) })
   if map.kind == 'custom' or map.kind == 'balanced' then
      text = ('%s, order %x'):format(text, number_of_runs(map.all_runs))
   end
   return text
end

-- A context (parallel.cp.context) in a line: plan, or pairs as given, and index.
function agree.of_context(context)
   local text
   if context.given then
      local list = {}
      for r, t in ipairs(context.given) do list[r] = number_of_tensor(t) end
      text = ('pairs %x'):format(number_of(list))
   else
      text = of_plan(context.map)
   end
   if not context.index then return text end
   return ('%s, index %x'):format(text, number_of_tensor(context.index))
end

-- ---- comparing -------------------------------------------------------------------------------

local function ranks_text(list)
   return (#list == 1 and 'rank ' or 'ranks ') .. table.concat(list, ', ')
end

-- Raises on every rank, with one text, unless all have said the same; those in the smallest number
-- come first. describe(...): this rank's line. Collective. Ranks that are only simulated agree.
function agree.check(op, comm, what, describe, ...)
   if comm.size == 1 or comm.transport == 'sim' or not comm.all_gather_bytes then return end
   local mine = describe(...)
   local groups, by_text, same = {}, {}, true
   for r, text in ipairs(comm:all_gather_bytes(mine)) do
      same = same and text == mine
      if not by_text[text] then
         by_text[text] = { first = r, text = text }
         groups[#groups + 1] = by_text[text]
      end
      table.insert(by_text[text], r - 1)
   end
   if same then return end
   table.sort(groups, function(a, b)
      if #a ~= #b then return #a < #b end
      return a.first > b.first
   end)
   local list = {}
   for i, g in ipairs(groups) do list[i] = ('%s: %s'):format(ranks_text(g), g.text) end
   err.raise('E_COMM', op, 'the ranks of the axis have different %s; %s', what,
      table.concat(list, '; '))
end

return agree
