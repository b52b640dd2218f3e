-- Ops made of other ops: against loops, their gradients, and what they refuse.

local tide = require 'tide'
local close = require 'spec.support.close'
local refused = require 'spec.support.refused'
local fast = require 'spec.support.fast'

describe('an alpha', function()
   it('is refused where an op has none', function()
      local x = tide.ones { 2 }
      for name, fn in pairs { add = function() return x:add(x, 3) end,
         sub = function() return tide.sub(x, 1, { alpha = 3 }) end,
         foreach_add_ = function() tide.foreach_add_({ x }, { tide.ones { 2 } }, 2) end } do
         local ok, e = pcall(fn)
         assert.is_false(ok)
         assert.same({ 'E_ARG', name }, { e.code, e.op })
         assert.matches('alpha', e.message, 1, true)
      end
   end)
end)

describe('a tensor like another', function()
   it('has its shape, dtype and device, or those given', function()
      local x = tide.randn({ 2, 3 }, { dtype = 'bf16', device = fast })
      for name, value in pairs { zeros_like = 0, ones_like = 1 } do
         local y = tide[name](x)
         assert.same({ { 2, 3 }, 'bf16', fast }, { y.shape, y.dtype, y.device })
         assert.equal(6 * value, y:to('f32'):sum():item())
         y = tide[name](x, { dtype = 'i32', device = 'ref' })
         assert.same({ 'i32', 'ref' }, { y.dtype, y.device })
         assert.is_false(tide[name](x:detach():requires_grad_(true)).requires_grad)
      end
      close(tide.full({ 3, 2 }, -2.5), x:t():full_like(-2.5):to { dtype = 'f32', device = 'cpu' })
      assert.same({}, tide.ones_like(tide.tensor(3)).shape)
      assert.same({ 0, 4 }, tide.zeros_like(tide.ones { 0, 4 }).shape)
      refused('E_ARG', { 'zeros_like', "'x'" }, tide.zeros_like, 3)
      refused('E_ARG', { 'ones_like', "mean 'dtype'" }, tide.ones_like, x, { dtyp = 'f32' })
      refused('E_ARG', { 'full_like', "'value'" }, tide.full_like, x, 'a')
   end)
end)

