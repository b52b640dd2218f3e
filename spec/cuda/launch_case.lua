-- How many kernels an eager training step launches, and how often the host waits in it.
--
-- Not found by its name: emulated_device_spec.lua runs it on emulated threads, whose driver counts
-- both. A Llama of 22 layers, as one of 1.1 billion parameters has; its width does not matter here.

local ffi = require 'ffi'
local tide = require 'tide'
local each = require 'tide.util.each'

local driver = require('spec.cuda.emulated').driver()
if not driver then return end
ffi.cdef 'const char *tide_emulate_launches(void);'

-- Launches since the last call, by the name of the kernel, and their sum.
local function launches()
   local list, sum = {}, 0
   for name, n in ffi.string(driver.tide_emulate_launches()):gmatch '([^\n]+) (%d+)\n' do
      list[name], sum = tonumber(n), sum + tonumber(n)
   end
   return list, sum
end

local function table_of(list)
   local rows = {}
   for name, n in each(list) do rows[#rows + 1] = ('%5d %s'):format(n, name) end
   table.sort(rows, function(a, b) return a > b end)
   return table.concat(rows, '\n')
end

-- pack: the batch is packed documents.
local function step_of(layers, pack)
   local model = tide.model.llama({ vocab_size = 24, hidden_size = 32, intermediate_size = 32,
      num_hidden_layers = layers, num_attention_heads = 2, num_key_value_heads = 1 },
      { dtype = 'bf16', device = 'cuda', seed = 1 })
   local step = tide.train.step.new { model = model, clip = 1,
      optim = tide.optim.AdamW(model, { lr = 1e-3 }) }
   local source = tide.data.tokens.memory(('\1\2\3\4\5\6\7'):rep(4), 1)
   return step, function()
      local batch = tide.data.batch.make(source, { 3 }, 4, 'cuda')
      if pack then
         batch.index = tide.document_index(tide.tensor({ 0, 3, 4 }, { dtype = 'i32' }), 4):to 'cuda'
      end
      return batch
   end
end

describe('an eager step of a Llama with 22 layers', function()
   -- Launches of one step, with parameter remake at `remake`.
   local function launched(remake)
      tide.param('remake', remake)
      finally(function() tide.param('remake', -1) end)
      local step, batch = step_of(22)
      step:run { batch() }
      tide.cuda.synchronize()
      launches()
      assert.is_true(step:run({ batch() }).applied)
      tide.cuda.synchronize()
      return launches()
   end

   -- 267 products (four a layer, three times), 90 the backward of norms, 88 attention's, 45 norms,
   -- 44 rope, 44 swiglu. 66 more make results of norms and swiglu again.
   for remake, most in each { [0] = 608, [1] = 674 } do
      it(('launches at most %d kernels, uploads included, with remake = %d'):format(most, remake),
         function()
            local list, sum = launched(remake)
            assert.is_true(sum <= most, ('%d launches\n%s'):format(sum, table_of(list)))
            assert.equal(267, list.cublasLtMatmul)               -- the count counts
            assert.equal(44, list['rope_kernel<T>'])
         end)
   end

   it('notes once what tiles of packed documents span, for all layers', function()
      local step, batch = step_of(22, true)
      step:run { batch() }
      tide.cuda.synchronize()
      launches()
      assert.is_true(step:run({ batch() }).applied)
      tide.cuda.synchronize()
      local list = launches()
      assert.equal(1, list.extent_kernel, table_of(list))
   end)

   it('makes the host wait once, the upload of its batch included', function()
      local step, batch = step_of(1)
      step:run { batch() }
      step:run { batch() }
      local before = tonumber(driver.tide_emulate_waits())
      step:run { batch() }
      assert.equal(1, tonumber(driver.tide_emulate_waits()) - before)
   end)

   it('is not waited for where rows of documents are made', function()
      local source = tide.data.tokens.memory(('\1\2\3\5\8\13\21'):rep(9), 1)
      local sampler = tide.data.packed.new { cu = { 0, 9, 20, 41, 63 }, seq = 32, batch = 1 }
      local before = tonumber(driver.tide_emulate_waits())
      local batch = sampler:make(source, sampler:next(), 'cuda')
      assert.equal(before, tonumber(driver.tide_emulate_waits()))
      assert.equal('cuda', batch.index.device)
   end)

   it('is waited for once in a step on rows of documents', function()
      local source = tide.data.tokens.memory(('\1\2\3\5\8\13\21'):rep(9), 1)
      local sampler = tide.data.packed.new { cu = { 0, 9, 20, 41, 63 }, seq = 32, batch = 1 }
      local step, waits = step_of(1), nil
      for _ = 1, 2 do
         local batch = sampler:make(source, sampler:next(), 'cuda')
         local before = tonumber(driver.tide_emulate_waits())
         step:run { batch }
         waits = tonumber(driver.tide_emulate_waits()) - before
      end
      assert.equal(1, waits)
   end)

   it('computes the last MLP of the tokens that count alone, as the CPU does', function()
      local source = tide.data.tokens.memory(('\1\2\3\5\8\13\21'):rep(9), 1)
      function source.mask(_, at, n)
         local bytes = {}
         for i = 1, n do bytes[i] = (at + i) % 3 == 0 and '\1' or '\0' end
         return table.concat(bytes)
      end
      -- Losses, tokens that the last MLP saw, labels that count, and waits of the last step.
      local function train(device)
         local model = tide.model.llama({ vocab_size = 24, hidden_size = 32, num_hidden_layers = 1,
            intermediate_size = 32, num_attention_heads = 2 }, { device = device, seed = 1 })
         local sampler = tide.data.packed.new { cu = { 0, 9, 20, 41, 63 }, seq = 32, batch = 1 }
         local losses, seen, counts, waits = {}, {}, {}, nil
         model.model.layers[1].mlp:wrap('count', function(next, self, x)
            seen[#seen + 1] = x:size(1) * x:size(2)
            return next(self, x)
         end, { by = 'spec' })
         local step = tide.train.step.new { model = model, clip = 1,
            optim = tide.optim.AdamW(model, { lr = 1e-2 }) }
         for i = 1, 4 do
            local batch = i < 4 and sampler:make(source, sampler:next(), device)
               or tide.data.batch.make(source, { 3, 20 }, 16, device)
            local before = tonumber(driver.tide_emulate_waits())
            losses[i], counts[i] = step:run({ batch }).loss, batch.count
            waits = tonumber(driver.tide_emulate_waits()) - before
         end
         return losses, seen, counts, waits
      end
      local losses, seen, counts, waits = train 'cuda'
      assert.same(counts, seen)
      assert.equal(1, waits)
      for i, want in ipairs((train 'cpu')) do assert.near(want, losses[i], 1e-5 * want) end
   end)

   it('is waited for as often in a step with images as in one of documents', function()
      local vl = require 'spec.lua.vl_chat_case'
      local corpus = tide.data.chat.load(vl.golden .. '/chats.jsonl', vl.options())
      local sampler = tide.data.packed.new { cu = corpus.cu, source = corpus.train, seq = 150,
         batch = 1 }
      for _, of in ipairs { vl, vl.qwen3_vl } do
         local model, waits = of.model():to 'cuda', nil
         local step = tide.train.step.new { model = model,
            optim = tide.optim.AdamW(model, { lr = 1e-3 }) }
         for _ = 1, 2 do                              -- the second time no kernel is new
            local batch = sampler:make(corpus.train, { sampler:all()[1] }, 'cuda')
            assert.equal(1, batch.image_grid_thw:size(1))
            local before = tonumber(driver.tide_emulate_waits())
            step:run { batch }
            waits = tonumber(driver.tide_emulate_waits()) - before
         end
         assert.equal(1, waits)
      end
   end)
end)

describe('a run on a GPU', function()
   local config = { vocab_size = 24, hidden_size = 16, intermediate_size = 16,
      num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 1 }

   local function waited() return tonumber(driver.tide_emulate_waits()) end

   -- Losses of four steps, what the sampler said after each, and how often the host had waited;
   -- make: called as batches are made.
   local function train(device, make)
      local model = tide.model.llama(config, { device = device, seed = 1 })
      local source = tide.data.tokens.memory(('\1\2\3\5\8\13\21'):rep(9), 1)
      local sampler = tide.data.sampler.new { count = source.count, seq = 5, batch = 2, seed = 4 }
      local run = tide.train.run { model = model, train = source, sampler = sampler, steps = 4,
         device = device, optim = tide.optim.AdamW(model, { lr = 1e-2 }),
         progress = { update = function() end, note = function() end, finish = function() end } }
      local raw = source.raw
      function source.raw(...)
         make()
         return raw(...)
      end
      local losses, places, ends = {}, {}, {}
      for s in run:steps() do
         ends[s.step] = waited()
         losses[s.step], places[s.step] = s.loss, sampler:state().position
      end
      run:finish()
      return losses, places, ends
   end

   it('makes the next batch before the host waits for the step, in the same order', function()
      local waits = {}
      local got, places, ends = train('cuda', function() waits[#waits + 1] = waited() end)
      local want, same = train('cpu', function() end)
      assert.same(same, places)
      for s = 1, 4 do assert.is_true(math.abs(want[s] - got[s]) < 1e-4 * want[s]) end
      assert.equal(8, #waits)                  -- two rows a step
      for step = 1, 3 do assert.equal(ends[step] - 1, waits[2 * step + 1]) end
   end)
end)
