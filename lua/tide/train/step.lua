-- One optimiser step: micro-batches, gradients summed over ranks, clipping, update.
--
-- The loss of a micro-batch is its sum over local tokens divided by the count of the whole global
-- batch, so gradients over micro-batches and ranks are plain sums. Each micro-batch runs in a
-- scope: what backward left goes at its end, gradients stay. A loss or norm that is not finite
-- leaves the parameters untouched and is reported to the caller.
--
-- With `parallel`, a model that tide.parallel.fully_shard has sharded, the reduction is its own
-- (where it takes means over ranks, losses are larger by their number: the step is the same); else
-- the ranks of comm are plain data parallelism. With a model that tide.parallel.cp.attach has
-- attached, the ranks of its axis get the same batches and cut them; comm holds data and context
-- ranks, since gradients and losses are sums over both.
--
-- With `captured`, forward, backward and update are one launch on a GPU from the second step on,
-- collectives over NCCL included. The host then learns of a loss that is not finite after the
-- update, which leaves everything as it is by the same numbers on the device (found_inf), on all
-- ranks.

local tide = require 'tide'
local agree = require 'tide.comm.agree'
local canonical = require 'tide.util.canonical'
local class = require 'tide.class'
local dist = require 'tide.comm'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local clip = require 'tide.optim.clip'
local documents = require 'tide.parallel.cp.documents'
local fingerprint = require 'tide.parallel.fingerprint'
local layout = require 'tide.parallel.layout'
local parallel_clip = require 'tide.parallel.clip'
local nn = require 'tide.nn'
local nn_loss = require 'tide.nn.loss'
local spread = require 'tide.nn.spread'
local nonfinite = require 'tide.train.nonfinite'
local unused = require 'tide.train.unused'

local step = {}

local Step = {}
Step.__index = Step

-- What a model that is cut over ranks (tensor parallel) must not be given: a sum of its gradients
-- over those ranks, or a norm of this rank's part. A sharded model knows its ranks and its norm.
local function check_cut(op, opts)
   if not spread.of(opts.model).tp or opts.parallel then return end
   if opts.comm == nil then
      err.raise('E_STATE', op, 'the model is cut over ranks; give comm: the data-parallel axis, '
         .. 'or tide.comm.solo() if there is none')
   end
   if opts.clip ~= nil and opts.clip > 0 then
      err.raise('E_STATE', op, 'the model is cut over ranks; clip needs the norm of all parts: '
         .. "shard it with tide.parallel.fully_shard (strategy 'no_shard' keeps it whole)")
   end
end

