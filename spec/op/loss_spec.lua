-- Cross entropy where logits have a large part in common: whatever is added to all logits of a row,
-- loss and gradient are those of the differences. Expected values are computed here, in doubles,
-- from logits that every dtype under test holds exactly.

local each = require 'tide.util.each'
local tide = require 'tide'
local fast = require 'spec.support.fast'
local wide = require 'spec.support.wide'

local inf = math.huge

-- ---- what is expected ---------------------------------------------------------------------------

-- Loss and gradient of one row of numbers; target counts from 0.
local function expected(z, target, opts)
   local eps, zl = opts.label_smoothing or 0, opts.z_loss or 0
   local max, sum, below = -inf, 0, 0
   for _, v in ipairs(z) do max = math.max(max, v) end
   for _, v in ipairs(z) do
      sum = sum + math.exp(v - max)
      below = below + (max - v)
   end
   local logsum = math.log(sum)
   local lse = max + logsum
   local loss = (1 - eps) * ((max - z[target + 1]) + logsum) + eps * (below / #z + logsum)
      + zl * lse * lse
   local grad = {}
   for i, v in ipairs(z) do
      grad[i] = (1 + 2 * zl * lse) * math.exp(v - max) / sum - eps / #z
         - (i == target + 1 and 1 - eps or 0)
   end
   return loss, grad
end

-- ---- logits -------------------------------------------------------------------------------------

-- Multiples of `step` in [-6 step, 6 step], the same for one seed.
local function multiples(n, step, seed)
   local list = {}
   for i = 1, n do list[i] = ((i * 7 + seed * 5 + i * i * seed) % 13 - 6) * step end
   return list
end

-- Rows of logits around an offset, as the dtype holds them: what is expected follows from these.
local function rows_at(offset, step, nrow, nclass, dtype)
   local rows = {}
   for r = 1, nrow do
      rows[r] = multiples(nclass, step, r)
      for i, v in ipairs(rows[r]) do rows[r][i] = v + offset end
   end
   local x = tide.tensor(rows, { dtype = dtype })
   return x, x:to('f64'):tolist()
end

local function targets_of(nrow, nclass)
   local list = {}
   for r = 1, nrow do list[r] = (r * 11) % nclass end
   return tide.tensor(list, { dtype = 'i64' }), list
end

local function near(want, got, allowed, what)
   local off = math.abs(got - want)
   if off > allowed or off ~= off then
      error(('%s: %.9g, expected %.9g (allowed %.3g)'):format(what, got, want, allowed), 2)
   end
end

-- ---- cross_entropy ------------------------------------------------------------------------------

-- Allowed: of a loss relative to 1 + |loss|; of a gradient, absolute, per 1 + |z-loss's factor|.
-- f64: the expected numbers are themselves sums of 1030 terms one after another, off by 1.3e-14.
local loss_room = { f32 = 1e-6, bf16 = 1e-6, f64 = 2e-14 }
local grad_room = { f32 = 5e-7, bf16 = 4e-3, f64 = 2e-14 }

local function check_gradient(want, got, room, zero_sum, what)
   local sum, size = 0, 1
   for i, g in ipairs(got) do
      size = math.max(size, math.abs(want[i]))
      sum = sum + g
      near(want[i], g, room * math.max(1, math.abs(want[i])), what .. ', class ' .. i - 1)
   end
   -- Roundings of one row are independent of each other and far below the room of each.
   if zero_sum then near(0, sum, room * size * 4, what .. ', sum of the gradient') end
end

local function check_rows(x, z, opts, dtype)
   local nrow, nclass = x.shape[1], x.shape[2]
   local y, target = targets_of(nrow, nclass)
   x:requires_grad_()
   local loss = tide.cross_entropy(x, y:to(x.device), { reduction = 'none', z_loss = opts.z_loss,
                                           label_smoothing = opts.label_smoothing })
   loss:sum():backward()
   local got, grads = loss:tolist(), x.grad:to('f64'):tolist()
   for r = 1, nrow do
      local want, grad = expected(z[r], target[r], opts)
      near(want, got[r], loss_room[dtype] * (1 + math.abs(want)), 'loss of row ' .. r)
      check_gradient(grad, grads[r], grad_room[dtype], not opts.z_loss, 'row ' .. r)
   end
end

local kinds = {
   { name = 'plain' },
   { name = 'with label smoothing', label_smoothing = 0.1 },
   { name = 'with z-loss', z_loss = 1e-4 },
   { name = 'with both', label_smoothing = 0.2, z_loss = 1e-4 },
}

-- Steps that f32 holds beside the offset; what bf16 makes of the logits is read back.
local offsets = { { 0, 1 / 64 }, { 1e3, 1 / 64 }, { 1e5, 1 / 64 }, { 3e7, 2 }, { -3e7, 2 } }

describe("cross_entropy of logits with a large part in common", function()
   for _, device in ipairs { fast, 'ref' } do
      for _, dtype in ipairs { 'f32', 'bf16', 'f64' } do
         for _, kind in ipairs(kinds) do
            it(("is exact on %s in %s, %s"):format(device, dtype, kind.name), function()
               for _, o in ipairs(offsets) do
                  for _, nclass in ipairs { 1, 2, 67, 1030 } do
                     local x, z = rows_at(o[1], o[2], 3, nclass, dtype)
                     check_rows(x:to(device), z, kind, dtype)
                  end
               end
            end)
         end
      end
   end

   it("is log 2 for two equal logits", function()
      for _, offset in ipairs { 0, 1e3, 1e5, 3e7, 1e30, -1e30 } do
         local x = tide.tensor({ { offset, offset } }):requires_grad_()
         local loss = tide.cross_entropy(x, tide.tensor({ 0 }, { dtype = 'i64' }))
         loss:backward()
         near(math.log(2), loss:item(), 1e-7, 'loss at ' .. offset)
         assert.same({ { -0.5, 0.5 } }, x.grad:tolist())
      end
   end)

   it("keeps a difference of bf16 logits around an offset", function()
      local x, z = rows_at(1024, 8, 2, 33, 'bf16')
      assert.equal(1024 + multiples(33, 8, 1)[1], z[1][1])
      check_rows(x, z, {}, 'bf16')
   end)

   it("has a true value, or +inf, where the sum of the logits has none", function()
      local x = tide.tensor { { 3e38, 3e38, -3e38 }, { 3e38, 3e38, -3e38 } }
      for _, device in ipairs { fast, 'ref' } do
         local y = tide.tensor({ 0, 2 }, { dtype = 'i64', device = device })
         local loss = tide.cross_entropy(x:to(device), y, { label_smoothing = 0.1,
                                                            reduction = 'none' }):tolist()
         near(2e37, loss[1], 2e31, 'loss of a large logit')
         assert.equal(inf, loss[2])
      end
   end)

   it("gives the same bits wherever the logits are, in a large batch", function()
      -- 9.6 MB: a gradient of this size is written on another road.
      local row, grads = multiples(40000, 2, 1), {}
      for i, offset in ipairs { 0, 3e7 } do
         local x = (tide.tensor({ row }):expand(60, 40000) + offset):requires_grad_()
         tide.cross_entropy(x, (targets_of(60, 40000)), { label_smoothing = 0.1 }):backward()
         grads[i] = x.grad
      end
      assert.is_true(grads[1]:ne(0):all():item())
      assert.is_true(grads[1]:eq(grads[2]):all():item())
      local _, want = expected(row, 11, { label_smoothing = 0.1 })
      local got = (grads[2]:narrow(1, 1, 1) * 60):tolist()[1]
      check_gradient(want, got, grad_room.f32, true, 'row 1')
   end)

   it("counts a target of ignore_index as nothing", function()
      local x = rows_at(3e7, 2, 3, 5, 'f32'):requires_grad_()
      local y = tide.tensor({ 1, -100, 2 }, { dtype = 'i64' })
      local loss = tide.cross_entropy(x, y, { reduction = 'none' })
      loss:sum():backward()
      assert.equal(0, loss:tolist()[2])
      assert.same({ 0, 0, 0, 0, 0 }, x.grad:tolist()[2])
   end)
end)

-- ---- rows without a finite logsumexp ------------------------------------------------------------

describe("cross_entropy of logits that are not finite", function()
   -- Loss and gradient of target 0 on both devices, as text that separates nan from inf.
   local function results(row, dtype, device, eps)
      local x = tide.tensor({ row }, { dtype = dtype, device = device }):requires_grad_()
      local y = tide.tensor({ 0 }, { dtype = 'i64', device = device })
      local loss = tide.cross_entropy(x, y, { label_smoothing = eps })
      loss:backward()
      local list = { loss:item(), unpack(x.grad:to('f64'):tolist()[1]) }
      for i, v in ipairs(list) do list[i] = v ~= v and 'nan' or ('%.2f'):format(v) end
      return table.concat(list, ' ')
   end

   local nan = 0 / 0
   local cases = {
      { 'all -inf', { -inf, -inf, -inf }, 'nan nan nan nan', 'nan nan nan nan' },
      { '+inf', { 1, inf, 0 }, 'nan nan nan nan', 'nan nan nan nan' },
      { 'nan', { 1, nan, 2 }, 'nan nan nan nan', 'nan nan nan nan' },
      { 'nan and -inf', { -inf, nan, -inf }, 'nan nan nan nan', 'nan nan nan nan' },
      { '-inf at another', { 0, -inf, 0 }, '0.69 -0.50 0.00 0.50', 'inf -0.43 -0.03 0.47' },
      { '-inf at the target', { -inf, 0, 0 }, 'inf -1.00 0.50 0.50', 'inf -0.93 0.47 0.47' },
   }
   for _, case in ipairs(cases) do
      it("has nan, inf or the limit: " .. case[1], function()
         for _, device in ipairs { fast, 'ref' } do
            for _, dtype in ipairs { 'f32', 'bf16', 'f64' } do
               assert.equal(case[3], results(case[2], dtype, device, 0))
               assert.equal(case[4], results(case[2], dtype, device, 0.1))
            end
         end
      end)
   end
end)

-- ---- linear_cross_entropy -----------------------------------------------------------------------

-- x [n, 2], w [nclass, 2] and a bias that is the offset everywhere: the logits are exact.
local function linear_inputs(offset, step, n, nclass, dtype)
   local x, w, bias = {}, {}, {}
   for i = 1, n do x[i] = multiples(2, 1, i) end
   for v = 1, nclass do w[v], bias[v] = multiples(2, step, v + 3), offset end
   local list = {}
   for i, t in ipairs { x, w, bias } do
      list[i] = tide.tensor(t, { dtype = dtype })
   end
   return list[1], list[2], list[3]
end

local function logits_of(x, w, bias)
   local rows = {}
   for i, a in ipairs(x) do
      rows[i] = {}
      for v, b in ipairs(w) do rows[i][v] = a[1] * b[1] + a[2] * b[2] + bias[v] end
   end
   return rows
end

-- The sum of the losses, and the gradients of x, w and bias, from rows of logits. `terms` is the
-- largest sum of the magnitudes that an element of the gradient of x is made of: they cancel.
local function expected_linear(x, w, z, target, opts)
   local total, terms, dx, dw, dbias = 0, 0, {}, {}, {}
   for v = 1, #w do dw[v], dbias[v] = { 0, 0 }, 0 end
   for i = 1, #x do
      local loss, grad = expected(z[i], target[i], opts)
      local size = { 0, 0 }
      total, dx[i] = total + loss, { 0, 0 }
      for v, g in ipairs(grad) do
         for d = 1, 2 do
            dx[i][d] = dx[i][d] + g * w[v][d]
            size[d] = size[d] + math.abs(g * w[v][d])
            dw[v][d] = dw[v][d] + g * x[i][d]
         end
         dbias[v] = dbias[v] + g
      end
      terms = math.max(terms, size[1], size[2])
   end
   return total, dx, dw, dbias, terms
end

-- The numbers of a table of any depth, in order.
local function flat(t, list)
   list = list or {}
   for _, v in ipairs(t) do
      if type(v) == 'table' then flat(v, list) else list[#list + 1] = v end
   end
   return list
end

-- Elements of a gradient against what is expected: relative to the largest, and what the sum may
-- be off besides.
local function check_all(want, got, room, what, sum_room)
   local list, size = flat(want), 1
   for _, v in ipairs(list) do size = math.max(size, math.abs(v)) end
   for i, v in ipairs(flat(got:to('f64'):tolist())) do
      near(list[i], v, room * size + (sum_room or 0), what .. ', element ' .. i)
   end
end

local linear_loss_room = { f32 = 1e-6, bf16 = 1e-6, f64 = 1e-13 }
local linear_room = { f32 = 2e-6, bf16 = 1.6e-2, f64 = 1e-13 }

local function check_linear(offset, step, n, nclass, dtype, device, opts)
   local x, w, bias = linear_inputs(offset, step, n, nclass, dtype)
   local y, target = targets_of(n, nclass)
   local xs, ws = x:to('f64'):tolist(), w:to('f64'):tolist()
   local z = logits_of(xs, ws, bias:to('f64'):tolist())
   local total, dx, dw, dbias, terms = expected_linear(xs, ws, z, target, opts)
   x, w, bias = x:to(device), w:to(device), bias:to(device)
   for _, t in ipairs { x, w, bias } do t:requires_grad_() end
   local loss = tide.linear_cross_entropy(x, w, bias, y:to(device), {
      label_smoothing = opts.label_smoothing, z_loss = opts.z_loss })
   loss:backward()
   near(total, loss:item(), linear_loss_room[dtype] * (1 + math.abs(total)), 'loss')
   -- an f32 sum of n terms is off by at most n roundings of the sum of their magnitudes
   local sum_room = dtype == 'f64' and 0 or 2 ^ -24 * nclass * terms
   check_all(dx, x.grad, linear_room[dtype], 'gradient of x', sum_room)
   check_all(dw, w.grad, linear_room[dtype], 'gradient of w')
   check_all(dbias, bias.grad, linear_room[dtype], 'gradient of bias')
   if not opts.z_loss then
      near(0, bias.grad:to('f64'):sum():item(), linear_room[dtype] * n, 'sum over bias')
   end
end

describe("linear_cross_entropy with a large bias in common", function()
   for _, device in ipairs { fast, 'ref' } do
      for _, dtype in ipairs { 'f32', 'bf16', 'f64' } do
         for _, kind in ipairs(kinds) do
            it(("is exact on %s in %s, %s"):format(device, dtype, kind.name), function()
               for _, o in ipairs(offsets) do
                  check_linear(o[1], o[2], 3, 5, dtype, device, kind)
                  check_linear(o[1], o[2], 4, 2100, dtype, device, kind)
               end
            end)
         end
      end
   end
end)

-- Exponentials are taken of pieces of a row, whose maxima rise, fall, or are -inf at the beginning.
describe("linear_cross_entropy whose logits differ in level along a row", function()
   local nclass = 2100
   local levels = {
      { '-inf first, all negative', { -inf, -200, -130, -120, -140 } },
      { 'rising by more than exp holds', { -400, -200, 0, 200, 400 } },
      { 'falling', { 300, 100, 90, 80, -inf } },
      { '+inf in the middle', { 0, 1, inf, 2, 3 } },
   }
   local function results(list, dtype, device)
      local bias, y = {}, {}
      for v = 1, nclass do bias[v] = list[math.ceil(v / 512)] end
      local x, w = linear_inputs(0, 0.5, 3, nclass, dtype)
      for i = 1, 3 do y[i] = i * 650 end
      x, w = x:to(device):requires_grad_(), w:to(device):requires_grad_()
      bias = tide.tensor(bias, { dtype = dtype, device = device }):requires_grad_()
      y = tide.tensor(y, { dtype = 'i64', device = device })
      local loss = tide.linear_cross_entropy(x, w, bias, y, { label_smoothing = 0 })
      loss:backward()
      local all = { loss:item() }
      for _, t in ipairs { x.grad, w.grad, bias.grad } do flat(t:to('f64'):tolist(), all) end
      return all
   end
   for _, case in ipairs(levels) do
      local name, list = case[1], case[2]
      it("agrees with the reference: " .. name, function()
         for _, dtype in ipairs { 'f32', 'bf16' } do
            local want, got = results(list, dtype, 'ref'), results(list, dtype, fast)
            for i, v in ipairs(want) do
               local nan = v ~= v
               assert.equal(nan, got[i] ~= got[i], name .. ', element ' .. i)
               if not nan and v ~= got[i] then
                  near(v, got[i], linear_room[dtype] * (1 + math.abs(v)), 'element ' .. i)
               end
            end
         end
      end)
   end
end)

-- So many rows of so many classes that logits are made a span at a time: one block of rows, and
-- two, the second with tokens that do not count.
describe("linear_cross_entropy of many rows and classes", function()
   local nclass = 5000
   local values = {}
   local function inputs(n)
      values[n] = values[n] or {
         tide.randn({ n, 8 }):to('bf16'), tide.randn({ nclass, 8 }):to('bf16'),
         tide.randn({ nclass }):to('bf16'),
      }
      return values[n]
   end

   local function run(n, device, dtype)
      local t, y = {}, {}
      for i, v in ipairs(inputs(n)) do
         t[i] = v:to(dtype):to(device)
         t[i]:requires_grad_()
      end
      for i = 1, n do y[i] = (i > 560 or i % 7 == 0) and -100 or (i * 37) % nclass end
      local targets = tide.tensor(y, { dtype = 'i64' }):to(device)
      local loss = tide.linear_cross_entropy(t[1], t[2], t[3], targets,
         { label_smoothing = 0.1, z_loss = 1e-3 })
      loss:backward()
      return loss:item(), t[1].grad, t[2].grad, t[3].grad
   end

   -- emulated threads are slow: there one block of rows
   for _, n in ipairs(fast == 'cuda' and not wide and { 450 } or { 450, 1100 }) do
      it(("is that of the reference in bf16, %d rows"):format(n), function()
         local want, got = { run(n, 'ref', 'f64') }, { run(n, fast, 'bf16') }
         near(want[1], got[1], 1e-6 * want[1], 'loss')
         for i, name in ipairs { 'x', 'w', 'bias' } do
            check_all(want[i + 1]:to('f64'):tolist(), got[i + 1], linear_room.bf16,
               'gradient of ' .. name)
         end
      end)
   end
end)

-- Rows whose target is ignored are left out of the products. Shapes with one chunk, several, and by
-- span; few, half and nearly all rows count.
describe('linear_cross_entropy of rows that are ignored', function()
   local function run(x, w, y)
      x, w = x:clone():requires_grad_(), w:clone():requires_grad_()
      local loss = tide.linear_cross_entropy(x, w, nil, tide.tensor(y, { dtype = 'i64' }))
      loss:backward()
      return loss:item(), x.grad, w.grad
   end

   local function check(dtype, n, dim, nclass, every)
      local x, w = tide.randn({ n, dim }):to(dtype), tide.randn({ nclass, dim }):to(dtype)
      local y, kept, targets = {}, {}, {}
      for i = 1, n do
         local counts = i == 1 or (i * 7919) % 97 < every * 97
         y[i] = counts and (i * 37) % nclass or -100
         if counts then kept[#kept + 1], targets[#targets + 1] = i, y[i] end
      end
      local rows = tide.tensor(kept, { dtype = 'i64' }) - 1
      local want, want_x, want_w = run(x:index_select(1, rows), w, targets)
      for i = 1, n do
         if y[i] == -100 and i % 2 == 0 then x:narrow(1, i, 1):fill_(0 / 0) end
      end
      local loss, dx, dw = run(x, w, y)
      local what = ('%s, %d x %d x %d, %g'):format(dtype, n, dim, nclass, every)
      near(want, loss, 2e-6 * (1 + math.abs(want)), what)
      local room = dtype == 'f32' and 1e-5 or 2 ^ -7
      local function off(a, b) return (a:to('f32') - b:to('f32')):abs():amax():item() end
      local function size(t) return t:to('f32'):abs():amax():item() end
      assert.is_true(off(want_x, dx:index_select(1, rows)) <= room * size(want_x), what)
      assert.is_true(off(want_w, dw) <= room * size(want_w), what)
      local counted = dx:to('f32'):abs():sum():item()
      near(want_x:to('f32'):abs():sum():item(), counted, room * (1 + counted), what .. ', zeros')
   end

   for _, dtype in ipairs { 'f32', 'bf16' } do
      it('is that of the others alone in ' .. dtype, function()
         for _, s in ipairs { { 5, 3, 7 }, { 70, 16, 33 }, { 257, 24, 513 }, { 1500, 8, 5000 } } do
            for _, every in ipairs(s[1] < 1000 and { 0.02, 0.3, 0.66, 0.98 } or { 0.02, 0.66 }) do
               check(dtype, s[1], s[2], s[3], every)
            end
         end
      end)
   end
end)

-- Only the logits of the first spans of classes are kept in 16 bits here; the others are computed
-- again. The f32 of the same operands is computed in another way. How many are kept does not depend
-- on the instruction set.
describe('linear_cross_entropy of more bf16 logits than are kept', function()
   local case = os.getenv 'TIDE_ISA' and pending or it
   case('has the gradients of f32, rounded', function()
      local n, nclass = 2000, 31000
      local x0, w0 = tide.randn({ n, 4 }):to('bf16'), tide.randn({ nclass, 4 }):to('bf16')
      local targets = tide.arange(n, { dtype = 'i64' })
      local function grads(dtype)
         local x, w = x0:to(dtype):requires_grad_(), w0:to(dtype):requires_grad_()
         tide.linear_cross_entropy(x, w, nil, targets):backward()
         return x.grad:to('f32'), w.grad:to('f32')
      end
      local want, got = { grads 'f32' }, { grads 'bf16' }
      for i = 1, 2 do
         local off = (want[i] - got[i]):abs():amax():item()
         local largest = want[i]:abs():amax():item()
         assert.is_true(off < 2 ^ -8 * largest, ('%g of %g'):format(off, largest))
      end
   end)
end)

-- The gradients are there before backward begins; backward scales them, in f64 where they are f64.
describe('linear_cross_entropy scaled by a number that f32 does not hold', function()
   it('has gradients that are exact in f64', function()
      local f64 = { dtype = 'f64' }
      local x0, w0 = tide.randn({ 6, 4 }, f64), tide.randn({ 5, 4 }, f64)
      local function grads(scale)
         local x, w = x0:clone():requires_grad_(), w0:clone():requires_grad_()
         local y = tide.tensor({ 0, 4, 2, 1, 3, 3 }, { dtype = 'i64' })
         local loss = tide.linear_cross_entropy(x, w, nil, y)
         if scale ~= 1 then loss = loss * scale end
         loss:backward()
         return { x.grad, w.grad }
      end
      local whole, part = grads(1), grads(1 / 24)
      for i = 1, 2 do
         local off = (part[i] * 24 - whole[i]):abs():amax():item()
         assert.is_true(off < 1e-15, off)
      end
   end)
end)

describe('linear_cross_entropy with a factor, added to gradients that are there', function()
   for dtype, room in each { f64 = 1e-14, f32 = 1e-5, bf16 = 0.02 } do
      it('is the sum of both: ' .. dtype, function()
         local how = { dtype = dtype, device = fast }
         local first = { tide.randn { 9, 24 }, tide.randn { 37, 24 }, tide.randn { 37 } }
         local targets = {}
         for i = 1, 9 do targets[i] = (5 * i) % 37 end
         local y = tide.tensor(targets, { dtype = 'i64', device = fast })
         -- The gradients of losses with these factors.
         local function grads(factors, retain)
            local t = {}
            for i = 1, 3 do t[i] = first[i]:to(how):detach():requires_grad_() end
            local loss
            for _, factor in ipairs(factors) do
               loss = retain and loss or tide.linear_cross_entropy(t[1], t[2], t[3], y)
               local dy = tide.full({}, factor, { dtype = loss.dtype, device = fast })
               loss:backward(dy, { retain = retain })
            end
            local list = {}
            for i = 1, 3 do list[i] = t[i].grad:to { dtype = 'f64', device = 'cpu' } end
            return list
         end
         local one = grads { 1 }
         for _, retain in ipairs { false, true } do
            for i, got in ipairs(grads({ 0.5, -3, 0.25 }, retain)) do
               local off = (got + one[i] * 2.25):abs():amax():item()
               assert.is_true(off <= room * one[i]:abs():amax():item(), off)
            end
         end
      end)
   end
end)
