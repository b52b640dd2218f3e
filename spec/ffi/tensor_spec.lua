-- The handle: properties, operators, reading, conversion, what it refuses.

local tide = require 'tide'
local ffi = require 'ffi'
local close = require 'spec.support.close'

local function refused(code, fn, ...)
   local ok, err = pcall(fn, ...)
   assert.is_false(ok)
   assert.is_true(tide.is_error(err), tostring(err))
   assert.equal(code, err.code, tostring(err))
end

describe('tensor', function()
   local x = tide.tensor { { 1, 2, 3 }, { 4, 5, 6 } }

   it('has properties', function()
      assert.same({ 2, 3 }, x.shape)
      assert.equal(2, x.ndim)
      assert.equal('f32', x.dtype)
      assert.equal('cpu', x.device)
      assert.is_nil(x.grad)
      assert.is_false(x.requires_grad)
      assert.is_true(x.is_leaf)
      assert.equal('number', type(x.id))
      assert.not_equal(x.id, x:clone().id)
      assert.equal(2, #x)
      assert.equal(6, x:numel())
      assert.equal(3, x:stride(1))
      assert.is_true(x:is_contiguous())
      assert.is_false(x:t():is_contiguous())
      assert.is_true(x:same_storage(x:t()))
      assert.is_false(x:same_storage(x:clone()))
   end)

   it('of a list names the place of what is no number', function()
      local function says(words, list)
         assert.matches("argument 'list" .. words, tostring(select(2, pcall(tide.tensor, list))), 1,
            true)
      end
      says('[2][1]\': expected a number or boolean, got "a"', { { 1 }, { 'a' } })
      says("[2]': expected a list of 2, as its neighbours, got 1", { { 1, 2 }, { 3 } })
      says("[2]': expected a list of 1, as its neighbours, got 3", { { 1 }, 3 })
      says("': expected a number or boolean", 'a')
   end)

   it('of a list makes no text of each place', function()
      local rows, each = {}, 256
      for i = 1, 64 do rows[i] = {} for k = 1, each do rows[i][k] = k end end
      finally(function() collectgarbage 'restart' end)
      tide.tensor(rows[1])
      collectgarbage()
      collectgarbage 'stop'
      local before = collectgarbage 'count'
      tide.tensor(rows)
      local bytes = 1024 * (collectgarbage 'count' - before) / (#rows * each)
      assert.is_true(bytes < 40, bytes)                  -- a table that doubles takes up to 32
   end)

   it('gives a new shape list each time', function()
      local s = x.shape
      s[1] = 99
      assert.same({ 2, 3 }, x.shape)
   end)

   it('computes with operators', function()
      close(x + x, x * 2)
      close(x - 1, tide.tensor { { 0, 1, 2 }, { 3, 4, 5 } })
      close(x / x, tide.ones { 2, 3 })
      close(-x, 0 - x)
      close(x ^ 2, x * x)
      close(2 ^ x, tide.tensor { { 2, 4, 8 }, { 16, 32, 64 } })
      close(6 / x, tide.tensor { { 6, 3, 2 }, { 1.5, 1.2, 1 } })
   end)

   it('names the nearest of its methods', function()
      local v = tide.tensor { 5, -5 }
      local ok, e = pcall(function() return v:reshap(2, 1) end)
      assert.is_false(ok)
      assert.matches("no field or method 'reshap'; did you mean 'reshape'?", e.message, 1, true)
   end)

   it('is neither a text nor a list, and says what is', function()
      local v = tide.tensor { 5, -5 }
      for text, fn in require 'tide.util.each' {
         ['a tensor is not text; x:item()'] = function() return 'loss ' .. v end,
         ['x:select(1, i)'] = function() return ipairs(v) end,
      } do
         local ok, e = pcall(fn)
         assert.is_false(ok)
         assert.matches(text, e.message, 1, true)
      end
   end)

   it('says what to do in place of %', function()
      local v = tide.tensor { 5, -5 }
      for _, pair in ipairs { { v, 3 }, { 3, v }, { v, v } } do
         local ok, e = pcall(function() return pair[1] % pair[2] end)
         assert.is_false(ok)
         assert.equal('E_UNSUPPORTED', e.code)
         assert.matches('operator %; the remainder is x - (x / y):floor() * y', e.message, 1,
            true)
      end
      assert.same({ 2, 1 }, (v - (v / 3):floor() * 3):tolist())
   end)

   it('compares handles by identity, elements by equal', function()
      local same = x
      assert.is_true(x == same)
      assert.is_false(x == x:clone())
      assert.is_false(x == 1)
      assert.is_true(x ~= nil)
      assert.is_true(x:equal(x:clone()))
      assert.is_false(x:equal(x + 1))
      assert.is_false(x:equal(x:t()))
      assert.is_false(x:equal(x:to 'f64'))
      refused('E_ARG', function() return x < 1 end)
      refused('E_ARG', function() return 1 <= x end)
   end)

   it('reads elements', function()
      assert.equal(6, x:at(2, 3))
      assert.equal(21, x:sum():item())
      assert.is_true(x:gt(0):all():item())
      assert.equal(true, x:gt(5):at(2, 3))
      assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, x:tolist())
      assert.same({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, x:t():tolist())
      assert.equal(ffi.string(ffi.new('float[6]', { 1, 2, 3, 4, 5, 6 }), 24), x:to_string_bytes())
      assert.equal(24, #x:t():to_string_bytes())
      local back = tide.from_string(x:to_string_bytes(), { 2, 3 })
      assert.is_true(back:equal(x))
      refused('E_SHAPE', x.item, x)
   end)

   it('reads NaNs of any bits as numbers', function()
      -- LuaJIT keeps types in the bits of NaNs: these would be nil, or a pointer
      for _, case in ipairs { { 'f64', 8 }, { 'f32', 4 }, { 'bf16', 2 }, { 'f16', 2 } } do
         local nans = tide.from_string(('\255'):rep(case[2] * 2), { 2 }, { dtype = case[1] })
         local list = nans:tolist()
         for _, v in ipairs { nans:at(1), list[1], list[2], nans:sum():item() } do
            assert.equal('number', type(v))
            assert.is_true(v ~= v)
         end
         assert.equal(2, #list)
         assert.is_truthy(tostring(nans):lower():find 'nan')
      end
   end)

   it('prints itself bounded', function()
      assert.is_true(tostring(x):find('f32 [2, 3] cpu', 1, true) ~= nil)
      assert.is_true(#tostring(tide.zeros { 1000, 1000 }) < 1000)
   end)

   it('does not record what at() does', function()
      local ctx = assert(tide.open {})
      finally(function() ctx:close() end)
      local w = ctx:tensor({ 1, 2 }, { requires_grad = true })
      assert.equal(2, w:at(2))
      assert.equal(0, ctx:stats().nnode)
      assert.is_true(tide.is_grad_enabled())
   end)

   it('converts', function()
      assert.equal('bf16', x:bf16().dtype)
      assert.equal('i64', x:long().dtype)
      assert.equal('f64', x:to('f64').dtype)
      assert.equal('ref', x:to('ref').device)
      local both = x:to { device = 'ref', dtype = 'f64' }
      assert.same({ 'ref', 'f64' }, { both.device, both.dtype })
      assert.is_true(x:to 'f32' == x)
      assert.is_true(x:contiguous() == x)
      refused('E_ARG', x.to, x, 'int')
      refused('E_ARG', x.to, x, { dtyp = 'f32' })
      refused('E_ARG', x.to, x)
   end)

   it('carries no fields and no index', function()
      refused('E_ARG', function() x.name = 'w' end)
      refused('E_ARG', function() x.grad = x end)
      refused('E_ARG', function() return x.nothing end)
      assert.is_false(pcall(function() return x[1] end))
      refused('E_SHAPE', function() return #tide.tensor(1) end)
   end)

   it('moves and joins', function()
      close(tide.cat({ x, x }, 1):sum(1), x:sum(1) * 2)
      assert.same({ 2, 2, 3 }, tide.stack({ x, x }).shape)
      assert.same({ 2, 3, 2 }, tide.stack({ x, x }, -1).shape)
      close(x:repeat_interleave(2, 2), { { 1, 1, 2, 2, 3, 3 }, { 4, 4, 5, 5, 6, 6 } })
      close(x:repeat_interleave(2, 1), { { 1, 2, 3 }, { 1, 2, 3 }, { 4, 5, 6 }, { 4, 5, 6 } })
      assert.same({ 6 }, x:flatten().shape)
      assert.same({ 2, 3 }, x:unsqueeze(2):squeeze().shape)
      close(x:roll(1, 2), { { 3, 1, 2 }, { 6, 4, 5 } })
      close(x:pad({ 0, 1 }, { 0, 0 }, 9), { { 9, 1, 2, 3 }, { 9, 4, 5, 6 } })
      close(x:masked_fill(x:gt(4), 0), { { 1, 2, 3 }, { 4, 0, 0 } })
      close(tide.where(x:gt(3), 1, 0), { { 0, 0, 0 }, { 1, 1, 1 } })
      close(x:norm(), math.sqrt(91))
      close(x:clamp(2, nil), { { 2, 2, 3 }, { 4, 5, 6 } })
   end)

   it('changes in place and says so by its version', function()
      local y = x:clone()
      local before = y:version()
      close(y:add_(x, 2):mul_(0.5), x * 1.5)
      assert.is_true(y:version() > before)
      close(y:zero_(), tide.zeros { 2, 3 })
      close(y:copy_(tide.tensor { 7, 8, 9 }), { { 7, 8, 9 }, { 7, 8, 9 } })
   end)

   it('draws the same numbers from the same seed', function()
      local opts = { seed = 3, stream = 5 }
      local a, b = tide.empty { 10 }:normal_(0, 1, opts), tide.empty { 10 }:normal_(0, 1, opts)
      assert.is_true(a:equal(b))
      local part = tide.empty { 4 }:normal_(0, 1, { seed = 3, stream = 5, start = 6 })
      assert.is_true(part:equal(a:slice(1, 7, 10)))
      local state = tide.rng_state()
      local u = tide.rand { 4 }
      tide.set_rng_state(state)
      assert.is_true(u:equal(tide.rand { 4 }))
      refused('E_ARG', a.normal_, a, 0, 1, { stream = 1 })
      refused('E_ARG', a.normal_, a, 0, -1)
   end)

   it('is one metatype, also when the modules are loaded again', function()
      local kept = {}
      for name, module in pairs(package.loaded) do
         if name == 'tide' or name:find '^tide%.ffi' then kept[name] = module end
      end
      for name in pairs(kept) do package.loaded[name] = nil end
      local again = require 'tide'
      assert.not_equal(tide, again)
      close(again.ones { 2, 3 } + x, x + 1)
      assert.equal(tide.default(), again.default())
      for name in pairs(package.loaded) do
         if name == 'tide' or name:find '^tide%.ffi' then package.loaded[name] = kept[name] end
      end
   end)
end)
