-- A training step in careless hands: replicas that would drift apart, batches that are none, and
-- what is saved or scored and cannot be, are errors that name function and argument.

local ranks = require 'spec.support.ranks'

local head = [[
   local tide, world = require 'tide', require 'tide.dist'.world()
   local case = require 'spec.parallel.fsdp_case'
   local rank, n = world.rank, world.size
   local function make(o)
      local model = case.model():materialise('cpu', o.seed or 1)
      local sharded = o.fsdp and tide.parallel.fully_shard(model, o.fsdp) or nil
      local optim = tide.optim.AdamW(sharded or model, { lr = o.lr or 1e-3,
         weight_decay = o.decay })
      return tide.train.step.new { model = model, optim = optim, parallel = sharded,
         clip = o.clip or 1 }
   end
]]

local function fails(words, body) ranks.fail(2, head .. body, words) end

describe('a step of replicas', function()
   it('is refused where they begin with other weights', function()
      fails('train.step.new: rank 1 has other weights than rank 0', 'make { seed = 1 + rank }')
   end)

   it('is refused where they clip or update in another way', function()
      fails('rank 1 has other limits of the gradient norm (clip)', 'make { clip = 1 + rank }')
      fails('rank 1 has other options of the optimiser', 'make { lr = 1e-3 * (1 + rank) }')
      fails('rank 1 has other options of the optimiser', 'make { decay = 0.1 * rank }')
      fails('rank 1 has other options of the optimiser',
         "make { fsdp = { strategy = 'no_shard' }, lr = 1e-3 * (1 + rank) }")
   end)

   it('takes pieces that fall into other groups', function()
      local got = ranks.run(8, head .. [[
         local run = make { fsdp = {} }
         local r = run:run { case.batch(1, rank, n, 24) }
         return r.applied
      ]])
      for _, applied in ipairs(got) do assert.is_truthy(applied) end
   end)
end)

describe('a step', function()
   local tide = require 'tide'
   local case = require 'spec.parallel.fsdp_case'
   local new = tide.train.step.new

   local function says(words, fn, ...)
      local ok, e = pcall(fn, ...)
      assert.is_false(ok)
      assert.is_truthy(tide.is_error(e), tostring(e))
      assert.is_truthy(tostring(e):find(words, 1, true), tostring(e))
   end

   local function parts()
      local model = case.model():materialise('cpu', 1)
      return { model = model, optim = tide.optim.AdamW(model, { lr = 1e-3 }) }
   end

   it('needs options, and a communicator that is one', function()
      says("train.step.new: argument 'options': expected a table", new)
      for _, comm in ipairs { true, 3, 'world', {} } do
         local o = parts()
         o.comm = comm
         says("train.step.new: argument 'comm': expected a communicator", new, o)
      end
   end)

   it('takes batches with labels and a count only', function()
      local run, ids = new(parts()), tide.zeros({ 2, 3 }, { dtype = 'i64' })
      says("train.step: argument 'batches': expected a table", run.run, run)
      says("train.step: argument 'batches[1]': expected a table", run.run, run, { ids })
      says("argument 'batches[2].labels': expected a tensor, got nil", run.run, run,
         { { ids = ids, labels = ids }, { ids = ids } })
      says("argument 'batches[1].labels': expected a tensor", run.run, run,
         { { ids = ids, labels = { { 1, 2, 3 } }, count = 3 } })
      for _, count in ipairs { true, 'six', 0 / 0, -1, {} } do
         says("argument 'batches[1].count'", run.run, run,
            { { ids = ids, labels = ids, count = count } })
      end
      assert.is_true(run:run({ { ids = ids, labels = ids } }).applied)
   end)

   it('evaluates what it is given windows, their number and a function for', function()
      local run = new(parts())
      says("train.step.evaluate: argument 'starts': expected a table", run.evaluate, run, 3, 1,
         print)
      says("train.step.evaluate: argument 'batch'", run.evaluate, run, { 1 }, 0, print)
      says("train.step.evaluate: argument 'make'", run.evaluate, run, { 1 }, 1)
      says("argument 'batch of make': expected a table", run.evaluate, run, { 1 }, 1,
         function() end)
   end)
end)

describe('what a step saves and scores', function()
   local tide = require 'tide'
   local train = tide.train

   local function says(words, fn, ...)
      local ok, e = pcall(fn, ...)
      assert.is_false(ok)
      assert.is_truthy(tide.is_error(e), tostring(e))
      assert.is_truthy(tostring(e):find(words, 1, true), tostring(e))
   end

   it('is named where it is no saved state', function()
      for _, save in ipairs { train.checkpoint.save, train.checkpoint.save_async } do
         says("train.checkpoint.save: argument 'saved': expected a table", save, 'x', 3)
         says("argument 'saved.plain': expected a table", save, 'x', {})
      end
      says("train.checkpoint.verify: argument 'folder'", train.checkpoint.verify, 3)
      says("train.state.restore: argument 'run'", train.state.restore, 3, {})
      says("train.state.restore: argument 'saved'", train.state.restore, {}, 3)
      says("train.state.restore: argument 'saved.plain'", train.state.restore, {}, {})
   end)

   it('is named where it is no model', function()
      local model = require 'spec.parallel.fsdp_case'.model():materialise('cpu', 1)
      says("train.score.logprob: argument 'model': expected a module", train.score.logprob, 3,
         { 1, 2 }, { seq = 2 })
      for _, sharded in ipairs { true, 3, {} } do
         says("train.score.logprob: argument 'sharded'", train.score.logprob, model, { 1, 2 },
            { seq = 2, sharded = sharded })
      end
   end)
end)

describe('an option with few values', function()
   it('is never a tensor, however often that is asked', function()
      local err, t = require 'tide.util.err', require 'tide'.ones { 2 }
      for _ = 1, 500 do
         local ok = pcall(err.choice, 'op', 'dtype', t, { 'f32', 'f64', 'bf16', 'f16' })
         assert.is_false(ok)
      end
   end)
end)
