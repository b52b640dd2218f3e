-- What CUDA kernels do that small shapes do not reach: several blocks, several launches, tiles of
-- tensor cores, faults found by kernels. Each is compared with the reference or with cpu.
--
-- Not found by its name: spec/cuda/emulated_device_spec.lua runs it on emulated threads. On a
-- machine with a GPU:
-- TIDE_SPEC_DEVICE=cuda luajit /usr/bin/busted spec/cuda/device_case.lua spec/op

local tide = require 'tide'
local update = require 'tide.ffi.update'
local refused = require 'spec.support.refused'
local numbers = require 'spec.cuda.compare'
local attention = require 'spec.cuda.attention'
local wide = require 'spec.support.wide'

local device = 'cuda'
local rounding, random = numbers.rounding, numbers.random
local close, bytes = numbers.close, numbers.bytes

-- ---- attention on tensor cores ------------------------------------------------------------------

local shapes = {
   { b = 1, tq = 70, tk = 70, h = 2, hk = 1, d = 64, dv = 64 },
   { b = 2, tq = 33, tk = 90, h = 4, hk = 2, d = 16, dv = 32 },
   { b = 1, tq = 65, tk = 65, h = 1, hk = 1, d = 128, dv = 128 },
   { b = 1, tq = 40, tk = 50, h = 1, hk = 1, d = 136, dv = 200 },
   { b = 1, tq = 66, tk = 40, h = 3, hk = 1, d = 27, dv = 9 },
}

describe('attention over several tiles', function()
   for i, name in ipairs { 'full', 'causal', 'window', 'window to both sides', 'shifted', 'softcap',
                           'packed' } do
      for k, dtype in ipairs { 'bf16', 'f16', 'f32' } do
         it(('is that of the reference: %s, %s'):format(name, dtype), function()
            local few = { shapes[(i + k) % 5 + 1], dtype ~= 'f32' and shapes[i % 5 + 1] or nil }
            attention.agrees(wide and shapes or few, attention.masks[name], dtype, device)
         end)
      end
   end

   it('gives the same bits twice', function()
      local function run() return attention.attend(shapes[1], { causal = true }, 'bf16', device) end
      local a, b = run(), run()
      for k = 1, 5 do assert.equal(bytes(a[k]), bytes(b[k])) end
   end)

   it('reads heads that are views of one tensor', function()
      local qkv = random({ 1, 40, 6, 32 }, 3, 'bf16')
      local function run(x)
         return tide.attention(x:slice(3, 1, 2), x:slice(3, 3, 4), x:slice(3, 5, 6),
            { causal = true })
      end
      close(run(qkv:to(device)), run(qkv), rounding.bf16, 'views')
   end)
end)

-- ---- several blocks and launches ----------------------------------------------------------------

describe('reductions over many elements', function()
   local sizes = { { 3, 10000 }, { 10000, 3 }, { 70001 }, { 33, 300, 7 }, { 600, 130 } }
   for i = 1, wide and 5 or 4 do
      local shape = sizes[i]
      it('agree with the host: ' .. table.concat(shape, ' '), function()
         local x = random(shape, 5, 'f64')
         local y = x:to(device)
         for dim = 1, #shape do
            for _, op in ipairs { 'sum', 'mean', 'amax', 'amin' } do
               close(y[op](y, dim), x[op](x, dim), 1e-12, op .. ' over dim ' .. dim)
            end
            assert.equal(bytes(y:argmax(dim)), bytes(x:argmax(dim)))
            assert.equal(bytes(y:argmin(dim)), bytes(x:argmin(dim)))
            assert.equal(bytes((select(2, y:topk(3, dim)))), bytes((select(2, x:topk(3, dim)))))
            close(y:cumsum(dim), x:cumsum(dim), 1e-12, 'cumsum')
         end
         close(y:sum(), x:sum(), 1e-12, 'sum')
         assert.equal(bytes(y:to('f32'):sum()), bytes(y:to('f32'):sum()))
      end)
   end
end)

