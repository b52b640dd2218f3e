-- Options that recipes of pretraining share, in the order of --help.

local copy = require 'tide.util.copy'
local optim = require 'recipes.support.optim'
local plan_options = require 'tide.parallel.plan.options'

local before_model = {
   { 'data', nil, 'file or folder of text, or .bin token files; several --data are all read, '
     .. 'one after the other; default: tide\'s own sources', list = true,
     also = { 'data-path', 'dataset' } },
   { 'data-weight', nil, 'share of a --data in the steps, once for each --data in their order; not '
     .. 'given: all are one text', type = 'number', min = 0, list = true,
     also = { 'data-weights', 'blend' } },
   { 'records', false, '--data are JSON Lines of chats, pairs or texts, a document each; masks '
     .. 'leave labels to answers', also = { 'jsonl' } },
   { 'chat-template', nil, 'a template, or the folder of a model that has one, for --records of '
     .. 'chats; not given: that beside the tokenizer', type = 'string' },
   { 'train-on', nil, 'a role whose messages count; may be given several times; not given: '
     .. 'generation blocks of the template, or the assistant', type = 'string', list = true },
   { 'skip-bad', false, 'leave broken --records out and count them; else the first one ends the '
     .. 'start' },
   { 'token-bytes', nil, 'bytes per id of .bin files; not given: what a header or a Megatron .idx '
     .. 'beside them says, else 2', type = 'integer', min = 2, max = 4 },
   { 'tokenizer', nil, 'folder or file of a tokenizer (tokenizer.json, ...) for text; not given: '
     .. 'that of --from, else bytes', type = 'string' },
   { 'binary', false, 'take files as bytes whatever they hold, not text alone' },
   { 'vocab', 0, 'vocabulary size of .bin files; text needs none, and a larger one leaves ids '
     .. 'unused', min = 0 },
   { 'out', 'runs/', 'folder for checkpoints, metrics.jsonl and loss.svg',
     also = { 'output', 'output-dir', 'save' } },
   { 'resume', false, 'go on from the newest checkpoint in --out, with its options as defaults; a '
     .. '--mesh option replaces its whole mesh' },
   { 'resume-from', nil, 'go on from this checkpoint of the run (a folder step-N, or a number); '
     .. 'later ones move to a folder aside-N in --out; with a new --out: a fork, the run of the '
     .. 'checkpoint stays as it is' },
   { 'overwrite', false, 'remove the run that --out holds, and begin anew' },
   { 'steps', 800, 'optimiser steps in all', min = 1,
     also = { 'max-steps', 'iterations', 'train-iters', 'epochs' } },
   { 'batch', 8, 'windows per step over all ranks', min = 1,
     also = { 'batch-size', 'global-batch-size', 'bs' } },
   { 'accum', 1, 'micro-batches per step and rank', min = 1,
     also = { 'gradient-accumulation-steps' } },
   { 'seq', 256, 'tokens per window', min = 1,
     also = { 'seq-len', 'seq-length', 'context-length' } },
   { 'packed', false, 'fill windows with whole documents, each seen by itself, also in evaluation; '
     .. 'they are files of text, or end with --eos' },
   { 'eos', -1, 'id that ends a document in .bin files', min = -1 },
}

