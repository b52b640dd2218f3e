-- What a plan costs, found by a rehearsal without bytes.
--
-- The null device has shapes and no bytes, and a simulated communicator counts and moves nothing. A
-- model made there by the code that makes the real one, and run for two steps, shows what each rank
-- keeps and sends, in a moment, for any number of ranks. It does not include the batch, the sums of
-- single numbers in a training loop (counts, losses, the norm), and the text by which ranks of a
-- context axis compare their parts of a batch.

local tide = require 'tide'
local by_key = require 'tide.util.by_key'
local copied = require 'tide.util.copy'
local each = require 'tide.util.each'
local dtype_size = tide.dtype_size
local err = require 'tide.util.err'

local price = {}

-- ---- the same model without bytes ------------------------------------------------------------

-- Returns a copy of a module in which every tensor is one on the null device. Functions and classes
-- are shared, and what two places shared is shared again.
function price.null_copy(model)
   local made = {}
   local copy
   local function tensor(t)
      if not made[t.id] then
         local new = tide.empty(t.shape, { dtype = t.dtype, device = 'null' })
         if t.requires_grad then new:requires_grad_(true) end
         made[t.id] = new
      end
      return made[t.id]
   end
   function copy(v)
      if tide.is_tensor(v) then return tensor(v) end
      local meta = getmetatable(v)
      if type(v) ~= 'table' or rawget(v, '__index') == v or type(meta) == 'string' then return v end
      if made[v] then return made[v] end
      local new = {}
      made[v] = new
      for k, item in each(v) do new[k] = copy(item) end
      return setmetatable(new, meta)
   end
   return copy(model)
end

-- ---- counting --------------------------------------------------------------------------------

local kinds = { 'all_reduce', 'reduce', 'broadcast', 'all_gather', 'all_gather_v',
   'reduce_scatter', 'reduce_scatter_v', 'all_to_all', 'all_to_all_v', 'gather', 'scatter',
   'send_recv' }
local inner = { all_gather = 'all_gather_into', reduce_scatter = 'reduce_scatter_into',
   all_to_all = 'all_to_all_into' }

local Meter = {}
Meter.__index = Meter

-- Counts the calls on the communicators of more than one rank in a list.
local function meter(comms)
   local list, add = by_key(function(comm) return comm end)
   local self = setmetatable({ comms = list, count = {} }, Meter)
   for _, comm in ipairs(comms) do
      if comm.size > 1 then add(comm, comm) end
   end
   for _, comm in ipairs(self.comms) do
      for _, kind in ipairs(kinds) do
         local method = inner[kind] or kind
         local call, name = comm[method], kind:gsub('_v$', '')
         comm[method] = function(...)
            self.count[name] = (self.count[name] or 0) + 1
            return call(...)
         end
      end
   end
   return self
end

-- Calls by kind, and bytes sent within a host and between hosts, so far.
function Meter:read()
   local r = { calls = copied(self.count), bytes = { 0, 0 } }
   for _, comm in ipairs(self.comms) do
      local t = comm:traffic()
      for i = 1, 2 do r.bytes[i] = r.bytes[i] + t.nbyte[i] end
   end
   return r
end

-- Adds k (b - c) to a, all of them readings.
local function add(a, k, b, c)
   for name, n in each(b.calls) do
      a.calls[name] = (a.calls[name] or 0) + k * (n - (c.calls[name] or 0))
   end
   for i = 1, 2 do a.bytes[i] = a.bytes[i] + k * (b.bytes[i] - c.bytes[i]) end
   return a
end

-- ---- memory ----------------------------------------------------------------------------------

-- Returns the bytes that the optimiser keeps for an element of a parameter. given: a number, or a
-- function of dtype and { name, shape (of the whole) }; else AdamW's: two moments, and an f32 copy
-- of 16 bits.
local function state_bytes(given, dtype, entry)
   if type(given) == 'function' then
      return err.number('parallel.plan.price', 'state_bytes(..)', given(dtype, entry), 0)
   end
   return given or dtype == 'f64' and 16 or dtype == 'f32' and 8 or 12
end

local function kept_whole(model, given)
   local sum = { parameters = 0, gradients = 0, optimizer = 0 }
   for _, e in ipairs(model:named_parameters()) do
      local p = e.param
      local bytes = p:numel() * dtype_size(p.dtype)
      sum.parameters = sum.parameters + bytes
      if p.requires_grad then
         sum.gradients = sum.gradients + bytes
         sum.optimizer = sum.optimizer + p:numel()
            * state_bytes(given, p.dtype, { name = e.name, shape = p.shape })
      end
   end
   return sum
end

local function kept(run, micro, given)
   local sharded = run.sharded
   if not sharded then return kept_whole(run.model, given) end
   local p = sharded:price { micro = micro,
      state_bytes = function(e, dtype)
         return state_bytes(given, dtype, { name = e.name, shape = e.whole })
      end }
   return { parameters = p.parameters, gradients = p.gradients, optimizer = p.optimizer,
      unit = p.unit, stays = p.stays > 0 and p.stays or nil }
