-- Token sources, windows and samplers of random sizes against plain loops over lists of ids.

local batch = require 'tide.data.batch'
local bytes = require 'tide.tokenizer.bytes'
local choice = require 'spec.deep.fuzz.choice'
local entropy = require 'tide.data.entropy'
local little = require 'tide.util.little'
local mixture = require 'tide.data.mixture'
local raised = require 'spec.support.raised'
local refused = require 'spec.support.refused'
local sampler = require 'tide.data.sampler'
local survey = require 'tide.data.survey'
local tmp = require 'spec.support.tmp'
local some = require('spec.lua.source_case').some
local tokens = require 'tide.data.tokens'
local write = require('spec.support.files').write

-- A source of these bytes: memory, a slice of more, or parts that are joined.
local function source_of(pick, text, width, mask)
   local n, form = #text / width, pick:int(1, 3)
   if form == 1 or n < 2 then return tokens.memory(text, width, mask) end
   if form == 2 then
      local before, after = pick:int(0, 3), pick:int(0, 3)
      local longer = tokens.memory(('x'):rep(before * width) .. text .. ('y'):rep(after * width),
         width, mask and ('\0'):rep(before) .. mask .. ('\1'):rep(after))
      return tokens.slice(longer, before, n)
   end
   local cut = pick:int(1, n - 1)
   return tokens.join {
      source_of(pick, text:sub(1, cut * width), width, mask and mask:sub(1, cut)),
      source_of(pick, text:sub(cut * width + 1), width, mask and mask:sub(cut + 1)) }
end

