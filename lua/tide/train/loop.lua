-- The training loop: steps, evaluation, checkpoints, signals, an orderly end.
--
-- Batches are windows, or what the sampler makes of its rows (data.packed), in training and in
-- evaluation. Those of a model with a
-- context axis (tide.parallel.cp.attach) are cut in the step: the sampler then counts the ranks
-- with data of their own, and comm holds these and the ranks of the axis.
--
-- Everything happens at step boundaries. SIGINT or SIGTERM (the program sets a flag on the
-- context) ends the run after the present step with a checkpoint; with several ranks the flag
-- of any rank counts for all. One of the two places where errors are caught: whatever is raised,
-- metrics are closed first, and nothing that fails then takes its place. A plot or a line of
-- metrics that cannot be written is reported and ends no run.

local tide = require 'tide'
local data_batch = require 'tide.data.batch'
local dist = require 'tide.dist'
local survey = require 'tide.data.survey'
local tokens = require 'tide.data.tokens'
local launch = require 'tide.dist.launch'
local straggler = require 'tide.dist.straggler'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local checkpoint = require 'tide.train.checkpoint'
local folder = require 'tide.train.folder'
local metric = require 'tide.train.metric'
local progress = require 'tide.train.progress'
local state = require 'tide.train.state'
local step = require 'tide.train.step'
local fs = require 'tide.util.fs'
local timer = require 'tide.util.timer'

local loop = {}

local known = {
   'model', 'optim', 'train', 'val', 'sampler', 'steps', 'accum', 'clip', 'out', 'save_every',
   'val_every', 'val_windows', 'keep', 'on_nonfinite', 'max_skips', 'comm', 'ctx', 'recipe',
   'resume', 'overwrite', 'progress', 'device', 'log_every', 'title', 'lock', 'parallel',
   'async_save', 'captured',
}

-- Default and least value.
local numbers = {
   steps = { nil, 0 }, accum = { 1, 1 }, save_every = { 0, 0 }, val_every = { 0, 0 },
   val_windows = { 64, 1 }, max_skips = { 5, 1 }, log_every = { 10, 1 },
}

-- Ids that the model does not have would end the run at the step that meets one.
local function check_ids(op, o)
   local config = type(o.model.config) == 'table' and o.model.config or {}
   if type(config.vocab_size) ~= 'number' then return end
   for _, name in ipairs { 'train', 'val' } do
      if o[name] then survey.check(op, name, o[name], config.vocab_size) end
   end
end

-- What the run goes on from: what the caller says, or what another attempt of this job has left.
local function settle_resume(op, o)
   for _, k in ipairs { 'out', 'resume' } do
      if o[k] ~= nil then err.type(op, k, o[k], 'string') end
   end
   if o.overwrite ~= nil then err.type(op, 'overwrite', o.overwrite, 'boolean') end
   local before = launch.resume_from(o.out)
   if before then
      o.resume, o.overwrite = o.resume or before, false
   elseif o.overwrite and o.resume and o.out
      and folder.is_of(folder.find(op, o.resume), o.out) then
      err.raise('E_ARG', op, 'overwrite and resume exclude each other in one folder (%s)', o.out)
   end
end

-- Refuses to write over a run unless that was asked for. Rank 0 looks, all agree.
local function check_out(op, o)
   if not o.out or o.overwrite then return end
   dist.on_first(o.comm, op, function() folder.check_free(op, o.out, o.resume) end)
end

-- What is in the way of the new run goes, or moves aside. Returns the folder of what moved.
local function clear_out(op, o, step)
   if not o.out then return nil end
   return dist.on_first(o.comm, op, function()
      if o.overwrite then
         folder.clear(op, o.out)
      elseif o.resume then
         return folder.set_aside(op, o.out, step)
      end
   end)
end

local function check(opts)
   local op = 'train.loop'
   opts = err.options(op, opts, known)
   for _, k in ipairs { 'model', 'optim', 'train', 'sampler' } do
      err.type(op, k, opts[k], 'table')
   end
   if opts.val and opts.val.count > 0 and opts.sampler.make and not opts.sampler.val_cu then
      err.arg(op, 'sampler', 'one that knows the documents of val (val_cu), or no val',
         opts.sampler)
   end
   local o = {}
   for k, v in each(opts) do o[k] = v end
   for k, row in each(numbers) do o[k] = err.integer(op, k, opts[k] or row[1], row[2]) end
   o.on_nonfinite = err.choice(op, 'on_nonfinite', opts.on_nonfinite or 'stop',
      { 'stop', 'skip' })
   o.comm = opts.comm or dist.world()
   o.ctx = opts.ctx or tide.default()
   check_ids(op, o)
   settle_resume(op, o)
   return o
end

local Loop = {}
Loop.__index = Loop

