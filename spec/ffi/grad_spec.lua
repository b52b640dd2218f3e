-- Recording, the backward loop, functions written in Lua, recomputation.

local tide = require 'tide'
local leak = require 'spec.support.leak'
local close = require 'spec.support.close'

local function leaf(...) return tide.randn({ ... }, { requires_grad = true }) end

local square = tide.grad.func {
   name = 'square3',
   forward = function(self, x, k)
      self:save(x)
      return x * x * k
   end,
   backward = function(self, dy)
      local x = self:saved()
      return dy * x * 6
   end,
}

describe('recording', function()
   it('is off inside no_grad and comes back, also after an error', function()
      local w = leaf(2)
      local y, text = tide.no_grad(function(a) return w * a, 'x' end, 2)
      assert.is_false(y.requires_grad)
      assert.equal('x', text)
      local ok, err = pcall(tide.no_grad, function() error { mine = true } end)
      assert.is_false(ok)
      assert.is_true(err.mine)
      assert.is_true(tide.is_grad_enabled())
      tide.no_grad(function()
         assert.is_false(tide.is_grad_enabled())
         assert.is_true(tide.enable_grad(function() return (w * 2).requires_grad end))
         assert.is_false(tide.is_grad_enabled())
      end)
   end)

   it('adds gradients into leaves', function()
      local w = leaf(3)
      ;(w * 2):sum():backward()
      ;(w * 3):sum():backward()
      close(w.grad, { 5, 5, 5 })
      w:zero_grad()
      assert.is_nil(w.grad)
      w:set_grad(tide.ones { 3 })
      close(w.grad, { 1, 1, 1 })
      assert.is_false(pcall(w.set_grad, w, tide.ones { 4 }))
   end)

   it('adds gradients of 16 bits up in f32 where the gradient is f32', function()
      for _, dtype in ipairs { 'bf16', 'f16' } do
         local w = tide.zeros({ 3 }, { dtype = dtype }):requires_grad_(true)
         w:set_grad(tide.full({ 3 }, 4096))
         for _ = 1, 3 do (w * 1):sum():backward() end
         assert.equal('f32', w.grad.dtype)
         close(w.grad, { 4099, 4099, 4099 })              -- 4096 in bf16: 1 is below its step
         w:zero_grad()
         ;(w * 1):sum():backward()
         assert.equal(dtype, w.grad.dtype)
         assert.is_false(pcall(w.set_grad, w, tide.ones({ 3 }, { dtype = 'f64' })))
      end
      local w = leaf(3)
      assert.is_false(pcall(w.set_grad, w, tide.ones({ 3 }, { dtype = 'bf16' })))
   end)

   it('walks twice only when told to keep', function()
      local w = leaf(3)
      local y = (w * w):sum()
      y:backward(nil, { retain = true })
      y:backward()
      close(w.grad, w * 4)
      local ok, err = pcall(y.backward, y)
      assert.is_false(ok)
      assert.equal('E_STATE', err.code)
      assert.is_false(pcall(y.backward, y, nil, { keep = true }))
   end)
end)

describe('a function written in Lua', function()
   it('gives the gradient its backward returns', function()
      local w = leaf(4)
      square(w, 3):sum():backward()
      close(w.grad, w * 6)
      local y = square(w:detach(), 3)
      assert.is_false(y.requires_grad)
   end)

   it('takes several tensors, gives several results, some without gradient', function()
      local seen
      local f = tide.grad.func {
         name = 'two',
         forward = function(_, a, b) return a + b, a * 2, 'tag' end,
         backward = function(_, d1, d2, ...)
            seen = { d1 ~= nil, d2 ~= nil, select('#', ...) }
            return d1 * 10, nil
         end,
      }
      local a, b = leaf(2), leaf(2)
      local s, _, tag = f(a, b)
      assert.equal('tag', tag)
      s:sum():backward()
      close(a.grad, { 10, 10 })
      assert.is_nil(b.grad)
      assert.same({ true, false, 0 }, seen)
   end)

   it('leaves the walk on an error, and nothing behind', function()
      local bad = tide.grad.func {
         name = 'bad',
         forward = function(_, x) return x * 1 end,
         backward = function() error 'mine' end,
      }
      leak.check(function()
         local w = leaf(2)
         local y = bad(w * 2):sum()
         local ok, err = pcall(y.backward, y)
         assert.is_false(ok)
         assert.is_true(tostring(err):find 'mine' ~= nil)
         assert.is_nil(w.grad)
         assert.is_true(tide.is_grad_enabled())
      end)
   end)

   it('refuses a gradient of the wrong shape, and one that is no tensor', function()
      for _, wrong in ipairs { tide.ones { 3 }, 'x', tide.ones({ 2 }, { dtype = 'f64' }) } do
         local f = tide.grad.func {
            name = 'wrong',
            forward = function(_, x) return x * 1 end,
            backward = function() return wrong end,
         }
         local w = leaf(2)
         local y = f(w):sum()
         local ok, err = pcall(y.backward, y)
         assert.is_false(ok)
         assert.is_true(tide.is_error(err), tostring(err))
      end
   end)

   it('notices that a saved tensor was changed', function()
      local w = leaf(2)
      local x = w * 1
      local y = square(x, 3):sum()
      tide.no_grad(function() x:fill_(0) end)
      local ok, err = pcall(y.backward, y)
      assert.is_false(ok)
      assert.equal('E_STATE', err.code)
   end)

   it('frees its records with the graph', function()
      local records = require('tide.ffi.lib').state.records
      leak.check(function()
         for _ = 1, 100 do square(leaf(4), 3) end
         leak.count()
         square(leaf(4), 3):sum():backward()
      end)
      leak.count()
      square(leaf(1), 3)
      local n = 0
      for _ in pairs(records) do n = n + 1 end
      assert.is_true(n <= 3, n .. ' records')
   end)
end)

