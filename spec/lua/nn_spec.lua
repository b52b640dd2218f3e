-- nn: layers against what they are defined to be.

local tide = require 'tide'
local nn = require 'tide.nn'

local function close(a, b, tolerance)
   assert.same(a.shape, b.shape)
   local d = (a:to 'f64' - b:to 'f64'):abs():amax():item()
   assert.is_true(d <= (tolerance or 1e-5), 'largest difference ' .. d)
end

local function bad(pattern, fn, ...)
   local ok, e = pcall(fn, ...)
   assert.is_false(ok)
   assert.equal('table', type(e), tostring(e))
   assert.matches(pattern, tostring(e), 1, true)
end

local x_BTC = tide.tensor {
   { { 0.1, -0.4, 0.3, 0.8 }, { 1, 0.2, -0.7, 0.5 }, { -0.3, 0.9, 0.6, -1 } } }

describe('nn.Linear and nn.Embedding', function()
   it('multiply and look up', function()
      local m = nn.Linear(4, 3, { seed = 1 })
      tide.no_grad(function() m.bias:copy_(tide.tensor { 1, 2, 3 }) end)
      close(m(x_BTC), x_BTC:matmul(m.weight:t()) + m.bias)
      local e = nn.Embedding(5, 4)
      local ids = tide.tensor({ { 4, 0 } }, { dtype = 'i64' })
      local rows = tide.stack({ e.weight:select(1, 5), e.weight:select(1, 1) }, 1)
      close(e(ids), rows:reshape(1, 2, 4))
      close(e:as_output(x_BTC), x_BTC:matmul(e.weight:t()))
   end)

   it('multiply in FP8 where that is asked for', function()
      local m = nn.Linear(4, 3, { seed = 1, fp8 = true })
      assert.same(tide.linear_fp8(x_BTC, m.weight, m.bias):tolist(), m(x_BTC):tolist())
      assert.matches('4 -> 3, bias, fp8', tostring(m), 1, true)
      assert.matches('4 %-> 3$', tostring(nn.Linear(4, 3, { bias = false, fp8 = false })))
      local block = nn.Linear(4, 3, { seed = 1, fp8 = 'block' })
      assert.same(tide.linear_fp8(x_BTC, m.weight, m.bias, { scaling = 'block' }):tolist(),
         block(x_BTC):tolist())
      assert.matches('4 -> 3, bias, fp8 block', tostring(block), 1, true)
      bad("true, false, 'tensor', 'block' or 'block_f32'", nn.Linear, 4, 3, { fp8 = 'e4m3' })
      bad('f32 or bf16 with fp8', nn.Linear, 4, 3, { fp8 = true, dtype = 'f64' })
   end)

   it('check their sizes', function()
      bad("argument 'nin'", nn.Linear, 0.5, 2)
      bad("argument 'window[1]'", nn.Attention, { dim = 4, heads = 2, window = { 'a' } })
      bad("argument 'window'", nn.Attention, { dim = 4, heads = 2, window = -1 })
      bad("argument 'nout'", nn.Linear, 2)
      bad("did you mean 'bias'", nn.Linear, 2, 2, { bais = true })
      bad("argument 'nvocab'", nn.Embedding, 0 / 0, 2)
      bad("argument 'dim'", nn.Embedding, 2, -1)
   end)

   it('take true and false for what is one of these', function()
      bad("argument 'bias': expected a boolean, got \"no\"", nn.Linear, 2, 2, { bias = 'no' })
      bad("argument 'bias'", nn.LayerNorm, 2, { bias = 0 })
      for _, name in ipairs { 'bias', 'out_bias', 'causal', 'fused' } do
         bad(("argument '%s': expected a boolean"):format(name), nn.Attention,
            { dim = 4, heads = 2, [name] = 1 })
      end
      bad("argument 'on': expected a boolean", nn.Linear(2, 2).train, nn.Linear(2, 2), 'no')
   end)
end)

describe('nn.loss', function()
   local x_NC, w_VC = x_BTC:reshape(3, 4), tide.arange(8):reshape(2, 4)
   local labels = tide.tensor({ 0, 1, 1 }, { dtype = 'i64' })

   it('takes labels as they are: only a model shifts them', function()
      bad("unknown option 'shift'", nn.loss.linear, x_NC, w_VC, labels, { shift = true })
   end)

   it('names the function that was called', function()
      local function sum() return x_NC:sum() end
      bad("tide.nn.loss.linear: argument 'x'", nn.loss.linear, 1, w_VC, labels)
      bad('tide.nn.loss.linear: expected 3 labels', nn.loss.linear, x_NC, w_VC,
         labels:slice(1, 1, 2))
      bad("tide.nn.loss.per_count: argument 'x'", nn.loss.per_count, sum, 1, labels)
      bad("tide.model.mine: argument 'count'", nn.loss.per_count, sum, x_NC, labels,
         { count = -1 }, 'model.mine')
      bad("tide.nn.loss.per_count: argument 'op'", nn.loss.per_count, sum, x_NC, labels, nil, 1)
   end)
end)

