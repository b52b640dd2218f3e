-- The sharded model against the whole one: cp.self_check(model, probe).
--
-- Every rank runs the probe batch whole and then its part of it, and records the output of each
-- layer; the gathered outputs must be equal but for rounding. So a wrong layout, mask, position or
-- layer is found where it begins, and not as a loss that is a little off. On the whole batch,
-- attention uses a dense mask (oracle.lua), which shares no code with contexts.

local tide = require 'tide'
local class = require 'tide.class'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local finally = require 'tide.util.finally'
local names = require 'tide.util.names'
local signature = require 'tide.util.signature'
local nn = require 'tide.nn'
local nn_loss = require 'tide.nn.loss'
local spread = require 'tide.nn.spread'
local collective = require 'tide.parallel.collective_op'
local layout = require 'tide.parallel.layout'
local oracle = require 'tide.parallel.cp.oracle'

local op = 'parallel.cp.self_check'

local tolerances = { f64 = 1e-9, f32 = 1e-4, bf16 = 5e-2, f16 = 1e-2 }

-- ---- what is looked at -----------------------------------------------------------------------

-- Returns blocks and their attention layers, in the order of their outputs.
local function watched(model)
   local list, last = {}, {}
   for _, e in ipairs(model:named_modules()) do
      if class.is(e.module, nn.Attention) then list[#list + 1] = e end
      if class.is(e.module, nn.Stack) then
         for i, block in ipairs(e.module) do
            last[#last + 1] = { module = block, name = names.join(e.name, e.module._child[i]) }
         end
      end
   end
   for _, e in ipairs(last) do list[#list + 1] = e end
   return list
end

-- Runs fn and records the outputs of a forward pass, { name, y }, in the order of the calls.
local function record(list, fn)
   local seen, handles = {}, {}
   for i, e in ipairs(list) do
      handles[i] = e.module:hook_post(function(_, _, y)
         seen[#seen + 1] = { name = e.name, y = y:detach() }
      end)
   end
   return seen, finally(function()
      for _, h in ipairs(handles) do h:remove() end
   end, fn)
end

local function gradients(model)
   local list = {}
   for _, e in ipairs(model:named_parameters()) do
      if e.param.grad ~= nil then list[e.name] = e.param.grad:clone() end
   end
   model:zero_grad()
   return list
end

-- Makes one pass over a batch; with want_grad also backward. Returns outputs, loss, gradients.
local function pass(model, list, batch, count, want_grad)
   local opts = { count = count, positions = batch.positions, index = batch.index,
      context = batch.context }
   local loss
   local function forward()
      loss = model:loss(batch.ids, batch.labels, opts)
      return loss:item()
   end
   if not want_grad then
      local seen, value = tide.no_grad(record, list, forward)
      return seen, value, {}
   end
   local seen, value = record(list, forward)
   loss:backward()
   return seen, value, gradients(model)
end

-- ---- comparing -------------------------------------------------------------------------------

local function largest_of(t) return t:to 'f64':abs():amax():item() end

-- Returns the largest difference over the largest number of `want`, which counts as at least least.
local function off_by(got, want, least)
   local scale = math.max(largest_of(want), least or 0, 1e-30)
   local d = (got:to 'f64' - want:to 'f64'):abs():amax():item() / scale
   return d == d and d or math.huge
end

-- Returns an output [B, t, C] that tensor parallelism may have cut along the tokens, whole along
-- them.
local function joined(model, y, tokens)
   local env = spread.of(model).tp
   if not env or y:size(2) == tokens then return y end
   return collective.gather_from(y, env.axis, 2, layout.balanced(tokens, env.axis.size))
end

-- Returns y [B, T, C] with 0 at padding, whose outputs mean nothing and differ by method.
local function without_padding(y, pad) return pad and y:masked_fill(pad, 0) or y end

-- Returns the largest difference of each layer's output. index: (document, position) of the tokens
-- of the whole batch, or nil.
local function compare_layers(model, context, whole, part, index)
   local errors, pad = {}, index and index:select(3, 1):lt(0):unsqueeze(3)
   for i, w in ipairs(whole) do
      local mine = joined(model, part[i].y, context.map.count)
      local all = joined(model, w.y, context.map.length)
      errors[i] = { name = w.name, error = off_by(
         without_padding(context.map:gather(mine, 2), pad), without_padding(all, pad)) }
   end
   return errors
end

local rounding = { f64 = 1e-12, f32 = 1e-6, bf16 = 1e-2, f16 = 1e-3 }

-- Returns the relative difference of each gradient. A gradient that is zero but for rounding, such
-- as that of the bias of keys without rotary positions, is compared with a thousandth of the
-- largest.
local function compare_gradients(model, comm, whole, part)
   local errors, most = {}, 0
   for _, want in each(whole) do most = math.max(most, largest_of(want)) end
   for _, e in ipairs(model:named_parameters()) do
      local want, got = whole[e.name], part[e.name]
      if want ~= nil then
         got = got or want:new_zeros(want.shape)
         comm:all_reduce(got)
         local is_zero = largest_of(want) < most * rounding[want.dtype]
         errors[#errors + 1] = { name = e.name,
            error = off_by(got, want, is_zero and most * 1e-3 or nil) }
      end
   end
   return errors
end

-- Returns the largest difference over ranks, so that all ranks reach the same verdict.
local function largest(comm, errors)
   for _, list in ipairs(comm:all_gather_object(errors)) do
      for i, e in ipairs(list) do errors[i].error = math.max(errors[i].error, e.error) end
   end
   return errors
end

-- ---- the check -------------------------------------------------------------------------------

local function check_gradients_clear(model, want)
   if want == nil then want = not spread.of(model).sharded end
   if not want then return false end
   err.arg_if(spread.of(model).sharded, op, 'gradients', 'false for a model whose gradients are '
      .. 'sharded', true)
   for _, e in ipairs(model:named_parameters()) do
      err.raise_if(e.param.grad ~= nil, 'E_STATE', op, "parameter '%s' has a gradient; the check "
         .. 'makes its own: call it before a step, or with gradients = false', e.name)
   end
   return true
end

local function both(handle, model, probe, want_grad)
   local null, list = require('tide.parallel.cp').null, watched(model)
   local mine, whole = handle:cut(probe), oracle.batch(probe)
   local count = nn_loss.count(whole.labels)
   whole.context = null
   local dense = oracle.attention(probe, probe.ids:size(1), probe.ids:size(2))
   local a = { handle:instead(dense, pass, model, list, whole, count, want_grad) }
   local b = { pass(model, list, mine, count, want_grad) }
   return mine.context, a, b, whole.index
end

local function verdict(errors, tolerance, what, more)
   for _, e in ipairs(errors) do
      err.raise_if(e.error > tolerance, 'E_STATE', op, "%s '%s' is the first that differs from one "
         .. 'rank: off by %.3g of its largest value, the tolerance is %.3g%s', what, e.name,
         e.error, tolerance, more or '')
   end
end

signature.record('probe', 'a table { ids =, labels =, .. }', { 'ids: tensor [B, T]',
   'labels: tensor [B, T]' })

-- Compares a model that cp.attach has attached with itself on one rank, by a probe batch. probe: {
-- ids, labels, and positions, index, packed_seq_ids, attention_mask, padding_mask, cu_real,
-- cu_slot, if it has them }, whole and alike on all ranks of the axis; short, since attention on
-- one rank takes a dense mask of its tokens. opts: tolerance (by the dtype of the parameters),
-- gradients (true; false for a sharded model). Raises on every rank, naming the first layer whose
-- output differs, or else the loss, or the first parameter whose gradient does. Returns { layers,
-- gradients: lists of { name, error }, loss, loss_whole }. Collective over the axis.
return function(model, probe, opts)
   opts = err.options(op, opts, { 'tolerance', 'gradients' })
   err.arg_if(not class.is(model, nn.Module) or not spread.of(model).cp, op, 'model',
      'a model that cp.attach has attached', model)
   signature.check(op, 'probe', probe, 'probe')
   local handle, first = spread.of(model).cp, model:parameters()[1]
   local tolerance = err.number(op, 'tolerance', opts.tolerance or tolerances[first.dtype], 0)
   local want_grad = check_gradients_clear(model, opts.gradients)
   if handle.size == 1 then return { layers = {}, gradients = {} } end
   local training = model.training
   model:eval()
   local context, a, b, index = finally(function()
      model:train(training)
      if spread.of(model).sharded then spread.of(model).sharded:release() end
   end, both, handle, model, probe, want_grad)
   local comm = handle.comm
   local layers = largest(comm, compare_layers(model, context, a[1], b[1], index))
   verdict(layers, tolerance, 'layer', '; layout, positions, mask or method there are wrong')
   local sum = require('tide.comm').sum(comm, { b[2] })[1]
   local off = math.abs(sum - a[2]) / math.max(math.abs(a[2]), 1e-30)
   local loss = { { name = 'loss', error = off == off and off or math.huge } }
   verdict(largest(comm, loss), tolerance, 'value')
   local grads = largest(comm, compare_gradients(model, comm, a[3], b[3]))
   verdict(grads, tolerance, 'gradient of')
   return { layers = layers, gradients = grads, loss = sum, loss_whole = a[2] }
end
