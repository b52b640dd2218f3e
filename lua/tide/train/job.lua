-- One start of a recipe that trains: its command line, the run that it resumes, its ranks, and the
-- messages about a user's mistakes.
--
--    job.main({ name = 'pretrain', title = .., options = rows, words = .., train = fn }, ...)
--
-- The recipe's train(job, opt) does the work. An error about files, memory or devices is printed as
-- one line. An error about arguments is so only within job:check, where it follows from the command
-- line, so that a mistake in a recipe keeps its stack trace. Nothing of
-- tide is loaded before the command line is read.

local args = require 'tide.util.args'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local schedule = require 'tide.parallel.pipeline.schedule'
local signature = require 'tide.util.signature'
local fs = require 'tide.util.fs'
local launch = require 'tide.comm.launch'
local pack = require 'tide.ffi.pack'
local plan_options = require 'tide.parallel.plan.options'
local positions = require 'tide.train.positions'

local job = {}

local Job = {}
Job.__index = Job

-- ---- errors ------------------------------------------------------------------------------------

local outside = { 'E_IO', 'E_FORMAT', 'E_DEVICE', 'E_NOMEM', 'E_UNSUPPORTED', 'E_PEER' }
local given_codes = { 'E_ARG', 'E_IO', 'E_FORMAT', 'E_SHAPE', 'E_UNSUPPORTED', 'E_DEVICE',
   'E_NOMEM' }

