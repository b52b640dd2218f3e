-- The NCCL communicator on CUDA tensors: every collective, failures, comparing of calls. Ranks are
-- threads, each on a device of its own.
--
-- Not found by its name: emulated_nccl_spec.lua runs it with an emulated NCCL, whose file is
-- TIDE_SPEC_NCCL. On a machine with several GPUs leave that unset.

local nccl = require 'spec.cuda.nccl_ranks'
local wide = require 'spec.support.wide'
local run, values = nccl.run, nccl.values

local collectives = require 'spec.comm.kinds'

describe('collectives over NCCL', function()
   for _, n in ipairs(wide and { 1, 3 } or { 3 }) do
      for _, name in ipairs(collectives) do
         it(('%s on %d ranks'):format(name, n), function()
            local out = values(n, { check = name:find '_v$' ~= nil },
               "return require('spec.comm.cases')(comm, select(4, ...))", name)
            for _, ncase in ipairs(out) do assert.equal(64, ncase) end
         end)
      end
   end

   it('reduce a list on a rank alone', function()
      assert.same({ 64 }, values(1, nil,
         "return require('spec.comm.cases')(comm, select(4, ...))", 'all_reduce_list'))
   end)

   it('take a part of their own buffer, where the field does', function()
      local out = values(3, nil, [[
         local whole = tide.full({ 6 }, -1)
         local mine = whole:slice(1, 2 * comm.rank + 1, 2 * comm.rank + 2)
         mine:fill_(comm.rank)
         comm:all_gather_into(whole, mine)
         local gathered = table.concat(whole:tolist(), ' ')
         comm:reduce_scatter_into(mine, whole)
         return gathered .. ' | ' .. table.concat(mine:tolist(), ' ')
      ]])
      for r = 1, 3 do
         assert.equal(('0 0 1 1 2 2 | %d %d'):format(3 * (r - 1), 3 * (r - 1)), out[r])
      end
   end)

   it('sum a norm on the device also for a rank without gradients', function()
      local out = values(2, { timeout = 10 }, [[
         tide.default().device = 'cpu'
         local clip, list = tide.parallel.clip, {}
         local grads = comm.rank == 0 and { tide.tensor({ 3, -4 }, { device = 'cuda' }) } or {}
         for i, p in ipairs { 1, 2, 3, math.huge } do
            list[i] = ('%.4f'):format(clip.norm(grads, p, comm):item())
         end
         local model = tide.nn.Linear(1, 1, { bias = false, device = 'cuda' })
         tide.no_grad(function() model.weight:fill_(1) end)
         local sharded = tide.parallel.fully_shard(model, comm)
         model(tide.ones({ 1, 1 }, { device = 'cuda' })):sum():backward()
         sharded:finish()
         list[5] = clip.norm(sharded):item()
         return table.concat(list, ' ')
      ]])
      assert.same({ '7.0000 5.0000 4.4979 4.0000 2', '7.0000 5.0000 4.4979 4.0000 2' }, out)
   end)

   it('give a head split by vocabulary a gradient on the device also for no tokens', function()
      local out = values(2, { timeout = 10 }, [[
         tide.default().device = 'cpu'
         local w = tide.ones({ 3, 4 }, { device = 'cuda' }):requires_grad_(true)
         local x = tide.zeros({ 0, 4 }, { device = 'cuda' })
         local ids = tide.zeros({ 0 }, { dtype = 'i64', device = 'cuda' })
         tide.parallel.linear_cross_entropy(x, w, ids, comm, { 3, 3 }, {}):backward()
         return w.grad.device .. ' ' .. w.grad:abs():sum():item()
      ]])
      assert.same({ 'cuda 0', 'cuda 0' }, out)
   end)

   it('wait for what computes their operands, on a stream of their own', function()
      local out = values(2, nil, [[
         local x = tide.ones { 4000 }
         for _ = 1, 5 do x = x + x end
         local work = comm:all_reduce(x, 'sum', { async = true })
         local y = tide.ones({ 4000 }) * 3
         x = work:wait() + y
         return x:sum():item()
      ]])
      assert.same({ 67 * 4000, 67 * 4000 }, out)
   end)

   it('do not make the host wait, called either way', function()
      local out = values(2, { timeout = 20 }, [[
         local function late(fn)                  -- rank 1 enters when rank 0 has gone on
            if comm.rank == 1 then over:barrier() end
            local x = fn()
            if comm.rank == 0 then over:barrier() end
            return x
         end
         local a = late(function() return comm:all_reduce(tide.ones { 300 }) end)
         local b = late(function()
            local work = comm:all_reduce(tide.full({ 300 }, 2), 'sum', { async = true })
            return work:wait()
         end)
         local sum = (a * b):sum():item()
         comm:barrier()
         return sum
      ]])
      assert.same({ 2400, 2400 }, out)
   end)

   it('give memory back in time, and no sooner', function()
      local out = values(3, nil, [[
         local sum = 0
         for i = 1, 30 do
            local x = tide.full({ 1000 }, i) + comm.rank
            local y = comm:all_gather(x)
            x:release()
            local work = comm:all_reduce(tide.full({ 1000 }, i), 'sum', { async = true })
            local other = tide.full({ 1000 }, -100) * 3         -- perhaps where x was
            local z = work:wait()
            work = nil
            comm:all_reduce(other)
            sum = sum + y:sum() / 1000 + z:sum() / 1000 + other:sum() / 1000 + 900
         end
         return sum:item()
      ]])
      for r = 1, 3 do assert.equal(465 * 6 + 30 * 3, out[r]) end
   end)

   it('leave alone what is never waited for', function()
      local out = values(2, nil, [[
         local x = tide.ones { 50 }
         comm:all_reduce(x, 'sum', { async = true })
         for _ = 1, 5 do comm:all_gather(tide.ones { 10 }, { async = true }) end
         comm:barrier()
         return x:sum():item()
      ]])
      assert.same({ 100, 100 }, out)
   end)

   it('send between ranks that give tensors in one place alone', function()
      local out = values(3, { timeout = 20 }, [[
         local function at(device)
            return comm:shift(tide.full({ 4 }, comm.rank, { device = device })):tolist()[1]
         end
         local list = { at 'cuda', at 'cpu' }
         local good, e = pcall(at, comm.rank == 1 and 'cpu' or 'cuda')
         list[3], list[4] = e.code, tostring(e)
         list[5] = at 'cuda'
         local x = tide.full({ 2 }, comm.rank, { device = 'cpu' })  -- rank 2 has no tensor
         if comm.rank == 0 then comm:send_recv(nil, nil, x, 1)
         elseif comm.rank == 1 then comm:send_recv(x, 0, nil, nil)
         else comm:send_recv() end
         list[6] = x:tolist()[1]
         return list
      ]])
      for r = 1, 3 do
         local before = (r + 1) % 3
         assert.same({ before, before, 'E_DEVICE' }, { out[r][1], out[r][2], out[r][3] })
         assert.is_truthy(out[r][4]:find('1 of 3 ranks give tensors in host memory (rank 1 first)',
            1, true), out[r][4])
         assert.equal(before, out[r][5])
      end
      assert.equal(0, out[2][6])
   end)

   it('work between parts of the ranks', function()
      local out = values(4, nil, [[
         local part = comm:split(comm.rank % 2, -comm.rank)
         local none = comm:split(comm.rank == 3 and 0 or nil)
         local t = part:all_reduce(tide.full({ 3 }, comm.rank + 1))
         local alone = none and none.size or 0
         return { t:tolist()[1], part.rank, part.size, alone, part.transport }
      ]])
      assert.same({ { 4, 1, 2, 0, 'nccl' }, { 6, 1, 2, 0, 'nccl' }, { 4, 0, 2, 0, 'nccl' },
                    { 6, 0, 2, 1, 'nccl' } }, out)
   end)

   it('use buffers that were registered', function()
      local out = values(2, nil, [[
         local flat, other = tide.zeros { 4, 6 }, tide.ones { 3 }
         for _ = 1, 3 do comm:register(flat) end
         for _ = 1, 12 do comm:register(tide.ones { 5 }) end
         local good, e = pcall(comm.register, comm, tide.ones({ 2 }, { device = 'cpu' }))
         flat:fill_(comm.rank + 1)
         comm:all_reduce({ flat, other })
         local dropped = pcall(flat.drop_bytes, flat)
         comm:close()
         return { flat:sum():item(), other:sum():item(), good, e.code, dropped }
      ]])
      for r = 1, 2 do assert.same({ 72, 6, false, 'E_DEVICE', false }, out[r]) end
   end)

   it('reduce gradients of a sharded model from buffers that they know', function()
      local body = [[
         local ub = select(4, ...)
         local known, meta = 0, getmetatable(comm)
         local before = meta.register
         meta.register = function(self, t) known = known + 1 return before(self, t) end
         local r = require('spec.parallel.fsdp_case').train { steps = 1,
            fsdp = { comm = comm, nccl_ub = ub, device = 'cuda' } }
         meta.register = before
         local losses = r.losses
         return { known, losses }
      ]]
      local with, without = values(2, nil, body, true), values(2, nil, body, false)
      for r = 1, 2 do
         assert.same({ 2, 0 }, { with[r][1], without[r][1] })      -- two buffers of f32
         assert.same(without[r][2], with[r][2])
         assert.equal(1, #with[r][2])
      end
   end)

   it('train as ranks on the host do', function()
      local body = [[
         local on_host = select(4, ...)
         if on_host then tide.default().device = 'cpu' end
         local model = tide.nn.Linear(8, 6, { seed = 1, device = tide.default().device })
         function model:loss(ids, _, opts) return self:forward(ids):square():sum() / opts.count end
         local optim = tide.optim.AdamW(model, { lr = 0.05 })
         local step = require('tide.train.step').new { model = model, optim = optim,
            comm = on_host and over or comm, clip = 1 }
         local losses = {}
         for i = 1, 6 do
            local x = tide.arange(16):reshape { 2, 8 } * (0.02 * (over.rank + 1))
            losses[i] = step:run({ { ids = x:to 'f32', count = 2 } }).loss
         end
         return losses
      ]]
      local far, near = values(2, nil, body), values(2, nil, body, true)
      for r = 1, 2 do
         assert.equal(6, #far[r])
         for i = 1, 6 do
            assert.is_true(math.abs(far[r][i] / near[r][i] - 1) < 1e-5, ("%.9g, %.9g"):format(
               far[r][i], near[r][i]))
         end
         assert.is_true(far[r][6] < far[r][1])
      end
   end)

   it('carry tokens to the experts of other ranks', function()
      local body = [[
         local on_host = select(4, ...)
         if on_host then tide.default().device = 'cpu' end
         local device = tide.default().device
         local model = tide.model.qwen3_moe({ vocab_size = 32, hidden_size = 8,
            num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 1, head_dim = 4,
            moe_intermediate_size = 8, num_experts = 3, num_experts_per_tok = 2 },
            { device = 'null' })
         local sharded = tide.parallel.fully_shard(model, on_host and over or comm,
            { ep_size = 2, seed = 3, device = device })
         local step = require('tide.train.step').new { model = model, parallel = sharded,
            optim = tide.optim.AdamW(sharded, { lr = 0.05 }), clip = 1 }
         local losses = {}
         for i = 1, 3 do
            local row = { 3, 1 + i, 4, 1, 5 + 9 * over.rank, 9, 2 * i, 6 }
            local ids = tide.tensor({ row }, { dtype = 'i64', device = device })
            losses[i] = step:run({ { ids = ids, labels = ids } }).loss
         end
         return losses
      ]]
      local far, near = values(2, nil, body), values(2, nil, body, true)
      for r = 1, 2 do
         for i = 1, 3 do assert.near(near[r][i], far[r][i], 1e-4) end
         assert.is_true(far[r][3] < far[r][1])
      end
   end)
end)

describe('a failure under NCCL', function()
   it('by a rank that does not come is a timeout with the place', function()
      local rows = run(3, { timeout = 0.5 }, [[
         comm:barrier()
         if comm.rank == 2 then over:barrier() return 'waits' end
         local good, e = pcall(function()         -- raised where the result is read
            return comm:all_reduce(tide.ones { 4 }):sum():item()
         end)
         local again, f = pcall(comm.barrier, comm)
         over:barrier()
         return { tostring(good), e.code, tostring(e), tostring(again), f.code }
      ]])
      for r = 1, 2 do
         local v = rows[r].values and rows[r].values[1] or error(rows[r].message)
         assert.same({ 'false', 'E_TIMEOUT', 'false', 'E_TIMEOUT' }, { v[1], v[2], v[4], v[5] })
         assert.is_truthy(v[3]:find('waited 0.5 s in #2 all_reduce', 1, true), v[3])
      end
   end)

   it('ends an asynchronous call that another thread aborts', function()
      local out = values(2, nil, [[
         if comm.rank == 1 then over:barrier() return 'E_PEER' end
         local t = tide.ones { 9 }
         local work = comm:all_reduce(t, 'sum', { async = true })
         comm:abort 'enough'
         local good, e = pcall(work.wait, work)
         over:barrier()
         return good and 'no error' or e.code
      ]])
      assert.same({ 'E_PEER', 'E_PEER' }, out)
   end)

   it('of the network is told by every rank that waits', function()
      if not nccl.library then return end
      local out = values(2, nil, [[
         local ffi = require 'ffi'
         ffi.cdef 'int setenv(const char *, const char *, int); int unsetenv(const char *);'
         comm:barrier()
         over:barrier()
         if over.rank == 0 then ffi.C.setenv('TIDE_EMULATE_NCCL_FAULT', '1', 1) end
         over:barrier()
         local good, e = pcall(function()
            return comm:all_reduce(tide.ones { 4 }):sum():item()
         end)
         over:barrier()
         ffi.C.unsetenv 'TIDE_EMULATE_NCCL_FAULT'
         return good and 'no error' or e.code .. ' ' .. tostring(e)
      ]])
      for r = 1, 2 do
         assert.is_truthy(out[r]:find '^E_PEER', out[r])
         assert.is_truthy(out[r]:find('network', 1, true), out[r])
      end
   end)

   it('in a call that differs is told before data moves, if asked for', function()
      local out = values(3, { check = true }, [[
         local t = tide.ones { comm.rank == 1 and 5 or 4 }
         local good, e = pcall(comm.all_reduce, comm, t)
         return good and 'no error' or e.code .. ' ' .. tostring(e)
      ]])
      for r = 1, 3 do
         assert.is_truthy(out[r]:find '^E_COMM', out[r])
         assert.is_truthy(out[r]:find('rank 0, 2: all_reduce(sum, f32, 4 elements)', 1, true),
            out[r])
         assert.is_truthy(out[r]:find('rank 1: all_reduce(sum, f32, 5 elements)', 1, true), out[r])
      end
   end)

   it('of two ranks on one device is one error', function()
      for _, row in ipairs(run(2, { same = true }, 'return (pcall(comm.barrier, comm))')) do
         assert.is_falsy(row.status == 'OK' and row.values[1])
      end
   end)
end)

it('stages of a pipeline train over NCCL what one rank trains', function()
   local body = [[
      local axes = select(4, ...)
      tide.default().device = 'cpu'
      local model = tide.model.llama({ vocab_size = 31, hidden_size = 16, num_hidden_layers = 4,
         num_attention_heads = 4, intermediate_size = 24, tie_word_embeddings = true },
         { seed = 3, device = 'cuda' })
      local run = tide.parallel.plan(model, tide.parallel.mesh(axes, { comm = comm }),
         { fsdp = { strategy = 'optim' } }):materialise()
      local step = tide.train.step.new { model = run.model:train(), parallel = run.sharded,
         comm = run.comm, optim = tide.optim.SGD(run.params, { lr = 0.5 }) }
      local batches, loss = {}
      for k = 1, 3 do
         local ids = tide.tensor({ { 3, k, 4, 1, 5 } }, { dtype = 'i64', device = 'cuda' })
         batches[k] = { ids = ids, labels = ids }
      end
      for _ = 1, 2 do loss = step:run(batches).loss end
      return loss
   ]]
   local want = values(1, nil, body, { dp_shard = 1 })[1]
   for _, loss in ipairs(values(4, nil, body, { pp = 2, dp_shard = 2 })) do
      assert.near(want, loss, 1e-5)
   end
end)
