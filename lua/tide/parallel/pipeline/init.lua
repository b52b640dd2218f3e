-- Pipeline parallelism: each rank of an axis keeps some neighbouring blocks of a model, a stage,
-- and hidden states travel from stage to stage (GPipe, arXiv 1811.06965; Megatron-LM, arXiv
-- 2104.04473).
--
--    local stage = tide.parallel.pipeline_parallel(model, mesh:axis 'pp')
--    model:loss(ids, labels, { count = n }):backward()       -- every stage, with the same batch
--
-- The first stage keeps the embedding, the last one the final norm and the output projection. A
-- projection that is the embedding lies on both, and their gradients are added. A call of the model
-- passes through all stages one after the other; train.step overlaps the micro-batches of a step
-- (schedule.lua). Apply it after tensor and context parallelism and before fully_shard, which
-- every rank needs: it knows the norm of all stages. A plan (`pp` in its mesh) keeps that order.

local agree = require 'tide.comm.agree'
local axis_of = require 'tide.parallel.axis_of'
local canonical = require 'tide.util.canonical'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'
local fingerprint = require 'tide.parallel.fingerprint'
local link = require 'tide.parallel.pipeline.link'
local mixtures = require 'tide.nn.mixtures'
local signature = require 'tide.util.signature'
local split = require 'tide.parallel.pipeline.split'
local spread = require 'tide.nn.spread'
local Stage = require 'tide.parallel.pipeline.stage'

local pipeline = { Stage = Stage }

local op = 'parallel.pipeline_parallel'

-- Refuses models that cannot be cut into stages.
local function check_model(model, size)
   err.raise_if(not (model._cut_stage and model.blocks), 'E_UNSUPPORTED', op, 'a %s cannot be cut '
      .. 'into stages; take a language model of tide.model', tostring(model.class_name))
   for _, way in ipairs { 'inside', 'pp' } do
      spread.check_whole(op, model, 'cut a whole model into stages, before fully_shard',
         { [way] = true })
   end
   local n = #model:blocks()
   err.raise_if(size > n, 'E_ARG', op, 'the axis has %d ranks, and the model has %d block%s, of '
      .. 'which each stage needs one; give at most as many ranks', size, n, n == 1 and '' or 's')
end

-- Returns how many blocks each stage gets.
local function counts_of(model, size, layers)
   local blocks, costs, c = model:blocks(), {}, model.config
   if layers then return split.given(op, layers, #blocks, size) end
   for i, block in ipairs(blocks) do costs[i] = model:_block_cost(block) end
   return split.by_cost(costs, size, { last = c.vocab_size * c.hidden_size,
      least = math.min(model:first_blocks(), #blocks - size + 1) })
end

-- Refuses ranks that cut different models, or cut them differently.
local function check_agreed(comm, model, layers)
   agree.check(comm, op, 'E_ARG', {
      { 'options', canonical { layers = layers }, 'shown' },
      { 'configurations', canonical(model.config) }, fingerprint.model(model) })
end

-- Cuts a model into stages, in place, and returns the stage of this rank. axis: an axis of a mesh,
-- or a communicator. Collective.
function pipeline.pipeline_parallel(model, axis, opts)
   local comm = axis_of(op, 'axis', axis)
   check_model(model, comm.size)
   check_agreed(comm, model, opts.layers)
   local counts = counts_of(model, comm.size, opts.layers)
   local first = dims.sum(counts, comm.rank) + 1
   local self = setmetatable({
      model = model, comm = comm, rank = comm.rank, size = comm.size, counts = counts,
      blocks = { first, first + counts[comm.rank + 1] - 1 },
      first = comm.rank == 0, last = comm.rank == comm.size - 1,
      width = model.config.hidden_size, dtype = model:embedding().weight.dtype,
      mixtures = #mixtures(model), multiplying = model:multiplying(),
      tied = model.config.tie_word_embeddings and comm.size > 1
         and model:embedding().weight or nil,
   }, Stage)
   self.before, self.after = link.both(comm)
   model:_cut_stage(self)
   return self
end

return signature.doors('parallel', pipeline, {
   pipeline_parallel = { 'model: module', opts = {
      'layers: integer[]? -- blocks of each stage; by default so that the largest work of a stage '
         .. 'is least' } },
})
