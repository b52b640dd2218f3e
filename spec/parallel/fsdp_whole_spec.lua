-- Whole parameters of a sharded model for a while: reading, writing and copies of them.

local tide = require 'tide'
local ranks = require 'spec.support.ranks'

local head = [[
   local tide, world = require 'tide', require 'tide.comm'.world()
   local case = require 'spec.parallel.fsdp_case'
]]

local function on(n, body, ...) return ranks.run(n, head .. body, ...) end

describe('whole parameters', function()
   it('are there inside the scope, which nests, and gone after it, also after an error', function()
      local r = on(2, [[
         local model = case.model()
         local sharded = tide.parallel.fully_shard(model, {})
         local function live()
            local n = 0
            for _, u in ipairs(sharded:all_units()) do n = n + (u:is_live() and 1 or 0) end
            return n
         end
         local unshard, out = tide.parallel.unshard_fsdp2_model, {}
         out.value = unshard(model, function()
            out.inside = live()
            unshard(model, function() out.nested = live() end, 'model.layers.0')
            out.still = live()
            return 'result'
         end)
         out.after = live()
         unshard(sharded, function() out.part = live() end, 'model.layers.1')
         local ok, e = pcall(unshard, model, function() error('inside', 0) end)
         out.failed, out.left = not ok and e, live()
         out.gone = model.model.norm.weight:is_gone()
         return out
      ]])[1]
      assert.same({ value = 'result', inside = 4, nested = 4, still = 4, after = 0, part = 1,
         failed = 'inside', left = 0, gone = true }, r)
   end)

   it('keep what every rank writes into them, in every way of sharding', function()
      for _, rows in ipairs(on(4, [[
         local unshard, out = tide.parallel.unshard_fsdp2_model, {}
         local bf16 = { param_dtype = 'bf16' }
         for i, o in ipairs { { strategy = 'no_shard' }, { strategy = 'optim' },
            { strategy = 'optim_grads', mp_policy = bf16 }, {}, { mp_policy = bf16 },
            { cpu_offload = true }, { cpu_offload = true, strategy = 'optim' },
            { reshard_after_forward = 2 },
            { mesh = tide.parallel.mesh { dp_replicate = 2, dp_shard = 2 } } } do
            o.seed = 3
            local model = case.model()
            local sharded = tide.parallel.fully_shard(model, o)
            local optim = tide.optim.SGD(sharded, { lr = 0.1 })
            local before = sharded:full_state_dict()
            local pieces = {}
            for _, p in ipairs(sharded:named_parameters()) do pieces[p.name] = p.param:clone() end
            unshard(model, function()
               tide.no_grad(function()
                  model.model.norm.weight:fill_(5)
                  model.model.layers:at(2).mlp.up_proj.weight:narrow(1, 3, 2):mul_(2)
               end)
            end)
            local exact = true                   -- what was not written keeps its f32 value
            for _, p in ipairs(sharded:named_parameters()) do
               if not p.name:find 'norm.weight$' and not p.name:find 'layers.1.mlp.up' then
                  exact = exact and p.param:equal(pieces[p.name])
               end
            end
            local b = case.batch(1, world.rank, world.size, 12)
            model:loss(b.ids, b.labels, { count = 84 })
            sharded:release()
            sharded:zero_grad()
            model:loss(b.ids, b.labels, { count = 84 }):backward()
            sharded:finish()
            for _, p in ipairs(sharded:named_parameters()) do p.param.grad:zero_() end
            optim:step()                         -- changes nothing, and all is gathered again
            local after = sharded:full_state_dict()
            local up = 'model.layers.1.mlp.up_proj.weight'
            local want = before[up]:clone()
            local written = want:narrow(1, 3, 2):mul_(2)
            if o.mp_policy then written:copy_(written:to 'bf16') end      -- written as computed
            out[i] = { exact, after['model.norm.weight']:sum():item() == 100,
               after[up]:equal(want),
               after['model.embed_tokens.weight']:equal(before['model.embed_tokens.weight']) }
         end
         return out
      ]])) do
         for i, row in ipairs(rows) do assert.same({ true, true, true, true, i }, { row[1], row[2],
            row[3], row[4], i }) end
         assert.equal(9, #rows)
      end
   end)

   it('forget what a function wrote before it failed', function()
      for _, row in ipairs(on(2, [[
         local out, b = {}, case.batch(1, world.rank, world.size, 12)
         for i, strategy in ipairs { 'optim', 'optim_grads', 'optim_grads_params' } do
            local model = case.model()
            tide.parallel.fully_shard(model, { seed = 3, strategy = strategy,
               mp_policy = { param_dtype = 'bf16' } })
            local function loss()
               return tide.no_grad(function()
                  return model:loss(b.ids, b.labels, { count = 84 }):item()
               end)
            end
            local want = loss()
            local ok = pcall(tide.parallel.unshard_fsdp2_model, model, function()
               tide.no_grad(function() model.model.norm.weight:fill_(5) end)
               error 'on purpose'
            end)
            out[i] = not ok and want == loss()
         end
         return out
      ]])) do
         assert.same({ true, true, true }, row)
      end
   end)

   it('are exact copies in the dtype of the shards, also of what a scope has written', function()
      local r = on(2, [[
         local out = {}
         for i, strategy in ipairs { 'no_shard', 'optim', 'optim_grads', 'optim_grads_params' } do
            local whole = case.model():materialise('cpu', 3):state_dict()
            for name, t in require 'tide.util.each'(whole) do whole[name] = t:clone() end
            local model = case.model()
            local sharded = tide.parallel.fully_shard(model, { seed = 3, strategy = strategy,
               mp_policy = { param_dtype = 'bf16' }, cpu_offload = i % 2 == 0 })
            local state, exact, n = sharded:full_state_dict(), true, 0
            for name, t in require 'tide.util.each'(whole) do
               exact = exact and state[name].dtype == 'f32' and t:equal(state[name])
               n = n + 1
            end
            local norm, head = 'model.norm.weight', 'model.layers.0.mlp.up_proj.weight'
            local within = tide.parallel.unshard_fsdp2_model(model, function()
               tide.no_grad(function() model.model.norm.weight:fill_(5) end)
               return sharded:full_state_dict()
            end)
            out[i] = { exact, n > 5, within[norm]:sum():item() == 5 * within[norm]:numel(),
               within[head]:equal(whole[head]) }
         end
         return out
      ]])
      for _, rows in ipairs(r) do
         for i = 1, 4 do assert.same({ true, true, true, true }, rows[i]) end
      end
   end)

   it('must be written alike, and by a function that ends alike', function()
      local rows = on(2, [[
         local unshard, model = tide.parallel.unshard_fsdp2_model, case.model()
         local sharded = tide.parallel.fully_shard(model, { seed = 3 })
         local before = sharded:full_state_dict()
         local function try(fn)
            local ok, e = pcall(unshard, model, function() tide.no_grad(fn) end)
            return ok and 'ok' or tostring(e)
         end
         local list = { try(function() model.model.norm.weight:fill_(world.rank) end),
            try(function() if world.rank == 0 then model.model.norm.weight:fill_(2) end end),
            try(function()
               model.model.norm.weight:fill_(2)
               if world.rank == 0 then error('only here', 0) end
            end),
            try(function()
               model.model.norm.weight:fill_(2)
               error('everywhere', 0)
            end) }
         local same = true
         for name, t in require 'tide.util.each'(sharded:full_state_dict()) do
            same = same and t:equal(before[name])
         end
         list[5] = same
         return list
      ]])
      for r, row in ipairs(rows) do
         assert.matches('different values of parameters', row[1], 1, true)
         assert.matches('different values of parameters', row[2], 1, true)
         assert.matches(r == 1 and 'only here' or 'different ends of the scope', row[3], 1, true)
         assert.equal('everywhere', row[4])
         assert.is_true(row[5])
      end
   end)

   it('can be one unit at a time for scoring', function()
      local r = on(2, [[
         local model = case.model { config = { num_hidden_layers = 5 } }
         local sharded = tide.parallel.fully_shard(model, { seed = 1 })
         local most = 0
         for _, unit in ipairs(sharded.units) do
            unit.modules[1]:hook_pre(function()
               local n = 0
               for _, u in ipairs(sharded.units) do n = n + (u:is_live() and 1 or 0) end
               most = math.max(most, n)
            end)
         end
         local b = case.batch(1, world.rank, 2, 12)
         local function score() return model:loss(b.ids, b.labels):item() end
         local by_layer = tide.parallel.unshard_fsdp2_model(model, score, nil,
            { layerwise = true })
         local peak = most
         local whole = tide.parallel.unshard_fsdp2_model(model, function()
            return tide.no_grad(score)
         end)
         return { peak, by_layer == whole, sharded.opts.forward_prefetch }
      ]])[1]
      assert.same({ 1, true, 1 }, r)
   end)

   it('cannot be stepped over', function()
      local ok, e = pcall(on, 1, [[
         local model = case.model()
         local sharded = tide.parallel.fully_shard(model, { cpu_offload = true })
         tide.parallel.unshard_fsdp2_model(model, function() sharded:updated() end)
      ]])
      assert.is_false(ok)
      assert.matches('outside unshard_fsdp2_model', tostring(e), 1, true)
      local ok2, e2 = pcall(tide.parallel.unshard_fsdp2_model, tide.nn.Linear(2, 2), print)
      assert.is_false(ok2)
      assert.matches('that fully_shard has sharded', tostring(e2), 1, true)
   end)
end)
