-- Trains a byte-level BPE tokenizer on text and writes a tokenizer.json.
--
--    tide run recipes/tokenizer.lua --data FILE|DIR --vocab-size 8192 --out runs/tokenizer
--    tide run recipes/pretrain.lua --data FILE|DIR --tokenizer runs/tokenizer
--
-- The folder can be given to --tokenizer of the other recipes, and Hugging Face's tokenizers and
-- transformers load it with the same ids.

pcall(dofile, (arg[0]:match '^.*/' or '') .. 'support/path.lua')     -- for plain luajit

local args = require 'tide.util.args'
local err = require 'tide.util.err'

local options = {
   { 'data', 'lua', 'text file, or folder of text files; may be repeated, all are read',
     list = true },
   { 'vocab-size', 8192, 'size of the vocabulary, with the 256 bytes and the special tokens',
     min = 257, also = { 'vocab' } },
   { 'pattern', 'llama3', 'rule that splits text into words: llama3, gpt2, qwen2' },
   { 'special', '<|endoftext|>', 'special tokens, separated by commas; the first one begins and '
     .. 'ends texts' },
   { 'min-count', 2, 'pairs that occur less often are not merged', min = 1 },
   { 'out', 'runs/tokenizer', 'folder to write tokenizer.json to' },
   { 'overwrite', false, 'replace a tokenizer in --out' },
}

-- The paths and contents of the files of --data, and how many bytes they have.
local function read(tide, opt)
   local paths, texts, bytes = {}, {}, 0
   for _, place in ipairs(type(opt.data) == 'table' and opt.data or { opt.data }) do
      for _, path in ipairs(tide.data.text.files(place)) do
         local content = tide.util.fs.read('tokenizer', path)
         err.usage_if(content:find('\0', 1, true), 'tokenizer', '--data: %s is not text, it has a '
            .. 'byte of 0', path)
         paths[#paths + 1], texts[#texts + 1] = path, content
         bytes = bytes + #content
      end
   end
   err.usage_if(bytes == 0, 'tokenizer', '--data: %s has no text', paths[1])
   return paths, texts, bytes
end

local function run(opt)
   local tide = require 'tide'
   if tide.comm.world().rank > 0 then return end
   local train, fs = require 'tide.tokenizer.train', tide.util.fs
   local place = fs.join(opt.out, 'tokenizer.json')
   err.usage_if(fs.exists(place) and not opt.overwrite, 'tokenizer', '%s is there already; choose '
      .. 'another --out, or give --overwrite', place)
   local paths, texts, bytes = read(tide, opt)
   local special = {}
   for name in opt.special:gmatch '[^,]+' do special[#special + 1] = name end
   local start = tide.clock()
   local value = train.bpe(texts, { vocab_size = opt.vocab_size, pattern = opt.pattern,
      special = special, min_count = opt.min_count, names = paths })
   train.save(value, opt.out)
   local tok = tide.tokenizer.load(opt.out)
   local n = 0
   for _, text in ipairs(texts) do n = n + #tok:encode(text, { width = 4 }) / 4 end
   print(('%d file%s, %d bytes: %d ids in the vocabulary, %.2f bytes an id, %.1f s; %s'):format(
      #texts, #texts == 1 and '' or 's', bytes, tok.vocab_size, bytes / n, tide.clock() - start,
      place))
end

args.main(function(...)
   local opt = args.parse('tokenizer: train a byte-level BPE on text', options, { ... })
   if opt then
      err.people({ 'E_ARG', 'E_IO', 'E_FORMAT', 'E_UNSUPPORTED' }, run, opt)
   end
end, ...)
