-- train: accumulation, ranks, exact resumption, interruption, steps that are not finite, sampling.

local tide = require 'tide'
local bytes = require 'tide.tokenizer.bytes'
local data = require 'tide.data'
local fs = require 'tide.util.fs'
local leak = require 'spec.support.leak'
local tmp = require 'spec.support.tmp'
local raised = require 'spec.support.raised'

local step, sample = tide.train.step, tide.train.sample
local loop = tide.train.loop

local function new_model(opts)
   return tide.model.llama({
      vocab_size = 258, hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2,
      intermediate_size = 32, max_position_embeddings = 32, tie_word_embeddings = true,
   }, opts or { seed = 1 })
end

local text = ('the quick brown fox jumps over the lazy dog. '):rep(40)
local source = data.tokens.memory(bytes:encode(text, { width = 2 }), 2)

local function new_sampler(rank, size)
   return data.sampler.new {
      count = source.count, seq = 16, batch = 4, seed = 2, rank = rank, size = size,
   }
end

local function weights(model)
   local list = {}
   for i, e in ipairs(model:named_parameters()) do list[i] = e.param:to_string_bytes() end
   return list
end

local function largest_difference(a, b)
   local worst = 0
   local other = b:state_dict()
   for name, t in pairs(a:state_dict()) do
      worst = math.max(worst, (t:detach() - other[name]):abs():amax():item())
   end
   return worst
end

local function batches(sampler, parts)
   local list = {}
   for i, starts in ipairs(data.batch.split(sampler:next(), parts)) do
      list[i] = data.batch.make(source, starts, sampler.seq)
   end
   return list
end

describe('data.batch', function()
   it('has labels one token further on', function()
      local b = data.batch.make(source, { 0, 10 }, 8)
      assert.same({ text:byte(1, 8) }, b.ids:tolist()[1])
      assert.same({ text:byte(2, 9) }, b.labels:tolist()[1])
      assert.same({ text:byte(11, 18) }, b.ids:tolist()[2])
      assert.equal(16, b.count)
      assert.equal('i64', b.ids.dtype)
   end)

   it('reads ids beyond a byte, and of 32 bits', function()
      local s16 = data.tokens.memory('\1\1\0\0\2\0', 2)
      assert.same({ { 257, 0 } }, data.batch.make(s16, { 0 }, 2).ids:tolist())
      local s32 = data.tokens.memory('\1\1\1\0\5\0\0\0', 4)
      assert.same({ { 65793 } }, data.batch.make(s32, { 0 }, 1).ids:tolist())
   end)

   it('spreads evaluation windows and refuses uneven splits', function()
      assert.same({ 0, 16, 32 }, data.batch.windows({ count = 49 }, 16, 10))
      assert.same({ 0, 80 }, data.batch.windows({ count = 161 }, 16, 2))
      assert.same({}, data.batch.windows({ count = 16 }, 16, 2))
      assert.equal('E_ARG', raised(data.batch.split, { 1, 2, 3 }, 2).code)
   end)
end)

