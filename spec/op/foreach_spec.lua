-- Copies and sums over lists of tensors: foreach_copy_, foreach_add_.
--
-- Each is compared with copy_ and add_ pair after pair, bit by bit: every dtype, layouts, sizes 0
-- and 1, more pairs than a launch takes, targets that meet in every way; and what is refused.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local refused = require 'spec.support.refused'

local devices = { 'ref', fast }
local dtypes = { 'f32', 'f64', 'bf16', 'f16', 'i64', 'i32', 'u8', 'bool' }
local numbers = { 'f32', 'f64', 'bf16', 'f16', 'i64', 'i32', 'u8' }

local function is_float(dtype) return dtype:sub(1, 1) == 'f' or dtype == 'bf16' end

-- Quarters, exact in every float and cut off in integers; no two neighbours alike.
local function numbered(shape, dtype, device, from)
   local n = 1
   for _, s in ipairs(shape) do n = n * s end
   local list = {}
   for i = 1, n do list[i] = ((from or 0) + i * 37) % 101 / 4 end
   if n == 0 then return tide.zeros(shape, { dtype = dtype, device = device }) end
   return tide.tensor(list, { dtype = 'f64', device = device }):reshape(shape):to(dtype)
end

local function bytes(t) return t:contiguous():to_string_bytes() end

-- Views of whole, and as many sources, for one call: build(device) -> wholes, dsts, srcs.
local function same_as_pairs(device, build, what)
   for name, one in pairs { foreach_copy_ = 'copy_', foreach_add_ = 'add_' } do
      local wholes, dsts, srcs = build(device, name)
      local twins, views, sources = build(device, name)
      if dsts then
         tide[name](dsts, srcs)
         for i, view in ipairs(views) do view[one](view, sources[i]) end
         for i, whole in ipairs(wholes) do
            assert.equal(bytes(twins[i]), bytes(whole), what .. ' ' .. name)
         end
      end
   end
end

