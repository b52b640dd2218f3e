-- Arguments: index bases, numbers that are no integers, lists, options, numbers as operands.

local tide = require 'tide'

local function refused(code, fn, ...)
   local ok, err = pcall(fn, ...)
   assert.is_false(ok)
   assert.is_true(tide.is_error(err), tostring(err))
   assert.equal(code, err.code, tostring(err))
   return err
end

local bad_numbers = { 0 / 0, 1 / 0, -1 / 0, 1e20, -1e20, 1.5, 2^53 + 2, 'a', true, {} }

describe('index bases', function()
   local x = tide.arange(6):reshape(2, 3)

   it('counts dims from 1 and from the end', function()
      assert.same({ 3, 5, 7 }, x:sum(1):tolist())
      assert.same({ 3, 12 }, x:sum(2):tolist())
      assert.same({ 3, 12 }, x:sum(-1):tolist())
      assert.same({ 3, 5, 7 }, x:sum(-2):tolist())
      assert.equal(15, x:sum { 1, 2 }:item())
      assert.equal(2, x:size(1))
      assert.equal(3, x:size(-1))
      assert.same({ 3, 2 }, x:transpose(1, 2).shape)
      assert.same({ 3, 2 }, x:permute(2, 1).shape)
      assert.same({ 3, 2 }, x:permute({ -1, -2 }).shape)
      assert.same({ 1, 2, 3 }, x:unsqueeze(1).shape)
      assert.same({ 2, 3, 1 }, x:unsqueeze(-1).shape)
      assert.same({ 2, 3, 1 }, x:unsqueeze(3).shape)
   end)

   it('counts elements from 1 and from the end', function()
      assert.equal(0, x:at(1, 1))
      assert.equal(5, x:at(2, 3))
      assert.equal(5, x:at(-1, -1))
      assert.same({ 3, 4, 5 }, x:select(1, 2):tolist())
      assert.same({ 3, 4, 5 }, x:select(1, -1):tolist())
      assert.same({ { 1, 2 }, { 4, 5 } }, x:narrow(2, 2, 2):tolist())
      assert.same({ { 1, 2 }, { 4, 5 } }, x:narrow(2, -2, 2):tolist())
   end)

   it('slices inclusively, as Lua does', function()
      local v = tide.arange(6)
      assert.same({ 0, 1, 2, 3 }, v:slice(1, 1, 4):tolist())
      assert.same({ 4, 5 }, v:slice(1, -2, -1):tolist())
      assert.same({ 0, 2, 4 }, v:slice(1, 1, -1, 2):tolist())
      assert.same({ 0, 1, 2, 3, 4, 5 }, v:slice(1):tolist())
      assert.same({ 0 }, v:slice(1, 4, 3).shape)
      assert.same({ 0 }, v:slice(1, 7, 6).shape)
      assert.same({ 0 }, v:slice(1, 1, 0).shape)
      for _, range in ipairs { { 0, 3 }, { 1, 7 }, { 8, 8 }, { -7, 2 }, { 4, 2 }, { 1, 2, 0 } } do
         refused('E_ARG', v.slice, v, 1, unpack(range))
      end
   end)

   it('takes no list of sizes that has holes or names', function()
      for _, bad in ipairs { { [2] = 3 }, { 2, [3] = 4 }, { rows = 2 }, { [0] = 2 },
         { 2, 3, dtype = 'f64' }, { 2, 3, device = 'null' } } do
         refused('E_ARG', tide.zeros, bad)
         refused('E_ARG', tide.empty, bad)
         refused('E_ARG', x.reshape, x, bad)
      end
      assert.same({}, tide.zeros({}).shape)
   end)

   it('leaves index data 0-based', function()
      local ids = tide.tensor({ 0, 1 }, { dtype = 'i64' })
      assert.same({ { 3, 4, 5 } }, x:index_select(1, ids:slice(1, 2, 2)):tolist())
      assert.equal(1, tide.tensor({ 1, 9, 2 }):argmax(1):item())
      assert.same({ { true, false }, { false, true } },
         tide.one_hot(ids, 2):to 'bool':tolist())
   end)

   it('refuses dims and positions out of range', function()
      for _, dim in ipairs { 0, 3, -3, unpack(bad_numbers) } do
         refused('E_ARG', x.size, x, dim)
         refused('E_ARG', x.select, x, dim, 1)
         refused('E_ARG', x.cumsum, x, dim)
         refused('E_ARG', x.softmax, x, dim)
         refused('E_ARG', x.transpose, x, dim, 1)
      end
      for _, i in ipairs { 0, 4, -4, unpack(bad_numbers) } do
         refused('E_ARG', x.at, x, 1, i)
         refused('E_ARG', x.select, x, 2, i)
      end
      refused('E_ARG', x.at, x, 1)
      refused('E_ARG', x.at, x, 1, 1, 1)
      refused('E_ARG', x.sum, x, { 1, 1 })
      refused('E_ARG', x.sum, x, {})
      refused('E_ARG', x.sum, x, 1, 1)
   end)
end)

