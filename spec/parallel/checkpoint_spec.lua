-- Checkpoints of sharded models: saved on one mesh, gone on with on another, to the last bit.

local tide = require 'tide'
local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'
local tmp = require 'spec.support.tmp'
local wide = require 'spec.support.wide'

local checkpoint = tide.train.checkpoint

-- On a rank: some steps (none of its own if `from` names a checkpoint), saved in `to`.
local function save(_, n, to, from, opts)
   local tide_ = require 'tide'
   local case = require 'spec.parallel.fsdp_case'
   local cp, state = tide_.train.checkpoint, tide_.train.state
   opts = opts or {}
   local fsdp = opts.fsdp or {}
   if opts.mesh then fsdp.mesh = tide_.parallel.mesh(opts.mesh) end
   local read
   local r = case.train { fsdp = fsdp, plain = opts.plain, dtype = opts.dtype, rows = 24,
      steps = opts.steps or 0, before = function(run)
         if not from then return end
         local saved = cp.load(from, { lazy = run.sharded ~= nil })
         state.restore({ model = run.model, optim = run.optim, parallel = run.sharded }, saved)
         read = saved.store and saved.store.nbyte
      end }
   if to then
      cp.save(to, state.collect { model = r.model, optim = r.optim, parallel = r.sharded,
         step = opts.step or 1, recipe = { ranks = n } })
   end
   return { losses = r.losses, weights = r.weights, read = read }
end

local function same_tensors(a, b)
   for name, t in each(a) do
      assert.is_not_nil(b[name], name)
      assert.is_true(t:equal(b[name]), name)
   end
   for name in each(b) do assert.is_not_nil(a[name], name) end
end

local function same_checkpoints(a, b)
   local x, y = checkpoint.load(a), checkpoint.load(b)
   same_tensors(x.model, y.model)
   same_tensors(x.optim, y.optim)
   assert.same(x.plain.optim, y.plain.optim)
   return x
end

local function count(t)
   local n = 0
   for _ in each(t) do n = n + 1 end
   return n
end

