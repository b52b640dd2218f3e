-- train.run: a loop that the caller drives is the loop that train.loop runs; figures and callbacks
-- of one's own; an orderly end whatever ends it.

local tide = require 'tide'
local bytes, data = tide.data.bytes, tide.data
local files = require 'spec.support.files'
local fs = require 'tide.util.fs'
local raised = require 'spec.support.raised'
local tmp = require 'spec.support.tmp'

local source = data.tokens.memory(bytes:encode(('the quick brown fox. '):rep(60), { width = 2 }), 2)

local function options(dir, more)
   local model = tide.model.llama({ vocab_size = 258, hidden_size = 8, num_hidden_layers = 1,
      num_attention_heads = 1, intermediate_size = 8 }, { seed = 1 })
   local o = {
      model = model, train = source, val = source, val_windows = 3, clip = 1, out = dir,
      optim = tide.optim.AdamW(model, { lr = 1e-2 }), steps = 6,
      sampler = data.sampler.new { count = source.count, seq = 8, batch = 2, seed = 2 },
      progress = { update = function() end, note = function() end, finish = function() end },
   }
   for k, v in pairs(more or {}) do o[k] = v end
   return o
end

-- metrics.jsonl without what depends on time and place.
local function metrics(dir)
   return (files.read(dir .. '/metrics.jsonl'):gsub('"tokens_per_second":[^,}]+,', '')
      :gsub('"memory_bytes":%d+', ''):gsub('"time":%d+', ''))
end

