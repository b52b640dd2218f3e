-- A captured step over a stand-in for the graph, which calls what it would record: it is the plain
-- step, counts what was applied, and is refused where it cannot be.

local tide = require 'tide'
local captured = require 'tide.train.captured'
local graph = require 'tide.ffi.graph'
local optim_captured = require 'tide.optim.captured'
local refused = require 'spec.support.refused'
local stamp = require 'tide.util.stamp'
local step = require 'tide.train.step'

local function batch(seed, bad)
   local ids, labels = {}, {}
   for i = 1, 6 do ids[i], labels[i] = (i * 5 + seed) % 16, (i * 3 + seed) % 16 end
   labels[2] = -100
   return { ids = tide.tensor({ ids }, { dtype = 'i64' }), bad = bad,
      labels = tide.tensor({ labels }, { dtype = 'i64' }) }
end

-- A step of a small model. Its loss is NaN for a bad batch, or a gradient alone.
local function new(o)
   local model = tide.model.llama({ vocab_size = 16, hidden_size = 8, num_hidden_layers = 1,
      num_attention_heads = 1 }, { seed = 1 })
   local opt = (o.class or tide.optim.AdamW)(model, { lr = function(n) return 0.01 * n end })
   return step.new { model = model, optim = opt, clip = o.clip, comm = tide.dist.solo(),
      loss = function(m, b, opts)
         local loss = m:loss(b.ids, b.labels, opts)
         if b.bad ~= 'gradient' then return b.bad and loss * (0 / 0) or loss end
         return loss + (m:parameters()[1]:reshape(-1):narrow(1, 1, 1) * 0):sqrt():sum()
      end }, model, opt
end

-- The same with a graph that calls what it is given, and says that it is recorded from then on.
local function on_graph(self)
   local real, entries = tide.cuda.captured, self.optim.entries
   rawset(tide.cuda, 'captured', function(fn)
      local calls = 0
      return setmetatable({ is_recorded = function() return calls > 1 end,
         calls = function() return calls end }, { __call = function(_, ...)
            calls = calls + 1
            return fn(...)
         end })
   end)
   self.optim.entries = function() return { { name = 'w', param = { device = 'cuda' } } } end
   local ok, e = pcall(captured.set, self, 'spec')
   self.optim.entries = entries ~= getmetatable(self.optim).__index.entries and entries or nil
   rawset(tide.cuda, 'captured', real)
   if not ok then error(e, 0) end
   return self
end

local function weights(model)
   local list = {}
   for i, p in ipairs(model:parameters()) do list[i] = p:reshape(-1):tolist() end
   return list
end

