-- data.chat, jsonl, record, megatron, mixture: forms of records, masks, broken lines, index files,
-- weights.

local tide = require 'tide'
local raised = require 'spec.support.raised'
local read = require('spec.support.files').read
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

local bytes, chat, record = tide.data.bytes, tide.data.chat, tide.data.record

local blocks = tide.chat.template [[
{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}
{{ m.content }}!{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}]]

local plain = tide.chat.template([[
{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}]])

-- Files of a name -> text table in a folder of their own.
local function with_files(files, fn)
   return tmp.with(function(dir)
      for name, text in pairs(files) do write(dir .. '/' .. name, text) end
      return fn(dir)
   end)
end

-- The text of a source, with the tokens that count between brackets.
local function shown(source)
   local out, mask = {}, source:mask(0, source.count)
   for i = 1, source.count do
      local raw = source:raw(i - 1, 1)
      local id = raw:byte(1) + 256 * raw:byte(2)
      local c = id < 256 and string.char(id) or '$'
      out[i] = mask:byte(i) == 1 and '[' .. c .. ']' or c
   end
   return (table.concat(out):gsub('%]%[', ''))
end

local function load_one(text, opts)
   opts.tokenizer, opts.val = opts.tokenizer or bytes, 0
   return with_files({ ['a.jsonl'] = text }, function(dir)
      return chat.load(dir .. '/a.jsonl', opts)
   end)
end

local function mask_of(text, opts) return shown(load_one(text, opts).train) end

describe('a record', function()
   it('gives a template its names in their order, and floats as floats', function()
      local source = load_one('{"tools": [{"z": 1, "a": 2.0}], "messages": [{"role": "user", '
         .. '"content": "q"}, {"role": "assistant", "content": "x"}]}', { template =
         tide.chat.template("{{ tools | tojson }}{% for m in messages %}"
            .. "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}") }).train
      assert.matches('{"z": 1, "a": 2.0}', shown(source), 1, true)
   end)
end)

