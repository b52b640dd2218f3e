-- Latent attention: against a softmax written out, with caches, over ranks, and in models.

local case = require 'spec.lua.folder_case'
local each = require 'tide.util.each'
local inputs = require('spec.lua.decoder_case').inputs
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'
local nn = tide.nn

local golden = dofile 'spec/golden/folders.lua'

local function random(seed, shape, dtype)
   return tide.empty(shape):normal_(0, 1, { seed = seed }):to(dtype or 'f64')
end

local function near(want, got, tolerance, what)
   local off = (want:to 'f64' - got:to 'f64'):abs():amax():item()
   assert.is_true(off <= tolerance * math.max(1, want:abs():amax():item()), what)
end

local function layer(more)
   local opts = { dim = 12, heads = 3, nope_dim = 5, rope_dim = 4, value_dim = 7, latent_dim = 6,
      dtype = 'f64', seed = 2, rope = nn.rope.new { dim = 4, interleaved = true } }
   for k, v in each(more or {}) do opts[k] = v end
   return nn.LatentAttention(opts)
end

-- The output of a layer for x [1, T, C], head after head.
local function by_hand(m, x)
   local T, H, N, V = x:size(2), m.heads, m.nope_dim, m.value_dim
   local q = m.q_proj and m.q_proj(x) or m.q_b_proj(m.q_a_layernorm(m.q_a_proj(x)))
   local kv = m.kv_a_proj_with_mqa(x)
   local latent = m.kv_a_layernorm(kv:narrow(3, 1, m.latent_dim))
   local positions = tide.arange(T, { dtype = 'i64' }):reshape(1, T)
   local function turned(t) return m.rope:apply(t:reshape(1, T, 1, 4), positions):reshape(T, 4) end
   local k_rot = turned(kv:narrow(3, m.latent_dim + 1, 4))
   local both, list = m.kv_b_proj(latent), {}
   for h = 1, H do
      local qh = q:narrow(3, (h - 1) * (N + 4) + 1, N + 4)
      qh = tide.cat({ qh:narrow(3, 1, N):reshape(T, N), turned(qh:narrow(3, N + 1, 4)) }, 2)
      local kvh = both:narrow(3, (h - 1) * (N + V) + 1, N + V):reshape(T, N + V)
      local k = tide.cat({ kvh:narrow(2, 1, N), k_rot }, 2)
      local scores = tide.matmul(qh, k:transpose(1, 2)) * m.scale
      local seen = tide.arange(T, { dtype = 'i64' })
      local mask = seen:reshape(1, T):gt(seen:reshape(T, 1))
      local p = scores:masked_fill(mask, -math.huge):softmax(-1)
      list[h] = tide.matmul(p, kvh:narrow(2, N + 1, V))
   end
   return m.o_proj(tide.cat(list, 2):reshape(1, T, H * V))
end

local function grads(fn, m, x)
   m:zero_grad()
   x = x:detach():requires_grad_()
   local y = fn(m, x);
   (y * random(9, y.shape)):sum():backward()
   local list = { y = y:detach(), x = x.grad }
   for _, e in ipairs(m:named_parameters()) do list[e.name] = e.param.grad end
   return list
end