-- Adds to an error about fields of a configuration the options that set them. A field that
-- follows from options cannot be given, so an advice to give it is left out. An option that the
-- error names already is not added. `field`: a name that is a usual word, too, and counts before a
-- colon alone.
local function in_words(words, e)
   local list = {}
   for _, row in ipairs(words) do
      if row.follows then e.message = e.message:gsub(', or give ' .. row[1] .. '$', '') end
      if e.message:find('%f[%w_]' .. row[1] .. (row.field and ':' or '%f[^%w_]'))
         and not e.message:find(row[2], 1, true) then
         list[#list + 1] = ('%s is %s'):format(row[1], row[2])
      end
   end
   if #list > 0 then e.message = ('%s (%s)'):format(e.message, table.concat(list, ', ')) end
end

-- The options of every recipe that set options of `parallel`, as `words`.
local shared = { { 'ep_size', '--mesh.ep' },
   { "argument 'layers'", '--pp.layers', field = true } }

local function explain(words, caught)
   local e = err.of(caught)
   if not e or e.brief then return caught end
   if e.code == 'E_NOMEM' then
      e.message = e.message .. '; a smaller --batch or --seq, more --accum, --recompute '
         .. 'selective or full, or --mesh.dp_shard needs less'
   else
      in_words(words, e)
      in_words(shared, e)
   end
   return e
end

local function explained(words, fn, ...)
   local r = pack(pcall(fn, ...))
   if not r[1] then err.throw(explain(words, r[2])) end
   return unpack(r, 2, r.n)
end

-- Returns the results of fn(...), whose arguments follow from the command line: what it raises is
-- printed in one line, with the options that set the fields of a model.
function Job:check(fn, ...) return err.people(given_codes, explained, self.words, fn, ...) end

-- ---- the run that it resumes -------------------------------------------------------------------

-- What belongs to one start of the program and not to the run: never taken from a checkpoint.
local own = { 'out', 'resume', 'resume_from', 'overwrite', 'threads', 'plan' }

-- Refuses an --out that is a checkpoint: it is complete, and no run continues inside it.
local function check_folder(name, out)
   if not fs.exists(fs.join(out, 'manifest.json')) then return end
   err.usage(name, '--out %s is a checkpoint, not the folder of a run; give --resume-from %s to '
      .. 'resume from it', out, out)
end

-- Refuses to continue a checkpoint of another run in a folder that holds checkpoints already. In a
-- folder without it is a fork, which leaves that run as it is.
local function check_fork(op, name, out)
   local folder = require 'tide.train.folder'
   if folder.is_of(name, out) then return end
   local step = folder.step_in(op, out)
   err.usage_if(step, op, '--resume-from %s belongs to another run than the one in --out %s, which '
      .. 'is at step %d; to fork, give an --out without a run; to continue the run of the '
      .. 'checkpoint, leave out --out', name, out, step)
end

-- Makes the path of the checkpoint that --resume-from names, and its run --out. Another attempt of
-- the same job (tide run --max-restarts) resumes from what the one before has written there.
local function settle_resume(recipe, opt, given)
   if not opt.resume_from then
      if opt.resume then check_folder(recipe.name, opt.out) end
      return
   end
   local name, folder = opt.resume_from, require 'tide.train.folder'
   if name:find '^%d+$' then name = folder.name(tonumber(name)) end
   if not name:find('/', 1, true) then
      name = fs.join(opt.out, name)
   elseif not given.out then
      opt.out = name:gsub('/+[^/]*/*$', '')
   end
   opt.resume, opt.resume_from = true, nil
   if launch.resume_from(opt.out) then return end
   check_fork(recipe.name, name, opt.out)
   opt.resume_from = name
end

-- Returns the options kept in a checkpoint, as this program writes them.
local function kept_options(opt)
   local kept = require('tide.train.checkpoint').recipe(opt.resume_from or opt.out)
   for _, k in ipairs(own) do kept[k] = opt[k] end
   kept.recompute = kept.recompute and tostring(kept.recompute)     -- once a number
   kept.schedule_steps = kept.schedule_steps or kept.steps          -- once always the same
   return kept
end

local function names_mesh(given)
   for name in each(given) do
      if name:find '^mesh%.' then return true end
   end
   return false
end

-- Returns the options that --resume puts in place of the defaults, and { options (those of the
-- checkpoint), other_mesh }. A mesh is one thing: giving one axis gives all of them, and what says
-- how the pipeline and the tensor-parallel axis are used goes with it.
local function options_before(recipe, opt, given)
   settle_resume(recipe, opt, given)
   if not opt.resume then return nil end
   local kept = err.people({ 'E_IO', 'E_FORMAT' }, kept_options, opt)
   local resumed = { options = kept, other_mesh = names_mesh(given) }
   if not resumed.other_mesh then return kept, resumed end
   local base = copy(kept)
   base.mesh = nil
   base.pp = nil
   if opt.mesh.tp == 1 then base.sequence_parallel, base.async_tp = nil, nil end
   return base, resumed
end

-- Returns whether this is another attempt of the same job, which continues by itself (tide run
-- --max-restarts).
local function is_restart(opt) return launch.resume_from(opt.out) ~= nil end

-- Returns whether this job is another attempt of the same run.
function Job:is_restart() return is_restart(self.opt) end

-- Refuses to write over a run without the option for it.
local function check_out(self)
   local opt = self.opt
   err.usage_if(opt.resume and opt.overwrite, self.name, '--resume and --overwrite exclude each '
      .. 'other')
   check_folder(self.name, opt.out)
   local step = require('tide.train.checkpoint').step_in(opt.out)
   err.usage_if(not step and fs.exists(fs.join(opt.out, 'config.json')), self.name, '--out %s '
      .. 'holds a published model, which a run would be mixed with; choose another --out', opt.out)
   err.usage_if(step and not opt.resume and not opt.overwrite and not is_restart(opt), self.name,
      '%s holds a run at step %d; add --resume, or choose another --out, or --overwrite', opt.out,
      step)
   self.replaces = step ~= nil and opt.overwrite and not is_restart(opt)
end

-- ---- what is settled before any work -----------------------------------------------------------

-- Settles what follows from --steps, at the first start of a run: a run that is resumed for more
-- steps keeps its learning rates. Logs what differs from the options.
local function settle_schedule(self)
   local opt, log, given = self.opt, self.log, self.given
   if opt.schedule_steps == 0 then opt.schedule_steps = opt.steps end
   local most = math.floor(opt.schedule_steps / 2)
   if opt.warmup and opt.warmup > most then
      log:once('--warmup %d is cut to %d, half of the %d steps of the schedule', opt.warmup, most,
         opt.schedule_steps)
   end
   opt.warmup = math.min(opt.warmup or 40, most)
   if self.resumed and not given.schedule_steps and opt.schedule ~= 'constant'
      and opt.steps ~= opt.schedule_steps then
      log:once("the learning rate follows the checkpoint's schedule of %d steps; --schedule-steps "
         .. '%d sets a new length', opt.schedule_steps, opt.steps)
   end
end

-- What a step that is recorded once needs.
local can_capture = signature.options {
   "where opt.device == 'cuda' -- usage: --captured needs --device cuda, got --device {opt.device}",
   "where world.size == 1 or world.transport == 'nccl' -- usage: --captured is for one rank, or "
      .. "for ranks over NCCL; got {world.size} over '{world.transport}'",
   "where not opt.optim or opt.optim == 'adamw' -- usage: --captured needs --optim adamw, got "
      .. '--optim {opt.optim}',
   'where not opt.packed -- usage: --captured needs steps of one shape and count; --packed has '
      .. 'others at each step',
}

-- Checks the mesh of a resumed run: that of its checkpoint may need another number of ranks.
local function check_mesh(self)
   if not self.resumed or self.resumed.other_mesh then return end
   local ok, e = pcall(plan_options.axes, self.opt, self.world.size, self.opt.plan)
   if ok then return end
   local known = err.of(e)
   if not known then error(e, 0) end
   known.message = ('%s; the mesh is that of the checkpoint: start as many ranks, or give the mesh '
      .. 'to resume on, e.g. --mesh.dp %d'):format(known.message, self.world.size)
   err.throw(known)
end

-- Options that are paths of what a run reads or writes, also when it is resumed.
local paths = { 'data', 'val_data', 'chat_template', 'tokenizer', 'from', 'adapter', 'export',
   'teacher', 'teacher_cache', 'reference' }

-- Refuses an empty text where an option wants a path, as a variable that is not set gives it; and
-- bytes that are not UTF-8, since checkpoints keep paths as JSON.
local function check_path(program, name, path)
   local option = '--' .. name:gsub('_', '-')
   err.usage_if(path == '', program, '%s: expected a path, got an empty text', option)
   err.usage_if(type(path) == 'string' and not pcall(fs.json_text, path), program, '%s: expected '
      .. 'a path in UTF-8, which checkpoints can keep, got %s; rename it, or give a link to it',
      option, err.show(path))
end

-- Returns the paths of an option from the root of the file system.
local function absolute(program, name, data)
   check_path(program, name, data)
   if type(data) ~= 'table' then return data and fs.absolute(data) end
   local list = {}
   for i, path in ipairs(data) do list[i] = absolute(program, name, path) end
   return list
end

-- Returns the ranks of the run; on GPUs, each with its own if there are as many.
local function world_of(opt)
   local tide = require 'tide'
   return err.people({ 'E_DEVICE', 'E_UNSUPPORTED', 'E_STATE', 'E_COMM' }, function()
      if opt.device ~= 'cuda' or opt.plan then return tide.comm.world() end
      return tide.comm.set_world(tide.comm.gpus())
   end)
end

local function begin(recipe, opt, parser, given, resumed)
   local tide = require 'tide'
   local before = resumed and resumed.options
   check_path(recipe.name, 'out', opt.out)
   for _, o in ipairs { opt, before } do                    -- any folder continues
      for _, name in ipairs(paths) do o[name] = absolute(recipe.name, name, o[name]) end
   end
   if before then parser:refuse_fixed(before, opt, given, recipe.name) end
   local world = world_of(opt)
   local self = setmetatable({ name = recipe.name, words = recipe.words or {}, opt = opt,
      world = world, first = world.rank == 0, resumed = resumed, given = given,
      log = tide.util.log.new { rank = world.rank, size = world.size } }, Job)
   if opt.threads > 0 then tide.default():set_nthread(opt.threads) end
   tide.default():seed(opt.seed)
   for _, line in ipairs(before and parser:changes(before, opt, 'in the checkpoint') or {}) do
      self.log:once('%s', line)
   end
   if opt.steps > 0 then settle_schedule(self) end
   if opt.captured then can_capture(self.name, {}, self) end
   check_mesh(self)
   if not opt.plan then self:check(check_out, self) end
   return self
end

-- ---- what a recipe asks for --------------------------------------------------------------------

-- Returns whether this start continues in the folder of the run that it resumes, so is not a fork.
function Job:is_same_run()
   local from = self.opt.resume_from
   if not from then return self.resumed ~= nil end
   return require('tide.train.folder').is_of(from, self.opt.out)
end

-- Returns the mesh and the options of parallel.plan that the command line asks for.
function Job:mesh() return plan_options.read(self.opt, self.world.size, self.opt.plan) end

-- Sets the steps of a recipe with --epochs, each of `rows` rows, unless --steps gives them (0 does
-- not) or the run is resumed.
function Job:settle_epochs(rows)
   local opt, given = self.opt, self.given
   local asked = given.epochs or given.steps and opt.steps == 0
   if given.steps and opt.steps > 0 or self.resumed and not asked then return end
   opt.steps = math.max(1, math.ceil(opt.epochs * rows / opt.batch))
   settle_schedule(self)
end

-- Prints on rank 0.
function Job:print(fmt, ...)
   if self.first then io.stdout:write(select('#', ...) > 0 and fmt:format(...) or fmt, '\n') end
end

-- Returns the tokens of the longest document. cu: the cumulative lengths, or nil.
local function longest_of(cu)
   local most = 0
   for i = 2, cu and #cu or 0 do most = math.max(most, cu[i] - cu[i - 1]) end
   return most
end

-- Compares the longest text, whose positions begin at 0, with those that the model was made for:
-- it refuses texts beyond learned positions, and logs a line for texts beyond others.
local function check_positions(self, corpus, plan)
   local longest, known, is_last = self.opt.seq or 0, positions(plan.model)
   if not known or longest <= known then return end
   if corpus.cu then
      longest = math.min(longest, math.max(longest_of(corpus.cu), longest_of(corpus.val_cu)))
   end
   if longest <= known then return end
   local what = ('--seq %d: texts have up to %d tokens, and the model has %d positions '
      .. '(max_position_embeddings)'):format(self.opt.seq, longest, known)
   err.usage_if(is_last, self.name, '%s; give --seq %d', what, known)
   self.log:once('%s; it was not trained on longer ones', what)
end

-- Returns how many parameters the whole model has: all, those trained where others are frozen,
-- weights in 4 bits.
local function parameters_text(plan, dtype)
   local parts, codes = { ('%d parameters (%s)'):format(plan.numel, dtype) }, 0
   for _, row in ipairs((rawget(plan.model, 'quantised') or { modules = {} }).modules) do
      codes = codes + row[2] * row[3] * (row[5] or 1)
   end
   if codes > 0 then parts[#parts + 1] = ('%d in NF4'):format(codes) end
   if plan.trained < plan.numel then
      parts[#parts + 1] = ('%d of them trained'):format(plan.trained)
   end
   return table.concat(parts, ', ')
end

-- Logs how long stages of a pipeline wait, where a step has fewer micro-batches than stages.
local function tell_waits(self)
   local p, m, pp = self.opt.mesh.pp, self.opt.accum or 1, self.opt.pp or {}
   local function wait(n)
      return 100 * schedule.idle { size = p, virtual = pp.virtual or 1, n = n, first = 0 }
   end
   if m < p then
      self.log:once('--accum %d: stages of the pipeline wait %.0f %% of a step; with --accum %d '
         .. 'they wait %.0f %%', m, wait(m), 4 * p, wait(4 * p))
   end
end

local function tell(self, corpus, plan)
   local opt, log, n = self.opt, self.log, self.world.size
   local gpus = opt.device ~= 'cuda' and ''
      or self.world.transport == 'nccl' and ', a GPU each, over NCCL' or ', all on one GPU'
   local experts = opt.mesh.ep > 1 and (', ep=%d'):format(opt.mesh.ep) or ''
   log:once('%d file%s, %d training tokens; %s; %d rank%s', corpus.files,
      corpus.files == 1 and '' or 's', corpus.train.count, parameters_text(plan, opt.dtype), n,
      n == 1 and '' or 's: ' .. plan:axes_text() .. experts .. gpus)
   tell_waits(self)
   if not opt.resume and not is_restart(opt) then return end
   local checkpoint = require 'tide.train.checkpoint'
   local kept = #checkpoint.list(opt.out)
   log:once('resuming from %s%s', checkpoint.find(opt.resume_from or opt.out),
      kept > 1 and not opt.resume_from and (', the newest of %d checkpoints'):format(kept) or '')
end

-- Returns a run (train.run) in --out, which this start of the program begins or resumes. corpus,
-- plan: named on standard error. opts: those of train.run beside what belongs to the job.
function Job:run(corpus, plan, opts)
   local opt, o = self.opt, copy(opts)
   o.train, o.val, o.steps = corpus.train, corpus.val, opt.steps
   o.out, o.keep, o.recipe, o.async_save = opt.out, opt.keep, opt, opt.async_save
   o.resume, o.overwrite = opt.resume_from or opt.resume and opt.out or nil, opt.overwrite
   o.tensorboard = opt.tensorboard
   o.log_every, o.title, o.device = opt.log_every, ('%d parameters'):format(plan.numel), opt.device
   check_positions(self, corpus, plan)
   self:check(tell, self, corpus, plan)
   self.training = self:check(require('tide.train.run').new, o)
   launch.watch()
   return self.training
end

-- Runs a recipe as a program. recipe: name; title (for --help); options (rows, see util.args);
-- words ({ field of a model's configuration, the option it is, follows = true: from options, and
-- cannot be given } each); train(job, opt), which does the work. ...: as a script gets it.
function job.main(recipe, ...)
   local function start(opt, parser, given, resumed)
      local self = begin(recipe, opt, parser, given, resumed)
      local ok, e = xpcall(recipe.train, err.traced, self, opt)
      if self.training then self.training:close() end
      if not ok then error(e, 0) end
   end
   return args.main(function(...)
      local opt, parser, given, resumed = args.parse(recipe.name .. ': ' .. recipe.title,
         recipe.options, { ... }, function(...) return options_before(recipe, ...) end)
      if not opt then return end
      settle_resume(recipe, opt, given)
      err.people(outside, explained, {}, start, opt, parser, given, resumed)
   end, ...)
end

return job
