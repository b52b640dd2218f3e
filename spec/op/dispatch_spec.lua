-- The road every op takes: check mode, missing kernels, operands on several devices, devices
-- without bytes, contexts that differ, interruption.

local tide = require 'tide'
local C = require('tide.ffi.lib').C
local info = require 'tide.ffi.info'
local refused = require 'spec.support.refused'
local update = require 'tide.ffi.update'

-- A context of its own, closed at the end of the case.
local function open(opts)
   local ctx = assert(tide.open(opts or {}))
   finally(function() ctx:close() end)
   return ctx
end

-- A small decoder with every fused op in it.
local function model_step(ctx, dtype)
   local function weight(...)
      return ctx:empty({ ... }, { dtype = dtype }):normal_(0, 0.2, { seed = 1 }):requires_grad_()
   end
   local emb, wq, wk, wv, wo = weight(50, 16), weight(16, 16), weight(8, 16), weight(8, 16),
      weight(16, 16)
   local gate, up, down, norm = weight(24, 16), weight(24, 16), weight(16, 24), weight(16)
   local ids = ctx:arange(12, { dtype = 'i64' }):reshape(2, 6)
   local x = tide.embedding(emb, ids)
   local h = tide.rms_norm(x, norm)
   local freq = ctx:tensor { 1, 0.1, 0.01, 0.001 }
   local pos = ctx:arange(6, { dtype = 'i64' }):unsqueeze(1)
   local q = tide.rope(tide.linear(h, wq):reshape(2, 6, 2, 8), pos, freq)
   local k = tide.rope(tide.linear(h, wk):reshape(2, 6, 1, 8), pos, freq)
   local v = tide.linear(h, wv):reshape(2, 6, 1, 8)
   local a = tide.attention(q, k, v, { causal = true }):reshape(2, 6, 16)
   local y, sum = tide.add_rms_norm(tide.dropout(tide.linear(a, wo), 0.1), x, norm)
   local f = sum + tide.linear(tide.swiglu(tide.linear(y, gate), tide.linear(y, up)), down)
   local loss = tide.linear_cross_entropy(f:reshape(12, 16), emb, nil, ids:reshape(12)) / 12
   loss:backward()
   for _, w in ipairs { emb, wq, wk, wv, wo, gate, up, down, norm } do
      assert.is_true(w.grad:isfinite():all():item())
   end
   return loss:item()
end

