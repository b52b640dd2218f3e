-- nn.balance: the loss that balances experts, as transformers has it (numbers of
-- spec/golden/balance.py), on every mesh; and the shares of tokens of the experts.

local tide = require 'tide'
local case = require 'spec.lua.folder_case'
local each = require 'tide.util.each'
local inputs = require('spec.lua.decoder_case').inputs
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tmp = require 'spec.support.tmp'

local folders, golden = dofile 'spec/golden/folders.lua', dofile 'spec/golden/balance.lua'
local nn = tide.nn

local names = { 'gpt_oss', 'mixtral', 'olmoe', 'qwen2_moe', 'qwen3_moe', 'qwen3_moe_step' }

-- A row of the stored configurations with the loss that balances experts, or without it.
local function row_of(name, off)
   local text = folders[name].config
   local function set(field, value)
      local n
      text, n = text:gsub(('"%s":%%s*[%%w.]+'):format(field), ('"%s": %s'):format(field, value))
      assert(n == 1, field)
   end
   set('output_router_logits', off and 'false' or 'true')
   set('router_aux_loss_coef', golden.coef)
   return { config = text }
end

local function model_of(name, opts, off)
   return (case.model(row_of(name, off), opts or { dtype = 'f64' })):train()
end

-- Ids, labels and options of a call, of which the last tokens of the second row may be padding.
local function call_of(is_padded)
   local ids, labels = inputs()
   if not is_padded then return ids, labels, {} end
   local mask = tide.ones(ids.shape, { dtype = 'i64' })
   mask:narrow(1, 2, 1):narrow(2, 10 - golden.padding, golden.padding):zero_()
   return ids, labels:masked_fill(mask:eq(0), -100), { attention_mask = mask }
end

