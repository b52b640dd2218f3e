-- Learning rates as pure functions of the step (1 for the first update).
--
-- Nothing is carried from step to step, so a resumed run needs no scheduler state. Every schedule
-- warms up linearly: step s of a warm-up of w steps has lr * s / w. Past the last step the rate
-- stays at its final value. A schedule of one step has lr, as in PyTorch: min_lr, usually 0, would
-- train nothing.

local err = require 'tide.util.err'
local signature = require 'tide.util.signature'

local schedule = {}

-- Returns a schedule by fn(progress in [0, 1]) after the warm-up.
local function with_warmup(name, o, fn)
   if o.steps and o.warmup >= o.steps then
      err.arg('optim.schedule.' .. name, 'warmup', ('fewer than the %d steps'):format(o.steps),
         o.warmup)
   end
   return function(step)
      err.integer('optim.schedule', 'step', step, 1)
      if o.steps == 1 then return o.lr end
      if step <= o.warmup then return o.lr * step / o.warmup end
      local span = (o.steps or math.huge) - o.warmup
      return fn(math.min(1, (step - o.warmup) / span), step)
   end
end

-- Returns a schedule with one rate after the warm-up.
function schedule.constant(opts)
   return with_warmup('constant', opts, function() return opts.lr end)
end

-- Returns a schedule that falls in a straight line to min_lr at the last step.
function schedule.linear(opts)
   return with_warmup('linear', opts, function(p)
      return opts.lr + (opts.min_lr - opts.lr) * p
   end)
end

-- Returns a schedule that falls along half a cosine to min_lr at the last step.
function schedule.cosine(opts)
   return with_warmup('cosine', opts, function(p)
      return opts.min_lr + (opts.lr - opts.min_lr) * 0.5 * (1 + math.cos(math.pi * p))
   end)
end

-- Returns a schedule that warms up, stays, and falls (warmup, stable, decay).
function schedule.wsd(opts)
   local room = math.max(0, opts.steps - opts.warmup)
   local decay = err.integer('optim.schedule.wsd', 'decay',
      opts.decay or math.min(math.floor(opts.steps / 5), room), 0, room)
   return with_warmup('wsd', opts, function(_, step)
      local left = opts.steps - math.min(step, opts.steps)
      if left >= decay then return opts.lr end
      return opts.min_lr + (opts.lr - opts.min_lr) * left / decay
   end)
end

schedule.names = { 'cosine', 'linear', 'wsd', 'constant' }

-- Returns a schedule by its name; options that the kind does not use are ignored.
function schedule.make(name, opts)
   local o = { lr = opts.lr, warmup = opts.warmup }
   if name ~= 'constant' then o.steps, o.min_lr = opts.steps, opts.min_lr end
   if name == 'wsd' then o.decay = opts.decay end
   return schedule[name](o)
end

local rows = {
   'lr: number >= 0 -- the highest rate',
   'steps: integer >= 1 -- updates of the whole run',
   'warmup: integer >= 0 = 0 -- updates of the straight ascent to lr',
   'min_lr: number in [0, lr] = 0 -- rate of the last of several steps',
}
return signature.doors('optim.schedule', schedule, {
   constant = { opts = { rows[1], rows[3] } }, linear = { opts = rows }, cosine = { opts = rows },
   wsd = { opts = { rows, 'decay: integer? -- steps of the final descent; by default a fifth, or '
      .. 'what warmup leaves' } },
   make = { "name: 'cosine' | 'linear' | 'wsd' | 'constant'; opts: table", op = 'optim.schedule' },
})
