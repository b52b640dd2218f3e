-- What a sequence over ranks costs in memory, and that it does not depend on when messages come.

local case = require 'spec.parallel.cp_case'
local ranks = require 'spec.support.ranks'

-- On a rank: bytes beyond q, k, v and their gradients at the peak of ring attention, forward and
-- backward, with T tokens a rank.
local function ring_peak(_, n, T, layout, causal)
   local t = require 'tide'
   local cp = t.parallel.cp
   local axis = t.parallel.mesh({ cp = n }):axis 'cp'
   local context = cp.context { map = t.parallel.cp_map.new { kind = layout, axis = axis,
      length = T * n } }
   local inner = require('tide.parallel.cp_attention').new { axis = axis }
   local list = {}
   for i = 1, 3 do list[i] = t.randn({ 1, T, 4, 32 }):requires_grad_(true) end
   local grad = t.randn { 1, T, 4, 32 }
   local function once()
      t.scope(function()
         inner(list[1], list[2], list[3], { causal = causal, context = context }):backward(grad)
         return unpack { list[1].grad, list[2].grad, list[3].grad }
      end)
   end
   once()
   for _, x in ipairs(list) do x:zero_grad() end
   local leak = require 'spec.support.leak'
   leak.mark()
   once()
   return leak.peak()
end

-- On a rank: bytes kept from forward to backward by a model over n ranks, T tokens in all.
local function activations(_, n, T, method, layers)
   local t = require 'tide'
   local model = t.model.llama({ vocab_size = 32, hidden_size = 64, num_hidden_layers = layers,
      num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 128 }, { seed = 1 })
   local handle = t.parallel.cp.attach(model, { axis = t.parallel.mesh({ cp = n }):axis 'cp',
      method = method })
   local ids = t.zeros({ 1, T }, { dtype = 'i64' })
   local leak, kept = require 'spec.support.leak', nil
   leak.interpret()
   for _ = 1, 2 do
      local mine = handle:cut { ids = ids, labels = ids }
      leak.mark()
      local loss = model:loss(mine.ids, mine.labels, { context = mine.context, count = T })
      kept = leak.since()
      loss:backward()
      model:zero_grad()
   end
   return kept
end

describe('memory', function()
   it('of the ring does not grow with the ranks', function()
      local function most(n, ...)
         local bytes = 0
         for _, b in ipairs(ranks.run(n, ring_peak, 256, ...)) do bytes = math.max(bytes, b) end
         return bytes
      end
      -- with four ranks there is a hop before and one after, as there ever will be
      local full = most(4, 'contiguous', false)
      for _, case_ in ipairs { { 8, 'contiguous', false }, { 8, 'zigzag', true },
                               { 4, 'zigzag', true } } do
         local bytes = most(unpack(case_))
         assert.is_true(bytes <= 1.03 * full, ('%d ranks, %s: %d bytes, 4 ranks %d'):format(
            case_[1], case_[2], bytes, full))
      end
   end)

   it('for activations falls as the ranks, but for gathered keys and values', function()
      local T, layers = 1024, 2
      local one = ranks.run(1, activations, T, 'ring', layers)[1]
      for _, n in ipairs { 2, 4 } do
         for _, bytes in ipairs(ranks.run(n, activations, T, 'ring', layers)) do
            assert.is_true(math.abs(bytes * n / one - 1) < 0.1,
               ('%d ranks: %d bytes, one rank %d'):format(n, bytes, one))
         end
         -- every layer keeps whole keys and values: 2 tensors of 2 heads of 16
         local kv = layers * 2 * T * 2 * 16 * 4
         for _, bytes in ipairs(ranks.run(n, activations, T, 'allgather', layers)) do
            assert.is_true(math.abs((bytes - kv) * n / one - 1) < 0.1,
               ('%d ranks: %d bytes, %d of them keys and values, one rank %d'):format(n, bytes, kv,
                  one))
         end
      end
   end)
end)

describe('random delays', function()
   it('change nothing, to the last bit', function()
      for _, method in ipairs { 'ring', 'allgather', 'a2a' } do
         local c = { sizes = { dp_shard = 2, cp = 2 }, packed = true, steps = 3,
            shard = 'optim_grads_params', attach = { method = method } }
         local plain = ranks.run(4, case.losses, c)
         c.delay = 3e-3
         assert.same(plain, ranks.run(4, case.losses, c))
         assert.same(plain[1], plain[2])
      end
   end)
end)
