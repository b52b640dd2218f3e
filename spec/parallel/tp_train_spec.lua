-- Training under tensor parallelism: 20 steps equal one rank's, and collectives overlap products.

local ranks = require 'spec.support.ranks'

-- On a rank: losses of 20 steps and, in doubles, the final weights against the whole model's. (In
-- f32 AdamW makes whole steps of gradients that are nothing but rounding, so only losses are held
-- to 1e-5 there, at half the rate; that it is rounding, doubles show at the full one.)
local function train(_, n, family, config, opts, recompute, dtype, hooked)
   local tide = require 'tide'
   local parallel = tide.parallel
   local axis = parallel.mesh({ { 'tp', n } }):axis 'tp'
   local lr = dtype == 'f64' and 1e-2 or 5e-3
   local function run(model)
      local optim = tide.optim.AdamW(model, { lr = lr, weight_decay = 0.01 })
      local losses = {}
      for step = 1, 20 do
         local ids = (tide.arange(2 * 11, { dtype = 'f64' }) * (0.9 + step)):sin():abs()
         ids = (ids * (config.vocab_size - 1)):long():reshape(2, 11)
         local loss = model:loss(ids, ids, { shift = true })
         loss:backward()
         losses[step] = loss:item()
         optim:step()
         optim:zero_grad()
      end
      return losses
   end
   local whole = tide.model[family](config, { seed = 5, dtype = dtype })
   local cut = tide.model[family](config, { seed = 5, dtype = dtype })
   parallel.tensor_parallel(cut, axis, opts)
   parallel.recompute(cut, recompute)
   for _, model in ipairs(hooked and { whole, cut } or {}) do
      model.lm_head:hook_post(function(_, _, logits) return logits * 0.9 end)
   end
   local want, got = run(whole), run(cut)
   for i = 1, 20 do
      local most = dtype == 'f64' and 1e-9 or 1e-5
      if math.abs(want[i] - got[i]) > most * want[i] then
         return ('step %d: %.9g, one rank %.9g'):format(i, got[i], want[i])
      end
   end
   if want[20] > 0.95 * want[1] then return 'nothing is learnt' end
   local weights = parallel.layout.gathered(cut)
   if dtype ~= 'f64' then return true end
   for _, e in ipairs(whole:named_parameters()) do
      local off = (weights[e.name] - e.param:detach()):norm():item() / e.param:norm():item()
      if off > 1e-8 then return ('%s: off by %g'):format(e.name, off) end
   end
   return true
end

