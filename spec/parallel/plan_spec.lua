-- Plans: checked before anything changes, priced by simulation, and what they price is what runs.

local tide = require 'tide'
local canonical = require 'tide.util.canonical'
local leak = require 'spec.support.leak'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'

local plan_of = tide.parallel.plan

local config = { vocab_size = 37, hidden_size = 24, num_hidden_layers = 2,
   num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 27 }

local function make(mesh, opts, n)
   opts = opts or {}
   opts.ranks = n
   return plan_of({ family = 'llama', config = config }, mesh, opts)
end

-- On a rank: bytes and collectives of a step of `accum` micro-batches, by plan and by count.
local function measure(_, _, cfg, axes, opts, accum, dtype)
   local t = require 'tide'
   local each = require 'tide.util.each'
   local plan = t.parallel.plan({ family = 'llama', config = cfg, dtype = dtype }, axes, opts)
   local mesh = t.parallel.mesh(axes)
   local rank = mesh.comm.rank
   local want = plan:price { batch = 2, seq = 7, accum = accum, rank = rank }
   local run = plan:materialise { seed = 3 }
   local comms, seen = {}, {}
   local function add(comm)
      if comm.size > 1 and not seen[comm] then
         comms[#comms + 1], seen[comm] = comm, true
      end
   end
   add(run.mesh.comm)
   for _, comm in each(run.mesh.comms) do add(comm) end
   for _, axis in each(run.mesh.flat) do add(axis.comm) end
   if run.sharded and run.sharded.small_comm then add(run.sharded.small_comm) end
   local sizes = { f32 = 4, bf16 = 2 }
   local function size(x) return x:numel() * sizes[x.dtype] end
   local function gradients()                -- of the shards, and whole ones that are not reduced
      local n = 0
      local function count(p) n = n + (p.grad ~= nil and size(p.grad) or 0) end
      for _, entry in ipairs(run.params:named_parameters()) do count(entry.param) end
      for _, entry in ipairs(run.sharded and run.sharded.entries or {}) do count(entry.view) end
      return n
   end
   local function traffic()
      local calls, bytes = 0, 0
      for _, comm in ipairs(comms) do
         local one = comm:traffic()
         calls, bytes = calls + one.ncall, bytes + one.nbyte[1] + one.nbyte[2]
      end
      return calls, bytes
   end
   local optim = t.optim.AdamW(run.params, { lr = 1e-3 })
   local ids = t.zeros({ 2, 7 }, { dtype = 'i64' })
   local calls, bytes = traffic()
   local kept = { parameters = 0, gradients = 0, optimizer = 0 }
   for i = 1, accum do
      if run.sharded then
         run.sharded:set_requires_gradient_sync(i == accum or run.sharded.opts.sync_each_backward)
      end
      local held = { t.scope(function()
         run.model:loss(ids, ids, { count = 14 }):backward()
         if run.sharded then run.sharded:finish() end
         return unpack(optim:grads())
      end) }
      if not run.sharded and i == accum and run.data.size > 1 and #held > 0 then
         run.data:all_reduce(optim:grads())
      end
      kept.gradients = math.max(kept.gradients, gradients())
   end
   local calls2, bytes2 = traffic()
   optim:step()
   for _, entry in ipairs(run.params:named_parameters()) do
      for _, field in ipairs(optim.fields) do
         local s = optim.state[entry.name][field]
         kept.optimizer = kept.optimizer + (s and size(s) or 0)
      end
      if not run.sharded then kept.parameters = kept.parameters + size(entry.param) end
   end
   for _, unit in ipairs(run.sharded and run.sharded:all_units() or {}) do
      for _, b in ipairs(unit.buckets) do
         if not b.flat:is_gone() then kept.parameters = kept.parameters + size(b.flat) end
         if b.full and not b.is_whole or b.opts.dtype ~= b.opts.shard_dtype then
            kept.parameters = kept.parameters + size(b.shard)
         end
      end
   end
   local n = 0
   for _, c in each(want.collectives) do n = n + c end
   local wrong = {}
   local function same(what, a, b)
      if a ~= b then wrong[#wrong + 1] = ('%s: %s, planned %s'):format(what, a, b) end
   end
   same('collectives', calls2 - calls, n)
   same('bytes sent', bytes2 - bytes, want.wire)
   for _, k in ipairs { 'parameters', 'gradients', 'optimizer' } do
      if math.abs(kept[k] - want[k]) > 0.02 * want[k] then same(k, kept[k], want[k]) end
   end
   return wrong
end

describe('the price of a plan', function()
   local cases = {
      { 2, { dp = 2 }, {} },
      { 2, { dp_shard = 2 }, { fsdp = { strategy = 'no_shard' } } },
      { 3, { dp_shard = 3 }, { fsdp = { strategy = 'optim' } } },
      { 2, { dp_shard = 2 }, { fsdp = { strategy = 'optim_grads' } } },
      { 3, { dp_shard = 3 }, { fsdp = {}, recompute = 'mlp' } },
      { 4, { dp_replicate = 2, dp_shard = 2 }, { fsdp = {} } },
      { 2, { tp = 2 }, {} },
      { 4, { dp_shard = 2, tp = 2 }, { tp = { sequence_parallel = true }, recompute = 'full',
         fsdp = {} } },
      { 2, { dp_shard = 1, tp = 2 }, { tp = { sequence_parallel = true, async_tp = true },
         fsdp = { strategy = 'optim_grads' } } },
      { 2, { dp_shard = 2 }, { fsdp = { mp_policy = { param_dtype = 'bf16',
         reduce_dtype = 'f32' } } } },
      { 4, { dp_shard = 4 }, { fsdp = { reshard_after_forward = 2 } } },
      { 4, { dp_replicate = 2, dp_shard = 2 }, { fsdp = { reshard_after_forward = false } } },
      { 2, { dp_shard = 2 }, { fsdp = { sync_each_backward = false,
         check_for_nan_in_grad = true } } },
      { 2, { dp_shard = 2 }, { fsdp = { strategy = 'optim', grad_reduce_in_fp32 = true,
         preserve_fp32_weights = false, mp_policy = { param_dtype = 'bf16' } } } },
      { 2, { dp_shard = 2 }, { fsdp = { preserve_fp32_weights = false } }, 'bf16' },
      { 2, { dp = 2 }, {}, 'bf16' },
   }
   for _, case in ipairs(cases) do
      local n, axes, opts, dtype = unpack(case)
      for _, accum in ipairs { 1, 4 } do
         it(('is what runs: %s %s %s, %d micro-batches'):format(canonical(axes), canonical(opts),
            dtype or 'f32', accum),
            function()
               for _, wrong in ipairs(ranks.run(n, measure, config, axes, opts, accum, dtype)) do
                  assert.same({}, wrong)
               end
            end)
      end
   end

   it('counts the state of an optimiser, and what its update sends and needs', function()
      local function compare(rank, _, cfg, axes, kind, fsdp)
         local t, every = require 'tide', require 'tide.util.each'
         local plan = t.parallel.plan(t.model.llama(cfg, { device = 'null' }), axes,
            { fsdp = fsdp })
         local function optimiser(params) return t.optim[kind](params, { lr = 1e-3 }) end
         local want = plan:price { batch = 1, seq = 8, rank = rank, optim = optimiser }
         local run = plan:materialise { seed = 3 }
         local step = t.train.step.new { model = run.model:train(), parallel = run.sharded,
            comm = run.comm, optim = optimiser(run.params) }
         local comms = { [run.mesh.comm] = true }
         for _, comm in every(run.mesh.comms) do comms[comm] = comm.size > 1 or nil end
         local function one()
            local ids, sent = t.zeros({ 1, 8 }, { dtype = 'i64' }), 0
            for comm in every(comms) do sent = sent - comm:traffic().nbyte[1] end
            step:run { { ids = ids, labels = ids } }
            for comm in every(comms) do sent = sent + comm:traffic().nbyte[1] end
            return sent
         end
         one()
         collectgarbage()
         t.default():reset_peak()
         return { one() / want.wire, t.default():stats().peak / want.peak }
      end
      local wide = { vocab_size = 64, hidden_size = 64, num_hidden_layers = 1,
         num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 256 }
      for _, case in ipairs { { 'Muon', { dp_shard = 2 }, {} },
                              { 'SGD', { dp_shard = 2 }, { nccl_ub = true } },
                              { 'Adafactor', { dp_shard = 1, tp = 2 }, {} } } do
         local kind, axes, fsdp = unpack(case)
         for _, far in ipairs(ranks.run(2, compare, wide, axes, kind, fsdp)) do
            -- beside the count, the loss and the norm; the batch
            assert.is_true(far[1] >= 1 and far[1] < 1.01, ('%s sends %g'):format(kind, far[1]))
            assert.is_true(math.abs(far[2] - 1) < 0.02, ('%s needs %g'):format(kind, far[2]))
         end
      end
      local ok, e = pcall(function()
         make({ dp = 1 }, {}, 1):price { optim = function(params)
            return tide.optim.AdamW(params, { groups = { { pattern = 'nope', lr_scale = 2 } } })
         end }
      end)
      assert.is_false(ok)
      assert.equal('E_ARG', e.code)                   -- as in the run
   end)

   it('is the memory that a forward keeps', function()
      for _, policy in ipairs { 'none', 'mlp', 'full' } do
         local plan = make({ dp = 1 }, { recompute = policy }, 1)
         local want = plan:price({ batch = 2, seq = 32 }).activations
         local model = plan:materialise().model
         local ids = tide.zeros({ 2, 32 }, { dtype = 'i64' })
         model:loss(ids, ids, { count = 64 }):backward()       -- tables that are kept are made
         model:zero_grad()
         local got
         leak.interpret()                       -- dead values in frames are the interpreter's
         leak.mark()
         tide.scope(function()
            local loss = model:loss(ids, ids, { count = 64 })
            got = leak.since()
            loss:backward()
         end)
         leak.compile()
         assert.is_true(math.abs(got - want) < 0.01 * want, ('%s: %d, planned %d'):format(policy,
            got, want))
      end
   end)

   it('falls with recomputation, sharding and tensor parallelism', function()
      local function price(mesh, opts, n)
         return make(mesh, opts, n):price { batch = 2, seq = 64 }
      end
      local one = price({ dp = 1 }, {}, 1)
      assert.is_true(price({ dp = 1 }, { recompute = 'mlp' }, 1).activations < one.activations)
      assert.is_true(price({ dp = 1 }, { recompute = 'full' }, 1).activations
         < 0.7 * one.activations)
      local two = price({ dp_shard = 2 }, { fsdp = {} }, 2)
      assert.same(two, price({ dp_shard = 2 }, {}, 2))       -- an axis to shard over is used
      assert.is_true(two.state < 0.52 * one.state and two.state > 0.48 * one.state)
      assert.is_true(math.abs(two.activations - one.activations) < 0.02 * one.activations)
      local function working(p) return p.peak - p.parameters - p.optimizer end
      assert.is_true(working(two) < working(one) + 4 * two.unit)
      local sequence = price({ tp = 2 }, { tp = { sequence_parallel = true } }, 2)
      assert.is_true(sequence.activations < 0.9 * one.activations)
   end)

   it('tells every rank of many, and what crosses hosts', function()
      local plan = make({ dp_shard = 64, tp = 2 }, { fsdp = {} }, 128)
      local sum = 0
      for rank = 0, 127, 2 do
         sum = sum + plan:price({ batch = 1, seq = 4, rank = rank }).gradients
      end
      local tp0 = make({ dp_shard = 1, tp = 2 }, { fsdp = {} }, 2):price { batch = 1, seq = 4 }
      assert.equal(tp0.gradients, sum)
      assert.equal(0, plan:price({ batch = 1, seq = 4 }).wire_between_hosts)
      local at_edge = plan:price { batch = 1, seq = 4, host_size = 8, rank = 6 }
      assert.is_true(at_edge.wire_between_hosts > 0)
   end)

   it('counts the state of each parameter by the dtype of its own shards', function()
      local function price(change)
         local model = tide.model.llama(config, { dtype = 'bf16', device = 'null' })
         change(model)
         local trained = 0
         for _, p in ipairs(model:parameters()) do
            trained = trained + (p.requires_grad and p:numel() or 0)
         end
         local plan = plan_of(model, { dp_shard = 2 }, { ranks = 2 })
         local bytes = 0
         for rank = 0, 1 do
            bytes = bytes + plan:price({ batch = 1, seq = 4, rank = rank }).optimizer
         end
         return bytes / trained
      end
      -- shards of what is trained are f32 and need no copy; those of frozen bf16 weights stay bf16
      assert.equal(8, price(function(model) tide.nn.lora.attach(model, { rank = 2 }) end))
      assert.equal(8, price(function(model) model.model.embed_tokens:requires_grad_(false) end))
   end)
end)

-- On a rank: losses of `steps` steps, and which ranks share data; axes nil: one rank, plain.
local function train(_, _, cfg, axes, opts, steps)
   local t = require 'tide'
   local case = require 'spec.parallel.fsdp_case'
   local plan = t.parallel.plan({ family = 'llama', config = cfg }, axes or { dp = 1 }, opts)
   local run = plan:materialise { seed = 3 }
   local step = t.train.step.new { model = run.model, parallel = run.sharded, clip = 1,
      optim = t.optim.AdamW(run.params, { lr = 1e-3 }), comm = run.comm }
   local losses = {}
   for s = 1, steps do
      losses[s] = step:run({ case.batch(s, run.data.rank, run.data.size, 12) }).loss
   end
   return losses
end

describe('a plan that is carried out', function()
   local case = require 'spec.parallel.fsdp_case'
   local want
   local cases = {
      { 2, { tp = 2 } }, { 2, { dp = 2 } },
      { 3, { dp_shard = 3 }, { fsdp = { strategy = 'optim' }, recompute = 'every:2' } },
      { 4, { dp_shard = 2, tp = 2 }, { tp = { sequence_parallel = true }, fsdp = {} } },
      { 4, { dp_replicate = 2, dp_shard = 2 }, { fsdp = {} } },
      { 6, { dp_shard = 3, tp = 2 }, { recompute = 'mlp', fsdp = {} } },
      { 8, { dp_replicate = 2, dp_shard = 2, tp = 2 }, { tp = { sequence_parallel = true },
         fsdp = { strategy = 'optim' } } },
      { 4, { dp_replicate = 2, tp = 2, dp_shard = 1 },
         { tp = { sequence_parallel = true, async_tp = true }, recompute = 'full',
           fsdp = { strategy = 'optim_grads' } } },
   }
   for _, c in ipairs(cases) do
      it(('trains as one rank does: %s'):format(make(c[2], c[3] and { tp = c[3].tp,
         fsdp = c[3].fsdp } or nil, c[1]):axes_text()), function()
         want = want or ranks.run(1, train, config, nil, nil, 4)[1]
         for _, got in ipairs(ranks.run(c[1], train, config, c[2], c[3], 4)) do
            assert.is_true(case.distance(got, want) < 1e-5)
         end
      end)
   end

   it('has no gradients of frozen parameters', function()
      local model = tide.model.llama(config, { device = 'null' })
      model.model.embed_tokens:requires_grad_(false)
      local plan = plan_of(model, { dp_shard = 2, tp = 2 }, { ranks = 4, fsdp = {} })
      local frozen = plan:price { batch = 1, seq = 4 }
      local all = make({ dp_shard = 2, tp = 2 }, { fsdp = {} }, 4):price { batch = 1, seq = 4 }
      assert.is_true(math.abs(all.parameters - frozen.parameters) < 0.02 * all.parameters)
      local rows = frozen.parameters - frozen.gradients      -- a quarter of the embedding
      assert.is_true(math.abs(rows - 37 * 24) < 0.15 * 37 * 24)
   end)
end)

describe('a plan', function()
   it('prints what happens to which part', function()
      local text = tostring(make({ dp_shard = 2, tp = 2 }, { tp = { sequence_parallel = true },
         recompute = 'mlp', fsdp = { strategy = 'optim', nccl_ub = true } }, 4))
      for _, part in ipairs { 'over 4 ranks: dp_shard=2 x tp=2', "axis 'tp' of 2",
         'sequence_parallel true', 'model.layers.*.self_attn.q_proj.weight', 'Shard(1)  x 2',
         'model.layers.*.mlp (2)', 'optim over 2 ranks; nccl_ub true', 'model.layers.* (2)' } do
         assert.matches(part, text, 1, true)
      end
      local price = tostring(make({ dp = 1 }, nil, 1):price())
      for _, part in ipairs { 'parameters', 'activations', 'sent a step',
         'collectives a step' } do
         assert.matches(part, price, 1, true)
      end
   end)

   it('goes through JSON', function()
      local json = require 'tide.ffi.json'
      local style = tide.parallel.translate_to_parallel_style
      for _, opts in ipairs { {}, { tp = { sequence_parallel = true }, recompute = 'mlp',
         fsdp = { units = { tide.nn.MLP }, mp_policy = { reduce_dtype = 'f32' } } },
         { tp = { plan = { lm_head = style('colwise'):with { output = 'S(-1)' },
            ['model.layers.*.mlp.gate_proj'] = 'colwise',
            ['model.layers.*.mlp.up_proj'] = 'colwise',
            ['model.layers.*.mlp.down_proj'] = style 'rowwise' } },
           recompute = { ops = { 'attention' } } } } do
         local plan = make({ dp_shard = 2, tp = 2 }, opts, 4)
         local again = plan_of.from_table(json.decode(json.encode(plan:to_table())))
         assert.equal(tostring(plan), tostring(again))
         assert.same(plan:price { batch = 1, seq = 8 }, again:price { batch = 1, seq = 8 })
      end
      local styles = { lm_head = style 'colwise' }
      package.loaded['spec.styles'] = { of_head = function() return styles end }
      finally(function() package.loaded['spec.styles'] = nil end)
      local want = make({ tp = 2 }, { tp = { plan = styles } }, 2):to_table()
      for _, given in ipairs { package.loaded['spec.styles'].of_head, 'spec.styles.of_head' } do
         assert.same(want, make({ tp = 2 }, { tp = { plan = given } }, 2):to_table())
      end
      assert.equal('table', type(want.tp.plan))
      refused('E_ARG', "'version'", plan_of.from_table, { version = 2, axes = {} })
      refused('E_ARG', "unknown option 'axis'", plan_of.from_table, { axis = {} })
   end)

   it('as data runs no code', function()
      local ran = false
      package.preload['spec.evil'] = function()
         ran = true
         return { run = function() ran = true end }
      end
      finally(function() package.preload['spec.evil'] = nil end)
      local t = make({ tp = 2 }, { tp = {} }, 2):to_table()
      for _, path in ipairs { 'spec.evil.run', 'os.exit' } do
         t.tp = { plan = path }
         refused('E_ARG', ("tp.plan is %q, the dotted path of Lua code"):format(path),
            plan_of.from_table, t)
      end
      assert.is_false(ran)
   end)

   it('keeps the axes given and adds one of data where there is none', function()
      local function text(axes, n)
         return plan_of({ family = 'llama', config = config }, axes, { ranks = n }):axes_text()
      end
      assert.equal('dp_replicate=2 x dp_shard=1', text({ dp_replicate = 2 }, 2))
      assert.equal('dp_shard=1 x tp=2', text({ tp = 2 }, 2))
      assert.equal('dp=2', text({ dp = 2 }, 2))
   end)

   it('leaves the model alone on axes of one rank, and gives buffers their bytes', function()
      local model = tide.model.llama(config, { device = 'null' })
      model:buffer('seen', tide.zeros({ 3 }, { device = 'null' }))
      local run = plan_of(model, { dp = 1, tp = 1, cp = 1 },
         { ranks = 1 }):materialise()
      assert.is_nil(run.context)
      assert.equal('cpu', model.seen.device)
      model = tide.model.llama(config, { device = 'null' })
      model:buffer('seen', tide.zeros({ 3 }, { device = 'null' }))
      run = plan_of(model, { dp_shard = 1 }, { ranks = 1, fsdp = {} }):materialise()
      assert.is_table(run.sharded)
      assert.equal('cpu', model.seen.device)
   end)

   it('has whole sequences on each rank where it is asked, and only there', function()
      for _, row in ipairs(ranks.run(2, function(_, _, cfg)
         local t = require 'tide'
         local run = t.parallel.plan({ family = 'llama', config = cfg }, { cp = 2 })
            :materialise { seed = 3 }
         local ids = t.arange(8, { dtype = 'i64' }):reshape(1, 8)
         local function call() return run.model(ids) end
         local got = t.no_grad(function() return t.parallel.plan.whole(run, call) end)
         local one = t.model.llama(cfg, { device = 'null' }):materialise('cpu', 3)
         local want = t.no_grad(function() return one(ids) end)
         return { got:equal(want), (pcall(call)) }
      end, config)) do
         assert.same({ true, false }, row)
      end
   end)

   it('is carried out once, by as many ranks as it is for', function()
      refused('E_STATE', 'the plan is for 4 ranks (dp_shard=2 x tp=2), the run has 1',
         function() make({ dp_shard = 2, tp = 2 }, nil, 4):materialise() end)
      local plan = make({ dp = 1 }, nil, 1)
      plan:materialise()
      refused('E_STATE', 'already', plan.materialise, plan)
      refused('E_STATE', 'simulated', function()
         local mesh = tide.parallel.mesh({ dp = 2 }, { comm = tide.comm.simulate(2, 0) })
         plan_of(tide.model.llama(config, { device = 'null' }), mesh):materialise()
      end)
   end)

   it('is the same on every rank', function()
      local rows = ranks.try(2, function(rank, _, cfg)
         local t = require 'tide'
         t.parallel.plan({ family = 'llama', config = cfg }, { dp_shard = 2 },
            { fsdp = { strategy = rank == 0 and 'optim' or 'no_shard' } }):materialise()
      end, config)
      for _, row in ipairs(rows) do assert.matches('different plans', row.message, 1, true) end
      rows = ranks.try(2, function(rank, _, cfg)
         local t = require 'tide'
         t.parallel.plan({ family = 'llama', config = cfg }, { tp = 2 }):materialise {
            seed = rank }
      end, config)
      for _, row in ipairs(rows) do assert.matches('different seeds', row.message, 1, true) end
      rows = ranks.try(2, function(rank, _, cfg)
         local t = require 'tide'
         cfg.num_attention_heads = 4 - 2 * rank
         cfg.head_dim = 16 / cfg.num_attention_heads
         cfg.num_key_value_heads = cfg.num_attention_heads
         t.parallel.plan({ family = 'llama', config = cfg }, { dp = 2 }):materialise()
      end, config)
      for _, row in ipairs(rows) do assert.matches('different modules', row.message, 1, true) end
      -- a difference that no line of the printed plan shows
      rows = ranks.try(2, function(rank, _, cfg)
         local t = require 'tide'
         t.parallel.plan({ family = 'llama', config = cfg }, { cp = 2 },
            { cp = { layers = { [1 + rank] = 'allgather' } } }):materialise()
      end, config)
      for _, row in ipairs(rows) do
         assert.matches('different options of the plan', row.message, 1, true)
      end
      rows = ranks.try(2, function(rank, _, cfg)
         local t = require 'tide'
         t.parallel.plan({ family = 'llama', config = cfg }, { tp = 2 }, { tp = {
            plan = function()
               local style = t.parallel.translate_to_parallel_style
               return { lm_head = style(rank == 0 and 'colwise' or 'colwise_rep') }
            end } }):materialise()
      end, config)
      for _, row in ipairs(rows) do
         assert.matches('different styles of modules', row.message, 1, true)
      end
      rows = ranks.try(2, function(rank, _, cfg)
         local t = require 'tide'
         local model = t.model.llama(cfg, { device = 'null' })
         model.model.norm.weight:requires_grad_(rank == 0)
         t.parallel.plan(model, { dp_shard = 2 }, { fsdp = {} }):materialise()
      end, config)
      for _, row in ipairs(rows) do assert.matches('different parameters', row.message, 1, true) end
      rows = ranks.try(2, function(rank, _, cfg)
         require 'tide'.parallel.plan({ family = 'llama', config = cfg }, { dp_shard = 2 },
            { fsdp = {} }):materialise { device = rank == 0 and 'cpu' or 'null' }
      end, config)
      for _, row in ipairs(rows) do assert.matches('different devices', row.message, 1, true) end
   end)

   it('does not spread what another plan has', function()
      local said = ranks.run(2, function(_, _, cfg)
         local t = require 'tide'
         local model = t.model.llama(cfg, { device = 'null' })
         local function plan() return t.parallel.plan(model, { dp_shard = 2 }, { fsdp = {} }) end
         local first, second = plan(), plan()
         first:materialise()
         return tostring(select(2, pcall(second.materialise, second)))
      end, config)
      for _, text in ipairs(said) do
         assert.matches('materialise: the model is sharded already; give it whole', text, 1, true)
      end
   end)

   it('is compared once by all ranks, whatever its parts would compare', function()
      for _, axes in ipairs { { dp_shard = 2, tp = 2 }, { dp_shard = 2, cp = 2 }, { dp = 4 } } do
         local calls = ranks.run(4, function(_, _, cfg, axes_)
            local t = require 'tide'
            local mesh = t.parallel.mesh(axes_)
            local plan = t.parallel.plan(t.model.llama(cfg, { device = 'null' }), mesh)
            local comm = getmetatable(mesh.comm).__index
            local gathers, real = 0, comm.all_gather_object
            comm.all_gather_object = function(...)
               gathers = gathers + 1
               return real(...)
            end
            local ok, e = pcall(plan.materialise, plan)
            comm.all_gather_object = real
            return ok and gathers or tostring(e)
         end, config, axes)
         assert.same({ 1, 1, 1, 1 }, calls)
      end
   end)
end)
