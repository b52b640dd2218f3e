-- Ops that write into their target: copy_, fill_, axpy_ (add_), scale_ (mul_), random fills.
--
-- What is written, what is left alone, which targets are refused, and for random numbers: known
-- answers of the generator, moments, and that a shard holds what the whole would hold there.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local close = require 'spec.support.close'
local refused = require 'spec.support.refused'

local devices = { 'ref', fast }
local dtypes = { 'f32', 'f64', 'bf16', 'f16', 'i64', 'i32', 'u8' }

-- Names of the contract beside those of Lua.
local function axpy_(dst, src, alpha) return dst:add_(src, alpha) end
local function scale_(dst, factor) return dst:mul_(factor) end

local function range(n, device, dtype)
   return tide.arange(n, { dtype = 'f64', device = device }):to(dtype or 'f32')
end

describe('copy_, fill_, axpy_, scale_', function()
   for _, device in ipairs(devices) do
      for _, dtype in ipairs(dtypes) do
         it(('write %s on %s, through any view'):format(dtype, device), function()
            local whole = range(24, device, dtype):reshape(4, 6)
            local view = whole:slice(2, 2, 6, 2)          -- columns 2, 4, 6
            view:copy_(tide.tensor({ 7, 8, 9 }, { device = device }))
            assert.are.same({ { 0, 7, 2, 8, 4, 9 }, { 6, 7, 8, 8, 10, 9 },
                              { 12, 7, 14, 8, 16, 9 }, { 18, 7, 20, 8, 22, 9 } }, whole:tolist())
            view:t():fill_(3)
            assert.are.same({ 6, 3, 8, 3, 10, 3 }, whole:select(1, 2):tolist())
            axpy_(view, range(4, device, dtype):unsqueeze(2), 2)
            assert.are.same({ 18, 9, 20, 9, 22, 9 }, whole:select(1, 4):tolist())
            scale_(view, 2)
            assert.are.same({ 18, 18, 20, 18, 22, 18 }, whole:select(1, 4):tolist())
            assert.are.same({ 0, 6, 2, 6, 4, 6 }, whole:select(1, 1):tolist())
         end)
      end

      it('convert the source to the dtype of the target on ' .. device, function()
         local x = tide.zeros({ 3 }, { dtype = 'i32', device = device })
         x:copy_(tide.tensor({ 1.75, -1.75, 3 }, { device = device }))
         assert.are.same({ 1, -1, 3 }, x:tolist())
         local b = tide.zeros({ 2 }, { dtype = 'bool', device = device })
         b:copy_(tide.tensor({ 0.5, 0 }, { device = device }))
         assert.are.same({ true, false }, b:tolist())
         local h = tide.zeros({ 1 }, { dtype = 'bf16', device = device })
         h:copy_(tide.tensor({ 1.00390625 }, { device = device }))   -- a tie: to even
         assert.equal(1, h:item())
      end)

      it('are as if source and target were apart, on ' .. device, function()
         local x = range(10, device)
         x:slice(1, 2, 10):copy_(x:slice(1, 1, 9))
         assert.are.same({ 0, 0, 1, 2, 3, 4, 5, 6, 7, 8 }, x:tolist())
         x = range(10, device)
         x:slice(1, 1, 9):add_(x:slice(1, 2, 10), 10)
         assert.are.same({ 10, 21, 32, 43, 54, 65, 76, 87, 98, 9 }, x:tolist())
         local m = range(9, device):reshape(3, 3)
         m:copy_(m:t())
         assert.are.same({ { 0, 3, 6 }, { 1, 4, 7 }, { 2, 5, 8 } }, m:tolist())
         m:add_(m:select(1, 1))                            -- a row of itself, broadcast
         assert.are.same({ { 0, 6, 12 }, { 1, 7, 13 }, { 2, 8, 14 } }, m:tolist())
         m:add_(m, 2)
         assert.are.same({ { 0, 18, 36 }, { 3, 21, 39 }, { 6, 24, 42 } }, m:tolist())
      end)

      it('leave empty tensors as they are on ' .. device, function()
         local x = tide.zeros({ 0, 3 }, { device = device })
         assert.are.same({}, x:fill_(1):mul_(2):add_(x, 3):copy_(x):tolist())
      end)
   end

   it('bump the version of the storage, whatever view they write through', function()
      local x = tide.zeros { 4, 4 }
      local view, before = x:slice(1, 1, 2), x:version()
      local writes = { function() view:fill_(1) end, function() view:copy_(x:slice(1, 3, 4)) end,
                       function() view:add_(1) end, function() view:mul_(2) end,
                       function() view:uniform_() end, function() view:normal_() end,
                       function() view:trunc_normal_() end }
      for i, write in ipairs(writes) do
         write()
         assert.equal(before + i, x:version())
         assert.equal(before + i, view:version())
      end
      local read = x:version()
      local _ = x + x, x:sum(), x:clone(), x:tolist() -- luacheck: ignore
      assert.equal(read, x:version())
   end)

   it('refuse expanded targets', function()
      local x = tide.ones({ 1, 3 }):expand(4, 3)
      for _, name in ipairs { 'fill_', 'mul_', 'uniform_', 'normal_', 'trunc_normal_', 'copy_',
                              'add_' } do
         local arg = (name == 'copy_' or name == 'add_') and tide.ones { 3 } or 0
         refused('E_ARG', 'expanded', x[name], x, arg)
      end
      assert.are.same({ 1, 1, 1 }, x:select(1, 1):tolist())
      tide.ones({ 1, 3 }):expand(1, 3):fill_(2)            -- a size of 1 repeats nothing
   end)

   for _, device in ipairs(devices) do
      it('add products to a target of any layout that may be an operand, on ' .. device, function()
         local a, b = range(4, device):reshape(2, 2), range(4, device, 'f32'):reshape(2, 2)
         local x = tide.ones({ 3, 3 }, { device = device })
         x:slice(1, 2, 3):slice(2, 2, 3):addmm_(a, b)
         assert.are.same({ { 1, 1, 1 }, { 1, 3, 4 }, { 1, 7, 12 } }, x:tolist())
         a:t():addmm_(b, b)
         assert.are.same({ { 2, 7 }, { 5, 14 } }, a:tolist())
         b:addmm_(b, b)
         assert.are.same({ { 2, 4 }, { 8, 14 } }, b:tolist())
      end)
   end

   for _, device in ipairs(devices) do
      for _, dtype in ipairs { 'bf16', 'f16' } do
         it(('add %s products to f32 unrounded, on %s'):format(dtype, device), function()
            local a = tide.tensor({ { 1, 2 ^ -7 }, { 3, 1 } }, { dtype = dtype, device = device })
            local b = tide.tensor({ { 1.0078125, 0 }, { 1.0078125, 2 ^ -7 } },
               { dtype = dtype, device = device })
            local want = { { 256 + 1.0078125 ^ 2, 256 + 2 ^ -14 },
                           { 256 + 4 * 1.0078125, 256 + 2 ^ -7 } }
            for _, turned in ipairs { false, true } do
               local x = tide.full({ 2, 2 }, 256, { device = device })
               if turned then x = x:t() end
               assert.same(want, x:addmm_(a, b):tolist())
            end
         end)
      end
   end

   for _, device in ipairs(devices) do
      it('round a sum once, whatever the layout of its target, on ' .. device, function()
         -- 1 + (2^-9 + 2^-9): a product rounded to bf16 beside 1 would give 1
         local like = { dtype = 'bf16', device = device }
         local a, b = tide.ones({ 3, 2 }, like), tide.full({ 2, 5 }, 2 ^ -9, like)
         a:select(2, 2):fill_(1.0078125)
         local apart = tide.ones({ 3, 5 }, like):addmm_(a, b)
         local columns = tide.ones({ 5, 3 }, like):t()
         assert.is_true(columns:addmm_(a, b):equal(apart))
         local shared = tide.ones({ 6, 5 }, like)      -- rows 1 to 3 the target, 4 and 5 a source
         shared:slice(1, 4, 5):copy_(b)
         shared:slice(1, 1, 3):addmm_(a, shared:slice(1, 4, 5))
         assert.is_true(shared:slice(1, 1, 3):equal(apart))
         local offsets = tide.to_device(tide.tensor({ 0, 2 }, { dtype = 'i64' }), device)
         local groups = tide.ones({ 1, 5, 3 }, like):transpose(2, 3)
         local at = a:t():contiguous()
         assert.is_true(groups:grouped_addmm_(at, b, offsets):select(1, 1):equal(apart))
      end)
   end

   it('refuse products that do not fit their target', function()
      local x, w = tide.ones { 2, 3 }, tide.ones({ 2, 2 }, { requires_grad = true })
      local square, wide = tide.ones { 2, 2 }, tide.ones({ 2, 2 }, { dtype = 'f64' })
      refused('E_SHAPE', { 'addmm_', '[2, 3]', '[3, 2]' }, x.addmm_, x, x:t(), x)
      refused('E_SHAPE', { 'addmm_', '[2, 2, 1]' }, x.addmm_, x, square:unsqueeze(-1), x)
      refused('E_DTYPE', { 'addmm_', 'f64' }, x.addmm_, x, wide, x)
      refused('E_DTYPE', { 'addmm_', 'f64', 'f32' }, wide.addmm_, wide, square, square)
      refused('E_DTYPE', { 'addmm_', 'bf16', 'f16' }, square.addmm_, square, square:to 'bf16',
         square:to 'f16')
      refused('E_DTYPE', { 'addmm_', 'i32' }, function()
         local n = square:to 'i32'
         n:addmm_(n:clone(), n:clone())
      end)
      refused('E_STATE', { 'addmm_', 'source needs a gradient' }, x.addmm_, x, w, x)
      refused('E_STATE', { 'addmm_', 'needs a gradient' }, w.addmm_, w, square, square)
      assert.are.same({ { 1, 1, 1 }, { 1, 1, 1 } }, x:tolist())
   end)

   it('refuse targets and sources that need gradients while recording', function()
      local w = tide.ones({ 3 }, { requires_grad = true })
      local y, x = w * 2, tide.ones { 3 }
      for _, t in ipairs { w, y, w:slice(1, 1, 2) } do
         refused('E_STATE', { 'copy_', 'needs a gradient', 'no_grad' }, t.copy_, t, tide.ones({}))
         refused('E_STATE', { 'fill_', 'needs a gradient' }, t.fill_, t, 1)
         refused('E_STATE', { 'axpy_', 'needs a gradient' }, t.add_, t, tide.ones({}))
         refused('E_STATE', { 'scale_', 'needs a gradient' }, t.mul_, t, 2)
      end
      refused('E_STATE', { 'copy_', 'source needs a gradient' }, x.copy_, x, w)
      refused('E_STATE', { 'axpy_', 'source needs a gradient' }, x.add_, x, y)
      refused('E_STATE', { 'normal_', 'recorded' }, y.normal_, y)
      assert.are.same({ 1, 1, 1 }, w:tolist())
      assert.are.same({ 1, 1, 1 }, x:tolist())
      tide.no_grad(function()
         w:copy_(x):mul_(3)
         x:add_(y)
      end)
      assert.are.same({ 3, 3, 3 }, w:tolist())
      assert.are.same({ 3, 3, 3 }, x:tolist())
      assert.is_true(w.requires_grad)
   end)

   it('refuse what does not fit', function()
      local x = tide.ones { 2, 3 }
      refused('E_SHAPE', { 'copy_', '[2]', '[2, 3]' }, x.copy_, x, tide.ones { 2 })
      refused('E_SHAPE', { 'axpy_', '[4, 2, 3]' }, x.add_, x, tide.ones { 4, 2, 3 })
      refused('E_DEVICE', { 'copy_', 'ref', 'cpu' }, x.copy_, x,
              tide.ones({ 3 }, { device = 'ref' }))
      refused('E_ARG', { 'fill_', 'value' }, x.fill_, x, 'one')
      refused('E_ARG', { 'fill_', 'value', 'u8' }, function() x:to('u8'):fill_(256) end)
      refused('E_ARG', { 'fill_', 'value', 'i32' }, function() x:to('i32'):fill_(0.5) end)
      refused('E_ARG', { 'add_', 'alpha' }, x.add_, x, x, 'a')
      refused('E_ARG', { 'mul_', 'factor' }, x.mul_, x, x)
      local gone = tide.ones { 3 }
      gone:release()
      refused('E_GONE', 'fill_', gone.fill_, gone, 1)
      refused('E_GONE', 'copy_', x.copy_, x, gone)
      assert.are.same({ { 1, 1, 1 }, { 1, 1, 1 } }, x:tolist())
   end)
end)

