-- The case table of the ops: what to call, on which shapes, in which dtypes. One row is one case;
-- spec/op/all_spec.lua runs each in several modes (value against the reference, layouts, gradient,
-- null device). A new op needs a row here; spec/meta/op_table_spec.lua looks.
--
-- Row fields:
--   op      name in op.def that the case exercises
--   fn      function(t, ...) of the module and the input tensors -> tensor or several
--   shapes  list of input lists: { { {2, 3}, {3} }, ... }; an entry may be a generator below
--   dtypes  'float' (default), 'all', 'number' (no bool), or a list
--   grad    false: no derivative; or list of input numbers that have one (default: all float ones)
--   differences  false: the derivative is not the slope (rounding counts as the identity); a spec
--           of its own holds it against its formula
--   domain  {lo, hi} of the random inputs (default -2..2), kept away from kinks by `away`
--   tol     factor on the tolerance, with the reason beside it

local case = {}

-- Generators: fixed integer inputs (index data) beside the random float ones.
local function ids(shape, below) return { ids = shape, below = below } end
local function bools(shape) return { bools = shape } end
local function values(list, shape, dtype) return { values = list, shape = shape, dtype = dtype } end

local pairs_ = { { { 2, 3 }, { 2, 3 } }, { { 4, 1, 3 }, { 2, 1 } }, { {}, { 5 } }, { { 7 }, {} },
                 { { 0, 3 }, { 3 } }, { { 1, 1 }, { 33, 17 } }, { { 3, 65 }, { 3, 65 } } }
local ones_ = { { { 2, 3 } }, { {} }, { { 0 } }, { { 1 } }, { { 3, 0, 2 } }, { { 65 } },
                { { 2, 3, 5, 7 } } }

