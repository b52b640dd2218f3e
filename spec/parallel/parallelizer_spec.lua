-- The entry points of the parallelizer: their vectors, messages and order, and what they train.

local tide = require 'tide'
local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local spread = require 'tide.nn.spread'

local parallel = tide.parallel

local config = { vocab_size = 37, hidden_size = 24, num_hidden_layers = 3,
   num_attention_heads = 8, num_key_value_heads = 8, head_dim = 4, intermediate_size = 27 }

local function model_of(changes, opts)
   local c = {}
   for k, v in each(config) do c[k] = v end
   for k, v in each(changes or {}) do c[k] = v end
   return tide.model.llama(c, opts or { device = 'null' })
end

local function simulated(axes)
   local n = 1
   for _, a in ipairs(axes) do n = n * a[2] end
   return parallel.mesh(axes, { comm = tide.comm.simulate(n, 0) })
end

local function fsdp2(axes, opts, model)
   opts = opts or {}
   opts.device = 'null'
   return parallel.fsdp2_strategy_parallelize(model or model_of(), simulated(axes), opts)
end

local function megatron(axes, opts, model)
   opts = opts or {}
   opts.device = 'null'
   return parallel.megatron_fsdp_strategy_parallelize(model or model_of(), simulated(axes), opts)
end

local usual = { { 'data_parallel', 2 }, { 'context_parallel', 1 }, { 'tensor_parallel', 2 } }
local dp2 = { { 'data_parallel', 2 }, { 'context_parallel', 1 }, { 'tensor_parallel', 1 } }

local given = { ['model.layers.*.mlp.gate_proj'] = 'colwise',
   ['model.layers.*.mlp.up_proj'] = 'colwise', ['model.layers.*.mlp.down_proj'] = 'rowwise' }
package.preload['spec.parallelizer_plans'] = function()
   return { plan = given, make = function() return given end, number = 7,
      broken = function() return require 'spec.no_such_module' end }
end

-- Shape of what a rank computes a field with.
local function rows(model, path) return model:get(path).nout end

