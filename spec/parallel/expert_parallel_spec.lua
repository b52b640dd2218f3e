-- Expert parallelism: ranks keep some experts of each layer, and tokens travel (fully_shard's
-- ep_size). What one rank computes is the oracle.

local case = require 'spec.lua.folder_case'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'

local folders = dofile 'spec/golden/folders.lua'
local ids = { { 3, 1, 4, 1, 5, 9, 2, 6, 5, 2 }, { 2, 7, 1, 8, 2, 8, 1, 8, 2, 4 },
   { 1, 4, 1, 4, 2, 1, 3, 5, 6, 9 }, { 5, 7, 7, 2, 1, 5, 6, 6, 4, 3 } }

-- On a rank: two steps of each run of a list. o: mesh, fsdp, tp, recompute (of the plan), optim,
-- accum; nf4: adapters are trained on codes; save: a folder in which the run leaves a checkpoint
-- after its first step; resume: it has its second step alone, from there. The oracle (o.oracle)
-- writes all tensors to a file; the last rank of the others compares its own with it. Returns loss,
-- norm, and by how much tensors are off, for each run.
local function train(rank, _, dir, list, rows)
   local t, io = require 'tide', require('tide').util.fs.io()
   local each_of, path, results = require 'tide.util.each', dir .. '/all.safetensors', {}

   local function add(all, sharded, before)
      for name, v in each_of(sharded:full_state_dict()) do all[before .. name] = v end
   end
   local function begin(o, all)
      local plan = { fsdp = o.fsdp, tp = o.tp, recompute = o.recompute }
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

local function with_folder(name, fn)
   tmp.with(function(dir)
      tide.model.save(case.model(folders[name], { dtype = 'f64' }), dir .. '/m')
      fn(dir .. '/m')
   end)
end

