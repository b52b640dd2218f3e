-- Training does not grow: counters and the process's own memory over a thousand steps, with plain
-- garbage collection, in scopes, and with recomputation.

local leak = require 'spec.support.leak'
local tide = require 'tide'
local update = require 'tide.ffi.update'

-- Resident bytes of this process.
local function resident()
   local f = assert(io.open '/proc/self/statm')
   local pages = tonumber(f:read('*l'):match '^%d+ (%d+)')
   f:close()
   return pages * 4096
end

local function model()
   local function weight(n, m, seed)
      return tide.empty({ n, m }):normal_(0, 0.1, { seed = seed }):requires_grad_()
   end
   local p = { weight(64, 32, 1), weight(64, 64, 2), weight(16, 64, 3) }
   local m, v = {}, {}
   for i, w in ipairs(p) do
      m[i] = tide.zeros(w.shape)
      v[i] = tide.zeros(w.shape)
   end
   return { p = p, m = m, v = v }
end

local x = tide.empty({ 128, 32 }):normal_(0, 1, { seed = 7 })
local y = tide.zeros({ 128 }, { dtype = 'i64' })

local function forward(net)
   local h = tide.linear(x, net.p[1]):gelu()
   h = tide.dropout(tide.linear(h, net.p[2]):silu() + h, 0.1)
   return tide.cross_entropy(tide.linear(h, net.p[3]), y)
end

local function step(net, n, compute)
   local loss = compute(net)
   loss:backward()
   local g = {}
   for i, w in ipairs(net.p) do g[i] = w.grad end
   update.adamw_({ p = net.p, g = g, m = net.m, v = net.v }, { lr = 1e-3, step = n })
   for _, w in ipairs(net.p) do w:zero_grad() end
   return loss:item()
end

-- Runs steps, compares what is held after the first hundred with what is held at the end. With a
-- small debt the heap is collected every few steps, so that a hundred reach the highest water.
local function train(nstep, around)
   local debt = tide.param 'debt'
   finally(function() tide.param('debt', debt) end)
   tide.param('debt', '8m')
   local net = model()
   local first, last
   local function settle()
      local counts = leak.count()
      counts.rss = resident()
      return counts
   end
   for n = 1, nstep do
      last = around(net, n)
      if n == 100 then first = { settle(), last } end
   end
   local final = settle()
   assert.is_true(last < first[2], 'the loss does not fall')
   -- A loop that was compiled after the first hundred may leave a dead value in its slots: then
   -- more rounds decide, of which a leak makes each a new maximum.
   local held, most, n = first[1], {}, nstep
   for _, field in ipairs { 'live', 'nnode', 'ntensor' } do most[field] = held[field] end
   local good, err = pcall(leak.compare, most, final)
   for _ = 1, 6 do
      if good then break end
      for _, field in ipairs { 'live', 'nnode', 'ntensor' } do
         most[field] = math.max(most[field], final[field])
      end
      for _ = 1, 100 do
         n = n + 1
         around(net, n)
      end
      final = settle()
      good, err = pcall(leak.compare, most, final)
   end
   assert.is_true(good, err)
   -- handles wait for reuse, heaps breathe; a leak of one activation a step would be 30 MB
   -- Sanitizers keep notes of their own.
   local plain = tide.build_info():find('sanitizers: none', 1, true)
   for _, field in ipairs { 'nhost', plain and 'rss' } do
      local grown = (final[field] - held[field]) / 1e6
      assert.is_true(grown < 12, ('%s grew by %.1f MB'):format(field, grown))
   end
end

describe('a thousand training steps', function()
   it('keep live bytes, handles, nodes and resident memory flat', function()
      train(1000, function(net, n) return step(net, n, forward) end)
   end)

   it('do so in step scopes, where nothing waits for the collector', function()
      local most = 0
      train(1000, function(net, n)
         local before = tide.stats().live
         local loss = tide.scope(function() return step(net, n, forward) end)
         if n > 1 then most = math.max(most, tide.stats().live - before) end
         return loss
      end)
      -- only gradients: they belong to their leaves, and handles on them wait for the collector
      assert.is_true(most <= 4 * (64 * 32 + 64 * 64 + 16 * 64), most .. ' bytes outlive a scope')
   end)

   it('do so with recomputation', function()
      train(300, function(net, n)
         return step(net, n, function(nw)
            return tide.checkpoint(function() return forward(nw) end)
         end)
      end)
   end)
end)

