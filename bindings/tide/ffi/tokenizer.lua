-- Tokenizers of core/text: tables in, ids out. Programs use lua/tide/tokenizer, which builds them
-- from files and checks arguments.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local buffer = require 'tide.ffi.buffer'
local ctx_of = require 'tide.ffi.ctx'
local each = pairs -- by another name: see "faults" in bindings/README.md
local C = lib.C

local M = {}

local new_box, new_blob_box = ffi.typeof 'tide_tokenizer *[1]', ffi.typeof 'tide_blob *[1]'
local i32s, i64s, doubles = buffer.of 'int32_t', buffer.of 'int64_t', buffer.of 'double'
local texts_of = buffer.of 'const char *'
local i32_ptr, u16_ptr = ffi.typeof 'const int32_t *', ffi.typeof 'const uint16_t *'
local i64_ptr = ffi.typeof 'const int64_t *'

M.models = { BPE = C.TIDE_TOKENIZER_BPE, Unigram = C.TIDE_TOKENIZER_UNIGRAM,
   WordPiece = C.TIDE_TOKENIZER_WORDPIECE, WordLevel = C.TIDE_TOKENIZER_WORDS }
M.stages = { normal = C.TIDE_STAGE_NORMAL, words = C.TIDE_STAGE_WORDS }
M.kinds = { split = C.TIDE_STEP_SPLIT, replace = C.TIDE_STEP_REPLACE,
   prepend = C.TIDE_STEP_PREPEND, unicode = C.TIDE_STEP_UNICODE, lower = C.TIDE_STEP_LOWER,
   bytes = C.TIDE_STEP_BYTES, charsmap = C.TIDE_STEP_CHARSMAP }
-- Names of modes, of flags of models and of added tokens; a step may have several of its kind.
M.modes = {
   Removed = C.TIDE_SPLIT_REMOVED, Isolated = C.TIDE_SPLIT_ISOLATED,
   MergedWithPrevious = C.TIDE_SPLIT_WITH_PREVIOUS, MergedWithNext = C.TIDE_SPLIT_WITH_NEXT,
   Contiguous = C.TIDE_SPLIT_CONTIGUOUS, invert = C.TIDE_SPLIT_INVERT,
   surround = C.TIDE_REPLACE_SURROUND,
   unless = C.TIDE_PREPEND_UNLESS, first = C.TIDE_PREPEND_FIRST,
   NFC = C.TIDE_UNICODE_NFC, NFD = C.TIDE_UNICODE_NFD, NFKC = C.TIDE_UNICODE_NFKC,
   NFKD = C.TIDE_UNICODE_NFKD, longest = C.TIDE_CHARSMAP_LONGEST,
}
M.flags = { bytes = C.TIDE_TOKENIZER_BYTES, byte_fallback = C.TIDE_TOKENIZER_BYTE_FALLBACK,
   fuse_unk = C.TIDE_TOKENIZER_FUSE_UNK, ignore_merges = C.TIDE_TOKENIZER_IGNORE_MERGES,
   f32_scores = C.TIDE_TOKENIZER_F32_SCORES }
M.added = { special = C.TIDE_ADDED_SPECIAL, normalized = C.TIDE_ADDED_NORMALIZED,
   single_word = C.TIDE_ADDED_WORD, lstrip = C.TIDE_ADDED_LSTRIP, rstrip = C.TIDE_ADDED_RSTRIP }

-- Returns the bits of the names whose value in `set` is true.
local function bits(names, set)
   local sum = 0
   for name, on in each(set or {}) do
      if on == true then sum = sum + (names[name] or 0) end
   end
   return sum
end

local Tokenizer = {}
Tokenizer.__index = Tokenizer

local function check(self, rc) return own.check(self.ctx, rc) end

