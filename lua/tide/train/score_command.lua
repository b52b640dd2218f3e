-- Log-probabilities of text under a checkpoint or a published folder, and accuracy on
-- multiple-choice questions: the command `tide score`, and recipes/logprob.lua.
--
-- The weights are shared among the ranks and gathered layer by layer: no rank holds more than one
-- layer and the embeddings, however large the model. Rows of tokens are shared, too.

local args = require 'tide.util.args'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'
local positions = require 'tide.train.positions'

local options = {
   { 'from', 'runs/pretrain', 'checkpoint, folder of a run (its newest checkpoint is used), or '
     .. 'published folder (config.json, model.safetensors)' },
   { 'text', nil, 'text to score' },
   { 'file', nil, 'file of text to score, instead of --text' },
   { 'choices', nil, 'JSON Lines of questions { question, choices, answer } to answer, instead of '
     .. 'text', type = 'string' },
   { 'ids', nil, 'token ids to score, instead of text; the first one is context only',
     type = 'string' },
   { 'tokenizer', nil, 'folder or file of a tokenizer; default: the one in --from, else bytes',
     type = 'string' },
   { 'delimiter', ' ', 'text between a question and a choice of --choices' },
   { 'skip-bad', false, 'skip broken lines of --choices and count them; without it the first '
     .. 'broken line is an error' },
   { 'seq', 0, 'tokens per window; 0: the context length of the model', min = 0,
     also = { 'max-length', 'seq-len' } },
   { 'batch', 8, 'windows at a time on each rank', min = 1, also = { 'batch-size' } },
   { 'tokens', false, 'print the log-probability of every token, or of every choice' },
   { 'device', 'cpu', 'device to compute on', choices = { 'cpu', 'ref', 'cuda' } },
   { 'threads', 0, 'threads per rank; 0: chosen by the program', min = 0, max = 1024 },
}

-- Returns the tokenizer of texts. A model without one takes bytes, if it has their vocabulary.
local function tokenizer_of(tide, opt, vocab)
   if opt.tokenizer then return tide.tokenizer.load(opt.tokenizer) end
   local tok = tide.tokenizer.find(opt.from, vocab)
   if tok then return tok end
   err.usage(opt.op, '%s has a vocabulary of %d and no tokenizer; text is scored with the byte '
      .. 'vocabulary (%d), give --tokenizer or --ids', opt.from, vocab, tide.data.bytes.vocab_size)
end

-- Reads what is scored: fields ids, text or items (with bad, the lines left out).
local function read(tide, opt)
   local n = 0
   for _, name in ipairs { 'text', 'file', 'ids', 'choices' } do n = n + (opt[name] and 1 or 0) end
   if n ~= 1 then err.usage(opt.op, 'give one of --text, --file, --choices and --ids') end
   local work = {}
   if opt.choices then
      work.items, work.bad = tide.data.choices.load(opt.choices, { skip_bad = opt.skip_bad })
   elseif not opt.ids then
      work.text = opt.text or tide.util.fs.read(opt.op, opt.file)
      local what = opt.file and require('tide.data.kind').of(work.text:sub(1, 64))
      if what then err.usage(opt.op, '--file: %s is not text: %s', opt.file, what) end
      if work.text == '' then err.usage(opt.op, 'there is nothing to score') end
   end
   return work
end

-- Returns the tokens that a window has: at most as many as the model is for, 2048 where it has no
-- bound.
local function window(opt, config)
   local most = config.max_position_embeddings
   if not most or most >= 2^31 - 1 then most = 2048 end
   return opt.seq > 0 and opt.seq or most
end

-- Compares --seq with the positions that the model was made for: beyond learned positions nothing
-- can be read, beyond others a log line says so.
local function check_window(tide, opt, model)
   local known, is_last = positions(model)
   if not known or opt.seq <= known then return end
   local what = ('--seq %d: the model has %d positions (max_position_embeddings)'):format(opt.seq,
      known)
   err.usage_if(is_last, opt.op, '%s; give --seq %d', what, known)
   tide.util.log.new({ rank = tide.comm.world().rank }):once('%s; it was not trained on longer '
      .. 'texts', what)
end

