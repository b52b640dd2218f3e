-- Log-probabilities of text under a checkpoint that recipes/pretrain.lua made from text, or of ids
-- under a published folder.
--
--    tide run recipes/logprob.lua --from runs/pretrain --text "local function"
--    tide run -n 4 recipes/logprob.lua --from runs/pretrain --file book.txt
--    tide run recipes/logprob.lua --from models/llama --ids "1 450 4996 17354"
--
-- Prints the sum over bytes, nats per byte, bits per byte and perplexity; with --tokens, those of
-- each byte. The weights are shared among the ranks and gathered layer by layer: no rank holds more
-- than one layer and the embeddings, however large the model. Windows of the text are shared too.

pcall(dofile, (arg[0]:match '^.*/' or '') .. 'support/path.lua')     -- for plain luajit

local args = require 'tide.util.args'
local err = require 'tide.util.err'

local options = {
   { 'from', 'runs/pretrain', 'a checkpoint, the folder of a run (its newest is taken), or a '
     .. 'published folder (config.json, model.safetensors)' },
   { 'text', nil, 'text to score' },
   { 'file', nil, 'file of text to score, in place of --text' },
   { 'ids', nil, 'token ids to score, the first of them only seen, in place of text',
     type = 'string' },
   { 'seq', 0, 'tokens per window; 0: as many as the model is for', min = 0 },
   { 'batch', 8, 'windows at a time on a rank', min = 1 },
   { 'tokens', false, 'print the log-probability of every token' },
   { 'device', 'cpu', 'where to compute', choices = { 'cpu', 'ref', 'cuda' } },
   { 'threads', 0, 'threads per rank; 0: as the program decides', min = 0, max = 4096 },
}

-- The text as ids, the end-of-text token before it, so that its first byte is scored too.
local function text_ids(tide, opt, text, vocab)
   local bytes, tok = tide.data.bytes, tide.tokenizer.find(opt.from)
   if tok then
      local list = tok:encode(text, { add_special_tokens = false })
      table.insert(list, 1, tok.bos or tok.eos)
      if #list < 2 then err.usage('logprob', 'the tokenizer in %s names no bos_token', opt.from) end
      return list, tok
   end
   if vocab ~= bytes.vocab_size then
      err.usage('logprob', '%s has a vocabulary of %d; text is scored with the byte '
         .. 'vocabulary (%d), give --ids', opt.from, vocab, bytes.vocab_size)
   end
   local ids = bytes.ids(text)
   table.insert(ids, 1, bytes.eos)
   return ids
end

-- Token ids that were given as such.
local function given_ids(opt, vocab)
   local list = {}
   for word in opt.ids:gmatch '[^%s,]+' do
      local id = tonumber(word)
      if not id or id % 1 ~= 0 or id < 0 or id >= vocab then
         err.usage('logprob', "--ids: expected whole numbers below %d, got '%s'", vocab, word)
      end
      list[#list + 1] = id
   end
   if #list < 2 then err.usage('logprob', '--ids: expected at least two ids') end
   return list
end

local function prepare(tide, opt)
   local n = (opt.text and 1 or 0) + (opt.file and 1 or 0) + (opt.ids and 1 or 0)
   if n ~= 1 then err.usage('logprob', 'give one of --text, --file and --ids') end
   local text = opt.text or opt.file and tide.util.fs.read('logprob', opt.file)
   if text == '' then err.usage('logprob', 'there is nothing to score') end
   local ranks = tide.comm.world().size
   local model, run = tide.model.load(opt.from, { device = opt.device,
      mesh = ranks > 1 and { dp_shard = ranks } or nil })
   local config = model.config
   local ids, tok
   if opt.ids then ids = given_ids(opt, config.vocab_size)
   else ids, tok = text_ids(tide, opt, text, config.vocab_size) end
   opt.tok = tok
   return ids, model, run.sharded, opt.seq > 0 and opt.seq or config.max_position_embeddings
end

local function show(tide, opt, ids, list)
   local sum = 0
   for i, value in ipairs(list) do
      sum = sum + value
      if opt.tokens then
         local id = ids[i + 1]
         local tok = opt.tok
         local text = tok and tok:decode({ id }, { special = true })
         io.stdout:write(tok and ('%-8q %9.4f\n'):format(text, value)
            or opt.ids and ('%-8d %9.4f\n'):format(id, value)
            or ('%-8q %9.4f\n'):format(tide.data.bytes.decode { id }, value))
      end
   end
   local mean = -sum / #list
   local what = (opt.ids or opt.tok) and 'token' or 'byte'
   io.stdout:write(('%d %ss, log-probability %.4f: %.4f nats per %s, %.4f bits per %s, '
      .. 'perplexity %.4f\n'):format(#list, what, sum, mean, what, mean / math.log(2), what,
      math.exp(mean)))
end

local function run(opt)
   local tide = require 'tide'
   if opt.threads > 0 then tide.default():set_nthread(opt.threads) end
   local ids, model, sharded, seq =
      err.people({ 'E_ARG', 'E_IO', 'E_FORMAT', 'E_SHAPE', 'E_DEVICE', 'E_UNSUPPORTED' }, prepare,
      tide, opt)
   local list = tide.train.score.logprob(model, ids, { sharded = sharded, seq = seq,
      batch = opt.batch, device = opt.device })
   if tide.comm.world().rank == 0 then show(tide, opt, ids, list) end
end

args.main(function(...)
   local opt = args.parse('logprob: score text with a checkpoint', options, { ... })
   if opt then run(opt) end
end, ...)
