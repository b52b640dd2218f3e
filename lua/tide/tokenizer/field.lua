-- Checks the contents of tokenizer files: each field that is read has a value of its kind.

local err = require 'tide.util.err'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'

local field = {}

local op = 'tokenizer.load'

local function is_object(v)
   local json = fs.io().json
   return type(v) == 'table' and v ~= json.null and not fs.is_list(v)
end

-- Returns whether a value is an integer in the range of ids.
function field.is_id(v) return type(v) == 'number' and v >= 0 and v < 2^22 and v % 1 == 0 end

-- Kinds of values: their name in messages, and a predicate.
local kinds = {
   text = { 'a text', function(v) return type(v) == 'string' end },
   flag = { 'true or false', function(v) return type(v) == 'boolean' end },
   id = { 'an integer in [0, 4194303]', field.is_id },
   list = { 'a list', fs.is_list },
   object = { 'an object', is_object },
}

-- Describes a value for messages.
local function shown(v)
   if v == nil then return 'nothing' end
   if v == fs.io().json.null then return 'null' end
   if type(v) == 'table' then return fs.is_list(v) and 'a list' or 'an object' end
   return err.show(v)
end

-- Returns a value of a kind; raises E_FORMAT otherwise. The value of a kind that ends in '?' may be
-- absent. where: the name of the field.
function field.value(where, v, kind)
   local name, optional = kind:match '^(%a+)(%??)$'
   if v == nil and optional == '?' then return v end
   local row = kinds[name]
   if not row[2](v) then
      err.raise('E_FORMAT', op, '%s: expected %s, got %s', where, row[1], shown(v))
   end
   return v
end

-- Returns t, an object whose fields are of these kinds; raises E_FORMAT otherwise. where: the name
-- of the field that holds t; rows: kinds by name.
function field.check(where, t, rows)
   field.value(where, t, 'object')
   for name, kind in each(rows) do field.value(where .. '.' .. name, t[name], kind) end
   return t
end

-- Kinds of the fields of an object { type = .. } by its type.
local typed = {
   normalizer = {
      Sequence = { normalizers = 'list?' }, Prepend = { prepend = 'text' },
      Replace = { content = 'text' }, Precompiled = { precompiled_charsmap = 'text' },
      Strip = { strip_left = 'flag?', strip_right = 'flag?' },
      BertNormalizer = { clean_text = 'flag?', handle_chinese_chars = 'flag?',
         strip_accents = 'flag?', lowercase = 'flag?' },
   },
   pre_tokenizer = {
      Sequence = { pretokenizers = 'list?' }, Split = { behavior = 'text', invert = 'flag?' },
      ByteLevel = { add_prefix_space = 'flag?', use_regex = 'flag?' },
      Metaspace = { replacement = 'text?', prepend_scheme = 'text?', add_prefix_space = 'flag?',
         split = 'flag?' },
      Punctuation = { behavior = 'text?' }, Digits = { individual_digits = 'flag?' },
      CharDelimiterSplit = { delimiter = 'text' },
   },
   decoder = {
      Sequence = { decoders = 'list?' }, Replace = { pattern = 'object', content = 'text' },
      Metaspace = { replacement = 'text?', prepend_scheme = 'text?', add_prefix_space = 'flag?' },
      WordPiece = { prefix = 'text?', cleanup = 'flag?' }, BPEDecoder = { suffix = 'text?' },
      Strip = { content = 'text', start = 'id?', stop = 'id?' },
   },
   post_processor = {
      Sequence = { processors = 'list?' },
      TemplateProcessing = { single = 'list?', special_tokens = 'object?' },
      BertProcessing = { cls = 'list', sep = 'list' },
      RobertaProcessing = { cls = 'list', sep = 'list' },
   },
   model = {
      BPE = { vocab = 'object', merges = 'list?', unk_token = 'text?',
         continuing_subword_prefix = 'text?', end_of_word_suffix = 'text?' },
      Unigram = { vocab = 'list', unk_id = 'id?' },
      WordPiece = { vocab = 'object', unk_token = 'text?', continuing_subword_prefix = 'text?',
         max_input_chars_per_word = 'id?' },
      WordLevel = { vocab = 'object', unk_token = 'text?' },
   },
}

-- Returns a node whose fields are of the kinds of its type; raises E_FORMAT otherwise. group:
-- normalizer, pre_tokenizer, decoder, post_processor or model; name: the type of a node that does
-- not name it.
function field.node(group, node, name)
   return field.check(group, node, typed[group][name or node.type] or {})
end

-- Returns whether a value is a node, an object with a type. Raises E_FORMAT if it is neither a node
-- nor absent.
function field.is_node(group, node)
   if node == nil or field.value(group, node, 'object').type == nil then return false end
   field.value(group .. '.type', node.type, 'text')
   return true
end

-- Copies the fields NAME_token of a table, texts or { content = text }, to `into` as texts.
function field.token_texts(t, into)
   for name, v in each(t) do
      if type(v) == 'table' then v = v.content end
      if type(name) == 'string' and name:find '_token$' and type(v) == 'string' then
         into[name] = v
      end
   end
   return into
end

return field
