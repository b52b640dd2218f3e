-- Weights of files in f32 that 16-bit parameters round: masters begin from them on every mesh.

local tide = require 'tide'
local each = require 'tide.util.each'
local raised = require 'spec.support.raised'
local ranks = require 'spec.support.ranks'
local tmp = require 'spec.support.tmp'

local config = { vocab_size = 32, hidden_size = 16, intermediate_size = 32, num_hidden_layers = 1,
   num_attention_heads = 4, num_key_value_heads = 2 }

-- Calls fn(model in f32, its folder).
local function with_folder(fn, dtype)
   tmp.with(function(parent)
      local model = tide.model.llama(config, { seed = 3 })
      fn(model, tide.model.save(model, parent .. '/m', { dtype = dtype }))
   end)
end

-- Returns the run of a folder on one rank. change(model): called before it has bytes.
local function run_of(dir, dtype, change)
   local model = tide.model.load(dir, { dtype = dtype or 'bf16', device = 'null' })
   if change then change(model) end
   local run = tide.parallel.plan(model, { dp = 1 }):materialise { init = false }
   return tide.model.fill(run, dir)
end

local ids = tide.tensor({ { 3, 1, 4, 1, 5 } }, { dtype = 'i64' })

-- Makes a step; unused: a parameter that gets no gradient in it.
local function step(run, optim, unused)
   optim:zero_grad()
   run.model:loss(ids, ids):backward()
   for _, e in ipairs(run.model:named_parameters()) do
      if e.name == unused then e.param:drop_grad() end
   end
   optim:step()
end

-- Raises unless every master is the weight of `model`; but: a name that is left out.
local function same_masters(model, optim, but)
   local tensors, n = optim:state_dict(), 0
   for _, e in ipairs(model:named_parameters()) do
      local master = tensors[e.name .. '.master']
      if e.name ~= but then
         assert.is_true(master:equal(e.param:detach()), e.name)
         n = n + 1
      end
   end
   assert.is_true(n > 5)
end

-- Returns the first element of the embedding's master.
local function first_of(optim)
   return optim:state_dict()['model.embed_tokens.weight.master']:select(1, 1):select(1, 1):item()
end

-- On a rank: restores the checkpoint of dir/run in shards; returns this rank's shard of the norm.
local function norm_shard(_, _, dir)
   local t = require 'tide'
   local run = t.parallel.plan(t.model.load(dir, { dtype = 'bf16', device = 'null' }),
      { dp_shard = 2 }):materialise()
   local optim = t.optim.AdamW(run.params, { lr = 0 })
   t.train.state.restore({ model = run.model, optim = optim, parallel = run.sharded },
      t.train.checkpoint.load(dir .. '/run', { lazy = true }))
   local piece = run.sharded:state_dict()['model.norm.weight']
   return piece and piece:tolist() or {}
end

