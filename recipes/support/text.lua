-- What recipes that train on text or token files share: the data, the order of it, and what is said
-- at the end.

local err = require 'tide.util.err'
local fs = require 'tide.util.fs'

local text = {}

local root = (debug.getinfo(1, 'S').source:match '^@(.*)recipes/support/[^/]*$') or './'

-- tide's own sources with their READMEs: every folder of the tree.
local function own_sources(name)
   local list = {}
   for _, part in ipairs { 'bindings', 'core', 'kernels', 'lua', 'recipes', 'spec', 'README.md',
                           'CHANGELOG.md' } do
      if fs.exists(root .. part) then list[#list + 1] = root .. part end
   end
   if #list == 0 then
      err.usage(name, "--data is needed: tide's sources are not beside this recipe")
   end
   return list
end

-- The data of --data, with its vocabulary.
function text.corpus(job, opt)
   local tide = require 'tide'
   local corpus = job:check(tide.data.text.load, opt.data or own_sources(job.name),
      { width = opt.token_bytes, binary = opt.binary })
   if not corpus.vocab_size and opt.vocab == 0 then
      err.usage(job.name, '--vocab is needed for .bin files')
   end
   corpus.vocab_size = corpus.vocab_size or opt.vocab
   return corpus
end

-- Rows of a micro-batch on one of `size` ranks with data of their own.
function text.rows(opt, size)
   if opt.batch % (size * opt.accum) ~= 0 then
      err.usage('options', '--batch (%d) must be a multiple of the ranks with data of their own '
         .. '(%d) times --accum (%d)', opt.batch, size, opt.accum)
   end
   return opt.batch / (size * opt.accum)
end

-- Which rows make up which step: windows of the data, or whole documents (--packed). data: this
-- rank among those with data of their own.
function text.sampler(job, opt, corpus, data)
   local tide = require 'tide'
   local o = { seq = opt.seq, batch = opt.batch, seed = opt.seed, rank = data.rank,
      size = data.size }
   if not opt.packed then
      o.count = corpus.train.count
      if o.count <= opt.seq then
         err.usage(job.name, '--seq %d: a window needs %d tokens, the training part of --data '
            .. 'has %d', opt.seq, opt.seq + 1, o.count)
      end
      return job:check(tide.data.sampler.new, o)
   end
   if not corpus.cu and opt.eos < 0 then
      err.usage(job.name, '--packed with .bin files needs --eos, the id that ends a document')
   end
   local packed = tide.data.packed
   o.cu = corpus.cu or packed.boundaries(corpus.train, opt.eos)
   if corpus.val and corpus.val.count > 0 then
      o.val_cu = corpus.val_cu or packed.boundaries(corpus.val, opt.eos)
   end
   return job:check(packed.new, o)
end

-- Prints the validation loss beside what a perfect table of byte trigrams would lose.
function text.summary(job, opt, corpus, result)
   local tide = require 'tide'
   if result.val_loss and job.first then
      local order2 = corpus.raw and tide.data.entropy.order2(corpus.raw)
      job:print('validation loss %.4f nats per token%s', result.val_loss, order2
         and (' (order-2 entropy of the training bytes: %.4f)'):format(order2) or '')
   end
   job:print('the run is in %s', opt.out)
end

-- Prints a continuation, drawn alike by every rank that holds a part of the model.
function text.sample(job, opt, run)
   local tide = require 'tide'
   if not (job.first or run.sharded) then return end
   local bytes, prompt = tide.data.bytes, '-- '
   local ids = tide.parallel.plan.whole(run, function()
      return tide.train.sample.generate(run.model, bytes.ids(prompt), {
         tokens = opt.sample, temperature = opt.temperature, top_k = 40, seed = opt.seed,
         stop = bytes.eos, device = opt.device })
   end)
   job:print('sample:\n%s%s', prompt, bytes.decode(ids))
end

return text
