-- Denormals count as zeros in arithmetic and comparisons of the cpu device: by one rule, whatever
-- the number of elements, their layout, the dtype and the number of threads (kernels/README.md).

local tide = require 'tide'

local tiny = { f32 = 1e-40, bf16 = 1e-40, f64 = 1e-310 }
local dtypes = { 'f32', 'bf16', 'f64' }
local sizes = { 1, 2, 3, 7, 16, 17, 33, 64, 65, 1000, 70001 }

-- The same number n times, in several layouts.
local layouts = {
   { 'whole', function(v, n, dtype) return tide.full({ n }, v, { dtype = dtype }) end },
   { 'strided', function(v, n, dtype)
      return tide.full({ n, 2 }, v, { dtype = dtype }):slice(2, 1, 1):reshape(n)
   end },
   { 'broadcast', function(v, n, dtype)
      return tide.full({ 1 }, v, { dtype = dtype }):expand { n }
   end },
}

-- fn(tensor of v, tensor of zeros) -> tensor, of whose elements each must be `want`.
local function each(fn, v, want, what)
   for _, dtype in ipairs(dtypes) do
      for _, n in ipairs(sizes) do
         for _, layout in ipairs(layouts) do
            local x = layout[2](v * tiny[dtype], n, dtype)
            local y = fn(x, layout[2](0, n, dtype))
            if y.dtype ~= 'bool' then y = y:eq(want) elseif not want then y = y:logical_not() end
            if not y:all():item() then
               error(('%s of %g, %s, %d elements, %s: not %s everywhere'):format(what,
                  v * tiny[dtype], dtype, n, layout[1], tostring(want)), 2)
            end
         end
      end
   end
end

describe('a denormal', function()
   it('is made and kept by what moves bits', function()
      for _, dtype in ipairs(dtypes) do
         local x = tide.full({ 5 }, tiny[dtype], { dtype = dtype })
         assert.are_not.equal(tide.zeros({ 5 }, { dtype = dtype }):to_string_bytes(),
            x:to_string_bytes())
         assert.equal(x:to_string_bytes(), x:clone():to_string_bytes())
         assert.equal(x:to_string_bytes(), tide.cat({ x, x }, 1):slice(1, 3, 7):to_string_bytes())
      end
   end)

   for _, row in ipairs { { 'eq', true }, { 'ne', false }, { 'lt', false }, { 'le', true },
      { 'gt', false }, { 'ge', true }, { 'logical_and', false }, { 'logical_or', false } } do
      it('is zero to ' .. row[1], function()
         for _, v in ipairs { 1, -1 } do
            each(function(x, zero) return x[row[1]](x, zero) end, v, row[2], row[1])
            each(function(x, zero) return zero[row[1]](zero, x) end, v, row[2], row[1])
         end
      end)
   end

   it('is zero to unary ops and arithmetic', function()
      for _, v in ipairs { 1, -1 } do
         each(function(x) return x:logical_not() end, v, true, 'logical_not')
         for _, name in ipairs { 'sign', 'relu', 'sqrt', 'square', 'floor', 'tanh', 'abs' } do
            each(function(x) return x[name](x) end, v, 0, name)
         end
         each(function(x) return x * 2 ^ 100 end, v, 0, 'a product')
         each(function(x) return x:mul(x:eq(5):to(x.dtype) + 2 ^ 100) end, v, 0, 'mul')
         each(function(x, zero) return x:maximum(zero) + zero end, v, 0, 'maximum')
         each(function(x) return x:clamp(-1, 1) end, v, 0, 'clamp')
      end
      each(function(x) return x:log() end, 1, -math.huge, 'log')
      each(function(x) return x:reciprocal() end, 1, math.huge, 'reciprocal')
      each(function(x) return x:rsqrt() end, 1, math.huge, 'rsqrt')
      each(function(x) return x:pow(-0.3) end, 1, math.huge, 'pow')
      each(function(x, zero) return x:pow(zero - 0.3) end, 1, math.huge, 'pow of tensors')
   end)

   it('of f16 is a number, and signs of others are those of numbers', function()
      for _, n in ipairs(sizes) do
         local x = tide.full({ n }, 1e-7, { dtype = 'f16' })
         assert.equal(n, x:sign():to('f64'):sum():item())
         assert.equal(-n, x:neg():sign():to('f64'):sum():item())
         assert.is_true(x:gt(0):all():item())
      end
      local x = tide.tensor { 0, -0.0, 0 / 0, 1 / 0, -1 / 0, 2, -2 }:sign():tolist()
      assert.same({ 0, 0, 1, -1, 1, -1 }, { x[1], x[2], x[4], x[5], x[6], x[7] })
      assert.is_true(x[3] ~= x[3])
   end)

   it('is zero to reductions', function()
      for _, dtype in ipairs(dtypes) do
         for _, n in ipairs(sizes) do
            for _, layout in ipairs(layouts) do
               local x = layout[2](tiny[dtype], n, dtype)
               local what = ('%s, %d, %s'):format(dtype, n, layout[1])
               assert.is_false(x:any():item(), what)
               assert.is_false(x:all():item(), what)
               assert.equal(0, x:sum():item() * 2 ^ 100, what)
               assert.is_true(x:amax():eq(0):item(), what)
            end
         end
      end
   end)

   it('gives the same bits with any number of threads', function()
      local texts = {}
      for _, threads in ipairs { 1, 2, 3 } do
         local ctx = assert(tide.open { nthread = threads })
         local x = ctx:arange(90000, { dtype = 'f32' }):sub(45000):mul(2e-38 / 45000)
         local out = {}
         for i, name in ipairs { 'sign', 'logical_not', 'abs', 'relu', 'square', 'exp' } do
            out[i] = x[name](x):to_string_bytes()
         end
         texts[#texts + 1] = table.concat(out)
         ctx:close()
      end
      assert.is_true(texts[1] == texts[2] and texts[1] == texts[3])
   end)

   it('is taken for zero by check mode as well', function()
      local ctx = assert(tide.open { params = 'check=1' })
      finally(function() ctx:close() end)
      for _, dtype in ipairs(dtypes) do
         for _, n in ipairs { 1, 7, 1000 } do
            local x = ctx:full({ n }, tiny[dtype], { dtype = dtype })
            for _, name in ipairs { 'sign', 'neg', 'abs', 'logical_not', 'reciprocal', 'relu',
               'clone', 'any', 'amax', 'sum' } do
               x[name](x)
            end
            for _, name in ipairs { 'eq', 'lt', 'add', 'maximum', 'mul' } do
               x[name](x, ctx:zeros({ n }, { dtype = dtype }))
            end
            tide.cat({ x, x }, 1)
         end
      end
   end)
end)
