-- Lion, Adafactor and Muon: updates against PyTorch (spec/golden/optim.py), groups by patterns,
-- 16-bit weights, and every mesh against one rank, with checkpoints between meshes.

local tide = require 'tide'
local optim = require 'tide.optim'
local golden = dofile 'spec/golden/optim.lua'
local raised = require 'spec.support.raised'
local ranks = require 'spec.support.ranks'
local tmp = require 'spec.support.tmp'

local x = tide.tensor({ { 1, 2 }, { 0.5, -1 } }, { dtype = 'f64' })

local function params(dtype)
   local list = {}
   local function add(name, t)
      list[#list + 1] = { name = name, param = t:to(dtype or 'f64'):requires_grad_(true) }
   end
   add('w', tide.arange(6, { dtype = 'f64' }):sin():reshape(2, 3))
   add('u', tide.arange(12, { dtype = 'f64' }):cos():reshape(3, 4))
   add('b', tide.arange(4, { dtype = 'f64' }):cos())
   return list
end

local function run(class, opts, dtype)
   local p = params(dtype)
   local o = optim[class](p, opts)
   for _ = 1, 5 do
      o:zero_grad()
      local y = x:to(p[1].param.dtype):matmul(p[1].param):matmul(p[2].param) + p[3].param
      ;(y - 1):square():sum():backward()
      o:step()
   end
   local flat = {}
   for _, e in ipairs(p) do
      for _, v in ipairs(e.param:to('f64'):reshape(-1):tolist()) do flat[#flat + 1] = v end
   end
   return flat, o
end

local function close(want, got, tolerance)
   assert.equal(#want, #got)
   for i = 1, #want do
      assert.is_true(math.abs(want[i] - got[i]) <= tolerance,
         ('%d: %.12g ~= %.12g'):format(i, want[i], got[i]))
   end
end

local decay = { lr = 0.05, weight_decay = 0.1 }

describe('optimisers beside AdamW', function()
   it('are those of PyTorch', function()
      close(golden.lion, run('Lion', decay), 1e-12)
      close(golden.adafactor, run('Adafactor', decay), 1e-12)
      for _, kind in ipairs { 'original', 'match_rms_adamw' } do
         close(golden[kind], run('Muon', { lr = 0.05, adjust = kind }), 1e-9)
      end
   end)

   it('keep f32 masters of 16-bit weights', function()
      for _, class in ipairs { 'Lion', 'Adafactor', 'Muon' } do
         local flat, o = run(class, { lr = 1e-4 }, 'bf16')
         local at = 0
         for _, e in ipairs(o:entries()) do
            local master = o.state[e.name].master
            assert.equal('f32', master.dtype)
            assert.same(master:to('bf16'):tolist(), e.param:tolist())
            at = at + e.param:numel()
         end
         assert.equal(#flat, at)
      end
   end)

   it('give matrices to Newton-Schulz, embeddings and vectors to AdamW', function()
      local o = optim.Muon(params(), { lr = 0.05, adamw = 'u' })
      local whole = {}
      for _, group in ipairs(o.groups) do
         for _, e in ipairs(group.params) do whole[e.name] = group.whole end
      end
      assert.same({ w = true, u = false, b = false }, whole)
   end)
end)

describe('groups by patterns', function()
   local function scales(class, opts)
      local list = {}
      for _, group in ipairs(optim[class](params(), opts).groups) do
         for _, e in ipairs(group.params) do
            list[e.name] = { group.lr_scale, group.weight_decay }
         end
      end
      return list
   end

   it('set rates and options; the first that matches counts', function()
      for _, class in ipairs { 'AdamW', 'SGD', 'Lion', 'Muon', 'Adafactor' } do
         assert.same({ w = { 0.5, 0.1 }, u = { 2, 0.3 }, b = { 1, 0 } }, scales(class, { lr = 0.1,
            weight_decay = 0.1, groups = { { pattern = 'w', lr = 0.05 },
               { pattern = 'u|w', lr_scale = 2, weight_decay = 0.3 } } }))
      end
      assert.same({ 1, 0.2 }, scales('AdamW', { lr = 0.1, groups = {
         { pattern = '*b*', weight_decay = 0.2 } } }).b)
   end)

   it('have momentum of their own', function()
      local function after(groups, opts)
         local list = { tide.ones { 2 }:requires_grad_(true), tide.ones { 2 }:requires_grad_(true) }
         for i, group in ipairs(groups) do group.params = { list[i] } end
         local o = optim.SGD(groups, opts)
         for _ = 1, 3 do
            o:zero_grad()
            ;(list[1]:sum() + list[2]:sum()):backward()
            o:step()
         end
         return { list[1]:at(1), list[2]:at(1) }
      end
      close({ 0.439, 0.7 }, after({ { momentum = 0.9 }, {} }, { lr = 0.1 }), 1e-6)
      close({ 0.7, 0.439 }, after({ { momentum = 0 }, {} }, { lr = 0.1, momentum = 0.9 }), 1e-6)
   end)

   it('work for classes that declare none of their options', function()
      local class, Optimizer = require 'tide.class', tide.optim.Optimizer
      local Plain = class('Plain', tide.optim.SGD)
      function Plain:init(list, opts)
         Optimizer.init(self, 'Plain', list, { momentum = 0, dampening = 0, weight_decay = 0,
            nesterov = false, shift = tide.zeros { 1 } }, opts)
      end
      local model = tide.nn.Linear(2, 2)
      local o = Plain(model, { lr = 0.1, groups = { { pattern = 'weight', momentum = 0.5,
         shift = tide.ones { 1 } } } })
      model(tide.ones { 1, 2 }):sum():backward()
      o:step()
      assert.is_true(tide.is_tensor(o.state.weight.buf))
      assert.is_nil(o.state.bias.buf)
   end)

   it('without momentum have the buffers that checkpoints of an optimiser with it hold', function()
      local model = tide.nn.Linear(2, 2)
      local o = optim.SGD(model, { momentum = 0.9, groups = { { pattern = 'b', momentum = 0 } } })
      model(tide.ones { 1, 2 }):sum():backward()
      o:step()
      assert.is_true(tide.is_tensor(o.state.bias.buf))
   end)

   it('are checked as options of the optimiser are, in lists of groups, too', function()
      local function refused(text, class, own)
         own.params = params()
         assert.matches(text, raised(optim[class], { own }, { lr = 0.1 }).message, 1, true)
         own.params, own.pattern = nil, 'w'
         assert.matches(text:gsub('^params', 'groups'), raised(optim[class], params(), { lr = 0.1,
            groups = { own } }).message, 1, true)
      end
      refused("params[1].weight_decay': expected a finite number >= 0, got -1", 'AdamW',
         { weight_decay = -1 })
      refused("params[1].beta1': expected a number in [0, 1), got 1", 'Lion', { beta1 = 1 })
      refused("params[1].adjust': expected one of original", 'Muon', { adjust = 'other' })
      refused("params[1].ns_steps': expected an integer", 'Muon', { ns_steps = 1.5 })
      local o = optim.Adafactor(params(), { lr = 0.1, groups = { { pattern = 'w',
         beta2_decay = -0.5 } } })
      assert.equal(-0.5, o.groups[1].beta2_decay)
   end)

   it('are refused where they are wrong', function()
      local function refused(text, group, lr)
         local e = raised(optim.AdamW, params(), { lr = lr or 0.1, groups = { group } })
         assert.matches(text, tostring(e), 1, true)
      end
      refused("pattern 'q_proj' matches no parameter", { pattern = 'q_proj' })
      refused('groups[1].pattern', { lr = 1 })
      refused("unknown option 'rate'", { pattern = 'w', rate = 1 })
      refused('exclude each other', { pattern = 'w', lr = 1, lr_scale = 1 })
      refused('give lr_scale', { pattern = 'w', lr = 1 }, function() return 1 end)
      refused('groups[1].weight_decay', { pattern = 'w', weight_decay = 'much' })
   end)
end)

-- Trains up to step `to`, from the checkpoint in out where `from` is above 0. Returns the loss.
local function train(_, _, class, axes, out, from, to)
   local t = require 'tide'
   local config = { vocab_size = 16, hidden_size = 8, num_hidden_layers = 2,
      num_attention_heads = 2 }
   local model = t.model.llama(config, { device = 'null' })
   local run_ = t.parallel.plan(model, axes, { fsdp = { strategy = axes.dp_shard
      and 'optim_grads_params' or 'no_shard' } }):materialise { seed = 3 }
   local bytes = {}
   for i = 1, 200 do bytes[i] = string.char(i * i % 16, 0) end
   local source = t.data.tokens.memory(table.concat(bytes), 2)
   local quiet = function() end
   return t.train.loop { model = run_.model, parallel = run_.sharded, comm = run_.comm,
      optim = t.optim[class](run_.params, { lr = 1e-2 }), train = source, clip = 1,
      steps = to, out = out, resume = from > 0 and out or nil,
      sampler = t.data.sampler { count = source.count, seq = 8, batch = 4, seed = 1,
         rank = run_.data.rank, size = run_.data.size },
      progress = { update = quiet, note = quiet, finish = quiet } }.loss
end

describe('an optimiser on a mesh', function()
   it('of whole matrices refuses a model that is cut and not sharded', function()
      local rows = ranks.try(2, function()
         local t = require 'tide'
         local model = t.model.llama({ vocab_size = 16, hidden_size = 8, num_hidden_layers = 1,
            num_attention_heads = 2 }, { device = 'null' })
         t.parallel.tensor_parallel(model, t.parallel.mesh({ tp = 2 }):axis 'tp')
         model:materialise('cpu', 1)
         t.optim.Lion(model, { lr = 1 })
         t.optim.Muon(model, { lr = 1 })
      end)
      for _, row in ipairs(rows) do assert.matches('is split over ranks', row.message, 1, true) end
   end)

   for _, class in ipairs { 'Lion', 'Adafactor', 'Muon' } do
      it('makes the updates of one rank: ' .. class, function()
         local want = ranks.run(1, train, class, { dp = 1 }, nil, 0, 6)[1]
         for _, axes in ipairs { { dp = 2 }, { dp_shard = 2 }, { tp = 2 }, { cp = 2 },
               { dp_shard = 2, tp = 2 } } do
            local n = (axes.dp or 1) * (axes.dp_shard or 1) * (axes.tp or 1) * (axes.cp or 1)
            for _, got in ipairs(ranks.run(n, train, class, axes, nil, 0, 6)) do
               assert.near(want, got, 1e-5)
            end
         end
      end)

      it('goes on from a checkpoint bit for bit, also on another mesh: ' .. class, function()
         tmp.with(function(dir)
            local shards, out = { dp_shard = 2 }, dir .. '/run'
            local want = ranks.run(2, train, class, shards, nil, 0, 6)[1]
            ranks.run(2, train, class, shards, out, 0, 3)
            tmp.mkdir(dir .. '/other')
            os.execute(("cp -r '%s' '%s/other/run'"):format(out, dir))
            assert.equal(want, ranks.run(2, train, class, shards, out, 3, 6)[1])
            local other = ranks.run(2, train, class, { tp = 2 }, dir .. '/other/run', 3, 6)
            assert.near(want, other[1], 1e-5)
         end)
      end)
   end
end)