describe('weights in f32 of a model in bf16', function()
   for _, class in ipairs { 'AdamW', 'AdamW8bit', 'SGD', 'Lion', 'Adafactor', 'Muon' } do
      it('are the first masters: ' .. class, function()
         with_folder(function(model, dir)
            local run = run_of(dir)
            local optim = tide.optim[class](run.params, { lr = 0 })
            step(run, optim)
            same_masters(model, optim)
            for _, e in ipairs(run.model:named_parameters()) do
               local want = model:get(e.name:match '^(.*)%.'or '')[e.field]
               assert.is_true(e.param:detach():equal(want:detach():to 'bf16'))
            end
         end)
      end)
   end

   it('are what model.load gives with a mesh of one rank', function()
      with_folder(function(model, dir)
         local _, run = tide.model.load(dir, { dtype = 'bf16', mesh = { dp = 1 } })
         same_masters(model, tide.optim.AdamW(run.params, { lr = 1e-3 }))
      end)
   end)

   it('follow a parameter that is written before the first step', function()
      with_folder(function(_, dir)
         local run = run_of(dir)
         local optim = tide.optim.AdamW(run.params, { lr = 0 })
         local embedding = run.model:get 'model.embed_tokens'.weight
         tide.no_grad(function() embedding:detach():select(1, 1):fill_(0.75) end)
         step(run, optim)
         assert.equal(0.75, first_of(optim))
      end)
   end)

   it('are those of the last file that was read', function()
      with_folder(function(_, one)
         tmp.with(function(parent)
            local other = tide.model.llama(config, { seed = 4 })
            tide.model.save(other, parent .. '/other')
            local run = run_of(one)
            local optim = tide.optim.AdamW(run.params, { lr = 0 })
            step(run, optim)
            tide.model.fill(run, parent .. '/other')
            step(run, optim)
            same_masters(other, optim)
         end)
      end)
   end)

   it('outlive a checkpoint where a parameter has no update yet', function()
      with_folder(function(model, dir)
         local run, idle = run_of(dir), 'model.norm.weight'
         tide.no_grad(function() model.model.norm.weight:detach():fill_(1.0009) end)
         tide.model.save(model, dir, { overwrite = true })
         tide.model.fill(run, dir)
         local optim = tide.optim.AdamW(run.params, { lr = 0 })
         step(run, optim, idle)
         local saved = tide.train.state.collect { model = run.model, optim = optim, step = 1 }
         local again = tide.parallel.plan(tide.model.load(dir, { dtype = 'bf16',
            device = 'null' }), { dp = 1 }):materialise()
         local second = tide.optim.AdamW(again.params, { lr = 0 })
         tide.train.state.restore({ model = again.model, optim = second }, saved)
         step(again, second)
         same_masters(model, second)
         tide.train.checkpoint.save(dir .. '/run', saved)
         for _, shard in ipairs(ranks.run(2, norm_shard, dir)) do
            for _, v in ipairs(shard) do assert.near(1.0009, v, 1e-6) end
         end
      end)
   end)

   it('and state stay as they are where a state is refused', function()
      with_folder(function(_, dir)
         local run = run_of(dir)
         local optim = tide.optim.AdamW(run.params, { lr = 0.01 })
         step(run, optim)
         local tensors, meta = optim:state_dict()
         local before, other = {}, {}
         for k, t in each(tensors) do before[k], other[k] = t:clone(), t + 1 end
         other['model.norm.weight.m'] = tide.zeros { 3 }
         assert.equal('E_SHAPE', raised(optim.load_state_dict, optim, other, meta).code)
         for k, t in each((optim:state_dict())) do assert.is_true(t:equal(before[k]), k) end
      end)
   end)

   it('are those of the parameters where a state without them goes back to the beginning',
      function()
         with_folder(function(_, dir)
            local run = run_of(dir)
            local optim = tide.optim.AdamW(run.params, { lr = 1e-6 })
            step(run, optim)
            optim:load_state_dict({}, { kind = 'AdamW', steps = 0, counts = {} })
            optim.lr = 0
            step(run, optim)
            local tensors = optim:state_dict()
            for _, e in ipairs(run.model:named_parameters()) do
               local master = tensors[e.name .. '.master']
               assert.is_true(master:equal(e.param:detach():to 'f32'), e.name)
            end
         end)
      end)

   it('are not asked for of parameters that have a number as their name', function()
      local model, list = tide.model.llama(config, { seed = 3, dtype = 'bf16' }), {}
      for i, e in ipairs(model:named_parameters()) do list[i] = e.param end
      local optim = tide.optim.AdamW(list, { lr = 0.1 })
      local run = { model = model, optim = optim, step = 0 }
      assert.equal(0, tide.train.state.restore(run, tide.train.state.collect(run)))
   end)

   it('are not kept where nothing is rounded or trained', function()
      with_folder(function(_, dir)
         local frozen = run_of(dir, 'bf16', function(m) m:requires_grad_(false) end)
         for _, run in ipairs { run_of(dir, 'f32'), frozen } do
            assert.is_true(rawequal(run.params, run.model))
         end
      end)
      with_folder(function(_, dir)
         local run = run_of(dir)
         assert.is_true(rawequal(run.params, run.model))
      end, 'bf16')
   end)

   it('have one copy, and none for an optimiser without masters', function()
      with_folder(function(_, dir)
         local own = require 'tide.class' ('Plain', tide.optim.Optimizer)
         own.fields = { 'm' }
         function own:init(params)
            tide.optim.Optimizer.init(self, 'Plain', params, {}, { lr = 0 })
         end
         function own:update_parameter(weight, grad) weight:add_(grad, 0) end
         for class, bytes in each { [tide.optim.SGD] = 6, [own] = 6 } do
            collectgarbage()
            local ctx = tide.default()
            ctx:collect()
            local before, run = ctx:stats().live, run_of(dir)
            local optim = class(run.params, { lr = 0 })
            step(run, optim)
            optim:zero_grad()
            collectgarbage()
            ctx:collect()
            local kept = ctx:stats().live - before
            assert.is_true(kept <= bytes * run.model:num_parameters() * 1.1 + 8192, kept)
         end
      end)
   end)
end)
