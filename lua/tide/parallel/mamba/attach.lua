-- Attaches layers that keep a state (Mamba-2, gated delta nets) of a model to the ranks of an axis,
-- and detaches them again.
--
-- A layer's `mix` is wrapped by one that takes the context of the call (as attention does), whose
-- plan says which rank holds what. Both methods take the tokens in the layout that attention has
-- (contiguous or zigzag; hidden any), so hybrid models never change the layout between layers: the
-- exchange by heads undoes it in its index, the passing of states has two runs a rank.
--
-- `auto` takes the method whose busiest rank sends fewer bytes. Prices depend on shapes alone, so
-- all ranks choose alike. A gated delta net has the exchange by heads alone: a run of tokens
-- changes its state by a matrix for each head, and not by a number.

local tide = require 'tide'
local class = require 'tide.class'
local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local private = require 'tide.util.private'
local agree = require 'tide.comm.agree'
local axis_of = require 'tide.parallel.axis_of'
local context_ = require 'tide.parallel.cp.context'
local fingerprint = require 'tide.parallel.fingerprint'
local kept = require 'tide.parallel.kept'
local exchange = require 'tide.parallel.cp.exchange'
local delta = require 'tide.parallel.mamba.delta'
local hidden = require 'tide.parallel.mamba.hidden'
local state = require 'tide.parallel.mamba.state'
local wrap = require 'tide.nn.wrap'
local GatedDeltaNet = require 'tide.nn.gated_delta'
local Mamba2 = require('tide.nn.mamba').Mamba2
require 'tide.parallel.cp.map'          -- the kind 'plan'

local attach = {}

local function is_delta(m) return class.is(m, GatedDeltaNet) end

-- Returns whether a module is a layer that keeps a state.
function attach.keeps_state(m) return class.is(m, Mamba2) or is_delta(m) end

signature.kind('mamba2', 'an nn.Mamba2 or nn.GatedDeltaNet', attach.keeps_state,
   'tide.Mamba2|tide.GatedDeltaNet')

-- Returns the module that exchanges the heads of a layer.
local function by_heads(layer) return is_delta(layer) and delta or hidden end

local function title(layer) return is_delta(layer) and 'gated delta net' or 'Mamba-2' end

-- ---- prices ----------------------------------------------------------------------------------

-- Returns the bytes that the busiest rank sends in forward and in backward.
local function busiest(size, fn)
   local sum, go, back = 0, 0, 0
   for r = 0, size - 1 do
      local a, b = fn(r)
      if a + b > sum then sum, go, back = a + b, a, b end
   end
   return { forward = go, backward = back, bytes = sum }
end

-- Returns what a layer sends for a batch of `rows` (1) rows under a plan, by each method: { hidden
-- = { forward, backward, bytes }, state = the same or nil, why = text, best = name }, of the
-- busiest rank, or of opts.rank.
function attach.price(layer, map, opts)
   local rows, size = opts.rows, tide.dtype_size(opts.dtype)
   local plan = by_heads(layer).prepare(layer, { size = map.size, rank = 0 })
   local function over(fn)
      if not opts.rank then return busiest(map.size, fn) end
      local go, back = fn(opts.rank)
      return { forward = go, backward = back, bytes = go + back }
   end
   local out = { hidden = over(function(r)
      return hidden.bytes(plan, r, rows * map.count, size)
   end), best = 'hidden' }
   local runs, why = state.runs(map)
   if not runs or is_delta(layer) then
      out.why = why or 'gated delta nets'
      return out
   end
   out.state = over(function(r)
      return state.bytes(layer, r == map.rank and map or map:at(r), rows, size)
   end)
   if out.state.bytes < out.hidden.bytes then out.best = 'state' end
   return out
end

-- Returns the result of price as text.
function attach.explain(layer, map, opts)
   local p = attach.price(layer, map, opts)
   local function line(name, c)
      return ('%-6s %12d bytes forward %12d backward%s'):format(name, c.forward, c.backward,
         p.best == name and '  <- auto' or '')
   end
   return line('hidden', p.hidden) .. '\n'
      .. (p.state and line('state', p.state) or ('state  not for %s'):format(p.why))
end

-- ---- the object ------------------------------------------------------------------------------

local Attached = class 'MambaAttached'
attach.Attached = Attached

