-- The optimiser's ops over lists of tensors: adamw_, sgd_, norm, clip_factor, scale_all_.
--
-- Each is compared with the same arithmetic in Lua numbers, and cpu with ref, over lists of tensors
-- of many sizes (0 and 1 among them) and dtypes.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local update = require 'tide.ffi.update'
local close = require 'spec.support.close'
local refused = require 'spec.support.refused'

local shapes = { { 3 }, { 2, 5 }, {}, { 0 }, { 1, 1 }, { 67 }, { 33, 130 } }
local devices = { 'ref', fast }
-- One rounding of the result: f32 arithmetic on f32 state, f64 on f64.
local rounding = { f32 = 2e-6, f64 = 1e-13, bf16 = 1 / 256, f16 = 1 / 2048 }

local function count(shape)
   local n = 1
   for _, s in ipairs(shape) do n = n * s end
   return n
end

-- Numbers that do not depend on the ops under test; a multiple of 1/64 is exact in every dtype.
local function numbers(n, seed, lo, hi)
   local list, state = {}, seed
   for i = 1, n do
      state = (state * 16807 + 11) % 2147483647
      list[i] = math.floor((lo + (hi - lo) * state / 2147483647) * 64) / 64
   end
   return list
end

local function tensor(list, shape, dtype, device)
   if #list == 0 then return tide.zeros(shape, { dtype = dtype, device = device }) end
   return tide.tensor(list, { dtype = 'f64', device = device }):reshape(shape):to(dtype)
end

local function flat(t)
   local list = t:to('f64'):reshape(-1):tolist()
   return type(list) == 'table' and list or { list }
end

-- The state of one optimiser as Lua numbers and as tensors: names -> list over shapes.
local function make(names, dtypes, device)
   local numbers_of, tensors = {}, {}
   for k, name in ipairs(names) do
      numbers_of[name], tensors[name] = {}, {}
      for i, shape in ipairs(shapes) do
         local positive = name == 'v'
         local list = numbers(count(shape), 17 * k + i, positive and 0 or -1, 1)
         local dtype = dtypes[name] or dtypes.p
         numbers_of[name][i] = list
         tensors[name][i] = tensor(list, shape, dtype, device)
      end
   end
   return numbers_of, tensors
end

local function each(list, fn)
   for i = 1, #shapes do
      for j = 1, #list.p[i] do fn(i, j) end
   end
end

local function check_list(got, want, dtype, what)
   for i = 1, #want do
      assert.are.same(shapes[i], got[i].shape)
      for j, v in ipairs(flat(got[i])) do
         local allowed = rounding[dtype] * math.max(1, math.abs(want[i][j]))
         if v ~= v or math.abs(v - want[i][j]) > allowed then
            error(('%s[%d] element %d is %.17g, expected %.17g'):format(what, i, j, v, want[i][j]))
         end
      end
   end
end

-- ---- AdamW --------------------------------------------------------------------------------------

local function adamw_numbers(s, a, g_scale)
   local scale = (a.grad_scale or 1) * (g_scale or 1) * (a.maximize and -1 or 1)
   each(s, function(i, j)
      local w = (s.master or s.p)[i][j]
      local g = s.g[i][j] * scale
      w = w * (1 - a.lr * a.weight_decay)
      local m = a.beta1 * s.m[i][j] + (1 - a.beta1) * g
      local v = a.beta2 * s.v[i][j] + (1 - a.beta2) * g * g
      local mhat, vhat = m / (1 - a.beta1 ^ a.step), v / (1 - a.beta2 ^ a.step)
      w = w - a.lr * mhat / (math.sqrt(vhat) + a.eps)
      s.m[i][j], s.v[i][j] = m, v
      if s.master then s.master[i][j] = w end
      s.p[i][j] = w
   end)
end

local plain = { lr = 0.01, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, step = 1 }
local function with(extra)
   local a = {}
   for k, v in pairs(plain) do a[k] = v end
   for k, v in pairs(extra) do a[k] = v end
   return a
end

