-- Plain data parallelism where only some ranks use a parameter.
--
-- Ranks add up gradients by their place in a list, so all need the same list. A rank that did not
-- use a parameter adds zeros to it, as with DDP's find_unused_parameters; one that no rank uses has
-- no gradient, as on one rank. Which of them a rank has is compared in a sum that is made anyway.
-- (Of a sharded model: used and drop_unused of Sharded.)

local tide = require 'tide'
local err = require 'tide.util.err'
local fingerprint = require 'tide.parallel.fingerprint'

local unused = {}

-- Returns which parameters of the optimiser have a gradient here: '1' and '0' in their order.
local function marks(optim)
   local list = {}
   for i, entry in ipairs(optim:entries()) do list[i] = entry.param.grad ~= nil and '1' or '0' end
   return table.concat(list)
end

-- Returns this rank's share of a sum over comm that is 0 exactly if all ranks have gradients of the
-- same parameters.
function unused.share(comm, optim) return fingerprint.share(marks(optim), comm.rank, comm.size) end

-- Returns the entries of the optimiser without a gradient here of which another rank of comm has
-- one. Collective.
function unused.find(comm, optim)
   local list, all = {}, comm:all_gather_object(marks(optim))
   for i, entry in ipairs(optim:entries()) do
      local used = false
      for _, text in ipairs(all) do used = used or text:sub(i, i) == '1' end
      if used and entry.param.grad == nil then list[#list + 1] = entry end
   end
   return list
end

-- Sets zeros as gradients of the parameters that find() returns. Collective.
function unused.fill(comm, optim)
   for _, entry in ipairs(unused.find(comm, optim)) do
      entry.param:set_grad(tide.no_grad(tide.zeros_like, entry.param))
   end
end

-- Raises on all ranks if ranks have gradients of different parameters: a captured step adds up what
-- it was recorded with. Collective.
function unused.refuse(op, comm, optim)
   local names = {}
   for _, entry in ipairs(unused.find(comm, optim)) do names[#names + 1] = entry.name end
   for rank, list in ipairs(comm:all_gather_object(names)) do
      err.raise_if(list[1], 'E_UNSUPPORTED', op, "captured: rank %d has no gradient of '%s', which "
         .. 'another rank has; let every rank use it (add its sum times 0 to the loss), or do '
         .. 'without capturing', rank - 1, list[1])
   end
end

return unused