local function routers(model)
   local list = {}
   for _, e in ipairs(model:named_parameters()) do
      if e.field == 'router' then list[#list + 1] = e.param end
   end
   return list
end

local function check(want, model, loss)
   case.near(want.loss, loss:item(), 1e-8, 'loss')
   loss:backward()
   for i, router in ipairs(routers(model)) do
      local grad, n = router.grad:reshape(-1), router:numel()
      case.near(want.norms[i] * 1e3, grad:norm():item() * 1e3, 1e-6, 'norm')
      local stride = math.floor(n / golden.count)
      for k, v in ipairs(want.samples[i]) do
         case.near(v * 1e3, grad:at((k - 1) * stride + 1) * 1e3, 1e-6, 'sample')
      end
   end
end

describe('the loss that balances experts', function()
   for _, name in ipairs(names) do
      it('is that of transformers, with padding and without: ' .. name, function()
         for kind, want in each { whole = golden[name].whole, padded = golden[name].padded } do
            local ids, labels, opts = call_of(kind == 'padded')
            local model = model_of(name)
            check(want, model, model:loss(ids, labels, opts))
            -- a mean of its own, or a share of a count
            model:zero_grad()
            opts.count = nn.loss.count(labels)
            check(want, model, model:loss(ids, labels, opts))
         end
      end)
   end

   it('counts a recomputed layer once, and has the gradient of a loss that is scaled', function()
      local ids, labels = inputs()
      local want = golden.mixtral.whole
      for _, policy in ipairs { 'selective', 'mlp', 'full', 'every:2' } do
         local model = model_of 'mixtral'
         tide.parallel.recompute(model, policy)
         check(want, model, model:loss(ids, labels))
      end
      local model = model_of 'mixtral'
      local loss = model:loss(ids, labels)
      model:loss(ids, labels)                               -- another call in between
      tide.grad.backward(loss * 3)
      case.near(want.norms[1] * 3e3, routers(model)[1].grad:norm():item() * 1e3, 1e-6)
   end)

   it('is left out in eval mode, without recording, and of configurations without it', function()
      local ids, labels = inputs()
      local model = model_of 'olmoe'
      local plain = folders.olmoe.loss
      case.near(plain, tide.no_grad(model.loss, model, ids, labels):item(), 1e-9)
      case.near(plain, model:eval():loss(ids, labels):item(), 1e-9)
      case.near(plain, model_of('olmoe', nil, true):loss(ids, labels):item(), 1e-9)
      assert.is_nil(model:balance_way())
      assert.same({ coef = golden.coef, by_layer = false }, model:train():balance_way())
      model.config.router_aux_loss_coef = 0
      case.near(plain, model:loss(ids, labels):item(), 1e-9)
      local step = tide.train.step.new { model = model_of 'olmoe',
         optim = tide.optim.SGD(model, { lr = 0 }) }
      case.near(plain, step:evaluate({ 1 }, 1, function()
         return { ids = ids, labels = labels }
      end), 1e-9)
      assert.equal(4, #tide.train.sample.generate(model_of 'olmoe', { 1, 2 }, { tokens = 4 }))
   end)

   -- The losses that the loss of a batch has with the term and without it.
   local function both(loss_of)
      return loss_of(model_of 'mixtral'):item(), loss_of(model_of('mixtral', nil, true)):item()
   end

   it('has the statistics of each micro-batch, by its share of the labels', function()
      local ids, labels, opts = call_of(true)
      local function at(rows)
         return function(model)
            local o = { count = 13, attention_mask = opts.attention_mask:narrow(1, rows, 1) }
            return model:loss(ids:narrow(1, rows, 1), labels:narrow(1, rows, 1), o)
         end
      end
      local want = 0
      for rows = 1, 2 do want = want + (both(at(rows))) end
      local model = model_of 'mixtral'
      local batches = {}
      for rows = 1, 2 do
         batches[rows] = { ids = ids:narrow(1, rows, 1), labels = labels:narrow(1, rows, 1),
            attention_mask = opts.attention_mask:narrow(1, rows, 1) }
      end
      local n = nn.loss.count(labels)
      local step = tide.train.step.new { model = model,
         optim = tide.optim.SGD(model, { lr = 0 }) }
      case.near(want * 13 / n, step:run(batches).loss, 1e-9)
   end)

   it('is the mean of a term of each layer, if the configuration says so', function()
      local ids, labels = inputs()
      local function term(by_layer)
         local model = model_of 'mixtral'
         model.config.router_aux_loss_by_layer = by_layer
         local of = nn.balance.new {}
         local loss = model:loss(ids, labels, { balance = of })
         loss:backward()
         return (loss:item() - folders.mixtral.loss) / golden.coef, of, model
      end
      case.near(golden.mixtral.whole.term, term(nil), 1e-7)
      local got, of, model = term(true)
      local want, N = 0, ids:numel()
      for i, layer in ipairs(of.calls[1].layers) do
         local counts, probs = layer.counts:tolist(), layer.probs:tolist()
         for e = 1, 4 do want = want + 4 / 3 * counts[e] / N * probs[e] / N end
         assert.equal(i, layer.place)
      end
      case.near(want, got, 1e-7)
      -- the gradient of a router is that of the value
      local router = routers(model)[2]
      local h, grad, values = 1e-6, router.grad:at(3, 5), {}
      for k, off in ipairs { h, -2 * h } do
         tide.no_grad(function() router:select(1, 3):narrow(1, 5, 1):add_(off) end)
         values[k] = model:loss(ids, labels):item()
      end
      case.near(grad, (values[1] - values[2]) / (2 * h), 1e-6, 'gradient')
   end)

   it('is of each call, where calls share a balance', function()
      local ids, labels = inputs()
      local function half(model, rows, balance)
         return model:loss(ids:narrow(1, rows, 1), labels:narrow(1, rows, 1), { count = 15,
            balance = balance })
      end
      local function run(shared, model)
         local list = { half(model, 1, shared), half(model, 2, shared) }
         tide.grad.backward(list[1] + list[2])
         return { list[1]:item(), list[2]:item(), routers(model)[1].grad:norm():item() }
      end
      local want, of = run(nil, model_of 'mixtral'), nn.balance.new {}
      local got = run(of, model_of 'mixtral')
      for i = 1, 3 do case.near(want[i], got[i], 1e-12) end
      assert.equal(18 * 2 * 3, of:counts():sum():item())
      -- calls without a loss share the next term
      local model = model_of 'mixtral'
      local zero = tide.zeros({ 1 }, { dtype = 'f64' })
      for rows = 1, 2 do model(ids:narrow(1, rows, 1), { balance = of }) end
      local both_ = of:add(zero):item()
      local one = 0
      for rows = 1, 2 do
         model(ids:narrow(1, rows, 1), { balance = of })
         one = one + of:add(zero):item() / 2
      end
      case.near(one, both_, 1e-12)
      assert.equal(0, of:add(zero):item())
   end)

   it('is a part of the losses of distillation and of preference', function()
      local ids, labels = inputs()
      local with, without = both(function(model) return model:loss(ids, labels) end)
      local term = with - without
      local teacher = model_of('mixtral', nil, true):eval()
      local objective = nn.distil.objective { teacher = teacher, alpha = 0.5 }
      with, without = both(function(model)
         return objective(model, { ids = ids, labels = labels }, {})
      end)
      case.near(term, with - without, 1e-9, 'distillation')
      local pairs_ = nn.preference.objective {}
      local answers = tide.tensor({ { 0, 0, 0, 0, 0, 0, 0, 0, 0 }, { 1, 1, 1, 1, 1, 1, 1, 1, 1 } },
         { dtype = 'i64' })
      with, without = both(function(model)
         return pairs_(model, { ids = ids, labels = labels, answers = answers, pairs = 1,
            reference = { -1, -2 } }, { count = 1 })
      end)
      case.near(term, with - without, 1e-9, 'preference')
   end)

   it('is refused where routers have none, and without a count over ranks', function()
      local config = case.config(folders.glm4_moe)
      config.output_router_logits = true
      refused('E_ARG', 'output_router_logits', tide.model.glm4_moe, config)
      local ids, labels = inputs()
      refused('E_ARG', 'opts.count', function()
         model_of 'mixtral':loss(ids, labels, { balance = nn.balance.new {
            comm = { size = 2, rank = 0, transport = 'sim', all_reduce = function() end } } })
      end)
   end)

   -- On a rank: a step of the folder `dir` on a mesh with a batch of packed rows; writes the model
   -- to `out`. rate: so large that the change of a parameter is its gradient.
   local function step_on(rank, _, dir, mesh, out, opts, rate)
      local t = require 'tide'
      local model, made = t.model.load(dir, { mesh = mesh, plan = opts })
      local ids, labels = require('spec.lua.decoder_case').inputs()
      local docs = t.tensor({ { 1, 1, 1, 1, 2, 2, 2, 2, 2 }, { 1, 1, 1, 1, 1, 0, 0, 0, 0 } },
         { dtype = 'i64' })
      if made.data.size > 1 then
         local r = made.data.rank + 1
         ids, labels, docs = ids:narrow(1, r, 1), labels:narrow(1, r, 1), docs:narrow(1, r, 1)
      end
      local step = t.train.step.new { model = model:train(), parallel = made.sharded,
         comm = made.comm, optim = t.optim.SGD(made.params, { lr = rate }) }
      local r = step:run { { ids = ids, labels = labels, packed_seq_ids = docs } }
      if made.sharded or rank == 0 then t.model.save(made.sharded or model, out) end
      return { r.loss, r.experts.busiest, r.experts.idlest }
   end

   local meshes = {
      mixtral = { { 2, { dp = 2 } }, { 2, { cp = 2 } },
         { 4, { dp_shard = 2, tp = 2 }, { recompute = 'full' } } },
      qwen2_moe = { { 2, { dp_shard = 2 } }, { 2, { tp = 2 } },
         { 2, { dp_shard = 1, tp = 2 }, { tp = { sequence_parallel = true } } } },
   }

   it('is the same on every mesh, of packed rows with padding, too', function()
      local rate = 2 ^ 12
      for name, list in each(meshes) do
         tmp.with(function(dir)
            local model = model_of(name, { dtype = 'f32' })
            model.config.router_aux_loss_by_layer = name == 'mixtral' or nil
            tide.model.save(model, dir .. '/in')
            local before = tide.train.checkpoint.tensors(dir .. '/in/model.safetensors')
            local want = ranks.run(1, step_on, dir .. '/in', { dp_shard = 1 }, dir .. '/one', nil,
               rate)[1]
            local one = tide.train.checkpoint.tensors(dir .. '/one/model.safetensors')
            for i, row in ipairs(list) do
               local out = ('%s/out%d'):format(dir, i)
               for _, got in ipairs(ranks.run(row[1], step_on, dir .. '/in', row[2], out, row[3],
                  rate)) do
                  for k = 1, 3 do
                     case.near(want[k], got[k], 2e-6, ('%s, mesh %d, number %d'):format(name, i, k))
                  end
               end
               local after = tide.train.checkpoint.tensors(out .. '/model.safetensors')
               for key, t in each(one) do
                  local grad = t - before[key]
                  local off = (after[key] - t):abs():amax():item()
                  assert(off <= 2e-4 * grad:abs():amax():item() + 1e-3,
                     ('%s, mesh %d, %s: %g'):format(name, i, key, off))
               end
            end
         end)
      end
   end)
end)

describe('ranks that would balance apart', function()
   -- On a rank: a step of a mixture of experts with n(rank) micro-batches, or a loss of one's own.
   local function step_on(rank, _, is_own)
      local t = require 'tide'
      local model = t.model.mixtral({ vocab_size = 23, hidden_size = 8, num_hidden_layers = 1,
         num_attention_heads = 2, num_local_experts = 3, output_router_logits = true },
         { seed = 1 })
      local ids, labels = require('spec.lua.decoder_case').inputs()
      local step = t.train.step.new { model = model, optim = t.optim.SGD(model, { lr = 0 }),
         loss = is_own and function(m, batch, opts)
            return m:loss(batch.ids, batch.labels, { count = opts.count })
         end or nil }
      local b, batches = { ids = ids, labels = labels, count = 15 }, {}
      for i = 1, is_own and 1 or rank + 1 do batches[i] = b end
      step:run(batches)
   end

   it('are refused: other numbers of micro-batches, a loss that drops its options', function()
      for text, is_own in each { ['different numbers of micro-batches'] = false,
         ['called the model without opts.balance'] = true } do
         for _, row in ipairs(ranks.try(2, step_on, is_own)) do
            assert.matches(text, row.message, 1, true)
         end
      end
   end)
end)

describe('shares of tokens', function()
   it('are those of the busiest and the idlest expert of a layer, over micro-batches', function()
      local ids, labels = inputs()
      local model = model_of('mixtral', nil, true)
      local counts = 0
      for _, m in ipairs(model:named_modules()) do
         if m.module.route then
            m.module:hook_pre(function(self, x)
               local chosen = self:route(x:reshape(-1, 24)):reshape(-1)
               local here = tide.zeros({ 4 }):scatter_add(1, chosen, tide.ones { chosen:numel() })
               counts = { here:tolist(), counts }
            end)
         end
      end
      local step = tide.train.step.new { model = model,
         optim = tide.optim.SGD(model, { lr = 0 }) }
      local b = { ids = ids, labels = labels }
      local got, most, least = step:run({ b, b }).experts, 0, 1
      while counts ~= 0 do
         most = math.max(most, math.max(unpack(counts[1])) / 18)
         least = math.min(least, math.min(unpack(counts[1])) / 18)
         counts = counts[2]
      end
      assert.is_true(most > least)
      case.near(most, got.busiest, 1e-6)
      case.near(least, got.idlest, 1e-6)
      local dense = tide.model.llama { vocab_size = 23, hidden_size = 8, num_hidden_layers = 1,
         num_attention_heads = 2 }
      assert.is_nil(tide.train.step.new { model = dense,
         optim = tide.optim.SGD(dense, { lr = 0 }) }:run({ b }).experts)
   end)

   it('are of the tokens of a call: balance:counts()', function()
      local ids, labels = inputs()
      local of = nn.balance.new {}
      assert.is_nil(of:counts())
      model_of('olmoe', nil, true):loss(ids, labels, { balance = of })
      assert.same({ 3, 5 }, of:counts().shape)
      -- the last layer works on the tokens of the loss alone
      local n = nn.loss.count(labels)
      assert.same({ 18 * 3, 18 * 3, n * 3 }, of:counts():sum(2):tolist())
      local shares = nn.balance.shares(of:counts(), 3)
      assert.same({ 2 }, shares.shape)
   end)
end)
