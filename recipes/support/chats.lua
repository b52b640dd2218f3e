-- Shared by recipes that learn from chats: their options, the records as tokens with masks, the
-- rows into which they are packed, and their figures. tuned.lua has the model that they train.

local each = require 'tide.util.each'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local text = require 'recipes.support.text'
local tuned = require 'recipes.support.tuned'

local chats = {}

chats.rows = {
   { 'from', nil, 'published folder, checkpoint or run to fine-tune; its tokenizer and chat '
     .. 'template are used, too', type = 'string', fixed = true, also = { 'model', 'base-model',
     'model-name-or-path' } },
   { 'data', nil, 'JSON Lines of chats, pairs or texts: a file or folder; may be repeated, all are '
     .. 'read', list = true, also = { 'records', 'train-file', 'dataset' } },
   { 'val-data', nil, 'validation data of the same form; default: --val-share of --data',
     type = 'string' },
   { 'val-share', 0.05, 'share of the records of each --data to hold out for validation',
     type = 'number', min = 0, max = 0.5 },
   { 'tokenizer', nil, 'folder or file of a tokenizer; default: that of --from, else bytes',
     type = 'string' },
   { 'chat-template', nil, 'chat template (.jinja), or the folder of a model that has one; '
     .. 'default: that of --from', type = 'string' },
   { 'pack', 'best', 'how documents share a row: best fit, next in order, or none (one document a '
     .. 'row)', choices = { 'best', 'next', 'none' }, also = { 'packing', 'packed' } },
   { 'long', 'split', 'what to do with documents longer than --seq: split them into pieces, cut '
     .. 'them to their beginning, or refuse them', choices = { 'split', 'cut', 'refuse' },
     also = { 'truncate' } },
   { 'epochs', 3, 'passes over the data; ignored if --steps is given', type = 'number', min = 1e-6,
     also = { 'num-train-epochs' } },
   { 'steps', 0, 'optimiser steps in total; 0: as many as --epochs needs', min = 0,
     also = { 'max-steps' } },
   { 'lr', nil, 'peak learning rate; default: 2e-5, or 2e-4 with adapters', type = 'number',
     min = 0, also = { 'learning', 'learning-rate' } },
   { 'min-lr', 0, 'final learning rate', type = 'number', min = 0 },
   { 'keep-best', false, 'also keep the checkpoint with the lowest validation loss, and export '
     .. 'that one', also = { 'load-best-model-at-end' } },
   { 'patience', 0, 'stop after this many evaluations without a lower validation loss, and keep '
     .. 'the best checkpoint as with --keep-best; 0: never', min = 0,
     also = { 'early-stopping-patience' } },
   { 'lora.rank', 0, 'rank of LoRA adapters to train while the other weights stay frozen; 0: train '
     .. 'all weights', min = 0, fixed = true, also = { 'lora-r', 'lora-rank', 'r' } },
   { 'lora.alpha', nil, 'scale of the adapters: alpha / rank; default: 2 * --lora.rank',
     type = 'number', min = 1e-9, fixed = true, also = { 'lora-alpha' } },
   { 'lora.targets', 'all-linear', 'Linear layers and experts to adapt, by the end of their path '
     .. "('q_proj|v_proj'; '*' is one name); all-linear: all but the output head, and experts and "
     .. 'routers', fixed = true,
     also = { 'target-modules' } },
   { 'lora.dropout', 0, 'dropout of the input of the adapters', type = 'number', min = 0,
     max = 0.99, fixed = true, also = { 'lora-dropout' } },
   { 'lora.rslora', false, 'scale the adapters by alpha / sqrt(rank) (rsLoRA)', fixed = true,
     also = { 'use-rslora' } },
   { 'lora.dora', false, 'also train the norm of each row of the weights (DoRA)', fixed = true,
     also = { 'use-dora' } },
   { 'lora.quantise', nil, 'keep the frozen weights in 4 bits (NF4 with double quantisation, '
     .. 'QLoRA): all Linear layers but the output head, and experts', choices = { 'nf4' },
     fixed = true,
     also = { 'lora.quantize', 'quantize', 'quantise', 'quantization', 'load-in-4bit',
     'bnb-4bit-quant-type', 'qlora' } },
   { 'max-pixels', nil, 'most pixels of an image, above which it is made smaller; default: as '
     .. 'preprocessor_config.json of --from says', type = 'integer', min = 1, fixed = true,
     also = { 'image-max-pixels' } },
   { 'check-images', false, 'decode all images at the start, on each rank, to find damaged files' },
   { 'freeze', nil, 'module whose weights stay as they are, by its path: visual, the tower of a '
     .. 'model that reads images, or model.layers.0; may be repeated', type = 'string',
     list = true, fixed = true, also = { 'freeze-modules' } },
   { 'adapter', nil, 'folder of a PEFT adapter of --from to continue training; its rank, alpha and '
     .. 'targets apply, and --lora.rank is not given', type = 'string', fixed = true },
   { 'export', nil, 'folder to write the trained model to, adapters merged; --overwrite replaces '
     .. 'one that exists; default: model in --out, or none with adapters', type = 'string' },
}

