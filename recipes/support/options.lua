-- Options that recipes of pretraining share, in the order of --help.

local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local optim = require 'recipes.support.optim'
local plan_options = require 'tide.parallel.plan.options'

local before_model = {
   { 'data', nil, 'text file, folder of text, or .bin file of token ids; may be repeated, all are '
     .. "read in order; default: tide's own sources", list = true, also = { 'data-path',
     'dataset' } },
   { 'data-weight', nil, 'share of the samples that is drawn from a --data; once for each --data, '
     .. 'in their order; default: all --data are read as one text', type = 'number', min = 0,
     list = true, also = { 'data-weights', 'blend' } },
   { 'records', false, 'read --data as JSON Lines of chats, pairs or texts, one document a line; '
     .. 'in chats and pairs the loss covers the answers only', also = { 'jsonl' } },
   { 'chat-template', nil, 'chat template (.jinja) for --records of chats, or the folder of a '
     .. 'model that has one; default: the one beside the tokenizer', type = 'string' },
   { 'train-on', nil, 'role whose messages count in the loss; may be repeated; default: the '
     .. 'generation blocks of the template, else the assistant', type = 'string', list = true },
   { 'skip-bad', false, 'skip broken --records and count them; without it the first broken one is '
     .. 'an error' },
   { 'token-bytes', nil, 'bytes per id in .bin files; default: what the file header or a Megatron '
     .. '.idx says, else 2', type = 'integer', min = 2, max = 4 },
   { 'tokenizer', nil, 'folder or file of a tokenizer (tokenizer.json, ...) for text; default: '
     .. 'that of --from, else bytes', type = 'string' },
   { 'binary', false, 'read files as raw bytes, also files that are not text' },
   { 'vocab', 0, 'vocabulary size; required for .bin files; with text a size above that of the '
     .. 'tokenizer leaves ids unused', min = 0 },
   { 'out', 'runs/', 'folder for checkpoints, metrics.jsonl and loss.svg',
     also = { 'output', 'output-dir', 'save' } },
   { 'resume', false, 'resume from the newest checkpoint in --out, with its options as defaults; '
     .. 'any --mesh option replaces the whole mesh' },
   { 'resume-from', nil, 'resume from this checkpoint of the run (a folder step-N, or its number); '
     .. 'later checkpoints move to aside-N in --out; a new --out forks the run and leaves the old '
     .. 'one unchanged' },
   { 'overwrite', false, 'delete the run in --out and start again' },
   { 'steps', 800, 'optimiser steps in total', min = 1, also = { 'max-steps', 'iterations',
     'train-iters', 'epochs' } },
   { 'batch', 8, 'global batch size: windows per step over all ranks', min = 1,
     also = { 'batch-size', 'global-batch-size', 'bs' } },
   { 'accum', 1, 'gradient accumulation: micro-batches per step on each rank', min = 1,
     also = { 'gradient-accumulation-steps' } },
   { 'seq', 256, 'sequence length: tokens per window', min = 1, also = { 'seq-len', 'seq-length',
     'context-length' } },
   { 'packed', false, 'pack whole documents into windows; attention stays within a document, also '
     .. 'in evaluation; for text files, or .bin files with --eos or the .idx of Megatron' },
   { 'eos', -1, 'id that ends a document in .bin files; -1: what the .idx of a Megatron data set '
      .. 'says', min = -1 },
}

