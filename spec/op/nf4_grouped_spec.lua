-- grouped_linear_nf4: products of groups of rows with weights of 4 bits, against linear_nf4 of each
-- group, with whole weights and parts of them; and what is refused.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local refused = require 'spec.support.refused'

local function random(shape, device, seed, std)
   return tide.empty(shape, { device = device }):normal_(0, std or 1, { seed = seed })
end

-- Raises unless got is want within `off` of the largest of want.
local function near(want, got, off, what)
   assert.same(want.shape, got.shape)
   if want:numel() == 0 then return end
   local a, b = want:to 'f32', got:to 'f32'
   local most, gap = a:abs():amax():item(), (a - b):abs():amax():item()
   assert.is_true(gap <= off * math.max(most, 1e-6),
      ('%s: off by %.3g of %.3g'):format(what, gap, most))
end

-- Codes, scales and numbers of a weight [n, k] for each group.
local function weights(groups, n, k, device, seed)
   local codes, scales, all = {}, {}, {}
   for g = 1, groups do
      local c, s = tide.quantize_nf4(random({ n, k }, device, seed * 50 + g, 0.05 * g))
      codes[g], scales[g] = c:unsqueeze(1), s:unsqueeze(1)
      all[g] = tide.dequantize_nf4(c, s, n * k):reshape(1, n, k)
   end
   return tide.cat(codes, 1), tide.cat(scales, 1), tide.cat(all, 1)
end

-- Offsets of groups of no, one, few and many rows, with rows before and behind all of them; n x k.
local cases = {
   { { 0, 2, 2, 7 }, 7, 5, 3 }, { { 2, 3, 8 }, 9, 4, 6 }, { { 1, 1 }, 3, 2, 4 },
   { { 0, 1, 20, 37 }, 40, 64, 128 }, { { 0, 9, 9, 10 }, 10, 130, 70 }, { { 0, 0 }, 0, 3, 2 },
   { { 0, 3, 5 }, 5, 0, 3 }, { { 0, 3, 5 }, 5, 3, 0 },
}

local function run(fn, x, dy)
   x = x:detach():requires_grad_()
   local y = fn(x)
   y:backward(dy)
   return y:detach(), x.grad
end