-- What errors call the options (see tide.train.job).
chats.words = {
   { 'tensor parallel size', '--mesh.tp' }, { 'template', '--chat-template' },
   { 'seq', '--seq' }, { 'long', '--long' }, { 'skip_bad', '--skip-bad' },
   { 'rank', '--lora.rank', field = true }, { 'targets', '--lora.targets' },
   { 'max_pixels', '--max-pixels' },
}

-- How these differ from the options of pretraining (see support.options).
chats.change = {
   without = { 'data-weight', 'records', 'token-bytes', 'binary', 'vocab', 'packed', 'eos',
      'sample', 'temperature', 'captured' },
   default = { seq = 1024, ['weight-decay'] = 0, beta2 = 0.999,
      ['val-every'] = 50, ['save-every'] = 100 },
}

-- The tokenizer of the records, and its folder or file. Bytes, which have none, are for models of
-- the byte vocabulary.
local function tokenizer_of(job, opt, model)
   local tok, path = text.tokenizer(job, opt)
   local n = model.config.vocab_size
   if not path and n ~= tok.vocab_size then
      err.usage(job.name, '%s has no tokenizer, and a vocabulary of %d is not that of bytes (%d); '
         .. 'give --tokenizer', text.home(opt), n, tok.vocab_size)
   elseif tok.vocab_size > n then
      err.usage(job.name, 'the tokenizer has %d ids and the model a vocabulary of %d; give '
         .. '--tokenizer the one that the model was trained with', tok.vocab_size, n)
   end
   return tok, path
end

-- Files of a folder that say how images become patches.
local processor_files = { 'preprocessor_config.json', 'processor_config.json' }

-- Returns how the images of chats are read (see data.chat.images), or why they are not.
function chats.images(job, opt, model)
   local home = text.home(opt)
   local what = 'or --skip-bad'
   if type(model.placed) ~= 'function' then
      return { refused = ('the model of --from (%s) reads texts alone; give the folder of a model '
         .. 'with a vision tower (its config.json has vision_config), %s')
         :format(model.class_name, what) }
   end
   local image = require('tide').data.image
   local dir = image.find(home)
   if not dir then
      return { refused = ('%s has no preprocessor_config.json, which says how images become '
         .. 'patches; copy it from the published model, %s'):format(home, what) }
   end
   local proc = job:check(image.processor, dir, model)
   if opt.max_pixels and proc.config.side then
      err.usage(job.name, '--max-pixels: the processor of %s makes all images of %d x %d pixels; '
         .. 'leave it out', dir, proc.config.side, proc.config.side)
   elseif opt.max_pixels then
      proc = job:check(image.processor, copy({ max_pixels = opt.max_pixels }, copy(proc.config)))
      proc.folder = dir
   end
   return job:check(require('tide').data.chat.images, model, proc, { decode = opt.check_images }),
      dir
end

local function tokens_of(images)
   local n = 0
   for _, e in ipairs(images) do n = n + e.n end
   return n
end

-- Adds the records of --val-data to a corpus, as those to evaluate on. Returns their number.
local function add_val_data(job, opt, load, o, corpus)
   local held, bad = job:check(load, opt.val_data, o), corpus.bad
   corpus.val, corpus.val_cu, corpus.val_labels = held.train, held.cu, held.labels
   bad.count, bad[1] = bad.count + held.bad.count, bad[1] or held.bad[1]
   return held.documents
end

-- Logs how many records, tokens and images a corpus has. evaluated: words about held-out records.
local function tell_corpus(job, corpus, evaluated)
   job.log:once('%d records%s: %d tokens, %d of them trained on%s', corpus.documents, evaluated,
      corpus.train.count, corpus.labels, corpus.bad.count == 0 and ''
         or ('; %d broken left out: %s'):format(corpus.bad.count, corpus.bad[1]))
   local of_train, of_val = corpus.train.images or {}, corpus.val.images or {}
   local n = #of_train + #of_val
   if n == 0 then return end
   job.log:once('%d image%s: %d of the tokens', n, n == 1 and '' or 's',
      tokens_of(of_train) + tokens_of(of_val))
end

-- The records of --data, and those to evaluate on. images: how their images are read (of
-- chats.images); of: records other than chats, { load (the function that reads them), what }.
function chats.corpus(job, opt, model, images, of)
   local load = of and of.load or require('tide').data.chat.load
   if not opt.data then
      err.usage(job.name, '--data is needed: JSON Lines of %s', of and of.what or 'chats')
   end
   local home = text.home(opt)
   local tok, path = tokenizer_of(job, opt, model)
   local o = { tokenizer = tok, train_on = text.listed(opt.train_on),
      template = text.template(job, opt, home),
      skip_bad = opt.skip_bad, val = opt.val_data and 0 or opt.val_share, images = images }
   local corpus = job:check(load, text.listed(opt.data), o)
   local evaluated = corpus.held_out > 0 and (', %d of them held out'):format(corpus.held_out) or ''
   if opt.val_data then
      evaluated = (', and %d of --val-data'):format(add_val_data(job, opt, load, o, corpus))
   end
   if corpus.val.count == 0 and (opt.keep_best or opt.patience > 0) then
      err.usage(job.name, '%s needs a validation loss, and no record is held out; give --val-data, '
         .. 'or a larger --val-share', opt.keep_best and '--keep-best' or '--patience')
   end
   corpus.tokenizer, corpus.tokenizer_path, corpus.template = tok, path, o.template
   tell_corpus(job, corpus, evaluated)
   return corpus
