-- Operands in FP8 are rounded once: x for products that share it, a weight until it changes.

local fast = require 'spec.support.fast'
local launched = require 'spec.support.launched'
local refused = require 'spec.support.refused'
local tide = require 'tide'

local devices = fast == 'cpu' and { 'cpu', 'ref' } or { fast }

local function random(seed, shape, dtype, device)
   return tide.empty(shape):normal_(0, 1, { seed = seed }):to { dtype = dtype, device = device }
end

local function lists(ts)
   local out = {}
   for i, t in ipairs(ts) do out[i] = t:tolist() end
   return out
end

-- The fp8_codes launches of fn().
local function rounded(fn) return launched(fn).fp8_codes end

-- A GPU other than Hopper's refuses blocks.
local function scalings(device)
   local one = tide.ones({ 1, 1 }, { device = device })
   local blocks = pcall(tide.linear_fp8, one, one, nil, { scaling = 'block' })
   return blocks and { 'tensor', 'block', 'block_f32' } or { 'tensor' }
end

for _, device in ipairs(devices) do
   describe('linear_fp8_joined on ' .. device, function()
      -- Results and gradients of `fn`, and how often an operand was rounded, forward and in all.
      local function found(fn, scaling, dtype, keep)
         local x = random(1, { 2, 9, 130 }, dtype, device):requires_grad_()
         local ws, bs = {}, {}
         for i, n in ipairs { 140, 8, 33 } do
            ws[i] = random(1 + i, { n, 130 }, dtype, device)
            if i ~= 2 then ws[i]:requires_grad_() end
            bs[i] = i ~= 3 and random(9 + i, { n }, dtype, device):requires_grad_()
         end
         local ys
         local forward = rounded(function()
            ys = fn(x, ws, bs, { scaling = scaling, keep = keep })
         end)
         local all = forward + rounded(function()
            local sum = 0
            for i, y in ipairs(ys) do
               sum = sum + (y * random(20 + i, y.shape, dtype, device)):sum()
            end
            sum:backward()
         end)
         local grads = { x.grad, ws[1].grad, ws[3].grad, bs[1].grad, bs[2].grad }
         assert.is_nil(ws[2].grad)
         return { lists(ys), lists(grads) }, forward, all
      end

      local function each(x, ws, bs, opts)
         local ys = {}
         for i, w in ipairs(ws) do ys[i] = tide.linear_fp8(x, w, bs[i] or nil, opts) end
         return ys
      end

      it('is linear_fp8 of each weight, to the bit, and rounds x once', function()
         for _, scaling in ipairs(scalings(device)) do
            for _, dtype in ipairs { 'f32', 'bf16' } do
               for _, keep in ipairs { 'codes', 'weight' } do
                  local want, apart, apart_all = found(each, scaling, dtype, keep)
                  local got, joined, all = found(tide.linear_fp8_joined, scaling, dtype, keep)
                  assert.same(want, got)
                  assert.same({ 6, 4, 2 }, { apart, joined, apart_all - all })
               end
            end
         end
      end)

      it('takes one weight, no biases, no rows', function()
         local w, none = random(1, { 3, 5 }, 'f32', device), random(1, { 0, 5 }, 'f32', device)
         local x = random(2, { 4, 5 }, 'f32', device)
         assert.same({ tide.linear_fp8(x, w):tolist() }, lists(tide.linear_fp8_joined(x, { w })))
         assert.same({ 0, 3 }, tide.linear_fp8_joined(none, { w, w })[2].shape)
      end)
   end)

   describe('with parameter fp8_codes, on ' .. device, function()
      local ctx = tide.default()
      before_each(function() ctx:param('fp8_codes', 1) end)
      after_each(function() ctx:param('fp8_codes', 0) end)

      local function plain(fn)
         ctx:param('fp8_codes', 0)
         local y = fn()
         ctx:param('fp8_codes', 1)
         return y
      end

      -- What a micro-batch makes: y and dx.
      local function run(x, w, dy, opts)
         local leaf = x:clone():requires_grad_()
         local y = tide.linear_fp8(leaf, w, nil, opts)
         y:backward(dy)
         return lists { y, leaf.grad }
      end

      it('a weight is rounded again when it has changed, and only then', function()
         for _, scaling in ipairs(scalings(device)) do
            local opts = { scaling = scaling }
            local w = random(1, { 20, 150 }, 'bf16', device):requires_grad_()
            local want = plain(function() return w:detach():clone() end):requires_grad_()
            for step = 1, 3 do
               for micro = 1, 3 do
                  local x = random(10 * step + micro, { 7, 150 }, 'bf16', device)
                  local dy = random(90 + micro, { 7, 20 }, 'bf16', device)
                  local got, expected
                  local n = rounded(function() got = tide.scope(run, x, w, dy, opts) end)
                  -- x and dy, and the weight once a step
                  assert.equal(micro == 1 and 3 or 2, n)
                  plain(function() expected = tide.scope(run, x, want, dy, opts) end)
                  assert.same(expected, got)
               end
               assert.same(want.grad:tolist(), w.grad:tolist())
               tide.no_grad(function()
                  for _, t in ipairs { w, want } do
                     t:add_(t.grad, -0.1)
                     t:zero_grad()
                  end
               end)
            end
         end
      end)

      it('codes are those of the call: scaling, both directions, another weight', function()
         local w = random(1, { 20, 150 }, 'f32', device)
         local x, leaf = random(2, { 7, 150 }, 'f32', device), random(3, { 7, 150 }, 'f32', device)
         leaf:requires_grad_()
         local function of(t, scaling) return tide.linear_fp8(t, w, nil, { scaling = scaling }) end
         assert.same({ 2, 1, 2, 1, 1 }, { rounded(function() of(x) end),
            rounded(function() of(x) end), rounded(function() of(leaf) end),
            rounded(function() of(leaf) end), rounded(function() of(x) end) })
         for _, scaling in ipairs(scalings(device)) do
            local want = plain(function() return of(x, scaling):tolist() end)
            of(x)
            assert.same(want, of(x, scaling):tolist())
         end
         local part = w:narrow(1, 3, 9):detach()
         tide.linear_fp8(x, part)
         w:mul_(-2)                                   -- the bytes of the part, too
         assert.same(plain(function() return tide.linear_fp8(x, part):tolist() end),
            tide.linear_fp8(x, part):tolist())
      end)

      it('they take two bytes an element while weight and parameter are there', function()
         local function live() collectgarbage() return ctx:stats().live end
         local w, x = random(1, { 64, 512 }, 'f32', device), random(2, { 1, 512 }, 'f32', device)
         x:requires_grad_()
         local before = live()
         tide.scope(function() tide.linear_fp8(x, w) end)
         local kept = live() - before
         assert.is_true(kept >= 2 * 64 * 512 and kept < 2 * 64 * 512 + 4096, kept)
         plain(function() tide.scope(function() tide.linear_fp8(x, w) end) end)
         assert.equal(before, live())
         tide.scope(function() tide.linear_fp8(x, w) end)
         assert.equal(before + kept, live())
         w:release()
         assert.is_true(live() < before)
      end)

      it("none are kept with keep = 'weight'", function()
         local w, x = random(1, { 6, 5 }, 'f32', device), random(2, { 3, 5 }, 'f32', device)
         for _ = 1, 2 do
            assert.equal(2, rounded(function() tide.linear_fp8(x, w, nil, { keep = 'weight' }) end))
         end
      end)
   end)
