-- Log-probabilities of given tokens under a model whose weights may be shared among ranks.
--
-- Windows of the text are shared among the ranks like data, and every rank runs its
-- model equally often, since gathering a layer takes all of them.

local tide = require 'tide'
local dist = require 'tide.comm'
local err = require 'tide.util.err'
local checkpoint = require 'tide.train.checkpoint'
local family = require 'tide.model.family'
local signature = require 'tide.util.signature'
local state = require 'tide.train.state'

local score = {}

-- The model of a checkpoint (or of a run's newest) of any family of tide.model, sharded over the
-- ranks of comm, each of which reads its part only. Collective. Returns the model, the Sharded, and
-- the configuration. E_UNSUPPORTED: another architecture; E_SHAPE: other parameters.
function score.load(where, opts)
   local op = 'train.score.load'
   local saved = checkpoint.load(where, { device = opts.device, model_only = true, lazy = true })
   if type(saved.plain.config) ~= 'table' then
      err.raise('E_FORMAT', op, '%s has no model configuration', saved.folder)
   end
   local dtype = saved.store:dtype('model', saved.store:names('model')[1])
   local model = family.build(op, saved.plain, { dtype = dtype, device = 'null' }, opts.make)
   local sharded = tide.parallel.fully_shard(model, opts.comm or dist.world(),
      { device = opts.device })
   state.restore_model(sharded, saved)
   return model:eval(), sharded, model.config
end

-- Windows of the text: window w (from 0) predicts tokens w seq + 2 ... of the list.
local function rows_of(ids, first, count, seq)
   local inputs, targets = {}, {}
   for w = first, first + count - 1 do
      local row, next_row = {}, {}
      for i = 1, seq do
         local at = w * seq + i
         row[i], next_row[i] = ids[at] or 0, ids[at + 1] or 0
      end
      inputs[#inputs + 1], targets[#targets + 1] = row, next_row
   end
   return inputs, targets
end

local function log_softmax_at(logits_BTV, ids_BT)
   return tide.log_softmax(logits_BTV:to 'f32', -1):gather(-1, ids_BT:unsqueeze(-1)):squeeze(-1)
end

-- Appends the log-probabilities of `count` windows from `first` on to list.
local function score_windows(list, model, ids, first, count, o)
   local rows = tide.scope(function()
      local inputs, targets = rows_of(ids, first, math.max(count, 1), o.seq)
      local at = { dtype = 'i64', device = o.device }
      return log_softmax_at(model(tide.tensor(inputs, at)), tide.tensor(targets, at)):to 'cpu'
   end):tolist()
   for w = 1, count do
      for i = 1, o.seq do
         if (first + w - 1) * o.seq + i < #ids then list[#list + 1] = rows[w][i] end
      end
   end
end

-- Log-probabilities (natural) of the second to the last of a list of ids, each given those before
-- it in its window. Every rank calls it and gets all.
function score.logprob(model, ids, opts)
   local o, batch = opts, opts.batch
   if #ids < 2 then err.arg('train.score.logprob', 'ids', 'at least two ids', ids) end
   local comm = o.sharded and o.sharded.comm or dist.solo()
   local windows = math.ceil((#ids - 1) / o.seq)
   local share = math.ceil(windows / comm.size)          -- a run of windows for each rank
   local first = comm.rank * share
   local mine = {}
   local function all()
      for at = 0, share - 1, batch do
         local count = math.max(0, math.min(batch, share - at, windows - first - at))
         score_windows(mine, model, ids, count > 0 and first + at or 0, count, o)
      end
   end
   if o.sharded then
      tide.parallel.unshard_fsdp2_model(o.sharded, all, nil, { layerwise = true })
   else
      tide.no_grad(all)
   end
   local list = {}
   for _, part in ipairs(comm:all_gather_object(mine)) do
      for _, v in ipairs(part) do list[#list + 1] = v end
   end
   return list
end

return signature.doors('train.score', score, {
   load = { opts = {
      "device: string = 'cpu' -- where the weights go", 'comm: comm? -- ranks; all by default',
      'make: function? -- makes a model of a class of your own of (config, options)' } },
   logprob = { 'model: module; ids: integer[]', opts = {
      'seq: integer >= 1 -- tokens of a window',
      'batch: integer >= 1 = 8 -- windows at a time on a rank',
      'sharded: sharded? -- of the model, which is gathered layer by layer',
      'device: string? -- of the tokens' } },
})
