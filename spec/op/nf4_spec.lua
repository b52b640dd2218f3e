-- quantize_nf4, dequantize_nf4 and linear_nf4: weights of 4 bits against bitsandbytes
-- (spec/golden/nf4.py), against linear of the same numbers, cpu against ref, and what is refused.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local golden = dofile 'spec/golden/nf4.lua'
local refused = require 'spec.support.refused'
local wide = require 'spec.support.wide'

-- Emulated threads are slow: there the largest shapes and some row counts are left out.
local few = fast == 'cuda' and not wide

local devices = { 'ref', fast }

-- The numbers of the golden script.
local function numbers(device)
   local state, list = 7, {}
   for i = 1, golden.count do
      state = (state * 16807 + 11) % 2147483647
      list[i] = (math.floor(state / 2048) / 2 ^ 19 - 1) * ((i - 1) % 97 == 0 and 4 or 1) / 8
   end
   return tide.tensor(list, { dtype = 'f32', device = device })
end

local function random(shape, device, seed, std)
   return tide.empty(shape, { device = device }):normal_(0, std or 1, { seed = seed })
end

-- Raises unless got is want within `off` of the largest of want.
local function near(want, got, off, what)
   assert.same(want.shape, got.shape)
   if want:numel() == 0 then return end
   local a, b = want:to 'cpu':to 'f32', got:to 'cpu':to 'f32'
   local most, gap = a:abs():amax():item(), (a - b):abs():amax():item()
   assert.is_true(gap <= off * most, ('%s: off by %.3g of %.3g'):format(what or '', gap, most))
end

-- n x k: within a block, whole blocks, blocks across rows, several panels forward and backward.
local sizes = { { 3, 5 }, { 1, 1 }, { 64, 64 }, { 33, 130 }, { 7, 1001 },
   few and { 13, 9000 } or { 130, 9000 }, few and { 901, 70 } or { 9001, 70 } }

