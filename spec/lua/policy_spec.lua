-- Choices that make a run good, and that no comparison of ranks would show: initial widths, the
-- order of data, when training stops, how a token is drawn, what is split off.

local tide = require 'tide'
local class = require 'tide.class'
local hash = require 'tide.util.hash'
local raised = require 'spec.support.raised'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

local data, nn = tide.data, tide.nn

describe('initial weights', function()
   -- The standard deviation of each matrix, divided by want(name), is 1 within the error of so many
   -- draws.
   local function check(model, want)
      local seen = 0
      for _, e in ipairs(model:named_parameters()) do
         local std = want(e.name)
         if std and e.param.ndim == 2 then
            local rms = e.param:detach():square():mean():sqrt():item()
            local most = 5 / math.sqrt(2 * e.param:numel())
            assert.is_true(math.abs(rms / std - 1) < most,
               ('%s: %.5f, expected %.5f'):format(e.name, rms, std))
            seen = seen + 1
         end
      end
      return seen
   end

   it('of a Llama: 0.02, into the residual stream 0.02 / sqrt(2 layers)', function()
      local model = tide.model.llama({ vocab_size = 300, hidden_size = 64, num_hidden_layers = 8,
         num_attention_heads = 4 }, { seed = 3 })
      local seen = check(model, function(name)
         local out = name:find 'o_proj' or name:find 'down_proj'
         return out and 0.02 / 4 or 0.02
      end)
      assert.equal(2 + 8 * 7, seen)
   end)

   it('of a hybrid: 0.02, into the residual stream 0.02 / sqrt(layers)', function()
      local model = tide.model.hybrid({ vocab_size = 300, hidden_size = 64,
         hybrid_override_pattern = 'M-M*-M*-M', num_attention_heads = 4, mamba_head_dim = 16,
         ssm_state_size = 16, n_groups = 1 }, { seed = 3 })
      local layers = #'M-M*-M*-M'
      local seen = check(model, function(name)
         local out = name:find 'o_proj' or name:find 'down_proj' or name:find 'out_proj'
         return out and 0.02 / math.sqrt(layers) or 0.02
      end)
      assert.is_true(seen >= 2 + 4 * 2 + 2 * 4 + 3 * 2, seen)
   end)
end)

describe('the order of the data', function()
   it('cuts each epoch from another offset', function()
      local s = data.sampler.new { count = 1000, seq = 50, batch = 1, seed = 3 }
      local seen, distinct = {}, 0
      for _ = 1, 12 do
         local offset
         for _ = 1, s.windows do
            local start = s:next()[1]
            offset = offset or start % 50
            assert.equal(offset, start % 50)
         end
         if not seen[offset] then seen[offset], distinct = true, distinct + 1 end
      end
      assert.is_true(distinct >= 8, distinct)
   end)
end)

describe('steps that are not finite', function()
   -- Runs `steps` steps, of which those in `bad` have a loss of NaN, with at most `most` in a row.
   local function run(steps, most, bad)
      local model, calls = nn.Linear(2, 2, { seed = 1 }), 0
      function model:loss(_, _, opts)
         calls = calls + 1
         local loss = self:forward(tide.ones { 1, 2 }):square():sum() / opts.count
         return bad[calls] and loss * (0 / 0) or loss
      end
      return tide.train.loop { model = model, steps = steps, on_nonfinite = 'skip',
         max_skips = most, train = data.tokens.memory(('x\0'):rep(100), 2),
         optim = tide.optim.SGD(model, { lr = 0.01 }),
         sampler = data.sampler.new { count = 100, seq = 4, batch = 1 },
         progress = tide.train.progress.new { steps = steps, quiet = true } }
   end

   it('end the run at the max_skips-th in a row, and not before', function()
      assert.equal(9, run(9, 3, { [2] = true, [3] = true }).step)
      local e = raised(run, 9, 3, { [2] = true, [3] = true, [4] = true })
      assert.matches('step 4: .*3 steps in a row were not finite', e.message)
      assert.matches('step 1: .*1 steps in a row', raised(run, 3, 1, { true }).message)
   end)

   it('count anew after a step that was applied', function()
      local bad = {}
      for i = 1, 20 do bad[i] = i % 3 ~= 0 end
      assert.equal(20, run(20, 3, bad).step)
   end)
end)

describe('what is not finite', function()
   it('is named with its rank, or as a sum of finite parts', function()
      local tell, solo = require('tide.train.nonfinite').tell, tide.comm.solo()
      assert.equal('not finite on rank 0: loss', tell(solo, 'loss'))
      assert.equal('not finite, summed over ranks: w.grad (check_for_nan_in_grad of fully_shard '
         .. 'names the rank)', tell(solo, nil, 'w.grad'))
      assert.equal('each rank has finite ones, their sum or its norm is not', tell(solo))
   end)
end)

