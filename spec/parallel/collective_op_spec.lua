-- Differentiable collectives over threads: values along every dim, gradients of the sum of all
-- ranks' losses against central differences, and N-rank layers against one rank.

local ranks = require 'spec.support.ranks'

-- Named cases; each gives, for a rank, the shape of its input and the function. Runs on a rank.
local source = [[
   local op = require('tide').parallel.op
   local n, me, comm = ...
   -- sizes 0, 1, 2, ... so that one is empty and all differ
   local counts = {}
   for r = 1, n do counts[r] = r - 1 end
   local total = n * (n - 1) / 2
   -- to rank q, rank r sends (r + q) % 3 rows
   local give, take = {}, {}
   local sent = 0
   for q = 0, n - 1 do
      give[q + 1], take[q + 1] = (me + 2 * q) % 3, (q + 2 * me) % 3
      sent = sent + give[q + 1]
   end
   return {
      all_gather_1 = { { 2, 3 }, function(x) return op.all_gather(x, comm) end },
      all_gather_2 = { { 2, 3 }, function(x) return op.all_gather(x, comm, 2) end },
      all_gather_last = { { 2, 2, 1 }, function(x) return op.all_gather(x, comm, -1) end },
      all_gather_v_1 = { { me, 3 }, function(x) return op.all_gather_v(x, comm, 1, counts) end },
      all_gather_v_2 = { { 2, me }, function(x) return op.all_gather_v(x, comm, 2) end },
      reduce_scatter_1 = { { 2 * n, 2 }, function(x) return op.reduce_scatter(x, comm, 1) end },
      reduce_scatter_2 = { { 2, n }, function(x) return op.reduce_scatter(x, comm, 2, 'mean') end },
      reduce_scatter_v_1 = { { total, 2 },
         function(x) return op.reduce_scatter_v(x, comm, 1, counts) end },
      reduce_scatter_v_2 = { { 2, total },
         function(x) return op.reduce_scatter_v(x, comm, 2, counts, 'mean') end },
      all_reduce = { { 2, 2 }, function(x) return op.all_reduce(x, comm) end },
      all_reduce_mean = { { 3 }, function(x) return op.all_reduce(x, comm, 'mean') end },
      all_reduce_scalar = { {}, function(x) return op.all_reduce(x, comm) end },
      all_to_all_same = { { n, 2 }, function(x) return op.all_to_all(x, comm) end },
      all_to_all_12 = { { n, 2 }, function(x) return op.all_to_all(x, comm, 1, 2) end },
      all_to_all_31 = { { 2, 1, n }, function(x) return op.all_to_all(x, comm, 3, 1) end },
      all_to_all_uneven = { { total, me },
         function(x) return op.all_to_all(x, comm, 1, 2, counts, counts) end },
      all_to_all_uneven_21 = { { me, total },
         function(x) return op.all_to_all(x, comm, 2, 1, counts, counts) end },
      all_to_all_v_1 = { { sent, 2 }, function(x) return op.all_to_all_v(x, comm, give, take) end },
      all_to_all_v_2 = { { 2, sent },
         function(x) return op.all_to_all_v(x, comm, give, take, 2) end },
      broadcast = { { 3 }, function(x) return op.broadcast(x, comm, n - 1) end },
      reduce = { { 3 }, function(x) return op.reduce(x, comm, n - 1) end },
      reduce_mean = { { 3 }, function(x) return op.reduce(x, comm, 0, 'mean') end },
      shift = { { 2, 2 }, function(x) return op.shift(x, comm) end },
      shift_back = { { 3 }, function(x) return op.shift(x, comm, -2) end },
      transposed = { { 2, 3 },
         function(x) return op.all_gather(x:t(), comm, 2) end },
   }
]]

