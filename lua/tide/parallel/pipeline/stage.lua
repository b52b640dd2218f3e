-- One stage of a pipeline: what a rank receives, computes and sends in a call of the model.
--
-- A call of the model runs the blocks of this stage. Their input is received from the stage before
-- and their output is sent to the one after, both by differentiable functions: the backward of the
-- input sends its gradient back, that of the output receives it. So a backward on every rank is a
-- backward through the whole model.
--
-- Outside of a step (`begin`) each call passes through all stages, and its result is sent from the
-- last one to all. Within a step calls are forwards and backwards in the order of schedule.lua;
-- results exist on the last stage alone, and the others get a placeholder that leads backward to
-- what they have sent.
--
-- Fields: model; comm, rank, size (of the stages); counts (blocks of each stage), blocks (first and
-- last one here); first, last (whether this is that stage); before, after (links to neighbours);
-- width, dtype (of hidden states); mixtures, multiplying (of the whole model); tied (the weight
-- that the first and the last stage share); micros (of the step under way: ids, has, dtype, event,
-- inputs and gradients that are received and not used yet, likes, has_told (dtype is sent), called
-- and is_placeholder (of the present forward)).

local tide = require 'tide'
local across = require 'tide.parallel.pipeline.across'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local finally = require 'tide.util.finally'
local layout = require 'tide.parallel.layout'
local link = require 'tide.parallel.pipeline.link'
local private = require 'tide.util.private'
local schedule = require 'tide.parallel.pipeline.schedule'
local spread = require 'tide.nn.spread'

local Stage = copy(across, { class_name = 'PipelineStage' })
Stage.__index = Stage

local op = 'parallel.pipeline'

-- ---- what lies between two stages --------------------------------------------------------------

-- Returns the shape of the hidden states between two stages. ids: [B, T], or embeddings that tensor
-- parallelism has cut already.
local function shape_of(self, ids)
   local tp, T = spread.of(self.model).tp, ids:size(2)
   if ids.ndim == 2 and tp and tp.sequence then
      T = layout.balanced(T, tp.axis.size)[tp.axis.rank + 1]
   end
   return { ids:size(1), T, self.width }
end

-- Returns the dtype of hidden states where the stage before cannot say it: it is simulated.
local function simulated_dtype(self)
   local sharded = spread.of(self.model).sharded
   local mp = sharded and sharded.opts.mp or {}
   return mp.output_dtype or mp.param_dtype or self.dtype
end

-- Returns the input of micro-batch i of a step, as Link:exchange takes it. The first input of a
-- step follows its dtype, which the others have too.
local function input_like(self, i)
   local m = self.micros
   m.dtype = m.dtype or self.before:tell() or simulated_dtype(self)
   return { shape = shape_of(self, m.ids[i]), dtype = m.dtype, device = m.ids[i].device }
end

local function like(t) return { shape = t.shape, dtype = t.dtype, device = t.device } end

-- Returns the result of first(list), or else of fn().
local function taken(list, fn)
   local t = table.remove(list, 1)
   if t then return t end
   return fn()
end