end

describe('linear_fp8_joined', function()
   it('refuses what does not fit', function()
      local op, x, w = tide.linear_fp8_joined, tide.ones { 2, 3 }, tide.ones { 4, 3 }
      refused('E_ARG', { 'linear_fp8_joined', 'ws', '1 to 6' }, op, x, {})
      refused('E_ARG', { 'linear_fp8_joined', 'biases', '1 entries' }, op, x, { w }, { w, w })
      refused('E_ARG', { 'linear_fp8_joined', 'scaling', 'rows' }, op, x, { w }, nil,
         { scaling = 'rows' })
      refused('E_SHAPE', { 'linear_fp8_joined', '[4, 5]' }, op, x, { w, tide.ones { 4, 5 } })
      refused('E_DTYPE', { 'linear_fp8_joined', 'f64' }, op, x:to 'f64', { w:to 'f64' })
   end)
end)

describe('layers in FP8 that read the same input', function()
   it('round it once', function()
      local opts = { fp8 = 'block', bias = false, device = fast }
      local x = random(1, { 2, 5, 64 }, 'f32', fast)
      if #scalings(fast) == 1 then opts.fp8 = 'tensor' end
      opts.dim, opts.hidden, opts.act = 64, 96, 'swiglu'
      local mlp = tide.nn.MLP(opts)
      local y
      local n = rounded(function() y = mlp(x) end)
      assert.equal(5, n)
      local how = { scaling = opts.fp8 }
      local gate, up = tide.linear_fp8(x, mlp.gate_proj.weight, nil, how),
         tide.linear_fp8(x, mlp.up_proj.weight, nil, how)
      local want = tide.linear_fp8(tide.swiglu(gate, up), mlp.down_proj.weight, nil, how)
      assert.same(want:tolist(), y:tolist())
      mlp.up_proj.fp8 = false                       -- no product in FP8
      assert.equal(4, rounded(function() mlp(x) end))
   end)
end)