-- On a rank: how many collectives of a gather and a product ran while a product did.
local function overlaps(_, n, async)
   local tide = require 'tide'
   local parallel = tide.parallel
   local axis = parallel.mesh({ { 'tp', n } }):axis 'tp'
   local model = tide.model.llama({ vocab_size = 64, hidden_size = 256, num_hidden_layers = 1,
      num_attention_heads = 8, intermediate_size = 1024 }, { seed = 1 })
   parallel.tensor_parallel(model, axis, { sequence_parallel = true, async_tp = async })
   local ids = tide.zeros({ 1, 512 }, { dtype = 'i64' })
   local linear, spans = tide.linear, {}
   tide.linear = function(...)
      local began = tide.clock()
      local y = linear(...)
      spans[#spans + 1] = { began, tide.clock() }
      return y
   end
   for _ = 1, 4 do tide.no_grad(function() return model:hidden(ids) end) end
   tide.linear = linear
   local count, ring = 0, 0
   for _, r in ipairs(axis.comm:history()) do
      if r.op == 'send_recv' and r.async then ring = ring + 1 end
      for _, s in ipairs(spans) do
         if r.begin < s[2] and r.finish > s[1] then
            count = count + 1
            break
         end
      end
   end
   return { count, ring }
end

-- On a rank of a mesh of two axes: gradients summed over dp against one rank on the whole batch.
local function two_axes(_, n, config)
   local tide = require 'tide'
   local parallel = tide.parallel
   local mesh = parallel.mesh { dp = n / 2, tp = 2 }
   local dp = mesh:axis 'dp'
   local ids = ((tide.arange(2 * n * 9, { dtype = 'f64' }) * 1.7):sin():abs() * 28):long()
      :reshape(2 * n, 9)
   local whole = tide.model.llama(config, { seed = 5 })
   local cut = tide.model.llama(config, { seed = 5 })
   parallel.tensor_parallel(cut, mesh:axis 'tp', { sequence_parallel = true, async_tp = true })
   local opts = { shift = true, count = 2 * n * 8 }
   whole:loss(ids, ids, opts):backward()
   local rows = 2 * n / dp.size
   local mine = ids:narrow(1, dp.rank * rows + 1, rows)
   cut:loss(mine, mine, opts):backward()
   local list = {}
   for i, p in ipairs(cut:parameters()) do list[i] = p.grad end
   dp.comm:all_reduce(list)
   local grads = parallel.layout.gathered(cut, true)
   for _, e in ipairs(whole:named_parameters()) do
      local off = (grads[e.name] - e.param.grad):norm():item() / e.param.grad:norm():item()
      if off > 1e-5 then return ('%s: off by %g'):format(e.name, off) end
   end
   return true
end

describe('training with tensor parallelism', function()
   local config = { vocab_size = 29, hidden_size = 24, num_hidden_layers = 2,
      num_attention_heads = 12, num_key_value_heads = 6, head_dim = 4, intermediate_size = 34 }

   it('equals one rank where a hook changes logits', function()
      for _, opts in ipairs { {}, { sequence_parallel = true } } do
         for _, ok in ipairs(ranks.run(2, train, 'llama', config, opts, 'none', 'f64', true)) do
            assert.equal(true, ok)
         end
      end
   end)

   local cases = {
      { 'llama', 2 }, { 'llama', 3, { sequence_parallel = true }, 'full' },
      { 'qwen3', 2, { sequence_parallel = true, async_tp = true }, 'mlp' },
      { 'gemma3', 3, { sequence_parallel = true } }, { 'phi3', 2, { sequence_parallel = true } },
   }
   for _, case in ipairs(cases) do
      local family, n, opts, recompute = unpack(case, 1, 4)
      it(('equals one rank: %s on %d ranks%s'):format(family, n,
         opts and ', the sequence cut' or ''), function()
         for _, dtype in ipairs { 'f32', 'f64' } do
            for _, ok in ipairs(ranks.run(n, train, family, config, opts, recompute, dtype)) do
               assert.equal(true, ok)
            end
         end
      end)
   end

   it('has whole gradients beside data parallelism', function()
      for _, ok in ipairs(ranks.run(4, two_axes, config)) do assert.equal(true, ok) end
   end)

   it('runs collectives and products at one time if it is asked to', function()
      local ordinary = ranks.run(2, overlaps, false)
      for r = 1, 2 do assert.same({ 0, 0 }, ordinary[r]) end
      -- On busy processors a block may arrive before the product begins: then once more.
      local seen = 0
      for _ = 1, 10 do
         local overlapped = ranks.run(2, overlaps, true)
         -- a ring of two ranks sends one block for each of the four pairs of a layer, four times
         for r = 1, 2 do assert.equal(16, overlapped[r][2]) end
         seen = math.min(overlapped[1][1], overlapped[2][1])
         if seen > 0 then break end
      end
      assert.is_true(seen > 0)
   end)

   -- Both ranks end with an error that says `words`; on a rank: fn(tide, axis, config).
   local function refused(words, body)
      local rows = ranks.try(2, [[
         local rank, _, cfg = ...
         local tide = require 'tide'
         local axis = tide.parallel.mesh({ tp = 2 }):axis 'tp'
         local function step_of(model)
            return tide.train.step.new { model = model, comm = tide.comm.solo(),
               optim = tide.optim.SGD(model, { lr = 0.1 }) }
         end
         local function batch(first)
            local ids = tide.arange(8, { dtype = 'i64' }):add(first):reshape(1, 8)
            return { ids = ids, labels = ids, count = 8 }
         end
      ]] .. body, config)
      for _, row in ipairs(rows) do assert.matches(words, row.message, 1, true) end
   end

   it('is refused where ranks have other models, seeds or batches', function()
      refused('different modules', [[
         cfg.rope_theta = 1000 + rank
         tide.parallel.tensor_parallel(tide.model.llama(cfg, { device = 'null' }), axis)
      ]])
      refused('different values', [[
         tide.parallel.tensor_parallel(tide.model.llama(cfg, { seed = rank }), axis)
      ]])
      refused('values of parameters that are not cut', [[
         local model = tide.model.llama(cfg, { device = 'null' })
         tide.parallel.tensor_parallel(model, axis)
         model:materialise('cpu', 1)
         tide.no_grad(function() model.model.norm.weight:fill_(rank) end)
         step_of(model)
      ]])
      refused('different seeds', [[
         local model = tide.model.llama(cfg, { device = 'null' })
         tide.parallel.tensor_parallel(model, axis)
         step_of(model:materialise('cpu', rank))
      ]])
      refused('tensor-parallel axis (2 ranks) were given different batches', [[
         local model = tide.parallel.tensor_parallel(tide.model.llama(cfg, { seed = 1 }), axis)
         local step = step_of(model)
         step:run { batch(1) }
         step:run { batch(1 + rank) }
      ]])
      refused('tensor-parallel axis (2 ranks) were given different batches', [[
         local run = tide.parallel.plan(tide.model.llama(cfg, { device = 'null' }), { tp = 2 })
            :materialise { seed = 1 }
         local step = tide.train.step.new { model = run.model, parallel = run.sharded,
            optim = tide.optim.SGD(run.params, { lr = 0.1 }) }
         step:run { batch(1 + rank) }
      ]])
      refused('context axis (2 ranks) were given different batches', [[
         local run = tide.parallel.plan(tide.model.llama(cfg, { device = 'null' }), { cp = 2 })
            :materialise { seed = 1 }
         local step = tide.train.step.new { model = run.model, parallel = run.sharded,
            comm = run.comm, optim = tide.optim.SGD(run.params, { lr = 0.1 }) }
         step:run { batch(1 + rank) }
      ]])
      -- equal rows that count, or are placed, in another way
      for _, change in ipairs { 'b.count = b.count + rank', [[
         b.positions = tide.arange(b.ids:size(2), { dtype = 'i64' }):reshape(1, b.ids:size(2))
            + rank ]] } do
         refused('tensor-parallel axis (2 ranks) were given different batches', ([[
            local model = tide.parallel.tensor_parallel(tide.model.llama(cfg, { seed = 1 }), axis)
            local step, b = step_of(model), batch(1)
            step:run { b }
            b.count = b.count or b.ids:numel()
            %s
            step:run { b }
         ]]):format(change))
      end
      refused('different plans', [[
         tide.parallel.tensor_parallel(tide.model.llama(cfg, { seed = 1 }), axis,
            { gather_logits = rank == 0 })
      ]])
   end)

   it('is refused where gradients would be added over the wrong ranks', function()
      local tide = require 'tide'
      local model = tide.model.llama(config, { seed = 1 })
      tide.parallel.tensor_parallel(model, { size = 2, rank = 0, comm = tide.comm.simulate(2, 0) })
      local function bad(text, changes)
         changes.model, changes.optim = model, tide.optim.SGD(model)
         local ok, e = pcall(tide.train.step.new, changes)
         assert.is_false(ok)
         assert.matches(text, tostring(e), 1, true)
      end
      bad('give comm', {})
      bad('clip needs the norm of all parts', { comm = tide.comm.solo(), clip = 1 })
      assert.is_true(pcall(tide.train.step.new, { model = model, optim = tide.optim.SGD(model),
         comm = tide.comm.solo() }))
   end)

   it('does so only when the sequence is cut', function()
      local tide = require 'tide'
      local model = tide.model.llama(config, { device = 'null' })
      local ok, e = pcall(tide.parallel.tensor_parallel, model,
         { size = 2, rank = 0, comm = tide.comm.simulate(2, 0) }, { async_tp = true })
      assert.is_false(ok)
      assert.matches('async_tp requires sequence_parallel', tostring(e), 1, true)
   end)
end)
