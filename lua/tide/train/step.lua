-- One optimiser step: micro-batches, gradients summed over ranks, clipping, update.
--
-- The loss of a micro-batch is its sum over local tokens divided by the count of the whole global
-- batch, so gradients over micro-batches and ranks are plain sums. Each micro-batch runs in a
-- scope, whose end frees all but the gradients. A loss or norm that is not finite leaves the
-- parameters untouched and is reported to the caller.
--
-- With `parallel`, a model that tide.parallel.fully_shard has sharded, the reduction is its own
-- (where it takes means over ranks, losses are larger by their number: the step is the same); else
-- the ranks of comm are plain data parallelism. With a model that tide.parallel.cp.attach has
-- attached, the ranks of its axis get the same batches and cut them; comm holds data and context
-- ranks, since gradients and losses are sums over both. Stages of a pipeline get the same batches,
-- and overlap the micro-batches of a step (pipelined.lua).
--
-- With `captured` the update is enqueued before the host has read the loss. If loss or norm is not
-- finite, the update changes nothing, on all ranks (found_inf on the device).

local captured = require 'tide.train.captured'
local dist = require 'tide.comm'
local err = require 'tide.util.err'
local nonfinite = require 'tide.train.nonfinite'
local pipelined = require 'tide.train.pipelined'
local reduce = require 'tide.train.reduce'
local replicas = require 'tide.train.replicas'
local signature = require 'tide.util.signature'
local validate = require 'tide.train.validate'

local step = {}

local Step = {}
Step.__index = Step

-- Refuses parameters that are trained in f16: their gradients need a scaled loss, which a step does
-- not have.
local function check_dtype(op, model)
   for _, e in ipairs(model.named_parameters and model:named_parameters() or {}) do
      err.raise_if(e.param.dtype == 'f16' and e.param.requires_grad, 'E_UNSUPPORTED', op,
         "parameter '%s' is trained in f16, where gradients below 6e-8 become 0, and a step does "
         .. "not scale its loss; use model:to 'bf16' or 'f32', or multiply the loss by s in a loop "
         .. 'of your own and call optim:step { scale = 1 / s }', e.name)
   end
end

-- Returns whether `has` holds on a stage of the pipeline, of a model without one here. Collective.
local function on_any_stage(self, has)
   for _, other in ipairs(self.stage and self.stage:gather(has) or {}) do has = has or other end
   return has
end

-- Refuses a rate for a model whose routers have no correction biases, which does not note what they
-- choose, or whose adapters are written without the biases.
local function check_router_bias(op, self)
   if self.router_bias_rate == 0 then return end
   local has = false
   if self.model.walk then self.model:walk(function(m) has = has or m.router_bias ~= nil end) end
   err.raise_if(not on_any_stage(self, has), 'E_ARG', op, 'router_bias_rate: no router of the '
      .. 'model has a correction bias (correction = true of nn.MoE); leave it out, or give '
      .. 'output_router_logits')
   err.raise_if(not on_any_stage(self, self.has_experts), 'E_UNSUPPORTED', op, 'router_bias_rate: '
      .. 'the model has no method has_experts, so the step does not see what its routers choose; '
      .. 'take a model of tide.model, or move the biases in a loop of your own')
   err.raise_if(rawget(self.model, '_adapter'), 'E_UNSUPPORTED', op, 'router_bias_rate: the model '
      .. 'has adapters (nn.lora), whose files hold no correction biases, so that they would be '
      .. 'lost; leave it out, or train the model without adapters')
end

