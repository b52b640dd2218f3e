-- Text as ids for token sources, by a tokenizer whose ids are kept in a folder.
--
-- An encoder has tokenizer, width (bytes an id), eos (the id that ends a document, as bytes) and
-- encode(path, text) -> ids as a string. A file of the folder is named by hashes of the text and of
-- the tokenizer's files and ends with a hash of its own, so it is never stale, and a damaged one is
-- replaced. Ids of the byte tokenizer, which has no files, are not kept.

local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local little = require 'tide.util.little'

local encoder = {}

local op = 'data.text.load'
local version = 'ids 1'

local function read(path)
   local text = fs.exists(path) and fs.io().read_file(path)
   if not text or #text < 16 then return nil end
   local ids = text:sub(1, -17)
   return fs.io().xxh64(ids) == text:sub(-16) and ids or nil
end

-- Returns the encoder of a tokenizer. cache: a folder for ids, made if absent; nil: none is kept.
function encoder.of(tok, cache)
   local width = tok.vocab_size <= 65536 and 2 or 4
   err.raise_if(not tok.eos, 'E_FORMAT', op, 'the tokenizer has no eos_token, which ends a '
      .. 'document; name it in tokenizer_config.json')
   local function make(path, text)
      local bad = tok:first_invalid(text)
      if bad then err.raise('E_FORMAT', op, '%s: byte %d is not UTF-8', path, bad) end
      return (tok:encode(text, { add_special_tokens = false, width = width }))
   end
   local function encode(path, text)
      if not cache or not tok.hash then return make(path, text) end
      local hash = fs.io().xxh64
      local name = ('%s-%d-%s.ids'):format(hash(text), #text, hash(version .. width .. tok.hash))
      local file = fs.join(cache, name)
      local ids = read(file)
      if ids then return ids end
      ids = make(path, text)
      fs.mkdirs(op, cache)
      fs.write(op, file, ids .. hash(ids))
      return ids
   end
   return { tokenizer = tok, width = width, eos = little.write(tok.eos, width), encode = encode }
end

return encoder