-- Scores what the options name; returns it with its figures.
local function compute(tide, opt)
   local work = read(tide, opt)
   local ranks = tide.comm.world().size
   local model, on = tide.model.load(opt.from, { device = opt.device,
      mesh = ranks > 1 and { dp_shard = ranks } or nil })
   check_window(tide, opt, model)
   local config, evaluate = model.config, tide.train.evaluate
   local how = { sharded = on.sharded, seq = window(opt, config), batch = opt.batch,
      device = opt.device }
   if opt.ids then
      work.ids = args.ids(opt.op, opt.ids, config.vocab_size, 2)
      work.values = tide.train.score.logprob(model, work.ids, how)
      return work
   end
   work.tok = tokenizer_of(tide, opt, config.vocab_size)
   if work.text then
      work.figures = evaluate.perplexity(model, work.tok, work.text, how)
      work.ids, work.values = work.figures.ids, work.figures.values
   else
      how.delimiter = opt.delimiter
      work.figures = evaluate.choices(model, work.tok, work.items, how)
   end
   return work
end

-- Returns a text in quotes, on one line.
local function quoted(text)
   return '"' .. text:gsub('[%c"\\]', function(c)
      return ({ ['\n'] = '\\n', ['\t'] = '\\t', ['\r'] = '\\r', ['"'] = '\\"', ['\\'] = '\\\\' })[c]
         or ('\\%03d'):format(c:byte())
   end) .. '"'
end

local function show_tokens(work)
   for i, value in ipairs(work.values) do
      local id, tok = work.ids[i + 1], work.tok
      if not tok then io.stdout:write(('%-8d %9.4f\n'):format(id, value))
      else
         local text = quoted(tok:decode({ id }, { special = true }))
         io.stdout:write(('%-8s %9.4f\n'):format(text, value))
      end
   end
end

local function show_text(opt, work)
   if opt.tokens then show_tokens(work) end
   local sum, n, f = dims.sum(work.values), #work.values, work.figures
   local mean = -sum / n
   local what = work.tok and work.tok.unit or 'token'
   io.stdout:write(('%d %ss, log-probability %.4f: %.4f nats per %s, %.4f bits per %s, '
      .. 'perplexity %.4f\n'):format(n, what, sum, mean, what, mean / math.log(2), what,
      math.exp(mean)))
   if f then
      io.stdout:write(('%d words, %d bytes: word perplexity %.4f, byte perplexity %.4f, %.4f bits '
         .. 'per byte\n'):format(f.words, f.bytes, f.word_perplexity, f.byte_perplexity,
         f.bits_per_byte))
   end
end

-- Prints a line for each question: its number, the answer, what each rule chooses, and the
-- log-probabilities of its choices. Choices are numbered from 0 here, as in the file.
local function show_items(items)
   for n, item in ipairs(items) do
      local values = {}
      for i, v in ipairs(item.values) do values[i] = ('%.4f'):format(v) end
      io.stdout:write(('%d: answer %d, acc %d, acc_norm %d, acc_bytes %d: %s\n'):format(n,
         item.answer - 1, item.acc - 1, item.acc_norm - 1, item.acc_bytes - 1,
         table.concat(values, ' ')))
   end
end

local function show_choices(opt, work)
   local f = work.figures
   if opt.tokens then show_items(f.items) end
   io.stdout:write(('%d question%s\n'):format(f.count, f.count == 1 and '' or 's'))
   for _, rule in ipairs { 'acc', 'acc_norm', 'acc_bytes' } do
      local spread = f[rule .. '_stderr']
      io.stdout:write(('%-10s %.4f%s\n'):format(rule, f[rule],
         spread and (' +- %.4f'):format(spread) or ''))
   end
   if f.cut > 0 then
      io.stdout:write(('%d choices did not fit into a window; their questions lost tokens on the '
         .. 'left\n'):format(f.cut))
   end
   if work.bad.count > 0 then
      io.stdout:write(('%d broken line%s left out; %s\n'):format(work.bad.count,
         work.bad.count == 1 and '' or 's', work.bad[1]))
   end
end

-- Runs the command under a name, `score` or that of the recipe, with the words of its command line.
return function(name, ...)
   local opt = args.parse(name .. ': score text or answer questions with a model', options, { ... })
   if not opt then return end
   local tide = require 'tide'
   opt.op = name
   if opt.threads > 0 then tide.default():set_nthread(opt.threads) end
   local work = err.people({ 'E_ARG', 'E_IO', 'E_FORMAT', 'E_SHAPE', 'E_DEVICE',
      'E_UNSUPPORTED' }, compute, tide, opt)
   if tide.comm.world().rank > 0 then return end
   if work.items then show_choices(opt, work) else show_text(opt, work) end
end