describe('a drawn token', function()
   it('is of those that make up top_p, each by its share among them', function()
      local logits = { math.log(2), math.log(8), math.log(1), math.log(4) }     -- of 15
      local function draw(top_p)
         local counts, n = { 0, 0, 0, 0 }, 3000
         for i = 0, n - 1 do
            local id = tide.train.sample.pick(logits, i / n, { top_p = top_p })
            counts[id + 1] = counts[id + 1] + 1
         end
         for i, c in ipairs(counts) do counts[i] = math.floor(c * 15 / n + 0.5) end
         return counts
      end
      assert.same({ 2, 8, 1, 4 }, draw(1))
      assert.same({ 0, 10, 0, 5 }, draw(0.6))          -- 8 and 4 of 15: 12 that share 15
      assert.same({ 0, 10, 0, 5 }, draw(12 / 15 - 1e-9))
      assert.same({ 2, 9, 0, 4 }, draw(13 / 15))       -- 14 of 15
      assert.same({ 0, 15, 0, 0 }, draw(0.5))
   end)
end)

describe('scored text', function()
   it('has a value for each token but the first, whatever the windows', function()
      local model = tide.model.llama({ vocab_size = 20, hidden_size = 8, num_hidden_layers = 1,
         num_attention_heads = 1 }, { seed = 2 }):eval()
      local ids = {}
      for i = 1, 23 do ids[i] = (i * i) % 20 end
      for _, seq in ipairs { 1, 4, 11, 22, 23, 40 } do
         local got = tide.train.score.logprob(model, ids, { seq = seq, batch = 3 })
         assert.equal(22, #got)
         for first = 1, 22, seq do
            local last = math.min(first + seq - 1, 22)
            local from = math.max(1, last - seq + 1)    -- the last window has a whole context
            local window = { unpack(ids, from, last) }
            local all = tide.no_grad(function()
               return tide.log_softmax(model(tide.tensor({ window }, { dtype = 'i64' })), -1)
            end)
            for k = first - from + 1, #window do
               local want = all:at(1, k, ids[from + k] + 1)
               assert.is_true(math.abs(want - got[from + k - 1]) < 1e-5)
            end
         end
      end
   end)
end)

describe('the schedule wsd', function()
   it('descends over the last fifth unless it is told', function()
      local f = tide.optim.schedule.wsd { lr = 1, steps = 20 }
      for s, want in pairs { [16] = 1, [17] = 0.75, [19] = 0.25, [20] = 0 } do
         assert.is_true(math.abs(want - f(s)) < 1e-12, s)
      end
   end)
end)

describe('the time left', function()
   it('goes by the steps of this start, not by those of the run', function()
      local now = 100
      local p = tide.train.progress.new { steps = 50, start = 10, quiet = true, tty = false,
         clock = function() return now end }
      now = 105
      assert.equal(math.huge, p:eta(10))
      assert.equal(35 * 1, p:eta(15))
   end)
end)

describe('a hash of integers', function()
   it('depends on all 53 bits', function()
      local seen = {}
      for bit = 0, 52 do
         local h = hash.mix(2 ^ bit)
         assert.is_nil(seen[h], bit)
         seen[h] = true
      end
      assert.are_not.equal(hash.mix(1, 2), hash.mix(2, 1))
   end)
end)

describe('debug.nan.watch', function()
   it('names the module that was given what is not finite, though its output is', function()
      local Deaf = class('Deaf', nn.Module)
      function Deaf:init()
         nn.Module.init(self)
         self:ready {}
      end
      function Deaf.forward(_, x) return tide.zeros(x.shape) end
      local Both = class('Both', nn.Module)
      function Both:init()
         nn.Module.init(self)
         self:child('deaf', Deaf())
         self:ready {}
      end
      function Both:forward(x) return self.deaf(x / 0) end
      local model = Both()
      local watch = tide.debug.nan.watch(model)
      local e = raised(model, tide.ones { 2 })
      assert.matches("input 1 of module 'deaf' (Deaf) is not finite", e.message, 1, true)
      watch:remove()
      model(tide.ones { 2 })
   end)
end)

describe('validation data', function()
   it('is split off files with at least 16 bytes to give', function()
      tmp.with(function(dir)
         for size, held in pairs { [319] = 0, [320] = 16, [100] = 0, [4000] = 200 } do
            write(dir .. '/x.txt', ('y'):rep(size))
            local c = data.text.load(dir .. '/x.txt')
            assert.equal(held > 0 and held + 1 or 0, c.val.count)
            assert.equal(size - held + (held > 0 and 0 or 1), c.train.count)
         end
      end)
   end)
end)
