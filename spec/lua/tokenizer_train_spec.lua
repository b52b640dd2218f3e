-- Training of tokenizers, and the ids of a corpus that pretraining keeps.

local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local tide = require 'tide'

local json = fs.io().json
local folder = os.tmpname()
os.remove(folder)
fs.io().mkdir(folder)

teardown(function() os.execute("rm -rf '" .. folder .. "'") end)

describe('training', function()
   -- The merges of words (text -> how often) by counting all pairs each time; ids are texts.
   local function counted(counts, most, id_of)
      local words, merges = {}, {}
      for text, n in each(counts) do
         local word = {}
         for c in text:gmatch '.' do word[#word + 1] = c == ' ' and 'Ġ' or c end
         words[#words + 1] = { word, n }
      end
      while #merges < most do
         local pairs_, best = {}, nil
         for _, w in ipairs(words) do
            for i = 1, #w[1] - 1 do
               local key = w[1][i] .. ' ' .. w[1][i + 1]
               pairs_[key] = pairs_[key] or { w[1][i], w[1][i + 1], 0 }
               pairs_[key][3] = pairs_[key][3] + w[2]
            end
         end
         for _, p in each(pairs_) do
            local a, b = id_of[p[1]], id_of[p[2]]
            if not best or p[3] > best[3] or p[3] == best[3]
               and (a < id_of[best[1]] or a == id_of[best[1]] and b < id_of[best[2]]) then
               best = p
            end
         end
         if not best or best[3] < 2 then return merges end
         merges[#merges + 1] = { best[1], best[2] }
         for _, w in ipairs(words) do
            local out, i = {}, 1
            while i <= #w[1] do
               if w[1][i] == best[1] and w[1][i + 1] == best[2] then
                  out[#out + 1], i = best[1] .. best[2], i + 2
               else
                  out[#out + 1], i = w[1][i], i + 1
               end
            end
            w[1] = out
         end
      end
      return merges
   end

   it('joins what counting all pairs anew joins, in random words', function()
      local train = require 'tide.tokenizer.train'
      math.randomseed(11)
      for case = 1, 12 do
         local list, counts = {}, {}
         for i = 1, 60 do
            local letters = {}
            for k = 1, math.random(1, 5) do
               letters[k] = string.char(96 + math.random(1, 3 + case))
            end
            list[i] = table.concat(letters)
            local word = i == 1 and list[i] or ' ' .. list[i]
            counts[word] = (counts[word] or 0) + 1
         end
         local special = { '<s>', '<t>', '<u>' }
         local value = train.bpe({ table.concat(list, ' ') }, { vocab_size = 256 + 3 + case * 3,
            special = special })
         local merges = {}
         for i, m in ipairs(value.model.merges) do merges[i] = { unpack(m) } end
         assert.same(counted(counts, case * 3, value.model.vocab), merges)
         for i, text in ipairs(special) do assert.equal(i - 1, value.model.vocab[text]) end
         assert.equal(3, value.model.vocab['Ā'])
         for i, m in ipairs(merges) do assert.equal(258 + i, value.model.vocab[m[1] .. m[2]]) end
      end
   end)

   it('counts a text of several parts as one, and words of 2 to 256 bytes', function()
      local train = require 'tide.tokenizer.train'
      local function merges(text, more)
         local o = { vocab_size = 262, min_count = 1 }
         for k, v in each(more or {}) do o[k] = v end
         local list = {}
         for i, m in ipairs(train.bpe({ text }, o).model.merges) do
            list[i] = m[1] .. ' ' .. m[2]
         end
         return table.concat(list, '|')
      end
      local line = ('a'):rep(150) .. ' b' .. ('c'):rep(47) .. '\n'
      local long = line:rep(5500)                            -- more than 2^20 bytes
      assert.equal(merges(line), merges(long))
      assert.equal('a a', merges(long, { min_count = 149 * 5500 }))
      assert.equal('', merges(long, { min_count = 149 * 5500 + 1 }))
      assert.equal('a a', merges(('a'):rep(256), { vocab_size = 258 }))
      for _, text in ipairs { ('a'):rep(257), 'a', '', 'a b' } do
         assert.equal('', merges(text, { vocab_size = 258, pattern = '\\S+|\\s' }))
      end
      assert.equal('', merges('ab ab', { vocab_size = 257 }))
      assert.matches('vocab_size', require 'spec.support.raised'(train.bpe, { 'a' },
         { vocab_size = 256 }).message, 1, true)
      assert.matches('text 2: byte 3 is not UTF-8', require 'spec.support.raised'(train.bpe,
         { 'a', 'ab\255' }, { vocab_size = 300 }).message, 1, true)
      assert.matches('b.txt: byte 3 is not UTF-8', require 'spec.support.raised'(train.bpe,
         { 'a', 'ab\255' }, { names = { 'a.txt', 'b.txt' } }).message, 1, true)
   end)

   it('joins the most frequent pairs and writes a file that is loaded', function()
      local train = require 'tide.tokenizer.train'
      local text = ('low lower lowest newer newest\n'):rep(20)
      local value = train.bpe({ text }, { vocab_size = 270, special = { '<|end|>' } })
      assert.same({ 'w', 'e' }, { unpack(value.model.merges[1]) })
      train.save(value, folder .. '/trained')
      local tok = tide.tokenizer.load(folder .. '/trained')
      assert.equal(270, tok.vocab_size)
      assert.equal(0, tok.eos)
      assert.equal(text, tok:decode(tok:encode(text)))
      assert.is_true(#tok:encode(text) < #text / 2)
      assert.equal(json.encode(value), json.encode(train.bpe({ text }, { vocab_size = 270,
         special = { '<|end|>' } })))
   end)
end)

describe('ids of a corpus', function()
   it('are kept by the hashes of text and tokenizer, and made anew when damaged', function()
      local encoder = require 'tide.data.encoder'
      local tok = tide.tokenizer.load(folder .. '/trained')
      local cache = folder .. '/cache'
      local code = encoder.of(tok, cache)
      local ids = code.encode('x', 'lower and lower')
      assert.equal(1, #fs.list('spec', cache))
      assert.equal(ids, code.encode('x', 'lower and lower'))
      local file = cache .. '/' .. fs.list('spec', cache)[1]
      fs.write('spec', file, 'damaged damaged damaged')
      assert.equal(ids, code.encode('x', 'lower and lower'))
      code.encode('x', 'lower and lowe')
      assert.equal(2, #fs.list('spec', cache))
   end)
end)