describe('recomputation', function()
   local function block(a, b)
      local h = (a * b):tanh()
      return h * a, h:sin()
   end

   it('gives the gradients of the plain computation', function()
      local a, b = leaf(5), leaf(5)
      local p, q = block(a, b)
      ;(p * 2 + q):sum():backward()
      local da, db = a.grad, b.grad
      a:zero_grad()
      b:zero_grad()
      p, q = tide.checkpoint(block, a, b)
      ;(p * 2 + q):sum():backward()
      close(a.grad, da)
      close(b.grad, db)
   end)

   it('nests', function()
      local a = leaf(5)
      local function inner(x) return (x * x):sin() end
      local function outer(x) return tide.checkpoint(inner, x * 2) + tide.checkpoint(inner, x) end
      outer(a):sum():backward()
      local plain = a.grad
      a:zero_grad()
      tide.checkpoint(outer, a):sum():backward()
      close(a.grad, plain)
   end)

   it('reaches parameters inside when no argument wants a gradient', function()
      local w = leaf(3)
      local x = tide.ones { 3 }
      local y = tide.checkpoint(function(v) return v * w end, x)
      y:sum():backward()
      close(w.grad, { 1, 1, 1 })
   end)

   it('draws the same random numbers again, and leaves the generator alone', function()
      tide.seed(7)
      local a = tide.ones({ 1000 }, { requires_grad = true })
      local y = tide.checkpoint(function(x) return tide.dropout(x, 0.5) end, a)
      local after = tide.rng_state()
      tide.rand { 3 }
      local later = tide.rng_state()
      y:sum():backward()
      assert.same(later, tide.rng_state())
      assert.is_true(after.offset < later.offset)
      assert.is_true(a.grad:equal(y:detach()))
   end)

   it('gives everything back', function()
      local w = leaf(8, 8)
      leak.check(function()
         local x = tide.ones { 8, 8 }
         for _ = 1, 4 do
            x = tide.checkpoint(function(h) return h:matmul(w):tanh() end, x)
         end
         x:sum():backward()
         w:zero_grad()
      end)
   end)

   it('keeps the state of recording to itself when a function yields', function()
      local seen
      local f = tide.grad.func {
         forward = function(_, x) return x * 2 end,
         backward = function(_, dy)
            local got = coroutine.yield 'half way'
            seen = { got, tide.is_grad_enabled() }
            return dy * 2
         end,
      }
      local function walk(a) f(a):sum():backward() return 'done' end
      coroutine.resume(coroutine.create(walk), leaf(2))     -- never resumed
      assert.is_true(tide.is_grad_enabled())
      local a, co = leaf(2), coroutine.create(walk)
      assert.same({ true, 'half way' }, { coroutine.resume(co, a) })
      assert.is_true(tide.is_grad_enabled())
      assert.same({ true, 'done' }, { coroutine.resume(co, 'back') })
      assert.same({ 'back', false }, seen)
      assert.is_true(tide.is_grad_enabled())
      close(a.grad, { 2, 2 })
      local bad = coroutine.create(function() tide.no_grad(error, 'on purpose', 0) end)
      assert.same({ false, 'on purpose' }, { coroutine.resume(bad) })
      assert.is_true(tide.is_grad_enabled())
   end)

   it('does nothing without recording', function()
      local w = leaf(2)
      local y = tide.no_grad(tide.checkpoint, function(x) return x * w end, w)
      assert.is_false(y.requires_grad)
   end)
end)
