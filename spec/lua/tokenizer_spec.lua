-- Tokenizers against the `tokenizers` package: files and answers of spec/golden/tokenizer.py.

local raised = require 'spec.support.raised'
local tide = require 'tide'
local each = require 'tide.util.each'
local decoder = require 'tide.tokenizer.decoder'
local ffi = require 'ffi'
local fs = require 'tide.util.fs'

local json = fs.io().json
local folder = os.tmpname()
os.remove(folder)
fs.io().mkdir(folder)

local kinds = { 'gpt2', 'added', 'llama3', 'qwen2', 'falcon', 'llama2', 'llama2_metaspace', 't5',
   'bert', 'bert_cased' }

local loaded = {}

-- The tokenizer of a golden file, and the cases in it.
local function load(name)
   if not loaded[name] then
      local value = json.decode(fs.read('spec', 'spec/golden/tokenizer/' .. name .. '.json'))
      local path = folder .. '/' .. name .. '.json'
      fs.write('spec', path, json.encode(value.tokenizer))
      loaded[name] = { tide.tokenizer.load(path), value.cases }
   end
   return loaded[name][1], loaded[name][2]
end

local function plain(list)
   local t = {}
   for i, v in ipairs(list) do t[i] = v end
   return t
end

teardown(function() os.execute("rm -rf '" .. folder .. "'") end)

