-- Shared by recipes that train: text or token files, their order, the plan as text, and the summary
-- at the end.

local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local optim = require 'recipes.support.optim'

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

-- The folder of tokenizer and template, unless options name others: the run that is resumed, or the
-- model of --from; else nil.
function text.home(opt)
   if opt.from and opt.resume then return opt.resume_from or opt.out end
   return opt.from
end

-- The template of --chat-template, a file or a folder, else that of the folder `home`, nil without
-- one. A file can use the special tokens of home.
function text.template(job, opt, home)
   local path = opt.chat_template or home
   local template = path and job:check(require('tide').chat.find, path, nil, home)
   if opt.chat_template and not template then
      err.usage(job.name, '--chat-template: %s has no chat template; give a file (.jinja), or the '
         .. 'folder of a model that has one', opt.chat_template)
   end
   return template
end

-- The folder of a tokenizer's folder or file.
local function folder_of(path)
   return fs.is_dir(path) and path or fs.above(path)
end

-- The tokenizer of --tokenizer, else that of --from, and its folder or file; else that of bytes,
-- which has none.
function text.tokenizer(job, opt)
   local tide, home = require 'tide', text.home(opt)
   if opt.tokenizer then return job:check(tide.tokenizer.load, opt.tokenizer), opt.tokenizer end
   local tok, path
   if home then tok, path = job:check(tide.tokenizer.find, home) end
   return tok or tide.data.bytes, path
end

-- An option that may be repeated, as a list.
function text.listed(v) return type(v) == 'string' and { v } or v end

-- JSON Lines as a corpus (--records).
local function records(job, tide, opt, paths, tok, tok_path)
   local template = text.template(job, opt, tok_path and folder_of(tok_path))
   local corpus = job:check(tide.data.chat.load, paths, { tokenizer = tok,
      template = template, train_on = text.listed(opt.train_on), skip_bad = opt.skip_bad })
   if corpus.bad.count > 0 then
      job:print('%d broken record%s left out; %s', corpus.bad.count,
         corpus.bad.count == 1 and '' or 's', corpus.bad[1])
   end
   return corpus
end

-- The size of the vocabulary: that of the tokens, or a larger --vocab. Nil for .bin files that the
-- model of --from learns from.
local function vocabulary(job, opt, size)
   if not size and opt.vocab == 0 and not opt.from then
      err.usage(job.name, '--vocab is needed for .bin files')
   end
   if size and opt.vocab > 0 and opt.vocab < size then
      err.usage(job.name, '--vocab %d: the data has a vocabulary of %d; leave out --vocab, or give '
         .. 'a larger one', opt.vocab, size)
   end
   return opt.vocab > 0 and opt.vocab or size
end

-- Logs that a file of records is read as text.
local function tell_plain(job, opt, paths)
   for _, path in ipairs(opt.data and not opt.binary and paths or {}) do
      if path:find '%.jsonl$' then
         job.log:once('--data %s is read as plain text; --records reads its records', path)
      end
   end
end

