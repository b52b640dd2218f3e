-- The batches of a step, made while a GPU still works on the step before.
--
-- The host is free from the moment when a step is enqueued until it reads the loss. What it makes
-- then travels on a stream of its own. The sampler stays where it was, so a checkpoint between the
-- two steps is the same; if the sampler was moved meanwhile, the batches are made again. Only
-- samplers whose batches are data alone (none of their own `make`, or field `ahead`) are asked
-- early.

local canonical = require 'tide.util.canonical'
local data_batch = require 'tide.data.batch'

local Ahead = {}
Ahead.__index = Ahead

local function make(o)
   local list = {}
   for i, starts in ipairs(data_batch.split(o.sampler:next(), o.accum)) do
      list[i] = o.sampler.make and o.sampler:make(o.train, starts, o.device, o.same_rows)
         or data_batch.make(o.train, starts, o.sampler.seq, o.device)
   end
   return list
end

-- Returns the batches of the next step.
function Ahead:take()
   local o, kept = self.opts, self.kept
   self.kept = nil
   if not kept or kept.state ~= canonical(o.sampler:state()) then return make(o) end
   o.sampler:restore(kept.after)
   return kept.batches
end

-- Makes the batches of the step after the one that is under way.
function Ahead:fill()
   local o = self.opts
   local before = o.sampler:state()
   local batches = make(o)
   self.kept = { state = canonical(before), after = o.sampler:state(), batches = batches }
   o.sampler:restore(before)
end

-- Makes the object that keeps the batches of a run ahead. opts: of the run. Where batches cannot be
-- made early, `fill` is false.
return function(opts)
   local s = opts.sampler
   local early = opts.device == 'cuda' and s.state and s.restore and (not s.make or s.ahead)
   local self = setmetatable({ opts = opts }, Ahead)
   if not early then self.fill = false end
   return self
end
