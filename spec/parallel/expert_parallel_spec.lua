-- Expert parallelism: ranks keep some experts of each layer, and tokens travel (fully_shard's
-- ep_size). What one rank computes is the oracle.

local copy = require 'tide.util.copy'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'

local folders = dofile 'spec/golden/folders.lua'
local same = require('spec.parallel.folder_steps').same

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
         s.over.dealt.shards, s.over.dealt.replicas } do comms[comm] = true end
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