-- ---- random fills -------------------------------------------------------------------------------

-- Philox4x32-10 with key 0 and counter 0: the first known answer of its authors' test file.
local first_words = { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 }

describe('uniform_, normal_, trunc_normal_', function()
   it('take the words that the generator is known to give', function()
      for _, device in ipairs(devices) do
         local x = tide.empty({ 4 }, { dtype = 'f64', device = device })
         x:uniform_(0, 2 ^ 32, { seed = 0 })
         assert.are.same(first_words, x:tolist())
         x:uniform_(-1, 3, { seed = 0 })
         for i, v in ipairs(x:tolist()) do
            close(v, -1 + 4 * first_words[i] / 2 ^ 32, { rel = 1e-15 })
         end
      end
   end)

   for _, dtype in ipairs { 'f32', 'f64', 'bf16', 'f16' } do
      it('draw the same bits on every device and number of threads in ' .. dtype, function()
         finally(function() tide.set_nthread(2) end)
         local opts = { seed = 3, stream = 4, offset = 5 }
         local fills = { function(x) return x:uniform_(-1, 2, opts) end,
                         function(x) return x:normal_(1, 2, opts) end,
                         function(x) return x:trunc_normal_(0, 1, -1, 3, opts) end }
         for _, fill in ipairs(fills) do
            local want = fill(tide.empty({ 70, 301 }, { dtype = dtype, device = 'ref' }))
            for _, n in ipairs { 1, 2, 3 } do
               tide.set_nthread(n)
               local got = fill(tide.empty({ 70, 301 }, { dtype = dtype }))
               assert.is_true(got:to('ref'):equal(want))
            end
         end
      end)

      it('stay inside their bounds in ' .. dtype, function()
         local x = tide.empty({ 20000 }, { dtype = dtype }):uniform_(0.25, 0.5, { seed = 1 })
         local lo, hi = x:amin():item(), x:amax():item()
         assert.is_true(lo >= 0.25 and hi < 0.5, lo .. ' to ' .. hi)
         x:trunc_normal_(1, 0.5, -1, 2, { seed = 2 })
         lo, hi = x:amin():item(), x:amax():item()
         assert.is_true(lo >= 0.5 and hi <= 2, lo .. ' to ' .. hi)
      end)
   end

   -- Mean, deviation and the share below a point of n numbers; bounds are five standard errors.
   it('have the moments of their names', function()
      local n = 200000
      local x = tide.empty({ n }, { dtype = 'f64' })
      local function moments()
         local mean = x:mean():item()
         return mean, math.sqrt((x - mean):square():mean():item())
      end
      local function share(v) return x:lt(v):sum():item() / n end
      local error_ = 5 / math.sqrt(n)
      x:uniform_(2, 5, { seed = 11 })
      local mean, std = moments()
      close(mean, 3.5, { abs = error_ * 0.87, rel = 0 })
      close(std, 3 / math.sqrt(12), { abs = error_ * 0.5, rel = 0 })
      close(share(2.3), 0.1, { abs = error_ * 0.3, rel = 0 })
      x:normal_(-1, 2, { seed = 12 })
      mean, std = moments()
      close(mean, -1, { abs = error_ * 2, rel = 0 })
      close(std, 2, { abs = error_ * 2 / math.sqrt(2), rel = 0 })
      close(share(-1), 0.5, { abs = error_ * 0.5, rel = 0 })
      close(share(1), 0.8413447, { abs = error_ * 0.4, rel = 0 })
      x:trunc_normal_(0, 1, -2, 2, { seed = 13 })
      mean, std = moments()
      close(mean, 0, { abs = error_ * 0.88, rel = 0 })
      close(std, 0.8796256, { abs = error_ * 0.6, rel = 0 })
      close(share(0), 0.5, { abs = error_ * 0.5, rel = 0 })
   end)

   it('draw a normal at the quantile of its word', function()
      local x = tide.empty({ 4 }, { dtype = 'f64' }):normal_(0, 1, { seed = 0 })
      for i, z in ipairs(x:tolist()) do
         local p = (first_words[i] + 0.5) / 2 ^ 32
         -- the cdf by its series: sum of z^(2k+1) / (1 3 5 ... (2k+1)), times the density
         local term, sum = z, z
         for k = 1, 60 do
            term = term * z * z / (2 * k + 1)
            sum = sum + term
         end
         close(0.5 + sum * math.exp(-z * z / 2) / math.sqrt(2 * math.pi), p, { rel = 1e-13 })
      end
   end)

   it('give a shard what the whole would hold there', function()
      local opts = { seed = 21, stream = 2, offset = 1000 }
      local function shard(start, stride)
         return { seed = 21, stream = 2, offset = 1000, start = start, stride = stride }
      end
      for _, device in ipairs(devices) do
         for _, name in ipairs { 'uniform_', 'normal_', 'trunc_normal_' } do
            local function fill(shape, o)
               local x = tide.empty(shape, { device = device })
               local n = name == 'trunc_normal_' and 4 or 2
               local args = { -1, 1, -1, 1 }
               args[n + 1] = o
               return x[name](x, unpack(args, 1, n + 1))
            end
            local whole = fill({ 12, 10 }, opts)
            -- rows 4 to 6, columns 6 to 10, rows 2, 5, 8, 11, and a transposed shard
            assert.is_true(fill({ 3, 10 }, shard(30)):equal(whole:slice(1, 4, 6)))
            assert.is_true(fill({ 12, 5 }, shard(5, { 10, 1 })):equal(whole:slice(2, 6, 10)))
            assert.is_true(fill({ 4, 10 }, shard(10, { 30, 1 })):equal(whole:slice(1, 2, 11, 3)))
            assert.is_true(fill({ 10, 12 }, shard(0, { 1, 10 })):equal(whole:t()))
         end
      end
   end)

   it('fill views in the order of the view, and nothing else', function()
      local x = tide.zeros { 6, 8 }
      x:slice(2, 3, 6):normal_(0, 1, { seed = 4 })
      assert.is_true(x:slice(2, 3, 6):equal(tide.empty({ 6, 4 }):normal_(0, 1, { seed = 4 })))
      assert.equal(0, x:slice(2, 1, 2):abs():sum():item() + x:slice(2, 7, 8):abs():sum():item())
      local y = tide.zeros { 5, 3 }
      y:t():uniform_(0, 1, { seed = 4 })
      assert.is_true(y:t():equal(tide.empty({ 3, 5 }):uniform_(0, 1, { seed = 4 })))
   end)

   it('advance the generator of the context by the number of elements', function()
      local state = tide.rng_state()
      finally(function() tide.set_rng_state(state) end)
      tide.set_rng_state { seed = 5, stream = 6, offset = 7 }
      local a, b = tide.rand { 3 }, tide.randn { 2, 5 }
      assert.are.same({ seed = 5, stream = 6, offset = 20 }, tide.rng_state())
      local opts = { seed = 5, stream = 6, offset = 7 }
      assert.is_true(a:equal(tide.empty({ 3 }):uniform_(0, 1, opts)))
      opts.offset = 10
      assert.is_true(b:equal(tide.empty({ 2, 5 }):normal_(0, 1, opts)))
      tide.empty({ 4 }):normal_(0, 1, opts)
      assert.are.same(20, tide.rng_state().offset)
   end)

   it('leave the generator where it was when they are refused, as dropout does', function()
      local state = tide.rng_state()
      local expanded = tide.zeros({ 3 }):unsqueeze(1):expand { 4, 3 }
      local recorded, gone = tide.ones({ 3 }, { requires_grad = true }) * 2, tide.ones { 3 }
      gone:release()
      for _, name in ipairs { 'uniform_', 'normal_', 'trunc_normal_' } do
         refused('E_ARG', { name, 'expanded' }, expanded[name], expanded)
         refused('E_STATE', { name, 'recorded' }, recorded[name], recorded)
         refused('E_GONE', name, gone[name], gone)
      end
      refused('E_GONE', 'dropout', gone.dropout, gone, 0.5)
      assert.are.same(state, tide.rng_state())
   end)

   it('draw once when a first try found no memory', function()
      local ctx, state = tide.default(), tide.rng_state()
      finally(function()
         ctx:param('memory', 0)
         tide.set_rng_state(state)
      end)
      local x = tide.ones { 1024, 1024 }
      collectgarbage()
      collectgarbage 'stop'
      tide.ones { 1024, 1024 }                         -- waste until the next collection
      ctx:param('memory', ctx:stats().live + 2 ^ 20)
      local y = x:dropout(0.5)
      collectgarbage 'restart'
      assert.are.same({ 1024, 1024 }, y.shape)
      assert.equal(state.offset + 2 ^ 20, tide.rng_state().offset)
   end)

   it('begin where the place says that the context was given, as dropout does', function()
      local C, handle = require('tide.ffi.lib').C, require('tide.ffi.ctx').default().handle
      local state = tide.rng_state()
      finally(function()
         C.tide_rng_place(handle, nil)
         tide.set_rng_state(state)
      end)
      local function all(device)
         local list = {}
         for _, shape in ipairs { { 5 }, { 3, 7 }, { 2, 3, 4 } } do
            local x = tide.empty(shape, { device = device })
            for _, fill in ipairs { x.uniform_, x.normal_, x.trunc_normal_ } do
               list[#list + 1] = fill(x):to('ref'):to_string_bytes()
            end
            x:normal_():requires_grad_(true)
            local y = x:dropout(0.4)
            y:sum():backward()
            list[#list + 1] = y:detach():to('ref'):to_string_bytes()
            list[#list + 1] = x.grad:to('ref'):to_string_bytes()
         end
         list[#list + 1] = tide.rng_state().offset
         return list
      end
      for _, device in ipairs(devices) do
         local elsewhere = device == 'ref' and 'cpu' or 'ref'
         for skip = 0, 3 do
            local function plain(where)
               tide.set_rng_state { seed = 5, stream = 7, offset = 2 ^ 34 + skip }
               return all(where)
            end
            local want, there = plain(device), plain(elsewhere)
            local place = tide.tensor({ 3, 6, 2 ^ 34 - 9 }, { dtype = 'i64', device = device })
            assert.equal(0, C.tide_rng_place(handle, place))
            tide.set_rng_state { seed = 2, stream = 1, offset = 9 + skip }
            local got = all(device)
            got[#got] = got[#got] + 2 ^ 34 - 9
            assert.are.same(want, got)
            assert.are.same(there, plain(elsewhere)) -- a place counts on its own device
            C.tide_rng_place(handle, nil)
         end
      end
      for _, wrong in ipairs { tide.zeros { 3 }, tide.zeros({ 4 }, { dtype = 'i64' }),
                               tide.zeros({ 3, 2 }, { dtype = 'i64' }):select(2, 1) } do
         assert.equal(C.TIDE_E_ARG, C.tide_rng_place(handle, wrong))
      end
   end)

   it('take any interval, also far out, and no deviation at all', function()
      local x = tide.empty({ 1000 }, { dtype = 'f64' })
      assert.is_true(x:normal_(3, 0):equal(tide.full({ 1000 }, 3, { dtype = 'f64' })))
      x:trunc_normal_(0, 1, 8, 9, { seed = 3 })
      assert.is_true(x:ge(8):all():item() and x:le(9):all():item())
      close(x:mean():item(), 8.121, { rel = 2e-3 })        -- phi(8) / (1 - Phi(8)) = 8.1214
      assert.is_true(x:uniform_(2, 2):equal(tide.full({ 1000 }, 2, { dtype = 'f64' })))
   end)

   it('refuse numbers and tensors they cannot fill', function()
      local x = tide.zeros { 3 }
      refused('E_ARG', { 'uniform_', 'hi' }, x.uniform_, x, 1, 0)
      refused('E_ARG', { 'uniform_', 'lo' }, x.uniform_, x, 0 / 0, 1)
      refused('E_ARG', { 'normal_', 'std' }, x.normal_, x, 0, -1)
      refused('E_ARG', { 'normal_', 'mean' }, x.normal_, x, math.huge)
      refused('E_ARG', { 'trunc_normal_', 'lo < hi' }, x.trunc_normal_, x, 0, 1, 1, 1)
      refused('E_ARG', 'trunc_normal_', x.trunc_normal_, x, 0, 1, 50, 51)
      local i = tide.zeros({ 3 }, { dtype = 'i64' })
      for _, name in ipairs { 'uniform_', 'normal_', 'trunc_normal_' } do
         refused('E_DTYPE', { name, 'i64' }, i[name], i)
         refused('E_ARG', { name, "'sed'" }, x[name], x, 0, 1, name == 'trunc_normal_' and 0
            or { sed = 1 }, name == 'trunc_normal_' and 1 or nil, { sed = 1 })
      end
      refused('E_ARG', { 'normal_', 'opts.stride' }, x.normal_, x, 0, 1, { stride = { 1, 1 } })
      refused('E_ARG', { 'normal_', 'opts.seed' }, x.normal_, x, 0, 1, { offset = 1 })
      refused('E_ARG', { 'normal_', 'opts.start' }, x.normal_, x, 0, 1, { seed = 1, start = -1 })
      assert.are.same({ 0, 0, 0 }, x:tolist())
   end)
end)
