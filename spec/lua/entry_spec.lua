-- The entry of the library: classes, parts that are loaded when first named, and what tide.cuda
-- does on a machine with or without a GPU.

local class = require 'tide.class'
local raised = require 'spec.support.raised'
local tide = require 'tide'

describe('a class', function()
   it('makes instances, of itself and of its parents', function()
      local order = {}
      local A = class 'A'
      function A:init(x) self.x, order[#order + 1] = x, 'init' end
      function A:made() order[#order + 1] = 'made ' .. tostring(self.x) end
      function A.__call(_, y) return y + 1 end
      local B = class('B', A)
      local a, b = A(5), B.new(6)
      assert.same({ 'init', 'made 5', 'init', 'made 6' }, order)
      assert.same({ 5, 6, 8 }, { a.x, b.x, b(7) })
      for _, row in ipairs { { a, A, true }, { a, B, false }, { b, A, true }, { b, B, true },
         { {}, A, false }, { 5, A, false }, { nil, A, false },
         { setmetatable({}, {}), A, false } } do
         assert.equal(row[3], class.is(row[1], row[2]))
      end
      assert.is_true(b:is(A))
      assert.is_false(a:is(B))
      assert.same({ A, 'B', 'class B' }, { B.super, B.class_name, tostring(B) })
      assert.matches('^A: 0x%x+$', tostring(a))
      assert.matches('^B: 0x%x+$', tostring(b))
      assert.is_true(tostring(a) ~= tostring(A(5)))
      assert.is_nil(rawget(class 'Empty'(), 'x'))
   end)

   it('gives its children metamethods, an __index that is a function among them', function()
      local A = class 'A'
      A.__index = function(_, key) return key == 'own' and 'a' or A[key] end
      A.__tostring = function() return 'an A' end
      local B = class('B', A)
      function B.twice(self) return self.own .. self.own end
      assert.equal('an A', tostring(B()))
      assert.equal('a', B().own)
      local C = class('C', class 'Plain')
      assert.equal(C, C.__index)
      assert.matches('^C: ', tostring(C()))
      B.__tostring = function() return 'a B' end
      local D = class('D', B)
      assert.same({ 'an A', 'a B', 'a B' }, { tostring(A()), tostring(B()), tostring(D()) })
   end)

   it('has a name, and a class as parent', function()
      for message, args in pairs { ['class: the name must be a string, got number'] = { 5 },
         ['class A: the parent must be a class, got number'] = { 'A', 5 },
         ['class A: the parent must be a class, got table'] = { 'A', {} },
         ['class A: the parent must be a class, got boolean'] = { 'A', false } } do
         local ok, e = pcall(class, unpack(args, 1, 2))
         assert.is_false(ok)
         assert.matches(message, e, 1, true)
      end
   end)
end)

describe('tide', function()
   it('loads its parts when they are named, and says what may have been meant', function()
      assert.equal(require 'tide.nn', tide.nn)
      assert.equal(require 'tide.debug.gradcheck', tide.gradcheck)
      assert.is_nil(tide[5])
      assert.equal("there is no tide.optm in this version; did you mean 'optim'?",
         raised(function() return tide.optm end).message)
      assert.equal("there is no tide.zeroes in this version; did you mean 'zeros'?",
         raised(function() return tide.zeroes end).message)
      package.preload['tide.broken_part'] = function() error 'it is broken' end
      local ok, e = pcall(function() return tide.broken_part end)
      package.preload['tide.broken_part'] = nil
      assert.is_false(ok)
      assert.matches('it is broken', tostring(e), 1, true)
   end)

   it('has the generator and the numbers of the default context', function()
      tide.seed(5)
      local state = tide.rng_state()
      local a = tide.rand({ 4 }):tolist()
      tide.set_rng_state(state)
      assert.same(a, tide.rand({ 4 }):tolist())
      assert.is_true(tide.stats().live > 0)
      local old = tonumber(tide.param 'matmul_precision')
      assert.equal(0, old)
   end)
end)

describe('tide.cuda', function()
   local cuda = tide.cuda
   local there = cuda.is_available()

   it('names what its parameters hold', function()
      for _, name in ipairs { 'high', 'medium', 'highest' } do
         cuda.set_float32_matmul_precision(name)
         assert.equal(name, cuda.get_float32_matmul_precision())
      end
      for _, name in ipairs { 'wgmma', 'mma' } do
         cuda.set_attention_kernel(name)
         assert.equal(name, cuda.get_attention_kernel())
      end
      for _, name in ipairs { 'set_float32_matmul_precision', 'set_attention_kernel', 'range',
         'range_ops', 'graph', 'captured' } do
         assert.equal('cuda.' .. name, raised(cuda[name], 'odd').op)
      end
      for _, name in ipairs { 'rand', 'randn', 'zeros', 'full', 'empty' } do
         assert.equal(name, raised(tide[name], {}, 'odd').op)
         assert.equal(name, raised(tide[name], 'odd', 1).op)
      end
      cuda.range_ops(true)
      assert.equal(1, tonumber(tide.param 'ranges'))
      cuda.range_ops(false)
      assert.equal(0, tonumber(tide.param 'ranges'))
   end)

   it('puts ranges around functions and modules, which compute what they did', function()
      assert.same({ 3, nil, 4 }, { cuda.range('name', function(a, b) return a, nil, b end, 3, 4) })
      assert.matches("'name'", raised(cuda.range, 5, print).message, 1, true)
      assert.matches("'fn'", raised(cuda.range, 'a', 5).message, 1, true)
      local model = tide.nn.Stack { tide.nn.Linear(2, 3), tide.nn.Linear(3, 2) }
      local x = tide.ones { 1, 2 }
      local y = model(x):tolist()
      local remove = cuda.range_modules(model)
      for _, entry in ipairs(model:named_modules()) do
         assert.same({ 'range' }, entry.module:wraps())
      end
      assert.same(y, model(x):tolist())
      remove()
      assert.same({}, model[1]:wraps())
      for _, bad in ipairs { 5, {}, { named_modules = 5 } } do
         assert.matches("'model': expected a module (tide.nn)",
            raised(cuda.range_modules, bad).message, 1, true)
      end
   end)

   it('captures steps on a GPU alone, after as many calls as it is told', function()
      assert.matches("'fn'", raised(cuda.graph, 5).message, 1, true)
      assert.matches("'warmup'", raised(cuda.graph, print, { warmup = -1 }).message, 1, true)
      assert.matches('warmups', raised(cuda.graph, print, { warmups = 1 }).message, 1, true)
      assert.matches("'fn'", raised(cuda.captured, 5).message, 1, true)
      if there then return end
      for _, row in ipairs { { nil, 1 }, { {}, 1 }, { { warmup = 0 }, 0 },
         { { warmup = 3 }, 3 } } do
         local n = 0
         local e = raised(cuda.graph, function() n = n + 1 end, row[1])
         assert.equal('E_DEVICE', e.code)
         assert.equal(row[2], n)
      end
      assert.equal(0, (cuda.device_count()))
      assert.matches("steps are captured on device 'cuda', which cannot be used: ",
         raised(cuda.captured, print).message, 1, true)
      assert.matches('odd', raised(cuda.captured, print, { odd = 1 }).message, 1, true)
      assert.equal('E_DEVICE', raised(cuda.event).code)
   end)
end)
