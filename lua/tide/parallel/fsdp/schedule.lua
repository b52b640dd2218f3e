-- When a sharded model communicates: hooks, order, prefetch, reductions.
--
-- Units run in the same order on every rank, so all ranks begin what a hook begins. `phase`
-- distinguishes a new forward from one that runs again inside backward (recomputation), which drops
-- nothing. At most one reduction is under way while the next is prepared.
--
-- The functions work on a Sharded (init.lua), whose fields they share: order and place (of units in
-- the last forward), seen (units of this one), unfinished (a backward has begun), reduced, pending,
-- bad, buffers, handles.

local tide = require 'tide'
local dist = require 'tide.comm'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local outlive = require 'tide.util.outlive'

local schedule = {}

-- ---- communication: gathers ------------------------------------------------------------------

local function may_prefetch(self)
   if not self.opts.fsdp_double_buffer then return true end
   local live = 0
   for _, unit in ipairs(self.units) do
      if unit:is_live() then live = live + 1 end
   end
   return live < 2
end

-- Begins to gather the units after `unit`; in backward (step -1) those before it.
local function prefetch(self, unit, step, depth)
   local at = self.place[unit]
   for i = 1, at and depth or 0 do
      local other = self.order[at + i * step]
      if not other or other.part ~= unit.part or step < 0 and other.untracked
         or not may_prefetch(self) then
         return
      end
      other:gather(true)
   end
end

-- Checks that the fields of the modules are still the tensors that are gathered and trained.
local function check_fields(unit)
   for _, e in ipairs(unit.entries) do
      for _, place in ipairs(e.places) do
         err.raise_if(not rawequal(place.owner[place.field], e.shown), 'E_STATE', 'parallel.fsdp',
            "the field of the sharded parameter '%s' was replaced; change parameters before "
            .. 'fully_shard, or in place', e.name)
      end
   end
end

-- Returns whether the backward that runs is one that may complete the gradients of a unit, or the
-- forward that runs one that uses it: in a step of a pipeline a unit belongs to a part.
function schedule.is_due(self, unit) return not self.stage or self.stage:is_due(unit.part) end

-- Returns the unit that runs first in a forward.
local function first_of(self)
   for _, unit in ipairs(self.order) do
      if schedule.is_due(self, unit) then return unit end
   end
end

-- Prepares for a unit that is about to run.
local function enter(self, unit)
   check_fields(unit)
   local o, fresh = self.opts, not unit:is_present()
   local overlap, forward = o.overlap_param_gather, self.phase == 'forward'
   unit:gather(overlap)
   if overlap and unit ~= self.root then
      prefetch(self, unit, forward and 1 or -1, forward and o.forward_prefetch
         or o.backward_prefetch)
   elseif overlap and fresh and forward and o.forward_prefetch > 0 then
      local first = first_of(self)
      if first then first:gather(true) end
   end
   unit:wait()
end

-- Sets the order in which units are expected to run, for gathers ahead.
function schedule.set_order(self, list)
   self.order, self.place = {}, {}
   for i, unit in ipairs(list) do
      self.order[i] = unit
      self.place[unit] = i
   end
end

-- ---- communication: gradients ----------------------------------------------------------------

