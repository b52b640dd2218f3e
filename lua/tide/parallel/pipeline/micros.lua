-- The micro-batches of a step, or of an evaluation, on a rank of a pipeline. Methods of a stage
-- (stage.lua).
--
--    local program = stage:begin(ids_of, n)                  -- n micro-batches
--    stage:run(program, { forward =, backward =, finish = })
--    stage:finish()
--
-- The fields of `micros`, the step that is under way:
--
--    n, ids_of(i)     micro-batches, and the ids of one
--    first            the first stage that trains something
--    event, is_last   what runs now, and whether it is the last backward
--    called           whether the present forward has called the model
--    is_placeholder   whether it gave zeros in place of values per token
--    dtype            of the inputs that this rank receives, once it is known
--    has_told         whether the rank after knows the dtype of what it receives
--
-- and, by micro-batch and part:
--
--    inputs, gradients      received, and not used yet
--    likes                  shape, dtype and device of outputs whose gradients are to be received
--    to_before, to_after    computed, and not sent yet

local tide = require 'tide'
local err = require 'tide.util.err'
local link = require 'tide.parallel.pipeline.link'
local private = require 'tide.util.private'
local schedule = require 'tide.parallel.pipeline.schedule'

local micros = {}

local op = 'parallel.pipeline'

-- Returns the place of a micro-batch and part in the tables of `micros`.
local function key(self, e) return e.i * self.virtual + e.part end

-- Returns the value at a key, and removes it.
local function taken(list, k)
   local value = list[k]
   list[k] = nil
   return value
end

-- ---- what is exchanged -------------------------------------------------------------------------

-- Returns the input of a micro-batch, as Link:exchange takes it. The rank before sends the dtype
-- once, before the first input of a step.
local function input_like(self, e)
   local m = self.micros
   m.dtype = m.dtype or self.before:receive_value()
   return self:_like_input(m.ids_of(e.i), m.dtype)
end

-- Sends what an entry of the program sends, and receives what it receives.
local function exchange(self, e)
   local m, to, is_after = self.micros, self[e.with], e.with == 'after'
   local t, like = e.send and taken(m['to_' .. e.with], key(self, e.send))
   if t and is_after and not m.has_told then
      to:send_value(t.dtype)
      m.has_told = true
   end
   if e.receive then
      like = is_after and taken(m.likes, key(self, e.receive)) or input_like(self, e.receive)
   end
   local got = to:exchange(t, like)
   if got then m[is_after and 'gradients' or 'inputs'][key(self, e.receive)] = got end
   private.spend(t)
end

-- Takes the output h of a part for the stage after. Returns the event that made it, nil outside of
-- a step, where it is sent at once.
function micros:_push(h)
   local m = self.micros
   if not m then
      self.after:exchange(h)
      return nil
   end
   local k = key(self, m.event)
   m.to_after[k], m.likes[k] = h, h.requires_grad and link.like(h) or nil
   return m.event
end

-- Returns the input of a part. like: what to receive, as Link:exchange takes it.
function micros:_pull(like)
   local m = self.micros
   if not m then return self.before:exchange(nil, like) end
   return taken(m.inputs, key(self, m.event))
end

-- Takes the gradient of the input of a part for the stage before.
function micros:_return(dx)
   local m = self.micros
   if not m then
      self.before:exchange(dx)
   else
      m.to_before[key(self, m.event)] = dx:detach()         -- autograd gives dx up
   end
end

-- Returns the gradient of the output of a forward.
function micros:_gradient(event) return taken(self.micros.gradients, key(self, event)) end

-- Returns whether the gradient of the input of the present part is sent.
function micros:_sends_back()
   local m = self.micros
   return self.parts[m.event.part].stage > m.first
end

-- ---- what a forward of a step does -------------------------------------------------------------

-- Notes a call of the model within a step. Raises if a stage cannot know what it receives.
function micros:_count_call(ids)
   local m, name = self.micros, self.model.op or 'model'
   err.raise_if(m.called, 'E_UNSUPPORTED', name, 'the loss of a micro-batch calls the model a '
      .. 'second time, and stages of a pipeline send the states of one call; put both rows into '
      .. 'one batch, or compute what needs no gradient before the step')
   local given, ids_ = m.ids_of(m.event.i), { ids:size(1), ids:size(2) }
   err.raise_if(given:size(1) ~= ids_[1] or given:size(2) ~= ids_[2], 'E_UNSUPPORTED', name, 'the '
      .. 'loss of a micro-batch calls the model with ids [%d, %d], and those of the batch, whose '
      .. 'states the stages of a pipeline expect, are [%d, %d]; give the batch as it is',
      ids_[1], ids_[2], given:size(1), given:size(2))
   m.called = true
end

-- Refuses a forward that has not called the model: other stages wait for what it sends.
function micros:check_called()
   err.raise_if(not self.micros.called, 'E_STATE', 'train.step', "option 'loss': it did not call "
      .. 'the model, and the stages of a pipeline wait for its states; call model:loss or '
      .. 'model:label_logprobs once for each batch')
