-- What contexts and attached models print, and the small plans behind them.

local tide = require 'tide'
local cp = require 'tide.parallel.cp'
local blocks = require 'tide.parallel.cp.blocks'
local cp_attention = require 'tide.parallel.cp.attention'
local state = require 'tide.parallel.mamba.state'
local refused = require 'spec.support.refused'

local function model_of(layers)
   return tide.model.llama({ vocab_size = 17, hidden_size = 8, num_hidden_layers = layers,
      num_attention_heads = 2, num_key_value_heads = 2, intermediate_size = 9 },
      { device = 'null' })
end

describe('the text', function()
   it('of a context names its plan, or pairs, or nothing', function()
      local plan = tide.parallel.cp_map.new { kind = 'zigzag', size = 2, rank = 1, length = 8 }
      local context = cp.context { map = plan, axis = { size = 2, rank = 1 } }
      assert.equal('context parallel (ring, rank 1 of 2): ' .. tostring(plan), tostring(context))
      local pair = tide.zeros({ 1, 3, 2 }, { dtype = 'i32' })
      local given = cp.context { pairs = { pair, pair }, axis = { size = 2, rank = 0 },
         method = 'a2a' }
      assert.equal('context parallel (a2a, rank 0 of 2): pairs as given', tostring(given))
      assert.equal('no context parallelism', tostring(cp.null))
      assert.same({ 1, 0, true }, { cp.null.size, cp.null.rank, cp.null.null })
   end)

   it('of attached models and layers counts them', function()
      local comm = tide.comm.simulate(2, 0)
      for layers, words in ipairs { '1 attention layer', '2 attention layers' } do
         local handle = cp.attach(model_of(layers), comm, { method = 'a2a' })
         assert.equal(words .. ' over 2 ranks (a2a, zigzag)', tostring(handle))
      end
      assert.equal('CpAttention(ring over 2 ranks)',
         tostring(cp_attention.new { axis = comm, method = 'ring' }))
      assert.equal('CpAttention(as the context says over 2 ranks)',
         tostring(cp_attention.new { axis = comm }))
   end)
end)

describe('hops of a ring', function()
   it('that moves all rows are those of every other rank, from below and to above', function()
      for n = 1, 4 do
         local index = {}
         for r = 1, n do index[r] = tide.zeros({ 1, 2 * r, 2 }, { dtype = 'i32' }) end
         for rank = 0, n - 1 do
            local list, own = blocks.whole(index, rank)
            assert.same({ n - 1, true }, { #list, own })
            for d, hop in ipairs(list) do
               local from, to = (rank + n - d) % n, (rank + d) % n
               assert.same({ from = from, to = to, recv = { first = 1, count = 2 * from + 2 },
                  send = { first = 1, count = 2 * rank + 2 } }, hop)
            end
         end
      end
   end)

   it('are those that the mask lets some rank need, at every distance', function()
      math.randomseed(12)
      for _ = 1, 60 do
         local n, index, cu = math.random(1, 4), {}, { 0 }
         for d = 1, math.random(1, 3) do cu[d + 1] = cu[d] + math.random(0, 6) end
         local plan = tide.parallel.cp_map.new { size = n, cu = cu,
            kind = ({ 'contiguous', 'zigzag', 'document' })[math.random(1, 3)] }
         for r = 1, n do index[r] = plan:document_index('cpu', r - 1) end
         local causal, left = math.random(2) == 1, math.random(0, 4) - 1
         local mask = { causal = causal, window = left >= 0 and { left, -1 } or nil }
         local function need(q, k)
            return tide.attention_rows(index[q + 1], index[k + 1], mask)
         end
         for rank = 0, n - 1 do
            local list, own = blocks.hops(index, rank, mask)
            assert.equal(select(2, need(rank, rank)) > 0, own)
            local at = 0
            for d = 1, n - 1 do
               local used = false
               for q = 0, n - 1 do used = used or select(2, need(q, (q - d) % n)) > 0 end
               if used then
                  at = at + 1
                  local hop = list[at]
                  assert.same({ (rank - d) % n, (rank + d) % n }, { hop.from, hop.to })
                  for name, want in pairs { recv = { need(rank, hop.from) },
                     send = { need(hop.to, rank) } } do
                     assert.same(want, { hop[name].first, hop[name].count })
                  end
               end
            end
            assert.equal(at, #list)
         end
      end
   end)
end)

describe('runs that hand over a state', function()
   local function runs(opts)
      return state.runs(tide.parallel.cp_map.new(opts))
   end
   it('are equally many and long on all ranks', function()
      assert.same({ ranks = { { { first = 0, count = 4 } }, { { first = 4, count = 4 } } }, R = 1,
         c = 4 }, runs { kind = 'contiguous', size = 2, length = 7 })
      assert.same({ ranks = { { { first = 0, count = 2 }, { first = 6, count = 2 } },
         { { first = 2, count = 2 }, { first = 4, count = 2 } } }, R = 2, c = 2 },
         runs { size = 2, length = 8 })
      assert.same({ ranks = { { { first = 0, count = 5 } } }, R = 1, c = 5 },
         runs { size = 1, length = 5 })
      for kind, why in pairs { contiguous = 'no tokens', zigzag = 'no tokens',
         balanced = "a 'balanced' layout" } do
         local none, text = runs { kind = kind, size = 2, length = kind == 'balanced' and 8 or 0 }
         assert.is_nil(none)
         assert.matches(why, text, 1, true)
      end
      refused('E_ARG', 'model', cp.attach, tide.nn.Linear(2, 2), tide.comm.simulate(2, 0))
   end)
end)
