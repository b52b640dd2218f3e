-- The stages that a rank of a pipeline has: what it receives, computes and sends in a call of the
-- model.
--
-- A rank has one stage, or several virtual ones: its parts. A call of the model runs the blocks of
-- a part. Their input is received from the stage before and their output is sent to the one after,
-- both by differentiable functions: the backward of the input sends its gradient back, that of the
-- output receives it. So a backward on every rank is a backward through the whole model.
--
-- Outside of a step (micros.lua) each call passes through all stages, and its result is sent from
-- the last one to all. A rank with several parts runs one after the other: the output of a part
-- leads backward to the input of the next one, so that backward has the same order on all ranks.
-- Within a step a call runs one part, on a forward of schedule.lua; results exist on the last stage
-- alone, and the others get a placeholder that leads backward to what they have sent.
--
-- Fields: model; comm, rank, size (of the ranks); virtual (parts of each); counts (blocks of each
-- stage), parts (of this rank: a list of { stage (its number, from 0), blocks = first and last one
-- in the model, here = those in its list of blocks, begins, ends (whether the model does), mixes
-- (whether it has mixtures of experts) }); inside (whether a call of the model runs); first, last
-- (whether the model begins or ends on this rank); before, after (links to neighbours); width,
-- dtype (of hidden states); mixtures, multiplying (of the whole model); tied (the weight that the
-- first and the last stage share); chain (of the part before in a call); programs (by
-- micro-batches and first trained stage); micros (of the step under way).

local tide = require 'tide'
local across = require 'tide.parallel.pipeline.across'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local finally = require 'tide.util.finally'
local layout = require 'tide.parallel.layout'
local link = require 'tide.parallel.pipeline.link'
local micros = require 'tide.parallel.pipeline.micros'
local mixtures = require 'tide.nn.mixtures'
local private = require 'tide.util.private'
local spread = require 'tide.nn.spread'

local Stage = copy(micros, copy(across, { class_name = 'PipelineStage' }))
Stage.__index = Stage

-- ---- the part that runs ------------------------------------------------------------------------

-- Returns the part that a forward or backward of a step works on; nil outside of a step.
local function part_of_step(self)
   local event = self.micros and self.micros.event
   return event and self.parts[event.part]
end

-- Returns whether the call that runs has the embedding of the model.
function Stage:at_start()
   local part = part_of_step(self)
   return self.first and (not part or part.begins)
end

-- Returns whether the call that runs has the end of the model.
function Stage:at_end()
   local part = part_of_step(self)
   return self.last and (not part or part.ends)
end

-- Returns a function that gives the number of the part of a module. What lies outside of the blocks
-- runs where the model begins or ends.
function Stage:part_of()
   local of, blocks = {}, self.model:blocks()
   for v, part in ipairs(self.parts) do
      for i = part.here[1], part.here[2] do blocks[i]:walk(function(m) of[m] = v end) end
   end
   local other = self.first and 1 or self.virtual
   return function(m) return of[m] or other end
end

-- Notes which parts have mixtures of experts, once the model is cut.
function Stage:_note_mixtures()
   local part_of = self:part_of()
   for _, layer in ipairs(mixtures(self.model)) do self.parts[part_of(layer.m)].mixes = true end
end

-- Returns whether the part that a step works on has mixtures of experts.
function Stage:has_mixtures() return part_of_step(self).mixes == true end

-- Returns a function that gives the part of a unit of parameters from its entries (see fsdp.units);
-- 'all' where several parts use them, or the first and the last rank share one of them: its sum
-- waits for both, and they for what each other sends before.
function Stage:part_of_entries()
   local part_of, other = self:part_of(), self.first and 1 or self.virtual
   return function(entries)
      local found
      for _, e in ipairs(entries) do
         if e.over == 'tied' then return 'all' end
         for _, place in ipairs(e.places) do
            local part = part_of(place.owner)
            if found and part ~= found then return 'all' end
            found = part
         end
      end
      return found or other
   end
end

-- Returns the links of this rank.
function Stage:links()
   if self.before == nil then return { self.after } end
   return { self.before, self.after }
end

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