end

-- Returns the sum of bytes(bucket, bytes of an element) over the buckets of all units.
local function bucket_bytes(sharded, bytes)
   local n = 0
   for _, unit in ipairs(sharded and sharded:all_units() or {}) do
      for _, b in ipairs(unit.buckets) do n = n + bytes(b, dtype_size(b.opts.dtype)) end
   end
   return n
end

-- Returns the bytes of units that are gathered for a while, and of what stays of them.
local function gathered(sharded)
   return bucket_bytes(sharded, function(b, size)
      local whole = b.full and not b.is_whole and b.state ~= 'absent'
      return size * ((whole and b.layout.total or 0)
         + (b.small and b.small.part and b:small_count() or 0))
   end)
end

-- Returns the bytes of the buffers that gradients are reduced from, where they stay (nccl_ub).
local function buffers(sharded)
   local n = 0
   for dtype, pool in each(sharded and sharded.buffers or {}) do
      for _, slot in ipairs(pool) do n = n + slot.t:numel() * dtype_size(dtype) end
   end
   return n
end

-- Returns the bytes of `parameters` that the first step makes: gathered units that then stay.
local function unmade(sharded)
   return bucket_bytes(sharded, function(b, size)
      return not b.full and b.flat:is_gone() and b.layout.total * size or 0
   end)
end

-- ---- a step ----------------------------------------------------------------------------------

local function forward_of(run, o)
   if o.forward then return o.forward end
   local ids = tide.empty({ o.batch, o.seq }, { dtype = 'i64', device = 'null' })
   local whole = { ids = ids, labels = ids }
   if o.images then copied(run.model:priced(o.images, o.batch, o.seq), whole) end
   return function(model)
      local mine = run.context and run.context:cut(whole) or whole
      local at = { count = o.batch * o.seq, context = mine.context }
      for _, name in ipairs(o.images and model.input_fields or {}) do at[name] = mine[name] end
      if o.images then at.positions = mine.positions end
      return model:loss(mine.ids, mine.labels, at)
   end
end

