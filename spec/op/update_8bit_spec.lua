-- adamw8_, quantize8 and dequantize8: moments as dynamic 8-bit numbers, against numpy
-- (spec/golden/update_8bit.py), against adamw_ on the same moments, and cpu against ref.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local golden = dofile 'spec/golden/update_8bit.lua'
local refused = require 'spec.support.refused'
local update = require 'tide.ffi.update'

local devices, block = { 'ref', fast }, 256
local bounds = { [true] = 0.45 / 64, [false] = 0.45 / 128 }

-- The numbers of the golden script.
local function numbers(seed)
   local state = seed
   local function integer()
      state = (state * 16807 + 11) % 2147483647
      return state
   end
   return function(n)
      local list = {}
      for i = 1, n do
         local share = math.floor(integer() / 2048) / 2 ^ 19 - 1
         list[i] = share * 2 ^ -(math.floor(integer() / 4096) % 12)
      end
      return list
   end
end

local function tensor(list, device) return tide.tensor(list, { dtype = 'f32', device = device }) end

local function absolute(list)
   local all = {}
   for i, x in ipairs(list) do all[i] = math.abs(x) end
   return all
end

local function near(want, got, off)
   assert.equal(#want, #got)
   for i = 1, #want do
      assert.is_true(math.abs(want[i] - got[i]) <= off,
         ('%d: %.9g, expected %.9g'):format(i, got[i], want[i]))
   end
end

-- Random numbers of n sizes, some blocks with none but 0.
local function wild(n, device, seed)
   local x = tide.empty({ n }, { device = device }):normal_(0, 1, { seed = seed })
   local size = tide.empty({ n }, { device = device }):normal_(0, 4, { seed = seed + 1 }):exp()
   x = x * size
   if n > 700 then x:narrow(1, 257, 256):zero_() end
   return x
end

describe('quantize8', function()
   for _, device in ipairs(devices) do
      it('has the maps and codes of numpy on ' .. device, function()
         local x = numbers(7)(600)
         for _, signed in ipairs { true, false } do
            local name = signed and 'signed' or 'unsigned'
            local t = tensor(signed and x or absolute(x), device)
            local codes, scale = update.quantize8(t, signed)
            assert.same(golden[name .. '_codes'], codes:tolist())
            near(golden[name .. '_scales'], scale:tolist(), 1e-7)
            local all = tide.arange(256, { dtype = 'i64' }):to 'u8':to(device)
            local map = update.dequantize8(all, tensor({ 1 }, device), signed):tolist()
            local some = {}
            for i = 1, 256, 17 do some[#some + 1] = map[i] end
            for i, want in ipairs(golden[name .. '_map']) do
               assert.is_true(math.abs(some[i] - want) <= 2e-7 * math.abs(want))
            end
         end
      end)

      it('keeps within its bound, and its own results as they are, on ' .. device, function()
         for _, n in ipairs { 0, 1, 255, 256, 257, 3000, 70001 } do
            for _, signed in ipairs { true, false } do
               local x = wild(n, device, n)
               x = signed and x or x:abs()
               local codes, scale = update.quantize8(x, signed)
               assert.same({ math.ceil(n / block) }, scale.shape)
               local y = update.dequantize8(codes, scale, signed)
               for at = 1, n, block do
                  local size = math.min(block, n - at + 1)
                  local a, b = x:narrow(1, at, size), y:narrow(1, at, size)
                  local most = a:abs():amax():item()
                  assert.is_true((a - b):abs():amax():item() <= bounds[signed] * most * 1.000001)
                  assert.equal(most, b:abs():amax():item())
               end
               if not signed and n > 0 then
                  assert.is_true((x:gt(1e-30):to 'f32' - y:gt(0):to 'f32'):abs():amax():item() == 0)
               end
               local again, same_scale = update.quantize8(y, signed)
               assert.is_true(n == 0 or again:equal(codes) and same_scale:equal(scale))
            end
         end
      end)

      it('reads tiny blocks as 0, those with NaN or infinity as NaN, on ' .. device, function()
         local list = {}
         for i = 1, 1024 do list[i] = 1 end
         for i = 1, 256 do list[i] = 1e-35 end
         list[300], list[600] = 0 / 0, math.huge
         local y = update.dequantize8(update.quantize8(tensor(list, device))):tolist()
         for i = 1, 256 do
            assert.equal(0, y[i])
            assert.is_true(y[256 + i] ~= y[256 + i] and y[512 + i] ~= y[512 + i])
            assert.equal(1, y[768 + i])
         end
      end)
   end

   it('gives the same codes on cpu as on ref, of views too', function()
      local x = wild(9000, 'ref', 5)
      local view = x:reshape(90, 100):t()
      for _, signed in ipairs { true, false } do
         for _, t in ipairs { x, view, x:abs(), x - 1e6 } do    -- unsigned: 0 for those below 0
            local a, b = update.quantize8(t, signed)
            local c, d = update.quantize8(t:to(fast), signed)
            assert.is_true(a:equal(c:to 'ref') and b:equal(d:to 'ref'))
            assert.is_true(update.dequantize8(a, b, signed):equal(
               update.dequantize8(c, d, signed):to 'ref'))
         end
      end
   end)

   it('refuses what is no f32, and codes and scales that do not fit', function()
      local x = tide.ones { 300 }
      refused('E_DTYPE', { 'quantize8', 'f32', 'bf16' }, update.quantize8, x:to 'bf16')
      local codes, scale = update.quantize8(x)
      refused('E_DTYPE', { 'dequantize8', 'u8' }, update.dequantize8, x, scale)
      refused('E_SHAPE', { 'dequantize8', 'f32 [2]' }, update.dequantize8, codes, tide.ones { 3 })
      refused('E_SHAPE', { 'dequantize8', 'f32 [2]' }, update.dequantize8, codes,
         tide.ones({ 2 }, { dtype = 'f64' }))
   end)
end)

-- ---- adamw8_ ------------------------------------------------------------------------------------

local attrs = { lr = 0.05, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1 }

local function at_step(step)
   local a = { step = step }
   for k, v in pairs(attrs) do a[k] = v end
   return a
end

-- One parameter of n elements with moments of 0.
local function lists_of(w, n, device)
   local nblock = math.ceil(n / block)
   local function zeros(count, dtype)
      return tide.zeros({ count }, { dtype = dtype, device = device })
   end
   return { p = { w }, m = { zeros(n, 'u8') }, v = { zeros(n, 'u8') },
      m_scale = { zeros(nblock) }, v_scale = { zeros(nblock) } }
end

local function codes_near(want, got, off)
   assert.equal(#want, #got)
   for i = 1, #want do assert.is_true(math.abs(want[i] - got[i]) <= off) end
end

describe('adamw8_', function()
   for _, device in ipairs(devices) do
      it('makes the updates of numpy on ' .. device, function()
         local take = numbers(99)
         local lists = lists_of(tensor(take(600), device), 600, device)
         for step = 1, 4 do
            lists.g = { tensor(take(600), device) }
            update.adamw8_(lists, at_step(step))
         end
         local w, some = lists.p[1]:tolist(), {}
         for i = 1, 600, 7 do some[#some + 1] = w[i] end
         near(golden.weights, some, 1e-6)
         -- moments in f32 may fall on the other side of a midpoint
         for _, name in ipairs { 'm', 'v' } do
            codes_near(golden[name], lists[name][1]:tolist(), device == 'ref' and 0 or 1)
            near(golden[name .. '_scale'], lists[name .. '_scale'][1]:tolist(), 1e-6)
         end
      end)

      it('is adamw_ on the moments that its codes stand for, on ' .. device, function()
         for _, dtype in ipairs { 'f32', 'bf16', 'f16' } do
            local n, o = 5000, { device = device }
            local w = tide.empty({ n }, o):normal_(0, 1, { seed = 1 })
            local master = dtype ~= 'f32' and { w:clone() } or nil
            local lists = lists_of(w:to(dtype):clone(), n, device)
            lists.master = master
            lists.g_scale = tide.full({}, 0.5, o)
            local plain = { p = { lists.p[1]:clone() }, master = master and { w:clone() },
               g_scale = lists.g_scale }
            for step = 1, 3 do
               local g = wild(n, device, step):clamp(-10, 10):to(dtype)
               plain.m = { update.dequantize8(lists.m[1], lists.m_scale[1]) }
               plain.v = { update.dequantize8(lists.v[1], lists.v_scale[1], false) }
               lists.g, plain.g = { g }, { g }
               update.adamw8_(lists, at_step(step))
               update.adamw_(plain, at_step(step))
               local a = (master or lists.p)[1]
               local b = (plain.master or plain.p)[1]
               assert.is_true((a - b):abs():amax():item() < 2e-6)
               assert.is_true(lists.p[1]:equal(a:to(dtype)))
               for name, signed in pairs { m = true, v = false } do
                  local codes = update.quantize8(plain[name][1], signed)
                  codes_near(codes:tolist(), lists[name][1]:tolist(), 1)
               end
               b:copy_(a)
               plain.p[1]:copy_(lists.p[1])
            end
         end
      end)
   end

   it('takes many tensors of odd sizes, none, and skips where found_inf says so', function()
      local want, got = {}, {}
      for _, list in ipairs { want, got } do
         for _, key in ipairs { 'p', 'g', 'm', 'v', 'm_scale', 'v_scale' } do list[key] = {} end
      end
      for i, n in ipairs { 1, 256, 0, 2049, 300, 10000 } do
         local one = lists_of(wild(n, 'cpu', i), n)
         one.g = { wild(n, 'cpu', 50 + i) }
         for key, list in pairs(one) do got[key][i], want[key][i] = list[1]:clone(), list[1] end
         update.adamw8_(one, at_step(1))
      end
      local found = tide.full({}, 1)
      local before = got.p[6]:clone()
      got.found_inf = found
      update.adamw8_(got, at_step(1))
      assert.is_true(before:equal(got.p[6]))
      got.found_inf = tide.full({}, 0)
      update.adamw8_(got, at_step(1))
      for i = 1, 6 do
         assert.is_true(got.p[i]:equal(want.p[i]) and got.m[i]:equal(want.m[i]))
         assert.is_true(got.v_scale[i]:equal(want.v_scale[i]))
      end
      update.adamw8_({ p = {}, g = {}, m = {}, v = {}, m_scale = {}, v_scale = {} }, at_step(1))
   end)

   it('is repeated by the reference in a context with check = 1', function()
      local ctx = tide.open { params = 'check=1' }
      finally(function() ctx:close() end)
      local o = { dtype = 'u8' }
      local x = ctx:arange(600, { dtype = 'f32' }):sin()
      update.adamw8_({ p = { x }, g = { x:cos() }, m = { ctx:zeros({ 600 }, o) },
         v = { ctx:zeros({ 600 }, o) }, m_scale = { ctx:zeros { 3 } },
         v_scale = { ctx:zeros { 3 } } }, at_step(1))
      update.dequantize8(update.quantize8(x))
   end)

   it('refuses what does not fit, with what to do', function()
      local function bad(code, words, change)
         local lists = lists_of(tide.ones { 300 }, 300)
         lists.g = { tide.ones { 300 } }
         change(lists)
         refused(code, { 'adamw8_', unpack(words) }, update.adamw8_, lists, at_step(1))
      end
      bad('E_DTYPE', { 'm[1]', 'u8', 'f32' }, function(l) l.m[1] = tide.zeros { 300 } end)
      bad('E_SHAPE', { 'v_scale[1]', '[2]' }, function(l) l.v_scale[1] = tide.zeros { 300 } end)
      bad('E_SHAPE', { 'm_scale[1]', 'f32' }, function(l)
         l.m_scale[1] = tide.zeros({ 2 }, { dtype = 'f64' })
      end)
      bad('E_DTYPE', { 'f64', 'adamw_' }, function(l)
         l.p[1], l.g[1] = l.p[1]:to 'f64', l.g[1]:to 'f64'
      end)
      bad('E_ARG', { 'm_scale', '1 tensor' }, function(l) l.m_scale = {} end)
      bad('E_ARG', { 'scales' }, function(l) l.scales = {} end)
   end)
end)
