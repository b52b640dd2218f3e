-- tide.erf against values of the error function to 16 digits (Abramowitz and Stegun, table 7.1, and
-- its series), for every floating dtype, and its derivative 2 / sqrt(pi) exp(-x^2).

local tide = require 'tide'
local fast = require 'spec.support.fast'

local values = {
   { 0, 0 }, { 1e-5, 1.1283791670578999e-05 }, { 0.1, 0.1124629160182849 },
   { 0.25, 0.2763263901682369 }, { 0.5, 0.5204998778130465 }, { 1, 0.8427007929497149 },
   { 1.5, 0.9661051464753108 }, { 2, 0.9953222650189527 }, { 3, 0.9999779095030014 },
   { math.huge, 1 },
}
-- Relative to the value: a few units in the last place, and the rounding of the operand.
local bound = { f64 = 1e-15, f32 = 4e-7, f16 = 2e-3, bf16 = 1.6e-2 }
-- Of f16 1e-5 is a denormal: operand and result are rounded to steps of 2^-24.
local step = { f16 = 1.1 * 2 ^ -24 }

local function column(k, sign)
   local list = {}
   for i, v in ipairs(values) do list[i] = sign * v[k] end
   return list
end

local function close(want, got, tol, least, what)
   for i, w in ipairs(want) do
      local off = math.abs(got[i] - w)
      assert.is_true(off <= math.max(tol * math.abs(w), least),
         ('%s: %.17g, expected %.17g'):format(what, got[i], w))
   end
end

describe('erf', function()
   for dtype, tol in pairs(bound) do
      for _, device in ipairs { fast, 'ref' } do
         it('has its values in ' .. dtype .. ' on ' .. device, function()
            for _, sign in ipairs { 1, -1 } do
               local x = tide.tensor(column(1, sign), { dtype = dtype, device = device })
               local what = dtype .. ' on ' .. device
               close(column(2, sign), x:erf():to('f64'):tolist(), tol, step[dtype] or 0, what)
               assert.same(dtype, tide.erf(x).dtype)
            end
         end)
      end
   end

   it('keeps NaN, and a number beyond the table is 1', function()
      local y = tide.erf(tide.tensor { 0 / 0, 7, -7, -math.huge }):tolist()
      assert.is_true(y[1] ~= y[1])
      assert.same({ 1, -1, -1 }, { y[2], y[3], y[4] })
   end)

   it('of integers is f32', function()
      local y = tide.tensor({ 0, 1, -2 }, { dtype = 'i64' }):erf()
      assert.same('f32', y.dtype)
      assert.near(0.8427007929497149, y:tolist()[2], 1e-6)
   end)

   it('has the slope 2 / sqrt(pi) exp(-x^2)', function()
      for _, device in ipairs { fast, 'ref' } do
         local at = { -3, -1, -0.1, 0, 0.5, 2, 30 }
         local x = tide.tensor(at, { dtype = 'f64', device = device }):requires_grad_(true)
         x:erf():sum():backward()
         local got = x.grad:tolist()
         for i, v in ipairs(at) do
            assert.near(2 / math.sqrt(math.pi) * math.exp(-v * v), got[i], 1e-15)
         end
      end
   end)
end)