local after_model = {
   { 'dtype', 'f32', 'dtype of parameters and activations', choices = { 'f32', 'bf16' },
     also = { 'bf16', 'precision' } },
   { 'fp8', false, 'multiply by weights in FP8, except in the output head and in experts' },
   { 'fp8-scaling', 'tensor', 'what has a scale of its own in --fp8, from its largest element: '
     .. 'tensor, an operand; block, 128 neighbours of it and 128 x 128 of a weight, scales powers '
     .. 'of two; block_f32, any scales', choices = { 'tensor', 'block', 'block_f32' },
     also = { 'fp8-recipe' } },
   { 'lr', 3e-3, 'peak learning rate', type = 'number', min = 0,
     also = { 'learning', 'learning-rate' } },
   { 'min-lr', nil, 'final learning rate; default: a tenth of --lr', type = 'number', min = 0 },
   { 'warmup', nil, 'steps of linear warm-up, at most half of the schedule; default: half of the '
     .. 'schedule, at most 40', type = 'integer', min = 0 },
   { 'schedule', 'cosine', 'shape of the learning rate schedule', choices = { 'cosine', 'linear',
     'wsd', 'constant' } },
   { 'schedule-steps', 0, 'length of the schedule in steps, after which the rate stays constant; '
     .. '0: --steps. A resumed run keeps its length', min = 0, also = { 'lr-decay-iters',
     'lr-decay-steps' } },
   { 'weight-decay', 0.1, 'weight decay of matrices', type = 'number', min = 0, also = { 'wd' } },
   { 'beta2', 0.95, 'decay rate of the second moment (adamw, adamw8bit, muon)', type = 'number',
     min = 0, max = 0.9999999 },
   { 'clip', 1, 'clip the gradient norm to this value; 0: off', type = 'number', min = 0,
     also = { 'clip-grad', 'max-grad-norm' } },
   { 'on-nonfinite', 'stop', 'what to do when the loss or the gradient is not finite',
     choices = { 'stop', 'skip' } },
   { 'seed', 1, 'seed of the initial weights and of the data order', min = 0 },
   { 'val-every', 100, 'steps between evaluations; 0: only at the end', min = 0 },
   { 'val-windows', 64, 'windows per evaluation', min = 1 },
   { 'save-every', 400, 'steps between checkpoints; 0: only at the end', min = 0 },
   { 'keep', 3, 'checkpoints to keep', min = 1 },
   { 'log-every', 10, 'steps between plain progress lines', min = 1 },
   { 'tensorboard', false, 'also write a TensorBoard event file into --out' },
   { 'sample', 200, 'tokens to generate as a sample at the end; 0: none', min = 0 },
   { 'temperature', 0.8, 'sampling temperature of the sample', type = 'number', min = 0 },
   { 'async-save', false, 'write checkpoints in the background' },
   { 'plan', false, 'print how the model is distributed over ranks, its memory and its traffic; '
     .. 'train nothing' },
   { 'device', 'cpu', 'device to compute on', choices = { 'cpu', 'ref', 'cuda' } },
   { 'captured', false, 'record one step and replay it as a CUDA graph; needs --device cuda, '
     .. 'windows (no --packed), and one rank or NCCL' },
   { 'threads', 0, 'threads per rank; 0: chosen by the program', min = 0, max = 1024 },
}

-- Options that models of a recipe share, with the words that people write for them elsewhere.
local of_model = {
   dim = { 'dim', 160, 'model width (hidden size)', min = 1, also = { 'hidden-size' } },
   heads = { 'heads', 4, 'attention heads', min = 1,
     also = { 'num-heads', 'num-attention-heads' } },
   ['kv-heads'] = { 'kv-heads', 0, 'key and value heads; 0: as many as --heads', min = 0,
     also = { 'num-query-groups', 'num-key-value-heads' } },
   hidden = { 'hidden', 0, 'width of the MLP', min = 0,
     also = { 'ffn-hidden-size', 'intermediate-size' } },
   tie = { 'tie', true, 'share the weight of the embedding with the output head' },
}

local support = {}

-- What errors call the options of pretraining (see tide.train.job).
support.words = {
   { 'hidden_size', '--dim' }, { 'num_attention_heads', '--heads' },
   { 'num_key_value_heads', '--kv-heads, or --heads without it' },
   { 'head_dim', '--dim / --heads', follows = true },
   { 'intermediate_size', '--hidden' }, { 'num_experts_per_tok', '--experts-per-token' },
   { 'num_local_experts', '--experts' }, { 'tensor parallel size', '--mesh.tp' },
}

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

-- The rows of two lists in one.
function support.joined(rows, more)
   local list = {}
   for _, part in ipairs { rows, more } do
      for _, row in ipairs(part) do list[#list + 1] = row end
   end
   return list
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

-- The option fp8 of a model. name: of the recipe.
function support.fp8(name, opt)
   err.usage_if(opt.fp8_scaling ~= 'tensor' and not opt.fp8, name, '--fp8-scaling %s needs --fp8; '
      .. 'give both', opt.fp8_scaling)
   return opt.fp8 and opt.fp8_scaling
end

return support
