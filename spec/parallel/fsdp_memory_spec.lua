-- Memory of fully_shard, by option, and what a step costs against its price.

local on = require 'spec.parallel.fsdp_on'
local tide = require 'tide'

describe('memory', function()
   it('of a double buffer is two units', function()
      local r = on(2, [[
         local out = {}
         for i, double in ipairs { false, true } do
            local model = case.model { config = { num_hidden_layers = 6 } }
            local sharded = tide.parallel.fully_shard(model, { fsdp_double_buffer = double,
               forward_prefetch = 3, backward_prefetch = 3, reshard_after_forward = true })
            local most = 0
            for _, unit in ipairs(sharded.units) do
               unit.modules[1]:hook_pre(function()
                  local n = 0
                  for _, u in ipairs(sharded.units) do n = n + (u:is_live() and 1 or 0) end
                  most = math.max(most, n)
               end)
            end
            local b = case.batch(1, world.rank, 2, 12)
            model:loss(b.ids, b.labels, { count = 1 }):backward()
            sharded:finish()
            out[i] = most
         end
         return out
      ]])[1]
      assert.same({ 4, 2 }, r)
   end)

   it('for reductions stays with nccl_ub', function()
      local r = on(2, [[
         local out = {}
         for i, kept in ipairs { false, true } do
            local r = case.train { fsdp = { nccl_ub = kept }, steps = 1 }
            local comm, used = r.sharded.shard_comm, {}
            local real = comm.reduce_scatter_v
            comm.reduce_scatter_v = function(self, t, ...)
               local known = false
               for _, u in ipairs(used) do known = known or u:same_storage(t) end
               if not known then used[#used + 1] = t end
               return real(self, t, ...)
            end
            for s = 1, 3 do
               r.run:run { case.batch(s, world.rank, 2, 12) }
            end
            comm.reduce_scatter_v = nil
            out[i] = #used
         end
         return out
      ]])[1]
      assert.same({ 12, 2 }, r)          -- 4 units, 3 steps; or two buffers for all
   end)

   it('after forward holds what reshard_after_forward says', function()
      local r = on(4, [[
         local out = {}
         for i, how in ipairs { 'auto', true, false, 2 } do
            local model = case.model()
            if how == 'auto' then how = nil end
            local sharded = tide.parallel.fully_shard(model, { reshard_after_forward = how })
            local b = case.batch(1, world.rank, 4, 12)
            local loss = model:loss(b.ids, b.labels, { count = 1 })
            local n, parts, bytes = 0, 0, 0
            for _, u in ipairs(sharded.units) do
               n = n + (u:is_live() and 1 or 0)
               local part = u.buckets[1].small and u.buckets[1].small.part
               if part then parts, bytes = parts + 1, bytes + 4 * part:numel() end
            end
            local list = watch(sharded.shard_comm, function()
               loss:backward()
               sharded:finish()
            end)
            local gathers = 0
            for _, h in ipairs(list) do gathers = gathers + (h.op == 'all_gather_v' and 1 or 0) end
            assert(bytes == sharded:price({}).stays, bytes .. ' ' .. sharded:price({}).stays)
            out[i] = { n, parts, gathers }
         end
         return out
      ]])[1]
      assert.same({ { 1, 0, 2 }, { 0, 0, 3 }, { 3, 0, 0 }, { 0, 3, 0 } }, r)
   end)

   it('leaves the activations of a plan as they are, whatever stays gathered', function()
      local function activations(how)
         return tide.parallel.plan({ family = 'llama', config = { vocab_size = 23,
            hidden_size = 24, num_hidden_layers = 3, num_attention_heads = 4,
            intermediate_size = 32 } }, { dp_shard = 4 }, { ranks = 4, fsdp = {
            reshard_after_forward = how } }):price({ batch = 2, seq = 7 }).activations
      end
      local want = activations(true)
      assert.equal(want, activations(false))
      -- the part of a unit that stays is rounded up to 64 bytes; there are five units
      assert.is_true(math.abs(activations(2) - want) <= 5 * 64)
   end)

   it('of shards is on the host with cpu_offload, apart from what is computed with', function()
      local r = on(2, [[
         local out = {}
         for i, offload in ipairs { false, true } do
            local r = case.train { fsdp = { cpu_offload = offload, strategy = 'optim' }, steps = 2 }
            local b = r.sharded.units[1].buckets[1]
            out[i] = { b.shard:same_storage(b.flat), b.shard.device, r.losses[2] }
         end
         return out
      ]])[1]
      assert.same({ true, false }, { r[1][1], r[2][1] })
      assert.equal('cpu', r[2][2])
      assert.near(r[1][3], r[2][3], 1e-6)
   end)

   it('and collectives and bytes sent are those of the price', function()
      local body = [[
         local _, _, name = ...
         local function cost(strategy)
            local ctx, leak = tide.default(), require 'spec.support.leak'
            leak.interpret()
            leak.mark()
            local model = case.model { config = { hidden_size = 128, intermediate_size = 320 } }
            local sharded = tide.parallel.fully_shard(model, { strategy = strategy })
            local optim = tide.optim.AdamW(sharded, { lr = 1e-3 })
            local run = tide.train.step.new { model = model, optim = optim, parallel = sharded }
            local data = sharded.data_comm
            local function step(s)
               return run:run { case.batch(s, data.rank, data.size, 12),
                  case.batch(s + 50, data.rank, data.size, 12) }
            end
            step(1)
            local kept = leak.since()
            local sizes = {}
            local function block(n)                -- what the allocator makes of n bytes
               if not sizes[n] then
                  ctx:mark()
                  local t = tide.empty({ n }, { dtype = 'u8' })
                  sizes[n] = ctx:stats().since
                  t:release()
               end
               return sizes[n]
            end
            local price = sharded:price { micro = 2, block = block }
            local plain = sharded:price()
            assert(plain.parameters + plain.gradients + plain.optimizer == plain.kept)
            local comm, count = sharded.shard_comm.size > 1 and sharded.shard_comm
               or sharded.replicas, {}
            local t0 = comm:traffic()
            for _, h in ipairs(watch(comm, function() step(2) end)) do
               count[h.op] = (count[h.op] or 0) + 1
            end
            local t1 = comm:traffic()
            return { strategy = strategy, kept = kept, count = count,
               sent = t1.nbyte[1] - t0.nbyte[1], state = price.kept, wire = price.wire,
               calls = price.collectives }
         end
         return cost(name)
      ]]
      local n = 4
      for _, name in ipairs { 'no_shard', 'optim', 'optim_grads', 'optim_grads_params' } do
         local sent, wire = 0, 0
         for _, row in ipairs(on(n, body, name)) do
            -- beside them a batch and what the model caches
            assert.is_true(math.abs(row.kept / row.state - 1) < 0.01,
               ('%s: kept %d, priced %d'):format(name, row.kept, row.state))
            if name ~= 'no_shard' then
               assert.equal(row.calls.gather, row.count.all_gather_v, name)
               assert.equal(row.calls.reduce, row.count.reduce_scatter_v, name)
            else
               -- the norm needs none; the loss and its count are one each
               assert.equal(row.calls.replicas + 2, row.count.all_reduce)
            end
            sent, wire = sent + row.sent, wire + row.wire
         end
         assert.is_true(math.abs(sent / wire - 1) < 0.02, ('%s: sent %d, priced %d'):format(name,
            sent, wire))
      end
   end)

   it('cost what a rehearsed step does, with any options and frozen parameters', function()
      local function one_of(list) return list[math.random(#list)] end
      local freezes = { {}, {}, { 'mlp' }, { 'embed', 'layers%.0' }, { 'layers%.[12]' },
         { 'embed', 'norm', 'layers%.0' } }
      local case = require 'spec.parallel.fsdp_case'
      local function model_of(freeze)
         local model = case.model()
         for _, e in ipairs(model:named_parameters()) do
            for _, name in ipairs(freeze) do
               if e.name:find(name) then e.param:requires_grad_(false) end
            end
         end
         return model
      end
      math.randomseed(11)
      for i = 1, 60 do
         local axes = one_of { { dp_shard = 4 }, { dp_shard = 3 }, { dp_replicate = 2,
            dp_shard = 2 } }
         local n, freeze = (axes.dp_replicate or 1) * axes.dp_shard, one_of(freezes)
         local fsdp = { strategy = one_of { 'no_shard', 'optim', 'optim_grads',
            'optim_grads_params' },
            sync_each_backward = one_of { true, false, nil },
            grad_reduce_in_fp32 = one_of { true, false }, backward_prefetch = one_of { 0, 1, 3 },
            preserve_fp32_weights = one_of { true, false },
            mp_policy = one_of { nil, { param_dtype = 'bf16' } } }
         if fsdp.strategy == 'optim_grads_params' then
            fsdp.reshard_after_forward = one_of { true, false, n == 4 and 2 or nil }
         end
         local micro = math.random(3)
         local plan = tide.parallel.plan(model_of(freeze), axes, { ranks = n, fsdp = fsdp })
         local ran = plan:price { batch = 2, seq = 8, accum = micro }
         fsdp.mesh, fsdp.device = tide.parallel.mesh(axes, { comm = tide.comm.simulate(n, 0) }),
            'null'
         local told = tide.parallel.fully_shard(model_of(freeze), fsdp):price { micro = micro }
         local what = ('%d: %s, %s, micro %d'):format(i, tostring(plan),
            table.concat(freeze, ' '), micro)
         assert.equal(ran.collectives.all_gather or 0, told.collectives.gather, what)
         assert.equal(ran.collectives.reduce_scatter or 0, told.collectives.reduce, what)
         assert.equal(ran.collectives.all_reduce or 0, told.collectives.replicas, what)
         assert.is_true(math.abs(ran.wire / told.wire - 1) < 0.06, what)
         assert.equal(ran.gradients, told.gradients, what)
      end
   end)
end)
