-- Log-probabilities of given tokens under a model whose weights may be shared among ranks.
--
-- Batches of rows are shared among the ranks like data, and every rank runs its model equally
-- often, since gathering a layer takes all of them.

local tide = require 'tide'
local by_key = require 'tide.util.by_key'
local CausalLM = require 'tide.model.causal_lm'
local class = require 'tide.class'
local dims = require 'tide.util.dims'
local dist = require 'tide.comm'
local err = require 'tide.util.err'
local checkpoint = require 'tide.train.checkpoint'
local family = require 'tide.model.family'
local rows_ = require 'tide.train.rows'
local spread = require 'tide.nn.spread'
local signature = require 'tide.util.signature'
local state = require 'tide.train.state'

local score = {}

-- Loads the model of a checkpoint (or of a run's newest) of any family of tide.model, sharded over
-- the ranks of comm, each of which reads its part only. Collective. Returns the model, the Sharded,
-- and the configuration. E_UNSUPPORTED: another architecture; E_SHAPE: other parameters.
function score.load(where, opts)
   local op = 'train.score.load'
   local saved = checkpoint.load(where, { device = opts.device, model_only = true, lazy = true })
   err.raise_if(type(saved.plain.config) ~= 'table', 'E_FORMAT', op, '%s has no model '
      .. 'configuration: its model had no field config (a plain table, lua/guide/checkpoint.md)',
      saved.folder)
   local dtype = saved.store:dtype('model', saved.store:names('model')[1])
   local model = family.build(op, saved.plain, { dtype = dtype, device = 'null' }, opts.make)
   local sharded = tide.parallel.fully_shard(model, opts.comm or dist.world(),
      { device = opts.device })
   state.restore_model(sharded, saved)
   return model:eval(), sharded, model.config
end

-- ---- rows --------------------------------------------------------------------------------------

local function check_request(q, r, seq, vocab)
   local op, name = 'train.score.loglikelihood', ('requests[%d]'):format(r)
   err.type(op, name, q, 'table')
   for _, field in ipairs { 'context', 'continuation' } do
      rows_.check_ids(op, name .. '.' .. field, q[field], vocab)
   end
   err.raise_if(#q.continuation > seq, 'E_ARG', op, '%s.continuation has %d ids; expected at most '
      .. 'seq = %d', name, #q.continuation, seq)
end

-- Returns the rows that the model sees: { ids, parts = { { request, first } } }; `first` is the
-- column, from 0, that predicts the first id of the request's continuation. Requests of equal rows
-- share one.
local function rows_of(requests, seq, vocab)
   local rows, at = by_key(function(ids, r) return { ids = ids, parts = {}, order = r } end)
   for r, q in ipairs(requests) do
      check_request(q, r, seq, vocab)
      local n = #q.continuation
      local ids = dims.slice(q.context, math.max(0, #q.context + n - seq - 1) + 1)
      for i = 1, n - 1 do ids[#ids + 1] = q.continuation[i] end
      table.insert(at(table.concat(ids, ' '), ids, r).parts, { request = r, first = #ids - n })
   end
   return rows
end

-- Returns the rows as batches for `size` ranks, the longest first.
local function batches_of(rows, o, size, is_padded)
   table.sort(rows, function(a, b)
      if #a.ids ~= #b.ids then return #a.ids > #b.ids end
      return a.order < b.order
   end)
   local most, list = math.min(o.batch, math.ceil(#rows / size)), {}
   for _, row in ipairs(rows) do
      local batch = list[#list]
      local fits = batch and #batch < most and (is_padded or #batch[1].ids == #row.ids)
      if not fits then
         batch = {}
         list[#list + 1] = batch
      end
      batch[#batch + 1] = row
   end
   return list
end

-- ---- the model ---------------------------------------------------------------------------------

-- Returns the rows padded on the right, the index of each predicting token among all, and the
-- targets.
local function inputs_of(batch, requests)
   local inputs, index, targets, length = {}, {}, {}, #batch[1].ids
   for b, row in ipairs(batch) do
      local line = {}
      for i = 1, length do line[i] = row.ids[i] or 0 end
      inputs[b] = line
      for _, part in ipairs(row.parts) do
         for i, id in ipairs(requests[part.request].continuation) do
            index[#index + 1] = (b - 1) * length + part.first + i - 1
            targets[#targets + 1] = id
         end
      end
   end
   return inputs, index, targets
end

-- Returns log-probabilities of a batch, one part after the other.
local function run_batch(model, batch, requests, device)
   return tide.scope(function()
      local at = { dtype = 'i64', device = device }
      local inputs, index, targets = inputs_of(batch, requests)
      local ids = tide.tensor(inputs, at)
      index, targets = tide.tensor(index, at), tide.tensor(targets, at)
      if class.is(model, CausalLM) and not spread.of(model).tp then
         return model:logprobs(ids, index, targets):to 'cpu'
      end
      local z = model(ids)
      z = z:reshape(z:size(1) * z:size(2), z:size(3)):index_select(1, index)
      return (-tide.cross_entropy(z, targets, { reduction = 'none' })):to 'cpu'
   end):tolist()
end

-- Calls fn as scoring runs: without gradients, and gathering a sharded model layer by layer.
local function scoring(sharded, fn)
   if not sharded then return tide.no_grad(fn) end
   return tide.parallel.unshard_fsdp2_model(sharded, fn, nil, { layerwise = true })
end

-- Splits the values of a batch.
local function deal(out, batch, requests, values)
   local at = 0
   for _, row in ipairs(batch) do
      for _, part in ipairs(row.parts) do
         local n = #requests[part.request].continuation
         out[part.request], at = dims.slice(values, at + 1, at + n), at + n
      end
   end
end

-- Returns log-probabilities (natural) of continuations, each id given those before it: a list for
-- each request { context = ids, continuation = ids }. The last seq + 1 ids of a request are seen.
-- Every rank calls it with the same requests, which are shared out, and gets all.
function score.loglikelihood(model, requests, opts)
   local sharded = opts.sharded
   local comm = sharded and (sharded.stage and sharded.data_comm or sharded.comm) or dist.solo()
   local rows = rows_of(requests, opts.seq, (model.config or {}).vocab_size)
   local is_padded = not rows_.varying_rope(model)      -- padding would change the positions
   local batches = batches_of(rows, opts, comm.size, is_padded)
   local mine, out = {}, {}
   scoring(opts.sharded, function()
      for k = 1, math.ceil(#batches / comm.size) do     -- every rank runs the model equally often
         local batch = batches[(k - 1) * comm.size + comm.rank + 1]
         local values = run_batch(model, batch or batches[1], requests, opts.device)
         if batch then mine[k] = values end
      end
   end)
   for rank, values in ipairs(comm:all_gather_object(mine)) do
      for k = 1, #values do deal(out, batches[(k - 1) * comm.size + rank], requests, values[k]) end
   end
   return out
end

-- ---- windows -----------------------------------------------------------------------------------

-- Returns the windows of a list of ids as requests, by the rule of lm-evaluation-harness: each
-- window predicts the next seq ids from one id of context. The last one has as much context as
-- fits.
function score.windows(ids, seq)
   local list = {}
   for first = 2, #ids, seq do
      local last = math.min(first + seq - 1, #ids)
      local from = math.max(1, math.min(first - 1, last - seq))
      list[#list + 1] = { context = dims.slice(ids, from, first - 1),
         continuation = dims.slice(ids, first, last) }
   end
   return list
end

-- Returns log-probabilities (natural) of the second to the last of a list of ids, each given those
-- before it in its window (see windows). Every rank calls it and gets all.
function score.logprob(model, ids, opts)
   if #ids < 2 then err.arg('train.score.logprob', 'ids', 'at least two ids', ids) end
   local list = {}
   for _, part in ipairs(score.loglikelihood(model, score.windows(ids, opts.seq), opts)) do
      for _, v in ipairs(part) do list[#list + 1] = v end
   end
   return list
end

-- Options of what scores texts in windows.
score.options = {
   'seq: integer >= 1 -- tokens of a window',
   'batch: integer >= 1 = 8 -- windows, or rows of texts, at a time on a rank',
   'sharded: sharded? -- the Sharded of the model; layers are gathered one by one',
   'device: string? -- device of the ids',
}

return signature.doors('train.score', score, {
   load = { opts = {
      "device: string = 'cpu' -- device of the weights", 'comm: comm? -- ranks; all by default',
      'make: function? -- makes a model of a class of your own of (config, options)' } },
   loglikelihood = { 'model: module; requests: table', opts = score.options },
   windows = 'ids: integer[]; seq: integer >= 1',
   logprob = { 'model: module; ids: integer[]', opts = score.options },
})
