-- One step of plain gradient descent of a published folder on a mesh: it changes every parameter by
-- its gradient, so that the gradients over ranks are seen in the folder that is written after it.

local tide = require 'tide'
local batch = require 'spec.support.batch'
local each = require 'tide.util.each'

local M = {}

-- A rate at which a step is the gradients: rounding of the parameters is small beside them.
local rate = 2 ^ 12

-- On a rank: writes the logits of all rows and positions as `out`.logits and the model after a step
-- as `out`, and returns the loss. rows: { ids, labels } as lists.
local function on_rank(rank, _, dir, mesh, rows, out, lr, sequence)
   local t = require 'tide'
   local model, run = t.model.load(dir, { mesh = mesh,
      plan = sequence and { tp = { sequence_parallel = true } } or nil })
   local ids = t.tensor(rows.ids, { dtype = 'i64' })
   local labels = t.tensor(rows.labels, { dtype = 'i64' })
   local logits
   if mesh.cp then
      local mine = run.context:cut { ids = ids }
      local part = model(mine.ids, { context = mine.context }):detach()
      logits = mine.context.map:gather(part, 2)
   else
      logits = model(ids):detach()
   end
   if rank == 0 then t.util.fs.io().safetensors_save(out .. '.logits', { logits = logits }) end
   local n = run.data.size
   if n > 1 then
      ids, labels = ids:narrow(1, run.data.rank + 1, 1), labels:narrow(1, run.data.rank + 1, 1)
   end
   local step = t.train.step.new { model = model:train(), parallel = run.sharded, comm = run.comm,
      optim = t.optim.SGD(run.params, { lr = lr }) }
   local loss = step:run({ { ids = ids, labels = labels } }).loss
   t.model.save(run.sharded or model, out)
   return loss
end

local function tensors(dir) return tide.train.checkpoint.tensors(dir .. '/model.safetensors') end

local function rows_of(t)
   local list = t:tolist()
   for _, row in ipairs(list) do
      for i, v in ipairs(row) do row[i] = tonumber(v) end
   end
   return list
end

-- Returns how many ranks a mesh has.
function M.count(mesh) return (mesh.cp or mesh.dp_shard or 1) * (mesh.tp or 1) end

-- Returns the logits [2, S, V] and the list of gradients { name =, grad = } that a step of the
-- folder `dir` has written into `work`.
local function written(dir, work)
   local out = work .. '/out'
   local after, grads = tensors(out), {}
   for name, t in each(tensors(dir)) do
      if name:find '%.e_score_correction_bias$' then                -- a buffer
         assert(t:equal(after[name]), name)
      else
         grads[#grads + 1] = { name = name, grad = (t - after[name]) / rate }
      end
   end
   return tide.train.checkpoint.tensors(out .. '.logits').logits, grads
end

-- Returns runs of steps on n ranks (spec/support/batch.lua). add takes a key and what `folder`
-- takes. folder(work, ...) returns a folder to read, a mesh, ids and labels (i64 [2, S]) and, to
-- cut the stream along the sequence, too, true. get returns the losses of the ranks, logits and
-- gradients as { losses =, logits =, grads = }.
function M.batch(n, folder)
   local function prepare(work, ...)
      local dir, mesh, ids, labels, sequence = folder(work, ...)
      return dir, mesh, { ids = rows_of(ids), labels = rows_of(labels) }, work .. '/out', rate,
         sequence
   end
   local function finish(losses, work, dir)
      local logits, grads = written(dir, work)
      return { losses = losses, logits = logits, grads = grads }
   end
   return batch.new(n, on_rank, { prepare = prepare, finish = finish })
end

return M
