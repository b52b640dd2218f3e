-- Products and rotations of tensors that lie side by side: how many launches they are, what becomes
-- of their gradients, and the layers that use them.

local launched = require 'spec.support.launched'
local tide = require 'tide'
local nn = tide.nn

local function normal(shape, seed, dtype)
   return tide.empty(shape):normal_(0, 1, { seed = seed, stream = 1, offset = 0 })
      :to(dtype or 'f32')
end

-- Leaves of these rows: slices of one weight, or each with bytes of its own.
local function weights(sizes, k, apart, dtype)
   local rows, at, list = 0, 1, {}
   for _, n in ipairs(sizes) do rows = rows + n end
   local all = normal({ rows, k }, 7, dtype)
   for i, n in ipairs(sizes) do
      local w = all:narrow(1, at, n):detach()
      list[i] = (apart and w:clone() or w):requires_grad_(true)
      at = at + n
   end
   return list
end

local function close(a, b, allowed)
   assert.same(a.shape, b.shape)
   local far = (a:to 'f64' - b:to 'f64'):abs():amax():item()
   assert.is_true(far <= allowed * math.max(1, b:to('f64'):abs():amax():item()), far)
end

-- A gate and up product with its own backward; counts.
local function gated(x, ws)
   local counts = launched(function()
      local y = tide.swiglu(unpack(tide.linear_joined(x, ws)));
      (y * y):sum():backward()
   end)
   return counts
end

describe('linear_joined', function()
   it('is one product forward and two backward, and one a later time', function()
      local x = normal({ 2, 3, 8 }, 1):requires_grad_(true)
      local x2 = x:detach():clone():requires_grad_(true)
      local near, far = weights({ 5, 5 }, 8), weights({ 5, 5 }, 8, true)
      local a, b = gated(x, near), gated(x2, far)
      assert.same({ 1, 2, 0 }, { a.linear, a.matmul, a.addmm_ or 0 })
      assert.same({ 2, 3, 1 }, { b.linear, b.matmul, b.addmm_ })
      a, b = gated(x, near), gated(x2, far)
      assert.same({ 1, 0, 2 }, { a.linear, a.matmul or 0, a.addmm_ })
      assert.same({ 2, 0, 4 }, { b.linear, b.matmul or 0, b.addmm_ })
      for i = 1, 2 do close(near[i].grad, far[i].grad, 1e-6) end
      close(x.grad, x2.grad, 1e-6)
   end)

   it('adds up in f32 what weights of 16 bits want so', function()
      local x = normal({ 6, 8 }, 1, 'bf16')
      local near, far = weights({ 4, 4 }, 8, false, 'bf16'), weights({ 4, 4 }, 8, true, 'bf16')
      for i = 1, 2 do
         near[i]:set_grad_dtype 'f32'
         far[i]:set_grad_dtype 'f32'
      end
      for _ = 1, 3 do
         gated(x, near)
         gated(x, far)
      end
      assert.equal(1, gated(x, near).addmm_)
      gated(x, far)
      for i = 1, 2 do
         assert.equal('f32', near[i].grad.dtype)
         assert.same(far[i].grad:tolist(), near[i].grad:tolist())
      end
   end)

   -- What the parts get: a gradient or none, a frozen weight, two uses, biases.
   it('does with a part what linear does', function()
      local cases = {
         function(y) return y[1]:square():sum() + (y[3] * 2):sum() end,
         function(y) return y[2]:sum() end,
         function(y) return (tide.swiglu(y[1], y[2]) * y[1]):sum() + y[3]:exp():sum() end,
         function(y) return tide.swiglu(y[2], y[2]):sum() end,
         function(y) return (tide.swiglu(y[1], y[2]) * tide.swiglu(y[2], y[3])):sum() end,
      }
      for i, loss in ipairs(cases) do
         for frozen = 0, 4 do
            local sets = {}
            for k, apart in ipairs { false, true } do
               local ws = weights({ 4, 4, 4 }, 6, apart)
               local bs = weights({ 4, 4, 4 }, 1, apart)
               local x = normal({ 5, 6 }, 1):requires_grad_(frozen ~= 4)
               local flat = {}
               for j = 1, 3 do
                  flat[j] = bs[j]:detach():reshape(4):requires_grad_(true)
                  if j == frozen then ws[j]:requires_grad_(false) end
               end
               for _ = 1, 2 do loss(tide.linear_joined(x, ws, flat)):backward() end
               sets[k] = { x, ws[1], ws[2], ws[3], flat[1], flat[2], flat[3] }
            end
            for j, t in ipairs(sets[1]) do
               local g, want = t.grad, sets[2][j].grad
               assert.equal(want == nil, g == nil, ('case %d, frozen %d: %d'):format(i, frozen, j))
               if g ~= nil then close(g, want, 1e-5) end
            end
         end
      end
   end)

   it('gives each weight a gradient that is its own', function()
      local x, ws = normal({ 6, 8 }, 1), weights({ 4, 4 }, 8)
      gated(x, ws)
      local kept = ws[1].grad
      local was, other = kept:clone(), ws[2].grad:clone()
      gated(x, ws)                                   -- kept is read: nothing is added to it
      assert.same(was:tolist(), kept:tolist())
      close(ws[2].grad, other * 2, 1e-6)
      ws[1]:zero_grad()
      close(ws[2].grad, other * 2, 1e-6)
      ws[2]:zero_grad()
      gated(x, ws)
      local view = ws[1].grad:narrow(1, 1, 2)
      local first = view:clone()
      gated(x, ws)
      assert.same(first:tolist(), view:tolist())
   end)

   it('drops the bytes of gradients when each weight has dropped its own', function()
      local x, ws = normal({ 64, 64 }, 1), weights({ 64, 64 }, 64)
      gated(x, ws)
      local held = { ws[1].grad, ws[2].grad }
      local before = tide.stats().live
      ws[1]:drop_grad()
      assert.equal(before, tide.stats().live)
      assert.is_false(held[1]:is_gone())
      ws[2]:drop_grad()
      assert.is_true(tide.stats().live <= before - 2 * 64 * 64 * 4)
      assert.is_true(held[1]:is_gone() and held[2]:is_gone())
   end)

   it('says what it wants', function()
      local x, w = normal({ 2, 3 }, 1), normal({ 4, 3 }, 2)
      local function says(pattern, ...)
         local ok, e = pcall(tide.linear_joined, ...)
         assert.is_false(ok)
         assert.matches(pattern, tostring(e), 1, true)
      end
      says("argument 'ws': expected 1 to 6 tensors, got 0", x, {})
      says("argument 'ws': expected 1 to 6 tensors, got 7", x, { w, w, w, w, w, w, w })
      says("argument 'biases': expected 2 entries, as in ws, got 1", x, { w, w }, { false })
      says('x [2, 3], weight [3, 4]', x, { w, w:t() })
      says('cast them to one dtype', x, { w, w:to 'f64' })
   end)
end)

