-- Builds the tables of core/text from a description of a tokenizer, which is plain data.
--
-- A description has: model (BPE, Unigram, WordPiece, WordLevel), pieces (the text of id i at i + 1,
-- '' in gaps), names (the same as files write them), scores, unk, flags (bytes,
-- byte_fallback, fuse_unk, ignore_merges, f32_scores), merges or ranks, prefix, suffix, most, added
-- (list of { text, find, id, special, normalized, single_word, lstrip, rstrip }), normal and words
-- (lists of steps), before and after (ids around a text), decoder (decoder.lua).

local raw = require 'tide.ffi.tokenizer'

local build = { ids = raw.ids, bad_utf8 = raw.bad_utf8 }

-- Returns a function that applies the steps of the normalizer to a text.
function build.normalizer(d)
   local bytes = {}
   for b = 0, 255 do bytes[b + 1] = string.char(b) end
   local t = raw.new { model = 'BPE', bytes = true, pieces = bytes }
   for _, step in ipairs(d.normal) do t:step('normal', step) end
   return function(text)
      local out = {}
      for i, id in ipairs((t:encode(text, {}))) do out[i] = string.char(id) end
      return table.concat(out)
   end
end

-- Sets `find`, the text to search for, in each added token of a list. Returns the list.
function build.normalize_added(d, list)
   local normal
   for _, token in ipairs(list) do
      token.find = token.find or token.text
      if token.normalized then
         normal = normal or build.normalizer(d)
         token.find = normal(token.text)
      end
   end
   return list
end

-- Returns the tables of a description.
function build.tables(d)
   local t = raw.new { model = d.model, pieces = d.pieces, scores = d.scores, unk = d.unk,
      bytes = d.flags.bytes, byte_fallback = d.flags.byte_fallback, fuse_unk = d.flags.fuse_unk,
      ignore_merges = d.flags.ignore_merges, f32_scores = d.flags.f32_scores }
   if d.prefix or d.suffix or d.most then t:affix(d.prefix, d.suffix, d.most) end
   if d.merges then t:merges(d.merges) end
   if d.ranks then t:merge_pieces(d.ranks) end
   for _, token in ipairs(d.added) do
      if token.find ~= '' then t:add(token.find, token.id, token) end
   end
   for _, step in ipairs(d.normal) do t:step('normal', step) end
   for _, step in ipairs(d.words) do t:step('words', step) end
   return t
end

return build
