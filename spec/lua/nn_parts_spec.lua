-- Parts of layers and losses, each against a plain formula, and what they refuse, word for word.

local adapted = require 'tide.nn.adapted'
local chunked = require 'tide.nn.chunked'
local context = require 'tide.nn.context'
local each = require 'tide.util.each'
local kv_cache = require 'tide.nn.kv_cache'
local low_rank = require 'tide.nn.low_rank'
local raised = require 'spec.support.raised'
local spread = require 'tide.nn.spread'
local tide = require 'tide'
local window = require 'tide.nn.window'
local nn = tide.nn

local function message(fn, ...) return raised(fn, ...).message end

local function near(a, b, tolerance, what)
   assert.is_true((a - b):abs():amax():item() <= tolerance, what)
end

describe('a window', function()
   it('is a distance to each side', function()
      local function check(w) return window.check('op', 'w', w) end
      for _, row in ipairs { { 0, { 0, 0 } }, { 5, { 5, 5 } }, { { 2 }, { 2, -1 } },
         { { 2, 0 }, { 2, 0 } }, { { -1, 3 }, { -1, 3 } }, { {}, { -1, -1 } },
         { { nil, 4 }, { -1, 4 } } } do
         assert.same(row[2], check(row[1]))
      end
      assert.is_nil(check(nil))
      for _, bad in ipairs { -1, 1.5, { -2 }, { 1, -2 }, { 1, 2, 3 }, { left = 1 }, 'a', { 0.5 } }
      do
         assert.matches("argument 'w", message(check, bad), 1, true)
      end
      for _, row in ipairs { { nil, -1, -1 }, { 3, 3, 3 }, { { 2 }, 2, -1 }, { { nil, 1 }, -1, 1 },
         { { 4, 5 }, 4, 5 } } do
         assert.same({ row[2], row[3] }, { window.sides(row[1]) })
      end
      assert.same({ 3, -1 }, window.of_tokens('op', 'n', 4))
      assert.same({ 0, -1 }, window.of_tokens('op', 'n', 1))
      assert.is_nil(window.of_tokens('op', 'n', nil))
      assert.matches("'n'", message(window.of_tokens, 'op', 'n', 0), 1, true)
   end)
end)

describe('a context', function()
   local ids = tide.zeros({ 2, 3 }, { dtype = 'i64' })
   local function of_ranks(n, rank)
      return { size = 2, rank = rank or 0, tokens = function() return { n, 7 } end }
   end

   it('of a call has its tokens and stands alone', function()
      local c = of_ranks(3)
      assert.equal(c, context.of('op', { context = c }, ids))
      assert.is_nil(context.of('op', {}, ids))
      assert.is_nil(context.of('op', { context = { size = 1, null = true } }, ids))
      assert.equal('expected the 4 tokens of this rank in the context, got 3',
         message(context.of, 'op', { context = of_ranks(4) }, ids))
      assert.equal('expected the 7 tokens of this rank in the context, got 3',
         message(context.of, 'op', { context = of_ranks(3, 1) }, ids))
      for _, bad in ipairs { 5, {}, { size = 'a' } } do
         assert.matches('a context of parallel.cp',
            message(context.of, 'op', { context = bad }, ids), 1, true)
      end
      for _, name in ipairs { 'index', 'q_index', 'k_index', 'sequence', 'caches' } do
         assert.matches(("'%s': expected nil with a context"):format(name),
            message(context.of, 'op', { context = c, [name] = false }, ids), 1, true)
      end
   end)

   it('of several ranks shifts no labels', function()
      context.check_shift('op', nil)
      context.check_shift('op', { size = 1, null = true })
      assert.matches("option 'shift': the next tokens are on other ranks",
         message(context.check_shift, 'op', of_ranks(3)), 1, true)
   end)

   it('is for layers that take it; one rank is the whole for any', function()
      local c, one = of_ranks(3), { size = 1, rank = 0 }
      local taking = { takes_context = true }
      assert.same({ c }, { context.for_layer('op', taking, { context = c }) })
      assert.is_nil((context.for_layer('op', {}, nil)))
      assert.is_nil((context.for_layer('op', {}, {})))
      assert.same({ nil, one }, { context.for_layer('op', {}, { context = one }) })
      assert.equal(0, select('#', unpack { context.for_layer('op', {}, { context = { size = 1,
         null = true } }) }))
      assert.matches('the sequence is split over 2 ranks, but this layer sees only its own part',
         message(context.for_layer, 'op', {}, { context = c }), 1, true)
      assert.matches("'at': expected a table", message(context.for_layer, 'op', {}, 5), 1, true)
   end)
end)

