-- Streams on a GPU: copies without a wait, steps that are captured and replayed, a device
-- that fails. Emulated streams run as late as they may, so a missing wait shows in the results.
--
-- Not found by its name: emulated_device_spec.lua runs it on emulated threads.

local tide = require 'tide'
local refused = require 'spec.support.refused'

local device = 'cuda'

describe('a copy that nobody waits for', function()
   it('reads pinned memory and is seen by what follows', function()
      for i = 1, 20 do
         local host = tide.full({ 1000 }, i):pin_memory()
         assert.is_true(host:is_pinned())
         assert.equal('cpu', host.device)
         local far = host:to(device, { non_blocking = true })
         assert.equal(1000 * i, (far + far):sum():item() / 2)
      end
   end)

   it('is not overtaken by a write to its source, or by its release', function()
      local list = {}
      for i = 1, 30 do
         local host = tide.full({ 5000 }, i):pin_memory()
         list[i] = host:to(device, { non_blocking = true })
         host:fill_(-1)
         host:release()
      end
      for i = 1, 30 do assert.equal(i * 5000, list[i]:sum():item()) end
   end)

   it('comes back to the host: reading waits for it', function()
      for i = 1, 20 do
         local far = tide.full({ 300 }, i, { device = device }) * 2
         local host = far:to { device = 'cpu', non_blocking = true }
         far:fill_(-5)
         far:release()
         assert.is_true(host:is_pinned())
         assert.equal(2 * i * 300, host:sum():item())
         assert.equal(2 * i, host:tolist()[300])
      end
   end)

   it('of memory that was in use before takes its turn', function()
      local host = tide.full({ 4096 }, 7):pin_memory()
      for _ = 1, 10 do
         local x = tide.ones({ 4096 }, { device = device })
         local sum = x:sum()
         x:release()
         local far = host:to(device, { non_blocking = true }) -- perhaps where x was
         assert.equal(4096, sum:item())
         assert.equal(7 * 4096, far:sum():item())
      end
   end)

   it('keeps scopes and views right', function()
      local kept = tide.scope(function()
         local host = tide.arange(24):reshape { 4, 6 }:pin_memory()
         return host:to(device, { non_blocking = true }):slice(1, 2, 3)
      end)
      assert.same({ { 6, 7, 8, 9, 10, 11 }, { 12, 13, 14, 15, 16, 17 } }, kept:tolist())
   end)

   it('outlives its source, and the host does not wait for either', function()
      local driver = require('spec.cuda.emulated').driver()
      local function copies()
         local list = {}
         for i = 1, 20 do
            list[i] = tide.scope(function()
               return tide.full({ 5000 }, i):pin_memory():to(device, { non_blocking = true })
            end)
            collectgarbage()
         end
         return list
      end
      local function quiet()
         for _ = 1, 2 do tide.cuda.synchronize() end    -- what is done is let go of
         collectgarbage()
         return tide.stats().live
      end
      local empty = quiet()
      copies()                                          -- pinned memory is there
      assert.equal(empty, quiet())
      local before = driver and driver.tide_emulate_waits()
      local list = copies()
      if driver then assert.equal(before, driver.tide_emulate_waits()) end
      for i = 1, 20 do
         assert.equal(i * 5000, list[i]:sum():item())
         list[i]:release()
      end
      assert.equal(empty, quiet())
   end)

   it('is refused from memory that is not pinned', function()
      refused('E_ARG', 'pin_memory', function()
         return tide.ones({ 3 }):to(device, { non_blocking = true })
      end)
      refused('E_DEVICE', "'cuda'", function() return tide.ones({ 3 }, { device = device })
         :pin_memory() end)
      local x = tide.ones { 3 }
      assert.is_true(rawequal(x, x:to('cpu', { non_blocking = true })))
      assert.equal(0, tide.zeros({ 0, 3 }):pin_memory():to(device, { non_blocking = true }):numel())
   end)
end)