local function numbers(make, list)
   local a = make(math.max(#list, 1))
   for i = 1, #list do a[i - 1] = list[i] end
   return a
end

-- Makes a tokenizer. t: model (a name of M.models), pieces (id i at i + 1; '' for ids without
-- text), scores (a list or nil), unk (an id, or nil), and flags by the names of M.flags.
function M.new(t)
   local ctx = ctx_of.default().handle
   local ends, at = i64s(math.max(#t.pieces, 1)), 0
   for i, piece in ipairs(t.pieces) do
      at = at + #piece
      ends[i - 1] = at
   end
   local box = new_box()
   own.check(ctx, C.tide_tokenizer_new(box, ctx, M.models[t.model], bits(M.flags, t), t.unk or -1,
      #t.pieces, table.concat(t.pieces), ends, t.scores and numbers(doubles, t.scores) or nil))
   local handle = own.handle(box[0], C.tide_tokenizer_release)
   return own.adopt(setmetatable({ handle = handle, ctx = ctx }, Tokenizer))
end

-- Sets prefix and suffix (or nil) and the most characters of a word (0: any).
function Tokenizer:affix(prefix, suffix, most)
   check(self, C.tide_tokenizer_affix(self.handle, prefix, suffix, most or 0))
end

-- Sets the merges: left id, right id, id of the result, and so on in one list.
function Tokenizer:merges(list)
   check(self, C.tide_tokenizer_merges(self.handle, #list / 3, numbers(i32s, list)))
end

-- Sets the rank of each piece, that of piece i at i + 1; -1 for pieces that no merge makes.
function Tokenizer:merge_pieces(ranks)
   check(self, C.tide_tokenizer_merge_pieces(self.handle, numbers(i32s, ranks)))
end

-- Adds a token. set: names of M.added.
function Tokenizer:add(text, id, set)
   check(self, C.tide_tokenizer_add(self.handle, text, #text, id, bits(M.added, set)))
end

-- Adds a step to a stage. stage: a name of M.stages; step: kind, mode (names of M.modes, true
-- each), what, with.
function Tokenizer:step(stage, step)
   local what, with = step.what or '', step.with or ''
   check(self, C.tide_tokenizer_step(self.handle, M.stages[stage], M.kinds[step.kind],
      bits(M.modes, step.mode), what, #what, with, #with))
end

-- ---- encode ------------------------------------------------------------------------------------

local function flags_of(opts)
   return (opts.offsets and C.TIDE_ENCODE_OFFSETS or 0)
      + (opts.special and C.TIDE_ENCODE_SPECIAL or 0) + (opts.width == 2 and C.TIDE_ENCODE_U16 or 0)
end

-- Returns the result of one text, n records at `data`: with width a string; else a list of ids and,
-- with offsets, a list of { first byte, last byte } counted from 1.
local function result(data, n, opts)
   if opts.width then return ffi.string(data, n * opts.width) end
   local p, ids = ffi.cast(i32_ptr, data), {}
   if not opts.offsets then
      for i = 1, n do ids[i] = p[i - 1] end
      return ids
   end
   local offsets = {}
   for i = 1, n do
      ids[i] = p[3 * i - 3]
      offsets[i] = { p[3 * i - 2] + 1, p[3 * i - 1] }
   end
   return ids, offsets
end

local function width_of(opts) return opts.offsets and 12 or opts.width or 4 end

-- Returns the ids of a text. opts: special, offsets, width (2 or 4: the ids as a string of
-- little-endian integers).
function Tokenizer:encode(text, opts)
   local box = new_blob_box()
   check(self, C.tide_tokenizer_encode(box, self.handle, text, #text, flags_of(opts)))
   local blob = own.handle(box[0], C.tide_blob_release)
   local n = tonumber(C.tide_blob_size(blob)) / width_of(opts)
   local ids, offsets = result(C.tide_blob_data(blob), n, opts)
   own.finish(blob, C.tide_blob_release)
   return ids, offsets
end

-- Encodes a list of texts: returns a list of what encode returns for each and, with offsets, a list
-- of their offsets.
function Tokenizer:encode_batch(texts, opts, nthread)
   local n = #texts
   local list, sizes = texts_of(math.max(n, 1)), i64s(math.max(n, 1))
   for i, text in ipairs(texts) do list[i - 1], sizes[i - 1] = text, #text end
   local box = new_blob_box()
   check(self, C.tide_tokenizer_encode_batch(box, self.handle, n, list, sizes, flags_of(opts),
      nthread))
   local blob = own.handle(box[0], C.tide_blob_release)
   local data, width = C.tide_blob_data(blob), width_of(opts)
   local counts, at = ffi.cast(i64_ptr, data), data + 8 * n
   local ids, offsets = {}, opts.offsets and {} or nil
   for i = 1, n do
      local count = tonumber(counts[i - 1])
      local a, b = result(at, count, opts)
      ids[i] = a
      if offsets then offsets[i] = b end
      at = at + count * width
   end
   own.finish(blob, C.tide_blob_release)
   return ids, offsets
end

-- Returns the numbers of a string of ids (width 2 or 4).
function M.ids(text, width)
   local p, ids = ffi.cast(width == 2 and u16_ptr or i32_ptr, text), {}
   for i = 1, #text / width do ids[i] = p[i - 1] end
   return ids
end

-- Returns the offset (from 1) of the first byte that is not UTF-8, or nil.
function M.bad_utf8(text)
   local at = tonumber(C.tide_utf8_check(arg.string('tokenizer', 'text', text), #text))
   return at >= 0 and at + 1 or nil
end

return M