local function binary(name, extra)
   local row = { op = name, shapes = pairs_, fn = function(_, a, b) return a[name](a, b) end }
   for k, v in pairs(extra or {}) do row[k] = v end
   case[#case + 1] = row
end
local function unary(name, extra)
   local row = { op = name, shapes = ones_, fn = function(_, x) return x[name](x) end }
   for k, v in pairs(extra or {}) do row[k] = v end
   case[#case + 1] = row
end
local function add(row) case[#case + 1] = row end

binary('add', { dtypes = 'number' })
binary('sub', { dtypes = 'number' })
binary('mul', { dtypes = 'number' })
binary('div', { domain = { 0.5, 2 } })
binary('pow', { domain = { 0.5, 2 } })
binary('minimum', { dtypes = 'number' })
binary('maximum', { dtypes = 'number' })
for _, name in ipairs { 'eq', 'ne', 'lt', 'le', 'gt', 'ge', 'logical_and', 'logical_or' } do
   binary(name, { dtypes = 'all', grad = false })
end

unary('neg', { dtypes = 'number' })
unary('abs', { dtypes = 'number', away = 0 })
unary('sign', { dtypes = 'number', away = 0 })
unary('floor', { away = 'integers' })
unary('exp')
unary('log', { domain = { 0.2, 3 } })
unary('sqrt', { domain = { 0.2, 3 } })
unary('rsqrt', { domain = { 0.2, 3 } })
unary('square', { dtypes = 'number' })
unary('reciprocal', { domain = { 0.3, 3 } })
for _, name in ipairs { 'sin', 'cos', 'tanh', 'sigmoid', 'erf', 'silu', 'gelu', 'gelu_tanh',
                        'softplus' } do
   unary(name)
end
unary('relu', { dtypes = 'number', away = 0 })
unary('logical_not', { dtypes = 'all', grad = false })
unary('isfinite', { dtypes = 'all', grad = false })
unary('clone', { dtypes = 'all' })

add { op = 'affine', shapes = ones_, fn = function(_, x) return x * 3 + 2 end }
add { op = 'pow_scalar', shapes = ones_, domain = { 0.3, 2 },
      fn = function(_, x) return x:pow(3) end }
add { op = 'clamp', shapes = ones_, away = 0.5, fn = function(_, x) return x:clamp(-0.5, 0.5) end }
add { op = 'where', dtypes = 'number',
      shapes = { { bools { 2, 3 }, { 2, 3 }, { 3 } }, { bools { 3 }, {}, { 2, 1 } },
                 { bools { 0 }, { 0 }, {} } },
      fn = function(t, c, a, b) return t.where(c, a, b) end }
add { op = 'cast', dtypes = 'number', shapes = ones_, grad = false,
      fn = function(_, x) return x:to 'f32', x:to 'i32', x:to 'bf16', x:to 'f64' end }
add { op = 'cast', shapes = ones_, fn = function(_, x) return x:to 'f32' end, grad_tol = 1e-5 }

-- Reductions: every dim, several, all; sizes 0 and 1.
local reduced = { { { 2, 3, 4 } }, { { 5, 1, 3 } }, { { 65, 33, 2 } } }
local function reduction(name, extra)
   for _, how in ipairs { { 1 }, { 3 }, { { 1, 3 } }, { nil }, { 2, true } } do
      local row = { op = name, shapes = reduced,
                    fn = function(_, x) return x[name](x, how[1], how[2]) end }
      for k, v in pairs(extra or {}) do row[k] = v end
      case[#case + 1] = row
   end
end
reduction('sum', { dtypes = 'all' })
reduction('mean')
reduction('prod', { domain = { 0.9, 1.1 } })
-- Slices with no, one and more zero factors: the gradient is the product of the others.
local zeros_ = { { values({ 2, 0, 3, 0.5, -1, 4, 0, -2, 0 }, { 3, 3 }) },
                 { values({ 0 }, {}) }, { values({ 0, 5, 0, 7 }, { 2, 1, 2 }) } }
for _, how in ipairs { { 1 }, { -1 }, { nil }, { -1, true } } do
   local dim, keep = how[1], how[2]
   add { op = 'prod', shapes = zeros_, fn = function(_, x)
      return x:prod(x.ndim > 0 and dim or nil, keep)
   end }
end
reduction('amax', { dtypes = 'number' })
reduction('amin', { dtypes = 'number' })
reduction('any', { dtypes = 'all', grad = false })
reduction('all', { dtypes = 'all', grad = false })
add { op = 'sum', shapes = { { { 0, 3 } }, { {} } }, fn = function(_, x) return x:sum() end }
add { op = 'sum', shapes = { { { 0, 3 } } }, fn = function(_, x) return x:sum(1), x:sum(2) end }
add { op = 'argmax', dtypes = 'number', grad = false, shapes = reduced,
      fn = function(_, x) return x:argmax(2), x:argmax(-1, true) end }
add { op = 'argmin', dtypes = 'number', grad = false, shapes = reduced,
      fn = function(_, x) return x:argmin(1), x:argmin(3) end }
add { op = 'topk', dtypes = 'number', shapes = reduced, fn = function(_, x)
   local most, where = x:topk(math.min(2, x:size(2)), 2)
   return most, where:to(x.dtype), (x:topk(x:size(-1), -1, true))
end }
add { op = 'cumsum', dtypes = 'number', shapes = { { { 2, 5 } }, { { 1, 7 } }, { { 3, 0 } } },
      fn = function(_, x) return x:cumsum(2), x:cumsum(1) end }

-- Movement.
add { op = 'reshape', dtypes = 'all', shapes = { { { 2, 6 } }, { { 0, 4 } } },
      fn = function(_, x) return x:reshape(x:numel() == 0 and { 2, 0 } or { 3, -1 }) end }
add { op = 'permute', dtypes = 'all', shapes = { { { 2, 3, 4 } }, { { 2, 0, 1 } } },
      fn = function(_, x) return x:permute(3, 1, 2), x:transpose(1, -1) end }
add { op = 'slice', dtypes = 'all', shapes = { { { 5, 6 } } },
      fn = function(_, x) return x:slice(2, 2, 5), x:slice(1, 1, 5, 2), x:select(1, -1) end }
add { op = 'expand', dtypes = 'all', shapes = { { { 3, 1 } }, { { 1, 1 } } },
      fn = function(_, x) return x:expand { 2, 3, 4 } end }
add { op = 'cat', dtypes = 'all', shapes = { { { 2, 3 }, { 1, 3 }, { 0, 3 } } },
      fn = function(t, a, b, c) return t.cat({ a, b, c, a }, 1) end }
add { op = 'cat', dtypes = 'all', shapes = { { { 2, 3 }, { 2, 1 } } },
      fn = function(t, a, b) return t.cat({ a, b }, -1), t.stack({ a, a }, 2) end }
add { op = 'pad', shapes = { { { 2, 3 } }, { { 1, 1 } } },
      fn = function(_, x) return x:pad({ 1, 0 }, { 0, 2 }, 1.5), x:pad({ 0, -1 }, { 0, 0 }, 0) end }
add { op = 'roll', dtypes = 'all', shapes = { { { 2, 5 } }, { { 1, 1 } }, { { 0, 2 } } },
      fn = function(_, x) return x:roll(2, 2), x:roll(-1, 1) end }
add { op = 'arange', grad = false, shapes = { { { 1 } } },
      fn = function(t, x) return t.arange(1, 7, 2, { dtype = x.dtype, device = x.device }) end }

for _, name in ipairs { 'foreach_copy_', 'foreach_add_' } do
   add { op = name, dtypes = name == 'foreach_copy_' and 'all' or 'number', grad = false,
         shapes = { { { 2, 3 }, { 5 }, { 0, 2 } }, { { 33, 17 }, {}, { 1, 65, 8 } } },
         fn = function(t, a, b, c)
            local to = { a:clone(), t.zeros_like(b), c:clone() }
            t[name](to, { a, b, c })
            return unpack(to)
         end }
end

-- Index ops.
add { op = 'gather', dtypes = 'number',
      shapes = { { { 3, 4 }, ids({ 3, 2 }, 4) }, { { 2, 5 }, ids({ 1, 7 }, 5) } },
      fn = function(_, x, i) return x:gather(2, i) end }
add { op = 'scatter_add', dtypes = 'number', shapes = { { { 3, 4 }, ids({ 3, 5 }, 4), { 3, 5 } } },
      fn = function(_, x, i, s) return x:scatter_add(2, i, s) end }
add { op = 'index_select', dtypes = 'all',
      shapes = { { { 4, 3 }, ids({ 6 }, 4) }, { { 4, 3 }, ids({ 0 }, 4) } },
      fn = function(_, x, i) return x:index_select(1, i) end }
add { op = 'index_add', dtypes = 'number', shapes = { { { 4, 3 }, ids({ 6 }, 4), { 6, 3 } } },
      fn = function(_, x, i, s) return x:index_add(1, i, s) end }
add { op = 'embedding', shapes = { { { 7, 5 }, ids({ 2, 3 }, 7) }, { { 3, 33 }, ids({ 40 }, 3) },
                                   { { 3, 2 }, ids({ 0 }, 3) } },
      fn = function(t, w, i) return t.embedding(w, i) end }
add { op = 'one_hot', grad = false, shapes = { { { 1 }, ids({ 2, 3 }, 5) } },
      fn = function(t, x, i) return t.one_hot(i, 5, { dtype = x.dtype }) end }

-- Products.
add { op = 'matmul', dtypes = 'number',
      shapes = { { { 2, 3 }, { 3, 4 } }, { { 3 }, { 3 } }, { { 3 }, { 3, 2 } }, { { 2, 3 }, { 3 } },
                 { { 2, 2, 3 }, { 3, 4 } }, { { 2, 1, 3, 4 }, { 3, 4, 2 } }, { { 0, 3 }, { 3, 2 } },
                 { { 2, 0 }, { 0, 3 } }, { { 17, 33 }, { 33, 19 } } },
      fn = function(_, a, b) return a:matmul(b) end }
add { op = 'matmul', shapes = { { { 5, 2 }, { 5, 3 } } },
      fn = function(_, a, b) return a:t():matmul(b) end }
add { op = 'addmm_', grad = false,
      shapes = { { { 2, 4 }, { 2, 3 }, { 3, 4 } }, { { 0, 2 }, { 0, 3 }, { 3, 2 } },
                 { { 2, 3 }, { 2, 0 }, { 0, 3 } }, { { 17, 19 }, { 17, 33 }, { 33, 19 } },
                 { { 1, 65 }, { 1, 33 }, { 33, 65 } } },
      fn = function(t, c, a, b)
         local turned = t.zeros({ c:size(2), c:size(1) }, { dtype = c.dtype, device = c.device })
         return c:clone():addmm_(a, b), turned:t():addmm_(a, b)
      end }
add { op = 'linear', shapes = { { { 2, 3 }, { 4, 3 }, { 4 } }, { { 2, 3, 5 }, { 1, 5 }, { 1 } },
                                { { 0, 3 }, { 2, 3 }, { 2 } }, { { 33, 17 }, { 65, 17 }, { 65 } } },
      fn = function(t, x, w, b) return t.linear(x, w, b) end }
add { op = 'linear', shapes = { { { 2, 3 }, { 4, 3 } } },
      fn = function(t, x, w) return t.linear(x, w) end }
-- Weights side by side (slices of w) or not, with biases alike; of one row, and of none. What is
-- summed makes the gradients of the parts lie apart; swiglu and rope put them side by side.
local function slices(w, sizes)
   local list, at = {}, 1
   for i, n in ipairs(sizes) do list[i], at = w:narrow(1, at, n), at + n end
   return list
end
for _, case_ in ipairs { { { 2, 3, 5 }, { 4, 1, 2 } }, { { 33, 17 }, { 40, 24, 1 } },
   { { 0, 3 }, { 2, 2 } }, { { 3, 0 }, { 2, 3 } }, { { 5 }, { 3, 0, 1 } }, { { 2, 8 }, { 8 } } } do
   local x, sizes = unpack(case_)
   local rows = 0
   for _, n in ipairs(sizes) do rows = rows + n end
   add { op = 'linear_joined', shapes = { { x, { rows, x[#x] }, { rows } } },
         fn = function(t, a, w, b)
            local list = t.linear_joined(a, slices(w, sizes), slices(b, sizes))
            for _, y in ipairs(t.linear_joined(a, slices(w, sizes))) do list[#list + 1] = y end
            list[#list + 1] = t.linear_joined(a, { w, w:narrow(1, 1, 1) }, { false, false })[2]
            return unpack(list)
         end }
end
add { op = 'linear_joined', shapes = { { { 3, 2, 5 }, { 14, 5 } }, { { 17, 33 }, { 128, 33 } } },
      fn = function(t, x, w)
         local n = w:size(1) / 2
         return t.swiglu(unpack(t.linear_joined(x, slices(w, { n, n }))))
      end }
-- Changes of rank 1, more, and none; few rows, where x meets a and b, and many, where the weight
-- gets the change; no rows, inputs or outputs.
for _, case_ in ipairs { { { 2, 3 }, 4, 2 }, { { 2, 3, 5 }, 1, 1 }, { { 40, 7 }, 6, 5 },
   { { 0, 3 }, 2, 2 }, { { 3, 0 }, 2, 1 }, { { 5 }, 3, 2 }, { { 4, 3 }, 0, 2 }, { { 9, 3 }, 3, 0 },
   { { 3, 33, 17 }, 40, 16 } } do
   local x, n, r = unpack(case_)
   local k = x[#x]
   add { op = 'linear_lora', shapes = { { x, { n, k }, { r, k }, { n, r }, { n } } },
         fn = function(t, a, w, down, up, bias)
            return t.linear_lora(a, w, down, up, 0.75, bias), t.linear_lora(a, w, down, up, -2)
         end }
end
-- Groups of none, one and many rows, rows before and behind all groups; no group; sizes off and on
-- the tiles.
local function offsets(...) return values({ ... }, { select('#', ...) }, 'i64') end
for _, case_ in ipairs {
   { 7, 3, 4, offsets(0, 2, 2, 7) }, { 9, 5, 1, offsets(2, 3, 8) }, { 3, 4, 2, offsets(1, 1) },
   { 4, 3, 2, offsets(0) }, { 0, 3, 2, offsets(0, 0) }, { 5, 0, 3, offsets(0, 3, 5) },
   { 80, 33, 65, offsets(0, 1, 70, 70, 80) }, { 140, 40, 136, offsets(0, 129, 140) } } do
   local rows, k, n, list = unpack(case_)
   add { op = 'grouped_linear', shapes = { { { rows, k }, { #list.values - 1, n, k }, list } },
         grad = { 1, 2 },
         fn = function(t, x, w, o) return t.grouped_linear(x, w, o) end }
   add { op = 'grouped_addmm_', grad = false,
         shapes = { { { #list.values - 1, n, k }, { rows, n }, { rows, k }, list } },
         fn = function(t, c, a, b, o)
            local turned = t.zeros({ #list.values - 1, k, n }, { dtype = c.dtype,
               device = c.device }):transpose(2, 3)
            return c:clone():grouped_addmm_(a, b, o), turned:grouped_addmm_(a, b, o)
         end }
end
-- ids below 7 of 5 groups: some are in none. A row of two choices has a slot for each.
for _, shape in ipairs { { 9 }, { 1, 1 }, { 40, 2 }, { 300, 8 }, { 0, 2 }, { 3, 0 } } do
   add { op = 'group_rows', dtypes = { 'f32' }, grad = false,
         shapes = { { ids(shape, 7), { 2 } } },
         fn = function(t, list)
            local rows, place, offsets_ = t.group_rows(list, 5)
            return rows, place, offsets_, (t.group_rows(list:to 'i32', 5))
         end }
end
for _, act in ipairs { 'relu', 'gelu_tanh' } do
   add { op = 'linear_act',
         shapes = { { { 2, 3 }, { 4, 3 }, { 4 } }, { { 2, 3, 5 }, { 8, 5 }, { 8 } },
                    { { 0, 3 }, { 2, 3 }, { 2 } }, { { 2, 0 }, { 3, 0 }, { 3 } },
                    { { 33, 17 }, { 40, 17 }, { 40 } } },
         fn = function(t, x, w, b)
            return t.linear_act(x, w, b, act), t.linear_act(x, w, nil, act)
         end }
end

-- Sizes off the steps of 16 that FP8 units take, on them, and beyond a tile; no sum at all.
local small_floats = { 'f32', 'f16', 'bf16' }
add { op = 'linear_fp8', dtypes = small_floats, differences = false,
      shapes = { { { 2, 3 }, { 4, 3 }, { 4 } }, { { 2, 3, 5 }, { 1, 5 }, { 1 } },
                 { { 0, 3 }, { 2, 3 }, { 2 } }, { { 2, 0 }, { 3, 0 }, { 3 } },
                 { { 17 }, { 16, 17 }, { 16 } }, { { 3, 32 }, { 32, 32 }, { 32 } },
                 { { 33, 130 }, { 65, 130 }, { 65 } } },
      fn = function(t, x, w, b) return t.linear_fp8(x, w, b) end }
add { op = 'linear_fp8', dtypes = small_floats, differences = false,
      shapes = { { { 2, 3 }, { 4, 3 } }, { { 2, 5, 80 }, { 48, 80 } } },
      fn = function(t, x, w) return t.linear_fp8(x, w) end }

-- Norms and activations.
local rows = { { { 2, 5 }, { 5 }, { 5 } }, { { 3, 1, 33 }, { 33 }, { 33 } },
               { { 0, 4 }, { 4 }, { 4 } }, { { 2, 1 }, { 1 }, { 1 } } }
add { op = 'layer_norm', shapes = rows,
      fn = function(t, x, w, b) return t.layer_norm(x, w, b, 1e-3) end,
      tol = 4 } -- a row of one element divides rounding by sqrt(eps)
add { op = 'layer_norm', shapes = { { { 3, 7 } } }, fn = function(t, x) return t.layer_norm(x) end }
add { op = 'rms_norm',
      shapes = { { { 2, 5 }, { 5 } }, { { 3, 1, 33 }, { 33 } }, { { 0, 4 }, { 4 } } },
      fn = function(t, x, w) return t.rms_norm(x, w, 1e-5, 1) end }
add { op = 'rms_norm', shapes = { { { 3, 7 } } }, fn = function(t, x) return t.rms_norm(x) end }
add { op = 'add_rms_norm',
      shapes = { { { 2, 5 }, { 2, 5 }, { 5 } }, { { 0, 3 }, { 0, 3 }, { 3 } } },
      fn = function(t, x, r, w) return t.add_rms_norm(x, r, w, 1e-5) end }
for _, inv_freq in ipairs { 'f32', 'f64' } do
   local frequencies = values({ 1, 0.3, 0.02 }, { 3 }, inv_freq)
   for _, interleaved in ipairs { false, true } do
      add { op = 'rope', shapes = { { { 2, 3, 2, 7 }, ids({ 1, 3 }, 50), frequencies },
                                    { { 2, 3, 1, 6 }, ids({ 2, 3 }, 9), frequencies },
                                    { { 1, 0, 2, 6 }, ids({ 1, 0 }, 9), frequencies } },
            fn = function(t, x, p, f) return t.rope(x, p, f, { interleaved = interleaved }) end }
   end
end
-- Heads side by side and apart; in place of x and beside it; and after a joint product.
for _, reuse in ipairs { false, true } do
   local frequencies = values({ 1, 0.3 }, { 2 }, 'f64')
   add { op = 'rope_joined',
         shapes = { { { 2, 3, 4, 5 }, { 2, 3, 1, 6 }, ids({ 1, 3 }, 50), frequencies },
                    { { 1, 0, 4, 4 }, { 1, 0, 2, 4 }, ids({ 1, 0 }, 9), frequencies } },
         fn = function(t, a, b, p, f)
            a, b = a * 1, b * 1
            local opts, list = { reuse = reuse }, {}
            for _, xs in ipairs { { a:narrow(3, 1, 3), a:narrow(3, 4, 1) }, { b } } do
               for _, y in ipairs(t.rope_joined(xs, p, f, opts)) do list[#list + 1] = y end
            end
            return unpack(list)
         end }
   add { op = 'rope_joined',
         shapes = { { { 2, 3, 5 }, { 24, 5 }, ids({ 2, 3 }, 9), frequencies } },
         fn = function(t, x, w, p, f)
            local q, k, v = unpack(t.linear_joined(x, slices(w, { 12, 6, 6 })))
            q, k, v = q:reshape(2, 3, 2, 6), k:reshape(2, 3, 1, 6), v:reshape(2, 3, 1, 6)
            q, k = unpack(t.rope_joined({ q, k }, p, f, { reuse = reuse, interleaved = true }))
            return t.attention(q, k, v, { causal = true }), q * 2
         end }
end
add { op = 'softmax', shapes = { { { 2, 5 } }, { { 3, 1 } }, { { 2, 3, 33 } } },
      fn = function(_, x) return x:softmax(-1), x:softmax(1) end }
add { op = 'log_softmax', shapes = { { { 2, 5 } }, { { 3, 1 } }, { { 2, 3, 33 } } },
      fn = function(_, x) return x:log_softmax(-1), x:log_softmax(1) end }
add { op = 'swiglu',
      shapes = { { { 2, 5 }, { 2, 5 } }, { { 0, 3 }, { 0, 3 } }, { { 65 }, { 65 } } },
      fn = function(t, g, u) return t.swiglu(g, u) end }
add { op = 'swiglu_clamped',
      shapes = { { { 2, 5 }, { 2, 5 } }, { { 0, 3 }, { 0, 3 } }, { { 65 }, { 65 } } },
      fn = function(t, g, u) return t.swiglu_clamped(g, u, 0.4, 1.3), t.swiglu_clamped(g, u) end }
add { op = 'dropout', shapes = { { { 3, 5 } }, { { 0 } } },
      fn = function(t, x)
         local c = x.device -- the same counter on every device: the generator is set before
         t.set_rng_state { seed = 7, stream = 3, offset = #c * 0 }
         return t.dropout(x, 0.3)
      end }

-- Attention, a row for each kind of mask.
local small = { { { 2, 5, 4, 6 }, { 2, 5, 2, 6 }, { 2, 5, 2, 6 } },
                { { 1, 1, 2, 3 }, { 1, 1, 2, 3 }, { 1, 1, 2, 3 } },
                { { 1, 3, 3, 4 }, { 1, 7, 1, 4 }, { 1, 7, 1, 5 } },
                { { 1, 0, 2, 4 }, { 1, 0, 2, 4 }, { 1, 0, 2, 4 } } }
local packed = values({ 0, 0, 0, 1, 1, 0, 1, 1, 1, 2 }, { 1, 5, 2 }, 'i32')
for _, opts in ipairs {
   {}, { causal = true }, { causal = true, window = 2 }, { window = { 1, 1 } },
   { causal = true, scale = 0.7, softcap = 5 }, { causal = true, q_start = 2 } } do
   add { op = 'attention', shapes = small, fn = function(t, q, k, v)
      local o = { return_lse = true }
      for key, value in pairs(opts) do o[key] = value end
      return t.attention(q, k, v, o)
   end }
end
add { op = 'attention', shapes = { { { 2, 5, 4, 6 }, { 2, 5, 2, 6 }, { 2, 5, 2, 6 }, packed } },
      fn = function(t, q, k, v, index)
         return t.attention(q, k, v, { causal = true, q_index = index, k_index = index })
      end }
add { op = 'attention',
      shapes = { { { 2, 3, 2, 4 }, { 2, 5, 2, 4 }, { 2, 5, 2, 4 }, { 2, 1, 3, 5 } } },
      fn = function(t, q, k, v, bias) return t.attention(q, k, v, { bias = bias }) end }
add { op = 'attention',
      shapes = { { { 2, 5, 4, 6 }, { 2, 5, 2, 6 }, { 2, 5, 2, 6 }, { 4 }, packed },
                 { { 1, 0, 2, 4 }, { 1, 0, 2, 4 }, { 1, 0, 2, 4 }, { 2 } },
                 { { 1, 70, 1, 3 }, { 1, 2, 1, 3 }, { 1, 2, 1, 300 }, { 1 } } },
      fn = function(t, q, k, v, sinks, index)
         return t.attention(q, k, v, { causal = true, q_index = index, k_index = index,
            sinks = sinks, return_lse = true })
      end }

-- State-space layers. A row for each option; lengths that chunks do not divide, one token, no
-- token; sequences that begin at every kind of place: chunk edges, inside, single tokens.
local function seq(list) return values(list, { 1, #list }, 'i32') end
local conv_shapes = {}
for taps = 2, 4 do
   conv_shapes[#conv_shapes + 1] = { { 2, 5, 3 }, { 3, taps }, { 3 }, { 2, taps - 1, 3 },
                                     seq { 0, 0, 1, 2, 2 } }
   conv_shapes[#conv_shapes + 1] = { { 1, 1, 17 }, { 17, taps }, { 17 }, { 1, taps - 1, 17 },
                                     seq { 4 } }
   conv_shapes[#conv_shapes + 1] = { { 2, 0, 3 }, { 3, taps }, { 3 }, { 2, taps - 1, 3 }, seq {} }
end
for _, channels in ipairs { 33, 40 } do
   conv_shapes[#conv_shapes + 1] = { { 2, 70, channels }, { channels, 4 }, { channels },
                                     { 2, 3, channels }, ids({ 1, 70 }, 1) }
end
for _, silu in ipairs { false, true } do
   add { op = 'conv1d', shapes = conv_shapes, fn = function(t, x, w, b, state, q)
      local y, last = t.conv1d(x, w, b, { silu = silu, initial = state, sequence = q,
                                          return_last = true })
      return y, last, t.conv1d(x, w, nil, { silu = silu })
   end }
end
add { op = 'conv1d', shapes = { { { 2, 3 }, { 3, 4 }, { 2, 3, 3 } } },
      fn = function(t, x, w, state) return t.conv1d_step(x, w, nil, state, { silu = true }) end }

-- x, dt, A (made negative), B, C, D, dt_bias, state, sequence
local function scan_shapes(B, T, H, P, G, N, q, per_channel)
   return { { B, T, H, P }, { B, T, H }, { H }, { B, T, G, N }, { B, T, G, N },
            per_channel and { H, P } or { H }, { H }, { B, H, P, N }, q }
end
local nine = seq { 0, 0, 0, 1, 1, 2, 3, 3, 3 }
for _, chunk in ipairs { 1, 2, 3, 4, 9, 200 } do
   add { op = 'ssd_scan', shapes = {
         scan_shapes(2, 9, 4, 3, 2, 2, nine), scan_shapes(1, 9, 2, 2, 1, 5, nine, true),
         scan_shapes(2, 1, 2, 3, 1, 4, seq { 3 }), scan_shapes(1, 0, 2, 3, 2, 4, seq {}) },
      tol = 2, -- sums of products of three numbers, of which the last are exponentials
      fn = function(t, x, dt, A, B, C, D, bias, state, q)
         return t.ssd_scan(x, dt, A:abs():neg(), B, C, { D = D, dt_bias = bias, initial = state,
            sequence = q, softplus = true, dt_limit = { 0.2, 1.5 }, chunk = chunk,
            return_last = true })
      end }
end
add { op = 'ssd_scan', tol = 2, shapes = { scan_shapes(1, 7, 3, 4, 3, 3, ids({ 1, 7 }, 1)) },
      domain = { 0.1, 1 },
      fn = function(t, x, dt, A, B, C) return t.ssd_scan(x, dt, A:neg(), B, C, { chunk = 3 }) end }
add { op = 'ssd_scan', tol = 2, shapes = { { { 2, 6, 2, 3 }, { 2, 6, 2 }, { 2 }, { 2, 6, 1, 4 },
                                             { 2, 6, 1, 4 }, { 2, 6, 2, 3 } } },
      fn = function(t, x, dt, A, B, C, z)
         return t.ssd_scan(x, dt, A:abs():neg(), B, C, { z = z, softplus = true, chunk = 4 })
      end }
add { op = 'ssd_scan', tol = 4, -- sums over 150 tokens
      shapes = { scan_shapes(1, 150, 9, 17, 1, 33, ids({ 1, 150 }, 1)) },
      fn = function(t, x, dt, A, B, C, D, bias, state, q)
         return t.ssd_scan(x, dt, A:abs():neg(), B, C, { D = D, dt_bias = bias, initial = state,
            sequence = q, softplus = true, chunk = 64, return_last = true })
      end }
add { op = 'ssd_scan', tol = 2,
      shapes = { { { 2, 4, 3 }, { 2, 4 }, { 4 }, { 2, 2, 5 }, { 2, 2, 5 }, { 2, 4, 3, 5 },
                   { 2, 4, 3 } } },
      fn = function(t, x, dt, A, B, C, state, z)
         return t.ssd_step(x, dt, A:abs():neg(), B, C, state, { softplus = true, z = z })
      end }

-- q, k, v, g (made negative), beta (made 0..1), state, sequence
local function delta_shapes(B, T, Hk, Hv, Dk, Dv, q)
   return { { B, T, Hk, Dk }, { B, T, Hk, Dk }, { B, T, Hv, Dv }, { B, T, Hv }, { B, T, Hv },
            { B, Hv, Dk, Dv }, q }
end
for _, chunk in ipairs { 1, 2, 3, 4, 9, 300 } do
   add { op = 'gated_delta', shapes = {
         delta_shapes(2, 9, 2, 4, 3, 2, nine), delta_shapes(1, 9, 1, 2, 2, 5, nine),
         delta_shapes(2, 1, 1, 2, 3, 4, seq { 3 }), delta_shapes(1, 0, 2, 2, 3, 4, seq {}) },
      tol = 2, -- sums of products of three numbers, of which the last are exponentials
      fn = function(t, q, k, v, g, beta, state, numbers)
         return t.gated_delta(q, k, v, g:abs():neg(), beta:sigmoid(), { l2norm = true,
            initial = state, sequence = numbers, chunk = chunk, return_last = true })
      end }
end
add { op = 'gated_delta', tol = 2, shapes = { delta_shapes(1, 7, 1, 3, 4, 3, ids({ 1, 7 }, 1)) },
      domain = { 0.1, 0.5 },
      fn = function(t, q, k, v, g, beta)
         return t.gated_delta(q, k, v, g:neg(), beta, { scale = 0.5, chunk = 3 })
      end }
add { op = 'gated_delta', tol = 4, -- sums over 150 tokens
      shapes = { delta_shapes(1, 150, 1, 2, 17, 33, ids({ 1, 150 }, 1)) },
      fn = function(t, q, k, v, g, beta, state, numbers)
         return t.gated_delta(q, k, v, g:abs():neg() * 0.1, beta:sigmoid(), { l2norm = true,
            initial = state, sequence = numbers, chunk = 100, return_last = true })
      end }
add { op = 'gated_delta', tol = 2,
      shapes = { { { 2, 2, 5 }, { 2, 2, 5 }, { 2, 4, 3 }, { 2, 4 }, { 2, 4 }, { 2, 4, 5, 3 } } },
      fn = function(t, q, k, v, g, beta, state)
         return t.gated_delta_step(q, k, v, g:abs():neg(), beta:sigmoid(), state,
            { l2norm = true, eps = 0.1 })
      end }
for _, opts in ipairs { {}, { group = 4 }, { gate_last = true },
                       { group = 2, gate_last = true } } do
   add { op = 'gated_rms_norm', shapes = { { { 2, 3, 8 }, { 2, 3, 8 }, { 8 } },
                                           { { 1, 64 }, { 1, 64 }, { 64 } },
                                           { { 0, 8 }, { 0, 8 }, { 8 } } },
         fn = function(t, x, z, w) return t.gated_rms_norm(x, z, w, opts) end }
end
add { op = 'gated_rms_norm', shapes = { { { 3, 7 }, { 3, 7 } } },
      fn = function(t, x, z) return t.gated_rms_norm(x, z, nil, { eps = 1e-3 }) end }

-- Losses.
local targets = values({ 1, -100, 4, 0 }, { 4 }, 'i64')
for _, opts in ipairs { {}, { label_smoothing = 0.1 }, { z_loss = 0.01 } } do
   add { op = 'cross_entropy', shapes = { { { 4, 5 }, targets }, { { 4, 67 }, targets } },
         fn = function(t, x, y)
            return t.cross_entropy(x, y, { reduction = 'none', z_loss = opts.z_loss,
                                           label_smoothing = opts.label_smoothing })
         end }
   add { op = 'linear_cross_entropy',
         shapes = { { { 4, 3 }, { 5, 3 }, { 5 }, targets },
                    { { 4, 17 }, { 33, 17 }, { 33 }, targets } },
         fn = function(t, x, w, b, y) return t.linear_cross_entropy(x, w, b, y, opts) end }
end
add { op = 'linear_cross_entropy', shapes = { { { 0, 3 }, { 5, 3 }, ids({ 0 }, 5) } },
      fn = function(t, x, w, y) return t.linear_cross_entropy(x, w, nil, y) end }

return case