describe('results that a product reads', function()
   local function leaf(seed, ...)
      return tide.empty({ ... }):normal_(0, 1, { seed = seed }):requires_grad_()
   end

   -- Gradients of a gated block, and the live bytes before its backward.
   local function block(remake, change)
      local ctx = tide.default()
      ctx:param('remake', remake)
      finally(function() ctx:param('remake', -1) end)
      leak.mark()
      local leaves = {
         leaf(1, 64, 128), leaf(2, 64, 128), leaf(3, 128), leaf(4, 512, 128), leaf(5, 512, 128),
         leaf(6, 128, 512),
      }
      local function compute()
         local a, b, gain, gate, up, down = unpack(leaves)
         local n, sum = tide.add_rms_norm(tide.rms_norm(a, gain), b, gain)
         local h = tide.swiglu(tide.linear(n, gate), tide.linear(n, up))
         if change then tide.no_grad(function() h:mul_(2) end) end
         return (tide.linear(h, down) + sum):square():sum()
      end
      local loss = compute()
      local held = leak.since()
      loss:backward()
      local list = {}
      for i, t in ipairs(leaves) do list[i] = t.grad:tolist() end
      return list, held
   end

   it('are remade in backward with the same bits, and not held until then', function()
      local kept, many = block(0)
      local again, few = block(1)
      assert.are.same(kept, again)
      assert.equal(4 * 64 * (512 + 128), many - few)         -- the gated product and one norm
   end)

   it('are kept in the memory of the host unless parameter remake says otherwise', function()
      local _, kept = block(0)
      local _, held = block(-1)
      assert.equal(kept, held)
   end)

   it('are kept when they were changed before the product read them', function()
      assert.are.same((block(0, true)), (block(1, true)))
   end)

   it('are not remade from operands changed in place', function()
      local ctx = tide.default()
      ctx:param('remake', 1)
      finally(function() ctx:param('remake', -1) end)
      local a, gain, w = leaf(1, 4, 8), leaf(2, 8), leaf(3, 8, 8)
      local loss = tide.linear(tide.rms_norm(a, gain), w):sum()
      tide.no_grad(function() gain:mul_(2) end)
      local ok, err = pcall(loss.backward, loss)
      assert.is_false(ok)
      assert.equal('E_STATE', err.code)
      assert.is_truthy(err.message:find('changed in place', 1, true))
   end)

   it('are remade for a product whose weight has a change of low rank', function()
      local ctx, w = tide.default(), leaf(1, 48, 32):detach()
      finally(function() ctx:param('remake', -1) end)
      for _, rows in ipairs { 3, 200 } do
         local function gradients(remake)
            ctx:param('remake', remake)
            local a, A, B = leaf(2, rows, 32), leaf(3, 4, 32), leaf(4, 48, 4)
            leak.mark()
            local loss = tide.linear_lora(tide.rms_norm(a), w, A, B, 0.5):square():sum()
            local held = leak.since()
            loss:backward()
            return { a.grad:tolist(), A.grad:tolist(), B.grad:tolist() }, held
         end
         local kept, many = gradients(0)
         local again, few = gradients(1)
         assert.are.same(kept, again)
         assert.equal(4 * rows * 32, many - few)
      end
   end)

   it('serve a walk that is repeated', function()
      local ctx = tide.default()
      ctx:param('remake', 1)
      finally(function() ctx:param('remake', -1) end)
      local a, w = leaf(1, 4, 8), leaf(3, 8, 8)
      local loss = tide.linear(tide.rms_norm(a), w):sum()
      loss:backward(nil, { retain = true })
      local once = w.grad:mul(2):tolist()
      loss:backward()
      assert.are.same(once, w.grad:tolist())
   end)
end)

describe('a dropped gradient', function()
   it('gives its bytes back under the handles on it, unless they are shared', function()
      local w = tide.ones({ 1000 }):requires_grad_()
      tide.default():mark()
      w:square():sum():backward()
      local g = w.grad
      local before = leak.since()
      w:drop_grad():drop_grad()
      assert.equal(before - 4032, tide.stats().since)
      assert.is_true(g:is_gone())
      assert.is_nil(w.grad)
      local own = tide.ones { 1000 }
      w:set_grad(own)
      w:drop_grad()
      assert.equal(1000, own:sum():item())
      w:square():sum():backward()
      assert.equal(2000, w.grad:sum():item())
   end)
end)

describe('garbage', function()
   it('is collected before it piles up past its limit', function()
      local ctx = assert(tide.open { params = 'debt=8m' })
      ctx:reset_peak()
      local a = ctx:ones { 256, 1024 }                       -- 1 MiB
      for _ = 1, 500 do
         local b = a * 2                                     -- luacheck: ignore
      end
      local peak = ctx:stats().peak
      assert.is_true(peak <= 24 * 2 ^ 20, ('peak %.1f MiB'):format(peak / 2 ^ 20))
      ctx:close()
   end)
end)

describe('gradients that meet', function()
   -- How many ops a backward runs, by the number of products that read input.
   local function ops(n)
      local input = tide.randn({ 2, 3, 8 }):requires_grad_()
      local loss = 0
      for _ = 1, n do loss = loss + tide.linear(input, tide.randn { 5, 8 }):sum() end
      local before = tide.stats().nop
      loss:backward()
      return tide.stats().nop - before
   end

   it('are added by the product that makes the next one', function()
      local two, three, four = ops(2), ops(3), ops(4)
      assert.equal(three - two, four - three)
      local alone = ops(1)
      assert.equal(two - alone, three - two)       -- no pass more for the first that meets another
   end)

   it('are those of separate products', function()
      for _, dtype in ipairs { 'f32', 'bf16', 'f64' } do
         local input = tide.randn({ 2, 3, 8 }, { dtype = dtype }):requires_grad_()
         local w, each, sum = {}, tide.zeros({ 2, 3, 8 }, { dtype = 'f64' }), 0
         for i = 1, 3 do
            w[i] = tide.randn({ 5, 8 }, { dtype = dtype }):requires_grad_()
            sum = sum + tide.linear(input, w[i]):sum()
            each = each + w[i]:detach():to 'f64':sum(1):expand(2, 3, 8)
         end
         sum:backward()
         local bound = dtype == 'bf16' and 0.1 or 1e-4
         assert.is_true((input.grad:to 'f64' - each):abs():amax():item() < bound)
         tide.linear(input:detach(), w[2]):sum():backward()
         local twice = input:detach():to 'f64':reshape(6, 8):sum(1):mul(2):expand(5, 8)
         assert.is_true((w[2].grad:to 'f64' - twice):abs():amax():item() < bound)
      end
   end)
end)