local names = {}
do
   local fake = { size = 1, rank = 0 }
   for name in require 'tide.util.each'(assert(loadstring(source))(1, 0, fake)) do
      names[#names + 1] = name
   end
   table.sort(names)
end

-- On one rank: gradients of sum over ranks of sum(sin(y) * weight) against central differences,
-- along one direction over all ranks' inputs and element by element.
local function check(rank, n, text, name, elementwise)
   local tide_ = require 'tide'
   local comm = tide_.dist.world()
   local case = assert(loadstring(text))(n, rank, comm)[name]
   local shape, fn = case[1], case[2]
   local size = 1
   for _, s in ipairs(shape) do size = size * s end
   local function numbers(count, seed)
      local list = {}
      for i = 1, count do list[i] = math.sin(i * 1.7 + rank * 0.6 + seed) end
      return list
   end
   local function make(values) return tide_.tensor(values, { dtype = 'f64' }):reshape(shape) end
   local function loss(x)
      local y = fn(x)
      local w = tide_.tensor(numbers(y:numel(), 9), { dtype = 'f64' }):reshape(y.shape)
      return (y:sin() * w):sum()
   end
   local function value(values)
      return tide_.no_grad(function()
         return comm:all_reduce(loss(make(values)):clone()):item()
      end)
   end
   local base = numbers(size, 0)
   local x = make(base):requires_grad_(true)
   loss(x):backward()
   local grad = x.grad and x.grad:reshape { size }:tolist() or {}
   local function along(direction)
      local h, up, down, mine = 1e-6, {}, {}, 0
      for i = 1, size do
         up[i], down[i] = base[i] + h * direction[i], base[i] - h * direction[i]
         mine = mine + grad[i] * direction[i]
      end
      local want = (value(up) - value(down)) / (2 * h)
      local got = comm:all_reduce(tide_.tensor({ mine }, { dtype = 'f64' })):item()
      if math.abs(got - want) > 1e-7 * (1 + math.abs(want)) then
         return ('%s: backward gives %.10g, differences give %.10g'):format(name, got, want)
      end
   end
   local wrong = along(numbers(size, 3))
   if wrong then return wrong end
   local sizes = tide_.parallel.op.counts(size, comm)
   for q = 0, elementwise and n - 1 or -1 do
      for i = 1, sizes[q + 1] do
         local direction = {}
         for j = 1, size do direction[j] = q == rank and i == j and 1 or 0 end
         wrong = along(direction)
         if wrong then return wrong .. (' (rank %d, element %d)'):format(q, i) end
      end
   end
   return true
end

describe('gradients of collectives', function()
   for _, n in ipairs { 1, 2, 3, 4, 6, 8 } do
      for _, name in ipairs(names) do
         it(('%s on %d ranks'):format(name, n), function()
            local out = ranks.run(n, check, source, name, n == 2 or n == 3)
            for r = 1, n do assert.equal(true, out[r]) end
         end)
      end
   end
end)

describe('values of collectives', function()
   -- Element i of rank r is 100 r + i, so that every number says where it was.
   local function values(rank, n)
      local tide_ = require 'tide'
      local op, comm = tide_.parallel.op, tide_.dist.world()
      local function t(rows, columns, r)
         return (tide_.arange(rows * columns) + 100 * (r or rank)):reshape { rows, columns }
      end
      local function all(rows, columns, dim)
         local list = {}
         for r = 0, n - 1 do
            list[r + 1] = t(type(rows) == 'table' and rows[r + 1] or rows,
               type(columns) == 'table' and columns[r + 1] or columns, r)
         end
         return tide_.cat(list, dim)
      end
      local counts, total = {}, 0
      for r = 1, n do
         counts[r] = (r * 2) % 3
         total = total + counts[r]
      end
      local mine, before = counts[rank + 1], 0
      for r = 1, rank do before = before + counts[r] end
      local wrong = {}
      local function expect(what, got, want)
         if #got.shape ~= #want.shape or got:size(1) ~= want:size(1) or got:size(2) ~= want:size(2)
            or not got:equal(want) then
            wrong[#wrong + 1] = what
         end
      end
      for dim = 1, 2 do
         expect('all_gather ' .. dim, op.all_gather(t(2, 3), comm, dim), all(2, 3, dim))
         local a, b = dim == 1 and counts or 2, dim == 2 and counts or 3
         expect('all_gather_v ' .. dim,
            op.all_gather_v(t(dim == 1 and mine or 2, dim == 2 and mine or 3), comm, dim, counts),
            all(a, b, dim))
         local sum = tide_.zeros { total, total }
         for r = 0, n - 1 do sum:add_(t(total, total, r)) end
         expect('reduce_scatter_v ' .. dim,
            op.reduce_scatter_v(t(total, total), comm, dim, counts),
            sum:narrow(dim, before + 1, mine))
         expect('scatter_to ' .. dim, op.scatter_to(t(total, total), comm, dim, counts),
            t(total, total):narrow(dim, before + 1, mine))
         expect('gather_from ' .. dim,
            op.gather_from(t(dim == 1 and mine or 2, dim == 2 and mine or 3), comm, dim, counts),
            all(a, b, dim))
         -- pieces of all ranks along the other dim
         local list = {}
         for r = 0, n - 1 do
            local x = t(dim == 1 and total or counts[r + 1], dim == 2 and total or counts[r + 1], r)
            list[r + 1] = x:narrow(dim, before + 1, mine)
         end
         expect('all_to_all ' .. dim,
            op.all_to_all(t(dim == 1 and total or mine, dim == 2 and total or mine), comm, dim,
               3 - dim, counts, counts),
            tide_.cat(list, 3 - dim))
      end
      local from = (rank - 1) % n
      expect('shift', op.shift(t(2, 2), comm), t(2, 2, from))
      expect('broadcast', op.broadcast(t(2, 2), comm, n - 1), t(2, 2, n - 1))
      local sum = tide_.zeros { 2, 2 }
      for r = 0, n - 1 do sum:add_(t(2, 2, r)) end
      expect('reduce', op.reduce(t(2, 2), comm, 0), rank == 0 and sum
         or n > 1 and tide_.zeros { 2, 2 } or sum)
      expect('reduce_from', op.reduce_from(t(2, 2), comm), sum)
      expect('max', op.all_reduce(t(2, 2), comm, 'max'), t(2, 2, n - 1))
      local x = t(2, 2)
      op.all_reduce(x, comm)
      op.reduce(x, comm)
      op.shift(x, comm)
      expect('input', x, t(2, 2))
      return table.concat(wrong, ', ')
   end
   for _, n in ipairs { 1, 2, 3, 4, 6, 8 } do
      it(('on %d ranks'):format(n), function()
         for _, text in ipairs(ranks.run(n, values)) do assert.equal('', text) end
      end)
   end
end)

describe('layers over ranks', function()
   -- A two-layer network with its hidden features cut over ranks (copy_to, reduce_from), and the
   -- same with activations cut by rows in between (all_gather, reduce_scatter).
   local function mlp(rank, n, by_rows)
      local tide_ = require 'tide'
      local op, comm = tide_.parallel.op, tide_.dist.world()
      local opts = { dtype = 'f64' }
      local function w(rows, columns, seed)
         local list = {}
         for i = 1, rows * columns do list[i] = math.sin(i * 0.7 + seed) end
         return tide_.tensor(list, opts):reshape { rows, columns }
      end
      local H, T = 24, 24
      local x0, a0, b0, c0 = w(T, 3, 1), w(H, 3, 2), w(2, H, 3), w(T, 2, 4)
      -- one rank
      local x, a, b = x0:clone():requires_grad_(true), a0:clone():requires_grad_(true),
         b0:clone():requires_grad_(true)
      local y = tide_.linear(tide_.linear(x, a):gelu(), b)
      local loss = y:sin():mul(c0):sum()
      loss:backward()
      -- n ranks
      local h, t = H / n, T / n
      local ap = a0:narrow(1, rank * h + 1, h):clone():requires_grad_(true)
      local bp = b0:narrow(2, rank * h + 1, h):clone():requires_grad_(true)
      local rows = by_rows and x0:narrow(1, rank * t + 1, t) or x0
      local xp = rows:clone():requires_grad_(true)
      local xin = by_rows and op.all_gather(xp, comm) or op.copy_to(xp, comm)
      local part = tide_.linear(tide_.linear(xin, ap):gelu(), bp)
      local yp = by_rows and op.reduce_scatter(part, comm) or op.reduce_from(part, comm)
      local cp = by_rows and c0:narrow(1, rank * t + 1, t) or c0
      local lp = yp:sin():mul(cp):sum()
      lp:backward()
      local function far(got, want) return (got - want):abs():amax():item() > 1e-12 end
      local sum = by_rows and comm:all_reduce(lp:detach():clone()) or lp:detach()
      if math.abs(sum:item() - loss:item()) > 1e-12 then return 'loss' end
      if far(ap.grad, a.grad:narrow(1, rank * h + 1, h)) then return 'first weight' end
      if far(bp.grad, b.grad:narrow(2, rank * h + 1, h)) then return 'second weight' end
      local want = by_rows and x.grad:narrow(1, rank * t + 1, t) or x.grad
      if far(xp.grad, want) then return 'input' end
      return 'alike'
   end

   -- Attention with the sequence cut outside and the heads cut inside.
   local function attention(rank, n)
      local tide_ = require 'tide'
      local op, comm = tide_.parallel.op, tide_.dist.world()
      local B, T, H, D = 2, 24, 24, 2
      local function w(seed)
         local list = {}
         for i = 1, B * T * H * D do list[i] = math.sin(i * 0.37 + seed) end
         return tide_.tensor(list):reshape { B, T, H, D }
      end
      local t = T / n
      local function mine(x) return x:narrow(2, rank * t + 1, t) end
      local q0, k0, v0, c0 = w(1), w(2), w(3), w(4)
      local whole, parts = {}, {}
      for i, x in ipairs { q0, k0, v0 } do
         whole[i] = x:clone():requires_grad_(true)
         parts[i] = mine(x):clone():requires_grad_(true)
      end
      local y = tide_.attention(whole[1], whole[2], whole[3], { causal = true })
      y:mul(c0):sum():backward()
      local inner = {}
      for i = 1, 3 do inner[i] = op.all_to_all(parts[i], comm, 3, 2) end
      local z = tide_.attention(inner[1], inner[2], inner[3], { causal = true })
      z = op.all_to_all(z, comm, 2, 3)
      z:mul(mine(c0)):sum():backward()
      local function far(got, want) return (got - want):abs():amax():item() > 1e-5 end
      if far(z:detach(), mine(y:detach())) then return 'output' end
      for i = 1, 3 do
         if far(parts[i].grad, mine(whole[i].grad)) then return 'gradient ' .. i end
      end
      return 'alike'
   end

   for _, n in ipairs { 1, 2, 3, 4, 6, 8 } do
      it(('equal one rank on %d'):format(n), function()
         for _, text in ipairs(ranks.run(n, mlp, false)) do assert.equal('alike', text) end
         for _, text in ipairs(ranks.run(n, mlp, true)) do assert.equal('alike', text) end
         for _, text in ipairs(ranks.run(n, attention)) do assert.equal('alike', text) end
      end)
   end

   it('do the same under checkpoint', function()
      local out = ranks.run(2, function(rank)
         local tide_ = require 'tide'
         local op, comm = tide_.parallel.op, tide_.dist.world()
         local x = tide_.tensor({ rank + 1, 2 }, { dtype = 'f64' }):requires_grad_(true)
         local y = tide_.checkpoint(function(v) return op.all_gather(v:square(), comm) end, x)
         y:sum():backward()
         return x.grad:tolist()
      end)
      assert.same({ { 4, 8 }, { 8, 8 } }, out)
   end)

   it('train with the communicator of an axis', function()
      -- dp x tp with nothing cut over tp: each tp column is a data-parallel run of its own
      local function train(_, _, axes)
         local tide_ = require 'tide'
         local m = tide_.parallel.mesh(axes)
         local comm = m:axis('dp').comm
         local model = tide_.model.llama({ vocab_size = 32, hidden_size = 16,
            num_hidden_layers = 1, num_attention_heads = 2 }, { seed = 3 })
         local opt = tide_.optim.AdamW(model, { lr = 1e-2 })
         local step = require('tide.train.step').new { model = model, optim = opt, clip = 1,
            comm = comm }
         local losses = {}
         for k = 1, 3 do
            local ids, labels = {}, {}
            for i = 1, 8 do
               ids[i] = (i * 5 + k + comm.rank * 3) % 32
               labels[i] = (ids[i] * 3 + 1) % 32
            end
            local function t(list)
               return tide_.tensor(list, { dtype = 'i64' }):reshape { 1, 8 }
            end
            losses[k] = step:run({ { ids = t(ids), labels = t(labels), count = 8 } }).loss
         end
         return losses
      end
      local plain = ranks.run(2, train, { { 'dp', 2 } })
      local wide = ranks.run(4, train, { { 'dp', 2 }, { 'tp', 2 } })
      assert.same(plain[1], plain[2])
      assert.is_true(plain[1][3] < plain[1][1])
      for r = 1, 4 do assert.same(plain[1], wide[r]) end
   end)
end)
