-- Micro-batches of a sharded bf16 model add up in f32: what a second one launches beyond the first.

local case = require 'spec.parallel.fsdp_case'
local each = require 'tide.util.each'
local launched = require 'spec.support.launched'
local tide = require 'tide'

local precision = { param_dtype = 'bf16', reduce_dtype = 'f32' }

-- The kernels of forward and backward of micro-batches 1 to n.
local function micros(n, fsdp, config)
   local model = case.model { dtype = 'bf16', config = config }
   fsdp.seed, fsdp.mp_policy, fsdp.preserve_fp32_weights = 3, precision, false
   local sharded = tide.parallel.fully_shard(model, fsdp)
   local list = {}
   for i = 1, n do
      local b = case.batch(100 + i, 0, 1, 2)
      sharded:set_requires_gradient_sync(i == n)
      list[i] = launched(function()
         tide.scope(function()
            model:loss(b.ids, b.labels, { count = b.count }):backward()
            sharded:finish()
         end)
      end)
   end
   return list, sharded
end

describe('a later micro-batch of a sharded bf16 model', function()
   for name, tied in each { ['with a head of its own'] = false, ['with a tied head'] = true } do
      it('adds the gradients of linear weights inside their products, ' .. name, function()
         local list, sharded = micros(3, {}, { tie_word_embeddings = tied })
         -- 3 blocks of 7 linear weights and two norms, the last norm, the head; the embedding. The
         -- weights of queries, keys and values share a product, and those of gate and up.
         local weights, others, products = 3 * 7, 3 * 2 + 1 + 1, 3 * 4
         assert.equal(weights + others + (tied and 0 or 1), #sharded:named_parameters())
         local first = list[1]
         for i = 2, 3 do
            local n = list[i]
            assert.equal(products, n.addmm_ - first.addmm_)
            assert.equal(first.add, n.add)
            assert.equal(others, n.axpy_ - first.axpy_)
            assert.same({ 0, 1 }, { n.embedding_bwd, n.index_add })
            assert.is_true(n.cast < first.cast, n.cast)
            assert.equal(first.matmul - products, n.matmul)
         end
         for _, p in ipairs(sharded:named_parameters()) do
            assert.equal('f32', p.param.grad.dtype)
         end
      end)
   end

   it('does so without sharding where each parameter says so', function()
      local model = case.model { dtype = 'bf16' }
      model:materialise('cpu', 3)
      for _, p in ipairs(model:parameters()) do p:set_grad_dtype 'f32' end
      local optim = tide.optim.AdamW(model, { lr = 1e-3 })
      local step = tide.train.step.new { model = model, optim = optim, clip = 1 }
      local function adds(n)
         local batches = {}
         for i = 1, n do batches[i] = case.batch(i, 0, 1, 2) end
         local counts = launched(function() assert.is_true(step:run(batches).applied) end)
         return { counts.addmm_, counts.axpy_, counts.add, counts.cast }
      end
      local one, three = adds(1), adds(3)
      assert.equal(2 * 3 * 4, three[1] - 3 * one[1])
      assert.equal(3 * one[3], three[3])
   end)

   it('begins them in bf16 where gradients are reduced in bf16', function()
      local model = case.model { dtype = 'bf16' }
      local sharded = tide.parallel.fully_shard(model, { seed = 3 })
      sharded:set_requires_gradient_sync(false)
      local b = case.batch(1, 0, 1, 2)
      model:loss(b.ids, b.labels, { count = b.count }):backward()
      sharded:finish()
      for _, p in ipairs(model:parameters()) do assert.equal('bf16', p.grad_dtype) end
   end)
end)
