-- The models that files of tokenizers describe: messages of sentencepiece, vocabularies of tiktoken
-- and tekken, the parts of a tokenizer.json; what they hold, and how damaged ones are refused.

local each = require 'tide.util.each'
local ffi = require 'ffi'
local fs = require 'tide.util.fs'
local published = require 'tide.tokenizer.published'
local raised = require 'spec.support.raised'
local sentencepiece = require 'tide.tokenizer.sentencepiece'
local tide = require 'tide'
local tiktoken = require 'tide.tokenizer.tiktoken'
local tmp = require 'spec.support.tmp'

local json = fs.io().json

-- ---- sentencepiece -----------------------------------------------------------------------------

local function varint(n)
   local out = {}
   repeat
      local low = n % 128
      n = (n - low) / 128
      out[#out + 1] = string.char(n > 0 and low + 128 or low)
   until n == 0
   return table.concat(out)
end
local function number(key, n) return varint(key * 8) .. varint(n) end
local function text(key, s) return varint(key * 8 + 2) .. varint(#s) .. s end

-- A piece { text, score, kind }.
local function piece(row)
   return text(1, text(1, row[1]) .. '\21' .. ffi.string(ffi.new('float[1]', row[2] or 0), 4)
      .. number(3, row[3] or 1))
end

local function model_of(rows, trainer, normalizer)
   local parts = {}
   for i, row in ipairs(rows) do parts[i] = piece(row) end
   return table.concat(parts) .. text(2, trainer or number(3, 1)) .. text(3, normalizer or '')
end

local special = { { '<unk>', 0, 2 }, { '<s>', 0, 3 }, { '</s>', 0, 3 } }

local function with_special(rows)
   local all = { unpack(special) }
   for _, row in ipairs(rows) do all[#all + 1] = row end
   return all
end

describe('a message of sentencepiece', function()
   it('has scores of 32 bits and texts of any length', function()
      math.randomseed(7)
      local rows, want = {}, ffi.new 'float[60]'
      for i = 1, 60 do
         local score = math.random() * 10 ^ math.random(-45, 38) * (i % 2 * 2 - 1)
         if i <= 4 then score = ({ 0, -1, 1.5, -1e-45 })[i] end
         rows[i] = { ('x'):rep(({ 1, 117, 118, 119, 127, 128, 129, 16384 })[i % 8 + 1] + i), score }
         want[i - 1] = score
      end
      local d = sentencepiece.describe(model_of(rows))
      for i, row in ipairs(rows) do
         assert.equal(row[1], d.pieces[i])
         assert.equal(tonumber(want[i - 1]), d.scores[i])
      end
   end)

   it('passes over fields that are not read, of each kind', function()
      local extra = number(9, 300) .. text(10, 'abc') .. '\89' .. ('8'):rep(8) .. '\101abcd'
      local d = sentencepiece.describe(extra .. model_of(with_special { { 'a', -1 } }) .. extra)
      assert.same({ '', '', '', 'a' }, d.pieces)
      for _, bad in ipairs { '\91', '\92', '\90\5abcd', '\89' .. ('8'):rep(7), '\101abc',
         '\8' .. ('\128'):rep(10), '\8\128', '\10', number(1, 5), text(2, text(3, 'a')) } do
         local e = raised(sentencepiece.describe, model_of(special) .. bad)
         assert.matches('the file of sentencepiece is damaged', e.message, 1, true)
      end
      assert.matches('is damaged', raised(sentencepiece.describe, text(2, '')).message)
   end)

   it('says what a text begins and ends with, and its special tokens', function()
      local function described(kind, more)
         local d, names = sentencepiece.describe(model_of(with_special { { 'a', -1 } },
            number(3, kind) .. (more or '')))
         return { d.before, d.after, names.bos_token, names.eos_token, names.unk_token, d.unk }
      end
      assert.same({ { 1 }, {}, '<s>', '</s>', '<unk>', 0 }, described(2))
      assert.same({ {}, { 2 }, '<s>', '</s>', '<unk>', 0 }, described(1))
      local none = ('\255'):rep(9) .. '\1'                   -- -1: the model has no such token
      assert.same({ {}, {}, nil, '</s>', '<unk>', 0 },
         described(2, varint(41 * 8) .. none))
      assert.same({ {}, {}, '<s>', nil, 'a', 3 },
         described(1, varint(42 * 8) .. none .. number(40, 3)))
      assert.same({ { 2 }, {}, '</s>', '<s>', '<unk>', 0 },
         described(2, number(41, 2) .. number(42, 1)))
      for kind, words in each { [3] = 'words or characters', [4] = 'words or characters' } do
         assert.matches(words, raised(described, kind).message, 1, true)
      end
      assert.matches('white space as suffix', raised(described, 1, number(24, 1)).message, 1, true)
   end)

   it('ranks pieces by score, equal ones alike', function()
      math.randomseed(8)
      local rows = {}
      for i = 1, 40 do rows[i] = { 'p' .. i, -math.random(1, 9), i % 5 == 0 and 4 or 1 } end
      local d = sentencepiece.describe(model_of(rows, number(3, 2)))
      for i, row in ipairs(rows) do
         local above = {}
         for _, other in ipairs(rows) do
            if other[3] == 1 and other[2] > row[2] then above[other[2]] = true end
         end
         local n = 0
         for _ in each(above) do n = n + 1 end
         assert.equal(row[3] == 1 and n or -1, d.ranks[i])
      end
      assert.is_nil(d.scores)
   end)

   it('has steps as its flags say', function()
      local function kinds(normalizer)
         local d = sentencepiece.describe(model_of(special, nil, normalizer))
         local list = {}
         for i, s in ipairs(d.normal) do list[i] = s.kind .. ' ' .. (s.what or s.with) end
         return table.concat(list, '|')
      end
      assert.equal('replace \\A +|[ ▁]+\\z|replace  {2,}|prepend  |replace  ', kinds(''))
      assert.equal('prepend  |replace  ', kinds(number(4, 0)))
      assert.equal('replace \\A +|[ ▁]+\\z|replace  {2,}|replace  ', kinds(number(3, 0)))
      assert.equal('replace \\A +| +\\z|replace  {2,}|prepend  ', kinds(number(5, 0)))
      assert.equal('charsmap abc|prepend  ',
         kinds(text(2, 'abc') .. number(4, 0) .. number(5, 0)))
      local d = sentencepiece.describe(model_of(special, number(3, 1) .. number(35, 1)))
      assert.same({ true, true, true }, { d.flags.byte_fallback, d.flags.fuse_unk,
         d.flags.f32_scores })
      assert.is_false(sentencepiece.describe(model_of(special)).flags.byte_fallback)
   end)

   it('loses the marks at the end of a text with the spaces there', function()
      tmp.with(function(dir)
         for _, kind in ipairs { 1, 2 } do
            local rows = with_special { { '▁a', -1 }, { 'a', -2 }, { '▁', -3 } }
            fs.write('spec', dir .. '/tokenizer.model', model_of(rows, number(3, kind)))
            local tok = tide.tokenizer.load(dir .. '/tokenizer.model')
            local function ids(s)
               return table.concat(tok:encode(s, { add_special_tokens = false }), ' ')
            end
            for _, s in ipairs { 'a', 'a▁▁', 'a ▁ ▁', 'a▁ ', ' a  ▁' } do
               assert.equal('3', ids(s), s)
            end
            for _, s in ipairs { '▁▁', '▁', '▁ ', '  ' } do assert.equal('', ids(s), s) end
            assert.equal('5 3', ids '▁a ▁')
         end
      end)
   end)

   it('finds special tokens and symbols of the user, each at its place', function()
      for kind, is_piece in each { [1] = true, [2] = false } do
         local d = sentencepiece.describe(model_of(with_special { { 'a▁b', -1, 4 },
            { 'c', -2, 5 }, { '<0x41>', 0, 6 }, { 'd', -3 }, { ' e ', -1, 4 } }, number(3, kind)))
         assert.same({ { '<unk>', '<unk>', 0, true }, { '<s>', '<s>', 1, true },
            { '</s>', '</s>', 2, true }, { 'a▁b', is_piece and '' or 'a▁b', 3, nil } },
            { { d.added[1].text, d.added[1].find, d.added[1].id, d.added[1].special },
               { d.added[2].text, d.added[2].find, d.added[2].id, d.added[2].special },
               { d.added[3].text, d.added[3].find, d.added[3].id, d.added[3].special },
               { d.added[4].text, d.added[4].find, d.added[4].id, d.added[4].special } })
         assert.is_true(d.added[4].normalized and d.added[5].normalized)
         assert.same({ '', '', '', is_piece and 'a▁b' or '', '', '<0x41>', 'd',
            is_piece and ' e ' or '' }, d.pieces)
         assert.same({ '<unk>', '<s>', '</s>', 'a▁b', 'c', '<0x41>', 'd', ' e ' }, d.names)
         if is_piece then assert.near(0.1 * 5 - 0.1, d.scores[4], 1e-9) end
      end
   end)
end)

describe('a tokenizer.model of sentencepiece', function()
   -- A map of one rule, the mark to a blank, as nmt_nfkc has it: a double array, then the blank.
   local function mark_to_blank()
      local units, at = ffi.new 'uint32_t[769]', 0
      -- the child of a unit lies at `behind` xor its byte, its value at `behind`
      local function unit(label, behind)
         units[at] = label + bit.bxor(at, behind) * 1024
         return behind
      end
      local behind = unit(0, 1)
      for i, label in ipairs { 0xE2, 0x96, 0x81 } do
         at = bit.bxor(behind, label)
         behind = unit(label + (i == 3 and 256 or 0), 256 * i)
      end
      units[behind] = 0x80000000
      local size = ffi.sizeof(units)
      return string.char(size % 256, math.floor(size / 256), 0, 0) .. ffi.string(units, size)
         .. ' \0'
   end

   -- Returns the names of the tokens of a text.
   local function tokens(rows, kind, normalizer, said)
      local names = {}
      tmp.with(function(dir)
         fs.write('spec', dir .. '/tokenizer.model', model_of(with_special(rows), number(3, kind)
            .. number(35, 1), normalizer))
         local tok = tide.tokenizer.load(dir)
         for i, id in ipairs((tok:encode(said, { add_special_tokens = false }))) do
            names[i] = tok:token(id)
         end
      end)
      return table.concat(names, '|')
   end

   it('takes the name of a byte as text, not as that byte', function()
      local rows = { { '<0x41>', 0, 6 } }
      for c in ('<0x41>'):gmatch '.' do rows[#rows + 1] = { c, -2 } end
      local plain = number(3, 0)                           -- no dummy prefix
      assert.equal('<|0|x|4|1|>|<0x41>', tokens(rows, 1, plain, '<0x41>A'))
   end)

   it('finds a symbol of the user that holds blanks whose mark is changed', function()
      local rows = { { '▁▁', 0, 4 }, { '▁', -1 }, { 'a', -1 } }
      local map = mark_to_blank()
      for kind = 1, 2 do
         local keeps = text(2, map) .. number(4, 0)        -- blanks; one is put in front
         assert.equal('▁▁|a|▁▁|a', tokens(rows, kind, keeps, ' a  a'))
      end
   end)
end)

-- ---- tiktoken and tekken -----------------------------------------------------------------------

local digits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'

-- A file of n ranks: pieces of three bytes.
local function ranks_file(n)
   local lines = {}
   for i = 0, n - 1 do
      local a, b, c = math.floor(i / 4096) % 64, math.floor(i / 64) % 64, i % 64
      lines[i + 1] = ('A%s%s%s %d'):format(digits:sub(a + 1, a + 1), digits:sub(b + 1, b + 1),
         digits:sub(c + 1, c + 1), i)
   end
   return table.concat(lines, '\n')
end

describe('a vocabulary of tiktoken', function()
   local function added(n, config)
      local d, names = tiktoken.describe(ranks_file(n), 'x', config or {})
      local list = {}
      for i, token in ipairs(d.added) do list[i] = token.id .. token.text end
      return table.concat(list, ' '), d, names
   end

   it('has the special tokens that its size says', function()
      local list, d, names = added(50256)
      assert.equal('50256<|endoftext|>', list)
      assert.equal('<|endoftext|>', names.eos_token)
      assert.same({ 50257, '', -1, 7 }, { #d.pieces, d.pieces[50257], d.ranks[50257], d.ranks[8] })
      assert.same({ {}, {} }, { d.before, d.after })
      list, d = added(50257)
      assert.equal('', list)
      assert.equal(50257, #d.pieces)
      list, d = added(100256)
      assert.equal('100257<|endoftext|> 100258<|fim_prefix|> 100259<|fim_middle|> '
         .. '100260<|fim_suffix|> 100276<|endofprompt|>', list)
      assert.same({ 100277, '', -1 }, { #d.pieces, d.pieces[100270], d.ranks[100270] })
      assert.equal('a', d.words[1].what:match '%?i:\'s|\'t|\'re|\'ve|\'m|\'ll|\'d%)|.' and 'a')
   end)

   it('has a pattern and special tokens of its own in tokenizer_config.json', function()
      local list, d = added(10, { pat_str = '\\s+', added_tokens_decoder = {
         ['12'] = { content = 'b' }, ['10'] = { content = 'a' } } })
      assert.equal('10a 12b', list)
      assert.same({ '\\p{White_Space}+', 13, '' }, { d.words[1].what, #d.pieces, d.pieces[12] })
      assert.same({ '\0\0\8', 8, '\0\0\9', 9 },
         { d.pieces[9], d.ranks[9], d.pieces[10], d.ranks[10] })
      assert.matches('x has 10 pieces', raised(added, 10).message, 1, true)
      for config, words in each { [{ pat_str = 5 }] = 'pat_str: expected a text, got 5',
         [{ pat_str = '', added_tokens_decoder = { a = {} } }] = 'added_tokens_decoder.a',
         [{ pat_str = '', added_tokens_decoder = { a = { content = 'a' } } }]
            = 'expected an integer in [0, 4194303], got nothing' } do
         assert.matches(words, raised(added, 10, config).message, 1, true)
      end
   end)

   it('is refused where a line is damaged or missing', function()
      local function message(lines)
         return raised(tiktoken.describe, lines, 'x', { pat_str = 'a' }).message
      end
      for lines, words in each { ['AAAA 0\nAAA 1'] = 'line 2 is no piece',
         ['AAAA x'] = 'line 1 is no piece', ['AAAA 0\nAAAA 4194304'] = 'line 2 is no piece',
         ['AAAA 0\nAAAB 2'] = 'no line has the rank 1',
         ['AAAA 1\nAAAB 2'] = 'no line has the rank 0' } do
         assert.matches(words, message(lines), 1, true)
      end
      local d = tiktoken.describe('AAAA 0\r\n= 1\nAAAB 2', 'x', { pat_str = 'a' })
      assert.same({ '\0\0\0', '', '\0\0\1' }, d.pieces)
   end)
end)

describe('a tekken.json', function()
   local function value(more, rows)
      local vocab = json.array {}
      for i = 1, 5 do vocab[i] = { rank = i - 1, token_bytes = 'AAA' .. digits:sub(i, i) } end
      for i, row in each(rows or {}) do vocab[i] = row end
      local config = { pattern = 'a', default_vocab_size = 24, default_num_special_tokens = 20 }
      for k, v in each(more or {}) do config[k] = v end
      return { vocab = vocab, config = config }
   end

   it('has special tokens in front, by name, and the pieces that its size says', function()
      local v = value()
      v.special_tokens = { { rank = 2, token_str = '<end>' }, { rank = 19, token_str = '<x>' } }
      local d, names = tiktoken.tekken(v)
      assert.same({ 24, '', -1, '\0\0\0', 0, '\0\0\3', 3 }, { #d.pieces, d.pieces[20], d.ranks[20],
         d.pieces[21], d.ranks[21], d.pieces[24], d.ranks[24] })
      assert.same({ 20, '<unk>', 0, '<end>', 2, '<SPECIAL_17>', 17, '<x>', 19 }, { #d.added,
         d.added[1].text, d.added[1].id, d.added[3].text, d.added[3].id, d.added[18].text,
         d.added[18].id, d.added[20].text, d.added[20].id })
      assert.same({ bos_token = '<s>', eos_token = '<end>', unk_token = '<unk>' }, names)
      assert.same({ { 1 }, {}, true }, { d.before, d.after, d.added[1].special })
      assert.equal(25, #tiktoken.tekken(value { default_vocab_size = 99 }).pieces)
   end)

   it('is refused where an entry is damaged', function()
      for i, row in ipairs { 5, { rank = 1 }, { rank = 1, token_bytes = 'AAAA' },
         { rank = 3, token_bytes = 'AAA' } } do
         assert.equal(('entry %d of vocab is damaged'):format(i),
            raised(tiktoken.tekken, value(nil, { [i] = row })).message)
      end
      assert.matches('config.pattern', raised(tiktoken.tekken, value { pattern = 5 }).message, 1,
         true)
   end)
end)

-- ---- tokenizer.json ----------------------------------------------------------------------------

describe('the model of a tokenizer.json', function()
   local function describe_(model, more)
      local t = { model = model }
      for k, v in each(more or {}) do t[k] = v end
      return published.describe(t)
   end
   local vocab = { a = 0, b = 1, ab = 4, ['##b'] = 2, ['<unk>'] = 3, ['a##b'] = 6 }

   it('has pieces by id, flags and merges in both forms', function()
      local d = describe_ { type = 'BPE', vocab = vocab, unk_token = '<unk>', merges = { 'a b',
         { 'a', 'b' } }, byte_fallback = true, fuse_unk = false, ignore_merges = 1,
         end_of_word_suffix = '', continuing_subword_prefix = json.null and nil }
      assert.same({ 'a', 'b', '##b', '<unk>', 'ab', '', 'a##b' }, d.pieces)
      assert.same({ 0, 1, 4, 0, 1, 4 }, d.merges)
      assert.same({ 3, true, false, false }, { d.unk, d.flags.byte_fallback, d.flags.fuse_unk,
         d.flags.ignore_merges })
      assert.same({ nil, nil, d.pieces }, { d.prefix, d.suffix, d.names })
      d = describe_ { vocab = vocab, merges = { 'a ##b' }, continuing_subword_prefix = '##',
         end_of_word_suffix = '</w>' }
      assert.same({ 'BPE', '##', '</w>' }, { d.model, d.prefix, d.suffix })
      assert.same({ 0, 2, 4 }, d.merges)
      d = describe_ { vocab = vocab }
      assert.same({ 'WordPiece', '##', 100 }, { d.model, d.prefix, d.most })
      d = describe_ { type = 'WordPiece', vocab = vocab, unk_token = 'a',
         max_input_chars_per_word = 7, continuing_subword_prefix = '' }
      assert.same({ 0, '', 7 }, { d.unk, d.prefix, d.most })
      d = describe_ { type = 'WordLevel', vocab = vocab }
      assert.equal(3, d.unk)
      d = describe_ { vocab = { { 'a', -1 }, { 'b', -2.5 } }, unk_id = 1, byte_fallback = true }
      assert.same({ 'Unigram', 1, { 'a', 'b' }, { -1, -2.5 }, true }, { d.model, d.unk, d.pieces,
         d.scores, d.flags.byte_fallback })
   end)

   it('is refused with what is damaged', function()
      for words, model in each {
         ["merge 1: expected two pieces that make a piece, got 'b' and 'a'"] = { type = 'BPE',
            vocab = vocab, merges = { 'b a' } },
         ["merge 2: expected two pieces that make a piece, got 'a' and 'x'"] = { type = 'BPE',
            vocab = vocab, merges = { 'a b', { 'a', 'x' } } },
         ['merge 1: expected two pieces that make a piece, got 5'] = { type = 'BPE', vocab = vocab,
            merges = { 5 } },
         ['merge 1: expected two pieces that make a piece, got "ab"'] = { type = 'BPE',
            vocab = vocab, merges = { 'ab' } },
         ['merge 1: expected two pieces that make a piece, got a table'] = { type = 'BPE',
            vocab = vocab, merges = { { 1, 'a' } } },
         ['entry 2 of the vocabulary is no pair'] = { type = 'Unigram', vocab = { { 'a', 1 }, 5 } },
         ['entry 1 of the vocabulary is no pair'] = { type = 'Unigram', vocab = { { 5, 1 } } },
         ['entry 3 of the vocabulary is no pair'] = { type = 'Unigram',
            vocab = { { 'a', 1 }, { 'b', 1 }, { 'a', 'b' } } },
         ["the id of piece \"a\": expected an integer in [0, 4194303], got -1"]
            = { type = 'WordLevel', vocab = { a = -1 } },
         ['model.dropout: merges that are left out at random are not supported, got 0.1']
            = { type = 'BPE', vocab = vocab, dropout = 0.1 },
         ["model 'Odd' is not supported"] = { type = 'Odd' } } do
         local function plain(t) return (t:gsub('[\'"]', '')) end
         assert.matches(plain(words), plain(raised(describe_, model).message), 1, true)
      end
      assert.equal('tokenizer.json has no model', raised(published.describe, {}).message)
      assert.equal('tokenizer.json has no model', raised(published.describe, 5).message)
   end)

   it('takes bytes where the last step shows them and nothing is put around a piece', function()
      local steps = { pre_tokenizer = { type = 'ByteLevel' } }
      local function bytes(model, more)
         return describe_(model, more or steps).flags.bytes == true
      end
      local bpe = { type = 'BPE', vocab = { ['Ġ'] = 0, ['世'] = 1 } }
      assert.is_true(bytes(bpe))
      assert.same({ ' ', '' }, describe_(bpe, steps).pieces)
      assert.same({ 'Ġ', '世' }, describe_(bpe, steps).names)
      assert.is_false(bytes(bpe, {}))
      assert.is_false(bytes(bpe, { pre_tokenizer = { type = 'Digits' } }))
      assert.is_false(bytes { type = 'WordLevel', vocab = bpe.vocab })
      assert.is_false(bytes { type = 'BPE', vocab = bpe.vocab, end_of_word_suffix = 'x' })
      assert.is_false(bytes { type = 'BPE', vocab = bpe.vocab, continuing_subword_prefix = 'x' })
   end)

   it('has ids around a text', function()
      local function around(node)
         local d = describe_({ type = 'WordLevel', vocab = vocab }, { post_processor = node })
         return { d.before, d.after }
      end
      local template = { type = 'TemplateProcessing', single = { { SpecialToken = { id = 'C' } },
         { Sequence = { id = 'A' } }, { SpecialToken = { id = 'S' } },
         { SpecialToken = { id = 'C' } } },
         special_tokens = { C = { ids = { 1, 2 } }, S = { ids = { 3 } } } }
      assert.same({ { 1, 2 }, { 3, 1, 2 } }, around(template))
      for _, kind in ipairs { 'BertProcessing', 'RobertaProcessing' } do
         assert.same({ { 5 }, { 6 } }, around { type = kind, cls = { 'a', 5 }, sep = { 'b', 6 } })
      end
      assert.same({ {}, {} }, around { type = 'ByteLevel' })
      assert.same({ { 1, 2 }, { 3, 1, 2 } }, around { type = 'Sequence', processors = {
         { type = 'ByteLevel' }, template } })
      template.single[1].SpecialToken.id = 'Q'
      assert.equal("post_processor.single[1]: 'Q' is no token of the template",
         raised(around, template).message)
      template.special_tokens = nil
      assert.matches("'Q' is no token", raised(around, template).message, 1, true)
      assert.equal("post_processor 'Odd' is not supported",
         raised(around, { type = 'Odd' }).message)
   end)
end)

describe('the file of a tokenizer', function()
   local function json_of(more)
      local t = { version = '1.0',
         model = { type = 'WordLevel', vocab = { ['<unk>'] = 0, a = 1 } } }
      for k, v in each(more or {}) do t[k] = v end
      return json.encode(t)
   end

   it('is the first that a folder has, or the folder above', function()
      tmp.with(function(dir)
         local function put(name, bytes) fs.write('spec', dir .. '/' .. name, bytes) end
         local load, find = tide.tokenizer.load, tide.tokenizer.find
         fs.mkdirs('spec', dir .. '/sub/deep')
         assert.matches('there is no tokenizer.json, tokenizer.model, tekken.json or *.tiktoken in '
            .. dir, raised(load, dir).message, 1, true)
         assert.is_nil((find(dir .. '/sub')))
         assert.is_nil((find(dir .. '/none/x')))
         put('tokenizer_config.json', '{ "pat_str": "a" }')
         put('x.tiktoken', 'YQ== 0\nYg== 1\n')
         assert.equal('b', load(dir):token(1))
         put('tokenizer.model.v1', 'x')
         os.remove(dir .. '/x.tiktoken')
         assert.matches('tokenizer.model.v1 is neither a tokenizer.json, a tokenizer.model of',
            raised(load, dir).message, 1, true)
         put('tokenizer.json', json_of { added_tokens = { { content = '<x>', id = 9 } } })
         local tok, place = find(dir .. '/sub')
         fs.write('spec', dir .. '/sub/LATEST', 'step-00000001\n')       -- a run of its own
         assert.is_nil((find(dir .. '/sub')))
         os.remove(dir .. '/sub/LATEST')
         assert.same({ dir, 'a', '<x>', 10 }, { place, tok:token(1), tok:token(9), tok.vocab_size })
         assert.same({ 1, 9, nil }, { tok:id 'a', tok:id '<x>', tok:id 'b' })
         assert.is_nil(tok:token(5))
         assert.same({ dir }, { select(2, find(dir)) })
         assert.same({ dir }, { select(2, find(dir .. '/sub/')) })
         assert.same({ dir }, { select(2, find(dir .. '/none')) })
         assert.is_nil((find(dir .. '/sub/deep')))
         local hash = tok.hash
         put('tokenizer_config.json', '{ "pat_str": "b" }')
         assert.is_true(load(dir).hash ~= hash)
         assert.equal(load(dir).hash, load(dir .. '/tokenizer.json').hash)
      end)
   end)

   it('puts ids around a text at its ends', function()
      tmp.with(function(dir)
         fs.write('spec', dir .. '/tokenizer.json', json_of { post_processor = {
            type = 'BertProcessing', cls = { 'c', 7 }, sep = { 's', 8 } } })
         local ids, places = tide.tokenizer.load(dir):encode('a', { offsets = true })
         assert.same({ { 7, 1, 8 }, { { 1, 0 }, { 1, 1 }, { 2, 1 } } }, { ids, places })
      end)
   end)

   it('is named once in what is wrong with it', function()
      tmp.with(function(dir)
         local path = dir .. '/tokenizer.json'
         local function said(bytes)
            fs.write('spec', path, bytes)
            return raised(tide.tokenizer.load, path).message
         end
         assert.equal(path .. ": model 'Odd' is not supported",
            said '{ "model": { "type": "Odd" } }')
         assert.equal(path .. ' is neither a tokenizer.json nor a tekken.json', said '{ "a": 1 }')
         assert.equal(path .. ' is no object', said '5')
         assert.equal(path .. ' is neither a tokenizer.json nor a tekken.json',
            said '{ "vocab": [], "model": null }')
         fs.write('spec', dir .. '/x.tiktoken', 'YQ== 0\n')
         assert.matches('^' .. dir .. '/x.tiktoken has 1 pieces',
            raised(tide.tokenizer.load, dir .. '/x.tiktoken').message)
         assert.matches('cannot read ' .. dir .. '/none: there is no such file or folder',
            raised(tide.tokenizer.load, dir .. '/none').message, 1, true)
      end)
   end)
end)