describe('rope_joined', function()
   local positions = tide.arange(3, { dtype = 'i64' }):reshape(1, 3)
   local inv_freq = tide.tensor({ 1, 0.1 }, { dtype = 'f32' })

   it('turns heads side by side in one launch, in place where that is asked for', function()
      local all = normal({ 2, 3, 3, 4 }, 1)
      local list = { all:narrow(3, 1, 2), all:narrow(3, 3, 1) }
      local want, same = tide.rope(all, positions, inv_freq), nil
      local counts = launched(function()
         local y = tide.rope_joined(list, positions, inv_freq)
         assert.is_false(y[1]:same_storage(all))
         close(tide.cat(y, 3), want, 0)
         same = tide.rope_joined(list, positions, inv_freq, { reuse = true })
      end)
      assert.equal(2, counts.rope)
      assert.is_true(same[1]:same_storage(all) and same[2]:same_storage(all))
      close(all, want, 0)
      local apart = launched(function()
         tide.rope_joined({ list[1], list[2]:clone() }, positions, inv_freq)
      end)
      assert.equal(2, apart.rope)
   end)

   it('refuses a leaf, and what another op has saved', function()
      local x = normal({ 1, 3, 2, 4 }, 1):requires_grad_(true)
      local ok, e = pcall(tide.rope_joined, { x }, positions, inv_freq, { reuse = true })
      assert.is_false(ok)
      assert.matches('leave out reuse', tostring(e), 1, true)
      local h = x * 2
      local saved = h:square()
      local y = tide.rope_joined({ h }, positions, inv_freq, { reuse = true })[1]
      ok, e = pcall(function() (saved + y):sum():backward() end)
      assert.is_false(ok)
      assert.matches('changed in place', tostring(e), 1, true)
   end)
end)

