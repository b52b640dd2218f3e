-- What a plan refuses, and sections of a plan that a user has registered.

local tide = require 'tide'
local refused = require 'spec.support.refused'
local spread = require 'tide.nn.spread'

local plan_of = tide.parallel.plan

local config = { vocab_size = 37, hidden_size = 24, num_hidden_layers = 2,
   num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 27 }

local function make(mesh, opts, n)
   opts = opts or {}
   opts.ranks = n
   return plan_of({ family = 'llama', config = config }, mesh, opts)
end

describe('a bad plan', function()
   -- The model is as it was, and can still be spread.
   local function bad(code, words, mesh, opts, n, model)
      model = model or tide.model.llama(config, { device = 'null' })
      local before, hooks = tostring(model), model:wraps()
      opts = opts or {}
      opts.ranks = n
      local e = refused(code, words, plan_of, model, mesh, opts)
      assert.equal(before, tostring(model))
      assert.same(hooks, model:wraps())
      assert.is_nil(spread.of(model).sharded)
      assert.is_nil(spread.of(model).tp)
      assert.same({}, tide.parallel.recompute.report(model))
      assert.is_true(pcall(plan_of, model, { dp = 1 }, { ranks = 1 }))
      return e
   end

   it('changes nothing', function()
      bad('E_ARG', 'num_key_value_heads (2) must be divisible', { tp = 4 }, nil, 4)
      bad('E_ARG', 'is less than the 64 ranks', { tp = 64 }, nil, 64,
         tide.model.llama({ vocab_size = 37, hidden_size = 128, num_hidden_layers = 1,
            num_attention_heads = 64, head_dim = 2, intermediate_size = 128 },
            { device = 'null' }))
      bad('E_ARG', "no axis 'tpp'", { tp = 2 }, { tp = { axis = 'tpp' } }, 2)
      bad('E_ARG', "no axis 'tp' in this mesh", { dp = 2 }, { tp = {} }, 2)
      bad('E_ARG', "parallel.plan: option 'cp': no axis 'cp' in this mesh (dp=2)", { dp = 2 },
         { cp = {} }, 2)
      bad('E_ARG', "no place is known for 'dp_shards'", { dp_shards = 2 }, nil, 2)
      bad('E_ARG', 'must equal the number of ranks (4)', { dp = 2 }, nil, 4)
      bad('E_ARG', 'async_tp requires sequence_parallel', { tp = 2 }, { tp = { async_tp = true } },
         2)
      bad('E_ARG', "unknown option 'sequence_paralel'", { tp = 2 },
         { tp = { sequence_paralel = true } }, 2)
      bad('E_ARG', "unknown option 'fdsp'; did you mean 'fsdp'?", { dp = 2 }, { fdsp = {} }, 2)
      bad('E_ARG', "'strategy'", { dp = 2 }, { fsdp = { strategy = 'zero3' } }, 2)
      bad('E_ARG', "'mesh' is the plan's", { dp = 2 }, { fsdp = { mesh = {} } }, 2)
      bad('E_ARG', 'contradicts', { dp = 2 },
         { fsdp = { disable_bucketing = true, units = 100 } }, 2)
      bad('E_ARG', 'must divide the 3 ranks', { dp_shard = 3 },
         { fsdp = { reshard_after_forward = 2 } }, 3)
      bad('E_ARG', "no module of the model is named 'mpl'", { dp = 2 }, { recompute = 'mpl' }, 2)
      bad('E_ARG', "'scope'", { dp = 2 }, { recompute = 'mlp', scope = 'encoder' }, 2)
      bad('E_ARG', { "Custom parallel plan 'no.such.plan' is not valid", "no module 'no.such'" },
         { tp = 2 }, { tp = { plan = 'no.such.plan' } }, 2)
      bad('E_ARG', "names no module of the model; did you mean 'lm_head'?", { tp = 2 },
         { tp = { plan = { lm_haed = 'colwise' } } }, 2)
      -- a failure of the last part leaves nothing of the first
      bad('E_ARG', 'must divide', { dp_shard = 3, tp = 2 }, { tp = { sequence_parallel = true },
         recompute = 'full', fsdp = { reshard_after_forward = 2 } }, 6)
   end)

   it('is made of a model that is whole', function()
      local model = tide.model.llama(config, { device = 'null' })
      tide.parallel.fully_shard(model, { device = 'cpu' })
      refused('E_STATE', 'already; give it whole', plan_of, model, { dp = 1 })
      refused('E_ARG', "'model'", plan_of, 3, { dp = 1 })
      refused('E_ARG', "'model'", plan_of, function() return {} end, { dp = 1 })
      refused('E_ARG', "unknown option 'fmaily'", plan_of, { fmaily = 'llama' }, { dp = 1 })
      refused('E_ARG', 'lama', plan_of, { family = 'lama', config = {} }, { dp = 1 })
      refused('E_ARG', "'rank'", function() make({ dp = 2 }, nil, 2):price { rank = 2 } end)
      refused('E_UNSUPPORTED', 'give forward(model)', function()
         plan_of(tide.nn.Linear(3, 4, { device = 'null' }), { dp = 1 }):price()
      end)
   end)

   it('may be of any module that is told how to run', function()
      local plan = plan_of(tide.nn.Linear(30, 40, { device = 'null' }), { dp_shard = 2 },
         { ranks = 2, fsdp = {} })
      local sum = 0
      for rank = 0, 1 do
         local price = plan:price { rank = rank, forward = function(m)
            return m(tide.empty({ 5, 30 }, { device = 'null' })):sum()
         end }
         assert.same({ all_gather = 1, reduce_scatter = 1 }, price.collectives)
         sum = sum + price.parameters
      end
      assert.equal(4 * (30 * 40 + 40), sum)
   end)
end)

describe('a registered section of plans', function()
   local plan = tide.parallel.plan

   it('is applied in its place, rehearsed, shown, written down and read', function()
      local seen = {}
      plan.register('lora', { before = 'recompute', apply = function(run, options)
         seen[#seen + 1] = { run.mesh.comm.transport, options.rank, run.context == nil }
         run.lora = true
         for _, block in ipairs(run.model.model.layers) do
            block.mlp:wrap('lora', function(next, self, ...) return next(self, ...) end)
         end
      end })
      finally(function() assert.is_true(plan.unregister 'lora') end)
      local p = make({ dp = 1 }, { lora = { rank = 4 }, recompute = 'mlp' }, 1)
      assert.same({ { 'sim', 4, true } }, seen)
      assert.matches('lora  +{rank 4}', tostring(p))
      local again = plan.from_table(p:to_table())
      local run = again:materialise { seed = 1 }
      assert.is_true(run.lora)
      assert.same({ 'lora', 'recompute' }, run.model.model.layers[1].mlp:wraps())
      local before = #seen
      make({ dp = 1 }, {}, 1)
      assert.equal(before, #seen)
      assert.is_true(make({ dp = 2 }, { lora = { rank = 1 } }, 2):price({ seq = 8 }).peak > 0)
   end)

   it('is refused by name', function()
      local function apply() end
      refused('E_ARG', "'name'", plan.register, 'tp', { apply = apply })
      refused('E_ARG', "'name'", plan.register, 'ranks', { apply = apply })
      refused('E_ARG', "'before'", plan.register, 'x', { apply = apply, before = 'y' })
      refused('E_ARG', "'apply'", plan.register, 'x', {})
      refused('E_ARG', "unknown option 'lora'", make, { dp = 1 }, { lora = 1 }, 1)
      assert.is_false(plan.unregister 'x')
      assert.is_false(plan.unregister 'tp')
   end)
end)
