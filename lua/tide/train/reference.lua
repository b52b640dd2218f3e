-- Log-probabilities of answers under the reference of preference learning, computed once before the
-- first step: the model as it is then, or with adapters its base. No second copy of the weights.

local tide = require 'tide'
local batches = require 'tide.train.batches'
local dist = require 'tide.comm'
local err = require 'tide.util.err'
local lora = require 'tide.nn.lora'
local nn = require 'tide.nn'
local signature = require 'tide.util.signature'
local spread_ = require 'tide.nn.spread'

local reference = {}

-- Returns the sums of the answers of some rows, a list, over the ranks that share them.
local function sums_of(model, batch)
   local handle = spread_.of(model).cp
   batch = batches.settled('train.reference.compute', 'batch', batch)
   local mine = handle and handle:cut(batch) or batch
   local at = batches.place_of(model, mine)
   return tide.no_grad(function()
      return tide.scope(function()
         return (nn.preference.answers(model, mine, at)):to 'cpu'
      end)
   end):tolist()
end

-- Returns the sums by the first token of an answer, of all rows; each rank with data of its own has
-- its share, and all run the model equally often.
local function sums_by_answer(run, sampler, source, cu, rows, o)
   local data, list = run.data, {}
   local place = {}
   for i = 1, #cu - 1 do
      place[cu[i]], list[i] = i, 0
   end
   for k = 0, math.ceil(#rows / (o.batch * data.size)) - 1 do
      local first = (k * data.size + data.rank) * o.batch + 1
      local here = { unpack(rows, first, math.min(first + o.batch - 1, #rows)) }
      local sums = sums_of(run.model, sampler:make(source, #here > 0 and here or { rows[1] },
         o.device))
      local n = 0
      for _, row in ipairs(here) do
         for _, piece in ipairs(row) do
            n = n + 1
            list[place[piece[1]]] = sums[n]
         end
      end
   end
   if run.sharded then run.sharded:release() end
   local known = {}
   for i, sum in ipairs(dist.sum(data, list)) do known[cu[i]] = sum end
   return known
end

-- Refuses a model whose log-probabilities of an answer depend on the rest of the batch: FP8 with
-- one scale for a tensor. The model would differ from its reference before the first step.
function reference.check(model)
   model:walk(function(m, path)
      err.raise_if(m._fp8 and m._fp8.scaling == 'tensor', 'E_UNSUPPORTED', 'train.reference',
         "'%s' multiplies in FP8 with one scale for a tensor, which depends on the other answers "
         .. "of a batch; give fp8 = 'block', or leave fp8 out", path)
   end)
end

-- Computes the log-probabilities of all answers under the reference model, and stores them in a
-- sampler of data.preference.sampler. run: what plan:materialise gave, or { model, data = a
-- communicator }. corpus: of data.preference.load. Collective.
function reference.compute(run, sampler, corpus, opts)
   local model = run.model
   reference.check(model)
   local was_training = model.training
   model:eval()
   local function all()
      sampler:set_reference('train', sums_by_answer(run, sampler, corpus.train, corpus.cu,
         sampler:all(), opts))
      if sampler.val_cu then
         sampler:set_reference('val', sums_by_answer(run, sampler, corpus.val, corpus.val_cu,
            sampler:all(true), opts))
      end
   end
   if rawget(model, 'adapter') then lora.without(model, all) else all() end
   model:train(was_training)
end

return signature.doors('train.reference', reference, {
   check = 'model: module',
   compute = { 'run: table; sampler: table; corpus: table', opts = {
      'batch: integer >= 1 = 1 -- rows at a time on a rank', 'device: string?' } },
})
