-- Pipeline parallelism: stages of neighbouring blocks, and one forward and one backward at a time.
-- What one rank computes is the oracle.

local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local schedule = require 'tide.parallel.pipeline.schedule'
local split = require 'tide.parallel.pipeline.split'
local same = require('spec.parallel.folder_steps').same
local tide = require 'tide'
local tmp = require 'spec.support.tmp'

local shape = { vocab_size = 61, hidden_size = 16, num_hidden_layers = 4, num_attention_heads = 4,
   num_key_value_heads = 2, intermediate_size = 24, max_position_embeddings = 32 }

-- ---- the order ---------------------------------------------------------------------------------

-- Runs the programs of all ranks, each exchange of two neighbours at once. Checks that both mean
-- the same by it, that what an event needs has arrived, and that each rank forgets nothing. Returns
-- the most forwards that each rank keeps for backwards; raises if ranks wait for each other.
local function simulate(o)
   local size, lists, at, kept, most, arrived = o.size, {}, {}, {}, {}, {}
   local last = size * o.virtual - 1
   local function stage(rank, e) return (e.part - 1) * size + rank end
   local function name(kind, e, s) return ('%s %d of stage %d'):format(kind, e.i, s) end
   for r = 0, size - 1 do
      lists[r], at[r], kept[r], most[r + 1] = schedule.program(r, o), 1, 0, 0
   end
   local function compute(r, e)
      local s, is_forward = stage(r, e), e.kind == 'forward'
      if is_forward and s > 0 then assert.is_true(arrived[name('x', e, s)]) end
      if not is_forward and s < last then assert.is_true(arrived[name('g', e, s)]) end
      if is_forward then arrived[name('f', e, s)] = true
      else assert.is_true(arrived[name('f', e, s)]) end
      if is_forward then kept[r] = kept[r] + 1
      elseif s >= o.first then kept[r] = kept[r] - 1 end
      most[r + 1] = math.max(most[r + 1], kept[r])
   end
   -- a: the rank before b; x goes from a to b, g from b to a, as each of the two names it
   local function meet(a, b, mine, other)
      local x, x_there = mine.send, other.receive
      local g, g_there = other.send, mine.receive
      assert.equal(x and name('x', x, stage(a, x) + 1),
         x_there and name('x', x_there, stage(b, x_there)))
      assert.equal(g and name('g', g, stage(b, g) - 1),
         g_there and name('g', g_there, stage(a, g_there)))
      if x then arrived[name('x', x, stage(a, x) + 1)] = true end
      if g then arrived[name('g', g, stage(b, g) - 1)] = true end
   end
   local function step(r)
      local e = lists[r][at[r]]
      if not e then return false end
      if e.kind ~= 'exchange' then
         compute(r, e)
         at[r] = at[r] + 1
         return true
      end
      local b = (r + 1) % size
      local other = lists[b][at[b]]
      if e.with ~= 'after' or not other or other.with ~= 'before' then return false end
      meet(r, b, e, other)
      at[r], at[b] = at[r] + 1, at[b] + 1
      return true
   end
   local moved = true
   while moved do
      moved = false
      for r = 0, size - 1 do moved = step(r) or moved end
   end
   for r = 0, size - 1 do
      assert.equal(#lists[r] + 1, at[r], ('rank %d of %d waits, %d micro-batches'):format(r, size,
         o.n))
   end
   return most
end

