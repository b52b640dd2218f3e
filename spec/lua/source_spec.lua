-- Token sources, windows, rows and mixtures of random sizes against plain loops over lists of ids.

local tide = require 'tide'
local batch = require 'tide.data.batch'
local bytes = require 'tide.data.bytes'
local choice = require 'spec.deep.fuzz.choice'
local entropy = require 'tide.data.entropy'
local little = require 'tide.util.little'
local mixture = require 'tide.data.mixture'
local packed = require 'tide.data.packed'
local raised = require 'spec.support.raised'
local refused = require 'spec.support.refused'
local sampler = require 'tide.data.sampler'
local survey = require 'tide.data.survey'
local tmp = require 'spec.support.tmp'
local tokens = require 'tide.data.tokens'
local write = require('spec.support.files').write

-- n ids below 256 ^ width (2^31 at most), as a list and as bytes, and a mask.
local function some(pick, n, width)
   local ids, text, mask = {}, {}, {}
   for i = 1, n do
      ids[i] = pick:int(0, math.min(256 ^ width, 2 ^ 31) - 1)
      text[i] = little.write(ids[i], width)
      mask[i] = pick:chance(0.6) and '\1' or '\0'
   end
   return ids, table.concat(text), table.concat(mask)
end

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
            local stream, said = bytes.stream(), ''
            local ids = { 120, lead }
            for k = 1, more do ids[#ids + 1] = (lead + k) % 2 == 0 and 0x80 or 0xBF end
            for _, id in ipairs(ids) do said = said .. stream:push(id) end
            local begins = lead >= 0xC0 and more + 1 < width_of(lead)
            assert.equal(begins and 'x' or bytes.decode(ids), said, lead .. ' ' .. more)
            assert.equal(bytes.decode(ids), said .. stream:finish())
            assert.equal('', stream:finish())
         end
      end
   end)
end)

describe('the documents of a source', function()
   it('end at their id, also where pieces of the source meet', function()
      for _, width in ipairs { 1, 2 } do
         local plain, eos = little.write(1, width), little.write(2, width)
         local text = plain:rep(2 ^ 18 - 1) .. eos .. eos .. plain:rep(3) .. eos
         assert.same({ 0, 2 ^ 18, 2 ^ 18 + 1, 2 ^ 18 + 5 },
            packed.boundaries(tokens.memory(text, width), 2))
         assert.same({ 0, 2 ^ 18, 2 ^ 18 + 1, 2 ^ 18 + 5, 2 ^ 18 + 6 },
            packed.boundaries(tokens.memory(text .. plain, width), 2))
      end
      assert.same({ 0 }, packed.boundaries(tokens.memory('', 1), 2))
   end)
end)

