-- Parameters of every kind under fully_shard: frozen, shared, unused, tensor-parallel; accumulation
-- without communication, errors, layer lists, a run that goes on, the cut among ranks.

local tide = require 'tide'
local ranks = require 'spec.support.ranks'

local head = [[
   local tide, world = require 'tide', require 'tide.comm'.world()
   local case = require 'spec.parallel.fsdp_case'
   local function calls(comm, fn)
      local before = comm:traffic().ncall
      fn()
      return comm:traffic().ncall - before
   end
]]

local function on(n, body, ...) return ranks.run(n, head .. body, ...) end

describe('a parameter', function()
   it('has the same initial value on every mesh', function()
      local case = require 'spec.parallel.fsdp_case'
      local want = case.numbers(case.model():materialise('cpu', 5):state_dict())
      for _, n in ipairs { 1, 2, 3, 5 } do
         for _, got in ipairs(on(n, [[
            return case.numbers(tide.parallel.fully_shard(case.model(), { seed = 5 })
               :full_state_dict())
         ]])) do
            assert.equal(0, case.distance(got, want))
         end
      end
   end)

   it('is whole in full_state_dict also where tensor parallelism cuts it', function()
      local case = require 'spec.parallel.fsdp_case'
      local want = case.numbers(case.model():materialise('cpu', 5):state_dict())
      for _, got in ipairs(on(4, [[
         local mesh, model = tide.parallel.mesh { dp_shard = 2, tp = 2 }, case.model()
         tide.parallel.tensor_parallel(model, mesh:axis 'tp', { sequence_parallel = true })
         return case.numbers(tide.parallel.fully_shard(model, mesh, { seed = 5 })
            :full_state_dict())
      ]])) do
         assert.equal(0, case.distance(got, want))
      end
   end)

   it('keeps the value of a model that has bytes', function()
      local case = require 'spec.parallel.fsdp_case'
      local want = case.numbers(case.model():materialise('cpu', 8):state_dict())
      assert.equal(0, case.distance(on(3, [[
         local model = case.model():materialise('cpu', 8)
         return case.numbers(tide.parallel.fully_shard(model, {}):full_state_dict())
      ]])[2], want))
   end)

   it('that is frozen is gathered, not reduced, and does not change', function()
      local r = on(2, [[
         local model = case.model()
         model.model.layers:at(2):requires_grad_(false)
         local sharded = tide.parallel.fully_shard(model, { seed = 3 })
         local optim = tide.optim.AdamW(sharded, { lr = 1e-2 })
         local run = tide.train.step.new { model = model, optim = optim, parallel = sharded }
         local name = 'model.layers.1.mlp.up_proj.weight'
         local other = 'model.layers.0.mlp.up_proj.weight'
         local before = sharded:full_state_dict()
         run:run { case.batch(1, world.rank, 2, 12) }
         local after, n = sharded:full_state_dict(), 0
         for _, h in ipairs(world:history()) do n = n + (h.op == 'reduce_scatter_v' and 1 or 0) end
         return { before[name]:equal(after[name]), before[other]:equal(after[other]), n }
      ]])
      assert.same({ true, false, 3 }, r[1])
   end)

   it('that is frozen after sharding stays as it is beside trained ones of its bucket', function()
      local r = on(2, [[
         local model = case.model()
         local sharded = tide.parallel.fully_shard(model, { seed = 3 })
         local optim = tide.optim.AdamW(sharded, { lr = 1e-2, weight_decay = 0.5 })
         local first, name = model.model.layers:at(1), 'model.layers.0.self_attn.q_proj.weight'
         local norm = 'model.layers.0.mlp.up_proj.weight'
         local function step(seed, evaluates)
            for i = 1, 2 do
               local b = case.batch(seed + i, world.rank, 2, 12)
               model:loss(b.ids, b.labels, { count = 84 }):backward()
               if evaluates then sharded:release() else sharded:finish() end
            end
            optim:step()
            optim:zero_grad()
         end
         step(1)
         first.self_attn.q_proj:requires_grad_(false)
         local before = sharded:full_state_dict()
         step(3)
         local after, ok, e = sharded:full_state_dict(), pcall(step, 5, true)
         local function same(key) return before[key]:equal(after[key]) end
         return { same(name), same(norm), ok, tostring(e) }
      ]])[2]
      assert.same({ true, false, false }, { r[1], r[2], r[3] })
      assert.matches('the gradients of this backward are not all reduced', r[4])
   end)

   it('that is tied is one, in the root unit', function()
      local body = [[
         local r = case.train { config = { tie_word_embeddings = true }, rows = 24, plain = %s }
         return { r.losses, r.weights, r.model.lm_head == nil }
      ]]
      local case = require 'spec.parallel.fsdp_case'
      local one, many = on(1, body:format 'true')[1], on(3, body:format 'false')
      for _, r in ipairs(many) do
         assert.is_true(case.distance(r[1], one[1]) < 1e-5)
         assert.is_true(case.distance(r[2], one[2]) < 1e-5)
      end
   end)

   it('that two units share is in the root unit and gets both gradients', function()
      local body = [[
         local a, b = tide.nn.Linear(4, 4, { bias = false, seed = 1 }),
            tide.nn.Linear(4, 4, { bias = false })
         b.weight = a.weight
         local model = tide.nn.Stack { a, b }
         local x = tide.arange(4):reshape(1, 4)
         local want
         model(x):sum():backward()
         want = a.weight.grad:clone()
         a.weight:zero_grad()
         local sharded = tide.parallel.fully_shard(model, {})
         model(x):sum():backward()
         sharded:finish()
         local far = 0
         for _, p in ipairs(sharded:named_parameters()) do
            local g = want:narrow(1, p.parts[1].offset[1] + 1, p.size[1]) * world.size
            far = math.max(far, (g - p.param.grad):abs():amax():item())
         end
         return { #sharded.units, #sharded.entries, far }
      ]]
      for _, r in ipairs(on(2, body)) do assert.same({ 0, 1, 0 }, r) end
   end)

   it('that some ranks do not use takes part with zeros', function()
      local r = on(3, [[
         local Module, class = tide.nn.Module, require 'tide.class'
         local Pick = class('Pick', Module)
         function Pick:init()
            Module.init(self)
            self:child('a', tide.nn.Linear(2, 2, { bias = false, init = false }))
            self:child('b', tide.nn.Linear(2, 2, { bias = false, init = false }))
            self:ready { init = false }
         end
         function Pick:forward(x) return world.rank == 1 and self.b(self.a(x)) or self.a(x) end
         local model = tide.nn.Stack { Pick(), Pick() }
         model:init_weights(1)
         local sharded = tide.parallel.fully_shard(model, {})
         model(tide.ones { 1, 2 }):sum():backward()
         sharded:finish()
         local sum = 0
         for _, p in ipairs(sharded:named_parameters()) do
            if p.name == '1.b.weight' then sum = sum + p.param.grad:abs():sum():item() end
         end
         return sum
      ]])
      assert.is_true(r[1] + r[2] + r[3] > 0)
   end)

   it('that a layer uses twice is reduced once, after both', function()
      local body = [[
         local lin = tide.nn.Linear(3, 3, { bias = false, seed = 2 })
         local model = tide.nn.Stack { lin, tide.nn.Linear(3, 3, { bias = false, seed = 3 }) }
         function model:forward(x) return self['1'](self['0'](self['0'](x))) end
         local x = tide.ones { 1, 3 }:requires_grad_(true)
         model(x):sum():backward()
         local want = lin.weight.grad:clone()
         local sharded = tide.parallel.fully_shard(model, {})
         model(x):sum():backward()
         sharded:finish()
         local far = 0
         for _, p in ipairs(sharded:named_parameters()) do
            if p.name == '0.weight' then
               local g = want:narrow(1, p.parts[1].offset[1] + 1, p.size[1]) * 2
               far = math.max(far, (g - p.param.grad):abs():amax():item())
            end
         end
         return far
      ]]
      for _, far in ipairs(on(2, body)) do assert.is_true(far < 1e-6) end
   end)

   it('cut among tensor-parallel ranks counts once and is saved whole', function()
      local tmp = require 'spec.support.tmp'
      tmp.with(function(dir)
         local body = [[
            local _, _, dir = ...
            local mesh = tide.parallel.mesh { dp_shard = 2, tp = 2 }
            local tp = mesh:axis 'tp'
            local lin = tide.nn.Linear(6, 4, { init = false, device = 'null' })
            local layout = require 'tide.parallel.layout'
            -- a fused projection: rows of both halves on each rank
            layout.set(lin, 'weight', { axis = tp, placement = tide.parallel.Shard(1),
               shape = { 8, 6 }, blocks = 2 })
            local cols = tide.nn.Linear(3, 5, { init = false, device = 'null', bias = false })
            layout.set(cols, 'weight', { axis = tp, placement = tide.parallel.Shard(2),
               shape = { 5, 6 }, counts = { 3, 3 } })
            local model = tide.nn.Stack { lin, cols }
            local sharded = tide.parallel.fully_shard(model, mesh, { seed = 4 })
            for _, p in ipairs(sharded:named_parameters()) do
               p.param:set_grad(tide.ones(p.param.shape))
            end
            local optim = tide.optim.AdamW(sharded, { lr = 1 })
            tide.train.checkpoint.save(dir, tide.train.state.collect { model = model,
               optim = optim, parallel = sharded, step = 1 })
            for _, p in ipairs(sharded:named_parameters()) do p.param:zero_() end
            tide.train.state.restore({ model = model, optim = optim, parallel = sharded },
               tide.train.checkpoint.load(dir, { lazy = true }))
            local again = dir .. '/again'
            tide.train.checkpoint.save(again, tide.train.state.collect { model = model,
               optim = optim, parallel = sharded, step = 1 })
            return { tide.parallel.clip.norm(sharded):item() ^ 2,
               tide.parallel.clip.norm(sharded, math.huge):item(),
               tide.parallel.clip.norm(sharded, 1):item() }
         ]]
         for _, r in ipairs(on(4, body, dir)) do
            assert.near(8 * 6 + 4 + 5 * 6, r[1], 1e-3)
            assert.equal(1, r[2])
            assert.near(8 * 6 + 4 + 5 * 6, r[3], 1e-3)
         end
         local saved = tide.train.checkpoint.load(dir)
         local again = tide.train.checkpoint.load(dir .. '/again')
         local weight = tide.nn.weight
         for name, shape in require 'tide.util.each' { ['0.weight'] = { 8, 6 },
            ['1.weight'] = { 5, 6 } } do
            local t = tide.empty(shape)
            weight.fill(t, { kind = 'kaiming', fan_in = name == '0.weight' and 6 or 3,
               gain = 1 / math.sqrt(3) }, { seed = 4, path = name })
            assert.is_true(saved.model[name]:equal(t), name)
            assert.is_true(again.model[name]:equal(t), name)
         end
      end)
   end)
end)

describe('accumulation', function()
   it('communicates no gradient until asked', function()
      local r = on(2, [[
         local model = case.model()
         local sharded = tide.parallel.fully_shard(model, { strategy = 'optim_grads' })
         local function pass(s)
            local b = case.batch(s, world.rank, 2, 12)
            model:loss(b.ids, b.labels, { count = 1 }):backward()
            sharded:finish()
         end
         pass(0)
         sharded:zero_grad()
         local none = calls(world, function() sharded:no_sync(pass, 1) end)
         local all = calls(world, function() pass(2) end)
         local both = sharded:named_parameters()[1].param.grad:clone()
         sharded:zero_grad()
         pass(1)
         pass(2)
         local apart = sharded:named_parameters()[1].param.grad
         return { none, all, (both - apart):abs():amax():item() < 1e-5 }
      ]])
      assert.same({ 0, 4, true }, r[1])
   end)
end)

describe('an error', function()
   it('in forward or backward leaves a model that trains on', function()
      local r = on(2, [[
         local model = case.model()
         local sharded = tide.parallel.fully_shard(model, { seed = 3 })
         local b = case.batch(1, world.rank, 2, 12)
         local function pass()
            local loss = model:loss(b.ids, b.labels, { count = 84 })
            loss:backward()
            sharded:finish()
            return loss:item()
         end
         local before = pass()
         sharded:zero_grad()
         for _, kind in ipairs { 'hook_pre', 'hook_backward_pre' } do
            local h = model.model.layers:at(2)[kind](model.model.layers:at(2), function()
               error('stumbled', 0)
            end)
            local ok, e = pcall(pass)
            h:remove()
            if ok or not tostring(e):find 'stumbled' then return 'no error' end
            sharded:reset()
         end
         local grads = 0
         for _, p in ipairs(sharded:named_parameters()) do
            if p.param.grad ~= nil then grads = grads + 1 end
         end
         return { before == pass(), grads }
      ]])
      assert.same({ { true, 0 }, { true, 0 } }, r)
   end)

   it('is an old graph after an update, not a wrong gradient', function()
      local r = on(2, [[
         local model = case.model()
         local sharded = tide.parallel.fully_shard(model, {})
         local optim = tide.optim.AdamW(sharded, { lr = 1e-2 })
         local b = case.batch(1, world.rank, 2, 12)
         local old = model:loss(b.ids, b.labels, { count = 84 })
         model:loss(b.ids, b.labels, { count = 84 }):backward()
         sharded:finish()
         optim:step()
         local ok, e = pcall(old.backward, old)
         return { ok, tostring(e) }
      ]])[1]
      assert.is_false(r[1])
      assert.matches('changed in place after it was used', r[2], 1, true)
   end)
end)

describe('layer lists', function()
   local function flags(module)
      local out = {}
      for i, u in ipairs(tide.parallel.layer_units(module)) do out[i] = u.reshard_after_forward end
      return out
   end
   local nn = tide.nn
   local function list(n)
      local items = {}
      for i = 1, n do items[i] = nn.Linear(2, 2) end
      return nn.Stack(items)
   end

   it('become units; the last keeps its parameters after forward', function()
      assert.same({ true, true, false }, flags(list(3)))
      assert.same({ false }, flags(list(1)))
      assert.same({}, flags(list(0)))
      assert.same({}, flags(nn.Linear(2, 2)))
      local model = nn.Module()
      model:child('a', nn.Linear(2, 2))
      model:child('b', nn.Linear(2, 2))
      local inner = nn.Module()
      inner:child('list', list(1))
      model:child('c', inner)
      assert.same({ false }, flags(model))
      assert.equal('c.list.0', tide.parallel.layer_units(model)[1].path)
      model:child('d', list(2))
      assert.same({ false, true, false }, flags(model))
      -- a list within a list is not reached
      assert.same({ false }, flags(nn.Stack { list(3) }))
   end)

   it('are sharded with the policies they are given', function()
      local r = on(2, [[
         local mesh = tide.parallel.mesh { dp = 2 }
         local model = case.model()
         local sharded = tide.parallel.apply_fsdp_sharding_recursively(model, mesh,
            { param_dtype = 'bf16' }, { cpu = true })
         local out = {}
         for i, u in ipairs(sharded.units) do out[i] = u.reshard_after_forward end
         return { out, sharded.opts.mp.param_dtype, sharded.opts.cpu_offload,
            #sharded.root.entries }
      ]])[1]
      assert.same({ { true, true, false }, 'bf16', true, 3 }, r)
   end)
end)

describe('a run', function()
   it('of train.loop with a sharded model goes on where it stopped, on fewer ranks', function()
      local tmp = require 'spec.support.tmp'
      tmp.with(function(dir)
         local body = [[
            local _, _, dir, steps, resume, plain = ...
            local model = case.model()
            local sharded
            if plain then model:materialise('cpu', 1)
            else sharded = tide.parallel.fully_shard(model, { seed = 1 }) end
            local list = {}
            for i = 1, 600 do list[i] = string.char((i * 7 + math.floor(i / 5)) % 37) end
            local train = tide.data.tokens.memory(table.concat(list), 1)
            local comm = sharded and sharded.data_comm or world
            local r = tide.train.loop {
               model = model, parallel = sharded, train = train, val = train, steps = steps,
               val_every = 2, val_windows = 7, accum = 2, clip = 1,
               optim = tide.optim.AdamW(sharded or model, { lr = 1e-3 }),
               sampler = tide.data.sampler.new { count = train.count, seq = 8, batch = 8,
                  rank = comm.rank, size = comm.size },
               out = dir, resume = resume, progress = { update = function() end,
                  finish = function() end, note = function() end } }
            return { r.loss, r.val_loss }
         ]]
         local one = on(1, body, dir .. '/one', 4, nil, true)[1]
         on(4, body, dir .. '/many', 2, nil, false)
         local rest = on(2, body, dir .. '/many', 4, dir .. '/many', false)[1]
         assert.near(one[1], rest[1], 1e-4)
         assert.near(one[2], rest[2], 1e-4)
      end)
   end)
end)

describe('the end of communication', function()
   it('keeps an interrupt that came before', function()
      local r = on(2, [[
         local ctx, out = tide.default(), {}
         ctx:interrupt()
         tide.parallel.destroy_dist_connection()
         out[1] = ctx:interrupted()
         tide.parallel.destroy_dist_connection()
         out[2] = ctx:interrupted()
         return out
      ]])
      assert.same({ { true, false }, { true, false } }, r)
   end)
end)

describe('a cut among ranks', function()
   it('falls on the row whose start is nearest to an equal share', function()
      local layout = require 'tide.parallel.fsdp.layout'
      math.randomseed(4)
      for _ = 1, 200 do
         local shapes, starts, total = {}, { 0 }, 0
         for i = 1, math.random(4) do
            shapes[i] = { math.random(7), math.random(5) }
            for _ = 1, shapes[i][1] do
               total = total + shapes[i][2]
               starts[#starts + 1] = total
            end
         end
         local size = math.random(6)
         local cuts = layout.new(shapes, size).cuts
         for r = 0, size do
            local share, least = total * r / size, math.huge
            for _, at in ipairs(starts) do least = math.min(least, math.abs(at - share)) end
            assert.near(least, math.abs(cuts[r + 1] - share), 1e-9)
         end
      end
   end)
end)