describe('train.step', function()
   local function run(parts, n)
      local model = new_model()
      local s = step.new {
         model = model, optim = tide.optim.SGD(model, { lr = 0.1 }), clip = 1,
      }
      local sampler, last = new_sampler(), nil
      for _ = 1, n do last = s:run(batches(sampler, parts)) end
      return model, last
   end

   it('gives the same with and without accumulation', function()
      local a, ra = run(1, 3)
      local b, rb = run(4, 3)
      assert.is_true(math.abs(ra.loss - rb.loss) < 1e-5)
      assert.is_true(largest_difference(a, b) < 1e-6)
   end)

   it('keeps nothing but gradients of a micro-batch', function()
      local model = new_model()
      local s = step.new { model = model, optim = tide.optim.AdamW(model, { lr = 1e-3 }) }
      local sampler = new_sampler()
      leak.interpret()
      finally(leak.compile)
      s:run(batches(sampler, 2))
      leak.mark()
      local after = {}
      for i = 1, 6 do
         s:run(batches(sampler, 2))
         after[i] = leak.since()
      end
      assert.equal(after[2], after[6])
   end)

   -- Two ranks in one Lua state: coroutines that meet in all_reduce, sums in rank order.
   local function two_ranks(n)
      local models, routines, waiting = {}, {}, {}
      for rank = 0, 1 do
         local comm = {
            rank = rank, size = 2,
            all_reduce = function(_, t) coroutine.yield(type(t) == 'table' and t or { t }) end,
         }
         routines[rank + 1] = coroutine.create(function()
            local model = new_model()
            models[rank + 1] = model
            local s = step.new {
               model = model, optim = tide.optim.SGD(model, { lr = 0.1 }), clip = 1, comm = comm,
            }
            local sampler = new_sampler(rank, 2)
            local last
            for _ = 1, n do last = s:run(batches(sampler, 1)) end
            return last
         end)
      end
      local results = {}
      while coroutine.status(routines[1]) ~= 'dead' do
         for r = 1, 2 do
            local ok, value = coroutine.resume(routines[r])
            assert(ok, value)
            waiting[r], results[r] = value, value
         end
         if coroutine.status(routines[1]) ~= 'dead' then
            for i, t in ipairs(waiting[1]) do
               t:add_(waiting[2][i])
               waiting[2][i]:copy_(t)
            end
         end
      end
      return models, results
   end

   it('gives on two ranks what it gives on one', function()
      local one, r1 = run(1, 3)
      local models, r2 = two_ranks(3)
      assert.is_true(math.abs(r1.loss - r2[1].loss) < 1e-5)
      assert.is_true(math.abs(r1.grad_norm - r2[1].grad_norm) < 1e-4)
      assert.equal(r2[1].loss, r2[2].loss)
      assert.is_true(largest_difference(one, models[1]) < 1e-6)
      assert.equal(0, largest_difference(models[1], models[2]))
   end)

   it('counts only labels that are not ignored', function()
      local model = new_model()
      local s = step.new { model = model, optim = tide.optim.SGD(model, { lr = 0 }) }
      local ids = tide.tensor({ { 1, 2, 3, 4 } }, { dtype = 'i64' })
      local labels = tide.tensor({ { 2, -100, 4, -100 } }, { dtype = 'i64' })
      local want = model:loss(ids, labels):item()
      assert.is_true(math.abs(want - s:run({ { ids = ids, labels = labels } }).loss) < 1e-6)
      assert.matches("argument 'position_ids': expected nil, as the model gets positions from the "
         .. "field 'positions' of a batch", raised(s.run, s, { { ids = ids, labels = labels,
            position_ids = ids } }).message, 1, true)
      labels:fill_(-100)
      assert.equal('E_ARG', raised(s.run, s, { { ids = ids, labels = labels } }).code)
   end)

   it('leaves parameters untouched by a step that is not finite', function()
      local model = new_model()
      local s = step.new { model = model, optim = tide.optim.AdamW(model, { lr = 1e-3 }) }
      tide.no_grad(function() model.model.norm.weight:fill_(1 / 0) end)
      local before = weights(model)
      local r = s:run(batches(new_sampler(), 1))
      assert.is_false(r.applied)
      assert.same(before, weights(model))
   end)

   it('evaluates in eval mode without recording', function()
      local model = new_model()
      local s = step.new { model = model, optim = tide.optim.SGD(model, { lr = 0 }) }
      local starts = data.batch.windows(source, 16, 5)
      local function make(list) return data.batch.make(source, list, 16) end
      local a, b = s:evaluate(starts, 5, make), s:evaluate(starts, 2, make)
      assert.is_true(math.abs(a - b) < 1e-5)
      assert.is_true(model.training)
      assert.equal(0, #s.optim:grads())
   end)
end)

-- A run in `dir`; opts override what loop.run gets.
local function train(dir, steps, opts)
   tide.default():seed(3)
   local model = new_model()
   local o = {
      model = model, train = source, val = source, sampler = new_sampler(), steps = steps,
      optim = tide.optim.AdamW(model, {
         lr = tide.optim.schedule.cosine { lr = 1e-2, steps = 12, warmup = 2 },
      }),
      out = dir, clip = 1, val_windows = 4,
      progress = tide.train.progress.new { steps = steps, quiet = true, tty = false },
   }
   for k, v in pairs(opts or {}) do o[k] = v end
   return o.model, loop(o)
end

describe('train.loop', function()
   it('learns, evaluates, saves and writes its metrics', function()
      tmp.with(function(dir)
         local _, r = train(dir, 12, { val_every = 6, save_every = 5, keep = 2 })
         assert.equal(12, r.step)
         assert.is_true(r.loss < 5 and r.val_loss < 5)
         assert.same({ 'step-00000010', 'step-00000012' }, tide.train.checkpoint.list(dir))
         local n, val = 0, 0
         for line in io.lines(dir .. '/metrics.jsonl') do
            local record = tide.train.metric.parse(line)
            n = n + 1
            assert.equal(n, record.step)
            if record.val_loss then val = val + 1 end
         end
         assert.equal(12, n)
         assert.equal(2, val)
         assert.is_true(fs.exists(dir .. '/loss.svg'))
      end)
   end)

   it('refuses to resume on other data or in other steps', function()
      tmp.with(function(dir)
         train(dir, 2)
         local function refused(other, name)
            other.resume = dir
            local e = raised(train, dir, 4, other)
            assert.equal('E_ARG', e.code)
            assert.is_true(e.brief)
            assert.matches('--' .. name .. ':', e.message, 1, true)
         end
         local changed = text:sub(1, -2) .. '!'
         refused({ train = data.tokens.memory(bytes:encode(changed, { width = 2 }), 2) }, 'data')
         local function sampler_with(k, v)
            local o = { count = source.count, seq = 16, batch = 4, seed = 2 }
            o[k] = v
            return data.sampler.new(o)
         end
         refused({ sampler = sampler_with('batch', 2) }, 'batch')
         refused({ sampler = sampler_with('seq', 8) }, 'seq')
         refused({ sampler = sampler_with('seed', 3) }, 'seed')
         local _, r = train(dir, 4, { resume = dir })
         assert.equal(4, r.step)
      end)
   end)

   it('resumes to the last bit', function()
      tmp.with(function(dir)
         local straight = train(nil, 12)
         train(dir .. '/a', 7)
         local resumed, r = train(dir .. '/a', 12, { resume = dir .. '/a' })
         assert.equal(12, r.step)
         assert.same(weights(straight), weights(resumed))
      end)
   end)

   it('does nothing when it is already there', function()
      tmp.with(function(dir)
         train(dir, 3)
         local _, r = train(dir, 3, { resume = dir })
         assert.equal(3, r.step)
         assert.is_nil(r.loss)
      end)
   end)

   it('ends after the present step when interrupted, with a checkpoint', function()
      tmp.with(function(dir)
         local sampler = new_sampler()
         local plain = sampler.next
         sampler.next = function(self)
            if self.position == 8 then tide.default():interrupt() end
            return plain(self)
         end
         local _, r = train(dir, 12, { sampler = sampler })
         assert.is_true(r.interrupted)
         assert.equal(3, r.step)
         assert.equal(3, tide.train.checkpoint.load(dir).plain.step)
         assert.is_false(tide.default():interrupted())
      end)
   end)

   it('stops or goes on when a step is not finite', function()
      tmp.with(function(dir)
         local sampler = new_sampler()
         local model = new_model()
         local plain = model.loss
         model.loss = function(self, ...)
            local l = plain(self, ...)
            return sampler.position == 12 and l * (0 / 0) or l
         end
         local o = { model = model, sampler = sampler,
                     optim = tide.optim.AdamW(model, { lr = 1e-3 }) }
         local e = raised(train, dir, 5, o)
         assert.equal('E_STATE', e.code)
         assert.matches('step 3', e.message, 1, true)
         sampler.position = 0
         o.optim, o.on_nonfinite = tide.optim.AdamW(model, { lr = 1e-3 }), 'skip'
         local _, r = train(dir, 5, o)
         assert.equal(5, r.step)
         local records = {}
         for line in io.lines(dir .. '/metrics.jsonl') do
            records[#records + 1] = tide.train.metric.parse(line)
         end
         assert.equal(1, records[3].skipped)
         assert.is_nil(records[4].skipped)
      end)
   end)

   it('writes over no run unless it is told to', function()
      tmp.with(function(dir)
         train(dir, 4, { save_every = 2 })
         fs.write('spec', dir .. '/note', 'mine')
         local before = fs.read('spec', dir .. '/metrics.jsonl')
         local e = raised(train, dir, 2)
         assert.equal('E_ARG', e.code)
         assert.matches(('%s holds a run at step 4; give resume = %q to go on'):format(dir, dir),
            e.message, 1, true)
         os.remove(dir .. '/LATEST')
         assert.matches('holds a run at step 4', raised(train, dir, 2).message, 1, true)
         assert.equal(before, fs.read('spec', dir .. '/metrics.jsonl'))
         assert.equal(2, #tide.train.checkpoint.list(dir))
         local _, r = train(dir, 3, { overwrite = true })
         assert.equal(3, r.step)
         assert.same({ 'step-00000003' }, tide.train.checkpoint.list(dir))
         assert.equal('mine', fs.read('spec', dir .. '/note'))
         assert.matches('exclude each other', raised(train, dir, 4,
            { overwrite = true, resume = dir }).message, 1, true)
         train(dir .. '/other', 5, { resume = dir })
         assert.equal('E_ARG', raised(train, dir, 5, { resume = dir .. '/other' }).code)
         train(dir, 6, { resume = dir .. '/other', overwrite = true })
         assert.same({ 'step-00000006' }, tide.train.checkpoint.list(dir))
      end)
   end)

   it('goes on from an earlier checkpoint and keeps the later ones aside', function()
      tmp.with(function(dir)
         local straight = train(dir, 8, { save_every = 2 })
         local notes = {}
         local progress = { update = function() end, finish = function() end,
            note = function(_, fmt, ...) notes[#notes + 1] = fmt:format(...) end }
         local again, r = train(dir, 8, { resume = dir .. '/step-00000004', save_every = 2,
            progress = progress })
         assert.equal(8, r.step)
         assert.same(weights(straight), weights(again))
         assert.same({ 'the run continues from step 4; its later checkpoints are kept in ' .. dir
            .. '/aside-1' }, notes)
         assert.same({ 'step-00000006', 'step-00000008' },
            tide.train.checkpoint.list(dir .. '/aside-1'))
         local n = 0
         for _ in io.lines(dir .. '/aside-1/metrics.jsonl') do n = n + 1 end
         assert.equal(8, n)
         assert.same({ 'step-00000002', 'step-00000004', 'step-00000006', 'step-00000008' },
            tide.train.checkpoint.list(dir))
         local model = train(dir .. '/aside-1', 8, { resume = dir .. '/aside-1' })
         assert.same(weights(straight), weights(model))
         train(dir, 9, { resume = dir .. '/' })           -- the newest: nothing moves
         assert.is_false(fs.exists(dir .. '/aside-2'))
      end)
   end)

   -- A folder in the place of loss.svg, and a model whose loss fails at step 3.
   local function failing(dir)
      fs.mkdirs('spec', dir .. '/loss.svg')
      local model = new_model()
      local plain, calls = model.loss, 0
      model.loss = function(self, ...)
         calls = calls + 1
         if calls == 3 then error 'the real cause' end
         return plain(self, ...)
      end
      return { model = model, optim = tide.optim.AdamW(model, { lr = 1e-3 }) }
   end

   it('says what failed first, not what failed after it', function()
      tmp.with(function(dir)
         local _, e = pcall(train, dir, 5, failing(dir))
         assert.matches('the real cause', e, 1, true)
         local _, traces = e:gsub('stack traceback', '')
         assert.equal(1, traces)
         assert.is_nil(e:find('loss.svg', 1, true))
         local o = failing(dir)
         o.progress = setmetatable({}, { __index = function() error 'no progress' end })
         assert.matches('no progress', select(2, pcall(train, dir, 5, o)), 1, true)
      end)
   end)

   it('does not end for a plot or for metrics that cannot be written', function()
      tmp.with(function(dir)
         fs.mkdirs('spec', dir .. '/loss.svg')
         fs.io().symlink('/dev/full', dir .. '/metrics.jsonl')
         local notes = {}
         local progress = { update = function() end, finish = function() end,
            note = function(_, fmt, ...) notes[#notes + 1] = fmt:format(...) end }
         local real = rawget(os, 'remove')
         rawset(os, 'remove', function() end)            -- the link stays
         finally(function() rawset(os, 'remove', real) end)
         local _, r = train(dir, 5, { save_every = 2, progress = progress })
         assert.equal(5, r.step)
         assert.equal(5, tide.train.checkpoint.load(dir).plain.step)
         assert.equal(3, #notes)
         assert.matches('cannot write metrics.jsonl: No space left', notes[1], 1, true)
         assert.matches("cannot write loss.svg: .*it is a folder", notes[2])
         assert.equal('warning: 5 lines of metrics.jsonl are lost', notes[3])
      end)
   end)

   it('refuses data that the model has no ids for, before anything goes', function()
      tmp.with(function(dir)
         train(dir, 2)
         local wide = data.tokens.memory(('a\0\2\1'):rep(100), 2)
         for _, name in ipairs { 'train', 'val' } do
            local e = raised(train, dir, 3, { [name] = wide, overwrite = true })
            assert.equal('E_ARG', e.code)
            assert.matches(("argument '%s': token 1 is id 258"):format(name), e.message, 1, true)
         end
         assert.equal(2, tide.train.checkpoint.load(dir).plain.step)
      end)
   end)

   it('tells of validation data that is too short for a window', function()
      local notes = {}
      local progress = { update = function() end, finish = function() end,
         note = function(_, fmt, ...) notes[#notes + 1] = fmt:format(...) end }
      train(nil, 1, { progress = progress, val = data.tokens.memory('a\0b\0c\0', 2) })
      assert.same({ 'nothing is evaluated: the validation data has 3 tokens, a window needs 17' },
         notes)
   end)

   it('asks for a loss of a model of a class of its own', function()
      local model = tide.nn.Linear(2, 2)
      local e = raised(train, nil, 1, { model = model,
         optim = tide.optim.SGD(model, { lr = 1 }) })
      assert.equal('E_ARG', e.code)
      assert.matches('a model with a method loss(ids, labels, { count = n })', e.message, 1, true)
   end)

   it('refuses bad options by name', function()
      assert.matches("did you mean 'steps'", raised(train, nil, 1, { stesp = 1 }).message, 1, true)
      assert.equal('E_ARG', raised(train, nil, 1.5).code)
      assert.equal('E_ARG', raised(train, nil, 1, { accum = 0 }).code)
      assert.equal('E_ARG', raised(train, nil, 1, { on_nonfinite = 'ignore' }).code)
      assert.equal('E_IO', raised(train, '/proc/nowhere', 1).code)
   end)
end)

describe('train.sample', function()
   it('draws by probability', function()
      local logits = { 0, math.log(2), math.log(4), -50 }
      assert.equal(2, sample.pick(logits, 0.3, { temperature = 0 }))
      assert.equal(2, sample.pick(logits, 4 / 7 - 1e-3, {}))
      assert.equal(1, sample.pick(logits, 4 / 7 + 1e-3, {}))
      assert.equal(0, sample.pick(logits, 6 / 7 + 1e-3, {}))
      assert.equal(1, sample.pick(logits, 0.999, { top_k = 2 }))
      assert.equal(2, sample.pick(logits, 0.999, { top_p = 0.5 }))
      assert.equal(2, sample.pick(logits, 0.9, { temperature = 0.1 }))
   end)

   it('continues the same with a cache as without, and past its context', function()
      local model = new_model()
      local prompt = { 5, 6, 7 }
      local got = sample.generate(model, prompt, { tokens = 20, temperature = 0, context = 12 })
      assert.equal(20, #got)
      local want, seen = {}, { 5, 6, 7 }
      for i = 1, 9 do
         local logits = model(tide.tensor({ seen }, { dtype = 'i64' }))
         want[i] = logits:select(2, #seen):argmax(-1):item()
         seen[#seen + 1] = want[i]
      end
      assert.same(want, { unpack(got, 1, 9) })
      local a = sample.generate(model, prompt, { tokens = 5, seed = 1 })
      assert.same(a, sample.generate(model, prompt, { tokens = 5, seed = 1 }))
   end)

   it('stops at an id, and refuses bad input', function()
      local model = new_model()
      local got = sample.generate(model, { 1 }, { tokens = 5, temperature = 0 })
      assert.same({}, sample.generate(model, { 1 }, { tokens = 5, temperature = 0, stop = got[1] }))
      assert.equal('E_ARG', raised(sample.generate, model, {}, {}).code)
      assert.equal('E_ARG', raised(sample.generate, model, { 1 }, { temperature = -1 }).code)
      assert.equal('E_ARG', raised(sample.generate, model, { 1 }, { top_p = 0 }).code)
   end)
end)