-- Compares runs with the oracle. lists: by number of ranks, the options of train of each run, with
-- its name; base: options of all of them.
local function same(name, lists, base, tol)
   with_folder(name, function(dir)
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

local function ep(k, more) return copy(more or {}, { ep_size = k }) end

-- On a rank: what a price says that a step sends, and what it sends. A token uses both experts, so
-- every rank gets as many rows.
local function sends(rank, n, list)
   local t, out = require 'tide', {}
   for i, o in ipairs(list) do
      local model = t.model.qwen3_moe({ vocab_size = 16, hidden_size = 8, num_hidden_layers = 1,
         num_attention_heads = 2, num_key_value_heads = 2, moe_intermediate_size = 8,
         num_experts = 2, num_experts_per_tok = 2 }, { device = 'null' })
      local plan = t.parallel.plan(model, o.mesh, { recompute = o.recompute, fsdp = {
         ep_size = 2, strategy = o.strategy } })
      local price, run = plan:price { batch = 1, seq = 6, rank = rank }, plan:materialise()
      local s, comms = run.sharded, {}
      for _, comm in ipairs { s.comm, s.shard_comm, s.replicas, s.data_comm, s.ep.comm,
         s.of_experts.shards, s.of_experts.replicas } do comms[comm] = true end
      local function traffic()
         local sum = 0
         for comm in pairs(comms) do
            local nbyte = comm:traffic().nbyte
            sum = sum + nbyte[1] + nbyte[2]
         end
         return sum
      end
      local function step()
         local row = t.zeros({ 1, 6 }, { dtype = 'i64' })
         run.model:loss(row, row, { count = 6 * n }):backward()
         s:finish()
         s:updated()
      end
      step()
      local before = traffic()
      step()
      out[i] = { price.wire, traffic() - before }
   end
   return out
end

-- On a rank: errors about a model whose experts are dealt out.
local function misuse(rank, _, dir)
   local t, said = require 'tide', {}
   local model = t.model.qwen3_moe({ vocab_size = 8, hidden_size = 8, num_hidden_layers = 1,
      num_attention_heads = 2, num_key_value_heads = 2, moe_intermediate_size = 4,
      num_experts = 2, num_experts_per_tok = 1 })
   local opts = { ep_size = 2, strategy = 'no_shard' }
   local sharded = t.parallel.fully_shard(model, nil, opts)
   local optim = t.optim.SGD(sharded, { lr = 0.1 })
   local function bad(...)
      local ok, e = pcall(...)
      said[#said + 1] = ok and 'none' or tostring(e)
   end
   bad(t.model.save, model, dir .. '/m' .. rank)
   bad(t.train.state.collect, { model = model, optim = optim, step = 1 })
   sharded:close()
   bad(t.parallel.fully_shard, model, nil, opts)
   bad(t.parallel.fully_shard, model)
   return said
end

-- On a rank: outputs before and after a step, and the names of the weights, of two layers that are
-- one module (how: 'module'), or have the same experts ('experts').
local function shared(rank, n, k, how)
   local t = require 'tide'
   local Two, fields = t.class('Two', t.nn.Module), { 'gate_proj', 'up_proj', 'down_proj' }
   function Two:init(a, b)
      t.nn.Module.init(self)
      self:child('a', a)
      self:child('b', b)
   end
   function Two:forward(x) return self.b(self.a(x)) end
   local function layer() return t.nn.MoE { dim = 4, hidden = 3, experts = 4, topk = 2,
      seed = 3, std = 1, dtype = 'f64' } end
   local a, b = layer(), layer()
   for _, field in ipairs(how == 'experts' and fields or {}) do b[field] = a[field] end
   local model = Two(a, how == 'module' and a or b)
   local sharded = t.parallel.fully_shard(model, nil, { ep_size = k })
   local optim = t.optim.SGD(sharded, { lr = 0.05 })
   local x = t.arange(32, { dtype = 'f64' }):sin():reshape(8, 4):narrow(1, rank * 8 / n + 1, 8 / n)
   local function run() return model(x):square():sum() end
   local first, names = run(), {}
   first:backward()
   sharded:finish()
   optim:step()
   for name in pairs(sharded:full_state_dict()) do names[#names + 1] = name end
   table.sort(names)
   return { first:item(), run():item(), table.concat(names, ' ') }
end

-- On a rank: the rows that Sharded:unsharded gives of a weight that tensor parallelism cuts over an
-- axis of the name 'ep'.
local function rows_of_namesake()
   local t = require 'tide'
   local model = t.model.qwen2 { vocab_size = 8, hidden_size = 8, num_hidden_layers = 1,
      num_attention_heads = 2, num_key_value_heads = 2, intermediate_size = 8 }
   local mesh = t.parallel.mesh { { 'dp_shard', 1 }, { 'ep', 2 } }
   t.parallel.tensor_parallel(model, mesh:axis 'ep')
   local sharded = t.scope(t.parallel.fully_shard, model, mesh)
   return sharded:unsharded(model:get 'model.layers.0.mlp.up_proj', 'weight'):size(1)
end

-- On a rank: one rank runs a model that is whole on all.
local function alone(rank)
   local t = require 'tide'
   local model = t.model.qwen3_moe { vocab_size = 8, hidden_size = 8, num_hidden_layers = 1,
      num_attention_heads = 2, num_key_value_heads = 2, moe_intermediate_size = 4,
      num_experts = 2, num_experts_per_tok = 1 }
   t.scope(t.parallel.fully_shard, model, nil, { ep_size = 2 })     -- what it makes stays
   model(t.zeros({ 1, 2 }, { dtype = 'i64' }))
   t.parallel.unshard_fsdp2_model(model, function()
      if rank == 0 then model(t.zeros({ 1, 2 }, { dtype = 'i64' })) end
   end)
end

describe('ep_size', function()
   it('ends with an error where one rank runs alone', function()
      ranks.fail(2, alone, 'ranks disagree about call')      -- the group is all ranks
      ranks.fail(4, alone, 'ranks wait for each other')
   end)

   it('takes no part of tensor parallelism for experts, whatever the name of its axis', function()
      assert.same({ 4, 4 }, ranks.run(2, rows_of_namesake))
   end)

   it('leaves shared what modules share', function()
      for _, how in ipairs { 'module', 'experts' } do
         local want, got = ranks.run(2, shared, 1, how), ranks.run(2, shared, 2, how)
         for r = 1, 2 do
            for i = 1, 2 do assert.near(want[r][i], got[r][i], 1e-10 * want[r][i], how) end
            assert.equal(want[r][3], got[r][3])
         end
      end
   end)

   it('has the price of what it sends', function()
      local list = {}
      for _, strategy in ipairs { 'optim_grads_params', 'no_shard' } do
         list[#list + 1] = { strategy = strategy, mesh = { dp_shard = 4 }, recompute = 'full' }
         list[#list + 1] = { strategy = strategy, mesh = { dp_replicate = 2, dp_shard = 2 } }
      end
      for r, rows in ipairs(ranks.run(4, sends, list)) do
         for i, row in ipairs(rows) do
            assert.equal(row[1], row[2], ('run %d, rank %d'):format(i, r - 1))
         end
      end
   end)

   it('leaves a model that is not saved, trained or sharded as if it were whole', function()
      tmp.with(function(dir)
         for _, said in ipairs(ranks.run(2, misuse, dir)) do
            for i = 1, 2 do
               assert.matches('cut over 2 ranks, and this one has some of its experts', said[i], 1,
                  true)
            end
            for i = 3, 4 do
               assert.matches("the experts of 'model.layers.0.mlp' lie on 2 ranks already", said[i],
                  1, true)
            end
         end
      end)
   end)

   it('gives the numbers of one rank on every mesh', function()
      same('qwen3_moe', {
         [3] = { { name = 'uneven', mesh = { cp = 3 }, fsdp = ep(3) } },
         [4] = {
            { name = 'ep 2', mesh = { dp_shard = 4 }, fsdp = ep(2) },
            { name = 'replicas', mesh = { dp_replicate = 2, dp_shard = 2 }, fsdp = ep(2) },
            { name = 'cp', mesh = { dp_shard = 2, cp = 2 }, fsdp = ep(4) },
            { name = 'tp', mesh = { dp_shard = 2, tp = 2 }, fsdp = ep(2),
               tp = { sequence_parallel = true } },
         },
      })
   end)

   it('works with every strategy, accumulation, recomputation and means in the collective',
      function()
         local halves = { dp_replicate = 2, dp_shard = 2 }
         same('qwen3_moe', {
            [2] = {
               { name = 'optim_grads', mesh = { dp_shard = 2 },
                  fsdp = ep(2, { strategy = 'optim_grads' }) },
               { name = 'accumulated', mesh = { dp_shard = 2 }, accum = 2,
                  fsdp = ep(2, { sync_each_backward = false }) },
            },
            [4] = {
               { name = 'no_shard', mesh = halves, fsdp = ep(2, { strategy = 'no_shard' }) },
               { name = 'optim, recomputed', mesh = halves, recompute = 'full',
                  fsdp = ep(2, { strategy = 'optim' }) },
               { name = 'means', mesh = { dp_shard = 4 },
                  fsdp = ep(2, { reshard_after_forward = 2, calculate_per_token_loss = false,
                     average_in_collective = true }) },
            },
         })
      end)

   it('serves biases of experts, latent widths, shared experts with a gate and hybrids', function()
      for _, name in ipairs { 'gpt_oss', 'nemotron_moe_latent', 'qwen3_next' } do
         same(name, { [2] = { { name = 'ep 2', mesh = { dp_shard = 2 }, fsdp = ep(2) } } })
      end
   end)

   it('takes the norm over the ranks of each part, whatever the name of an axis', function()
      same('gpt_oss', { [4] = { { name = 'tp over an axis ep', fsdp = ep(2), tp = { axis = 'ep' },
         mesh = { { 'dp_shard', 2 }, { 'ep', 2 } } } } })
   end)

   it('updates whole matrices', function()
      same('qwen3_moe', { [4] = { { name = 'Muon', mesh = { dp_shard = 4 }, fsdp = ep(2) } } },
         { optim = 'Muon' })
   end)

   it('resumes a checkpoint with any other', function()
      tmp.with(function(dir)
         local function run(name, k, more)
            return copy(more, { name = name, mesh = { dp_shard = 4 }, fsdp = ep(k) })
         end
         same('qwen3_moe', { [4] = {
            run('written', 2, { save = dir .. '/a' }), run('2 to 4', 4, { resume = dir .. '/a' }),
            run('2 to none', 1, { resume = dir .. '/a' }),
            run('written without', 1, { save = dir .. '/b' }),
            run('none to 2', 2, { resume = dir .. '/b' }),
         } }, { optim = 'AdamW' })
      end)
   end)

   it('keeps the codes of its experts in NF4, and trains adapters', function()
      same('qwen3_moe', { [4] = { { name = 'NF4', mesh = { dp_shard = 2, tp = 2 },
         fsdp = ep(2) } } }, { nf4 = true }, 2e-6)
   end)

   it('refuses what it cannot do', function()
      local model = tide.model.qwen3_moe(tide.json.decode(folders.qwen3_moe.config),
         { device = 'null' })
      local E = model.config.num_experts
      local function plan(n, k, m)
         return tide.parallel.plan(m or model, { dp_shard = n }, { ranks = n,
            fsdp = { ep_size = k } })
      end
      refused('E_ARG', { 'ep_size (3)', 'divide the number of ranks', 'which is 4;' }, plan, 4, 3)
      refused('E_ARG', { 'ep_size (' .. 2 * E .. ')', E .. ' experts' }, plan, 2 * E, 2 * E)
      local dense = tide.model.llama({ vocab_size = 8, hidden_size = 8, num_hidden_layers = 1,
         num_attention_heads = 2, intermediate_size = 8 }, { device = 'null' })
      refused('E_ARG', { 'ep_size (2)', 'no experts' }, plan, 2, 2, dense)
      refused('E_ARG', { 'ep_size' }, plan, 2, 0)
   end)
end)