describe('a checkpoint of a mesh', function()
   it('goes on with any number of ranks', function()
      tmp.with(function(dir)
         local moves = wide and { { 1, 2, 8 }, { 2, 1, 3 }, { 3, 3, 4 }, { 4, 1, 8 }, { 8, 3, 4 } }
            or { { 1, 8 }, { 3, 4 }, { 8, 3 } }
         for _, c in ipairs(moves) do
            local n, from = c[1], dir .. '/from-' .. c[1]
            ranks.run(n, save, from, nil, { steps = 2 })
            for _, m in ipairs { unpack(c, 2) } do
               local to = ('%s/%d-to-%d'):format(dir, n, m)
               ranks.run(m, save, to, from)
               local x = same_checkpoints(from, to)
               assert.is_true(count(x.optim) >= 2 * count(x.model))
            end
         end
      end)
   end)

   it('changes the strategy, and passes through one rank without sharding', function()
      tmp.with(function(dir)
         ranks.run(3, save, dir .. '/a', nil, { steps = 2, fsdp = { strategy = 'optim' } })
         ranks.run(1, save, dir .. '/b', dir .. '/a', { plain = true })
         assert.is_true(tide.util.fs.exists(dir .. '/b/step-00000001/model.safetensors'))
         same_checkpoints(dir .. '/a', dir .. '/b')
         ranks.run(4, save, dir .. '/c', dir .. '/b', { mesh = { dp_replicate = 2, dp_shard = 2 } })
         same_checkpoints(dir .. '/a', dir .. '/c')
         ranks.run(2, save, dir .. '/d', dir .. '/c', { fsdp = { strategy = 'no_shard' } })
         same_checkpoints(dir .. '/a', dir .. '/d')
      end)
   end)

   it('of a bf16 model keeps its exact weights, sharded or whole', function()
      tmp.with(function(dir)
         local half = { dtype = 'bf16', fsdp = { preserve_fp32_weights = false } }
         ranks.run(2, save, dir .. '/f32', nil, { steps = 2, dtype = 'bf16' })
         ranks.run(1, save, dir .. '/whole', dir .. '/f32', { dtype = 'bf16', plain = true })
         ranks.run(3, save, dir .. '/again', dir .. '/whole', { dtype = 'bf16' })
         local x = same_checkpoints(dir .. '/f32', dir .. '/again')
         ranks.run(2, save, dir .. '/half', dir .. '/f32', half)
         same_checkpoints(dir .. '/whole', dir .. '/half')
         ranks.run(3, save, dir .. '/back', dir .. '/half', { dtype = 'f32', plain = true })
         same_checkpoints(dir .. '/f32', dir .. '/back')
         local whole = checkpoint.load(dir .. '/whole')
         for name, t in each(x.model) do
            assert.equal('f32', t.dtype)
            assert.is_true(t:equal(whole.optim[name .. '.master']), name)
            assert.is_true(t:to('bf16'):equal(whole.model[name]), name)
            assert.is_false(t:to('bf16'):to('f32'):equal(t), name)
         end
      end)
   end)

   it('goes on as the run would have', function()
      tmp.with(function(dir)
         local whole = ranks.run(2, save, nil, nil, { steps = 3 })[1]
         ranks.run(2, save, dir, nil, { steps = 3, step = 3 })
         -- the same three steps again: losses differ from the first time, alike on 2 and 3 ranks
         local on2 = ranks.run(2, save, nil, dir, { steps = 3 })[1]
         local on3 = ranks.run(3, save, nil, dir, { steps = 3 })[1]
         local case = require 'spec.parallel.fsdp_case'
         assert.is_true(on2.losses[1] < whole.losses[1])
         assert.is_true(case.distance(on3.losses, on2.losses) < 1e-6)
         assert.is_true(case.distance(on3.weights, on2.weights) < 1e-5)
      end)
   end)

   it('is read in part: each rank its own', function()
      tmp.with(function(dir)
         ranks.run(4, save, dir, nil, { steps = 1 })
         local saved, nbyte = checkpoint.load(dir), 0
         for _, list in ipairs { saved.model, saved.optim } do
            for _, t in each(list) do nbyte = nbyte + t:numel() * 4 end
         end
         local sum = 0
         for _, r in ipairs(ranks.run(3, save, nil, dir)) do
            assert.is_true(r.read < nbyte * 0.4)
            sum = sum + r.read
         end
         assert.equal(nbyte, sum)
      end)
   end)

   it('holds each element once', function()
      tmp.with(function(dir)
         ranks.run(4, save, dir, nil, { steps = 1, mesh = { dp_replicate = 2, dp_shard = 2 } })
         local folder = dir .. '/step-00000001'
         local files = {}
         for _, name in ipairs(tide.util.fs.list('spec', folder)) do
            if name:match '^model' then files[#files + 1] = name end
         end
         assert.same({ 'model-00000-of-00004.safetensors', 'model-00001-of-00004.safetensors' },
            files)
      end)
   end)

   -- Ranks of the tensor-parallel axis then hold what is not cut (norms) at other rows.
   it('is whole where parts that are cut differ in size', function()
      local function saved(_, _, dir, axes)
         local t = require 'tide'
         local run = t.parallel.plan({ family = 'llama', config = { vocab_size = 7, hidden_size = 4,
            num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 11 } }, axes)
            :materialise { seed = 3 }
         local optim = t.optim.AdamW(run.params, { lr = 0.01 })
         local ids = t.tensor({ { 1, 2, 3, 4 } }, { dtype = 'i64' })
         t.train.step.new { model = run.model, optim = optim, parallel = run.sharded,
            comm = run.comm }:run { { ids = ids, labels = ids } }
         t.train.checkpoint.save(dir, t.train.state.collect { model = run.model, optim = optim,
            parallel = run.sharded, step = 1 })
      end
      tmp.with(function(dir)
         ranks.run(1, saved, dir .. '/one', { dp_shard = 1 })
         local one = checkpoint.load(dir .. '/one')
         for _, n in ipairs { 2, 5 } do
            local out = dir .. '/' .. n
            ranks.run(2 * n, saved, out, { dp_shard = n, tp = 2 })
            local got = checkpoint.load(out)
            for _, kind in ipairs { 'model', 'optim' } do
               for name, t in each(one[kind]) do
                  assert.is_true((t - got[kind][name]):abs():amax():item() < 1e-3, name)
               end
            end
         end
      end)
   end)

   -- A tensor-parallel rank has several boxes of in_proj; a shard of it, rows of some of them.
   it('is whole where a shard lies in some of the boxes of a parameter', function()
      local function saved(_, _, dir, axes)
         local t = require 'tide'
         local run = t.parallel.plan({ family = 'mamba2', config = { vocab_size = 7,
            hidden_size = 8, num_hidden_layers = 1, head_dim = 4, state_size = 3, n_groups = 2 } },
            axes):materialise { seed = 3 }
         t.train.checkpoint.save(dir, t.train.state.collect { model = run.model,
            optim = t.optim.AdamW(run.params, {}), parallel = run.sharded, step = 1 })
      end
      tmp.with(function(dir)
         ranks.run(1, saved, dir .. '/one', { dp_shard = 1 })
         local one = checkpoint.load(dir .. '/one')
         for n = 2, 3 do
            ranks.run(2 * n, saved, dir .. '/' .. n, { dp_shard = n, tp = 2 })
            same_tensors(one.model, checkpoint.load(dir .. '/' .. n).model)
         end
      end)
   end)

   it('becomes one file of weights', function()
      tmp.with(function(dir)
         ranks.run(3, save, dir .. '/run', nil, { steps = 1 })
         checkpoint.consolidate(dir .. '/run', dir .. '/hf')
         local file = checkpoint.tensors(dir .. '/hf/model.safetensors')
         same_tensors(checkpoint.load(dir .. '/run').model, file)
         local model = tide.model.llama(tide.util.fs.read_json('spec', dir .. '/hf/config.json'),
            { seed = 9 })
         model:load_state_dict(file)
         checkpoint.consolidate(dir .. '/run', dir .. '/half', { dtype = 'bf16' })
         local _, t = next(checkpoint.tensors(dir .. '/half/model.safetensors'))
         assert.equal('bf16', t.dtype)
      end)
   end)
end)

describe('a bad checkpoint of a mesh', function()
   -- The error of restoring `from` into a model with other config on 2 ranks.
   local function refused(from, config)
      local result = ranks.try(2, function(_, _, where, change)
         local t = require 'tide'
         local case = require 'spec.parallel.fsdp_case'
         local model = case.model { config = change }
         local sharded = t.parallel.fully_shard(model, { seed = 1 })
         local optim = t.optim.AdamW(sharded, { lr = 1 })
         local before = case.numbers(sharded:full_state_dict())
         local ok, problem = pcall(function()
            t.train.state.restore({ model = model, optim = optim, parallel = sharded },
               t.train.checkpoint.load(where, { lazy = true }))
         end)
         local kept = case.distance(case.numbers(sharded:full_state_dict()), before) == 0
         return ok, tostring(problem), kept
      end, from, config)
      local row = result[1]
      assert.equal('OK', row.status, row.message)
      assert.is_false(row.values[1])
      return row.values[2], row.values[3]
   end

   it('of another model changes nothing', function()
      tmp.with(function(dir)
         ranks.run(2, save, dir, nil, { steps = 1 })
         local why, kept = refused(dir, { num_hidden_layers = 2 })
         assert.matches('another model: unexpected: .*model.layers.2.mlp.down_proj.weight', why)
         assert.is_true(kept)
         why = refused(dir, { intermediate_size = 28 })
         assert.matches('(model [28, 20], state [27, 20])', why, 1, true)
         why = refused(dir, { num_hidden_layers = 4 })
         assert.matches('another model: missing: .*model.layers.3.mlp.down_proj.weight', why)
      end)
   end)

   it('is told by its files', function()
      tmp.with(function(dir)
         ranks.run(2, save, dir, nil, { steps = 1 })
         local path = dir .. '/step-00000001/optim-00001-of-00002.safetensors'
         local f = assert(io.open(path, 'rb'))
         local text = f:read '*a'
         f:close()
         local function write(s)
            f = assert(io.open(path, 'wb'))
            f:write(s)
            f:close()
         end
         write(text:sub(1, -2) .. string.char((text:byte(-1) + 1) % 256))
         local why, kept = refused(dir)
         assert.matches('rank 1 failed', why, 1, true)
         assert.matches('differs from its hash', why, 1, true)
         assert.is_true(kept)
         write(text:sub(1, -2))
         assert.matches('the file is damaged', refused(dir), 1, true)
      end)
   end)

   it('of a save that failed on one rank leaves the earlier one, and all ranks know', function()
      tmp.with(function(dir)
         ranks.run(3, save, dir, nil, { steps = 1, step = 1 })
         local rows = ranks.try(3, function(rank, _, to)
            local t, fs = require 'tide', require 'tide.util.fs'
            local case = require 'spec.parallel.fsdp_case'
            local model = case.model()
            local sharded = t.parallel.fully_shard(model, {})
            local optim = t.optim.AdamW(sharded, { lr = 1 })
            local real = fs.io()
            if rank == 1 then
               fs.use(setmetatable({ safetensors_save = function() error('disk is full', 0) end },
                  { __index = real }))
            end
            local ok, e = pcall(t.train.checkpoint.save, to, t.train.state.collect {
               model = model, optim = optim, parallel = sharded, step = 2 })
            fs.use(real)
            return ok, tostring(e)
         end, dir)
         for i, row in ipairs(rows) do
            assert.equal('OK', row.status, row.message)
            assert.is_false(row.values[1])
            assert.matches('disk is full', row.values[2], 1, true)
            if i ~= 2 then assert.matches('rank 1 failed', row.values[2], 1, true) end
         end
         assert.equal(1, checkpoint.load(dir).plain.step)
         assert.same({ 'LATEST', 'step-00000001' }, tide.util.fs.list('spec', dir))
      end)
   end)
end)

describe('a save in the background', function()
   -- Saves in the background, trains on meanwhile, and saves the state of before in the plain way.
   local function both(_, _, dir, plain)
      local t = require 'tide'
      local case = require 'spec.parallel.fsdp_case'
      local r = case.train { steps = 1, plain = plain }
      local function now()
         return t.train.state.collect { model = r.model, optim = r.optim, parallel = r.sharded,
            step = 1 }
      end
      t.train.checkpoint.save(dir .. '/plain', now())
      local pending = t.train.checkpoint.save_async(dir .. '/async', now())
      local hidden = not t.util.fs.exists(dir .. '/async/LATEST')
      local data = r.sharded and r.sharded.data_comm or require('tide.comm').world()
      r.run:run { case.batch(7, data.rank, data.size, 12) }
      while not pending:done() do end
      local folder = pending:wait()
      return { hidden, folder == pending:wait() and folder }
   end

   it('keeps what was there when it began', function()
      tmp.with(function(dir)
         for _, n in ipairs { 1, 3 } do
            local at = dir .. '/' .. n
            local r = ranks.run(n, both, at, n == 1)
            assert.same({ true, at .. '/async/step-00000001' }, r[1])
            same_checkpoints(at .. '/plain', at .. '/async')
         end
      end)
   end)

   it('that fails says so when it is waited for, and leaves nothing', function()
      tmp.with(function(dir)
         local rows = ranks.try(2, function(rank, _, to)
            local t, fs = require 'tide', require 'tide.util.fs'
            local case = require 'spec.parallel.fsdp_case'
            local model = case.model()
            local sharded = t.parallel.fully_shard(model, {})
            local optim = t.optim.AdamW(sharded, { lr = 1 })
            local real = fs.io()
            if rank == 1 then
               fs.use(setmetatable({ safetensors_save_async = function(path, ...)
                  return real.safetensors_save_async(path .. '/no/such/folder', ...)
               end }, { __index = real }))
            end
            local pending = t.train.checkpoint.save_async(to, t.train.state.collect {
               model = model, optim = optim, parallel = sharded, step = 2 })
            fs.use(real)
            local ok, e = pcall(pending.wait, pending)
            return ok, tostring(e)
         end, dir)
         for _, row in ipairs(rows) do
            assert.equal('OK', row.status, row.message)
            assert.is_false(row.values[1])
            assert.matches('no/such/folder', row.values[2], 1, true)
         end
         assert.same({}, tide.util.fs.list('spec', dir))
      end)
   end)

   it('is what train.loop does when asked', function()
      tmp.with(function(dir)
         local list = {}
         for i = 1, 300 do list[i] = string.char(i % 30) end
         local train = tide.data.tokens.memory(table.concat(list), 1)
         local function run(out, async)
            local case = require 'spec.parallel.fsdp_case'
            local model = case.model():materialise('cpu', 1)
            local quiet = function() end
            return tide.train.loop { model = model, train = train, steps = 3, save_every = 1,
               optim = tide.optim.AdamW(model, { lr = 1e-3 }), out = out, async_save = async,
               sampler = tide.data.sampler.new { count = train.count, seq = 8, batch = 4 },
               progress = { update = quiet, finish = quiet, note = quiet } }
         end
         local a, b = run(dir .. '/a', false), run(dir .. '/b', true)
         assert.equal(dir .. '/b/step-00000003', b.folder)
         assert.equal(a.loss, b.loss)
         for step = 1, 3 do
            local name = '/step-0000000' .. step
            same_checkpoints(dir .. '/a' .. name, dir .. '/b' .. name)
            local file = tide.util.fs.open_tensors('spec', dir .. '/b' .. name
               .. '/model.safetensors')
            assert.same({ format = 'pt' }, file.metadata)        -- transformers asks for it
            file:close()
         end
      end)
   end)
end)

describe('a save', function()
   it('is refused without a step, and while one of the same step is under way', function()
      tmp.with(function(dir)
         local rows = ranks.try(2, function(_, _, to)
            local t = require 'tide'
            local case = require 'spec.parallel.fsdp_case'
            local model = case.model()
            local sharded = t.parallel.fully_shard(model, {})
            local function collect(step)
               return t.train.state.collect { model = model, parallel = sharded, step = step,
                  optim = t.optim.AdamW(sharded) }
            end
            local cp, out = t.train.checkpoint, {}
            local function note(fn, ...) out[#out + 1] = tostring(select(2, pcall(fn, ...))) end
            note(cp.save, to, collect(nil))
            note(cp.save_async, to, collect(-1))
            local pending = cp.save_async(to, collect(4))
            note(cp.save_async, to, collect(4))
            out[#out + 1] = pending:wait()
            return out
         end, dir)
         for _, row in ipairs(rows) do
            assert.equal('OK', row.status, row.message)
            local out = row.values[1]
            assert.matches("'saved.plain.step'", out[1], 1, true)
            assert.matches("'saved.plain.step'", out[2], 1, true)
            assert.matches('step 4 in ' .. dir .. ' is under way', out[3], 1, true)
            assert.equal(dir .. '/step-00000004', out[4])
         end
         assert.is_true(checkpoint.load(dir).plain.step == 4)
         local ok, e = pcall(checkpoint.consolidate, dir, dir .. '/c', { dtype = 'i32' })
         assert.is_false(ok)
         assert.matches("'dtype'", tostring(e), 1, true)
      end)
   end)
end)
