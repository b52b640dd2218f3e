-- Pretraining as a program: what the recipes that train a language model on text have in common.
--
--    pretrain.main({ name = 'pretrain', title = .., model = rows, make = fn, root = .. }, ...)
--
-- Such recipes differ in their model: the options that describe it and the function
-- that makes it. Data, mesh, schedule, checkpoints, evaluation, sample and messages are here.
-- Nothing of tide is loaded before the command line is read.

local args = require 'tide.util.args'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local launch = require 'tide.dist.launch'
local pack = require 'tide.ffi.pack'
local setup = require 'tide.train.setup'

local pretrain = {}

local before_model = {
   { 'data', nil, 'file or folder of text, or .bin token files; may be given several times; '
     .. 'default: tide\'s own sources', list = true, also = { 'data-path', 'dataset' } },
   { 'token-bytes', nil, 'bytes per id of .bin files; not given: what a header or a Megatron .idx '
     .. 'beside them says, else 2', type = 'integer', min = 2, max = 4 },
   { 'binary', false, 'take files as bytes whatever they hold, not text alone' },
   { 'vocab', 0, 'vocabulary size of .bin files (text needs none)', min = 0 },
   { 'out', 'runs/', 'folder for checkpoints, metrics.jsonl and loss.svg',
     also = { 'output', 'output-dir', 'save' } },
   { 'resume', false, 'go on from the newest checkpoint in --out, with its options as defaults; a '
     .. '--mesh option replaces its whole mesh' },
   { 'resume-from', nil, 'go on from this checkpoint of the run (a folder step-N, or a number); '
     .. 'later ones move to a folder aside-N in --out' },
   { 'overwrite', false, 'remove the run that --out holds, and begin anew' },
   { 'steps', 800, 'optimiser steps in all', min = 1,
     also = { 'max-steps', 'iterations', 'train-iters', 'epochs' } },
   { 'batch', 8, 'windows per step over all ranks', min = 1,
     also = { 'batch-size', 'global-batch-size', 'bs' } },
   { 'accum', 1, 'micro-batches per step and rank', min = 1,
     also = { 'gradient-accumulation-steps' } },
   { 'seq', 256, 'tokens per window', min = 1,
     also = { 'seq-len', 'seq-length', 'context-length' } },
   { 'packed', false, 'fill windows with whole documents, each seen by itself, also in evaluation; '
     .. 'they are files of text, or end with --eos' },
   { 'eos', -1, 'id that ends a document in .bin files', min = -1 },
}

local after_model = {
   { 'dtype', 'f32', 'parameters and activations', choices = { 'f32', 'bf16' },
     also = { 'bf16', 'precision' } },
   { 'fp8', false, 'multiply by weights (not the output head) in FP8, each operand scaled by its '
     .. 'largest element' },
   { 'lr', 3e-3, 'peak learning rate', type = 'number', min = 0,
     also = { 'learning', 'learning-rate' } },
   { 'min-lr', 3e-4, 'final learning rate', type = 'number', min = 0 },
   { 'warmup', nil, 'steps of linear warm-up, at most half of those of the schedule; not given: '
     .. 'half of them, at most 40', type = 'integer', min = 0 },
   { 'schedule', 'cosine', 'shape of the learning rate',
     choices = { 'cosine', 'linear', 'wsd', 'constant' } },
   { 'schedule-steps', 0, 'steps that the schedule is drawn over, after which the rate stays; 0: '
     .. '--steps. A resumed run keeps it', min = 0, also = { 'lr-decay-iters', 'lr-decay-steps' } },
   { 'weight-decay', 0.1, 'decay of matrices', type = 'number', min = 0, also = { 'wd' } },
   { 'beta2', 0.95, 'second-moment decay of AdamW', type = 'number', min = 0, max = 0.9999999 },
   { 'clip', 1, 'largest gradient norm; 0: off', type = 'number', min = 0,
     also = { 'clip-grad', 'max-grad-norm' } },
   { 'on-nonfinite', 'stop', 'when loss or gradient is not finite', choices = { 'stop', 'skip' } },
   { 'seed', 1, 'weights and order of the data', min = 0 },
   { 'val-every', 100, 'steps between evaluations; 0: at the end only', min = 0 },
   { 'val-windows', 64, 'windows per evaluation', min = 1 },
   { 'save-every', 400, 'steps between checkpoints; 0: at the end only', min = 0 },
   { 'keep', 3, 'checkpoints kept', min = 1 },
   { 'log-every', 10, 'steps between plain progress lines', min = 1 },
   { 'sample', 200, 'tokens to sample at the end', min = 0 },
   { 'temperature', 0.8, 'of the sample', type = 'number', min = 0 },
   { 'async-save', false, 'write checkpoints in the background' },
   { 'plan', false, 'print how the model is spread over ranks and what that costs; run nothing' },
   { 'device', 'cpu', 'where to compute', choices = { 'cpu', 'ref', 'cuda' } },
   { 'captured', false, 'record a step once and replay it as one launch (a CUDA graph); for '
     .. '--device cuda, windows, one rank or ranks over NCCL' },
   { 'threads', 0, 'threads per rank; 0: as the program decides', min = 0, max = 4096 },
}

