-- Cross entropy over a vocabulary cut over ranks: against the fused op on one rank, its gradients
-- against central differences, and what it refuses.

local ranks = require 'spec.support.ranks'

-- On a rank: value and gradients against the op on the whole weight.
local function against_whole(rank, n, N, C, V, opts, dtype)
   local tide = require 'tide'
   local parallel = tide.parallel
   local axis = parallel.mesh({ { 'tp', n } }):axis 'tp'
   local counts = parallel.layout.balanced(V, n)
   local first = 0
   for r = 1, rank do first = first + counts[r] end
   local x = (tide.arange(N * C, { dtype = 'f64' }) * 0.7):sin():reshape(N, C):to(dtype)
   local w = (tide.arange(V * C, { dtype = 'f64' }) * 1.3):cos():reshape(V, C):to(dtype)
   local list = {}
   for i = 1, N do list[i] = i % 4 == 0 and (opts.ignore_index or -100) or (5 * i) % V end
   local targets = tide.tensor(list, { dtype = 'i64' })
   local mine = w:narrow(1, first + 1, counts[rank + 1]):clone():requires_grad_(true)
   local xl = x:clone():requires_grad_(true)
   local a = parallel.linear_cross_entropy(parallel.op.copy_to(xl, axis), mine, targets, axis,
      counts, opts)
   x:requires_grad_(true)
   w:requires_grad_(true)
   local b = tide.linear_cross_entropy(x, w, nil, targets, opts)
   local loss = (a * 0.5)
   loss:backward()
   ;(b * 0.5):backward()
   local function off(p, q)
      return (p:double() - q:double()):abs():amax():item()
         / math.max(1e-3, q:double():abs():amax():item())
   end
   return { off(a:detach(), b:detach()), off(xl.grad, x.grad),
      off(mine.grad, w.grad:narrow(1, first + 1, counts[rank + 1])), a:item() }
end

-- On a rank: one derivative of x and of w at each place against differences of the loss.
local function differences(rank, n, opts)
   local tide = require 'tide'
   local parallel, N, C, V = tide.parallel, 3, 2, 5
   local axis = parallel.mesh({ { 'tp', n } }):axis 'tp'
   local counts, first = parallel.layout.balanced(V, n), 0
   for r = 1, rank do first = first + counts[r] end
   local targets = tide.tensor({ 4, -100, 1 }, { dtype = 'i64' })
   local function numbers(k, seed)
      local list = {}
      for i = 1, k do list[i] = math.sin(1.9 * i + seed) end
      return list
   end
   local xs, ws = numbers(N * C, 0), numbers(V * C, 4)
   local function loss(grad)
      local x = tide.tensor(xs, { dtype = 'f64' }):reshape(N, C)
      local w = tide.tensor(ws, { dtype = 'f64' }):reshape(V, C)
         :narrow(1, first + 1, counts[rank + 1]):clone()
      if grad then x:requires_grad_(true); w:requires_grad_(true) end
      local y = parallel.linear_cross_entropy(parallel.op.copy_to(x, axis), w, targets, axis,
         counts, opts)
      if not grad then return y:item() end
      y:backward()
      return x.grad:reshape { N * C }:tolist(), w.grad:reshape { w:numel() }:tolist()
   end
   local dx, dw = loss(true)
   local function slope(list, i)
      local h, was = 1e-6, list[i]
      list[i] = was + h
      local up = loss()
      list[i] = was - h
      local down = loss()
      list[i] = was
      return (up - down) / (2 * h)
   end
   for i = 1, N * C do
      local want = slope(xs, i)
      if math.abs(want - dx[i]) > 1e-7 then return ('x[%d]: %g, not %g'):format(i, dx[i], want) end
   end
   for i = 1, V * C do
      local want, k = slope(ws, i), i - first * C
      if k >= 1 and k <= #dw and math.abs(want - dw[k]) > 1e-7 then
         return ('w[%d]: %g, not %g'):format(i, dw[k], want)
      end
   end
   return true
end

local function bad(_, n, what)
   local tide = require 'tide'
   local parallel = tide.parallel
   local axis = parallel.mesh({ { 'tp', n } }):axis 'tp'
   local x, w = tide.ones { 2, 3 }, tide.ones { 2, 3 }
   local t, counts, opts = tide.tensor({ 0, 3 }, { dtype = 'i64' }), { 2, 2 }, nil
   if what == 'target' then t = tide.tensor({ 0, 4 }, { dtype = 'i64' }) end
   if what == 'counts' then counts = { 3, 1 } end
   if what == 'width' then w = tide.ones { 2, 4 } end
   if what == 'smoothing' then opts = { label_smoothing = 1 } end
   if what == 'option' then opts = { ignore = 3 } end
   if what == 'none' then t = nil end
   local ok, e = pcall(parallel.linear_cross_entropy, x, w, t, axis, counts, opts)
   return { ok, tostring(e) }
end

describe('vocabulary-parallel cross entropy', function()
   local variants = { {}, { label_smoothing = 0.2 }, { z_loss = 0.05 },
      { label_smoothing = 0.1, z_loss = 0.01, ignore_index = 3 } }

   it('is that of the whole weight, with every option', function()
      for _, n in ipairs { 1, 2, 3, 4 } do
         for _, opts in ipairs(variants) do
            local rows = ranks.run(n, against_whole, 13, 6, 11, opts, 'f32')
            for _, row in ipairs(rows) do
               for i = 1, 3 do assert.is_true(row[i] <= 1e-5, tostring(row[i])) end
               assert.equal(rows[1][4], row[4])
            end
         end
      end
   end)

   it('goes through many tokens in chunks', function()
      for _, row in ipairs(ranks.run(2, against_whole, 701, 8, 1501, variants[4], 'f32')) do
         for i = 1, 3 do assert.is_true(row[i] <= 2e-5, tostring(row[i])) end
      end
   end)

   it('takes bf16, with logits of its precision', function()
      for _, row in ipairs(ranks.run(2, against_whole, 13, 6, 11, {}, 'bf16')) do
         for i = 1, 3 do assert.is_true(row[i] <= 2e-2, tostring(row[i])) end
      end
   end)

   it('has the derivatives of its value', function()
      for _, n in ipairs { 2, 3 } do
         for _, opts in ipairs(variants) do
            opts.ignore_index = nil
            for _, ok in ipairs(ranks.run(n, differences, opts)) do assert.equal(true, ok) end
         end
      end
   end)

   it('refuses what makes no sense, on every rank', function()
      local want = { target = 'outside [0, 4)', counts = "'counts'", width = 'expected x [N, C]',
         smoothing = "'label_smoothing'", option = "unknown option 'ignore'", none = "'targets'" }
      for what, text in require 'tide.util.each'(want) do
         for _, row in ipairs(ranks.run(2, bad, what)) do
            assert.is_false(row[1])
            assert.matches(text, row[2], 1, true)
         end
      end
   end)
end)
