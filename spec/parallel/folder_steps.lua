-- Two steps of a model on any mesh, compared with those of one rank: the loss, the norm and all
-- tensors. The model is a stored one (golden/folders.lua), or { family =, config =, name = }.

local assert = require 'luassert'
local case = require 'spec.lua.folder_case'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'

local steps_case = {}

local folders = dofile 'spec/golden/folders.lua'
local ids = { { 3, 1, 4, 1, 5, 9, 2, 6, 5, 2 }, { 2, 7, 1, 8, 2, 8, 1, 8, 2, 4 },
   { 1, 4, 1, 4, 2, 1, 3, 5, 6, 9 }, { 5, 7, 7, 2, 1, 5, 6, 6, 4, 3 } }

-- On a rank: two steps of each run of a list. o: mesh; fsdp, tp, pp, recompute (of the plan);
-- optim; accum; nf4: adapters are trained on codes; save: a folder in which the run leaves a
-- checkpoint after its first step; resume: it has its second step alone, from there. The oracle
-- (o.oracle) writes all tensors to a file; the last rank of the others compares its own with it.
-- Returns loss, norm, and by how much tensors are off, for each run.
local function train(rank, _, dir, list, rows)
   local t, io = require 'tide', require('tide').util.fs.io()
   local each_of, path, results = require 'tide.util.each', dir .. '/all.safetensors', {}

   local function add(all, sharded, before)
      for name, v in each_of(sharded:full_state_dict()) do all[before .. name] = v end
   end
   local function begin(o, all)
      local plan = { fsdp = o.fsdp, tp = o.tp, pp = o.pp, recompute = o.recompute }
      if not o.nf4 then
         local _, run = t.model.load(dir, { mesh = o.mesh, dtype = 'f64', plan = plan })
         return run
      end
      local model = t.nn.nf4.quantise_(t.model.load(dir, { dtype = 'f32' }))
      t.nn.lora.attach(model, { rank = 2, seed = 5 })
      local _, read = t.model.load(dir, { dtype = 'f32', quantise = 'nf4', mesh = o.mesh,
         plan = plan })
      add(all, read.sharded, 'read.')
      return t.parallel.plan(model, o.mesh, plan):materialise()
   end
   local function steps(run, o)
      local optim = t.optim[o.optim or 'SGD'](run.params, { lr = 0.1 })
      local step = t.train.step.new { model = run.model:train(), parallel = run.sharded,
         comm = run.comm, optim = optim, clip = 0.5 }
      local state = { model = run.model, optim = optim, parallel = run.sharded, step = 1 }
      local accum, result = o.accum or 1, nil
      local n = #rows / run.data.size / accum
      if o.resume then
         t.train.state.restore(state, t.train.checkpoint.load(o.resume, { lazy = true }))
      end
      for i = o.resume and 2 or 1, 2 do
         local batches = {}
         for k = 1, accum do
            local first = run.data.rank * n * accum + (k - 1) * n
            local part = t.tensor({ unpack(rows, first + 1, first + n) }, { dtype = 'i64' })
            local labels = t.nn.loss.shift(part)
            batches[k] = { ids = part, labels = labels:masked_fill(labels:eq(1), -100) }
         end
         result = step:run(batches)
         if o.save and i == 1 then
            t.train.checkpoint.save(o.save, t.train.state.collect(state))
         end
      end
      return result
   end
   local function compare(all, r)
      for name, want in each_of(t.train.checkpoint.tensors(path)) do
         local d = (want:to 'f64' - all[name]:to 'f64'):abs():amax():item()
         if d > r.off or d ~= d then r.off, r.where = d, name end
         r.count = r.count + 1
      end
   end

   for i, o in ipairs(list) do
      local all = {}
      local run = begin(o, all)
      local result = steps(run, o)
      add(all, run.sharded, '')
      results[i] = { loss = result.loss, norm = result.grad_norm, off = 0, count = 0 }
      if o.oracle then io.safetensors_save(path, all, {}) end
      if rank == run.mesh.comm.size - 1 then compare(all, results[i]) end
   end
   return results
end

local function check(want, got, what, tol)
   assert.near(want.loss, got.loss, tol, what)
   assert.near(want.norm, got.norm, tol, what)
   assert.is_true(got.off <= tol, ('%s: %s off by %g'):format(what, tostring(got.where), got.off))
end

function steps_case.with_folder(what, fn)
   local opts = { dtype = 'f64', seed = 3 }
   tmp.with(function(dir)
      local model = type(what) == 'table' and tide.model[what.family](what.config, opts)
         or case.model(folders[what], { dtype = 'f64' })
      tide.model.save(model, dir .. '/m')
      fn(dir .. '/m')
   end)
end

-- Compares runs with the oracle. lists: by number of ranks, the options of train of each run, with
-- its name; base: options of all of them.
function steps_case.same(what, lists, base, tol)
   local name = type(what) == 'table' and what.name or what
   steps_case.with_folder(what, function(dir)
      base = base or {}
      local want = ranks.run(1, train, dir, { copy(base, { mesh = { dp_shard = 1 }, oracle = true,
         fsdp = { strategy = 'optim_grads_params' } }) }, ids)[1][1]
      for n, list in each(lists) do
         for i, o in ipairs(list) do list[i] = copy(base, o) end
         local all = ranks.run(n, train, dir, list, ids)
         for i, o in ipairs(list) do
            for r = 1, n do
               check(want, all[r][i], ('%s, %s, rank %d'):format(name, o.name, r - 1), tol or 1e-8)
            end
            assert.is_true(all[n][i].count > 0)
         end
      end
   end)
end

return steps_case