-- What a stream of rows must hold, by a loop over its pieces.
local function stream_of(rows, seq, ids, mask, pad)
   local want = { ids = {}, labels = {}, positions = {}, count = 0, real = { 0 }, slots = { 0 } }
   for r, row in ipairs(rows) do
      for k, piece in ipairs(row) do
         local start, n, goes_on = piece[1], piece[2], piece[3]
         local slot = k == #row and r * seq - #want.ids or piece[4]
         for i = 1, slot do
            local has_label = i < n or i == n and goes_on
            local label = has_label and mask:byte(start + i + 1) == 1 and ids[start + i + 1] or -100
            local at = #want.ids + 1
            want.ids[at], want.labels[at] = i <= n and ids[start + i] or pad, label
            want.positions[at], want.count = i - 1, want.count + (label >= 0 and 1 or 0)
         end
         want.real[#want.real + 1], want.slots[#want.slots + 1] = want.real[#want.real] + n,
            #want.ids
      end
   end
   return want
end

describe('rows of documents', function()
   it('are the tokens of their pieces, each once, with the labels that the mask lets count',
      function()
      for seed = 1, 40 do
         local pick = choice.drawn('rows', seed)
         local cu, width = { 0 }, pick:pick { 1, 2, 4 }
         for i = 1, pick:int(1, 9) do cu[i + 1] = cu[i] + pick:few(1, 20) end
         local ids, text, mask = some(pick, cu[#cu], width)
         if pick:chance(0.5) then mask = ('\1'):rep(#ids) end
         local source = tokens.memory(text, width, mask)
         local cp = pick:int(1, 2)
         local o = { cu = cu, seq = 4 * pick:int(2, 4), batch = pick:int(1, 3), cp = cp,
            seed = seed, fit = pick:pick { 'next', 'best', 'alone' },
            long = pick:pick { 'split', 'cut' } }
         local s = packed.new(o)
         local rows, seen = s:all(), {}
         for _, row in ipairs(rows) do
            local used = 0
            for _, piece in ipairs(row) do
               used = used + piece[4]
               assert.same({ 0, true }, { piece[4] % (cp > 1 and 2 * cp or 1),
                  piece[4] - piece[2] < 2 * cp })
               for t = piece[1], piece[1] + piece[2] - 1 do
                  assert.is_nil(seen[t])
                  seen[t] = true
               end
            end
            assert.is_true(used <= o.seq and (o.fit ~= 'alone' or #row == 1))
         end
         for d = 1, #cu - 1 do
            for t = cu[d], cu[d + 1] - 1 do
               assert.equal(o.long == 'split' or t - cu[d] < o.seq, seen[t] == true)
            end
         end
         local got, want = packed.make(source, rows, o.seq, { pad = 9 }),
            stream_of(rows, o.seq, ids, mask, 9)
         assert.same({ { want.ids }, { want.labels }, { want.positions }, want.count, want.real,
            want.slots }, { got.ids:tolist(), got.labels:tolist(), got.positions:tolist(),
            got.count, got.cu_real:tolist(), got.cu_slot:tolist() })
         -- with the mask known, exactly the pieces that have a label are left
         o.cu, o.source = cu, source
         local trained = 0
         for _, row in ipairs(rows) do
            for _, p in ipairs(row) do
               local last = p[3] and p[1] + p[2] + 1 or p[1] + p[2]
               trained = trained + (mask:sub(p[1] + 2, last):find '\1' and 1 or 0)
            end
         end
         local kept = 0
         for _, row in ipairs(packed.new(o):all()) do kept = kept + #row end
         assert.equal(trained, kept)
      end
   end)

   it('keep groups of documents together, each cut to its share of a row', function()
      for seed = 1, 30 do
         local pick = choice.drawn('groups', seed)
         local cu, k = { 0 }, pick:int(2, 3)
         for i = 1, k * pick:int(1, 5) do cu[i + 1] = cu[i] + pick:int(1, 9) end
         local cp = pick:int(1, 2)
         local unit = cp > 1 and 2 * cp or 1
         local function rounded(n) return math.ceil(n / unit) * unit end
         local s = packed.new { cu = cu, seq = 12 * k / (k == 3 and 1 or 2), batch = 1, cp = cp,
            long = 'cut', together = k, fit = pick:pick { 'next', 'best', 'alone' } }
         local found = {}
         for _, row in ipairs(s:all()) do
            assert.equal(0, #row % k)
            for _, p in ipairs(row) do found[p[1]] = p end
         end
         for g = 0, (#cu - 1) / k - 1 do
            local slot, most = 0, math.huge
            for d = g * k + 1, g * k + k do slot = slot + rounded(cu[d + 1] - cu[d]) end
            if slot > s.seq then most = math.floor(s.seq / k / unit) * unit end
            for d = g * k + 1, g * k + k do
               local n = math.min(most, cu[d + 1] - cu[d])
               assert.same({ cu[d], n, false, rounded(n) }, found[cu[d]])
            end
         end
      end
      local o = { cu = { 0, 2, 4, 6 }, seq = 8, batch = 1, together = 2, long = 'cut' }
      refused('E_ARG', 'cu has 3 documents, which is no multiple of together (2)', packed.new, o)
      o = { cu = { 0, 2, 4 }, val_cu = { 0, 2 }, seq = 8, batch = 1, together = 2, long = 'cut' }
      refused('E_ARG', 'val_cu has 1 documents, which is no multiple', packed.new, o)
      o = { cu = { 0, 2, 4 }, seq = 8, batch = 1, together = 2 }
      refused('E_ARG', "give long = 'cut' or 'refuse'", packed.new, o)
      o = { cu = { 0, 2, 4 }, seq = 4, cp = 2, batch = 1, together = 2, long = 'cut' }
      refused('E_ARG', 'seq (4) has no room for 2 documents', packed.new, o)
      packed.new { cu = { 0, 2, 4 }, seq = 8, cp = 2, batch = 1, together = 2, long = 'cut' }
      packed.new { cu = { 0, 2, 4 }, seq = 2, batch = 1, together = 2, long = 'cut' }
      o = { cu = { 0, 2, 4, 6 }, seq = 8, cp = 2, batch = 1, together = 3, long = 'cut' }
      refused('E_ARG', 'seq (8) has no room for 3 documents', packed.new, o)
      refused('E_ARG', 'seq (4) must be a multiple of 6, to be cut over 3 ranks', packed.new,
         { cu = { 0, 2 }, seq = 4, cp = 3, batch = 1 })
      o = { cu = { 0, 5, 10, 11, 12 }, seq = 9, batch = 1, together = 2, long = 'refuse' }
      refused('E_ARG', '1 of 2 groups of 2 documents are longer than seq (9 tokens), the longest '
         .. "has 10; give a larger seq, or long = 'cut'", packed.new, o)
      packed.new { cu = { 0, 5, 10, 11, 12 }, seq = 10, batch = 1, together = 2, long = 'refuse' }
   end)

   it('are 512 documents at a time with the best fit, in the order of their first ones', function()
      local cu = { 0 }
      for i = 1, 1030 do cu[i + 1] = cu[i] + 1 + i * 7 % 10 end
      local rows = packed.new({ cu = cu, seq = 10, batch = 1, fit = 'best' }):all()
      local place, before = {}, {}
      for d = 1, #cu - 1 do place[cu[d]] = d end
      for _, row in ipairs(rows) do
         local group = math.floor((place[row[1][1]] - 1) / 512)
         assert.is_true(place[row[1][1]] > (before[group] or 0))
         before[group] = place[row[1][1]]
         for k = 2, #row do
            assert.is_true(place[row[k][1]] > place[row[k - 1][1]])
            assert.equal(group, math.floor((place[row[k][1]] - 1) / 512))
         end
      end
   end)

   it('say how far the data is, and are refused where they are none', function()
      local s = packed.new { cu = { 0, 4, 8, 12, 16 }, seq = 4, batch = 1 }
      local passes = {}
      for i = 1, 6 do
         passes[i] = s:epochs()
         s:next()
      end
      assert.same({ 0, 0.25, 0.5, 0.75, 1, 1.25 }, passes)
      assert.same({}, s:all(true))
      local source = tokens.memory('abcdef', 1)
      for _, piece in ipairs { { 0, 2, false, 1 }, { -1, 2, false, 2 }, { 0, 2, 1, 2 },
         { 0, 0.5, false, 2 }, { 0, 2, false } } do
         refused('E_ARG', { 'rows[2]', 'a row that next() of a sampler gave' }, packed.make, source,
            { { { 0, 1, false, 1 } }, { piece } }, 4)
      end
      refused('E_ARG', { 'rows', 'at least one row' }, packed.make, source, {}, 4)
      local state = s:state()
      for key, value in pairs { seed = 4, seq = 5, unit = 2, documents = 3, tokens = 15,
         fit = 'best', long = 'cut', masked = true, together = 2 } do
         local other = {}
         for k, v in pairs(state) do other[k] = v end
         other[key] = value
         refused('E_ARG', 'the state was saved with ' .. key .. ' = ' .. tostring(value), s.restore,
            s, other)
      end
   end)
end)

describe('a mixture', function()
   it('takes from each part its share, within one item, at the part\'s own places', function()
      for seed = 1, 12 do
         local pick = choice.drawn('mixture', seed)
         local parts, total, at = {}, 0, { 0 }
         for i = 1, pick:int(1, 4) do
            parts[i] = { weight = pick:int(i == 1 and 1 or 0, 5),
               source = tokens.memory(('x'):rep(pick:int(20, 60)), 1) }
            total, at[i + 1] = total + parts[i].weight, at[i] + parts[i].source.count
         end
         local mix = mixture.new { parts = parts, seq = 4, batch = 6, seed = seed }
         local halves = {}
         for r = 0, 1 do
            halves[r + 1] = mixture.new { parts = parts, seq = 4, batch = 6, seed = seed, size = 2,
               rank = r }
         end
         assert.equal(at[#at], mix.source.count)
         local counts, items = {}, 0
         for _ = 1, 15 do
            local starts = mix:next()
            local a, b = halves[1]:next(), halves[2]:next()
            assert.same(starts, { a[1], a[2], a[3], b[1], b[2], b[3] })
            for _, start in ipairs(starts) do
               local i, first, lag = 1, nil, -math.huge
               for k, part in ipairs(parts) do          -- the one that lags most is next
                  local behind = (items + 1) * part.weight / total - (counts[k] or 0)
                  if behind > lag + 1e-9 then first, lag = k, behind end
               end
               while start >= at[i + 1] do i = i + 1 end
               assert.is_true(start + 4 < at[i + 1] and i == first)
               counts[i], items = (counts[i] or 0) + 1, items + 1
               for k, part in ipairs(parts) do
                  local due = items * part.weight / total
                  assert.is_true(math.abs((counts[k] or 0) - due) < 1 + 1e-6, k)
               end
            end
         end
         local again = mixture.new { parts = parts, seq = 4, batch = 3, seed = seed }
         again:restore(mix:state())
         assert.same({ unpack(mix:next(), 1, 3) }, again:next())
         local most = 0
         for i, part in ipairs(parts) do
            local s = tide.data.sampler { count = part.source.count, seq = 4, batch = 1 }
            most = math.max(most, again.counts[i] / s.windows)
         end
         assert.equal(most, again:epochs())
      end
   end)

   it('gives the first of parts that lag alike, and rows by the places of the whole', function()
      local a, b = tokens.memory(('a'):rep(24), 1), tokens.memory(('b'):rep(24), 1)
      local mix = mixture.new { seq = 8, batch = 4, val_cu = { 0, 3, 9 }, parts = {
         { source = a, weight = 1, cu = { 0, 24 } }, { source = b, weight = 1, cu = { 0, 24 } } } }
      local rows = mix:next()
      for k, row in ipairs(rows) do
         assert.same({ (k % 2 == 1 and 0 or 24) + (k > 2 and 8 or 0), 8, true, 8 }, row[1])
      end
      local b1 = mix:make(mix.source, rows)
      assert.same({ 97, 98, 97, 98 }, { b1.ids:tolist()[1][1], b1.ids:tolist()[1][9],
         b1.ids:tolist()[1][17], b1.ids:tolist()[1][25] })
      assert.same({ { 0, 3, false, 3 } }, mix:held_out(9)[1])
      local windows = mixture.new { seq = 8, batch = 1, parts = { { source = a, weight = 2 } } }
      assert.is_nil(windows.make)
   end)

   it('is refused where its parts make no sense, or its state is of others', function()
      local a = tokens.memory(('a'):rep(24), 1)
      local function new(...) return mixture.new { seq = 4, batch = 1, parts = { ... } } end
      refused('E_ARG', "'parts': expected a weight above 0, got 0", new, { source = a, weight = 0 })
      refused('E_ARG', 'got 1 of 2', new, { source = a, weight = 1, cu = { 0, 24 } },
         { source = a, weight = 1 })
      refused('E_ARG', 'at least one { source, weight }', new)
      local one, two = new { source = a, weight = 1 },
         new({ source = a, weight = 1 }, { source = a, weight = 3 })
      refused('E_ARG', 'saved with 1 parts, this run has 2', two.restore, two, one:state())
      refused('E_ARG', 'saved with share 0.75 for part 1, this run has 0.25', two.restore, two,
         new({ source = a, weight = 3 }, { source = a, weight = 1 }):state())
      local state = two:state()
      state.position = -1
      refused('E_ARG', "'position'", two.restore, two, state)
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