describe('a captured step', function()
   it('is the plain one, micro-batches and clipping among it', function()
      for _, clip in ipairs { 0, 0.1 } do
         local plain, model, opt = new { clip = clip }
         local replayed, other, other_opt = new { clip = clip }
         on_graph(replayed)
         for i = 1, 4 do
            local list = { batch(i), i % 2 == 0 and batch(i + 9) or nil }
            local met = 0
            local want, got = plain:run(list), replayed:run(list, function() met = met + 1 end)
            assert.equal(1, met)
            for _, field in ipairs { 'loss', 'grad_norm', 'lr' } do
               assert.is_true(math.abs(want[field] - got[field]) <= 1e-6 * math.abs(want[field]),
                  field)
            end
            assert.same({ true, i }, { got.applied, other_opt.steps })
            assert.is_nil(got.cause)
            assert.same(weights(model), weights(other))
            assert.equal(opt.last_lr, other_opt.last_lr)
            assert.equal(i > 1, #other_opt:grads() > 0)   -- those of the recorded step stay
         end
      end
   end)

   it('that is not finite changes and counts nothing, and says why', function()
      local replayed, model, opt = new { clip = 1 }
      on_graph(replayed)
      replayed:run { batch(1) }
      local before = weights(model)
      local r = replayed:run { batch(2), batch(3, true) }
      assert.same({ false, 1, before }, { r.applied, opt.steps, weights(model) })
      assert.matches('not finite on rank 0: its loss', r.cause, 1, true)
      assert.matches("the gradient of '", r.cause, 1, true)
      assert.is_nil(r.cause:find('summed over ranks', 1, true))
      r = replayed:run { batch(2), batch(3, 'gradient') }
      assert.same({ false, 1, before, true }, { r.applied, opt.steps, weights(model),
         r.loss == r.loss })
      assert.matches("^not finite on rank 0: the gradient of '", r.cause)
      r = replayed:run { batch(2) }
      assert.same({ true, 2 }, { r.applied, opt.steps })
   end)

   it('adds gradients over ranks, which are compared in the first call alone', function()
      local self = on_graph((new {}))
      local reduced, gathered = 0, 0
      self.comm = { size = 2, rank = 0, all_reduce = function() reduced = reduced + 1 end,
         all_gather_object = function(_, mine)
            gathered = gathered + 1
            return { mine, mine }
         end }
      for i = 1, 3 do
         self.captured({ batch(i) }, 5)
         assert.same({ 2 * i, 2 }, { reduced, gathered })
      end
   end)

   it('is refused for images and rows of documents, whose shapes differ', function()
      local self = on_graph((new {}))
      local b = batch(1)
      b.image_grid_thw = tide.tensor({ { 1, 2, 2 } }, { dtype = 'i64' })
      refused('E_UNSUPPORTED', 'captured: batches[2] has images, whose patches differ in number',
         self.run, self, { batch(1), b })
      b.image_grid_thw = nil
      b.cu_real = tide.tensor({ 0, 2, 6 }, { dtype = 'i32' })
      refused('E_UNSUPPORTED', 'captured: batches[1] has rows of documents (cu_real)', self.run,
         self, { b })
   end)

   it('gets no places of labels, whose number differs, and no stamp', function()
      local self, seen = on_graph((new {})), {}
      local loss = self.loss
      self.loss = function(m, b, opts)
         seen[#seen + 1] = { b.counted or false, b.stamp or false }
         return loss(m, b, opts)
      end
      for seed = 1, 2 do
         local b = batch(seed)
         b.counted = tide.tensor({ 0, 2, 3, 4, 5 }, { dtype = 'i64' })
         b.stamp = stamp.of(b, { 'labels', 'counted' })
         self:run { b }
         assert.equal(5, b.counted:numel())
      end
      assert.same({ { false, false }, { false, false } }, seen)
   end)

   it('is refused over ranks of the host, one by one updates, and weights elsewhere', function()
      local self = new {}
      refused('E_UNSUPPORTED', "captured: parameter '", captured.set, self, 'spec')
      refused('E_UNSUPPORTED', "captured: class Lion updates its weights one by one",
         on_graph, (new { class = tide.optim.Lion }))
      local function with(o)
         local s = new {}
         for k, v in pairs(o) do s[k] = v end
         return s
      end
      local slow, fast = { size = 2, transport = 'threads', name = 'c' },
         { size = 2, transport = 'nccl' }
      local solo = tide.dist.solo()
      local function sharded(a, b)
         return { shard_comm = a, replicas = b, opts = {} }
      end
      for _, o in ipairs { { comm = slow }, { tp = { comm = slow } }, { cp = { comm = slow } },
         { parallel = sharded(slow, solo) }, { parallel = sharded(solo, slow) } } do
         refused('E_UNSUPPORTED', "collectives of communicator 'c' are made by the host "
            .. "(transport 'threads')", captured.set, with(o), 'spec')
      end
      on_graph(with { comm = fast })
      on_graph(with { comm = { size = 1, transport = 'threads' } })
      for text, o in pairs { ['check_for_nan_in_grad of fully_shard'] = {
            check_for_nan_in_grad = true }, ['cpu_offload of fully_shard'] = {
            cpu_offload = true } } do
         local parallel = sharded(solo, solo)
         parallel.opts = { check_for_nan_in_grad = false, cpu_offload = false }
         for k, v in pairs(o) do parallel.opts[k] = v end
         refused('E_UNSUPPORTED', 'captured: ' .. text, captured.set, with { parallel = parallel },
            'spec')
      end
   end)
end)

describe('an update inside a recorded step', function()
   -- Calls fn while updates are recorded; returns what a replay calls before and after.
   local function recording(fn)
      local real, real_replay, before, after = optim_captured.is_recording, graph.on_replay
      optim_captured.is_recording = function() return true end
      graph.on_replay = function(b, a) before, after = b, a end
      local ok, e = pcall(fn)
      optim_captured.is_recording, graph.on_replay = real, real_replay
      if not ok then error(e, 0) end
      return before, after
   end

   local function made()
      local list = {}
      for i, n in ipairs { 2, 3 } do
         list[i] = { name = 'p' .. i, param = tide.ones({ n, n }):requires_grad_(true) }
         list[i].param:set_grad(tide.ones { n, n })
      end
      return tide.optim.AdamW({ { params = { list[1] }, lr_scale = 0.5 },
         { params = { list[2] } } }, { lr = function(n) return n / 10 end }), list
   end

   it('reads rate and count of each replay, and counts it', function()
      local opt = made()
      opt:step()
      optim_captured.prepare(opt)
      assert.is_nil(opt.rates)                               -- its weights are on no GPU
      local real = tide.empty
      tide.empty = function(shape, o) return { shape, o.dtype, o.device } end
      opt.entries = function() return { { param = { device = 'cuda' } }, {} } end
      for _ = 1, 2 do optim_captured.prepare(opt) end
      tide.empty, opt.entries = real, nil
      assert.same({ { 2, 2 }, 'f64', 'cuda' }, opt.rates)
      opt.rates = tide.zeros({ 2, 2 }, { dtype = 'f64' })
      local seen = {}
      opt.update = function(_, group, bucket, lr, opts)
         seen[#seen + 1] = { group.lr_scale, bucket.step, lr, opts.scale, bucket.rates.shape }
      end
      local before, after = recording(function() opt:step { scale = 3 } end)
      assert.same({ { 0.5, 2, 0, 3, { 2 } }, { 1, 2, 0, 3, { 2 } } }, seen)
      assert.equal(1, opt.steps)
      for n = 2, 4 do
         before()
         local lr = n / 10
         assert.same({ { lr * 0.5, n }, { lr, n } }, opt.rates:tolist())
         assert.same({ lr, n - 1 }, { opt.last_lr, opt.steps })
         after()
         assert.same({ n, n, n }, { opt.steps, opt.state.p1.step, opt.state.p2.step })
      end
      opt:take_back()
      assert.same({ 3, 3 }, { opt.steps, opt.state.p1.step })
      opt:load_state_dict(opt:state_dict())
      refused('E_STATE', 'the state was loaded after this step was captured', before)
   end)

   it('is refused with a rate of its own, and before the first plain step', function()
      local opt = made()
      refused('E_STATE', 'a captured step would repeat this lr', recording, function()
         opt:step { lr = 1 }
      end)
      refused('E_STATE', "parameter 'p1' has no state yet", recording, function() opt:step() end)
      opt:step()
      refused('E_STATE', "parameter 'p1' has no state yet", recording, function() opt:step() end)
   end)
end)