describe('a captured step', function()
   it('computes at its replay, from what its inputs hold then', function()
      local x = tide.full({ 4, 8 }, 1, { device = device })
      local w = tide.arange(24):reshape({ 3, 8 }):to 'f32':to(device)
      local runs = 0
      local g = tide.cuda.graph(function()
         runs = runs + 1
         return tide.linear(x, w):silu():sum()
      end)
      assert.equal(2, runs)                          -- once as usual, once recorded
      for i = 1, 3 do
         x:fill_(i / 10)
         local want = tide.linear(x, w):silu():sum():item()
         assert.equal(want, g:replay():item())
      end
      assert.equal(2, runs)
   end)

   it('holds forward and backward of a model', function()
      local function model(where)
         return tide.nn.Linear(6, 5, { seed = 3, device = where })
      end
      local a, b = model(device), model(device)
      local x = tide.zeros({ 7, 6 }, { device = device })
      local function step(m)
         local loss = m:forward(x):square():sum()
         loss:backward()
         return loss
      end
      local function clear(m)
         for _, p in ipairs(m:parameters()) do if p.grad then p.grad:fill_(0) end end
      end
      local g = tide.cuda.graph(function() return step(b) end)
      for i = 1, 3 do
         x:copy_(tide.full({ 7, 6 }, i, { device = device }))
         clear(a)
         clear(b)
         local want, got = step(a):item(), g:replay():item()
         assert.equal(want, got)
         for k, p in ipairs(a:parameters()) do
            assert.equal(p.grad:to('cpu'):to_string_bytes(),
               b:parameters()[k].grad:to('cpu'):to_string_bytes())
         end
      end
   end)

   it('keeps its memory to itself, and its results as long as they are held', function()
      local x = tide.full({ 2000 }, 3, { device = device })
      local g = tide.cuda.graph(function()
         local y = x * 2
         return (y + 1) * (y - 1)
      end)
      local others = {}
      for i = 1, 20 do others[i] = tide.full({ 2000 }, i, { device = device }) end
      g:replay()
      for i = 1, 20 do assert.equal(2000 * i, others[i]:sum():item()) end
      local result = g.result
      g:release()
      assert.equal(35 * 2000, result:sum():item())
      for i = 1, 20 do others[i] = tide.full({ 2000 }, i, { device = device }) end
      assert.equal(35, result:tolist()[7])
      refused('E_STATE', 'released', function() return g:replay() end)
   end)

   it('sets memory aside that is freed while it is recorded', function()
      local old = tide.full({ 3000 }, 4, { device = device })
      local g = tide.cuda.graph(function() return old + 1 end, { warmup = 0 })
      local h = tide.cuda.graph(function()
         local y = old * 2
         old:release()
         return y
      end, { warmup = 0 })
      for _ = 1, 10 do tide.full({ 3000 }, -1, { device = device }):sum():item() end
      assert.equal(8 * 3000, h:replay():sum():item())
      assert.equal(5 * 3000, g:replay():sum():item())
   end)

   local x
   before_each(function() x = tide.ones({ 3 }, { device = device }) end)
   for _, row in ipairs {
      { 'item', 'item', function() return x:sum():item() end },
      { 'to_doubles', 'reading elements', function() return x:tolist() end },
      { 'upload', 'a constant of the host', function()
         return x + tide.tensor({ 1, 2, 3 }, { device = device })
      end },
      { 'fill_', 'an op on another device', function() return tide.ones { 3 } end },
      { 'rng_state', 'a look at the generator', function() return tide.rng_state() end },
      { 'set_rng_state', 'a state of the generator', function()
         tide.set_rng_state { seed = 1, stream = 0, offset = 0 }
      end },
      { 'seed', 'a seed', function() tide.seed(3) end },
      { 'to_device_async', 'a copy that nobody waits for', function()
         return x:to('cpu', { non_blocking = true })
      end },
      { 'graph_begin', 'another capture', function() return tide.cuda.graph(function() end,
         { warmup = 0 }) end },
      { 'sync', 'waiting', function() tide.cuda.synchronize() end },
   } do
      it('refuses ' .. row[2] .. ', and leaves all as it was', function()
         refused('E_STATE', row[1], function()
            return tide.cuda.graph(function()
               local y = x * 2
               row[3]()
               return y
            end, { warmup = 0 })
         end)
         assert.same({ 2, 2, 2 }, (x + x):tolist())
         assert.equal(6, tide.cuda.graph(function() return x * 2 end):replay():sum():item())
      end)
   end

   -- fn() often, as it is and as a captured step, with draws of others between and the generator
   -- set again in the middle: the same values, and the generator is where it would be.
   local function draws_alike(fn)
      local state = tide.rng_state()
      finally(function() tide.set_rng_state(state) end)
      local runs = {}
      for k, captured in ipairs { false, true } do
         tide.set_rng_state { seed = 11, stream = 3, offset = 5 }
         local step, run = captured and tide.cuda.captured(fn) or fn, {}
         for i = 1, 9 do
            for _, y in ipairs { step() } do run[#run + 1] = y:to('cpu'):to_string_bytes() end
            run[#run + 1] = tide.randn({ i }, { device = device }):to('cpu'):to_string_bytes()
            run[#run + 1] = tide.rng_state()
            if i == 4 then tide.seed(2 ^ 40 + 1) end
            if i == 6 then tide.set_rng_state { seed = 1, stream = 2 ^ 33, offset = 2 ^ 34 - 2 } end
         end
         runs[k] = run
      end
      assert.same(runs[1], runs[2])
      return runs[1]
   end

   it('draws the random numbers of an ordinary one, which go on from replay to replay', function()
      local run = draws_alike(function()
         local y = tide.empty({ 7 }, { device = device }):uniform_(-1, 1)
         local z = tide.empty({ 4, 6 }, { device = device })
         z:slice(2, 2, 4):normal_(1, 2)
         z:slice(2, 5, 6):trunc_normal_()
         z:slice(2, 1, 1):fill_(0)
         return y, z, x:expand(5, 3):dropout(0.5)
      end)
      assert.not_equal(run[1], run[6])
   end)

   it('gives dropout its mask again in backward, and where forward is run again', function()
      local function branch(a) return (a * 2):dropout(0.3):square():dropout(0.2) end
      draws_alike(function()
         local a = tide.full({ 50 }, 3, { device = device }):requires_grad_(true)
         local loss = tide.checkpoint(branch, a):sum() + branch(a):sum()
            + tide.checkpoint(branch, a):sum()
         loss:backward()
         return loss:detach(), a.grad
      end)
   end)

   it('repeats numbers whose place is given, as the ordinary step does', function()
      local run = draws_alike(function()
         return tide.empty({ 7 }, { device = device }):uniform_(0, 1, { seed = 4, offset = 2 })
      end)
      assert.equal(run[1], run[4])
   end)

   it('leaves the generator as it was where the recording fails', function()
      local before = tide.rng_state()
      refused('E_STATE', 'item', function()
         return tide.cuda.graph(function() return x:clone():normal_():sum():item() end,
            { warmup = 0 })
      end)
      assert.same(before, tide.rng_state())
      local want = tide.randn({ 3 }, { device = device })
      tide.set_rng_state(before)
      assert.is_true(want:equal(tide.randn({ 3 }, { device = device })))
   end)

   it('refuses an update that would repeat the numbers of its recording', function()
      local update = require 'tide.ffi.update'
      local lists = { p = { x }, g = { x:clone() }, m = { x:clone() }, v = { x:clone() } }
      refused('E_STATE', { 'adamw_', 'rates' }, function()
         return tide.cuda.graph(function() update.adamw_(lists, {}) end, { warmup = 0 })
      end)
      refused('E_STATE', { 'sgd_', 'rates' }, function()
         return tide.cuda.graph(function()
            update.sgd_({ p = lists.p, g = lists.g }, { lr = 1 })
         end, { warmup = 0 })
      end)
      assert.same({ 1, 1, 1 }, x:tolist())
   end)

   it('is refused on devices without graphs', function()
      refused('E_UNSUPPORTED', "only those on 'cuda'", function()
         return require('tide.ffi.graph').capture('cpu', function() end)
      end)
   end)

   it('takes the results of its last call in any order', function()
      local step = tide.cuda.captured(function(a, b) return b, a end, { warmup = 0 })
      local a, b = tide.zeros({ 2 }, { device = 'cuda' }), tide.ones({ 2 }, { device = 'cuda' })
      for i = 1, 4 do
         a, b = step(a, b)
         assert.are.same({ i % 2, 1 - i % 2 }, { a:tolist()[1], b:tolist()[2] })
      end
   end)

   it('runs as it is as often as asked, then as recorded, with the same numbers alone', function()
      local step = tide.cuda.captured(function(a, k) return a * k end, { warmup = 2 })
      local a = tide.ones({ 2 }, { device = 'cuda' })
      for call = 1, 4 do
         assert.equal(call > 3, step:is_recorded())
         assert.same({ 3, 3 }, step(a, 3):tolist())
      end
      refused('E_STATE', 'cuda.captured', step, a, 4)
      step:release()
      assert.is_false(step:is_recorded())
   end)

   it('refuses arguments without an end', function()
      local ring = { 1 }
      ring.next = { ring }
      local step = tide.cuda.captured(function() end)
      refused('E_ARG', { 'cuda.captured', '1.next.1' }, step, ring)
      local shared = { 2 }
      step { shared, shared }
   end)
end)

-- A small model with a loss of its own: batches are { ids = x [N, 6] }.
local function regression(dtype, seed)
   local model = tide.nn.Linear(6, 40, { seed = seed, device = device, dtype = dtype })
   function model:loss(ids, _, opts)
      return self:forward(ids):square():to('f32'):sum() * (1 / opts.count)
   end
   return model
end

local function bits_of(model)
   local list = {}
   for i, p in ipairs(model:parameters()) do list[i] = p:detach():to('cpu'):to_string_bytes() end
   return table.concat(list)
end

local function batch_of(i, dtype, rows)
   local x = tide.arange((rows or 4) * 6):reshape(rows or 4, 6) * 0.01 + 0.1 * i
   return { ids = x:to(dtype or 'f32'):to(device), count = 4 }
end

local function rising(step) return 0.01 * step / (step + 3) end

local optimisers = {
   AdamW = function(model) return tide.optim.AdamW(model, { lr = rising, weight_decay = 0.3 }) end,
   SGD = function(model)
      return tide.optim.SGD(model, { lr = rising, momentum = 0.9, nesterov = true,
         weight_decay = 0.01 })
   end,
}

describe('a captured training step', function()
   for _, name in ipairs { 'AdamW', 'SGD' } do
      for _, dtype in ipairs { 'f32', 'bf16' } do
         it(('has the bits of the ordinary one: %s, %s'):format(name, dtype), function()
            local runs = {}
            for k, captured in ipairs { false, true } do
               local model = regression(dtype, 5)
               local optim = optimisers[name](model)
               local step = tide.train.step.new { model = model, optim = optim, clip = 0.5,
                  comm = tide.comm.solo(), captured = captured }
               local run = { losses = {}, optim = optim }
               for i = 1, 6 do
                  local r = step:run { batch_of(i, dtype), batch_of(-i, dtype) }
                  run.losses[i] = ('%.17g %.17g %.17g'):format(r.loss, r.grad_norm, r.lr)
                  assert.is_true(r.applied)
               end
               run.bits = bits_of(model)
               run.steps, run.meta = optim.steps, select(2, optim:state_dict())
               runs[k] = run
            end
            assert.same(runs[1].losses, runs[2].losses)
            assert.equal(runs[1].bits, runs[2].bits)
            assert.same(runs[1].meta, runs[2].meta)
            assert.equal(6, runs[2].steps)
         end)
      end
   end

   -- 50 steps with dropout, one of whose branches is run again in backward; a run that is left and
   -- taken up again in the middle from what a checkpoint holds.
   it('has the bits of the ordinary one with dropout, and taken up again', function()
      local state = tide.rng_state()
      finally(function() tide.set_rng_state(state) end)
      local function make(captured)
         local model, drop = regression(nil, 9), tide.nn.Dropout(0.2)
         local function hidden(x) return drop:forward(model:forward(x)):square() end
         function model:loss(ids, _, opts)
            local again = tide.checkpoint(hidden, drop:forward(ids))
            return drop:forward(again):sum() * (1 / opts.count)
         end
         local optim = optimisers.AdamW(model)
         return model, optim, tide.train.step.new { model = model, optim = optim, clip = 0.5,
            comm = tide.comm.solo(), captured = captured }
      end
      local function steps(step, from, to)
         local list = {}
         for i = from, to do
            local r = step:run { batch_of(i), batch_of(-i) }
            list[#list + 1] = ('%.17g %.17g'):format(r.loss, r.grad_norm)
         end
         return list
      end
      tide.seed(6)
      local model, _, step = make(false)
      local want = steps(step, 1, 50)
      want[#want + 1], want[#want + 2] = bits_of(model), tide.rng_state().offset
      tide.seed(6)
      local first, optim, started = make(true)
      local got = steps(started, 1, 20)
      local weights = first:state_dict()
      local tensors, meta = optim:state_dict()
      local stands = tide.rng_state()
      tide.seed(1)
      local second, later, resumed = make(true)
      second:load_state_dict(weights)
      later:load_state_dict(tensors, meta)
      tide.set_rng_state(stands)
      for _, text in ipairs(steps(resumed, 21, 50)) do got[#got + 1] = text end
      got[#got + 1], got[#got + 2] = bits_of(second), tide.rng_state().offset
      assert.same(want, got)
   end)

   it('leaves everything as it is where a number is not finite, and goes on', function()
      local runs = {}
      for k, captured in ipairs { false, true } do
         local model = regression(nil, 7)
         local optim = optimisers.AdamW(model)
         local step = tide.train.step.new { model = model, optim = optim, clip = 1,
            comm = tide.comm.solo(), captured = captured }
         local run = {}
         for i = 1, 7 do
            local bad = i == 1 or i == 4 or i == 5
            local before = bits_of(model)
            local batch = batch_of(i)
            if bad then batch.ids = batch.ids * (i == 4 and 1 / 0 or 0 / 0) end
            local r = step:run { batch }
            assert.equal(not bad, r.applied)
            if bad then
               step:skip()
               assert.equal(before, bits_of(model))
               assert.is_truthy(r.cause:find('its loss', 1, true), r.cause)
               run[#run + 1] = r.cause
            end
         end
         run[#run + 1] = bits_of(model)
         run[#run + 1] = optim.steps
         runs[k] = run
      end
      assert.same(runs[1], runs[2])
   end)

   it('asks a schedule once a step, and tells the rate that it took', function()
      local model, asked = regression(nil, 2), {}
      local step = tide.train.step.new { model = model, comm = tide.comm.solo(), captured = true,
         optim = tide.optim.AdamW(model, { lr = function(s)
            asked[#asked + 1] = s
            return 0.1 / s
         end }) }
      for i = 1, 4 do assert.equal(0.1 / i, step:run({ batch_of(i) }).lr) end
      assert.same({ 1, 2, 3, 4 }, asked)
   end)

   it('is one of get_train_context, too', function()
      local runs = {}
      for k, context in ipairs { { captured = false }, { captured = true } } do
         local model = regression(nil, 3)
         local optim = optimisers.AdamW(model)
         local calls = 0
         local run = tide.parallel.cp.get_train_context(context)
         local function train(env, batch)
            calls = calls + 1
            assert.equal(tide.parallel.cp.null, env.cp)
            optim:zero_grad()
            local loss = model:loss(batch.ids, nil, batch)
            loss:backward()
            optim:step {}
            return loss:detach(), calls
         end
         local losses = {}
         for i = 1, 5 do losses[i] = (run(train, batch_of(i))):item() end
         assert.equal(context.captured and 2 or 5, calls)
         runs[k] = { losses, bits_of(model) }
         if context.captured then
            refused('E_STATE', { 'argument 1.ids', 'f32 [4, 6]', 'f32 [5, 6]' }, run, train,
               batch_of(1, nil, 5))
            refused('E_STATE', { 'argument 1.count', '4', '3' }, run, train,
               { ids = batch_of(1).ids, count = 3 })
            refused('E_STATE', 'argument', run, train, { ids = batch_of(1).ids })
            refused('E_UNSUPPORTED', { 'argument 1.ids', "'cpu'" }, run, train,
               { ids = batch_of(1).ids:to 'cpu', count = 4 })
            refused('E_STATE', 'another', run, function() end, batch_of(1))
            assert.equal(runs[1][2], bits_of(model))
         end
      end
      assert.same(runs[1], runs[2])
      refused('E_ARG', "captured", tide.parallel.cp.get_train_context, { captured = 1 })
   end)

   it('refuses what a replay would repeat', function()
      local model = regression(nil, 1)
      local optim = optimisers.AdamW(model)
      local function train(opts)
         return function()
            optim:zero_grad()
            model:loss(batch_of(1).ids, nil, { count = 1 }):backward()
            optim:step(opts)
         end
      end
      local x = batch_of(1).ids
      local function make(opts)
         return function()
            optim:zero_grad()
            model:loss(x, nil, { count = 1 }):backward()
            optim:step(opts)
         end
      end
      refused('E_STATE', { 'optim.AdamW.step', 'no state yet' }, tide.cuda.graph, make {},
         { warmup = 0 })
      refused('E_STATE', { 'optim.AdamW.step', 'this lr' }, tide.cuda.graph, make { lr = 1 })
      refused('E_STATE', "runs on 'cpu'", tide.cuda.graph, train {})
      local before = optim.steps
      local g = tide.cuda.graph(make {}, { warmup = 0 })
      assert.equal(before, optim.steps)
      g:replay()
      assert.equal(before + 1, optim.steps)
      optim:load_state_dict(optim:state_dict())
      local bits = bits_of(model)
      refused('E_STATE', { 'optim.AdamW.step', 'the state was loaded after' }, g.replay, g)
      assert.equal(bits, bits_of(model))
      refused('E_STATE', 'no step', function()
         require('tide.ffi.graph').on_replay(print, print)
      end)
   end)

   it('is refused for a model on the host', function()
      local model = tide.nn.Linear(2, 2, { seed = 1 })
      model.loss = function() end
      refused('E_UNSUPPORTED', { 'train.step.new', "'cpu'" }, tide.train.step.new, {
         model = model, optim = tide.optim.AdamW(model), captured = true })
   end)
end)
