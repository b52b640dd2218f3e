-- Correction biases of routers, which a step moves against the load of the experts.

local case = require 'spec.lua.folder_case'
local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'

local folders = dofile 'spec/golden/folders.lua'
local rows = { ids = { { 3, 1, 4, 1, 5, 9, 2, 6, 5 }, { 2, 7, 1, 8, 2, 8, 1, 8, 2 },
   { 1, 4, 1, 4, 2, 1, 3, 5, 6 }, { 5, 7, 7, 2, 1, 5, 6, 6, 4 } } }

local function biases(model)
   local list = {}
   for _, b in ipairs(model:named_buffers()) do
      if b.field == 'router_bias' then list[b.name] = b.buffer:tolist() end
   end
   return list
end

-- On a rank: makes a step of a folder on a mesh, whose rank 1 begins with other biases.
local function begin_apart(rank, _, dir, mesh)
   local t = require 'tide'
   local model, run = t.model.load(dir, { mesh = mesh })
   for _, b in ipairs(rank == 1 and model:named_buffers() or {}) do b.buffer:fill_(0.5) end
   t.train.step.new { model = model:train(), parallel = run.sharded, comm = run.comm,
      optim = t.optim.SGD(run.params, { lr = 0.1 }), router_bias_rate = 0.01 }
end

-- On a rank: three steps of a folder on a mesh, of whose labels some do not count. Returns the loss
-- and the biases.
local function train(_, _, dir, mesh, ids, accum, sequence)
   local t = require 'tide'
   local model, run = t.model.load(dir, { mesh = mesh, dtype = 'f64',
      plan = mesh.tp and { tp = { sequence_parallel = sequence } } or nil })
   local step = t.train.step.new { model = model:train(), parallel = run.sharded, comm = run.comm,
      optim = t.optim.SGD(run.params, { lr = 0.1 }), router_bias_rate = 0.01 }
   local n = #ids / run.data.size / accum
   local loss
   for _ = 1, 3 do
      local batches = {}
      for i = 1, accum do
         local first = run.data.rank * #ids / run.data.size + (i - 1) * n
         local part = t.tensor({ unpack(ids, first + 1, first + n) }, { dtype = 'i64' })
         local labels = t.nn.loss.shift(part)
         batches[i] = { ids = part, labels = labels:masked_fill(labels:eq(1), -100) }
      end
      loss = step:run(batches).loss
   end
   local list = {}
   for _, b in ipairs(model:named_buffers()) do
      if b.field == 'router_bias' then list[b.name] = b.buffer:tolist() end
   end
   return { loss = loss, biases = list }
end

local function check(want, got)
   assert.near(want.loss, got.loss, 1e-9)
   for name, list in each(want.biases) do
      for i, v in ipairs(list) do assert.near(v, got.biases[name][i], 1e-7, name) end
   end
end

