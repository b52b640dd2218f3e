-- Texts for the rows of tokenizers: tide's own sources, and words of many scripts drawn by a fixed
-- rule. Both sides of a row get the same bytes, and no file beside the sources is needed.

local child = require 'kernels.bench.child'

local corpus = {}

-- The sources below a root as one text, in the order of their names.
function corpus.sources(root)
   return child.output(("cd '%s' && find lua kernels core recipes -name '*.lua' -o -name '*.c' -o "
      .. "-name '*.md' | LC_ALL=C sort | xargs cat"):format(root))
end

-- First and last character of each script, and how many of eight words are of it.
local scripts = {
   { 0x61, 0x7a, 2 }, { 0x430, 0x44f, 1 }, { 0x4e00, 0x9fa5, 2 }, { 0x3041, 0x3093, 1 },
   { 0x627, 0x64a, 1 }, { 0x1f300, 0x1f5ff, 1 },
}

local function utf8(code)
   local char, floor = string.char, math.floor
   if code < 0x80 then return char(code) end
   if code < 0x800 then return char(0xc0 + floor(code / 64), 0x80 + code % 64) end
   if code < 0x10000 then
      return char(0xe0 + floor(code / 4096), 0x80 + floor(code / 64) % 64, 0x80 + code % 64)
   end
   return char(0xf0 + floor(code / 262144), 0x80 + floor(code / 4096) % 64,
      0x80 + floor(code / 64) % 64, 0x80 + code % 64)
end

-- About n bytes of words. seed: of the draws, a linear congruence, which is the same anywhere.
function corpus.words(n, seed)
   local state, deck, parts, size = seed, {}, {}, 0
   local function draw(m)
      state = (state * 1103515245 + 12345) % 2147483648
      return math.floor(state / 65536) % m
   end
   for _, row in ipairs(scripts) do
      for _ = 1, row[3] do deck[#deck + 1] = row end
   end
   while size < n do
      local row, word = deck[draw(#deck) + 1], {}
      for i = 1, 1 + draw(9) do word[i] = utf8(row[1] + draw(row[2] - row[1] + 1)) end
      local text = table.concat(word) .. (draw(12) == 0 and '.\n' or ' ')
      parts[#parts + 1], size = text, size + #text
   end
   return table.concat(parts)
end

-- Cuts a text behind lines into pieces of about n bytes.
function corpus.cut(text, n)
   local list, at = {}, 1
   while at <= #text do
      local last = text:find('\n', math.min(#text, at + n - 1), true) or #text
      list[#list + 1] = text:sub(at, last)
      at = last + 1
   end
   return list
end

return corpus
