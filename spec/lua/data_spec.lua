-- data: byte tokenizer, token sources, folders of text, order-2 entropy.

local bytes = require 'tide.data.bytes'
local entropy = require 'tide.data.entropy'
local text = require 'tide.data.text'
local tokens = require 'tide.data.tokens'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write
local raised = require 'spec.support.raised'

describe('data.bytes', function()
   it('returns every byte', function()
      local all = {}
      for i = 0, 255 do all[i + 1] = string.char(i) end
      local s = table.concat(all)
      assert.equal(s, bytes.decode(bytes.ids(s)))
      local encoded = bytes.encode(s)
      assert.equal(512, #encoded)
      for i = 0, 255 do
         assert.same({ i, 0 }, { encoded:byte(2 * i + 1, 2 * i + 2) })
      end
      assert.equal('\1\1', bytes.id(bytes.eos))
   end)

   it('refuses ids that are none', function()
      assert.equal('E_ARG', raised(bytes.decode, { 258 }).code)
      assert.equal('E_ARG', raised(bytes.decode, { 0.5 }).code)
      assert.equal('ab', bytes.decode { 97, 256, 98, 257 })
   end)
end)

describe('data.tokens', function()
   it('reads memory, slices and joins at any place', function()
      local a = tokens.memory(bytes.encode 'hello ', 2)
      local b = tokens.slice(tokens.memory(bytes.encode 'xxworldxx', 2), 2, 5)
      local j = tokens.join { a, b }
      assert.equal(11, j.count)
      for start = 0, 10 do
         for n = 0, 11 - start do
            assert.equal(bytes.encode(('hello world'):sub(start + 1, start + n)), j:raw(start, n))
         end
      end
      assert.equal('E_ARG', raised(j.raw, j, 5, 7).code)
      assert.equal('E_ARG', raised(j.raw, j, -1, 2).code)
      assert.equal('E_ARG', raised(j.raw, j, 0.5, 2).code)
   end)

   it('reads raw files and files with a header', function()
      tmp.with(function(dir)
         write(dir .. '/a.bin', bytes.encode 'abcdef')
         local f = tokens.file(dir .. '/a.bin')
         assert.equal(6, f.count)
         assert.equal(bytes.encode 'cd', f:raw(2, 2))
         f:close()
         local head = string.char(0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 3, 0, 0, 0)
         head = head .. ('\0'):rep(1024 - #head)
         write(dir .. '/b.bin', head .. bytes.encode 'xyz')
         f = tokens.file(dir .. '/b.bin')
         assert.equal(3, f.count)
         assert.equal(bytes.encode 'yz', f:raw(1, 2))
         f:close()
         write(dir .. '/c.bin', head .. bytes.encode 'xy')
         assert.equal('E_FORMAT', raised(tokens.file, dir .. '/c.bin').code)
      end)
   end)

   it('refuses files that are not there, empty or cut', function()
      tmp.with(function(dir)
         assert.equal('E_IO', raised(tokens.file, dir .. '/none.bin').code)
         assert.equal('E_FORMAT', raised(tokens.file, dir).code)
         write(dir .. '/a.bin', '')
         assert.equal('E_FORMAT', raised(tokens.file, dir .. '/a.bin').code)
         write(dir .. '/a.bin', 'abc')
         assert.matches('no multiple', raised(tokens.file, dir .. '/a.bin').message, 1, true)
         assert.equal('E_ARG', raised(tokens.file, dir .. '/a.bin', { width = 3 }).code)
      end)
   end)
end)

describe('data.text', function()
   it('takes the last part of every file for validation', function()
      tmp.with(function(dir)
         tmp.mkdir(dir .. '/sub')
         write(dir .. '/b.txt', ('b'):rep(1000))
         write(dir .. '/sub/a.lua', ('a'):rep(500))
         write(dir .. '/image.png', 'no text')
         write(dir .. '/.hidden.txt', 'no')
         write(dir .. '/tiny.md', 'tiny')
         local c = text.load(dir)
         assert.equal(3, c.files)
         assert.equal(1504, c.bytes)
         assert.same({ ('b'):rep(950), ('a'):rep(475), 'tiny' }, c.raw)
         assert.equal(950 + 475 + 4 + 1, c.train.count)
         assert.equal(50 + 1 + 25 + 1, c.val.count)
         assert.equal(bytes.encode(('b'):rep(50)) .. '\1\1', c.val:raw(0, 51))
      end)
   end)

   it('takes a file, and .bin files when there is no text', function()
      tmp.with(function(dir)
         write(dir .. '/x.dat', ('x'):rep(100))
         assert.equal(100, text.load(dir .. '/x.dat').bytes)
         write(dir .. '/t.bin', bytes.encode(('y'):rep(1000)))
         local c = text.load(dir)
         assert.equal('tokens', c.kind)
         assert.equal(950, c.train.count)
         assert.equal(50, c.val.count)
         assert.equal('E_ARG', raised(text.load, { dir .. '/x.dat', dir .. '/t.bin' }).code)
      end)
   end)

   it('says what is wrong with the data', function()
      tmp.with(function(dir)
         assert.equal('E_IO', raised(text.load, dir .. '/none').code)
         assert.matches('no text', raised(text.load, dir).message, 1, true)
         write(dir .. '/empty.txt', '')
         assert.equal('E_FORMAT', raised(text.load, dir .. '/empty.txt').code)
         assert.equal('E_ARG', raised(text.load, dir, { vla = 1 }).code)
         assert.equal('E_ARG', raised(text.load, {}).code)
      end)
   end)
end)

describe('data.tokens.fingerprint', function()
   it('is of count, width and every token of a small source', function()
      local a = tokens.fingerprint(tokens.memory(('ab'):rep(50), 2))
      assert.matches('^50:2:%x+$', a)
      assert.equal(a, tokens.fingerprint(tokens.memory(('ab'):rep(50), 2)))
      assert.is_true(a ~= tokens.fingerprint(tokens.memory(('ab'):rep(49) .. 'aa', 2)))
      assert.is_true(a ~= tokens.fingerprint(tokens.memory(('ab'):rep(50), 1)))
      assert.equal('0:2:', tokens.fingerprint(tokens.memory('', 2)))
   end)

   it('does not depend on how the source is put together', function()
      local whole = tokens.memory(('abcd'):rep(700000), 2)
      local n = whole.count
      local joined = tokens.join {
         tokens.slice(whole, 0, 1000), tokens.slice(whole, 1000, n - 1000),
      }
      assert.equal(tokens.fingerprint(whole), tokens.fingerprint(joined))
   end)

   it('reads parts of a large source', function()
      local read = 0
      local large = { count = 2^30, width = 4, raw = function(_, start, n)
         assert.is_true(start + n <= 2^30)
         read = read + n * 4
         return tostring(start)
      end }
      assert.matches('^1073741824:4:%x+$', tokens.fingerprint(large))
      assert.equal(2^26, read)
   end)
end)

describe('data.entropy', function()
   it('agrees with a count by hand', function()
      -- after ab: c twice, d once; after every other pair one continuation
      local s = { 'abc', 'abc', 'abd' }
      local want = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
      assert.is_true(math.abs(entropy.order2(s) - want) < 1e-12)
      assert.equal(0, entropy.order2 { 'abcabcabcabc' })
      assert.is_nil(entropy.order2 { 'ab' })
   end)
end)
