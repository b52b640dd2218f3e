-- Storages and step scopes: bytes that go at a known moment while handles stay safe.

local ffi = require 'ffi'
local tide = require 'tide'
local C = require('tide.ffi.lib').C
local leak = require 'spec.support.leak'
local close = require 'spec.support.close'
local refused = require 'spec.support.refused'

-- Bytes handed out since the mark and not given back; what is older does not count.
local function live() return tide.stats().since end

describe('a scope', function()
   it('drops the bytes of what is born inside, keeps its results, leaves what was there', function()
      local outside = tide.ones { 100 }
      tide.default():mark()
      local inner, view
      local kept, nested = tide.scope(function()
         inner = tide.ones { 100 }
         view = outside:slice(1, 1, 5)
         return inner * 2, { deep = { inner * 3 } }
      end)
      assert.equal(2 * 448, live())                          -- 400 bytes take 448
      assert.is_true(inner:is_gone())
      refused('E_GONE', { 'exp', 'argument 1', 'dropped', 'scope' }, inner.exp, inner)
      assert.are.same({ 100 }, inner.shape)
      assert.equal(200, kept:sum():item())
      assert.equal(300, nested.deep[1]:sum():item())
      assert.equal(5, view:sum():item())
   end)

   it('keeps the bytes that a kept view looks at', function()
      local view = tide.scope(function() return tide.arange(10):slice(1, 3, 4) end)
      assert.are.same({ 2, 3 }, view:tolist())
   end)

   it('hands what it keeps to the scope around it', function()
      local a, b, c
      local kept = tide.scope(function()
         c = tide.ones { 2 }
         b = tide.scope(function()
            a = tide.ones { 2 }
            return a + c
         end)
         assert.is_true(a:is_gone())
         assert.is_false(b:is_gone())
         assert.is_false(c:is_gone())
         return b * 2
      end)
      assert.is_true(b:is_gone())
      assert.is_true(c:is_gone())
      assert.are.same({ 4, 4 }, kept:tolist())
   end)

   it('lets gradients of leaves out, whatever scope they are made in', function()
      local w = tide.ones({ 3 }, { requires_grad = true })
      tide.scope(function()
         tide.scope(function() (w * 2):sum():backward() end)
      end)
      close(w.grad, { 2, 2, 2 })
      tide.scope(function() (w * 3):sum():backward() end)    -- added to one from another scope
      close(w.grad, { 5, 5, 5 })
      tide.scope(function() w:set_grad(tide.ones { 3 }) end)
      close(w.grad, { 1, 1, 1 })
   end)

   it('is left in order when the function fails', function()
      local inner
      tide.default():mark()
      local ok, err = pcall(tide.scope, function()
         tide.scope(function()
            inner = tide.ones { 1000 }
            error('stop', 0)
         end)
      end)
      assert.is_false(ok)
      assert.equal('stop', err)
      assert.is_true(inner:is_gone())
      assert.equal(0, live())
      assert.equal(C.TIDE_E_STATE, C.tide_scope_pop(tide.default().handle, 1, nil, 0))
   end)

   it('drops what a graph saved, and the walk says so', function()
      local w = tide.ones({ 3 }, { requires_grad = true })
      local loss = tide.scope(function() return (w * 2):square():sum() end)
      refused('E_GONE', { 'backward', 'square', 'inside the scope' }, loss.backward, loss)
      assert.is_nil(w.grad)
   end)

   it('does not mind handles released inside, in any order', function()
      leak.check(function()
         tide.scope(function()
            local list = {}
            for i = 1, 50 do list[i] = tide.ones { i } end
            for i = 1, 50, 2 do list[i]:release() end
            for i = 1, 50, 3 do list[i] = nil end
            collectgarbage()
            return list[50]
         end)
      end)
   end)

   it('belongs to its context', function()
      local ctx = assert(tide.open {})
      local other, own
      ctx:scope(function()
         own = ctx:ones { 2 }
         other = tide.ones { 2 }
      end)
      assert.is_true(own:is_gone())
      assert.is_false(other:is_gone())
      ctx:close()
   end)
end)

describe('a dropped tensor', function()
   it('drops every view and says so to every reader', function()
      local x = tide.arange(6):reshape(2, 3)
      local view = x:t()
      view:release()
      assert.is_true(x:is_gone())
      assert.is_true(C.tide_tensor_data(x) == nil)
      refused('E_GONE', 'dropped', x.tolist, x)
      refused('E_GONE', 'dropped', x.to_string_bytes, x)
      refused('E_GONE', { 'fill_', 'target' }, x.fill_, x, 1)
      refused('E_GONE', 'to_device', x.to, x, 'ref')
      refused('E_GONE', 'backward', function()
         local w = tide.ones({ 2 }, { requires_grad = true })
         local y = w * w
         w:release()
         y:sum():backward()
      end)
      x:release()                                            -- changes nothing
      assert.equal('f32', x.dtype)
      assert.is_truthy(tostring(x):find('dropped', 1, true))
   end)

   it('gives its bytes back once', function()
      tide.default():mark()
      local x = tide.ones { 1000 }
      local view = x:slice(1, 1, 10)
      assert.equal(4032, live())                             -- a multiple of 64
      x:release()
      assert.equal(0, live())
      view:release()
      assert.equal(0, live())
   end)

   it('of no elements is gone too', function()
      local x = tide.zeros { 0 }
      x:release()
      assert.is_true(x:is_gone())
      refused('E_GONE', 'argument 1', x.sum, x)
   end)
end)