describe('adamw_', function()
   for _, device in ipairs(devices) do
      for _, dtype in ipairs { 'f32', 'f64' } do
         it(('is the arithmetic of the paper on %s in %s'):format(device, dtype), function()
            for _, a in ipairs { plain, with { step = 7, weight_decay = 0 },
                                 with { maximize = true, grad_scale = 0.25, eps = 1e-3 },
                                 with { beta1 = 0, beta2 = 0 }, with { lr = 0 } } do
               local want, got = make({ 'p', 'g', 'm', 'v' }, { p = dtype }, device)
               update.adamw_(got, a)
               adamw_numbers(want, a)
               for _, name in ipairs { 'p', 'm', 'v' } do
                  check_list(got[name], want[name], dtype, name)
               end
            end
         end)
      end

      for _, dtype in ipairs { 'bf16', 'f16' } do
         it(('keeps exact weights in master on %s in %s'):format(device, dtype), function()
            local dtypes = { p = dtype, g = dtype, m = 'f32', v = 'f32', master = 'f32' }
            local want, got = make({ 'p', 'g', 'm', 'v', 'master' }, dtypes, device)
            -- steps far below the spacing of 16-bit numbers still add up in master
            local a = with { lr = 1e-4 }
            for step = 1, 5 do
               a.step = step
               update.adamw_(got, a)
               adamw_numbers(want, a)
            end
            check_list(got.master, want.master, 'f32', 'master')
            check_list(got.p, want.p, dtype, 'p')
            for i = 1, #shapes do
               assert.is_true(got.p[i]:equal(got.master[i]:to(dtype)))
            end
         end)
      end

      it('multiplies gradients by g_scale on ' .. device, function()
         local want, got = make({ 'p', 'g', 'm', 'v' }, { p = 'f32' }, device)
         got.g_scale = tide.full({}, 0.5, { device = device })
         update.adamw_(got, plain)
         adamw_numbers(want, plain, 0.5)
         check_list(got.p, want.p, 'f32', 'p')
         check_list(got.m, want.m, 'f32', 'm')
      end)
   end

   it('takes parameters of several dtypes in one call, masters where there are some', function()
      local got = { p = {}, g = {}, m = {}, v = {}, master = {} }
      local alone = {}
      for i, dtype in ipairs { 'f32', 'bf16', 'f16' } do
         local s = { p = tensor(numbers(70, i, -1, 1), { 70 }, dtype, fast),
                     g = tensor(numbers(70, i + 9, -1, 1), { 70 }, dtype, fast),
                     m = tensor({}, { 70 }, 'f32', fast), v = tensor({}, { 70 }, 'f32', fast) }
         s.master = i > 1 and s.p:to 'f32' or false
         alone[i] = {}
         for name, t in pairs(s) do
            got[name][i] = t
            alone[i][name] = { t and t:clone() }
         end
      end
      update.adamw_(got, plain)
      for i = 1, 3 do
         update.adamw_(alone[i], plain)
         for name, list in pairs(alone[i]) do
            assert.is_true(not list[1] or list[1]:equal(got[name][i]), name .. i)
         end
      end
   end)

   it('gives the same bits for every number of threads', function()
      finally(function() tide.set_nthread(2) end)
      local first
      for _, n in ipairs { 1, 2, 3 } do
         tide.set_nthread(n)
         local _, got = make({ 'p', 'g', 'm', 'v' }, { p = 'f32' }, fast)
         update.adamw_(got, plain)
         local bytes = {}
         for i = 1, #shapes do bytes[i] = got.p[i]:to_string_bytes() end
         first = first or bytes
         assert.are.same(first, bytes)
      end
   end)

   it('bumps the version of what it writes', function()
      local _, got = make({ 'p', 'g', 'm', 'v' }, { p = 'f32' }, fast)
      local before = { got.p[1]:version(), got.g[1]:version(), got.m[1]:version() }
      update.adamw_(got, plain)
      assert.equal(before[1] + 1, got.p[1]:version())
      assert.equal(before[2], got.g[1]:version())
      assert.equal(before[3] + 1, got.m[1]:version())
   end)

   it('does nothing with empty lists', function()
      local factor = tide.full({}, 2)
      local version, before = factor:version(), tide.stats().nop
      update.adamw_({ p = {}, g = {}, m = {}, v = {} }, plain)
      update.sgd_({ p = {}, g = {} }, { lr = 1 })
      update.scale_all_({}, factor)
      assert.equal(before, tide.stats().nop)
      assert.equal(version, factor:version())
   end)

   it('refuses lists that do not fit', function()
      local x, y = tide.ones { 3 }, tide.ones { 4 }
      local function call(lists, extra)
         return update.adamw_, lists, with(extra or {})
      end
      refused('E_ARG', { 'adamw_', 'lists.g', '1 tensors' },
              call { p = { x }, g = { x, x }, m = { x }, v = { x } })
      refused('E_ARG', { 'adamw_', 'lists.m' }, call { p = { x }, g = { x }, v = { x } })
      refused('E_ARG', { 'adamw_', 'lists.v[1]' },
              call { p = { x }, g = { x }, m = { x }, v = { 1 } })
      refused('E_SHAPE', { 'adamw_', 'g[1]', '[4]', '[3]' },
              call { p = { x }, g = { y }, m = { x }, v = { x } })
      refused('E_SHAPE', { 'adamw_', 'g[1]', '[1, 3]', '[3]' },        -- as many elements
              call { p = { x }, g = { x:view { 1, 3 } }, m = { x }, v = { x } })
      refused('E_SHAPE', { 'adamw_', 'v[1]', '[3, 1]', '[3]' },
              call { p = { x }, g = { x }, m = { x }, v = { x:view { 3, 1 } } })
      refused('E_SHAPE', { 'adamw_', 'master[1]' },
              call { p = { x }, g = { x }, m = { x }, v = { x }, master = { y } })
      refused('E_SHAPE', { 'adamw_', 'g_scale' },
              call { p = { x }, g = { x }, m = { x }, v = { x }, g_scale = y })
      refused('E_DTYPE', { 'adamw_', 'm[1]', 'f32', 'f64' },
              call { p = { x }, g = { x }, m = { x:to 'f64' }, v = { x } })
      refused('E_DTYPE', { 'adamw_', 'floating', 'i64' },
              call { p = { x:long() }, g = { x }, m = { x }, v = { x } })
      refused('E_DTYPE', { 'adamw_', 'g[1]', 'f64', 'f32' },
              call { p = { x }, g = { x:to 'f64' }, m = { x }, v = { x } })
      refused('E_DEVICE', { 'adamw_', 'g[1]', 'ref', 'cpu' },
              call { p = { x }, g = { x:to 'ref' }, m = { x }, v = { x } })
      refused('E_ARG', { 'adamw_', 'weights' },
              call { p = {}, g = {}, m = {}, v = {}, weights = {} })
      local gone = tide.ones { 3 }
      gone:release()
      refused('E_GONE', { 'adamw_', 'm[1]' },
              call { p = { x }, g = { x }, m = { gone }, v = { x } })
      assert.are.same({ 1, 1, 1 }, x:tolist())
   end)

   it('refuses targets that are not dense', function()
      local wide = tide.ones { 3, 4 }
      local part, x = wide:slice(2, 1, 4, 2), tide.ones { 3, 2 }
      refused('E_UNSUPPORTED', { 'adamw_', 'contiguous' }, update.adamw_,
              { p = { part }, g = { x }, m = { x:clone() }, v = { x:clone() } }, plain)
      -- a gradient may have any layout
      local p1, p2 = tide.ones { 3, 2 }, tide.ones { 3, 2 }
      local m, v = tide.zeros { 3, 2 }, tide.zeros { 3, 2 }
      update.adamw_({ p = { p1 }, g = { part }, m = { m }, v = { v } }, plain)
      update.adamw_({ p = { p2 }, g = { part:contiguous() }, m = { m:clone():zero_() },
                      v = { v:clone():zero_() } }, plain)
      assert.is_true(p1:equal(p2))
   end)

   it('takes rate and step number from a tensor, and leaves a step out', function()
      for _, device in ipairs(devices) do
         for _, dtype in ipairs { 'f32', 'f64' } do
            local function rates(lr, step)
               return tide.tensor({ lr, step }, { dtype = 'f64', device = device })
            end
            local want, got = make({ 'p', 'g', 'm', 'v' }, { p = dtype }, device)
            local _, twin = make({ 'p', 'g', 'm', 'v' }, { p = dtype }, device)
            for step = 1, 3 do
               local a = with { lr = 0.1 / step, step = step }
               got.rates, got.found_inf = rates(a.lr, step), tide.zeros({}, { device = device })
               update.adamw_(got, with { lr = 99, step = 77 })
               update.adamw_(twin, a)
               adamw_numbers(want, a)
            end
            check_list(got.p, want.p, dtype, 'p')
            for i = 1, #shapes do assert.is_true(got.p[i]:equal(twin.p[i])) end
            for _, found in ipairs { 1, 0 / 0, -1 } do
               got.found_inf = tide.full({ 1 }, found, { device = device })
               update.adamw_(got, plain)
            end
            for _, name in ipairs { 'p', 'm', 'v' } do
               for i = 1, #shapes do assert.is_true(got[name][i]:equal(twin[name][i])) end
            end
         end
         local x = tide.ones({ 3 }, { device = device })
         local lists = { p = { x }, g = { x:clone() }, m = { x:clone() }, v = { x:clone() } }
         lists.rates = tide.tensor({ 0.1, 0.5 }, { dtype = 'f64', device = device })
         refused('E_ARG', 'step', function()
            update.adamw_(lists, plain)
            x:tolist()                                       -- a GPU reports it at the next read
         end)
         assert.are.same({ 1, 1, 1 }, x:tolist())
         for _, bad in ipairs { tide.ones({ 2 }, { device = device }),
                                tide.ones({ 3 }, { dtype = 'f64', device = device }) } do
            lists.rates = bad
            refused('E_SHAPE', { 'adamw_', 'rates' }, update.adamw_, lists, plain)
         end
         lists.rates, lists.found_inf = nil, tide.ones({ 2 }, { device = device })
         refused('E_SHAPE', { 'adamw_', 'found_inf' }, update.adamw_, lists, plain)
      end
   end)

   it('refuses numbers that make no step', function()
      local x = tide.ones { 3 }
      local lists = { p = { x }, g = { x:clone() }, m = { x:clone() }, v = { x:clone() } }
      for _, bad in ipairs { { beta1 = 1 }, { beta2 = -0.1 }, { eps = -1 } } do
         refused('E_ARG', 'adamw_', update.adamw_, lists, with(bad))
      end
      for _, bad in ipairs { { lr = 0 / 0 }, { weight_decay = 1 / 0 }, { step = 0 }, { step = 1.5 },
                             { grad_scale = '1' }, { momentum = 1 } } do
         refused('E_ARG', 'adamw_', update.adamw_, lists, with(bad))
      end
      assert.are.same({ 1, 1, 1 }, x:tolist())
   end)
end)

