-- fully_shard against one rank: losses, norms and weights after steps with AdamW and clipping.

local case = require 'spec.parallel.fsdp_case'
local ranks = require 'spec.support.ranks'

-- On a rank: every strategy, with and without recomputation, for one accumulation; what differs
-- from `want` by more than 1e-5, as text. In doubles, ten times the rate and 1e-9: what f32 shows
-- is rounding, which AdamW amplifies, and nothing else. (Norms are f32 numbers in both.)
local function compare(_, n, accum, want, dtype)
   local here = require 'spec.parallel.fsdp_case'
   local out = {}
   for _, strategy in ipairs { 'no_shard', 'optim', 'optim_grads', 'optim_grads_params' } do
      for _, recompute in ipairs { false, true } do
         local r = here.train { fsdp = { strategy = strategy }, accum = accum, rows = 24,
            recompute = recompute, dtype = dtype, lr = dtype == 'f64' and 1e-2 or 1e-3 }
         for _, k in ipairs { 'losses', 'norms', 'weights' } do
            local d = here.distance(r[k], want[k])
            local most = dtype == 'f64' and k ~= 'norms' and 1e-9 or 1e-5
            if d >= most then
               out[#out + 1] = ('%s %s recompute %s ranks %d: %s differ by %g'):format(dtype,
                  strategy, tostring(recompute), n, k, d)
            end
         end
      end
   end
   return out
end

local function wanted(accum, dtype)
   local r = case.train { plain = true, accum = accum, rows = 24, dtype = dtype,
      lr = dtype == 'f64' and 1e-2 or 1e-3 }
   return { losses = r.losses, norms = r.norms, weights = r.weights }
end

describe('a sharded model', function()
   for _, accum in ipairs { 1, 3 } do
      for _, dtype in ipairs { 'f32', 'f64' } do
         local want = wanted(accum, dtype)
         for _, n in ipairs { 1, 2, 3, 4 } do
            it(('equals one rank: %d ranks, %d micro-batches, %s'):format(n, accum, dtype),
               function()
                  for _, out in ipairs(ranks.run(n, compare, accum, want, dtype)) do
                     assert.same({}, out)
                  end
               end)
         end
      end
   end

   -- On a rank of a mesh (list of axes): what differs from one rank.
   local function on_mesh(_, _, axes, opts, want)
      local t, here = require 'tide', require 'spec.parallel.fsdp_case'
      opts.mesh = t.parallel.mesh(axes)
      local r = here.train { fsdp = opts, accum = 3, rows = 24 }
      return math.max(here.distance(r.losses, want.losses), here.distance(r.norms, want.norms),
         here.distance(r.weights, want.weights))
   end

   local want3
   local function far(n, axes, opts)
      want3 = want3 or wanted(3)
      local most = 0
      for _, d in ipairs(ranks.run(n, on_mesh, axes, opts or {}, want3)) do
         most = math.max(most, d)
      end
      return most
   end

   it('may have replicas', function()
      for _, strategy in ipairs { 'no_shard', 'optim', 'optim_grads', 'optim_grads_params' } do
         assert.is_true(far(4, { dp_replicate = 2, dp_shard = 2 }, { strategy = strategy }) < 1e-5)
      end
   end)

   it('is sharded over data and context ranks together', function()
      assert.is_true(far(4, { dp_shard = 2, cp = 2 }) < 1e-5)
   end)

   it('may be resharded to fewer ranks after forward', function()
      for _, k in ipairs { 1, 2, 4 } do
         assert.is_true(far(4, { dp_shard = 4 }, { reshard_after_forward = k }) < 1e-5)
      end
   end)

   it('equals one rank with more ranks than rows to give', function()
      assert.is_true(far(6, { dp_shard = 6 }) < 1e-5)
      assert.is_true(far(8, { dp_shard = 8 }, { units = { 'Attention', 'MLP' } }) < 1e-5)
   end)

   it('has units by class, by size or one alone', function()
      assert.is_true(far(3, { dp_shard = 3 }, { units = { 'Block' } }) < 1e-5)
      assert.is_true(far(2, { dp_shard = 2 }, { units = { 'Linear' } }) < 1e-5)
      assert.is_true(far(2, { dp_shard = 2 }, { units = { 'Embedding', 'Linear' } }) < 1e-5)
      assert.is_true(far(3, { dp_shard = 3 }, { units = 5000 }) < 1e-5)
      assert.is_true(far(3, { dp_shard = 3 }, { disable_bucketing = true }) < 1e-5)
   end)
end)
