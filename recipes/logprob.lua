-- Log-probabilities of text under a checkpoint that recipes/pretrain.lua made from text.
--
--    tide run recipes/logprob.lua --from runs/pretrain --text "local function"
--    tide run -n 4 recipes/logprob.lua --from runs/pretrain --file book.txt
--
-- Prints the sum over bytes, nats per byte, bits per byte and perplexity; with --tokens, those of
-- each byte. The weights are shared among the ranks and gathered layer by layer: no rank holds more
-- than one layer and the embeddings, however large the model. Windows of the text are shared too.

pcall(dofile, (arg[0]:match '^.*/' or '') .. 'support/path.lua')     -- for plain luajit

local args = require 'tide.util.args'
local err = require 'tide.util.err'

local options = {
   { 'from', 'runs/pretrain', 'a checkpoint, or the folder of a run (its newest is taken)' },
   { 'text', nil, 'text to score' },
   { 'file', nil, 'file of text to score, in place of --text' },
   { 'seq', 0, 'bytes per window; 0: those of the training run', min = 0 },
   { 'batch', 8, 'windows at a time on a rank', min = 1 },
   { 'tokens', false, 'print the log-probability of every byte' },
   { 'device', 'cpu', 'where to compute', choices = { 'cpu', 'ref', 'cuda' } },
   { 'threads', 0, 'threads per rank; 0: as the program decides', min = 0, max = 4096 },
}

-- The text as ids, the end-of-text token before it, so that its first byte is scored too.
local function read_ids(tide, opt)
   if (opt.text == nil) == (opt.file == nil) then
      err.usage('logprob', 'give one of --text and --file')
   end
   local bytes = tide.data.bytes
   local text = opt.text or tide.util.fs.read('logprob', opt.file)
   if text == '' then err.usage('logprob', 'there is nothing to score') end
   local ids = bytes.ids(text)
   table.insert(ids, 1, bytes.eos)
   return ids
end

local function prepare(tide, opt)
   local ids = read_ids(tide, opt)
   local model, sharded, config = tide.train.score.load(opt.from, { device = opt.device })
   if config.vocab_size ~= tide.data.bytes.vocab_size then
      err.usage('logprob', '%s has a vocabulary of %d; text is scored with the byte '
         .. 'vocabulary (%d)', opt.from, config.vocab_size, tide.data.bytes.vocab_size)
   end
   return ids, model, sharded, opt.seq > 0 and opt.seq or config.max_position_embeddings
end

local function show(tide, opt, ids, list)
   local sum = 0
   for i, value in ipairs(list) do
      sum = sum + value
      if opt.tokens then
         io.stdout:write(('%-8q %9.4f\n'):format(tide.data.bytes.decode { ids[i + 1] }, value))
      end
   end
   local mean = -sum / #list
   io.stdout:write(('%d bytes, log-probability %.4f: %.4f nats per byte, %.4f bits per byte, '
      .. 'perplexity %.4f\n'):format(#list, sum, mean, mean / math.log(2), math.exp(mean)))
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
