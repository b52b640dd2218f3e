-- The optimiser of a recipe, by its options.

local err = require 'tide.util.err'

local optim = {}

-- The options, for recipes.support.options.
optim.rows = {
   { 'optim', 'adamw', 'optimiser; lion needs about a tenth of the usual learning rate, and its '
     .. 'default is a tenth; adamw8bit keeps a quarter of the state of adamw', choices = { 'adamw',
     'adamw8bit', 'lion', 'adafactor', 'muon' }, also = { 'optimizer' } },
   { 'group', nil, 'options of the parameters whose names match, '
     .. "'embed|norm:lr-scale=0.5,weight-decay=0'; may be repeated, the first match counts; lr= "
     .. 'sets the peak rate', type = 'string', list = true, also = { 'param-group', 'groups' } },
   { 'warmup-tokens', 0, 'length of the linear warm-up in tokens, instead of --warmup; 0: use '
     .. '--warmup', min = 0 },
   { 'schedule-tokens', 0, 'length of the schedule in tokens, instead of --schedule-steps; 0: use '
     .. '--schedule-steps', min = 0, also = { 'lr-decay-tokens' } },
}

local classes = { adamw = 'AdamW', adamw8bit = 'AdamW8bit', lion = 'Lion',
   adafactor = 'Adafactor', muon = 'Muon' }

-- The class that --optim names.
function optim.class(opt) return require('tide').optim[classes[opt.optim]] end

local function bad_group(job, text, why)
   err.usage(job.name, "--group %s: %s; expected PATTERN:NAME=NUMBER,.. e.g. "
      .. "'embed|norm:lr-scale=0.5,weight-decay=0'", text, why)
end

-- One --group as the library takes it. A rate becomes a share of the peak.
local function read_group(job, opt, text)
   local pattern, rest = text:match '^(.-):(.*)$'
   if not pattern or pattern == '' then bad_group(job, text, 'no pattern before a colon') end
   local group = { pattern = pattern }
   for word in (rest .. ','):gmatch '([^,]*),' do
      local name, value = word:match '^%s*([%w_%-]+)%s*=%s*(%S+)%s*$'
      if not name or not tonumber(value) then
         bad_group(job, text, ("'%s' is no NAME=NUMBER"):format(word))
      end
      group[name:gsub('-', '_')] = tonumber(value)
   end
   if group.lr and opt.lr > 0 and not group.lr_scale then
      group.lr, group.lr_scale = nil, group.lr / opt.lr
   end
   return group
end

local function groups(job, opt)
   local list = {}
   for i, text in ipairs(type(opt.group) == 'table' and opt.group or { opt.group }) do
      list[i] = read_group(job, opt, text)
   end
   return #list > 0 and list or nil
end

-- Sets the final rate, and refuses one above the peak: the rate would never fall.
local function settle_min_lr(job, opt)
   opt.min_lr = opt.min_lr or tonumber(('%.9g'):format(opt.lr / 10))        -- 3e-4 of 3e-3
   if opt.min_lr <= opt.lr or opt.schedule == 'constant' then return end
   err.usage_if(job.given.min_lr, job.name, '--min-lr %g is above --lr %g; give a smaller one',
      opt.min_lr, opt.lr)
   job.log:once('--min-lr %g of the checkpoint is above --lr %g, so the rate does not fall; give '
      .. '--min-lr, too', opt.min_lr, opt.lr)
end

-- The rate by the step, drawn over steps or over tokens.
local function schedule(job, opt)
   local make, per_step = require('tide').optim.schedule.make, opt.batch * opt.seq
   settle_min_lr(job, opt)
   local o = { lr = opt.lr, min_lr = math.min(opt.min_lr, opt.lr), steps = opt.schedule_steps,
      warmup = opt.warmup }
   if opt.warmup_tokens == 0 and opt.schedule_tokens == 0 then return make(opt.schedule, o) end
   local function steps(tokens, else_) return tokens > 0 and tokens / per_step or else_ end
   local all = steps(opt.schedule_tokens, opt.schedule_steps)
   local warmup = steps(opt.warmup_tokens, math.min(opt.warmup, all / 2))
   if warmup > 0 and warmup >= all and opt.schedule ~= 'constant' then
      err.usage(job.name, '--warmup-tokens: expected fewer than the %d tokens of the schedule, got '
         .. '%d', all * per_step, opt.warmup_tokens)
   end
   if all <= 1 then                       -- the first step is the last
      o.steps, o.warmup = 1, 0
      return job:check(make, opt.schedule, o)
   end
   o.steps, o.warmup = math.ceil(all * per_step), math.floor(warmup * per_step + 0.5)
   local rate = job:check(make, opt.schedule, o)
   return function(step) return rate(step * per_step) end
end

local has_beta2 = { adamw = true, adamw8bit = true, muon = true }

-- Makes the optimiser of params. job: of tide.train.job.
function optim.make(job, opt, params)
   if opt.optim == 'lion' and not job.resumed and not job.given.lr then
      opt.lr = opt.lr / 10
   end
   local o = { lr = schedule(job, opt), weight_decay = opt.weight_decay, groups = groups(job, opt) }
   if has_beta2[opt.optim] then o.beta2 = opt.beta2 end
   return job:check(optim.class(opt), params, o)
end

return optim