describe('sums that meet at one index', function()
   local n, v, d = 700, 13, 1100
   local function ids(seed)
      local list = {}
      for i = 1, n do list[i] = (i * i * seed + i) % v end
      return tide.tensor(list, { dtype = 'i64' })
   end
   for _, dtype in ipairs { 'f64', 'bf16', 'i64' } do
      it('are in index order in ' .. dtype, function()
         local src = (random({ n, d }, 4) * 8):floor():to(dtype)
         local t = tide.ones({ v, d }, { dtype = dtype })
         local want = t:to('ref'):index_add(1, ids(3):to 'ref', src:to 'ref')
         local got = t:to(device):index_add(1, ids(3):to(device), src:to(device))
         assert.equal(bytes(want), bytes(got))
         local narrow = src:slice(2, 1, 3):contiguous()
         local index = ids(5):reshape(n, 1):expand({ n, 3 }):contiguous()
         local base = tide.zeros({ v, 3 }, { dtype = dtype })
         assert.equal(
            bytes(base:to('ref'):scatter_add(1, index:to 'ref', narrow:to 'ref')),
            bytes(base:to(device):scatter_add(1, index:to(device), narrow:to(device))))
      end)
   end

   it('are the gradient of an embedding', function()
      local grads = {}
      for i, where in ipairs { 'ref', device } do
         local w = random({ v, d }, 8):to(where):detach():requires_grad_()
         tide.embedding(w, ids(7):reshape(70, 10):to(where)):square():sum():backward()
         grads[i] = w.grad
      end
      close(grads[2], grads[1], 2e-6, 'dweight')
   end)
end)

describe('random numbers', function()
   for _, dtype in ipairs { 'f32', 'f64', 'bf16', 'f16' } do
      it('are those of the host, bit for bit, in ' .. dtype, function()
         for offset = 0, 5 do
            local got = {}
            for i, where in ipairs { 'cpu', device } do
               tide.set_rng_state { seed = 99, stream = 4, offset = offset }
               local o = { dtype = dtype, device = where }
               local strided = tide.zeros({ 9, 14 }, o)
               strided:slice(2, 1, 14, 2):normal_(0.5, 3)
               got[i] = bytes(tide.zeros({ 1037 }, o):uniform_(-2, 5))
                  .. bytes(tide.zeros({ 41, 7 }, o):normal_(1, 2)) .. bytes(strided)
                  .. bytes(tide.zeros({ 515 }, o):trunc_normal_(0, 1, -1, 2))
            end
            assert.equal(got[1], got[2])
         end
      end)
   end
end)

describe('optimiser steps of many tensors', function()
   local function state(where, dtype)
      local s = { p = {}, g = {}, m = {}, v = {}, master = {}, buf = {} }
      for i = 1, 101 do
         local n = i == 50 and 20000 or i % 7 * 13
         for k, name in ipairs { 'p', 'g' } do s[name][i] = random({ n }, i * 2 + k, dtype) end
         for _, name in ipairs { 'm', 'v', 'buf' } do s[name][i] = tide.zeros { n } end
         s.master[i] = s.p[i]:to 'f32'
         for _, name in ipairs { 'p', 'g', 'm', 'v', 'master', 'buf' } do
            s[name][i] = s[name][i]:to(where)
         end
      end
      return s
   end
   local function compare(run, names, dtype)
      local a, b = state('cpu', dtype), state(device, dtype)
      run(a, 'cpu')
      run(b, device)
      for _, name in ipairs(names) do
         for i = 1, 101 do close(b[name][i], a[name][i], 4e-3, name .. ' ' .. i) end
      end
   end

   it('is AdamW with a factor from the device', function()
      compare(function(s, where)
         local factor = update.clip_factor(update.norm(s.g), 1)
         assert.equal(where, factor.device)
         local lists = { p = s.p, g = s.g, m = s.m, v = s.v, master = s.master, g_scale = factor }
         update.adamw_(lists, { lr = 0.01, beta1 = 0.9, beta2 = 0.95, eps = 1e-8,
                                weight_decay = 0.1, step = 3 })
         update.scale_all_(s.g, factor)
      end, { 'p', 'g', 'm', 'v', 'master' }, 'bf16')
   end)

   it('is SGD with momentum', function()
      compare(function(s)
         for step = 1, 2 do
            update.sgd_({ p = s.p, g = s.g, buf = s.buf, master = s.master },
               { lr = 0.1, momentum = 0.9, nesterov = true, weight_decay = 0.01,
                 first = step == 1 })
         end
      end, { 'p', 'buf', 'master' }, 'f16')
   end)

   it('is a norm', function()
      local a, b = state('cpu', 'f32'), state(device, 'f32')
      for _, p in ipairs { 1, 2, math.huge } do
         local want, got = update.norm(a.g, p):item(), update.norm(b.g, p):item()
         assert.is_true(math.abs(want - got) <= 1e-6 * want)
      end
   end)
end)