describe('projections of one input', function()
   local config = { vocab_size = 24, hidden_size = 32, intermediate_size = 48,
      num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2 }
   local ids = tide.arange(24, { dtype = 'i64' }):reshape(2, 12)

   local function near(model)
      local a, m = model:get 'model.layers.0.self_attn', model:get 'model.layers.0.mlp'
      return a.q_proj.weight:same_storage(a.k_proj.weight)
         and a.q_proj.weight:same_storage(a.v_proj.weight)
         and m.gate_proj.weight:same_storage(m.up_proj.weight)
   end

   -- Each weight with bytes of its own.
   local function parted(model)
      model:walk(function(m)
         if m.class_name ~= 'Linear' then return end
         m.weight = m.weight:detach():clone():requires_grad_(true)
      end)
      return model
   end

   it('lie side by side, wherever they are made or moved', function()
      local model = tide.model.llama(config, { seed = 3 })
      local empty = tide.model.llama(config, { device = 'null' })
      assert.is_true(near(model) and near(empty:materialise('cpu', 3)))
      for name, t in pairs(empty:state_dict()) do
         assert.is_true(t:equal(model:state_dict()[name]), name)
      end
      local was = model:state_dict()['model.layers.1.mlp.up_proj.weight']:to 'bf16'
      assert.is_true(near(model:to 'bf16'))
      assert.is_true(was:equal(model:get('model.layers.1.mlp.up_proj').weight))
      local biased = nn.Attention { dim = 8, heads = 2, bias = true }
      assert.is_true(biased.q_proj.bias:same_storage(biased.v_proj.bias))
   end)

   for _, bias in ipairs { false, true } do
      it('give what each gives by itself' .. (bias and ', with biases' or ''), function()
         local c = setmetatable({ attention_bias = bias, mlp_bias = bias }, { __index = config })
         for k, v in pairs(config) do c[k] = v end
         local a = tide.model.llama(c, { seed = 3 })
         local b = parted(tide.model.llama(c, { seed = 3 }))
         assert.is_true(near(a) and not near(b))
         local few, many
         for _ = 1, 2 do
            local la, lb
            few = launched(function()
               la = a:loss(ids, ids)
               la:backward()
            end)
            many = launched(function()
               lb = b:loss(ids, ids)
               lb:backward()
            end)
            assert.equal(lb:item(), la:item())
         end
         assert.equal(2 * 3, many.linear - few.linear)
         assert.same({ 2 * 2, 4 * 2 }, { few.rope, many.rope })
         local want = b:named_parameters()
         for i, e in ipairs(a:named_parameters()) do
            close(e.param.grad, want[i].param.grad, 2e-6)
         end
      end)
   end

   it('are called by themselves where one of them is hooked', function()
      local model, seen = tide.model.llama(config, { seed = 3 }), 0
      local want = model:loss(ids, ids):item()
      local handle = model:get('model.layers.0.self_attn.k_proj'):hook_post(function(_, _, y)
         seen = y:sum():item()
      end)
      assert.equal(want, model:loss(ids, ids):item())
      assert.is_true(seen ~= 0)
      handle:remove()
      assert.equal(want, model:loss(ids, ids):item())
   end)

   it('take no more memory side by side than apart', function()
      local c = { vocab_size = 24, hidden_size = 64, intermediate_size = 160, num_hidden_layers = 4,
         num_attention_heads = 4, num_key_value_heads = 2 }
      local long = tide.zeros({ 4, 128 }, { dtype = 'i64' })
      local function peak_of(model)
         local function step()
            model:zero_grad()
            model:loss(long, long):backward()
         end
         step()
         collectgarbage()
         collectgarbage()
         tide.default():reset_peak()
         local before = tide.stats().live
         step()
         return tide.stats().peak - before
      end
      local a = peak_of(tide.model.llama(c, { seed = 3 }))
      local b = peak_of(parted(tide.model.llama(c, { seed = 3 })))
      assert.is_true(a <= b, ('%d bytes and %d'):format(a, b))
   end)
end)
