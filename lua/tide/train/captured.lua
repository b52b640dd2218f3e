-- A step that is one launch of a CUDA graph: recorded once, then replayed.

local tide = require 'tide'
local copy = require 'tide.util.copy'
local dist = require 'tide.comm'
local err = require 'tide.util.err'
local image_fields = require 'tide.nn.image_fields'
local Optimizer = require 'tide.optim.optimizer'
local nonfinite = require 'tide.train.nonfinite'
local reduce = require 'tide.train.reduce'
local replayed = require 'tide.parallel.cp.replayed'
local replicas = require 'tide.train.replicas'
local signature = require 'tide.util.signature'
local unused = require 'tide.train.unused'

local captured = {}

-- Runs a step without reading from the device. Returns the losses of this rank's micro-batches, the
-- norm, and of a model with experts the shares of its tokens (nn.balance.shares), as tensors.
-- found_inf is 0 where all of them are finite on all ranks, else NaN.
local function unread(self, batches, count)
   local losses = {}
   -- what a context keeps for its batch must outlive the first call, which is not recorded
   local stays = self.cp ~= nil
   local function run(i, batch) reduce.run_micro(self, losses, i, batch, count, stays) end
   if self.parallel then
      reduce.each_sharded(self, batches, run)
      local used = self.parallel:used()
      self.used = self.used or self.comm.size > 1 and self.comm:all_gather_object(used) or { used }
      self.parallel:drop_unused(self.used)     -- the first call is not recorded
   else
      self.optim:zero_grad()
      for i, batch in ipairs(batches) do run(i, batch) end
      if self.comm.size > 1 then
         -- the first call is not recorded; the recorded one must make the same calls
         if not self.compared then unused.refuse('train.step', self.comm, self.optim) end
         self.compared = true
         self.comm:all_reduce(self.optim:grads())
      end
   end
   local norm, factor = reduce.norm_of(self)
   local found = norm:to 'f32' * 0
   for _, loss in ipairs(losses) do found = found + loss:to 'f32' * 0 end
   if self.comm.size > 1 then self.comm:all_reduce(found) end
   self.optim:step { factor = factor, found_inf = found }
   local shares = reduce.shares(self, losses)
   reduce.correct(self, losses, self.router_bias_rate > 0 and found:eq(0):to 'f32' or nil)
   return { unpack(losses) }, norm, shares
end

-- Returns why a captured step was not applied. Gradients are known as sums over ranks only.
local function blame_captured(self, loss)
   local named = (self.parallel or self.model):named_parameters()
   if self.comm.size == 1 then return nonfinite.tell(self.comm, nonfinite.find(loss, named)) end
   return nonfinite.tell(self.comm, nonfinite.find(loss, {}), nonfinite.find(0, named))
end

-- Refuses fields that the host reads to lay a step out, and whose sizes differ from batch to batch.
local function check_fixed(batch, i)
   local has_images = false
   for _, name in ipairs(image_fields.list) do has_images = has_images or batch[name] ~= nil end
   err.raise_if(has_images, 'E_UNSUPPORTED', 'train.step', 'captured: batches[%d] has images, '
      .. 'whose patches differ in number from batch to batch, and a captured step has fixed '
      .. 'shapes; do without capturing', i)
   local cu = batch.cu_real
   err.raise_if(tide.is_tensor(cu) and cu.device == 'cpu', 'E_UNSUPPORTED', 'train.step',
      'captured: batches[%d] has rows of documents (cu_real), whose number differs from batch to '
      .. 'batch, and a captured step has fixed shapes; give windows, or do without capturing', i)
end

-- Returns a micro-batch without the places of labels that count, whose number differs from batch to
-- batch, and without its stamp, which is another object for each batch.
local function of_fixed_shape(batch)
   if batch.counted == nil and batch.stamp == nil then return batch end
   local out = copy(batch)
   out.counted, out.stamp = nil, nil
   return out
end

-- Returns the micro-batches as the recorded step takes them.
local function parts_of(self, batches)
   local list = {}
   for i, batch in ipairs(batches) do
      list[i] = of_fixed_shape(self.cp and self.replayed:cut(i, batch) or batch)
      check_fixed(list[i], i)
   end
   return list
end

-- Runs a whole step, as train.step's run does.
function captured.run(self, batches, meanwhile)
   local among = self.comm.size > 1                    -- ranks: they compare the rate
   local lr = among and self.optim:next_lr() or nil
   local means = self.parallel and self.parallel:gradient_divisor() or 1
   local count, whole = replicas.counted(self, batches, lr)
   local losses, norm, shares = self.captured(parts_of(self, whole), count / means)
   if meanwhile then meanwhile() end
   local here, grad_norm, busiest, idlest = reduce.read(losses, norm, shares)
   local loss, cause = dist.sum(self.comm, { here })[1] / means, nil
   replicas.check_loss(self, loss)
   local applied = nonfinite.is_finite(loss) and nonfinite.is_finite(grad_norm)
   if not applied then
      self.optim:take_back()
      cause = blame_captured(self, here)
   end
   -- gradients of the recorded step stay: a replay writes them again
   if not self.captured:is_recorded() then
      self.optim:zero_grad()
      if self.parallel then self.parallel:zero_grad() end
   end
   return { loss = loss, grad_norm = grad_norm, lr = self.optim.last_lr, applied = applied,
      cause = cause, experts = busiest and { busiest = busiest, idlest = idlest } }
end

-- Refuses options of a sharded model with which the host takes part in backward.
local by_device = signature.options {
   'where not (check_for_nan_in_grad or cpu_offload) -- E_UNSUPPORTED: captured: '
      .. "{check_for_nan_in_grad and 'check_for_nan_in_grad' or 'cpu_offload'} of fully_shard lets "
      .. 'the host look at gradients within the step, which a captured one cannot',
   'where ep_size == 1 -- E_UNSUPPORTED: captured: with ep_size ({ep_size}) of fully_shard the '
      .. 'host reads how many tokens each rank gets; leave out ep_size, or do without capturing',
}

-- Makes the step a captured one (tide.cuda.captured), where it can be.
function captured.set(self, op)
   local sharded, tp = self.parallel, self.tp
   for _, comm in ipairs { self.comm, tp and tp.comm or self.comm,
                           self.cp and self.cp.comm or self.comm,
                           sharded and sharded.shard_comm or self.comm,
                           sharded and sharded.replicas or self.comm } do
      err.raise_if(comm.size > 1 and comm.transport ~= 'nccl', 'E_UNSUPPORTED', op,
         "captured: collectives of communicator '%s' are made by the host (transport '%s'), and a "
         .. 'captured step takes only those over NCCL; give communicators over NCCL, or do without '
         .. 'capturing', tostring(comm.name), tostring(comm.transport))
   end
   if sharded then by_device(op, {}, sharded.opts) end
   err.raise_if(self.optim.update == Optimizer.update, 'E_UNSUPPORTED', op, 'captured: class %s '
      .. 'updates its weights one by one (update_parameter), with numbers that a captured step '
      .. 'would repeat; do without capturing', tostring(self.optim.class_name))
   for _, entry in ipairs(self.optim:entries()) do
      err.raise_if(entry.param.device ~= 'cuda', 'E_UNSUPPORTED', op, "captured: parameter '%s' is "
         .. "on '%s', and only steps on 'cuda' can be captured", entry.name, entry.param.device)
   end
   self.replayed = self.cp and replayed(self.cp, 'cuda')
   self.captured = tide.cuda.captured(function(...) return unread(self, ...) end)
end

return captured
