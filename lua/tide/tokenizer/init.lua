-- Tokenizers: text to ids and back, from the files that models are published with.
--
--    local tok = tide.tokenizer.load 'models/llama'       -- a folder or a file
--    local ids = tok:encode 'Hello world'
--    print(tok:decode(ids))
--
-- Fields of a tokenizer: vocab_size, bos, eos, pad, unk (ids, or nil), special (texts by name, as
-- tokenizer_config.json has them: bos_token, eos_token, ...), config (the value of that file),
-- added (texts of added tokens by id). tide.data.bytes is a tokenizer, too.

local build = require 'tide.tokenizer.build'
local decoder = require 'tide.tokenizer.decoder'
local each = require 'tide.util.each'
local little = require 'tide.util.little'
local options = require 'tide.tokenizer.options'
local signature = require 'tide.util.signature'

local tokenizer = {}

local Tokenizer = {}
Tokenizer.__index = Tokenizer

-- The name of a token in reports; that of the byte tokenizer is a byte.
Tokenizer.unit = 'token'

-- Returns a text; with opts.invalid = 'replace' its invalid UTF-8 becomes U+FFFD.
local function repaired(text, opts)
   return opts.invalid == 'replace' and decoder.repair(text) or text
end

-- Packs ids into a string of opts.width bytes each.
local function packed(ids, width)
   local out = {}
   for i, id in ipairs(ids) do out[i] = little.write(id, width) end
   return table.concat(out)
end

-- Adds the special ids before and after a text.
local function surround(self, ids, offsets, n, width)
   local before, after = self.description.before, self.description.after
   if width then return packed(before, width) .. ids .. packed(after, width) end
   local all, places = {}, offsets and {}
   local function add(list, at, place)
      for i, id in ipairs(list) do
         all[#all + 1] = id
         if places then places[#all] = at and { at, at - 1 } or place[i] end
      end
   end
   add(before, 1)
   add(ids, nil, offsets)
   add(after, n + 1)
   return all, places
end

-- Returns the ids of a text and, with offsets, their places: a list of { first, last }, so that
-- text:sub(first, last) is the text of the id (bytes, from 1; the ids around the text have
-- empty places). opts: add_special_tokens (true: the ids that the file puts around a text),
-- special (false: text that looks like a special token is text), offsets (false), invalid ('error',
-- or 'replace': what is not UTF-8 becomes U+FFFD), width (2 or 4: a string of little-endian ids in
-- the place of the list).
function Tokenizer:encode(text, opts)
   text = repaired(text, opts)
   local ids, offsets = self.tables:encode(text, opts)
   if opts.add_special_tokens == false then return ids, offsets end
   return surround(self, ids, offsets, #text, opts.width)
end

-- Encodes a list of texts on several threads. opts: those of encode, and threads (0: those of the
-- default context). Returns the list of ids and, with offsets, the list of places.
function Tokenizer:encode_batch(texts, opts)
   local all = {}
   for i, text in ipairs(texts) do all[i] = repaired(text, opts) end
   local ids, offsets = self.tables:encode_batch(all, opts, opts.threads)
   if opts.add_special_tokens ~= false then
      for i, text in ipairs(all) do
         local a, b = surround(self, ids[i], offsets and offsets[i], #text, opts.width)
         ids[i] = a
         if offsets then offsets[i] = b end
      end
   end
   return ids, offsets
end

-- Returns the text of a list of ids. opts: special (false: special tokens give no text). Invalid
-- UTF-8 becomes U+FFFD; ids without a piece give no text.
function Tokenizer:decode(ids, opts)
   return decoder.all(self, ids, opts)
end

-- Returns a streaming decoder: push(id) returns the text that is complete, never half a character,
-- and finish() returns the rest. opts: those of decode.
function Tokenizer:stream(opts)
   return decoder.stream(self, opts)
end

-- Returns the id of a piece or an added token, as files write it; nil if no id has that text.
function Tokenizer:id(name)
   if not self.id_by_text then
      self.id_by_text = {}
      for i, piece in ipairs(self.description.names) do
         if piece ~= '' then self.id_by_text[piece] = i - 1 end
      end
      for _, token in ipairs(self.description.added) do self.id_by_text[token.text] = token.id end
   end
   return self.id_by_text[name]
end

-- Returns the piece or added token of an id, as files write it; nil if the id has no text.
function Tokenizer:token(id)
   local name = self.added[id] or self.description.names[id + 1]
   return name ~= '' and name or nil
end

-- Returns the place of the first byte of a text that is not UTF-8, which encode refuses, or nil.
function Tokenizer:first_invalid(text) return build.bad_utf8(text) end

-- Returns the texts of the special tokens, the longest first.
function Tokenizer:special_texts()
   local list = {}
   for id in each(self.is_special) do list[#list + 1] = self.added[id] end
   table.sort(list, function(a, b) return #a > #b or #a == #b and a < b end)
   return list
end

local function count(d)
   local n = #d.names
   for _, token in ipairs(d.added) do n = math.max(n, token.id + 1) end
   return n
end

local roles = { 'bos', 'eos', 'pad', 'unk' }

-- Makes the tokenizer of a description (build.lua). special: texts by name; config: a table; hash:
-- the hash of its files.
local function made(d, special, config, hash)
   local self = setmetatable({ description = d, tables = build.tables(d), vocab_size = count(d),
      special = special or {}, config = config or {}, hash = hash, added = {},
      is_special = {} }, Tokenizer)
   for _, token in ipairs(d.added) do
      self.added[token.id] = token.text
      if token.special then self.is_special[token.id] = true end
   end
   for _, role in ipairs(roles) do
      local text = self.special[role .. '_token']
      self[role] = text and self:id(text)
   end
   return self
end

-- Returns the tokenizer of a folder or a file: tokenizer.json, tokenizer.model (sentencepiece),
-- tekken.json, or a file of tiktoken. E_IO, E_FORMAT; E_UNSUPPORTED names the unknown type, or the
-- missing package.
function tokenizer.load(path)
   return require('tide.tokenizer.file').load(made, path)
end

-- Returns the tokenizer in a folder or its parent (a run holds that of its checkpoints), and that
-- folder. Where neither has one, returns tide.data.bytes if vocab_size is its own, else nil.
function tokenizer.find(path, vocab_size)
   local tok, folder = require('tide.tokenizer.file').find(made, path)
   local bytes = require 'tide.tokenizer.bytes'
   if tok or vocab_size ~= bytes.vocab_size then return tok, folder end
   return bytes
end

signature.doors('tokenizer', Tokenizer, {
   decode = { 'ids: integer[] >= 0', opts = options.decode }, stream = { opts = options.decode },
   encode = { 'text: string', opts = options.encode },
   encode_batch = { 'texts: string[]', opts = options.batch }, id = 'name: string',
})
return signature.doors('tokenizer', tokenizer, { load = 'path: string',
   find = 'path: string; vocab_size: integer?' })
