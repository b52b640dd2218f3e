-- Parts of tokenizers, each against a plain formula: decoders, repair of UTF-8, base64 and visible
-- bytes, patterns, checks of fields.

local tide = require 'tide'
local build = require 'tide.tokenizer.build'
local decoder = require 'tide.tokenizer.decoder'
local each = require 'tide.util.each'
local field = require 'tide.tokenizer.field'
local fs = require 'tide.util.fs'
local pattern = require 'tide.tokenizer.pattern'
local raised = require 'spec.support.raised'
local step = require 'tide.tokenizer.step'
local visible = require 'tide.tokenizer.visible'

local json = fs.io().json

local file = os.tmpname() .. '.json'

teardown(function() os.remove(file) end)

-- Returns the tokenizer of a value of JSON.
local function loaded(value)
   fs.write('spec', file, json.encode(value))
   return tide.tokenizer.load(file)
end

describe('a decoder of a tokenizer.json', function()
   it('gives the text that tokenizers gives, also token by token', function()
      for _, row in ipairs(json.decode(fs.read('spec', 'spec/golden/steps.json')).decoder) do
         local vocab, ids, n = { ['<unk>'] = 0 }, {}, 0
         for i, token in ipairs(row[2]) do
            if not vocab[token] then n, vocab[token] = n + 1, n + 1 end
            ids[i] = vocab[token]
         end
         local tok = loaded { version = '1.0', decoder = row[1],
            model = { type = 'WordLevel', vocab = vocab, unk_token = '<unk>' } }
         local stream, parts = tok:stream(), {}
         for i, id in ipairs(ids) do parts[i] = stream:push(id) end
         parts[#parts + 1] = stream:finish()
         local where = json.encode(row[1]) .. json.encode(row[2])
         assert.equal(row[3], tok:decode(ids), where)
         if row[1].type ~= 'BPEDecoder' then                -- which drops the last blank
            assert.equal(row[3], table.concat(parts), where)
         end
      end
   end)

   it('has defaults, and refuses what it cannot do', function()
      local function text(node, tokens)
         local d = decoder.compile(node)
         local tok = { description = { decoder = d }, is_special = {},
            token = function(_, id) return tokens[id] end }
         local ids = {}
         for i = 1, #tokens do ids[i] = i end
         return decoder.all(tok, ids, {})
      end
      assert.equal('a b', text({ type = 'Metaspace' }, { '▁a', '▁b' }))
      assert.equal(' a b', text({ type = 'Metaspace', add_prefix_space = false }, { '▁a', '▁b' }))
      assert.equal("ab c'm", text({ type = 'WordPiece' }, { 'a', '##b', "c", "'m" }))
      assert.equal('a b', text({ type = 'BPEDecoder' }, { 'a</w>', 'b</w>' }))
      assert.equal('a b', text(nil, { 'a', 'b' }))
      assert.equal('_a', text({ type = 'Sequence', decoders = { { type = 'Fuse' },
         { type = 'Strip', content = '_' } } }, { '_', 'a' }))
      local function after(first, node) return { type = 'Sequence', decoders = { first, node } } end
      local bytes, fuse = { type = 'ByteFallback' }, { type = 'Fuse' }
      local function replace(from, to)
         return { type = 'Replace', pattern = { String = from }, content = to }
      end
      -- as tokenizers 0.23: the bytes become a token before the rule behind them
      assert.equal('xEE', text(after(bytes, replace('e', 'E')), { 'x', '<0x65>', 'e' }))
      assert.equal('aa', text(after(bytes, { type = 'Metaspace' }), { '<0xE2>', '<0x96>', '<0x81>',
         'aa' }))
      assert.equal('_x_', text(after(fuse, replace('▁', '_')), { '▁x', '▁' }))
      assert.equal('a  ', text({ type = 'BPEDecoder' }, { 'a</w>', ' ' }))   -- a blank of its own
      assert.equal('a b', text({ type = 'Sequence', decoders = { { type = 'BPEDecoder' },
         { type = 'ByteLevel' } } }, { 'a</w>', 'b</w>' }))
      for words, node in each {
         ['Replace of several characters after Fuse'] = after(fuse, replace('ab', '')),
         ['Replace of several characters after ByteLevel'] = after({ type = 'ByteLevel' },
            replace('é', '')),
         ['decoder Metaspace after Fuse'] = after(fuse, { type = 'Metaspace' }),
         ['Strip with stop > 0'] = { type = 'Strip', content = '', stop = 1 },
         ['Strip before Fuse'] = { type = 'Strip', content = '', stop = 0 },
         ['Replace with a Regex'] = { type = 'Replace', pattern = { Regex = 'a' }, content = '' },
         ["decoder 'Odd' is not supported"] = { type = 'Odd' } } do
         assert.matches(words, raised(decoder.compile, node).message, 1, true)
      end
   end)
end)

describe('an added token', function()
   it('stands where tokenizers finds it: between words, and in white space', function()
      for _, row in ipairs(json.decode(fs.read('spec', 'spec/golden/steps.json')).added) do
         local flags, token, text, want = unpack(row)
         flags.content, flags.id, flags.special, flags.normalized = token, 1, false, false
         local tok = loaded { version = '1.0', added_tokens = { flags },
            model = { type = 'WordLevel', vocab = { x = 0 }, unk_token = 'x' } }
         assert.same(want, (tok:encode(text)), json.encode(row))
      end
   end)
end)

describe('repair of UTF-8', function()
   local alphabet = { 0x61, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0,
      0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF }
   local tails = { '\128', '\143', '\144', '\159', '\160', '\191' }

   -- Whether bytes begin a character: some bytes behind them make one.
   local function begins(s, more)
      if build.bad_utf8(s) == nil then return true end
      if more == 0 then return false end
      for _, tail in ipairs(tails) do
         if begins(s .. tail, more - 1) then return true end
      end
      return false
   end

   -- Replaces the longest beginnings of characters, as Python does; and what is open at the end.
   local function oracle(s)
      local out, at = {}, 1
      while at <= #s do
         local good
         for n = 1, math.min(4, #s - at + 1) do
            local part = s:sub(at, at + n - 1)
            if build.bad_utf8(part) == nil then
               good = part
               break
            end
         end
         if good then
            out[#out + 1], at = good, at + #good
         else
            local n = 1
            while n < 3 and at + n <= #s and begins(s:sub(at, at + n), 3 - n) do n = n + 1 end
            if at + n > #s and begins(s:sub(at), 3) then
               return table.concat(out) .. '�', table.concat(out), s:sub(at)
            end
            out[#out + 1], at = '�', at + n
         end
      end
      return table.concat(out), table.concat(out), ''
   end

   it('replaces the longest beginning of a character at a time, or keeps the last', function()
      math.randomseed(5)
      for _ = 1, 500 do
         local bytes = {}
         for i = 1, math.random(1, 6) do
            bytes[i] = string.char(alphabet[math.random(#alphabet)])
         end
         local s = table.concat(bytes)
         local all, head, rest = oracle(s)
         local where = ('%q'):format(s)
         assert.equal(all, (decoder.repair(s)), where)
         assert.same({ head, rest }, { decoder.repair(s, true) }, where)
         local parts, kept = {}, ''
         for i = 1, #s do parts[i], kept = decoder.repair(kept .. s:sub(i, i), true) end
         assert.equal(all, table.concat(parts) .. decoder.repair(kept), where)
      end
   end)
end)

describe('bytes as text', function()
   local digits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'

   it('are read from base64, and nothing else is', function()
      math.randomseed(6)
      for n = 0, 30 do
         local bytes, bits, out = {}, {}, {}
         for i = 1, n do
            local b = math.random(0, 255)
            bytes[i] = string.char(b)
            for k = 7, 0, -1 do bits[#bits + 1] = math.floor(b / 2 ^ k) % 2 end
         end
         for at = 1, #bits, 6 do
            local d = 0
            for k = 0, 5 do d = d * 2 + (bits[at + k] or 0) end
            out[#out + 1] = digits:sub(d + 1, d + 1)
         end
         local text = table.concat(out)
         assert.equal(table.concat(bytes), visible.base64(text .. ('='):rep(-#text % 4)))
      end
      for _, text in ipairs { 'A', 'AA', 'AAA', 'A===', '====', 'AA=A', 'A=AA', 'AAA.', 'AAA= ',
         'AAAAA', 'éAA', 'AA==AAAA' } do
         assert.is_nil(visible.base64(text), text)
      end
   end)

   it('are characters that can be seen, and back', function()
      local seen = {}
      for b = 0, 255 do
         local c = string.char(b)
         local shown = visible.chars(c)
         assert.equal(c, visible.bytes(shown))
         assert.is_nil(seen[shown])
         assert.equal(shown, visible.alphabet[b])
         assert.equal(b >= 33 and b <= 126, shown == c)
         seen[shown] = true
      end
      -- the first bytes that are not printable are U+0100 and on, in order
      assert.equal('ĀġĢĠ¡¬ŃÿńŁ', visible.chars '\0\127\128 \161\172\173\255' .. 'ńŁ')
      assert.is_nil(visible.bytes 'a世')
      assert.is_nil(visible.bytes 'Ġ世Ġ')
   end)
end)

describe('a pattern of a published file', function()
   it('has the classes of Unicode, outside and inside of brackets, and anchors at lines', function()
      local W = '\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}'
      local O = W .. '\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}'
      for from, to in each { ['\\s+'] = '\\p{White_Space}+', ['\\S'] = '\\P{White_Space}',
         ['\\w'] = '[' .. O .. ']', ['\\W'] = '[^' .. O .. ']', ['[\\s\\w]'] = '[\\p{White_Space}'
         .. W .. ']', ['[a]\\w'] = '[a][' .. O .. ']', ['[[:digit:]\\w]\\w'] = '[\\p{Nd}' .. W
         .. '][' .. O .. ']', [']\\w'] = '][' .. O .. ']',
         ['\\]\\w'] = '\\][' .. O .. ']', ['[\\]\\w]'] = '[\\]' .. W .. ']', ['\\d'] = '\\d',
         ['^a'] = '(?m)^a', ['a$'] = '(?m)a$', ['[^a$]'] = '[^a$]', ['\\^\\$'] = '\\^\\$',
         ['[a]$'] = '(?m)[a]$', ['a\\'] = 'a\\', ['[[:^digit:]]^'] = '(?m)[\\P{Nd}]^',
         ['[^\\S\\n]'] = '[^\\P{White_Space}\\n]',
         ['[]a]'] = '[\\]a]', ['\\p{Han}'] = '\\p{sc:Han}',
         ['\\p{^greek}'] = '\\P{sc:greek}', ['\\P{^L}'] = '\\p{L}', ['\\p{Punct}'] = '\\p{P}',
         ['[^\\p{Letter}]'] = '\\P{L}', ['\\h\\H'] = '[0-9A-Fa-f][^0-9A-Fa-f]',
         ['\\v'] = '[\\x{B}]', ['\\pL'] = 'pL', ['[\\pL]'] = '[pL]', ['\\u00e9[\\u4e00-\\u9fff]'] =
         '\\x{00e9}[\\x{4e00}-\\x{9fff}]',
         ['(?m:.)(?i-m)a'] = '(?s:.)(?i-s:a)', ['a{,2}'] = 'a{0,2}',
         ['(a|b){1,2}+'] = '(?:(a|b){1,2})+', ['[ab]{2}?c{1,2}?'] = '(?:[ab]{2})?c{1,2}?',
         ['a{}{,}'] = 'a{}{,}' } do
         assert.equal(to, pattern.translate(from), from)
      end
      assert.equal('\\p{Han}{1,3}+$\\pL', (pattern.translate('\\p{Han}{1,3}+$\\pL', true)
         :gsub('sc:', '')))
      assert.equal('\\^\\$\\(\\)\\.\\[\\]\\*\\+\\-\\?\\{\\}\\|\\\\\\#%a',
         (pattern.literal('^$().[]*+-?{}|\\#%a'):gsub('\\%%', '%%')))
   end)
end)

describe('a pattern of a tokenizer.json', function()
   -- Returns what a normalizer makes of a text by writing '+' for each match.
   local function marked(regex, text)
      return build.normalizer { normal = step.normal { type = 'Replace', content = '+',
         pattern = { Regex = regex } } }(text)
   end

   it('has the characters that Oniguruma gives to its sets', function()
      -- { pattern, text, text with '+' for each match }, from the tokenizers package 0.23.
      for _, row in ipairs {
         { '[\\W_]', 'a_ é\204\129²', 'a++é\204\129+' }, { '[^\\W\\d_]', 'a1_é\204\129', '+1_++' },
         { '[[:alpha:]]', 'aⅧ1-', '++1-' }, { '[[:punct:]]', '$.a😀', '++a+' },
         { '\\p{Punct}', '$.a😀', '$+a😀' }, { '[[:upper:]]', 'AaⅧ', '+a+' },
         { '[[:^space:]]', 'a b', '+ +' }, { '[a-z&&[^aeiou]]', 'abc]e', 'a++]e' },
         { '[^a[b]]', 'abc', 'ab+' }, { '[a[^b]]', 'abc', '+b+' }, { '[^a&&[^b]]', 'abc', 'a++' },
         { '[^(\\s|[.,])]', 'a(.x', '+(.+' }, { '\\p{Han}', '漢、ー', '+、ー' },
         { '\\b', 'a\204\129 b', '+a\204\129+ +b+' }, { '\\Bb', 'ab b\204\129b', 'a+ b\204\129+' },
         { 'x*', 'axb', '+a+b+' }, { '\\d{1,2}+', '123a', '+a' }, { '[]a]', 'a]b', '++b' },
         { 'a(?i)b|c', 'aB ac c', '+ + c' }, { '(a(?m).|c)b', 'a\nb cb c', '+ cb c' },
         { '[.a.]', 'a.b', '++b' }, { '\\x61{1,2}+b', 'aaab', '+' },
         { '\\x{61}{1,2}+b', 'aaab', '+' },
      } do assert.equal(row[3], marked(row[1], row[2]), row[1]) end
   end)

   it('is refused with a set that Rust has and Oniguruma has not', function()
      assert.matches('[:foo:] is not supported', raised(marked, '[[:foo:]]', 'a').message, 1, true)
      assert.matches('[:alpha:] is not', raised(pattern.translate, '[[:alpha:]]', true).message, 1,
         true)
      assert.matches('missing terminating ]', raised(marked, '[a', 'a').message, 1, true)
   end)

   it('cuts a text where it matches nothing, too', function()
      local vocab = { '?', 'ab', 'Cd x', 'Ef', '1', '234', '567', ' x', ' ', 'xE', 'x', 'E' }
      local ids = {}
      for i, text in ipairs(vocab) do ids[text] = i - 1 end
      local function words(regex, behavior, text, invert)
         local tok, out = loaded { model = { type = 'WordLevel', vocab = ids, unk_token = '?' },
            pre_tokenizer = { type = 'Split', pattern = { Regex = regex }, behavior = behavior,
               invert = invert } }, {}
         for i, id in ipairs(tok:encode(text)) do out[i] = tok:token(id) end
         return table.concat(out, '|')
      end
      for _, behavior in ipairs { 'Isolated', 'Removed', 'MergedWithPrevious', 'MergedWithNext',
         'Contiguous' } do
         assert.equal('ab|Cd x|Ef', words('(?=[A-Z])', behavior, 'abCd xEf'))
         assert.equal('1|234|567', words('(?=(\\d{3})+(?!\\d))', behavior, '1234567'))
      end
      assert.equal('', words('(?=[A-Z])', 'Removed', 'abCd', true))
      assert.equal(' x|E', words('x*', 'MergedWithPrevious', ' xE'))
      assert.equal(' |xE', words('x*', 'MergedWithNext', ' xE'))
      assert.equal(' |x|E', words('x*', 'Contiguous', ' xE'))
   end)

   it('is refused where case folding of several characters would count', function()
      for regex, part in each { ['(?i:ss)'] = 'ss', ['a(?i)b|xST'] = 'ST', ['(?i:ß)'] = 'ß',
         ['(?i:[aß])'] = 'ß', ['(?i:[[^b]])'] = '[^b]', ['(?i:[a[^b-d]])'] = '[^b-d]',
         ['(?i:j\u{30c})'] = false, ['(?i:(?-i:ss)ss)'] = 'ss', ['(?i:ǰ)'] = 'ǰ',
         ['(?i:j̆)'] = 'j̆' } do
         if part then
            local e = raised(pattern.translate, regex)
            assert.equal('E_UNSUPPORTED', e.code)
            assert.matches(("'%s' where case does not count"):format(part), e.message, 1, true)
         end
         pattern.translate(regex, true)
      end
      for _, regex in ipairs { "(?i:'s|'t|'re|'ve|'m|'ll|'d)", '(?i:s|s)', '(?-i:ss)', 'ss',
         '(?i:a)ss', '(?i:[^b])', '[[^b]]', '(?i:s*s)', '((?i)a)ss|ß' } do
         pattern.translate(regex)
      end
   end)

   it('puts a mark before the first word where a normalizer has left its beginning', function()
      local model = { type = 'WordLevel', unk_token = '?',
         vocab = { ['?'] = 0, a = 1, ['▁a'] = 2, ['▁'] = 3 } }
      local first = { type = 'Metaspace', replacement = '▁', prepend_scheme = 'first' }
      local tok = loaded { model = model, pre_tokenizer = first,
         normalizer = { type = 'Strip', strip_left = true, strip_right = true } }
      assert.same({ 2, 2 }, (tok:encode 'a a '))
      assert.same({ 1, 2 }, (tok:encode ' a a'))
      local ids, places = tok:encode(' a', { offsets = true })
      assert.same({ { 1 }, { { 2, 2 } } }, { ids, places })
      tok = loaded { model = model, pre_tokenizer = first, normalizer = { type = 'NFKC' } }
      assert.same({ 2, 2 }, (tok:encode 'ａ a'))
   end)

   it('has places of its own for neighbours that a normal form changes', function()
      local vocab = { ['?'] = 0 }
      for i, c in ipairs { 'f', 'i', '1', '2', 'é', 'ガ', 'ᄒ', 'ᅡ', 'ᆫ', 'a', '\u{301}' } do
         vocab[c] = i
      end
      local function load(form)
         return loaded { model = { type = 'BPE', vocab = vocab, merges = json.array {},
            unk_token = '?' }, normalizer = { type = form } }
      end
      local nfkc = load 'NFKC'
      for text, want in each { ['①２ﬁ'] = { { 3, 1, 3 }, { 4, 4, 6 }, { 1, 7, 9 }, { 2, 7, 9 } },
         ['e\u{301}ｶﾞ２'] = { { 5, 1, 3 }, { 6, 4, 9 }, { 4, 10, 12 } } } do
         local ids, places = nfkc:encode(text, { offsets = true })
         local got = {}
         for i, id in ipairs(ids) do got[i] = { id, places[i][1], places[i][2] } end
         assert.same(want, got)
      end
      local _, places = load 'NFD':encode('한한a', { offsets = true })
      assert.same({ { 1, 3 }, { 1, 3 }, { 1, 3 }, { 4, 6 }, { 4, 6 }, { 4, 6 }, { 7, 7 } }, places)
   end)

   it('leaves the beginning of a text without a mark where white space goes', function()
      local tok = loaded { model = { type = 'WordLevel', unk_token = '?',
         vocab = { ['?'] = 0, a = 1, ['▁a'] = 2 } }, pre_tokenizer = { type = 'Sequence',
         pretokenizers = { { type = 'WhitespaceSplit' },
            { type = 'Metaspace', replacement = '▁', prepend_scheme = 'first' } } } }
      assert.same({ 2, 1 }, (tok:encode 'a a'))
      assert.same({ 1, 1 }, (tok:encode ' a a'))
   end)
end)

describe('a field of a file', function()
   it('is refused with what was expected, unless it may be absent', function()
      local null, list = json.null, json.array {}
      for _, row in ipairs { { 'text', 5, 'a text, got 5' }, { 'text', nil, 'a text, got nothing' },
         { 'text?', list, 'a text, got a list' }, { 'flag', 'a', 'true or false, got "a"' },
         { 'id', 0.5, 'an integer in [0, 4194303], got 0.5' }, { 'id?', -1,
            'an integer in [0, 4194303], got -1' }, { 'list', {}, 'a list, got an object' },
         { 'list', null, 'a list, got null' }, { 'object', list, 'an object, got a list' },
         { 'object', { 1 }, 'an object, got a list' }, { 'object?', null,
            'an object, got null' }, { 'object', 'a', 'an object, got "a"' } } do
         assert.equal('here: expected ' .. row[3],
            raised(field.value, 'here', row[2], row[1]).message)
      end
      for kind, v in each { text = 'a', ['text?'] = 'a', flag = false, ['flag?'] = true, id = 0,
         list = list, ['list?'] = { 1 }, object = {}, ['object?'] = { a = 1 } } do
         assert.equal(v, field.value('here', v, kind))
      end
      assert.is_nil(field.value('here', nil, 'list?'))
      assert.equal('x.a: expected a text, got nothing',
         raised(field.check, 'x', {}, { a = 'text' }).message)
      assert.is_false(field.is_node('decoder', nil))
      assert.is_false(field.is_node('decoder', {}))
      assert.is_true(field.is_node('decoder', { type = 'a' }))
      assert.equal('decoder.type: expected a text, got 5',
         raised(field.is_node, 'decoder', { type = 5 }).message)
      assert.same({ bos_token = 'a', eos_token = 'b', x_token = 'y' }, field.token_texts({
         bos_token = 'a', eos_token = { content = 'b' }, pad_token = 5, unk = 'c', [1] = '_token',
         tokens = 'd', cls_token = { content = 1 } }, { x_token = 'y' }))
   end)
end)
