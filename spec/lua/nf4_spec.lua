-- nn.nf4: bytes of a quantised base, what loading needs, folders and checkpoints of it, adapters
-- beside it, and mistakes.

local tide = require 'tide'
local refused = require 'spec.support.refused'
local tmp = require 'spec.support.tmp'

local nf4, lora = tide.nn.nf4, tide.nn.lora
local config = { vocab_size = 64, hidden_size = 128, intermediate_size = 390,
   num_hidden_layers = 6, num_attention_heads = 8, num_key_value_heads = 4 }
local ids = tide.tensor({ { 3, 1, 4, 1, 5, 9, 2, 6 } }, { dtype = 'i64' })

local function made(opts) return tide.model.llama(config, opts or { seed = 2 }) end
local function off(a, b) return (a:detach() - b:detach()):abs():amax():item() end

-- Bytes of Linear layers in NF4, their parameters, and bytes of everything else.
local function bytes_of(model)
   local codes, n, rest = 0, 0, 0
   for _, b in ipairs(model:named_buffers()) do
      codes = codes + b.buffer:numel() * tide.dtype_size(b.buffer.dtype)
   end
   for _, row in ipairs(model.quantised.modules) do n = n + row[2] * row[3] end
   for _, p in ipairs(model:parameters()) do
      rest = rest + p:numel() * tide.dtype_size(p.dtype)
   end
   return codes, n, rest
end

