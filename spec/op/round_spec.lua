-- Floats are rounded once, to nearest with ties to even: every bf16 and f16 number, the halfway
-- points between neighbours and what lies just beside them, from f64, f32 and i64.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local update = require 'tide.ffi.update'

local inf = math.huge
local devices = { fast, 'ref' }

-- Each type's numbers from 0 to infinity by their bits. Infinity is at twice the largest power
-- of two, which gives the halfway point above the largest number.
local formats = {
   bf16 = { fraction = 7, bias = 127 },
   f16 = { fraction = 10, bias = 15 },
}

local function numbers(f)
   local list, unit = {}, 2 ^ (1 - f.bias - f.fraction)
   for e = 0, 2 * f.bias do
      for m = 0, 2 ^ f.fraction - 1 do
         list[#list + 1] = e == 0 and m * unit or (2 ^ f.fraction + m) * unit * 2 ^ (e - 1)
      end
   end
   list[#list + 1] = 2 ^ (f.bias + 1)
   return list
end

-- Neighbours a < b give the halfway point, which goes to the even one (by index), and points a
-- part `near` of their distance below and above it. Gives the cases as two lists; all >= least.
local function cases(list, near, least)
   local from, to = {}, {}
   local function case(v, want)
      from[#from + 1], to[#to + 1] = v, want == list[#list] and inf or want
      from[#from + 1], to[#to + 1] = -v, -to[#to]
   end
   for i = 1, #list - 1 do
      local a, b = list[i], list[i + 1]
      if a >= least then
         local half = a + (b - a) / 2
         case(a, a)
         case(half, i % 2 == 1 and a or b)
         case(half - (b - a) * near, a)
         case(half + (b - a) * near, b)
      end
   end
   return from, to
end

local function check(dtype, source, from, to)
   for _, device in ipairs(devices) do
      local x = tide.tensor(from, { dtype = source, device = device })
      local got, wrong = x:to(dtype):to('f64'):tolist(), {}
      for i = 1, #from do
         if got[i] ~= to[i] or (to[i] == 0 and 1 / got[i] ~= 1 / to[i]) then
            wrong[#wrong + 1] = ('%s: %.17g gives %.17g, expected %.17g'):format(device, from[i],
               got[i], to[i])
         end
      end
      assert.same({}, { wrong[1], wrong[2] })
   end
end

-- Kernels of cpu take f32 denormals, of which bf16 ones are some, for zeros.
local least = { bf16 = 2 ^ -126, f16 = 0 }

describe('a conversion', function()
   for dtype, f in pairs(formats) do
      it('to ' .. dtype .. ' rounds every f64 once', function()
         check(dtype, 'f64', cases(numbers(f), 2 ^ -40, least[dtype]))
      end)

      it('to ' .. dtype .. ' rounds every f32 once', function()
         check(dtype, 'f32', cases(numbers(f), 2 ^ -12, least[dtype]))
      end)

      it('to ' .. dtype .. ' rounds i64 once', function()
         local from, to = {}, {}
         local list = numbers(f)
         for i = 1, #list - 1 do
            local a, b = list[i], list[i + 1]
            -- Halfway points that are integers, and one above: below 2^53 Lua numbers are exact.
            if b - a >= 4 and b <= 2 ^ 52 then
               local half = a + (b - a) / 2
               local even, last = i % 2 == 1 and a or b, b == list[#list] and inf or b
               for _, c in ipairs { { half, even == b and last or a }, { half + 1, last },
                  { half - 1, a } } do
                  from[#from + 1], to[#to + 1] = c[1], c[2]
                  from[#from + 1], to[#to + 1] = -c[1], -c[2]
               end
            end
         end
         check(dtype, 'i64', from, to)
      end)
   end

   it('of integers beyond 2^53 is not rounded on the way', function()
      for _, device in ipairs(devices) do
         local function rounded(half, dtype)
            local x = tide.full({ 3 }, half / 256, { dtype = 'i64', device = device }) * 256
            x = x + tide.tensor({ -1, 0, 1 }, { dtype = 'i64', device = device })
            return x:to(dtype):to('f64'):tolist()
         end
         -- halfway between neighbours of the type; 1 more is beyond it, and f64 drops that 1
         local one = 2 ^ 60
         assert.same({ one, one, one * (1 + 2 ^ -7) }, rounded(one * (1 + 2 ^ -8), 'bf16'))
         assert.same({ one, one, one * (1 + 2 ^ -23) }, rounded(one * (1 + 2 ^ -24), 'f32'))
      end
   end)

   it('keeps NaN and infinities', function()
      for _, device in ipairs(devices) do
         for _, source in ipairs { 'f64', 'f32' } do
            for dtype in pairs(formats) do
               local x = tide.tensor({ 0 / 0, inf, -inf, 1e300 }, {
                  dtype = source, device = device })
               local got = x:to(dtype):to('f64'):tolist()
               assert.is_true(got[1] ~= got[1])
               assert.same({ inf, -inf, inf }, { got[2], got[3], got[4] })
            end
         end
      end
   end)
end)

-- What the headers of kernels promise: a result of 16 bits is the result in a wider type, on the
-- same numbers, rounded once. The reference computes in f64; kernels of cpu in f32.
describe('a 16-bit result is a wider one rounded once', function()
   local D, T = 24, 40
   local function random(device, dtype, wide, shape)
      local x = tide.empty(shape, { device = device }):normal_(0, 1):to(dtype)
      return x, x:to(wide)
   end
   local ids = tide.arange(T):to('i64'):mul(7)
   local places = ids - (ids / 3):floor():to('i64') * 3 -- 0, 1 and 2, many times each

   -- By the file that promises it; what the op is given: x, y [T, D], w [D], and index.
   local ops = {
      ['norm.c'] = function(x, _, w)
         local _, sum = tide.add_rms_norm(x, x, w)
         return tide.layer_norm(x, w, w), tide.rms_norm(x, w), sum
      end,
      ['gated_norm.c'] = function(x, y, w)
         return tide.gated_rms_norm(x, y, w), tide.gated_rms_norm(x, y, w, { gate_last = true })
      end,
      ['conv1d.c'] = function(x, _, w)
         return tide.conv1d(x:reshape(1, T, D), tide.stack({ w, w, w, w }, 2), w)
      end,
      ['index.c'] = function(x, y, _, index)
         return x:index_add(1, index, y), x:scatter_add(1, index:unsqueeze(2):expand(T, D), y)
      end,
      ['matmul.c'] = function(x, y, w)
         return x:matmul(y:t()), tide.linear(x, y), x:clone():addmm_(y, x:narrow(1, 1, D)),
            x:matmul(w)
      end,
      ['elementwise.c'] = function(x, y)
         return x + y, x * y, x / y, x * 3, x:square()
      end,
      ['update.c'] = function(x, y)
         local p = x:clone()
         update.sgd_({ p = { p }, g = { y } }, { lr = 0.01, weight_decay = 0.1 })
         return p
      end,
   }
   local on_cpu = { ['index.c'] = true, ['elementwise.c'] = true }

   local function holds(op, device, dtype, wide)
      tide.seed(11)
      local a = { random(device, dtype, wide, { T, D }) }
      local b = { random(device, dtype, wide, { T, D }) }
      local w = { random(device, dtype, wide, { D }) }
      local index = tide.to_device(places, device)
      local narrow = { op(a[1], b[1], w[1], index) }
      for i, want in ipairs { op(a[2], b[2], w[2], index) } do
         assert.is_true(narrow[i]:equal(want:to(dtype)), i .. ' ' .. dtype .. ' on ' .. device)
      end
      assert.is_true(#narrow > 0)
   end

   for file, op in pairs(ops) do
      it('by ref/' .. file, function()
         for dtype in pairs(formats) do holds(op, 'ref', dtype, 'f64') end
      end)
      if on_cpu[file] then
         it('by cpu/' .. file, function()
            for dtype in pairs(formats) do holds(op, 'cpu', dtype, 'f32') end
         end)
      end
   end
end)

describe('an i64 at the end of its range', function()
   it('keeps its sign in every float', function()
      for _, device in ipairs(devices) do
         for n = 1, 40, 13 do
            local lowest = tide.full({ n }, -2 ^ 53, { dtype = 'i64', device = device }) * 1024
            for dtype, want in pairs { f64 = -2 ^ 63, f32 = -2 ^ 63, bf16 = -2 ^ 63, f16 = -inf } do
               local what = ('%s %s of %d'):format(device, dtype, n)
               assert.equal(want, lowest:to(dtype):to('f64'):amax():item(), what)
               assert.equal(-want, lowest:add(1):neg():to(dtype):to('f64'):amin():item(), what)
            end
         end
      end
   end)
end)

describe('the reference rounds once', function()
   -- The exact results lie just above a halfway point of bf16.
   local function bf16(t) return tide.tensor(t, { dtype = 'bf16', device = 'ref' }) end
   local above = 1 + 2 ^ -7

   it('in sums and products', function()
      local x = bf16 { { 1, 2 ^ -8, 2 ^ -30 } }
      assert.equal(above, x:sum():to('f64'):item())
      assert.equal(above, x:matmul(bf16 { { 1 }, { 1 }, { 1 } }):to('f64'):item())
   end)

   it('in what is made from a number', function()
      assert.equal(above, bf16 { 1 + 2 ^ -8 + 2 ^ -40 }:to('f64'):item())
      local x = tide.full({ 1 }, 1 + 2 ^ -8 + 2 ^ -40, { dtype = 'bf16', device = fast })
      assert.equal(above, x:to('f64'):item())
   end)
end)
