-- Tensors as views: which ops share bytes, with which strides, and the bounded text form.

local ffi = require 'ffi'
local tide = require 'tide'
local C = require('tide.ffi.lib').C
local refused = require 'spec.support.refused'

local function strides(x)
   local s = {}
   for d = 1, x.ndim do s[d] = x:stride(d) end
   return s
end

-- shape, strides and values of a view of base.
local function check(base, view, shape, stride, values)
   assert.is_true(view:same_storage(base))
   assert.are.same(shape, view.shape)
   assert.are.same(stride, strides(view))
   assert.are.same(values, view:tolist())
   assert.is_true(view:contiguous():is_contiguous())
   assert.are.same(values, view:contiguous():tolist())
end

describe('views', function()
   local x = tide.arange(24, { dtype = 'i32' }):reshape(2, 3, 4)

   it('share bytes and have the strides of their meaning', function()
      check(x, x:select(2, 2), { 2, 4 }, { 12, 1 }, { { 4, 5, 6, 7 }, { 16, 17, 18, 19 } })
      check(x, x:slice(3, 2, 4, 2), { 2, 3, 2 }, { 12, 4, 2 },
            { { { 1, 3 }, { 5, 7 }, { 9, 11 } }, { { 13, 15 }, { 17, 19 }, { 21, 23 } } })
      check(x, x:select(1, 1):t(), { 4, 3 }, { 1, 4 },
            { { 0, 4, 8 }, { 1, 5, 9 }, { 2, 6, 10 }, { 3, 7, 11 } })
      check(x, x:select(1, -1):select(2, -1), { 3 }, { 4 }, { 15, 19, 23 })
      check(x, x:slice(2, 3, 3):squeeze(2):unsqueeze(1), { 1, 2, 4 }, strides(
            x:slice(2, 3, 3):squeeze(2):unsqueeze(1)), { { { 8, 9, 10, 11 }, { 20, 21, 22, 23 } } })
      check(x, x:reshape(6, 4):slice(1, 2, 6, 2):reshape(3, 2, 2), { 3, 2, 2 }, { 8, 2, 1 },
            { { { 4, 5 }, { 6, 7 } }, { { 12, 13 }, { 14, 15 } }, { { 20, 21 }, { 22, 23 } } })
      local row = x:select(1, 1):select(1, 1)
      check(x, row:expand(2, 4), { 2, 4 }, { 0, 1 }, { { 0, 1, 2, 3 }, { 0, 1, 2, 3 } })
      check(x, x:slice(1, 1, 0), { 0, 3, 4 }, { 12, 4, 1 }, {})
   end)

   it('of views compose', function()
      local y = x:permute(3, 1, 2):slice(1, 2, 3):select(2, 2):t()
      check(x, y, { 3, 2 }, { 4, 1 }, { { 13, 14 }, { 17, 18 }, { 21, 22 } })
      assert.is_false(y:is_contiguous())
      assert.equal(13, y:at(1, 1))
      assert.equal(22, y:at(-1, -1))
   end)

   it('are copies only where strides cannot say it', function()
      assert.is_false(x:t():reshape(24):same_storage(x))
      assert.are.same({ 0, 4, 8, 1, 5, 9 }, x:t():reshape(24):slice(1, 1, 6):tolist())
      assert.is_true(x:permute(2, 1, 3):reshape(3, 2, 2, 2):same_storage(x))
      assert.is_false(x:slice(3, 1, 3):reshape(6, 3):clone():same_storage(x))
      assert.is_true(x:slice(3, 1, 3):reshape(6, 3):same_storage(x))
      assert.is_true(tide.zeros({ 1, 5 }):expand(3, 5):reshape(15):is_contiguous())
   end)

   it('of empty and of single elements are contiguous, whatever their strides', function()
      assert.is_true(x:slice(2, 1, 0):is_contiguous())
      assert.is_true(x:slice(1, 2, 2):slice(2, 3, 3):slice(3, 2, 2):is_contiguous())
      assert.is_true(x:select(2, 1):select(1, 1):is_contiguous())
      assert.is_false(x:select(2, 1):is_contiguous())
   end)

   it('of no elements take any shape without them, and infer it where it is one', function()
      local empty = tide.zeros { 0, 3 }
      assert.are.same({ 0 }, empty:reshape(-1).shape)
      assert.are.same({ 0, 5 }, empty:reshape(-1, 5).shape)
      assert.are.same({ 4, 0 }, empty:reshape(4, 0).shape)
      refused('E_SHAPE', { 'reshape', 'another is 0' }, empty.reshape, empty, -1, 0)
   end)

   it('answer for dims that are not there', function()
      assert.equal(-1, tonumber(C.tide_tensor_dim(x, 3)))
      assert.equal(-1, tonumber(C.tide_tensor_dim(x, -4)))
      assert.equal(-1, tonumber(C.tide_tensor_stride(x, 3)))
      assert.equal(4, tonumber(C.tide_tensor_dim(x, -1)))
   end)

   it('carry at most eight dims', function()
      local deep = tide.ones { 1, 1, 1, 1, 1, 1, 1, 1 }
      assert.equal(8, deep.ndim)
      refused('E_ARG', { 'unsqueeze', 'at most 8' }, deep.unsqueeze, deep, 1)
      local box, shape = ffi.new 'tide_tensor *[1]', ffi.new('int64_t[9]', 1)
      local ctx = tide.default().handle
      assert.equal(C.TIDE_E_SHAPE, C.tide_empty(box, ctx, 1, 0, 9, shape))
      assert.equal(C.TIDE_E_SHAPE, C.tide_empty(box, ctx, 1, 0, -1, shape))
      assert.equal(C.TIDE_E_SHAPE, C.tide_empty(box, ctx, 1, 0, 1, nil))
      assert.equal(C.TIDE_E_DTYPE, C.tide_empty(box, ctx, 1, 8, 1, shape))
      assert.equal(C.TIDE_E_DEVICE, C.tide_empty(box, ctx, 9, 0, 1, shape))
      shape[0], shape[1] = 2 ^ 62, 4
      assert.equal(C.TIDE_E_SHAPE, C.tide_empty(box, ctx, 1, 0, 2, shape))
      assert.is_true(box[0] == nil)
   end)
end)

