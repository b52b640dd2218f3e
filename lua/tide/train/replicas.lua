-- What the ranks of a step must have in common, compared when it is made and, for batches and
-- rates, in each step.

local agree = require 'tide.comm.agree'
local batches_ = require 'tide.train.batches'
local canonical = require 'tide.util.canonical'
local class = require 'tide.class'
local dist = require 'tide.comm'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local fingerprint = require 'tide.parallel.fingerprint'
local layout = require 'tide.parallel.layout'
local nn = require 'tide.nn'
local signature = require 'tide.util.signature'
local spread = require 'tide.nn.spread'

local replicas = {}

-- What a model that is cut over ranks (tensor parallel) must not be given: a sum of its gradients
-- over those ranks, or a norm of this rank's part. A sharded model knows its ranks and its norm.
local takes_cut = signature.options {
   'where comm -- E_STATE: the model is cut over ranks; give comm: the data-parallel axis, or '
      .. 'tide.comm.solo() if there is none',
   'where (clip or 0) == 0 -- E_STATE: the model is cut over ranks; clip needs the norm of all '
      .. 'parts: shard it with tide.parallel.fully_shard '
      .. "(strategy 'no_shard' keeps it whole)",
}

-- Raises where a model that is cut over ranks is given what it must not be, or a sharded model
-- without its Sharded.
function replicas.check_cut(op, opts)
   local of = spread.of(opts.model)
   err.raise_if(of.sharded and not opts.parallel, 'E_STATE', op, 'the model is sharded; give '
      .. 'parallel: what tide.parallel.fully_shard returned (run.sharded of a plan), and its '
      .. 'optimiser the same (run.params)')
   err.raise_if(of.pp and not opts.parallel, 'E_STATE', op, 'the model is cut into stages of a '
      .. 'pipeline; shard it with tide.parallel.fully_shard(model, mesh) (strategy no_shard keeps '
      .. "a stage whole), and give parallel: what that returned")
   err.raise_if(of.pp and opts.captured, 'E_UNSUPPORTED', op, 'captured: a step of a pipeline '
      .. 'cannot be captured; leave it out')
   if of.tp and not opts.parallel then takes_cut(op, {}, opts) end
end

-- Refuses parameters that every rank of a tensor-parallel axis holds whole if they differ between
-- ranks: with another seed on each rank, another model would train without an error. Collective; a
-- sharded model has compared them already.
function replicas.check_replicated(self, op)
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
      { 'seeds', tostring(rawget(self.model, '_seed')), 'shown' },
      { 'values of parameters that are not cut', function() return fingerprint.values(list) end },
   })
end

-- Sets what the context axis makes of comm: how many groups of ranks have data of their own, and
-- which is this rank's. Every rank of comm calls it.
function replicas.set_groups(self, op)
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
      err.raise_if(seen[place] ~= self.groups, 'E_STATE', op, 'the sequence is cut over %d ranks, '
         .. 'and gradients are added over %d that do not hold them all; give comm: mesh:flatten { '
         .. "'dp', 'cp' }", handle.size, comm.size)
   end
end

