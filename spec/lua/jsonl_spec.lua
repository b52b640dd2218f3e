-- What the readers of JSON Lines, of Megatron's files and of kept ids say of each thing that may be
-- wrong, message by message.

local tide = require 'tide'
local bytes = require 'tide.tokenizer.bytes'
local choices = require 'tide.data.choices'
local encoder = require 'tide.data.encoder'
local err = require 'tide.util.err'
local files = require 'spec.support.files'
local fs = require 'tide.util.fs'
local jsonl = require 'tide.data.jsonl'
local little = require 'tide.util.little'
local raised = require 'spec.support.raised'
local refused = require 'spec.support.refused'
local tmp = require 'spec.support.tmp'

local null = tide.json.null

-- Places, records and problems of a file of this text.
local function read(text)
   local list = {}
   tmp.with(function(dir)
      files.write(dir .. '/a', text)
      jsonl.each(dir .. '/a', function(t, place, problem)
         list[#list + 1] = { place:match '/a, (.*)$',
            t and table.concat(tide.json.keys(t), ' ') .. tide.json.encode(t) or false,
            problem or false }
      end)
   end)
   return list
end

describe('a file of JSON Lines', function()
   local object = 'expected an object { .. }'

   it('gives each line its number, its record or what is wrong, the last one too', function()
      assert.same({ { 'line 1', 'a{"a":1}', false },
         { 'line 3', false, 'column 6: the text ends before the value' },
         { 'line 4', false, object }, { 'line 5', false, object }, { 'line 6', false, object } },
         read '{"a":1}\n \n{"a":\n[1]\nnull\n5')
      assert.same({ { 'line 1', false, object }, { 'line 2', 'b a{"a":1,"b":2}', false } },
         read '5\n{"b":2,"a":1}\n')
      assert.same({}, read '')
      for _, n in ipairs { 2 ^ 16 - 12, 2 ^ 16 - 11, 2 ^ 16 - 10, 2 ^ 17, 3 * 2 ^ 16 } do
         local long = ('{"a":"%s"}'):format(('x'):rep(n))
         assert.same({ { 'line 1', 'a' .. long, false }, { 'line 2', 'b{"b":1}', false },
            { 'line 3', 'a' .. long, false } }, read(long .. '\n{"b":1}\n' .. long))
      end
   end)

   it('may begin with a byte order mark', function()
      assert.same({ { 'line 1', 'a{"a":1}', false }, { 'line 2', 'b{"b":2}', false } },
         read '\239\187\191{"a":1}\r\n{"b":2}\r\n')
      assert.same({ { 'record 1', 'a{"a":1}', false } }, read '\239\187\191[{"a":1}]')
   end)

   it('may be one list, whose records have numbers', function()
      assert.same({ { 'record 1', 'z a{"a":2,"z":1}', false }, { 'record 2', false, object },
         { 'record 3', false, object }, { 'record 4', false, object },
         { 'record 5', 'b{"b":3}', false } }, read ' [{"z":1,"a":2}, 5, null, [1], {"b":3}]')
      refused('E_FORMAT', 'a: line 1, column ', read, '[{"a":1}, ')
   end)

   it('that does not exist is refused, and errors of the callback pass through', function()
      tmp.with(function(dir)
         refused('E_IO', ('cannot read %s/b: there is no such file'):format(dir), jsonl.each,
            dir .. '/b', print)
         refused('E_IO', ('cannot read %s: it is not a regular file'):format(dir), jsonl.each, dir,
            print)
         files.write(dir .. '/a', '{}\n')
         local e = raised(jsonl.each, dir .. '/a', function() tide.zeros 'x' end)
         assert.equal('E_ARG', e.code)
      end)
      assert.same({ 'E_ARG' }, { raised(jsonl._try, tide.zeros, 'x').code })
      assert.same({ false, 'text' }, { pcall(jsonl._try, error, 'text', 0) })
      assert.same({ nil, 'a: expected b, got nothing' },
         { jsonl._try(jsonl._wrong, 'a', 'b', nil) })
      for shown, v in pairs { null = null, ['"x"'] = 'x', ['a list'] = tide.json.array {},
         ['an object'] = { a = 1 }, ['5'] = 5, ['true'] = true,
         ['"' .. ('y'):rep(40) .. '"'] = ('y'):rep(40),
         ['"' .. ('y'):rep(40) .. '.."'] = ('y'):rep(41) } do
         assert.equal('a: expected b, got ' .. shown, (select(2, jsonl._try(jsonl._wrong, 'a', 'b',
            v))))
      end
      assert.same({ nil, 'w: text' }, { jsonl._try(jsonl._guard, 'w: ', error, 'text', 0) })
      assert.matches("^w: argument 'shape'", (select(2, jsonl._try(jsonl._guard, 'w: ', tide.zeros,
         'x'))))
      assert.same({ nil, 'b' }, { jsonl._try(jsonl._guard, 'w: ', jsonl._broken, 'b') })
      assert.same({ 1, 2 }, { jsonl._guard('', function() return 1, 2 end) })
   end)

   it('lists the first ten broken records and counts all', function()
      tmp.with(function(dir)
         files.write(dir .. '/a', ('5\n'):rep(12) .. '{"a":1}\n')
         local bad = { count = 0 }
         local list = jsonl._records('spec', dir .. '/a', true, bad, function(t) return t.a end)
         assert.same({ { 1 }, 12, 10, dir .. '/a, line 10: ' .. object },
            { list, bad.count, #bad, bad[10] })
         refused('E_FORMAT', 'a, line 1: ' .. object .. ' (skip_bad = true', jsonl._records, 'spec',
            dir .. '/a', false, {}, function() end)
      end)
   end)

   -- skip_bad left such a record out of the data
   it('has no broken record where the memory runs out or an interrupt arrives', function()
      tmp.with(function(dir)
         files.write(dir .. '/a', '{"a":1}\n{"a":2}\n')
         local ctx, bad = require('tide.ffi.ctx').default(), { count = 0 }
         ctx:param('fail_alloc', 1)
         local ok, e = pcall(jsonl._records, 'spec', dir .. '/a', true, bad,
            function(t) return t end)
         ctx:param('fail_alloc', 0)
         assert.same({ false, 'E_NOMEM' }, { ok, err.of(e).code })
         local json = fs.io().json
         local decode = json.decode
         json.decode = function() err.raise('E_NOMEM', 'json', 'no memory') end
         e = raised(fs.read_json, 'spec', dir .. '/a')
         json.decode = decode
         assert.equal('E_NOMEM', e.code)
         for _, code in ipairs { 'E_NOMEM', 'E_INTERRUPT', 'E_DEVICE' } do
            assert.equal(code, raised(jsonl._try, jsonl._guard, 'w: ', err.raise, code, 'a',
               'b').code)
         end
         assert.equal(0, bad.count)
         assert.is_false(pcall(jsonl._try, jsonl._guard, '', error, 'not enough memory', 0))
      end)
   end)
end)

describe('a question', function()
   it('has the first field of its names, labels that match, and an answer among them', function()
      local function of(t) return choices.read(t) end
      assert.same({ question = 'q', choices = { 'a', 'b' }, answer = 1 }, of { question = null,
         query = 'q', choices = null, options = { 'a', 'b' }, answer = null, gold = 0 })
      local labelled = { text = { 'a', 'b', 'c' }, label = { 'x', 'y', 'a' } }
      for answer, want in pairs { x = 1, y = 2, a = 3, c = 3, C = 3, ['0'] = 1, ['2'] = 3 } do
         assert.equal(want, of({ question = '', choices = labelled, answer = answer }).answer,
            answer)
      end
      labelled.label = null
      assert.equal(2, of({ question = 'q', choices = labelled, answer = 'b' }).answer)
      local list = { 'a', 'b' }
      for _, answer in ipairs { -1, 2, 0.5, 'c', 'C', '2', 'AB', '', true, null } do
         assert.same({ nil, 'answer: expected an index from 0 to 1, a letter from A to B, or the '
            .. 'text of a choice, got ' .. (answer == null and 'nothing' or type(answer) == 'string'
            and ('%q'):format(answer) or tostring(answer)) },
            { of { question = 'q', choices = list, answer = answer } })
      end
      local many = {}
      for i = 1, 30 do many[i] = 'c' .. i end
      assert.matches('from 0 to 29, a letter from A to Z', (select(2, of { question = 'q',
         choices = many, answer = 30 })))
      for said, t in pairs { ['question: expected a text, got 5'] = { question = 5 },
         ['choices: expected a list of texts, got 5'] = { question = 'q', choices = 5 },
         ['options: expected at least 2, got 1'] = { question = 'q', options = { 'a' } },
         ['choices%[2%]: expected a text that is not empty, got ""'] = { question = 'q',
            choices = { 'a', '' } },
         ['choices%[1%]: expected a text that is not empty, got 5'] = { question = 'q',
            choices = { 5, 'a' } },
         ['choices.label: expected at least 2, got 1'] = { question = 'q',
            choices = { text = list, label = { 'x' } } },
         ['choices.text: expected a list of texts, got "x"'] = { question = 'q',
            choices = { text = 'x' } } } do
         assert.matches(said, (select(2, of(t))))
      end
   end)
end)

describe('a data set of Megatron', function()
   it('says which sequence or document of its index is wrong', function()
      tmp.with(function(dir)
         local w = tide.data.megatron.writer(dir .. '/s', { width = 2 })
         for _, ids in ipairs { { 1, 2, 3 }, { 4 }, { 5, 6 } } do w:add(ids) end
         assert.same({ 3, 6 }, { w:finish() })
         assert.equal(6, tide.data.tokens.file(dir .. '/s.bin').count)
         local index = files.read(dir .. '/s.idx')
         local function with(at, n, v, size)
            files.write(dir .. '/s.idx', index:sub(1, at - 1) .. little.write(v, n)
               .. index:sub(at + n, size or -1))
            return raised(tide.data.megatron.open, dir .. '/s').message
         end
         assert.matches('sequence 1 begins at byte 8, not after the one before it (6)',
            with(47 + 8, 8, 8), 1, true)
         assert.matches('document 0 begins with sequence 2, expected 0', with(71, 8, 2), 1, true)
         assert.matches('document 1 ends with sequence 9 of 3', with(71 + 16, 8, 9), 1, true)
         assert.matches('document 2 ends with sequence 4 of 3', with(71 + 24, 8, 4), 1, true)
         assert.matches('document 1 ends with sequence 0 of 3', with(71 + 16, 8, 0), 1, true)
         assert.matches('the documents have 4 tokens, the sequences 6', with(71 + 24, 8, 2), 1,
            true)
         assert.matches('has version 2; version 1 can be read', with(10, 8, 2), 1, true)
         assert.matches('holds ids of float32; uint16 and int32', with(18, 1, 7), 1, true)
         assert.matches('holds ids of dtype code 9', with(18, 1, 9), 1, true)
         assert.matches('has 102 bytes; its 2 sequences and 4 entries of documents need 90',
            with(19, 8, 2), 1, true)
         for width, most in pairs { [2] = 65535, [4] = 2 ^ 31 - 1 } do
            local v = tide.data.megatron.writer(dir .. '/t', { width = width })
            v:add { most, 0 }
            refused('E_ARG', { 'ids[2]', ('in [0, %.0f]'):format(most) }, v.add, v,
               { 1, most + 1 })
            assert.same({ 1, 2 }, { v:finish() })
            assert.equal(most, little.read(files.read(dir .. '/t.bin'), 1, width))
         end
         refused('E_ARG', { 'width', '2 or 4' }, tide.data.megatron.writer, dir .. '/u',
            { width = 3 })
      end)
   end)

   it('is not ended where bytes of it were lost, whatever the writes have said', function()
      tmp.with(function(dir)
         local w = tide.data.megatron.writer(dir .. '/s', { width = 2 })
         local file = w.file
         w.file = {
            write = function(_, text) return file:write(text:sub(1, 2)) end,
            seek = function(_, where) return file:seek(where) end,
            close = function() return file:close() end,
         }
         w:add { 1, 2 }
         refused('E_IO', { 's.bin.part has 2 of 4 bytes' }, w.finish, w)
         for _, ending in ipairs { '.bin', '.idx' } do
            assert.is_nil(io.open(dir .. '/s' .. ending))
         end
      end)
   end)
end)

describe('the encoder of a tokenizer', function()
   it('keeps ids, makes damaged ones anew, and takes two bytes while they suffice', function()
      tmp.with(function(dir)
         local calls = 0
         local tok = { vocab_size = 65536, eos = 3, hash = 'h', encode = function(_, text)
            calls = calls + 1
            return text:gsub('.', '%0\0')
         end, first_invalid = function(_, text) return text:find '\255' end }
         local e = encoder.of(tok, dir .. '/cache')
         assert.same({ 2, '\3\0', tok }, { e.width, e.eos, e.tokenizer })
         for _, text in ipairs { 'abc', '' } do
            local want = bytes:encode(text, { width = 2 })
            calls = 0
            for _ = 1, 3 do assert.equal(want, e.encode('p', text)) end
            assert.equal(1, calls)
         end
         for _, name in ipairs(fs.list('spec', dir .. '/cache')) do
            local path = dir .. '/cache/' .. name
            for _, text in ipairs { 'x', 'x' .. files.read(path):sub(2) } do
               files.write(path, text)
            end
         end
         calls = 0
         for _, text in ipairs { 'abc', '', 'abc', '' } do e.encode('p', text) end
         assert.equal(2, calls)
         refused('E_FORMAT', 'p: byte 2 is not UTF-8', e.encode, 'p', 'a\255')
         tok.hash, calls = nil, 0
         for _ = 1, 2 do e.encode('p', 'abc') end
         assert.equal(2, calls)
         tok.vocab_size = 65537
         assert.same({ 4, '\3\0\0\0' }, { encoder.of(tok).width, encoder.of(tok).eos })
         refused('E_FORMAT', 'the tokenizer has no eos_token', encoder.of, { vocab_size = 5 })
      end)
   end)
end)