describe('grouped_linear_nf4', function()
   for _, device in ipairs { 'ref', fast } do
      it('is grouped_linear of the same numbers on ' .. device, function()
         for i, case in ipairs(cases) do
            local list, rows, n, k = unpack(case)
            if device ~= 'ref' or n * k < 5000 then
               local codes, scale, W = weights(#list - 1, n, k, device, i)
               for _, of in ipairs { 'i64', 'i32' } do
                  local o = tide.tensor(list, { dtype = of, device = device })
                  for dtype, off in pairs { f32 = 3e-6, bf16 = 1.6e-2, f16 = 2e-3 } do
                     local x = random({ rows, k }, device, i):to(dtype)
                     local dy = random({ rows, n }, device, i + 9):to(dtype)
                     local what = ('case %d in %s'):format(i, dtype)
                     local y, dx = run(function(v)
                        return tide.grouped_linear_nf4(v, codes, scale, o, n, 0, k)
                     end, x, dy)
                     local wy, wdx = run(function(v)
                        return tide.grouped_linear(v, W:to(dtype), o)
                     end, x, dy)
                     near(wy, y, off, what)
                     near(wdx, dx, off, what .. ' dx')
                  end
               end
            end
         end
      end)

      it('multiplies by the same part of each weight on ' .. device, function()
         -- columns 2 to 5 of weights [6, 10] from row 1 on: the second block begins in row 6
         local n, k, r, c, rows, cols = 9, 10, 1, 2, 7, 4
         local codes, scale, W = weights(3, n, k, device, 4)
         local parts, at = {}, r * k + c
         for g = 1, 3 do
            local all, out = codes:select(1, g):tolist(), {}
            for row = 0, rows - 1 do
               for col = 0, cols - 1, 2 do out[#out + 1] = all[(at + row * k + col) / 2 + 1] end
            end
            for row = 0, rows - 1 do           -- at most two blocks a row of 4 columns
               for b = 0, 1 do
                  out[#out + 1] = all[45 + math.min(math.floor((at + row * k) / 64) + b, 1) + 1]
               end
            end
            parts[g] = tide.tensor({ out }, { dtype = 'u8', device = device })
         end
         local o = tide.tensor({ 0, 2, 2, 5 }, { dtype = 'i64', device = device })
         local x, dy = random({ 5, cols }, device, 1), random({ 5, rows }, device, 2)
         local y, dx = run(function(v)
            return tide.grouped_linear_nf4(v, tide.cat(parts, 1), scale, o, rows, at, k)
         end, x, dy)
         local wy, wdx = run(function(v)
            return tide.grouped_linear(v, W:narrow(2, r + 1, rows):narrow(3, c + 1, cols), o)
         end, x, dy)
         near(wy, y, 3e-6, 'y')
         near(wdx, dx, 3e-6, 'dx')
      end)
   end

   it('has the same bits on any number of threads', function()
      local codes, scale = weights(5, 301, 128, fast, 1)
      local o = tide.tensor({ 0, 1, 18, 18, 60, 64 }, { dtype = 'i64', device = fast })
      local x, before, one = random({ 64, 128 }, fast, 2), tide.default():nthread(), nil
      for n = 1, 3 do
         tide.set_nthread(n)
         local y = tide.grouped_linear_nf4(x, codes, scale, o, 301, 0, 128)
         one = one or y
         assert.is_true(y:equal(one))
      end
      tide.set_nthread(before)
   end)

   it('keeps no weight in full', function()
      if fast ~= 'cpu' then return end
      local groups, n, k = 24, 128, 256
      local codes, scale = weights(groups, n, k, fast, 3)
      local list = { 0 }
      for g = 1, groups do list[g + 1] = 20 * g end
      local o = tide.tensor(list, { dtype = 'i64' })
      local x, dy = random({ 20 * groups, k }, fast, 1), random({ 20 * groups, n }, fast, 2)
      local ctx = tide.default()
      collectgarbage()
      ctx:collect()
      ctx:reset_peak()
      local before = ctx:stats().live
      run(function(v) return tide.grouped_linear_nf4(v, codes, scale, o, n, 0, k) end, x, dy)
      local rows = x:numel() * 4 * 2 + dy:numel() * 4 * 2
      local taken = ctx:stats().peak - before
      assert.is_true(taken < rows + 4 * groups * n * k / 4, taken)
   end)

   it('takes shapes on the null device', function()
      local function on(shape, dtype)
         return tide.empty(shape, { dtype = dtype, device = 'null' })
      end
      local x = on({ 6, 8 }, 'bf16'):requires_grad_()
      local y = tide.grouped_linear_nf4(x, on({ 3, 17 }, 'u8'), on({ 3, 2 }, 'f32'),
         on({ 4 }, 'i64'), 4, 0, 8)
      assert.same({ 6, 4 }, y.shape)
      assert.equal('bf16', y.dtype)
   end)

   it('refuses what does not fit', function()
      local codes, scale = weights(2, 4, 4, fast, 1)
      local on = { device = fast }
      local x = tide.ones({ 3, 4 }, on)
      local o = tide.tensor({ 0, 1, 3 }, { dtype = 'i64', device = fast })
      local fn, name = tide.grouped_linear_nf4, 'grouped_linear_nf4'
      refused('E_SHAPE', { name, 'x', '[rows, K]' }, fn, tide.ones({ 4 }, on), codes, scale, o, 4,
         0, 4)
      refused('E_SHAPE', { name, 'codes', 'u8 [2, 13]' }, fn, x, codes, scale, o, 6, 0, 4)
      refused('E_SHAPE', { name, 'codes', 'u8 [2, 9]', '[9]' }, fn, x, codes:select(1, 1), scale, o,
         4, 0, 4)
      refused('E_SHAPE', { name, 'scale', '[2, 2 or more]' }, fn, x, codes, scale:narrow(1, 1, 1),
         o, 4, 0, 4)
      refused('E_SHAPE', { name, 'offsets' }, fn, x, codes, scale, o:unsqueeze(1), 4, 0, 4)
      refused('E_DTYPE', { name, 'offsets', 'f32' }, fn, x, codes, scale, o:to 'f32', 4, 0, 4)
      refused('E_DTYPE', { name, 'f64' }, fn, x:to 'f64', codes, scale, o, 4, 0, 4)
      refused('E_ARG', { name, 'first', '3' }, fn, x, codes, scale, o, 4, 3, 4)
      refused('E_ARG', { name, 'stride' }, fn, x, codes, scale, o, 4, 0, 2)
      if fast == 'cpu' then
         refused('E_ARG', { name, 'offsets', '4', 'never decrease' }, fn, x, codes, scale,
            tide.tensor({ 0, 1, 4 }, { dtype = 'i64' }), 4, 0, 4)
      end
   end)
end)