describe('nn.LatentAttention', function()
   for what, more in each { ['queries of one product'] = {},
      ['a latent of queries'] = { q_latent_dim = 8 },
      ['biases and a scale'] = { q_latent_dim = 8, bias = true, out_bias = true, scale = 0.2 } } do
      it('is a softmax for each head, with ' .. what, function()
         local m, x = layer(more), random(1, { 1, 6, 12 })
         local want, got = grads(by_hand, m, x), grads(function(_, v) return m(v) end, m, x)
         for name, t in each(want) do near(t, got[name], 1e-12, name) end
      end)
   end

   it('takes no token, one token, and 16 bits', function()
      local m = layer { dtype = 'f32' }
      assert.same({ 2, 0, 12 }, m(tide.zeros { 2, 0, 12 }).shape)
      assert.same({ 2, 1, 12 }, m(tide.zeros { 2, 1, 12 }).shape)
      local x = random(1, { 2, 9, 12 }, 'f32')
      near(m(x), layer { dtype = 'bf16' }(x:to 'bf16'), 3e-2, 'bf16')
   end)

   -- The outputs of tokens that come in parts of these sizes, with a cache.
   local function in_parts(m, x, sizes)
      local cache, list, at = {}, {}, 0
      for i, n in ipairs(sizes) do
         local positions = (tide.arange(n, { dtype = 'i64' }) + at):reshape(1, n)
         list[i] = m(x:narrow(2, at + 1, n), { cache = cache, positions = positions })
         at = at + n
      end
      return tide.cat(list, 2), cache
   end

   it('gives the numbers of the whole with a cache, which keeps latents alone', function()
      local x = random(3, { 2, 9, 12 })
      for _, training in ipairs { true, false } do
         local m = layer { q_latent_dim = 8 }
         if training then m:train() else m:eval() end
         tide.no_grad(function()
            local got, cache = in_parts(m, x, { 4, 1, 1, 3 })
            near(m(x), got, 1e-12, 'in parts')
            assert.same({ 2, 9, 1, 10 }, cache.k.shape)
            assert.same({ 2, 9, 1, 0 }, cache.v.shape)
         end)
      end
   end)

   it('expands the cache where kv_b_proj is more than a product', function()
      local x, m = random(3, { 1, 7, 12 }), layer():eval()
      nn.lora.attach(m, { rank = 2, seed = 5 })
      m.kv_b_proj.lora_B:detach():normal_(0, 1, { seed = 1 })
      tide.no_grad(function() near(m(x), in_parts(m, x, { 5, 2 }), 1e-12) end)
   end)

   it('attends within documents, and drops probabilities', function()
      local x, m = random(4, { 1, 8, 12 }), layer()
      local index = tide.tensor({ { { 0, 0 }, { 0, 1 }, { 0, 2 }, { 1, 0 }, { 1, 1 }, { 1, 2 },
         { 1, 3 }, { 1, 4 } } }, { dtype = 'i32' })
      local positions = index:select(3, 2):to 'i64'
      local got = m(x, { q_index = index, k_index = index, positions = positions })
      near(m(x:narrow(2, 1, 3)), got:narrow(2, 1, 3), 1e-12)
      near(m(x:narrow(2, 4, 5)), got:narrow(2, 4, 5), 1e-12)
      local dropped = layer { dropout = 0.5 }:train()
      assert.is_true((dropped(x) - m(x)):abs():amax():item() > 1e-3)
      near(m(x), dropped:eval()(x), 1e-12)
   end)

   it('refuses a rotary size that is odd', function()
      refused('E_ARG', { 'nn.rope', 'dim' }, nn.rope.new, { dim = 3 })
   end)
end)

-- ---- over ranks --------------------------------------------------------------------------------

-- On a rank: the logits of a sequence over cp ranks, and ids that tensor parallelism generates.
local function on_rank(_, _, dir, mesh, ids, method, sequence)
   local t = require 'tide'
   local model, run = t.model.load(dir, { mesh = mesh, plan = {
      cp = method and { method = method } or nil,
      tp = mesh.tp and { sequence_parallel = sequence } or nil } })
   if not mesh.cp then
      return { (t.train.sample.generate(model:eval(), { 3, 1, 4, 1, 5 }, { tokens = 7,
         temperature = 0, context = 12 })) }
   end
   local mine = run.context:cut { ids = t.tensor(ids, { dtype = 'i64' }) }
   local part = model(mine.ids, { context = mine.context }):detach()
   return mine.context.map:gather(part, 2):reshape(-1):tolist()
end

