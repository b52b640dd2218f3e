-- Every op on its cases (spec/support/op_case.lua), in six modes: the fast kernel against the
-- reference in every dtype; other layouts of the same values; twice the same bits, whatever the
-- thread count; the gradient against central differences in f64 and against the reference in f32;
-- the null device infers the same shapes, and counts the same memory. TIDE_SPEC_DEVICE names
-- another fast device than cpu. Under TIDE_ISA (isa_spec.lua), what reaches no fast kernel is left
-- out: differences and the null device.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local wide = require 'spec.support.wide'
local cases = require 'spec.support.op_case'

local groups = { float = { 'f32', 'f64', 'bf16', 'f16' },
                 number = { 'f32', 'f64', 'bf16', 'f16', 'i64', 'i32', 'u8' },
                 all = { 'f32', 'f64', 'bf16', 'f16', 'i64', 'i32', 'u8', 'bool' } }
local is_float = { f32 = true, f64 = true, bf16 = true, f16 = true }
-- Rounding allowed relative to the largest element; f32 sums are taken in another order than ref's.
local tolerance = { f32 = 2e-5, f64 = 1e-12, bf16 = 1.6e-2, f16 = 2e-3,
                    i64 = 0, i32 = 0, u8 = 0, bool = 0 }

-- ---- inputs -------------------------------------------------------------------------------------

-- A small generator of its own: inputs do not depend on the ops under test.
local function generator(seed)
   local state = seed * 2654435761 % 2147483647 + 1
   return function()
      state = state * 16807 % 2147483647
      return state / 2147483647
   end
end

local function away_from(v, away)
   if away == 'integers' then return math.floor(v) + 0.25 + 0.5 * (v - math.floor(v)) end
   if away and math.abs(math.abs(v) - away) < 0.1 then return v + (v < 0 and -0.2 or 0.2) end
   return v
end

local function count(shape)
   local n = 1
   for _, s in ipairs(shape) do n = n * s end
   return n
end

-- Numbers and shape of one input description.
local function numbers(desc, row, random)
   local list = {}
   if desc.values then return desc.values, desc.shape, desc.dtype end
   local shape = desc.ids or desc.bools or desc
   local lo, hi = unpack(row.domain or { -2, 2 })
   for i = 1, count(shape) do
      local r = random()
      list[i] = desc.ids and math.floor(r * desc.below) or desc.bools and (r < 0.5 and 1 or 0)
         or away_from(lo + (hi - lo) * r, row.away)
   end
   return list, shape, desc.ids and 'i64' or desc.bools and 'bool' or nil
end

local function convert(v, dtype)
   if is_float[dtype] then return v end
   if dtype == 'bool' then return v > 0 and 1 or 0 end
   return dtype == 'u8' and math.floor(math.abs(v)) or math.floor(v)
end

-- Tensors of a case on a device, the float ones in `dtype`.
local function inputs(row, shapes, dtype, device, seed)
   local random, list, float = generator(seed), {}, {}
   for i, desc in ipairs(shapes) do
      local nums, shape, own = numbers(desc, row, random)
      local copy = {}
      for k, v in ipairs(nums) do copy[k] = convert(v, own or dtype) end
      local flat = #copy == 0 and tide.zeros({ 0 }, { dtype = 'f64', device = device })
         or tide.tensor(copy, { dtype = 'f64', device = device })
      list[i] = flat:reshape(shape):to(own or dtype)
      float[i] = not own
   end
   return list, float
end

-- ---- layouts of the same values ----------------------------------------------------------------

