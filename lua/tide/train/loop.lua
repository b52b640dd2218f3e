-- The whole training loop in one call: train.run driven by intervals.

local err = require 'tide.util.err'
local options = require 'tide.train.run_options'
local run = require 'tide.train.run'
local signature = require 'tide.util.signature'

local loop = {}

local function is_due(every, step) return every > 0 and step % every == 0 end

local function drive(self, val_every, save_every, on_step)
   for s in self:steps() do
      if val_every > 0 and (s.last or is_due(val_every, s.step)) then self:evaluate() end
      if on_step then on_step(self, s) end
      if is_due(save_every, s.step) then self:save() end
   end
   return self:finish()
end

-- Runs training. Returns { step, loss, val_loss, interrupted, folder, metric }. Collective.
function loop.run(opts)
   err.arg_if(opts.patience > 0 and opts.val_every == 0, 'train.loop', 'val_every',
      'steps between the evaluations that patience counts', 0)
   local self = run._open('train.loop', opts)
   local ok, result = xpcall(drive, err.traced, self, opts.val_every, opts.save_every, opts.on_step)
   self:close()
   if not ok then error(result, 0) end
   return result
end

return signature.doors('train.loop', loop, {
   run = { op = 'train.loop', opts = {
      'steps: integer >= 0 -- steps of the whole run', options.rows,
      'val_every: integer >= 0 = 0 -- steps between evaluations, the last step included; 0: none',
      'save_every: integer >= 0 = 0 -- steps between checkpoints; 0: at the end only',
      'on_step: function? -- called with (run, s) after each step; s: see run:steps' } },
})
