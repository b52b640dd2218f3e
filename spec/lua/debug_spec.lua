-- debug: numeric gradients, the first output that is not finite, leaks, what the compiler did.

local tide = require 'tide'
local raised = require 'spec.support.raised'

describe('tide.gradcheck', function()
   local a = tide.tensor({ { 0.3, -1.2 }, { 0.8, 2 } }, { dtype = 'f64' })
   local b = tide.tensor({ 0.5, -0.25 }, { dtype = 'f64' })

   it('accepts right gradients', function()
      local r = tide.gradcheck(function(x, y) return (x:matmul(x):tanh() * y):sum() end, { a, b })
      assert.is_true(r.worst < 1e-6)
   end)

   it('finds wrong ones, in one element or along a direction', function()
      local wrong = tide.grad.func {
         name = 'wrong', forward = function(_, x) return x * x end,
         backward = function(_, dy) return dy end,
      }
      assert.matches('input 1, element 1', raised(tide.gradcheck, function(x)
         return wrong(x):sum()
      end, { a:clone() }).message, 1, true)
      assert.matches('direction', raised(tide.gradcheck, function(x)
         return wrong(x):sum()
      end, { a:clone() }, { limit = 0 }).message, 1, true)
   end)

   it('says how far it is off, and passes exact ones without tolerance', function()
      local exact = { atol = 0, rtol = 0 }
      assert.equal(0, tide.gradcheck(function(x) return (x * 0):sum() end, { a }, exact).worst)
      assert.is_true(tide.gradcheck(function(x) return x:exp():sum() end, { a }).worst > 0)
      tide.gradcheck(function(x) return x:mean() end, { tide.zeros({ 0 }, { dtype = 'f64' }) })
   end)

   it('moves all elements at once, up and down, and single ones of small inputs', function()
      local seen = {}
      local function fn(x)
         seen[#seen + 1] = x:tolist()
         return (x * 0):sum()
      end
      local zero = tide.zeros({ 4 }, { dtype = 'f64' })
      for _, limit in ipairs { 3, 4 } do
         seen = {}
         tide.gradcheck(fn, { zero }, { h = 1, limit = limit, directions = 3 })
         assert.equal(2 + 6 + (limit == 4 and 8 or 0), #seen)
         local up, down = 0, 0
         for k = #seen - 5, #seen, 2 do                -- the first of each pair goes forward
            for _, v in ipairs(seen[k]) do
               assert.is_true(math.abs(v) <= 1)
               up, down = up + (v > 0 and 1 or 0), down + (v < 0 and 1 or 0)
            end
         end
         assert.is_true(up > 0 and down > 0)
      end
      assert.same({ 0, 0, 1, 0 }, seen[7])
   end)

   it('wants f64 and one element', function()
      assert.equal('E_ARG', raised(tide.gradcheck, function(x) return x:sum() end,
         { tide.ones { 2 } }).code)
      assert.equal('E_ARG', raised(tide.gradcheck, 3, { a }).code)
      assert.has_error(function() tide.gradcheck(function(x) return x * 1 end, { a:clone() }) end)
   end)
end)

describe('debug.nan', function()
   it('names parameters and gradients that are not finite, in order', function()
      local m = tide.nn.MLP { dim = 2, hidden = 4, act = 'relu', bias = true }
      m(tide.ones { 1, 2 }):sum():backward()
      tide.no_grad(function() m.down_proj.bias:mul_(0 / 0) end)
      for _, entry in ipairs(m:named_parameters()) do
         if entry.name == 'up_proj.weight' or entry.name == 'down_proj.bias' then
            entry.param.grad:mul_(1 / 0):mul_(0)
         end
      end
      assert.same({ 'up_proj.weight (gradient)', 'down_proj.bias', 'down_proj.bias (gradient)' },
         tide.debug.nan.parameters(m))
   end)

   it('names the innermost module', function()
      local nan = tide.debug.nan
      local m = tide.nn.MLP { dim = 2, hidden = 4, act = 'relu', bias = true }
      local x = tide.ones { 1, 2 }
      local watch = nan.watch(m)
      m(x)
      assert.same({}, nan.parameters(m))
      tide.no_grad(function() m.down_proj.bias:fill_(0 / 0) end)
      assert.matches("output 1 of module 'down_proj' (Linear)", raised(m, x).message, 1, true)
      assert.same({ 'down_proj.bias' }, nan.parameters(m))
      watch.remove()
      m(x)
   end)
end)

describe('debug.leak', function()
   it('counts what stays', function()
      local leak, kept = tide.debug.leak, nil
      local none = leak.measure(tide.default(), function() return tide.ones { 100 } * 2 end)
      assert.same({ tensors = 0, bytes = 0, nodes = 0 }, none)
      local some = leak.measure(tide.default(), function() kept = tide.ones { 1000 } end)
      assert.equal(1000, kept:numel())
      assert.equal(1, some.tensors)
      assert.is_true(some.bytes >= 4000)
   end)

   it('names the lines whose tensors are live, also where memory runs out', function()
      local leak, kept = tide.debug.leak, {}
      leak.track(true)
      for i = 1, 3 do kept[i] = tide.ones { 1000 } end
      kept[4] = tide.ones { 10 }
      local here = debug.getinfo(1, 'l').currentline - 2
      local sites = leak.sites()
      assert.same({ 3, 12000 }, { sites[1].count, sites[1].bytes })
      assert.matches('debug_spec.lua:' .. here, sites[1].site, 1, true)
      assert.same({ 1, 40 }, { sites[2].count, sites[2].bytes })
      local message = raised(tide.ones, { 2 ^ 40 }).message
      leak.track(false)
      assert.matches('in 3 tensors made at ' .. sites[1].site, message, 1, true)
      assert.same({}, leak.sites())
      assert.equal(1000, kept[1]:numel())
   end)
end)

describe('debug.jit', function()
   it('reports traces and aborts', function()
      local jitlog = tide.debug.jit
      local report, sum = jitlog.run(function()
         local s = 0
         for i = 1, 1000 do s = s + i end
         return s
      end)
      assert.equal(500500, sum)
      assert.is_true(report.traces >= 1)
      local bad = jitlog.run(function()
         for _ = 1, 1000 do local _ = loadstring 'return 1' end
      end)
      assert.is_true(#bad.aborts >= 1)
      assert.matches('aborts', jitlog.text(bad), 1, true)
   end)

   it('takes reasons as numbers and as texts, and only what stopped or was given up', function()
      local attach, listen = jit.attach, nil
      rawset(jit, 'attach', function(fn, what) listen = what and fn or listen end)
      local report = tide.debug.jit.run(function()
         listen('start', 1, raised, 0)
         listen('stop', 1, raised, 0)
         listen('abort', 2, raised, 0, 'a fault', nil)
         listen('abort', 2, raised, 0, 2, nil)
      end)
      rawset(jit, 'attach', attach)
      assert.equal(1, report.traces)
      assert.equal(2, #report.aborts)
      assert.equal('a fault', report.aborts[1].why)
      assert.matches('raised%.lua:%d+$', report.aborts[1].at)
      assert.not_equal('2', report.aborts[2].why)
   end)

   it('tells aborts by how often they came, then by place', function()
      local aborts = {}
      for i, at in ipairs { 'c', 'a', 'b', 'd', 'b', 'd', 'd' } do
         aborts[i] = { at = at, why = 'NYI' }
      end
      assert.equal('2 traces, 7 aborts\n  3 x d: NYI\n  2 x b: NYI\n  1 x a: NYI\n  1 x c: NYI',
         tide.debug.jit.text { traces = 2, aborts = aborts })
   end)
end)
