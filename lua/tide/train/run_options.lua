-- What a training run is given: checked at its door, with defaults filled in, and the folder that
-- it may write to.

local tide = require 'tide'
local dist = require 'tide.comm'
local survey = require 'tide.data.survey'
local launch = require 'tide.comm.launch'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local folder = require 'tide.train.folder'
local Optimizer = require 'tide.optim.optimizer'

local options = {}

-- Names that train.run knows; train.loop knows more.
options.known = {
   'model', 'optim', 'train', 'val', 'sampler', 'steps', 'accum', 'clip', 'out', 'val_windows',
   'keep', 'on_nonfinite', 'max_skips', 'comm', 'ctx', 'recipe', 'resume', 'overwrite', 'progress',
   'device', 'log_every', 'title', 'lock', 'parallel', 'async_save', 'captured', 'on_evaluate',
   'on_save',
}

-- Default and least value.
local numbers = {
   steps = { 0, 0 }, accum = { 1, 1 }, val_windows = { 64, 1 }, max_skips = { 5, 1 },
   log_every = { 10, 1 },
}

local kinds = {
   model = 'table', train = 'table', sampler = 'table', out = 'string',
   resume = 'string', overwrite = 'boolean',
}
local required = { model = true, train = true, sampler = true }

local function check_kinds(op, o)
   for name, kind in each(kinds) do
      if required[name] or o[name] ~= nil then err.type(op, name, o[name], kind) end
   end
   Optimizer.check(op, 'optim', o.optim)
   for _, name in ipairs { 'on_evaluate', 'on_save' } do
      if o[name] ~= nil then err.func(op, name, o[name]) end
   end
   if o.val and o.val.count > 0 and o.sampler.make and not o.sampler.val_cu then
      err.arg(op, 'sampler', 'one that knows the documents of val (val_cu), or no val', o.sampler)
   end
end

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
   local before = launch.resume_from(o.out)
   if before then
      o.resume, o.overwrite = o.resume or before, false
   elseif o.overwrite and o.resume and o.out
      and folder.is_of(folder.find(op, o.resume), o.out) then
      err.raise('E_ARG', op, 'overwrite and resume exclude each other in one folder (%s)', o.out)
   end
end

-- The options of a run as a table of their own. more: names that the caller knows beside them.
function options.check(op, given, more)
   local known, o = {}, {}
   for _, list in ipairs { options.known, more or {} } do
      for _, name in ipairs(list) do known[#known + 1] = name end
   end
   for k, v in each(err.options(op, given, known)) do o[k] = v end
   check_kinds(op, o)
   for k, row in each(numbers) do o[k] = err.integer(op, k, o[k] or row[1], row[2]) end
   o.on_nonfinite = err.choice(op, 'on_nonfinite', o.on_nonfinite or 'stop', { 'stop', 'skip' })
   o.comm, o.ctx = o.comm or dist.world(), o.ctx or tide.default()
   check_ids(op, o)
   settle_resume(op, o)
   return o
end

-- Refuses to write over a run unless that was asked for. Rank 0 looks, all agree.
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
