-- A training run that the caller drives: steps one at a time, evaluation, checkpoints, metrics.
--
--    local run = tide.train.run { model = .., optim = .., train = .., sampler = .., out = .. }
--    for s in run:steps(1000) do
--       if s.step % 100 == 0 then run:evaluate() end
--       if s.step % 200 == 0 then run:save() end
--    end
--    run:finish()
--
-- Batches are windows, or what the sampler makes of its rows (data.packed), in training and in
-- evaluation. Those of a model with a context axis (tide.parallel.cp.attach) are cut in the step:
-- the sampler then counts the ranks with data of their own, and comm holds these and the ranks of
-- the axis. Every rank makes the same calls in the same order.
--
-- Everything happens at step boundaries. SIGINT or SIGTERM ends `steps` after the present step;
-- with several ranks the signal of any rank counts for all. What a call here raises closes metrics
-- and lock first, and nothing that fails then takes its place. A plot or a line of metrics that
-- cannot be written is reported and ends no run.

local ahead = require 'tide.train.ahead'
local copy = require 'tide.util.copy'
local data_batch = require 'tide.data.batch'
local dist = require 'tide.comm'
local tokens = require 'tide.data.tokens'
local launch = require 'tide.comm.launch'
local straggler = require 'tide.comm.straggler'
local err = require 'tide.util.err'
local checkpoint = require 'tide.train.checkpoint'
local is_finite = require('tide.train.nonfinite').is_finite
local metric = require 'tide.train.metric'
local signature = require 'tide.util.signature'
local options = require 'tide.train.run_options'
local pack = require 'tide.ffi.pack'
local progress = require 'tide.train.progress'
local state = require 'tide.train.state'
local step = require 'tide.train.step'
local fs = require 'tide.util.fs'
local timer = require 'tide.util.timer'

local Run = { class_name = 'Run' }
Run.__index = Run

-- ---- what people see never ends a run -----------------------------------------------------------

-- Calls object[name](object, ...). Returns its results, or nil and the reason why it failed.
local function show(object, name, ...)
   local ok, result, why = pcall(object[name], object, ...)
   if ok then return result, why end
   return nil, err.text(result)
end

-- Reports, once for each `what`, that a file for people cannot be written.
local function complain(self, what, why)
   if self.told[what] then return end
   self.told[what] = true
   show(self.progress, 'note', 'warning: cannot write %s: %s; the run goes on', what, why)
end

local function draw(self)
   if not self.metrics then return end
   local _, why = show(self.metrics, 'draw', self.opts.title)
   if why then complain(self, 'loss.svg', why) end
end

-- Passes the record of the present step, to which evaluation and metrics have added, to its
-- readers.
local function settle_record(self)
   local record = self.record
   if not record then return end
   self.record = nil
   if self.metrics then
      local ok, why = show(self.metrics, 'add', record)
      if not ok then complain(self, 'metrics.jsonl', why) end
   end
   self.progress:update(record)
end

-- ---- the end -----------------------------------------------------------------------------------

-- Closes metrics and gives the folder back; idempotent. `finish` does so, and any call that fails.
function Run:close()
   if self.closed then return end
   self.closed = true
   pcall(settle_record, self)
   show(self.progress, 'finish')
   if self.metrics then
      draw(self)
      local lost = self.metrics:close()
      if lost > 0 then
         show(self.progress, 'note', 'warning: %d lines of metrics.jsonl are lost', lost)
      end
   end
   if self.lock then self.lock:release() end
   self.lock = nil
   launch.unwatch()
end

-- Returns the results of fn(self, ...); an error closes the run on its way.
local function guarded(self, fn, ...)
   if self.closed then err.raise('E_STATE', self.op, 'the run is closed') end
   local r = pack(xpcall(fn, err.traced, self, ...))
   if r[1] then return unpack(r, 2, r.n) end
   self:close()
   error(r[2], 0)
end