describe('fsdp2_strategy_parallelize', function()
   it('shards the model it is given and leaves tensor parallelism alone on one rank', function()
      local model = model_of()
      local same, sharded = fsdp2(dp2, nil, model)
      assert.equal(model, same)
      assert.equal(spread.of(model).sharded, sharded)
      assert.is_nil(spread.of(model).tp)
      assert.equal('optim_grads_params', sharded.opts.strategy)
      assert.equal(2, sharded.shard_comm.size)
      assert.equal(27, rows(model, 'model.layers.0.mlp.gate_proj'))
   end)

   it('keeps the last layer gathered, and only that', function()
      local _, sharded = fsdp2(dp2)
      local flags = {}
      for i, unit in ipairs(sharded.units) do flags[i] = unit.reshard_after_forward end
      assert.same({ true, true, false }, flags)
   end)

   it('has bf16 parameters with f32 sums and outputs unless told otherwise', function()
      local _, a = fsdp2(dp2)
      assert.same({ param_dtype = 'bf16', reduce_dtype = 'f32', output_dtype = 'f32',
         cast_forward_inputs = true }, a.opts.mp)
      local _, b = fsdp2(dp2, { param_dtype = 'f32' })
      assert.equal('f32', b.opts.mp.param_dtype)
      local _, c = fsdp2(dp2, { mp_policy = { reduce_dtype = 'bf16' } })
      assert.same({ reduce_dtype = 'bf16', cast_forward_inputs = true }, c.opts.mp)
   end)

   it('offloads by either option', function()
      local _, a = fsdp2(dp2)
      assert.is_false(a.opts.cpu_offload)
      local _, b = fsdp2(dp2, { cpu_offload = true })
      assert.is_true(b.opts.cpu_offload)
      local _, c = fsdp2(dp2, { offload_policy = { cpu = true } })
      assert.is_true(c.opts.cpu_offload)
   end)

   it('cuts what it shards: TP, then recomputation, then FSDP', function()
      local model, sharded = fsdp2(usual, { activation_checkpointing = true })
      assert.equal(14, rows(model, 'model.layers.0.mlp.gate_proj'))
      assert.same({ 'model.layers.0.mlp', 'model.layers.1.mlp', 'model.layers.2.mlp' },
         parallel.recompute.report(model))
      for _, e in ipairs(sharded.entries) do
         if e.name:find 'gate_proj' then assert.same({ 14, 24 }, e.shape) end
      end
   end)

   it('takes a plan as a table, a function, or the dotted path of either', function()
      for _, plan in ipairs { given, function() return given end, 'spec.parallelizer_plans.plan',
         'spec.parallelizer_plans.make' } do
         local model = fsdp2(usual, { tp_shard_plan = plan })
         assert.equal(14, rows(model, 'model.layers.0.mlp.gate_proj'))
         assert.equal(32, rows(model, 'model.layers.0.self_attn.q_proj'))
      end
   end)

   it('refuses what is no plan, naming the three forms', function()
      for _, plan in ipairs { 'spec.parallelizer_plans.number', 'spec.parallelizer_plans.broken',
         'spec.parallelizer_plans.absent', 'spec.none.plan', 'plan' } do
         refused('E_ARG', { ("Custom parallel plan '%s' is not valid"):format(plan), '1. ', '2. ',
            '3. ' }, fsdp2, usual, { tp_shard_plan = plan })
      end
   end)

   it('honours other names of axes, and refuses those that are not there', function()
      local axes = { { 'custom_dp', 2 }, { 'custom_tp', 2 } }
      local names = { dp_mesh_name = 'custom_dp', tp_mesh_name = 'custom_tp' }
      local model, sharded = fsdp2(axes, names)
      assert.equal(2, sharded.shard_comm.size)
      assert.equal(14, rows(model, 'model.layers.0.mlp.gate_proj'))
      refused('E_UNSUPPORTED', "nothing is known for the axis 'custom_dp'", fsdp2, axes)
      refused('E_ARG', "no axis 'data_paralel' in this mesh", fsdp2, dp2,
         { dp_mesh_name = 'data_paralel' })
      refused('E_ARG', "'tensor_parallel' is also dp_shard", fsdp2, usual,
         { dp_mesh_name = 'tensor_parallel', tp_mesh_name = 'tensor_parallel' })
   end)

   it('does not do hybrid sharding', function()
      local axes = { { 'dp_replicate', 2 }, { 'dp_shard', 2 } }
      refused('E_UNSUPPORTED', '(dp_mesh_name = dp_replicate, dp_shard)', fsdp2, axes,
         { dp_mesh_name = { 'dp_replicate', 'dp_shard' } })
      refused('E_UNSUPPORTED', 'Hybrid-sharding not supported', fsdp2, axes)
   end)

   it('checks heads, those of keys first, and changes nothing', function()
      local three = { { 'data_parallel', 1 }, { 'tensor_parallel', 3 } }
      local model = model_of()
      local before = tostring(model)
      refused('E_ARG', 'num_key_value_heads (8) must be divisible', fsdp2, three, nil, model)
      assert.equal(before, tostring(model))
      assert.is_nil(spread.of(model).sharded)
      assert.equal(27, rows(model, 'model.layers.0.mlp.gate_proj'))
      assert.is_true(pcall(fsdp2, dp2, nil, model))
      refused('E_ARG', 'num_attention_heads (8) must be divisible', fsdp2, three, nil,
         model_of { num_key_value_heads = 1, num_attention_heads = 8 } and (function()
            local m = model_of()
            m.config.num_key_value_heads = 3
            return m
         end)())
   end)

   it('has sequence parallelism only where the plan allows it', function()
      local model = model_of()
      model._tp_plan = { ['model.layers.*.mlp.up_proj'] = 'colwise' }
      fsdp2(usual, { sequence_parallel = true })
      local odd = tide.nn.Module()
      odd:child('proj', tide.nn.Linear(4, 4, { device = 'null' }))
      odd._tp_plan = { proj = 'colwise' }
      refused('E_ARG', 'sequence_parallel is not supported in HF tp plan', fsdp2, usual,
         { sequence_parallel = true }, odd)
   end)

   it('shards a Gemma', function()
      local model = tide.model.gemma3({ vocab_size = 40, hidden_size = 24, num_hidden_layers = 2,
         num_attention_heads = 4, num_key_value_heads = 2, head_dim = 6, intermediate_size = 20 },
         { device = 'null' })
      fsdp2(usual, { sequence_parallel = true }, model)
      assert.equal(10, rows(model, 'model.layers.0.mlp.gate_proj'))
   end)

   it('has scopes of recomputation', function()
      local model = fsdp2(dp2, { activation_checkpointing = 'full',
         activation_checkpointing_scope = 'vision+audio' })
      -- layer lists are recomputed as a whole, and this model is all language
      assert.same({}, parallel.recompute.report(model))
      for _, bad in ipairs { 'all+vision', 'encoder', 'trainable', { 1 } } do
         refused('E_ARG', 'scope', fsdp2, dp2, { activation_checkpointing = true,
            activation_checkpointing_scope = bad })
      end
      for _, good in ipairs { 'language+vision', 'vision,language', 'auto', 'all' } do
         assert.equal(3, #parallel.recompute.report((fsdp2(dp2, { activation_checkpointing = true,
            activation_checkpointing_scope = good }))))
      end
   end)

   it('refuses options that it does not know or that are of another kind', function()
      refused('E_ARG', "did you mean 'sequence_parallel'?", fsdp2, dp2, { sequence_paralel = true })
      refused('E_ARG', "'cpu_offload'", fsdp2, dp2, { cpu_offload = 1 })
      refused('E_ARG', "'mesh'", parallel.fsdp2_strategy_parallelize, model_of(), { dp = 2 })
      refused('E_ARG', "'model'", parallel.fsdp2_strategy_parallelize, {}, simulated(dp2))
      local model = fsdp2(dp2)
      refused('E_STATE', 'is sharded already; give it whole', fsdp2, dp2, nil, model)
   end)
