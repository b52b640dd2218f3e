-- A training step in careless hands: replicas that would drift apart, tables that are not batches,
-- and what cannot be saved or scored, are errors that name function and argument.

local tide = require 'tide'
local ranks = require 'spec.support.ranks'

local head = [[
   local tide, world = require 'tide', require 'tide.comm'.world()
   local case = require 'spec.parallel.fsdp_case'
   local rank, n = world.rank, world.size
   local function make(o)
      local model = case.model { config = o.config }:materialise('cpu', o.seed or 1)
      if o.frozen then model.model.layers:at(o.frozen):requires_grad_(false) end
      local sharded = o.fsdp and tide.parallel.fully_shard(model, o.fsdp) or nil
      local optim = tide.optim.AdamW(o.params and o.params(model) or sharded or model,
         { lr = o.lr or 1e-3, weight_decay = o.decay })
      return tide.train.step.new { model = model, optim = optim, parallel = sharded,
         clip = o.clip or 1, loss_options = o.loss }
   end
]]

local function fails(words, body) ranks.fail(2, head .. body, words) end

describe('a step of replicas', function()
   it('is refused where they begin with other weights', function()
      fails('train.step.new: rank 1 has other values than rank 0', 'make { seed = 1 + rank }')
   end)

   it('is refused where they clip or update in another way', function()
      fails('rank 1 has other limits of the gradient norm (clip)', 'make { clip = 1 + rank }')
      fails('rank 1 has other options of the optimiser', 'make { lr = 1e-3 * (1 + rank) }')
      fails('rank 1 has other options of the optimiser', 'make { decay = 0.1 * rank }')
      fails('rank 1 has other options of the optimiser',
         "make { fsdp = { strategy = 'no_shard' }, lr = 1e-3 * (1 + rank) }")
   end)

   it('is refused in f16, whose gradients need a scaled loss, sharded or not', function()
      for _, fsdp in ipairs { 'nil', "{ mp_policy = { param_dtype = 'f16' } }" } do
         fails("is trained in f16, where gradients below 6e-8 become 0, and a step does not scale",
            ([[
            local model = case.model {}
            local fsdp = %s
            model:materialise('cpu', 1)
            if not fsdp then model:to 'f16' end
            local sharded = fsdp and tide.parallel.fully_shard(model, fsdp) or nil
            tide.train.step.new { model = model, parallel = sharded,
               optim = tide.optim.AdamW(sharded or model, { lr = 1e-3 }) }
         ]]):format(fsdp))
      end
   end)

   it('is refused where they take another loss', function()
      for _, fsdp in ipairs { 'nil', "{ strategy = 'optim' }" } do
         fails('rank 1 has other options of the loss', ([[
            make { fsdp = %s, loss = { label_smoothing = 0.1 * rank } } ]]):format(fsdp))
      end
   end)

   it('is refused where equal shapes are other parameters or compute other things', function()
      fails('rank 1 has other parameters than rank 0', 'make { frozen = 1 + rank }')
      fails('rank 1 has other modules than rank 0',
         'make { config = { rope_theta = 1000 + rank } }')
      -- module and field are named
      fails('config.rope_theta (rank 1: 1001; rank 0: 1000), model.rope.list',
         'make { config = { rope_theta = 1000 + rank } }')
      fails('model.layers.0.input_layernorm.weight (rank 1: [20] f32 trained; rank 0: [20] f32 '
         .. 'frozen)', 'make { frozen = 1 + rank }')
      fails('rank 1 has other parameters of the optimiser', [[
         make { params = function(model)
            local list = {}
            for _, p in ipairs(model:named_parameters()) do
               if p.name:find('layers.' .. rank, 1, true) then list[#list + 1] = p end
            end
            return list
         end }
      ]])
   end)

   it('is refused where their learning rates part, at the step where they do', function()
      for _, fsdp in ipairs { 'nil', "{ strategy = 'optim_grads_params' }" } do
         fails('ranks take different learning rates in step 3', ([[
            local run = make { fsdp = %s,
               lr = function(s) return s < 3 and 1e-3 or 1e-3 * (1 + rank) end }
            for s = 1, 2 do assert(run:run { case.batch(s, rank, n, 12) }.applied) end
            run:run { case.batch(3, rank, n, 12) }
         ]]):format(fsdp))
      end
      -- the same function, made by each rank, is the same
      for _, applied in ipairs(ranks.run(2, head .. [[
         local run = make { lr = tide.optim.schedule.cosine { lr = 1e-3, steps = 9, warmup = 3 } }
         local all = true
         for s = 1, 4 do all = all and run:run { case.batch(s, rank, n, 12) }.applied end
         return all
      ]])) do assert.is_true(applied) end
   end)

   it('is refused where the model is sharded and the step is not told', function()
      fails('train.step.new: the model is sharded; give parallel', [[
         local model = case.model():materialise('cpu', 1)
         local sharded = tide.parallel.fully_shard(model, {})
         tide.train.step { model = model, optim = tide.optim.AdamW(sharded, { lr = 1e-3 }) }
      ]])
   end)

   it('is refused where a loss reads a part of a weight as the whole', function()
      local body = [[
         local nn = tide.nn
         local Small = tide.class('Small', nn.Module)
         function Small:init()
            nn.Module.init(self)
            self.embed = nn.Embedding(6, 4, { init = false })
            self.head = nn.Linear(4, 6, { init = false, bias = false })
            self:ready { seed = 1 }
         end
         function Small:loss(ids, labels, opts)
            local x = self.embed(ids)
            if %s then return nn.loss.linear(x, self.head.weight, labels, opts) end
            return nn.loss.of_logits(self.head(x), labels, opts)
         end
         local model = tide.parallel.parallelize_module(Small(),
            tide.parallel.mesh({ tp = 2 }):axis 'tp', { head = 'colwise_rep' })
         local step = tide.train.step { model = model, comm = tide.comm.solo(),
            optim = tide.optim.AdamW(model, { lr = 1e-3 }) }
         local ids = tide.tensor({ { 0, 1, 2, 2 } }, { dtype = 'i64' })
         return step:run { { ids = ids, labels = ids, count = 4 } }.loss
      ]]
      fails('ranks of the tensor-parallel axis have different losses in their first step',
         body:format 'true')
      local got = ranks.run(2, head .. body:format 'false')
      assert.equal(got[1], got[2])
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

local function says(words, fn, ...)
   local ok, e = pcall(fn, ...)
   assert.is_false(ok)
   assert.is_truthy(tide.is_error(e), tostring(e))
   assert.is_truthy(tostring(e):find(words, 1, true), tostring(e))
end

describe('a run', function()
   local body = [[
      local ids = tide.data.bytes:encode(('\1\2\3'):rep(99), { width = 2 })
      local source = tide.data.tokens.memory(ids, 2)
      local model = case.model():materialise('cpu', 1)
      tide.train.loop { model = model, train = source, steps = 1,
         optim = tide.optim.AdamW(model, { lr = 1e-3 }), sampler = tide.data.sampler {
            count = source.count, seq = 8, batch = 2, seed = %s, rank = %s, size = %s } }
   ]]

   it('is refused where ranks draw from other orders of the data', function()
      fails('rank 1 has other samplers than rank 0', body:format('rank', 'rank', 'n'))
   end)

   it('is refused where every rank draws the whole batch', function()
      fails('the sampler shares each batch among 1 ranks, and the run has 2',
         body:format('1', '0', '1'))
   end)
end)

describe('a step', function()
   local case = require 'spec.parallel.fsdp_case'
   local new = tide.train.step.new

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

   it('takes a loss that is a tensor of one element only', function()
      local o, ids = parts(), tide.zeros({ 1, 2 }, { dtype = 'i64' })
      local run = new(o)
      for _, loss in ipairs { false, 3, tide.ones { 2 } } do
         o.model.loss = function() return loss or nil end
         says('expected a model whose loss(ids, labels, opts) returns a tensor of one element',
            run.run, run, { { ids = ids, labels = ids } })
      end
   end)

   it('takes batches with labels and a count only', function()
      local run, ids = new(parts()), tide.zeros({ 2, 3 }, { dtype = 'i64' })
      says("train.step: argument 'batches': expected a table", run.run, run)
      says("train.step: argument 'batches[1]': expected a table", run.run, run, { ids })
      says('expected a list of micro-batches, step:run { batch }, got one batch', run.run, run,
         { ids = ids, labels = ids, count = 6 })
      says('expected a list of micro-batches, step:run { batch }, got an empty list',
         run.run, run, {})
      says("argument 'batches[2].labels': expected a tensor, got nil", run.run, run,
         { { ids = ids, labels = ids }, { ids = ids } })
      says("argument 'batches[1].labels': expected a tensor", run.run, run,
         { { ids = ids, labels = { { 1, 2, 3 } }, count = 3 } })
      for _, count in ipairs { true, 'six', 0 / 0, -1, {} } do
         says("argument 'batches[1].count'", run.run, run,
            { { ids = ids, labels = ids, count = count } })
      end
      for _, name in ipairs { 'cu_seqlens', 'seq_lens_padded' } do
         says(("'%s' describes the documents of packed streams"):format(name), run.run, run,
            { { ids = ids, labels = ids, [name] = tide.tensor({ 0, 2, 6 }, { dtype = 'i32' }) } })
      end
      assert.is_true(run:run({ { ids = ids, labels = ids } }).applied)
      local none = tide.zeros({ 0, 3 }, { dtype = 'i64' })
      says("argument 'batches[1].labels': expected at least one row of tokens, got [0, 3]", run.run,
         run, { { ids = none, labels = none } })
      local source = tide.data.tokens.memory('abcd', 1)
      says("data.batch.make: argument 'starts': expected at least one", tide.data.batch.make,
         source, {}, 2)
      says("data.packed.make: argument 'rows': expected at least one", tide.data.packed.make,
         source, {}, 2)
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
   local case = require 'spec.parallel.fsdp_case'
   local train = tide.train

   it('is named where it is no saved state', function()
      for _, save in ipairs { train.checkpoint.save, train.checkpoint.save_async } do
         says("train.checkpoint.save: argument 'saved': expected a table", save, 'x', 3)
         says("argument 'saved.plain': expected a table", save, 'x', {})
      end
      says("train.checkpoint.verify: argument 'folder'", train.checkpoint.verify, 3)
      for _, name in ipairs { 'load', 'recipe', 'find', 'consolidate' } do
         says(("train.checkpoint.%s: argument 'where'"):format(name), train.checkpoint[name], 3)
      end
      local function saved() return { plain = { step = 1 }, model = {}, optim = {} } end
      for _, save in ipairs { train.checkpoint.save, train.checkpoint.save_async } do
         for _, comm in ipairs { true, 3, {} } do
            says("train.checkpoint.save: argument 'comm': expected a communicator", save, 'x',
               saved(), { comm = comm })
         end
         local odd = saved()
         odd.model = { w = 3 }
         says([[argument 'saved.model["w"]': expected a tensor, got 3]], save, 'x', odd)
         odd.model = nil
         says("argument 'saved.model': expected a table", save, 'x', odd)
         odd = saved()
         odd.plain.config = 3
         says("argument 'saved.plain.config': expected a table", save, 'x', odd)
      end
      says("train.checkpoint.lock: argument 'comm': expected a communicator",
         train.checkpoint.lock, 'x', true)
      says("train.state.collect: argument 'run': expected a table", train.state.collect, 3)
      says("train.state.collect: argument 'run.model'", train.state.collect, {})
      says("train.state.restore_model: argument 'sharded'", train.state.restore_model, {}, {})
      local whole = case.model():materialise('cpu', 1)
      local run = { model = whole, optim = tide.optim.SGD(whole), step = 0 }
      says('its tensors are not loaded (lazy = true)', train.state.restore, run,
         { plain = { step = 1 }, store = {} })
      local family = require 'tide.model.family'
      for _, odd in ipairs { 3, 'x', true, {} } do
         says("model.family.of: argument 'model': expected a module", family.of, odd)
         says("model.family.config: argument 'model'", family.config, odd)
      end
      says("argument 'plain': expected a table", family.saved, 'spec', 3)
      says("argument 'plain': expected a table", family.build, 'spec', 3)
      local round = { deep = {} }                        -- a table in itself is not followed
      round.deep.up = round
      assert.equal('{deep={}}', require 'tide.util.canonical'(round))
      says("train.state.restore: argument 'run'", train.state.restore, 3, {})
      says("train.state.restore: argument 'saved'", train.state.restore, run, 3)
      says("train.state.restore: argument 'saved.plain'", train.state.restore, run, {})
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
