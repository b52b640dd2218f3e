-- FP8 products against PyTorch (spec/golden/fp8.py made the numbers): how operands are rounded, the
-- result and the gradients; numbers that FP8 does not hold, and what is refused.
--
-- Rounding is seen through a product with one number: that of w is its own scale's top, 448, so
-- y = x 448 exactly, or, in backward, dx = dy 448. Blocks of 128 are compared with an oracle of
-- plain loops too, which rounds operands and multiplies in f64.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local launched = require 'spec.support.launched'
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

-- Options of a golden case.
local function options_of(case)
   local scaling = case.name:match '^block_f32' or case.name:match '^block'
   return scaling and { scaling = scaling }
end

-- A GPU other than Hopper's refuses blocks, by one sentence.
local function refuses_blocks(device)
   if device ~= 'cuda' then return false end
   local x = ones(1, device)
   local ok, e = pcall(tide.linear_fp8, x, x, nil, { scaling = 'block' })
   if ok then return false end
   assert.equal('E_UNSUPPORTED', e.code)
   assert.matches("needs a GPU of compute capability 9.0, this one has", e.message, 1, true)
   return true
end

-- ---- the oracle: tables of rows --------------------------------------------------------------

local function e4m3_number(v)
   local a = math.min(math.abs(v), 448)
   if a == 0 then return 0 end
   local _, e = math.frexp(a)
   local unit = 2^(math.max(e - 1, -6) - 3)
   local n = a / unit
   local low = math.floor(n)
   local up = n - low > 0.5 or (n - low == 0.5 and low % 2 == 1)
   return (v < 0 and -1 or 1) * (low + (up and 1 or 0)) * unit
end

