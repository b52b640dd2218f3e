-- Gradients of 16-bit leaves that add up in f32: products write them, nothing is rounded between.

local fast = require 'spec.support.fast'
local launched = require 'spec.support.launched'
local refused = require 'spec.support.refused'
local tide = require 'tide'

local devices = fast == 'cpu' and { 'cpu', 'ref' } or { fast }

local function random(seed, shape, dtype, device)
   return tide.empty(shape):normal_(0, 1, { seed = seed }):to { dtype = dtype, device = device }
end

-- A leaf whose gradient is begun in f32.
local function leaf(seed, shape, dtype, device)
   return random(seed, shape, dtype, device):requires_grad_():set_grad_dtype 'f32'
end

local function wide(t) return t:to { dtype = 'f64', device = 'cpu' } end

-- The kernels of the backward of fn().
local function backward_of(fn)
   local loss = fn():sum()
   return launched(function() loss:backward() end)
end

for _, device in ipairs(devices) do
   for _, dtype in ipairs { 'bf16', 'f16' } do
      describe(('the f32 gradient of a %s leaf, on %s'):format(dtype, device), function()
         it('is written by the products of every op that has one', function()
            local x = random(1, { 2, 5, 24 }, dtype, device)
            local products = {
               linear = function(w) return tide.linear(x, w) end,
               linear_act = function(w) return tide.linear_act(x, w, nil, 'gelu_tanh') end,
               matmul = function(w) return x:matmul(w) end,
               linear_fp8 = function(w) return tide.linear_fp8(x, w) end,
            }
            for name, fn in pairs(products) do
               local w = leaf(2, name == 'matmul' and { 24, 16 } or { 16, 24 }, dtype, device)
               for micro = 1, 3 do
                  local n = backward_of(function() return fn(w) end)
                  assert.equal(0, n.axpy_ + n.cast + n.add, name)
                  local added = name == 'linear_fp8' and n.fp8_add_product_ or n.addmm_
                  assert.equal(micro == 1 and 0 or 1, added, name)
               end
               assert.equal('f32', w.grad.dtype)
            end
         end)

         it('is made by linear_cross_entropy, and rounded by nothing', function()
            local function parts(n, of)
               local w, x = random(2, { 37, 24 }, of, device), random(1, { n, 24 }, of, device)
               local ids = {}
               for i = 1, n do ids[i] = (5 * i) % 37 end
               return w, random(3, { 37 }, of, device), x,
                  tide.tensor(ids, { dtype = 'i64', device = device })
            end
            local w, b = parts(1, dtype)
            for _, t in ipairs { w, b } do t:requires_grad_():set_grad_dtype 'f32' end
            local want, sum
            for micro, n in ipairs { 19, 1, 33 } do
               local _, _, x, targets = parts(n, dtype)
               local f, g, y = wide(w:detach()):requires_grad_(),
                  wide(b:detach()):requires_grad_(), wide(x)
               local loss, dy = tide.linear_cross_entropy(x, w, b, targets), { 0.75, 1, -3 }
               tide.linear_cross_entropy(y, f, g, targets:to 'cpu')
                  :backward(tide.full({}, dy[micro], { dtype = 'f64' }))
               dy = tide.full({}, dy[micro], { device = device })
               local counts = launched(function() loss:backward(dy) end)
               -- the factor of the loss is applied on the way into the sum
               local added = micro > 1 and 2 or 0
               assert.same({ added, 2 - added, 0 },
                  { counts.axpy_, counts.scale_all_, counts.add + counts.cast + counts.mul })
               want, sum = want and want + f.grad or f.grad, sum and sum + g.grad or g.grad
            end
            assert.same({ 'f32', 'f32' }, { w.grad.dtype, b.grad.dtype })
            local far = (wide(w.grad) - want):abs():amax():item() / want:abs():amax():item()
            assert.is_true(far < (dtype == 'bf16' and 4e-3 or 5e-4), tostring(far))
         end)

         it('takes the products of several uses of a leaf', function()
            local w, x = leaf(2, { 24, 24 }, dtype, device), random(1, { 5, 24 }, dtype, device)
            local n = backward_of(function() return tide.linear(tide.linear(x, w), w):matmul(w) end)
            assert.same({ 0, 2 }, { n.axpy_ + n.cast + n.add, n.addmm_ })
         end)

         it('takes the rows of an embedding in place, and no others', function()
            local w = leaf(2, { 9, 6 }, dtype, device)
            local want = tide.zeros({ 9, 6 }, { dtype = 'f64' })
            for micro, list in ipairs { { { 1, 4, 4 }, { 8, 1, 4 } }, { { 4, 4, 0 }, { 1, 7, 7 } },
                                        { {}, {} }, { { 5 }, { 5 } } } do
               local n = #list[1]
               local ids = tide.zeros({ 2, n }, { dtype = 'i64', device = device })
               if n > 0 then ids = tide.tensor(list, { dtype = 'i64', device = device }) end
               if micro == 2 then ids = ids:t():contiguous():t() end
               local dy = random(30 + micro, { 2, n, 6 }, dtype, device)
               local y = tide.embedding(w, ids)
               local counts = launched(function() y:backward(dy) end)
               assert.equal(0, counts.axpy_ + counts.cast + counts.add)
               assert.equal(micro == 1 and 1 or 0, counts.embedding_bwd)
               want = want:index_add(1, wide(ids):to 'i64':reshape { 2 * n },
                  wide(dy):reshape { 2 * n, 6 })
            end
            assert.equal('f32', w.grad.dtype)
            assert.is_true((wide(w.grad) - want):abs():amax():item() < 1e-6)
         end)

         it('is as accurate as f32 over many micro-batches of any size', function()
            for _, size in ipairs { { 1, 3, 2 }, { 3, 5, 7 }, { 33, 17, 65 }, { 16, 64, 32 } } do
               local m, n, k = unpack(size)
               local w, plain = leaf(3, { n, k }, dtype, device), leaf(3, { n, k }, dtype, device)
               plain:set_grad_dtype(dtype)
               local want = tide.zeros({ n, k }, { dtype = 'f64' })
               for micro = 1, 8 do
                  local x = random(10 + micro, { m, k }, dtype, device)
                  local dy = random(50 + micro, { m, n }, dtype, device)
                  for _, t in ipairs { w, plain } do tide.linear(x, t):backward(dy) end
                  want = want + wide(dy):t():matmul(wide(x))
               end
               local function off(t) return (wide(t.grad) - want):abs():amax():item() end
               assert.is_true(off(w) <= 4e-6 * want:abs():amax():item(), off(w))
               assert.is_true(off(w) < off(plain), off(w))
            end
         end)
      end)
   end