describe('bytes that come back', function()
   local function product()
      local flat = tide.arange(8):float():add_(1)            -- two weights in one storage
      local a = flat:slice(1, 1, 4):reshape(2, 2):requires_grad_()
      local b = flat:slice(1, 5, 8):reshape(2, 2):requires_grad_()
      local x = tide.tensor({ { 1, 2 }, { 3, 4 } }):requires_grad_()
      return flat, a, b, x, ((x:matmul(a)):matmul(b)):sum()
   end

   local function fill(flat, by) flat:copy_(tide.arange(8):float():add_(by)) end

   it('serve the tape when they are the same again', function()
      local _, a0, b0, x0, loss0 = product()
      loss0:backward()
      leak.mark()
      local flat, a, b, x, loss = product()
      local before = leak.since()
      flat:drop_bytes():drop_bytes()
      assert.equal(before - 64, live())
      assert.is_true(a:is_gone() and b:is_gone())
      refused('E_GONE', 'argument 1', a.sum, a)
      a:restore_bytes():restore_bytes()                      -- through any view
      assert.equal(before, live())
      tide.no_grad(function()
         a:copy_(tide.tensor { { 1, 2 }, { 3, 4 } })
         b:copy_(tide.tensor { { 5, 6 }, { 7, 8 } })
      end)
      b:refilled()
      loss:backward()
      for _, pair in ipairs { { a, a0 }, { b, b0 }, { x, x0 } } do
         assert.are.same(pair[2].grad:tolist(), pair[1].grad:tolist())
      end
   end)

   it('are refused by the walk while absent and when nothing was declared', function()
      local flat, _, _, _, loss = product()
      flat:drop_bytes()
      refused('E_GONE', 'backward', loss.backward, loss)
      flat, _, _, _, loss = product()
      flat:drop_bytes():restore_bytes()
      fill(flat, 2)
      refused('E_STATE', { 'backward', 'changed in place' }, loss.backward, loss)
      flat, _, _, _, loss = product()
      flat:drop_bytes():restore_bytes()                      -- not even filled
      refused('E_STATE', { 'backward', 'changed in place' }, loss.backward, loss)
   end)

   it('are changed again by a write after the declaration', function()
      local flat, _, _, _, loss = product()
      flat:drop_bytes():restore_bytes()
      fill(flat, 1)
      flat:refilled():mul_(2)
      refused('E_STATE', { 'backward', 'changed in place' }, loss.backward, loss)
   end)

   it('must be restored before they can be declared, and once', function()
      local x = tide.ones { 4 }
      refused('E_STATE', 'refilled', x.refilled, x)
      x:drop_bytes()
      refused('E_GONE', 'refilled', x.refilled, x)
      x:restore_bytes():fill_(1)
      x:refilled()
      refused('E_STATE', 'refilled', x.refilled, x)
      x:drop_bytes():restore_bytes():fill_(2)                -- changed, and said nothing
      local y = x:square()
      x:drop_bytes():restore_bytes():fill_(2)
      x:refilled()
      assert.equal(16, y:sum():item())
      assert.equal(8, x:sum():item())
   end)

   it('outlive the scope they are restored in', function()
      local x = tide.zeros { 4 }
      tide.scope(function() x:drop_bytes():restore_bytes():fill_(3) end)
      assert.equal(12, x:sum():item())
      local y
      tide.scope(function() y = tide.ones { 4 } end)
      assert.equal(4, y:restore_bytes():fill_(1):sum():item())
   end)

   it('are counted against the memory parameter', function()
      local ctx = assert(tide.open { params = 'memory=8m' })
      local x = ctx:empty { 2 ^ 20 }
      x:drop_bytes()
      local y = ctx:empty { 2 ^ 20 + 2 ^ 19 }
      refused('E_NOMEM', 'memory parameter', x.restore_bytes, x)
      assert.is_true(x:is_gone())
      y:release()
      assert.equal(2 ^ 20, x:restore_bytes():fill_(1):sum():item())
      x:release()
      ctx:close()
   end)
end)

describe('a null pointer', function()
   it('is an error of the contract, not a crash', function()
      local box = ffi.new 'tide_tensor *[1]'
      local x = tide.ones { 2 }
      assert.equal(C.TIDE_E_ARG, C.tide_add(box, x, nil))
      assert.is_true(box[0] == nil)
      assert.is_truthy(ffi.string(C.tide_error(tide.default().handle).message):find 'argument 2')
      assert.is_true(C.tide_neg(box, nil) < 0)
      C.tide_tensor_release(nil)
      C.tide_backward_release(nil)
      C.tide_ctx_release(nil)
   end)
end)
