-- AdamW8bit: near AdamW in a quarter of its state, on every mesh, with checkpoints between meshes.

local copy = require 'tide.util.copy'
local tide = require 'tide'
local AdamW8bit = require('tide.optim').AdamW8bit
local ranks = require 'spec.support.ranks'
local tmp = require 'spec.support.tmp'

-- Trains up to step `to`, from the checkpoint in out where `from` is above 0. Returns the losses.
local function train(_, _, class, axes, out, from, to, dtype)
   local t = require 'tide'
   local config = { vocab_size = 130, hidden_size = 64, num_hidden_layers = 2,
      num_attention_heads = 4, intermediate_size = 80 }
   local model = t.model.llama(config, { device = 'null', dtype = dtype })
   local run_ = t.parallel.plan(model, axes, { fsdp = { strategy = axes.dp_shard
      and 'optim_grads_params' or 'no_shard' } }):materialise { seed = 3 }
   local bytes = {}
   for i = 1, 3000 do bytes[i] = string.char(i * i % 127, 0) end
   local source, losses = t.data.tokens.memory(table.concat(bytes), 2), {}
   local optim = t.optim[class](run_.params, { lr = 3e-3 })
   t.train.loop { model = run_.model, parallel = run_.sharded, comm = run_.comm, optim = optim,
      train = source, clip = 1, steps = to, out = out, resume = from > 0 and out or nil,
      sampler = t.data.sampler { count = source.count, seq = 16, batch = 8, seed = 1,
         rank = run_.data.rank, size = run_.data.size },
      progress = { update = function(_, r) losses[#losses + 1] = r.loss end,
         note = function() end, finish = function() end } }
   return losses
end

local function off(a, b)
   local most = 0
   assert.equal(#a, #b)
   for i = 1, #a do most = math.max(most, math.abs(a[i] - b[i]) / a[i]) end
   return most
end

describe('AdamW8bit', function()
   it('loses within 2 % of AdamW at each of 60 steps, with masters too', function()
      for _, dtype in ipairs { 'f32', 'bf16' } do
         local a = train(nil, nil, 'AdamW', { dp = 1 }, nil, 0, 60, dtype)
         local b = train(nil, nil, 'AdamW8bit', { dp = 1 }, nil, 0, 60, dtype)
         assert.is_true(a[60] < 0.8 * a[1])
         assert.is_true(off(a, b) < 0.02)
         assert.is_true(off(a, b) > 0)
      end
   end)

   it('keeps 2 bytes and 1/32 an element; of small, wide and f64 parameters 8 and 16', function()
      local function state(n, dtype, opts)
         opts = opts or {}
         opts.lr = 0.1
         local w = tide.ones({ n }, { dtype = dtype }):requires_grad_(true)
         local o = AdamW8bit({ { name = 'w', param = w } }, opts)
         w:square():sum():backward()
         o:step()
         local bytes = 0
         for _, t in pairs(o.state.w) do
            bytes = bytes + (tide.is_tensor(t) and t:numel() * tide.dtype_size(t.dtype) or 0)
         end
         assert.is_true(w:lt(1):to('f32'):amin():item() == 1)
         local priced = AdamW8bit.state_bytes(dtype, { name = 'w', shape = { n } }) * n
         return bytes, priced
      end
      local function both(want, ...)
         local bytes, priced = state(...)
         assert.same({ want, want }, { bytes, priced })
      end
      both(5120 * (2 + 1 / 32), 5120, 'f32')
      both(5120 * (6 + 1 / 32), 5120, 'bf16')
      both(4095 * 8, 4095, 'f32')
      both(5120 * 16, 5120, 'f64')
      assert.equal(5120 * 8, (state(5120, 'f32', { wide = 'u|w' })))
      assert.equal(32 * 2 + 8, (state(32, 'f32', { min_size = 0 })))
   end)

   it('needs no f32 moments of a parameter for an update', function()
      local n = 2 ^ 20
      local w = tide.ones({ n }):requires_grad_(true)
      w:set_grad(tide.ones { n })
      local o = AdamW8bit({ w }, { lr = 0.1 })
      o:step()
      local ctx = tide.default()
      collectgarbage()
      local before = ctx:stats().live
      ctx:reset_peak()
      o:step()
      assert.is_true(ctx:stats().peak - before < n / 8)
   end)

   it('gives its moments in f32 and takes them back, code by code', function()
      local w = tide.empty({ 90, 70 }):normal_(0, 1, { seed = 1 }):requires_grad_(true)
      local list = { { name = 'w', param = w } }
      local o = AdamW8bit(list, { lr = 0.1 })
      for i = 1, 3 do
         w:set_grad(tide.empty({ 90, 70 }):normal_(0, 1 / i, { seed = i }))
         o:step()
      end
      local tensors, meta = o:state_dict()
      assert.equal('f32', tensors['w.m'].dtype)
      assert.same({ 90, 70 }, tensors['w.v'].shape)
      local other = AdamW8bit(list, { lr = 0.1 })
      other:load_state_dict(tensors, meta)
      for _, name in ipairs { 'm', 'v', 'm_scale', 'v_scale' } do
         assert.is_true(o.state.w[name]:equal(other.state.w[name]))
      end
   end)

   -- dp and cp keep whole parameters, so blocks are those of one rank. Pieces of dp_shard and tp
   -- have blocks of their own, whose numbers differ by what rounding to 8 bits does.
   it('loses on every mesh what one rank loses, within the rounding of moments', function()
      local want = ranks.run(1, train, 'AdamW8bit', { dp = 1 }, nil, 0, 20)[1]
      for _, axes in ipairs { { dp = 2 }, { dp_shard = 2 }, { tp = 2 }, { cp = 2 },
            { dp_shard = 2, tp = 2 } } do
         local n = (axes.dp or 1) * (axes.dp_shard or 1) * (axes.tp or 1) * (axes.cp or 1)
         for _, got in ipairs(ranks.run(n, train, 'AdamW8bit', axes, nil, 0, 20)) do
            assert.is_true(off(want, got) < 1e-3)
         end
      end
   end)

   it('goes on from a checkpoint bit for bit, and on another mesh near it', function()
      for _, axes in ipairs { { dp = 2 }, { dp_shard = 2 }, { dp_shard = 1, tp = 2 } } do
         tmp.with(function(dir)
            local function go(...) return ranks.run(2, train, 'AdamW8bit', axes, ...) end
            local want = go(nil, 0, 8)[1]
            go(dir .. '/run', 0, 4)
            os.execute(("cp -r '%s/run' '%s/one'"):format(dir, dir))
            local rest = go(dir .. '/run', 4, 8)[1]
            for i = 5, 8 do assert.equal(want[i], rest[i - 4]) end
            rest = ranks.run(1, train, 'AdamW8bit', { dp = 1 }, dir .. '/one', 4, 8)[1]
            assert.is_true(off({ unpack(want, 5) }, rest) < 1e-3)
         end)
      end
   end)
end)

describe('AdamW8bit and that of bitsandbytes', function()
   local golden = dofile 'spec/golden/adamw_8bit.lua'
   local count, steps, shown = 4096, 30, 64

   -- The numbers of the golden script.
   local function numbers()
      local state = 5
      local function integer()
         state = (state * 16807 + 11) % 2147483647
         return state
      end
      return function()
         local list = {}
         for i = 1, count do
            local share = math.floor(integer() / 2048) / 2 ^ 19 - 1
            list[i] = share * 2 ^ -(math.floor(integer() / 4096) % 12)
         end
         return tide.tensor(list, { dtype = 'f64' })
      end
   end

   -- The weights after all steps.
   local function after(class, opts)
      local take = numbers()
      local p, size = take():to 'f32':requires_grad_(true), take():abs()
      local optim = class({ { name = 'p', param = p } }, copy(opts, { lr = 0.01, beta1 = 0.9,
         beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, decay_vectors = true }))
      for _ = 1, steps do
         p:set_grad((size * take()):to 'f32')
         optim:step()
      end
      return p:detach():to 'f64'
   end

   it('leave the weights of AdamW by as much, and here by less', function()
      local exact = after(tide.optim.AdamW, {})
      local coded = after(tide.optim.AdamW8bit, { min_size = 0 })
      local a, b = exact:tolist(), coded:tolist()
      for i, want in ipairs(golden.exact) do
         assert.near(want, a[shown * (i - 1) + 1], 1e-6)
         assert.near(golden.coded[i], b[shown * (i - 1) + 1], 0.06)
      end
      local apart = (coded - exact):abs()
      assert.is_true(apart:mean():item() < 0.6 * golden.mean_off, apart:mean():item())
      assert.is_true(apart:amax():item() < golden.most_off, apart:amax():item())
   end)
end)
