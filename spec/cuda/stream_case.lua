-- Streams on a GPU: copies that nobody waits for, steps that are captured and replayed, a device
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
      { 'normal_', 'random numbers', function() return x:clone():normal_() end },
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

   it('refuses an AdamW update, whose step number it would repeat', function()
      local model = tide.nn.Linear(4, 3, { seed = 1, device = device })
      local optim = tide.optim.AdamW(model, { lr = 0.1 })
      local function step()
         model:forward(tide.ones({ 2, 4 }, { device = device })):sum():backward()
         optim:step {}
      end
      refused('E_STATE', 'adamw_', function() return tide.cuda.graph(step) end)
   end)

   it('is refused on devices without graphs', function()
      refused('E_UNSUPPORTED', "only those on 'cuda'", function()
         return require('tide.ffi.graph').capture('cpu', function() end)
      end)
   end)
end)