-- ---- how f32 products round ---------------------------------------------------------------------

describe('a product of f32', function()
   after_each(function() tide.cuda.set_float32_matmul_precision 'highest' end)

   -- 1 + 2^-bits, which an operand of that many bits of fraction just holds
   local function square(bits)
      local x = tide.full({ 2, 2 }, 1 + 2^-bits, { device = device })
      return x:matmul(tide.eye(2):to(device)):at(1, 1)
   end

   it('rounds its operands as far as was asked for', function()
      for _, row in ipairs { { 'highest', 23 }, { 'high', 10 }, { 'medium', 7 } } do
         tide.cuda.set_float32_matmul_precision(row[1])
         assert.equal(row[1], tide.cuda.get_float32_matmul_precision())
         assert.equal(1 + 2^-row[2], square(row[2]))
         if row[2] < 23 then assert.equal(1, square(row[2] + 2)) end
      end
      refused('E_ARG', { 'set_float32_matmul_precision', 'highest' }, function()
         tide.cuda.set_float32_matmul_precision 'fp8'
      end)
   end)

   it('leaves other dtypes and the host alone', function()
      tide.cuda.set_float32_matmul_precision 'medium'
      local x = random({ 9, 17 }, 3)
      for _, dtype in ipairs { 'f64', 'bf16', 'f16' } do
         local a = x:to(dtype)
         close(a:to(device):matmul(a:to(device):transpose(1, 2)), a:matmul(a:transpose(1, 2)),
            rounding[dtype], dtype)
      end
      local exact = x:to 'f64'
      close(x:matmul(x:transpose(1, 2)):to 'f64', exact:matmul(exact:transpose(1, 2)), 1e-6, 'host')
   end)
end)

-- ---- products of FP8 ----------------------------------------------------------------------------

