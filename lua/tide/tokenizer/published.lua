-- Reads tokenizer.json as a description of a tokenizer (build.lua).

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local build = require 'tide.tokenizer.build'
local decoder = require 'tide.tokenizer.decoder'
local field = require 'tide.tokenizer.field'
local step = require 'tide.tokenizer.step'
local visible = require 'tide.tokenizer.visible'

local published = {}

local op = 'tokenizer.load'

local function fail(message, ...) err.raise('E_FORMAT', op, message, ...) end

local function id_of(name, id)
   if field.is_id(id) then return id end
   return field.value(('the id of piece %s'):format(err.show(name)), id, 'id')
end

-- ---- pieces ----------------------------------------------------------------------------------

-- Returns the list of pieces by id from a map piece -> id; gaps hold ''.
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
   for i = 1, #rows do
      local row = rows[i]
      if type(row) ~= 'table' or type(row[1]) ~= 'string' or type(row[2]) ~= 'number' then
         fail('entry %d of the vocabulary is no pair of a piece and a score', i)
      end
      list[i], scores[i] = row[1], row[2]
   end
   return list, scores
end

-- Returns merges as ids. A merge in the file is a pair, or a text with a space between the two.
local function merges_of(rows, ids, prefix)
   local list, cut = {}, #prefix
   for i, row in ipairs(rows) do
      local a, b
      if type(row) == 'table' then a, b = row[1], row[2]
      elseif type(row) == 'string' then a, b = row:match '^(%S+) (%S+)$' end
      local is_pair = type(a) == 'string' and type(b) == 'string'
      local x, y = is_pair and ids[a], is_pair and ids[b]
      local z = x and y and ids[a .. b:sub(cut + 1)]
      if not z then
         fail('merge %d: expected two pieces that make a piece, got %s', i,
            is_pair and ('%s and %s'):format(err.show(a), err.show(b)) or err.show(row))
      end
      list[3 * i - 2], list[3 * i - 1], list[3 * i] = x, y, z
   end
   return list
end

-- ---- models ----------------------------------------------------------------------------------

local models = {}

local function text_or_nil(v) return type(v) == 'string' and v ~= '' and v or nil end

function models.BPE(d, model)
   local vocab = model.vocab
   d.pieces = by_id(vocab)
   d.unk = vocab[model.unk_token]
   d.prefix, d.suffix = text_or_nil(model.continuing_subword_prefix),
      text_or_nil(model.end_of_word_suffix)
   if model.dropout and model.dropout ~= 0 then
      err.raise('E_UNSUPPORTED', op, 'model.dropout: merges that are left out at random are not '
         .. 'supported, got %s; set it to null for the ids without it', err.show(model.dropout))
   end
   d.merges = merges_of(model.merges or {}, vocab, d.prefix or '')
   for _, flag in ipairs { 'byte_fallback', 'fuse_unk', 'ignore_merges' } do
      d.flags[flag] = model[flag] == true
   end
end

function models.Unigram(d, model)
   d.pieces, d.scores = scored(model.vocab)
   d.unk = model.unk_id
   d.flags.byte_fallback = model.byte_fallback == true
end

function models.WordPiece(d, model)
   local vocab = model.vocab
   d.pieces, d.unk = by_id(vocab), vocab[model.unk_token or '[UNK]']
   d.prefix, d.most = model.continuing_subword_prefix or '##',
      model.max_input_chars_per_word or 100
end

function models.WordLevel(d, model)
   local vocab = model.vocab
   d.pieces, d.unk = by_id(vocab), vocab[model.unk_token or '<unk>']
end

-- Infers the type of a model in an older file, which does not name it.
local function type_of(model)
   if type(model.type) == 'string' then return model.type end
   return model.merges and 'BPE' or model.unk_id and 'Unigram' or 'WordPiece'
end

-- ---- the rest --------------------------------------------------------------------------------

-- Converts a vocabulary whose last step writes bytes as visible characters (ByteLevel): the model
-- takes the bytes. A piece with other characters cannot match any text.
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
   for i, row in ipairs(field.value('added_tokens', rows, 'list?') or {}) do
      field.check(('added_tokens[%d]'):format(i), row, { content = 'text', id = 'id' })
      list[#list + 1] = { text = row.content, id = row.id,
         special = row.special == true, normalized = row.normalized == true,
         single_word = row.single_word == true, lstrip = row.lstrip == true,
         rstrip = row.rstrip == true }
   end
   return build.normalize_added(d, list)
end

-- ---- special tokens around a text ------------------------------------------------------------

local around = {}

-- Appends the ids of a token of the template.
local function append(list, item, tokens, where)
   local name = field.check(where .. '.SpecialToken', item.SpecialToken, { id = 'text' }).id
   local token = tokens and tokens[name]
   if not token then fail("%s: '%s' is no token of the template", where, name) end
   local ids = field.check(where .. ': special_tokens', token, { ids = 'list' }).ids
   for _, id in ipairs(ids) do list[#list + 1] = field.value(where .. ': ids', id, 'id') end
end

function around.TemplateProcessing(d, node)
   local before, after = {}, {}
   local to = before
   for i, item in ipairs(node.single or {}) do
      local where = ('post_processor.single[%d]'):format(i)
      if field.value(where, item, 'object').Sequence then
         to = after
      else
         append(to, item, node.special_tokens, where)
      end
   end
   d.before, d.after = before, after
end

function around.BertProcessing(d, node)
   d.before = { field.value('post_processor.cls', node.cls[2], 'id') }
   d.after = { field.value('post_processor.sep', node.sep[2], 'id') }
end
around.RobertaProcessing = around.BertProcessing
function around.ByteLevel() end

function around.Sequence(d, node)
   for _, child in ipairs(node.processors or {}) do published.around(d, child) end
end

-- Sets d.before and d.after, the ids before and after a text.
function published.around(d, node)
   if not field.is_node('post_processor', node) then return end
   local fn = around[node.type]
   err.raise_if(not fn, 'E_UNSUPPORTED', op, "post_processor '%s' is not supported",
      tostring(node.type))
   fn(d, field.node('post_processor', node))
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
   models[kind](d, field.node('model', model, kind))
   use_bytes(d)
   d.names = d.names or d.pieces
   d.added = added_tokens(d, t.added_tokens)
   d.decoder = decoder.compile(t.decoder)
   published.around(d, t.post_processor)
   return d
end

return published