describe('data.record', function()
   local function form(text) return record.read(tide.json.decode(text, { lossless = true })) end

   it('reads the forms that people have', function()
      local two = { { role = 'user', content = 'q' }, { role = 'assistant', content = 'a' } }
      local function messages(text)
         local out = {}
         for i, m in ipairs(assert(form(text)).messages) do
            out[i] = { role = m.role, content = m.content }
         end
         return out
      end
      for _, text in ipairs {
         '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}',
         '{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}',
         '{"instruction": "q", "input": "", "output": "a"}',
         '{"prompt": [{"role": "user", "content": "q"}],'
            .. ' "completion": [{"role": "assistant", "content": "a"}]}' } do
         assert.same(two, messages(text), text)
      end
      assert.same({ { role = 'system', content = 's' }, { role = 'user', content = 'h' },
         { role = 'assistant', content = 'r' }, { role = 'user', content = 'q\ni' },
         { role = 'assistant', content = 'a' } }, messages('{"system": "s", "instruction": "q",'
         .. '"input": "i", "output": "a", "history": [["h", "r"]]}'))
      assert.same({ prompt = 'p', completion = 'c' }, form '{"prompt": "p", "completion": "c"}')
      assert.same({ prompt = 'p', completion = 'c' }, form '{"prompt": "p", "response": "c"}')
      assert.same({ text = 't' }, form '{"text": "t"}')
      assert.equal('x', form('{"messages": [{"role": "user", "content": "q"}],'
         .. ' "tools": "[{\\"name\\": \\"x\\"}]"}').tools[1].name)
      assert.is_nil((form('{"messages": [{"role": "user", "content": "q"}], "tools": []}')).tools)
   end)

   it('takes messages without content that say something else, and fields that are null',
   function()
      for _, text in ipairs {
         '{"messages": [{"role": "a", "tool_calls": [{}]}]}',
         '{"messages": [{"role": "a", "content": null, "tool_calls": [{}]}]}',
         '{"messages": [{"role": "a", "function_call": {}}]}',
         '{"messages": [{"role": "a", "reasoning_content": "r", "content": null}]}',
         '{"messages": [{"role": "a", "content": [{"type": "text", "text": "t"}]}]}',
         '{"conversations": [{"from": "gpt", "value": "x"}], "system": null, "tools": null}',
         '{"conversations": [{"from": "gpt", "value": "x"}], "system": "", "tools": ""}',
         '{"instruction": "q", "output": "a", "history": null}' } do
         local result = assert(form(text), text)
         assert.is_nil(result.tools)
         assert.equal(text:find 'instruction' and 2 or 1, #result.messages)
      end
      local said = form '{"system": "s", "conversations": [{"from": "tool", "value": "x"}]}'
      assert.same({ 'system', 'tool' }, { said.messages[1].role, said.messages[2].role })
      assert.same({ text = 'c' }, form '{"content": "c"}')
   end)

   it('names the field of what is wrong', function()
      for text, problem in pairs {
         ['{"messages": []}'] = 'messages: expected at least one entry, got none',
         ['{"messages": "x"}'] = 'messages: expected a list, got "x"',
         ['{"messages": [5]}'] = 'messages[1]: expected an object { role, content }, got 5',
         ['{"messages": [{"role": "user"}]}'] = 'messages[1].content: expected a text or a list of '
            .. 'parts, got nothing',
         ['{"messages": [{"content": "x"}]}'] = 'messages[1].role: expected a text, got nothing',
         ['{"messages": [{"role": "user", "content": [{"type": "text"}]}]}'] =
            'messages[1].content[1].text: expected a text, got nothing',
         ['{"conversations": [{"from": "alien", "value": "x"}]}'] = 'conversations[1].from: ',
         ['{"conversations": [{"from": "gpt", "value": null}]}'] =
            'conversations[1].value: expected a text, got null',
         ['{"instruction": "q"}'] = 'output: expected a text, got nothing',
         ['{"prompt": "q", "completion": 5}'] = 'completion: expected a text, got 5',
         ['{"text": {}}'] = 'text: expected a text, got an object',
         ['{"b": 1, "a": 2}'] = 'the fields b, a',
         ['{}'] = 'prompt or text, got no field',
         ['{"messages": {}}'] = 'messages: expected a list, got an object',
         ['{"messages": null}'] = 'messages: expected a list, got null',
         ['{"messages": [null]}'] = 'messages[1]: expected an object { role, content }, got null',
         ['{"messages": [{"role": "", "content": "x"}]}'] =
            'messages[1].role: expected a name, got ""',
         ['{"messages": [{"role": "user", "content": null}]}'] =
            'messages[1].content: expected a text or a list of parts, got null',
         ['{"messages": [{"role": "a", "content": 5, "tool_calls": [{}]}]}'] =
            'messages[1].content: expected a text or a list of parts, got 5',
         ['{"messages": [{"role": "a", "tool_calls": []}]}'] =
            'messages[1].content: expected a text or a list of parts, got nothing',
         ['{"messages": [{"role": "a", "content": [5]}]}'] =
            'messages[1].content[1]: expected an object { type, .. }, got 5',
         ['{"messages": [{"role": "a", "content": [null]}]}'] =
            'messages[1].content[1]: expected an object { type, .. }, got null',
         ['{"messages": [{"role": "a", "content": [{"type": "image"}, {}]}]}'] =
            'messages[1].content[2].type: expected a text, got nothing',
         ['{"messages": [{"role": "u", "content": "q"}], "tools": "x"}'] =
            'tools: expected a list, or a text of JSON that holds one, got "x"',
         ['{"messages": [{"role": "u", "content": "q"}], "tools": 5}'] =
            'tools: expected a list, got 5',
         ['{"conversations": [5]}'] =
            'conversations[1]: expected an object { from, value }, got 5',
         ['{"conversations": [{"from": "gpt", "value": "x"}], "system": 5}'] =
            'system: expected a text, got 5',
         ['{"instruction": "q", "output": "a", "history": 5}'] =
            'history: expected a list of pairs of texts, got 5',
         ['{"instruction": "q", "output": "a", "history": [5]}'] =
            'history[1]: expected a pair of texts, got 5',
         ['{"instruction": "q", "output": "a", "history": [["h"]]}'] =
            'history[1][2]: expected a text, got nothing',
         ['{"instruction": "q", "output": ["a"]}'] = 'output: expected a text, got a list',
         ['{"prompt": null, "completion": "c"}'] = 'prompt: expected a text, got null',
         ['{"prompt": "q"}'] = 'completion: expected a text, got nothing',
         ['{"text": "' .. ('x'):rep(41) .. '", "messages": "' .. ('x'):rep(41) .. '"}'] =
            'got "' .. ('x'):rep(40) .. '.."',
         ['{"messages": "' .. ('x'):rep(40) .. '"}'] = 'got "' .. ('x'):rep(40) .. '"' } do
         local result, message = form(text)
         assert.is_nil(result, text)
         assert.is_truthy(message:find(problem, 1, true), message)
      end
   end)
end)

describe('data.chat', function()
   local line = '{"messages": [{"role": "user", "content": "hé"}, '
      .. '{"role": "assistant", "content": "ü"}, {"role": "user", "content": "x"}, '
      .. '{"role": "assistant", "content": "yz"}]}\n'

   it('counts what generation blocks hold', function()
      assert.equal('<user>hé<assistant>[ü!]<user>x<assistant>[yz!]',
         mask_of(line, { template = blocks }))
   end)

   it('counts the messages of roles without such blocks', function()
      assert.equal('<user>hé;<assistant>[ü;]<user>x;<assistant>[yz;]',
         mask_of(line, { template = plain }))
      assert.equal('[<user>hé;]<assistant>ü;[<user>x;]<assistant>yz;',
         mask_of(line, { template = plain, train_on = { 'user' } }))
      assert.equal('[<user>hé;]<assistant>[ü;<user>x;]<assistant>[yz;]',
         mask_of(line, { template = plain, train_on = { 'user', 'assistant' } }))
   end)

   it('counts completions and texts, with the end of their document', function()
      assert.equal('ab[cd$]', mask_of('{"prompt": "ab", "completion": "cd"}', {}))
      assert.equal('[abc$]', mask_of('{"text": "abc"}\n\n', {}))
      assert.equal('<user>ab;<assistant>[cd;]',
         mask_of('{"prompt": "ab", "completion": "cd"}', { template = plain }))
   end)

   it('names a role that is misspelt, unless it counts', function()
      for _, row in ipairs { { 'gpt', 'assistant' }, { 'Assistant', 'assistant' },
         { 'asistant', 'assistant' }, { 'assistent', 'assistant' }, { 'usr', 'user' },
         { 'human', 'user' }, { 'toool', 'tool' }, { 'sistem', 'system' } } do
         local text = ('{"messages": [{"role": "user", "content": "a"}, {"role": "%s", '
            .. '"content": "b"}]}'):format(row[1])
         assert.matches(("messages[2].role: expected a role such as '%s', got '%s' ("):format(
            row[2], row[1]), raised(load_one, text, { template = plain }).message, 1, true)
         assert.equal(1, load_one(text, { template = plain, train_on = { row[1] } }).documents)
      end
      for _, role in ipairs { 'critic', 'uusrr', 'ool2', 'narrator' } do
         local text = ('{"messages": [{"role": "%s", "content": "a"}, {"role": "assistant", '
            .. '"content": "b"}]}'):format(role)
         assert.equal(1, load_one(text, { template = plain }).documents)
      end
   end)

   it('says why no token of a record is a label', function()
      local roles = '{"messages": [{"role": "user", "content": "a"}, {"role": "tool", '
         .. '"content": "b"}, {"role": "user", "content": "c"}]}'
      assert.matches("label: its roles are 'user', 'tool', and those that count are 'assistant' (",
         raised(load_one, roles, { template = plain }).message, 1, true)
      assert.matches("those that count are 'assistant', 'system' (", raised(load_one, roles,
         { template = plain, train_on = { 'system', 'assistant' } }).message, 1, true)
      assert.matches('label: the template writes none of it in a generation block',
         raised(load_one, roles, { template = blocks }).message, 1, true)
      local one_each = { vocab_size = 256 }
      function one_each.encode(_, text)
         if text == 'x' then error 'bad bytes' end
         return { text:byte(1, -1) }, { { 1, 1 }, { 2, 2 } }
      end
      local function load_text(text)
         return load_one('{"text": "' .. text .. '"}', { tokenizer = one_each })
      end
      assert.matches('fewer than two tokens', raised(load_text, 'a').message, 1, true)
      assert.equal(1, load_text('ab').documents)
      assert.matches('line 1: .*bad bytes', raised(load_text, 'x').message)
      assert.matches('no token of the record counts as a label (', raised(load_one,
         '{"prompt": "ab", "completion": ""}', { tokenizer = one_each }).message, 1, true)
      local broken = tide.chat.template '{{ raise_exception("no") }}'
      assert.matches('the template: ', raised(load_one, line, { template = broken }).message, 1,
         true)
      assert.matches('the template, given the first messages alone: ', raised(load_one, line,
         { template = tide.chat.template(
         '{% if messages|length < 4 %}{{ raise_exception("no") }}{% endif %}') }).message, 1, true)
   end)

   it('refuses a template that writes earlier messages otherwise', function()
      local last = tide.chat.template(
         '{% for m in messages %}{{ m.content if loop.last }}{% endfor %}')
      assert.matches('messages[2]: the template writes it otherwise',
         raised(load_one, line, { template = last }).message, 1, true)
   end)

   it('takes a tokenizer with offsets: a token counts if a byte of it does', function()
      local pairs_of = { vocab_size = 70000, eos = 69999 }
      function pairs_of.encode(_, text, o)
         local ids, places = {}, {}
         for i = 1, #text, 2 do
            ids[#ids + 1], places[#places + 1] = 65536 + #ids, { i, math.min(i + 1, #text) }
         end
         assert.is_true(o.offsets)
         return ids, places
      end
      local corpus = with_files({ ['a.jsonl'] = '{"prompt": "abc", "completion": "de"}' },
         function(dir) return chat.load(dir, { tokenizer = pairs_of, val = 0 }) end)
      assert.equal(4, corpus.train.width)
      assert.equal('\0\1\1\1', corpus.train:mask(0, 4))          -- ab, cd, e, end
      assert.equal('\0\0\1\0', corpus.train:raw(0, 1))
      assert.equal(3, corpus.labels)
   end)

   it('names file, line and field of a broken record, or counts it', function()
      local text = line .. '{"messages": [}\n\n[1]\n{"messages": [{"role": 5}]}\n' .. line
      local e = raised(load_one, text, { template = plain })
      assert.equal('E_FORMAT', e.code)
      assert.matches('a.jsonl, line 2: ', e.message, 1, true)
      local corpus = load_one(text, { template = plain, skip_bad = true })
      assert.equal(2, corpus.documents)
      assert.equal(3, corpus.bad.count)
      assert.matches('line 4: expected an object', corpus.bad[2], 1, true)
      assert.matches('line 5: messages[1].role: expected a text, got 5', corpus.bad[3], 1, true)
      assert.matches('no record that can be used; the first one: ', raised(load_one, '{}\n',
         { template = plain, skip_bad = true }).message, 1, true)
      assert.matches('no template', raised(load_one, line, {}).message, 1, true)
      assert.equal('E_ARG', raised(load_one, line, { format = 'sharegtp' }).code)
   end)

   it('keeps lines apart that hold a byte of 0', function()
      local long = '{"text": "' .. ('x'):rep(2e5) .. '"}'
      local text = line .. '{"text": "a\0b"}\n{"text": "cd"}\n\0\n{"text": "ef"}\n' .. long
      local corpus = load_one(text, { template = plain, skip_bad = true })
      assert.equal(4, corpus.documents)
      assert.equal(2, corpus.bad.count)
      assert.matches('line 2: ', corpus.bad[1], 1, true)
      assert.matches('line 4: ', corpus.bad[2], 1, true)
   end)

   it('refuses a file that is not what its name says', function()
      for head, what in pairs { ['\127ELF\2'] = 'a program', ['MMIDIDX\0\0'] = 'Megatron',
         ['\31\139\8'] = 'gzip', ['ab\0c'] = 'bytes of 0' } do
         with_files({ ['a.jsonl'] = head, ['b.bin'] = head .. ('\0'):rep(1200) }, function(dir)
            local e = raised(chat.load, dir .. '/a.jsonl', { tokenizer = bytes })
            assert.equal('E_FORMAT', e.code)
            assert.matches(what, e.message, 1, true)
            if #head > 4 then
               assert.matches(what, raised(tide.data.tokens.file, dir .. '/b.bin').message, 1, true)
            end
         end)
      end
   end)

   it('reads a JSON list as well, and holds the last records out', function()
      with_files({ ['a.json'] = '[' .. ('{"text": "abc"},'):rep(9) .. '{"text": "xyz"}]' },
         function(dir)
            local corpus = chat.load(dir, { tokenizer = bytes, val = 0.1 })
            assert.equal(9, #corpus.cu - 1)
            assert.equal('[xyz$]', shown(corpus.val))
            assert.same({ 0, 4 }, corpus.val_cu)
         end)
   end)

   it('reads of a folder the files named .json and .jsonl, else all of text', function()
      local function texts_of(set)
         return with_files(set, function(dir)
            return shown(chat.load(dir, { tokenizer = bytes, val = 0 }).train)
         end)
      end
      assert.equal('[abc$xyz$]', texts_of { ['README.md'] = '# Texts',
         ['a.jsonl'] = '{"text": "abc"}', ['b.json'] = '[{"text": "xyz"}]' })
      assert.equal('[abc$]', texts_of { ['a.txt'] = '{"text": "abc"}' })
   end)
end)

describe('masks of token sources', function()
   local source = tide.data.tokens.memory('abcdefgh', 1, '\0\1\1\0\0\0\1\1')

   it('go through slices and joins', function()
      local other = tide.data.tokens.memory('ij', 1)
      local joined = tide.data.tokens.join { tide.data.tokens.slice(source, 2, 5), other }
      assert.equal('\1\0\0\0\1\1\1', joined:mask(0, 7))
      assert.equal('\0\1\1', joined:mask(3, 3))
      assert.is_nil(other.mask)
      assert.equal('E_ARG', raised(source.mask, source, 7, 2).code)
      assert.equal('E_ARG', raised(tide.data.tokens.memory, 'ab', 1, '\1').code)
      assert.are_not.equal(tide.data.tokens.fingerprint(source),
         tide.data.tokens.fingerprint(tide.data.tokens.memory('abcdefgh', 1)))
   end)

   it('make labels of -100 in windows and in rows of documents', function()
      local batch = tide.data.batch.make(source, { 0, 3 }, 4)
      assert.same({ { 98, 99, -100, -100 }, { -100, -100, 103, 104 } }, batch.labels:tolist())
      assert.equal(4, batch.count)
      local sampler = tide.data.packed { cu = { 0, 3, 8 }, seq = 8, batch = 1, seed = 1 }
      local packed = sampler:make(source, { { { 0, 3, false, 3 }, { 3, 5, false, 5 } } })
      assert.same({ { 98, 99, -100, -100, -100, 103, 104, -100 } }, packed.labels:tolist())
      assert.equal(4, packed.count)
   end)
end)

describe('data.megatron', function()
   local documents = { { 1, 2, 3 }, { 40000 }, {}, { 7, 8 } }

   local function written(dir, width)
      local w = tide.data.megatron.writer(dir .. '/set', { width = width })
      for _, ids in ipairs(documents) do w:add(ids) end
      return w:finish()
   end

   it('reads what it writes', function()
      for _, width in ipairs { 2, 4 } do
         tmp.with(function(dir)
            assert.same({ 4, 6 }, { written(dir, width) })
            for _, name in ipairs { '', '.bin', '.idx' } do
               local set = tide.data.megatron.open(dir .. '/set' .. name)
               assert.same({ 0, 3, 4, 6 }, set.cu)
               assert.equal(width, set.source.width)
               assert.equal(4, set.sequences)
               assert.equal(6, set.source.count)
               set.source:close()
            end
            assert.equal(34 + 12 * 4 + 8 * 5, #read(dir .. '/set.idx'))
         end)
      end
   end)

   it('gives its documents to a corpus of .bin files', function()
      tmp.with(function(dir)
         for k = 1, 2 do
            local w = tide.data.megatron.writer(dir .. '/s' .. k, { width = 2 })
            for i = 1, 10 do
               local ids = {}
               for j = 1, 400 do ids[j] = i * k + j end
               w:add(ids)
            end
            w:finish()
         end
         local both = { dir .. '/s1.bin', dir .. '/s2.bin' }
         local c = tide.data.text.load(both, { val = 0.25, documents = true })
         assert.same({ 0, 400, 800, 1200, 1600, 2000, 2400, 2800, 3000, 3400, 3800, 4200, 4600,
            5000, 5400, 5800, 6000 }, c.cu)
         assert.same({ 0, 200, 600, 1000, 1200, 1600, 2000 }, c.val_cu)
         assert.equal(6000, c.train.count)
         assert.equal(2000, c.val.count)
         assert.is_nil(tide.data.text.load(both, {}).cu)
         assert.is_nil(os.remove(dir .. '/s2.idx') and tide.data.text.load(both, { width = 2,
            documents = true }).cu)
      end)
   end)

   it('refuses ids, cut files and pairs that do not belong together', function()
      tmp.with(function(dir)
         written(dir, 2)
         local open, index = tide.data.megatron.open, read(dir .. '/set.idx')
         local function broken(text)
            write(dir .. '/set.idx', text)
            local e = raised(open, dir .. '/set')
            assert.is_true(e.code == 'E_FORMAT' or e.code == 'E_UNSUPPORTED', e.code)
            return e.message
         end
         assert.matches('no index', broken 'x', 1, true)
         for n = 0, #index - 1, 7 do broken(index:sub(1, n)) end
         assert.matches('int64', broken(index:sub(1, 17) .. '\5' .. index:sub(19)), 1, true)
         broken(index:sub(1, 34) .. '\4' .. index:sub(36))
         write(dir .. '/set.idx', index)
         write(dir .. '/set.bin', '\1\0\2\0')
         assert.matches('has 2 tokens, its index says 6', raised(open, dir .. '/set').message, 1,
            true)
         local w = tide.data.megatron.writer(dir .. '/new', { width = 2 })
         assert.equal('E_ARG', raised(w.add, w, { 65536 }).code)
         w:finish()
         assert.equal('E_STATE', raised(w.add, w, { 1 }).code)
      end)
   end)
end)

describe('data.mixture', function()
   local function source(c, n) return tide.data.tokens.memory(c:rep(n), 1) end
   local parts = { { source = source('a', 200), weight = 3 },
      { source = source('b', 90), weight = 1 } }

   local function letters(mix, list)
      local out = {}
      for i, start in ipairs(list) do out[i] = mix.source:raw(start, 1) end
      return table.concat(out)
   end

   it('gives each part its share at any time, whatever the ranks', function()
      local mix = tide.data.mixture { parts = parts, seq = 8, batch = 4, seed = 3 }
      local halves = {}
      for rank = 0, 1 do
         halves[rank] = tide.data.mixture { parts = parts, seq = 8, batch = 4, seed = 3, size = 2,
            rank = rank }
      end
      local all = ''
      for _ = 1, 20 do
         local starts = mix:next()
         local joined = halves[0]:next()
         for _, start in ipairs(halves[1]:next()) do joined[#joined + 1] = start end
         assert.same(starts, joined)
         all = all .. letters(mix, starts)
         local a = select(2, all:gsub('a', ''))
         assert.is_true(math.abs(a - 0.75 * #all) <= 1, all)
      end
      assert.is_true(mix:epochs() > 1)
      assert.is_nil(mix.make)                 -- windows are made by data.batch
   end)

   it('goes on from a state', function()
      local one = tide.data.mixture { parts = parts, seq = 8, batch = 4, seed = 3 }
      for _ = 1, 5 do one:next() end
      local state = tide.json.decode(tide.json.encode(one:state()))
      local two = tide.data.mixture { parts = parts, seq = 8, batch = 2, seed = 3 }
      two:restore(state)
      local now = two:next()
      for _, start in ipairs(two:next()) do now[#now + 1] = start end
      assert.same(one:next(), now)
      local other = tide.data.mixture { parts = { parts[1] }, seq = 8, batch = 4, seed = 3 }
      assert.equal('E_ARG', raised(other.restore, other, state).code)
   end)

   it('mixes rows of documents', function()
      local rows = { { source = parts[1].source, weight = 1, cu = { 0, 100, 200 } },
         { source = parts[2].source, weight = 1, cu = { 0, 90 } } }
      local mix = tide.data.mixture { parts = rows, seq = 50, batch = 2, seed = 1,
         val_cu = { 0, 9 } }
      local batch = mix:make(mix.source, mix:next())
      local ids = batch.ids:tolist()[1]
      assert.same({ 97, 98 }, { ids[1], ids[51] })
      assert.equal(1, #mix:held_out(4))
   end)

   it('refuses parts without weight and mixed kinds', function()
      local function made(list) return tide.data.mixture { parts = list, seq = 8, batch = 1 } end
      assert.equal('E_ARG', raised(made, {}).code)
      assert.equal('E_ARG', raised(made, { { source = parts[1].source, weight = 0 } }).code)
      assert.equal('E_ARG', raised(made, { { source = parts[1].source, weight = -1 } }).code)
      assert.equal('E_ARG', raised(made, { parts[1], { source = parts[2].source, weight = 1,
         cu = { 0, 90 } } }).code)
      assert.matches("argument 'parts[2]': a window needs 9 tokens, its source has 8",
         raised(made, { parts[1], { source = source('c', 8), weight = 1 } }).message, 1, true)
   end)
end)