describe('NF4', function()
   for _, device in ipairs(devices) do
      it('has the codes, scales and numbers of bitsandbytes on ' .. device, function()
         local x = numbers(device)
         local codes, scale = tide.quantize_nf4(x)
         local n = math.ceil(golden.count / 2)
         local all = codes:tolist()
         local pairs_, blocks = {}, {}
         for i = 1, n, golden.step do pairs_[#pairs_ + 1] = all[i] end
         for i = n + 1, #all do blocks[#blocks + 1] = all[i] end
         assert.same(golden.pairs, pairs_)
         assert.same(golden.blocks, blocks)
         near(tide.tensor(golden.scale), scale, 2e-7)
         local y = tide.dequantize_nf4(codes, scale, golden.count)
         near(tide.tensor(golden.numbers), y:slice(1, 1, golden.count, golden.every), 1e-6)
      end)

      it('has at most half the widest gap of codes as error on ' .. device, function()
         local x = random({ 64 * 300 }, device, 3, 0.02)
         local codes, scale = tide.quantize_nf4(x)
         local off = (tide.dequantize_nf4(codes, scale, x:numel()) - x):reshape(300, 64):abs()
         local most = x:reshape(300, 64):abs():amax(2)
         -- a gap of codes is at most 0.31; the magnitude is off by a step of 8 bits
         assert.is_true(((off:amax(2) / most):amax():item()) < 0.155 + 0.02)
      end)

      it('is 0 of zeros, and NaN of what is not finite, on ' .. device, function()
         local codes, scale = tide.quantize_nf4(tide.zeros({ 100 }, { device = device }))
         assert.equal(0, tide.dequantize_nf4(codes, scale, 100):abs():amax():item())
         for _, v in ipairs { 0 / 0, math.huge, -math.huge } do
            local x = tide.ones({ 100 }, { device = device })
            x:select(1, 50):fill_(v)
            codes, scale = tide.quantize_nf4(x)
            local y = tide.dequantize_nf4(codes, scale, 100):tolist()
            assert.is_true(y[1] ~= y[1] and y[100] ~= y[100])
         end
      end)

      it('is of views, 16 bits and no elements on ' .. device, function()
         local x = random({ 30, 40 }, device, 1)
         for _, t in ipairs { x:t(), x:to 'bf16', x:to 'f16', x:slice(2, 1, 40, 3) } do
            local a, b = tide.quantize_nf4(t)
            local c, d = tide.quantize_nf4(t:to 'f32':contiguous())
            assert.is_true(a:equal(c) and b:equal(d))
         end
         local codes, scale = tide.quantize_nf4(tide.zeros({ 0, 3 }, { device = device }))
         assert.same({ 0 }, codes.shape)
         assert.same({ 0 }, tide.dequantize_nf4(codes, scale, 0).shape)
      end)

      it('multiplies as linear of the same numbers on ' .. device, function()
         for i, size in ipairs(sizes) do
            local n, k = size[1], size[2]
            if device ~= 'ref' or n * k < 5000 then
               local codes, scale = tide.quantize_nf4(random({ n, k }, device, i, 0.05))
               local w = tide.dequantize_nf4(codes, scale, n * k):reshape(n, k)
               for dtype, off in pairs { f32 = 2e-6, bf16 = 1e-2, f16 = 2e-3 } do
                  local x = random({ 2, 3, k }, device, i + 50):to(dtype):requires_grad_()
                  local b = random({ n }, device, i + 60):to(dtype):requires_grad_()
                  local dy = random({ 2, 3, n }, device, i + 70):to(dtype)
                  local y = tide.linear_nf4(x, codes, scale, n, b)
                  y:backward(dy)
                  local dx, db = x.grad:clone(), b.grad:clone()
                  x:zero_grad()
                  b:zero_grad()
                  local want = tide.linear(x, w:to(dtype), b)
                  want:backward(dy)
                  local what = ('%s %d x %d'):format(dtype, n, k)
                  near(want:detach(), y:detach(), off, what)
                  near(x.grad, dx, off, what .. ' dx')
                  near(b.grad, db, off, what .. ' db')
               end
            end
         end
      end)
   end

   it('is the same on ' .. fast .. ' as on ref', function()
      for i, size in ipairs(sizes) do
         local n, k = size[1], size[2]
         if n * k < 10000 then
            local w, x = random({ n, k }, 'ref', i), random({ 4, k }, 'ref', i + 9)
            local codes, scale = tide.quantize_nf4(w)
            local c, s = tide.quantize_nf4(w:to(fast))
            assert.is_true(codes:equal(c:to 'ref') and scale:equal(s:to 'ref'))
            assert.is_true(tide.dequantize_nf4(codes, scale, n * k)
               :equal(tide.dequantize_nf4(c, s, n * k):to 'ref'))
            for _, dtype in ipairs { 'f32', 'bf16' } do
               local y = tide.linear_nf4(x:to(dtype), codes, scale, n)
               near(y, tide.linear_nf4(x:to(fast):to(dtype), c, s, n),
                  dtype == 'f32' and 1e-6 or 1e-2)
            end
         end
      end
   end)

   -- Whole blocks in a row take a path of their own up to 16 rows of x, four at a time.
   it('multiplies few rows of x, with whole blocks in a row of the weight', function()
      for i, size in ipairs { { 1, 64 }, { 17, 128 }, { 50, 192 }, { 64, 1024 }, { 700, 64 } } do
         local n, k = size[1], size[2]
         local w, b = random({ n, k }, 'ref', i, 0.05), random({ n }, 'ref', i + 30)
         local codes, scale = tide.quantize_nf4(w)
         local c, s = codes:to(fast), scale:to(fast)
         for _, m in ipairs(few and { 1, 5, 16, 17 } or { 1, 2, 3, 4, 5, 7, 15, 16, 17 }) do
            local x = random({ m, k }, 'ref', i * 100 + m)
            for dtype, off in pairs { f32 = 1e-6, bf16 = 1e-2, f16 = 2e-3 } do
               local what = ('%s %d rows, %d x %d'):format(dtype, m, n, k)
               local xs, bs = x:to(dtype), b:to(dtype)
               local want = tide.linear_nf4(xs, codes, scale, n, bs)
               near(want, tide.linear_nf4(xs:to(fast), c, s, n, bs:to(fast)), off, what)
               near(tide.linear_nf4(xs, codes, scale, n), tide.linear_nf4(xs:to(fast), c, s, n),
                  off, what .. ', no bias')
               -- a row is the same alone: the sums do not depend on the rows beside it
               local whole = tide.linear_nf4(xs:to(fast), c, s, n)
               if m <= 16 then
                  local last = tide.linear_nf4(xs:to(fast):slice(1, m, m), c, s, n)
                  assert.is_true(last:equal(whole:slice(1, m, m)), what)
               end
            end
         end
      end
   end)

   it('has the same bits on any number of threads, and NaN of a weight that is not finite',
      function()
         local codes, scale = tide.quantize_nf4(random({ 3001, 256 }, fast, 1, 0.05))
         local x = random({ 3, 256 }, fast, 2)
         local before = tide.default():nthread()
         local one
         for n = 1, 4 do
            tide.set_nthread(n)
            local y = tide.linear_nf4(x, codes, scale, 3001)
            one = one or y
            assert.is_true(y:equal(one))
         end
         tide.set_nthread(before)
         local w = random({ 5, 64 }, fast, 3)     -- one offset for all blocks: all are lost
         w:select(1, 2):select(1, 7):fill_(math.huge)
         codes, scale = tide.quantize_nf4(w)
         for _, dtype in ipairs { 'f32', 'bf16', 'f16' } do
            local y = tide.linear_nf4(random({ 1, 64 }, fast, 4):to(dtype), codes, scale, 5)
            for _, v in ipairs(y:to('f32'):tolist()[1]) do assert.is_true(v ~= v) end
         end
      end)

   it('gives the slope as gradient', function()
      local codes, scale = tide.quantize_nf4(random({ 5, 9 }, fast, 1))
      local x, dy = random({ 3, 9 }, fast, 2):requires_grad_(), random({ 3, 5 }, fast, 3)
      tide.linear_nf4(x, codes, scale, 5):backward(dy)
      local h = 2 ^ -6                            -- the product is linear: no error of the step
      for i = 1, 27, 4 do
         local d = tide.zeros({ 27 }, { device = fast })
         d:select(1, i):fill_(h)
         local up = tide.linear_nf4(x:detach() + d:reshape(3, 9), codes, scale, 5)
         local down = tide.linear_nf4(x:detach() - d:reshape(3, 9), codes, scale, 5)
         local slope = ((up - down) * dy):sum():item() / (2 * h)
         assert.is_true(math.abs(slope - x.grad:reshape(27):tolist()[i]) < 1e-4)
      end
   end)

   it('takes no rows, no columns and no tokens', function()
      local on = { device = fast }
      for _, size in ipairs { { 0, 4 }, { 4, 0 } } do
         local n, k = size[1], size[2]
         local codes, scale = tide.quantize_nf4(tide.zeros({ n, k }, on))
         local x, bias = tide.ones({ 2, k }, on), tide.ones({ n }, on)
         assert.same(tide.ones { 2, n }:tolist(),
            tide.linear_nf4(x, codes, scale, n, bias):tolist())
      end
      local codes, scale = tide.quantize_nf4(tide.zeros({ 4, 4 }, on))
      assert.same({ 0, 4 }, tide.linear_nf4(tide.ones({ 0, 4 }, on), codes, scale, 4).shape)
   end)

   it('refuses what does not fit', function()
      local codes, scale = tide.quantize_nf4(tide.ones { 4, 4 })
      local x = tide.ones { 2, 4 }
      refused('E_DTYPE', { 'quantize_nf4', 'f64' }, tide.quantize_nf4, x:to 'f64')
      refused('E_DTYPE', { 'linear_nf4', 'f64' }, tide.linear_nf4, x:to 'f64', codes, scale, 4)
      refused('E_SHAPE', { 'linear_nf4', 'codes', 'u8 [13]' }, tide.linear_nf4, x, codes, scale, 6)
      refused('E_SHAPE', { 'linear_nf4', 'codes', 'f32' }, tide.linear_nf4, x, x, scale, 4)
      refused('E_SHAPE', { 'linear_nf4', 'scale', 'f32 [2]' }, tide.linear_nf4, x, codes, x, 4)
      refused('E_SHAPE', { 'linear_nf4', 'bias', '[4]' }, tide.linear_nf4, x, codes, scale, 4,
         tide.ones { 3 })
      refused('E_DTYPE', { 'linear_nf4', 'bias', 'bf16' }, tide.linear_nf4, x, codes, scale, 4,
         tide.ones({ 4 }, { dtype = 'bf16' }))
      refused('E_SHAPE', { 'dequantize_nf4', 'codes' }, tide.dequantize_nf4, codes, scale, 200)
      refused('E_ARG', { 'dequantize_nf4', 'n' }, tide.dequantize_nf4, codes, scale, -1)
   end)
end)