end

-- Returns whether the present forward gave zeros in place of values per token.
function micros:gave_placeholder() return self.micros ~= nil and self.micros.is_placeholder end

-- ---- a step ------------------------------------------------------------------------------------

-- Returns for each part of this rank whether it trains something.
local function trained_parts(self)
   local out, part_of = {}, self:part_of()
   for v = 1, self.virtual do out[v] = false end
   for _, e in ipairs(self.model:named_parameters()) do
      if e.param.requires_grad then out[part_of(e.owner)] = true end
   end
   return out
end

-- Returns the first stage that trains something, as many as there are stages if no backward
-- follows. Raises unless all ranks begin as many micro-batches. Collective.
local function first_trained(self, n)
   local none = self.size * self.virtual
   if self.comm.transport == 'sim' then return tide.is_grad_enabled() and 0 or none end
   local first = none
   for r, row in ipairs(self.comm:all_gather_object { trained = trained_parts(self), n = n }) do
      err.raise_if(row.n ~= n, 'E_STATE', op, 'stage %d has %d micro-batches, stage %d has %d; '
         .. 'every stage needs the same', r - 1, row.n, self.rank, n)
      for v, is in ipairs(row.trained) do
         if is then first = math.min(first, (v - 1) * self.size + r - 1) end
      end
   end
   if not tide.is_grad_enabled() then return none end
   err.raise_if(first == none, 'E_STATE', op, 'no parameter of any stage requires a gradient, so '
      .. 'there is nothing to train; see requires_grad_ of modules')
   return first
end

-- Returns what this rank does with n micro-batches, where stages from `first` on train something.
-- It is kept, as all ranks are simulated for it.
local function program_of(self, n, first)
   local k = n .. ' ' .. first
   self.programs[k] = self.programs[k] or schedule.program(self.rank, { size = self.size,
      virtual = self.virtual, n = n, first = first })
   return self.programs[k]
end

-- Begins n micro-batches of a step or of an evaluation. ids_of(i): the ids of one, as the model
-- gets them on this rank. Returns what this rank does (see schedule.lua). Collective over the
-- stages.
function micros:begin(ids_of, n)
   local first = first_trained(self, n)
   self.micros = { ids_of = ids_of, n = n, first = first, inputs = {}, gradients = {}, likes = {},
      to_before = {}, to_after = {} }
   return program_of(self, n, first)
end

-- Returns the index of the last backward of a program; 0 without any.
local function last_backward(program)
   local last = 0
   for k, e in ipairs(program) do
      if e.kind == 'backward' then last = k end
   end
   return last
end

-- Runs a program that begin returned. does: forward(event) returns the loss of a micro-batch on a
-- part, backward(loss, event) runs its backward in a step scope, and finish() follows once the
-- gradient of the input is sent, or the last forward of a rank that trains nothing; done(event):
-- nil, or called after each.
function micros:run(program, does)
   local open, m, at, last = {}, self.micros, 1, last_backward(program)
   local function exchanges()
      while program[at] and program[at].kind == 'exchange' do
         exchange(self, program[at])
         at = at + 1
      end
   end
   local function forward(event)
      if tide.is_grad_enabled() then
         open[key(self, event)] = does.forward(event)
         exchanges()
      else
         m.ids_of(event.i)                               -- a batch made here outlives the scope
         tide.scope(function()
            does.forward(event)
            return m.to_after
         end)
         exchanges()
      end
   end
   local function backward(event)
      local loss = taken(open, key(self, event))
      tide.scope(function()
         does.backward(loss, event)
         exchanges()
         does.finish()
         return m.inputs, m.gradients                    -- the scope keeps what has arrived
      end)
      private.spend(loss)
   end
   exchanges()
   while program[at] do
      local event = program[at]
      m.event, m.is_placeholder, m.called, m.is_last = event, false, false, at == last
      at = at + 1
      if event.kind == 'forward' then forward(event) else backward(event) end
      if does.done then does.done(event) end
   end
   if next(open) then does.finish() end
end

-- Returns whether the backward that runs is the last one of its micro-batches on a part, after
-- which gradients of its units are complete.
function micros:is_complete() return self.micros.event.i == self.micros.n end

-- Returns whether the event that runs works on a unit of parameters; part: of the unit, or 'all'
-- where it counts with the last backward alone. Outside of a step it does.
function micros:is_due(part)
   local m = self.micros
   if not (m and m.event) then return true end
   if part == 'all' then return m.is_last end
   return m.event.part == part
end

-- Returns whether the micro-batches of a step run.
function micros:is_stepping() return self.micros ~= nil end

-- Ends the step: blocks until the neighbours have received what was sent, unless it has failed.
function micros:finish(failed)
   self.micros = nil
   for _, to in ipairs(self:links()) do
      if failed then to:drop() else to:flush() end
   end
end

return micros
