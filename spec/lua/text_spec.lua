-- data.text and data.survey on small folders: which files count, where validation begins, what the
-- documents are, against plain loops.

local tide = require 'tide'
local bytes = require 'tide.tokenizer.bytes'
local refused = require 'spec.support.refused'
local survey = require 'tide.data.survey'
local text = require 'tide.data.text'
local tmp = require 'spec.support.tmp'
local tokens = require 'tide.data.tokens'
local write = require('spec.support.files').write

-- A text as ids of two bytes.
local function packed(s) return bytes:encode(s, { width = 2 }) end

describe('the files of a path', function()
   it('are texts at any depth up to 32, or .bin files where there is no text', function()
      tmp.with(function(dir)
         local deep = dir
         for i = 1, 32 do
            deep = deep .. '/d'
            tmp.mkdir(deep)
            if i == 32 then write(deep .. '/x.txt', 'x') end
         end
         assert.same({ deep .. '/x.txt' }, text.files(dir))
         tmp.mkdir(deep .. '/d')
         refused('E_IO', 'folders are nested too deeply at ' .. deep .. '/d; a link', text.files,
            dir)
      end)
      tmp.with(function(dir)
         for _, name in ipairs { 'b.bin', 'Makefile', '.hidden.txt', 'c.png', 'README', 'd.lua',
            'noend' } do write(dir .. '/' .. name, 'x') end
         local list, left = text.files(dir)
         assert.same({ dir .. '/Makefile', dir .. '/README', dir .. '/d.lua' }, list)
         assert.same({ dir .. '/c.png', dir .. '/noend', dir .. '/b.bin' }, left)
         assert.same({ { dir .. '/c.png' }, {} }, { text.files(dir .. '/c.png') })
         assert.same(left, text.load(dir).left_out)
         for _, name in ipairs { 'Makefile', 'README', 'd.lua' } do
            os.remove(dir .. '/' .. name)
         end
         assert.same({ dir .. '/b.bin' }, text.files(dir))
         os.rename(dir .. '/b.bin', dir .. '/B.TXT')
         assert.same({ dir .. '/B.TXT' }, text.files(dir))
         os.remove(dir .. '/B.TXT')
         refused('E_IO', 'no text or .bin file below ' .. dir, text.files, dir)
         refused('E_IO', 'none: there is no such file or folder', text.files, dir .. '/none')
         refused('E_IO', 'cannot read /dev/null: it is not a regular file', text.files, '/dev/null')
      end)
   end)
end)

describe('a corpus of text', function()
   -- What the parts of files of these texts must be, as byte tokens.
   local function parts(list, share)
      local train, val, cu, val_cu = '', '', { 0 }, { 0 }
      for _, s in ipairs(list) do
         local held = math.floor(#s * share)
         if held < 16 then held = 0 end
         local head, tail = s:sub(1, #s - held), held > 0 and s:sub(-held) or ''
         if head ~= '' then
            train = train .. packed(head) .. (tail == '' and '\1\1' or '')
            cu[#cu + 1] = #train / 2
         end
         if tail ~= '' then
            val = val .. packed(tail) .. '\1\1'
            val_cu[#val_cu + 1] = #val / 2
         end
      end
      return { train, val, cu, val_cu }
   end

   it('is the heads and tails of its files, which end with the id of the end', function()
      tmp.with(function(dir)
         for _, row in ipairs { { 0.05, { 319, 320, 0, 5, 400 } }, { 0.5, { 31, 32, 33, 0 } },
            { 0, { 100, 1 } } } do
            local list, paths = {}, {}
            for i, n in ipairs(row[2]) do
               list[i] = ('abcdefghij'):rep(40):sub(i, i + n - 1)
               paths[i] = dir .. '/' .. i .. '.txt'
               write(paths[i], list[i])
            end
            local c = text.load(paths, { val = row[1] })
            local function all(s) return s:raw(0, s.count) end
            assert.same(parts(list, row[1]), { all(c.train), all(c.val), c.cu, c.val_cu })
            assert.same({ 'text', #list, #table.concat(list) }, { c.kind, c.files, c.bytes })
         end
      end)
   end)

   it('is cut at no place within a character', function()
      tmp.with(function(dir)
         local train = require 'tide.tokenizer.train'
         train.save(train.bpe({ 'a' }, { vocab_size = 257 }), dir .. '/tok')
         local tokenizer = tide.tokenizer.load(dir .. '/tok')
         for _, char in ipairs { '\195\128', '\195\191', '\226\130\172', '\240\159\191\191',
            'x' } do
            for before = 296, 304 do
               write(dir .. '/x.txt', ('a'):rep(before) .. char .. ('b'):rep(320 - before - #char))
               local cut = (before < 304 and before + #char > 304) and before + #char or 304
               local c = text.load(dir .. '/x.txt', { tokenizer = tokenizer })
               assert.same({ cut, 320 - cut + 1 }, { c.train.count, c.val.count })
            end
         end
         write(dir .. '/x.txt', 'tiny')
         assert.equal(5, text.load(dir .. '/x.txt', { tokenizer = tokenizer }).train.count)
      end)
   end)

   it('of ids takes the end of each file, and none of tiny ones', function()
      tmp.with(function(dir)
         local lengths, width = { 31, 32, 100 }, 2
         for i, n in ipairs(lengths) do write(dir .. '/' .. i .. '.bin', ('ab'):rep(n)) end
         local c = text.load(dir, { val = 0.5 })
         assert.same({ 31 + 16 + 50, 16 + 50, width }, { c.train.count, c.val.count, c.val.width })
         assert.equal(('ab'):rep(66), c.val:raw(0, 66))
         c = text.load(dir .. '/1.bin', { val = 0.5 })
         assert.same({ 31, 0 }, { c.train.count, c.val.count })
         assert.equal('0:2:', tokens.fingerprint(c.val))
         c = text.load({ dir .. '/2.bin' }, { val = 0, width = 4 })
         assert.same({ 16, 4 }, { c.train.count, c.train.width })
      end)
   end)
end)

describe('a survey', function()
   it('names the first of the largest ids, and what a vocabulary lacks', function()
      assert.same({ 7, 1 }, { survey.largest(tokens.memory('\5\7\7\1', 1)) })
      local large = tokens.memory(('\7'):rep(2 ^ 20 + 9), 1)
      assert.same({ 7, 0 }, { survey.largest(large) })
      refused('E_ARG', "argument 'train': token 1 is id 7; the model's vocab_size is 7 (--vocab), "
         .. 'so ids are 0 to 6', survey.check, 'spec', 'train', tokens.memory('\5\7', 1), 7)
      survey.check('spec', 'train', tokens.memory('\5\7', 1), 8)
      survey.check('spec', 'train', tokens.memory('', 1), 1)
   end)
end)