-- Parameters that every rank of a tensor-parallel axis holds whole must be the same on all: a seed
-- of its own would train another model without a word. Collective; a sharded model has compared.
local function check_replicated(self, op)
   local env = spread.of(self.model).tp
   if not env then return end
   self.tp = env.comm
   if self.parallel then return end
   local list = {}
   for _, e in ipairs(self.model:named_parameters()) do
      local cut = layout.get(e.owner, e.field)
      if not (cut and cut.blocks) then list[#list + 1] = e.param end
   end
   agree.check(self.tp, op, 'E_STATE', {
      { what = 'seeds', text = tostring(rawget(self.model, '_seed')), shown = true },
      { what = 'values of parameters that are not cut',
         text = function() return fingerprint.values(list) end },
   })
end

-- Sets what the context axis makes of comm: how many groups of ranks have data of their own, and
-- which is this rank's. Every rank of comm calls it.
local function set_groups(self, op)
   local handle, comm = spread.of(self.model).cp, self.comm
   self.groups, self.group = comm.size, comm.rank
   if not handle or handle.size == 1 then return end
   self.cp, self.groups, self.group = handle, comm.size / handle.size, 0
   local seen = {}
   for r, place in ipairs(comm.size > 1 and comm:all_gather_object(handle.rank) or { -1 }) do
      seen[place] = (seen[place] or 0) + 1
      if r - 1 < comm.rank and place == handle.rank then self.group = self.group + 1 end
   end
   for place = 0, handle.size - 1 do
      if seen[place] ~= self.groups then
         err.raise('E_STATE', op, 'the sequence is cut over %d ranks, and gradients are added over '
            .. "%d that do not hold them all; give comm: mesh:flatten { 'dp', 'cp' }", handle.size,
            comm.size)
      end
   end
end

-- What an optimiser does, as text; rates by the step are compared in each. The pieces of a sharded
-- model need not make the same groups.
local function optim_text(optim, sharded)
   local lr = type(optim.lr) == 'function' and 'by the step' or tostring(optim.lr)
   local list = { canonical(optim.defaults) }
   for _, group in ipairs(not sharded and optim.groups or {}) do
      local options = {}
      for k, v in each(group) do
         if k ~= 'params' then options[k] = v end
      end
      list[#list + 1] = canonical(options)
   end
   return ('%s, lr %s, %s'):format(tostring(optim.class_name), lr, table.concat(list, '; '))
end

-- Names of the parameters that an optimiser changes, by group.
local function optim_names(optim)
   local list = {}
   for i, group in ipairs(optim.groups or {}) do
      for _, entry in ipairs(group.params) do list[#list + 1] = i .. ' ' .. entry.name end
   end
   return table.concat(list, '\n')
end

-- Ranks that add up gradients make the update each for itself: with other weights, another limit,
-- another optimiser or another loss on one, replicas drift apart or learn a mixture without a word.
-- So with models of equal shapes that compute different things, or that freeze other parameters. A
-- sharded model has compared itself.
local function check_replicas(self, op)
   local items = {
      { what = 'limits of the gradient norm (clip)', text = tostring(self.clip), shown = true },
      { what = 'options of the optimiser', text = optim_text(self.optim, self.parallel),
         shown = true },
      { what = 'options of the loss', text = canonical(self.loss_options), shown = true },
   }
   local function add(what, text, lines)
      items[#items + 1] = { what = what, text = text, lines = lines }
   end
   if not self.parallel then add('parameters of the optimiser', optim_names(self.optim)) end
   if not self.parallel and class.is(self.model, nn.Module) then
      add('parameters', fingerprint.parameters(self.model), true)
      add('weights', function() return fingerprint.values(self.model:parameters()) end)
      add('modules', fingerprint.structure(self.model), true)
   end
   agree.check(self.comm, op, 'E_STATE', items)
end

-- A model of one's own must say what its loss is.
local function check_loss(op, model)
   if type(model.loss) == 'function' then return end
   err.arg(op, 'model', 'a model with a method loss(ids, labels, { count = n }), which returns the '
      .. 'sum of the losses of its labels divided by n', model)
end

local unread -- of a captured step, below

-- Options of a sharded model under which the host takes part in each backward.
local function check_sharded(op, sharded)
   for _, name in ipairs { 'check_for_nan_in_grad', 'cpu_offload' } do
      if sharded.opts[name] then
         err.raise('E_UNSUPPORTED', op, 'captured: %s of fully_shard lets the host look at '
            .. 'gradients within the step, which a captured one cannot', name)
      end
   end
end

-- The step as a captured one (tide.cuda.captured), where it can be.
local function set_captured(self, op)
   local sharded, tp = self.parallel, self.tp
   if self.cp then
      err.raise('E_UNSUPPORTED', op, 'captured: context parallelism cuts each batch on the host, '
         .. 'within the step; do without capturing')
   end
   for _, comm in ipairs { self.comm, tp and tp.comm or self.comm,
                           sharded and sharded.shard_comm or self.comm,
                           sharded and sharded.replicas or self.comm } do
      if comm.size > 1 and comm.transport ~= 'nccl' then
         err.raise('E_UNSUPPORTED', op, "captured: collectives of communicator '%s' are made by "
            .. "the host (transport '%s'), and a captured step takes only those over NCCL; give "
            .. 'communicators over NCCL, or do without capturing', tostring(comm.name),
            tostring(comm.transport))
      end
   end
   if sharded then check_sharded(op, sharded) end
   for _, entry in ipairs(self.optim:entries()) do
      if entry.param.device ~= 'cuda' then
         err.raise('E_UNSUPPORTED', op, "captured: parameter '%s' is on '%s', and only steps on "
            .. "'cuda' can be captured", entry.name, entry.param.device)
      end
   end
   self.captured = tide.cuda.captured(function(...) return unread(self, ...) end)
end

-- opts: model (with :loss(ids, labels, opts)), optim, clip (0: off), comm, loss_options, parallel
-- (a Sharded; comm is then its ranks with data of their own), captured (false; true: from the
-- second on a step is one launch of a CUDA graph, with the same numbers; batches must keep their
-- shapes and counts; several ranks need NCCL between them and record together). Collective.
-- E_STATE: ranks differ in clip, in the options of optimiser or loss or, of a model that each holds
-- whole, in its parameters, modules or weights. E_UNSUPPORTED: the step cannot be captured (another
-- transport, context parallelism, a model that is not on 'cuda', gradients that the host sees).
function step.new(opts)
   local op = 'train.step.new'
   err.type(op, 'options', opts, 'table')
   err.options(op, opts, { 'model', 'optim', 'clip', 'comm', 'loss_options', 'parallel',
      'captured' })
   for _, k in ipairs { 'model', 'optim' } do err.type(op, k, opts[k], 'table') end
   err.number(op, 'clip', opts.clip or 0, 0)
   local comm = dist.comm_of(op, opts.comm)
   local sharded = opts.parallel
   if sharded ~= nil and not (type(sharded) == 'table' and sharded.is_sharded) then
      err.arg(op, 'parallel', 'what tide.parallel.fully_shard returned', sharded)
   end
   check_loss(op, opts.model)
   check_cut(op, opts)
   local self = setmetatable({
      model = opts.model, optim = opts.optim, parallel = sharded,
      comm = sharded and sharded.data_comm or comm,
      clip = opts.clip or 0, loss_options = opts.loss_options or {},
   }, Step)
   set_groups(self, op)
   check_replicated(self, op)
   check_replicas(self, op)
   if opts.captured ~= nil and err.type(op, 'captured', opts.captured, 'boolean') then
      set_captured(self, op)
   end
   return self
end

-- A batch whose index says all that its fields say of documents (see parallel.cp.documents), and
-- whose labels do not train in padding. Raises unless they can be counted.
local function settled(op, name, b)
   err.type(op, name, b, 'table')
   if b.count ~= nil then err.number(op, name .. '.count', b.count, 0) end
   if not tide.is_tensor(b.labels) and (b.labels ~= nil or b.count == nil) then
      err.arg(op, name .. '.labels', 'a tensor', b.labels)
   end
   if tide.is_tensor(b.labels) and b.labels:numel() == 0 then
      err.raise('E_SHAPE', op, "argument '%s.labels': expected at least one row of tokens, got "
         .. '[%s]', name, table.concat(b.labels.shape, ', '))
   end
   return documents.settled(op, b)
end

local function settled_list(op, batches)
   local list = {}
   if type(batches) == 'table' and (batches.ids ~= nil or batches.labels ~= nil) then
      err.raise('E_ARG', op, "argument 'batches': expected a list of micro-batches, step:run "
         .. '{ batch }, got one batch')
   end
   for i, b in ipairs(err.type(op, 'batches', batches, 'table')) do
      list[i] = settled(op, ('batches[%d]'):format(i), b)
   end
   return list
end

local function count_of(batches)
   local n = 0
   for _, b in ipairs(batches) do n = n + (b.count or nn_loss.count(b.labels)) end
   return n
end

-- This rank's part of the loss of a batch over `count` labels.
local function loss_of(self, batch, count, options)
   local mine, opts = self.cp and self.cp:cut(batch) or batch, { count = count }
   for k, v in each(options or {}) do opts[k] = v end
   for _, k in ipairs { 'positions', 'index', 'q_index', 'k_index', 'context' } do
      opts[k] = mine[k]
   end
   return self.model:loss(mine.ids, mine.labels, opts)
end

-- Forward and backward of one micro-batch; returns its share of the loss.
local function micro_loss(self, batch, count)
   return (tide.scope(function()
      local loss = loss_of(self, batch, count, self.loss_options)
      loss:backward()
      if self.parallel then self.parallel:finish() end
      return loss:detach(), unpack(self.optim:grads())
   end))
end

local function micro(self, batch, count) return micro_loss(self, batch, count):item() end

-- Gradients of the micro-batches, summed over ranks; returns the loss, summed too.
local function micros(self, batches, count)
   local comm, optim = self.comm, self.optim
   optim:zero_grad()
   local loss = 0
   for _, batch in ipairs(batches) do loss = loss + micro(self, batch, count) end
   self.found = nonfinite.find(loss, self.model:named_parameters())
   if comm.size == 1 then return loss end
   local sums = dist.sum(comm, { loss, unused.share(comm, optim) })
   if sums[2] ~= 0 then unused.fill(comm, optim) end
   comm:all_reduce(optim:grads())
   return sums[1]
end

-- run(i, batch) for each micro-batch. Reduction is the sharded model's: after the last, or after
-- each.
local function each_sharded(self, batches, run)
   local sharded = self.parallel
   sharded:zero_grad()
   local ok, problem = pcall(function()
      for i, batch in ipairs(batches) do
         sharded:set_requires_gradient_sync(i == #batches or sharded.opts.sync_each_backward)
         run(i, batch)
      end
   end)
   sharded:set_requires_gradient_sync(true)
   if ok then return end
   sharded:reset()
   error(problem, 0)
end

-- As micros, of a sharded model.
local function sharded_micros(self, batches, count)
   local loss = 0
   each_sharded(self, batches, function(_, batch) loss = loss + micro(self, batch, count) end)
   self.loss_here = loss
   return dist.sum(self.comm, { loss })[1]
end

-- The global norm and the factor that clips it (nil: none).
local function norm_of(self)
   if not self.parallel then return clip.by_norm(self.optim:grads(), self.clip) end
   local norm = parallel_clip.norm(self.parallel)
   if self.clip == 0 then return norm, nil end
   return norm, tide.update.clip_factor(norm, self.clip)
end

-- A step is not applied: what is not finite, and on which rank. Gradients of a sharded model are
-- known as sums over ranks only, unless it checks them before (check_for_nan_in_grad).
local function blame(self)
   if not self.parallel then return nonfinite.tell(self.comm, self.found) end
   return nonfinite.tell(self.comm, nonfinite.find(self.loss_here, {}),
      nonfinite.find(0, self.parallel:named_parameters()))
end

local function other_batches(axis, size)
   err.raise('E_STATE', 'train.step', 'ranks of the %s axis (%d ranks) were given different '
      .. 'batches; each of them needs the same rows (the sampler counts only ranks with data of '
      .. 'their own: rank and size of run.data)', axis, size)
end

local function other_rates(self, lr)
   err.raise('E_STATE', 'train.step', 'ranks take different learning rates in step %d: rank %d '
      .. '%.9g; every rank must have the same function of the step', self.optim.steps + 1,
      self.comm.rank, lr)
end

-- Labels of the global batch. Ranks that share a model by parts must have been given the same
-- batches, and all the same learning rate (nil: not known): the sum that decides is the one of the
-- counts, and one more for tp.
local function global_count(self, batches, lr)
   local cp, tp, comm, share = self.cp, self.tp, self.comm, fingerprint.share
   local rate = ('%.17g'):format(lr or 0)
   local text = (cp or tp and tp.size > 1) and fingerprint.batches(batches)
   if tp and tp.size > 1 then
      local sums = dist.sum(tp, { share(text, tp.rank, tp.size),
         share(rate, tp.rank, tp.size) })
      if sums[1] ~= 0 then other_batches('tensor-parallel', tp.size) end
      if sums[2] ~= 0 then other_rates(self, lr) end
   end
   local sums = dist.sum(comm, { count_of(batches), share(rate, comm.rank, comm.size),
      cp and share(text, cp.rank, cp.size) or nil })
   if sums[2] ~= 0 then other_rates(self, lr) end
   if cp and sums[3] ~= 0 then other_batches('context', cp.size) end
   return sums[1] * self.groups / comm.size
end

-- The labels that count in all batches of the step, and the batches, settled.
local function counted(self, batches, lr)
   batches = settled_list('train.step', batches)
   if lr ~= nil then err.number('train.step', 'lr', lr, 0) end
   local count = global_count(self, batches, lr)
   if count == 0 then
      err.raise('E_ARG', 'train.step', 'no label of this batch counts (all are ignored)')
   end
   return count, batches
end

-- Gradients of a list of micro-batches { ids, labels, count }, summed over ranks. Returns the
-- loss of the global batch. lr: the learning rate of the step, if it is to be compared.
function Step:gradients(batches, lr)
   local count, whole = counted(self, batches, lr)
   local means = self.parallel and self.parallel:gradient_divisor() or 1
   local loss = self.parallel and sharded_micros(self, whole, count / means)
      or micros(self, whole, count)
   return loss / means
end

-- A step without a look at the device: the losses of this rank's micro-batches and the norm, as
-- tensors. found_inf is 0 where all of them are finite on all ranks, else NaN.
function unread(self, batches, count)
   local losses = {}
   local function run(i, batch) losses[i] = micro_loss(self, batch, count) end
   if self.parallel then
      each_sharded(self, batches, run)
   else
      self.optim:zero_grad()
      for i, batch in ipairs(batches) do run(i, batch) end
      if self.comm.size > 1 then
         -- the first call is not recorded, the one that is does as it did
         if not self.compared then unused.refuse('train.step', self.comm, self.optim) end
         self.compared = true
         self.comm:all_reduce(self.optim:grads())
      end
   end
   local norm, factor = norm_of(self)
   local found = norm * 0
   for _, loss in ipairs(losses) do found = found + loss:to 'f32' * 0 end
   if self.comm.size > 1 then self.comm:all_reduce(found) end
   self.optim:step { factor = factor, found_inf = found }
   return losses, norm
end

-- Why a captured step was not applied. Gradients are known as sums over ranks only.
local function blame_captured(self, loss)
   local named = (self.parallel or self.model):named_parameters()
   if self.comm.size == 1 then return nonfinite.tell(self.comm, nonfinite.find(loss, named)) end
   return nonfinite.tell(self.comm, nonfinite.find(loss, {}), nonfinite.find(0, named))
end

local function run_captured(self, batches)
   local among = self.comm.size > 1                    -- ranks: they compare the rate
   local lr, here = among and self.optim:next_lr() or nil, 0
   local means = self.parallel and self.parallel:gradient_divisor() or 1
   local count, whole = counted(self, batches, lr)
   local losses, norm = self.captured(whole, count / means)
   for _, part in ipairs(losses) do here = here + part:item() end
   local loss, grad_norm, cause = dist.sum(self.comm, { here })[1] / means, norm:item(), nil
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
      cause = cause }
end

-- A whole step. Returns { loss, grad_norm, lr, applied, cause }; cause: unless it was applied, what
-- is not finite, by rank and name.
function Step:run(batches)
   if self.captured then return run_captured(self, batches) end
   local lr = err.number('train.step', 'lr', self.optim:next_lr(), 0)
   local loss = self:gradients(batches, lr)
   local norm, factor = norm_of(self)
   local grad_norm = norm:item()
   local applied = nonfinite.is_finite(loss) and nonfinite.is_finite(grad_norm)
   if applied then self.optim:step { lr = lr, factor = factor } end
   local cause = not applied and blame(self) or nil
   self.optim:zero_grad()
   if self.parallel then self.parallel:zero_grad() end
   return { loss = loss, grad_norm = grad_norm, lr = lr, applied = applied, cause = cause }
end

-- Counts a step that was left out, so that the schedule goes on.
function Step:skip() self.optim.steps = self.optim.steps + 1 end

-- Mean loss per token over windows of a source that begin at `starts`, `batch` of them at a
-- time, shared among the ranks. make(starts) builds a batch.
function Step:evaluate(starts, batch, make)
   local op = 'train.step.evaluate'
   err.type(op, 'starts', starts, 'table')
   err.number(op, 'batch', batch, 1)
   err.type(op, 'make', make, 'function')
   local model = self.model
   local was_training = model.training
   model:eval()
   local mine, sum, count = {}, 0, 0
   for i = self.group + 1, #starts, self.groups do mine[#mine + 1] = starts[i] end
   -- a sharded model runs equally often on all ranks; what a rank adds to that counts nothing
   local most = self.parallel and math.ceil(#starts / self.groups) or #mine
   for first = 1, most, batch do
      local here = { unpack(mine, first, math.min(first + batch - 1, #mine)) }
      local b = make(#here > 0 and here or { starts[1] })
      b = settled(op, 'batch of make', b)
      local n = b.count or nn_loss.count(b.labels)
      local loss = tide.no_grad(function()
         return tide.scope(function() return loss_of(self, b, math.max(n, 1)) end)
      end)
      if #here > 0 then sum, count = sum + loss:item() * n, count + n end
   end
   if self.parallel then self.parallel:release() end
   model:train(was_training)
   local all = dist.sum(self.comm, { sum, count })
   all[2] = all[2] * self.groups / self.comm.size
   return all[2] > 0 and all[1] / all[2] or nil
end

return step
