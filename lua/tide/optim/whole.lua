-- Whole: an optimiser whose update of a weight needs the whole of its gradient.
--
-- A rank of a sharded model holds a piece of a parameter. The ranks add up their pieces, with zeros
-- elsewhere, so each has the whole with the same bits, and changes its own piece by it. That is a
-- collective, so all ranks visit the parameters in one order.
--
-- A class defines is_whole(name, shape), which must be the same on all ranks, and update_whole.

local tide = require 'tide'
local class = require 'tide.class'
local copy = require 'tide.util.copy'
local dims = require 'tide.util.dims'
local dist = require 'tide.comm'
local err = require 'tide.util.err'
local Optimizer = require 'tide.optim.optimizer'

local Whole = class('Whole', Optimizer)

-- Refuses a matrix cut by tensor parallelism in a model that is not sharded: no rank has its whole.
local function check_uncut(self, entry)
   local cuts = entry.owner and rawget(entry.owner, '_layout')
   local at = cuts and cuts[entry.field]
   err.raise_if(at and at.blocks and at.axis.size > 1, 'E_UNSUPPORTED', self.op, "parameter '%s' "
      .. 'is split over ranks, but the update needs the whole parameter: call tide.parallel.'
      .. "fully_shard on the model (strategy 'no_shard' keeps parameters whole), and make the "
      .. 'optimiser from its result', entry.name)
end

-- Adds to list the entries of a group that are whole, or those that are not.
local function add_group(self, list, group, whole)
   local own = copy(group)
   own.params, own.whole = {}, whole
   for _, entry in ipairs(group.params) do
      if self:is_whole(entry.name, entry.shape or entry.param.shape) == whole then
         own.params[#own.params + 1] = entry
         if whole then check_uncut(self, entry) end
      end
   end
   if #own.params > 0 then list[#list + 1] = own end
end

-- Begins an optimiser as Optimizer:init does, and splits each group into the whole parameters and
-- the others.
function Whole:init(op, params, defaults, opts)
   Optimizer.init(self, op, params, defaults, opts)
   local list = {}
   for _, group in ipairs(self.groups) do
      add_group(self, list, group, true)
      add_group(self, list, group, false)
   end
   self.groups = list
end

-- Returns every whole parameter of all ranks, in one order: { name, shape, comms, trains (whether
-- it requires a gradient), entry and group (where this rank holds a piece) }.
local function parameters(self)
   local here, list, named = {}, {}, {}
   for _, group in ipairs(self.groups) do
      for _, entry in ipairs(group.whole and group.params or {}) do
         here[entry.name] = { entry = entry, group = group }
      end
   end
   local function add(name, shape, comms, trains)
      local own = here[name] or {}
      named[name] = true
      list[#list + 1] = { name = name, shape = shape, comms = comms, trains = trains,
         entry = own.entry, group = own.group }
   end
   for _, keeper in ipairs(self.keepers) do
      for _, e in ipairs(keeper.entries) do
         if self:is_whole(e.name, e.whole) then
            add(e.name, e.whole, e.comms, e.view.requires_grad)
         end
      end
   end
   for _, entry in ipairs(self:entries()) do
      if here[entry.name] and not named[entry.name] then
         add(entry.name, entry.param.shape, {}, true)
      end
   end
   return list
end

-- Returns the entries that got a gradient on some rank. Simulated ranks cannot say it: those that
-- are trained.
local function with_gradients(self, list)
   local keeper, flags = self.keepers[1], {}
   local is_simulated = keeper and keeper.stage_comm.transport == 'sim'
   for i, p in ipairs(list) do
      local has = is_simulated and p.trains or p.entry and p.entry.param.grad ~= nil
      flags[i] = has and 1 or 0
   end
   if keeper and #flags > 0 and not is_simulated then
      flags = dist.sum(keeper.stage_comm, flags)
   end
   local some = {}
   for i, p in ipairs(list) do
      if flags[i] > 0 then some[#some + 1] = p end
   end
   return some
end

-- Returns the boxes of this rank's piece in the whole.
local function parts_of(p)
   if not p.entry then return {} end
   if p.entry.parts then return p.entry.parts end
   local zeros = dims.zeros(#p.shape)
   return { { at = zeros, offset = zeros, size = p.shape } }
end

local function is_cut(p)
   for _, comm in ipairs(p.comms) do
      if comm.size > 1 then return true end
   end
   return false
end

-- Returns the whole of which t is this rank's piece (nil: none here), in f32 (f64 of f64). dtype,
-- device: of the result where this rank has none. Collective over p.comms.
function Whole.gather(p, t, dtype, device)
   if not is_cut(p) then return t end
   local whole = tide.zeros(p.shape, { dtype = dtype, device = device })
   for _, part in ipairs(parts_of(p)) do
      dims.view(whole, part.offset, part.size):copy_(dims.view(t, part.at, part.size))
   end
   for _, comm in ipairs(p.comms) do
      if comm.size > 1 then comm:all_reduce(whole, 'sum') end
   end
   return whole
end

-- Adds alpha times this rank's piece of a whole to weight.
function Whole.add_piece_(p, weight, whole, alpha)
   for _, part in ipairs(parts_of(p)) do
      local change = dims.view(whole, part.offset, part.size)
      dims.view(weight, part.at, part.size):add_(change, alpha)
   end
end

-- Returns the state and the f32 weight of this rank's piece, counted as one that a step changes.
local function state_of(self, p)
   local name, entry = p.name, p.entry
   self.state[name] = self.state[name] or self:_begin_state(entry)
   return self.state[name]
end

local function update_one(self, p, lr, opts, device, dtype)
   local state = p.entry and state_of(self, p)
   tide.scope(function()
      local weight = state and (state.master or p.entry.param)
      local grad = state and self.scaled(p.entry.param.grad, weight.dtype, opts)
      self:update_whole(p, { weight = weight, grad = grad, state = state, group = p.group,
         lr = lr * (p.group and p.group.lr_scale or 1), dtype = dtype, device = device })
      if state and state.master then p.entry.param:copy_(weight) end
      return state
   end)
   if state then state.step = state.step + 1 end
   return state
end

-- Updates whole parameters one by one, and the rest by `update`, in place of Optimizer:_update_all.
-- Collective.
function Whole:_update_all(lr, opts)
   if opts.found_inf then
      err.raise('E_UNSUPPORTED', self.op .. '.step', 'a captured step needs AdamW or SGD')
   end
   local lists = Optimizer._update_all(self, lr, opts, function(g) return not g.whole end)
   local first = self:entries()[1]
   local device, states = first and first.param.device or 'cpu', {}
   local dtype = first and first.param.dtype == 'f64' and 'f64' or 'f32'
   for _, p in ipairs(with_gradients(self, parameters(self))) do
      states[#states + 1] = update_one(self, p, lr, opts, device, dtype) or nil
   end
   lists[#lists + 1] = states
   return lists
end

return Whole
