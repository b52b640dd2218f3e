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
   { 'data', 'lua', 'text file, or folder of text files' },
   { 'vocab-size', 8192, 'size of the vocabulary, with the 256 bytes and the special tokens',
     min = 257, also = { 'vocab' } },
   { 'pattern', 'llama3', 'rule that splits text into words: llama3, gpt2, qwen2' },
   { 'special', '<|endoftext|>', 'special tokens, separated by commas; the first one begins and '
     .. 'ends texts' },
   { 'min-count', 2, 'pairs that occur less often are not merged', min = 1 },
   { 'out', 'runs/tokenizer', 'folder to write tokenizer.json to' },
}

local function run(opt)
   local tide = require 'tide'
   if tide.comm.world().rank > 0 then return end
   local train = require 'tide.tokenizer.train'
   local texts, bytes, special = {}, 0, {}
   for i, path in ipairs(tide.data.text.files(opt.data)) do
      texts[i] = tide.util.fs.read('tokenizer', path)
      bytes = bytes + #texts[i]
   end
   for name in opt.special:gmatch '[^,]+' do special[#special + 1] = name end
   local start = tide.clock()
   local value = train.bpe(texts, { vocab_size = opt.vocab_size, pattern = opt.pattern,
      special = special, min_count = opt.min_count })
   train.save(value, opt.out)
   local tok = tide.tokenizer.load(opt.out)
   local n = 0
   for _, text in ipairs(texts) do n = n + #tok:encode(text, { width = 4 }) / 4 end
   print(('%d files, %d bytes: %d ids in the vocabulary, %.2f bytes an id, %.1f s; %s'):format(
      #texts, bytes, tok.vocab_size, bytes / math.max(n, 1), tide.clock() - start,
      tide.util.fs.join(opt.out, 'tokenizer.json')))
end

args.main(function(...)
   local opt = args.parse('tokenizer: train a byte-level BPE on text', options, { ... })
   if opt then
      err.people({ 'E_ARG', 'E_IO', 'E_FORMAT', 'E_UNSUPPORTED' }, run, opt)
   end
end, ...)