-- Appends what an exchange has received, or nothing (nil).
local function add(list, t) list[#list + 1] = t end

-- ---- the functions with a backward -------------------------------------------------------------

-- They are relays, as an exchange may make a tensor that a later event uses.

-- Sends h; the result is a zero that leads backward to it.
local sent = private.relay {
   name = 'parallel.pipeline.send',
   forward = function(self, h, stage)
      self.stage, self.like = stage, like(h)
      stage:_push(h)
      return tide.zeros({}, { dtype = 'f32', device = h.device })
   end,
   backward = function(self)
      local stage, m = self.stage, self.stage.micros
      local function receive() return stage.after:exchange(nil, self.like) end
      return m and taken(m.gradients, receive) or not m and receive() or nil
   end,
}

-- Returns what the stage before sends; anchor: a scalar that requires a gradient.
local received = private.relay {
   name = 'parallel.pipeline.receive',
   forward = function(self, _, stage, from)
      self.stage, self.like = stage, from
      return stage:_pull(from)
   end,
   backward = function(self, dx)
      self.stage:_return(dx or link.empty(self.like):zero_())
      return nil
   end,
}

-- Sends h to the stage after. Within a step it receives the gradient that is due there, too.
function Stage:_push(h)
   local m = self.micros
   if not m then
      self.after:exchange(h)
      return
   end
   m.likes[m.event.i] = like(h)
   local joint = m.event.joint
   add(m.gradients, self.after:exchange(h, joint and m.likes[joint]))
end

-- Returns the input of this stage. from: what to receive, as Link:exchange takes it.
function Stage:_pull(from)
   local m = self.micros
   local function receive() return self.before:exchange(nil, from) end
   return m and not m.event.take and taken(m.inputs, receive) or receive()
end

-- Sends the gradient of the input to the stage before. Within a step it receives the next input
-- that is due, too.
function Stage:_return(dx)
   local m = self.micros
   if not m then
      self.before:exchange(dx)
      return
   end
   local joint = m.event.joint
   add(m.inputs, self.before:exchange(dx, joint and input_like(self, joint)))
end

-- Notes a call of the model within a step. Raises if a stage cannot know what it receives.
local function count_call(self, ids)
   local m, name = self.micros, self.model.op or 'model'
   err.raise_if(m.called, 'E_UNSUPPORTED', name, 'the loss of a micro-batch calls the model a '
      .. 'second time, and stages of a pipeline send the states of one call; put both rows into '
      .. 'one batch, or compute what needs no gradient before the step')
   local given, ids_ = m.ids[m.event.i], { ids:size(1), ids:size(2) }
   err.raise_if(given:size(1) ~= ids_[1] or given:size(2) ~= ids_[2], 'E_UNSUPPORTED', name, 'the '
      .. 'loss of a micro-batch calls the model with ids [%d, %d], and those of the batch, whose '
      .. 'states the stages of a pipeline expect, are [%d, %d]; give the batch as it is',
      ids_[1], ids_[2], given:size(1), given:size(2))
   m.called = true
end

-- Refuses a forward that has not called the model: other stages wait for what it sends.
function Stage:check_called()
   err.raise_if(not self.micros.called, 'E_STATE', 'train.step', "option 'loss': it did not call "
      .. 'the model, and the stages of a pipeline wait for its states; call model:loss or '
      .. 'model:label_logprobs once for each batch')
end

-- Lets what follows draw from a stream of random numbers of this stage, so that blocks of different
-- stages drop different elements. Returns a function that ends it.
local function draw_apart(self)
   local ctx = tide.default()
   local before = ctx:rng_state()
   ctx:set_rng_state(copy({ stream = before.stream + self.rank }, copy(before)))
   return function()
      ctx:set_rng_state(copy({ stream = before.stream }, ctx:rng_state()))
   end
end

-- Returns fn(...), in which the model may compute the states of this stage. ids: what the model was
-- given.
function Stage:within(ids, fn, ...)
   if self.micros then count_call(self, ids) end
   local before, draw_as_before = self.inside, draw_apart(self)
   self.inside = true
   return finally(function()
      self.inside = before
      draw_as_before()
   end, fn, ...)
end

-- ---- what a model calls ------------------------------------------------------------------------

-- Returns the input of the first block of this stage, which the caller may overwrite. ids: what the
-- model was given, [B, T] or embeddings [B, T, C].
function Stage:input(ids)
   local m, from, grad = self.micros
   if m then
      from, grad = input_like(self, m.event.i), m.has.before and tide.is_grad_enabled()
   else
      local told = self.before:tell() or { dtype = simulated_dtype(self),
         shape = shape_of(self, ids), grad = true }
      from = { shape = told.shape, dtype = told.dtype, device = ids.device }
      grad = told.grad and tide.is_grad_enabled()
   end
   if not grad then return self:_pull(from) end
   local anchor = tide.zeros({}, { device = ids.device }):requires_grad_(true)
   return received(anchor, self, from)
end

-- Sends the output h of the last block of this stage, which is given up. Returns a zero that leads
-- backward to it.
local function output(self, h)
   local m, chain = self.micros
   if not m then
      self.after:tell { shape = h.shape, dtype = h.dtype, grad = h.requires_grad }
   elseif not m.has_told then
      self.after:tell(h.dtype)
      m.has_told = true
   end
   if h.requires_grad then
      chain = sent(h, self)
   else
      self:_push(h)
      chain = tide.zeros({}, { dtype = 'f32', device = h.device })
   end
   private.spend(h)
   return chain
end

-- Returns the value of the last stage on every stage, and whether it has a backward there. y: the
-- value there, nil elsewhere; device: of the others.
local function share(self, y, device)
   local root = self.size - 1
   if self.comm.transport == 'sim' then return y or tide.zeros({}, { device = device }) end
   local told = self.comm:broadcast_object(y and { shape = y.shape, dtype = y.dtype,
      grad = y.requires_grad }, root)
   local t = y and y:detach():contiguous()
      or tide.empty(told.shape, { dtype = told.dtype, device = device })
   return self.comm:broadcast(t, root), told.grad
end

-- Returns fn(h), which the last stage computes. h: its final hidden states, elsewhere the output of
-- the stage. shape: that of the result, nil where only a call outside of a step can have it. Within
-- a step the other stages get zeros.
function Stage:result(h, fn, shape)
   if self.last then
      local y = fn(h)
      if not self.micros then tide.no_grad(share, self, y) end
      return y
   end
   local m = self.micros
   err.raise_if(m and not shape, 'E_UNSUPPORTED', self.model.op or 'model', 'within a step of a '
      .. 'pipeline the last stage alone has logits; take the loss from model:loss or '
      .. 'model:label_logprobs')
   local device = h.device
   local chain = output(self, h)
   if m then
      m.is_placeholder = m.is_placeholder or #shape > 0
      return #shape > 0 and chain:expand(shape) or chain
   end
   local y, grad = tide.no_grad(share, self, nil, device)
   -- every rank calls backward, also where nothing is trained up to its stage
   if grad and not chain.requires_grad then chain:requires_grad_(true) end
   return chain.requires_grad and y + chain:to(y.dtype) or y
end

-- ---- a step ------------------------------------------------------------------------------------

-- Returns what each stage says of its micro-batches: { trained (whether it trains something), n },
-- {} of simulated stages. Raises unless they fit together. Collective.
local function said(self, n)
   if self.comm.transport == 'sim' then return {} end
   local trained = false
   for _, e in ipairs(self.model:named_parameters()) do
      trained = trained or e.param.requires_grad
   end
   local all, any = self.comm:all_gather_object { trained = trained, n = n }, false
   for s, row in ipairs(all) do
      any = any or row.trained
      err.raise_if(row.n ~= n, 'E_STATE', op, 'stage %d has %d micro-batches, stage %d has %d; '
         .. 'every stage needs the same', s - 1, row.n, self.rank, n)
   end
   err.raise_if(not any and tide.is_grad_enabled(), 'E_STATE', op, 'no parameter of any stage '
      .. 'requires a gradient, so there is nothing to train; see requires_grad_ of modules')
   return all
end

-- Begins n micro-batches of a step or of an evaluation. ids: those of each, as the model gets them
-- on this rank; without gradients the caller may add them before each event. Returns the events of
-- this stage (see schedule.lua). Collective over the stages.
function Stage:begin(ids, n)
   local all, has = said(self, n), { before = false, here = false }
   for s = 0, tide.is_grad_enabled() and self.rank or -1 do
      has.before, has.here = has.here, has.here or not all[s + 1] or all[s + 1].trained
   end
   self.micros = { ids = ids, has = has, inputs = {}, gradients = {}, likes = {} }
   return schedule.events(self.rank, self.size, n, has)
end

-- Sets the event that runs now.
function Stage:at(event)
   local m = self.micros
   m.event, m.is_placeholder, m.called = event, false, false
end

-- Runs the events that begin returned, in order. does: forward(i) returns the loss of micro-batch
-- i, backward(loss, is_last) runs its backward, in a step scope; done(event): nil, or called after
-- each. Returns whether losses are left, where nothing is trained up to this stage.
function Stage:run(events, does)
   local open = {}
   for k, event in ipairs(events) do
      self:at(event)
      local i = event.i
      if event.kind == 'forward' then
         open[i] = does.forward(i)
      else
         local loss = open[i]
         open[i] = nil
         tide.scope(function()
            does.backward(loss, k == #events)
            return self.micros.inputs                -- the scope keeps the next input
         end)
         private.spend(loss)
      end
      if does.done then does.done(event) end
   end
   return next(open) ~= nil
end

-- Returns whether the present forward gave zeros in place of what the last stage has.
function Stage:gave_placeholder() return self.micros ~= nil and self.micros.is_placeholder end

-- Returns whether the micro-batches of a step run.
function Stage:is_stepping() return self.micros ~= nil end

-- Returns the links of this stage.
function Stage:links() return { self.before or self.after, self.before and self.after } end

-- Ends the step: blocks until the neighbours have received what was sent, unless it has failed.
function Stage:finish(failed)
   self.micros = nil
   for _, to in ipairs(self:links()) do
      if failed then to.sent = {} else to:flush() end
   end
end

return Stage