-- Returns the computations of a program as text.
local function shown(program)
   local text = {}
   for _, e in ipairs(program) do
      if e.kind ~= 'exchange' then
         text[#text + 1] = (e.kind == 'forward' and 'F' or 'B') .. e.i
            .. (e.part > 1 and ("'"):rep(e.part - 1) or '')
      end
   end
   return table.concat(text, ' ')
end

describe('the order of micro-batches', function()
   it('lets no rank wait for one that waits for it, and keeps few of them', function()
      for size = 2, 5 do
         for n = 1, 9 do
            for first = 0, size do
               local most = simulate { size = size, virtual = 1, n = n, first = first }
               for r = first, size - 1 do
                  assert.is_true(most[r + 1] <= math.min(n, size - r))
               end
            end
         end
      end
   end)

   it('serves virtual stages, whatever the number of micro-batches', function()
      for size = 2, 4 do
         for virtual = 2, 3 do
            for _, n in ipairs { 1, 2, 3, 4, 5, 7, 8, 11 } do
               for _, first in ipairs { 0, 1, size, size * virtual } do
                  simulate { size = size, virtual = virtual, n = n, first = first }
               end
            end
         end
      end
   end)

   it('is one forward and one backward at a time', function()
      assert.equal('F1 F2 B1 F3 B2 F4 B3 B4',
         shown(schedule.program(1, { size = 3, virtual = 1, n = 4, first = 0 })))
      assert.equal("F1 F2 F1' F2' F3 B1' F4 B2' F3' B1 F4' B2 B3' B4' B3 B4",
         shown(schedule.program(0, { size = 2, virtual = 2, n = 4, first = 0 })))
   end)

   it('leaves ranks waiting hardly longer than they must', function()
      for _, row in ipairs { { 4, 1, 8 }, { 4, 2, 8 }, { 2, 4, 2 }, { 8, 3, 32, 1.01 },
         { 2, 2, 7 }, { 2, 3, 31 } } do
         local size, virtual, n, factor = unpack(row)
         local least = (virtual * n + size - 1) / (virtual * n)       -- of the time of the work
         local idle = schedule.idle { size = size, virtual = virtual, n = n, first = 0 }
         assert.is_true(1 / (1 - idle) <= least * (factor or 1 + 1e-12))
      end
   end)
end)

describe('the blocks of stages', function()
   local function counts(costs, size, last, least)
      return table.concat(split.by_cost(costs, size, { last = last, least = least or 1 }), ' ')
   end

   it('share the work', function()
      assert.equal('2 2 2', counts({ 1, 1, 1, 1, 1, 1 }, 3, 0))
      assert.equal('2 3 1', counts({ 1, 1, 1, 1, 1, 1 }, 3, 2))
      assert.equal('1 3', counts({ 9, 1, 1, 1 }, 2, 1))
      assert.equal('3 1', counts({ 9, 1, 1, 1 }, 2, 1, 3))
      assert.equal('1 1 1', counts({ 0, 0, 0 }, 3, 0))
   end)

   it('have the least largest work of all splits', function()
      local random = 7
      for _ = 1, 60 do
         local costs, n = {}, 0
         local function draw(k)
            random = (random * 1103515245 + 12345) % 2^31
            return math.floor(random / 2^16) % k
         end
         for i = 1, 3 + draw(5) do costs[i], n = draw(7), i end
         local size, last = 1 + draw(n), draw(9)
         local best = math.huge
         local function try(s, at, worst)               -- all splits
            if s == size then
               local sum = last
               for i = at, n do sum = sum + costs[i] end
               best = math.min(best, math.max(worst, sum))
               return
            end
            local sum = 0
            for i = at, n - (size - s) do
               sum = sum + costs[i]
               try(s + 1, i + 1, math.max(worst, sum))
            end
         end
         try(1, 1, 0)
         local at, worst = 1, 0
         for s, k in ipairs(split.by_cost(costs, size, { last = last, least = 1 })) do
            local sum = s == size and last or 0
            for i = at, at + k - 1 do sum = sum + costs[i] end
            at, worst = at + k, math.max(worst, sum)
         end
         assert.equal(n + 1, at)
         assert.equal(best, worst)
      end
   end)
end)

-- ---- training ----------------------------------------------------------------------------------

-- On a rank: a step of a loop of one's own: loss, whether it is the same after a second call
-- without gradients, logits and log-probabilities, and the norm of the gradients.
local function by_hand(_, _, config, mesh, virtual)
   local t = require 'tide'
   local model = t.model.llama(config, { dtype = 'f64', device = 'null' })
   local run = t.parallel.plan(model, mesh, { fsdp = {}, pp = virtual and { virtual = virtual } })
      :materialise { seed = 3 }
   local ids = t.tensor({ { 3, 1, 4, 1, 5 }, { 9, 2, 6, 5, 3 } }, { dtype = 'i64' })
   local labels = t.nn.loss.shift(ids)
   local loss = run.model:loss(ids, labels, { count = 8 })
   loss:backward()
   run.sharded:finish()
   local norm = t.parallel.clip.norm(run.sharded):item()
   run.sharded:updated()
   local z, p = t.no_grad(function()
      return run.model(ids), run.model:label_logprobs(ids, labels)
   end)
   local again = t.no_grad(function() return run.model:loss(ids, labels, { count = 8 }) end)
   local scores = t.no_grad(function()
      return run.model:logprobs(ids, t.tensor({ 0, 3 }, { dtype = 'i64' }),
         t.tensor({ 1, 5 }, { dtype = 'i64' }))
   end)
   return { loss:item(), again:item(), norm, z:square():sum():item(), p:sum():item(),
      scores:sum():item(), run.model:flops_per_token(5) }
end

-- On a rank: the loss of a call of a model with experts, which has a term of each layer.
local function balanced_by_hand(_, _, config, mesh, virtual)
   local t = require 'tide'
   local run = t.parallel.plan(t.model.qwen3_moe(config, { dtype = 'f64', seed = 3 }), mesh,
      { fsdp = {}, pp = virtual and { virtual = virtual } }):materialise()
   local ids = t.tensor({ { 3, 1, 4, 1, 5 } }, { dtype = 'i64' })
   return run.model:train():loss(ids, ids, { shift = true }):item()
end

-- On a rank: what a price says, and what a step sends and keeps, of each run of a list.
local function measured(rank, _, config, list)
   local t, out = require 'tide', {}
   local function measure(o)
      config.tie_word_embeddings = o.tie
      local plan = t.parallel.plan(t.model.llama(config, { device = 'null' }), o.mesh,
         { recompute = o.recompute, fsdp = o.fsdp, pp = o.virtual and { virtual = o.virtual } })
      local price = plan:price { batch = 2, seq = 32, rank = rank, accum = o.accum }
      local run = plan:materialise()
      local s, stage, comms = run.sharded, run.stage, {}
      for _, link in ipairs(stage:links()) do comms[link.comm] = true end
      for _, comm in ipairs { s.shard_comm, s.replicas, s.over.tied and s.over.tied.replicas } do
         comms[comm] = true
      end
      local step = t.train.step.new { model = run.model:train(), parallel = s, comm = run.comm,
         optim = t.optim.AdamW(run.params, { lr = 1e-3 }) }
      local function one()
         local batches, before = {}, 0
         for comm in pairs(comms) do
            local nbyte = comm:traffic().nbyte
            before = before + nbyte[1] + nbyte[2]
         end
         for k = 1, o.accum do
            local ids = t.zeros({ 2, 32 }, { dtype = 'i64' })
            batches[k] = { ids = ids, labels = ids }
         end
         step:run(batches)
         local sum = 0
         for comm in pairs(comms) do
            local nbyte = comm:traffic().nbyte
            sum = sum + nbyte[1] + nbyte[2]
         end
         return sum - before
      end
      one()
      collectgarbage()
      collectgarbage()
      t.default():reset_peak()
      return { price.wire, one(), price.peak, t.default():stats().peak }
   end
   for i, o in ipairs(list) do
      out[i] = measure(o)
      collectgarbage()
      collectgarbage()
   end
   return out
end

-- On a rank: errors of calls that a stage cannot answer.
local function misuse(_, _, config)
   local t, said = require 'tide', {}
   local function bad(fn, ...)
      local ok, e = pcall(fn, ...)
      said[#said + 1] = ok and 'none' or tostring(e)
   end
   local mesh = t.parallel.mesh { { 'pp', 2 } }
   local model = t.model.llama(config)
   bad(t.parallel.pipeline_parallel, model.model, mesh:axis 'pp')
   local stage = t.parallel.pipeline_parallel(model, mesh:axis 'pp')
   bad(t.parallel.pipeline_parallel, model, mesh:axis 'pp')
   bad(t.train.step.new, { model = model, optim = t.optim.SGD(model, { lr = 1 }) })
   bad(model.hidden, model, t.zeros({ 1, 2 }, { dtype = 'i64' }))
   bad(t.parallel.tensor_parallel, model, mesh:axis 'pp')
   bad(t.parallel.cp.attach, model, mesh:axis 'pp')
   bad(t.model.save, model, '/nowhere')
   bad(t.parallel.fully_shard, model, mesh:axis 'pp')
   bad(stage.begin, stage, {}, stage.rank)
   return said
end

-- On a rank: a step in which the stages get other batches.
local function others(rank)
   local t = require 'tide'
   local model = t.model.llama({ vocab_size = 8, hidden_size = 8, num_hidden_layers = 2,
      num_attention_heads = 2, intermediate_size = 8 }, { device = 'null' })
   local run = t.parallel.plan(model, { pp = 2 }):materialise()
   local step = t.train.step.new { model = run.model, parallel = run.sharded, comm = run.comm,
      optim = t.optim.SGD(run.params, { lr = 1 }) }
   local ids = t.full({ 1, 4 }, rank, { dtype = 'i64' })
   step:run { { ids = ids, labels = ids } }
end

local function on(name, mesh, more) return copy(more or {}, { name = name, mesh = mesh }) end

describe('pp', function()
   it('gives the numbers of one rank on every mesh', function()
      same('granite_tied', {
         [2] = { on('two stages', { pp = 2 }, { accum = 4 }),
            on('one micro-batch', { pp = 2 }, { pp = { layers = { 1, 2 } } }) },
         [3] = { on('three stages', { pp = 3 }, { accum = 2 }) },
         [4] = {
            on('dp', { pp = 2, dp = 2 }, { accum = 2 }),
            on('tp', { pp = 2, tp = 2 }, { tp = { sequence_parallel = true }, accum = 2 }),
            on('cp', { pp = 2, cp = 2 }, { accum = 2 }),
            on('shards', { pp = 2, dp_shard = 2 }, { accum = 2, recompute = 'full' }),
            on('optim_grads', { pp = 2, dp_shard = 2 }, { accum = 2,
               fsdp = { strategy = 'optim_grads', sync_each_backward = false } }),
            on('offload', { pp = 2, dp_shard = 2 }, { accum = 2, recompute = 'selective',
               fsdp = { strategy = 'optim', cpu_offload = true } }),
            on('means', { pp = 2, dp_shard = 2 }, { accum = 2,
               fsdp = { calculate_per_token_loss = false, average_in_collective = true,
                  check_for_nan_in_grad = true } }),
         },
      })
   end)

   it('serves experts, on their ranks too, and hybrids', function()
      same('qwen3_moe', { [4] = { on('ep', { pp = 2, dp_shard = 2 },
         { accum = 2, fsdp = { ep_size = 2 } }) } })
      same('bamba', { [4] = { on('hybrid', { pp = 2, cp = 2 }, { accum = 2 }) } })
   end)

   it('gives the numbers of one rank with virtual stages', function()
      local c = copy({ num_hidden_layers = 5, tie_word_embeddings = true }, copy(shape))
      local virtual = { virtual = 2 }
      same({ family = 'llama', name = 'virtual', config = c }, {
         [2] = { on('two a rank', { pp = 2 }, { accum = 4, pp = virtual }),
            on('one micro-batch', { pp = 2 }, { pp = { virtual = 2, layers = { 1, 2, 1, 1 } } }) },
         [4] = {
            on('dp', { pp = 2, dp = 2 }, { accum = 2, pp = virtual }),
            on('tp', { pp = 2, tp = 2 }, { accum = 4, pp = virtual,
               tp = { sequence_parallel = true }, recompute = 'selective' }),
            on('shards', { pp = 2, dp_shard = 2 }, { accum = 2, pp = virtual,
               recompute = 'full', fsdp = { units = 1000 } }),
            on('each', { pp = 2, dp_shard = 2 }, { accum = 2, pp = virtual,
               fsdp = { strategy = 'optim_grads', sync_each_backward = true } }),
            on('means', { pp = 2, dp_shard = 2 }, { accum = 2, pp = virtual,
               fsdp = { calculate_per_token_loss = false, check_for_nan_in_grad = true } }),
         },
      })
      c = { vocab_size = 61, hidden_size = 16, num_hidden_layers = 4, num_attention_heads = 4,
         num_key_value_heads = 2, intermediate_size = 24, moe_intermediate_size = 8,
         num_experts = 4, num_experts_per_tok = 2 }
      same({ family = 'qwen3_moe', name = 'experts', config = c }, {
         [4] = { on('ep', { pp = 2, dp_shard = 2 },
            { accum = 2, pp = virtual, fsdp = { ep_size = 2 } }) } })
      copy({ router_aux_loss_coef = 0.1, output_router_logits = true,
         router_aux_loss_by_layer = true }, c)
      same({ family = 'qwen3_moe', name = 'balanced', config = c }, {
         [2] = { on('a loss for each layer', { pp = 2 }, { pp = virtual }) } })
   end)

   it('updates whole matrices', function()
      same('granite_tied', { [4] = { on('Muon', { pp = 2, dp_shard = 2 }, { accum = 2 }) } },
         { optim = 'Muon' })
   end)

   it('resumes a checkpoint with any other mesh', function()
      tmp.with(function(dir)
         same('granite_tied', { [4] = {
            on('written', { pp = 2, dp_shard = 2 }, { save = dir .. '/a' }),
            on('pp to tp', { dp_shard = 2, tp = 2 }, { resume = dir .. '/a' }),
            on('written without', { dp_shard = 4 }, { save = dir .. '/b' }),
            on('none to pp', { pp = 2, tp = 2 }, { resume = dir .. '/b' }),
         } }, { optim = 'AdamW' })
      end)
   end)

   it('trains adapters on weights in NF4', function()
      same('qwen3_moe', { [4] = { on('NF4', { pp = 2, tp = 2 }, { accum = 4 }) } }, { nf4 = true },
         2e-6)
   end)

   it('serves a loop of one\'s own, whose results are the same on every stage', function()
      local c = copy({ tie_word_embeddings = true }, copy(shape))
      local want = ranks.run(1, by_hand, c, { dp_shard = 1 })[1]
      for _, row in ipairs { { 3, { pp = 3 } }, { 4, { pp = 2, dp_shard = 2 } },
         { 2, { pp = 2 }, 2 } } do
         local n, mesh, virtual = unpack(row)
         for r, got in ipairs(ranks.run(n, by_hand, c, mesh, virtual)) do
            for i, v in ipairs(got) do
               local expected = want[i] * (i == 3 and n == 4 and 2 or 1)     -- rows of two ranks
               assert.near(expected, v, 1e-9 * math.abs(expected),
                  ('%d ranks, rank %d, value %d'):format(n, r - 1, i))
            end
         end
      end
   end)

   it('adds the terms of the experts of all stages in a loop of one\'s own', function()
      local c = { vocab_size = 11, hidden_size = 8, num_hidden_layers = 4, num_attention_heads = 2,
         intermediate_size = 8, moe_intermediate_size = 4, num_experts = 4,
         num_experts_per_tok = 2, router_aux_loss_coef = 0.1, output_router_logits = true,
         router_aux_loss_by_layer = true }
      local want = ranks.run(1, balanced_by_hand, c, { dp_shard = 1 })[1]
      for _, got in ipairs(ranks.run(2, balanced_by_hand, c, { pp = 2 }, 2)) do
         assert.near(want, got, 1e-9)
      end
   end)

   it('has the price of what it sends and keeps', function()
      local c = copy({ hidden_size = 64, intermediate_size = 128 }, copy(shape))
      local list = { { mesh = { pp = 4 }, accum = 9, tie = true },
         { mesh = { pp = 2, dp_shard = 2 }, accum = 7, recompute = 'full',
            fsdp = { disable_bucketing = true, mp_policy = { param_dtype = 'bf16',
               output_dtype = 'f32' } } },                 -- which casts the logits alone
         { mesh = { pp = 2, dp_shard = 2 }, accum = 11, virtual = 2 } }
      local rows_of = ranks.run(4, measured, c, list)
      for r, rows in ipairs(ranks.run(2, measured, c, { { mesh = { pp = 2 }, accum = 11,
         virtual = 2, tie = true } })) do
         rows_of[4 + r] = rows
      end
      for r, rows in ipairs(rows_of) do
         for i, row in ipairs(rows) do
            local what = ('run %d, rank %d'):format(i, r - 1)
            assert.near(row[1], row[2], 64, what)           -- sums of single numbers
            -- what the runs before have left is not collected yet
            if i == 1 then assert.near(row[3], row[4], 0.02 * row[3], what) end
         end
      end
   end)

   it('refuses what a stage cannot answer', function()
      for _, said in ipairs(ranks.run(2, misuse, shape)) do
         for i, words in ipairs { 'cannot be cut into stages', 'cut into stages already',
            'cut into stages of a pipeline',
            'last stage of the pipeline alone', 'once, before pipeline_parallel',
            'before pipeline_parallel', 'cut over 2 ranks, and this one has some of its '
               .. 'blocks', 'needs the mesh', 'every stage needs the same' } do
            assert.matches(words, said[i], 1, true)
         end
      end
      ranks.fail(2, others, 'ranks of the pipeline axis (2 ranks) were given different batches')
   end)

   it('refuses meshes and models that do not fit', function()
      local model = tide.model.llama(shape, { device = 'null' })
      local function plan(mesh, n, more, m)
         return tide.parallel.plan(m or model, mesh, copy(more or {}, { ranks = n }))
      end
      refused('E_ARG', { 'the axis has 5 ranks', '4 blocks' }, plan, { pp = 5 }, 5)
      refused('E_ARG', { "'pp' must be the outermost" }, plan, { { 'dp', 2 }, { 'pp', 2 } }, 4)
      refused('E_ARG', { 'layers', 'add up to the 4 blocks', 'got a sum of 5' }, plan, { pp = 2 },
         2, { pp = { layers = { 2, 3 } } })
      refused('E_ARG', { 'layers', '2 numbers, one for each stage, got 3' }, plan, { pp = 2 }, 2,
         { pp = { layers = { 1, 1, 2 } } })
      refused('E_ARG', { "option 'pp'", "no axis 'pp'" }, plan, { dp = 2 }, 2, { pp = {} })
      refused('E_UNSUPPORTED', { 'cannot be cut into stages' }, plan, { pp = 2 }, 2, nil,
         tide.nn.Linear(4, 4, { device = 'null' }))
   end)
end)

-- ---- corners -----------------------------------------------------------------------------------

-- On a rank: a step of each run of a list. o: family, config, plan, keep (a pattern of what is
-- trained), rate (of correction biases). Returns loss and norm of each, the loss of three batches
-- that are evaluated after it, and the correction biases of the last layer where it lies.
local function corners(_, _, list, mesh)
   local t, out = require 'tide', {}
   local function one(o)
      local model = t.model[o.family](o.config, { dtype = 'f64', seed = 3 })
      for _, e in ipairs(o.keep and model:named_parameters() or {}) do
         e.param:requires_grad_(e.name:find(o.keep) ~= nil)
      end
      local plan = require 'tide.util.copy' (o.plan)
      if not mesh.pp then plan = { fsdp = {} } end
      local spread = t.parallel.plan(model, mesh, plan):materialise()
      local step = t.train.step.new { model = spread.model:train(), parallel = spread.sharded,
         comm = spread.comm, optim = t.optim.SGD(spread.params, { lr = 0.1 }),
         router_bias_rate = o.rate }
      local batches = {}
      for k = 1, 2 do
         local ids = t.tensor({ { 3, 1, 4, k, 5 }, { 9, 2, 6, 5, k } }, { dtype = 'i64' })
         if spread.data.size > 1 then ids = ids:narrow(1, spread.data.rank + 1, 1):contiguous() end
         batches[k] = { ids = ids, labels = t.nn.loss.shift(ids) }
      end
      local r, biases = step:run(batches), {}
      local held_out = step:evaluate({ 1, 2, 3 }, 1, function(starts)
         local ids = t.tensor({ { 3, starts[1], 4, 1, 5 } }, { dtype = 'i64' })
         return { ids = ids, labels = t.nn.loss.shift(ids) }
      end)
      for _, b in ipairs(spread.model:named_buffers()) do
         local is_last = b.name:find(('layers.%d.'):format(
            (o.config.num_hidden_layers or 0) - 1), 1, true)
         if is_last and b.field == 'router_bias' then biases = b.buffer:tolist() end
      end
      return { r.loss, r.grad_norm, held_out, unpack(biases) }
   end
   for i, o in ipairs(list) do out[i] = one(o) end
   return out
end

-- On a rank: the norm of the gradients of a loop of one's own, where the last stage alone trains
-- something.
local function frozen_by_hand(_, _, config)
   local t = require 'tide'
   local model = t.model.llama(config, { dtype = 'f64', seed = 3 })
   for _, e in ipairs(model:named_parameters()) do
      e.param:requires_grad_(e.name == 'lm_head.weight')
   end
   local spread = t.parallel.plan(model, { pp = 2 }):materialise()
   local ids = t.tensor({ { 3, 1, 4, 1, 5 } }, { dtype = 'i64' })
   spread.model:loss(ids, ids):backward()
   spread.sharded:finish()
   return t.parallel.clip.norm(spread.sharded):item()
end

-- On a rank: a step, a checkpoint, and the losses of two more steps, with adapters that drop some
-- inputs; these again from the checkpoint. Then the folder of the adapters is written and read.
local function resumed(rank, _, config, dir)
   local t, losses = require 'tide', {}
   local model = t.model.llama(config, { seed = 3 })
   t.nn.lora.attach(model, { rank = 2, dropout = 0.5, dora = true })
   local spread = t.parallel.plan(model, { pp = 2 }):materialise()
   local optim = t.optim.SGD(spread.params, { lr = 0.1 })
   local step = t.train.step.new { model = spread.model:train(), parallel = spread.sharded,
      comm = spread.comm, optim = optim }
   local state = { model = spread.model, optim = optim, parallel = spread.sharded, step = 1 }
   local ids = t.tensor({ { 3, 1, 4, 1, 5 } }, { dtype = 'i64' })
   local function go() losses[#losses + 1] = step:run({ { ids = ids, labels = ids } }).loss end
   go()
   t.train.checkpoint.save(dir .. '/a', t.train.state.collect(state))
   go()
   go()
   t.train.state.restore(state, t.train.checkpoint.load(dir .. '/a', { lazy = true }))
   go()
   go()
   t.model.save_adapter(spread.sharded, dir .. '/lora')
   local path = 'model.layers.%d.self_attn.q_proj'
   local q = spread.model:get(path:format(rank == 0 and 0 or 3))
   local m = q.lora_m:detach():clone()
   t.nn.lora.unmerge(t.nn.lora.merge(spread.model))
   t.model.load_adapter(spread.sharded, dir .. '/lora')
   losses[#losses + 1] = (q.lora_m:detach() - m):abs():amax():item()
   return losses
end

-- On a rank: a step with a loss that does not call the model once with the ids of the batch.
local function bad_loss(_, _, config, which)
   local t = require 'tide'
   local spread = t.parallel.plan(t.model.llama(config, { seed = 3 }), { pp = 2 }):materialise()
   local ids = t.tensor({ { 3, 1, 4, 1, 5 } }, { dtype = 'i64' })
   local losses = {
      twice = function(m, b, o) return m:loss(b.ids, b.labels, o) + m:loss(b.ids, b.labels, o) end,
      never = function() return t.zeros {} end,
      shorter = function(m, b, o)
         return m:loss(b.ids:narrow(2, 1, 4):contiguous(), b.labels:narrow(2, 1, 4):contiguous(),
            o)
      end,
   }
   t.train.step.new({ model = spread.model:train(), parallel = spread.sharded,
      comm = spread.comm, optim = t.optim.SGD(spread.params, { lr = 1 }),
      loss = losses[which] }):run { { ids = ids, labels = ids } }
end

-- On a rank: what is said of options that stages have otherwise, of a batch without ids, and of
-- parameters of which none is trained.
local function mistaken(rank, _, config)
   local t, said = require 'tide', {}
   local spread = t.parallel.plan(t.model.llama(config, { seed = 3 }), { pp = 2 }):materialise()
   local ids = t.tensor({ { 3, 1, 4, 1, 5 } }, { dtype = 'i64' })
   local function bad(o, batch)
      local _, e = pcall(function()
         o.model, o.parallel, o.comm = spread.model:train(), spread.sharded, spread.comm
         o.optim = t.optim.SGD(spread.params, { lr = 1 })
         t.train.step.new(o):run { batch or { ids = ids, labels = ids } }
      end)
      said[#said + 1] = tostring(e)
   end
   bad { clip = rank + 1 }
   bad({ loss = function(m, b, o) return m:loss(b.rows, b.labels, o) end },
      { rows = ids, labels = ids })
   spread.model:requires_grad_(false)
   bad {}
   return said
end

describe('stages', function()
   local small = { vocab_size = 11, hidden_size = 8, num_hidden_layers = 2, num_attention_heads = 2,
      intermediate_size = 8 }

   it('may have no experts, no MLP, nothing that is trained and units across parts', function()
      local list = {
         { family = 'glm4_moe', rate = 0.1, plan = { fsdp = { ep_size = 2 } },
            config = copy({ num_key_value_heads = 1, n_group = 1, topk_group = 1,
               n_routed_experts = 3, num_experts_per_tok = 1, moe_intermediate_size = 4,
               n_shared_experts = 1, first_k_dense_replace = 1, head_dim = 4 }, copy(small)) },
         { family = 'hybrid', plan = { recompute = 'mlp', fsdp = { units = { 'MLP' } } },
            config = { vocab_size = 11, hidden_size = 8, hybrid_override_pattern = 'M-',
               num_attention_heads = 2, intermediate_size = 8, ssm_state_size = 2,
               mamba_head_dim = 2, mamba_num_heads = 2, n_groups = 1, conv_kernel = 2 } },
         { family = 'llama', keep = 'lm_head', config = small,
            plan = { fsdp = { check_for_nan_in_grad = true } } },
      }
      -- with virtual stages the first part of rank 0 alone has no experts
      list[4] = copy({ config = copy({ num_hidden_layers = 4 }, copy(list[1].config)),
         plan = { fsdp = { ep_size = 2 }, pp = { virtual = 2 } } }, copy(list[1]))
      -- units that several parts of a rank use
      for i, fsdp in ipairs { { disable_bucketing = true }, { units = { 'Attention' } } } do
         list[4 + i] = { family = 'llama', plan = { pp = { virtual = 2 }, fsdp = fsdp },
            config = copy({ num_hidden_layers = 4 }, copy(small)) }
      end
      local want = ranks.run(1, corners, list, { dp_shard = 1 })[1]
      for r, got in ipairs(ranks.run(4, corners, list, { pp = 2, dp_shard = 2 })) do
         for i, row in ipairs(got) do
            for k, v in ipairs(row) do
               assert.near(want[i][k], v, 1e-9, ('run %d, rank %d, value %d'):format(i, r - 1, k))
            end
         end
      end
   end)

   it('before the first that is trained run a backward of one\'s own, too', function()
      local norms = ranks.run(2, frozen_by_hand, small)
      assert.is_true(norms[1] > 0)
      assert.equal(norms[1], norms[2])
   end)

   it('send hidden states of the dtype that they have', function()
      local list = { { family = 'llama', config = small, plan = {
         fsdp = { strategy = 'optim', mp_policy = { param_dtype = 'bf16' } } } } }
      local want = ranks.run(1, corners, list, { dp_shard = 1 })[1][1]
      for _, got in ipairs(ranks.run(2, corners, list, { pp = 2 })) do
         assert.near(want[1], got[1][1], 1e-2 * want[1])
      end
   end)

   it('go on with random numbers of their own, and write and read adapters', function()
      tmp.with(function(dir)
         local config = copy({ num_hidden_layers = 4 }, copy(small))
         for _, losses in ipairs(ranks.run(2, resumed, config, dir)) do
            assert.equal(losses[2], losses[4])
            assert.equal(losses[3], losses[5])
            assert.near(0, losses[6], 1e-6)
         end
      end)
   end)

   it('say what is wrong with a step', function()
      for _, said in ipairs(ranks.run(2, mistaken, small)) do
         for i, words in ipairs { 'limits of the gradient norm',
            "argument 'ids': expected a tensor [batch, tokens] in each batch",
            'no parameter of any stage requires a gradient' } do
            assert.matches(words, said[i], 1, true)
         end
      end
      for which, words in each { twice = 'calls the model a second time',
         never = 'did not call the model', shorter = 'with ids [1, 4], and those of the batch' } do
         ranks.fail(2, bad_loss, words, small, which)
      end
   end)
end)