describe('nn.MLP in its plain form', function()
   local function by_hand(m, x)
      local up = tide.linear(x, m.up_proj.weight, m.up_proj.bias)
      local y = m.act == 'relu2' and up:relu():square() or up[m.act](up)
      return tide.linear(y, m.down_proj.weight, m.down_proj.bias)
   end

   it('activates on the way out of the product, also with hooks in between', function()
      for _, act in ipairs { 'relu', 'relu2', 'gelu_tanh', 'gelu', 'silu' } do
         local function make()
            return nn.MLP { dim = 4, hidden = 6, act = act, bias = true, seed = 2 }
         end
         local m = make()
         local want = by_hand(m, x_BTC)
         local grad = {}
         for i, fn in ipairs { function(mlp, x) return mlp(x) end, by_hand } do
            local mlp, x = make(), x_BTC:clone():requires_grad_()
            fn(mlp, x):square():sum():backward()
            grad[i] = { x.grad, mlp.up_proj.weight.grad, mlp.up_proj.bias.grad }
         end
         for i = 1, 3 do close(grad[1][i], grad[2][i]) end
         close(m(x_BTC), want)
         local seen
         m.up_proj:hook_post(function(_, _, y) seen = y end)
         close(m(x_BTC), want)
         close(seen, tide.linear(x_BTC, m.up_proj.weight, m.up_proj.bias))
      end
   end)

   it('asks a projection of another class for what it makes of its input', function()
      local Halved = require 'tide.class'('Halved', nn.Linear)
      function Halved:forward(x) return nn.Linear.forward(self, x) / 2 end
      for _, act in ipairs { 'relu', 'relu2', 'gelu_tanh' } do
         local m = nn.MLP { dim = 4, hidden = 6, act = act }
         m.up_proj = Halved(4, 6, { bias = false })
         local up = tide.linear(x_BTC, m.up_proj.weight) / 2
         up = act == 'relu2' and up:relu():square() or up[act](up)
         close(m(x_BTC), tide.linear(up, m.down_proj.weight))
      end
   end)
end)

describe('norms', function()
   it('are their formulas, with a residual too', function()
      local m = nn.RMSNorm(4, { eps = 1e-3 })
      tide.no_grad(function() m.weight:copy_(tide.tensor { 1, 2, 3, 4 }) end)
      local function rms(x)
         return x / (x:square():mean(-1, true) + 1e-3):sqrt() * m.weight
      end
      close(m(x_BTC), rms(x_BTC))
      local y, sum = m(x_BTC, x_BTC * 2)
      close(sum, x_BTC * 3)
      close(y, rms(x_BTC * 3))
      local l = nn.LayerNorm(4)
      local mean = x_BTC:mean(-1, true)
      local centred = x_BTC - mean
      close(l(x_BTC), centred / (centred:square():mean(-1, true) + 1e-5):sqrt())
      local _, both = l(x_BTC, x_BTC)
      close(both, x_BTC * 2)
   end)
end)

