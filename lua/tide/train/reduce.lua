-- Losses and gradients of the micro-batches of a step, summed over its ranks, and their norm.

local tide = require 'tide'
local batches_ = require 'tide.train.batches'
local clip = require 'tide.optim.clip'
local copy = require 'tide.util.copy'
local dist = require 'tide.comm'
local err = require 'tide.util.err'
local finally = require 'tide.util.finally'
local fingerprint = require 'tide.parallel.fingerprint'
local nn_balance = require 'tide.nn.balance'
local nonfinite = require 'tide.train.nonfinite'
local parallel_clip = require 'tide.parallel.clip'
local spread = require 'tide.nn.spread'
local unused = require 'tide.train.unused'

local reduce = {}

-- Returns this rank's part of the loss of a batch over `count` labels: the model's, or that of the
-- option `loss` of the step. A batch with a context is cut already. E_ARG: it gave something else
-- than one number as a tensor.
function reduce.loss_of(self, batch, count, options)
   local mine = self.cp and not batch.context and self.cp:cut(batch) or batch
   local opts = copy(batches_.place_of(self.model, mine), copy(options or {}, { count = count }))
   local loss
   if self.loss then
      loss = self.loss(self.model, mine, opts)
   else
      err.arg_if(batch.position_ids ~= nil and batch.positions == nil, 'train.step', 'position_ids',
         "nil, as the model gets positions from the field 'positions' of a batch",
         batch.position_ids)
      if self.model.picks_rows then opts.counted = mine.counted end
      loss = self.model:loss(mine.ids, mine.labels, opts)
   end
   if tide.is_tensor(loss) and loss:numel() == 1 then return loss end
   err.arg('train.step', 'model',
      'a model whose loss(ids, labels, opts) returns a tensor of one element', loss)
end

-- Refuses a loss of the caller that leaves out the balance of the step, where a correction bias
-- needs it, and over ranks, where each rank would balance its own tokens. A part of a pipeline may
-- have no experts.
local function check_balance(self, record)
   if self.stage and not self.stage:has_mixtures() then return end
   err.raise_if(self.router_bias_rate > 0 and not record:counts(), 'E_ARG', 'train.step', "option "
      .. "'loss': it called the model without opts.balance, and router_bias_rate needs what the "
      .. 'routers chose; pass its options on: model:loss(ids, labels, opts)')
   err.raise_if(self.comm.size > 1 and not record:counts() and self.model:balance_way(), 'E_ARG',
      'train.step', "option 'loss': it called the model without opts.balance, so each rank would "
      .. 'balance the experts over its own tokens; pass its options on: model:loss(ids, labels, '
      .. 'opts)')
end

-- Runs the forward of one micro-batch. Returns its share of the loss and, of a model with experts,
-- the record of what its routers choose (see nn.balance).
function reduce.forward(self, batch, count)
   local options, record = self.loss_options, nil
   if self.has_experts then
      record = nn_balance.new { comm = self.comm, whole = self.router_bias_rate > 0 }
      options = copy(options, { balance = record })
   end
   local loss = reduce.loss_of(self, batch, count, options)
   if record then check_balance(self, record) end
   return loss, record
end

-- Runs forward and backward of one micro-batch; returns its share of the loss and, of a model with
-- experts, how often each was chosen, how many a token uses and the places of the layers.
local function whole_loss(self, batch, count)
   local loss, record = reduce.forward(self, batch, count)
   -- it may use no trained parameter (a text, where only a vision tower is trained); backward of a
   -- sharded model communicates, so that all ranks run it
   if self.parallel or loss.requires_grad then loss:backward() end
   if self.parallel then self.parallel:finish() end
   -- handles of gradients would make the next sum a copy
   if not record then return loss:detach() end
   local counts, topk = record:counts()
   return loss:detach(), counts, topk, record:_places()
end

-- Adds what micro-batch i gave to `losses`: its loss, and in field counts the choices of experts.
function reduce.note(losses, i, loss, counts, topk, places)
   losses[i] = loss
   if not counts then return end
   losses.topk, losses.places = topk, places
   losses.counts = losses.counts and losses.counts + counts or counts
end

-- Runs micro-batch i and adds what it gives to `losses`. It runs in a step scope, unless what it
-- makes must stay.
function reduce.run_micro(self, losses, i, batch, count, stays)
   if stays then return reduce.note(losses, i, whole_loss(self, batch, count)) end
   reduce.note(losses, i, tide.scope(whole_loss, self, batch, count))
end

-- Returns the largest and smallest share of the tokens that use one expert, as nn.balance.shares
-- does; nil without experts. losses.counts become those of all ranks. Collective.
function reduce.shares(self, losses)
   if not losses.counts then return nil end
   if self.comm.size > 1 then
      losses.counts = losses.counts:clone()
      self.comm:all_reduce(losses.counts)
   end
   return nn_balance.shares(losses.counts, losses.topk)
end

-- Returns the largest and the smallest of the shares of all stages of a pipeline. nil: this stage
-- has no experts.
function reduce.shares_of_stages(self, busiest, idlest)
   for _, row in ipairs(self.stage:gather { busiest or false, idlest or false }) do
      if row[1] then
         busiest, idlest = math.max(busiest or 0, row[1]), math.min(idlest or 1e300, row[2])
      end
   end
   return busiest, idlest
end