describe('check mode', function()
   for _, dtype in ipairs { 'f32', 'bf16' } do
      it('repeats every op of a model step on the reference, and agrees, in ' .. dtype, function()
         local plain, checked = open(), open { params = 'check=1' }
         local a, b = model_step(plain, dtype), model_step(checked, dtype)
         assert.equal(a, b)
         assert.is_true(a > 3 and a < 5)                     -- about log 50
         assert.is_true(checked:stats().nop > 1.9 * plain:stats().nop)
         assert.equal(0, tonumber(plain:param 'check'))
      end)
   end

   it('holds for reductions and products of views', function()
      local ctx = open { params = 'check=1' }
      local x = ctx:rand { 5, 6, 7 }
      local y = x:permute(3, 1, 2)
      for _ = 1, 2 do
         y:sum(2)
         y:amax { 1, 3 }
         y:cumsum(1)
         y:matmul(x:transpose(1, 2):slice(3, 1, 4):permute(2, 3, 1):slice(1, 1, 5)
            :reshape(5, 4, 6):slice(1, 1, 1):reshape(4, 6):t():slice(1, 1, 6))
         y:softmax(1)
         tide.cat({ y, y }, 2)
      end
   end)

   -- Ops that write in place, on views too: name -> what it does to x, [4, 6]; w is [4, 6], i [4].
   local writes = {
      copy_ = function(x, w) x:copy_(w:slice(1, 2, 2)) end,
      fill_ = function(x) x:slice(2, 1, 6, 2):fill_(3) end,
      axpy_ = function(x) x:add_(x, 0.5) end,
      scale_ = function(x) x:t():mul_(-2) end,
      addmm_ = function(x, w) x:addmm_(w, w:t():matmul(w)) end,
      uniform_ = function(x) x:slice(1, 2, 3):uniform_(-1, 1, { seed = 3 }) end,
      normal_ = function(x) x:normal_(1, 2) end,
      trunc_normal_ = function(x) x:trunc_normal_(0, 1, -2, 2) end,
      scatter_add = function(x, w, i)
         return tide.scatter_add(x, 1, i:unsqueeze(2):expand(4, 6):contiguous(), w)
      end,
      index_add = function(x, w, i) return tide.index_add(x, 1, i, w) end,
      adamw_ = function(x, w, _, ctx)
         local o = { dtype = x.dtype == 'f64' and 'f64' or 'f32' }
         update.adamw_({ p = { x, x:clone() }, g = { w, w },
            m = { ctx:zeros({ 4, 6 }, o), ctx:zeros({ 4, 6 }, o) },
            v = { ctx:ones({ 4, 6 }, o), ctx:ones({ 4, 6 }, o) } }, { step = 2, lr = 0.1 })
      end,
      sgd_ = function(x, w) update.sgd_({ p = { x }, g = { w } }, { lr = 0.5 }) end,
      scale_all_ = function(x, w)
         update.scale_all_({ x, w, x }, update.clip_factor(update.norm { x, w }, 1))
      end,
      attention_merge_ = function(x, w)
         if x.dtype ~= 'f32' then return end
         local out, lse = x:reshape(1, 4, 2, 3), x:slice(2, 1, 2):t():clone():unsqueeze(1)
         tide.attention_merge_(out, lse, w:reshape(1, 4, 2, 3), lse:mul(0.5))
      end,
      attention_sinks_ = function(x, w)
         local q = x:reshape(1, 4, 2, 3)
         return tide.attention(q, q, w:reshape(1, 4, 2, 3),
            { sinks = w:select(2, 1):narrow(1, 1, 2) })
      end,
   }

   for name, write in pairs(writes) do
      it('repeats ' .. name .. ', which writes in place', function()
         local plain, checked = open(), open { params = 'check=1' }
         for _, dtype in ipairs { 'f32', 'f64', 'bf16', 'f16' } do
            local bytes, nops = {}, {}
            for k, ctx in ipairs { plain, checked } do
               local w = ctx:arange(24, { dtype = 'f64' }):reshape(4, 6):mul(0.125):sub(1):to(dtype)
               local x = w:t():reshape(4, 6):clone()
               local i = ctx:tensor({ 3, 1, 3, 2 }, { dtype = 'i64' })
               local before = ctx:stats().nop
               local y = write(x, w, i, ctx) or x
               nops[k], bytes[k] = ctx:stats().nop - before, y:to_string_bytes()
            end
            assert.equal(bytes[1], bytes[2], dtype)
            assert.is_true(nops[1] == 0 or nops[2] >= 2 * nops[1], name)
            assert.is_true(nops[1] > 0 or name == 'attention_merge_')
         end
      end)
   end

   it('finds a wrong write in place as well', function()
      local ctx = open { params = 'check=1' }
      local x, y = ctx:tensor { { 1e8, 1, -1e8, 1, 1, 1 } }, ctx:zeros { 3, 2 }
      refused('E_INTERNAL', { 'addmm_', 'check', "on 'cpu'", 'by the reference' }, function()
         y:slice(1, 2, 2):slice(2, 1, 1):addmm_(x, ctx:ones { 6, 1 })
      end)
   end)

   -- The reference sums in double, the fast kernels in float: where a sum cancels nearly all of its
   -- terms they differ far beyond rounding of the result.
   it('names op, element and both values where the two differ', function()
      local ctx = open { params = 'check=1' }
      local x = ctx:tensor { 1e8, 1, -1e8, 1, 1, 1 }
      for _, fn in ipairs { function() return x:sum() end, function() return x:mean() end,
                            function() return x:reshape(1, 6):matmul(ctx:ones { 6, 1 }) end } do
         refused('E_INTERNAL', { 'check', 'result 1', 'element 0', "on 'cpu'", 'by the reference' },
                 fn)
      end
      assert.equal('1', ctx:param 'check')
      assert.equal(6, (ctx:ones { 3 } * 2):sum():item())     -- the context goes on
   end)
end)

describe('a missing kernel', function()
   it('is an error that says op, dtype and device, and what to do', function()
      local seen = 0
      local x = tide.ones({ 2, 2 }, { dtype = 'bool' })
      for _, name in ipairs { 'neg', 'sub', 'matmul' } do
         local ok, err = pcall(x[name], x, x)
         if not ok then
            seen = seen + 1
            assert.is_true(err.code == 'E_UNSUPPORTED' or err.code == 'E_DTYPE', tostring(err))
            assert.equal(name, err.op)
            assert.is_truthy(err.message:find('bool', 1, true))
         end
      end
      assert.is_true(seen > 0)
      refused('E_UNSUPPORTED', { 'neg', 'bool', "'cpu'", 'cast' }, x.neg, x)
   end)

   it('is known beforehand', function()
      for _, op in ipairs(info.ops()) do
         if op.name == 'neg' then
            assert.is_true(info.op_supported(op.index, 'cpu', 'f32'))
            assert.is_false(info.op_supported(op.index, 'cpu', 'bool'))
            local built = tide.build_info():find('libtide_cuda.so,', 1, true) ~= nil
            assert.equal(built, info.op_supported(op.index, 'cuda', 'f32'))
         end
      end
      assert.equal(0, C.tide_op_supported(-1, 0, 0))
      assert.equal(0, C.tide_op_supported(0, 99, 0))
      assert.equal(0, C.tide_op_supported(0, 0, 99))
   end)
end)

