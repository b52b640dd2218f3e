-- Captured steps over ranks: collectives over NCCL that are recorded and replayed. Ranks are
-- threads, each on a device of its own; what may run late runs late here (spec/cuda/emulate).
--
-- Not found by its name: emulated_nccl_spec.lua runs it with an emulated NCCL, whose file is
-- TIDE_SPEC_NCCL. On a machine with several GPUs leave that unset.

local values = require('spec.cuda.nccl_ranks').values
local wide = require 'spec.support.wide'

describe('a captured step with collectives', function()
   for _, check in ipairs { false, true } do
      it('does at each replay what the calls would do' .. (check and ', compared' or ''), function()
         local body = [[
            local x = tide.zeros { 6 }
            local r, n = comm.rank, comm.size
            local function step()
               local sum = comm:all_reduce(x * 1)
               local all = comm:all_gather(x)
               local part = comm:reduce_scatter(all * (r + 1))
               local work = comm:all_reduce(x * 2, 'max', { async = true })
               local own = x * 3                          -- beside the collective
               local most = work:wait() + own
               local turned = comm:shift(x + 1)
               local mixed = comm:all_to_all(tide.cat({ x, x }, 1):narrow(1, 1, 2 * n))
               local first = comm:broadcast(x * 5, n - 1)
               comm:all_reduce(tide.ones { 3 }, 'sum', { async = true })   -- never waited for
               return sum, all, part, most, turned, mixed, first
            end
            local graph = tide.cuda.graph(function() return { step() } end)
            local good = true
            for i = 1, 5 do
               x:copy_(tide.arange(6):to 'f32' * i + r)
               local want, got = { step() }, graph:replay()
               for k = 1, #want do good = good and want[k]:equal(got[k]) end
               if i == 3 then comm:all_gather(tide.ones { 5 }, { async = true }) end
            end
            return { good, graph.result[1]:tolist()[2] }
         ]]
         for _, n in ipairs { 2, 4 } do
            local sum = 5 * n + n * (n - 1) / 2
            for _, row in ipairs(values(n, { check = check }, body)) do
               assert.same({ true, sum }, row)
            end
         end
      end)
   end

   it('holds memory that a collective under way still uses', function()
      local out = values(2, nil, [[
         local x = tide.ones { 500 }
         local graph = tide.cuda.graph(function()
            local a = x * 2
            local work = comm:all_gather(a, { async = true }) -- which alone holds a from here on
            a = nil
            collectgarbage()
            local other = tide.full({ 500 }, -7) * 3          -- perhaps where a was
            local b = work:wait() + 1
            return b, other
         end)
         local sums = {}
         for i = 1, 3 do
            x:fill_(i)
            sums[i] = graph:replay():sum():item() / 1000
         end
         return sums
      ]])
      for r = 1, 2 do assert.same({ 3, 5, 7 }, out[r]) end
   end)

   it('counts what it moves, and names its replays', function()
      local out = values(2, nil, [[
         local x = tide.ones { 8 }
         local function step() comm:all_reduce(x * 1) comm:all_gather(x) return x end
         local before = comm:traffic()
         step()
         local one = comm:traffic()
         local graph = tide.cuda.graph(step, { warmup = 0 })
         local recorded = comm:traffic()
         for _ = 1, 3 do graph:replay() end
         local after = comm:traffic()
         tide.cuda.synchronize()
         local list = comm:history()
         local last = list[#list]
         return { one.ncall - before.ncall, recorded.ncall - one.ncall,
            after.ncall - recorded.ncall,
            after.nbyte[1] - recorded.nbyte[1] == 3 * (one.nbyte[1] - before.nbyte[1]), last.op }
      ]])
      for r = 1, 2 do assert.same({ 2, 0, 6, true, 'replay' }, out[r]) end
   end)

   it('may be several, of several communicators, and goes before they do', function()
      local out = values(4, nil, [[
         local part = comm:split(comm.rank % 2)
         local x = tide.ones { 4 }
         local function step(by)
            return function() return part:all_reduce(comm:all_reduce(x * by)) end
         end
         local a, b = tide.cuda.graph(step(1)), tide.cuda.graph(step(10), { warmup = 0 })
         local sums = {}
         for i = 1, 3 do
            x:fill_(i)
            sums[#sums + 1] = a:replay():tolist()[1] + b:replay():tolist()[1]
         end
         part:close()
         b:release()
         sums[#sums + 1] = a:replay():tolist()[1]
         part, b = nil, nil
         collectgarbage()
         return sums
      ]])
      for r = 1, 4 do assert.same({ 88, 176, 264, 24 }, out[r]) end
   end)
end)

describe('a captured step over ranks', function()
   it('refuses what the host does, and all ranks go on', function()
      local out = values(2, nil, [[
         local x, list, here = tide.ones { 4 }, {}, tide.ones({ 2 }, { device = 'cpu' })
         local there = here * 1
         local function try(fn)
            local good, e = pcall(tide.cuda.graph, function()
               local y = comm:all_reduce(x * 1)
               fn()
               return y
            end, { warmup = 0 })
            list[#list + 1] = good and 'recorded' or e.code .. ' ' .. tostring(e)
         end
         try(function() comm:barrier() end)
         try(function() comm:split(0) end)
         try(function() over:all_reduce(here) end)
         try(function() comm:all_gather_object(1) end)
         try(function() comm:send_recv(here, 1 - comm.rank, there, 1 - comm.rank) end)
         try(function() comm:all_reduce(here) end)
         try(function() comm:all_reduce(x * 1):sum():item() end)
         list[#list + 1] = comm:all_reduce(x * 1):sum():item()
         return list
      ]])
      for r = 1, 2 do
         for i = 1, 7 do assert.is_truthy(out[r][i]:find '^E_STATE', out[r][i]) end
         for _, i in ipairs { 3, 5, 6 } do
            assert.is_truthy(out[r][i]:find("'local' transport", 1, true), out[r][i])
         end
         assert.equal(8, out[r][8])
      end
   end)

   it('is kept by all ranks or by none', function()
      local out = values(2, nil, [[
         local x = tide.ones { 4 }
         local function try(fn)
            local good, e = pcall(tide.cuda.graph, fn, { warmup = 0 })
            return good and 'recorded' or e.code .. ' ' .. tostring(e)
         end
         local one = try(function()
            comm:all_reduce(x * 1)
            if comm.rank == 1 then error { code = 'here' } end
         end)
         local other = try(function()
            comm:all_reduce(x * 1)
            if comm.rank == 1 then comm:all_gather(x) end
         end)
         return { one, other, try(function() comm:all_reduce(x * 1) end) }
      ]])
      assert.is_truthy(out[1][1]:find('rank 1: failed', 1, true), out[1][1])
      assert.is_truthy(out[2][1]:find('^here'), out[2][1])
      for r = 1, 2 do
         assert.is_truthy(out[r][2]:find('collectives in the captured step', 1, true), out[r][2])
         assert.equal('recorded', out[r][3])
      end
   end)

   it('is watched: a rank that does not replay is a timeout, and ends the graph', function()
      local out = values(2, { timeout = 0.5 }, [[
         local x = tide.ones { 4 }
         local graph = tide.cuda.graph(function() return comm:all_reduce(x * 1) end)
         graph:replay()
         tide.cuda.synchronize()
         over:barrier()
         if comm.rank == 1 then over:barrier() return { 'waits' } end
         local good, e = pcall(function() return graph:replay():sum():item() end)
         local again, f = pcall(graph.replay, graph)
         graph:release()
         over:barrier()
         return { tostring(good), e.code, tostring(e), tostring(again), f.code }
      ]])
      local v = out[1]
      assert.same({ 'false', 'E_TIMEOUT', 'false', 'E_TIMEOUT' }, { v[1], v[2], v[4], v[5] })
      assert.is_truthy(v[3]:find('replay', 1, true), v[3])
   end)

   it('fails where a rank aborts, also while it is recorded', function()
      local out = values(2, { timeout = 20 }, [[
         local x = tide.ones { 4 }
         local graph = tide.cuda.graph(function() return comm:all_reduce(x * 1) end)
         graph:replay()
         repeat local list = comm:history() until list[#list].status == 'OK' -- seen to its end
         over:barrier()
         local good, e = pcall(tide.cuda.graph, function()
            local y = comm:all_reduce(x * 1)
            comm:abort 'enough'
            return comm:all_reduce(y * 1)
         end, { warmup = 0 })
         local again, f = pcall(graph.replay, graph)
         return { tostring(good), e.code, tostring(again), f.code, (x + x):sum():item() }
      ]])
      for r = 1, 2 do
         assert.same({ 'false', 'E_PEER', 'false', 'E_PEER', 8 }, out[r])
      end
   end)
end)

-- What a training step gives: losses and norms as text, the bits of the weights, the generator.
local train = [[
   local opts = select(4, ...) or {}
   local function dropped(model, p)
      local drop = tide.nn.Dropout(p)
      local inner = model.forward
      function model.forward(self, x) return drop:forward(inner(self, drop:forward(x))) end
      return model
   end
   local function regression()
      local a = tide.nn.Linear(6, 40, { seed = 5, device = 'cuda' })
      if opts.dropout then dropped(a, opts.dropout) end
      function a.loss(self, ids, _, o) return self:forward(ids):square():sum() * (1 / o.count) end
      return a
   end
   tide.seed(40 + comm.rank)
   local text = {}
   local function bits(state)
      local names = {}
      for name in require 'tide.util.each'(state) do names[#names + 1] = name end
      table.sort(names)
      for i, name in ipairs(names) do
         names[i] = name .. state[name]:detach():to('cpu'):to_string_bytes()
      end
      return require('tide.ffi.io').xxh64(table.concat(names))
   end
]]

local function alike(n, body, rows)
   for _, opts in ipairs(rows) do
      local runs = {}
      for k, captured in ipairs { false, true } do
         opts.captured = captured
         runs[k] = values(n, nil, train .. body, opts)
      end
      for r = 1, n do
         assert.is_true(#runs[1][r] > 3)
         assert.same(runs[1][r], runs[2][r])
      end
   end
end

describe('a captured training step over ranks', function()
   it('is refused where the host takes part in it', function()
      local out = values(2, nil, train .. [[
         local function try(o)
            local model = o.model or regression()
            local fsdp = o.fsdp and tide.parallel.fully_shard(model, o.fsdp)
            local good, e = pcall(tide.train.step.new, { model = model, parallel = fsdp,
               comm = o.comm, captured = true, optim = tide.optim.SGD(fsdp or model, { lr = 1 }) })
            text[#text + 1] = good and 'made' or e.code .. ' ' .. tostring(e)
         end
         try { comm = over }
         try { fsdp = { comm = over, device = 'cuda' } }
         try { fsdp = { comm = comm, device = 'cuda', check_for_nan_in_grad = true } }
         local case = require 'spec.parallel.fsdp_case'
         try { model = case.model(), fsdp = { comm = comm, device = 'cuda', cpu_offload = true,
            seed = 1 } }
         return text
      ]])
      for r = 1, 2 do
         for i, words in ipairs { "transport 'local'", "transport 'local'",
            'check_for_nan_in_grad', 'cpu_offload' } do
            assert.is_truthy(out[r][i]:find '^E_UNSUPPORTED', out[r][i])
            assert.is_truthy(out[r][i]:find(words, 1, true), out[r][i])
         end
      end
   end)
end)

describe('a captured training step over ranks', function()
   it('is refused where ranks use different parameters', function()
      local out = values(2, nil, train .. [[
         local model = regression()
         local forward = model.loss
         local unused = tide.nn.Linear(2, 1, { device = 'cuda', seed = 1 })
         model:child('other', unused)
         function model:loss(...)
            local loss = forward(self, ...)
            local one = tide.ones({ 1, 2 }, { device = "cuda" })
            if comm.rank == 1 then loss = loss + unused(one):sum() end
            return loss
         end
         local step = tide.train.step.new { model = model, comm = comm, captured = true,
            optim = tide.optim.SGD(model, { lr = 1 }) }
         local x = tide.ones { 4, 6 }
         local good, e = pcall(step.run, step, { { ids = x, count = 4 } })
         return good and 'ran' or e.code .. ' ' .. tostring(e)
      ]])
      for r = 1, 2 do
         assert.is_truthy(out[r]:find "^E_UNSUPPORTED.*rank 0 has no gradient of 'other", out[r])
      end
   end)
end)

describe('a captured training step over ranks has the bits of the ordinary one:', function()
   local dp = [[
      local model = regression()
      local optim = tide.optim.AdamW(model, { lr = function(s) return 0.01 * s / (s + 3) end })
      local step = tide.train.step.new { model = model, optim = optim, comm = comm,
         clip = opts.clip, captured = opts.captured }
      local function batch(i)
         local x = tide.arange(24):reshape(4, 6):to 'f32' * 0.01 + 0.1 * i + comm.rank
         return { ids = x, count = 4 }
      end
      for i = 1, 6 do
         local batches = {}
         for k = 1, opts.accum do batches[k] = batch(i * k) end
         if opts.bad == i and comm.rank == 1 then batches[1].ids:fill_(0 / 0) end
         local r = step:run(batches)
         text[#text + 1] = ('%.17g %.17g %s'):format(r.loss, r.grad_norm, tostring(r.applied))
         if not r.applied then step:skip() end
      end
      text[#text + 1] = bits(model:state_dict())
      text[#text + 1] = tostring(optim.steps)
      text[#text + 1] = tostring(tide.rng_state().offset)
      return text
   ]]
   for _, n in ipairs(wide and { 2, 4 } or { 2 }) do
      it(('data parallel on %d ranks'):format(n), function()
         alike(n, dp, { { accum = 2, clip = 0.5 }, { accum = 1, clip = 0, dropout = 0.3 } })
      end)
   end

   it('data parallel, with a number that is not finite on one rank', function()
      alike(2, dp, { { accum = 2, clip = 1, bad = 1 }, { accum = 1, clip = 1, bad = 4 } })
   end)

   local fsdp = [[
      local case = require 'spec.parallel.fsdp_case'
      local r = case.train { steps = 4, rows = 4, accum = opts.accum, clip = 0.3,
         recompute = opts.recompute,
         fsdp = { comm = comm, device = 'cuda', strategy = opts.strategy, nccl_ub = opts.nccl_ub,
            mp_policy = opts.mp }, captured = opts.captured,
         before = function(run)
            if opts.dropout then
               for _, m in ipairs(run.model.model.layers) do dropped(m.mlp, opts.dropout) end
            end
         end,
         after = function(run, s)
            if s ~= 3 then return end
            local function make() return case.batch(9, comm.rank, comm.size, 4) end
            text[#text + 1] = ('%.17g'):format(run.run:evaluate({ 1, 2 }, 1, make))
         end }
      for s = 1, 4 do text[#text + 1] = ('%.17g %.17g'):format(r.losses[s], r.norms[s]) end
      text[#text + 1] = bits(r.sharded:full_state_dict())
      text[#text + 1] = tostring(tide.rng_state().offset)
      return text
   ]]
   for _, strategy in ipairs(wide and { 'no_shard', 'optim', 'optim_grads', 'optim_grads_params' }
      or {})
   do
      it('fully sharded on 2 ranks, strategy ' .. strategy, function()
         alike(2, fsdp, { { strategy = strategy, accum = 2 } })
      end)
   end
   it('fully sharded, with recomputation and dropout', function()
      alike(wide and 4 or 2, fsdp, { { strategy = 'optim_grads_params', accum = 2, recompute = 1,
         dropout = 0.2 } })
   end)

   local tp = [[
      local shape = comm.size == 2 and { { 'tp', 2 } } or { { 'dp_shard', 2 }, { 'tp', 2 } }
      local mesh = tide.parallel.mesh(shape, { comm = comm })
      local case = require 'spec.parallel.fsdp_case'
      local model = case.model { device = 'cuda', config = { vocab_size = 38,
         intermediate_size = 28, hidden_size = 16 } }
      tide.parallel.tensor_parallel(model, mesh:axis 'tp', opts.tp)
      local sharded = #shape > 1 and tide.parallel.fully_shard(model,
         { mesh = mesh, strategy = opts.strategy, device = 'cuda' }) or nil
      local optim = tide.optim.AdamW(sharded or model, { lr = 1e-2 })
      local step = tide.train.step.new { model = model, optim = optim, parallel = sharded,
         comm = not sharded and tide.comm.solo() or nil, clip = sharded and 0.4 or 0,
         captured = opts.captured }
      local data = sharded and sharded.data_comm or tide.comm.solo()
      for s = 1, 5 do
         local batches = {}
         for k = 1, 2 do batches[k] = case.batch(10 * s + k, data.rank, data.size, 4) end
         local r = step:run(batches)
         text[#text + 1] = ('%.17g %.17g'):format(r.loss, r.grad_norm)
      end
      if sharded then
         text[#text + 1] = bits(sharded:state_dict())
      else
         text[#text + 1] = bits(model:state_dict())
      end
      return text
   ]]
   -- Each step has documents of other lengths, where it has any; rows of other lengths are refused.
   local cp = [[
      local config = { vocab_size = 29, hidden_size = 16, num_hidden_layers = 1,
         num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 8 }
      local model = tide.model.llama(config, { device = 'cuda', seed = 3 })
      local handle = tide.parallel.cp.attach(model, comm, { method = opts.method,
         layout = opts.layout })
      local step = tide.train.step.new { model = model, comm = comm, clip = 0.4,
         captured = opts.captured, optim = tide.optim.AdamW(model, { lr = 1e-2 }) }
      local function batch(s, S)
         local ids, index = {}, {}
         for b = 1, 2 do
            ids[b], index[b] = {}, {}
            for i = 0, S - 1 do
               local cut = opts.docs and 3 + (s + b) % 5 or S
               ids[b][i + 1] = (7 * i * i + 3 * s * i + s + b) % 29
               index[b][i + 1] = { i < cut and 0 or 1, i < cut and i or i - cut }
            end
         end
         local t = tide.tensor(ids, { dtype = 'i64' }):to 'cuda'
         return { ids = t, labels = t:roll(-1, 2), count = 2 * S,
            index = opts.docs and tide.tensor(index, { dtype = 'i32' }):to 'cuda' or nil }
      end
      for s = 1, 4 do
         local r = step:run { batch(s, 13), batch(s + 9, 13) }
         text[#text + 1] = ('%' .. opts.form .. ' %' .. opts.form):format(r.loss, r.grad_norm)
      end
      if opts.form == '.17g' then text[#text + 1] = bits(model:state_dict()) end
      if opts.captured then
         local good, e = pcall(step.run, step, { batch(1, 15), batch(2, 13) })
         assert(not good and e.code == 'E_STATE' and tostring(e):find('fixed lengths', 1, true),
            tostring(e))
      end
      return text
   ]]
   for _, n in ipairs(wide and { 2, 4 } or { 2 }) do
      it(('one sequence over %d ranks'):format(n), function()
         alike(n, cp, { { method = 'ring', form = '.17g' },
            wide and n == 2 and { method = 'allgather', form = '.17g', docs = true,
               layout = 'contiguous' } or nil })
      end)
   end
   it('one sequence over 2 ranks, heads exchanged', function()
      alike(2, cp, { { method = 'a2a', form = '.17g', docs = true } })
   end)
   -- the ring of the recording moves all rows, so that sums are grouped otherwise
   if wide then
      it('one sequence over 2 ranks, a ring with documents, but for rounding', function()
         alike(2, cp, { { method = 'ring', form = '.4g', docs = true } })
      end)
   end

   it('cut over a tensor-parallel axis', function()
      alike(2, tp, { { tp = { sequence_parallel = true } }, wide and {} or nil,
         wide and { tp = { sequence_parallel = true, async_tp = true } } or nil })
   end)
   if wide then
      it('cut and sharded on 4 ranks', function()
         alike(4, tp, { { strategy = 'optim_grads_params' } })
      end)
   end

   it('cut, and the device tells of a token that is none', function()
      local out = values(2, nil, train .. [[
         local mesh = tide.parallel.mesh({ { 'tp', 2 } }, { comm = comm })
         local case = require 'spec.parallel.fsdp_case'
         local model = case.model { device = 'cuda', config = { vocab_size = 38 } }
         tide.parallel.tensor_parallel(model, mesh:axis 'tp')
         local step = tide.train.step.new { model = model, comm = tide.comm.solo(), captured = true,
            optim = tide.optim.SGD(model, { lr = 0.1 }) }
         for s = 1, 4 do
            local batch = case.batch(s, 0, 1, 2)
            if s == 4 then batch.ids:fill_(38) end
            local good, e = pcall(step.run, step, { batch })
            text[s] = good and 'ran' or e.code .. ' ' .. tostring(e)
         end
         return text
      ]])
      for r = 1, 2 do
         assert.same({ 'ran', 'ran', 'ran' }, { unpack(out[r], 1, 3) })
         assert.is_truthy(out[r][4]:find '^E_ARG', out[r][4])
         assert.is_truthy(out[r][4]:find('index 38', 1, true), out[r][4])
      end
   end)

   it('fully sharded, in two dtypes and from buffers that NCCL knows', function()
      alike(2, fsdp, { { nccl_ub = true, accum = 1, mp = { param_dtype = 'bf16' } } })
   end)
end)
