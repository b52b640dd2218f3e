-- Gated delta nets over ranks against the same layer on one: context parallelism in every layout,
-- with documents, heads that do not divide, bytes against their price; tensor parallelism; what is
-- refused.

local case = require 'spec.parallel.mamba_case'
local cp_case = require 'spec.parallel.cp_case'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tide = require 'tide'
local tp_case = require 'spec.parallel.tp_case'

-- A case of a layer of `heads` heads of values and `keys` of keys.
local function row(heads, keys, o)
   o.layer = { dim = 12, heads = heads, key_heads = keys, key_dim = 3, head_dim = 4,
      apart = o.apart, recurrence_dtype = o.recurrence_dtype }
   o.class, o.method, o.apart, o.recurrence_dtype = 'GatedDeltaNet', 'hidden', nil, nil
   return o
end

describe('a gated delta net over ranks equals one rank', function()
   for _, n in ipairs { 2, 3 } do
      it(('in every layout, on %d ranks'):format(n), function()
         local list = {}
         for _, kind in ipairs { 'contiguous', 'zigzag' } do
            list[#list + 1] = row(12, 6, { kind = kind, length = 12, rows = 2 })
            list[#list + 1] = row(6, 6, { kind = kind, length = 24, cu = { 0, 1, 9, 10, 24 } })
         end
         list[#list + 1] = row(6, 2, { kind = 'document', cu = { 0, 7, 20, 21 }, apart = true })
         -- heads that do not divide, heads of keys that ranks share, a rank without heads
         for _, g in ipairs { { 7, 1 }, { 9, 3 }, { 10, 5 }, { 2, 1 } } do
            list[#list + 1] = row(g[1], g[2], { kind = 'zigzag', length = 12,
               cu = { 0, 5, 12 } })
         end
         case.check(n, list)
      end)
   end

   it('in bf16, with A_log and dt_bias in f32', function()
      case.check(2, row(6, 3, { kind = 'zigzag', length = 12, dtype = 'bf16',
         recurrence_dtype = 'f32' }), 4e-2)
   end)

   it('with rows that have sequences of their own', function()
      local rows = { {}, {} }
      for t = 1, 16 do
         rows[1][t], rows[2][t] = t > 5 and 1 or 0, t > 11 and 3 or t > 2 and 1 or 0
      end
      case.check(2, row(4, 2, { kind = 'zigzag', length = 16, rows = 2, sequence = rows }))
   end)

   it('keeps NaN within its document, to the bit', function()
      case.check_isolated(2, 'hidden', 'zigzag', true)
   end)
end)

-- A Qwen3-Next whose heads of attention n ranks can share.
local function config(n)
   return tp_case.config(n, { vocab_size = 29,
      layer_types = { 'linear_attention', 'full_attention' },
      head_dim = 8, linear_num_key_heads = 2, linear_num_value_heads = 4, linear_key_head_dim = 3,
      linear_value_head_dim = 5, num_experts = 3, num_experts_per_tok = 2,
      moe_intermediate_size = 8, shared_expert_intermediate_size = 6 })
end

local function next_of(n, keys, values, opts)
   local c = config(n)
   c.linear_num_key_heads, c.linear_num_value_heads = keys, values
   return { family = 'qwen3_next', config = c, opts = opts }
end

describe('tensor parallelism of gated delta nets', function()
   for _, n in ipairs { 2, 3 } do
      it(('on %d ranks is the whole model'):format(n), function()
         local late = next_of(n, n, 2 * n, { sequence_parallel = true, async_tp = true })
         late.tokens, late.recompute = 9, 'full'
         tp_case.check(n, { next_of(n, n + 1, n + 1, {}), late })
      end)
   end

   it('refuses fewer heads of keys than ranks, and a layer that is cut in part', function()
      local axis = { size = 4, rank = 1, comm = tide.comm.simulate(4, 1) }
      local function made(keys)
         return tide.model.qwen3_next(next_of(4, keys, 6).config, { device = 'null' })
      end
      refused('E_ARG', 'number of key heads (3)', tide.parallel.tensor_parallel, made(3), axis)
      for name, style in pairs { in_proj_ba = 'colwise', out_proj = 'rowwise' } do
         refused('E_ARG', 'all or none', tide.parallel.parallelize_module, made(6), axis,
            { ['model.layers.0.linear_attn.' .. name] = style })
      end
   end)

   it('knows the operations of the whole model', function()
      local model = tide.model.qwen3_next(config(2), { device = 'null' })
      local flops = model:flops_per_token(8)
      assert.equal(6 * model:multiplying() + 18 * 4 * 5 * 3 + 6 * 8 * 8 * 8, flops)
      tide.parallel.tensor_parallel(model,
         { size = 2, rank = 1, comm = tide.dist.simulate(2, 1) })
      assert.equal(flops, model:flops_per_token(8))
   end)
end)

-- Runs on a rank: what attaching a model with a method raises.
local function attach(_, _, c, method)
   local t = require 'tide'
   t.parallel.cp.attach(t.model.qwen3_next(c, { seed = 1 }), t.comm.world(), { mamba = method })
end

describe('a Qwen3-Next over ranks', function()
   it('is trained as on one, packed, sharded, over a context axis', function()
      local c = { family = 'qwen3_next', config = config(2), steps = 8, packed = true, clip = 1 }
      c.want = ranks.run(1, cp_case.alone, c)[1]
      c.sizes, c.shard, c.attach = { dp_shard = 2, cp = 2 }, 'optim_grads_params', {}
      for _, r in ipairs(ranks.run(4, cp_case.train, c)) do
         assert.is_true(r == true, tostring(r))
      end
   end)

   it('does not pass states from rank to rank', function()
      for _, r in ipairs(ranks.try(2, attach, config(2), 'state')) do
         assert.matches("'model.layers.0.linear_attn' is a gated delta net, which exchanges heads "
            .. "alone; use 'hidden' or 'auto'", r.message, 1, true)
      end
   end)
end)
