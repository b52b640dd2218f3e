-- How many products cuBLASLt is asked for, by the batch dims of matmul. On the emulated library,
-- which counts: run by emulated_op_spec.lua.

local ffi = require 'ffi'
local emulated = require 'spec.cuda.emulated'
local tide = require 'tide'

ffi.cdef 'long tide_emulate_products(void);'
local lib = ffi.load(emulated.build .. '/libcublasLt.so.13')

local function random(seed, shape)
   return tide.empty(shape):normal_(0, 1, { seed = seed }):to 'cuda'
end

-- Products of a b, whose numbers are those of the reference.
local function products(a, b)
   local before = lib.tide_emulate_products()
   local y = a:matmul(b)
   local n = tonumber(lib.tide_emulate_products() - before)
   local want = a:to 'ref':matmul(b:to 'ref')
   assert.same(want.shape, y.shape)
   assert.is_true((y:to 'ref' - want):abs():amax():item() < 1e-4)
   return n
end

describe('a batched matmul on CUDA', function()
   it('is one product where one stride, or none, leads from matrix to matrix', function()
      assert.equal(1, products(random(1, { 5, 4, 3 }), random(2, { 5, 3, 2 })))
      assert.equal(1, products(random(1, { 2, 5, 4, 3 }), random(2, { 2, 5, 3, 2 })))
      assert.equal(1, products(random(1, { 2, 5, 4, 3 }), random(2, { 3, 2 })))
      assert.equal(1, products(random(1, { 2, 5, 1, 3 }), random(2, { 3, 2 })))
      assert.equal(1, products(random(1, { 4, 3 }), random(2, { 2, 5, 3, 2 })))
   end)

   it('is one where heads share a matrix, of rows that go on evenly', function()
      assert.equal(1, products(random(1, { 3, 4, 5, 6 }), random(2, { 3, 1, 6, 7 })))
      assert.equal(1, products(random(1, { 3, 4, 1, 6 }), random(2, { 3, 1, 6, 7 })))
   end)

   it('is as many as the shorter batch dim, where no stride serves both', function()
      assert.equal(2, products(random(1, { 2, 1, 4, 3 }), random(2, { 1, 5, 3, 2 })))
      assert.equal(2, products(random(1, { 5, 1, 4, 3 }), random(2, { 1, 2, 3, 2 })))
      assert.equal(2, products(random(1, { 2, 5, 4, 3 }), random(2, { 5, 3, 2 })))
   end)

   it('takes transposed operands in place', function()
      local a, b = random(1, { 5, 3, 4 }):transpose(2, 3), random(2, { 5, 2, 3 }):transpose(2, 3)
      assert.equal(1, products(a, b))
      a, b = random(1, { 5, 4, 6, 3 }):transpose(3, 4), random(2, { 5, 1, 6, 7 })
      assert.equal(4, products(a, b))
   end)
end)