-- Makes a step. Captured, it is one launch of a CUDA graph from the second on, with the same
-- numbers; batches must keep their shapes and counts; several ranks need NCCL between them and
-- record together. Collective. E_STATE: ranks differ in clip, in the options of optimiser or loss
-- or, of a model that each holds whole, in its parameters, modules or weights. E_UNSUPPORTED:
-- parameters are trained in f16; the step cannot be captured (another transport, a model that is
-- not on 'cuda', gradients that the host sees).
function step.new(opts)
   local op = 'train.step.new'
   local sharded, comm = opts.parallel, opts.comm or dist.world()
   err.arg_if(not opts.loss and type(opts.model.loss) ~= 'function', op, 'model', 'a model with a '
      .. 'method loss(ids, labels, { count = n }), which returns the sum of the losses of its '
      .. 'labels divided by n', opts.model)
   check_dtype(op, opts.model)
   replicas.check_cut(op, opts)
   local self = setmetatable({
      model = opts.model, optim = opts.optim, parallel = sharded,
      comm = sharded and sharded.data_comm or comm,
      clip = opts.clip, router_bias_rate = opts.router_bias_rate,
      loss = opts.loss, loss_options = opts.loss_options or {}, stage = sharded and sharded.stage,
   }, Step)
   self.has_experts = type(opts.model.has_experts) == 'function' and opts.model:has_experts()
   replicas.set_groups(self, op)
   replicas.check_replicated(self, op)
   replicas.check_replicas(self, op)
   check_router_bias(op, self)
   if opts.captured then captured.set(self, op) end
   return self
end

-- Runs a whole step. Returns { loss, grad_norm, lr, applied, cause, experts }; cause: unless it was
-- applied, what is not finite, by rank and name; experts: of a model with experts { busiest, idlest
-- }, the largest and smallest share of the tokens of a layer that use one expert. meanwhile: called
-- when forward and backward are enqueued, before the host waits for their results.
function Step:run(batches, meanwhile)
   if self.captured then return captured.run(self, batches, meanwhile) end
   local lr = err.number('train.step', 'lr', self.optim:next_lr(), 0)
   local count, whole = replicas.counted(self, batches, lr)
   local means = self.parallel and self.parallel:gradient_divisor() or 1
   local enqueue = self.stage and pipelined.micros or self.parallel and reduce.sharded_micros
      or reduce.micros
   -- losses: on the device; loss: their sum over ranks, on the host. Both are too large by the
   -- factor means
   local losses, loss = enqueue(self, whole, count / means)
   local norm, factor = reduce.norm_of(self)
   local shares = reduce.shares(self, losses)
   if meanwhile then meanwhile() end
   local sum, grad_norm, busiest, idlest = reduce.read(loss and {} or losses, norm, shares)
   if self.stage and self.stage.mixtures > 0 then
      busiest, idlest = reduce.shares_of_stages(self, busiest, idlest)
   end
   loss = (loss or sum) / means
   replicas.check_loss(self, loss)
   local applied = nonfinite.is_finite(loss) and nonfinite.is_finite(grad_norm)
   if applied then
      reduce.update(self, lr, factor)
      reduce.correct(self, losses)
   end
   local cause = not applied and reduce.blame(self, loss * means) or nil
   self.optim:zero_grad()
   if self.parallel then self.parallel:zero_grad() end
   return { loss = loss, grad_norm = grad_norm, lr = lr, applied = applied, cause = cause,
      experts = busiest and { busiest = busiest, idlest = idlest } }
end

-- Counts a step that was left out, so that the schedule continues.
function Step:skip() reduce.skip(self) end

-- Returns the mean loss per token over windows of a source that begin at `starts`, `batch` of them
-- at a time, shared among the ranks. make(starts) builds a batch.
function Step:evaluate(starts, batch, make) return validate(self, starts, batch, make) end

signature.doors('train.step', Step, {
   evaluate = 'starts: table; batch: number >= 1; make: function',
})
return signature.doors('train.step', step, {
   new = { opts = {
      'model: table -- with loss(ids, labels, { count = n })',
      'optim: optimizer -- the optimiser of its parameters',
      'clip: number >= 0 = 0 -- limit of the gradient norm; 0: none',
      'router_bias_rate: number in [0, 1] = 0 -- what a step adds to the correction bias of an '
         .. 'expert with few tokens, and subtracts from one with many (see nn.balance)',
      'comm: comm? -- ranks with data of their own; all by default',
      'loss: any? -- called as loss(model, batch, { count = n, .. }) in place of model:loss, with '
         .. 'the part of a batch of this rank; batches then have count',
      'loss_options: any? -- options of the loss',
      'parallel: sharded? -- the Sharded of the model; comm is then its ranks with own data',
      'captured: boolean? -- replays the step as a CUDA graph' } },
})
