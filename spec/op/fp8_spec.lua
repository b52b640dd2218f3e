-- FP8 products against PyTorch (spec/golden/fp8.py made the numbers): how operands are rounded, the
-- result and the gradients; numbers that FP8 does not hold, and what is refused.
--
-- Rounding is seen through a product with one number: that of w is its own scale's top, 448, so
-- y = x 448 exactly, or, in backward, dx = dy 448.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local refused = require 'spec.support.refused'

local folder = 'spec/golden/fp8/'
local golden = dofile(folder .. 'index.lua')

local function get(case, name, device)
   local entry, n = case[name], 1
   for _, s in ipairs(entry.shape) do n = n * s end
   local f = assert(io.open(folder .. case.file, 'rb'))
   f:seek('set', entry.at)
   local bytes = f:read(4 * n)
   f:close()
   return tide.from_string(bytes, entry.shape, { dtype = 'f32', device = device })
end

-- Relative to the largest element; the stored numbers are f64 results in f32.
local function check(got, want, allowed, what)
   assert.same(want.shape, got.shape, what)
   local a, b = got:reshape(-1):tolist(), want:reshape(-1):tolist()
   local room = allowed * want:abs():amax():item()
   for i = 1, #b do
      if math.abs(a[i] - b[i]) > room then
         error(('%s: element %d is %.9g, PyTorch says %.9g'):format(what, i, a[i], b[i]), 2)
      end
   end
end

local function ones(n, device) return tide.ones({ n, 1 }, { device = device }) end

-- e4m3 of x [n]; its largest must be 448. Exact.
local function e4m3(x)
   return tide.linear_fp8(x:unsqueeze(-1), ones(1, x.device) * 448):select(2, 1) / 448
end

-- e5m2 of dy [n]; its largest must be 57344. Exact.
local function e5m2(dy)
   local x = ones(dy:size(1), dy.device):requires_grad_()
   local y = tide.linear_fp8(x, ones(1, dy.device) * 448)
   y:backward(dy:unsqueeze(-1))
   return x.grad:select(2, 1) / 448
end

local by_name = {}
for _, case in ipairs(golden) do by_name[case.name] = case end

for _, device in ipairs { 'ref', fast } do
   describe('FP8 on ' .. device, function()
      it('rounds to e4m3 and e5m2 as PyTorch does', function()
         for name, fn in pairs { e4m3 = e4m3, e5m2 = e5m2 } do
            local case = by_name['round_' .. name]
            local x = get(case, 'x', device)
            assert.is_true(x:numel() > 900)
            assert.same(get(case, 'y', device):tolist(), fn(x):tolist(), name)
         end
      end)

      for _, case in ipairs(golden) do
         if case.w then
            it('has result and gradients of PyTorch: ' .. case.name, function()
               local x, w = get(case, 'x', device):requires_grad_(),
                  get(case, 'w', device):requires_grad_()
               local bias = get(case, 'bias', device):requires_grad_()
               local y = tide.linear_fp8(x, w, bias)
               y:backward(get(case, 'dy', device))
               check(y:detach(), get(case, 'y', device), 1e-6, 'y')
               check(x.grad, get(case, 'dx', device), 1e-6, 'dx')
               check(w.grad, get(case, 'dw', device), 1e-6, 'dw')
               check(bias.grad, get(case, 'dbias', device), 1e-6, 'dbias')
            end)
         end
      end

      it('keeps what is no number in the rows it is in', function()
         local x = tide.tensor({ { 448, 2 }, { 0 / 0, 1 }, { 4, 2 } }, { device = device })
         local w = tide.tensor({ { 448, 0 }, { 0, 448 } }, { device = device })
         local y = tide.linear_fp8(x, w):tolist()
         assert.same({ { 448 * 448, 2 * 448 }, { 4 * 448, 2 * 448 } }, { y[1], y[3] })
         assert.is_true(y[2][1] ~= y[2][1])
      end)

      it('shows an infinity as NaN forward, and as it is backward', function()
         local x = tide.tensor({ { 1 }, { math.huge }, { -math.huge }, { 400 }, { 5000 } },
            { device = device })
         local w = ones(1, device) * 448
         local y = tide.linear_fp8(x, w):reshape(-1):tolist()
         -- nothing is scaled: 400 lies between 384 and 416, 5000 beyond the largest
         assert.same({ 448, 384 * 448, 448 * 448 }, { y[1], y[4], y[5] })
         assert.is_true(y[2] ~= y[2] and y[3] ~= y[3])
         local leaf = ones(3, device):requires_grad_()
         local dy = tide.tensor({ { 1 }, { math.huge }, { -math.huge } }, { device = device })
         tide.linear_fp8(leaf, w):backward(dy)
         assert.same({ 448, math.huge, -math.huge }, leaf.grad:reshape(-1):tolist())
      end)

      it('takes numbers at both ends of f32', function()
         local w = tide.eye(2):to(device)
         for _, v in ipairs { 2^-125, 2^-120, 1, 2^120, 2^127 } do
            local x = tide.tensor({ { v, -v / 2 } }, { device = device })
            check(tide.linear_fp8(x, w), x, 1e-6, tostring(v))
            check(tide.linear_fp8(w, x), x:t(), 1e-6, tostring(v))
         end
         local nothing = tide.zeros({ 3, 2 }, { device = device })
         assert.same(nothing:tolist(), tide.linear_fp8(nothing, w):tolist())
      end)

      it('reads views as it reads copies', function()
         local base = get(by_name.long, 'x', device)
         local w = get(by_name.odd, 'x', device):t()          -- [19, 7]
         local views = { base:t():slice(2, 1, 14, 2), base:narrow(2, 3, 7),
            base:narrow(2, 1, 14):slice(2, 1, 14, 2), base:narrow(1, 2, 7):t() }
         for i, x in ipairs(views) do
            assert.equal(7, x:size(2), i)
            check(tide.linear_fp8(x, w), tide.linear_fp8(x:contiguous(), w:contiguous()), 1e-6,
               'view ' .. i)
         end
      end)
   end)
end

describe('linear_fp8', function()
   local function f(...) return tide.ones({ ... }) end

   it('refuses what does not fit', function()
      refused('E_SHAPE', { 'linear_fp8', '[2, 3]', '[4, 5]' }, function()
         return tide.linear_fp8(f(2, 3), f(4, 5))
      end)
      refused('E_SHAPE', { 'linear_fp8', 'bias' }, function()
         return tide.linear_fp8(f(2, 3), f(4, 3), f(3))
      end)
      refused('E_DTYPE', { 'linear_fp8', 'f64', 'use linear' }, function()
         return tide.linear_fp8(f(2, 3):to 'f64', f(4, 3):to 'f64')
      end)
      refused('E_DTYPE', { 'linear_fp8', 'bf16', 'f32' }, function()
         return tide.linear_fp8(f(2, 3), f(4, 3):to 'bf16')
      end)
      refused('E_DTYPE', { 'linear_fp8', 'i32' }, function()
         return tide.linear_fp8(f(2, 3):to 'i32', f(4, 3):to 'i32')
      end)
      refused('E_ARG', { 'linear_fp8', 'w' }, function() return tide.linear_fp8(f(2, 3), 3) end)
   end)

   it('keeps no gradient that nobody wants', function()
      local x, w = f(2, 3):requires_grad_(), f(4, 3)
      tide.linear_fp8(x, w):sum():backward()
      assert.is_nil(w.grad)
      assert.same({ 2, 3 }, x.grad.shape)
   end)
end)
