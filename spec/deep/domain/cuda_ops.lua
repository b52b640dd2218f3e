-- The ops of spec/deep/domain/cuda.lua: list[name] has
--
--    make(choices)   shapes of the inputs, and options as plain data. An input may also have
--                    dtype, below (whole numbers under it), least (positive numbers from it on),
--                    fixed (no gradient)
--    run(t, options, ...)   the results of the inputs
--    dtypes          of the inputs without one of their own; default: the floating ones
--    grad            false: no gradients;  room: a factor on the rounding that is allowed

local M = { list = {} }

local all = { 'f32', 'bf16', 'f16', 'f64', 'i64', 'i32', 'u8', 'bool' }
local numbers = { 'f32', 'bf16', 'f16', 'f64', 'i64', 'i32', 'u8' }
local short = { 'f32', 'bf16', 'f16' }

local function add(name, op) M.list[name] = op end

-- Sizes about tiles and vectors: 0 seldom, 1 and odd ones often.
local function size(c) return c:pick { 1, 2, 3, 5, 8, 16, 17, 24, 31, 32, 33, 64, 65, 7, 0 } end
local function some(c) return c:pick { 1, 2, 3, 5, 8, 16, 17, 33 } end

local function shape(c, most)
   local s = {}
   for d = 1, c:int(1, most or 4) do s[d] = d < 3 and size(c) or c:int(1, 4) end
   return s
end