describe('foreach_copy_ and foreach_add_', function()
   for _, device in ipairs(devices) do
      for _, dtype in ipairs(dtypes) do
         it(('are copy_ and add_ for every pair: %s on %s'):format(dtype, device), function()
            for _, from in ipairs(dtypes) do
               same_as_pairs(device, function(where, name)
                  local sums = name == 'foreach_add_'
                  if sums and (dtype == 'bool' or (is_float(from) and not is_float(dtype))) then
                     return
                  end
                  local x = numbered({ 5, 6, 7 }, dtype, where)
                  local y = numbered({ 67 }, dtype, where, 5)
                  local z = numbered({ 2, 8, 16 }, dtype, where, 3)
                  local s = numbered({ 9, 16 }, from, where, 7)
                  return { x, y, z },
                     { x:narrow(2, 2, 3), y, z:narrow(3, 5, 4), x:narrow(2, 5, 1),
                       x:narrow(2, 1, 1):narrow(3, 1, 0), y:narrow(1, 1, 0), z:narrow(3, 9, 8) },
                     { numbered({ 5, 3, 7 }, from, where, 1), numbered({ 67 }, from, where, 2),
                       s:narrow(1, 1, 8):narrow(2, 9, 4):unsqueeze(1):expand { 2, 8, 4 },
                       numbered({ 7, 1, 5 }, from, where):permute(3, 2, 1),
                       numbered({ 5, 1, 0 }, from, where), numbered({ 0 }, from, where),
                       s:narrow(1, 2, 8):narrow(2, 1, 8):unsqueeze(1):expand { 2, 8, 8 } }
               end, from)
            end
         end)
      end

      it('take scalars, turned tensors and many dims on ' .. device, function()
         same_as_pairs(device, function(where)
            local a, b = numbered({}, 'f32', where), numbered({ 33, 65 }, 'f32', where)
            local c = numbered({ 2, 3, 2, 3, 2, 3 }, 'f32', where)
            return { a, b, c }, { a, b, c:permute(6, 4, 2, 1, 3, 5) },
               { numbered({}, 'bf16', where, 9), numbered({ 65, 33 }, 'f32', where, 1):t(),
                 numbered({ 3, 3, 3, 2, 2, 2 }, 'f32', where, 2) }
         end, 'odd ones')
      end)

      it('take more pairs than a launch does on ' .. device, function()
         same_as_pairs(device, function(where)
            local whole, dsts, srcs = numbered({ 3, 700 }, 'f32', where), {}, {}
            local source = numbered({ 3, 700 }, 'f32', where, 50)
            for i = 1, 350 do                            -- columns, from the last to the first
               dsts[i] = whole:narrow(2, 701 - 2 * i, 2)
               srcs[i] = source:narrow(2, 2 * i - 1, i % 7 == 0 and 1 or 2):expand { 3, 2 }
            end
            return { whole }, dsts, srcs
         end, 'columns')
      end)

      it('work in the order of the list where targets meet on ' .. device, function()
         local function case(make)
            same_as_pairs(device, function(where)
               local whole, dsts, srcs = numbered({ 6, 8 }, 'f32', where), {}, {}
               for i, view in ipairs(make(whole)) do
                  dsts[i] = view
                  srcs[i] = numbered(view.shape, 'f32', where, 10 * i)
               end
               return { whole }, dsts, srcs
            end, 'targets that meet')
         end
         case(function(x) return { x, x, x } end)
         case(function(x) return { x:narrow(2, 1, 4), x:narrow(2, 4, 3), x:narrow(2, 5, 1) } end)
         case(function(x) return { x:narrow(1, 1, 3), x:narrow(2, 2, 3), x:narrow(1, 4, 2) } end)
         case(function(x) return { x, x:t(), x:reshape { 48 }, x:select(1, 2), x:select(2, 3) } end)
         case(function(x) return { x:narrow(2, 1, 3):narrow(1, 1, 2), x:narrow(2, 3, 2) } end)
         case(function(x)
            return { x:slice(2, 1, 8, 2), x:slice(2, 2, 8, 2), x:slice(2, 1, 8, 3) }
         end)
      end)

      it('bump the version of every target on ' .. device, function()
         local a, b = tide.zeros({ 3 }, { device = device }), tide.zeros({ 2 }, { device = device })
         local va, vb = a:version(), b:version()
         tide.foreach_copy_({ a, b }, { a + 1, b + 2 })
         tide.foreach_add_({ b }, { b + 2 })
         assert.are.same({ 1, 1, 1 }, a:tolist())
         assert.are.same({ 6, 6 }, b:tolist())
         assert.equal(va + 1, a:version())
         assert.equal(vb + 2, b:version())
      end)
   end

   it('are one launch where targets lie apart, and as few as they can be elsewhere', function()
      local function launches(dsts)
         local srcs = {}
         for i, d in ipairs(dsts) do srcs[i] = tide.zeros(d.shape) end
         local before = tide.default():stats().nop
         tide.foreach_copy_(dsts, srcs)
         return tide.default():stats().nop - before
      end
      local x, flat = tide.zeros { 2, 9, 20 }, tide.zeros { 2 * 9 * 20 + 5 }
      local columns, parts = {}, {}
      for i = 0, 4 do columns[i + 1] = x:narrow(3, 4 * i + 1, 4) end
      for i = 0, 4 do                  -- columns of a matrix that begins anywhere in its storage
         parts[i + 1] = flat:narrow(1, 6, 360):reshape { 2, 9, 20 }:narrow(3, 4 * i + 1, 4)
      end
      assert.equal(1, launches(columns))
      assert.equal(1, launches(parts))
      assert.equal(1, launches { parts[5], parts[1]:narrow(2, 3, 7), parts[4], parts[2],
         parts[1]:narrow(2, 1, 2), columns[3] })
      assert.equal(1, launches { x:narrow(2, 1, 4), x:narrow(2, 6, 1), x:narrow(2, 7, 3),
         x:narrow(2, 5, 1):narrow(3, 1, 10), x:narrow(2, 5, 1):narrow(3, 11, 10) })
      assert.equal(1, launches { x:select(1, 1), x:select(1, 2) })
      assert.equal(1, launches { x:slice(3, 1, 20, 2), x:slice(3, 2, 20, 2) })
      assert.equal(1, launches { tide.zeros { 3 }, tide.zeros { 3 }, tide.zeros { 0 } })
      assert.equal(3, launches { x, x, x })
      assert.equal(2, launches { columns[1], columns[2], x:narrow(3, 8, 2), columns[5] })
   end)

   it('do nothing on no device and for empty lists', function()
      tide.foreach_copy_({}, {})
      tide.foreach_add_({}, {})
      local a, b = tide.empty({ 3 }, { device = 'null' }), tide.empty({ 3 }, { device = 'null' })
      tide.foreach_copy_({ a }, { b })
      tide.foreach_add_({ a }, { b })
      assert.equal('null', a.device)
   end)

   it('refuse what they cannot do, before anything is written', function()
      local x, y = tide.ones { 2, 3 }, tide.ones { 3 }
      local z = tide.zeros { 2, 3 }
      for _, name in ipairs { 'foreach_copy_', 'foreach_add_' } do
         local f = tide[name]
         refused('E_ARG', { name, 'dsts' }, f, nil, { z })
         refused('E_ARG', { name, 'srcs' }, f, { x }, z)
         refused('E_ARG', { name, 'srcs', '2 tensors', 'dsts' }, f, { x, y }, { z })
         refused('E_ARG', { name, 'dsts[2]' }, f, { x, 3 }, { z, z })
         refused('E_ARG', { name, 'srcs[2]' }, f, { x, y }, { z, false })
         refused('E_SHAPE', { name, 'srcs[2]', '[2, 3]', 'target', '[3]' }, f, { x, y }, { z, z })
         refused('E_SHAPE', { name, 'srcs[1]', '[3]', '[2, 3]' }, f, { x }, { tide.zeros { 3 } })
         refused('E_DEVICE', { name, 'srcs[1]', 'ref', 'cpu' }, f, { x }, { z:to 'ref' })
         refused('E_ARG', { name, 'srcs[1]', 'storage' }, f, { x }, { x })
         refused('E_ARG', { name, 'srcs[2]', 'storage' }, f, { y, x:select(1, 1) },
            { tide.zeros { 3 }, x:select(1, 2) })
         refused('E_ARG', { name, 'expanded' }, f, { z, y:unsqueeze(1):expand { 2, 3 } }, { x, x })
         local gone = tide.ones { 3 }
         gone:release()
         refused('E_GONE', { name, 'srcs[2]' }, f, { x, y }, { z, gone })
         refused('E_GONE', { name, 'dsts[2]' }, f, { x, gone }, { z, y })
         local w = tide.ones({ 3 }, { requires_grad = true })
         refused('E_STATE', { name, 'srcs[2]', 'needs a gradient', 'no_grad' }, f, { x, y },
            { z, w })
         refused('E_STATE', { name, 'target needs a gradient', 'no_grad' }, f, { x, w },
            { z, tide.zeros { 3 } })
         tide.no_grad(function() f({ w }, { tide.zeros { 3 } }) end)
      end
      refused('E_DTYPE', { 'foreach_add_', 'dsts[1]', 'bool' }, tide.foreach_add_, { x:to 'bool' },
         { z })
      refused('E_DTYPE', { 'foreach_add_', 'i32', 'srcs[1]', 'f32' }, tide.foreach_add_,
         { x:to 'i32' }, { z })
      assert.are.same({ { 1, 1, 1 }, { 1, 1, 1 } }, x:tolist())
      assert.are.same({ 1, 1, 1 }, y:tolist())
   end)

   it('give the same bits on any number of threads', function()
      finally(function() tide.set_nthread(2) end)
      for _, dtype in ipairs(numbers) do
         local want
         for _, n in ipairs { 1, 2, 3 } do
            tide.set_nthread(n)
            local x = numbered({ 90, 1001 }, dtype)
            local s = numbered({ 90, 1001 }, dtype, nil, 11)
            tide.foreach_add_({ x:narrow(2, 1, 500), x:narrow(2, 501, 501) },
               { s:narrow(2, 1, 500), s:narrow(2, 501, 501) })
            tide.foreach_copy_({ x:narrow(2, 7, 400) }, { s:narrow(2, 9, 400) })
            want = want or bytes(x)
            assert.equal(want, bytes(x))
         end
      end
   end)
end)
