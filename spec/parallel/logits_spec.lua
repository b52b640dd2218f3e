-- A loss over a large vocabulary holds a chunk of its logits at a time, on one rank and on several.

local ranks = require 'spec.support.ranks'

-- On a rank: the loss of a model whose logits are far larger than all else, with the bytes that its
-- forward and backward took above what was there, and the bytes that ranks sent.
local function measure()
   local tide = require 'tide'
   local comm = tide.dist.world()
   local function bytes()
      local n = comm:traffic().nbyte
      return n[1] + n[2]
   end
   tide.param('debt', 2 ^ 20)                       -- garbage is collected soon
   local vocab, tokens = 8192, 4096
   local model = tide.model.llama({ vocab_size = vocab, hidden_size = 8, num_hidden_layers = 1,
      num_attention_heads = 2, intermediate_size = 8 }, { seed = 1 })
   if comm.size > 1 then tide.parallel.tensor_parallel(model, comm) end
   local ids = (tide.arange(tokens, { dtype = 'i64' }) * 2):reshape(2, tokens / 2)
   collectgarbage()
   local before, sent = tide.stats().live, bytes()
   local loss = model:loss(ids, ids)
   loss:backward()
   return { loss = loss:item(), took = tide.stats().peak - before, sent = bytes() - sent,
      logits = tokens * vocab * 4 }
end

describe('the logits of a loss', function()
   it('are never whole, nor this rank\'s part of them, and are not sent', function()
      local one = ranks.run(1, measure)[1]
      assert.is_true(one.took < one.logits / 2, ('%d bytes of %d'):format(one.took, one.logits))
      for rank, r in ipairs(ranks.run(2, measure)) do
         assert.is_true(math.abs(r.loss / one.loss - 1) < 1e-6)
         assert.is_true(r.took < r.logits / 8, ('rank %d: %d bytes of %d'):format(rank, r.took,
            r.logits))
         assert.is_true(r.sent > 0 and r.sent < r.logits / 16, r.sent)
      end
   end)
end)

describe('the logits of the last token alone', function()
   it('are the last of all, with the sequence cut and without', function()
      local all = ranks.run(2, function()
         local t, off = require 'tide', {}
         for i, cut in ipairs { false, true } do
            local model = t.model.llama({ vocab_size = 24, hidden_size = 8, num_hidden_layers = 1,
               num_attention_heads = 2, intermediate_size = 8 }, { seed = 1 })
            t.parallel.tensor_parallel(model, t.comm.world(), { sequence_parallel = cut })
            local ids = t.arange(12, { dtype = 'i64' }):reshape(2, 6)
            local last = model(ids, { last_only = true })
            local want = model(ids):slice(2, 6, 6)
            off[i] = last:size(2) == 1 and (last - want):abs():amax():item() or 1
         end
         return off
      end)
      for _, off in ipairs(all) do
         for i = 1, 2 do assert.is_true(off[i] < 1e-6, off[i]) end
      end
   end)
end)
