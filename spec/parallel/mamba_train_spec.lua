-- Training of Mamba-2 and hybrid models over a context axis, beside the same run on one rank.

local case = require 'spec.parallel.cp_case'
local ranks = require 'spec.support.ranks'
local wide = require 'spec.support.wide'

local hybrid = { vocab_size = 29, hidden_size = 24, hybrid_override_pattern = 'M*-M',
   num_attention_heads = 4, num_key_value_heads = 2, head_dim = 4, intermediate_size = 40,
   mamba_head_dim = 8, ssm_state_size = 8, n_groups = 2 }
local mamba = { vocab_size = 29, hidden_size = 24, num_hidden_layers = 2, head_dim = 8,
   state_size = 8, n_groups = 3 }

-- The losses of one rank, by what they depend on.
local known = {}

local function same(n, c)
   c.family, c.config = c.family or 'hybrid', c.config or hybrid
   c.steps = c.steps or 6
   local key = table.concat({ c.family, c.config.hidden_size, c.steps, c.accum or 1, c.clip or 0,
      tostring(c.config.n_groups), c.packed and 'packed' or '' }, ' ')
   known[key] = known[key] or ranks.run(1, case.alone, c)[1]
   c.want = known[key]
   for _, r in ipairs(ranks.run(n, case.train, c)) do assert.is_true(r == true, tostring(r)) end
end

describe('training over a context axis equals one rank', function()
   for _, method in ipairs { 'hidden', 'state' } do
      it('hybrid, sharded, dp 2 x cp 2, many steps: ' .. method, function()
         same(4, { sizes = { dp_shard = 2, cp = 2 }, shard = 'optim_grads_params',
            steps = wide and 20 or 8, attach = { mamba = method }, clip = 1 })
      end)

      for _, layout in ipairs(wide and { 'zigzag', 'contiguous' }
         or { method == 'state' and 'zigzag' or 'contiguous' }) do
         it(('packed, %s, cp 3: %s'):format(layout, method), function()
            same(3, { sizes = { cp = 3 }, packed = true, clip = 1,
               attach = { mamba = method, layout = layout, method = 'allgather' } })
         end)
      end

      if wide or method == 'hidden' then
         it('with layers computed again, micro-batches, ZeRO-2: ' .. method, function()
            same(4, { sizes = { dp_shard = 2, cp = 2 }, shard = 'optim_grads', recompute = 'full',
               accum = 2, attach = { mamba = method }, packed = true })
         end)
      end

      it('a model of Mamba-2 layers alone: ' .. method, function()
         same(2, { sizes = { cp = 2 }, family = 'mamba2', config = mamba,
            attach = { mamba = method } })
      end)
   end

   it('packed, every document cut for itself', function()
      same(2, { sizes = { cp = 2 }, packed = true, attach = { layout = 'document' } })
      same(2, { sizes = { cp = 2 }, packed = true, attach = { layout = 'balanced' } })
   end)

   it('heads that do not divide, sharded', function()
      same(4, { sizes = { dp_shard = 1, cp = 4 }, shard = 'optim_grads_params',
         config = { hidden_size = 28, mamba_num_heads = 3, n_groups = 1,
            vocab_size = 29, hybrid_override_pattern = 'M*M', num_attention_heads = 4, head_dim = 4,
            mamba_head_dim = 8, ssm_state_size = 8, intermediate_size = 40 },
         attach = { mamba = 'hidden' } })
   end)
end)