describe('train.run', function()
   it('driven by hand is train.loop', function()
      tmp.with(function(dir)
         local want = tide.train.loop(options(dir .. '/a', { val_every = 4, save_every = 2 }))
         local run = tide.train.run(options(dir .. '/b'))
         local seen = {}
         for s in run:steps() do
            seen[#seen + 1] = s.step
            assert.equal(s.step == 6, s.last)
            assert.equal(run.loss, s.loss)
            if s.last or s.step % 4 == 0 then assert.equal(run:evaluate(), s.val_loss) end
            if s.step % 2 == 0 then run:save() end
         end
         local got = run:finish()
         assert.same({ 1, 2, 3, 4, 5, 6 }, seen)
         for _, k in ipairs { 'step', 'loss', 'val_loss', 'interrupted' } do
            assert.equal(want[k], got[k])
         end
         assert.equal(dir .. '/b/step-00000006', got.folder)
         assert.equal(metrics(dir .. '/a'), metrics(dir .. '/b'))
         for _, name in ipairs { 'step-00000002', 'step-00000006' } do
            assert.equal(files.read(dir .. '/a/' .. name .. '/model.safetensors'),
               files.read(dir .. '/b/' .. name .. '/model.safetensors'))
         end
      end)
   end)

   it('removes the old run only for one that begins', function()
      tmp.with(function(dir)
         local out = dir .. '/a'
         tide.train.loop(options(out, { steps = 2 }))
         local folder = tide.train.checkpoint.find(out)
         for _, bad in ipairs { { captured = true }, { sampler = data.sampler.new {
            count = source.count + 99, seq = 8, batch = 2 } } } do
            bad.overwrite = true
            raised(tide.train.run, options(out, bad))
            assert.equal(folder, tide.train.checkpoint.find(out))
            tide.train.checkpoint.load(folder)
         end
      end)
   end)

   it('refuses, before a step, what its checkpoints cannot keep', function()
      tmp.with(function(dir)
         for where, v in pairs { ['recipe.f'] = { f = print }, ['recipe.at'] = { at = 'a\255' } } do
            local e = raised(tide.train.run, options(dir .. '/a', { recipe = v }))
            assert.equal('E_ARG', e.code)
            assert.matches("argument 'recipe'.* " .. where:match '%.(%w+)' .. ': ', e.message)
         end
         local o = options(dir .. '/a')
         o.model.config.made_by = print
         assert.matches("argument 'model.config'", raised(tide.train.run, o).message, 1, true)
         assert.is_false(fs.exists(dir .. '/a'))
         tide.train.run(options(nil, { recipe = { f = print } })):close()      -- nothing to keep
      end)
   end)

   it('goes on in parts, and from a checkpoint, to the same weights', function()
      tmp.with(function(dir)
         tide.train.loop(options(dir .. '/a'))
         local run = tide.train.run(options(dir .. '/b', { steps = 4 }))
         for _ in run:steps(2) do run:save() end
         for _ in run:steps() do run:metric('two', 2) end
         assert.equal(4, run:finish().step)
         run = tide.train.run(options(dir .. '/b', { resume = dir .. '/b' }))
         assert.equal(4, run.step)
         for s in run:steps(6) do assert.is_true(s.step > 4) end
         run:finish()
         assert.equal(files.read(dir .. '/a/step-00000006/model.safetensors'),
            files.read(dir .. '/b/step-00000006/model.safetensors'))
         local _, n = metrics(dir .. '/b'):gsub('"two":2', '')
         assert.equal(2, n)
      end)
   end)

   it('keeps figures of one\'s own in its metrics', function()
      tmp.with(function(dir)
         local run = tide.train.run(options(dir))
         assert.equal('E_STATE', raised(run.metric, run, 'early', 1).code)
         for s in run:steps(2) do
            run:metric('z_half', s.step / 2)
            run:metric('a', 7)
            for _, bad in ipairs { { 'loss', 1 }, { 'last', 1 }, { 'more', 1 }, { 'a b', 1 },
                                   { 'x', 'text' }, { 'x', 0 / 0 }, { 3, 1 } } do
               assert.equal('E_ARG', raised(run.metric, run, bad[1], bad[2]).code)
            end
         end
         run:finish()
         local last = files.read(dir .. '/metrics.jsonl'):match '([^\n]+)\n$'
         assert.matches('"memory_bytes":%d+,"tokens":%d+,"time":%d+,"a":7,"z_half":1}$', last)
         assert.equal(1, tide.train.metric.parse(last).z_half)
      end)
   end)

   it('calls back at steps, evaluations and saves', function()
      for _, async in ipairs { false, true } do
         tmp.with(function(dir)
            local calls = {}
            local function note(name)
               return function(run, v)
                  calls[#calls + 1] = ('%s %d %s'):format(name, run.step, type(v) == 'table'
                     and v.step or type(v) == 'string' and v:match '[^/]*$' or type(v))
               end
            end
            tide.train.loop(options(dir, { steps = 3, val_every = 2, save_every = 2,
               async_save = async, on_step = note 'step', on_evaluate = note 'evaluate',
               on_save = note 'save' }))
            table.sort(calls)
            local late = async and calls[3]:match 'save (%d)' or '2'
            assert.same({ 'evaluate 2 number', 'evaluate 3 number',
               'save ' .. late .. ' step-00000002', 'save 3 step-00000003', 'step 1 1', 'step 2 2',
               'step 3 3' }, calls)
         end)
      end
   end)

   it('counts the evaluations since the best one', function()
      tmp.with(function(dir)
         local o = options(dir, { keep_best = true, steps = 5 })
         o.optim = tide.optim.AdamW(o.model, { lr = 1 })          -- gets worse
         local run, want, most = tide.train.run(o), nil, 0
         for s in run:steps() do
            local loss = run:evaluate()
            if not want or loss < want.loss then
               want = { step = s.step, loss = loss, since = 0 }
            else
               want.since = want.since + 1
            end
            assert.same(want, run.best)
            most = math.max(most, want.since)
         end
         run:finish()
         assert.is_true(most >= 1)
      end)
   end)

   it('ends when validation has not improved for a while, as train.loop does', function()
      tmp.with(function(dir)
         local notes = {}
         local function over(name, more)
            local o = options(dir .. name, { patience = 2, steps = 40 })
            o.optim = tide.optim.AdamW(o.model, { lr = 3 })          -- gets worse
            o.progress.note = function(_, ...) notes[#notes + 1] = string.format(...) end
            for k, v in pairs(more or {}) do o[k] = v end
            return o
         end
         local run = tide.train.run(over '/a')
         for _ in run:steps() do run:evaluate() end
         assert.equal(2, run.best.since)
         assert.equal(run.best.step + 2, run.step)
         local text = ('ended at step %d: 2 evaluations since step %d were not better'):format(
            run.step, run.best.step)
         assert.equal(run.step, run:finish().step)
         assert.same({ text }, notes)
         assert.equal(run.step, tide.train.loop(over('/b', { val_every = 1 })).step)
         assert.same({ text, text }, notes)

         local again = tide.train.run(over('/a', { resume = dir .. '/a' }))
         for _ in again:steps() do assert.is_true(false) end
         assert.equal(run.step, again:finish().step)
         assert.equal(text, notes[#notes])

         local e = raised(tide.train.run, over('/c', { val = data.tokens.memory('', 2) }))
         assert.matches("argument 'val': expected data to evaluate on", e.message)
         e = raised(tide.train.loop, over '/c')
         assert.matches("argument 'val_every'", e.message)
      end)
   end)

   it('may be left early', function()
      tmp.with(function(dir)
         local run = tide.train.run(options(dir))
         for s in run:steps() do
            if s.step == 3 then break end
         end
         local r = run:finish()
         assert.equal(3, r.step)
         assert.is_false(r.interrupted)
         assert.equal(3, tide.train.checkpoint.load(dir).plain.step)
         local _, lines = metrics(dir):gsub('\n', '')
         assert.equal(3, lines)
         assert.equal('E_STATE', raised(run.save, run).code)
         assert.equal('E_STATE', raised(run.steps, run).code)
         run:close()
      end)
   end)

   it('lets others have its folder when it has failed, been closed, or not opened', function()
      tmp.with(function(dir)
         local o = options(dir)
         o.model.loss = function() error 'broken' end
         local run = tide.train.run(o)
         local _, e = pcall(function() for _ in run:steps() do end end)
         assert.matches('broken', e, 1, true)
         run = tide.train.run(options(dir, { overwrite = true }))
         assert.equal('E_ARG', raised(tide.train.run, options(dir)).code)       -- in use
         run:close()
         raised(tide.train.run, options(dir, { resume = dir .. '/none' }))
         local result = tide.train.loop(options(dir, { steps = 1 }))
         assert.equal(1, result.step)
         local ok = pcall(tide.train.loop, options(dir, { overwrite = true, on_step = function()
            error 'of a callback'
         end }))
         assert.is_false(ok)
         assert.equal(2, tide.train.loop(options(dir, { overwrite = true, steps = 2 })).step)
         assert.is_true(fs.exists(dir .. '/step-00000002'))
      end)
   end)

   it('ends its steps when interrupted', function()
      tmp.with(function(dir)
         local run = tide.train.run(options(dir))
         for s in run:steps() do
            if s.step == 2 then tide.default():interrupt() end
         end
         local r = run:finish()
         assert.is_true(r.interrupted)
         assert.equal(2, r.step)
         assert.equal(2, tide.train.checkpoint.load(dir).plain.step)
      end)
   end)

   it('refuses what it does not know', function()
      assert.matches("unknown option 'val_every'", raised(tide.train.run,
         options(nil, { val_every = 3 })).message, 1, true)
      assert.matches("argument 'on_save'", raised(tide.train.run,
         options(nil, { on_save = 3 })).message, 1, true)
      assert.equal('train.run', raised(tide.train.run, {}).op)
      local run = tide.train.run(options(nil))
      assert.equal('E_ARG', raised(run.steps, run, 1.5).code)
      assert.matches('call run:metric(name, value), with a colon',
         raised(run.metric, 'a', 1).message, 1, true)
      run:close()
   end)
end)
