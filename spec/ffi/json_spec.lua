-- tide.ffi.json: values come out as Lua people expect, and go back without loss.

local json = require 'tide.ffi.json'
local ffi = require 'ffi'

local function code_of(fn, ...)
   local ok, err = pcall(fn, ...)
   assert.is_false(ok)
   return err.code, tostring(err)
end

describe('json.decode', function()
   it('gives Lua values', function()
      local v = json.decode '{"a": [1, 2.5, "x", true, false, null], "b": {}, "c": -0.125e2}'
      assert.equal(1, v.a[1])
      assert.equal(2.5, v.a[2])
      assert.equal('x', v.a[3])
      assert.is_true(v.a[4])
      assert.is_false(v.a[5])
      assert.equal(json.null, v.a[6])
      assert.equal(6, #v.a)
      assert.is_nil(next(v.b))
      assert.equal(-12.5, v.c)
   end)

   it('keeps every digit of integers', function()
      assert.equal(2^53, json.decode '9007199254740992')
      local big = json.decode '9007199254740993'
      assert.equal('cdata', type(big))
      assert.is_true(big == ffi.new('int64_t', 9007199254740993LL))
      assert.equal('9007199254740993', json.encode(big))
      assert.equal('-9223372036854775808', json.encode(json.decode '-9223372036854775808'))
      assert.equal(1e30, json.decode '1000000000000000019884624838656')
   end)

   it('names the place of a mistake', function()
      local code, text = code_of(json.decode, '{\n "a": tru}', { name = 'config.json' })
      assert.equal('E_FORMAT', code)
      assert.truthy(text:find('config.json: line 2, column 7: expected a value', 1, true))
      assert.equal('E_ARG', (code_of(json.decode, nil)))
      assert.equal('E_ARG', (code_of(json.decode, '[1,2,3]', { limit = 3 })))
      assert.equal('E_ARG', (code_of(json.decode, '1', { nam = 'x' })))
   end)
end)

describe('json.encode', function()
   it('sorts keys and tells arrays from objects', function()
      assert.equal('{"a":[],"b":{},"c":[1,2],"d":[[]]}', json.encode {
         d = { json.array {} }, c = { 1, 2 }, b = {}, a = json.array(),
      })
      assert.equal('null', json.encode(json.null))
      assert.equal('[\n  1,\n  {\n    "k": "v"\n  }\n]', json.encode({ 1, { k = 'v' } },
         { indent = 2 }))
   end)

   it('writes numbers that read back the same', function()
      local list = { 0, -1, 0.1, 1 / 3, 1e300, 5e-324, 2^53, -2^53, 2^60, 1e21, 123456789.125 }
      local back = json.decode(json.encode(list))
      for i, v in ipairs(list) do assert.equal(v, back[i]) end
      assert.equal('[0,-1]', json.encode { 0, -1 })
      assert.equal(-math.huge, 1 / json.decode(json.encode(-0.0)))
   end)

   it('writes a decimal point where one is asked for', function()
      local f = json.float
      assert.equal('[1.0,-3.0,0.5,1e-05,1e+300,2]',
         json.encode { f(1), f(-3), f(0.5), f(1e-5), f(1e300), 2 })
      assert.equal('[Infinity]', json.encode({ f(math.huge) }, { nonfinite = 'word' }))
      assert.equal('E_ARG', (code_of(json.float, '1')))
      assert.equal('E_ARG', (code_of(json.encode, f(0 / 0))))
   end)

   it('escapes text and brings it back', function()
      local all = {}
      for c = 0, 127 do all[#all + 1] = string.char(c) end
      local text = table.concat(all) .. 'é€😀'
      assert.equal(text, json.decode(json.encode(text)))
      assert.equal('"a\\"\\\\\\n\\u0001"', json.encode 'a"\\\n\1')
   end)

   it('refuses what JSON cannot hold, naming the place', function()
      local loop = {}
      loop.x = loop
      for _, case in ipairs {
         { { a = { 0 / 0 } }, 'a[1]' }, { { math.huge }, '[1]' }, { print, 'the value' },
         { { [1] = 1, [3] = 3 }, 'hole' }, { { 1, k = 2 }, 'key k' }, { { [true] = 1 }, 'true' },
         { { s = '\255' }, 's: byte 1' }, { loop, 'deeper' }, { { [2.5] = 1 }, '2.5' },
      } do
         local code, text = code_of(json.encode, case[1])
         assert.equal('E_ARG', code)
         assert.truthy(text:find(case[2], 1, true), text)
      end
   end)

   it('round trips a nested value', function()
      local text = '{"a":{"b":[1,{"c":[[],{}]},null,"x"]},"z":1.5}'
      assert.equal(text, json.encode(json.decode(text)))
   end)
end)

describe('infinite numbers', function()
   local list = { math.huge, -math.huge, 2.5, { a = { math.huge } } }

   it('are written in two ways, both of which are read', function()
      local object = '[{"__float__":"Infinity"},{"__float__":"-Infinity"},2.5,'
         .. '{"a":[{"__float__":"Infinity"}]}]'
      local word = '[Infinity,-Infinity,2.5,{"a":[Infinity]}]'
      assert.equal(object, json.encode(list, { nonfinite = 'object' }))
      assert.equal(word, json.encode(list, { nonfinite = 'word' }))
      for _, text in ipairs { object, word } do
         local back = json.decode(text, { nonfinite = true })
         assert.equal(math.huge, back[1])
         assert.equal(-math.huge, back[2])
         assert.equal(2.5, back[3])
         assert.equal(math.huge, back[4].a[1])
         assert.equal(word, json.encode(back, { nonfinite = 'word' }))
      end
      for _, how in ipairs { 'object', 'word' } do
         local text = json.encode({ 0 / 0 }, { nonfinite = how })
         local nan = json.decode(text, { nonfinite = true })[1]
         assert.is_true(nan ~= nan)
      end
   end)

   it('are no JSON unless the option says so', function()
      assert.equal('E_FORMAT', (code_of(json.decode, '[Infinity]')))
      assert.equal('E_ARG', (code_of(json.encode, list)))
      assert.same({ __float__ = 'Infinity' }, json.decode '{"__float__": "Infinity"}')
      assert.equal('E_ARG', (code_of(json.encode, 1, { nonfinite = true })))
      assert.equal('E_ARG', (code_of(json.decode, '1', { nonfinite = 'word' })))
   end)

   it('are objects of one key and of a word for them', function()
      for _, text in ipairs { '{"__float__":"Infinity","x":1}', '{"__float__":"inf"}',
         '{"__float__":1}', '{"__float__":["Infinity"]}' } do
         local back = json.decode(text, { nonfinite = true })
         assert.equal('table', type(back))
         assert.equal(json.encode(json.decode(text)), json.encode(back))
      end
   end)

   it('gives numbers beyond 2^53 back as the numbers that they were', function()
      for _, v in ipairs { 2^53 + 2, 1.2345678901234567e16, -2^55, 99999999999999984, 2^60, 1e17,
         1e300 } do
         local back = json.decode(json.encode { v })[1]
         assert.equal('number', type(back), json.encode { v })
         assert.equal(v, back)
      end
   end)
end)