describe('nn.rope', function()
   it('has the published frequencies', function()
      local f = nn.rope.frequencies(8, 10000)
      for i = 0, 3 do assert.is_true(math.abs(f[i + 1] - 10000 ^ (-2 * i / 8)) < 1e-15) end
      assert.equal(f[2] / 4, nn.rope.frequencies(8, 10000, { type = 'linear', factor = 4 })[2])
      local s = { rope_type = 'llama3', factor = 8, low_freq_factor = 1, high_freq_factor = 4,
                  original_max_position_embeddings = 64 }
      local g = nn.rope.frequencies(8, 10000, s)
      assert.equal(f[1], g[1])               -- wave length 6.3 is short
      assert.equal(f[4] / 8, g[4])           -- 6283 is long
      assert.is_true(g[2] < f[2] and g[2] > f[2] / 8)   -- 62.8 is between
   end)

   it('scales those of Llama 3.1 as published', function()
      local f = nn.rope.frequencies(128, 500000, { rope_type = 'llama3', factor = 8,
         low_freq_factor = 1, high_freq_factor = 4, original_max_position_embeddings = 8192 })
      local between = { 0.002166570763503359, 0.0013718935677611381, 0.0008567514129196321,
         0.0005248461609929547, 0.00031269375038406517, 0.0001785078127679964 }  -- golden/rope.py
      for i, want in ipairs(between) do assert.near(1, f[29 + i] / want, 1e-12) end
      assert.near(1, f[29] / 500000 ^ (-56 / 128), 1e-12)
      assert.near(1, f[36] / (500000 ^ (-70 / 128) / 8), 1e-12)
   end)

   it('scales as transformers does, in random configurations', function()
      local scaling = require 'tide.nn.rope_scaling'
      local read = require('spec.support.files').read
      for k, row in ipairs(tide.json.decode(read 'spec/golden/rope_random.json')) do
         local dim, theta, s, length, frequencies, factor = unpack(row)
         local got = scaling.frequencies(dim, theta, s, length)
         assert.equal(#frequencies, #got)
         for i, want in ipairs(frequencies) do assert.near(1, got[i] / want, 1e-5, k) end
         assert.near(factor, scaling.attention_factor(s), 1e-6, k)
      end
   end)

   it('refuses odd sizes and unknown scaling', function()
      bad('even head size', nn.rope.frequencies, 7, 10000)
      bad("'theta'", nn.rope.frequencies, 8, 0 / 0)
      bad('rope_type', nn.rope.frequencies, 8, 10000, { rope_type = 'ntk' })
      bad("'rope_scaling.type'", nn.rope.frequencies, 8, 10000, { rope_type = 'default',
         type = 'linear' })
      bad("'rope_scaling.attention_factor': not a field of the type linear, which has factor",
         nn.rope.frequencies, 8, 10000, { type = 'linear', factor = 2, attention_factor = 1 })
      bad("'rope_scaling.high_freq_factor'", nn.rope.frequencies, 8, 10000, { type = 'llama3',
         factor = 2, low_freq_factor = 4, high_freq_factor = 4,
         original_max_position_embeddings = 8 })
      bad('rope_scaling.factor', nn.rope.frequencies, 8, 10000, { rope_type = 'llama3' })
      bad("rope_scaling.long_factor': expected 4 numbers", nn.rope.frequencies, 8, 10000,
         { rope_type = 'longrope', short_factor = { 1, 1, 1, 1 }, long_factor = { 1, 1, 1 },
            original_max_position_embeddings = 4 }, 5)
   end)
end)

-- Attention written out: softmax of masked scores, one head at a time.
local function plain_attention(q, k, v, group, allowed)
   local T, D = q:size(2), q:size(4)
   local heads = {}
   local mask = {}
   for i = 1, T do
      mask[i] = {}
      for j = 1, T do mask[i][j] = allowed(i, j) and 0 or -1e30 end
   end
   mask = tide.tensor(mask)
   for h = 1, q:size(3) do
      local kh = math.ceil(h / group)
      local s = q:select(3, h):matmul(k:select(3, kh):transpose(2, 3)) / math.sqrt(D) + mask
      heads[h] = s:softmax(-1):matmul(v:select(3, kh))
   end
   return tide.stack(heads, 3)
end

describe('nn.Attention', function()
   local function new(extra)
      local o = { dim = 4, heads = 4, kv_heads = 2, head_dim = 6, seed = 3 }
      for k, v in pairs(extra or {}) do o[k] = v end
      return nn.Attention(o)
   end

   it('is the written-out form, grouped, causal and windowed', function()
      for _, window in ipairs { false, 1 } do
         local m = new { window = window and { 1, -1 } or nil }
         local got = m(x_BTC)
         m:wrap('plain', function(_, _, q, k, v)
            return plain_attention(q, k, v, 2, function(i, j)
               return j <= i and (not window or i - j <= 1)
            end)
         end, { of = 'attend' })
         close(got, m(x_BTC))
      end
   end)

   it('hands everything to attend, which can be wrapped', function()
      local m, seen = new { rope = nn.rope.new { dim = 6 } }, nil
      m:wrap('see', function(next, self, q, k, v, options)
         seen = { q.shape, k.shape, v.shape, options.causal }
         return next(self, q, k, v, options)
      end, { of = 'attend' })
      m(x_BTC)
      assert.same({ { 1, 3, 4, 6 }, { 1, 3, 2, 6 }, { 1, 3, 2, 6 }, true }, seen)
   end)

   it('turns by the positions it is given', function()
      local m = new { rope = nn.rope.new { dim = 6 } }
      local function at(list)
         return m(x_BTC, { positions = tide.tensor({ list }, { dtype = 'i64' }) })
      end
      close(m(x_BTC), at { 0, 1, 2 })
      close(m(x_BTC), at { 100, 101, 102 }, 1e-4)       -- only distances matter
      assert.is_true((m(x_BTC) - at { 0, 5, 9 }):abs():amax():item() > 1e-4)
   end)

   it('gives the same a token at a time with a cache', function()
      local m, cache = new { rope = nn.rope.new { dim = 6 } }, {}
      local whole = m(x_BTC)
      for t = 1, 3 do
         local y = m(x_BTC:slice(2, t, t), {
            cache = cache, positions = tide.tensor({ { t - 1 } }, { dtype = 'i64' }),
         })
         close(whole:slice(2, t, t), y)
      end
   end)

   it('has sinks, a score of each head that no value has, also with a cache', function()
      local m, cache = new { sinks = true, rope = nn.rope.new { dim = 6 } }, {}
      assert.same({ 4 }, m.sinks.shape)
      tide.no_grad(function() m.sinks:copy_(tide.tensor { 0.5, -1, 2, -math.huge }) end)
      local plain = new { rope = nn.rope.new { dim = 6 } }
      local state = m:state_dict()
      state.sinks = nil
      plain:load_state_dict(state)
      plain:wrap('sunk', function(_, _, q, k, v)
         local none = tide.zeros { 1, 1, 2, 6 }
         local bias = tide.zeros { 1, 4, 3, 4 }
         bias:select(4, 4):copy_(m.sinks:detach():reshape(1, 4, 1):expand(1, 4, 3))
         for i = 1, 3 do
            if i < 3 then bias:select(3, i):slice(3, i + 1, 3):fill_(-math.huge) end
         end
         return tide.attention(q, tide.cat({ k, none }, 2), tide.cat({ v, none }, 2),
            { bias = bias })
      end, { of = 'attend' })
      local whole = m(x_BTC)
      close(whole, plain(x_BTC))
      for t = 1, 3 do
         close(whole:slice(2, t, t), m(x_BTC:slice(2, t, t), {
            cache = cache, positions = tide.tensor({ { t - 1 } }, { dtype = 'i64' }) }))
      end
   end)

   it('refuses heads that do not divide', function()
      bad("'dropout'", new, { dropout = 1 })
      bad("'dropout'", new, { dropout = 'some' })
      bad('heads (4) must be a multiple of kv_heads (3)', new, { kv_heads = 3 })
      bad('dim (5) must be a multiple of heads (4)', nn.Attention, { dim = 5, heads = 4 })
      bad("'heads'", new, { heads = 1.5 })
      bad("did you mean 'kv_heads'", new, { kv_head = 2 })
   end)
end)

describe('dropout of attention probabilities', function()
   local attend = require 'tide.nn.attend'
   local function one_of(list) return list[math.random(#list)] end

   local function index(B, T)
      local rows = {}
      for b = 1, one_of { 1, B } do
         rows[b] = {}
         for t = 1, T do rows[b][t] = { math.random(-1, 1), math.random(0, 8) } end
      end
      return tide.tensor(rows, { dtype = 'i32' })
   end

   -- Operands and options at random.
   local function random_case()
      local B, Tq, K, G, D = math.random(2), math.random(9), math.random(2), math.random(3), 4
      local indexed = math.random() < 0.5
      local Tk = indexed and math.random(9) or Tq + math.random(0, 3)
      local o = { causal = one_of { true, false }, softcap = one_of { 2, 0 },
         window = one_of { { -1, -1 }, 1, { 2, -1 }, { -1, 1 }, { 0, 3 } },
         scale = one_of { 0.7, 1 } }
      if indexed then
         o.q_index, o.k_index = index(B, Tq), index(B, Tk)
      else
         o.q_start = Tk - Tq
      end
      if math.random() < 0.3 then o.sinks = tide.randn({ K * G }):requires_grad_(true) end
      if math.random() < 0.3 then o.bias = tide.randn { 1, K * G, Tq, Tk } end
      local list = { tide.randn { B, Tq, K * G, D }, tide.randn { B, Tk, K, D },
         tide.randn { B, Tk, K, D } }
      for _, t in ipairs(list) do t:requires_grad_(true) end
      return list, o, tide.randn { B, Tq, K * G, D }
   end

   local function run(list, o, w)
      local y = attend(list[1], list[2], list[3], o)
      ;(y * w):sum():backward()
      local r = { y:detach() }
      for i, t in ipairs(list) do
         r[i + 1] = t.grad
         t:zero_grad()
      end
      if o.sinks then
         r[#r + 1] = o.sinks.grad
         o.sinks:zero_grad()
      end
      return r
   end

   it('of none of them is attention, whatever it sees, with its gradients', function()
      tide.seed(1)
      math.randomseed(3)
      for _ = 1, 80 do
         local list, o, w = random_case()
         local want = run(list, o, w)
         o.dropout = 0
         for i, got in ipairs(run(list, o, w)) do close(got, want[i], 2e-5) end
      end
   end)

   it('has the mean of attention, and gradients that differences have', function()
      tide.seed(2)
      local q, k, v = tide.randn { 1, 4, 2, 4 }, tide.randn { 1, 4, 1, 4 },
         tide.randn { 1, 4, 1, 4 }
      local want, sum = tide.attention(q, k, v, { causal = true }), 0
      local o = { causal = true, dropout = 0.3 }
      for _ = 1, 2000 do sum = attend(q, k, v, o) + sum end
      close(sum / 2000, want, 0.1)
      local first = attend(q, k, v, o)
      assert.is_false(first:equal(attend(q, k, v, o)))
      local list = { q:to 'f64', k:to 'f64', v:to 'f64' }
      assert.is_true(tide.debug.gradcheck(function(a, b, c)
         tide.seed(5)
         return attend(a, b, c, o):square():sum()
      end, list) ~= false)
   end)

   it('takes long sequences in blocks', function()
      local T = 2300                                   -- squared, more than a block holds
      local q, k = tide.randn { 1, T, 1, 4 }, tide.randn { 1, T, 1, 4 }
      q:requires_grad_(true)
      local want = run({ q, k:requires_grad_(true), k }, { causal = true }, q:detach())
      local got = run({ q, k, k }, { causal = true, dropout = 0 }, q:detach())
      for i = 1, 2 do close(got[i], want[i], 1e-4) end
   end)

   it('is for training, and is replayed by recomputation', function()
      local base = { vocab_size = 11, hidden_size = 8, num_hidden_layers = 2,
         num_attention_heads = 2, attention_dropout = 0.4 }
      local ids = tide.tensor({ { 1, 2, 3, 4, 5, 6 } }, { dtype = 'i64' })
      local model = tide.model.llama(base, { seed = 1 })
      base.attention_dropout = 0
      local plain = tide.model.llama(base, { seed = 1 })
      assert.is_true((model:eval()(ids)):equal(plain(ids)))
      model:train()
      local function gradient(policy)
         tide.parallel.recompute(model, policy)
         tide.seed(9)
         model:zero_grad()
         model:loss(ids, ids):backward()
         return model.model.embed_tokens.weight.grad:clone()
      end
      local want = gradient 'none'
      assert.is_false(model(ids):equal(plain(ids)))
      for _, policy in ipairs { 'full', 'mlp', { ops = { 'attention' } } } do
         close(gradient(policy), want, 1e-6)
      end
   end)
end)

describe('nn.MLP, nn.Dropout, nn.Block, nn.Stack', function()
   it('gates', function()
      local m = nn.MLP { dim = 4, hidden = 5, seed = 2 }
      local gate = m.gate_proj(x_BTC)
      close(m(x_BTC), m.down_proj(gate * gate:sigmoid() * m.up_proj(x_BTC)))
      local p = nn.MLP { dim = 4, hidden = 5, act = 'relu', bias = true }
      close(p(x_BTC), p.down_proj(p.up_proj(x_BTC):relu()))
      bad("'act'", nn.MLP, { dim = 4, hidden = 5, act = 'tanh' })
   end)

   it('take no tokens, and one', function()
      local none = nn.logprob.of_labels(tide.zeros { 0, 3, 4 }, tide.ones { 7, 4 },
         tide.zeros({ 0, 3 }, { dtype = 'i64' }))
      assert.same({ 0, 3 }, none.shape)
      assert.same({ { -100 } }, nn.loss.shift(tide.tensor({ { 5 } }, { dtype = 'i64' })):tolist())
      assert.same({ { 6, -100 } },
         nn.loss.shift(tide.tensor({ { 5, 6 } }, { dtype = 'i64' })):tolist())
      bad('no Linear layer', nn.lora.attach, nn.LayerNorm(4), { rank = 2 })
   end)

   it('print what they were made with', function()
      assert.matches('p = 0.25', tostring(nn.Dropout(0.25)), 1, true)
      assert.matches('4, eps 1e-05', tostring(nn.LayerNorm(4)), 1, true)
      local heads = { dim = 8, heads = 2, kv_heads = 1 }
      assert.matches('^Attention 2 heads of 4, 1 for keys\n', tostring(nn.Attention(heads)))
      heads.dropout = 0.25
      assert.matches('1 for keys, dropout 0.25\n', tostring(nn.Attention(heads)), 1, true)
   end)

   it('drops while training only', function()
      local d = nn.Dropout(0.25)
      local ones = tide.ones { 10000 }
      local y = d(ones)
      local kept = y:ne(0):sum():item()
      assert.is_true(kept > 7200 and kept < 7800)
      assert.is_true(math.abs(y:amax():item() - 4 / 3) < 1e-6)
      d:eval()
      assert.is_true(d(ones):equal(ones))
      bad("'p'", nn.Dropout, 1)
      bad("'p'", nn.Dropout, 0 / 0)
   end)

   local function block(seed)
      return nn.Block {
         norm1 = nn.RMSNorm(4), mixer = nn.Attention { dim = 4, heads = 2, seed = seed },
         norm2 = nn.RMSNorm(4), mlp = nn.MLP { dim = 4, hidden = 8, seed = seed },
         names = { mixer = 'self_attn' },
      }
   end

   it('adds branches to the stream', function()
      local b = block(1)
      assert.equal(b.self_attn, b:part 'mixer')
      local h = x_BTC + b.self_attn(b.norm1(x_BTC))
      close(b(x_BTC), h + b.mlp(b.norm2(h)))
      local mlp = nn.MLP { dim = 4, hidden = 4 }
      bad('norm2 and mlp', nn.Block, { norm1 = nn.RMSNorm(4), mixer = mlp, mlp = mlp })
   end)

   -- A hook around a block keeps sums where they are.
   it('leaves the sum of a block to the norm behind it', function()
      local s, norm = nn.Stack { block(1), block(2), block(3) }, nn.RMSNorm(4)
      local function run(y, leaf)
         local before = tide.stats().nop
         y = y()
         local ops = tide.stats().nop - before
         leaf:zero_grad();
         (y * y):sum():backward()
         return y, ops, leaf.grad:clone()
      end
      local x, w = x_BTC * 2, s[2].norm1.weight
      local a, few, da = run(function() return s:normed(norm, x) end, w)
      local b, more, db = run(function() return norm(s(x)) end, w)
      for _, layer in ipairs(s) do layer:hook_post(function() end) end
      local c, most, dc = run(function() return s:normed(norm, x) end, w)
      assert.same({ few + 1, few + 3 }, { more, most })
      for _, y in ipairs { b, c } do close(a, y, 1e-6) end
      for _, d in ipairs { db, dc } do close(da, d, 1e-5) end
      close(x, x_BTC * 2)                                  -- still there
      local function mixer(seed) return nn.Linear(4, 4, { seed = seed }) end
      local plain = nn.Stack { nn.Block { norm1 = nn.RMSNorm(4), mixer = mixer(1) },
         nn.Block { norm1 = nn.LayerNorm(4), mixer = mixer(2) } }
      local h = x + plain[1].mixer(plain[1].norm1(x))
      h = h + plain[2].mixer(plain[2].norm1(h))
      close(plain(x), h)
      close(plain:normed(norm, x), norm(h))
      close(nn.Stack {}:normed(norm, x), norm(x))
      close(x, x_BTC * 2)
   end)

   it('stacks blocks whose names survive slicing', function()
      local s = nn.Stack { block(1), block(2), block(3) }
      local tail = s:slice(2, 3)
      assert.equal('1.norm1.weight', tail:named_parameters()[1].name)
      close(s(x_BTC), tail(s:at(1)(x_BTC)))
      assert.equal(3, s:count())
      local more = block(4)
      s[4] = more
      assert.same({ 4, more, '3.norm1.weight' }, { #s, s['3'],
         s:slice(4, 4):named_parameters()[1].name })
      bad("'index': expected an integer in [1, 5], got 6", function() s[6] = block(6) end)
      assert.equal(4, #s)
      bad("'i'", s.at, s, 5)
      bad("'first'", s.slice, s, 0, 1)
      bad('a list of modules: nn.Stack { a, b }, got a Block', nn.Stack, block(1), block(2))
   end)
end)
