-- What a sequence over ranks costs in memory, and that it does not depend on when messages come.

local case = require 'spec.parallel.cp_case'
local ranks = require 'spec.support.ranks'
local wide = require 'spec.support.wide'

-- On a rank: the most bytes that ring attention takes at a time, forward (and backward), with T
-- tokens a rank, in blocks: tensors of T x heads x size. What the context keeps for all calls,
-- pairs of integers, is there before. No collector runs: what is not released counts to the end.
local function ring_peak(_, n, T, c)
   local t = require 'tide'
   local cp = t.parallel.cp
   local axis = t.parallel.mesh({ cp = n }):axis 'cp'
   local context = cp.context { map = t.parallel.cp_map.new { kind = c.layout, axis = axis,
      length = T * n } }
   context:groups('cpu', 1)
   t.default():set_nthread(1)                     -- a kernel's own scratch is a thread's
   local inner = require('tide.parallel.cp.attention').new { axis = axis }
   local list = {}
   for i = 1, 3 do
      list[i] = t.randn({ c.rows or 1, T, 4, 32 }):to(c.dtype):requires_grad_(c.backward)
   end
   local grad = t.randn({ c.rows or 1, T, 4, 32 }):to(c.dtype)
   local function once()
      t.scope(function()
         local out = inner(list[1], list[2], list[3], { causal = c.causal, context = context })
         if not c.backward then return end
         out:backward(grad)
         return unpack { list[1].grad, list[2].grad, list[3].grad }
      end)
   end
   once()
   for _, x in ipairs(list) do
      if c.backward then x:zero_grad() end
   end
   local ctx = t.default()
   ctx:collect()
   collectgarbage 'stop'
   ctx:mark()
   once()
   local bytes = ctx:stats().since_peak
   collectgarbage 'restart'
   return bytes / (list[1]:numel() * (c.dtype == 'f32' and 4 or 2))
end

-- On a rank: bytes kept from forward to backward by a model over n ranks, T tokens in all.
local function activations(_, n, T, method, layers)
   local t = require 'tide'
   local model = t.model.llama({ vocab_size = 32, hidden_size = 64, num_hidden_layers = layers,
      num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 128 }, { seed = 1 })
   local handle = t.parallel.cp.attach(model, t.parallel.mesh({ cp = n }):axis 'cp', {
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
   -- Blocks beyond what the ring over two ranks takes, where each rank sees every key. Over two a
   -- block is worked on and none follows; over three one more arrives (keys and values), and in
   -- backward the gradients of one before go home (out and in, both of them). Over four all of that
   -- happens at once, and it is the end of it.
   it('of the ring is a fixed number of blocks, whatever the ranks', function()
      local function most(n, c)
         local blocks = 0
         for _, b in ipairs(ranks.run(n, ring_peak, 240, c)) do blocks = math.max(blocks, b) end
         return blocks
      end
      for _, dtype in ipairs(wide and { 'f32', 'bf16' } or { 'bf16' }) do
         for _, more in ipairs { { backward = false, [3] = 2, [4] = 2, [8] = 2 },
                                 { backward = true, [3] = 4, [4] = 6, [8] = 6 } } do
            local c = { dtype = dtype, layout = 'contiguous', causal = false,
               backward = more.backward }
            local two, all = most(2, c), nil
            for _, n in ipairs { 3, 4, 8 } do
               all = most(n, c)
               assert.near(more[n], all - two, 0.02, ('%s, %d ranks: %.3f blocks, 2 ranks %.3f')
                  :format(dtype, n, all, two))
            end
            c.layout, c.causal = 'zigzag', true
            for rows = 1, 2 do                     -- with two, rows that travel are copied: a block
               c.rows = rows
               for _, n in ipairs { 3, 4, 8 } do
                  local part = most(n, c)
                  assert.is_true(part <= all + rows - 1 + 0.02,
                     ('%s, zigzag, %d rows, %d ranks: %.3f blocks, all %.3f'):format(dtype, rows, n,
                     part, all))
               end
            end
         end
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
      for _, method in ipairs(wide and { 'ring', 'allgather', 'a2a' } or { 'ring' }) do
         local c = { sizes = { dp_shard = 2, cp = 2 }, packed = true, steps = 3,
            shard = 'optim_grads_params', attach = { method = method } }
         local plain = ranks.run(4, case.losses, c)
         c.delay = 3e-3
         assert.same(plain, ranks.run(4, case.losses, c))
         assert.same(plain[1], plain[2])
      end
   end)
end)
