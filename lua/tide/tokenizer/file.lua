-- Finds the tokenizer file of a folder, detects its kind, and reads the names of special tokens
-- from the files beside it.

local err = require 'tide.util.err'
local field = require 'tide.tokenizer.field'
local fs = require 'tide.util.fs'

local file = {}

local op = 'tokenizer.load'
local most = 2^30

local function json(path)
   local io = require 'tide.tokenizer.json'
   return io.read(path, most)
end

-- Readers by kind: (value or text, path, folder) -> description, special tokens of the file.
local readers = {
   published = function(value) return require('tide.tokenizer.published').describe(value) end,
   tekken = function(value) return require('tide.tokenizer.tiktoken').tekken(value) end,
   tiktoken = function(text, path, config)
      return require('tide.tokenizer.tiktoken').describe(text, path, config)
   end,
   sentencepiece = function(text) return require('tide.tokenizer.sentencepiece').describe(text) end,
}

-- Returns the kind and contents of a file.
local function identify(path)
   if path:find '%.json$' then
      local value = json(path)
      if type(value) == 'table' and value.model then return 'published', value end
      if type(value) == 'table' and value.vocab and value.config then return 'tekken', value end
      err.raise('E_FORMAT', op, '%s is neither a tokenizer.json nor a tekken.json', path)
   end
   local text = fs.read(op, path)
   if text:find '^[%w+/=]+ %d+[\r\n]' then return 'tiktoken', text end
   if text:sub(1, 1) == '\n' then return 'sentencepiece', text end
   err.raise('E_FORMAT', op, '%s is neither a tokenizer.json, a tokenizer.model of sentencepiece, '
      .. 'a tekken.json nor a file of tiktoken', path)
end

local names = { 'tokenizer.json', 'tokenizer.model', 'tekken.json', 'spiece.model',
   'sentencepiece.bpe.model' }

-- Returns the tokenizer file of a folder, or nil.
local function file_in(folder)
   for _, name in ipairs(names) do
      local path = fs.join(folder, name)
      if fs.exists(path) then return path end
   end
   for _, name in ipairs(fs.list(op, folder)) do
      local known = name:find '%.tiktoken$' or name:find '^tokenizer%.model'
      if known then return fs.join(folder, name) end
   end
end

local function find(folder)
   return file_in(folder) or err.raise('E_IO', op, 'there is no tokenizer.json, tokenizer.model, '
      .. 'tekken.json or *.tiktoken in %s', folder)
end

-- Returns a hash of the files that ids depend on: the tokenizer's and tokenizer_config.json.
local function hash_of(path, folder)
   local config = fs.join(folder, 'tokenizer_config.json')
   return fs.hash(op, path) .. (fs.exists(config) and fs.hash(op, config) or '')
end

local function beside(folder, name)
   local path = folder and fs.join(folder, name)
   return path and fs.exists(path) and json(path) or {}
end

-- Codes of errors about the contents of a file, from Lua and from the core.
local codes = { E_FORMAT = 'E_FORMAT', E_UNSUPPORTED = 'E_UNSUPPORTED' }
local core_codes = { E_ARG = 'E_FORMAT' }

-- Calls fn(...) and adds the file name to errors about its contents.
local function about(path, fn, ...)
   local results = { pcall(fn, ...) }
   if results[1] then return unpack(results, 2, 3) end
   local e = err.of(results[2])
   local code = e and (codes[e.code] or e.op:find '^tokenizer_' and core_codes[e.code])
   if code and not e.message:find(path, 1, true) then
      err.raise(code, op, '%s: %s', path, e.message)
   end
   error(results[2], 0)
end

-- Returns the tokenizer of a path, made by made(description, special, config, hash).
function file.load(made, path)
   local folder = fs.is_dir(path) and path or fs.above(path)
   err.raise_if(not fs.exists(path), 'E_IO', op, 'cannot read %s: there is no such file or folder',
      path)
   if fs.is_dir(path) then path = find(path) end
   local kind, value = identify(path)
   local config = beside(folder, 'tokenizer_config.json')
   local d, special = about(path, readers[kind], value, path, config)
   special = special or {}
   field.token_texts(beside(folder, 'special_tokens_map.json'), special)
   field.token_texts(config, special)
   return about(path, made, d, special, config, hash_of(path, folder))
end

-- Returns the folder that has a tokenizer, of the places of a path, and the file; nil if none does.
function file.place(path)
   for _, folder in ipairs(fs.places(path)) do
      local found = fs.is_dir(folder) and file_in(folder)
      if found then return folder, found end
   end
end

-- Returns the tokenizer in a folder or its parent, and that folder; nil if neither has one.
function file.find(made, path)
   local folder = file.place(path)
   if folder then return file.load(made, folder), folder end
end

return file