-- ---- evaluation --------------------------------------------------------------------------------

-- Returns what is evaluated, and how a list of that becomes a batch: rows as the sampler makes
-- them, or windows.
local function held_out(o)
   local sampler = o.sampler
   if sampler.make then
      return sampler:held_out(o.val_windows), function(rows)
         return sampler:make(o.val, rows, o.device, o.same_rows)
      end
   end
   return data_batch.windows(o.val, sampler.seq, o.val_windows), function(starts)
      return data_batch.make(o.val, starts, sampler.seq, o.device)
   end
end

-- Notes that the validation data is too short for a window.
local function tell_held_out(self)
   local o = self.opts
   if not o.val or o.val.count > 0 and #held_out(o) > 0 then return end
   self.progress:note('nothing is evaluated: the validation data has %d tokens, a window needs %d',
      o.val.count, o.sampler.seq + 1)
end

-- Notes the lowest validation loss, whose checkpoint is kept (keep_best). All ranks agree.
local function note_best(self)
   local loss, best = self.val_loss, self.best
   local better = is_finite(loss) and (not best or loss < best.loss)
   if dist.any(self.opts.comm, better) then
      self.best = { step = self.step, loss = loss, since = 0 }
      self:save()
   elseif best then
      self.best = { step = best.step, loss = best.loss, since = best.since + 1 }
   end
end

local function evaluate(self)
   local o = self.opts
   if not o.val or o.val.count == 0 then return nil end
   local list, make = held_out(o)
   if #list == 0 then return nil end
   local micro = math.max(1, o.sampler.batch / o.sampler.size / o.accum)
   self.val_loss = self.step_fn:evaluate(list, micro, make)
   self.val_step = self.step
   if self.record then self.record.val_loss = self.val_loss end
   if o.on_evaluate then o.on_evaluate(self, self.val_loss) end
   if o.keep_best then note_best(self) end
   return self.val_loss
end

-- Returns the mean loss over the held-out windows, nil without any; the metrics of the present step
-- keep it as val_loss. Collective.
function Run:evaluate() return guarded(self, evaluate) end

-- ---- checkpoints -------------------------------------------------------------------------------

-- Returns the validation loss of the present step, if it is known and JSON can hold it.
local function known_loss(self)
   local v = self.val_step == self.step and self.val_loss or nil
   return v and is_finite(v) and v or nil
end

-- Returns what train.state collects and restores of a run.
local function parts_of(o)
   return { model = o.model, optim = o.optim, sampler = o.sampler, ctx = o.ctx, accum = o.accum,
      fingerprint = o.fingerprint, parallel = o.parallel }
end

local function published(self, folder)
   self.folder = folder
   if self.opts.on_save then self.opts.on_save(self, folder) end
end

-- Ends the save under way, if there is one (and only if it is done, with `only_done`).
local function settle_save(self, only_done)
   local pending = self.pending
   if not pending or only_done and not pending:done() then return end
   self.pending = nil
   published(self, pending:wait())
end

local function save(self)
   local o = self.opts
   if not o.out or self.saved == self.step then return end
   settle_record(self)                     -- before a checkpoint that metrics must reach up to
   local what = copy(parts_of(o), { step = self.step, recipe = o.recipe, job = launch.job(),
      val_loss = known_loss(self), best = self.best })
   settle_save(self)
   local opts = { keep = o.keep, comm = o.comm, spare = self.best and self.best.step }
   self.saved = self.step
   if o.async_save then
      self.pending = checkpoint.save_async(o.out, state.collect(what), opts)
   else
      published(self, checkpoint.save(o.out, state.collect(what), opts))
   end
   draw(self)
end

-- Writes a checkpoint of the present step into `out`, unless there is one. Collective.
function Run:save() guarded(self, save) end

-- ---- steps -------------------------------------------------------------------------------------