end

-- The images of the micro-batch with the most patches in the first pass, and their number.
local function most_images(job, opt, corpus, per_rank, new)
   local data = require('tide').data
   local sampler = chats.sampler(job, opt, corpus, { rank = 0, size = 1 }, new)
   local best = { patches = 0 }
   for _ = 1, math.ceil(sampler:rows_per_epoch() / opt.batch) do
      for _, rows in ipairs(data.batch.split(sampler:next(), opt.batch / per_rank)) do
         local list = data.packed.images(corpus.train, rows)
         if list.patches > best.patches then best = list end
      end
   end
   return best
end

-- Prints the plan of a run over chats, priced with the largest number of patches that a
-- micro-batch of the first pass has. per_rank: its rows; new: as of chats.sampler.
function chats.show_plan(job, opt, plan, per_rank, corpus, new)
   local images = corpus.train.images
   if not images then return text.show_plan(job, opt, plan, per_rank) end
   local most = job:check(most_images, job, opt, corpus, per_rank, new)
   job:print('priced with the most patches of a micro-batch: %d, of %d image%s', most.patches,
      #most, #most == 1 and '' or 's')
   text.show_plan(job, opt, plan, per_rank, #most > 0 and most or nil)
end

local fits = { best = 'best', next = 'next', none = 'alone' }

-- Which documents make up which rows of which step. data: this rank among those with data of their
-- own; new: makes the sampler (default: data.packed.new).
function chats.sampler(job, opt, corpus, data, new)
   local has_val = corpus.val.count > 0
   return job:check(new or require('tide').data.packed.new, { cu = corpus.cu, source = corpus.train,
      val_cu = has_val and corpus.val_cu or nil, val_source = has_val and corpus.val or nil,
      seq = opt.seq, batch = opt.batch, seed = opt.seed, rank = data.rank, size = data.size,
      fit = fits[opt.pack], long = opt.long })
end

-- The ranks that get the same rows as this one, those of all axes but data: they decode each image
-- once. Nil for one rank, and for chats without images. Collective.
function chats.same_rows(spread, corpus)
   local names = {}
   for _, axis in ipairs(spread.mesh.axes) do
      if axis.size > 1 and not axis.name:find '^dp' then names[#names + 1] = axis.name end
   end
   if #names == 0 or not (corpus.train.images or corpus.val.images) then return nil end
   return (#names == 1 and spread.mesh:axis(names[1]) or spread.mesh:flatten(names)).comm
end

-- The text of a file that says how images become patches, with other most pixels (nil: the same).
local function limited(job, path, most)
   if not most then return fs.read(job.name, path) end
   local all = fs.read_json(job.name, path)
   local fields = type(all.image_processor) == 'table' and all.image_processor or all
   if type(fields.size) == 'table' then
      fields.size[fields.size.max_pixels and 'max_pixels' or 'longest_edge'] = most
   end
   if fields.max_pixels or not fields.size then fields.max_pixels = most end
   return fs.json_text(all)
end

-- Copies tokenizer and template into the folder of the run, which is resumed and sampled with them,
-- and how images become patches. processor: the folder that says it, or nil.
function chats.keep(job, opt, corpus, processor)
   if not job.first then return end
   tuned.remove_old(job)
   text.keep_tokenizer(job, opt, corpus)
   local has_own = not processor or fs.absolute(processor) == fs.absolute(opt.out)
   for _, name in ipairs(has_own and {} or { 'video_preprocessor_config.json',
      unpack(processor_files) }) do
      local path, most = fs.join(processor, name), not name:find '^video' and opt.max_pixels or nil
      if fs.exists(path) then
         fs.write(job.name, fs.join(opt.out, name), limited(job, path, most))
      else
         os.remove(fs.join(opt.out, name))               -- of the folder of --tokenizer
      end
   end
   if corpus.template and (opt.chat_template or opt.tokenizer or not corpus.tokenizer_path) then
      fs.write(job.name, fs.join(opt.out, 'chat_template.jinja'), corpus.template.source)
   end
end

-- Adds the figures of an objective to the metrics of the present step, those of an evaluation as
-- val_... .
function chats.report(run, objective, comm, which)
   for name, value in each(objective:take(comm, which) or {}) do
      run:metric(which == 'val' and 'val_' .. name or name, value)
   end
end

return chats