-- Refuses at once what could only fail in the first batch: a method on a layout of cp_map.
function attach.check_layout(op, method, kind)
   err.raise_if(method == 'state' and kind ~= 'contiguous' and kind ~= 'zigzag', 'E_UNSUPPORTED',
      op, "method 'state' of Mamba-2 layers needs runs of tokens with equal number and length on "
         .. "all ranks: layout contiguous or zigzag, not '%s'; use 'hidden' (any layout) or 'auto'",
         kind)
end

-- Refuses a layer whose mix is not that of its class, and a method that it does not have.
local function check_layer(self, op, layer)
   err.raise_if(layer.mix ~= (is_delta(layer) and GatedDeltaNet or Mamba2).mix, 'E_STATE', op,
      'a layer has a `mix` of its own already, or one that is wrapped; restore that first')
   err.raise_if(self.method == 'state' and is_delta(layer), 'E_UNSUPPORTED', op, "method 'state': "
      .. "'%s' is a gated delta net, which exchanges heads alone; use 'hidden' or 'auto'",
      self.names[layer])
end

-- Wraps the mix of every nn.Mamba2 and nn.GatedDeltaNet in model; the model is then called with a
-- context (parallel.cp.context, or what cp.attach cuts). axis: of a mesh, or a communicator. opts:
-- method ('auto'; 'hidden', 'state'). Nothing changes on one rank. parallel.cp.attach calls it for
-- models with such layers. Returns the handle: restore().
function attach.attach(model, axis, opts)
   local op = 'parallel.mamba_cp.attach'
   local self = setmetatable({ comm = axis, method = opts.method, layers = {}, names = {},
      wraps = {}, plans = {}, chosen = {}, batches = setmetatable({}, { __mode = 'k' }) }, Attached)
   model:walk(function(m, path)
      if attach.keeps_state(m) then
         self.layers[#self.layers + 1] = m
         self.names[m] = path == '' and 'the layer' or path
      end
   end)
   err.arg_if(#self.layers == 0, op, 'model', 'a module with nn.Mamba2 or nn.GatedDeltaNet layers',
      model)
   for _, layer in ipairs(self.layers) do check_layer(self, op, layer) end
   for _, layer in ipairs(self.comm.size > 1 and self.layers or {}) do
      self.plans[layer] = by_heads(layer).prepare(layer, self.comm)
      self.wraps[layer] = layer:wrap('cp', function(next, of, projected, at)
         return self:call(next, of, projected, at)
      end, { of = 'mix', order = wrap.order.cp, by = 'cp' })
      layer.takes_context = true
   end
   return self
end

-- Detaches the layers. A second call does nothing.
function Attached:restore()
   for layer, handle in each(self.wraps) do
      handle.remove()
      layer.takes_context = nil
   end
   self.layers, self.wraps = {}, {}
end

-- ---- the batch -------------------------------------------------------------------------------

-- Returns the number of the sequence of each token of the whole, padding included: i32 [B or 1, T],
-- or nil: there is one.
local function sequence_of(map, index)
   if index then return require('tide.nn.mamba').sequence_of(map:pad(index, 2, -1):select(3, 1)) end
   local cu = dims.copy(map.cu_slot)
   if cu[#cu] < map.padded then cu[#cu + 1] = map.padded end
   if #cu <= 2 then return nil end
   return tide.sequence_index(tide.tensor(cu, { dtype = 'i64', device = 'cpu' }), map.padded)
end

local function whole_sequence(batch, map, device)
   return kept(batch, 'sequence' .. device, function()
      local t = sequence_of(map, batch.index)
      return t and (t.device == device and t or t:to(device))
   end)
end

local function hand_over(batch, map, layer, device)
   return kept(batch, 'state' .. layer.taps .. device, function()
      return state.prepare(map, layer.taps, whole_sequence(batch, map, device), device)
   end, function(b) return b.between:is_gone() end)
end

local function rows_of(batch, map)
   return kept(batch, 'rows', function()
      local list = {}
      for r = 0, map.size - 1 do list[r + 1] = map:runs(r) end
      return exchange.rows(list)
   end, function(r) return r.order and r.order:is_gone() end)
end

-- ---- the call --------------------------------------------------------------------------------

local function method_of(self, layer, projected, map)
   if self.method ~= 'auto' then return self.method end
   local B = projected:size(1)
   local key = ('%s %d %d %s'):format(map.kind, map.padded, B, projected.dtype)
   local chosen = self.chosen[layer] or {}
   self.chosen[layer] = chosen
   if not chosen[key] then
      chosen[key] = attach.price(layer, map, { rows = B, dtype = projected.dtype }).best
   end
   return chosen[key]
end

-- Raises E_COMM on every rank, naming layer and field, unless all ranks have the same layers.
-- Compared at the first call, where the ranks meet.
local function check_layers(self, op)
   if self.agreed then return end
   agree.check(self.comm, op, 'E_COMM', { { title(self.layers[1]) .. ' layers', function()
      local list = {}
      for i, layer in ipairs(self.layers) do
         list[i] = fingerprint.structure(layer, self.names[layer])
      end
      return table.concat(list, '\n')
   end, 'lines' } })
   self.agreed = true
end

-- Returns a call in a line.
local function kind_of(layer, projected, method)
   if is_delta(layer) then
      return ('%s, %d rows, %s'):format(projected.dtype, projected:size(1), layer:detail())
   end
   return ('mamba %s, %s, %d rows, %d heads of %d in %d groups, state %d'):format(method,
      projected.dtype, projected:size(1), layer.heads, layer.head_dim, layer.groups, layer.state)
end

-- Returns the context of a call, checked.
local function context_for(self, op, projected, at)
   local context = at.context
   err.raise_if(context == nil, 'E_STATE', op, 'no context; call the model with the context of its '
      .. 'batch (parallel.cp; null: a whole sequence on each rank), or restore() it')
   context_.check(op, 'context', context)
   local map = context.map
   err.raise_if(not map, 'E_UNSUPPORTED', op, 'the context has pairs but no plan, and the plan '
      .. 'gives the order of the tokens')
   err.raise_if(map.size ~= self.comm.size or map.rank ~= self.comm.rank, 'E_ARG', op,
      'the context is for rank %d of %d, the layer for rank %d of %d', map.rank, map.size,
      self.comm.rank, self.comm.size)
   err.raise_if(at.cache, 'E_UNSUPPORTED', op, 'a cache (generation) needs a whole sequence on one '
      .. 'rank')
   err.arg_if(at.sequence ~= nil, op, 'sequence', 'nil, because the context has the documents',
      at.sequence)
   err.raise_if(projected:size(2) ~= map.count, 'E_SHAPE', op, 'expected %d tokens, those of this '
      .. 'rank in the plan, got %d', map.count, projected:size(2))
   return context
end

-- Returns what is kept for a plan. It must not hold the plan: the key is weak, what it leads to is
-- not.
local function batch_of(self, map, index)
   local batch = self.batches[map]
   if not batch or batch.index ~= index then
      batch = { index = index, keep = {} }
      self.batches[map] = batch
   end
   return batch
end

-- Returns the mix of a layer: see nn.Mamba2.mix and nn.GatedDeltaNet.mix; next: that of the whole
-- sequence. Which documents there are is the context's to say; ranks that differ in it, or in
-- method or layer, all raise E_COMM. Every rank must call. With `alone` set (cp.attach's whole) a
-- call without a context means a whole sequence on this rank, as one with parallel.cp.null always
-- does.
function Attached:call(next, layer, projected, at)
   local op = 'parallel.mamba_cp'
   if at.context == context_.null or self.alone and not at.context then
      return next(layer, projected, at)
   end
   local context, device = context_for(self, op, projected, at), projected.device
   local map = context.map
   check_layers(self, op)
   local method = method_of(self, layer, projected, map)
   context:check_agreed(op, self.comm, title(layer) .. ' batches',
      kind_of(layer, projected, method))
   local batch = batch_of(self, map, context.index)
   if method == 'state' then
      local plan = hand_over(batch, map, layer, device)
      return private.frame(state.inner, layer, projected, self.comm, plan)
   end
   local rows, sequence = rows_of(batch, map), whole_sequence(batch, map, device)
   return private.frame(by_heads(layer).inner, layer, projected, self.comm, self.plans[layer], rows,
      sequence)
end

function Attached:__tostring()
   return ('%s over %d ranks (%s, %d layers)'):format(title(self.layers[1]), self.comm.size,
      self.method, #self.layers)
end

return signature.doors('parallel.mamba_cp', attach, {
   price = { 'layer: mamba2; map: plan', opts = {
      'rows: integer >= 1 = 1 -- rows of the batch', "dtype: float = 'f32'",
      'rank: integer? in [0, map.size - 1] -- by default the busiest' } },
   attach = { 'model: module; axis: group', before = axis_of.in_options { 'axis' }, opts = {
      "method: 'auto' | 'hidden' | 'state' = 'auto' -- what travels: heads, states, or the fewer "
         .. 'bytes' } },
})