-- Options that models of a recipe share, with the words that people write for them elsewhere.
local of_model = {
   dim = { 'dim', 160, 'model width', min = 1, also = { 'hidden-size' } },
   heads = { 'heads', 4, 'attention heads', min = 1,
     also = { 'num-heads', 'num-attention-heads' } },
   ['kv-heads'] = { 'kv-heads', 0, 'key and value heads; 0: as many as heads', min = 0,
     also = { 'num-query-groups', 'num-key-value-heads' } },
   hidden = { 'hidden', 0, 'width of the MLP', min = 0,
     also = { 'ffn-hidden-size', 'intermediate-size' } },
   tie = { 'tie', true, 'use the embedding as output head too' },
}

-- The declaration of such an option: 'dim', 'heads', 'kv-heads', 'hidden' or 'tie'. help: its line,
-- where the recipe has one of its own.
function pretrain.option(name, help)
   local row = of_model[err.choice('train.pretrain.option', 'name', name,
      { 'dim', 'heads', 'kv-heads', 'hidden', 'tie' })]
   return { row[1], row[2], help or row[3], min = row.min, also = row.also }
end

-- tide's own sources with their READMEs: every folder of the tree.
local function own_sources(recipe)
   local list = {}
   for _, name in ipairs { 'bindings', 'core', 'kernels', 'lua', 'recipes', 'spec',
                           'README.md', 'CHANGELOG.md' } do
      local path = recipe.root .. name
      if fs.exists(path) then list[#list + 1] = path end
   end
   if #list == 0 then
      err.usage(recipe.name, "--data is needed: tide's sources are not beside this recipe")
   end
   return list
end

local function vocabulary(recipe, opt, corpus)
   if corpus.vocab_size then return corpus.vocab_size end
   if opt.vocab == 0 then
      err.usage(recipe.name, '--vocab is needed for .bin files')
   end
   return opt.vocab
end

-- The results of fn(...). What it raises speaks of fields of the configuration; the message then
-- also says which options they come from. A field that follows from options cannot be given, so an
-- advice to give it is left out.
local function in_options(recipe, fn, ...)
   local r = pack(pcall(fn, ...))
   if r[1] then return unpack(r, 2, r.n) end
   local e, list = r[2], {}
   if not err.is(e) then error(e, 0) end
   for _, row in ipairs(recipe.fields or {}) do
      if row.follows then e.message = e.message:gsub(', or give ' .. row[1] .. '$', '') end
      if e.message:find('%f[%w_]' .. row[1] .. '%f[^%w_]') then
         list[#list + 1] = ('%s is %s'):format(row[1], row[2])
      end
   end
   if #list > 0 then e.message = ('%s (%s)'):format(e.message, table.concat(list, ', ')) end
   error(e, 0)
end

-- How the model, which has no bytes yet, is spread over the ranks.
local function plan_of(recipe, tide, opt, vocab)
   local model = recipe.make(tide, opt, vocab,
      { dtype = opt.dtype, device = 'null', fp8 = opt.fp8 })
   return setup.plan_of(model, opt, tide.dist.world().size, opt.plan)
end

-- Another attempt of this very job goes on by itself (tide run --max-restarts).
local function is_restart(opt)
   return require('tide.dist.launch').resume_from(opt.out) ~= nil
end

-- A checkpoint is complete and stays as it is: no run goes on inside it.
local function check_folder(recipe, out)
   if not fs.exists(fs.join(out, 'manifest.json')) then return end
   err.usage(recipe.name, '--out %s is a checkpoint, not the folder of a run; --resume-from %s '
      .. 'goes on from it', out, out)
end

-- A run is never written over unless that is asked for.
local function check_out(recipe, tide, opt)
   if opt.resume and opt.overwrite then
      err.usage(recipe.name, '--resume and --overwrite exclude each other')
   end
   check_folder(recipe, opt.out)
   local step = tide.train.checkpoint.step_in(opt.out)
   if step and not opt.resume and not opt.overwrite and not is_restart(opt) then
      err.usage(recipe.name, '%s holds a run at step %d; add --resume, or choose another --out, or '
         .. '--overwrite', opt.out, step)
   end
end

-- Which rows make up which step: windows of the data, or whole documents.
local function sampler_of(recipe, tide, opt, corpus, data)
   local o = { seq = opt.seq, batch = opt.batch, seed = opt.seed, rank = data.rank,
      size = data.size }
   if not opt.packed then
      o.count = corpus.train.count
      if o.count <= opt.seq then
         err.usage(recipe.name, '--seq %d: a window needs %d tokens, the training part of --data '
            .. 'has %d', opt.seq, opt.seq + 1, o.count)
      end
      return tide.data.sampler.new(o)
   end
   if not corpus.cu and opt.eos < 0 then
      err.usage(recipe.name, '--packed with .bin files needs --eos, the id that ends a document')
   end
   local packed = tide.data.packed
   o.cu = corpus.cu or packed.boundaries(corpus.train, opt.eos)
   if corpus.val and corpus.val.count > 0 then
      o.val_cu = corpus.val_cu or packed.boundaries(corpus.val, opt.eos)
   end
   return tide.data.packed.new(o)
end

local function optimiser(tide, opt, params)
   local schedule = tide.optim.schedule.make(opt.schedule, {
      lr = opt.lr, steps = opt.schedule_steps, warmup = opt.warmup,
      min_lr = math.min(opt.min_lr, opt.lr),
   })
   return tide.optim.AdamW(params, {
      lr = schedule, beta2 = opt.beta2, weight_decay = opt.weight_decay,
   })
end

local function print_summary(tide, opt, corpus, result)
   if result.val_loss then
      io.stdout:write(('validation loss %.4f nats per token'):format(result.val_loss))
      local order2 = corpus.raw and tide.data.entropy.order2(corpus.raw)
      if order2 then
         io.stdout:write((' (order-2 entropy of the training bytes: %.4f)'):format(order2))
      end
      io.stdout:write '\n'
   end
   io.stdout:write(('the run is in %s\n'):format(opt.out))
end

-- A continuation, drawn alike by every rank that holds a part of the model.
local function sample(tide, opt, spread)
   local bytes = tide.data.bytes
   local prompt = '-- '
   local ids = setup.whole(spread, function()
      return tide.train.sample.generate(spread.model, bytes.ids(prompt), {
         tokens = opt.sample, temperature = opt.temperature, top_k = 40, seed = opt.seed,
         stop = bytes.eos, device = opt.device,
      })
   end)
   return 'sample:\n' .. prompt .. bytes.decode(ids) .. '\n'
end

local function finish(tide, opt, corpus, spread, result)
   local first = tide.dist.world().rank == 0
   if result.interrupted then return end
   if first then print_summary(tide, opt, corpus, result) end
   if opt.sample == 0 or corpus.kind ~= 'text' or not (first or spread.sharded) then return end
   local text = sample(tide, opt, spread)
   if first then io.stdout:write(text) end
end

-- What a step that is recorded once cannot do.
local function check_captured(recipe, opt, world)
   if not opt.captured then return end
   if opt.device ~= 'cuda' then
      err.usage(recipe.name, '--captured needs --device cuda, got --device %s', opt.device)
   elseif world.size > 1 and world.transport ~= 'nccl' then
      err.usage(recipe.name, "--captured is for one rank, or for ranks over NCCL; got %d over '%s'",
         world.size, world.transport)
   elseif opt.packed then
      err.usage(recipe.name, '--captured needs steps of one shape and count; --packed has others '
         .. 'at each step')
   end
end

-- The mesh that a run goes on with: that of its checkpoint may be of other ranks than are here.
local function check_mesh(opt, world, resumed)
   if not resumed or resumed.other_mesh then return end
   local ok, e = pcall(setup.axes, opt, world.size, opt.plan)
   if ok then return end
   if err.is(e) then
      e.message = ('%s; the mesh is that of the checkpoint: start as many ranks, or give the mesh '
         .. 'to go on with, e.g. --mesh.dp %d'):format(e.message, world.size)
   end
   error(e, 0)
end

-- Everything a mistake on the command line can upset, before a step is taken.
local function prepare(recipe, tide, opt, world, resumed)
   check_captured(recipe, opt, world)
   check_mesh(opt, world, resumed)
   if not opt.plan then check_out(recipe, tide, opt) end
   local corpus = tide.data.text.load(opt.data or own_sources(recipe),
      { width = opt.token_bytes, binary = opt.binary })
   local plan = in_options(recipe, plan_of, recipe, tide, opt, vocabulary(recipe, opt, corpus))
   local rows = setup.rows(opt, plan:data())
   if opt.plan then
      return corpus, plan, plan:price { batch = rows, seq = opt.seq, accum = opt.accum }
   end
   local spread = plan:materialise { device = opt.device, seed = opt.seed }
   local sampler = sampler_of(recipe, tide, opt, corpus, spread.data)
   local optim = optimiser(tide, opt, spread.params)
   local lock = tide.train.checkpoint.lock(opt.out, world)
   check_out(recipe, tide, opt)                  -- again: no other run writes there now
   return corpus, plan, nil, spread, sampler, optim, lock
end

-- Settles what is drawn from --steps, at the first start of a run: gone on with for longer it keeps
-- its learning rates. Tells what is not as it was asked for.
local function settle_schedule(log, opt, given, resumed)
   if opt.schedule_steps == 0 then opt.schedule_steps = opt.steps end
   local most = math.floor(opt.schedule_steps / 2)
   if opt.warmup and opt.warmup > most then
      log:once('--warmup %d is cut to %d, half of the %d steps of the schedule', opt.warmup, most,
         opt.schedule_steps)
   end
   opt.warmup = math.min(opt.warmup or 40, most)
   if resumed and not given.schedule_steps and opt.schedule ~= 'constant'
      and opt.steps ~= opt.schedule_steps then
      log:once("the learning rate follows the checkpoint's schedule of %d steps; --schedule-steps "
         .. '%d draws it anew', opt.schedule_steps, opt.steps)
   end
end

-- What --resume goes on from.
local function tell_resumed(log, tide, opt)
   if not opt.resume and not is_restart(opt) then return end
   local n = #tide.train.checkpoint.list(opt.out)
   log:once('going on from %s%s', tide.train.checkpoint.find(opt.resume_from or opt.out),
      n > 1 and not opt.resume_from and (', the newest of %d checkpoints'):format(n) or '')
end

-- The ranks of the run; on GPUs, each with its own if there are as many.
local function world_of(tide, opt)
   if opt.device ~= 'cuda' or opt.plan then return tide.dist.world() end
   return err.people({ 'E_DEVICE', 'E_UNSUPPORTED' }, function()
      return tide.dist.set_world(tide.dist.gpus())
   end)
end

local function gpus_text(opt, world)
   if opt.device ~= 'cuda' then return '' end
   return world.transport == 'nccl' and ', a GPU each, over NCCL' or ', all on one GPU'
end

-- The results of fn(...); memory that does not suffice is told with what takes less.
local function within_memory(fn, ...)
   local r = pack(pcall(fn, ...))
   if r[1] then return unpack(r, 2, r.n) end
   if err.is(r[2]) and r[2].code == 'E_NOMEM' then
      r[2].message = r[2].message .. '; a smaller --batch or --seq, more --accum, --recompute full '
         .. 'or --mesh.dp_shard needs less'
   end
   error(r[2], 0)
end

-- The paths of --data from the root of the file system.
local function absolute(data)
   if type(data) ~= 'table' then return data and fs.absolute(data) end
   local list = {}
   for i, path in ipairs(data) do list[i] = fs.absolute(path) end
   return list
end

-- given: options of the command line; resumed: what options_before returns, nil without --resume.
local function run(recipe, opt, parser, given, resumed)
   local tide = require 'tide'
   local before = resumed and resumed.options
   for _, o in ipairs { opt, before } do          -- the run goes on from any folder
      o.data = absolute(o.data)
   end
   local world = world_of(tide, opt)
   local ctx = tide.default()
   if opt.threads > 0 then ctx:set_nthread(opt.threads) end
   ctx:seed(opt.seed)
   local log = tide.util.log.new { rank = world.rank, size = world.size }
   for _, line in ipairs(before and parser:changes(before, opt, 'in the checkpoint') or {}) do
      log:once('%s', line)
   end
   settle_schedule(log, opt, given, resumed)
   local corpus, plan, price, spread, sampler, optim, lock =
      err.people({ 'E_ARG', 'E_IO', 'E_FORMAT', 'E_UNSUPPORTED', 'E_DEVICE', 'E_NOMEM' },
         within_memory, prepare, recipe, tide, opt, world, resumed)
   if opt.plan then
      if world.rank == 0 then io.stdout:write(tostring(plan), '\n', tostring(price), '\n') end
      return plan
   end
   log:once('%d file%s, %d training tokens; %d parameters (%s); %d rank%s', corpus.files,
      corpus.files == 1 and '' or 's', corpus.train.count, plan.numel, opt.dtype, world.size,
      world.size == 1 and '' or 's: ' .. plan:axes_text() .. gpus_text(opt, world))
   tell_resumed(log, tide, opt)
   launch.watch()
   local result = err.people({ 'E_ARG', 'E_IO', 'E_FORMAT', 'E_SHAPE', 'E_NOMEM' }, within_memory,
      tide.train.loop, {
      model = spread.model, parallel = spread.sharded, optim = optim, train = corpus.train,
      val = corpus.val, sampler = sampler,
      steps = opt.steps, accum = opt.accum, clip = opt.clip, out = opt.out,
      save_every = opt.save_every, keep = opt.keep, device = opt.device,
      val_every = opt.val_every > 0 and opt.val_every or opt.steps,
      val_windows = opt.val_windows, on_nonfinite = opt.on_nonfinite, comm = spread.comm,
      ctx = ctx, recipe = opt, resume = opt.resume_from or opt.resume and opt.out or nil,
      overwrite = opt.overwrite, log_every = opt.log_every,
      title = ('%d parameters'):format(plan.numel), lock = lock, async_save = opt.async_save,
      captured = opt.captured,
   })
   launch.unwatch()
   lock:release()
   finish(tide, opt, corpus, spread, result)
   return result
end

-- What belongs to one start of the program and not to the run: never taken from a checkpoint.
local own = { 'out', 'resume', 'resume_from', 'overwrite', 'threads', 'plan' }

local function names_mesh(given)
   for name in each(given) do
      if name:find '^mesh%.' then return true end
   end
   return false
end

-- The options kept in a checkpoint, as this program writes them.
local function kept_options(opt)
   local kept = require('tide.train.checkpoint').recipe(opt.resume_from or opt.out)
   for _, k in ipairs(own) do kept[k] = opt[k] end
   kept.recompute = kept.recompute and tostring(kept.recompute)     -- once a number
   kept.schedule_steps = kept.schedule_steps or kept.steps          -- once always the same
   return kept
end

-- Makes the path of the checkpoint that --resume-from names, and its run --out.
local function settle_resume(recipe, opt, given)
   if not opt.resume_from then
      if opt.resume then check_folder(recipe, opt.out) end
      return
   end
   local name, folder = opt.resume_from, require 'tide.train.folder'
   if name:find '^%d+$' then name = folder.name(tonumber(name)) end
   if not name:find('/', 1, true) then
      name = fs.join(opt.out, name)
   elseif not given.out then
      opt.out = name:gsub('/+[^/]*/*$', '')
   end
   if not folder.is_of(name, opt.out) then
      err.usage(recipe.name, '--resume-from %s is no checkpoint of the run in --out %s', name,
         opt.out)
   end
   opt.resume, opt.resume_from = true, name
end

-- The options that --resume puts in place of the defaults, and { options (those of the checkpoint),
-- other_mesh }. A mesh is one thing: giving one axis gives all of them, and what says how the
-- tensor-parallel axis is used goes with it.
local function options_before(recipe, opt, given)
   settle_resume(recipe, opt, given)
   if not opt.resume then return nil end
   local kept = err.people({ 'E_IO', 'E_FORMAT' }, kept_options, opt)
   local resumed = { options = kept, other_mesh = names_mesh(given) }
   if not resumed.other_mesh then return kept, resumed end
   local base = {}
   for k, v in each(kept) do base[k] = v end
   base.mesh = nil
   if opt.mesh.tp == 1 then base.sequence_parallel, base.async_tp = nil, nil end
   return base, resumed
end

-- All options of a recipe in the order of --help.
local function rows_of(recipe)
   local list = {}
   for _, rows in ipairs { before_model, recipe.model, after_model, setup.options } do
      for _, row in ipairs(rows) do
         -- --out: a folder with the name of the recipe
         list[#list + 1] = row[1] == 'out'
            and { 'out', row[2] .. recipe.name, row[3], also = row.also } or row
      end
   end
   return list
end

-- The program. recipe: name, title (for --help), model (rows of options, see util.args),
-- make(tide, opt, vocab, module options) -> model, fields ({ what errors call it, which option it
-- is, follows = true: from options, and cannot be given } each), root (folder of tide's own
-- sources). ...: as a script gets it.
function pretrain.main(recipe, ...)
   return args.main(function(...)
      local opt, parser, given, resumed = args.parse(recipe.name .. ': ' .. recipe.title,
         rows_of(recipe), { ... }, function(...) return options_before(recipe, ...) end)
      if not opt then return nil end
      settle_resume(recipe, opt, given)
      return run(recipe, opt, parser, given, resumed)
   end, ...)
end

return pretrain