-- Handles a step that was not applied: counts it and continues, or stops.
local function handle_skip(self, r)
   local o = self.opts
   self.skips = self.skips + 1
   if o.on_nonfinite == 'skip' and self.skips < o.max_skips then
      self.step_fn:skip()
      self.progress:note('step %d left out: loss %g, gradient norm %g; %s', self.step, r.loss,
         r.grad_norm, r.cause)
      return
   end
   err.raise('E_STATE', self.op, 'step %d: loss %g, gradient norm %g; %s; %s', self.step,
      r.loss, r.grad_norm, r.cause, o.on_nonfinite == 'skip'
         and ('%d steps in a row were not finite'):format(self.skips)
         or "the parameters are those before this step (on_nonfinite = 'skip' continues)")
end

local function one_step(self, n)
   local o = self.opts
   self.timer:lap()                        -- what the caller did since is not training time
   self.watch:mark()
   local batches = self.ahead:take()
   self.watch:lap(1)
   local more = self.step + 1 < n and self.ahead.fill
   local r = self.step_fn:run(batches, more and function() self.ahead:fill() end or nil)
   self.watch:lap(2)
   self.step = self.step + 1
   local slow = self.watch:next()
   if slow then self.progress:note('%s', slow.line) end
   if r.applied then self.skips = 0 else handle_skip(self, r) end
   self.loss = r.loss
   self.record = {
      step = self.step, loss = r.loss, grad_norm = r.grad_norm, lr = r.lr, last = self.step == n,
      tokens_per_second = o.sampler.batch * o.sampler.seq / math.max(self.timer:lap(), 1e-9),
      memory_bytes = o.ctx:stats().peak, skipped = not r.applied and 1 or nil,
      tokens = self.step * o.sampler.batch * o.sampler.seq, time = os.time(),
      more = r.experts and { busiest_expert = r.experts.busiest,
         idlest_expert = r.experts.idlest },
   }
   return self.record
end

-- Returns whether validation stopped improving for as long as the option `patience` allows.
local function is_stale(self)
   local limit = self.opts.patience
   return limit > 0 and self.best ~= nil and self.best.since >= limit
end

-- Ends the step before and takes the next, unless that was the last, validation no longer improves
-- or a signal arrived.
local function advance(self, n)
   settle_record(self)
   settle_save(self, true)
   if self.step > self.began
      and dist.any(self.opts.comm, self.opts.ctx:interrupted() or launch.signal() ~= nil) then
      self.interrupted = true
   end
   if self.interrupted or self.step >= n or is_stale(self) then return nil end
   return one_step(self, n)
end

local function begin(self, n)
   if is_stale(self) then n = self.step end
   if self.progress.expect then self.progress:expect(n) end
   self.began = self.step
   if self.step >= n then
      self.progress:note('already at step %d of %d: no step is left to do', self.step, n)
   end
   self.opts.model:train()
end

-- Iterates over steps up to step n of the run (default: the option `steps`), or until validation no
-- longer improves (the option `patience`). The body of the loop runs after each step, with { step,
-- loss, grad_norm, lr, tokens_per_second, memory_bytes, skipped (1, or nil), tokens (seen so far),
-- time (in seconds), last (whether it is step n), more (further figures by name: of a model with
-- experts busiest_expert and idlest_expert, the largest and smallest share of the tokens of a layer
-- that use one expert) }. Collective.
function Run:steps(n)
   n = err.integer(self.op, 'steps', n or self.opts.steps, 0)
   guarded(self, begin, n)
   return function() return guarded(self, advance, n) end
end

-- Adds a figure of one's own to the metrics of the present step; rank 0 writes it.
function Run:metric(name, value)
   err.arg_if(getmetatable(self) ~= Run, 'train.run.metric', 'self', 'a run: call '
      .. 'run:metric(name, value), with a colon', self)
   local op = self.op .. '.metric'
   err.number(op, 'value', value)
   err.arg_if(type(name) ~= 'string' or not name:find '^[%a_][%w_]*$' or metric.is_own(name), op,
      'name', 'a name that is not a metric of a step', name)
   err.raise_if(not self.record, 'E_STATE', op, 'no step is under way: call it within `for s in '
      .. 'run:steps(n)`')
   self.record.more = self.record.more or {}
   self.record.more[name] = value
