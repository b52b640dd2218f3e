-- Fully sharded data parallelism: fully_shard(model, ranks, opts).
--
--    local sharded = tide.parallel.fully_shard(model, mesh, { strategy = 'optim_grads' })
--    local optim = tide.optim.AdamW(sharded, { lr = 1e-3 })
--    model:loss(ids, labels, { count = n }):backward()
--    sharded:finish()                       -- every rank, after each backward
--    optim:step()
--
-- Hooks. Before a unit runs, forward or backward, its parameters are gathered and the gathers of
-- the next units begin. After its forward the bytes are freed; after its backward the gradients are
-- reduced and the bytes are freed. Units run in the same order on every rank, so collectives do
-- too. The root unit is gathered when the first module that uses it runs, and kept until finish.
--
-- Strategies: no_shard (gradients summed over all ranks), optim (ZeRO-1: each rank updates its
-- rows, parameters gathered after), optim_grads (ZeRO-2: also gradients are kept as shards), and
-- optim_grads_params (ZeRO-3: also parameters). What is replicated is a shard among one rank.
-- Between an update and the next forward the fields of cut parameters have no bytes, whatever the
-- strategy: reading one is an error that says how to read it.
--
-- Gradients are sums over ranks (the loss is divided by the global count), unless
-- calculate_per_token_loss = false, which makes them means (where each rank's loss is one itself).

local tide = require 'tide'
local agree = require 'tide.comm.agree'
local axis_of = require 'tide.parallel.axis_of'
local by_key = require 'tide.util.by_key'
local canonical = require 'tide.util.canonical'
local class = require 'tide.class'
local experts = require 'tide.parallel.expert_parallel'
local err = require 'tide.util.err'
local finally = require 'tide.util.finally'
local fingerprint = require 'tide.parallel.fingerprint'
local nf4_part = require 'tide.nn.nf4_part'
local nn_place = require 'tide.nn.place'
local options = require 'tide.parallel.fsdp.options'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local ranks_ = require 'tide.parallel.fsdp.ranks'
local schedule = require 'tide.parallel.fsdp.schedule'
local spread = require 'tide.nn.spread'
local subgroup = require 'tide.parallel.subgroup'
local units = require 'tide.parallel.fsdp.units'
local Unit = require 'tide.parallel.fsdp.unit'

local Sharded = class 'Sharded'

local op = 'parallel.fully_shard'

local is_half = { bf16 = true, f16 = true }

-- Returns where shards and their gradients lie. A rehearsal, on the null device, has no host.
local function shard_device(self)
   return self.opts.cpu_offload and self.device ~= 'null' and 'cpu' or self.device
end

-- Returns a function that gives the options of the bucket of an entry. Frozen parameters need no
-- copy in f32.
local function bucket_opts(self)
   local o = self.opts
   return function(entry)
      local dtype, over = entry.dtype, self.over[entry.over]
      local compute, shard = o.mp.param_dtype or dtype, dtype
      if entry.requires_grad and (is_half[compute] or is_half[dtype]) then
         shard = o.preserve_fp32_weights and 'f32' or compute
      end
      return {
         comm = over.shards, replicas = over.replicas, ep_size = over.ep_size,
         mean_scale = over.mean_scale,
         dtype = compute, shard_dtype = shard,
         reduce_dtype = o.grad_reduce_in_fp32 and 'f32' or o.mp.reduce_dtype or compute,
         device = self.device, shard_device = shard_device(self), offload = o.cpu_offload,
         seed = o.seed, init = o.init,
         pin = o.cpu_offload and o.pin_memory and self.device == 'cuda',
         full = o.strategy == 'optim_grads_params',
      }
   end
end

-- ---- making it -------------------------------------------------------------------------------

local function make_units(self, model, list)
   local root = { name = '', modules = {} }
   local entries, of = units.entries(model, list, root)
   local mine = { [root] = {} }
   for _, d in ipairs(list) do mine[d] = {} end
   for _, e in ipairs(entries) do
      if self.stage and self.stage:is_tied(e.param) then e.over = 'tied' end
      table.insert(mine[e.unit], e)
   end
   self.units, self.unit_of = {}, {}
   local made = {}
   for _, d in ipairs(list) do
      if #mine[d] > 0 then
         made[d] = Unit(d, mine[d], bucket_opts(self))
         self.units[#self.units + 1] = made[d]
      end
   end
   self.root = Unit(root, mine[root], bucket_opts(self))
   if self.stage then
      local part_of = self.stage:part_of_entries()
      for _, unit in ipairs(self:all_units()) do unit.part = part_of(unit.entries) end
   end
   model:walk(function(m) self.unit_of[m] = made[of[m]] or self.root end)
   self.entries = entries
end

-- Sets which units free their bytes after forward, and the rank groups of a smaller reshard.
local function set_policy(self)
   local o, k = self.opts, self.opts.reshard
   if o.strategy ~= 'optim_grads_params' then return end
   local size = self.shard_comm.size
   local small
   if type(k) == 'number' then
      err.raise_if(size % k ~= 0, 'E_ARG', op, 'reshard_after_forward (%d) must divide the %d '
         .. 'ranks of the shards', k, size)
      if k > 1 and k < size then
         small = subgroup.near(self.shard_comm, k, 'fsdp_small')
         self.small_comm = small
      end
   end
   for _, unit in ipairs(self.units) do
      if k == nil then
         unit.reshard_after_forward = not unit.is_last
      else
         unit.reshard_after_forward = k ~= false and k ~= 1
      end
      for _, b in ipairs(small and unit.buckets or {}) do
         if b.opts.ep_size == 1 then b:set_small(small) end
      end
   end
end

-- Refuses ranks that shard different models or shard them differently: replicas would drift apart,
-- or collectives would not match. Ranks that hold other parts of the parameters must have the same
-- options and configuration.
local function check_agreed(self, model, list)
   local o, names, stage = self.opts, {}, self.stage
   local part = stage and ('stage %d, %s'):format(stage.rank, self.data_comm.id)
      or self.data_comm.id
   for i, d in ipairs(list) do names[i] = ('%s (%d)'):format(d.name, #d.modules) end
   agree.check(self.comm, op, 'E_ARG', {
      { 'options', options.text(o), 'shown' }, { 'seeds', tostring(o.seed) },
      { 'configurations', canonical(model.config) },
      fingerprint.model(model, part),
      { 'units', table.concat(names, '\n'), among = part },
      { 'devices', tostring(self.device), 'shown' },
   }, model)
end

-- Lists the parameters of the whole model, by the names of a stage in order of stages. Collective
-- where there are several.
local function set_whole(self)
   local list, seen = {}, {}
   for i, e in ipairs(self.entries) do list[i] = { name = e.name, shape = e.whole } end
   self.whole = self.stage and {} or list
   for _, rows in ipairs(self.stage and self.stage:gather(list) or {}) do
      for _, row in ipairs(rows) do
         if not seen[row.name] then self.whole[#self.whole + 1], seen[row.name] = row, true end
      end
   end
end

local how_whole = 'read it within parallel.unshard_fsdp2_model(model, fn), or take '
   .. "full_state_dict() of what fully_shard returned (state_dict() of that: this rank's piece)"

-- Returns what an error about dropped bytes adds if they are those of a parameter.
local function tell_gone(self, id)
   for _, e in ipairs(self.entries) do
      if e.view.id == id or e.shown.id == id then
         return ("it is the sharded parameter '%s', whole only while its unit runs; %s"):format(
            e.name, how_whole)
      end
   end
end

-- ---- the object ------------------------------------------------------------------------------

-- Shards model (a module, whose parameters may be on device 'null') in place. opts: those of
-- fully_shard, checked.
function Sharded:init(model, ranks, opts)
   self.opts = options.settle(opts)
   spread.check_whole(op, model, 'shard the model as a whole, once', { inside = true })
   experts.check_whole(op, model)
   self.model, self.stage = model, spread.of(model).pp
   ranks_.set(self, ranks)
   self.device = self.opts.device
   if not self.device then
      local first = model:parameters()[1]
      self.device = first and first.device ~= 'null' and first.device or nil
   end
   local list = self.opts.disable_bucketing and {} or units.choose(model, self.opts.units,
      self.stage and self.stage:part_of())
   check_agreed(self, model, list)
   if not self.opts.disable_bucketing then
      units.check_used(model, self.opts.units, list, self.stage)
   end
   ranks_.divide(self, ranks)
   self.sync, self.phase, self.seen, self.reduced, self.pending = true, 'forward', {}, {}, {}
   self.handles, self.buffers = {}, {}
   make_units(self, model, list)
   if self.device then nn_place.give_buffers(model, self.device) end
   set_policy(self)
   schedule.set_order(self, self.units)
   if self.opts.nccl_ub then schedule.make_buffers(self) end
   for _, unit in ipairs(self.units) do schedule.hook_unit(self, unit) end
   schedule.hook_root(self, model)
   spread.set(model, 'sharded', self)
   model:walk(function(m) spread.set(m, 'inside', self) end)
   for _, piece in ipairs(self:named_parameters()) do piece.keeper = self end
   set_whole(self)
   tide.tell_gone(self, tell_gone)
end

-- Returns the units in order, the root last. What backward leaves over is reduced in the reverse
-- order.
function Sharded:all_units()
   local list = { self.root }
   for _, unit in ipairs(self.units) do list[#list + 1] = unit end
   return list
end

local function set_sync(self, on)
   if self.sync == on and not self.stage then return end
   self.sync = on
   for _, unit in ipairs(self:all_units()) do
      unit:accumulate(not (on and schedule.is_due(self, unit)))
   end
end

-- Sets whether the next backward reduces gradients. false: they add up on each rank.
function Sharded:set_requires_gradient_sync(on)
   set_sync(self, err.type('parallel.fsdp.set_requires_gradient_sync', 'on', on, 'boolean'))
   return self
end

-- Returns the results of fn(...), in which no gradient is communicated.
function Sharded:no_sync(fn, ...)
   err.type('parallel.fsdp.no_sync', 'fn', fn, 'function')
   local before = self.sync
   set_sync(self, false)
   return finally(function() set_sync(self, before) end, fn, ...)
end

-- Ends a backward: reduces the gradients that are left (unless synchronising is off) and frees the
-- gathered bytes. Every rank calls it after each backward. Raises on all ranks if a gradient is not
-- finite and check_for_nan_in_grad is set.
function Sharded:finish()
   if self.sync then
      local all, async = self:all_units(), self.opts.overlap_grad_reduce
      for i = #all, 1, -1 do
         if schedule.is_due(self, all[i]) then schedule.reduce(self, all[i], async) end
      end
      for _, unit in ipairs(self.pending) do unit:drain() end
   end
   self.pending, self.reduced, self.unsynced = {}, {}, not self.sync
   self.unfinished = false
   self:release()
   local stage = self.stage
   if self.sync and not (stage and stage:is_stepping()) then schedule.report_bad(self) end
end

-- Raises on every rank if a gradient that finish has reduced is not finite on any rank, and
-- check_for_nan_in_grad is set. A step of a pipeline calls it at its end: stages reduce at
-- different times. Collective.
function Sharded:_report_bad() schedule.report_bad(self) end

-- Raises unless the gradients are ready for a norm or an update of the shards.
function Sharded:check_finished(name)
   for _, unit in ipairs(self:all_units()) do unit:check_free() end
   if self.unfinished or #self.pending > 0 then
      err.raise('E_STATE', name, 'the gradients of this backward are not all reduced; every rank '
         .. 'calls finish() of the sharded model after backward')
   elseif self.unsynced then
      err.raise('E_STATE', name, 'gradients were added up without communication (no_sync) and not '
         .. 'reduced; end the last backward with finish() outside no_sync')
   end
end

-- Returns the divisor of the sum of the ranks' gradients: 1, or the number of ranks where it is a
-- mean.
function Sharded:gradient_divisor()
   return self.opts.calculate_per_token_loss and 1 or self.data_comm.size
end

-- Frees the gathered bytes (after an evaluation); the next forward gathers them again. Gradients of
-- a backward after it are added to those that are reduced.
function Sharded:release()
   if #self.seen == #self.units and #self.units > 0 then schedule.set_order(self, self.seen) end
   self.phase, self.seen, self.reduced = 'forward', {}, {}
   for _, unit in ipairs(self:all_units()) do
      unit:reshard(false)
      unit.calls = 0
   end
end

-- Marks gathered parameters as out of date: the shards have changed (a step, a load).
function Sharded:updated()
   self:release()
   for _, unit in ipairs(self:all_units()) do unit:expire() end
end

-- Makes the model ready for a new step after an error in forward or backward: ends what is under
-- way and drops the gradients.
function Sharded:reset()
   for _, unit in ipairs(self:all_units()) do unit:reset() end
   spread.forget_rows(self.model)
   self.pending, self.reduced, self.seen, self.phase, self.bad = {}, {}, {}, 'forward', nil
   self.unsynced, self.unfinished = false, false
end

-- ---- what an optimiser and a checkpoint see --------------------------------------------------

Sharded.is_sharded = true

-- Returns this rank's pieces: { name, param, shape (of the whole parameter), size (of the piece),
-- parts }, parts: boxes { at (within the piece), offset (within the whole), size }; offset: of the
-- only box.
function Sharded:named_parameters()
   local list = {}
   for _, unit in ipairs(self:all_units()) do
      for _, b in ipairs(unit.buckets) do
         for _, p in ipairs(b.pieces) do list[#list + 1] = p end
      end
   end
   return list
end

-- Returns the parameters of the whole model, of all stages of a pipeline: a list of { name, shape
-- }.
function Sharded:whole_parameters() return self.whole end

-- Clears the gradients of the shards and of the parameters, also those not yet reduced.
function Sharded:zero_grad()
   self.unsynced = false
   for _, unit in ipairs(self:all_units()) do unit:zero_grad() end
   spread.forget_rows(self.model)
end

-- Returns '1' or '0' for each parameter, in one text: whether a backward of this rank has given it
-- a gradient in this step, of a module that ran on data (Module:note_rows).
function Sharded:used()
   local list, idle = {}, spread.idle(self.model)
   for i, e in ipairs(self.entries) do
      list[i] = e.used and not idle[e.places[1].owner] and '1' or '0'
   end
   return table.concat(list)
end

-- Clears the gradients of parameters that no rank used, which reducing has set to zeros. texts:
-- what used() returns on all ranks of data_comm, or one text where they are equal; nil: asks the
-- ranks, which all call.
function Sharded:drop_unused(texts)
   local unused = {}
   texts = texts or self.data_comm:all_gather_object(self:used())
   for i, e in ipairs(self.entries) do
      local none = true
      for _, text in ipairs(texts) do none = none and text:sub(i, i) == '0' end
      unused[e] = none
   end
   for _, p in ipairs(self:named_parameters()) do
      if unused[p.entry] then p.param:zero_grad() end
   end
end

-- Returns the gradients by the communicators over which their distinct parts lie, the same groups
-- in the same order on every rank of a stage: a list of { grads =, comms =, device = }. Its field
-- `stages` is the communicator of the stages of a pipeline. Its field `alike` is that of tensor
-- parallelism where these ranks cut whole weights at other elements, or nil. A weight that two
-- stages share counts on the first one.
function Sharded:norm_groups()
   local device, stage = shard_device(self), self.stage
   local groups, at = by_key(function(comms)
      return { grads = {}, comms = comms, device = device }
   end)
   for _, e in ipairs(self.entries) do
      local names = { e.over }                         -- a mesh may name an axis 'ep'
      for _, axis in ipairs(e.cut and e.cut:axes() or {}) do names[#names + 1] = axis.name end
      e.group = at(table.concat(names, ' '), e.comms)
   end
   for _, p in ipairs(self:named_parameters()) do
      local g = p.param.grad
      if g ~= nil and not (p.entry.over == 'tied' and not stage.first) then
         table.insert(p.entry.group.grads, g)
      end
   end
   local tp = spread.of(self.model).tp
   groups.stages = stage and stage.comm
   -- these ranks cut what tensor parallelism leaves whole at other elements
   groups.alike = tp and tp.comm.size > 1 and self.shard_comm.size > 1 and tp.comm or nil
   return groups
end

-- Raises unless all parameters below `module` are gathered and up to date.
function Sharded:check_whole(name, module)
   local inside = {}
   signature.check(name, 'model', module, 'module')
   module:walk(function(m) inside[m] = true end)
   for _, unit in ipairs(self:all_units()) do
      for _, b in ipairs(unit.buckets) do
         for _, e in ipairs(b.state ~= 'present' and b.entries or {}) do
            for _, place in ipairs(e.places) do
               err.raise_if(inside[place.owner], 'E_STATE', name, "parameter '%s' is sharded and "
                  .. 'not gathered now; %s', e.name, how_whole)
            end
         end
      end
   end
end

-- Returns this rank's pieces by parameter name.
function Sharded:state_dict()
   local state = {}
   for _, p in ipairs(self:named_parameters()) do state[p.name] = p.param:detach() end
   return state
end

-- Returns copies of the whole parameters and persistent buffers by name, also of those that tensor
-- parallelism has cut and of all stages of a pipeline. Values and dtype are those of the shards
-- (f32 where only the computation is bf16). Within a scope of unshard_fsdp2_model, what the scope
-- has written counts. Gathers one bucket at a time. Collective.
function Sharded:full_state_dict()
   local state = {}
   for _, unit in ipairs(self:all_units()) do
      for _, b in ipairs(unit.buckets) do b:add_whole(state, unit.holds > 0) end
   end
   for _, entry in ipairs(self.model:named_buffers()) do
      if entry.persistent then state[entry.name] = nf4_part.gather(entry) end
   end
   return self.stage and self.stage:joined(state, self.device) or state
end

-- Returns the bucket of the parameter at a field of a module, and its number there.
local function place_of(self, name, m, field)
   for _, unit in ipairs { self.unit_of[m] or self.root, self.root } do
      for _, b in ipairs(unit.buckets) do
         for i, e in ipairs(b.entries) do
            for _, place in ipairs(e.places) do
               if place.owner == m and place.field == field then return b, i end
            end
         end
      end
   end
   err.arg(name, 'field', 'the field of a parameter of this model', field)
end

-- Returns this rank's pieces of the parameter at a field of a module; at.row and at.rows of a piece
-- count rows of what tensor parallelism has left of the parameter.
function Sharded:pieces(m, field)
   local list, bucket, i = {}, place_of(self, 'parallel.Sharded.pieces', m, field)
   for _, p in ipairs(bucket.pieces) do
      if p.at.index == i then list[#list + 1] = p end
   end
   return list
end

-- Returns a copy of the parameter at a field of a module, whole but for tensor parallelism, in the
-- dtype of its shards. Collective.
function Sharded:unsharded(m, field)
   local bucket, i = place_of(self, 'parallel.Sharded.unsharded', m, field)
   local t, e = tide.no_grad(bucket.whole, bucket, i), bucket.entries[i]
   return e.over == 'dealt' and private.replace(t, e.cut:joined(t)) or t
end

-- Returns the bytes and collectives of a step; see price.lua.
function Sharded:price(opts) return require('tide.parallel.fsdp.price').sharded(self, opts) end

-- Removes the hooks; the fields keep their last gathered values only if those are present.
function Sharded:close()
   for _, h in ipairs(self.handles) do h:remove() end
   self.handles = {}
   spread.set(self.model, 'sharded', nil)
   self.model:walk(function(m) spread.set(m, 'inside', nil) end)
end

-- ---- entry points ----------------------------------------------------------------------------

local fsdp = { Sharded = Sharded }

-- Shards a model over ranks and returns the Sharded, for an optimiser and train.step. ranks: a
-- mesh, an axis or a communicator (default: all ranks). The data axes of a mesh are dp_shard or dp,
-- flattened with cp; dp_replicate holds replicas. Collective: every rank calls it.
function fsdp.fully_shard(model, ranks, opts)
   return Sharded(model, ranks, opts)
end

-- Returns the elements of the outermost layer lists of a module, each of which becomes a unit: a
-- list of { path, module, reshard_after_forward }. The last element of a list keeps its parameters
-- after forward, since its backward follows at once. Lists within a list, and modules outside of
-- lists, are left out.
function fsdp.layer_units(module)
   local list = {}
   units.each_layer(module, function(m, path, i, n)
      list[#list + 1] = { path = path, module = m, reshard_after_forward = i < n }
   end)
   return list
end

-- Shards every layer of a module, and the rest as the root unit, with the parameters as shards.
-- mp_policy: as in fully_shard; offload_policy: nil or { cpu = true }. Returns the Sharded.
function fsdp.apply_fsdp_sharding_recursively(module, mesh, mp_policy, offload_policy)
   return fsdp.fully_shard(module, mesh, { mp_policy = mp_policy,
      cpu_offload = offload_policy.cpu, pin_memory = offload_policy.pin_memory })
end

signature.doors('parallel.Sharded', Sharded, {
   init = 'model: module; ranks: ranks?; opts: table', drop_unused = 'texts: string[]?',
   pieces = 'm: module; field: string', unsharded = 'm: module; field: string' })
return signature.doors('parallel', fsdp, {
   fully_shard = { 'model: module; ranks: ranks?', opts = options.rows,
      before = axis_of.in_options { 'mesh', 'comm' } },
   layer_units = 'module: module',
   apply_fsdp_sharding_recursively = { 'module: module', opts = { 'cpu: boolean = false',
      'pin_memory: boolean?' } },
})
