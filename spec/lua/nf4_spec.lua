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
   for _, row in ipairs(model.quantised.modules) do n = n + row[2] * row[3] * (row[5] or 1) end
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

-- ---- experts -----------------------------------------------------------------------------------

local mixture = { vocab_size = 64, hidden_size = 48, intermediate_size = 80,
   moe_intermediate_size = 36, num_hidden_layers = 3, num_attention_heads = 4,
   num_key_value_heads = 2, head_dim = 12, num_experts = 5, num_experts_per_tok = 2,
   norm_topk_prob = true, mlp_only_layers = { 1 } }

local function mixed(opts) return tide.model.qwen3_moe(mixture, opts or { seed = 2 }) end

-- Rounds each expert of a model in place to what its codes stand for.
local function rounded(model)
   model:walk(function(m)
      if m.class_name ~= 'MoE' then return end
      for _, field in ipairs { 'gate_proj', 'up_proj', 'down_proj' } do
         for e = 1, m.experts do
            local W = m[field]:detach():select(1, e)
            local codes, scale = tide.quantize_nf4(W)
            W:copy_(tide.dequantize_nf4(codes, scale, W:numel()):reshape(W.shape))
         end
      end
   end)
   return model
end

describe('nn.nf4 of experts', function()
   it('takes at most 0.52 bytes a parameter of a published mixture', function()
      local null = tide.model.qwen3_moe({ vocab_size = 151936, hidden_size = 2048,
         num_hidden_layers = 48, num_attention_heads = 32, num_key_value_heads = 4,
         head_dim = 128, num_experts = 128, num_experts_per_tok = 8, moe_intermediate_size = 768,
         intermediate_size = 6144 }, { dtype = 'bf16', device = 'null' })
      local all = null:num_parameters()
      assert.is_true(all > 30.5e9 and all < 30.6e9)
      local codes, n, rest = bytes_of(nf4.quantise_(null))
      assert.is_true(n / all > 0.97)
      assert.is_true(codes / n <= 0.517, codes / n)
      assert.is_true(codes + rest < 17e9, codes + rest)
   end)

   it('codes each expert by itself, and computes with those numbers', function()
      local model, want = nf4.quantise_(mixed()), rounded(mixed())
      local moe = model:get 'model.layers.0.mlp'
      assert.same({ 5, 36 * 48 / 2 + 27 }, moe.gate_proj_nf4.shape)
      assert.same({ 5, 2 }, moe.down_proj_scale.shape)
      assert.is_nil(moe.gate_proj)
      assert.matches('nf4', tostring(moe))
      for _, row in ipairs(model.quantised.modules) do
         if row[1]:find 'self_attn' or row[1]:find 'layers.1' then
            local W = want:get(row[1]).weight:detach()
            local codes, scale = tide.quantize_nf4(W)
            W:copy_(tide.dequantize_nf4(codes, scale, W:numel()):reshape(W.shape))
         end
      end
      assert.is_true(off(model(ids), want(ids)) < 1e-6)
      local names = {}
      for i, e in ipairs(want:named_parameters()) do names[i] = e.name end
      nf4.dequantise_(model)
      for i, e in ipairs(model:named_parameters()) do assert.equal(names[i], e.name) end
      assert.is_true(off(model(ids), want(ids)) < 1e-6)
   end)

   it('has shapes on the null device, and its memory is counted by the price of a plan', function()
      local null, real = nf4.quantise_(mixed { device = 'null' }), nf4.quantise_(mixed())
      for i, b in ipairs(real:named_buffers()) do
         local other = null:named_buffers()[i]
         assert.same({ b.name, b.buffer.shape, b.buffer.dtype },
            { other.name, other.buffer.shape, other.buffer.dtype })
      end
      lora.attach(null, { rank = 4 })
      local codes, _, rest = bytes_of(null)
      local price = tide.parallel.plan(null, { dp_shard = 2 }, { ranks = 2 })
         :price { batch = 1, seq = 16 }
      assert.is_true(price.parameters > codes + 0.45 * rest and price.parameters < codes + rest)
   end)

   it('gives the gradient of the input, and none of the experts', function()
      local x = tide.empty { 3, 2, 48 }:normal_(0, 1, { seed = 1 })
      local function slope(model)
         local v = x:clone():requires_grad_()
         local moe = model:get 'model.layers.0.mlp'
         moe(v):square():sum():backward()
         return v.grad, moe.router.grad
      end
      local dx, drouter = slope(nf4.quantise_(mixed()))
      local want, wrouter = slope(rounded(mixed()))
      assert.is_true(off(dx, want) < 1e-5 * want:abs():amax():item())
      assert.is_true(off(drouter, wrouter) < 1e-5 * wrouter:abs():amax():item())
   end)

   it('is read from a folder an expert at a time, saved again, and resumed', function()
      tmp.with(function(dir)
         local wide = { hidden_size = 128, moe_intermediate_size = 256, num_experts = 16 }
         for k, v in pairs(mixture) do wide[k] = wide[k] or v end
         tide.model.save(tide.model.qwen3_moe(wide, { seed = 3 }), dir .. '/m')
         local ctx = tide.default()
         collectgarbage()
         ctx:collect()
         ctx:reset_peak()
         local before = ctx:stats().live
         local model = tide.model.load(dir .. '/m', { quantise = 'nf4' })
         local s, codes, _, rest = ctx:stats(), bytes_of(model)
         assert.is_true(s.peak - before <= codes + rest + 3 * 128 * 256 * 4 + 65536)
         assert.equal(0, off(model(ids), nf4.quantise_(tide.model.qwen3_moe(wide,
            { seed = 3 }))(ids)))
         tide.model.save(model, dir .. '/again')
         local again = tide.model.load(dir .. '/again')
         assert.is_true(off(model(ids), again(ids)) < 1e-5)
         lora.attach(model, { rank = 2 })
         local run = { model = model, optim = tide.optim.AdamW(model, { lr = 1e-3 }), step = 1,
            recipe = {} }
         tide.train.checkpoint.save(dir .. '/run', tide.train.state.collect(run))
         local resumed = tide.model.load(dir .. '/run')
         assert.same(model.quantised, resumed.quantised)
         assert.equal(0, off(model(ids), resumed(ids)))
         tide.model.save(resumed, dir .. '/merged')
         assert.is_true(off(model(ids), tide.model.load(dir .. '/merged')(ids)) < 1e-5)
      end)
   end)

   it('is built as a description says that lacks experts', function()
      local model = nf4.quantise_(mixed())
      local rows = {}
      for _, row in ipairs(model.quantised.modules) do
         if not row[5] then rows[#rows + 1] = row end
      end
      local plain = { config = mixture, family = 'qwen3_moe',
         quantised = { method = 'nf4', modules = rows } }
      local older = require('tide.model.family').build('spec', plain, { device = 'null' })
      assert.is_not_nil(older:get 'model.layers.0.mlp'.gate_proj)
      assert.is_not_nil(older:get 'model.layers.0.self_attn.q_proj'.weight_nf4)
   end)

   it('counts the weights that are codes in what a token multiplies by', function()
      for _, make in ipairs { mixed, made } do
         local plain, coded = make { device = 'null' }, nf4.quantise_(make { device = 'null' })
         assert.is_true(coded:num_parameters() < plain:num_parameters() / 2)
         assert.equal(plain:multiplying(), coded:multiplying())
         assert.equal(plain:flops_per_token(16), coded:flops_per_token(16))
      end
   end)

   it('is refused in f64', function()
      refused('E_DTYPE', { 'nn.nf4.quantise_', "'0.gate_proj'", 'f64' }, nf4.quantise_,
         tide.nn.Stack { tide.nn.MoE { dim = 4, hidden = 4, experts = 2, topk = 1,
            dtype = 'f64' } })
   end)
end)