end

local function finish(self)
   settle_record(self)
   save(self)
   settle_save(self)
   if self.interrupted then
      self.progress:note(self.folder
         and 'interrupted after step %d; the checkpoint is %s; --resume continues from there'
         or 'interrupted after step %d', self.step, self.folder)
   elseif is_stale(self) then
      self.progress:note('ended at step %d: %d evaluations since step %d were not better',
         self.step, self.best.since, self.best.step)
   end
   return { step = self.step, loss = self.loss, val_loss = self.val_loss, folder = self.folder,
      interrupted = self.interrupted, metric = self.metrics }
end

-- Saves the last step, if it is not, and closes the run. Returns { step, loss, val_loss, folder (of
-- the newest checkpoint), interrupted, metric }. Collective.
function Run:finish()
   local result = guarded(self, finish)
   self:close()
   return result
end

-- ---- the begin ---------------------------------------------------------------------------------

-- Restores what `resume` names (a folder). Returns the step to resume from, and of the checkpoint
-- the folder, the validation loss, and the best one if that lies in `out`.
local function resume(o)
   if not o.resume then return 0 end
   local saved = checkpoint.load(o.resume, { device = o.device, lazy = o.parallel ~= nil })
   local run = parts_of(o)
   local at, best = state.restore(run, saved), run.best
   local kept = o.keep_best and best and o.out
      and fs.exists(fs.join(o.out, checkpoint.name(best.step) .. '/manifest.json'))
   return at, saved.folder, run.val_loss, kept and best or nil
end

local function open(self)
   local o, first = self.opts, self.opts.comm.rank == 0
   options.check_out(self.op, o)
   o.fingerprint = (o.out or o.resume) and tokens.fingerprint(o.train) or nil
   self.step, self.folder, self.val_loss, self.best = resume(o)
   self.val_step, self.began = self.step, self.step
   self.step_fn = step.new { model = o.model, optim = o.optim, clip = o.clip, comm = o.comm,
      router_bias_rate = o.router_bias_rate,
      parallel = o.parallel, captured = o.captured, loss = o.loss }
   options.check_sampler(self.op, o, self.step_fn.groups)
   local aside = options.clear_out(self.op, o, self.step)        -- after all that may be refused
   self.saved = o.resume and self.step or nil
   self.ahead = ahead(o)
   if first and o.out then
      fs.mkdirs(self.op, o.out)
      self.metrics = metric.new { out = o.out, step = self.step, tensorboard = o.tensorboard }
   end
   self.progress = o.progress or progress.new { steps = o.steps, start = self.step,
      every = o.log_every, quiet = not first, clock = timer.new().clock }
   tell_held_out(self)
   if aside then
      self.progress:note('the run continues from step %d; its later checkpoints are kept in %s',
         self.step, aside)
   end
   self.timer = timer.new()
   self.watch = straggler.new { comm = o.comm, sections = { 'data', 'step' } }
end

local run = {}

-- Opens a run for an entry point that is called `op`; o: its checked options.
function run._open(op, o)
   options.settle(op, o)
   local self = setmetatable({ op = op, opts = o, skips = 0, interrupted = false, told = {},
      progress = progress.new { quiet = true, tty = false } }, Run)
   if o.out and not o.lock then self.lock = checkpoint.lock(o.out, o.comm) end
   guarded(self, open)
   return self
end

-- Opens a run. Collective.
function run.new(opts) return run._open('train.run', opts) end

return signature.doors('train.run', run, {
   new = { op = 'train.run', opts = { options.rows,
      'steps: integer >= 0 = 0 -- steps of the whole run, where run:steps does not say' } },
})