-- A copy of a shape in which some dims are 1 or missing.
local function narrower(c, s)
   local out, skip = {}, c:few(0, #s)
   for d = skip + 1, #s do out[#out + 1] = c:chance(0.2) and 1 or s[d] end
   return out
end

local function with(s, more)
   for k, v in pairs(more) do s[k] = v end
   return s
end

-- ---- elements --------------------------------------------------------------------------------

for _, name in ipairs { 'add', 'sub', 'mul', 'minimum', 'maximum', 'eq', 'ne', 'lt', 'ge' } do
   add(name, { dtypes = numbers, make = function(c)
      local s = shape(c)
      local pair = { s, narrower(c, s) }
      if c:chance(0.5) then pair = { pair[2], pair[1] } end
      return pair
   end, run = function(_, _, a, b) return a[name](a, b) end,
      grad = (name == 'add' or name == 'sub' or name == 'mul') })
end

for _, name in ipairs { 'div', 'pow' } do
   add(name, { make = function(c)
      local s = shape(c)
      return { with(s, { least = 0.5 }), with(narrower(c, s), { least = 0.5 }) }
   end, run = function(_, _, a, b) return a[name](a, b) end, room = 4 })
end

for _, name in ipairs { 'neg', 'abs', 'sign', 'square', 'relu', 'logical_not', 'clone' } do
   add(name, { dtypes = numbers, make = function(c) return { shape(c) } end,
      run = function(_, _, x) return x[name](x) end, grad = false })
end

for _, name in ipairs { 'exp', 'sin', 'cos', 'tanh', 'sigmoid', 'erf', 'silu', 'gelu', 'gelu_tanh',
                        'softplus', 'floor', 'isfinite' } do
   add(name, { make = function(c) return { shape(c) } end,
      run = function(_, _, x) return x[name](x) end,
      grad = name ~= 'floor' and name ~= 'isfinite' })
end

for _, name in ipairs { 'log', 'sqrt', 'rsqrt', 'reciprocal' } do
   add(name, { make = function(c) return { with(shape(c), { least = 0.25 }) } end,
      run = function(_, _, x) return x[name](x) end })
end

add('affine', { dtypes = numbers, make = function(c) return { shape(c) }, { c:int(-3, 3) } end,
   run = function(_, o, x) return x * o[1] + 2 end })
add('clamp', { make = function(c) return { shape(c) } end,
   run = function(_, _, x) return x:clamp(-0.5, 0.75) end })
add('where', { dtypes = numbers, make = function(c)
   local s = shape(c)
   return { with(narrower(c, s), { dtype = 'bool' }), s, narrower(c, s) }
end, run = function(t, _, k, a, b) return t.where(k, a, b) end })
add('cast', { dtypes = all, grad = false,
   make = function(c) return { shape(c) }, { c:pick(all) } end,
   run = function(_, o, x) return x:to(o[1]) end })
-- Into the views themselves: an expanded one is no place to write to.
add('into views', { dtypes = all, grad = false, make = function(c)
   local s = shape(c)
   return { s, s }, { c:pick { 'copy_', 'fill_', 'mul_', 'add_' }, c:int(1, 3) }
end, run = function(t, o, x, y)
   local base = t.zeros({ x:numel() * 2 + 3 }, { dtype = x.dtype, device = x.device })
   local to = base:slice(1, 3, x:numel() * 2 + 2, 2):reshape(x.shape)
   to = to:copy_(x)
   if o[1] == 'copy_' then to:copy_(y)
   elseif o[1] == 'fill_' then to:fill_(x.dtype == 'bool' and 1 or o[2])
   elseif x.dtype ~= 'bool' and o[1] == 'mul_' then to:mul_(o[2])
   elseif x.dtype ~= 'bool' then to:add_(y, o[2]) end
   return base, to
end })

-- ---- reductions and movement -----------------------------------------------------------------

for _, name in ipairs { 'sum', 'mean', 'amax', 'amin', 'any', 'all' } do
   add(name, { dtypes = name == 'mean' and short or name:find '^a[nl]' and all or numbers,
      make = function(c)
         local s = shape(c)
         for d = 1, #s do s[d] = math.max(s[d], 1) end
         return { s }, { c:int(0, #s), c:chance(0.5) }
      end,
      run = function(_, o, x)
         return x[name](x, o[1] > 0 and o[1] or nil, o[2])
      end, grad = name == 'sum' or name == 'mean' })
end
for _, name in ipairs { 'argmax', 'argmin', 'cumsum' } do
   add(name, { dtypes = numbers, grad = name == 'cumsum', make = function(c)
      local s = shape(c)
      for d = 1, #s do s[d] = math.max(s[d], 1) end
      return { s }, { c:int(1, #s) }
   end, run = function(_, o, x) return x[name](x, o[1]) end })
end
add('topk', { dtypes = numbers, make = function(c)
   local s = shape(c)
   local d = c:int(1, #s)
   return { s }, { d, c:int(0, s[d]), c:chance(0.5) }
end, run = function(_, o, x) return x:topk(o[2], o[1], o[3]) end })
add('softmax', { make = function(c)
   local s = shape(c)
   return { s }, { c:int(1, #s) }
end, run = function(_, o, x) return x:softmax(o[1]), x:log_softmax(o[1]) end })
add('cat', { dtypes = all, make = function(c)
   local s = shape(c)
   local d, other = c:int(1, #s), {}
   for k, v in ipairs(s) do other[k] = k == d and size(c) or v end
   return { s, other }, { d }
end, run = function(t, o, a, b) return t.cat({ a, b, a }, o[1]) end })
add('pad', { make = function(c)
   local s = shape(c, 2)
   if #s < 2 then s[2] = size(c) end
   return { s }, { c:int(0, 3), c:int(0, 3) }
end, run = function(_, o, x) return x:pad({ o[1], o[2] }, { 0, o[1] }, 1.5) end })
add('roll', { dtypes = all, make = function(c)
   local s = shape(c)
   return { s }, { c:int(-5, 5), c:int(1, #s) }
end, run = function(_, o, x) return x:roll(o[1], o[2]) end })

-- ---- indices ---------------------------------------------------------------------------------

local function index(s, below) return with(s, { dtype = 'i64', below = below }) end

add('gather', { dtypes = numbers, make = function(c)
   local rows, cols = some(c), some(c)
   return { { rows, cols }, index({ rows, size(c) }, cols) }
end, run = function(_, _, x, i) return x:gather(2, i) end })
add('scatter_add', { dtypes = numbers, make = function(c)
   local rows, cols, n = some(c), some(c), some(c)
   return { { rows, cols }, index({ rows, n }, cols), { rows, n } }
end, run = function(_, _, x, i, s) return x:scatter_add(2, i, s) end, room = 4 })
add('index_select', { dtypes = all, make = function(c)
   local rows = some(c)
   return { { rows, some(c) }, index({ size(c) }, rows) }
end, run = function(_, _, x, i) return x:index_select(1, i) end })
add('index_add', { dtypes = numbers, make = function(c)
   local rows, cols, n = some(c), some(c), some(c)
   return { { rows, cols }, index({ n }, rows), { n, cols } }
end, run = function(_, _, x, i, s) return x:index_add(1, i, s) end, room = 4 })
add('embedding', { make = function(c)
   local rows = some(c)
   return { { rows, some(c) }, index({ some(c), some(c) }, rows) }
end, run = function(t, _, w, i) return t.embedding(w, i) end, room = 4 })

-- ---- products --------------------------------------------------------------------------------

add('matmul', { dtypes = { 'f32', 'bf16', 'f16', 'f64', 'i64', 'i32' }, make = function(c)
   local m, n, k, lead = size(c), size(c), size(c), c:int(0, 2)
   local a, b = { m, k }, { k, n }
   for _ = 1, lead do
      local s = c:int(1, 3)
      table.insert(a, 1, s)
      if c:chance(0.5) or #b > 2 then table.insert(b, 1, s) end
   end
   if #b > 2 and #b < #a then b = { unpack(b, #b - 1) } end
   return { a, b }
end, run = function(_, _, a, b) return a:matmul(b) end })

local function linear_shapes(c)
   local x, k, n = shape(c, 2), size(c), some(c)
   x[#x + 1] = k
   return { x, { n, k }, { n } }, { c:chance(0.5) }
end
add('linear', { make = linear_shapes, run = function(t, o, x, w, b)
   return t.linear(x, w, o[1] and b or nil)
end })
add('linear_lora', { make = function(c)
   local x, k, n, r = shape(c, 2), size(c), some(c), some(c)
   x[#x + 1] = k
   return { x, { n, k }, { r, k }, { n, r }, { n } }, { c:chance(0.5) }
end, run = function(t, o, x, w, a, b, bias)
   return t.linear_lora(x, w, a, b, 0.75, o[1] and bias or nil)
end })
add('linear_fp8', { dtypes = short, make = linear_shapes, run = function(t, o, x, w, b)
   return t.linear_fp8(x, w, o[1] and b or nil)
end })
for _, act in ipairs { 'relu', 'gelu_tanh' } do
   add('linear_' .. act, { make = linear_shapes, run = function(t, o, x, w, b)
      return t.linear_act(x, w, o[1] and b or nil, act)
   end, grad = act ~= 'relu' })
end
add('addmm_', { grad = false, make = function(c)
   local m, n, k = some(c), some(c), size(c)
   return { { m, n }, { m, k }, { k, n } }
end, run = function(_, _, y, a, b) return y:clone():addmm_(a, b) end })
add('linear_nf4', { dtypes = short, make = function(c)
   local k, n = some(c), some(c)
   return { { some(c), k }, { n, k, dtype = 'f32', fixed = true } }, { n, k }
end, run = function(t, _, x, w)
   local codes, scale = t.quantize_nf4(w:contiguous())
   return t.linear_nf4(x, codes, scale, w:size(1)), t.dequantize_nf4(codes, scale, w:numel())
end })
add('grouped_linear_nf4', { dtypes = short, make = function(c)
   local k, n, groups, list = some(c), some(c), c:int(1, 4), { 0 }
   for g = 1, groups do list[g + 1] = list[g] + c:int(0, 3) end
   return { { list[groups + 1] + c:int(0, 2), k }, { groups, n, k, dtype = 'f32', fixed = true } },
      { list }
end, run = function(t, o, x, w)
   local codes, scales = {}, {}
   for g = 1, w:size(1) do
      local made, scale = t.quantize_nf4(w:select(1, g):contiguous())
      codes[g], scales[g] = made:unsqueeze(1), scale:unsqueeze(1)
   end
   return t.grouped_linear_nf4(x, t.cat(codes, 1), t.cat(scales, 1),
      t.tensor(o[1], { dtype = 'i64', device = x.device }), w:size(2), 0, w:size(3))
end })

-- ---- rows ------------------------------------------------------------------------------------

local function rows_and(n)
   return function(c)
      local s = shape(c, 3)
      s[#s] = some(c)
      local list = { s }
      for _ = 1, n do list[#list + 1] = { s[#s] } end
      return list
   end
end
add('layer_norm', { make = rows_and(2), room = 4,
   run = function(t, _, x, w, b) return t.layer_norm(x, w, b, 1e-2) end })
add('rms_norm', { make = rows_and(1), room = 4,
   run = function(t, _, x, w) return t.rms_norm(x, w, 1e-2) end })
add('add_rms_norm', { room = 4, make = function(c)
   local list = rows_and(1)(c)
   return { list[1], { unpack(list[1]) }, list[2] }
end, run = function(t, _, x, r, w) return t.add_rms_norm(x, r, w, 1e-2) end })
add('gated_rms_norm', { room = 4, make = function(c)
   local list = rows_and(1)(c)
   return { list[1], { unpack(list[1]) }, list[2] }, { c:chance(0.5) }
end, run = function(t, o, x, z, w)
   return t.gated_rms_norm(x, z, w, { gate_last = o[1], eps = 1e-2 })
end })
add('swiglu', { make = function(c)
   local s = shape(c)
   return { s, { unpack(s) } }
end, run = function(t, _, g, u) return t.swiglu(g, u) end })
add('rope', { make = function(c)
   local b, n, d = c:int(1, 3), some(c), 2 * c:int(1, 9)
   return { { b, n, c:int(1, 3), d }, index({ c:pick { 1, b }, n }, 50),
            { d / 2, dtype = 'f32', least = 0.01, fixed = true } }, { c:chance(0.5) }
end, run = function(t, o, x, p, f) return t.rope(x, p, f, { interleaved = o[1] }) end, room = 4 })
add('cross_entropy', { room = 4, make = function(c)
   local n, v = some(c), some(c)
   return { { n, v }, index({ n }, v) }, { c:pick { 0, 0.1 }, c:pick { 0, 0.01 } }
end, run = function(t, o, x, y)
   return t.cross_entropy(x, y, { reduction = 'none', label_smoothing = o[1], z_loss = o[2] })
end })
add('linear_cross_entropy', { room = 4, make = function(c)
   local n, v, k = some(c), some(c), size(c)
   return { { n, k }, { v, k }, { v }, index({ n }, v) }, { c:chance(0.5), c:pick { 0, 0.1 } }
end, run = function(t, o, x, w, b, y)
   return t.linear_cross_entropy(x, w, o[1] and b or nil, y, { label_smoothing = o[2] })
end })

-- ---- sequences -------------------------------------------------------------------------------

add('attention', { room = 4, make = function(c)
   local b, tq, tk, hk = c:int(1, 2), some(c), some(c), c:int(1, 2)
   local h, d, dv = hk * c:int(1, 3), c:pick { 1, 8, 16, 24, 27, 64 }, c:pick { 4, 8, 16, 33, 64 }
   return { { b, tq, h, d }, { b, tk, hk, d }, { b, tk, hk, dv } },
      { causal = c:chance(0.5) and tq == tk, window = c:chance(0.3) and c:int(1, 9) or nil,
        softcap = c:chance(0.2) and 5 or nil }
end, run = function(t, o, q, k, v)
   return (t.attention(q, k, v, { causal = o.causal, softcap = o.softcap,
      window = o.window and (o.causal and o.window or { o.window, o.window }) }))
end })
add('conv1d', { room = 4, make = function(c)
   local b, n, channels, taps = c:int(1, 3), some(c), some(c), c:int(2, 4)
   return { { b, n, channels }, { channels, taps }, { channels } }, { c:chance(0.5) }
end, run = function(t, o, x, w, b) return (t.conv1d(x, w, b, { silu = o[1] })) end })
add('ssd_scan', { room = 8, make = function(c)
   local b, n, g = c:int(1, 2), some(c), c:int(1, 2)
   local h, p, s = g * c:int(1, 2), c:pick { 1, 3, 8, 16, 17 }, c:pick { 1, 4, 16, 33 }
   return { { b, n, h, p }, { b, n, h }, { h }, { b, n, g, s }, { b, n, g, s } },
      { c:pick { 1, 4, 16, 128 } }
end, run = function(t, o, x, dt, A, B, C)
   return (t.ssd_scan(x, dt, A:abs():neg(), B, C, { softplus = true, chunk = o[1] }))
end })
add('gated_delta', { room = 8, make = function(c)
   local b, n, hk = c:int(1, 2), some(c), c:int(1, 2)
   local hv, dk, dv = hk * c:int(1, 2), c:pick { 1, 3, 8, 17, 40 }, c:pick { 1, 4, 16, 33, 70 }
   return { { b, n, hk, dk }, { b, n, hk, dk }, { b, n, hv, dv }, { b, n, hv }, { b, n, hv } },
      { c:pick { 1, 4, 16, 128 } }
end, run = function(t, o, q, k, v, g, beta)
   return (t.gated_delta(q, k, v, g:abs():neg(), beta:sigmoid(), { l2norm = true,
      chunk = o[1] }))
end })

return M