describe('a decoder with latent attention', function()
   local ids = { { 3, 1, 4, 1, 5, 9, 2, 6 }, { 5, 3, 5, 8, 9, 7, 9, 3 } }

   for _, method in ipairs { 'ring', 'allgather', 'a2a' } do
      it('has the logits of one rank over two: ' .. method, function()
         tmp.with(function(dir)
            local model = case.model(golden.deepseek_v3, { dtype = 'f64' })
            tide.model.save(model, dir .. '/in')
            local want = model(tide.tensor(ids, { dtype = 'i64' })):detach()
            for _, got in ipairs(ranks.run(2, on_rank, dir .. '/in', { cp = 2 }, ids, method)) do
               near(want:reshape(-1), tide.tensor(got, { dtype = 'f64' }), 1e-12)
            end
         end)
      end)
   end

   for what, sequence in each { ['by heads'] = false, ['by heads and tokens'] = true } do
      it('generates the ids of one rank over two: ' .. what, function()
         tmp.with(function(dir)
            for _, name in ipairs { 'deepseek_v3', 'deepseek_v2' } do
               local model = case.model(golden[name], { dtype = 'f64' })
               tide.model.save(model, dir .. '/' .. name)
               local want = tide.train.sample.generate(model, { 3, 1, 4, 1, 5 }, { tokens = 7,
                  temperature = 0, context = 12 })
               for _, got in ipairs(ranks.run(2, on_rank, dir .. '/' .. name, { tp = 2 }, nil, nil,
                  sequence)) do assert.same(want, got[1]) end
            end
         end)
      end)
   end

   it('refuses what its configuration cannot be', function()
      local function make(changes)
         local c = { vocab_size = 9, hidden_size = 8, num_hidden_layers = 2,
            num_attention_heads = 2, num_experts_per_tok = 2 }
         return tide.model.deepseek_v3, (require 'tide.util.copy')(changes, c)
      end
      refused('E_ARG', { 'num_key_value_heads (1)', 'num_attention_heads (2)' },
         make { num_key_value_heads = 1 })
      refused('E_ARG', { 'head_dim', 'qk_rope_head_dim (64)' }, make { head_dim = 4 })
      refused('E_ARG', { "'qk_rope_head_dim'", 'even', '3' }, make { qk_rope_head_dim = 3 })
      refused('E_ARG', { 'topk_group (9)', 'n_group (8)' }, make { topk_group = 9 })
      refused('E_ARG', { 'n_routed_experts (12)', 'n_group (8)' },
         make { n_routed_experts = 12 })
      refused('E_ARG', 'scoring_func', make { scoring_func = 'softmax' })
   end)

   it('takes a mscale of 0 as one that is not there, as transformers does', function()
      local function numbers(scaling)
         scaling.rope_type, scaling.factor = 'yarn', 4
         local c = { vocab_size = 9, hidden_size = 8, num_hidden_layers = 1,
            num_attention_heads = 2, n_routed_experts = 2, num_experts_per_tok = 1,
            n_group = 1, topk_group = 1, max_position_embeddings = 64, rope_scaling = scaling }
         local mixer = tide.model.deepseek_v3(c, { device = 'null' }).model.layers[1].self_attn
         return { mixer.scale, mixer.rope.attention_factor }
      end
      assert.same(numbers {}, numbers { mscale = 0.7, mscale_all_dim = 0 })
      assert.same(numbers {}, numbers { mscale = 0 })
      assert.same(numbers { mscale_all_dim = 0.7 }, numbers { mscale = 0, mscale_all_dim = 0.7 })
   end)

   it('leaves out the layers of a file that predict further tokens', function()
      tmp.with(function(dir)
         local model = case.model(golden.deepseek_v3)
         tide.model.save(model, dir .. '/m')
         local path, fs = dir .. '/m/model.safetensors', require 'tide.util.fs'
         local all = tide.train.checkpoint.tensors(path)
         all['model.layers.3.eh_proj.weight'] = tide.zeros { 2, 2 }
         fs.io().safetensors_save(path, all, { format = 'pt' })
         local text = fs.read('spec', dir .. '/m/config.json')
         refused('E_SHAPE', { 'model.layers.3.eh_proj.weight', 'unexpected' }, tide.model.load,
            dir .. '/m')
         fs.write('spec', dir .. '/m/config.json',
            (text:gsub('("num_nextn_predict_layers": ?)0', '%11')))
         local ids_ = inputs()
         assert.is_true(tide.model.load(dir .. '/m')(ids_):equal(model(ids_)))
      end)
   end)
end)