-- rows in e4m3, by blocks of height x 128 with scales that are powers of two.
local function rounded(rows, height)
   local out = {}
   for r = 1, #rows do out[r] = {} end
   for r0 = 1, #rows, height do
      for c0 = 1, #rows[1], 128 do
         local r1, c1 = math.min(r0 + height, #rows + 1) - 1, math.min(c0 + 127, #rows[1])
         local most = 0
         for r = r0, r1 do
            for c = c0, c1 do most = math.max(most, math.abs(rows[r][c])) end
         end
         local _, e = math.frexp(448 / most)
         local scale = most > 0 and 2^(e - 1) or 1
         for r = r0, r1 do
            for c = c0, c1 do out[r][c] = e4m3_number(rows[r][c] * scale) / scale end
         end
      end
   end
   return tide.tensor(out, { dtype = 'f64' })
end

-- x [m, k], w [n, k], dy [m, n] -> y without bias, dx, dw.
local function oracle(x, w, dy)
   local function by_rows(t) return rounded(t:tolist(), 1) end
   local qw = rounded(w:tolist(), 128)
   return by_rows(x):matmul(qw:t()), by_rows(dy):matmul(qw),
      by_rows(dy:t()):matmul(by_rows(x:t()):t())
end

local function random(seed, shape, dtype)
   return tide.empty(shape):normal_(0, 1, { seed = seed }):to(dtype or 'f32')
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
               if options_of(case) and refuses_blocks(device) then return end
               local y = tide.linear_fp8(x, w, bias, options_of(case))
               y:backward(get(case, 'dy', device))
               check(y:detach(), get(case, 'y', device), 1e-6, 'y')
               check(x.grad, get(case, 'dx', device), 1e-6, 'dx')
               check(w.grad, get(case, 'dw', device), 1e-6, 'dw')
               check(bias.grad, get(case, 'dbias', device), 1e-6, 'dbias')
            end)
         end
      end

      -- More than a block and a part of one, sizes on and off steps of 16 and 128; views.
      for i, size in ipairs { { 150, 200, 140 }, { 128, 256, 128 }, { 17, 129, 1 }, { 1, 16, 160 } }
      do
         for _, dtype in ipairs(i == 1 and { 'bf16', 'f16' } or { 'f32' }) do
            it(('has blocks as plain loops have them: %s in %s'):format(table.concat(size, ' '),
               dtype), function()
               if refuses_blocks(device) then return end
               local m, k, n = unpack(size)
               local x, w = random(1, { m, k }, dtype), random(2, { n, k }, dtype)
               local dy = random(3, { m, n }, dtype)
               x = x * random(4, { m, k }, dtype):exp()
               local y, dx, dw = oracle(x:to 'f32', w:to 'f32', dy:to 'f32')
               for _, turned in ipairs { false, true } do
                  local a, b = x:to(device), w:to(device)
                  if turned then a, b = a:t():contiguous():t(), b:t():contiguous():t() end
                  a, b = a:detach():requires_grad_(), b:detach():requires_grad_()
                  local got = tide.linear_fp8(a, b, nil, { scaling = 'block' })
                  got:backward(dy:to(device))
                  local room = ({ f32 = 2e-6, bf16 = 5e-3, f16 = 6e-4 })[dtype]
                  check(got:detach():to 'f32', y:to 'f32', room, 'y')
                  check(a.grad:to 'f32', dx:to 'f32', room, 'dx')
                  check(b.grad:to 'f32', dw:to 'f32', room, 'dw')
               end
            end)
         end
      end

      it('has a scale of its own for each block', function()
         if refuses_blocks(device) then return end
         local big, small = ones(128, device):t() * 1e6, ones(128, device):t() * 1e-6
         local x = tide.cat({ big, small }, 2)
         local w = tide.cat({ small * 0, small }, 2):expand(3, 256)
         local y = tide.linear_fp8(x, w, nil, { scaling = 'block' })
         check(y, ones(3, device):t() * 128e-12, 0.1, 'the small block')
         assert.equal(0, tide.linear_fp8(x, w):amax():item())
      end)

      it('takes sizes of 0, with blocks too', function()
         if refuses_blocks(device) then return end
         for _, scaling in ipairs { 'tensor', 'block', 'block_f32' } do
            for _, size in ipairs { { 0, 3, 2 }, { 2, 0, 3 }, { 2, 3, 0 }, { 0, 0, 0 } } do
               local m, k, n = unpack(size)
               local function leaf(...)
                  return tide.ones({ ... }, { device = device }):requires_grad_()
               end
               local x, w, b = leaf(m, k), leaf(n, k), leaf(n)
               local y = tide.linear_fp8(x, w, b, { scaling = scaling })
               y:backward(tide.ones({ m, n }, { device = device }))
               assert.same({ m, n }, y.shape)
               assert.equal(m * n, y:sum():item())          -- without k: the bias
               assert.same({ m, k }, x.grad.shape)
               assert.equal(0, m == 0 and w.grad:sum():item() or 0)
               assert.same({ n, k }, w.grad.shape)
            end
         end
      end)

      it('keeps codes: x and w may change before backward', function()
         for _, scaling in ipairs { 'tensor', refuses_blocks(device) and 'tensor' or 'block' } do
            local function grads(change, keep)
               local x, w = random(1, { 20, 40 }):to(device), random(2, { 24, 40 }):to(device)
               local a, b = x:detach():requires_grad_(), w:detach():requires_grad_()
               local y = tide.linear_fp8(a, b, nil, { scaling = scaling, keep = keep })
               if change then change(x, w) end
               y:backward(random(3, { 20, 24 }):to(device))
               return { a.grad:tolist(), b.grad:tolist() }
            end
            local want = grads()
            assert.same(want, grads(function(x, w) x:zero_() w:zero_() end))
            assert.same(want, grads(nil, 'weight'))
            assert.same(want, grads(function(x) x:zero_() end, 'weight'))
            refused('E_STATE', {}, grads, function(_, w) w:zero_() end, 'weight')
         end
      end)

      it('adds its gradients to what is there, in place', function()
         for _, scaling in ipairs { 'tensor', refuses_blocks(device) and 'tensor' or 'block' } do
            for _, size in ipairs { { 32, 48, 16 }, { 7, 20, 5 } } do
               local m, k, n = unpack(size)
               for _, dtype in ipairs { 'f32', 'bf16' } do
                  local function leaf()
                     local w = random(2, { n, k }, dtype):to(device):requires_grad_()
                     return w:set_grad_dtype 'f32'
                  end
                  local x, dy = random(1, { m, k }, dtype):to(device),
                     random(3, { m, n }, dtype):to(device)
                  local function add(w)
                     tide.linear_fp8(x, w, nil, { scaling = scaling }):backward(dy)
                  end
                  local first, twice = leaf(), leaf()
                  add(first)
                  add(twice)
                  local counts = launched(function() add(twice) end)
                  assert.equal(1, counts.fp8_add_product_)
                  assert.equal(0, counts.axpy_ + counts.cast + counts.add)
                  assert.equal('f32', twice.grad.dtype)
                  check(twice.grad, first.grad * 2, 1e-6, 'twice')
               end
            end
         end
      end)

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
      refused('E_ARG', { 'linear_fp8', 'scaling', "'tensor', 'block' or 'block_f32'", 'row' },
         tide.linear_fp8, f(2, 3), f(4, 3), nil, { scaling = 'row' })
      refused('E_ARG', { 'linear_fp8', 'keep', "'codes' or 'weight'" },
         tide.linear_fp8, f(2, 3), f(4, 3), nil, { keep = true })
      refused('E_ARG', { 'linear_fp8', 'scale' },
         tide.linear_fp8, f(2, 3), f(4, 3), nil, { scale = 'block' })
   end)

   it('keeps no gradient that nobody wants', function()
      local x, w = f(2, 3):requires_grad_(), f(4, 3)
      tide.linear_fp8(x, w):sum():backward()
      assert.is_nil(w.grad)
      assert.same({ 2, 3 }, x.grad.shape)
   end)
end)