-- ---- SGD ----------------------------------------------------------------------------------------

local function sgd_numbers(s, a)
   local scale = (a.grad_scale or 1) * (a.maximize and -1 or 1)
   local momentum = a.momentum or 0
   each(s, function(i, j)
      local w = (s.master or s.p)[i][j]
      local g = s.g[i][j] * scale + (a.weight_decay or 0) * w
      if momentum ~= 0 then
         local b = a.first and g or momentum * s.buf[i][j] + (1 - (a.dampening or 0)) * g
         s.buf[i][j] = b
         g = a.nesterov and g + momentum * b or b
      end
      w = w - a.lr * g
      if s.master then s.master[i][j] = w end
      s.p[i][j] = w
   end)
end

describe('sgd_', function()
   local kinds = { { lr = 0.1 }, { lr = 0.1, weight_decay = 0.01, maximize = true },
                   { lr = 0.1, momentum = 0.9, first = true },
                   { lr = 0.1, momentum = 0.9, first = false, dampening = 0.25, grad_scale = 2 },
                   { lr = 0.1, momentum = 0.9, first = false, nesterov = true } }
   for _, device in ipairs(devices) do
      for _, dtype in ipairs { 'f32', 'f64' } do
         it(('is the textbook step on %s in %s'):format(device, dtype), function()
            for _, a in ipairs(kinds) do
               local want, got = make({ 'p', 'g', 'buf' }, { p = dtype }, device)
               update.sgd_(got, a)
               sgd_numbers(want, a)
               check_list(got.p, want.p, dtype, 'p')
               check_list(got.buf, want.buf, dtype, 'buf')
            end
         end)
      end
      it('takes rate and first step from a tensor, and leaves a step out, on ' .. device, function()
         local want, got = make({ 'p', 'g', 'buf' }, { p = 'f32' }, device)
         for step = 1, 3 do
            local a = { lr = 0.1 * step, momentum = 0.9, first = step == 1 }
            got.rates = tide.tensor({ a.lr, step }, { dtype = 'f64', device = device })
            update.sgd_(got, { lr = 99, momentum = 0.9, first = step ~= 1 })
            sgd_numbers(want, a)
         end
         got.found_inf = tide.full({}, 0 / 0, { device = device })
         update.sgd_(got, { lr = 1 })
         check_list(got.p, want.p, 'f32', 'p')
         check_list(got.buf, want.buf, 'f32', 'buf')
      end)
      it('keeps exact weights of bf16 in master on ' .. device, function()
         local dtypes = { p = 'bf16', g = 'bf16', buf = 'f32', master = 'f32' }
         local want, got = make({ 'p', 'g', 'buf', 'master' }, dtypes, device)
         for step = 1, 4 do
            local a = { lr = 1e-4, momentum = 0.5, first = step == 1 }
            update.sgd_(got, a)
            sgd_numbers(want, a)
         end
         check_list(got.master, want.master, 'f32', 'master')
         for i = 1, #shapes do assert.is_true(got.p[i]:equal(got.master[i]:to 'bf16')) end
      end)
   end

   it('refuses what it cannot mean', function()
      local x = tide.ones { 3 }
      refused('E_ARG', { 'sgd_', 'lists.buf' }, update.sgd_, { p = { x }, g = { x } },
              { lr = 1, momentum = 0.9 })
      refused('E_ARG', { 'sgd_', 'nesterov' }, update.sgd_, { p = { x }, g = { x } },
              { lr = 1, nesterov = true })
      refused('E_ARG', { 'sgd_', 'momentum' }, update.sgd_, { p = { x }, g = { x }, buf = { x } },
              { lr = 1, momentum = -1 })
      refused('E_SHAPE', { 'sgd_', 'buf[1]' }, update.sgd_,
              { p = { x }, g = { x }, buf = { tide.ones { 2 } } }, { lr = 1, momentum = 0.9 })
      refused('E_ARG', { 'sgd_', 'attrs.first' }, update.sgd_, { p = { x }, g = { x } },
              { lr = 1, first = 1 })
      assert.are.same({ 1, 1, 1 }, x:tolist())
   end)
end)