-- Moves the correction biases of routers by what reduce.shares has left in losses. factor: nil, or
-- a tensor, 0 where the step is not applied. A stage of a pipeline may have no routers.
function reduce.correct(self, losses, factor)
   if self.router_bias_rate == 0 or not losses.counts then return end
   nn_balance._correct(self.model, losses.counts, losses.places, self.router_bias_rate, factor)
end

-- Reads the losses of this rank's micro-batches and the tensors behind them in the list together:
-- the host waits for the device once. Returns the sum of the losses, and the rest.
function reduce.read(losses, ...)
   local list, n, sum = { unpack(losses) }, #losses, 0
   for _, t in ipairs { ... } do list[#list + 1] = t end
   local numbers = #list == 1 and { list[1]:item() } or tide.no_grad(function()
      for i, t in ipairs(list) do list[i] = t:to 'f64':reshape(-1) end
      return tide.cat(list, 1):tolist()
   end)
   for i = 1, n do sum = sum + numbers[i] end
   return sum, unpack(numbers, n + 1)
end

-- Runs the micro-batches and sums their gradients over ranks. Returns the losses on the device.
-- With several ranks it reads them, and the second result is their sum over all ranks.
function reduce.micros(self, batches, count)
   local comm, optim, losses = self.comm, self.optim, {}
   optim:zero_grad()
   if self.model.walk then spread.forget_rows(self.model) end
   for i, batch in ipairs(batches) do reduce.run_micro(self, losses, i, batch, count) end
   if comm.size == 1 then return losses end
   local loss = reduce.read(losses)
   self.found = nonfinite.find(loss, self.model:named_parameters())
   local sums = dist.sum(comm, { loss, unused.share(comm, optim) })
   if sums[2] ~= 0 then unused.fill(comm, optim) end
   comm:all_reduce(optim:grads())
   return losses, sums[1]
end

-- Calls run() with the gradients of a sharded model cleared; after an error it is ready for a new
-- step.
function reduce.with_sharded(self, run)
   local sharded = self.parallel
   sharded:zero_grad()
   finally(function(failed)
      sharded:set_requires_gradient_sync(true)
      if failed then sharded:reset() end
   end, run)
end

-- Sets whether the next backward reduces gradients: the last one does, or each.
function reduce.sync_at(self, is_last)
   local sharded = self.parallel
   sharded:set_requires_gradient_sync(is_last or sharded.opts.sync_each_backward)
end

-- Calls run(i, batch) for each micro-batch. Reduction is the sharded model's: after the last, or
-- after each.
function reduce.each_sharded(self, batches, run)
   reduce.with_sharded(self, function()
      for i, batch in ipairs(batches) do
         reduce.sync_at(self, i == #batches)
         run(i, batch)
      end
   end)
end

-- Returns the losses of micro-batches, and their sum over all ranks. Drops the gradients of
-- parameters that no rank has used.
function reduce.summed(self, losses)
   local comm, sharded, used = self.comm, self.parallel, self.parallel:used()
   local stage = self.stage
   if comm.size == 1 and not stage then
      sharded:drop_unused { used }
      return losses
   end
   self.loss_here = reduce.read(losses)
   local sums = dist.sum(comm, { self.loss_here, fingerprint.share(used, comm.rank, comm.size) })
   sharded:drop_unused(sums[2] == 0 and { used } or comm:all_gather_object(used))
   return losses, stage and stage:sum({ sums[1] })[1] or sums[1]
end

-- Does what micros does, for a sharded model.
function reduce.sharded_micros(self, batches, count)
   local losses = {}
   reduce.each_sharded(self, batches, function(i, batch)
      reduce.run_micro(self, losses, i, batch, count)
   end)
   return reduce.summed(self, losses)
end

-- Returns the global norm and the factor that clips it (nil: none).
function reduce.norm_of(self)
   if not self.parallel then return clip.by_norm(self.optim:grads(), self.clip) end
   local norm = parallel_clip.norm(self.parallel)
   if self.clip == 0 then return norm, nil end
   return norm, tide.update.clip_factor(norm, self.clip)
end

-- Counts a step that was left out.
function reduce.skip(self) self.optim.steps = self.optim.steps + 1 end

-- Updates the weights. The optimiser raises where no parameter has a gradient, but a module may say
-- that it ran on no rows (Module:note_rows): then there is nothing to update.
function reduce.update(self, lr, factor)
   local nothing = not self.parallel and #self.optim:grads() == 0 and self.model.walk
      and next(spread.idle(self.model))
   if nothing then return reduce.skip(self) end
   self.optim:step { lr = lr, factor = factor }
end

-- Returns why a step is not applied: what is not finite, and on which rank. Gradients of a sharded
-- model are known as sums over ranks only, unless it checks them before (check_for_nan_in_grad);
-- those of one rank are still what backward left. loss: of one rank.
function reduce.blame(self, loss)
   if not self.parallel and self.comm.size == 1 then
      self.found = nonfinite.find(loss, self.model:named_parameters())
   end
   if not self.parallel then return nonfinite.tell(self.comm, self.found) end
   local comm = self.stage and self.parallel.comm or self.comm
   local here = comm.size == 1 and loss or self.loss_here
   return nonfinite.tell(comm, nonfinite.find(here, {}),
      nonfinite.find(0, self.parallel:named_parameters()))
end

return reduce