describe('a module that is spread', function()
   it('is refused with where and how, in the ways that are asked for', function()
      local m = nn.Stack { nn.Stack { nn.Linear(2, 2), nn.Linear(2, 2) } }
      spread.check_whole('op', m, 'do that')
      for way, words in each { inside = 'is sharded already', tp = 'is cut over ranks already',
         cp = 'is attached to a context axis already' } do
         spread.set(m[1], way, {})
         assert.equal(("the module '0' %s; do that"):format(words),
            message(spread.check_whole, 'op', m, 'do that'))
         assert.equal(("the module '0' %s; do that"):format(words),
            message(spread.check_whole, 'op', m, 'do that', { [way] = true }))
         spread.check_whole('op', m, 'do that', { other = true })
         spread.set(m[1], way, nil)
         assert.is_nil(rawget(m[1], '_spread'))
         spread.set(m, way, {})
         assert.equal(('the model %s; do that'):format(words),
            message(spread.check_whole, 'op', m, 'do that'))
         spread.set(m, way, nil)
      end
      assert.same({}, spread.of(5))
   end)
end)

describe('chunks of a loss', function()
   it('are as many tokens as fit, and at least one', function()
      for _, row in ipairs { { 1, 4, 4, 1 }, { 1, 8, 4, 2 }, { 3, 24, 4, 2 }, { 3, 23, 4, 1 },
         { 100, 8, 4, 1 }, { 0, 8, 4, 2 }, { 2, 24, 2, 6 } } do
         assert.equal(row[4], chunked.rows(row[1], row[2], row[3]))
      end
      assert.equal(2 ^ 24 / 4 / 1024, chunked.rows(1024))
      local list = {}
      chunked.each(7, 3, function(first, n) list[#list + 1] = { first, n } end)
      assert.same({ { 1, 3 }, { 4, 3 }, { 7, 1 } }, list)
      chunked.each(0, 3, function() error 'no chunk' end)
   end)

   it('join their gradients by x and add those by w', function()
      for _, wants in ipairs { { true, true }, { true, false }, { false, true }, { false, false } }
      do
         local dx, dw = chunked.gradients(5, 2, function(first, n)
            return wants[1] and tide.full({ n, 2 }, first) or nil,
               wants[2] and tide.full({ 3 }, n) or nil
         end)
         assert.same(wants[1] and { { 1, 1 }, { 1, 1 }, { 3, 3 }, { 3, 3 }, { 5, 5 } } or nil,
            dx and dx:tolist())
         assert.same(wants[2] and { 5, 5, 5 } or nil, dw and dw:tolist())
      end
   end)

   local x0, w0 = tide.randn({ 6, 4 }):to 'f64', tide.randn({ 9, 4 }):to 'f64'

   -- The loss and gradients of fn(x, w) where some of the two get gradients.
   local function grads(fn, want_x, want_w)
      local x = x0:clone():requires_grad_(want_x)
      local w = w0:clone():requires_grad_(want_w)
      local loss = fn(x, w)
      if want_x or want_w then loss:sum():backward() end
      return loss:detach(), x.grad, w.grad
   end

   it('of log-probabilities under a soft cap are those of the logits in full', function()
      local labels = tide.tensor({ 1, 0, 5, 8, 3, 3 }, { dtype = 'i64' })
      local far = tide.tensor({ 1, -2, 3, -4, 5, 6 }, { dtype = 'f64' })
      for _, cap in ipairs { 0, 2 } do
         local function full(x, w)
            local z = tide.matmul(x, w:t())
            if cap > 0 then z = (z * (1 / cap)):tanh() * cap end
            return z:log_softmax(2):gather(2, labels:reshape(6, 1)):reshape { 6 } * far
         end
         local function chunks(x, w)
            return nn.logprob.of_labels(x, w, labels, { chunk = 4, cap = cap > 0 and cap or nil })
               * far
         end
         local a, b = { grads(full, true, true) }, { grads(chunks, true, true) }
         for i = 1, 3 do near(a[i], b[i], 1e-9, i) end
      end
   end)

   it('give the same loss whatever gets gradients, and of a head cut over one rank', function()
      local labels = tide.tensor({ 1, 0, -100, 8, 3, 3 }, { dtype = 'i64' })
      local tx, tw = tide.randn({ 6, 3 }):to 'f64', tide.randn({ 9, 3 }):to 'f64'
      local part = { comm = tide.comm.solo(), first = 0, size = 9 }
      local distil, logprob = nn.distil, nn.logprob
      local ways = {}
      for _, kind in ipairs { 'forward', 'reverse' } do
         for _, cap in ipairs { 0, 3 } do
            local o = { kind = kind, alpha = 0.3, temperature = 2, chunk = 4, ignore = -100,
               cap = cap > 0 and cap or nil }
            ways[#ways + 1] = { function(x, w, p)
               return (distil._of_part('op', x, w, labels, { x = tx, w = tw }, o, p))
            end }
         end
      end
      local top = distil.top(tx, tw, 4, {})
      ways[#ways + 1] = { function(x, w, p)
         return (distil._of_part('op', x, w, labels, top, { kind = 'forward', alpha = 1,
            temperature = 1, chunk = 4, ignore = -100 }, p))
      end }
      ways[#ways + 1] = { function(x, w, p)
         return logprob._of_part('op', x, w, labels, { ignore = -100, chunk = 4, cap = 3 }, p)
      end }
      for i, row in ipairs(ways) do
         for _, p in ipairs { part, false } do
            local function fn(x, w) return row[1](x, w, p or nil) end
            local loss, dx, dw = grads(fn, true, true)
            local base = row.loss or loss
            row.loss, row.dx, row.dw = base, row.dx or dx, row.dw or dw
            near(row.loss, loss, 1e-12, i)
            near(row.dx, dx, 1e-12, i)
            near(row.dw, dw, 1e-12, i)
            local l1, a, none = grads(fn, true, false)
            near(loss, l1, 1e-12, i)
            near(dx, a, 1e-12, i)
            assert.is_nil(none)
            local l2, no, b = grads(fn, false, true)
            near(loss, l2, 1e-12, i)
            near(dw, b, 1e-12, i)
            assert.is_nil(no)
            near(loss, (grads(fn, false, false)), 1e-12, i)
         end
      end
   end)
end)

describe('a cache of keys and values', function()
   it('is what joining all of them gives, however it grows', function()
      math.randomseed(31)
      for case = 1, 12 do
         local cache, all_k, all_v = {}, nil, nil
         local left = case % 3 == 0 and 5 or nil
         for step = 1, 8 do
            local n = math.random(1, case % 2 == 0 and 300 or 4)
            local k, v = tide.randn { 2, n, 1, 3 }, tide.randn { 2, n, 1, 3 }
            all_k = all_k and tide.cat({ all_k, k }, 2) or k:clone()
            all_v = all_v and tide.cat({ all_v, v }, 2) or v:clone()
            local T = all_k:size(2)
            local a, b, start = kv_cache.extend(cache, k:clone(), v:clone(), left and { left, -1 })
            local m = a:size(2)
            assert.equal(m - n, start)
            assert.equal(m, b:size(2))
            assert.is_true(m >= math.min(T, n + (left or T)), case .. ' ' .. step)
            assert.is_true(a:equal(all_k:narrow(2, T - m + 1, m)))
            assert.is_true(b:equal(all_v:narrow(2, T - m + 1, m)))
            if not left then assert.equal(T, m) end
            assert.equal(T, cache.k:size(2) + (cache.dropped or 0))
         end
      end
   end)

   it('joins what it cannot append: another dtype is an error, other rows, too', function()
      local function cache_of(dtype)
         local t = tide.ones({ 1, 2, 1, 2 }, { dtype = dtype })
         return { k = t, v = t }
      end
      local wide, more = tide.ones({ 1, 1, 1, 2 }, { dtype = 'f64' }), tide.ones { 2, 1, 1, 2 }
      for _, new in ipairs { wide, more } do
         assert.is_false((pcall(kv_cache.extend, cache_of 'f32', new, new)))
      end
      local c = cache_of 'f32'
      assert.is_true(kv_cache.can_shorten(c, 0))
      kv_cache.shorten(c, 2)
      assert.equal(2, c.k:size(2))
      kv_cache.shorten(c, 1)
      assert.same({ 1, 1 }, { c.k:size(2), c.v:size(2) })
      kv_cache.shorten({}, 1)
      c.dropped, c.left = 3, 2
      assert.is_true(kv_cache.can_shorten(c, 5))
      assert.is_false(kv_cache.can_shorten(c, 4))
      kv_cache.shorten(c, 3)
      assert.equal(0, c.k:size(2))
   end)
end)

describe('an adapter', function()
   it('changes a weight by scale B A, and with norms by their ratio', function()
      assert.equal(16 / 4, low_rank.scale { alpha = 16, rank = 4 })
      assert.equal(8, low_rank.scale { alpha = 16, rank = 4, rslora = true })
      for name, is in each { lora_A = true, ['a.lora_B'] = true, ['a.b.lora_m'] = true,
         ['a.lora_C'] = false, ['alora_A'] = false, ['a.lora_A.weight'] = false } do
         assert.equal(is, low_rank.is_name(name), name)
      end
      local W, A = tide.randn { 4, 3 }, tide.randn { 2, 3 }
      local B, m = tide.randn { 4, 2 }, tide.rand { 4 }
      local w, a, b = W:tolist(), A:tolist(), B:tolist()
      local plain = low_rank.changed(W, A, B, nil, 0.5):tolist()
      local scaled = low_rank.changed(W, A, B, m, 0.5):tolist()
      for i = 1, 4 do
         local row, before, after = {}, 0, 0
         for j = 1, 3 do
            row[j] = w[i][j] + 0.5 * (b[i][1] * a[1][j] + b[i][2] * a[2][j])
            before, after = before + w[i][j] ^ 2, after + row[j] ^ 2
         end
         for j = 1, 3 do
            assert.near(row[j], plain[i][j], 1e-5)
            assert.near(row[j] * (math.sqrt(before) + m:tolist()[i]) / math.sqrt(after),
               scaled[i][j], 1e-4)
         end
      end
   end)

   it('is for the layers that targets name, in words, lists and patterns', function()
      local function modules(targets)
         local model = tide.model.llama { vocab_size = 8, hidden_size = 4, num_hidden_layers = 2,
            num_attention_heads = 2, intermediate_size = 6 }
         local list = nn.lora.attach(model, { rank = 1, targets = targets }).modules
         for i, path in ipairs(list) do list[i] = path:gsub('^model%.layers%.', '') end
         return table.concat(list, ' ')
      end
      for targets, want in each { ['q_proj'] = '0.self_attn.q_proj 1.self_attn.q_proj',
         ['q_proj, 1.mlp.up_proj'] = '0.self_attn.q_proj 1.self_attn.q_proj 1.mlp.up_proj',
         ['0.*.q_proj|1.mlp.*'] = '0.self_attn.q_proj 1.mlp.gate_proj 1.mlp.up_proj '
            .. '1.mlp.down_proj', [{ 'o_proj', '0.mlp.down_proj' }] = '0.self_attn.o_proj '
            .. '0.mlp.down_proj 1.self_attn.o_proj' } do
         assert.equal(want, modules(targets))
      end
      assert.equal(14, select(2, modules('all-linear'):gsub('%S+', '')))
      assert.matches("'_proj' matches no layer", message(modules, '_proj'), 1, true)
      assert.matches("targets: 'mlp.' matches no layer", message(modules, 'mlp.'), 1, true)
      assert.matches("'model.layers.0.mlp' is of class MLP; adapters are for Linear layers but the "
         .. 'output head, and experts, here q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, '
         .. 'down_proj',
         message(modules, 'mlp'), 1, true)
      assert.matches("names of layers, or 'all-linear'", message(modules, ' , '), 1, true)
      assert.matches('targets', message(modules, { 5 }), 1, true)
   end)

   it('of weights in 4 bits has their norms, and shapes that need no bytes', function()
      local nf4 = nn.nf4
      for _, size in ipairs { { 3, 5 }, { 7, 64 }, { 64, 33 }, { 1, 1 }, { 130, 129 } } do
         local real = nn.Stack { nn.Linear(size[2], size[1], { bias = false }) }
         local null = nn.Stack { nn.Linear(size[2], size[1], { bias = false, device = 'null' }) }
         nf4.quantise_(real)
         nf4.quantise_(null)
         for _, field in ipairs { 'weight_nf4', 'weight_scale' } do
            assert.same(real[1][field].shape, null[1][field].shape)
            assert.equal(real[1][field].dtype, null[1][field].dtype)
         end
         local W = nf4._weight(real[1])
         near((W * W):sum(2):sqrt(), adapted.norms(adapted.whole(real[1])), 1e-5, 'norms')
      end
   end)
end)

describe('a layer that is cut over ranks', function()
   -- What a module answers, with `on` of two ranks; refusals are errors.
   local function tp(m, style, more)
      local on = { ranks = 2, rank = 0, children = { in_proj = { blocks = 1 } },
         refuse = function(_, text, ...) error(text:format(...), 0) end,
         all_or_none = function() return true end, check_heads = function() end,
         by_heads = function() return 'heads' end, first = function(_, n) return n / 2 end,
         check_size = function(_, what, n)
            if n % 2 ~= 0 then error(('%s (%d) is odd'):format(what, n), 0) end
         end }
      for k, v in each(more or {}) do on[k] = v end
      local ok, answer = pcall(m.tp, m, style, on)
      return answer, ok
   end

   it('says what of it is cut, and what cannot be', function()
      local linear, odd = nn.Linear(4, 6), nn.Linear(5, 9)
      assert.is_nil((tp(linear, nil)))
      local rows = tp(linear, { shard = 'rows', blocks = 3 })
      assert.same({ weight = { dim = 1, blocks = 3 }, bias = { dim = 1, blocks = 3 } }, rows.cut)
      assert.equal('S(-1)', rows.gives)
      local columns = tp(linear, { shard = 'columns', blocks = 1 })
      assert.same({ weight = { dim = 2 } }, columns.cut)
      assert.same({ 'S(-1)', 'P', 'bias' }, { columns.takes, columns.gives, columns.late })
      assert.equal('the number of rows (9) is odd', (tp(odd, { shard = 'rows', blocks = 1 })))
      assert.equal('9 rows are not 2 equal blocks', (tp(odd, { shard = 'rows', blocks = 2 })))
      assert.equal('the number of rows (3) is odd', (tp(odd, { shard = 'rows', blocks = 3 })))
      assert.equal('the number of columns (5) is odd', (tp(odd, { shard = 'columns', blocks = 1 })))
      assert.equal('fused blocks are rows, not columns',
         (tp(linear, { shard = 'columns', blocks = 2 })))
      assert.matches('^a Linear cannot be ', (tp(linear, { shard = 'odd' })))
      local embedding = nn.Embedding(6, 4)
      assert.is_nil((tp(embedding, nil)))
      assert.same({ weight = 2 }, tp(embedding, { shard = 'rows' }).cut)
      assert.same({ weight = 1 }, tp(embedding, { shard = 'columns' }).cut)
      assert.equal('the width (5) is odd', (tp(nn.Embedding(6, 5), { shard = 'rows' })))
      assert.equal('vocab_size (7) is odd', (tp(nn.Embedding(7, 4), { shard = 'columns' })))
      assert.matches('^an Embedding cannot be ', (tp(embedding, { shard = 'odd' })))
   end)

   it('of heads is cut by them, all or none', function()
      local o = { dim = 8, heads = 2 }
      local plain, fused = nn.Attention(o), nn.Attention { dim = 8, heads = 2, fused = true }
      local normed = nn.Attention { dim = 8, heads = 2, qk_norm = {} }
      local whole = nn.Attention { dim = 8, heads = 2, qk_norm = {}, qk_norm_whole = true }
      assert.is_nil(tp(plain).summed)
      assert.same({ 'q_norm', 'k_norm' }, tp(normed).summed)
      tp(normed).done()
      assert.same({ 1, 1 }, { normed.heads, normed.kv_heads })
      assert.equal('fused projections cannot be cut by heads', (tp(fused)))
      assert.equal('norms over all heads cannot be cut by heads', (tp(whole)))
      assert.is_nil((tp(plain, nil, { all_or_none = function() return false end })))
      assert.equal('rowwise_rep', whole:tp_plan().q_proj)
      assert.same({ qkv_proj = 'rowwise_rep', o_proj = 'colwise_rep' }, fused:tp_plan())
      assert.equal('colwise', plain:tp_plan().v_proj)
      local mamba = nn.Mamba2 { dim = 8, head_dim = 4, state = 4, groups = 1 }
      assert.equal('heads', (tp(mamba)))
      assert.is_nil((tp(mamba, nil, { all_or_none = function() return false end })))
      assert.equal('in_proj must be colwise and out_proj rowwise, all or none',
         (tp(mamba, nil, { children = { in_proj = { blocks = 2 } } })))
   end)
end)

describe('projections of one input', function()
   it('lie one after another, also when they get their bytes late', function()
      local o = { dim = 8, heads = 2 }
      local now, late = nn.Attention(o), nn.Attention { dim = 8, heads = 2, device = 'null' }
      late:materialise('cpu', 0)
      for _, m in ipairs { now, late, nn.Attention(o):to 'f64' } do
         assert.is_true(m.q_proj.weight:same_storage(m.k_proj.weight))
         assert.is_true(m.q_proj.weight:same_storage(m.v_proj.weight))
         assert.is_false(m.q_proj.weight:same_storage(m.o_proj.weight))
      end
      assert.is_true(now.v_proj.weight:equal(late.v_proj.weight))
   end)
end)

describe('fused projections', function()
   it('are those of queries, keys and values below each other', function()
      local o = { dim = 6, heads = 4, kv_heads = 2, head_dim = 2, bias = true, window = { 2, 0 } }
      local plain = nn.Attention(o)
      o.fused = true
      local fused = nn.Attention(o)
      tide.no_grad(function()
         for _, field in ipairs { 'weight', 'bias' } do
            fused.qkv_proj[field]:copy_(tide.cat({ plain.q_proj[field], plain.k_proj[field],
               plain.v_proj[field] }, 1))
         end
         fused.o_proj.weight:copy_(plain.o_proj.weight)
      end)
      local x = tide.randn { 2, 5, 6 }
      near(plain(x), fused(x), 1e-6, 'fused')
      local a, b, c = {}, {}, x:to 'f32'
      for t = 1, 5 do                                    -- a token at a time, with caches
         near(plain(c:narrow(2, t, 1), { cache = a }), plain(x):narrow(2, t, 1), 1e-5, t)
         near(fused(c:narrow(2, t, 1), { cache = b }), plain(x):narrow(2, t, 1), 1e-5, t)
      end
   end)
end)

describe('a Mamba2 layer', function()
   local function layer(more)
      local o = { dim = 8, head_dim = 4, state = 4, groups = 1 }
      for k, v in each(more or {}) do o[k] = v end
      return nn.Mamba2(o)
   end

   it('says what it was given, and what it expects', function()
      local m = layer()
      for words, call in each {
         ["argument 'x': expected a tensor [batch, tokens, dim]"] = { 5 },
         ['x: expected [batch, tokens, 8], got [2, 8]'] = { tide.ones { 2, 8 } },
         ['x: expected [batch, tokens, 8], got [1, 2, 7]'] = { tide.ones { 1, 2, 7 } },
         ["argument 'at'"] = { tide.ones { 1, 2, 8 }, 5 },
         ["argument 'at.cache'"] = { tide.ones { 1, 2, 8 }, { cache = 5 } },
         ['together (as a call left them) or neither, got conv alone'] = { tide.ones { 1, 2, 8 },
            { cache = { conv = 1 } } },
         ['neither, got state alone'] = { tide.ones { 1, 2, 8 }, { cache = { state = 1 } } } } do
         assert.matches(words, message(m.forward, m, unpack(call)), 1, true)
      end
      for words, o in each { ["'A_range[1]'"] = { A_range = { 0, 1 } },
         ["'A_range[2]'"] = { A_range = { 2, 1 } }, ["'dt_range[1]'"] = { dt_range = { 0, 1 } },
         ["'dt_range[2]'"] = { dt_range = { 0.1, 0.01 } },
         ["'dt_limit': expected two numbers, 0 <= least <= most, got { 2, 1 }"] = { dt_limit
            = { 2, 1 } }, ['got { -1, inf }'] = { dt_limit = { -1 } } } do
         assert.matches(words, message(layer, o), 1, true)
      end
      assert.same({ 0, 0 }, layer({ dt_limit = { 0, 0 } }).dt_limit)
      assert.same({ 0, math.huge }, layer({ dt_limit = {} }).dt_limit)
      assert.same({ 0, 0, 0, 0 }, layer({ A_range = { 1, 1 } }).A_log:tolist())
   end)
end)

describe('what a layer gets as `at`', function()
   local x = tide.ones { 1, 4, 8 }
   local function norm() return nn.RMSNorm(8) end
   local function moe() return nn.MoE { dim = 8, hidden = 8, experts = 4, topk = 2 } end
   local function mlp() return nn.MLP { dim = 8, hidden = 8 } end
   local layers = {
      Attention = nn.Attention { dim = 8, heads = 2 }, MoE = moe(),
      LatentAttention = nn.LatentAttention { dim = 8, heads = 2, nope_dim = 4, rope_dim = 2,
         value_dim = 4, latent_dim = 4, rope = nn.rope.new { dim = 2 } },
      Block = nn.Block { norm1 = norm(), mixer = nn.Linear(8, 8), norm2 = norm(), mlp = mlp() },
   }

   it('is a table of fields of their kinds', function()
      for name, layer in each(layers) do
         for _, at in ipairs { 5, 'x', true } do
            local e = raised(layer, x, at)
            assert.equal('nn.' .. name, e.op)
            assert.matches("argument 'at': expected a table", e.message, 1, true)
         end
      end
      local of = nn.MoELayer { routed = moe(), shared = mlp() }
      assert.matches("argument 'at': expected a table", message(of, x, 5), 1, true)
      assert.matches("'at.balance'", message(of, x, { balance = 5 }), 1, true)
      assert.matches("'at.balance'", message(of, x, { balance = nn.balance.new {} }), 1, true)
      assert.matches("'at.rows'", message(layers.Block, x, { rows = 5 }), 1, true)
   end)

   it('and the names of a block are of its parts', function()
      assert.matches("'norm_1'; did you mean 'norm1'", message(nn.Block, { norm1 = norm(),
         mixer = nn.Linear(8, 8), names = { norm_1 = 'x' } }), 1, true)
   end)
end)
