-- Reads tokenizer.model of sentencepiece (a protobuf message) as a description of a tokenizer.

local err = require 'tide.util.err'
local build = require 'tide.tokenizer.build'
local decoder = require 'tide.tokenizer.decoder'

local sentencepiece = {}

local op = 'tokenizer.load'
local mark = '▁'

local function damaged() err.raise('E_FORMAT', op, 'the file of sentencepiece is damaged') end

-- ---- protobuf --------------------------------------------------------------------------------

local function varint(text, at)
   local value, scale = 0, 1
   for _ = 1, 10 do
      local b = text:byte(at)
      if not b then damaged() end
      value, scale, at = value + b % 128 * scale, scale * 128, at + 1
      if b < 128 then return value, at end
   end
   damaged()
end

-- Decodes a float from 4 bytes.
local function float(text)
   if #text ~= 4 then damaged() end
   local a, b, c, d = text:byte(1, 4)
   local sign, exponent = d >= 128 and -1 or 1, d % 128 * 2 + math.floor(c / 128)
   local mantissa = (c % 128 * 256 + b) * 256 + a
   if exponent == 0 then return sign * math.ldexp(mantissa, -149) end
   return sign * math.ldexp(1 + mantissa / 2^23, exponent - 127)
end

-- Calls fn(number, value) for each field of a message. value: a number, or the bytes of a
-- length-delimited field.
local function fields(text, fn)
   local at = 1
   while at <= #text do
      local key, value
      key, at = varint(text, at)
      local kind, number = key % 8, math.floor(key / 8)
      if kind == 0 then
         value, at = varint(text, at)
      else
         local size = kind == 5 and 4 or kind == 1 and 8
         if kind == 2 then size, at = varint(text, at) end
         if not size or at + size - 1 > #text then damaged() end
         value, at = text:sub(at, at + size - 1), at + size
      end
      fn(number, value)
   end
end

-- ---- the messages ----------------------------------------------------------------------------

-- Returns a value of a field, which must be of a Lua type: a number, or bytes.
local function of(kind, value)
   if type(value) ~= kind then damaged() end
   return value
end

local types = { 'normal', 'unknown', 'control', 'user', 'unused', 'byte' }

local function read_piece(text)
   local p = { text = '', score = 0, type = 'normal' }
   fields(text, function(number, value)
      if number == 1 then p.text = of('string', value)
      elseif number == 2 then p.score = float(of('string', value))
      elseif number == 3 then p.type = types[of('number', value)] or 'normal' end
   end)
   return p
end

local function read(text, names, values)
   fields(text, function(number, value)
      local name = names[number]
      if name then values[name] = of(type(values[name] or 0), value) end
   end)
   return values
end