for _, kind in ipairs(kinds) do
   describe('tokenizer ' .. kind, function()
      it('gives the ids of the original', function()
         local tok, cases = load(kind)
         for _, case in ipairs(cases) do
            assert.same(plain(case.ids), (tok:encode(case.text, { special = true })))
            assert.same(plain(case.plain), (tok:encode(case.text, { special = true,
               add_special_tokens = false })))
            assert.same(plain(case.user), (tok:encode(case.text, { add_special_tokens = false })))
         end
      end)

      it('gives the texts of the original, also id by id', function()
         local tok, cases = load(kind)
         for _, case in ipairs(cases) do
            assert.equal(case.decoded, tok:decode(case.ids))
            assert.equal(case.special, tok:decode(case.ids, { special = true }))
            local stream, parts = tok:stream(), {}
            for i, id in ipairs(case.ids) do
               parts[i] = stream:push(id)
               assert.equal(parts[i], (decoder.repair(parts[i])))
            end
            parts[#parts + 1] = stream:finish()
            assert.equal(case.decoded, table.concat(parts))
         end
      end)

      it('says where each id lies', function()
         local tok, cases = load(kind)
         for _, case in ipairs(cases) do
            local ids, offsets = tok:encode(case.text, { special = true, offsets = true })
            assert.equal(#ids, #offsets)
            local last = 1
            for _, place in ipairs(offsets) do
               assert.is_true(place[1] >= 1 and place[2] <= #case.text)
               assert.is_true(place[1] >= last)
               last = place[1]
            end
         end
      end)

      it('gives the same in a batch, on any number of threads, and as bytes', function()
         local tok, cases = load(kind)
         local texts, want, bytes = {}, {}, {}
         for round = 1, 3 do
            for _, case in ipairs(cases) do
               texts[#texts + 1] = case.text .. (' again'):rep(round)
               want[#texts] = tok:encode(texts[#texts])
               local t = {}
               for i, id in ipairs(want[#texts]) do
                  t[i] = string.char(id % 256, math.floor(id / 256))
               end
               bytes[#texts] = table.concat(t)
            end
         end
         for _, threads in ipairs { 1, 3 } do
            assert.same(want, (tok:encode_batch(texts, { threads = threads })))
            assert.same(bytes, (tok:encode_batch(texts, { threads = threads, width = 2 })))
         end
      end)
   end)
end

-- Offsets of the original count characters; a part of a character is all of it there.
local function in_characters(text, place)
   local count, at = 0, {}
   for i = 1, #text do
      if text:byte(i) < 0x80 or text:byte(i) >= 0xC0 then count = count + 1 end
      at[i] = count
   end
   return { (at[place[1]] or count + 1) - 1, at[place[2]] or 0 }
end

describe('offsets', function()
   for _, kind in ipairs { 'gpt2', 'llama3', 'llama2', 'llama2_metaspace' } do
      it('of ' .. kind .. ' are those of the original', function()
         local tok, cases = load(kind)
         for _, case in ipairs(cases) do
            local _, offsets = tok:encode(case.text, { special = true, offsets = true,
               add_special_tokens = false })
            for i, place in ipairs(offsets) do
               assert.same(plain(case.offsets[i]), in_characters(case.text, place))
            end
         end
      end)
   end

   it('cut the text into the bytes of the tokens', function()
      local tok = load 'gpt2'
      local text, parts = 'naïve 😀 données\0\1', {}
      local _, offsets = tok:encode(text, { offsets = true })
      for i, place in ipairs(offsets) do parts[i] = text:sub(place[1], place[2]) end
      assert.equal(text, table.concat(parts))
   end)
end)

describe('text that is not UTF-8', function()
   it('is refused with its place, or replaced as asked', function()
      local tok = load 'gpt2'
      local ok, why = pcall(tok.encode, tok, 'abc\255')
      assert.is_false(ok)
      assert.equal('E_ARG', why.code)
      assert.truthy(tostring(why):find 'UTF%-8')
      for bad, good in pairs { ['a\255b'] = 'a�b', ['\226\130'] = '�', ['\226\130a'] = '�a',
         ['\237\160\128'] = '���', ['\240\159\152'] = '�',
         ['\240\144\128'] = '�', ['\240\144\191a'] = '�a', ['\241\128\192'] = '��',
         ['\244\144\128\128'] = '����' } do
         assert.same(tok:encode(good), (tok:encode(bad, { invalid = 'replace' })))
      end
      ok, why = pcall(tok.encode_batch, tok, { 'a', 'b\128' })
      assert.is_false(ok)
      assert.truthy(tostring(why):find('texts[1]', 1, true))
   end)

   it('of tokens comes as U+FFFD, and half characters wait', function()
      local tok = load 'gpt2'
      local ids = tok:encode '€'
      local stream, parts = tok:stream(), {}
      for i, id in ipairs(ids) do parts[i] = stream:push(id) end
      assert.equal('€', table.concat(parts))
      assert.equal('', stream:finish())
      table.remove(ids)
      if #ids > 0 then assert.equal('�', tok:decode(ids)) end
   end)
end)

describe('a damaged tokenizer.json', function()
   local function refused(change)
      local value = json.decode(fs.read('spec', 'spec/golden/tokenizer/gpt2.json')).tokenizer
      change(value)
      local path = folder .. '/damaged.json'
      fs.write('spec', path, json.encode(value))
      local ok, why = pcall(tide.tokenizer.load, path)
      assert.is_false(ok)
      assert.is_true(tide.is_error(why), tostring(why))
      return tostring(why)
   end

   it('is refused by name', function()
      assert.truthy(refused(function(t) t.model.type = 'Magic' end):find 'Magic')
      assert.truthy(refused(function(t) t.pre_tokenizer.type = 'Odd' end):find 'Odd')
      assert.truthy(refused(function(t) t.normalizer = { type = 'Strange' } end):find 'Strange')
      assert.truthy(refused(function(t) t.decoder.type = 'Other' end):find 'Other')
      assert.truthy(refused(function(t) t.model.merges[3] = { 'no', 'piece' } end):find 'merge 3')
      assert.truthy(refused(function(t) t.model.vocab.a = 1.5 end):find '1.5')
      assert.truthy(refused(function(t)
         t.pre_tokenizer = { type = 'Split', pattern = { Regex = '(' }, behavior = 'Isolated' }
      end):find 'pattern')
      assert.truthy(refused(function(t) t.model = nil end):find 'tokenizer.json')
   end)

   it('and a folder without one name what was looked for', function()
      local ok, why = pcall(tide.tokenizer.load, folder .. '/nothing')
      assert.is_false(ok)
      assert.truthy(tostring(why):find 'no such')
      fs.io().mkdir(folder .. '/empty')
      ok, why = pcall(tide.tokenizer.load, folder .. '/empty')
      assert.is_false(ok)
      assert.truthy(tostring(why):find 'tekken')
   end)
end)

describe('a folder', function()
   it('has added tokens that take the blanks beside them', function()
      local value = json.decode(fs.read('spec', 'spec/golden/tokenizer/gpt2.json')).tokenizer
      for i, side in ipairs { 'lstrip', 'rstrip' } do
         value.added_tokens[#value.added_tokens + 1] = { content = '<' .. side .. '>',
            id = 499 + i, special = true, normalized = false, [side] = true }
      end
      fs.write('spec', folder .. '/sides.json', json.encode(value))
      local tok = tide.tokenizer.load(folder .. '/sides.json')
      local a = tok:encode 'a'
      for name, texts in require 'tide.util.each' {
         [500] = { 'a <lstrip>a', 'a<lstrip>a' }, [501] = { 'a<rstrip> a', 'a<rstrip>a' } } do
         for _, text in ipairs(texts) do
            assert.same({ a[1], name, a[1] }, (tok:encode(text, { special = true })), text)
         end
      end
      for _, text in ipairs { 'a<lstrip> a', 'a <rstrip>a' } do
         assert.is_true(#tok:encode(text, { special = true }) > 3, text)
      end
   end)

   it('names its special tokens', function()
      local path = folder .. '/named'
      fs.io().mkdir(path)
      local value = json.decode(fs.read('spec', 'spec/golden/tokenizer/gpt2.json')).tokenizer
      fs.write('spec', path .. '/tokenizer.json', json.encode(value))
      fs.write('spec', path .. '/tokenizer_config.json', '{"eos_token": {"content": '
         .. '"<|endoftext|>", "lstrip": false}, "bos_token": null, "model_max_length": 1e30}')
      fs.write('spec', path .. '/special_tokens_map.json', '{"pad_token": "<|im_start|>"}')
      local tok = tide.tokenizer.load(path)
      assert.same({ eos_token = '<|endoftext|>', pad_token = '<|im_start|>' }, tok.special)
      assert.same({ 0, 1 }, { tok.eos, tok.pad })
      assert.is_nil(tok.bos)
      assert.equal(0, tok:id '<|endoftext|>')
      assert.equal('<|endoftext|>', tok:token(0))
      assert.equal(420, tok.vocab_size)
   end)
end)

-- ---- other kinds of files ----------------------------------------------------------------------

local base64_digits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'

local function base64(text)
   local out = {}
   for i = 1, #text, 3 do
      local a, b, c = text:byte(i, i + 2)
      local v, n = a * 65536 + (b or 0) * 256 + (c or 0), c and 4 or b and 3 or 2
      for j = 1, 4 do
         local d = math.floor(v / 64 ^ (4 - j)) % 64
         out[#out + 1] = j <= n and base64_digits:sub(d + 1, d + 1) or '='
      end
   end
   return table.concat(out)
end

local function tiktoken_lines()
   local lines = {}
   for b = 0, 255 do lines[b + 1] = base64(string.char(b)) .. ' ' .. b end
   for i, piece in ipairs { 'he', 'll', 'hell', 'hello', ' w', 'or', ' wor', '世' } do
      lines[256 + i] = base64(piece) .. ' ' .. 255 + i
   end
   return lines
end

describe('a file of tiktoken', function()
   it('merges by rank, with the pattern of its configuration', function()
      local path = folder .. '/tik'
      fs.io().mkdir(path)
      fs.write('spec', path .. '/x.tiktoken', table.concat(tiktoken_lines(), '\n') .. '\n')
      local ok, why = pcall(tide.tokenizer.load, path)
      assert.is_false(ok)
      assert.truthy(tostring(why):find 'pat_str')
      fs.write('spec', path .. '/tokenizer_config.json', [[{"pat_str": "\\s?\\p{L}+|\\s+|.",
         "added_tokens_decoder": {"300": {"content": "<end>"}}}]])
      local tok = tide.tokenizer.load(path)
      assert.same({ 259, 262, 108, 100 }, (tok:encode 'hello world'))
      assert.same({ 263 }, (tok:encode '世'))
      assert.equal('hello world世', tok:decode { 259, 262, 108, 100, 263 })
      assert.same({ 300 }, (tok:encode('<end>', { special = true })))
      assert.equal(5, #tok:encode '<end>' )
      assert.same({ 301, 300 }, { tok.vocab_size, tok.eos })
      fs.write('spec', path .. '/x.tiktoken', 'YQ== 0\nYQ 1\n')
      ok, why = pcall(tide.tokenizer.load, path)
      assert.is_false(ok)
      assert.truthy(tostring(why):find 'line 2')
   end)
end)

describe('a file of Llama 3', function()
   it('has its special tokens behind the 128000 pieces', function()
      local lines, path = tiktoken_lines(), folder .. '/llama3'
      for i = #lines + 1, 128000 do lines[i] = base64(('#%06d'):format(i)) .. ' ' .. i - 1 end
      fs.io().mkdir(path)
      fs.write('spec', path .. '/tokenizer.model', table.concat(lines, '\n') .. '\n')
      local tok = tide.tokenizer.load(path)
      for id, name in require 'tide.util.each' { [128000] = '<|begin_of_text|>',
         [128009] = '<|eot_id|>', [128010] = '<|python_tag|>',
         [128011] = '<|reserved_special_token_2|>',
         [128255] = '<|reserved_special_token_246|>' } do
         assert.same({ id, name }, { tok:id(name), tok:token(id) })
      end
      assert.equal(128256, tok.vocab_size)
   end)
end)

describe('a pattern', function()
   it('has anchors at the ends of lines, as Oniguruma', function()
      local translate = require('tide.tokenizer.pattern').translate
      assert.equal('(?m)^a$', translate '^a$')
      assert.equal('[^a$]b', translate '[^a$]b')
   end)
end)

describe('a tekken.json', function()
   it('counts its special tokens first', function()
      local vocab = json.array {}
      for i, line in ipairs(tiktoken_lines()) do
         vocab[i] = { rank = i - 1, token_bytes = line:match '^%S+' }
      end
      local path = folder .. '/tekken.json'
      fs.write('spec', path, json.encode { vocab = vocab, config = { pattern = '\\s?\\p{L}+|.',
         default_vocab_size = 10 + #vocab, default_num_special_tokens = 10 } })
      local tok = tide.tokenizer.load(path)
      assert.same({ 1, 269, 272 }, (tok:encode 'hello wor'))
      assert.equal('<s>', tok.special.bos_token)
      assert.equal('hello wor', tok:decode { 1, 269, 272 })
   end)
end)

describe('an id', function()
   it('is an integer in [0, 4194303]', function()
      local is_id = require('tide.tokenizer.field').is_id
      for _, v in ipairs { 0, 1, 2 ^ 22 - 1 } do assert.is_true(is_id(v)) end
      for _, v in ipairs { -1, 0.5, 2 ^ 22, '1', 0 / 0 } do assert.is_false(is_id(v)) end
   end)
end)

describe('a file of sentencepiece', function()
   local function field(number, text) return string.char(number * 8 + 2, #text) .. text end
   local function piece(text, score, kind)
      local bits = score == 0 and '\0\0\0\0' or string.char(0, 0, 0x80 + (score - 1) * 16, 0xC0)
      return field(1, field(1, text) .. '\21' .. bits .. '\24' .. string.char(kind))
   end

   it('merges by score, and bytes stand for what is no piece', function()
      local parts = { piece('<unk>', 0, 2), piece('<s>', 0, 3), piece('</s>', 0, 3) }
      for b = 0, 255 do parts[#parts + 1] = piece(('<0x%02X>'):format(b), 0, 6) end
      for i, text in ipairs { '▁a', 'bc', '▁', 'a', 'b', 'c' } do
         parts[#parts + 1] = piece(text, i, 1)
      end
      parts[#parts + 1] = '\18\5\24\2\152\2\1'                   -- BPE, byte_fallback
      fs.write('spec', folder .. '/tokenizer.model', table.concat(parts))
      local tok = tide.tokenizer.load(folder .. '/tokenizer.model')
      assert.same({ 259, 260 }, { tok:id '▁a', tok:id 'bc' })
      assert.same({ 1, 259, 260, 259 }, (tok:encode ' abc  a '))
      assert.same({ 1, 259, 3 + 0xC3, 3 + 0xA9 }, (tok:encode 'aé'))
      assert.equal('aé', tok:decode { 1, 259, 3 + 0xC3, 3 + 0xA9 })
   end)

   -- A file of pieces { text, score, kind } behind the special ones; tail: of other messages.
   local function model_of(rows, tail)
      local parts = { piece('<unk>', 0, 2), piece('<s>', 0, 3), piece('</s>', 0, 3) }
      for _, row in ipairs(rows) do
         local bits = ffi.string(ffi.new('float[1]', row[2]), 4)
         parts[#parts + 1] = field(1, field(1, row[1]) .. '\21' .. bits .. '\24'
            .. string.char(row[3] or 1))
      end
      return table.concat(parts) .. tail
   end

   it('is refused where it ends early', function()
      local whole = model_of({ { 'a', -1 }, { 'abcdef', -2 } }, '')
      for _, left in ipairs { 1, 3, 10, 15 } do                   -- 10: in the text of a piece
         fs.write('spec', folder .. '/tokenizer.model', whole:sub(1, -1 - left))
         local e = raised(tide.tokenizer.load, folder .. '/tokenizer.model')
         assert.equal('E_FORMAT', e.code)
         assert.matches('the file of sentencepiece is damaged', e.message, 1, true)
      end
   end)

   it('weighs pieces by scores of 32 bits', function()
      local tail = '\18\2\24\1\26\4\32\0\24\0'
      for _, case in ipairs { { -5, { 3, 4 } }, { -4.7, { 5 } } } do
         fs.write('spec', folder .. '/tokenizer.model',
            model_of({ { 'a', -2.4 }, { 'b', -2.4 }, { 'ab', case[1] } }, tail))
         local tok = tide.tokenizer.load(folder .. '/tokenizer.model')
         assert.same(case[2], (tok:encode('ab', { add_special_tokens = false })))
      end
   end)

   -- Ids that sentencepiece 0.2.3 gives; sums of f64 put 'aaa' (5) at the end.
   it('adds scores in 32 bits', function()
      fs.write('spec', folder .. '/tokenizer.model', model_of({ { 'a', -2.1716766357421875 },
         { 'aa', -4.343353271484375 }, { 'aaa', -6.5150299072265625 }, { 'x', -7.1 },
         { 'y', -5.983352184295654 } }, '\18\2\24\1\26\4\32\0\24\0'))
      local tok = tide.tokenizer.load(folder .. '/tokenizer.model')
      assert.same({ 7, 6, 3, 5, 6, 4, 6, 7, 6, 5, 7, 7, 6, 7, 6, 3, 6, 7, 6, 6, 7, 4, 3 },
         (tok:encode('yxaaaaxaaxyxaaayyxyxaxyxxyaaa', { add_special_tokens = false })))
   end)

   it('takes a symbol of the user for a tenth a byte, less one tenth', function()
      for score, ids in each { [0.03] = { 5 }, [0.06] = { 3, 4 } } do
         fs.write('spec', folder .. '/tokenizer.model', model_of({ { 'a', score },
            { 'b', score }, { 'ab', -7, 4 } }, '\18\2\24\1\26\4\32\0\24\0'))
         local tok = tide.tokenizer.load(folder .. '/tokenizer.model')
         assert.same(ids, (tok:encode('ab', { add_special_tokens = false })))
      end
   end)

   -- A double array, then texts: 'a' becomes 'x', 'ab' becomes 'y'.
   local function charsmap()
      local units = ffi.new 'uint32_t[227]'
      -- the children of a unit lie at `behind` xor their byte, its value at `behind`
      local function unit(at, label, behind)
         units[at] = label + (at > 0 and 256 or 0) + bit.bxor(at, behind) * 1024
      end
      unit(0, 0, 1)
      unit(bit.bxor(1, 97), 97, 128)
      unit(bit.bxor(128, 98), 98, 129)
      units[128], units[129] = 0x80000000, 0x80000002
      local size = ffi.sizeof(units)
      return string.char(size % 256, math.floor(size / 256), 0, 0) .. ffi.string(units, size)
         .. 'x\0y\0'
   end

   it('normalizes the longest text that its table has', function()
      local function long(head, text)
         return head .. string.char(128 + #text % 128, math.floor(#text / 128)) .. text
      end
      fs.write('spec', folder .. '/tokenizer.model', model_of({ { 'x', -1 }, { 'y', -1 },
         { 'b', -1 } }, '\18\2\24\1' .. long('\26', '\32\0\24\0' .. long('\18', charsmap()))))
      local tok = tide.tokenizer.load(folder .. '/tokenizer.model')
      assert.same({ 4, 5, 3 }, (tok:encode('abba', { add_special_tokens = false })))
   end)

   local rows = { { '▁', -2.1716766357421875 }, { '▁▁', -4.343353271484375 },
      { 'a', -5.983352184295654 }, { '▁a', -5.1 }, { 'b', -6.3 }, { 'ab', -5.7 }, { ',', 0, 4 },
      { 'x▁y', 0, 4 }, { '▁▁▁', 0, 4 }, { 'x', -7.1 }, { 'y', -7.3 }, { 'ba', 0, 4 } }
   local as_is = '\26\4\32\0\24\0'           -- neither removes spaces nor puts one in front
   -- Ids that sentencepiece 0.2.3 gives.
   local symbols = {
      { 'BPE', '\18\2\24\2' .. as_is, {
         { 'a,b', { 5, 9, 7 } }, { 'a  b', { 5, 4, 7 } }, { 'x y', { 10 } },
         { 'a   b    a', { 5, 11, 7, 11, 6 } }, { 'abab', { 5, 14, 7 } } } },
      { 'Unigram', '\18\2\24\1' .. as_is, {
         { 'a,b', { 5, 9, 7 } }, { 'a  b', { 5, 4, 7 } }, { 'x y', { 10 } },
         { 'a   b    a', { 5, 11, 7, 11, 6 } }, { 'abab', { 8, 8 } } } },
   }

   for _, row in ipairs(symbols) do
      it('finds symbols of the user in normalized text: ' .. row[1], function()
         fs.write('spec', folder .. '/tokenizer.model', model_of(rows, row[2]))
         local tok = tide.tokenizer.load(folder .. '/tokenizer.model')
         for _, case in ipairs(row[3]) do
            assert.same(case[2], (tok:encode(case[1], { add_special_tokens = false })))
            assert.equal(case[1], tok:decode(case[2]))
         end
         assert.equal(' a', tok:decode { 6 })               -- no space was put in front
      end)
   end
end)

describe('a decoder of bytes and Metaspace', function()
   it('drops the blank of the first token alone, a byte among them', function()
      for _, order in ipairs { { 1, 2 }, { 2, 1 } } do
         local two = { { type = 'ByteFallback' }, { type = 'Metaspace', replacement = '▁',
            prepend_scheme = 'always', split = true } }
         fs.write('spec', folder .. '/bytes.json', json.encode { version = '1.0',
            decoder = { type = 'Sequence', decoders = { two[order[1]], two[order[2]] } },
            model = { type = 'BPE', byte_fallback = true, merges = json.array {},
               vocab = { ['<0x41>'] = 0, ['▁b'] = 1, c = 2 } } })
         local tok = tide.tokenizer.load(folder .. '/bytes.json')
         for text, ids in each { ['A b'] = { 0, 1 }, ['bA b'] = { 1, 0, 1 }, ['b b'] = { 1, 1 },
            ['AA b'] = { 0, 0, 1 } } do                -- as the package tokenizers
            assert.equal(text, tok:decode(ids))
         end
      end
   end)
end)

describe('a decoder of BPE', function()
   it('ends a word where its suffix stands', function()
      fs.write('spec', folder .. '/suffix.json', json.encode { version = '1.0',
         decoder = { type = 'BPEDecoder', suffix = '</w>' }, model = { type = 'WordLevel',
            vocab = { ['<unk>'] = 0, ['ab</w>'] = 1, c = 2, ['d</w>'] = 3 },
            unk_token = '<unk>' } })
      assert.equal('ab cd', tide.tokenizer.load(folder .. '/suffix.json'):decode { 1, 2, 3 })
   end)
end)

describe('a pre-tokenizer of fixed length', function()
   it('cuts text into as many characters', function()
      fs.write('spec', folder .. '/fixed.json', json.encode { version = '1.0',
         pre_tokenizer = { type = 'FixedLength', length = 2 }, model = { type = 'WordLevel',
            vocab = { ['<unk>'] = 0, ['aé'] = 1, ['世b'] = 2, ['\n '] = 3, c = 4 },
            unk_token = '<unk>' } })
      local tok = tide.tokenizer.load(folder .. '/fixed.json')
      assert.same({ 1, 2, 3, 4 }, (tok:encode 'aé世b\n c'))
      assert.same({ 0, 4 }, (tok:encode 'cac'))
   end)
end)

describe('a step of a tokenizer.json', function()
   local rows = json.decode(fs.read('spec', 'spec/golden/steps.json'))

   -- The texts of the tokens of a text, for a tokenizer of one word for each of `words`.
   local function pieces(field, node, text, words)
      local vocab, names = { ['<unk>'] = 0 }, { [0] = '<unk>' }
      for i, word in ipairs(words) do
         if not vocab[word] then vocab[word], names[i] = i, word end
      end
      fs.write('spec', folder .. '/step.json', json.encode { version = '1.0', [field] = node,
         model = { type = 'WordLevel', vocab = vocab, unk_token = '<unk>' } })
      local out = {}
      for i, id in ipairs((tide.tokenizer.load(folder .. '/step.json'):encode(text))) do
         out[i] = names[id]
      end
      return out
   end

   it('gives what tokenizers gives', function()
      for _, row in ipairs(rows.normalizer) do
         assert.same({ row[3] }, pieces('normalizer', row[1], row[2], { row[3] }),
            json.encode(row[1]))
      end
      for _, row in ipairs(rows.pre_tokenizer) do
         assert.same(row[3], pieces('pre_tokenizer', row[1], row[2], row[3]), json.encode(row[1]))
      end
   end)
end)