local layouts = {
   strided = function(x)
      local shape = x.shape
      if #shape == 0 then return x end
      shape[#shape] = shape[#shape] * 2
      local all = tide.zeros(shape, { dtype = x.dtype, device = x.device })
      local view = all:slice(#shape, 1, shape[#shape], 2)
      view:copy_(x)
      return view
   end,
   permuted = function(x)
      if x.ndim < 2 then return x end
      return x:transpose(1, -1):contiguous():transpose(1, -1)
   end,
   offset = function(x)
      if x.ndim == 0 then return x end
      local shape = x.shape
      shape[1] = shape[1] + 1
      local more = tide.zeros(shape, { dtype = x.dtype, device = x.device })
      local view = more:slice(1, 2, shape[1])
      view:copy_(x)
      return view
   end,
}

-- ---- comparison --------------------------------------------------------------------------------

local function flat(t)
   local list = t:to('f64'):reshape(-1):tolist()
   return type(list) == 'table' and list or { list }
end

local function same_number(a, b, allowed)
   return a == b or (a ~= a and b ~= b) or math.abs(a - b) <= allowed
end

local function assert_close(got, want, dtype, factor, what)
   assert.are.same(want.shape, got.shape, what)
   assert.equal(want.dtype, got.dtype, what)
   if want:numel() == 0 then return end
   local a, b, scale = flat(got), flat(want), 0
   for _, v in ipairs(b) do
      if v == v and math.abs(v) < math.huge then scale = math.max(scale, math.abs(v)) end
   end
   local allowed = tolerance[dtype] * (factor or 1) * math.max(scale, is_float[dtype] and 1e-3 or 0)
   for i = 1, #b do
      if not same_number(a[i], b[i], allowed) then
         error(("%s: element %d is %.9g, the reference says %.9g (allowed %.3g)")
            :format(what, i, a[i], b[i], allowed), 2)
      end
   end
end

local function run(row, list) return { row.fn(tide, unpack(list)) } end

-- The dtype whose rounding counts: an integer result is exact whatever went in.
local function judge(want, dtype) return is_float[want.dtype] and is_float[dtype] and dtype
   or is_float[want.dtype] and 'f32' or want.dtype end

-- Returns a function(shapes, dtype, seed): what the reference says of a row, computed once.
local function reference(row)
   local kept = {}
   return function(shapes, dtype, seed)
      local of = kept[shapes] or {}
      kept[shapes] = of
      of[dtype] = of[dtype] or run(row, (inputs(row, shapes, dtype, 'ref', seed)))
      return of[dtype]
   end
end

local function compare(row, shapes, dtype, layout, seed, wanted)
   local ref = wanted(shapes, dtype, seed)
   local list = inputs(row, shapes, dtype, fast, seed)
   if layout then for i, x in ipairs(list) do list[i] = layouts[layout](x) end end
   local got = run(row, list)
   assert.equal(#ref, #got)
   for i = 1, #ref do
      assert_close(got[i]:to 'ref', ref[i], judge(ref[i], dtype), row.tol,
                   ("%s %s result %d"):format(row.op, layout or 'contiguous', i))
   end
end

-- ---- gradients ---------------------------------------------------------------------------------

-- Weights of the results, made at the first use of each: a fixed weighting of all float results is
-- one number whose gradient tests every element.
local function weighting(seed)
   local random, kept = generator(seed + 99), {}
   return function(i, y)
      if not kept[i] then
         local w = {}
         for k = 1, y:numel() do w[k] = random() - 0.5 end
         kept[i] = tide.tensor(w, { dtype = 'f64', device = y.device }):reshape(y.shape)
            :to(y.dtype)
      end
      return kept[i]
   end
end

local function weigh(results, weights)
   local total
   for i, y in ipairs(results) do
      if is_float[y.dtype] and y:numel() > 0 then
         -- -inf (the lse of a query that sees nothing) has no gradient and would drown the sum
         local zero = tide.zeros({}, { dtype = y.dtype, device = y.device })
         local clean = tide.where(y:isfinite(), y, zero)
         local part = (clean * weights(i, y)):sum():to 'f64'
         total = total and total + part or part
      end
   end
   return total
end

local function wants(row, i, float) return float[i] and (not row.grad or row.grad[i] ~= false) end

local function analytic(row, shapes, dtype, device, seed)
   local list, float = inputs(row, shapes, dtype, device, seed)
   for i, x in ipairs(list) do if wants(row, i, float) then x:requires_grad_() end end
   local loss = weigh(run(row, list), weighting(seed))
   if not loss then return nil end
   if loss.requires_grad or not loss.is_leaf then loss:backward() end
   return list, float, loss
end

-- The slope of the weighted sum in element k of the i-th of `list`, whose numbers are `nums`.
local function numeric(row, list, nums, weights, i, k, eps)
   local x, v = list[i], nums[k]
   local function at(delta)
      nums[k] = v + delta
      list[i] = tide.tensor(nums, { dtype = 'f64', device = 'ref' }):reshape(x.shape)
      return tide.no_grad(function() return weigh(run(row, list), weights):item() end)
   end
   local slope = (at(eps) - at(-eps)) / (2 * eps)
   list[i], nums[k] = x, v
   return slope
end

local function check_numeric(row, shapes, seed)
   local list, float = analytic(row, shapes, 'f64', 'ref', seed)
   if not list then return end
   local plain, weights = inputs(row, shapes, 'f64', 'ref', seed), weighting(seed)
   for i, x in ipairs(list) do
      if wants(row, i, float) and x:numel() > 0 then
         assert.is_truthy(x.grad, ("%s: input %d has no gradient"):format(row.op, i))
         local g, nums, n = flat(x.grad), flat(x:detach()), x:numel()
         for k = 1, n, math.max(1, math.floor(n / 12)) do
            local want = numeric(row, plain, nums, weights, i, k, row.grad_tol and 1e-2 or 1e-5)
            local allowed = (row.grad_tol or 1e-7) * 10 * math.max(1, math.abs(want))
            if not same_number(g[k], want, allowed) then
               error(("%s: d input %d element %d is %.9g, differences say %.9g")
                  :format(row.op, i, k, g[k], want), 2)
            end
         end
      end
   end
end

local function check_fast_gradient(row, shapes, dtype, seed)
   local ref, float = analytic(row, shapes, dtype, 'ref', seed)
   local other = analytic(row, shapes, dtype, fast, seed)
   if not ref then return end
   for i, x in ipairs(ref) do
      if wants(row, i, float) and x.grad then
         assert_close(other[i].grad:to 'ref', x.grad, dtype, 4 * (row.tol or 1),
                      ("%s gradient %d"):format(row.op, i))
      end
   end
end

-- ---- the specs ---------------------------------------------------------------------------------

local function bits(row, shapes, dtype, threads, seed)
   tide.set_nthread(threads)
   local out = {}
   for i, y in ipairs(run(row, (inputs(row, shapes, dtype, fast, seed)))) do
      out[i] = y:contiguous():to_string_bytes()
   end
   return out
end

local function shape_text(shapes)
   local parts = {}
   for i, s in ipairs(shapes) do
      parts[i] = '[' .. table.concat(s.ids or s.bools or s.shape or s, ' ') .. ']'
   end
   return table.concat(parts, ' ')
end

local function each_shape(row, fn)
   for s, shapes in ipairs(row.shapes) do fn(shapes, s * 17 + #row.op) end
end

local function on_null(x) return tide.empty(x.shape, { dtype = x.dtype, device = 'null' }) end

-- Bytes that a case takes at its peak beyond its inputs, and how many stay until a collection; the
-- collector is stopped.
local function taken(row, list)
   tide.default():mark()
   run(row, list)
   local s = tide.stats()
   return { peak = s.since_peak, stay = s.since }
end

local has_level = os.getenv 'TIDE_ISA' ~= nil

-- Emulated threads are slow: kernels in f16 have the template of those in bf16.
local left_out = fast == 'cuda' and not wide and 'f16' or nil

for number, row in ipairs(cases) do
   local dtypes = type(row.dtypes) == 'table' and row.dtypes or groups[row.dtypes or 'float']

   describe(("op %s (case %d)"):format(row.op, number), function()
      local wanted = reference(row)

      for _, dtype in ipairs(dtypes) do
         if dtype ~= left_out then
            it("equals the reference in " .. dtype, function()
               each_shape(row, function(shapes, seed)
                  compare(row, shapes, dtype, nil, seed, wanted)
               end)
            end)
         end
      end

      for layout in pairs(layouts) do
         it("does not mind " .. layout .. " inputs", function()
            each_shape(row, function(shapes, seed)
               compare(row, shapes, 'f32', layout, seed, wanted)
               if dtypes[3] == 'bf16' then compare(row, shapes, 'bf16', layout, seed, wanted) end
            end)
         end)
      end

      it("gives the same bits twice and on any number of threads", function()
         finally(function() tide.set_nthread(2) end)
         each_shape(row, function(shapes, seed)
            local one = bits(row, shapes, 'f32', 1, seed)
            assert.are.same(one, bits(row, shapes, 'f32', 1, seed))
            if fast == 'cuda' then return end            -- has no threads of the host
            assert.are.same(one, bits(row, shapes, 'f32', 2, seed))
            assert.are.same(one, bits(row, shapes, 'f32', 3, seed))
         end)
      end)

      if not has_level then
         it("infers the same shapes on the null device", function()
            each_shape(row, function(shapes, seed)
               local want = wanted(shapes, 'f32', seed)
               local list = inputs(row, shapes, 'f32', 'ref', seed)
               for i, x in ipairs(list) do list[i] = on_null(x) end
               local got = run(row, list)
               for i = 1, #want do
                  assert.are.same(want[i].shape, got[i].shape, shape_text(shapes))
                  assert.equal(want[i].dtype, got[i].dtype)
                  assert.equal('null', got[i].device)
               end
            end)
         end)

         it("takes on the null device, in numbers, what it takes on the CPU", function()
            finally(function()
               tide.param('rehearse', -1)
               collectgarbage 'restart'
            end)
            tide.param('rehearse', 1)
            collectgarbage 'stop'
            each_shape(row, function(shapes, seed)
               for _, dtype in ipairs { dtypes[1], dtypes[3] } do
                  local list, hollow = inputs(row, shapes, dtype, 'cpu', seed), {}
                  for i, x in ipairs(list) do hollow[i] = on_null(x) end
                  assert.are.same(taken(row, list), taken(row, hollow), shape_text(shapes))
               end
            end)
         end)
      end

      if row.grad ~= false then
         if row.differences ~= false and not has_level then
            it("has the gradient that differences say", function()
               each_shape(row, function(shapes, seed)
                  if #shape_text(shapes) < 60 then check_numeric(row, shapes, seed) end
               end)
            end)
         end
         for _, dtype in ipairs { 'f32', 'bf16' } do
            it("has the reference's gradient in " .. dtype, function()
               each_shape(row, function(shapes, seed)
                  check_fast_gradient(row, shapes, dtype, seed)
               end)
            end)
         end
      end
   end)
end
