-- The tape: what gradients come out of graphs of every form, what is refused, and that every node
-- goes with the last handle that needs it, without recursion.

local tide = require 'tide'
local leak = require 'spec.support.leak'
local close = require 'spec.support.close'
local refused = require 'spec.support.refused'

local function leaf(list, opts)
   local x = tide.tensor(list, opts)
   return x:requires_grad_()
end

local function nodes() return leak.count().nnode end

describe('gradients', function()
   it('add up over every use of an input', function()
      local x = leaf { 2, 3 }
      local y = x * x + x * 3 + x                            -- x^2 + 4 x
      y:sum():backward()
      close(x.grad, { 8, 10 })
   end)

   it('of a product are finite where the product of the other factors is', function()
      local x = leaf { 1e30, 1e20, 1e-15 }                   -- all: 1e35; of the first two: 1e50
      x:prod():backward()
      close(x.grad:slice(1, 1, 2) / tide.tensor { 1e5, 1e15 }, { 1, 1 })
      assert.equal(1 / 0, x.grad:at(3))
      local y = leaf { 1e20, 1e19, 2 }                       -- all: more than f32 holds
      y:prod():backward()
      close(y.grad:slice(1, 1, 2) / tide.tensor { 2e19, 2e20 }, { 1, 1 })
      local h = leaf({ 512, 256, 0.5 }, { dtype = 'f16' })   -- all: 65536
      h:prod():backward()
      close(h.grad:slice(1, 1, 2), { 128, 256 })
   end)

   it('of a diamond count each path once', function()
      local x = leaf { 1, 2 }
      local a = x * 2
      local b, c = a * 3, a:square()
      ;(b * c):sum():backward()                              -- 24 x^3
      close(x.grad, { 72, 288 })
   end)

   it('of a chain of diamonds do not grow with the number of paths visited twice', function()
      local x = leaf { 1 }
      local y = x
      for _ = 1, 40 do y = (y + y) * 0.5 end                 -- 2^40 paths, 80 nodes
      local before = tide.stats().nop
      y:backward()
      close(x.grad, { 1 })
      assert.is_true(tide.stats().nop - before < 1000)
   end)

   it('of linear are added to what is there, and not to what somebody holds', function()
      local x, w = leaf { { 1, 2 }, { 3, 4 }, { 5, 6 } }, leaf { { 1, 0 }, { 2, 1 } }
      local function walk()
         tide.linear(x, w):backward(tide.tensor { { 1, 0 }, { 0, 1 }, { 1, 1 } })
      end
      walk()
      walk()
      close(x.grad, { { 2, 0 }, { 4, 2 }, { 6, 2 } })
      close(w.grad, { { 12, 16 }, { 16, 20 } })
      local shared = x.grad                                  -- a handle elsewhere keeps its values
      walk()
      close(shared, { { 2, 0 }, { 4, 2 }, { 6, 2 } })
      close(x.grad, { { 3, 0 }, { 6, 3 }, { 9, 3 } })
   end)

   it('visit nodes in the reverse of the order in which they ran', function()
      local order = {}
      local function mark(name)
         return tide.grad.func {
            name = name,
            forward = function(_, x) return x * 1 end,
            backward = function(_, dy)
               order[#order + 1] = name
               return dy
            end,
         }
      end
      local x = leaf { 1 }
      local a = mark 'a'(x)
      local b = mark 'b'(x)
      local c = mark 'c'(a)
      local _ = mark 'unused'(a)
      local d = mark 'd'(b + c)
      d:backward()
      assert.are.same({ 'd', 'c', 'b', 'a' }, order)
      assert.is_truthy(_)
   end)

   it('flow to leaves only from the root that was walked', function()
      local x, w = leaf { 1, 2 }, leaf { 5, 6 }
      local a, b = x * w, x + w
      a:sum():backward()
      close(x.grad, { 5, 6 })
      close(w.grad, { 1, 2 })
      b:sum():backward()                                     -- the other graph is untouched
      close(x.grad, { 6, 7 })
   end)

   it('of a root that is a leaf are the gradient itself', function()
      local x = leaf { 1, 2 }
      x:backward(tide.tensor { 3, 4 })
      x:backward(tide.tensor { 1, 1 })
      close(x.grad, { 4, 5 })
   end)

   it('keep shape, dtype and device of the leaf, and are contiguous', function()
      for _, device in ipairs { 'ref', 'cpu' } do
         for _, dtype in ipairs { 'f32', 'f64', 'bf16', 'f16' } do
            local x = leaf({ { 1, 2, 3 }, { 4, 5, 6 } }, { dtype = dtype, device = device })
            x:t():slice(1, 1, 2):to('f32'):sum():backward()
            assert.are.same({ { 1, 1, 0 }, { 1, 1, 0 } }, x.grad:tolist())
            assert.equal(dtype, x.grad.dtype)
            assert.equal(device, x.grad.device)
            assert.is_true(x.grad:is_contiguous())
         end
      end
   end)

   it('share no bytes with anything, also when they were handed through', function()
      local a, b = leaf { 1, 2 }, leaf { 3, 4 }
      local dy = tide.tensor { 1, 1 }
      ;(a + b):backward(dy)
      assert.is_false(a.grad:same_storage(b.grad))
      assert.is_false(a.grad:same_storage(dy))
      a.grad:fill_(9)
      close(b.grad, { 1, 1 })
      close(dy, { 1, 1 })
      local c = leaf { 1, 2, 3, 4 }
      c:reshape(2, 2):t():backward(tide.tensor { { 1, 2 }, { 3, 4 } })
      close(c.grad, { 1, 3, 2, 4 })
   end)

   it('of expanded and strided operands are summed to the operand', function()
      local row, col = leaf { { 1, 2, 3 } }, leaf { { 1 }, { 2 } }
      local scalar = leaf(2)
      local weights = tide.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
      ;(row * col * scalar * weights):sum():backward()
      close(row.grad, { { 18, 24, 30 } })                    -- 2 (w1 + 2 w2)
      close(col.grad, { { 28 }, { 64 } })
      close(scalar.grad, 14 + 64)
      local wide = leaf { 1, 2, 3, 4, 5, 6 }
      wide:slice(1, 2, 6, 2):expand(4, 3):sum():backward()
      close(wide.grad, { 0, 4, 0, 4, 0, 4 })
      local base = leaf { { 1, 2 }, { 3, 4 } }
      base:expand(3, 2, 2):permute(3, 1, 2):square():sum():backward()
      close(base.grad, { { 6, 12 }, { 18, 24 } })
   end)

   it('may be given in any layout', function()
      local x = leaf { { 1, 2 }, { 3, 4 } }
      ;(x * 2):backward(tide.tensor({ 1, 10 }):reshape(2, 1):expand(2, 2))
      close(x.grad, { { 2, 2 }, { 20, 20 } })
      x:zero_grad()
      ;(x * x):backward(tide.tensor({ { 1, 2 }, { 3, 4 } }):t())
      close(x.grad, { { 2, 12 }, { 12, 32 } })
   end)

   it('do not pass detach, no_grad or integers', function()
      local x = leaf { 2, 3 }
      local y = x * x:detach() + tide.no_grad(function() return x * 100 end)
      y:sum():backward()
      close(x.grad, { 2, 3 })
      assert.is_false(x:long().requires_grad)
      assert.is_false((x:gt(0)).requires_grad)
      assert.is_true(x:detach():same_storage(x))
      assert.is_false(x:detach().requires_grad)
      assert.is_true(x:detach().is_leaf)
   end)

   it('stop at a leaf whose mark is taken away', function()
      local x, w = leaf { 1, 2 }, leaf { 3, 4 }
      w:requires_grad_(false)
      ;(x * w):sum():backward()
      close(x.grad, { 3, 4 })
      assert.is_nil(w.grad)
   end)

   it('come together in walks of several results of one op', function()
      local x, r = leaf { { 1, 2, 3 } }, leaf { { 4, 5, 6 } }
      local y, sum = tide.add_rms_norm(x, r, nil, 1e-6)
      sum:sum():backward(nil, { retain = true })             -- only the second result
      close(x.grad, { { 1, 1, 1 } })
      x:zero_grad()
      r:zero_grad()
      ;(y:sum() + sum:sum()):backward()
      local a, b = leaf { { 1, 2, 3 } }, leaf { { 4, 5, 6 } }
      local s = a + b
      ;(tide.rms_norm(s, nil, 1e-6):sum() + s:sum()):backward()
      close(x.grad, a.grad)
      close(r.grad, b.grad)
   end)

   it('are deterministic to the bit', function()
      local function run()
         local w = tide.empty({ 40, 40 }):normal_(0, 0.1, { seed = 3 }):requires_grad_()
         local x = tide.empty({ 64, 40 }):normal_(0, 1, { seed = 4 })
         for _ = 1, 4 do x = x:matmul(w):tanh() end
         x:square():mean():backward()
         return w.grad:to_string_bytes()
      end
      assert.equal(run(), run())
   end)
end)

describe('a walk', function()
   it('is refused where there is no gradient path', function()
      local x = tide.ones { 1 }
      refused('E_STATE', { 'backward', 'no gradient path' }, x.backward, x)
      local w = leaf { 1 }
      local y = tide.no_grad(function() return w * 2 end)
      refused('E_STATE', { 'backward', 'no gradient path' }, y.backward, y)
      refused('E_STATE', 'no gradient path', function() w:detach():backward() end)
      refused('E_DTYPE', { 'requires_grad', 'i64' }, function() x:long():requires_grad_() end)
      local made = w * 2
      refused('E_STATE', { 'requires_grad', 'detach' }, made.requires_grad_, made)
   end)

   it('needs a gradient of the shape, dtype and device of its root', function()
      local y = leaf { 1, 2 } * 2
      refused('E_SHAPE', { 'backward', '[2]' }, y.backward, y)
      refused('E_SHAPE', { 'backward', '[3]', '[2]' }, y.backward, y, tide.ones { 3 })
      refused('E_SHAPE', { 'backward', 'f64' }, y.backward, y, tide.ones({ 2 }, { dtype = 'f64' }))
      refused('E_SHAPE', 'backward', y.backward, y, tide.ones({ 2 }, { device = 'ref' }))
      refused('E_ARG', { 'backward', 'grad' }, y.backward, y, 1)
      y:backward(tide.ones { 2 })                            -- still whole after the refusals
   end)

   it('happens once unless it retains', function()
      local x = leaf { 3 }
      local a = x * x
      local y = a * 2
      y:backward()
      refused('E_STATE', { 'backward', 'retain' }, y.backward, y)
      refused('E_STATE', { 'backward', 'retain' }, a.backward, a)
      close(x.grad, { 12 })
      -- a fresh result over a spent one meets what is gone, and leaves nothing behind
      local late = a + x
      refused('E_STATE', { 'backward', 'retain' }, late.backward, late)
      x:zero_grad()
      local z = (x * x):exp()
      for _ = 1, 3 do z:backward(nil, { retain = true }) end
      close(x.grad, { 3 * 6 * math.exp(9) })
   end)

   it('notices saved tensors that were changed in place', function()
      local cases = {
         { function(x) return x * x end, 'mul' }, { function(x) return x:log() end, 'log' },
         { function(x) return x:matmul(x:t()) end, 'matmul' },
         { function(x) return tide.rms_norm(x) end, 'rms_norm' },
      }
      for _, case in ipairs(cases) do
         local w = leaf { { 1, 2 }, { 3, 4 } }
         local x = w + 0
         local y = case[1](x):sum()
         tide.no_grad(function() x:mul_(2) end)
         refused('E_STATE', { 'backward', case[2], 'changed in place', 'clone' }, y.backward, y)
         assert.is_nil(w.grad)
      end
      -- a result that is saved, changed through a view
      local w = leaf { 1, 2 }
      local y = w:exp()
      tide.no_grad(function() y:slice(1, 1, 1):fill_(0) end)
      refused('E_STATE', { 'backward', 'result 1 of exp' }, function() y:sum():backward() end)
      -- what no derivative reads may change
      local x = w * 2
      local s = (x + 1):sum()
      tide.no_grad(function() x:fill_(7) end)
      s:backward()
      close(w.grad, { 2, 2 })
   end)

   it('keep a factor for the gradient of the other alone', function()
      local a, b, other = tide.ones { 2, 3 }, tide.ones { 3, 2 }, tide.ones { 4, 3 }
      local products = {
         mul = function(x, w) return x * w end,
         matmul = function(x, w) return x:matmul(w:t()) end,
         linear = function(x, w) return tide.linear(x, w) end,
         linear_joined = function(x, w)
            local y, z = unpack(tide.linear_joined(x, { w, other }))
            return y:sum() + z:sum() * 2
         end,
         linear_lora = function(x, w) return tide.linear_lora(x, w, a, b, 0.5) end,
      }
      for name, product in pairs(products) do
         local function run(trained, change)
            local leaves = { tide.tensor { { 1, 2, 3 }, { 4, 5, 6 }, { 7, 8, 9 } },
               tide.tensor { { 2, 0, 1 }, { 1, 1, 3 }, { 0, 2, 5 } } }
            leaves[trained]:requires_grad_()
            local parts = { leaves[1] + 0, leaves[2] + 0 }
            local y = product(parts[1], parts[2]):sum()
            if change then change(parts) end
            y:backward()
            return leaves[trained].grad:tolist()
         end
         for trained = 1, 2 do
            local want = run(trained)
            assert.same(want, run(trained, function(p) p[trained]:detach():fill_(7) end), name)
            assert.same(want, run(trained, function(p) p[trained]:release() end), name)
            refused('E_STATE', 'changed in place', run, trained, function(p)
               p[3 - trained]:detach():fill_(7)
            end)
         end
      end
   end)

   it('notices saved tensors whose bytes were dropped', function()
      local w = leaf { 1, 2 }
      local x = w + 0
      local y = (x * x):sum()
      x:release()
      refused('E_GONE', { 'backward', 'mul' }, y.backward, y)
   end)

   it('that failed leaves no gradient under way', function()
      local before = nodes()
      local w = leaf { 1, 2 }
      local x = w * 2
      local y = x * x
      local z = (y + x):sum()
      tide.no_grad(function() x:fill_(1) end)
      refused('E_STATE', 'changed in place', z.backward, z)
      assert.is_nil(w.grad)
      local other = (w * 5):sum()                            -- the next walk starts clean
      other:backward()
      close(w.grad, { 5, 5 })
      x, y, z, other = nil, nil, nil, nil                    -- luacheck: ignore
      assert.is_true(nodes() <= before)
   end)
end)

describe('nodes', function()
   local n = 100000

   it('are one for each recorded op, and none where nothing is recorded', function()
      local before = nodes()
      local w = leaf { 1, 2 }
      local a = w * 2
      local b = a + a
      assert.equal(before + 2, nodes())
      local _ = tide.no_grad(function() return b * 3 end)
      local c = tide.ones { 2 } * 3
      assert.equal(before + 2, nodes())
      assert.is_truthy(_ and c)
   end)

   it('go with the last handle, without a walk', function()
      local before = nodes()
      local w = leaf { 1, 2 }
      for _ = 1, 100 do
         local a = w * w
         local b, c = a:exp() + a:matmul(w), a:sum()
         assert.is_truthy(b and c)
      end
      assert.is_true(nodes() <= before)
   end)

   it('go with the walk, though the result is held', function()
      local before = leak.count()
      local w = leaf { 1, 2 }
      local y = ((w * w):exp() * w):sum()
      y:backward()
      assert.is_true(nodes() - before.nnode <= 1)
      assert.is_truthy(y)
   end)

   -- Ops that keep nothing, their input, their result: each holds the chain in another way.
   local chains = {
      { 'affine', function(x) return x * 1 end },
      { 'mul', function(x, w) return x:mul(w) end },
      { 'square', function(x) return x:square() end },
      { 'exp', function(x) return (x:exp()) end },
      { 'view', function(x) return x:reshape(1) end },
   }
   for _, chain in ipairs(chains) do
      it(('of a chain of %d %s are freed by dropping it, and by walking it'):format(n, chain[1]),
         function()
            local before = nodes()
            local w = leaf { 1 }
            local x = w
            for _ = 1, n do x = chain[2](x, w) end
            assert.is_true(nodes() >= before + n)
            x = nil                                          -- luacheck: ignore
            assert.is_true(nodes() <= before)
            x = w
            for _ = 1, n do x = chain[2](x, w) end
            x:backward()
            x = nil                                          -- luacheck: ignore
            assert.is_truthy(w.grad)
            assert.is_true(nodes() <= before)
         end)
   end

   it('of ops with several results go, walked or not', function()
      local before = nodes()
      local function run(walk)
         local x, w = leaf { { 1, 2, 3, 5 }, { 4, 5, 6, 8 } }, leaf { 1, 2, 3, 4 }
         local y = tide.layer_norm(tide.rms_norm(x, w), w)
         local z, sum = tide.add_rms_norm(y, x, w)
         local q = z:reshape(1, 2, 2, 2)
         local a, lse = tide.attention(q, q, q, { return_lse = true })
         local targets = tide.zeros({ 2 }, { dtype = 'i64' })
         local loss = tide.cross_entropy(a:reshape(2, 4) + sum, targets) + lse:sum()
            + tide.linear_cross_entropy(z, x, nil, targets)
         if walk then loss:backward() end
         assert.equal(walk, x.grad ~= nil)
      end
      for _ = 1, 10 do
         run(false)
         run(true)
      end
      assert.is_true(nodes() <= before)
   end)

   it('of a wide graph go too', function()
      local before = nodes()
      local w = leaf { 1, 2 }
      local list = {}
      for i = 1, 1000 do list[i] = w * i end
      local y = tide.cat(list, 1)
      list = nil                                             -- luacheck: ignore
      assert.is_true(nodes() > before + 1000)
      y:sum():backward()
      close(w.grad, { 500500, 500500 })
      y = nil                                                -- luacheck: ignore
      assert.is_true(nodes() <= before)
   end)

   it('keep the tensors they saved alive, and no longer', function()
      local w = leaf { 1, 2, 3 }
      local before = leak.count()
      local y = (w + 1):square()                             -- w + 1 lives in the node alone
      assert.equal(before.ntensor + 2, leak.count().ntensor)
      y:sum():backward()
      close(w.grad, { 4, 6, 8 })
      w:zero_grad()
      assert.equal(before.ntensor + 1, leak.count().ntensor)
      assert.is_truthy(y)
   end)
end)
