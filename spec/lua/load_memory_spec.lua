-- Memory of loading a published folder over ranks: what a rank keeps and, beside it, at most the
-- bytes of the largest tensor, counted by the context; and the dtypes that are asked for.

local tide = require 'tide'
local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'
local tmp = require 'spec.support.tmp'

local config = { vocab_size = 512, hidden_size = 128, intermediate_size = 384,
   num_hidden_layers = 4, num_attention_heads = 8, num_key_value_heads = 4 }

-- On a rank: bytes live after loading and at most during it, those of the kept parameters and those
-- read, and the dtypes of what is kept and of logits.
local function load_on(_, _, dir, mesh, dtype)
   local t = require 'tide'
   local ctx = t.default()
   collectgarbage()
   ctx:collect()
   ctx:reset_peak()
   local before = ctx:stats().live
   local model, run = t.model.load(dir, { mesh = mesh, dtype = dtype })
   local s, kept = ctx:stats(), 0
   local list = (run.sharded or model):named_parameters()
   for _, p in ipairs(list) do kept = kept + p.param:numel() * t.dtype_size(p.param.dtype) end
   local logits = model(t.tensor({ { 3, 1, 4 } }, { dtype = 'i64' }))
   return { peak = s.peak - before, live = s.live - before, kept = kept, read = run.nbyte,
      dtype = list[1].param.dtype, logits = logits.dtype }
end

local meshes = { ['one rank'] = { n = 1 }, ['ZeRO-3 2'] = { n = 2, mesh = { dp_shard = 2 } },
   ['tp 2'] = { n = 2, mesh = { tp = 2 } }, ['both'] = { n = 4, mesh = { dp_shard = 2, tp = 2 } } }
local dtypes = { ['f32 as f32'] = { 'f32', 'f32' }, ['bf16 as f32'] = { 'bf16', 'f32' },
   ['bf16 as bf16'] = { 'bf16', 'bf16' } }

describe('loading', function()
   for name, on in each(meshes) do
      for what, dtype in each(dtypes) do
         it(('takes the shard and one tensor: %s, %s'):format(name, what), function()
            tmp.with(function(dir)
               local model, largest, all = tide.model.llama(config, { seed = 1 }), 0, 0
               for _, p in ipairs(model:parameters()) do
                  largest, all = math.max(largest, p:numel()), all + p:numel()
               end
               tide.model.save(model, dir .. '/m', { dtype = dtype[1], max_shard = '200kB' })
               local on_disk, asked = tide.dtype_size(dtype[1]), dtype[2]
               for _, r in ipairs(ranks.run(on.n, load_on, dir .. '/m', on.mesh, asked)) do
                  -- 4 kB: what the allocator rounds up
                  assert.is_true(r.peak - r.live <= largest * 4 + 4096, r.peak - r.live)
                  assert.is_true(r.live <= r.kept * 1.02, r.live / r.kept)
                  assert.is_true(r.read <= all * on_disk / on.n * 1.01, r.read)
                  assert.equal(asked, r.logits)
                  -- sharded bf16 parameters are computed with in bf16, and kept in f32
                  assert.equal(on.mesh and 'f32' or asked, r.dtype)
               end
            end)
         end)
      end
   end
end)

describe('numbers of another dtype', function()
   it('are converted in pieces, with no second tensor', function()
      tmp.with(function(dir)
         -- 20000 x 64 elements are more than two pieces of 2^19
         local wide = { vocab_size = 20000, hidden_size = 64, intermediate_size = 64,
            num_hidden_layers = 1, num_attention_heads = 2 }
         local model = tide.model.llama(wide, { seed = 1, dtype = 'bf16' })
         tide.model.save(model, dir .. '/m')
         local ctx = tide.default()
         collectgarbage()
         ctx:collect()
         ctx:reset_peak()
         local loaded = tide.model.load(dir .. '/m', { dtype = 'f32' })
         local s = ctx:stats()
         assert.is_true(s.peak - s.live <= 2 ^ 19 * 2 + 4096, s.peak - s.live)
         local want = model:state_dict()
         for _, p in ipairs(loaded:named_parameters()) do
            assert.equal('f32', p.param.dtype)
            assert.equal(0, (p.param:detach() - want[p.name]:to 'f32'):abs():amax():item())
         end
      end)
   end)
end)
