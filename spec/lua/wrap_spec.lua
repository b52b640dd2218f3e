-- nn/wrap: functions around a call or a method of a module.

local tide = require 'tide'
local class = require 'tide.class'
local nn = require 'tide.nn'
local raised = require 'spec.support.raised'

local Twice = class('Twice', nn.Module)
Twice.mixes = false
function Twice:inside(x) return x * 2 end
function Twice:forward(x, y) return self:inside(x), y end

local function noting(log, name)
   return function(next, self, ...)
      log[#log + 1] = name
      local a, b = next(self, ...)
      log[#log + 1] = '/' .. name
      return a, b
   end
end

describe('a wrap', function()
   it('stands around the call, a later one further outside, and goes', function()
      local m, log = Twice(), {}
      local a = m:wrap('a', noting(log, 'a'))
      local b = m:wrap('b', noting(log, 'b'))
      assert.same({ 'a', 'b' }, m:wraps())
      assert.same({ 6, 'y' }, { m(3, 'y') })
      assert.same({ 'b', 'a', '/a', '/b' }, log)
      a.remove()
      a.remove()
      assert.same({ 'b' }, m:wraps())
      b.remove()
      assert.equal('b', b.name)
      assert.same({}, m:wraps())
      assert.equal(Twice()._call, m._call)
   end)

   it('changes inputs and outputs, also without what is inside', function()
      local m = Twice()
      m:wrap('plus', function(next, self, x, y) return next(self, x + 1, y) end)
      assert.equal(8, (m(3)))
      m:wrap('none', function(_, _, x) return x end)
      assert.equal(3, (m(3)))
   end)

   it('stands by its order: inside of hooks, hooks inside of recomputation', function()
      local m, log = Twice(), {}
      m:hook_pre(function() log[#log + 1] = 'pre' end)
      m:hook_post(function() log[#log + 1] = 'post' end)
      m:wrap('in', noting(log, 'in'))
      m:wrap('out', noting(log, 'out'), { order = 30 })
      m:wrap('core', noting(log, 'core'), { order = -1 })
      assert.same({ 'core', 'in', 'hooks', 'out' }, m:wraps())
      m(1)
      assert.same({ 'out', 'pre', 'in', 'core', '/core', '/in', 'post', '/out' }, log)
   end)

   it('stands around a method, by whatever it is called', function()
      local m = Twice()
      local w = m:wrap('sum', function(next, self, x) return next(self, x) + 1 end,
         { of = 'inside' })
      assert.same({ 7, 7 }, { (m(3)), m:inside(3) })
      m:wrap('forward', function(next, self, x) return next(self, x) * 10 end, { of = 'forward' })
      assert.same({ 70, 70 }, { (m(3)), (m:forward(3)) })
      assert.same({ 'sum' }, m:wraps 'inside')
      w.remove()
      assert.equal(Twice.inside, m.inside)
      assert.equal(6, (Twice()(3)))
   end)

   it('keeps a method of the instance that was there before', function()
      local m = Twice()
      m.inside = function(_, x) return x * 5 end
      local w = m:wrap('sum', function(next, self, x) return next(self, x) + 1 end,
         { of = 'inside' })
      assert.equal(16, (m(3)))
      w.remove()
      assert.equal(15, (m(3)))
   end)

   it('may be added and removed by a call under way', function()
      local m, w = Twice(), nil
      w = m:wrap('once', function(next, self, x)
         w.remove()
         return next(self, x) + 1
      end)
      assert.equal(7, (m(3)))
      assert.equal(6, (m(3)))
   end)

   it('sees the loss of a model, and lets the user see logits of its head', function()
      local config = { vocab_size = 11, hidden_size = 8, num_hidden_layers = 1,
         num_attention_heads = 2, intermediate_size = 12 }
      local model = tide.model.llama(config, { seed = 1 })
      local ids = tide.tensor({ { 1, 2, 3 } }, { dtype = 'i64' })
      local plain = model:loss(ids, ids):item()
      local w = model:wrap('double', function(next, self, ...) return next(self, ...) * 2 end)
      assert.near(2 * plain, model:loss(ids, ids):item(), 1e-5)
      w.remove()
      local shape
      model.lm_head:wrap('see', function(next, self, x)
         local y = next(self, x)
         shape = y.shape
         return y
      end)
      assert.near(plain, model:loss(ids, ids):item(), 1e-5)
      assert.same({ 1, 3, 11 }, shape)
   end)

   it('is in gradients and in recomputation', function()
      local function run(policy)
         local stack = nn.Stack { nn.Linear(2, 2, { seed = 1 }) }
         stack[1]:wrap('square', function(next, self, x) return next(self, x:square()) end)
         tide.parallel.recompute(stack, policy)
         local x = tide.tensor({ { 1, 2 } }):requires_grad_(true)
         stack(x):sum():backward()
         return x.grad:tolist()
      end
      assert.same(run 'none', run 'full')
   end)

   it('is refused with what is wrong', function()
      local m = Twice()
      local function bad(words, ...)
         local e = raised(m.wrap, m, ...)
         assert.equal('E_ARG', e.code)
         assert.matches(words, tostring(e))
      end
      local function fn() end
      bad("'name'", 3, fn)
      bad("'name'", '', fn)
      bad("'fn'", 'a', 3)
      bad("'of'", 'a', fn, { of = 'insid' })
      bad("'of'", 'a', fn, { of = 'parameters' })
      bad("'order'", 'a', fn, { order = 'last' })
      bad("'ordr'", 'a', fn, { ordr = 1 })
      m:wrap('a', fn)
      bad("'a' is around this call already", 'a', fn)
      m:wrap('a', fn, { of = 'inside' })
   end)

   it('is known by its name where code asks for other ones', function()
      local wrap, m = require 'tide.nn.wrap', Twice()
      assert.is_false(wrap.is_around(m, 'inside', 'a'))
      local a = m:wrap('a', noting({}, 'a'), { of = 'inside' })
      assert.is_false(wrap.is_around(m, 'inside', 'a'))
      assert.is_true(wrap.is_around(m, 'inside', 'b'))
      assert.is_false(wrap.is_around(m, 'call', 'b'))
      m:wrap('b', noting({}, 'b'), { of = 'inside' })
      assert.is_true(wrap.is_around(m, 'inside', 'a'))
      a:remove()
      assert.is_false(wrap.is_around(m, 'inside', 'b'))
   end)

   it('stands in for the field inner of 0.1', function()
      local m = nn.Attention { dim = 4, heads = 2, seed = 1 }
      local x = tide.ones { 1, 2, 4 }
      local want = m(x)
      m.inner = function(q, k, v, o) return tide.attention(q, k, v, o) end
      assert.same({ 'inner' }, m:wraps 'attend')
      assert.is_true(want:equal(m(x)))
      m.inner = function(q) return q * 0 end
      assert.equal(0, m(x):abs():sum():item())
   end)
end)
