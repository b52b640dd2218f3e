-- data: byte tokenizer, token sources, folders of text, order-2 entropy.

local bytes = require 'tide.tokenizer.bytes'
local each = require 'tide.util.each'
local entropy = require 'tide.data.entropy'
local survey = require 'tide.data.survey'
local text = require 'tide.data.text'
local tokens = require 'tide.data.tokens'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write
local raised = require 'spec.support.raised'

-- A text as ids of two bytes.
local function packed(s) return bytes:encode(s, { width = 2 }) end

describe('data.bytes', function()
   it('returns every byte', function()
      local all = {}
      for i = 0, 255 do all[i + 1] = string.char(i) end
      local s = table.concat(all)
      assert.equal(s, bytes:decode(bytes:encode(s)))
      local encoded = packed(s)
      assert.equal(512, #encoded)
      for i = 0, 255 do
         assert.same({ i, 0 }, { encoded:byte(2 * i + 1, 2 * i + 2) })
      end
      assert.equal('a\0\0\0\0\0\0\0', bytes:encode('a\0', { width = 4 }))
   end)

   it('is a tokenizer: places, lists of texts, pieces, no special tokens', function()
      local ids, places = bytes:encode('\255a', { offsets = true, special = false,
         add_special_tokens = true, invalid = 'replace' })
      assert.same({ 255, 97 }, ids)
      assert.same({ { 1, 1 }, { 2, 2 } }, places)
      assert.same({ { {}, { 98 } }, { {}, { { 1, 1 } } } }, { bytes:encode_batch({ '', 'b' },
         { offsets = true, threads = 2 }) })
      assert.same({ 'b\0' }, bytes:encode_batch({ 'b' }, { width = 2 }))
      assert.same({ 97, 'a', 255 }, { bytes:id 'a', bytes:token(97), bytes:id '\255' })
      assert.is_nil(bytes:id 'ab' or bytes:id '' or bytes:token(256) or bytes:token(-1))
      assert.is_nil(bytes:first_invalid '\255' or bytes.bos)
      assert.same({}, bytes:special_texts())
   end)

   it('has all that a tokenizer of a file has', function()
      local tok = tmp.with(function(dir)
         write(dir .. '/tokenizer.json', tide.json.encode { model = { type = 'WordLevel',
            vocab = { a = 0 }, unk_token = 'a' } })
         return tide.tokenizer.load(dir)
      end)
      for name, v in each(getmetatable(tok)) do
         assert.equal(type(v), type(bytes[name]), name)
      end
      for _, name in ipairs { 'vocab_size', 'special', 'config', 'added', 'is_special' } do
         assert.equal(type(tok[name]), type(bytes[name]), name)
      end
   end)

   it('gives no text for ids that are no bytes, and refuses what is no id', function()
      assert.equal('E_ARG', raised(bytes.decode, bytes, { -1 }).code)
      assert.equal('E_ARG', raised(bytes.decode, bytes, { 0.5 }).code)
      assert.equal('ab', bytes:decode { 97, 256, 98, 257, 300 })
   end)

   it('takes the spellings of 0.1, functions of a text or of ids', function()
      assert.same({ 'a\0b\0', 'ab', { 97, 98 } }, { bytes.encode 'ab', bytes.decode { 97, 98 },
         bytes.ids 'ab' })
      assert.equal('E_ARG', raised(bytes.encode, 5).code)
   end)
end)

describe('data.tokens', function()
   it('reads memory, slices and joins at any place', function()
      local a = tokens.memory(packed 'hello ', 2)
      local b = tokens.slice(tokens.memory(packed 'xxworldxx', 2), 2, 5)
      local j = tokens.join { a, b }
      assert.equal(11, j.count)
      for start = 0, 10 do
         for n = 0, 11 - start do
            assert.equal(packed(('hello world'):sub(start + 1, start + n)), j:raw(start, n))
         end
      end
      assert.equal('E_ARG', raised(j.raw, j, 5, 7).code)
      assert.equal('E_ARG', raised(j.raw, j, -1, 2).code)
      assert.equal('E_ARG', raised(j.raw, j, 0.5, 2).code)
   end)

   it('reads raw files and files with a header', function()
      tmp.with(function(dir)
         write(dir .. '/a.bin', packed 'abcdef')
         local f = tokens.file(dir .. '/a.bin')
         assert.equal(6, f.count)
         assert.equal(packed 'cd', f:raw(2, 2))
         f:close()
         local head = string.char(0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 3, 0, 0, 0)
         head = head .. ('\0'):rep(1024 - #head)
         write(dir .. '/b.bin', head .. packed 'xyz')
         f = tokens.file(dir .. '/b.bin')
         assert.equal(3, f.count)
         assert.equal(packed 'yz', f:raw(1, 2))
         f:close()
         write(dir .. '/c.bin', head .. packed 'xy')
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
         assert.equal(packed(('b'):rep(50)) .. '\1\1', c.val:raw(0, 51))
      end)
   end)

   it('with a tokenizer cuts behind a character, not in it', function()
      tmp.with(function(dir)
         local train = require 'tide.tokenizer.train'
         train.save(train.bpe({ 'a' }, { vocab_size = 257 }), dir .. '/tok')    -- bytes as they are
         local tokenizer = require('tide').tokenizer.load(dir .. '/tok')
         for before, cut in pairs { [1138] = 1141, [1139] = 1142, [1140] = 1143, [1141] = 1141 } do
            write(dir .. '/x.txt', ('a'):rep(before) .. '€' .. ('b'):rep(1198 - before))
            local c = text.load(dir .. '/x.txt', { tokenizer = tokenizer })
            assert.equal(cut, c.train.count)
            assert.equal(1201 - cut + 1, c.val.count)           -- and the end of the file
         end
      end)
   end)

   it('takes a file, and .bin files when there is no text', function()
      tmp.with(function(dir)
         write(dir .. '/x.dat', ('x'):rep(100))
         assert.equal(100, text.load(dir .. '/x.dat').bytes)
         write(dir .. '/t.bin', packed(('y'):rep(1000)))
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
         write(dir .. '/corpus.bin', 'x')                       -- Megatron names data without it
         assert.matches('no such file or folder; give ' .. dir .. '/corpus.bin',
            raised(text.load, dir .. '/corpus').message, 1, true)
         os.remove(dir .. '/corpus.bin')
         assert.matches('no text', raised(text.load, dir).message, 1, true)
         write(dir .. '/empty.txt', '')
         assert.equal('E_FORMAT', raised(text.load, dir .. '/empty.txt').code)
         assert.equal('E_ARG', raised(text.load, dir, { vla = 1 }).code)
         assert.equal('E_ARG', raised(text.load, {}).code)
      end)
   end)
end)

-- The bytes of a list of ids of `width` bytes.
local function ids(width, list)
   local out = {}
   for i, id in ipairs(list) do
      out[i] = string.char(id % 256, math.floor(id / 256) % 256) .. (width == 4
         and string.char(math.floor(id / 65536) % 256, 0) or '')
   end
   return table.concat(out)
end

local function some(n, most)
   local list = {}
   for i = 1, n do list[i] = (i * 7919 + i * i) % most end
   return list
end

describe('data of the wrong kind', function()
   it('is refused where text is expected, with what it is', function()
      tmp.with(function(dir)
         for name, case in pairs {
            ['a.out'] = { '\127ELF\2\1\1\0', 'it is a program' },
            ['x.idx'] = { 'MMIDIDX\0\0\1', 'the index of a Megatron data set; give its .bin' },
            ['x.txt.gz'] = { '\31\139\8\0', 'compressed with gzip' },
            ['u16.txt'] = { '\255\254a\0b\0', 'UTF-16; convert it to UTF-8' },
            ['random.txt'] = { 'abc\0def',
               'random.txt is not text, byte 4 of it is 0; binary = true' },
         } do
            write(dir .. '/' .. name, case[1] .. ('x'):rep(400))
            local e = raised(text.load, dir .. '/' .. name)
            assert.equal('E_FORMAT', e.code)
            assert.matches(case[2], e.message, 1, true)
            assert.equal('text', text.load(dir .. '/' .. name, { binary = true }).kind)
         end
      end)
   end)

   it('is refused where ids of 4 bytes would be read as twice as many of 2', function()
      tmp.with(function(dir)
         local path = dir .. '/x.bin'
         for _, most in ipairs { 200, 50000, 128256 } do
            write(path, ids(4, some(500, most)))
            local e = raised(tokens.file, path)
            assert.equal('E_FORMAT', e.code)
            assert.matches('every second id of 2 bytes is 0 or tiny', e.message, 1, true)
            assert.equal(500, tokens.file(path, { width = 4 }).count)
            assert.equal(1000, tokens.file(path, { width = 2 }).count)
         end
         for _, most in ipairs { 3, 200, 50000 } do
            write(path, ids(2, some(500, most)))
            assert.equal(500, tokens.file(path).count)
         end
      end)
   end)

   it('is read as the index of a Megatron data set says', function()
      tmp.with(function(dir)
         local path = dir .. '/x.bin'
         local function u64(n) return string.char(n % 256, math.floor(n / 256)) .. ('\0'):rep(6) end
         -- One sequence of n ids, and one document of it.
         local function index(code, n, more)
            write(dir .. '/x.idx', 'MMIDIDX\0\0' .. u64(1) .. string.char(code) .. u64(1) .. u64(2)
               .. u64(n):sub(1, 4) .. u64(0) .. u64(0) .. u64(1) .. (more or ''))
         end
         write(path, ids(4, some(500, 200)))
         index(4, 499)
         assert.matches('x.bin has 500 tokens, its index says 499',
            raised(tokens.file, path).message, 1, true)
         index(4, 500, 'x')
         assert.matches('x.idx has 63 bytes; its 1 sequences and 2 entries',
            raised(tokens.file, path).message, 1, true)
         index(4, 500)
         assert.equal(4, tokens.file(path).width)
         assert.matches('says that ids have 4 bytes, not 2', raised(tokens.file, path,
            { width = 2 }).message, 1, true)
         index(5, 500)
         assert.equal('E_UNSUPPORTED', raised(tokens.file, path).code)
         index(8, 1000)
         assert.equal(2, tokens.file(path).width)
         for cut, want in pairs { [''] = 'x.idx is empty',
            ['MMIDIDX\0\0\1'] = 'x.idx has 10 bytes; the head of an index has 34' } do
            write(dir .. '/x.idx', cut)
            assert.matches(want, raised(tokens.file, path, { width = 4 }).message, 1, true)
         end
         write(dir .. '/x.idx', 'an index of something else')
         assert.matches('as if ids had 4 bytes', raised(tokens.file, path).message, 1, true)
         assert.equal(4, tokens.file(path, { width = 4 }).width)
      end)
   end)
end)

describe('data.survey', function()
   it('finds the largest id', function()
      for _, width in ipairs { 2, 4 } do
         local list = some(3000, 60000)
         local want, at = -1, nil
         for i, id in ipairs(list) do
            if id > want then want, at = id, i - 1 end
         end
         local id, place = survey.largest(tokens.memory(ids(width, list), width))
         assert.same({ want, at }, { id, place })
      end
      assert.is_nil(survey.largest(tokens.memory('', 2)))
   end)

   it('refuses ids that a vocabulary does not have', function()
      local source = tokens.memory(ids(2, { 5, 99, 100, 3 }), 2)
      survey.check('op', 'train', source, 101)
      local e = raised(survey.check, 'op', 'train', source, 100)
      assert.equal('E_ARG', e.code)
      assert.matches("argument 'train': token 2 is id 100; the model's vocab_size is 100 (--vocab)",
         e.message, 1, true)
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
