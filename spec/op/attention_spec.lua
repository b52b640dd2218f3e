-- Attention against PyTorch: spec/golden/attention holds inputs, results and gradients for each
-- kind of mask (spec/golden/attention.py made them); cpu and ref must give the same in f32, f64 and
-- bf16, and packed streams must equal their documents computed one by one.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local refused = require 'spec.support.refused'
local wide = require 'spec.support.wide'

local folder = 'spec/golden/attention/'
local golden = dofile(folder .. 'index.lua')

local function read(name)
   local f = assert(io.open(folder .. name, 'rb'))
   local text = f:read '*a'
   f:close()
   return text
end

local function count(shape)
   local n = 1
   for _, s in ipairs(shape) do n = n * s end
   return n
end

-- The tensor `name` of a case, or nil.
local function get(case, name, device, dtype)
   local entry = case[name]
   if not entry then return nil end
   local integer = name:find '_index$'
   local bytes = read(case.file):sub(entry.at + 1, entry.at + 4 * count(entry.shape))
   local t = tide.from_string(bytes, entry.shape, { dtype = integer and 'i32' or 'f32',
                                                     device = device })
   return integer and t or t:to(dtype)
end

local function options(case, device, dtype)
   local window
   if case.window_left or case.window_right then
      window = { case.window_left or -1, case.window_right or -1 }
   end
   return { causal = case.causal == 1, window = window, q_start = case.q_start,
            scale = case.scale, softcap = case.softcap, return_lse = true,
            q_index = get(case, 'q_index', device), k_index = get(case, 'k_index', device),
            bias = get(case, 'bias', device, dtype) }
end

local function flat(t) return t:to('f64'):reshape(-1):tolist() end

-- The stored numbers are f32, made in f64: an f32 kernel differs by its own sums, a bf16 one by the
-- rounding of its inputs, of its results and, on matrix units, of the probabilities.
local tolerance = { f32 = 3e-6, f64 = 1e-6, bf16 = 2e-2 }

local function check(got, want, dtype, what)
   assert.are.same(want.shape, got.shape, what)
   local a, b, scale = flat(got), flat(want), 0
   for _, v in ipairs(b) do
      if v > -math.huge then scale = math.max(scale, math.abs(v)) end
   end
   for i = 1, #b do
      local far = a[i] ~= b[i] and math.abs(a[i] - b[i]) > tolerance[dtype] * scale
      if far or a[i] ~= a[i] then
         error(('%s: element %d is %.9g, the peer says %.9g (largest %.4g)')
            :format(what, i, a[i], b[i], scale), 2)
      end
   end
end

local function run(case, device, dtype)
   local q, k, v = get(case, 'q', device, dtype), get(case, 'k', device, dtype),
      get(case, 'v', device, dtype)
   local opts = options(case, device, dtype)
   for _, x in ipairs { q, k, v, opts.bias } do x:requires_grad_() end
   local out, lse = tide.attention(q, k, v, opts)
   local dout, dlse = get(case, 'dout', device, dtype), get(case, 'dlse', device, lse.dtype)
   local loss = (out * dout):to('f64'):sum()
   if dlse then
      -- a query that sees nothing has lse -inf, and no gradient flows through it
      local seen = lse:isfinite()
      local some = tide.where(seen, lse, tide.zeros({}, { dtype = lse.dtype, device = device }))
      loss = loss + (some * dlse):to('f64'):sum()
   end
   loss:backward()
   return { out = out, lse = lse, dq = q.grad, dk = k.grad, dv = v.grad,
            dbias = opts.bias and opts.bias.grad }
end