describe('a triangle', function()
   it('keeps what lies on its side of a diagonal', function()
      for _, shape in ipairs { { 3, 4 }, { 4, 3 }, { 2, 3, 3 }, { 0, 3 }, { 1, 1 } } do
         local x = tide.rand(shape, { device = fast }) + 1
         local R, C = shape[#shape - 1], shape[#shape]
         for _, d in ipairs { -5, -1, 0, 1, 5 } do
            local keep = {}
            for i = 1, R do
               keep[i] = {}
               for j = 1, C do keep[i][j] = j - i <= d and 1 or 0 end
            end
            local mask = R > 0 and tide.tensor(keep, { device = fast })
               or tide.zeros({ R, C }, { device = fast })
            close(x * mask, x:tril(d))
            close(x * (1 - mask), tide.triu(x, d + 1))
         end
      end
      local x = tide.tensor { { 1, 0 / 0 }, { 3, 4 } }
      assert.same({ { 1, 0 }, { 3, 4 } }, x:tril():tolist())        -- what is left out is 0
      assert.equal('i64', tide.ones({ 2, 2 }, { dtype = 'i64' }):triu().dtype)
      local mask = tide.ones({ 2, 2 }, { dtype = 'bool' })
      assert.same({ { true, false }, { true, true } }, mask:tril():tolist())
      assert.same({ { false, true }, { false, false } }, mask:triu(1):tolist())
      refused('E_SHAPE', 'tril', tide.tril, tide.ones { 3 })
      refused('E_ARG', { 'triu', 'diagonal' }, tide.triu, x, 0.5)
   end)

   it('has the gradient of a mask', function()
      local x = tide.randn({ 3, 3 }, { requires_grad = true })
      x:tril(-1):sum():backward()
      close(tide.ones({ 3, 3 }):tril(-1), x.grad)
   end)
end)

describe('logsumexp', function()
   it('is the logarithm of the sum, in any range', function()
      local x = tide.randn({ 3, 4, 5 }, { dtype = 'f64', device = fast })
      for _, dim in ipairs { 1, -1, { 1, 3 }, false } do
         for _, keep in ipairs { true, false } do
            local want = x:exp():sum(dim or nil, keep):log()
            local got = x:logsumexp(dim or nil, keep)
            assert.same(want.shape, got.shape)
            close(want, got)
            close(want + 1000, (x + 1000):logsumexp(dim or nil, keep))
         end
      end
      local inf = math.huge
      local rows = tide.tensor { { -inf, -inf }, { -inf, 3 }, { inf, 1 }, { -1e30, 1e30 } }
      close(tide.tensor { -inf, 3, inf, 1e30 }, rows:logsumexp(2))
      for dtype, tolerance in pairs { f16 = 0.005, bf16 = 0.04 } do     -- half of the last bit
         local many = tide.zeros({ 70000 }, { dtype = dtype }):logsumexp()
         assert.equal(dtype, many.dtype)
         assert.is_true(math.abs(many:item() - math.log(70000)) <= tolerance)
      end
      assert.same({ -inf, -inf }, tide.zeros({ 0, 2 }):logsumexp(1):tolist())
      assert.same({ 0 }, tide.zeros({ 0, 2 }):logsumexp(2).shape)
      assert.equal(-inf, tide.zeros({ 0 }):logsumexp():item())
      refused('E_ARG', { 'logsumexp', 'dim' }, tide.logsumexp, x, 4)
      refused('E_ARG', { 'logsumexp', 'keepdim' }, tide.logsumexp, x, 1, 3)
   end)

   it('has softmax as its gradient', function()
      local x = tide.randn({ 4, 5 }, { dtype = 'f64' })
      local y = x:clone():requires_grad_(true)
      y:logsumexp(2):sum():backward()
      close(x:softmax(2), y.grad)
      tide.gradcheck(function(a) return tide.logsumexp(a, { 1, 2 }) end, { x })
   end)
end)

describe('a name that is not there', function()
   it('is told with what does its work, or the nearest', function()
      for name, want in pairs { sort = 'x:topk', argsort = 'x:topk',
         mm = 'tide.matmul', manual_seed = 'tide.seed', zeros_lik = "did you mean 'zeros_like'?",
         sofmax = "did you mean 'softmax'?", parralel = "did you mean 'parallel'?" } do
         local ok, e = pcall(function() return tide[name] end)
         assert.is_false(ok)
         assert.equal('E_ARG', e.code)
         assert.matches('there is no tide.' .. name, e.message, 1, true)
         assert.matches(want, e.message, 1, true)
      end
   end)

   it('is told with what does its work also of tensors', function()
      local x = tide.ones { 2, 2 }
      for name, want in pairs { cuda = "x:to('cuda')", numpy = 'x:tolist()', T = 'x:t()',
         max = 'x:amax(dim)', linear_act = 'tide.linear_act(...)' } do
         local ok, e = pcall(function() return x[name] end)
         assert.is_false(ok)
         assert.equal('E_ARG', e.code)
         assert.matches(("no field or method '%s'"):format(name), e.message, 1, true)
         assert.matches(want, e.message, 1, true)
      end
   end)

   it('is told where sizes are given one by one', function()
      for _, name in ipairs { 'empty', 'zeros', 'ones', 'rand', 'randn' } do
         local ok, e = pcall(tide[name], 2, 3)
         assert.is_false(ok)
         assert.equal('E_ARG', e.code)
         assert.matches('sizes are one table: { 2, 3 }', e.message, 1, true)
      end
   end)
end)