describe('handles', function()
   it('have an id that never comes again', function()
      local seen = {}
      for _ = 1, 2000 do
         local id = tide.zeros({}).id
         assert.is_nil(seen[id])
         seen[id] = true
      end
   end)

   it('are counted', function()
      local ctx = assert(tide.open {})                       -- nothing else is made in it
      finally(function() ctx:close() end)
      local x = ctx:ones { 3 }
      assert.equal(1, ctx:stats().ntensor)
      for _ = 1, 5 do C.tide_tensor_retain(x) end
      assert.equal(1, ctx:stats().ntensor)
      for _ = 1, 5 do C.tide_tensor_release(x) end
      assert.equal(3, x:sum():item())
   end)

   it('go between bytes, doubles and devices without loss', function()
      for _, dtype in ipairs { 'f32', 'f64', 'bf16', 'f16', 'i64', 'i32', 'u8', 'bool' } do
         local bytes = {}
         for i = 1, 3 * C.tide_dtype_size(require('tide.ffi.arg').dtype_code[dtype]) do
            bytes[i] = string.char(dtype == 'bool' and i % 2 or (i * 37) % 64)
         end
         local text = table.concat(bytes)
         local x = tide.from_string(text, { 3 }, { dtype = dtype })
         assert.equal(text, x:to_string_bytes())
         assert.equal(text, x:to('ref'):to('cpu'):to_string_bytes())
         assert.equal(text, x:to('ref'):clone():to_string_bytes())
      end
   end)
end)

describe('the text form', function()
   local function format(x, n, data)
      local buf = ffi.new('char[?]', n + 8)
      ffi.fill(buf, n + 8, 0x7e)
      assert.equal(0, C.tide_tensor_format(x, buf, n, data))
      for i = n, n + 7 do assert.equal(0x7e, buf[i]) end     -- nothing behind the end
      local text = ffi.string(buf)
      assert.is_true(#text < n)
      return text
   end

   it('shows shape, dtype, device and values', function()
      assert.equal('tensor f32 [2, 2] cpu {{1, 2}, {3, 4.5}}',
                   format(tide.tensor { { 1, 2 }, { 3, 4.5 } }, 100, 1))
      assert.equal('tensor i64 [] ref 7',
                   format(tide.full({}, 7, { dtype = 'i64', device = 'ref' }), 100, 1))
      assert.equal('tensor bool [2] cpu {true, false}', format(tide.tensor { true, false }, 100, 1))
      assert.equal('tensor f32 [2, 0] cpu {{}, {}}', format(tide.zeros { 2, 0 }, 100, 1))
      assert.equal('tensor f32 [2] cpu', format(tide.zeros { 2 }, 100, 0))
      assert.is_truthy(format(tide.ones({ 2 }, { requires_grad = true }), 100, 0)
         :find 'requires_grad')
   end)

   it('never writes past its buffer, whatever the size of either', function()
      local big, deep = tide.zeros { 300, 300 }, tide.zeros { 2, 2, 2, 2, 2, 2, 2, 2 }
      for n = 1, 70 do
         format(big, n, 1)
         format(deep, n, 1)
         format(big, n, 0)
      end
      assert.is_true(#format(big, 100000, 1) < 1000)
      assert.is_truthy(format(big, 4000, 1):find('...', 1, true))
      assert.equal(C.TIDE_E_ARG, C.tide_tensor_format(big, nil, 10, 1))
      assert.equal(C.TIDE_E_ARG, C.tide_tensor_format(big, ffi.new 'char[1]', 0, 1))
   end)

   it('reads views and leaves the tape alone', function()
      local ctx = assert(tide.open {})
      finally(function() ctx:close() end)
      local w = ctx:tensor({ { 1, 2 }, { 3, 4 } }, { requires_grad = true })
      assert.is_truthy(tostring(w:t()):find('{{1, 3}, {2, 4}}', 1, true))
      assert.is_true(ctx:stats().nnode <= 1)                 -- that of the view
   end)
end)