-- Returns the dtype of hidden states where the stage before cannot say it: it is simulated. Units
-- of a sharded model cast their results, and blocks may lie in the root, which casts the logits.
local function simulated_dtype(self)
   local sharded = spread.of(self.model).sharded
   if not sharded then return self.dtype end
   local mp, block = sharded.opts.mp, self.model:blocks()[1]
   local casts = block and sharded.unit_of[block] ~= sharded.root
   return casts and mp.output_dtype or mp.param_dtype or self.dtype
end

-- Returns the input of a part for micro-batch ids of a step, as Link:exchange takes it. dtype: nil
-- where the stage before cannot say it.
function Stage:_like_input(ids, dtype)
   return { shape = shape_of(self, ids), dtype = dtype or simulated_dtype(self),
      device = ids.device }
end

-- ---- the functions with a backward -------------------------------------------------------------

-- Sends h; the result is a zero that leads backward to it.
local sent = private.relay {
   name = 'parallel.pipeline.send',
   forward = function(self, h, stage)
      self.stage, self.like = stage, link.like(h)
      self.event = stage:_push(h)
      return tide.zeros({}, { dtype = 'f32', device = h.device })
   end,
   backward = function(self)
      if self.event then return self.stage:_gradient(self.event) end
      return self.stage.after:exchange(nil, self.like)
   end,
}

-- Returns what the stage before sends; anchor: a scalar that requires a gradient.
local received = private.relay {
   name = 'parallel.pipeline.receive',
   forward = function(self, anchor, stage, from)
      self.stage, self.like, self.anchor = stage, from, link.like(anchor)
      return stage:_pull(from)
   end,
   backward = function(self, dx)
      self.stage:_return(dx or link.empty(self.like):zero_())
      return link.empty(self.anchor):zero_()
   end,
}

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
   if self.micros then self:_count_call(ids) end
   local before, draw_as_before = self.inside, draw_apart(self)
   self.inside = true
   return finally(function()
      self.inside = before
      draw_as_before()
   end, fn, ...)
end

-- ---- what a model calls ------------------------------------------------------------------------

-- Returns the input of a part, which the caller may overwrite. ids: what the model was given, [B,
-- T] or embeddings [B, T, C].
local function input(self, ids)
   local m, from, grad = self.micros
   if m then
      from, grad = self:_like_input(ids, m.dtype), self:_sends_back()
   else
      local told = self.before:receive_value()
         or { dtype = simulated_dtype(self), shape = shape_of(self, ids), grad = true }
      from = { shape = told.shape, dtype = told.dtype, device = ids.device }
      grad = told.grad
   end
   local chain = self.chain
   self.chain = nil
   if not (grad and tide.is_grad_enabled()) then return self:_pull(from) end
   local anchor = chain and chain.requires_grad and chain
      or tide.zeros({}, { device = ids.device }):requires_grad_(true)
   return received(anchor, self, from)
end

-- Sends the output h of a part, which is given up. Returns a zero that leads backward to it.
local function output(self, h)
   if not self.micros then
      self.after:send_value { shape = h.shape, dtype = h.dtype, grad = h.requires_grad }
   end
   local chain
   if h.requires_grad then
      chain = sent(h, self)
   else
      self:_push(h)
      chain = tide.zeros({}, { dtype = 'f32', device = h.device })
   end
   if not self.micros then private.spend(h) end
   return chain
end

-- Returns what fn gives of the last part that this call runs. fn(part, x): runs a part on its input
-- x, nil where the model begins. ids: as of input.
function Stage:through(ids, fn)
   local now, h = part_of_step(self), nil
   for _, part in ipairs(now and { now } or self.parts) do
      if h then self.chain = output(self, h) end
      h = fn(part, not part.begins and input(self, ids) or nil)
   end
   return h
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
   if self:at_end() then
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

-- Returns the loss of a call with what the other stages add to it. without: the loss that all ranks
-- have; own: that with the terms of this rank. Within a step the step adds them up. Collective.
function Stage:with_terms(without, own)
   if self.micros or self.comm.transport == 'sim' then return own end
   local mine = (own:detach() - without:detach()):item()
   return own + (self:sum({ mine })[1] - mine)
end

return Stage
