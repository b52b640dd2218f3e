-- The parts of recipes.dpo that recipes.finetune lacks: pairs of answers, and the reference.

local chats = require 'recipes.support.chats'
local copy = require 'tide.util.copy'
local options = require 'recipes.support.options'

local preference = {}

-- Options of chats with another default or meaning for pairs.
local instead = {
   from = { help = 'published folder, checkpoint or run to train; also the reference, unless '
     .. '--reference is given' },
   data = { help = 'JSON Lines of { prompt, chosen, rejected }, as texts or messages: a file or '
     .. 'folder; may be repeated, all are read' },
   long = { 'refuse', help = 'what to do with pairs longer than --seq: refuse them, or cut each '
     .. 'answer with its prompt to --seq / 2 tokens', choices = { 'refuse', 'cut' } },
   pack = { help = 'how pairs share a row: best fit, next in order, or none (one pair a row)' },
   epochs = { 1 },
   lr = { help = 'peak learning rate; default: 1e-6, or 5e-6 with adapters' },
}

preference.rows = {
   { 'loss', 'sigmoid', 'loss of a pair: sigmoid (DPO), or ipo (IPO, on the mean over the tokens '
     .. 'of an answer)', choices = { 'sigmoid', 'ipo' }, also = { 'loss-type' } },
   { 'beta', 0.1, 'strength of the pull to the reference: a larger beta keeps the model closer to '
     .. 'it', type = 'number', min = 1e-9 },
   { 'label-smoothing', 0, 'share of pairs assumed to be labelled the wrong way round; for --loss '
     .. 'sigmoid', type = 'number', min = 0, max = 0.499999 },
   { 'reference', nil, 'folder of the reference model, of the same architecture; default: --from '
     .. 'with adapters off', type = 'string', also = { 'ref-model', 'reference-model' } },
}
for _, row in ipairs(chats.rows) do
   local own, other = copy(row), instead[row[1]] or {}
   own[2], own[3] = other[1] or own[2], other.help or own[3]
   own.choices = other.choices or own.choices
   preference.rows[#preference.rows + 1] = own
end

-- What errors call the options.
preference.words = options.joined(chats.words, {
   { 'label_smoothing', '--label-smoothing' }, { 'kind', '--loss' },
   { 'fp8', "--fp8, and fp8 = 'block' is --fp8 --fp8-scaling block" },
})

preference.change = { without = { 'train-on', unpack(chats.change.without) },
   default = chats.change.default }

-- The pairs of --data, and those to evaluate on. images: how their images are read.
function preference.corpus(job, opt, model, images)
   return chats.corpus(job, opt, model, images, { load = require('tide').data.preference.load,
      what = '{ prompt, chosen, rejected }' })
end

-- Prints the plan of a run over pairs; see chats.show_plan.
function preference.show_plan(job, opt, plan, per_rank, corpus)
   chats.show_plan(job, opt, plan, per_rank, corpus, require('tide').data.preference.sampler)
end

-- Which pairs make up which rows of which step.
function preference.sampler(job, opt, corpus, data)
   return chats.sampler(job, opt, corpus, data, require('tide').data.preference.sampler)
end

-- Reads the weights, and computes what the reference says of all answers: the model before its
-- first step, with adapters off, or that of --reference.
function preference.fill(job, opt, run, corpus, sampler, rows)
   local tide = require 'tide'
   job:check(tide.model.fill, run, opt.reference or opt.from)
   job.log:once('the reference (%s) reads %d pairs', opt.reference or opt.from, corpus.documents)
   job:check(tide.train.reference.compute, run, sampler, corpus, { batch = rows,
      device = opt.device })
   if opt.reference then job:check(tide.model.fill, run, opt.from) end
   if opt.adapter then job:check(tide.model.load_adapter, run, opt.adapter) end
end

return preference
