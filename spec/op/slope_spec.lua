-- Gradients where the plain formula of a derivative fails: powers of zero and of negative numbers,
-- NaN among extremes, running sums of numbers that differ by orders of magnitude.

local tide = require 'tide'
local fast = require 'spec.support.fast'

local inf, nan = math.huge, 0 / 0
local devices = { fast, 'ref' }
local dtypes = { 'f32', 'f64', 'bf16' }

local function leaf(list, device, dtype)
   return tide.tensor(list, { dtype = dtype, device = device }):requires_grad_()
end

local function flat(x) return x:to('f64'):reshape(-1):tolist() end

local function same(want, got, what)
   for i, w in ipairs(want) do
      local g = got[i]
      local near = g == w or g ~= g and w ~= w or math.abs(g - w) <= 2e-2 * math.abs(w)
      if not near then error(('%s, number %d: %g, expected %g'):format(what, i, g, w), 2) end
   end
   assert.equal(#want, #got)
end

local function each(fn)
   for _, device in ipairs(devices) do
      for _, dtype in ipairs(dtypes) do fn(device, dtype, device .. ' ' .. dtype) end
   end
end

describe('the gradient of a power', function()
   --            x    y    dx    dy: by x and by y
   local rows = { { 0, 0, 0, 0 }, { 0, 2, 0, 0 }, { 0, 1, 1, 0 }, { 0, -1, -inf, nan },
      { 2, 0, 0, math.log(2) }, { -2, 0, 0, nan }, { -2, 2, -4, nan }, { -2, 3, 12, nan },
      { -2, 0.5, nan, nan }, { inf, 0, 0, inf }, { 2, 3, 12, 8 * math.log(2) } }

   it('is a number where it exists; by the exponent of a negative number it is NaN', function()
      each(function(device, dtype, what)
         local x, y, dx, dy = {}, {}, {}, {}
         for i, row in ipairs(rows) do x[i], y[i], dx[i], dy[i] = unpack(row) end
         local a, b = leaf(x, device, dtype), leaf(y, device, dtype)
         a:pow(b):sum():backward()
         same(dx, flat(a.grad), what .. ' by x')
         same(dy, flat(b.grad), what .. ' by y')
      end)
   end)
end)

describe('the gradient of a clamp', function()
   --             lo   hi    of 1, 2, 3, NaN, 0, 5, as torch 2.15 gives it for upstream 1 to 6
   local rows = { { 1, 3, { 0, 2, 0, 0, 0, 0 } }, { 1, nil, { 0, 2, 3, 0, 0, 6 } },
      { nil, 3, { 1, 2, 0, 0, 5, 0 } }, { 2, 2, { 0, 0, 0, 0, 0, 0 } },
      { -inf, inf, { 1, 2, 3, 0, 5, 6 } } }

   it('is 0 from the bounds on, and at NaN', function()
      each(function(device, dtype, what)
         local up = tide.tensor({ 1, 2, 3, 4, 5, 6 }, { dtype = dtype, device = device })
         for i = 1, 5 do
            local lo, hi, want = rows[i][1], rows[i][2], rows[i][3]
            local x = leaf({ 1, 2, 3, nan, 0, 5 }, device, dtype)
            x:clamp(lo, hi):backward(up)
            same(want, flat(x.grad), ('%s, row %d'):format(what, i))
         end
         -- bounds that the dtype rounds
         local x = leaf({ 0.1, 0.2, 0.3 }, device, dtype)
         x:clamp(0.1, 0.3):sum():backward()
         same({ 0, 1, 0 }, flat(x.grad), what)
      end)
   end)

   it('is that of the clamped gate and of up in SwiGLU', function()
      each(function(device, dtype, what)
         local gate, up = leaf({ 7, 8, 1, 1, 1 }, device, dtype),
            leaf({ 1, 1, 7, -7, 8 }, device, dtype)
         tide.swiglu_clamped(gate, up, 7, 1.702):sum():backward()
         local dgate, dup = flat(gate.grad), flat(up.grad)
         same({ 0, 0 }, { dgate[1], dgate[2] }, what)
         same({ 0, 0, 0 }, { dup[3], dup[4], dup[5] }, what)
         for i = 3, 4 do assert.is_true(dgate[i] ~= 0, what) end
      end)
   end)
end)

describe('the gradient of a quotient', function()
   it('stays within the range of f16 where its factors do', function()
      for _, device in ipairs(devices) do
         local a, b = leaf({ 60000, 1 }, device, 'f16'), leaf({ 50000, 2 }, device, 'f16')
         a:div(b):backward(tide.tensor({ 60000, 4 }, { dtype = 'f16', device = device }))
         same({ 1.2, 2 }, flat(a.grad), device)
         same({ -1.44, -1 }, flat(b.grad), device)
      end
   end)
end)

describe('the gradient of minimum and maximum', function()
   it('reaches both operands where one is NaN, and halves where they are equal', function()
      each(function(device, dtype, what)
         for op, first in pairs { minimum = { 3, 5, 7, 4.5, 0 }, maximum = { 3, 5, 7, 4.5, 11 } } do
            local a = leaf({ nan, 1, nan, 2, 6 }, device, dtype)
            local b = leaf({ 1, nan, nan, 2, -6 }, device, dtype)
            local dy = tide.tensor({ 3, 5, 7, 9, 11 }, { dtype = dtype, device = device })
            a[op](a, b):backward(dy)
            local second = { 3, 5, 7, 4.5, 11 - first[5] }
            same(first, flat(a.grad), op .. ' ' .. what)
            same(second, flat(b.grad), op .. ' ' .. what)
         end
      end)
   end)
end)

describe('the gradient of a running sum', function()
   it('is the sum of what follows, not a difference of larger sums', function()
      each(function(device, dtype, what)
         for _, dim in ipairs { 1, 2 } do
            local x = leaf({ { 0, 0, 0, 0 } }, device, dtype)
            local dy = tide.tensor({ { 1e9, 1, 2, 4 } }, { dtype = dtype, device = device })
            local y = (dim == 2 and x or x:t()):cumsum(dim)
            y:backward(dim == 2 and dy or dy:t())
            same({ 1e9, 7, 6, 4 }, flat(x.grad), ('%s, dim %d'):format(what, dim))
         end
      end)
   end)

   it('is infinite or NaN only before what is', function()
      each(function(device, dtype, what)
         local x = leaf({ 0, 0, 0, 0, 0 }, device, dtype)
         x:cumsum(1):backward(tide.tensor({ 1, nan, 1, inf, 2 }, { dtype = dtype,
            device = device }))
         same({ nan, nan, inf, inf, 2 }, flat(x.grad), what)
      end)
   end)

   it('is exact in rows of any length and step', function()
      for _, n in ipairs { 1, 2, 63, 64, 255, 257, 1030 } do
         local x = tide.zeros({ 2, n, 3 }, { device = fast }):requires_grad_()
         x:slice(3, 1, 3, 2):cumsum(2):sum():backward()
         for i = 1, 2 do
            local got = flat(x.grad:select(1, i):select(2, 2 * i - 1))
            for k = 1, n do assert.equal(n + 1 - k, got[k]) end
         end
         assert.equal(0, x.grad:select(3, 2):abs():sum():item())
      end
   end)
end)

describe('the length of a vector', function()
   it('has gradient 0 where it is 0', function()
      each(function(device, dtype, what)
         local x = leaf({ { 3, 4 }, { 0, 0 } }, device, dtype)
         local y = x:norm(2)
         same({ 5, 0 }, flat(y), what)
         y:sum():backward()
         same({ 0.6, 0.8, 0, 0 }, flat(x.grad), what)
      end)
   end)

   it('is found where squares leave the range of f16', function()
      for _, device in ipairs(devices) do
         local x = leaf({ 300, 400 }, device, 'f16')
         local y = x:norm()
         y:backward()
         assert.equal(500, y:item())
         assert.equal('f16', y.dtype)
         same({ 0.6, 0.8 }, flat(x.grad), device)
      end
   end)
end)

describe('a number beside a tensor', function()
   it('keeps the sign of zero in products and quotients, and in their gradients', function()
      each(function(device, dtype, what)
         local x = leaf({ -0.0, 0, 1 }, device, dtype)
         for sign, y in pairs { [1] = x * 3, [2] = 3 * x, [3] = x / 4, [4] = x / 3 } do
            local got = flat(y)
            assert.equal(-inf, 1 / got[1], sign .. ' ' .. what)
            assert.equal(inf, 1 / got[2], sign .. ' ' .. what)
         end
         (x * 3):backward(tide.tensor({ -0.0, 0, 1 }, { dtype = dtype, device = device }))
         assert.equal(-inf, 1 / flat(x.grad)[1], what)
      end)
   end)

   it('divides bf16 and f16 without being rounded to 16 bits', function()
      for _, device in ipairs(devices) do
         for _, dtype in ipairs { 'bf16', 'f16' } do
            local x = tide.arange(1, 255, 1, { dtype = 'f64', device = device })
            for _, n in ipairs { 3.3, 3, -0.7, 10, 255 } do
               local want = (x / n):to(dtype)
               assert.is_true((x:to(dtype) / n):equal(want), ('%s %s %g'):format(device, dtype, n))
            end
         end
      end
   end)
end)
