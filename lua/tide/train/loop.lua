-- The whole training loop in one call: train.run driven by intervals.

local err = require 'tide.util.err'
local run = require 'tide.train.run'

local loop = {}

local more = { 'save_every', 'val_every', 'on_step' }

local function is_due(every, step) return every > 0 and step % every == 0 end

local function drive(self, val_every, save_every, on_step)
   for s in self:steps() do
      if val_every > 0 and (s.last or is_due(val_every, s.step)) then self:evaluate() end
      if on_step then on_step(self, s) end
      if is_due(save_every, s.step) then self:save() end
   end
   return self:finish()
end

-- Runs training. opts: those of train.run with steps, and val_every (steps between evaluations, the
-- last step included; 0: none), save_every (steps between checkpoints; 0: at the end only),
-- on_step(run, s) (after each step and its evaluation; s: see run:steps). Returns { step, loss,
-- val_loss, interrupted, folder, metric }. Collective.
function loop.run(opts)
   local op = 'train.loop'
   err.type(op, 'options', opts, 'table')
   err.integer(op, 'steps', opts.steps, 0)
   local val_every = err.integer(op, 'val_every', opts.val_every or 0, 0)
   local save_every = err.integer(op, 'save_every', opts.save_every or 0, 0)
   if opts.on_step ~= nil then err.func(op, 'on_step', opts.on_step) end
   local self = run.open(op, opts, more)
   local ok, result = xpcall(drive, run.traced, self, val_every, save_every, opts.on_step)
   self:close()
   if not ok then error(result, 0) end
   return result
end

return loop