describe('a token source', function()
   it('gives the bytes and the mask of any range, whatever it is made of', function()
      for seed = 1, 30 do
         local pick = choice.drawn('source', seed)
         local width, n = pick:pick { 1, 2, 4 }, pick:int(1, 40)
         local _, text, mask = some(pick, n, width)
         local s = source_of(pick, text, width, mask)
         assert.same({ n, width }, { s.count, s.width })
         for _ = 1, 20 do
            local start = pick:int(0, n)
            local count = pick:int(0, n - start)
            assert.equal(text:sub(start * width + 1, (start + count) * width), s:raw(start, count))
            assert.equal(mask:sub(start + 1, start + count), s:mask(start, count))
         end
         for _, range in ipairs { { 0, n + 1 }, { n, 1 }, { -1, 1 }, { 1, n }, { 0, -1 } } do
            assert.equal('E_ARG', raised(s.raw, s, unpack(range)).code)
            assert.equal('E_ARG', raised(s.mask, s, unpack(range)).code)
         end
         assert.equal(tokens.fingerprint(tokens.memory(text, width, mask)), tokens.fingerprint(s))
      end
   end)

   it('counts every token of a part without a mask, and has none if no part has', function()
      local plain, marked = tokens.memory('abcd', 1), tokens.memory('efg', 1, '\0\1\0')
      assert.equal('\1\1\0\1', tokens.join({ plain, marked }):mask(2, 4))
      assert.equal('\0\1\0\1', tokens.join({ marked, plain }):mask(0, 4))
      assert.is_nil(tokens.join({ plain, plain }).mask)
      assert.is_nil(tokens.slice(plain, 1, 2).mask)
      assert.equal(marked, tokens.join { marked })
      refused('E_ARG', 'source 2 has tokens of 2 bytes, the others 1', tokens.join,
         { plain, tokens.memory('ab', 2) })
      refused('E_ARG', { "argument 'text'", 'a multiple of 2 bytes, got 3' }, tokens.memory, 'abc',
         2)
      refused('E_ARG', { "argument 'mask'", 'each of the 2 tokens, got 3' }, tokens.memory, 'abcd',
         2, '\1\1\1')
      assert.are_not.equal(tokens.fingerprint(marked),
         tokens.fingerprint(tokens.memory('efg', 1, '\0\1\1')))
   end)

   it('of a file is read as its header says, and else as ids of so many bytes', function()
      tmp.with(function(dir)
         local path = dir .. '/a.bin'
         local function head(magic, n)
            local text = little.write(magic, 4) .. little.write(1, 4) .. little.write(n, 4)
            return text .. ('\0'):rep(1024 - #text)
         end
         for magic, width in pairs { [20240520] = 2, [20240801] = 4 } do
            write(path, head(magic, 3) .. ('abcdefghijkl'):sub(1, 3 * width))
            for _, given in ipairs { 2, 4, false } do
               local f = tokens.file(path, { width = given or nil })
               assert.same({ 3, width, ('abcdefghijkl'):sub(width + 1, 3 * width) },
                  { f.count, f.width, f:raw(1, 2) })
               assert.equal('', f:raw(3, 0))
               f:close()
            end
            write(path, head(magic, 4) .. ('x'):rep(3 * width))
            refused('E_FORMAT', ('the header says 4 tokens of %d bytes, the file has %d bytes')
               :format(width, 3 * width), tokens.file, path)
            write(path, head(magic, 0))
            refused('E_FORMAT', 'a.bin is empty', tokens.file, path)
         end
         write(path, head(20240521, 2) .. 'abcd')
         assert.equal(514, tokens.file(path).count)
         write(path, 'abcdef')
         local f = tokens.file(path)
         write(path, 'ab')
         refused('E_IO', 'cannot read 2 tokens at 1', f.raw, f, 1, 2)
      end)
   end)

   it('of ids of 4 bytes is not taken for one of 2', function()
      tmp.with(function(dir)
         -- pairs of 2-byte numbers: how many, the larger of the first and of the second ones
         for _, row in ipairs { { 16, 1, 0, true }, { 15, 1, 0, false }, { 16, 0, 0, false },
            { 16, 4096, 15, true }, { 16, 4096, 16, false }, { 16, 4095, 15, false },
            { 40, 65535, 1, true }, { 40, 300, 0, true } } do
            local n, low, high, wide = unpack(row)
            local text = little.write(low, 2) .. little.write(high, 2)
            write(dir .. '/a.bin', text .. ('\0'):rep(4 * (n - 1)))
            assert.equal(not wide, (pcall(tokens.file, dir .. '/a.bin')), table.concat({ n, low,
               high }, ' '))
            write(dir .. '/a.bin', text .. ('\0'):rep(4 * (n - 1)) .. '\0\0')
            assert.is_true((pcall(tokens.file, dir .. '/a.bin')))
         end
      end)
   end)

   it('is surveyed and hashed in pieces, whose ends lose no token', function()
      for _, width in ipairs { 1, 2, 4 } do
         local n = 2 ^ 20 / width
         for _, at in ipairs { 0, n - 1, n, n + 2 } do
            local text = ('\1' .. ('\0'):rep(width - 1)):rep(n + 3)
            text = text:sub(1, at * width) .. '\7' .. text:sub(at * width + 2)
            local s = tokens.memory(text, width)
            assert.same({ 7, at }, { survey.largest(s) })
            local pieces = {}
            tokens.each_piece(s, function(start, part)
               pieces[#pieces + 1] = start .. '+' .. #part
            end)
            assert.same({ '0+1048576', n .. '+' .. 3 * width }, pieces)
         end
      end
      local places, last = {}, nil
      local large = { count = 2 ^ 26 + 2 ^ 20 + 5, width = 1, raw = function(_, start, n)
         places[#places + 1], last = start, n
         return ''
      end }
      tokens.each_piece(large, function() end)
      assert.equal(64, #places)
      assert.same({ 0, 2 ^ 20, 33 * 2 ^ 20, 64 * 2 ^ 20 },
         { places[1], places[2], places[33], places[64] })
      assert.equal(2 ^ 20, last)
      places = {}
      large.count = 2 ^ 26
      tokens.each_piece(large, function() end)
      assert.same({ 64, 63 * 2 ^ 20 }, { #places, places[64] })
   end)
end)

describe('windows of a source', function()
   it('are its ids, and as labels those one further on', function()
      for seed = 1, 20 do
         local pick = choice.drawn('windows', seed)
         local width, seq, B = pick:pick { 1, 2, 4 }, pick:int(1, 6), pick:int(1, 4)
         local ids, text, mask = some(pick, seq + pick:int(1, 20), width)
         local source = source_of(pick, text, width, pick:chance(0.5) and mask or nil)
         local starts, want = {}, { ids = {}, labels = {}, count = 0 }
         for b = 1, B do
            starts[b] = pick:int(0, #ids - seq - 1)
            want.ids[b], want.labels[b] = {}, {}
            for i = 1, seq do
               local at = starts[b] + i
               local counts = not source.mask or mask:byte(at + 1) == 1
               want.ids[b][i], want.labels[b][i] = ids[at], counts and ids[at + 1] or -100
               want.count = want.count + (counts and 1 or 0)
            end
         end
         local got = batch.make(source, starts, seq)
         assert.same({ want.ids, want.labels, want.count },
            { got.ids:tolist(), got.labels:tolist(), got.count })
         assert.same({ 'i64', true }, { got.ids.dtype, got.ids:is_contiguous() })
         assert.equal('null', batch.make(source, starts, seq, 'null').labels.device)
      end
   end)

   it('are split evenly and spread over what is held out', function()
      assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, batch.split({ 1, 2, 3, 4, 5, 6 }, 2))
      assert.same({ { 1 }, { 2 } }, batch.split({ 1, 2 }, 2))
      refused('E_ARG', '3 windows cannot be split into 2 micro-batches', batch.split, { 1, 2, 3 },
         2)
      for count = 0, 40 do
         for _, seq in ipairs { 1, 3, 7 } do
            for _, limit in ipairs { 0, 1, 2, 3, 100 } do
               local windows = {}
               for start = 0, count - seq - 1, seq do windows[#windows + 1] = start end
               local want, n = {}, math.min(limit, #windows)
               for i = 0, n - 1 do want[i + 1] = windows[math.floor(i * #windows / n) + 1] end
               if count > 0 then assert.same(want, batch.windows({ count = count }, seq, limit)) end
            end
         end
      end
   end)
end)

describe('the order of a sampler', function()
   it('stays what it was, so that a run goes on with the windows it has not seen', function()
      for _, row in ipairs { { 10, 0, 0, '9 0 8 7 1 2 6 5' }, { 16, 3, 1, '13 12 7 15 8 3 1 14' },
         { 64, 7, 2, '16 34 18 59 29 37 55 63' }, { 65, 7, 2, '1 24 23 11 53 27 16 56' } } do
         local p, list = sampler.permutation(unpack(row, 1, 3)), {}
         for i = 0, 7 do list[i + 1] = p(i) end
         assert.equal(row[4], table.concat(list, ' '))
      end
      local s = sampler.new { count = 40, seq = 6, batch = 3, seed = 5 }
      for i, want in ipairs { { 5, 23, 17 }, { 11, 29, 10 }, { 22, 4, 16 }, { 28, 20, 26 } } do
         assert.same(want, s:next())
         for k = 1, 3 do assert.equal(want[k], s:start_of(3 * (i - 1) + k - 1)) end
      end
   end)

   it('moves the windows in each epoch where the data has room for it', function()
      for _, row in ipairs { { 11, 10, false, 1 }, { 19, 10, false, 1 }, { 20, 10, true, 1 },
         { 21, 10, true, 1 }, { 30, 10, true, 2 }, { 5, 2, true, 1 }, { 4, 2, true, 1 },
         { 3, 2, false, 1 }, { 1000, 10, true, 99 } } do
         local s = sampler.new { count = row[1], seq = row[2], batch = 1 }
         assert.same({ row[3], row[4] }, { s.shifted, s.windows })
         local offsets = {}
         for epoch = 0, 40 do
            local offset = s:start_of(epoch * s.windows) % s.seq
            offsets[offset] = true
            for k = 0, s.windows - 1 do
               local start = s:start_of(epoch * s.windows + k)
               assert.is_true(start % s.seq == offset and start >= 0 and start + s.seq < s.count)
            end
         end
         local n = 0
         for offset = 0, s.seq - 1 do n = n + (offsets[offset] and 1 or 0) end
         assert.equal(row[3], n > 1)
      end
   end)

   it('is that of a mixture of one part', function()
      local source = tokens.memory(('x'):rep(40), 1)
      local mix = mixture.new { parts = { { source = source, weight = 2 } }, seq = 6, batch = 3,
         seed = 5 }
      local s = sampler.new { count = 40, seq = 6, batch = 3, seed = 5 }
      for _ = 1, 9 do assert.same(s:next(), mix:next()) end
   end)
end)

describe('the decoder of bytes', function()
   it('holds back a character that is not whole, and nothing else', function()
      local function width_of(b)
         return b >= 0xF0 and 4 or b >= 0xE0 and 3 or b >= 0xC0 and 2 or 1
      end
      for lead = 0x78, 0xFF do
         for more = 0, 3 do
            local stream, said = bytes:stream(), ''
            local ids = { 120, lead }
            for k = 1, more do ids[#ids + 1] = (lead + k) % 2 == 0 and 0x80 or 0xBF end
            for _, id in ipairs(ids) do said = said .. stream:push(id) end
            local begins = lead >= 0xC0 and more + 1 < width_of(lead)
            assert.equal(begins and 'x' or bytes:decode(ids), said, lead .. ' ' .. more)
            assert.equal(bytes:decode(ids), said .. stream:finish())
            assert.equal('', stream:finish())
         end
      end
   end)
end)

describe('data.entropy', function()
   it('is that of counts of triples, no triple over two texts', function()
      local texts = { 'abracadabra', 'ab', 'abrabra', '', 'xabr', 'aaaa' }
      local pair, triple, total = {}, {}, 0
      for _, text in ipairs(texts) do
         for i = 1, #text - 2 do
            local p, t = text:sub(i, i + 1), text:sub(i, i + 2)
            pair[p], triple[t], total = (pair[p] or 0) + 1, (triple[t] or 0) + 1, total + 1
         end
      end
      local want = 0
      for t, n in pairs(triple) do want = want - n / total * math.log(n / pair[t:sub(1, 2)]) end
      assert.is_true(math.abs(want - entropy.order2(texts)) < 1e-12)
      assert.equal(0, entropy.order2 { 'abc' })
   end)
end)