describe('attention equals the peer', function()
   it('in every case that the index names', function()
      local kinds = {}
      for _, case in ipairs(golden) do kinds[case.name] = true end
      for _, name in ipairs { 'full', 'causal', 'window', 'window_both', 'document', 'gqa', 'scale',
                              'bias', 'softcap', 'zigzag', 'decode', 'blind_rows', 'dlse', 'until',
                              'until_window', 'until_zigzag' } do
         assert.is_true(kinds[name], name)
      end
   end)

   for _, case in ipairs(golden) do
      for _, device in ipairs { 'ref', fast } do
         for _, dtype in ipairs { 'f32', 'f64', 'bf16' } do
            it(('%s: %s %s'):format(case.name, device, dtype), function()
               local got = run(case, device, dtype)
               local results = { 'out', 'lse', 'dq', 'dk', 'dv' }
               if case.bias then results[#results + 1] = 'dbias' end
               for _, name in ipairs(results) do
                  check(got[name], get(case, name, device, 'f64'), dtype,
                        ('%s of %s'):format(name, case.name))
               end
            end)
         end
      end
   end
end)

describe('attention', function()
   local function random(...) return tide.empty({ ... }):normal_(0, 1, { seed = 5 }) end

   it('of a query that is NaN is NaN, where it sees a key', function()
      for _, device in ipairs { 'ref', fast } do
         for _, dtype in ipairs { 'f32', 'f64', 'bf16' } do
            local like = { dtype = dtype, device = device }
            local q = tide.tensor({ { { { 1, 0 / 0 } }, { { 1, 2 } } } }, like)
            local k = tide.ones({ 1, 2, 1, 2 }, like)
            local y, lse = tide.attention(q, k, k, { return_lse = true })
            local got = flat(y)
            assert.is_true(got[1] ~= got[1] and got[2] ~= got[2], device .. ' ' .. dtype)
            assert.is_true(lse:at(1, 1, 1) ~= lse:at(1, 1, 1), device .. ' ' .. dtype)
            assert.is_true(math.abs(got[3] - 1) < 1e-6 and math.abs(got[4] - 1) < 1e-6)
            local hidden = flat(tide.attention(q, k, k, { q_start = -2, causal = true }))
            assert.same({ 0, 0, 0, 0 }, hidden)
         end
      end
   end)

   -- Emulated threads are slow.
   local function is_few(device) return device == 'cuda' and not wide end

   -- Attention of T keys, of which a bias of -inf hides every second one, to all queries or to all
   -- but the first. wild: the values of those keys, and some gradients of the results.
   local function half_hidden(device, dtype, T, to_all, wild)
      local function leaf(x) return x:to(dtype):to(device):requires_grad_() end
      local B = is_few(device) and 1 or 2
      local v, dy = random(B, T, 2, 8), random(B, T, 4, 8)
      local bias = tide.zeros { 1, 1, T, T }
      bias:slice(4, 2, T, 2):fill_(-math.huge)
      if not to_all then bias:select(3, 1):fill_(0) end
      if wild then
         v:slice(2, 2, T, 2):fill_(wild)
         dy:slice(2, 2, T, 3):fill_(wild)
      end
      local q, k = leaf(random(B, T, 4, 8)), leaf(random(B, T, 2, 8))
      v = leaf(v)
      local y = tide.attention(q, k, v, { bias = bias:to(dtype):to(device) })
      y:backward(dy:to(dtype):to(device))
      return { out = y:slice(2, to_all and 1 or 2, T), dk = k.grad, dv = v.grad }
   end

   it('of a key that a bias of -inf hides has no effect, whatever its value', function()
      for _, device in ipairs(fast == 'cuda' and { fast } or { 'ref', fast }) do
         -- 16 bits on a GPU: kernels/cuda/STATUS.md
         local dtypes = device == 'cuda' and { 'f32', 'f64' } or { 'f32', 'f64', 'bf16', 'f16' }
         for _, dtype in ipairs(dtypes) do
            -- few: each dtype has one of the values, and no second batch
            local few = is_few(device)
            for _, T in ipairs(few and { 3, 70 } or { 3, 70, 150 }) do
               local what = ('%s %s %d'):format(device, dtype, T)
               local plain = half_hidden(device, dtype, T, true)
               for _, wild in ipairs(few and { dtype == 'f32' and 0 / 0 or math.huge }
                  or { 0 / 0, math.huge }) do
                  local got = half_hidden(device, dtype, T, true, wild)
                  assert.is_true(plain.out:equal(got.out), what)
                  for _, name in ipairs { 'dk', 'dv' } do
                     local hidden = got[name]:slice(2, 2, T, 2)
                     assert.equal(0, hidden:to('f64'):abs():sum():item(), name .. ' ' .. what)
                  end
                  local seen_by_one = half_hidden(device, dtype, T, false, wild)
                  assert.is_true(seen_by_one.out:isfinite():all():item(), what)
               end
            end
         end
      end
   end)

   -- Attention with one more key, whose score a bias gives and whose value is 0.
   local function by_column(q, k, v, sinks, T, seen)
      local none = tide.zeros({ 1, 1, k:size(3), 8 }, { dtype = q.dtype, device = q.device })
      local column = sinks:reshape(1, -1, 1, 1):expand(1, q:size(3), T, 1)
      local hide = tide.zeros({ 1, q:size(3), T, T }, { dtype = q.dtype, device = q.device })
      if not seen then hide:fill_(-math.huge) end
      return tide.attention(q, tide.cat({ k, none }, 2), tide.cat({ v, none }, 2),
         { bias = tide.cat({ hide, column }, 4), return_lse = true })
   end

   it('with sinks is attention with one more column, gradients too', function()
      for _, device in ipairs(fast == 'cuda' and { fast } or { 'ref', fast }) do
         for dtype, most in pairs { f32 = 2e-5, f64 = 1e-12, bf16 = 4e-2, f16 = 4e-3 } do
            for _, T in ipairs { 1, 5, 70 } do
               for _, seen in ipairs { true, false } do
                  local function leaf(x) return x:to(dtype):to(device):requires_grad_() end
                  local function draw(seed, ...)
                     return tide.empty({ ... }):normal_(0, 1, { seed = seed })
                  end
                  local dy, dl = draw(5, 1, T, 4, 8):to(dtype):to(device),
                     draw(6, 1, 4, T):to(dtype == 'f64' and 'f64' or 'f32'):to(device)
                  local got, want = {}, {}
                  for _, list in ipairs { got, want } do
                     list[1], list[2] = leaf(draw(1, 1, T, 4, 8)), leaf(draw(2, 1, T, 2, 8))
                     list[3], list[4] = leaf(draw(3, 1, T, 2, 8)), leaf(draw(4, 4))
                  end
                  local q, k, v, sinks = unpack(got)
                  local y, l = tide.attention(q, k, v, { sinks = sinks, return_lse = true,
                     q_start = seen and 0 or -T, causal = not seen })
                  local y2, l2 = by_column(want[1], want[2], want[3], want[4], T, seen)
                  ;((y * dy):to(dl.dtype):sum() + (l * dl):sum()):backward()
                  ;((y2 * dy):to(dl.dtype):sum() + (l2 * dl):sum()):backward()
                  local what = ('%s %s %d %s'):format(device, dtype, T, tostring(seen))
                  local function near(a, b, name)
                     a, b = a:to 'f64':to 'cpu', b:to 'f64':to 'cpu'
                     local off = (a - b):abs():amax():item() / math.max(1, b:abs():amax():item())
                     assert.is_true(off < most, ('%s %s %g'):format(what, name, off))
                  end
                  near(y, y2, 'out')
                  near(l, l2, 'lse')
                  for i, name in ipairs { 'q', 'k', 'v', 'sinks' } do
                     near(got[i].grad, want[i].grad, name)
                  end
                  if not seen then assert.equal(0, y:to 'f64':abs():sum():item(), what) end
               end
            end
         end
      end
   end)

   it('with a sink of -inf is attention without', function()
      local q, k = random(1, 6, 2, 8), random(1, 6, 1, 8)
      local none = tide.full({ 2 }, -math.huge):requires_grad_()
      local y, lse = tide.attention(q, k, k, { causal = true, q_start = -2, return_lse = true })
      local y2, lse2 = tide.attention(q, k, k, { causal = true, q_start = -2, return_lse = true,
         sinks = none })
      assert.is_true(y:equal(y2) and lse:equal(lse2))
      y2:sum():backward()
      assert.same({ 0, 0 }, none.grad:tolist())
   end)

   it('of a packed stream is that of its documents one by one', function()
      local lengths, at = { 5, 1, 9, 17 }, 1
      local q, k, v = random(1, 32, 4, 8), random(1, 32, 2, 8):mul(0.5), random(1, 32, 2, 8)
      local cu = tide.tensor({ 0, 5, 6, 15, 32 }, { dtype = 'i32' })
      local index = tide.document_index(cu, 32)
      local whole, lse = tide.attention(q, k, v, { causal = true, q_index = index,
                                                   k_index = index, return_lse = true })
      for _, n in ipairs(lengths) do
         local function part(x, dim) return x:slice(dim or 2, at, at + n - 1) end
         local one, l = tide.attention(part(q), part(k), part(v),
                                       { causal = true, return_lse = true })
         -- the same sums in blocks that begin elsewhere
         local d = (part(whole) - one):abs():amax():item()
         assert.is_true(d < 2e-6, ('%d tokens: %g'):format(n, d))
         assert.is_true((part(lse, 3) - l):abs():amax():item() < 2e-6)
         at = at + n
      end
   end)

   it('in pieces of keys joined by lse is that of all keys', function()
      local q, k, v = random(1, 7, 2, 8), random(1, 20, 2, 8):mul(0.5), random(1, 20, 2, 8)
      local whole = tide.attention(q, k, v)
      local a, la = tide.attention(q, k:slice(2, 1, 11), v:slice(2, 1, 11), { return_lse = true })
      local b, lb = tide.attention(q, k:slice(2, 12, 20), v:slice(2, 12, 20), { return_lse = true })
      local wa = (la - lb):sigmoid():transpose(2, 3):unsqueeze(-1)
      local joined = a * wa + b * (1 - wa)
      assert.is_true((joined - whole):abs():amax():item() < 2e-6)
   end)

   it('gives the same answer for q_start and for positions as data', function()
      local q, k, v = random(1, 4, 2, 8), random(1, 10, 2, 8):mul(0.5), random(1, 10, 2, 8)
      local function index(first, n)
         local list = {}
         for i = 1, n do list[i] = { 0, first + i - 1 } end
         return tide.tensor({ list }, { dtype = 'i32' })
      end
      local a = tide.attention(q, k, v, { causal = true, window = { 3 }, q_start = 6 })
      local b = tide.attention(q, k, v, { causal = true, window = { 3 }, q_index = index(6, 4),
                                          k_index = index(0, 10) })
      assert.is_true((a - b):abs():amax():item() < 1e-6)
   end)

   it('of f64 is f64 all through: scale, softcap, gradients', function()
      local function plain(q, k, v, o)
         local s = tide.matmul(q:transpose(2, 3), k:transpose(2, 3):transpose(3, 4))
            * (o.scale or 1 / math.sqrt(q:size(4)))
         if o.softcap then s = (s / o.softcap):tanh() * o.softcap end
         return tide.matmul(s:softmax(-1), v:transpose(2, 3)):transpose(2, 3)
      end
      for _, device in ipairs { fast, 'ref' } do
         for _, o in ipairs { {}, { scale = 0.1 }, { scale = 0.7, softcap = 0.3 } } do
            local function operands()
               local list = {}
               for i = 1, 3 do
                  list[i] = tide.empty({ 2, 5, 2, 3 }, { dtype = 'f64', device = device })
                     :normal_(0, 1, { seed = i }):requires_grad_()
               end
               return list
            end
            local a, b = operands(), operands()
            local got, want = tide.attention(a[1], a[2], a[3], o), plain(b[1], b[2], b[3], o)
            got:square():sum():backward()
            want:square():sum():backward()
            assert.is_true((got - want):abs():amax():item() < 1e-14, device)
            for i = 1, 3 do
               local far = (a[i].grad - b[i].grad):abs():amax():item()
               assert.is_true(far < 1e-13, ('%s %d: %g'):format(device, i, far))
            end
         end
      end
   end)

   it('keeps its memory linear in the number of tokens', function()
      local n = 1024
      local q = tide.empty({ 1, n, 2, 16 }):normal_(0, 1, { seed = 1 })
      q:requires_grad_()
      tide.default():mark()
      tide.attention(q, q, q, { causal = true }):sum():backward()
      local scores = 2 * n * n * 4
      assert.is_true(tide.stats().since_peak < scores / 2)
      assert.is_truthy(q.grad)
   end)

   it('names what does not fit', function()
      local q, k = random(1, 3, 4, 8), random(1, 5, 2, 8)
      refused('E_SHAPE', { 'attention', 'q', '[3, 4, 8]' }, tide.attention, q:reshape(3, 4, 8),
              k, k)
      refused('E_SHAPE', { 'attention', '4 query heads', '3 key heads' }, tide.attention, q,
              random(1, 5, 3, 8), random(1, 5, 3, 8))
      refused('E_SHAPE', 'attention', tide.attention, q, k, random(1, 4, 2, 8))
      refused('E_SHAPE', 'attention', tide.attention, q, random(1, 5, 2, 7), k)
      refused('E_SHAPE', 'attention', tide.attention, q, random(2, 5, 2, 8), random(2, 5, 2, 8))
      refused('E_SHAPE', { 'attention', 'one dtype', 'f64' }, tide.attention, q, k:double(),
              k:double())
      refused('E_DTYPE', 'attention', tide.attention, q:long(), k:long(), k:long())
      local index = tide.zeros({ 1, 3, 2 }, { dtype = 'i32' })
      refused('E_ARG', { 'attention', 'q_index', 'k_index' }, tide.attention, q, k, k,
              { q_index = index })
      refused('E_SHAPE', { 'attention', 'k_index' }, tide.attention, q, k, k,
              { q_index = index, k_index = index })
      refused('E_SHAPE', { 'attention', 'q_index', 'i32', 'f32' }, tide.attention, q, k, k,
              { q_index = index:to 'f32', k_index = index })
      refused('E_SHAPE', { 'attention', 'bias' }, tide.attention, q, k, k,
              { bias = tide.zeros { 1, 4, 3, 6 } })
      refused('E_SHAPE', { 'attention', 'sinks', 'f32 [3]' }, tide.attention, q, k, k,
              { sinks = tide.zeros { 3 } })
      refused('E_DTYPE', { 'attention', 'sinks', 'i64' }, tide.attention, q, k, k,
              { sinks = tide.zeros({ 4 }, { dtype = 'i64' }) })
      refused('E_SHAPE', { 'attention_sinks_backward', 'lse' }, tide.attention_sinks_backward, q, q,
              tide.zeros { 1, 3, 4 }, tide.zeros { 4 })
      refused('E_STATE', { 'attention_sinks_backward', 'sinks needs a gradient' },
              tide.attention_sinks_backward, q, q, tide.zeros { 1, 4, 3 },
              tide.zeros({ 4 }):requires_grad_())
      refused('E_UNSUPPORTED', { 'attention_backward', 'sinks', 'attention_sinks_backward' },
              tide.attention_backward, q, q, q, q, q, tide.zeros { 1, 4, 3 },
              { sinks = tide.zeros { 4 } })
      refused('E_ARG', { 'attention', 'opts.window' }, tide.attention, q, k, k, { window = -1 })
      for _, window in ipairs { { left = 2 }, { 1, 2, 3 }, { [q] = 1 } } do
         refused('E_ARG', { 'opts.window', 'nothing else' }, tide.attention, q, k, k,
            { window = window })
      end
      refused('E_ARG', { 'attention', 'opts.softcap' }, tide.attention, q, k, k, { softcap = -1 })
      refused('E_ARG', { 'attention', "'mask'" }, tide.attention, q, k, k, { mask = 1 })
   end)
end)

-- What attention_tiles says of an index as nested lists, by the sentence of its definition.
local function tiles_of(index)
   local out = {}
   for b, row in ipairs(index) do
      out[b] = {}
      for first = 1, #row, 64 do
         local x, stray = { 2^31 - 1, -1, 2^31 - 1, -2^31 }, false
         for t = first, math.min(first + 63, #row) do
            local doc, at = row[t][1], row[t][2]
            if doc < 0 then
               stray = true
            else
               x[1], x[2] = math.min(x[1], doc), math.max(x[2], doc)
               x[3], x[4] = math.min(x[3], at), math.max(x[4], at)
            end
         end
         if stray then x[1] = -1 - x[1] end
         out[b][#out[b] + 1] = x
      end
   end
   return out
end

-- Documents of up to `most` tokens, now and then a token of none, as lists [rows, n, 2].
local function documents(rows, n, most)
   local index = {}
   for b = 1, rows do
      local doc, at, left = -1, 0, 0
      index[b] = {}
      for t = 1, n do
         if left == 0 then doc, at, left = doc + math.random(2), 0, math.random(most) end
         index[b][t] = { math.random(40) == 1 and -1 or doc, at }
         at, left = at + 1, left - 1
      end
   end
   return index
end

describe('attention_tiles', function()
   before_each(function() math.randomseed(3) end)

   local function index_of(list, device)
      return tide.tensor(list, { dtype = 'i32', device = device })
   end

   for _, device in ipairs { 'ref', fast } do
      it('says what each 64 tokens span: ' .. device, function()
         for _, n in ipairs { 1, 63, 64, 65, 200 } do
            local list = documents(2, n, 50)
            local index = index_of(list, device)
            assert.same(tiles_of(list), tide.attention_tiles(index):tolist())
            local apart = tide.cat({ index, index }, 3):slice(3, 2, 3) -- of other strides
            local turned = {}
            for b, row in ipairs(list) do
               turned[b] = {}
               for t, x in ipairs(row) do turned[b][t] = { x[2], x[1] } end
            end
            assert.same(tiles_of(turned), tide.attention_tiles(apart):tolist())
         end
         assert.same({ 3, 0, 4 }, tide.attention_tiles(index_of({ {} }, device)
            :reshape(1, 0, 1):expand(3, 0, 2)).shape)
         local none = tide.full({ 1, 70, 2 }, -1, { dtype = 'i32', device = device })
         assert.same({ -2^31, -1, 2^31 - 1, -2^31 }, tide.attention_tiles(none):tolist()[1][2])
      end)
   end

   it('leaves results and gradients of attention as they are, whatever the heads', function()
      for rows, d in ipairs { 16, 136 } do
         local opts = { dtype = 'bf16', device = fast }
         local function random(H) return tide.empty({ 2, 70, H, d }, opts):normal_(0, 1) end
         local given = { random(2), random(1), random(1) }
         local index = index_of(documents(rows, 70, 40), fast)
         local found = {}
         for i, tiles in ipairs { false, tide.attention_tiles(index) } do
            local x = {}
            for j, t in ipairs(given) do x[j] = t:clone():requires_grad_() end
            local y = tide.attention(x[1], x[2], x[3], { causal = true, q_index = index,
               k_index = index, q_tiles = tiles or nil, k_tiles = tiles or nil })
            y:float():square():sum():backward()
            found[i] = { y, x[1].grad, x[2].grad, x[3].grad }
         end
         for j, t in ipairs(found[1]) do assert.is_true(t:equal(found[2][j])) end
      end
   end)

   it('refuses what is no index, and attention what are no tiles of its index', function()
      refused('E_SHAPE', { 'attention_tiles', 'i32 [B, T, 2]' }, tide.attention_tiles,
         tide.zeros { 1, 3, 2 })
      refused('E_SHAPE', 'attention_tiles', tide.attention_tiles,
         tide.zeros({ 3, 2 }, { dtype = 'i32' }))
      local q, index = tide.zeros { 1, 70, 1, 4 }, tide.zeros({ 1, 70, 2 }, { dtype = 'i32' })
      local tiles = tide.attention_tiles(index)
      refused('E_ARG', { 'attention', 'q_tiles', 'without' }, tide.attention, q, q, q,
         { q_tiles = tiles, k_tiles = tiles })
      refused('E_SHAPE', { 'attention', 'k_tiles', 'i32 [1, 2, 4]' }, tide.attention, q, q, q,
         { q_index = index, k_index = index, q_tiles = tiles, k_tiles = tiles:narrow(2, 1, 1) })
      refused('E_SHAPE', { 'attention_backward', 'q_tiles' }, tide.attention_backward, q, q, q, q,
         q, tide.zeros { 1, 1, 70 }, { q_index = index, k_index = index, q_tiles = index })
   end)
end)

describe('document_index', function()
   it('numbers documents and positions, and gives the rest to none', function()
      for _, device in ipairs { 'ref', fast } do
         local cu = tide.tensor({ 0, 2, 2, 5 }, { dtype = 'i64', device = device })
         assert.are.same({ { { 0, 0 }, { 0, 1 }, { 2, 0 }, { 2, 1 }, { 2, 2 }, { -1, 0 } } },
            tide.document_index(cu, 6):tolist())
      end
   end)

   it('refuses lengths that are none', function()
      local function cu(list) return tide.tensor(list, { dtype = 'i32' }) end
      refused('E_ARG', { 'document_index', 'from 3 to 2' }, tide.document_index, cu { 0, 3, 2 }, 4)
      refused('E_ARG', { 'document_index', '0 first' }, tide.document_index, cu { 1, 3 }, 4)
      refused('E_ARG', { 'document_index', 'ends at 5' }, tide.document_index, cu { 0, 5 }, 4)
      refused('E_SHAPE', 'document_index', tide.document_index, cu { { 0, 5 } }, 5)
      refused('E_DTYPE', 'document_index', tide.document_index, tide.tensor { 0, 5 }, 5)
      refused('E_ARG', 'document_index', tide.document_index, cu { 0, 5 }, -1)
   end)
end)
