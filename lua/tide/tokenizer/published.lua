-- tokenizer.json as a description of a tokenizer (build.lua).

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local build = require 'tide.tokenizer.build'
local decoder = require 'tide.tokenizer.decoder'
local step = require 'tide.tokenizer.step'
local visible = require 'tide.tokenizer.visible'

local published = {}

local op = 'tokenizer.load'

local function fail(message, ...) err.raise('E_FORMAT', op, message, ...) end

local function id_of(name, id)
   if type(id) ~= 'number' or id < 0 or id % 1 ~= 0 or id >= 2^24 then
      fail("piece %q has the id %s", name, tostring(id))
   end
   return id
end

-- ---- pieces ----------------------------------------------------------------------------------

-- A list with '' in its gaps: the pieces by id, from a map of ids.
local function by_id(vocab)
   local list, most = {}, -1
   for name, id in each(vocab) do
      list[id_of(name, id) + 1] = name
      most = math.max(most, id)
   end
   for i = 1, most + 1 do list[i] = list[i] or '' end
   return list
end

local function scored(rows)
   local list, scores = {}, {}
   for i, row in ipairs(rows) do
      if type(row) ~= 'table' or type(row[1]) ~= 'string' or type(row[2]) ~= 'number' then
         fail('entry %d of the vocabulary is no pair of a piece and a score', i)
      end
      list[i], scores[i] = row[1], row[2]
   end
   return list, scores
end

-- Merges as ids. A merge is a pair or a text with a space between.
local function merges_of(rows, ids, prefix)
   local list, cut = {}, #prefix
   for i, row in ipairs(rows) do
      local a, b
      if type(row) == 'table' then a, b = row[1], row[2] else a, b = row:match '^(%S+) (%S+)$' end
      local x, y = ids[a], ids[b]
      local z = x and y and ids[a .. b:sub(cut + 1)]
      if not z then fail('merge %d: %s and %s, or what they make, are no pieces', i, tostring(a),
         tostring(b)) end
      list[3 * i - 2], list[3 * i - 1], list[3 * i] = x, y, z
   end
   return list
end

-- ---- models ----------------------------------------------------------------------------------

local models = {}

local function text_or_nil(v) return type(v) == 'string' and v ~= '' and v or nil end

function models.BPE(d, model)
   local vocab = err.type(op, 'model.vocab', model.vocab, 'table')
   d.pieces = by_id(vocab)
   d.unk = vocab[model.unk_token]
   d.prefix, d.suffix = text_or_nil(model.continuing_subword_prefix),
      text_or_nil(model.end_of_word_suffix)
   d.merges = merges_of(model.merges or {}, vocab, d.prefix or '')
   for _, flag in ipairs { 'byte_fallback', 'fuse_unk', 'ignore_merges' } do
      d.flags[flag] = model[flag] == true
   end
end

function models.Unigram(d, model)
   d.pieces, d.scores = scored(err.type(op, 'model.vocab', model.vocab, 'table'))
   d.unk = type(model.unk_id) == 'number' and model.unk_id or nil
   d.flags.byte_fallback = model.byte_fallback == true
end

function models.WordPiece(d, model)
   local vocab = err.type(op, 'model.vocab', model.vocab, 'table')
   d.pieces, d.unk = by_id(vocab), vocab[model.unk_token or '[UNK]']
   d.prefix, d.most = model.continuing_subword_prefix or '##',
      model.max_input_chars_per_word or 100
end

function models.WordLevel(d, model)
   local vocab = err.type(op, 'model.vocab', model.vocab, 'table')
   d.pieces, d.unk = by_id(vocab), vocab[model.unk_token or '<unk>']
end

-- Older files do not name the type.
local function type_of(model)
   if type(model.type) == 'string' then return model.type end
   return model.merges and 'BPE' or model.unk_id and 'Unigram' or 'WordPiece'
end

-- ---- the rest --------------------------------------------------------------------------------

-- A vocabulary of bytes whose last step shows them: the model takes the bytes themselves, pieces
-- of other characters can be made of no text.
local function use_bytes(d)
   local last = d.words[#d.words]
   if d.model ~= 'BPE' or not last or last.kind ~= 'bytes' or d.prefix or d.suffix then return end
   d.words[#d.words] = nil
   d.flags.bytes = true
   d.names = d.pieces
   local pieces = {}
   for i, name in ipairs(d.names) do pieces[i] = visible.bytes(name) or '' end
   d.pieces = pieces
end

local function added_tokens(d, rows)
   local list = {}
   for i, row in ipairs(rows or {}) do
      if type(row.content) ~= 'string' then fail('added token %d has no content', i) end
      list[#list + 1] = { text = row.content, id = id_of(row.content, row.id),
         special = row.special == true, normalized = row.normalized == true,
         single_word = row.single_word == true, lstrip = row.lstrip == true,
         rstrip = row.rstrip == true }
   end
   return build.normalize_added(d, list)
end

-- ---- what stands around a text ---------------------------------------------------------------

local around = {}

local function append(list, ids) for _, id in ipairs(ids) do list[#list + 1] = id end end

function around.TemplateProcessing(d, node)
   local before, after = {}, {}
   local to = before
   for _, item in ipairs(node.single or {}) do
      if item.Sequence then
         to = after
      else
         local token = node.special_tokens[item.SpecialToken.id]
         append(to, token and token.ids or fail('%s of the template is no token',
            tostring(item.SpecialToken.id)))
      end
   end
   d.before, d.after = before, after
end

function around.BertProcessing(d, node) d.before, d.after = { node.cls[2] }, { node.sep[2] } end
around.RobertaProcessing = around.BertProcessing
function around.ByteLevel() end

function around.Sequence(d, node)
   for _, child in ipairs(node.processors or {}) do published.around(d, child) end
end

-- Fills in d.before and d.after, the ids around a text.
function published.around(d, node)
   if type(node) ~= 'table' or node.type == nil then return end
   local fn = around[node.type]
   err.raise_if(not fn, 'E_UNSUPPORTED', op, "post_processor '%s' is not supported",
      tostring(node.type))
   fn(d, node)
end

-- Returns the description of the value of a tokenizer.json.
function published.describe(t)
   local model = type(t) == 'table' and t.model
   if type(model) ~= 'table' then fail 'tokenizer.json has no model' end
   local kind = type_of(model)
   err.raise_if(not models[kind], 'E_UNSUPPORTED', op, "model '%s' is not supported",
      tostring(kind))
   local d = { model = kind, flags = {}, normal = step.normal(t.normalizer),
      words = step.words(t.pre_tokenizer), before = {}, after = {} }
   models[kind](d, model)
   use_bytes(d)
   d.names = d.names or d.pieces
   d.added = added_tokens(d, t.added_tokens)
   d.decoder = decoder.compile(t.decoder)
   published.around(d, t.post_processor)
   return d
end

return published
