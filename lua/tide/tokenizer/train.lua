-- Trains a byte-level BPE: counts the words of a corpus, then joins the most frequent pair of
-- neighbours, again and again, until the vocabulary is full. The first of equally frequent pairs is
-- the one with the smaller ids, so the same corpus gives the same file.

local raw = require 'tide.ffi.tokenizer'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local pattern = require 'tide.tokenizer.pattern'
local signature = require 'tide.util.signature'
local visible = require 'tide.tokenizer.visible'

local train = {}

local op = 'tokenizer.train'
local piece_bytes, most_word = 2^20, 256

-- Patterns by name: how text is cut into words before pairs are counted.
train.patterns = {
   gpt2 = pattern.gpt2,
   llama3 = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
      .. '| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+',
}
train.patterns.qwen2 = train.patterns.llama3:gsub('{1,3}', '')

-- ---- words -----------------------------------------------------------------------------------

-- Returns a tokenizer that only splits text into words.
local function cutter(regex)
   local t = raw.new { model = 'WordLevel', pieces = { '\0' }, unk = 0 }
   t:step('words', { kind = 'split', mode = { Isolated = true }, what = pattern.translate(regex) })
   return t
end

-- Calls fn for parts of a text of about a megabyte that end with a line, where there is one.
local function each_part(text, fn)
   local at = 1
   while at <= #text do
      local last = math.min(#text, at + piece_bytes)
      last = last < #text and text:find('\n', last, true) or last
      last = last or #text
      fn(text:sub(at, last))
      at = last + 1
   end
end

local function count_words(texts, regex, names)
   local t, counts = cutter(regex), {}
   for i, text in ipairs(texts) do
      local bad = raw.bad_utf8(text)
      err.raise_if(bad, 'E_FORMAT', op, '%s: byte %d is not UTF-8', names and names[i]
         or 'text ' .. i, bad)
      each_part(text, function(part)
         local _, places = t:encode(part, { offsets = true })
         for _, place in ipairs(places) do
            local word = part:sub(place[1], place[2])
            counts[word] = (counts[word] or 0) + 1
         end
      end)
   end
   return counts
end

-- Returns words as lists of ids and their counts, in a fixed order. Very long words are left out:
-- nothing is learnt from a line of a thousand dashes.
local function to_lists(counts, first)
   local names, words, times = {}, {}, {}
   for word in each(counts) do
      if #word > 1 and #word <= most_word then names[#names + 1] = word end
   end
   table.sort(names)
   for i, name in ipairs(names) do
      local list = { name:byte(1, -1) }
      for j = 1, #list do list[j] = list[j] + first end
      words[i], times[i] = list, counts[name]
   end
   return words, times
end

-- ---- pairs -----------------------------------------------------------------------------------

local SHIFT = 2^24

-- A heap of pairs: the most frequent on top. counts decides; entries may be stale.
local Heap = {}
Heap.__index = Heap

local function before(a, b)
   return a[1] > b[1] or a[1] == b[1] and a[2] < b[2]
end

-- Adds a pair with its count.
function Heap:push(count, pair)
   local n, item = self.n + 1, { count, pair }
   self.n = n
   while n > 1 do
      local up = math.floor(n / 2)
      if not before(item, self[up]) then break end
      self[n], n = self[up], up
   end
   self[n] = item
end

-- Removes and returns the top: count, pair.
function Heap:pop()
   local top, item, n, i = self[1], self[self.n], self.n - 1, 1
   self[self.n], self.n = nil, n
   if n == 0 then return top[1], top[2] end
   while 2 * i <= n do
      local child = 2 * i
      if child < n and before(self[child + 1], self[child]) then child = child + 1 end
      if not before(self[child], item) then break end
      self[i], i = self[child], child
   end
   self[i] = item
   return top[1], top[2]
end

-- Records in where[pair] that word i contains the pair.
local function note_word(where, pair, i)
   local list = where[pair] or {}
   where[pair] = list
   if list[#list] ~= i then list[#list + 1] = i end
end

-- Returns counts by pair, and the words that contain each (some no longer).
local function count_pairs(words, times)
   local counts, where = {}, {}
   for i, word in ipairs(words) do
      for j = 1, #word - 1 do
         local pair = word[j] * SHIFT + word[j + 1]
         counts[pair] = (counts[pair] or 0) + times[i]
         note_word(where, pair, i)
      end
   end
   return counts, where
end

-- Joins a, b to id in a word. Calls change(pair, difference) for the pairs that appear or vanish.
local function join(word, a, b, id, change)
   local n, to, i = #word, 0, 1
   while i <= n do
      to = to + 1
      if word[i] == a and i < n and word[i + 1] == b then
         if to > 1 then
            change(word[to - 1] * SHIFT + a, -1)
            change(word[to - 1] * SHIFT + id, 1)
         end
         if i + 1 < n then
            change(b * SHIFT + word[i + 2], -1)
            change(id * SHIFT + word[i + 2], 1)
         end
         word[to], i = id, i + 2
      else
         word[to], i = word[i], i + 1
      end
   end
   for j = n, to + 1, -1 do word[j] = nil end
end

-- Finds up to `most` merges; new ids count from `id`. Returns a list of { a, b }.
local function find_merges(words, times, id, most, least)
   local counts, where = count_pairs(words, times)
   local heap, merges = setmetatable({ n = 0 }, Heap), {}
   for pair, count in each(counts) do heap:push(count, pair) end
   local changed, index
   local function change(pair, difference)
      counts[pair] = (counts[pair] or 0) + difference * times[index]
      changed[pair] = true
      if difference > 0 then note_word(where, pair, index) end
   end
   while #merges < most and heap.n > 0 do
      local count, pair = heap:pop()
      if counts[pair] == count and count >= least then
         local a, b = math.floor(pair / SHIFT), pair % SHIFT
         merges[#merges + 1] = { a, b }
         changed = {}
         for _, i in ipairs(where[pair]) do
            index = i
            join(words[i], a, b, id, change)
         end
         counts[pair], where[pair], changed[pair] = nil, nil, nil
         for other in each(changed) do
            if counts[other] and counts[other] > 0 then heap:push(counts[other], other)
            else counts[other] = nil end
         end
         id = id + 1
      end
   end
   return merges
end

-- ---- the file --------------------------------------------------------------------------------

local function vocabulary(special, merges)
   local names, vocab, rows = {}, {}, {}
   for i, text in ipairs(special) do names[i - 1] = text end
   for b = 0, 255 do names[#special + b] = visible.alphabet[b] end
   for i, m in ipairs(merges) do
      rows[i] = { names[m[1]], names[m[2]] }
      names[#special + 255 + i] = names[m[1]] .. names[m[2]]
   end
   for id, name in each(names) do vocab[name] = id end
   return vocab, rows
end

local function document(special, merges, regex, json)
   local vocab, rows = vocabulary(special, merges)
   local added = json.array {}
   for i, text in ipairs(special) do
      added[i] = { id = i - 1, content = text, single_word = false, lstrip = false, rstrip = false,
         normalized = false, special = true }
   end
   local bytes = { type = 'ByteLevel', add_prefix_space = false, trim_offsets = true,
      use_regex = false }
   return { version = '1.0', truncation = json.null, padding = json.null, added_tokens = added,
      normalizer = json.null, post_processor = json.null, decoder = bytes,
      pre_tokenizer = { type = 'Sequence', pretokenizers = {
         { type = 'Split', pattern = { Regex = regex }, behavior = 'Isolated', invert = false },
         bytes } },
      model = { type = 'BPE', dropout = json.null, unk_token = json.null,
         continuing_subword_prefix = json.null, end_of_word_suffix = json.null, fuse_unk = false,
         byte_fallback = false, ignore_merges = false, vocab = vocab,
         merges = json.array(rows) } }
end

-- Trains a byte-level BPE on a list of texts. Returns the value of a tokenizer.json, as json.encode
-- takes it.
function train.bpe(texts, opts)
   local special = opts.special or { '<|endoftext|>' }
   local size = err.integer(op, 'vocab_size', opts.vocab_size, 256 + #special, 2^23)
   local regex = train.patterns[opts.pattern] or opts.pattern
   local words, times = to_lists(count_words(texts, regex, opts.names), #special)
   local merges = find_merges(words, times, 256 + #special, size - 256 - #special, opts.min_count)
   return document(special, merges, regex, fs.io().json)
end

-- Writes a trained tokenizer: tokenizer.json and tokenizer_config.json in a folder, made if absent.
-- The first special token begins and ends texts.
function train.save(value, folder)
   local json = fs.io().json
   fs.mkdirs(op, folder)
   fs.write(op, fs.join(folder, 'tokenizer.json'), json.encode(value) .. '\n')
   local first = value.added_tokens[1]
   local config = { tokenizer_class = 'PreTrainedTokenizerFast',
      clean_up_tokenization_spaces = false, bos_token = first and first.content,
      eos_token = first and first.content }
   fs.write(op, fs.join(folder, 'tokenizer_config.json'), json.encode(config) .. '\n')
end

return signature.doors('tokenizer.train', train, { bpe = { 'texts: string[]', op = op, opts = {
   'vocab_size: integer = 8192 -- ids, special tokens and the 256 bytes included',
   "special: string[]? -- texts of the first ids; { '<|endoftext|>' } by default",
   "pattern: string = 'llama3' -- 'llama3', 'gpt2', 'qwen2' or a regular expression",
   'min_count: integer >= 1 = 2 -- least occurrences of a pair',
   'names: string[]? -- what errors call the texts' } } })
