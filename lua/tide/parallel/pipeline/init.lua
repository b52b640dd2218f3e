-- Pipeline parallelism: each rank of an axis keeps some neighbouring blocks of a model, a stage,
-- and hidden states travel from stage to stage (GPipe, arXiv 1811.06965; Megatron-LM, arXiv
-- 2104.04473). With virtual stages a rank keeps several: of 2 ranks with 2 each, rank 0 has stages
-- 0 and 2, rank 1 has 1 and 3.
--
--    local stage = tide.parallel.pipeline_parallel(model, mesh:axis 'pp')
--    model:loss(ids, labels, { count = n }):backward()       -- every stage, with the same batch
--
-- The first stage keeps the embedding, the last one the final norm and the output projection. A
-- projection that is the embedding lies on both, and their gradients are added. A call of the model
-- passes through all stages one after the other; train.step overlaps the micro-batches of a step
-- (schedule.lua). Apply it after tensor and context parallelism. Every rank then calls fully_shard,
-- which computes the norm over all stages. A plan (`pp` in its mesh) keeps that order.
--
-- The parts: split says how many blocks a stage gets; stage has what a call of the model does;
-- micros runs the micro-batches of a step, in the order of schedule; link sends and receives;
-- across has sums and states of all stages.

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

-- Refuses models that cannot be cut into stages, `virtual` on each of `size` ranks.
local function check_model(model, size, virtual)
   err.raise_if(not (model._cut_stage and model.blocks), 'E_UNSUPPORTED', op, 'a %s cannot be cut '
      .. 'into stages; take a language model of tide.model', tostring(model.class_name))
   for _, way in ipairs { 'inside', 'pp' } do
      spread.check_whole(op, model, 'cut a whole model into stages, before fully_shard',
         { [way] = true })
   end
   local n = #model:blocks()
   err.raise_if(size > n, 'E_ARG', op, 'the axis has %d ranks, and the model has %d block%s, of '
      .. 'which each stage needs one; give at most as many ranks', size, n, n == 1 and '' or 's')
   err.raise_if(size * virtual > n, 'E_ARG', op, 'option virtual (--pp.virtual): %d ranks with %d '
      .. 'stages each need %d blocks, and the model has %d; give at most %d', size, virtual,
      size * virtual, n, math.floor(n / size))
   err.raise_if(virtual > 1 and size == 1, 'E_ARG', op, 'option virtual: %d stages, and the axis '
      .. 'has one rank, which waits for no other; leave it out', virtual)
end

-- Returns how many blocks each of n stages gets.
local function counts_of(model, n, layers)
   local blocks, costs, c = model:blocks(), {}, model.config
   if layers then return split.given(op, layers, #blocks, n) end
   for i, block in ipairs(blocks) do costs[i] = model:_block_cost(block) end
   return split.by_cost(costs, n, { last = c.vocab_size * c.hidden_size,
      least = math.min(model:first_blocks(), #blocks - n + 1) })
end

-- Returns the parts of a rank (see stage.lua). counts: the blocks of each stage.
local function parts_of(comm, counts, virtual)
   local parts, at = {}, 0
   for v = 1, virtual do
      local stage = (v - 1) * comm.size + comm.rank
      local first, n = dims.sum(counts, stage) + 1, counts[stage + 1]
      parts[v] = { stage = stage, blocks = { first, first + n - 1 }, here = { at + 1, at + n },
         begins = stage == 0, ends = stage == #counts - 1 }
      at = at + n
   end
   return parts
end

-- Refuses ranks that cut different models, or cut them differently.
local function check_agreed(comm, model, opts)
   agree.check(comm, op, 'E_ARG', {
      { 'options', canonical { layers = opts.layers, virtual = opts.virtual }, 'shown' },
      { 'configurations', canonical(model.config) }, fingerprint.model(model) })
end

-- Cuts a model into stages, in place, and returns those of this rank. axis: an axis of a mesh, or a
-- communicator. Collective.
function pipeline.pipeline_parallel(model, axis, opts)
   local comm, virtual = axis_of(op, 'axis', axis), opts.virtual
   check_model(model, comm.size, virtual)
   check_agreed(comm, model, opts)
   local counts = counts_of(model, comm.size * virtual, opts.layers)
   local self = setmetatable({
      model = model, comm = comm, rank = comm.rank, size = comm.size, virtual = virtual,
      counts = counts, parts = parts_of(comm, counts, virtual),
      first = comm.rank == 0, last = comm.rank == comm.size - 1,
      width = model.config.hidden_size, dtype = model:embedding().weight.dtype,
      programs = {}, mixtures = #mixtures(model), multiplying = model:multiplying(),
      tied = model.config.tie_word_embeddings and comm.size > 1
         and model:embedding().weight or nil,
   }, Stage)
   self.before, self.after = link.both(comm, virtual > 1)
   model:_cut_stage(self)
   self:_note_mixtures()
   return self
end

return signature.doors('parallel', pipeline, {
   pipeline_parallel = { 'model: module', opts = {
      'virtual: integer >= 1 = 1 -- stages of each rank; with several a rank waits less and sends '
         .. 'more',
      'layers: integer[]? -- blocks of each stage; by default so that the largest work of a stage '
         .. 'is least' } },
})
