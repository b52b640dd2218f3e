-- What a training run is given: checked at its door, with defaults filled in, and the folder that
-- it may write to.

local tide = require 'tide'
local agree = require 'tide.comm.agree'
local dist = require 'tide.comm'
local each = require 'tide.util.each'
local survey = require 'tide.data.survey'
local launch = require 'tide.comm.launch'
local err = require 'tide.util.err'
local folder = require 'tide.train.folder'
local fs = require 'tide.util.fs'
require 'tide.optim.optimizer'

local options = {}

-- What train.run and train.loop take (see util.signature); each has `steps` of its own.
options.rows = {
   'model: table -- with a method loss', 'optim: optimizer -- the optimiser of its parameters',
   'train: source -- tokens to train on', 'val: source? -- tokens to evaluate on',
   'sampler: table -- chooses the tokens of each step',
   'accum: integer >= 1 = 1 -- micro-batches of a step',
   'clip: number? >= 0 -- limit of the gradient norm; 0: none',
   'router_bias_rate: number? in [0, 1] -- step of the correction biases (see train.step)',
   'out: string? -- folder of the run; without it nothing is written to disk',
   'val_windows: integer >= 1 = 64 -- windows, or rows, of an evaluation',
   'keep: integer? >= 1 -- number of checkpoints to keep; default: all',
   'keep_best: boolean? -- also keeps the checkpoint with the lowest validation loss, written at '
      .. 'its evaluation; run.best is { step, loss, since (evaluations) }',
   'patience: integer >= 0 = 0 -- evaluations without a lower validation loss after which the '
      .. 'steps end; keep_best is then true; 0: no limit',
   "on_nonfinite: 'stop' | 'skip' = 'stop' -- what to do if a loss or norm is not finite",
   'max_skips: integer >= 1 = 5 -- steps in a row that may be skipped',
   'comm: comm? -- ranks; all by default', 'ctx: any? -- the context', 'device: string?',
   'same_rows: comm? -- ranks that get the same rows, as those of cp and tp do: each image of a '
      .. 'batch is decoded on one of them',
   'recipe: any? -- plain table to store in checkpoints',
   'resume: string? -- checkpoint to resume from, or folder of a run (its newest checkpoint); if '
      .. 'it is an earlier one of out, later ones move to a folder aside-N in it',
   'overwrite: boolean? -- removes the run in out; without resume or this, a run in out is E_ARG',
   'progress: any? -- an object with update(record), note(fmt, ...) and finish()',
   'log_every: integer >= 1 = 10 -- steps between lines of the progress', 'title: string?',
   'tensorboard: boolean? -- also writes a TensorBoard event file into out',
   'lock: any? -- on out, from train.checkpoint.lock, which the caller releases; taken here else',
   'parallel: sharded? -- with optim over it',
   'async_save: boolean? -- writes checkpoints in the background, one at a time; an error is '
      .. 'raised after a later step',
   'captured: boolean? -- see train.step', 'loss: any? -- see train.step',
   'on_evaluate: function? -- called with (run, loss)',
   'on_save: function? -- called with (run, folder)',
}

-- Refuses data with ids that the model does not have, which would end the run at the step that
-- reads one.
local function check_ids(op, o)
   local config = type(o.model.config) == 'table' and o.model.config or {}
   if type(config.vocab_size) ~= 'number' then return end
   for _, name in ipairs { 'train', 'val' } do
      if o[name] then survey.check(op, name, o[name], config.vocab_size) end
   end
end

-- Refuses what state.json cannot hold: the first save would lose the steps before it.
local function check_stored(op, o)
   for name, v in each { recipe = o.recipe, ['model.config'] = o.model.config } do
      local ok, e = pcall(fs.json_text, v)
      local why = not ok and tostring(err.of(e) and e.message or e)
      err.raise_if(why, 'E_ARG', op, "argument '%s': checkpoints keep it as JSON, which cannot "
         .. 'hold it: %s', name, why)
   end
end

-- Sets the checkpoint to resume: that of an earlier attempt of this job, or the caller's.
local function settle_resume(op, o)
   local before = launch.resume_from(o.out)
   if before then
      o.resume, o.overwrite = before, false
   elseif o.overwrite and o.resume and o.out
      and folder.is_of(folder.find(op, o.resume), o.out) then
      err.raise('E_ARG', op, 'overwrite and resume exclude each other in one folder (%s)', o.out)
   end
end

-- Refuses a sampler of windows beyond the end of the data: the step that draws one would end the
-- run.
local function check_count(op, o)
   local count = not o.sampler.make and o.sampler.count
   err.raise_if(type(count) == 'number' and count > o.train.count, 'E_ARG', op, "argument "
      .. "'sampler': expected one over the %s tokens of train, got count = %s", o.train.count,
      count)
end

-- Refuses ranks that draw from other orders of the data: they would train on some windows twice and
-- never on others. size and rank are those of the ranks with data of their own.
function options.check_sampler(op, o, groups)
   local s, list = o.sampler, {}
   check_count(op, o)
   for _, name in ipairs { 'count', 'seq', 'batch', 'seed', 'size' } do
      list[#list + 1] = ('%s %s'):format(name, tostring(s[name]))
   end
   agree.check(o.comm, op, 'E_ARG', { { 'samplers', table.concat(list, ', '), 'shown' } })
   err.raise_if(type(s.size) == 'number' and s.size ~= groups, 'E_ARG', op, 'the sampler shares '
      .. 'each batch among %s ranks, and the run has %d with data of their own; give it rank and '
      .. 'size of run.data of a plan, else of the communicator', tostring(s.size), groups)
end

-- Completes the options of a run.
function options.settle(op, o)
   err.arg_if(o.val and o.val.count > 0 and o.sampler.make and not o.sampler.val_cu, op, 'sampler',
      'one with the documents of val (val_cu), or no val', o.sampler)
   o.comm, o.ctx = o.comm or dist.world(), o.ctx or tide.default()
   if o.patience > 0 and not (o.val and o.val.count > 0) then
      err.arg_text(op, 'val', 'data to evaluate on, which patience needs',
         o.val and 'no tokens' or 'nil')
   end
   o.keep_best = o.keep_best or o.patience > 0
   check_ids(op, o)
   if o.out then check_stored(op, o) end
   settle_resume(op, o)
   return o
end

-- Refuses to write over a run without the option for it. Rank 0 looks, all agree.
function options.check_out(op, o)
   if not o.out or o.overwrite then return end
   dist.on_first(o.comm, op, function() folder.check_free(op, o.out, o.resume) end)
end

-- Removes what is in the way of the new run, or moves it aside. Returns the folder of what moved.
function options.clear_out(op, o, step)
   if not o.out then return nil end
   return dist.on_first(o.comm, op, function()
      if o.overwrite then
         folder.clear(op, o.out)
      elseif o.resume then
         return folder.set_aside(op, o.out, step)
      end
   end)
end

return options