local function gradients(run)
   local list = {}
   for _, entry in ipairs(run.params:named_parameters()) do
      if entry.param.grad ~= nil then list[#list + 1] = entry.param.grad end
   end
   return list
end

local rehearsed = { ref = 0, cpu = 1 }             -- the kernels of a GPU are known where one is

-- Calls fn as the run on a device will: ops count the scratch of its kernels. Without collections
-- of the Lua heap, so that numbers do not depend on when one happens: what the library makes for
-- itself goes at its last use; what a user's class leaves to the collector counts.
local function rehearse(device, fn, ...)
   local ctx = tide.default()
   local before = ctx:param 'rehearse'
   ctx:param('rehearse', rehearsed[device] or -1)
   collectgarbage 'stop'
   local r = { pcall(fn, ...) }
   collectgarbage 'restart'
   ctx:param('rehearse', before)
   return unpack(r, 1, 6)
end

local function since() return tide.default():stats().since end

-- Runs one micro-batch; returns what forward has kept for backward.
local function micro(run, forward, last)
   local before, activations = since(), nil
   local function backward()
      local loss = forward(run.model)
      activations = since() - before - gathered(run.sharded)
      loss:backward()
      if run.sharded then run.sharded:finish() end
   end
   if run.sharded then
      run.sharded:set_requires_gradient_sync(last or run.sharded.opts.sync_each_backward)
   end
   tide.scope(backward)
   if last and not run.sharded and run.data.size > 1 then run.data:all_reduce(gradients(run)) end
   return math.max(0, activations)
end

-- Returns how many of `accum` micro-batches a rank of a pipeline runs for their price, and after
-- how many its work repeats: after each, or with several parts after a group of them.
local function sample(stage, accum)
   if stage.virtual == 1 then return math.min(accum, stage.size + 3), 1 end
   local p = stage.size
   return accum < 5 * p and accum or 4 * p + accum % p, p
end

-- Runs the micro-batches of a step on a rank of a pipeline: few of them, and those of a period for
-- all that are left out. Returns what is sent, and the most that forwards keep for backwards.
local function staged(run, o, count)
   local forward, stage, sharded = forward_of(run, o), run.stage, run.sharded
   local n, period = sample(stage, o.accum)
   local before, activations, after, done = since(), 0, {}, 0
   local one = tide.empty({ o.batch, o.seq }, { dtype = 'i64', device = 'null' })
   one = run.context and run.context:cut({ ids = one, labels = one }).ids or one
   local program, first = stage:begin(function() return one end, n), count:read()
   stage:run(program, {
      forward = function() return forward(run.model) end,
      backward = function(loss)
         sharded:set_requires_gradient_sync(stage:is_complete() or sharded.opts.sync_each_backward)
         loss:backward()
      end,
      finish = function() sharded:finish() end,
      done = function(event)
         activations = math.max(activations, since() - before - gathered(sharded))
         if event.kind ~= 'backward' then return end
         done = done + 1
         after[done] = count:read()
      end,
   })
   stage:finish()
   local total = add({ calls = {}, bytes = { 0, 0 } }, 1, count:read(), first)
   if o.accum > n then
      local at = period * stage.virtual               -- backwards of a period
      add(total, (o.accum - n) / period, after[2 * at], after[at])
   end
   return total, activations
end

-- Runs a step of `accum` micro-batches: the first, one of those between for all of them, the last.
local function step(run, o, count)
   if run.stage then return staged(run, o, count) end
   local forward, readings, activations = forward_of(run, o), {}, 0
   local passes = math.min(o.accum, 3)
   readings[0] = count:read()
   for i = 1, passes do
      activations = math.max(activations, micro(run, forward, i == passes))
      readings[i] = count:read()
   end
   local total = { calls = {}, bytes = { 0, 0 } }
   for i = 1, passes do
      add(total, i == 2 and passes == 3 and o.accum - 2 or 1, readings[i], readings[i - 1])
   end
   return total, activations
end

-- Ends a step as training does.
local function finish(run)
   for _, entry in ipairs(run.params:named_parameters()) do entry.param:drop_grad() end
   if run.sharded then
      run.sharded:zero_grad()
      run.sharded:updated()
   end
end

local function comms_of(run)
   local mesh, sharded = run.mesh, run.sharded
   local list = { mesh.root.comm, sharded and sharded.small_comm }
   local stage = run.stage
   if stage then
      for _, link in ipairs(stage:links()) do list[#list + 1] = link.comm end
   end
   if sharded and sharded.ep then list[#list + 1] = sharded.ep.comm end
   for _, over in each(sharded and sharded.over or {}) do
      list[#list + 1], list[#list + 2] = over.shards, over.replicas
   end
   for _, name in ipairs { 'near', 'far' } do                -- of the exchange inside a ring
      list[#list + 1] = run.context and run.context[name]
   end
   for _, comm in each(mesh.root.comms) do list[#list + 1] = comm end
   for _, axis in each(mesh.root.flat) do list[#list + 1] = axis.comm end
   return list
end

-- Returns the bytes of the state of an optimiser.
local function bytes_of_state(optim)
   local n = 0
   for _, state in each(optim.state) do
      for _, t in each(state) do
         if tide.is_tensor(t) then n = n + t:numel() * dtype_size(t.dtype) end
      end
   end
   return n
end

-- Updates the parameters after a step that has left its gradients. Adds what the update sends to
-- total. Returns the bytes of the optimiser's state, and the most that an update needs beside it.
local function update(optim, count, total)
   optim:step()                                             -- makes the state
   local before = count:read()
   tide.default():mark()
   optim:step()
   add(total, 1, count:read(), before)
   return bytes_of_state(optim), tide.default():stats().since_peak
end

-- Runs two steps, as the first makes buffers that stay, and an update. Returns what a step sends
-- and what its forward keeps; the most bytes beside those that stay, of the steps and of the
-- update; and the state of the optimiser. The last two are nil without one.
local function rehearsal(run, o, count, optim)
   tide.default():mark()
   local sent, activations = step(run, o, count)
   finish(run)
   step(run, o, count)
   local working, state, needs = tide.default():stats().since_peak, nil, nil
   if optim then state, needs = update(optim, count, sent) end
   return sent, activations, working, needs, state
end

-- Returns the price of a step. run: { model, sharded, mesh, data } as materialise gives, on the
-- null device. o: batch, seq, accum, device, forward, optim, state_bytes. See Plan:price.
function price.of(run, o)
   local sum = kept(run, o.accum, o.state_bytes)
   for _, b in ipairs(run.model:named_buffers()) do         -- no shard is of them: weights in NF4
      sum.parameters = sum.parameters + b.buffer:numel() * dtype_size(b.buffer.dtype)
   end
   local count, twice = meter(comms_of(run)), unmade(run.sharded)
   local optim = o.optim and o.optim(run.params)
   local ok, total, activations, working, needs, state = rehearse(o.device, rehearsal, run, o,
      count, optim)
   if not ok then
      err.raise('E_UNSUPPORTED', 'parallel.plan.price', 'the step does not run on the null device '
         .. '(a model of your own: give forward(model), which returns a loss): %s',
         err.text(total))
   end
   sum.activations, sum.optimizer = activations, state or sum.optimizer
   sum.peak = sum.parameters + sum.optimizer + buffers(run.sharded)
      + math.max(working - twice, sum.gradients + (needs or 0))
   sum.collectives, sum.wire = total.calls, total.bytes[1] + total.bytes[2]
   sum.wire_between_hosts = total.bytes[2]
   sum.idle = run.stage and run.stage:idle(o.accum)
   sum.state = sum.parameters + sum.gradients + sum.optimizer
   return sum
end

return price
