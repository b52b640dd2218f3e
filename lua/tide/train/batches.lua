-- The batches of a step: their documents, and how many of their labels count.

local tide = require 'tide'
local copy = require 'tide.util.copy'
local documents = require 'tide.parallel.cp.documents'
local err = require 'tide.util.err'
local nn_loss = require 'tide.nn.loss'
local stamp = require 'tide.util.stamp'

local batches = {}

-- Raises unless the places `counted` of a batch, which has no stamp, are those of the labels that
-- count, each once: a step divides by the number of these labels. It waits for the device.
local function check_counted(op, name, b)
   local labels, counted = b.labels, b.counted
   local what = ("the places of all labels that count, an index [K] of i64 on '%s'"):format(
      labels.device)
   err.arg_if(not tide.is_tensor(counted) or counted.ndim ~= 1 or counted.dtype ~= 'i64'
      or counted.device ~= labels.device, op, name .. '.counted', what, counted)
   local n, K = labels:numel(), counted:numel()
   local most = K > 0 and tide.stack({ counted:amin(), counted:amax() }, 1):tolist() or { 0, 0 }
   err.arg_if(most[1] < 0 or most[2] >= n, op, name .. '.counted', ('places in [0, %d)'):format(n),
      most[1] < 0 and most[1] or most[2])
   local i64 = { dtype = 'i64', device = labels.device }
   local times = tide.zeros({ n }, i64)
   if K > 0 then times = times:scatter_add(1, counted, tide.ones({ K }, i64)) end
   local counts = labels:reshape(-1):ne(nn_loss.ignore):to 'i64'
   local wrong = times:ne(counts):to('i64'):sum():item()
   err.raise_if(wrong > 0, 'E_ARG', op, "argument '%s.counted': expected %s, got %d places that "
      .. 'differ from labels; leave the field out, or give the other labels the value %d', name,
      what, wrong, nn_loss.ignore)
end

-- Returns a batch whose index says all that its fields say of documents (see
-- parallel.cp.documents), and whose labels do not train in padding. Raises unless they can be
-- counted.
function batches.settled(op, name, b)
   err.type(op, name, b, 'table')
   if b.count ~= nil then err.number(op, name .. '.count', b.count, 0) end
   err.arg_if(not tide.is_tensor(b.labels) and (b.labels ~= nil or b.count == nil), op,
      name .. '.labels', 'a tensor', b.labels)
   if tide.is_tensor(b.labels) and b.labels:numel() == 0 then
      err.raise('E_SHAPE', op, "argument '%s.labels': expected at least one row of tokens, got "
         .. '[%s]', name, table.concat(b.labels.shape, ', '))
   end
   local is_known = stamp.holds(b.stamp, b, { 'labels', 'counted' })
   local is_given = b.counted ~= nil and b.stamp == nil and b.labels ~= nil
   if is_given then check_counted(op, name, b) end
   local out = documents.settled(op, b)
   if is_known or b.counted == nil or is_given and rawequal(out.labels, b.labels) then
      return out
   end
   out = copy(out)
   out.counted = nil                             -- the labels are others by now
   return out
end

-- Returns the batches of a step, each as batches.settled returns it.
function batches.settled_list(op, given)
   local list = {}
   err.raise_if(type(given) == 'table' and (given.ids ~= nil or given.labels ~= nil), 'E_ARG', op,
      "argument 'batches': expected a list of micro-batches, step:run { batch }, got one batch")
   for i, b in ipairs(err.type(op, 'batches', given, 'table')) do
      list[i] = batches.settled(op, ('batches[%d]'):format(i), b)
   end
   return list
end

local place = { 'positions', 'index', 'q_index', 'k_index', 'context' }

-- Returns what a call of a model gets of a batch beside ids and labels: where the tokens lie, and
-- what the model says that it takes (input_fields).
function batches.place_of(model, batch)
   local at = {}
   for _, list in ipairs { place, model.input_fields or {} } do
      for _, k in ipairs(list) do at[k] = batch[k] end
   end
   return at
end

-- Returns the labels of a list of batches that count.
function batches.count_of(list)
   local n = 0
   for _, b in ipairs(list) do n = n + (b.count or nn_loss.count(b.labels)) end
   return n
end

return batches