describe('sizes', function()
   it('refuses what is no size', function()
      for _, v in ipairs { -1, unpack(bad_numbers) } do
         if type(v) ~= 'table' then
            refused('E_ARG', tide.zeros, v)
         end
         refused('E_ARG', tide.zeros, { 2, v })
         refused('E_ARG', tide.eye, v)
      end
      refused('E_ARG', tide.zeros, { 1, 1, 1, 1, 1, 1, 1, 1, 1 })
      refused('E_ARG', tide.zeros)
   end)

   it('refuses a total that overflows', function()
      -- none at all, of however many: strides that would overflow are never looked at
      assert.same({ 0, 2^53, 2^53 }, tide.zeros({ 0, 2^53, 2^53 }).shape)
      local ok, err = pcall(tide.empty, { 2^30, 2^30, 2^30 })
      assert.is_false(ok)
      assert.is_true(err.code == 'E_SHAPE' or err.code == 'E_NOMEM', err.code)
   end)

   it('takes sizes as list or numbers, one of them open', function()
      local x = tide.arange(12)
      assert.same({ 3, 4 }, x:reshape(3, 4).shape)
      assert.same({ 3, 4 }, x:reshape({ 3, -1 }).shape)
      assert.same({}, tide.ones({ 1 }):reshape({}).shape)
      refused('E_ARG', x.reshape, x)
      refused('E_ARG', x.reshape, x, { 3 }, 4)
      refused('E_ARG', x.reshape, x, 1, 1, 1, 1, 1, 1, 1, 12, 1)
      assert.same({ 4, 3 }, tide.ones({ 1, 3 }):expand(4, -1).shape)
      refused('E_ARG', x.expand, x, -1, 12)
   end)

   it('splits and chunks completely', function()
      local x = tide.arange(7)
      local parts = x:split(3)
      assert.same({ { 0, 1, 2 }, { 3, 4, 5 }, { 6 } },
         { parts[1]:tolist(), parts[2]:tolist(), parts[3]:tolist() })
      assert.same({ 5 }, x:split({ 2, 5 })[2].shape)
      refused('E_ARG', x.split, x, { 2, 2 })
      refused('E_ARG', x.split, x, 0)
      refused('E_ARG', x.chunk, x, 2)
      assert.equal(7, #x:chunk(7))
   end)
end)

describe('options', function()
   it('refuses unknown keys and values', function()
      refused('E_ARG', tide.zeros, { 2 }, { dtyp = 'f32' })
      refused('E_ARG', tide.zeros, { 2 }, { dtype = 'float' })
      refused('E_ARG', tide.zeros, { 2 }, { device = 'gpu' })
      refused('E_ARG', tide.zeros, { 2 }, { requires_grad = 1 })
      refused('E_ARG', tide.zeros, { 2 }, 'f32')
      refused('E_ARG', tide.rand, { 2 }, { dtype = 'i64' })
   end)

   it('checks option values of ops', function()
      local q = tide.ones { 1, 2, 1, 8 }
      refused('E_ARG', tide.attention, q, q, q, { casual = true })
      refused('E_ARG', tide.attention, q, q, q, { window = -2 })
      refused('E_ARG', tide.attention, q, q, q, { scale = 0 / 0 })
      refused('E_ARG', tide.attention, q, q, q, { scale = 0 })
      refused('E_ARG', tide.attention, q, q, q, { q_index = 3 })
      local logits, ids = tide.zeros { 2, 3 }, tide.zeros({ 2 }, { dtype = 'i64' })
      refused('E_ARG', tide.cross_entropy, logits, ids, { reduction = 'avg' })
      refused('E_ARG', tide.cross_entropy, logits, ids, { label_smoothing = 2 })
   end)

   it('leaves nothing over from the call before', function()
      local q = tide.rand { 1, 4, 1, 8 }
      local plain = tide.attention(q, q, q)
      tide.attention(q, q, q, { causal = true, window = 1, softcap = 5, scale = 3 })
      assert.is_true(plain:equal(tide.attention(q, q, q)))
   end)
end)

describe('numbers as operands', function()
   it('work on either side and keep the dtype that can hold them', function()
      local x = tide.tensor { 1, 2, 4 }
      assert.same({ 2, 3, 5 }, (x + 1):tolist())
      assert.same({ 0, -1, -3 }, (1 - x):tolist())
      assert.same({ 8, 4, 2 }, (8 / x):tolist())
      assert.same({ 0.5, 1, 2 }, (x / 2):tolist())
      assert.same({ 2, 4, 16 }, (2 ^ x):tolist())
      assert.same({ 1, 4, 16 }, (x ^ 2):tolist())
      assert.same({ true, false, false }, x:lt(2):tolist())
      local i = tide.tensor({ 1, 2 }, { dtype = 'i64' })
      assert.equal('i64', (i + 1).dtype)
      assert.equal('f32', (i + 0.5).dtype)
      assert.same({ 1.5, 2.5 }, (i + 0.5):tolist())
      assert.equal('f32', (i / 2).dtype)
      local u = tide.tensor({ 200 }, { dtype = 'u8' })
      assert.same({ 500 }, (u + 300):tolist())
      assert.same({ 199 }, (u + -1):tolist())
   end)

   it('divides exactly', function()
      local x = tide.tensor({ 3, 7, 11 }, { dtype = 'f64' })
      assert.same({ 3 / 10, 7 / 10, 11 / 10 }, (x / 10):tolist())
      assert.same({ 1 / 0, 1 / 0, 1 / 0 }, (x / 0):tolist())
   end)

   it('refuses values an integer dtype cannot hold', function()
      local u = tide.zeros({ 2 }, { dtype = 'u8' })
      for _, v in ipairs { 256, -1, 0.5, 0 / 0, 1 / 0 } do
         refused('E_ARG', u.fill_, u, v)
         refused('E_ARG', tide.full, { 2 }, v, { dtype = 'u8' })
         refused('E_ARG', tide.tensor, { v }, { dtype = 'u8' })
      end
      refused('E_ARG', tide.arange, 0, 2, 0.5, { dtype = 'i64' })
   end)
end)

describe('lists', function()
   it('become tensors and come back', function()
      assert.same({ { 1, 2 }, { 3, 4 } }, tide.tensor({ { 1, 2 }, { 3, 4 } }):tolist())
      assert.equal(2.5, tide.tensor(2.5):tolist())
      assert.same({}, tide.tensor({}):tolist())
      assert.same({ true, false }, tide.tensor({ true, false }):tolist())
      for _, dtype in ipairs { 'f32', 'f64', 'bf16', 'f16', 'i64', 'i32', 'u8' } do
         local t = tide.tensor({ 1, 2, 3 }, { dtype = dtype })
         assert.equal(dtype, t.dtype)
         assert.same({ 1, 2, 3 }, t:tolist())
      end
   end)

   it('refuses ragged and mixed ones', function()
      refused('E_ARG', tide.tensor, { { 1, 2 }, { 3 } })
      refused('E_ARG', tide.tensor, { { 1 }, 2 })
      refused('E_ARG', tide.tensor, { 1, 'a' })
      refused('E_ARG', tide.tensor, 'a')
      refused('E_ARG', tide.tensor)
      refused('E_ARG', tide.tensor, { 1, nil, 3, {} })
      refused('E_ARG', tide.cat, { tide.ones { 1 }, 3 })
      refused('E_ARG', tide.cat, {})
   end)

   it('keep large integers exact or say so', function()
      local big = tide.from_string('\255\255\255\255\255\255\255\127', { 1 }, { dtype = 'i64' })
      refused('E_UNSUPPORTED', big.item, big)
      refused('E_UNSUPPORTED', big.tolist, big)
      assert.equal('\255\255\255\255\255\255\255\127', big:to_string_bytes())
      local i = tide.tensor({ 2^53 - 1 }, { dtype = 'i64' })
      assert.equal(2^53 - 1, i:item())
   end)
end)