-- Registers a buffer with the communicators that reduce it (NCCL's user buffers).
local function register(self, t)
   local done = {}
   for _, name in ipairs { 'sharded', 'dealt', 'tied' } do
      local over = self.over[name]
      for _, comm in ipairs(over and { over.shards, over.replicas } or {}) do
         if comm.size > 1 and t.device == 'cuda' and not done[comm] then comm:register(t) end
         done[comm] = true
      end
   end
   return t
end

-- Makes two buffers a dtype that stay, as registered memory does; a bucket waits for its turn.
function schedule.make_buffers(self)
   local most = {}
   for _, unit in ipairs(self:all_units()) do
      for _, b in ipairs(unit.buckets) do
         local dtype = b.opts.reduce_dtype
         most[dtype] = math.max(most[dtype] or 0, b.layout.total)
      end
   end
   for dtype, n in each(most) do
      local pool = { at = 0 }
      for i = 1, 2 do
         pool[i] = { t = register(self,
            outlive(tide.empty({ n }, { dtype = dtype, device = self.device }))) }
      end
      self.buffers[dtype] = pool
   end
end

local function kept_buffer(self, bucket, n, dtype)
   local pool = self.buffers[dtype]
   pool.at = pool.at % 2 + 1
   local slot = pool[pool.at]
   if slot.owner then slot.owner:drain() end
   slot.owner = bucket
   return slot.t:narrow(1, 1, n), true
end

local function reduce_opts(self, async)
   local o, n = self.opts, self:gradient_divisor()
   local mean = not o.calculate_per_token_loss
   return {
      async = async, check = o.check_for_nan_in_grad,
      op = mean and o.average_in_collective and 'mean' or 'sum',
      scale = o.average_in_collective and 1 or 1 / n,
      take = function(bucket, count, dtype, device)
         if o.nccl_ub then return kept_buffer(self, bucket, count, dtype) end
         return tide.empty({ count }, { dtype = dtype, device = device }), false
      end,
   }
end

-- Reduces a unit. At most one reduction is under way while another is prepared.
function schedule.reduce(self, unit, async)
   if self.reduced[unit] then return end
   self.reduced[unit] = true
   unit:drain()
   while #self.pending > 1 do table.remove(self.pending, 1):drain() end
   local bad = unit:reduce(reduce_opts(self, async))
   self.bad = self.bad or bad
   self.pending[#self.pending + 1] = unit
end

-- Raises on every rank if a gradient is not finite on any rank.
function schedule.report_bad(self)
   local bad = self.bad
   self.bad = nil
   if not self.opts.check_for_nan_in_grad or not dist.any(self.comm, bad ~= nil) then return end
   local names = self.comm:all_gather_object(bad or false)
   for rank = 1, self.comm.size do
      err.raise_if(names[rank], 'E_STATE', 'parallel.fsdp.finish', "the gradient of '%s' on rank "
         .. '%d is not finite', names[rank], rank - 1)
   end
end

-- ---- hooks -----------------------------------------------------------------------------------

local is_float = { f32 = true, f64 = true, bf16 = true, f16 = true }

local function cast_all(dtype, ...)
   local n, list = select('#', ...), { ... }
   for i = 1, n do
      local v = list[i]
      if type(v) == 'cdata' and is_float[v.dtype] and v.dtype ~= dtype then
         list[i] = v:to(dtype)
      end
   end
   return unpack(list, 1, n)
end

local mine = { by = 'fsdp' }

local function keep(self, handle) self.handles[#self.handles + 1] = handle end

local function hook_in(self, module, unit)
   local mp = self.opts.mp
   keep(self, module:hook_pre(function(_, ...)
      enter(self, unit)
      if mp.param_dtype and mp.cast_forward_inputs then return cast_all(mp.param_dtype, ...) end
   end, mine))
end

local function hook_out(self, module)
   local dtype = self.opts.mp.output_dtype
   if not dtype then return end
   keep(self, module:hook_post(function(_, _, ...) return cast_all(dtype, ...) end, mine))
end

-- Begins a unit's forward. A unit that ran several times is reduced after the backward of its first
-- run.
local function begin_forward(self, unit)
   if self.phase ~= 'forward' then return end
   unit.calls = unit.calls + 1
   self.seen[#self.seen + 1] = unit
end

local function end_backward(self, unit)
   local o = self.opts
   unit.calls = unit.calls - 1
   if unit.calls > 0 then return end
   -- a further backward before finish: its forward was not counted, its gradients are added
   if unit.calls < 0 then self.reduced[unit] = nil end
   if self.sync and o.overlap_grad_reduce and schedule.is_due(self, unit) then
      schedule.reduce(self, unit, true)
   end
   unit:reshard(false)
end

-- Returns whether no backward will go through a module that has just returned these values. Returns
-- false while nothing is recorded (recomputation), as nothing is known then.
local function is_untracked(...)
   if not tide.is_grad_enabled() then return false end
   for i = 1, select('#', ...) do
      local v = (select(i, ...))
      if type(v) == 'table' or type(v) == 'cdata' and v.requires_grad then return false end
   end
   return true
end

-- Makes FP8 layers of a unit round the weight again in backward, which gathers it anyway, unless an
-- option asks for the codes. The codes that they keep otherwise would be a second copy of a weight
-- whose bytes are dropped.
local function keep_weights(self, unit)
   if self.opts.keep_fp8_transpose_cache_when_using_custom_fsdp then return end
   for _, e in ipairs(unit.entries) do
      for _, place in ipairs(e.places) do
         local m = place.owner
         if m.fp8 and m.keep_weight then keep(self, m:keep_weight()) end
      end
   end
end

-- Hooks gather, reshard and reduction of a unit into its modules.
function schedule.hook_unit(self, unit)
   local list = unit.modules
   if unit.reshard_after_forward then keep_weights(self, unit) end
   for i, module in ipairs(list) do
      if i == 1 then keep(self, module:hook_pre(function() begin_forward(self, unit) end, mine)) end
      hook_in(self, module, unit)
      keep(self, module:hook_backward_pre(function()
         self.phase, self.unfinished = 'backward', true
         enter(self, unit)
      end, mine))
      if i == #list then
         hook_out(self, module)
         keep(self, module:hook_post(function(_, _, ...)
            if self.phase ~= 'forward' then return end
            unit.untracked = is_untracked(...)
            if unit.reshard_after_forward then unit:reshard(true) end
         end, mine))
      end
      if i == 1 then
         keep(self, module:hook_backward(function() end_backward(self, unit) end,
            { by = 'fsdp', needs_inputs = true }))
      end
   end
end

-- Hooks the modules outside units. Those that own parameters gather the root unit. All of them mark
-- where backward begins, which distinguishes a forward that is recomputed in backward from a new
-- one.
function schedule.hook_root(self, model)
   local owners = {}
   for _, e in ipairs(self.entries) do
      for _, place in ipairs(e.places) do owners[place.owner] = true end
   end
   model:walk(function(m)
      if self.unit_of[m] ~= self.root then return end
      if owners[m] or m == model then hook_in(self, m, self.root) end
      if m == model then hook_out(self, m) end
      keep(self, m:hook_backward_pre(function()
         self.phase, self.unfinished = 'backward', true
         -- an evaluation between may have ended it; a tied head is a product of the model itself
         if owners[m] or m == model then enter(self, self.root) end
      end, mine))
   end)
   -- parameters of the root that lie in a module of a unit
   for _, e in ipairs(self.root.entries) do
      for _, place in ipairs(e.places) do
         if self.unit_of[place.owner] ~= self.root then hook_in(self, place.owner, self.root) end
      end
   end
end

return schedule
