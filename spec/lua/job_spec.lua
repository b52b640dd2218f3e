-- train.job in this process: what a start of a recipe makes of its words, of the run that is there,
-- and of mistakes.

local choice = require 'spec.deep.fuzz.choice'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local files = require 'spec.support.files'
local fs = require 'tide.util.fs'
local job = require 'tide.train.job'
local optim = require 'recipes.support.optim'
local options = require 'recipes.support.options'
local raised = require 'spec.support.raised'
local refused = require 'spec.support.refused'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'

local words = { { 'hidden_size', '--dim' }, { 'head_dim', '--dim / --heads', follows = true },
   { 'rank', '--lora.rank', field = true } }

-- What the options of the recipe have otherwise.
local changes = {}

-- Starts a recipe whose train is fn(job, opt); returns what it logs.
local function start(fn, ...)
   local out, host, stderr = {}, package.loaded['tide.host'], io.stderr
   package.loaded['tide.host'] = {}
   rawset(io, 'stderr', { write = function(_, ...) out[#out + 1] = table.concat { ... } end })
   local ok, e = pcall(job.main, { name = 'spec', title = 'a recipe', words = words, train = fn,
      options = options.all('spec', {}, changes) }, ...)
   rawset(io, 'stderr', stderr)
   package.loaded['tide.host'] = host
   if not ok then error(e, 0) end
   return table.concat(out)
end

-- Trains a small model as a recipe does, up to opt.steps.
local function train(self, opt)
   local model = tide.model.llama({ vocab_size = 16, hidden_size = 8, num_hidden_layers = 1,
      num_attention_heads = 1 }, { seed = 1 })
   local source = tide.data.tokens.memory(('\1\2\3\4'):rep(20), 1)
   local numel = model:num_parameters()
   local plan = { numel = numel, trained = numel, model = model }
   local run = self:run({ files = 2, train = source }, plan, { model = model,
      optim = tide.optim.AdamW(model, { lr = 1e-3 }),
      sampler = tide.data.sampler { count = source.count, seq = 4, batch = 2, seed = opt.seed } })
   for _ in run:steps() do end
   run:finish()
end

-- Runs fn with a folder that holds a run of 4 steps in `a`.
local function with_run(fn)
   tmp.with(function(dir)
      start(train, '--out', dir .. '/a', '--steps', '4', '--seq', '4', '--batch', '2')
      fn(dir, dir .. '/a')
   end)
end

-- The job and the options that a start gives to its recipe.
local function given(...)
   local self, opt
   local out = start(function(j, o) self, opt = j, o end, ...)
   return opt, self, out
end

describe('a start of a recipe', function()
   it('settles the schedule at the first start', function()
      for seed = 1, 20 do
         local pick = choice.drawn('job', seed)
         local steps, schedule = pick:int(1, 100), pick:pick { 0, 30, 200 }
         local warmup = pick:chance(0.7) and pick:int(0, 60) or nil
         local opt, self, out = given('--out', '/nowhere/x', '--steps', tostring(steps),
            '--schedule-steps', tostring(schedule), unpack(warmup and { '--warmup',
               tostring(warmup) } or {}))
         local n = schedule == 0 and steps or schedule
         local most = math.floor(n / 2)
         assert.same({ n, math.min(warmup or 40, most) }, { opt.schedule_steps, opt.warmup })
         assert.equal(warmup and warmup > most and ('--warmup %d is cut to %d, half of the %d '
            .. 'steps of the schedule\n'):format(warmup, most, n) or '', out)
         assert.same({ 'spec', true, true }, { self.name, self.first, self.resumed == nil })
         assert.is_false(self:is_restart() or self:is_same_run())
      end
   end)

   it('lets the rate fall to a tenth of its peak, or to --min-lr, which is below it', function()
      local function last(...)
         local rate
         start(function(self, opt)
            optim.make(self, opt, tide.nn.Linear(2, 2))
            rate = opt.min_lr
         end, '--out', '/nowhere/x', ...)
         return rate
      end
      assert.same({ 3e-4, 1e-5, 3e-5, 0 }, { last(), last('--lr', '1e-4'), last('--optim', 'lion'),
         last('--min-lr', '0') })
      refused('E_ARG', '--min-lr 0.001 is above --lr 0.0001; give a smaller one', last, '--lr',
         '1e-4', '--min-lr', '1e-3')
      assert.equal(1e-3, last('--lr', '1e-4', '--min-lr', '1e-3', '--schedule', 'constant'))
   end)

   it('refuses paths that a checkpoint cannot keep', function()
      for _, name in ipairs { 'out', 'data', 'tokenizer' } do
         refused('E_ARG', ('spec: --%s: expected a path in UTF-8'):format(name), start, error,
            '--out', '/nowhere/x', '--' .. name, '/nowhere/\255')
      end
   end)

   it('counts steps by epochs, unless they are said', function()
      for _, row in ipairs { { {}, 12 }, { { '--steps', '5' }, 5 } } do
         start(function(self, opt)
            opt.epochs = 3
            self:settle_epochs(8)
            assert.equal(row[2], opt.steps)
         end, '--out', '/nowhere/x', '--batch', '2', unpack(row[1]))
      end
      start(function(self, opt)
         opt.epochs, opt.schedule_steps = 1, 0
         self:settle_epochs(9)
         assert.same({ 5, 5, 2 }, { opt.steps, opt.schedule_steps, opt.warmup })
         self.resumed = {}
         self:settle_epochs(90)
         assert.equal(5, opt.steps)
         self.given = { epochs = 1 }
         self:settle_epochs(91)
         assert.equal(46, opt.steps)
         self.given, opt.steps = { steps = 0 }, 0          -- --steps 0 asks for epochs
         self:settle_epochs(9)
         assert.equal(5, opt.steps)
      end, '--out', '/nowhere/x', '--batch', '2')
      changes.default = { steps = 0 }
      start(function(self, opt)
         assert.same({ 0, 0, nil }, { opt.steps, opt.schedule_steps, opt.warmup })
         opt.epochs = 1
         self:settle_epochs(200)
         assert.same({ 100, 100, 40 }, { opt.steps, opt.schedule_steps, opt.warmup })
      end, '--out', '/nowhere/x', '--batch', '2')
      changes.default = nil
   end)

   it('makes paths absolute, and prints on the first rank', function()
      local opt, self = given('--out', '/nowhere/x', '--data', 'a', '--data', '/b',
         '--tokenizer', 'tok')
      assert.same({ { fs.absolute 'a', '/b' }, fs.absolute 'tok' }, { opt.data, opt.tokenizer })
      opt = given('--out', '/nowhere/x', '--data', 'a')
      assert.equal(fs.absolute 'a', opt.data)
      local out, real = {}, io.stdout
      rawset(io, 'stdout', { write = function(_, ...) out[#out + 1] = table.concat { ... } end })
      self:print 'a %d'
      self:print('b %d', 5)
      self.first = false
      self:print 'c'
      rawset(io, 'stdout', real)
      assert.same({ 'a %d\n', 'b 5\n' }, out)
   end)

   it('refuses options that do not go together', function()
      for text, list in each {
         ['--resume and --overwrite exclude each other'] = { '--resume', '--overwrite' } } do
         with_run(function(_, out)
            refused('E_ARG', text, given, '--out', out, unpack(list))
         end)
      end
   end)
end)

describe('the run that is there', function()
   it('is not written over, and goes on with its options', function()
      with_run(function(dir, out)
         local e = refused('E_ARG', ('spec: %s holds a run at step 4; add --resume, or choose '
            .. 'another --out, or --overwrite'):format(out), given, '--out', out)
         assert.is_true(e.brief)
         given('--out', out, '--overwrite')
         local opt, self, said = given('--out', out, '--resume')
         assert.same({ 4, 4, 4, 2, 2 }, { opt.steps, opt.schedule_steps, opt.seq, opt.batch,
            opt.warmup })
         assert.same({ true, true, '' }, { self:is_same_run(), self.resumed ~= nil, said })
         opt, self, said = given('--out', out, '--resume', '--steps', '6', '--lr', '1')
         assert.same({ 6, 4, 1 }, { opt.steps, opt.schedule_steps, opt.lr })
         assert.equal('--steps 4 in the checkpoint, now 6\n--lr 0.003 in the checkpoint, now 1\n'
            .. "the learning rate follows the checkpoint's schedule of 4 steps; --schedule-steps 6 "
            .. 'sets a new length\n', said)
         for _, more in ipairs { { '--schedule-steps', '6' }, { '--schedule', 'constant' } } do
            said = select(3, given('--out', out, '--resume', '--steps', '6', unpack(more)))
            assert.is_nil(said:find('follows the checkpoint', 1, true))
         end
         assert.is_false(self.resumed.other_mesh)
         opt, self = given('--out', out, '--resume', '--mesh.dp', '1')
         assert.same({ true, 4 }, { self.resumed.other_mesh, opt.seq })
         said = start(train, '--out', out, '--resume', '--steps', '6')
         assert.matches('2 files, 80 training tokens; 1304 parameters (f32); 1 rank\nresuming from '
            .. out .. '/step-00000004\n', said, 1, true)
         said = start(train, '--out', out, '--resume', '--steps', '8')
         assert.matches('step-00000006, the newest of 2 checkpoints\n', said, 1, true)
         files.write(dir .. '/x', '')
         fs.mkdirs('spec', dir .. '/pub')
         files.write(dir .. '/pub/config.json', '{}')
         refused('E_ARG', dir .. '/pub holds a published model', given, '--out', dir .. '/pub')
         refused('E_ARG', ('--out %s/step-00000006 is a checkpoint, not the folder of a run; give '
            .. '--resume-from'):format(out), given, '--out', out .. '/step-00000006')
         refused('E_ARG', 'is a checkpoint, not the folder of a run', given, '--out',
            out .. '/step-00000006', '--resume')
         e = refused('E_IO', 'no checkpoint in ' .. dir .. '/none', given, '--out', dir .. '/none',
            '--resume')
         assert.is_true(e.brief)
      end)
   end)

   it('says how long stages of a pipeline wait for few micro-batches', function()
      tmp.with(function(dir)
         local function said(accum)
            return start(train, '--out', dir .. '/' .. accum, '--steps', '1', '--seq', '4',
               '--batch', '2', '--mesh.pp', '2', '--accum', accum)
         end
         assert.matches('--accum 1: stages of the pipeline wait 50 % of a step; with --accum 8 '
            .. 'they wait 11 %', said '1', 1, true)
         assert.is_nil(said('2'):find('wait', 1, true))
      end)
   end)

   it('has a mesh, which is kept or given as a whole', function()
      with_run(function(_, out)
         local at = out .. '/step-00000004/'
         local state, manifest = fs.read_json('spec', at .. 'state.json'),
            fs.read_json('spec', at .. 'manifest.json')
         state.recipe.mesh.dp, state.recipe.sequence_parallel = 2, true
         state.recipe.pp = { layers = '1,3' }
         fs.write_json('spec', at .. 'state.json', state)
         manifest.files['state.json'] = { size = fs.size(at .. 'state.json'),
            xxh64 = fs.hash('spec', at .. 'state.json') }
         fs.write_json('spec', at .. 'manifest.json', manifest)
         refused('E_ARG', 'the mesh is that of the checkpoint: start as many ranks, or give the '
            .. 'mesh to resume on, e.g. --mesh.dp 1', given, '--out', out, '--resume')
         local opt = given('--out', out, '--resume', '--mesh.tp', '1')
         assert.same({ 0, false }, { opt.mesh.dp, opt.sequence_parallel or false })
         assert.is_nil(opt.pp.layers)
         opt = given('--out', out, '--resume', '--mesh.tp', '2')
         assert.same({ 0, 2, true }, { opt.mesh.dp, opt.mesh.tp, opt.sequence_parallel })
      end)
   end)

   it('goes on from an earlier checkpoint, or is forked', function()
      with_run(function(dir, out)
         local name = out .. '/step-00000004'
         for _, list in ipairs { { '--out', out, '--resume-from', '4' },
            { '--out', out, '--resume-from', 'step-00000004' }, { '--resume-from', name },
            { '--resume-from', name .. '/' }, { '--out', out, '--resume-from', name } } do
            local opt, self = given(unpack(list))
            assert.same({ name, out, true, true }, { (opt.resume_from:gsub('/$', '')), opt.out,
               opt.resume, self:is_same_run() })
         end
         local opt, self = given('--out', dir .. '/b', '--resume-from', name)
         assert.same({ dir .. '/b', false, 4 }, { opt.out, self:is_same_run(), opt.steps })
         start(train, '--out', dir .. '/b', '--resume-from', name, '--steps', '5')
         refused('E_ARG', ('--resume-from %s belongs to another run than the one in --out %s/b, '
            .. 'which is at step 5'):format(name, dir), given, '--out', dir .. '/b',
            '--resume-from', name)
         assert.equal(4, given('--resume-from', name).steps)
      end)
   end)
end)

describe('a mistake', function()
   local function caught(code, message)
      local e
      start(function(self)
         e = raised(self.check, self, err.raise, code, 'f', message)
      end, '--out', '/nowhere/x')
      return e
   end

   it('is told with the options that fields come from', function()
      for message, want in each {
         ['hidden_size 5 is odd'] = 'hidden_size 5 is odd (hidden_size is --dim)',
         ['read it on one rank'] = 'read it on one rank',
         ['rank: 9 is too large'] = 'rank: 9 is too large (rank is --lora.rank)',
         ["argument 'layers': expected 2"] = "argument 'layers': expected 2 (argument 'layers' is "
            .. '--pp.layers)',
         ['hidden_size (--dim) is odd'] = 'hidden_size (--dim) is odd',
         ['my_hidden_size is odd'] = 'my_hidden_size is odd',
         ['hidden_size must be even, or give head_dim'] =
            'hidden_size must be even (hidden_size is --dim)',
         ['head_dim and hidden_size'] = 'head_dim and hidden_size (hidden_size is --dim, head_dim '
            .. 'is --dim / --heads)', ['else'] = 'else' } do
         assert.same({ want, true, 'E_ARG' }, { caught('E_ARG', message).message,
            caught('E_ARG', message).brief, caught('E_ARG', message).code })
      end
      assert.equal('out of it; a smaller --batch or --seq, more --accum, --recompute selective or '
         .. 'full, or --mesh.dp_shard needs less', caught('E_NOMEM', 'out of it').message)
      assert.is_nil(caught('E_STATE', 'x').brief)
   end)

   it('outside of a check is brief where it is of files or devices', function()
      for code, brief in each { E_IO = true, E_FORMAT = true, E_PEER = true, E_ARG = false } do
         local e = raised(start, function() err.raise(code, 'f', 'm') end, '--out', '/nowhere/x')
         assert.equal(brief, e.brief == true, code)
      end
      local ok, e = pcall(start, function() error 'boom' end, '--out', '/nowhere/x')
      assert.is_false(ok)
      assert.matches('boom\nstack traceback:', tostring(e))
   end)
end)