describe('nn.nf4', function()
   it('takes at most 0.53 bytes a parameter of the Linear layers', function()
      local codes, n = bytes_of(nf4.quantise_(made()))
      assert.is_true(codes / n <= 0.53, codes / n)
      local null = tide.model.llama({ vocab_size = 32000, hidden_size = 2048,
         intermediate_size = 5632, num_hidden_layers = 22, num_attention_heads = 32,
         num_key_value_heads = 4 }, { dtype = 'bf16', device = 'null' })
      local all = null:num_parameters()
      assert.is_true(all > 1.09e9 and all < 1.11e9)
      local rest
      codes, n, rest = bytes_of(nf4.quantise_(null))
      assert.is_true(codes / n <= 0.517, codes / n)
      -- embeddings and head, bf16: 2 x 32000 x 2048 x 2 bytes
      assert.is_true(rest < 2 * 32000 * 2048 * 2 * 1.001)
      assert.is_true((codes + rest) / all < 0.70, (codes + rest) / all)
   end)

   it('computes with the numbers of bitsandbytes, and gives them back', function()
      local model, want = made(), made()
      nf4.quantise_(model)
      for _, row in ipairs(model.quantised.modules) do
         local W = want:get(row[1]).weight:detach()
         local codes, scale = tide.quantize_nf4(W)
         W:copy_(tide.dequantize_nf4(codes, scale, W:numel()):reshape(W.shape))
      end
      assert.is_true(off(model(ids), want(ids)) < 1e-6)
      assert.is_true(off(model(ids), made()(ids)) > 1e-4)
      local names = {}
      for i, e in ipairs(want:named_parameters()) do names[i] = e.name end
      nf4.dequantise_(model)
      for i, e in ipairs(model:named_parameters()) do
         assert.equal(names[i], e.name)
         assert.is_true(e.param.requires_grad)
      end
      assert.equal(0, off(model(ids), want(ids)))
   end)

   it('is read from a folder a layer at a time, to the same codes', function()
      tmp.with(function(dir)
         tide.model.save(made(), dir .. '/m')
         local ctx = tide.default()
         collectgarbage()
         ctx:collect()
         ctx:reset_peak()
         local before = ctx:stats().live
         local model = tide.model.load(dir .. '/m', { quantise = 'nf4' })
         local s = ctx:stats()
         local codes, n, rest = bytes_of(model)
         assert.is_true(s.live - before <= (codes + rest) * 1.05 + 65536)
         assert.is_true(s.peak - before <= codes + rest + 3 * 128 * 390 * 4 + 65536)
         assert.is_true(s.peak - before < n * 4 / 2)
         assert.equal(0, off(model(ids), nf4.quantise_(made())(ids)))
         local wide = tide.model.load(dir .. '/m', { quantise = 'nf4', dtype = 'bf16' })
         assert.equal('bf16', wide(ids).dtype)
         tide.model.save(model, dir .. '/again')
         local again = tide.model.load(dir .. '/again')       -- plain weights, of the same numbers
         assert.is_true(off(model(ids), again(ids)) < 1e-6)   -- few rows add up in another order
         nf4.dequantise_(model)
         assert.equal(0, off(model(ids), again(ids)))
      end)
   end)

   it('is counted by the price of a plan, whole on every rank', function()
      local model = nf4.quantise_(made { device = 'null' })
      lora.attach(model, { rank = 4 })
      local codes, _, rest = bytes_of(model)
      local price = tide.parallel.plan(model, { dp = 2 }, { ranks = 2 })
         :price { batch = 1, seq = 16 }
      assert.equal(codes + rest, price.parameters)
      price = tide.parallel.plan(model, { dp_shard = 2 }, { ranks = 2 })
         :price { batch = 1, seq = 16 }
      assert.is_true(price.parameters >= codes + rest / 2 and price.parameters < codes + rest)
   end)

   it('counts its weights among those that multiply', function()
      local plain, coded = made { device = 'null' }, nf4.quantise_(made { device = 'null' })
      assert.equal(plain:multiplying(), coded:multiplying())
      assert.equal(plain:flops_per_token(16), coded:flops_per_token(16))
   end)

   it('trains adapters alone, which PEFT names', function()
      tmp.with(function(dir)
         local model = nf4.quantise_(made()):train()
         lora.attach(model, { rank = 4 })
         local optim = tide.optim.AdamW(model, { lr = 1e-2 })
         local step = tide.train.step { model = model, optim = optim, comm = tide.comm.solo() }
         local labels = tide.tensor({ { 1, 4, 1, 5, 9, 2, 6, 5 } }, { dtype = 'i64' })
         local codes = model:get('model.layers.0.mlp.up_proj').weight_nf4:clone()
         local loss = {}
         for i = 1, 6 do loss[i] = step:run({ { ids = ids, labels = labels, count = 8 } }).loss end
         assert.is_true(loss[6] < loss[1])
         assert.is_true(codes:equal(model:get('model.layers.0.mlp.up_proj').weight_nf4))
         for _, e in ipairs(model:named_parameters()) do
            assert.equal(e.name:find '%.lora_[AB]$' ~= nil, optim.state[e.name] ~= nil)
         end
         local want = model:eval()(ids)
         tide.model.save_adapter(model, dir .. '/a')
         local other = tide.model.load_adapter(nf4.quantise_(made()):eval(), dir .. '/a')
         assert.equal(0, off(want, other(ids)))
         tide.model.save(model, dir .. '/merged')
         assert.is_true(off(want, tide.model.load(dir .. '/merged')(ids)) < 1e-5)
         refused('E_STATE', { 'nn.lora.merge', 'NF4', 'dequantise_' }, lora.merge, model)
         nf4.dequantise_(model)
         assert.is_false(model:get('model.layers.0.mlp.up_proj').weight.requires_grad)
         assert.is_true(off(want, lora.merge(model)(ids)) < 1e-5)
      end)
   end)

   it('scales rows by their norms (DoRA), a panel of rows at a time', function()
      tmp.with(function(dir)
         local wide = { vocab_size = 64, hidden_size = 1000, intermediate_size = 2500,
            num_hidden_layers = 1, num_attention_heads = 4 }
         local function adapted(model)
            lora.attach(model, { rank = 3, dora = true, targets = 'up_proj|q_proj' })
            tide.no_grad(function()
               for _, e in ipairs(model:named_parameters()) do
                  if e.name:find 'lora_[Bm]$' then e.param:normal_(0, 0.05, { seed = #e.name }) end
               end
            end)
            return model:eval()
         end
         local model = adapted(nf4.quantise_(tide.model.llama(wide, { seed = 2 })))
         local plain = nf4.dequantise_(nf4.quantise_(tide.model.llama(wide, { seed = 2 })))
         local want = adapted(plain)(ids)
         local ctx = tide.default()
         tide.no_grad(model, ids)
         collectgarbage()
         ctx:reset_peak()
         local before = ctx:stats().live
         local got = tide.no_grad(model, ids)
         -- less than up_proj in f32: panels of 2^18 numbers, 6 tensors of each
         assert.is_true(ctx:stats().peak - before < 4 * 1000 * 2500, ctx:stats().peak - before)
         assert.is_true(off(want, got) < 1e-5 * want:abs():amax():item())
         assert.is_true(off(got, lora.without(model, function() return model(ids) end)) > 1e-2)
         tide.model.save_adapter(model, dir .. '/a')
         local other = tide.model.load_adapter(nf4.quantise_(tide.model.llama(wide, { seed = 2 })),
            dir .. '/a')
         assert.is_true(off(got, other:eval()(ids)) < 1e-5)
         tide.model.save(model, dir .. '/merged')
         assert.is_true(off(got, tide.model.load(dir .. '/merged')(ids)) < 1e-4)
         nf4.dequantise_(model)
         assert.is_true(off(got, lora.merge(model)(ids)) < 1e-4)
      end)
   end)

   it('keeps the dtype of its scales where that of the model changes', function()
      local model = nf4.quantise_(made())
      local before = model(ids)
      model:to 'bf16'
      local m = model:get 'model.layers.0.mlp.up_proj'
      assert.same({ 'u8', 'f32' }, { m.weight_nf4.dtype, m.weight_scale.dtype })
      lora.attach(model, { rank = 2 })
      assert.equal('bf16', m.lora_A.dtype)
      assert.is_true(off(before, model(ids):to 'f32') < 0.05)
   end)

   it('refuses what cannot be', function()
      local model = made()
      lora.attach(model, { rank = 2 })
      refused('E_STATE', { 'quantise_', 'has adapters' }, nf4.quantise_, model)
      model = nf4.quantise_(made())
      refused('E_STATE', { 'quantise_', 'quantised already' }, nf4.quantise_, model)
      refused('E_STATE', { 'dequantise_', 'not quantised' }, nf4.dequantise_, made())
      refused('E_DTYPE', { 'f64' }, nf4.quantise_, made { dtype = 'f64' })
      refused('E_UNSUPPORTED', { 'FP8' }, nf4.quantise_, made { fp8 = true })
      refused('E_ARG', { 'no Linear layer' }, nf4.quantise_, tide.nn.RMSNorm(4))
      refused('E_ARG', { 'model' }, nf4.quantise_, 3)
      refused('E_ARG', { 'model.load', 'quantise', 'nf4' }, tide.model.load, '/x',
         { quantise = 'fp4' })
   end)
end)