describe('router_bias_rate', function()
   it('moves the bias of an expert towards the mean load of its layer', function()
      local model = case.model(folders.glm4_moe, { dtype = 'f64' }):train()
      local before = biases(model)
      local step = tide.train.step.new { model = model, router_bias_rate = 0.25,
         optim = tide.optim.SGD(model, { lr = 0 }) }
      local ids = tide.tensor(rows.ids, { dtype = 'i64' })
      local count = tide.nn.balance.new { whole = true }
      model:loss(ids, tide.nn.loss.shift(ids), { balance = count })
      local counts = count:counts():tolist()
      step:run { { ids = ids, labels = tide.nn.loss.shift(ids) } }
      local after, layer = biases(model), 0
      for _, b in ipairs(model:named_buffers()) do
         if b.field == 'router_bias' then
            layer = layer + 1
            local load = counts[layer]
            local mean = 0
            for _, n in ipairs(load) do mean = mean + n / #load end
            for e, n in ipairs(load) do
               local sign = n < mean and 1 or n > mean and -1 or 0
               assert.near(before[b.name][e] + 0.25 * sign, after[b.name][e], 1e-6)
            end
         end
      end
      assert.equal(#counts, layer)
   end)

   it('is the same on every mesh', function()
      tmp.with(function(dir)
         for _, name in ipairs { 'glm4_moe', 'deepseek_v3', 'nemotron_moe' } do
            local at = dir .. '/' .. name
            tide.model.save(case.model(folders[name], { dtype = 'f64' }), at)
            local want = ranks.run(1, train, at, { dp_shard = 1 }, rows.ids, 1)[1]
            for _, row in ipairs { { 1, { dp_shard = 1 }, 2 }, { 2, { dp = 2 }, 1 },
                                   { 2, { dp_shard = 2 }, 2 }, { 2, { cp = 2 }, 1 },
                                   { 2, { dp_shard = 1, tp = 2 }, 1 },
                                   { 2, { dp_shard = 1, tp = 2 }, 1, true } } do
               for _, got in ipairs(ranks.run(row[1], train, at, row[2], rows.ids, row[3],
                  row[4])) do check(want, got) end
            end
         end
      end)
   end)

   it('is refused where ranks begin with other biases', function()
      tmp.with(function(dir)
         tide.model.save(case.model(folders.glm4_moe), dir .. '/m')
         for _, mesh in ipairs { { dp = 2 }, { dp_shard = 2 } } do
            for _, row in ipairs(ranks.try(2, begin_apart, dir .. '/m', mesh)) do
               assert.matches('values', row.message, 1, true)
            end
         end
      end)
   end)

   it('evens out what a router alone does not', function()
      local function busiest(rate)
         local moe = tide.model.glm4_moe({ vocab_size = 23, hidden_size = 16,
            num_hidden_layers = 1, num_attention_heads = 2, head_dim = 8,
            moe_intermediate_size = 8, intermediate_size = 16, n_routed_experts = 8,
            num_experts_per_tok = 2, first_k_dense_replace = 0 }, { seed = 3 }):train()
         local step = tide.train.step.new { model = moe, router_bias_rate = rate,
            optim = tide.optim.AdamW(moe, { lr = 1e-2 }) }
         local ids = tide.tensor(rows.ids, { dtype = 'i64' })
         local out
         for _ = 1, 60 do
            out = step:run { { ids = ids, labels = tide.nn.loss.shift(ids) } }
         end
         return out.experts.busiest
      end
      assert.is_true(busiest(0.02) < busiest(0) - 0.05)
   end)

   it('is refused where routers have no bias, and with a loss that says nothing of them', function()
      local function make(name, more)
         local model = case.model(folders[name]):train()
         return tide.train.step.new, (require 'tide.util.copy')(more or {}, { model = model,
            optim = tide.optim.SGD(model, { lr = 1 }), router_bias_rate = 0.1 })
      end
      refused('E_ARG', { 'router_bias_rate', 'correction' }, make 'mixtral')
      for _, rate in ipairs { -1, 1e30, 0 / 0 } do
         refused('E_ARG', { 'router_bias_rate', ('%g'):format(rate) },
            make('glm4_moe', { router_bias_rate = rate }))
      end
      local new, opts = make('glm4_moe', { loss = function(model, batch, o)
         return model:loss(batch.ids, batch.labels, { count = o.count })
      end })
      local step = new(opts)
      local ids = tide.tensor(rows.ids, { dtype = 'i64' })
      refused('E_ARG', { 'router_bias_rate', 'opts.balance' }, step.run, step,
         { { ids = ids, labels = tide.nn.loss.shift(ids) } })
      -- a teacher that gets the balance of the step
      local teacher = case.model(folders.glm4_moe):train()
      new, opts = make('glm4_moe', { loss = function(model, batch, o)
         return model:loss(batch.ids, batch.labels, o)
            + teacher:loss(batch.ids, batch.labels, o):detach()
      end })
      step = new(opts)
      refused('E_STATE', { 'two models', 'opts.balance' }, step.run, step,
         { { ids = ids, labels = tide.nn.loss.shift(ids), count = 32 } })
   end)

   it('is refused for a model of one\'s own, and for adapters, which are saved without the biases',
      function()
      local Own = (require 'tide.class')('Own', tide.nn.Module)
      function Own:init()
         tide.nn.Module.init(self)
         self:child('moe', tide.nn.MoE { dim = 4, hidden = 4, experts = 3, topk = 1,
            score = 'sigmoid', correction = true })
      end
      function Own:loss(_, _, _) return self.moe(tide.ones { 2, 4 }):sum() end
      local function new(model)
         return tide.train.step.new { model = model, router_bias_rate = 0.1,
            optim = tide.optim.SGD(model, { lr = 1 }) }
      end
      refused('E_UNSUPPORTED', { 'router_bias_rate', 'has_experts' }, new, Own())
      local model = case.model(folders.glm4_moe)
      tide.nn.lora.attach(model, { rank = 2 })
      refused('E_UNSUPPORTED', { 'router_bias_rate', 'adapters' }, new, model)
   end)

   it('keeps the dtype of the biases in files of 16 bits', function()
      tmp.with(function(dir)
         local model = case.model(folders.nemotron_moe)
         local want = biases(model)
         tide.train.checkpoint.save(dir .. '/run', tide.train.state.collect { model = model,
            optim = tide.optim.SGD(model, { lr = 1 }), step = 1 })
         tide.model.save(model, dir .. '/m', { dtype = 'bf16' })
         tide.model.export(dir .. '/run', dir .. '/e', { dtype = 'f16' })
         for _, name in ipairs { 'm', 'e' } do
            assert.same(want, biases(tide.model.load(dir .. '/' .. name)))
         end
      end)
   end)

   it('leaves a layer with equal loads as it is, however many tokens there are', function()
      local moe = tide.nn.MoE { dim = 4, hidden = 4, experts = 169, topk = 1, score = 'sigmoid',
         correction = true }
      local counts = tide.full({ 1, 169 }, 99999)
      tide.nn.balance._correct(moe, counts, { [moe._key] = 1 }, 0.5)
      assert.equal(0, moe.router_bias:abs():amax():item())
   end)
end)