local function read_model(text)
   local m = { pieces = {}, trainer = { model_type = 1, unk_id = 0, bos_id = 1, eos_id = 2 },
      normalizer = { add_dummy_prefix = 1, remove_extra_whitespaces = 1, escape_whitespaces = 1,
         charsmap = '' } }
   fields(text, function(number, value)
      if number == 1 then m.pieces[#m.pieces + 1] = read_piece(of('string', value))
      elseif number == 2 then
         read(of('string', value), { [3] = 'model_type', [24] = 'treat_whitespace_as_suffix',
            [35] = 'byte_fallback', [40] = 'unk_id', [41] = 'bos_id', [42] = 'eos_id' }, m.trainer)
      elseif number == 3 then
         read(of('string', value), { [2] = 'charsmap', [3] = 'add_dummy_prefix',
            [4] = 'remove_extra_whitespaces', [5] = 'escape_whitespaces' }, m.normalizer)
      end
   end)
   if #m.pieces == 0 then damaged() end
   return m
end

-- ---- the description -------------------------------------------------------------------------

local function steps(n)
   local list = {}
   local function add(kind, mode, what, with)
      list[#list + 1] = { kind = kind, mode = mode, what = what, with = with }
   end
   if n.charsmap ~= '' then add('charsmap', { longest = true }, nil, n.charsmap) end
   if n.remove_extra_whitespaces ~= 0 then
      -- at the end also marks, which spaces have become
      local last = n.escape_whitespaces ~= 0 and ('[ %s]+'):format(mark) or ' +'
      add('replace', nil, '\\A +|' .. last .. '\\z', '')
      add('replace', nil, ' {2,}', ' ')
   end
   if n.add_dummy_prefix ~= 0 then
      add('prepend', { first = true }, nil, ' ')
   end
   if n.escape_whitespaces ~= 0 then add('replace', nil, ' ', mark) end
   return list
end

-- Returns the merge ranks of pieces; pieces of equal scores share a rank.
local function ranks_of(pieces)
   local scores, rank_of, ranks = {}, {}, {}
   for _, p in ipairs(pieces) do
      if p.type == 'normal' and not rank_of[p.score] then
         scores[#scores + 1], rank_of[p.score] = p.score, 0
      end
   end
   table.sort(scores)
   for i, score in ipairs(scores) do rank_of[score] = #scores - i end
   for i, p in ipairs(pieces) do ranks[i] = p.type == 'normal' and rank_of[p.score] or -1 end
   return ranks
end

local function id_to_text(m, id)
   local p = type(id) == 'number' and m.pieces[id + 1]
   return p and p.type == 'control' and p.text or nil
end

-- Returns the score of a user-defined symbol of n bytes in a Unigram path, as in sentencepiece 0.2;
-- the score in the file does not count.
local function symbol_score(n) return 0.1 * n - 0.1 end

-- Collects the pieces. User-defined symbols match in normalized text: as pieces in a Unigram model,
-- before the merges in a BPE model. A symbol that normalization changes matches before it.
local function add_pieces(d, m)
   local map = m.normalizer.charsmap ~= '' and d.normal[1] or nil
   local normal = build.normalizer { normal = { map } }
   for i, p in ipairs(m.pieces) do
      local plain = p.text:gsub(mark, ' ')                -- a space becomes a mark in the text, too
      local late = p.type == 'user' and (normal(p.text) == p.text or normal(plain) == plain)
      local is_piece = p.type == 'normal' or p.type == 'byte' or late and d.model == 'Unigram'
      d.pieces[i], d.names[i], d.scores[i] = is_piece and p.text or '', p.text, p.score
      if late then d.scores[i] = symbol_score(#p.text) end
      if p.type == 'control' or p.type == 'unknown' then
         d.added[#d.added + 1] = { text = p.text, find = p.text, id = i - 1, special = true }
      elseif p.type == 'user' then
         d.added[#d.added + 1] = { text = p.text, id = i - 1, normalized = late,
            find = is_piece and '' or late and p.text or p.text:gsub(mark, ' ') }
      end
   end
end

-- Returns the description of a file's text, and its special tokens by name. Ids are those of
-- transformers: a text begins with the beginning-of-text token where the model has one.
function sentencepiece.describe(text)
   local m = read_model(text)
   local kind = ({ 'Unigram', 'BPE' })[m.trainer.model_type]
   err.raise_if(not kind, 'E_UNSUPPORTED', op, 'sentencepiece models of words or characters')
   err.raise_if(m.trainer.treat_whitespace_as_suffix == 1, 'E_UNSUPPORTED', op,
      'sentencepiece with white space as suffix')
   local d = { model = kind, pieces = {}, names = {}, scores = {}, added = {}, words = {},
      unk = m.trainer.unk_id, flags = { byte_fallback = m.trainer.byte_fallback == 1,
      fuse_unk = true, f32_scores = true },
      normal = steps(m.normalizer), before = {}, after = {} }
   add_pieces(d, m)
   if kind == 'BPE' then d.ranks, d.scores = ranks_of(m.pieces), nil end
   local bos, eos = id_to_text(m, m.trainer.bos_id), id_to_text(m, m.trainer.eos_id)
   if kind == 'BPE' and bos then d.before = { m.trainer.bos_id } end
   if kind == 'Unigram' and eos then d.after = { m.trainer.eos_id } end
   local strip = m.normalizer.add_dummy_prefix ~= 0 and 1 or 0
   d.decoder = decoder.compile { type = 'Sequence', decoders = {
      { type = 'Replace', pattern = { String = mark }, content = ' ' }, { type = 'ByteFallback' },
      { type = 'Fuse' }, { type = 'Strip', content = ' ', start = strip, stop = 0 } } }
   local unknown = m.pieces[(m.trainer.unk_id or 0) + 1]
   return d, { bos_token = bos, eos_token = eos, unk_token = unknown and unknown.text }
end

return sentencepiece