end

describe('the dtype of a gradient', function()
   it('is that of the leaf, of the gradient that is there, or what was asked for', function()
      local w = tide.ones({ 2, 3 }, { dtype = 'bf16' }):requires_grad_()
      assert.equal('bf16', w.grad_dtype)
      w:sum():backward()
      assert.equal('bf16', w.grad.dtype)
      assert.equal(w, w:set_grad_dtype 'f32')
      assert.equal('bf16', w.grad_dtype)
      w:sum():backward()
      assert.equal('bf16', w.grad.dtype)
      w:zero_grad()
      assert.equal('f32', w.grad_dtype)
      w:sum():backward()                       -- a rule without a product: its gradient is cast
      w:sum():backward()
      assert.same({ 'f32', 2 }, { w.grad.dtype, w.grad:amin():item() })
      w:zero_grad()
      w:set_grad_dtype 'bf16'
      w:sum():backward()
      assert.equal('bf16', w.grad.dtype)
      assert.equal('bf16', w:detach().grad_dtype)
   end)

   it('is refused where no sum has it', function()
      local function refuses(x, dtype, ...)
         refused('E_DTYPE', { 'set_grad_dtype', ... }, x.set_grad_dtype, x, dtype)
      end
      refuses(tide.ones { 2 }, 'f64', 'f32', 'f64')
      refuses(tide.ones { 2 }, 'bf16', 'f32', 'bf16')
      refuses(tide.ones({ 2 }, { dtype = 'bf16' }), 'f16', 'bf16', 'f16')
      refuses(tide.ones({ 2 }, { dtype = 'i64' }), 'f32', 'i64')
      refused('E_ARG', "field 'grad_dtype'", function()
         local x = tide.ones { 2 }
         x.grad_dtype = 'f32'
      end)
   end)

   it('does not round the sums of FP8 products', function()
      local x = random(1, { 16, 32 }, 'bf16', fast)
      local w = leaf(2, { 16, 32 }, 'bf16', fast)
      for _ = 1, 2 do
         local n = backward_of(function() return tide.linear_fp8(x, w) end)
         assert.equal(0, n.cast + n.add)
      end
      assert.equal('f32', w.grad.dtype)
   end)
end)