local function make_batches(self)
   local o = self.opts
   local batches = {}
   for i, starts in ipairs(data_batch.split(o.sampler:next(), o.accum)) do
      batches[i] = o.sampler.make and o.sampler:make(o.train, starts, o.device)
         or data_batch.make(o.train, starts, o.sampler.seq, o.device)
   end
   return batches
end

-- What is evaluated, and how a list of that becomes a batch: rows as the sampler makes them, or
-- windows.
local function held_out(o)
   local sampler = o.sampler
   if sampler.make then
      return sampler:held_out(o.val_windows), function(rows)
         return sampler:make(o.val, rows, o.device)
      end
   end
   return data_batch.windows(o.val, sampler.seq, o.val_windows), function(starts)
      return data_batch.make(o.val, starts, sampler.seq, o.device)
   end
end

-- The mean loss over the held-out windows, or nil without any. Collective.
function Loop:evaluate()
   local o = self.opts
   if not o.val or o.val.count == 0 then return nil end
   local list, make = held_out(o)
   if #list == 0 then return nil end
   local micro = math.max(1, o.sampler.batch / o.sampler.size / o.accum)
   self.val_loss = self.step_fn:evaluate(list, micro, make)
   self.val_step = self.step
   return self.val_loss
end

-- Tells of validation data that no window can be cut from.
local function tell_held_out(self)
   local o = self.opts
   if not o.val or o.val.count > 0 and #held_out(o) > 0 then return end
   self.progress:note('nothing is evaluated: the validation data has %d tokens, a window needs %d',
      o.val.count, o.sampler.seq + 1)
end

-- The validation loss of the present step, if it is known and JSON can hold it.
local function known_loss(self)
   local v = self.val_step == self.step and self.val_loss or nil
   return v and v == v and math.abs(v) ~= math.huge and v or nil
end

-- Calls object[name](object, ...) for people to see; what fails there must not end a run.
local function show(object, name, ...)
   local ok, result, why = pcall(object[name], object, ...)
   if ok then return result, why end
   return nil, err.text(result)
end

-- Tells, once for each `what`, that a file for people cannot be written.
local function complain(self, what, why)
   if self.told[what] then return end
   self.told[what] = true
   show(self.progress, 'note', 'warning: cannot write %s: %s; the run goes on', what, why)
end

local function draw(self)
   if not self.metric then return end
   local _, why = show(self.metric, 'draw', self.opts.title)
   if why then complain(self, 'loss.svg', why) end
end

-- Writes a checkpoint of this step into `out`, unless there is one. Collective.
function Loop:save()
   local o = self.opts
   if not o.out or self.saved == self.step then return end
   local run = { model = o.model, optim = o.optim, sampler = o.sampler, ctx = o.ctx,
                 step = self.step, recipe = o.recipe, job = launch.job(), accum = o.accum,
                 fingerprint = o.fingerprint, val_loss = known_loss(self), parallel = o.parallel }
   self:settle()
   local opts = { keep = o.keep, comm = o.comm }
   if o.async_save then
      self.pending = checkpoint.save_async(o.out, state.collect(run), opts)
   else
      self.folder = checkpoint.save(o.out, state.collect(run), opts)
   end
   self.saved = self.step
   draw(self)
end

-- Ends the save under way, if there is one (and only if it is done, with `only_done`).
function Loop:settle(only_done)
   local pending = self.pending
   if not pending or only_done and not pending:done() then return end
   self.pending = nil
   self.folder = pending:wait()
end

-- What to do about a step that was not applied: count it and go on, or stop.
local function handle_skip(self, r)
   local o = self.opts
   self.skips = self.skips + 1
   if o.on_nonfinite == 'skip' and self.skips < o.max_skips then
      self.step_fn:skip()
      self.progress:note('step %d left out: loss %g, gradient norm %g; %s', self.step, r.loss,
         r.grad_norm, r.cause)
      return
   end
   err.raise('E_STATE', 'train.loop', 'step %d: loss %g, gradient norm %g; %s; %s', self.step,
      r.loss, r.grad_norm, r.cause, o.on_nonfinite == 'skip'
         and ('%d steps in a row were not finite'):format(self.skips)
         or "the parameters are those before it (on_nonfinite = 'skip' goes on)")
end

local function one_step(self)
   local o = self.opts
   self.watch:mark()
   local batches = make_batches(self)
   self.watch:lap(1)
   local r = self.step_fn:run(batches)
   self.watch:lap(2)
   self.step = self.step + 1
   local slow = self.watch:next()
   if slow then self.progress:note('%s', slow.line) end
   if r.applied then self.skips = 0 else handle_skip(self, r) end
   local span = self.timer:lap()
   local record = {
      step = self.step, loss = r.loss, grad_norm = r.grad_norm, lr = r.lr,
      tokens_per_second = o.sampler.batch * o.sampler.seq / math.max(span, 1e-9),
      memory_bytes = o.ctx:stats().peak, skipped = not r.applied and 1 or nil,
   }
   if o.val_every > 0 and (self.step % o.val_every == 0 or self.step == o.steps) then
      record.val_loss = self:evaluate()
      self.timer:lap()                       -- evaluation is not training time
   end
   self.loss = r.loss
   if self.metric then
      local ok, why = self.metric:add(record)
      if not ok then complain(self, 'metrics.jsonl', why) end
   end
   self.progress:update(record)
