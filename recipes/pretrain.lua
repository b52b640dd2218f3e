-- Pretraining: bytes or token files -> a Llama-family decoder.
--
--    tide run recipes/pretrain.lua --data FILE|DIR --out runs/first --steps 400
--    tide run -n 2 recipes/pretrain.lua --mesh.dp 2       two data-parallel ranks
--    tide run -n 4 recipes/pretrain.lua --mesh.dp_shard 2 --mesh.tp 2
--    tide run -n 4 recipes/pretrain.lua --mesh.dp_shard 2 --mesh.cp 2 --packed
--    tide run recipes/pretrain.lua --plan --mesh.dp_shard 16    what 16 ranks would hold and send
--    tide run recipes/pretrain.lua --out runs/first --resume    all options as they were
--
-- Without --data it learns from tide's own sources and documents. The last part of every file is
-- held out. At the end it prints the validation loss beside the order-2 entropy of the training
-- bytes (what a perfect table of byte trigrams would lose) and a sampled continuation.

local root = (debug.getinfo(1, 'S').source:match '^@(.*)recipes/[^/]*$') or './'
local find = loadfile(root .. 'recipes/support/path.lua')
if find then find(root) else require 'tide' end         -- copied elsewhere: tide must be found

local pretrain = require 'tide.train.pretrain'
local option = pretrain.option

local options = {
   { 'sliding-window', 0, 'tokens that attention sees, itself included; 0: all before', min = 0,
     also = { 'window' } },
   { 'layers', 4, 'decoder layers', min = 1, also = { 'num-layers' } },
   option 'dim', option 'heads', option 'kv-heads',
   option('hidden', 'width of the gated MLP; 0: about 8/3 of --dim'), option 'tie',
}

local function config(opt, vocab)
   return {
      vocab_size = vocab, hidden_size = opt.dim, num_hidden_layers = opt.layers,
      num_attention_heads = opt.heads,
      num_key_value_heads = opt.kv_heads > 0 and opt.kv_heads or opt.heads,
      intermediate_size = opt.hidden > 0 and opt.hidden or nil,
      sliding_window = opt.sliding_window > 0 and opt.sliding_window or nil,
      max_position_embeddings = opt.seq, tie_word_embeddings = opt.tie,
   }
end

-- What errors call the options.
local fields = {
   { 'hidden_size', '--dim' }, { 'num_attention_heads', '--heads' },
   { 'num_key_value_heads', '--kv-heads, or --heads without it' },
   { 'head_dim', '--dim / --heads', follows = true },
   { 'intermediate_size', '--hidden' }, { 'tensor parallel size', '--mesh.tp' },
}

return pretrain.main({
   name = 'pretrain', title = 'train a Llama-family decoder on text', model = options,
   fields = fields, root = root,
   make = function(tide, opt, vocab, o)
      local family = opt.sliding_window > 0 and tide.model.mistral or tide.model.llama
      return family(config(opt, vocab), o)
   end,
}, ...)