describe('a product of FP8', function()
   -- More than one tile, more than one part of the largest; widths on and off steps of 16.
   for _, shape in ipairs { { 70, 200, 96 }, { 3, 1000, 33 }, { 130, 64, 160 } } do
      for _, dtype in ipairs { 'bf16', 'f16', 'f32' } do
         it(('is that of the host: %s in %s'):format(table.concat(shape, ' '), dtype), function()
            local m, k, n = unpack(shape)
            local found = {}
            for i, where in ipairs { 'cpu', device } do
               local x, w, b = random({ 2, m, k }, 3, dtype), random({ n, k }, 4, dtype) * 0.1,
                  random({ n }, 5, dtype)
               local leaves = {}
               for j, t in ipairs { x, w, b } do
                  leaves[j] = t:to(where):detach():requires_grad_()
               end
               local y = tide.linear_fp8(unpack(leaves))
               y:backward(random({ 2, m, n }, 6, dtype):to(where))
               found[i] = { y:detach(), leaves[1].grad, leaves[2].grad, leaves[3].grad }
            end
            for j, what in ipairs { 'y', 'dx', 'dw', 'dbias' } do
               close(found[2][j], found[1][j], math.max(rounding[dtype], 1e-5), what)
            end
         end)
      end
   end

   it('is part of a captured step, with the scales of each replay', function()
      local x, w = random({ 17, 32 }, 7):to(device), random({ 48, 32 }, 8):to(device)
      local step = tide.cuda.graph(function() return tide.linear_fp8(x, w) end)
      x:mul_(1000)
      close(step:replay(), tide.linear_fp8(x:to 'cpu', w:to 'cpu'), 1e-5, 'replayed')
   end)

   it('has the codes of weights that a captured step or a replay changed', function()
      tide.param('fp8_codes', 1)
      finally(function() tide.param('fp8_codes', 0) end)
      local x, w = random({ 17, 32 }, 7):to(device), random({ 48, 32 }, 8):to(device)
      local function y() return tide.linear_fp8(x, w) end
      local function right(got, what)
         close(got, tide.linear_fp8(x:to 'cpu', w:to 'cpu'), 1e-5, what)
      end
      right(y(), 'before')
      local step = tide.cuda.graph(y)             -- rounds w again, not using older codes
      w:mul_(-2)
      right(step:replay(), 'replayed')
      local change = tide.cuda.graph(function() w:mul_(3) return y() end)
      for _ = 1, 2 do
         right(y(), 'eager')
         right(change:replay(), 'changed by the step')
      end
      right(y(), 'changed by a replay')
   end)
end)

-- ---- faults that kernels find -------------------------------------------------------------------

describe('an index out of range', function()
   it('is told, and what follows is not disturbed', function()
      local x = random({ 5, 3 }, 1):to(device)
      local bad = tide.tensor({ 0, 5, 2 }, { dtype = 'i64', device = device })
      local function wrong() return x:index_select(1, bad):tolist() end
      refused('E_ARG', { 'index 5', '[0, 5)' }, wrong)
      assert.equal(15, x:numel())
      close(x + x, x:to('cpu') * 2, 0, 'the sum after it')
      refused('E_ARG', 'index', function()
         return tide.embedding(x, tide.tensor({ -1 }, { dtype = 'i64', device = device })):tolist()
      end)
      refused('E_ARG', { 'target of row 1', '9' }, function()
         return tide.cross_entropy(x, tide.tensor({ 0, 9, 1, 1, 1 }, { dtype = 'i64',
                                                                     device = device })):item()
      end)
   end)
end)

-- ---- batches of a captured step -----------------------------------------------------------------

describe('the context of a captured step', function()
   it('gets the documents of a later batch, and what tiles of them span', function()
      local cp = tide.parallel.cp
      local map = require('tide.parallel.cp.map').new { size = 2, length = 140 }
      local axis = { size = 2, rank = 0 }
      local function batch(cut)
         local list = {}
         for t = 1, 140 do list[t] = { t <= cut and 0 or 1, t <= cut and t - 1 or t - 1 - cut } end
         return { context = cp.context { map = map, axis = axis,
            index = tide.tensor({ list }, { dtype = 'i32', device = device }) } }
      end
      local handle = { cut = function(_, b) return b end }
      local replay = require 'tide.parallel.cp.replayed'(handle, device)
      local kept = replay:cut(1, batch(3)).context
      local own, all = kept:q_tiles(device), kept:joined_tiles(device, 0, 2)
      local pairs_of = { kept:q_index(device), kept:joined(device) }
      for _, cut in ipairs { 70, 139 } do
         local now = batch(cut)
         assert.equal(kept, replay:cut(1, now).context)
         local fresh = batch(cut).context
         assert.same(fresh:q_index(device):tolist(), pairs_of[1]:tolist())
         assert.same(fresh:joined(device):tolist(), pairs_of[2]:tolist())
         assert.same(fresh:q_tiles(device):tolist(), own:tolist())
         assert.same(fresh:joined_tiles(device):tolist(), all:tolist())
      end
   end)
end)