end)

describe('both entry points', function()
   it('take the name of data and context ranks together', function()
      local mesh = simulated { { 'data_parallel', 2 }, { 'context_parallel', 2 } }
      mesh:flatten({ 'data_parallel', 'context_parallel' }, 'dp_cp')
      local function go(name)
         return parallel.fsdp2_strategy_parallelize(model_of(), mesh,
            { dp_cp_mesh_name = name, device = 'null' })
      end
      local _, sharded = go 'dp_cp'
      assert.equal(4, sharded.shard_comm.size)
      refused('E_ARG', "'dp_cp_mesh_name'", go, 'data_parallel')
      refused('E_ARG', 'nope', go, 'nope')
      refused('E_ARG', "'dp_cp_mesh_name'", go, 3)
   end)

   it('choose how a sequence lies over ranks, and return the run with its handle', function()
      local axes = { { 'data_parallel', 2 }, { 'context_parallel', 2 } }
      local cp = { method = 'a2a', layout = 'contiguous' }
      local _, _, run = fsdp2(axes, { cp = cp })
      assert.same({ 'a2a', 'contiguous', 2 },
         { run.context.method, run.context.layout, run.data.size })
      local _, _, sharded, second = megatron(axes, { cp = cp })
      assert.equal(sharded, second.sharded)
      assert.same({ 'a2a', 'contiguous', 2 },
         { second.context.method, second.context.layout, second.data.size })
      refused('E_ARG', "'cp'", fsdp2, axes, { cp = 'a2a' })
      refused('E_ARG', "'metod'", fsdp2, axes, { cp = { metod = 'a2a' } })
   end)

   it('leave a model without MLP as it is where these would be recomputed', function()
      local function bare()
         return tide.model.mamba2({ vocab_size = 37, hidden_size = 32, num_hidden_layers = 2,
            num_heads = 4, head_dim = 16, state_size = 8, n_groups = 1 }, { device = 'null' })
      end
      local model = fsdp2(dp2, { activation_checkpointing = true }, bare())
      assert.same({}, parallel.recompute.report(model))
      model = fsdp2(dp2, { activation_checkpointing = true })
      assert.equal(3, #parallel.recompute.report(model))
      local e = refused('E_ARG', 'no nn.MLP or nn.MoE to recompute', parallel.recompute,
         bare(), 'mlp')
      assert.is_nil(tostring(e):find 'table')
   end)
end)

describe('options of fsdp2_strategy_parallelize', function()
   it('that contradict each other are refused', function()
      refused('E_ARG', { 'cpu_offload = true', 'offload_policy.cpu = false' }, fsdp2, dp2,
         { cpu_offload = true, offload_policy = { cpu = false } })
      refused('E_ARG', { "param_dtype 'f32'", "'bf16'" }, fsdp2, dp2,
         { param_dtype = 'f32', mp_policy = { param_dtype = 'bf16' } })
      refused('E_ARG', "param_dtype 'bf16'", fsdp2, dp2,
         { param_dtype = 'bf16', mp_policy = { reduce_dtype = 'f32' } })
      refused('E_ARG', "'offload_policy.cpu'", fsdp2, dp2, { offload_policy = { cpu = 1 } })
      refused('E_ARG', "'pin_memory'", fsdp2, dp2, { offload_policy = { pin_memory = 1 } })
      local _, sharded = fsdp2(dp2, { param_dtype = 'f32', mp_policy = { param_dtype = 'f32' } })
      assert.equal('f32', sharded.opts.mp.param_dtype)
   end)

   it('pin the memory of what is offloaded, unless told', function()
      local _, sharded = fsdp2(dp2, { offload_policy = { cpu = true } })
      assert.is_true(sharded.opts.pin_memory)
      _, sharded = fsdp2(dp2, { offload_policy = { cpu = true, pin_memory = false } })
      assert.is_false(sharded.opts.pin_memory)
   end)
end)

describe('megatron_fsdp_strategy_parallelize', function()
   it('has the defaults of the original', function()
      local model = model_of()
      local same, optim, sharded = megatron(dp2, nil, model)
      assert.equal(model, same)
      assert.is_nil(optim)
      local o = sharded.opts
      assert.equal('optim_grads_params', o.strategy)
      for name, want in each { grad_reduce_in_fp32 = false, preserve_fp32_weights = false,
         overlap_grad_reduce = true, overlap_param_gather = true, check_for_nan_in_grad = true,
         average_in_collective = false, disable_bucketing = false,
         calculate_per_token_loss = false, nccl_ub = false, fsdp_double_buffer = false } do
         assert.equal(want, o[name], name)
      end
   end)

   it('reduces gradients after every micro-batch where they are sharded, unless told', function()
      for strategy, each_one in each { no_shard = false, optim = false, optim_grads = true,
         optim_grads_params = true } do
         local _, _, sharded = megatron(dp2, { data_parallel_sharding_strategy = strategy })
         assert.equal(each_one, sharded.opts.sync_each_backward, strategy)
         _, _, sharded = megatron(dp2, { data_parallel_sharding_strategy = strategy,
            sync_each_backward = not each_one })
         assert.equal(not each_one, sharded.opts.sync_each_backward, strategy)
      end
      local _, sharded = fsdp2(dp2, { sync_each_backward = false })
      assert.is_false(sharded.opts.sync_each_backward)
   end)

   it('and the other reshard to some of the ranks', function()
      local dp4 = { { 'data_parallel', 4 } }
      local _, _, sharded = megatron(dp4, { reshard_after_forward = 2 })
      assert.equal(2, sharded.small_comm.size)
      local _, other = fsdp2(dp4, { reshard_after_forward = 2 })
      assert.equal(2, other.small_comm.size)
      refused('E_ARG', 'must divide the 4 ranks', fsdp2, dp4, { reshard_after_forward = 3 })
   end)

   it('hands its options on', function()
      for _, name in ipairs { 'grad_reduce_in_fp32', 'preserve_fp32_weights', 'nccl_ub',
         'average_in_collective', 'disable_bucketing', 'fsdp_double_buffer',
         'keep_fp8_transpose_cache_when_using_custom_fsdp' } do
         local _, _, sharded = megatron(dp2, { [name] = true })
         assert.is_true(sharded.opts[name], name)
      end
      for _, strategy in ipairs { 'no_shard', 'optim', 'optim_grads' } do
         local _, _, sharded = megatron(dp2, { data_parallel_sharding_strategy = strategy })
         assert.equal(strategy, sharded.opts.strategy)
      end
      refused('E_ARG', "'strategy'", megatron, dp2, { data_parallel_sharding_strategy = 'params' })
   end)

   it('imports unit classes strictly, and needs none', function()
      local _, _, sharded = megatron(dp2, { megatron_fsdp_unit_modules = { 'tide.nn.MLP' } })
      assert.equal(3, #sharded.units)
      assert.equal('model.layers.0.mlp', sharded.units[1].name)
      refused('E_ARG', "no 'Mlp'", megatron, dp2,
         { megatron_fsdp_unit_modules = { 'tide.nn.MLP', 'tide.nn.Mlp' } })
   end)

   it('makes the optimiser of what is sharded', function()
      local made
      local _, optim = megatron(dp2, { optimizer = function(params)
         made = params
         return tide.optim.SGD(params, { lr = 1 })
      end })
      assert.is_true(made.is_sharded)
      assert.equal(made, optim.keepers[1])
      refused('E_ARG', "'optimizer'", megatron, dp2, { optimizer = {} })
   end)

   it('knows its former name', function()
      local _, _, sharded = parallel.nvfsdp_strategy_parallelize(model_of(), simulated(dp2),
         { nvfsdp_unit_modules = { 'tide.nn.Block' }, device = 'null' })
      assert.equal(3, #sharded.units)
      refused('E_ARG', "'megatron_fsdp_unit_modules'", parallel.nvfsdp_strategy_parallelize,
         model_of(), simulated(dp2), { megatron_fsdp_unit_modules = {} })
   end)

   it('shards over the data axis by whatever name', function()
      local _, _, sharded = megatron({ { 'data', 3 }, { 'context_parallel', 1 } },
         { dp_mesh_name = 'data' })
      assert.equal(3, sharded.shard_comm.size)
   end)

   it('can insist on a model without bytes', function()
      refused('E_STATE', 'init_megatron_fsdp_with_meta_device', megatron, dp2,
         { init_megatron_fsdp_with_meta_device = true }, model_of(nil, { seed = 1 }))
      assert.is_true(pcall(megatron, dp2, { init_megatron_fsdp_with_meta_device = true }))
   end)
end)

describe('a model that they spread', function()
   -- On a rank: losses of three steps; entry: which of the two, or none.
   local function train(_, _, cfg, entry, axes, opts)
      local t = require 'tide'
      local case = require 'spec.parallel.fsdp_case'
      local model = t.model.llama(cfg, { device = 'null' })
      local sharded
      if entry then
         opts.seed = 3
         local r = { t.parallel[entry](model, t.parallel.mesh(axes), opts) }
         sharded = entry:find 'fsdp2' and r[2] or r[3]
      else
         model:materialise('cpu', 3)
      end
      local run = t.train.step.new { model = model, parallel = sharded, clip = 1,
         optim = t.optim.AdamW(sharded or model, { lr = 1e-3 }) }
      local data, losses = sharded and sharded.data_comm or t.dist.world(), {}
      for s = 1, 3 do
         losses[s] = run:run({ case.batch(s, data.rank, data.size, 4) }).loss
      end
      return losses
   end

   it('trains as one rank does', function()
      local case = require 'spec.parallel.fsdp_case'
      local want = ranks.run(1, train, config)[1]
      local cases = {
         { 'fsdp2_strategy_parallelize', { param_dtype = 'f32', sequence_parallel = true,
            activation_checkpointing = true } },
         { 'megatron_fsdp_strategy_parallelize', { calculate_per_token_loss = true } },
         { 'megatron_fsdp_strategy_parallelize', {} },       -- means over ranks
         { 'megatron_fsdp_strategy_parallelize', { average_in_collective = true,
            data_parallel_sharding_strategy = 'no_shard' } },
         { 'megatron_fsdp_strategy_parallelize', { reshard_after_forward = 2 },
            { { 'data_parallel', 4 } } },
         { 'fsdp2_strategy_parallelize', { param_dtype = 'f32', reshard_after_forward = 2,
            sync_each_backward = false }, { { 'data_parallel', 4 } } },
      }
      for _, c in ipairs(cases) do
         for _, got in ipairs(ranks.run(4, train, config, c[1], c[3] or usual, c[2])) do
            assert.is_true(case.distance(got, want) < 1e-5)
         end
      end
   end)
end)

describe('the order of arguments', function()
   local axis_of = require 'tide.parallel.axis_of'

   it('is ranks, options; options with the ranks in them are the spelling of 0.1', function()
      local comm = tide.comm.simulate(2, 0)
      local function read(ranks_, opts, names)
         return { axis_of.in_options(names)('parallel.old', ranks_, opts) }
      end
      assert.same({ comm, { x = 1 } }, read(comm, { x = 1 }, { 'mesh', 'comm' }))
      assert.same({ comm }, read(comm, nil, { 'comm' }))
      assert.same({ nil, { x = 1 } }, read({ x = 1 }, nil, { 'mesh', 'comm' }))
      assert.same({ comm, { x = 1 } }, read({ x = 1, comm = comm }, nil, { 'mesh', 'comm' }))
      local ok, e = pcall(read, { mesh = 1, comm = comm }, nil, { 'mesh', 'comm' })
      assert.same({ false, 'E_ARG' }, { ok, e.code })
   end)

   it('of fully_shard takes a mesh, an axis and a communicator', function()
      local comm = tide.comm.solo()
      local mesh = tide.parallel.mesh({ dp_shard = 1 }, { comm = comm })
      for _, ranks_ in ipairs { comm, mesh, mesh:axis 'dp_shard' } do
         local sharded = tide.parallel.fully_shard(tide.nn.Linear(2, 2), ranks_, { seed = 1 })
         assert.equal(1, sharded.comm.size)
      end
   end)
end)