-- ---- norm, clip_factor, scale_all_ --------------------------------------------------------------

local function norm_numbers(list, p, squared)
   local total = 0
   for _, row in ipairs(list) do
      for _, v in ipairs(row) do
         v = math.abs(v)
         total = p == math.huge and math.max(total, v) or total + v ^ p
      end
   end
   return (p ~= 2 or squared) and total or math.sqrt(total)
end

describe('norm over a list', function()
   for _, device in ipairs(devices) do
      for _, dtype in ipairs { 'f32', 'f64', 'bf16', 'f16' } do
         it(('is the norm of all elements on %s in %s'):format(device, dtype), function()
            local want, got = make({ 'p' }, { p = dtype }, device)
            for _, p in ipairs { 2, 1, math.huge } do
               for _, squared in ipairs { false, true } do
                  local y = update.norm(got.p, p, squared)
                  assert.equal(dtype == 'f64' and 'f64' or 'f32', y.dtype)
                  assert.are.same({}, y.shape)
                  assert.equal(device, y.device)
                  -- the elements are exact in every dtype, so only the sum rounds
                  local rel = dtype == 'f64' and 1e-14 or 2e-6
                  close(y:item(), norm_numbers(want.p, p, squared), { rel = rel })
               end
            end
         end)
      end
   end

   it('is 0 for no tensors and for empty ones', function()
      assert.equal(0, update.norm({}):item())
      assert.equal(0, update.norm({ tide.zeros { 0 } }, math.huge):item())
   end)

   it('tells of infinities and NaN', function()
      for _, device in ipairs(devices) do
         local x = tide.ones({ 300 }, { device = device })
         local bad = tide.tensor({ 1, math.huge, 2 }, { device = device })
         assert.equal(math.huge, update.norm({ x, bad }):item())
         assert.equal(math.huge, update.norm({ x, bad }, math.huge):item())
         local nan = tide.tensor({ 1, 0 / 0, 2 }, { device = device })
         for _, p in ipairs { 1, 2, math.huge } do
            local v = update.norm({ nan, x }, p):item()
            assert.is_true(v ~= v, ('p %g on %s says %g'):format(p, device, v))
         end
      end
   end)

   it('reads any layout', function()
      local x = tide.arange(12):reshape(3, 4)
      local want = math.sqrt(0 + 16 + 64 + 4 + 36 + 100)
      close(update.norm({ x:slice(2, 1, 4, 2):t() }):item(), want, { rel = 1e-6 })
      close(update.norm({ tide.ones({ 1, 3 }):expand(5, 3) }, 1):item(), 15)
   end)

   it('refuses other norms, integers and devices that differ', function()
      local x = tide.ones { 3 }
      refused('E_ARG', { 'norm', 'p', '3' }, update.norm, { x }, 3)
      refused('E_ARG', { 'norm', 'p' }, update.norm, { x }, 0 / 0)
      refused('E_ARG', { 'norm', 'p' }, update.norm, { x }, -math.huge)
      refused('E_DTYPE', { 'norm', 'i64' }, update.norm, { x:long() })
      refused('E_DEVICE', { 'norm', 'xs[2]' }, update.norm, { x, x:to 'ref' })
      refused('E_ARG', { 'norm', 'list[2]' }, update.norm, { x, 'x' })
   end)
end)