describe('operands', function()
   it('must be on one device: nothing moves unless asked', function()
      local cpu, ref = tide.ones { 2, 2 }, tide.ones({ 2, 2 }, { device = 'ref' })
      for _, fn in ipairs { function() return cpu + ref end, function() return ref:matmul(cpu) end,
                            function() return tide.cat({ cpu, ref }, 1) end,
                            function() return tide.where(cpu:gt(0), cpu, ref) end,
                            function() return tide.linear(cpu, cpu, ref:sum(1)) end,
                            function() return cpu:index_select(1, ref:select(1, 1):long()) end } do
         refused('E_DEVICE', { "'ref'", "'cpu'", 'to_device' }, fn)
      end
      assert.is_true((cpu + ref:to 'cpu'):equal(tide.full({ 2, 2 }, 2)))
   end)

   it('must be of one context', function()
      local other = open()
      local x, y = tide.ones { 2 }, other:ones { 2 }
      refused('E_ARG', { 'add', 'argument 2', 'another context' }, function() return x + y end)
      refused('E_ARG', 'another context', function() return tide.cat({ x, y }, 1) end)
      refused('E_ARG', { 'copy_', 'another context' }, x.copy_, x, y)
   end)

   it('must have bytes', function()
      local x = tide.ones { 2 }
      local view = x:reshape(2, 1)
      x:release()
      assert.is_true(view:is_gone())
      refused('E_GONE', { 'exp', 'argument 1', 'f32', '[2]' }, x.exp, x)
      refused('E_GONE', { 'mul', 'argument 2' }, function() return tide.ones { 2, 2 } * x end)
      refused('E_GONE', 'argument 1', view.sum, view)
      refused('E_GONE', 'argument 1', x.reshape, x, 1, 2)
      refused('E_GONE', 'dropped', x.tolist, x)
      assert.are.same({ 2 }, x.shape)
      assert.is_truthy(tostring(x):find('dropped', 1, true))
   end)

   it('of a device that is not here are refused', function()
      refused('E_ARG', { 'device', 'cpu, cuda, null, ref' }, tide.ones, { 2 }, { device = 'gpu' })
      local ok, why = tide.default():device_available 'cuda'
      if ok then return end -- a machine with a GPU; spec/cuda/absent_spec.lua takes it away
      assert.is_truthy(why:find('cuda', 1, true))
      refused('E_DEVICE', { 'cuda', 'not available' }, tide.ones, { 2 }, { device = 'cuda' })
   end)
end)

describe('the null device', function()
   it('counts the bytes that it does not have as planned, never as memory', function()
      local ctx = open { device = 'null' }
      local before = ctx:stats()
      ctx:mark()
      local x = ctx:empty { 1000000, 1000 }                  -- 4 GB
      local y = x * 2
      local stats = ctx:stats()
      assert.is_true(stats.planned - before.planned >= 8e9)
      assert.equal(stats.planned - before.planned, stats.since)
      assert.same({ before.live, before.peak, before.debt, before.cached },
         { stats.live, stats.peak, stats.debt, stats.cached })
      assert.are.same({ 1000000, 1000 }, y.shape)
      y:release()
      x:release()
      stats = ctx:stats()
      assert.same({ before.planned, 0 }, { stats.planned, stats.since })
      assert.is_true(stats.since_peak >= 8e9)
   end)

   it('runs a whole training step, with the shapes of the real one', function()
      local ctx = open { device = 'null' }
      ctx:mark()
      local w = ctx:empty({ 4096, 512 }):requires_grad_()
      local x = ctx:empty { 8, 2048, 512 }
      local loss = tide.linear(x, w):gelu():square():mean()
      loss:backward()
      assert.are.same({ 4096, 512 }, w.grad.shape)
      assert.is_true(ctx:stats().since_peak > 8 * 2048 * 4096 * 4)
      refused('E_DEVICE', { 'null device', 'no bytes' }, loss.item, loss)
      refused('E_DEVICE', 'null device', x.to, x, 'cpu')
      assert.is_truthy(tostring(x):find('[8, 2048, 512] null', 1, true))
   end)

   it('does not count against the memory parameters', function()
      local ctx = open { device = 'null', params = 'memory=1m host_memory=2m' }
      local x = ctx:empty { 2 ^ 27 }
      assert.are.same({ 2 ^ 27 }, (x * 2).shape)
      assert.equal(2 ^ 17, ctx:zeros({ 2 ^ 17 }, { device = 'cpu' }):numel())
      local err = refused('E_NOMEM', 'memory parameter', ctx.zeros, ctx, { 2 ^ 19 },
         { device = 'cpu' })
      assert.is_truthy(err.message:find("planned on device 'null'", 1, true))
   end)
end)

describe('an interrupted context', function()
   it('stops at the next op, once', function()
      local ctx = open()
      local x = ctx:ones { 2 }
      ctx:interrupt()
      assert.is_true(ctx:interrupted())
      assert.is_false(ctx:interrupted())
      assert.equal(4, (x * 2):sum():item())
   end)
end)