-- Returns what an optimiser does, as text; rates by the step are compared in each. The pieces of a
-- sharded model need not make the same groups.
local function optim_text(optim, sharded)
   local lr = type(optim.lr) == 'function' and 'by the step' or tostring(optim.lr)
   local list = { canonical(optim.defaults) }
   for _, group in ipairs(not sharded and optim.groups or {}) do
      local options = copy(group)
      options.params = nil
      list[#list + 1] = canonical(options)
   end
   return ('%s, lr %s, %s'):format(tostring(optim.class_name), lr, table.concat(list, '; '))
end

-- Returns the names of the parameters that an optimiser changes, by group.
local function optim_names(optim)
   local list = {}
   for i, group in ipairs(optim.groups or {}) do
      for _, entry in ipairs(group.params) do list[#list + 1] = i .. ' ' .. entry.name end
   end
   return table.concat(list, '\n')
end

-- Returns checksums of the correction biases of routers, of which every rank has the whole.
local function biases(model)
   local list = {}
   model:walk(function(m) list[#list + 1] = m.router_bias end)
   return fingerprint.values(list)
end

-- Refuses ranks that add up gradients but differ in weights, clip, optimiser or loss. They update
-- their replicas separately, so the replicas would silently drift apart or learn a mixture. It also
-- refuses models of equal shapes that compute different things or freeze other parameters.
-- Ranks that hold other parts of a sharded model would clip or update their parts otherwise.
-- Collective; a sharded model has compared its parameters already.
function replicas.check_replicas(self, op)
   local sharded, stage = self.parallel, self.stage
   local items = {
      { 'limits of the gradient norm (clip)', tostring(self.clip), 'shown' },
      { 'rates of correction biases (router_bias_rate)', tostring(self.router_bias_rate), 'shown' },
      { 'options of the optimiser', optim_text(self.optim, sharded), 'shown' },
      { 'options of the loss', canonical(self.loss_options), 'shown' },
   }
   if sharded and self.router_bias_rate > 0 then
      items[#items + 1] = { 'values of correction biases',
         function() return biases(self.model) end, among = stage and stage.rank }
   end
   if not sharded then
      items[#items + 1] = { 'parameters of the optimiser', optim_names(self.optim) }
      if class.is(self.model, nn.Module) then items[#items + 1] = fingerprint.model(self.model) end
   end
   agree.check(sharded and sharded.comm or self.comm, op, 'E_STATE', items)
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

-- Returns the number of labels of the global batch. Ranks that share a model by parts must have the
-- same batches, and all ranks the same learning rate (nil: not known). The sum of the counts
-- decides that, and one more sum for tp.
local function global_count(self, batches, lr)
   local cp, tp, comm, share = self.cp, self.tp, self.comm, fingerprint.share
   local rate, stage = ('%.17g'):format(lr or 0), self.stage
   local text = (cp or stage or tp and tp.size > 1) and fingerprint.batches(batches)
   if stage then
      local sums = stage:sum { share(text, stage.rank, stage.size),
         share(rate, stage.rank, stage.size) }
      if sums[1] ~= 0 then other_batches('pipeline', stage.size) end
      if sums[2] ~= 0 then other_rates(self, lr) end
   end
   if tp and tp.size > 1 then
      local sums = dist.sum(tp, { share(text, tp.rank, tp.size),
         share(rate, tp.rank, tp.size) })
      if sums[1] ~= 0 then other_batches('tensor-parallel', tp.size) end
      if sums[2] ~= 0 then other_rates(self, lr) end
   end
   local sums = dist.sum(comm, { batches_.count_of(batches), share(rate, comm.rank, comm.size),
      self.has_experts and share(tostring(#batches), comm.rank, comm.size) or 0,
      cp and share(text, cp.rank, cp.size) or nil })
   if sums[2] ~= 0 then other_rates(self, lr) end
   err.raise_if(sums[3] ~= 0, 'E_STATE', 'train.step', 'ranks have different numbers of '
      .. 'micro-batches (here %d), and a model with experts counts their tokens over all ranks in '
      .. 'each; give every rank as many', #batches)
   if cp and sums[4] ~= 0 then other_batches('context', cp.size) end
   return sums[1] * self.groups / comm.size
end

-- Compares the loss of the first step among ranks that share a model by parts, where it is the same
-- number on each: a model of one's own that reads a part of a weight as the whole gives others.
function replicas.check_loss(self, loss)
   local tp = self.tp
   if self.has_compared or not tp or tp.size == 1 or tp.transport == 'sim' then return end
   self.has_compared = true
   local all = tp:all_gather_object(loss)
   for r = 2, tp.size do
      err.raise_if(math.abs(all[r] - all[1]) > 1e-5 * math.abs(all[1]), 'E_STATE', 'train.step',
         'ranks of the tensor-parallel axis have different losses in their first step: rank 0 '
         .. '%.9g, rank %d %.9g; the model reads a weight that the plan cuts (self.head.weight) as '
         .. 'if it were whole: call the module in its place, or leave it out of the plan',
         all[1], r - 1, all[r])
   end
end

-- Returns the labels that count in all batches of the step, and the batches, settled.
function replicas.counted(self, batches, lr)
   batches = batches_.settled_list('train.step', batches)
   if lr ~= nil then err.number('train.step', 'lr', lr, 0) end
   local count = global_count(self, batches, lr)
   err.raise_if(count == 0, 'E_ARG', 'train.step', '%s', #batches == 0
      and "argument 'batches': expected a list of micro-batches, step:run { batch }, got an "
      .. 'empty list' or 'no label of this batch counts (all are ignored)')
   return count, batches
end

return replicas