describe('clip_factor and scale_all_', function()
   it('gives min(1, max_norm / (norm + 1e-6))', function()
      for _, device in ipairs(devices) do
         local function factor(norm, most)
            return update.clip_factor(tide.full({}, norm, { device = device }), most):item()
         end
         close(factor(4, 1), 1 / (4 + 1e-6), { rel = 1e-6 })
         assert.equal(1, factor(0.5, 1))
         assert.equal(1, factor(0, 1))
         assert.equal(0, factor(math.huge, 1))
         local nan = factor(0 / 0, 1)
         assert.is_true(nan ~= nan)
      end
   end)

   it('refuses a bound that is not positive and a norm that is no scalar', function()
      local norm = tide.full({}, 2)
      refused('E_ARG', { 'clip_factor', 'max_norm' }, update.clip_factor, norm, 0)
      refused('E_ARG', { 'clip_factor', 'max_norm' }, update.clip_factor, norm, -1)
      refused('E_ARG', { 'clip_factor', 'max_norm' }, update.clip_factor, norm, 0 / 0)
      refused('E_SHAPE', { 'clip_factor', 'norm', '[2]' }, update.clip_factor, tide.ones { 2 }, 1)
      refused('E_SHAPE', { 'clip_factor', 'bf16' }, update.clip_factor, norm:to 'bf16', 1)
   end)

   it('clips f64 gradients in f64, and the optimiser takes that factor', function()
      for _, device in ipairs(devices) do
         local x = tide.full({ 3 }, 1 / 3, { dtype = 'f64', device = device })
         local factor = update.clip_factor(update.norm { x, tide.ones({ 2 }, { device = device }) },
            0.5)
         local want = 0.5 / (math.sqrt(3 / 9 + 2) + 1e-6)
         close(factor:item(), want, { rel = 1e-15 })
         update.scale_all_({ x }, factor)
         close(x:tolist()[2], want / 3, { rel = 1e-15 })
      end
   end)

   it('scales every tensor of the list in place', function()
      for _, device in ipairs(devices) do
         for _, dtype in ipairs { 'f32', 'f64', 'bf16', 'f16' } do
            local want, got = make({ 'p' }, { p = dtype }, device)
            local version = got.p[2]:version()
            update.scale_all_(got.p, tide.full({}, 0.25, { device = device }))
            for i = 1, #shapes do
               for j, v in ipairs(flat(got.p[i])) do assert.equal(want.p[i][j] / 4, v) end
            end
            assert.equal(version + 1, got.p[2]:version())
         end
      end
      update.scale_all_({}, tide.full({}, 2))
   end)

   it('refuses factors and targets that do not fit', function()
      local x, f = tide.ones { 3 }, tide.full({}, 2)
      refused('E_SHAPE', { 'scale_all_', 'factor' }, update.scale_all_, { x }, tide.ones { 2 })
      refused('E_ARG', { 'scale_all_', 'factor' }, update.scale_all_, { x }, 2)
      refused('E_DEVICE', 'scale_all_', update.scale_all_, { x }, f:to 'ref')
      refused('E_DTYPE', 'scale_all_', update.scale_all_, { x, x:long() }, f)
      refused('E_UNSUPPORTED', { 'scale_all_', 'contiguous' }, update.scale_all_,
              { tide.ones({ 1 }):expand(3) }, f)
      assert.are.same({ 1, 1, 1 }, x:tolist())
   end)
end)
