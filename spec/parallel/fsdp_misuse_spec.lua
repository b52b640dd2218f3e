-- A sharded model in careless hands: what would drift apart, lose a gradient or leave weights as
-- they were without a word is an error, or right.

local ranks = require 'spec.support.ranks'

local head = [[
   local tide, world = require 'tide', require 'tide.comm'.world()
   local case = require 'spec.parallel.fsdp_case'
   local rank, n = world.rank, world.size
   local function make(opts)
      local model = case.model():materialise('cpu', 1)
      return model, tide.parallel.fully_shard(model, opts)
   end
   local function backward(model, seed)
      local b = case.batch(seed, rank, n, 12)
      model:loss(b.ids, b.labels, { count = 84 }):backward()
   end
   local function grads(sharded)
      local list = {}
      for _, p in ipairs(sharded:named_parameters()) do
         local g = p.param.grad
         for _, v in ipairs(g:reshape { g:numel() }:tolist()) do list[#list + 1] = v end
      end
      return list
   end
]]

local function on(n, body, ...) return ranks.run(n, head .. body, ...) end

-- Both ranks end with an error; one of them at least says `words`.
local function fails(words, body, n) ranks.fail(n or 2, head .. body, words) end

describe('sharding', function()
   it('is refused where a part or the whole is sharded already', function()
      fails("the module 'model.layers.0' is sharded already", [[
         local model = case.model():materialise('cpu', 1)
         tide.parallel.fully_shard(model.model.layers:at(1))
         tide.parallel.fully_shard(model)
      ]])
      fails('the model is sharded already', [[
         local model = make()
         tide.parallel.fully_shard(model.model.layers:at(1))
      ]])
   end)

   it('is refused where ranks differ in options, parameters, values or seed', function()
      fails('rank 1 has other options than rank 0',
         "make { strategy = rank == 0 and 'optim' or 'optim_grads' }")
      fails('rank 1 has other configurations than rank 0', [[
         tide.parallel.fully_shard(case.model { config = { hidden_size = 20 + 4 * rank } })
      ]])
      -- equal shapes that compute different things
      fails('rank 1 has other configurations than rank 0', [[
         tide.parallel.fully_shard(case.model { config = { rope_theta = 1000 + rank } })
      ]])
      fails('rank 1 has other modules than rank 0', [[
         local stack = tide.nn.Stack { tide.nn.Attention { dim = 8, heads = 2 + 2 * rank,
            device = 'null' } }
         tide.parallel.fully_shard(stack)
      ]])
      fails('other configurations than rank 0', [[
         local mesh = tide.parallel.mesh { dp_shard = 2, tp = 2 }
         local model = case.model { config = { rope_theta = 1000 + mesh:axis('dp_shard').rank } }
         tide.parallel.tensor_parallel(model, mesh:axis 'tp')
         tide.parallel.fully_shard(model, mesh)
      ]], 4)
      fails('rank 1 has other parameters than rank 0', [[
         local model = case.model { config = { vocab_size = 38, intermediate_size = 28 } }
         tide.parallel.tensor_parallel(model, tide.parallel.mesh({ tp = 2 }):axis 'tp')
         tide.parallel.fully_shard(model)       -- forgets the mesh: tp is not a data axis
      ]])
      fails('rank 1 has other values than rank 0', [[
         tide.parallel.fully_shard(case.model():materialise('cpu', rank), { strategy = 'no_shard' })
      ]])
      fails('rank 1 has other values than rank 0', [[
         local model = case.model():materialise('cpu', 1)
         tide.no_grad(function()
            local w = model:parameters()[1]       -- one number in the middle
            w:reshape(-1):narrow(1, math.floor(w:numel() / 2), 1):fill_(rank)
         end)
         tide.parallel.fully_shard(model, { strategy = 'no_shard' })
      ]])
      fails('rank 1 has other units than rank 0',
         "make { units = { rank == 0 and 'Attention' or 'RMSNorm' } }")
      fails('rank 1 has other devices than rank 0', [[
         tide.parallel.fully_shard(case.model(), { device = rank == 0 and 'cpu' or 'null' })
      ]])
      fails('rank 1 has other seeds than rank 0',
         'tide.parallel.fully_shard(case.model(), { seed = rank })')
      fails('other seeds than rank 0', [[
         local mesh = tide.parallel.mesh { dp_shard = 2, tp = 2 }
         local model = case.model()
         tide.parallel.tensor_parallel(model, mesh:axis 'tp')
         tide.parallel.fully_shard(model, mesh, { seed = mesh:axis('tp').rank })
      ]], 4)
   end)

   it('checks the types of comm, sync_each_backward and what no_sync calls', function()
      fails("argument 'ranks': expected a mesh, an axis of one", 'make { comm = 3 }', 1)
      fails("argument 'sync_each_backward'", "make { sync_each_backward = 'yes' }", 1)
      fails("argument 'fn'", 'local _, s = make() s:no_sync(3)', 1)
   end)
end)

describe('gradients', function()
   it('of two backward passes before finish are all there', function()
      for _, strategy in ipairs { 'optim_grads_params', 'optim', 'no_shard' } do
         local r = on(2, [[
            local strategy = select(3, ...)
            local function run(between)
               local model, sharded = make { strategy = strategy }
               backward(model, 1)
               if between then sharded:finish() end
               backward(model, 2)
               sharded:finish()
               return grads(sharded)
            end
            return case.distance(run(false), run(true))
         ]], strategy)
         assert.is_true(r[1] < 1e-6, strategy .. ' ' .. r[1])
         assert.is_true(r[2] < 1e-6, strategy .. ' ' .. r[2])
      end
   end)
end)

describe('whole parameters, or an evaluation, between forward and backward', function()
   it('leave the gradients as they are', function()
      local r = on(2, [[
         local function run(between)
            local model, sharded = make()
            local b = case.batch(1, rank, n, 12)
            local loss = model:loss(b.ids, b.labels, { count = 84 })
            between(model, sharded)
            loss:backward()
            sharded:finish()
            return grads(sharded)
         end
         local want = run(function() end)
         return { case.distance(run(function(_, s) s:full_state_dict() end), want),
            case.distance(run(function(model, s)
               tide.no_grad(function() model(case.batch(2, rank, n, 12).ids) end)
               s:release()
            end), want) }
      ]])
      assert.same({ { 0, 0 }, { 0, 0 } }, r)
   end)
end)

describe('a step scope', function()
   -- The same training inside and outside of scopes, over and over.
   it('takes nothing that a sharded model needs', function()
      for _, opts in ipairs { {}, { reshard_after_forward = 2 }, { nccl_ub = true },
         { strategy = 'optim' }, { mp_policy = { param_dtype = 'bf16', reduce_dtype = 'f32' } } } do
         for _, row in ipairs(on(4, [[
            local opts = select(3, ...)
            local function scoped(inside, fn)
               if inside then tide.scope(fn) else fn() end
            end
            local function run(inside)
               local model, sharded = case.model(), nil
               scoped(inside, function() sharded = tide.parallel.fully_shard(model, opts) end)
               local optim = tide.optim.SGD(sharded, { lr = 0.1 })
               for s = 1, 3 do
                  scoped(inside, function()
                     backward(model, s)
                     sharded:finish()
                  end)
                  optim:step()
                  optim:zero_grad()
                  scoped(inside, function()
                     tide.no_grad(function() model(case.batch(s, rank, n, 12).ids) end)
                  end)
               end
               return case.numbers(sharded:full_state_dict())
            end
            return case.distance(run(true), run(false))
         ]], opts)) do assert.equal(0, row) end
      end
   end)
end)

describe('a step', function()
   it('is refused before finish, and after no_sync alone', function()
      fails('calls finish() of the sharded model', [[
         local model, sharded = make()
         local optim = tide.optim.AdamW(sharded)
         backward(model, 1)
         optim:step()
      ]])
      fails('without communication (no_sync)', [[
         local model, sharded = make()
         local optim = tide.optim.AdamW(sharded)
         sharded:no_sync(function() backward(model, 1) sharded:finish() end)
         optim:step()
      ]])
   end)

   it('is refused inside unshard_fsdp2_model before anything changes, and so is a norm', function()
      local r = on(2, [[
         local model, sharded = make()
         local optim = tide.optim.AdamW(sharded)
         backward(model, 1)
         local early = select(2, pcall(tide.parallel.clip_grad_norm_, sharded, 1))
         sharded:finish()
         local before = case.numbers(sharded:full_state_dict())
         local ok, e = pcall(tide.parallel.unshard_fsdp2_model, model, function() optim:step() end)
         sharded:updated()
         return { tostring(early), ok, tostring(e),
            case.distance(case.numbers(sharded:full_state_dict()), before) }
      ]])
      for _, row in ipairs(r) do
         assert.matches('calls finish()', row[1], 1, true)
         assert.is_false(row[2])
         assert.matches('outside unshard_fsdp2_model', row[3], 1, true)
         assert.equal(0, row[4])
      end
   end)

   it('is refused of an optimiser made from the model, or before sharding', function()
      fails('pass the object that fully_shard returned', 'tide.optim.AdamW((make()))')
      fails('no parameter has a gradient', [[
         local model = case.model():materialise('cpu', 1)
         local optim = tide.optim.AdamW(model)
         local sharded = tide.parallel.fully_shard(model)
         backward(model, 1)
         sharded:finish()
         optim:step()
      ]])
   end)

   it('of a list or groups of pieces gathers the new weights', function()
      local r = on(2, [[
         local function run(source)
            local model, sharded = make { strategy = 'optim_grads' }
            local optim = tide.optim.SGD(source(sharded), { lr = 0.1 })
            for s = 1, 2 do
               backward(model, s)
               sharded:finish()
               optim:step()
               optim:zero_grad()
            end
            return case.numbers(sharded:full_state_dict())
         end
         local want = run(function(s) return s end)
         return { case.distance(run(function(s) return s:named_parameters() end), want),
            case.distance(run(function(s) return { { params = s:named_parameters() } } end), want) }
      ]])
      assert.same({ { 0, 0 }, { 0, 0 } }, r)
   end)
end)

describe('a sharded parameter', function()
   it('that is not whole is named by what reads it', function()
      for _, row in ipairs(on(2, [[
         local model, sharded = make()
         local out = {}
         for i, read in ipairs {
            function() return model:state_dict() end,
            function() return model.model.layers:at(2):state_dict() end,
            function() return model.model.norm.weight:sum() end,
            function() return tide.linear(tide.ones { 1, 20 }, model.lm_head.weight) end,
            function() return model.lm_head.weight:tolist() end,
         } do
            local ok, e = pcall(read)
            out[i] = { ok, ok or e.code, tostring(e) }
         end
         tide.parallel.unshard_fsdp2_model(model, function()
            out[6] = model.lm_head.weight:sum():item() == model:state_dict()['lm_head.weight']:sum()
               :item()
         end)
         return out
      ]])) do
         for i, want in ipairs { { 'E_STATE', "parameter '" }, { 'E_STATE', "'model.layers.1." },
            { 'E_GONE', "'model.norm.weight'" }, { 'E_GONE', "'lm_head.weight'" },
            { 'E_GONE', "'lm_head.weight'" } } do
            assert.equal(want[1], row[i][2])
            for _, part in ipairs { want[2], 'sharded', 'unshard_fsdp2_model',
               'full_state_dict' } do
               assert.matches(part, row[i][3], 1, true)
            end
         end
         assert.is_true(row[6])
      end
   end)

   it('that another rank has changed is not read as it was', function()
      for _, row in ipairs(on(2, [[
         local model, sharded = make { strategy = 'optim' }
         local optim = tide.optim.SGD(sharded, { lr = 1 })
         backward(model, 1)
         sharded:finish()
         optim:step()
         local ok, e = pcall(model.state_dict, model)
         return { ok, tostring(e) }
      ]])) do
         assert.is_false(row[1])
         assert.matches('is sharded and not gathered now', row[2], 1, true)
      end
   end)

   it('has no bytes to be read from an update to the next forward in any strategy', function()
      for _, strategy in ipairs { 'optim', 'optim_grads' } do
         for _, mp in ipairs { 'f32', 'bf16' } do
            for _, row in ipairs(on(2, [[
               local _, _, strategy, mp = ...
               local model, sharded = make { strategy = strategy,
                  mp_policy = { param_dtype = mp } }
               local optim = tide.optim.SGD(sharded, { lr = 1 })
               local function read(t)
                  local ok, e = pcall(function()
                     return (t or model.lm_head.weight):sum():item()
                  end)
                  return ok and 'read' or tostring(e)
               end
               local out, w = { read() }, model.lm_head.weight
               out[2] = w.dtype .. ' ' .. table.concat(w.shape, 'x') .. tostring(w.requires_grad)
               backward(model, 1)
               out[3] = read()
               local view = model.lm_head.weight:narrow(1, 1, 1)
               sharded:finish()
               optim:step()
               out[4], out[8] = read(), read(view)
               backward(model, 2)
               out[5] = read()
               local whole = sharded:full_state_dict()['lm_head.weight']
               out[6] = whole.dtype == 'f32' and whole:to(mp):equal(model.lm_head.weight)
               sharded:finish()
               model:requires_grad_(false)           -- of the fields as they are, kept
               optim:step()
               model:requires_grad_(true)
               backward(model, 3)
               sharded:finish()
               optim:step()
               out[7] = read()
               return out
            ]], strategy, mp)) do
               for _, i in ipairs { 1, 4, 7 } do
                  for _, part in ipairs { 'E_GONE', "'lm_head.weight'", 'unshard_fsdp2_model' } do
                     assert.matches(part, row[i], 1, true)
                  end
               end
               assert.equal(mp .. ' 37x20true', row[2])
               assert.equal('read', row[3])
               assert.equal('read', row[5])
               assert.is_true(row[6])
               -- in f32 the shard lies in the buffer, which the view sees
               assert.matches(mp == 'bf16' and 'E_GONE' or '^read$', row[8])
            end
         end
      end
   end)

   it('must stay the one that is trained', function()
      fails("the sharded parameter 'model.norm.weight' was replaced", [[
         local model = make()
         model.model.norm.weight = tide.ones { 20 }
         backward(model, 1)
      ]])
      fails('the model is sharded', [[
         local model = make { strategy = 'optim', mp_policy = { param_dtype = 'bf16' } }
         model:load_state_dict(case.model():materialise('cpu', 2):state_dict())
      ]])
      for _, call in ipairs { 'init_weights(2)', "to 'bf16'", "materialise('cpu', 2)" } do
         fails('the model is sharded', [[
            local model = make { strategy = 'optim', mp_policy = { param_dtype = 'bf16' } }
            model:]] .. call)
      end
   end)
end)