local after_model = {
   { 'dtype', 'f32', 'parameters and activations', choices = { 'f32', 'bf16' },
     also = { 'bf16', 'precision' } },
   { 'fp8', false, 'multiply by weights (not the output head) in FP8, each operand scaled by its '
     .. 'largest element' },
   { 'lr', 3e-3, 'peak learning rate', type = 'number', min = 0,
     also = { 'learning', 'learning-rate' } },
   { 'min-lr', 3e-4, 'final learning rate', type = 'number', min = 0 },
   { 'warmup', nil, 'steps of linear warm-up, at most half of those of the schedule; not given: '
     .. 'half of them, at most 40', type = 'integer', min = 0 },
   { 'schedule', 'cosine', 'shape of the learning rate',
     choices = { 'cosine', 'linear', 'wsd', 'constant' } },
   { 'schedule-steps', 0, 'steps that the schedule is drawn over, after which the rate stays; 0: '
     .. '--steps. A resumed run keeps it', min = 0, also = { 'lr-decay-iters', 'lr-decay-steps' } },
   { 'weight-decay', 0.1, 'decay of matrices', type = 'number', min = 0, also = { 'wd' } },
   { 'beta2', 0.95, 'second-moment decay of AdamW', type = 'number', min = 0, max = 0.9999999 },
   { 'clip', 1, 'largest gradient norm; 0: off', type = 'number', min = 0,
     also = { 'clip-grad', 'max-grad-norm' } },
   { 'on-nonfinite', 'stop', 'when loss or gradient is not finite', choices = { 'stop', 'skip' } },
   { 'seed', 1, 'weights and order of the data', min = 0 },
   { 'val-every', 100, 'steps between evaluations; 0: at the end only', min = 0 },
   { 'val-windows', 64, 'windows per evaluation', min = 1 },
   { 'save-every', 400, 'steps between checkpoints; 0: at the end only', min = 0 },
   { 'keep', 3, 'checkpoints kept', min = 1 },
   { 'log-every', 10, 'steps between plain progress lines', min = 1 },
   { 'tensorboard', false, 'write a TensorBoard event file into --out, too' },
   { 'sample', 200, 'tokens to sample at the end', min = 0 },
   { 'temperature', 0.8, 'of the sample', type = 'number', min = 0 },
   { 'async-save', false, 'write checkpoints in the background' },
   { 'plan', false, 'print how the model is spread over ranks and what that costs; run nothing' },
   { 'device', 'cpu', 'where to compute', choices = { 'cpu', 'ref', 'cuda' } },
   { 'captured', false, 'record a step once and replay it as one launch (a CUDA graph); for '
     .. '--device cuda, windows, one rank or ranks over NCCL' },
   { 'threads', 0, 'threads per rank; 0: as the program decides', min = 0, max = 4096 },
}

-- Options that models of a recipe share, with the words that people write for them elsewhere.
local of_model = {
   dim = { 'dim', 160, 'model width', min = 1, also = { 'hidden-size' } },
   heads = { 'heads', 4, 'attention heads', min = 1,
     also = { 'num-heads', 'num-attention-heads' } },
   ['kv-heads'] = { 'kv-heads', 0, 'key and value heads; 0: as many as heads', min = 0,
     also = { 'num-query-groups', 'num-key-value-heads' } },
   hidden = { 'hidden', 0, 'width of the MLP', min = 0,
     also = { 'ffn-hidden-size', 'intermediate-size' } },
   tie = { 'tie', true, 'use the embedding as output head too' },
}

local support = {}

-- The declaration of such an option: 'dim', 'heads', 'kv-heads', 'hidden' or 'tie'. help: its line,
-- where the recipe has one of its own.
function support.option(name, help)
   local row = assert(of_model[name], name)
   return { row[1], row[2], help or row[3], min = row.min, also = row.also }
end

-- A row of all, as a recipe has it, or nil.
local function changed(row, name, change)
   if row[1] == 'out' then return { 'out', row[2] .. name, row[3], also = row.also } end
   if change.without[row[1]] then return nil end
   local default = change.default[row[1]]
   if default == nil then return row end
   local own = copy(row)
   own[2] = default
   return own
end

-- All options of a recipe. name: of the recipe, whose runs are in runs/NAME unless --out is given;
-- of_recipe: its own rows (see util.args), which replace those of their names; change: { without (a
-- list of names that it does not have), default (name -> another default) }.
function support.all(name, of_recipe, change)
   local list, without, default = {}, {}, change and change.default or {}
   for _, row in ipairs(of_recipe) do without[row[1]] = true end
   for _, word in ipairs(change and change.without or {}) do without[word] = true end
   for _, rows in ipairs { before_model, of_recipe, optim.rows, after_model, plan_options.rows } do
      for _, row in ipairs(rows) do
         local shared = rows ~= of_recipe
         list[#list + 1] = shared and changed(row, name, { without = without, default = default })
            or not shared and row or nil
      end
   end
   return list
end

return support