end

local function run_steps(self)
   local o = self.opts
   if self.step >= o.steps then
      self.progress:note('already at step %d of %d: no step is left to do', self.step, o.steps)
   end
   while self.step < o.steps do
      one_step(self)
      self:settle(true)
      if dist.any(o.comm, o.ctx:interrupted() or launch.signal() ~= nil) then
         self.interrupted = true
         break
      end
      if o.save_every > 0 and self.step % o.save_every == 0 then self:save() end
   end
   self:save()
   self:settle()
   if self.interrupted then
      self.progress:note(self.folder
         and 'interrupted after step %d; the checkpoint is %s; --resume goes on from there'
         or 'interrupted after step %d', self.step, self.folder)
   end
end

-- Restores what `resume` names (a folder). Returns the step to go on from, and the folder and
-- validation loss of the checkpoint.
local function resume(o)
   if not o.resume then return 0 end
   local saved = checkpoint.load(o.resume, { device = o.device, lazy = o.parallel ~= nil })
   local run = { model = o.model, optim = o.optim, sampler = o.sampler, ctx = o.ctx,
                 fingerprint = o.fingerprint, accum = o.accum, parallel = o.parallel }
   return state.restore(run, saved), saved.folder, run.val_loss
end

local function new(o)
   local self = setmetatable({ opts = o, skips = 0, interrupted = false, told = {} }, Loop)
   check_out('train.loop', o)
   o.fingerprint = (o.out or o.resume) and tokens.fingerprint(o.train) or nil
   self.step, self.folder, self.val_loss = resume(o)
   self.val_step = self.step
   local aside = clear_out('train.loop', o, self.step)
   self.saved = o.resume and self.step or nil
   self.step_fn = step.new { model = o.model, optim = o.optim, clip = o.clip, comm = o.comm,
      parallel = o.parallel, captured = o.captured }
   local first = o.comm.rank == 0
   if first and o.out then
      fs.mkdirs('train.loop', o.out)
      self.metric = metric.new { out = o.out, step = self.step }
   end
   self.progress = o.progress or progress.new {
      steps = o.steps, start = self.step, every = o.log_every, quiet = not first,
      clock = timer.new().clock,
   }
   tell_held_out(self)
   if aside then
      self.progress:note('the run goes on from step %d; its later checkpoints are kept in %s',
         self.step, aside)
   end
   self.timer = timer.new()
   self.watch = straggler.new { comm = o.comm, sections = { 'data', 'step' } }
   return self
end

local function close(self)
   show(self.progress, 'finish')
   if not self.metric then return end
   draw(self)
   local lost = self.metric:close()
   if lost > 0 then
      show(self.progress, 'note', 'warning: %d lines of metrics.jsonl are lost', lost)
   end
end

-- A raw Lua error gets the stack trace of where it was raised, once.
local function traced(e)
   if type(e) ~= 'string' or e:find('\nstack traceback:', 1, true) then return e end
   return debug.traceback(e, 2)
end

local function run(o)
   local self = new(o)
   self.opts.model:train()
   local ok, problem = xpcall(run_steps, traced, self)
   close(self)
   if not ok then error(problem, 0) end
   return {
      step = self.step, loss = self.loss, val_loss = self.val_loss, folder = self.folder,
      interrupted = self.interrupted, metric = self.metric,
   }
end

-- Runs training. opts: model, optim, train and val (token sources), sampler, steps; accum (1), clip
-- (0), val_every (0), val_windows (64), out (folder; nil keeps nothing), save_every (0: only at the
-- end), keep, on_nonfinite ('stop' or 'skip'), max_skips (5), resume (folder), comm, ctx, device,
-- recipe (plain table kept in checkpoints), progress, log_every, title, parallel (a Sharded, with
-- optim over it), async_save (false; true: checkpoints are written in the background, one at a
-- time; what goes wrong is raised after a later step), captured (see train.step), lock (on out,
-- from train.checkpoint.lock, released by the caller; absent: taken here for the run). Returns {
-- step, loss, val_loss, interrupted, folder, metric }.
function loop.run(opts)
   local o = check(opts)
   local lock = o.out and not o.lock and checkpoint.lock(o.out, o.comm) or nil
   local ok, result = xpcall(run, traced, o)
   if lock then lock:release() end
   if not ok then error(result, 0) end
   return result
end

return loop
