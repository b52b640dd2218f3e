-- Learning rates as pure functions of the step (1 for the first update).
--
-- Nothing is carried from step to step, so a resumed run needs no scheduler state. Every schedule
-- warms up linearly: step s of a warm-up of w steps has lr * s / w. Past the last step the rate
-- stays at its final value.

local err = require 'tide.util.err'

local schedule = {}

local known = { 'lr', 'steps', 'warmup', 'min_lr', 'decay' }

local function check(name, opts)
   local op = 'optim.schedule.' .. name
   opts = err.options(op, opts, known)
   local o = {
      lr = err.number(op, 'lr', opts.lr, 0),
      warmup = err.integer(op, 'warmup', opts.warmup or 0, 0),
   }
   o.min_lr = err.number(op, 'min_lr', opts.min_lr or 0, 0, o.lr)
   if name ~= 'constant' then
      o.steps = err.integer(op, 'steps', opts.steps, 1)
      if o.warmup >= o.steps and o.warmup > 0 then
         err.arg(op, 'warmup', ('fewer than the %d steps'):format(o.steps), o.warmup)
      end
   end
   o.decay = opts.decay
   return o
end

-- fn(progress in [0, 1]) after the warm-up.
local function with_warmup(o, fn)
   return function(step)
      err.integer('optim.schedule', 'step', step, 1)
      if step <= o.warmup then return o.lr * step / o.warmup end
      local span = (o.steps or math.huge) - o.warmup
      return fn(math.min(1, (step - o.warmup) / span), step)
   end
end

-- opts: lr, warmup (0).
function schedule.constant(opts)
   local o = check('constant', opts)
   return with_warmup(o, function() return o.lr end)
end

-- opts: lr, steps, warmup (0), min_lr (0): a straight line down to min_lr at the last step.
function schedule.linear(opts)
   local o = check('linear', opts)
   return with_warmup(o, function(p) return o.lr + (o.min_lr - o.lr) * p end)
end

-- opts: lr, steps, warmup (0), min_lr (0): half a cosine down to min_lr at the last step.
function schedule.cosine(opts)
   local o = check('cosine', opts)
   return with_warmup(o, function(p)
      return o.min_lr + (o.lr - o.min_lr) * 0.5 * (1 + math.cos(math.pi * p))
   end)
end

-- opts: lr, steps, warmup (0), min_lr (0), decay (steps of the final straight descent, default a
-- fifth): warm up, stay, descend.
function schedule.wsd(opts)
   local o = check('wsd', opts)
   local most = o.steps - o.warmup
   local decay = err.integer('optim.schedule.wsd', 'decay',
      o.decay or math.floor(o.steps / 5), 0, most)
   return with_warmup(o, function(_, step)
      local left = o.steps - math.min(step, o.steps)
      if left >= decay then return o.lr end
      return o.min_lr + (o.lr - o.min_lr) * left / decay
   end)
end

schedule.names = { 'cosine', 'linear', 'wsd', 'constant' }

-- By name; opts as above, with what the kind does not use left out.
function schedule.make(name, opts)
   err.choice('optim.schedule', 'name', name, schedule.names)
   local o = { lr = opts.lr, warmup = opts.warmup }
   if name ~= 'constant' then o.steps, o.min_lr = opts.steps, opts.min_lr end
   if name == 'wsd' then o.decay = opts.decay end
   return schedule[name](o)
end

return schedule