-- Logs which files below the folders of --data are not read.
local function tell_left_out(job, list)
   if #list == 0 then return end
   local shown = table.concat(list, ', ', 1, math.min(3, #list))
   job.log:once('%d file%s not read below --data (no text, or .bin beside text): %s%s', #list,
      #list == 1 and ' is' or 's are', shown, #list > 3 and ', ...' or '')
end

-- The corpus of a list of files and folders, with its vocabulary.
local function read(job, opt, paths)
   local tide = require 'tide'
   local corpus
   local tok, tok_path = text.tokenizer(job, opt)
   if opt.records or opt.chat_template then
      corpus = records(job, tide, opt, paths, tok, tok_path)
   else
      corpus = job:check(tide.data.text.load, paths, { width = opt.token_bytes,
         binary = opt.binary, tokenizer = tok, documents = opt.packed and opt.eos < 0,
         cache = fs.join(opt.out:match '^(.*)/[^/]+/*$' or '.', '.tokens') })
      if opt.data then tell_left_out(job, corpus.left_out) end
      tell_plain(job, opt, paths)
   end
   corpus.tokenizer, corpus.tokenizer_path = tok, tok_path
   corpus.vocab_size = vocabulary(job, opt, corpus.vocab_size
      or tok_path and tok.vocab_size)
   return corpus
end

-- Cumulative lengths of documents one list after the other, or nil where a list is missing.
local function joined_cu(corpora, field)
   local cu = { 0 }
   for _, corpus in ipairs(corpora) do
      local last = cu[#cu]
      if not corpus[field] then return nil end
      for i = 2, #corpus[field] do cu[#cu + 1] = last + corpus[field][i] end
   end
   return cu
end

-- Several corpora as one, whose parts the sampler draws from by weights.
local function mixed(job, tide, opt, corpora, weights)
   local all = { kind = corpora[1].kind, tokenizer = corpora[1].tokenizer, files = 0,
      tokenizer_path = corpora[1].tokenizer_path, parts = {} }
   local train, val = {}, {}
   for i, corpus in ipairs(corpora) do
      all.files = all.files + corpus.files
      if corpus.vocab_size then
         all.vocab_size = math.max(all.vocab_size or 0, corpus.vocab_size)
      end
      train[i] = corpus.train
      if corpus.val.count > 0 then val[#val + 1] = corpus.val end
      local cu = opt.packed and (corpus.cu or opt.eos >= 0
         and tide.data.packed.boundaries(corpus.train, opt.eos)) or nil
      all.parts[i] = { source = corpus.train, weight = weights[i], cu = cu }
   end
   all.train = job:check(tide.data.tokens.join, train)
   all.val = #val > 0 and tide.data.tokens.join(val)
      or tide.data.tokens.memory('', all.train.width)
   all.cu, all.val_cu = joined_cu(corpora, 'cu'), joined_cu(corpora, 'val_cu')
   return all
end

-- Refuses data without a window. what: the option that names it.
local function check_window(job, opt, what, count)
   err.usage_if(not opt.packed and count <= opt.seq, job.name, '--seq %d: a window needs %d '
      .. 'tokens, the training part of %s has %d', opt.seq, opt.seq + 1, what, count)
end

-- The data of --data, with its vocabulary.
function text.corpus(job, opt)
   local paths = text.listed(opt.data) or own_sources(job.name)
   local weights = opt.data_weight
   if not weights then return read(job, opt, paths) end
   if type(weights) == 'number' then weights = { weights } end
   if not opt.data or #weights ~= #paths then
      err.usage(job.name, '--data-weight: expected one for each --data (%d), got %d',
         opt.data and #paths or 0, #weights)
   end
   local corpora = {}
   for i, path in ipairs(paths) do
      corpora[i] = read(job, opt, { path })
      check_window(job, opt, '--data ' .. path, corpora[i].train.count)
   end
   return mixed(job, require 'tide', opt, corpora, weights)
end

-- Rows of a micro-batch on one of `size` ranks with data of their own.
function text.rows(job, opt, size)
   if opt.batch % (size * opt.accum) ~= 0 then
      err.usage(job.name, '--batch (%d) must be a multiple of the ranks with data of their own '
         .. '(%d) times --accum (%d)', opt.batch, size, opt.accum)
   end
   return opt.batch / (size * opt.accum)
end

-- Prints a plan, and what a rank holds and sends by it; per_rank: rows of a micro-batch; images:
-- grids of its images, or nil.
function text.show_plan(job, opt, plan, per_rank, images)
   job:print('%s\n%s', plan, job:check(plan.price, plan, { batch = per_rank, seq = opt.seq,
      accum = opt.accum, device = opt.device, images = images,
      optim = function(params) return optim.make(job, opt, params) end }))
end

-- Which rows make up which step: windows of the data, or whole documents (--packed). data: this
-- rank among those with data of their own.
function text.sampler(job, opt, corpus, data)
   local tide = require 'tide'
   local o = { seq = opt.seq, batch = opt.batch, seed = opt.seed, rank = data.rank,
      size = data.size }
   if opt.packed and not corpus.cu and opt.eos < 0 then
      err.usage(job.name, '--packed with .bin files needs --eos, the id that ends a document, or '
         .. 'the .idx of a Megatron data set beside each')
   elseif opt.packed and corpus.val and corpus.val.count > 0 then
      o.val_cu = corpus.val_cu or tide.data.packed.boundaries(corpus.val, opt.eos)
   end
   if corpus.parts then
      o.parts = corpus.parts
      return job:check(tide.data.mixture.new, o)
   elseif not opt.packed then
      o.count = corpus.train.count
      check_window(job, opt, '--data', o.count)
      return job:check(tide.data.sampler.new, o)
   end
   o.cu = corpus.cu or tide.data.packed.boundaries(corpus.train, opt.eos)
   return job:check(tide.data.packed.new, o)
end

-- Returns whether a file belongs to a tokenizer.
local function is_tokenizer(name)
   return name:find '^tokenizer' or name:find '%.tiktoken$' or name:find '%.model$'
      or name == 'tekken.json' or name == 'special_tokens_map.json'
end

-- Returns whether a run is read by a file, beside its checkpoints.
local function is_kept(name)
   return is_tokenizer(name) or name:find '^chat_template' or name == 'generation_config.json'
      or name:find 'processor_config%.json$'
end

-- Removes what a run before, which --overwrite replaces, was read by; not what this run reads.
-- Without --overwrite a run of bytes is refused beside a tokenizer: its checkpoints would be read
-- with that.
local function clear_tokenizer(job, opt, from)
   local out = fs.absolute(opt.out)
   if opt.from and fs.absolute(opt.from) == out then return end
   for _, name in ipairs(fs.list(job.name, opt.out)) do
      local path = fs.join(out, name)
      local is_old = is_kept(name) and fs.size(path) and path ~= opt.chat_template
      if is_old and opt.overwrite then
         fs.io().remove(path)
      else
         err.usage_if(is_old and not from and is_tokenizer(name), job.name, '--out %s '
            .. 'holds %s, and the checkpoints of this run of bytes would be read with it; choose '
            .. 'another --out, or give --tokenizer %s', opt.out, name, opt.out)
      end
   end
end

-- Copies the files of --tokenizer, and beside them a chat template and how text is generated, into
-- the folder of the run, where the other recipes and tide export look.
function text.keep_tokenizer(job, opt, corpus)
   if not job.first then return end
   local from = corpus.tokenizer_path
   local folder = from and folder_of(from)
   if folder and fs.absolute(folder) == fs.absolute(opt.out) then return end
   if not opt.resume and not job:is_restart() then clear_tokenizer(job, opt, from) end
   for _, name in ipairs(folder and fs.list(job.name, folder) or {}) do
      if name == from:match '[^/]*$' or is_kept(name) then
         local path = fs.join(folder, name)
         local content = fs.size(path) and fs.read(job.name, path)
         if content then fs.write(job.name, fs.join(opt.out, name), content) end
      end
   end
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

-- The text of ids, or the ids: the vocabulary of a model may be larger than the tokenizer's.
local function shown(tok, ids)
   for _, id in ipairs(ids) do
      if id >= tok.vocab_size then return '(ids) ' .. table.concat(ids, ' ') end
   end
   return tok:decode(ids)
end

-- Prints a continuation, drawn alike by every rank that holds a part of the model.
function text.sample(job, opt, run, corpus)
   local tide = require 'tide'
   if not (job.first or run.sharded) then return end
   local tok, prompt = corpus.tokenizer, '-- '
   local ids = tide.parallel.plan.whole(run, function()
      return tide.train.sample.generate(run.model, tok:encode(prompt), {
         tokens = opt.sample, temperature = opt.temperature, top_k = 40, seed = opt.seed,
         stop = tok.eos, device = opt.device })
   end)
   job:print('sample:\n%s%s', prompt, shown(tok, ids))
end

return text
