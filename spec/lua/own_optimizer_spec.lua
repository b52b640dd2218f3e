-- An optimiser of a user's own: what its class must have, the doors that it goes through, its
-- numbers, and its state in checkpoints.

local tide = require 'tide'
local class = require 'tide.class'
local Lion = require 'spec.support.lion'
local ranks = require 'spec.support.ranks'

local Optimizer = tide.optim.Optimizer

local function refused(text, fn, ...)
   local ok, e = pcall(fn, ...)
   assert.is_false(ok)
   assert.equal('table', type(e), tostring(e))
   assert.equal('E_ARG', e.code)
   assert.matches(text, tostring(e), 1, true)
end

local function model_of(seed)
   return tide.model.llama({ vocab_size = 11, hidden_size = 8, num_hidden_layers = 1,
      num_attention_heads = 2 }, { seed = seed })
end

describe('the doors of training', function()
   local model = model_of(1)

   it('refuse a table that is no optimiser', function()
      for _, optim in ipairs { {}, { step = function() end }, tide.optim.AdamW } do
         refused("argument 'optim': expected an optimiser", tide.train.step,
            { model = model, optim = optim })
      end
      refused('tide.optim.Optimizer', tide.train.step, { model = model })
   end)

   it('refuse a constructor that passes no name to the base class', function()
      local Bad = class('Bad', Optimizer)
      function Bad:init(params, opts) Optimizer.init(self, params, opts) end
      refused("optim.Optimizer: argument 'op': expected a string", Bad, model, { lr = 1 })
   end)

   it('refuse a constructor that does not call that of the base class', function()
      local Bad = class('Bad', Optimizer)
      function Bad.init() end
      local ok, e = pcall(Bad, model)
      assert.is_false(ok)
      assert.equal('E_STATE', e.code)
      assert.matches('optim.Bad: its init ends without tide.optim.Optimizer.init', tostring(e), 1,
         true)
   end)

   it('suggest the option of a group that was meant', function()
      local group = { pattern = 'norm', weight_dcay = 0 }
      refused("groups[1]: unknown option 'weight_dcay'; did you mean 'weight_decay'?",
         tide.optim.AdamW, model, { groups = { group } })
      refused("params[2]: unknown option 'weight_dcay'; did you mean 'weight_decay'?",
         tide.optim.AdamW, { { params = {} }, { params = model:parameters(), weight_dcay = 0 } })
      refused("params[1]: unknown option 'lr_sclae'; did you mean 'lr_scale'?",
         tide.optim.AdamW, { { params = model:parameters(), lr_sclae = 2 } })
      refused('with a parameter, got a table', tide.optim.AdamW, { lr = 1 })
   end)

   it('refuse it in runs before a file is touched', function()
      local out = os.tmpname()
      os.remove(out)
      local source = tide.data.tokens.memory(('ab'):rep(100), 2)
      for _, door in ipairs { 'run', 'loop' } do
         refused("argument 'optim': expected an optimiser", tide.train[door], { model = model,
            optim = {}, train = source, out = out, steps = 1,
            sampler = tide.data.sampler { count = 100, seq = 4, batch = 1, seed = 1 } })
      end
      assert.is_nil(io.open(out))
   end)

   it('refuse a class that says too little', function()
      local None = class('None', Optimizer)
      function None:init(params) Optimizer.init(self, 'None', params, {}, { lr = 1 }) end
      refused("class None has no list 'fields'", None, model)
      None.fields = {}
      refused('class None has no method update_parameter', None, model)
   end)
end)

describe('an optimiser of your own', function()
   it('makes the update that it defines, of clipped and scaled gradients', function()
      local w = tide.tensor({ 1, -2, 0 }, { dtype = 'f64' }):requires_grad_(true)
      local optim = Lion({ w }, { lr = 0.5 });
      (w * tide.tensor({ 3, -1, 2 }, { dtype = 'f64' })):sum():backward()
      optim:step { scale = 2, factor = tide.tensor(0.25) }
      assert.same({ 0.5, -1.5, -0.5 }, w:tolist())
      local tensors, meta = optim:state_dict()
      assert.same({ kind = 'Lion', steps = 1, counts = { ['1'] = 1 } }, meta)
      assert.is_nil(tensors['1.master'])
      local m = tensors['1.m']
      assert.equal('f64', m.dtype)
      for i, g in ipairs { 1.5, -0.5, 1 } do assert.near(0.01 * g, m:tolist()[i], 1e-12) end
   end)

   it('keeps a master copy of 16-bit weights, and fields that it replaces', function()
      local w = tide.ones({ 2 }, { dtype = 'bf16' }):requires_grad_(true)
      local Replaces = class('Replaces', Lion)
      function Replaces:update_parameter(weight, grad, state, _, lr)
         state.m = state.m + grad
         weight:add_(state.m, -lr)
      end
      local optim = Replaces({ w }, { lr = 2^-12 })
      for _ = 1, 16 do
         optim:zero_grad()
         w:sum():backward()
         optim:step()
      end
      assert.same({ 16, 16 }, optim.state['1'].m:tolist())
      assert.same({ 1 - 136 * 2^-12, 1 - 136 * 2^-12 }, optim.state['1'].master:tolist())
      assert.same(optim.state['1'].master:to('bf16'):tolist(), w:tolist())
   end)

   it('has no part in a captured step', function()
      local w = tide.ones({ 2 }):requires_grad_(true)
      local optim = Lion({ w }, { lr = 1 })
      w:sum():backward()
      local ok, e = pcall(optim.step, optim, { found_inf = tide.tensor(0) })
      assert.is_false(ok)
      assert.equal('E_UNSUPPORTED', e.code)
   end)

   -- Trains 6 steps, of which a checkpoint may separate the first 3 from the rest.
   local function train(rank, n, axes, out, from, to)
      local t = require 'tide'
      local config = { vocab_size = 16, hidden_size = 8, num_hidden_layers = 1,
         num_attention_heads = 2 }
      local plan = t.parallel.plan(t.model.llama(config, { device = 'null' }), axes)
      local run = plan:materialise { seed = 3 }
      local bytes = {}
      for i = 1, 200 do bytes[i] = string.char(i * i % 16, 0) end
      local source = t.data.tokens.memory(table.concat(bytes), 2)
      local result = t.train.loop { model = run.model, parallel = run.sharded, comm = run.comm,
         optim = require 'spec.support.lion' (run.params, { lr = 1e-2 }), train = source,
         steps = to, out = out, resume = from > 0 and out or nil,
         sampler = t.data.sampler { count = source.count, seq = 8, batch = 4, seed = 1,
            rank = run.data.rank, size = run.data.size },
         progress = { update = function() end, note = function() end, finish = function() end } }
      return { loss = result.loss, rank = rank, n = n }
   end

   it('resumes from a checkpoint, also on another mesh', function()
      local out = os.tmpname() .. '.run'
      local whole = ranks.run(1, train, { dp = 1 }, out, 0, 6)[1].loss
      tide.train.checkpoint.clear(out)
      ranks.run(2, train, { dp_shard = 2 }, out, 0, 3)
      local now = ranks.run(2, train, { dp_shard = 1, tp = 2 }, out, 3, 6)
      tide.train.checkpoint.clear(out)
      for _, r in ipairs(now) do assert.near(whole, r.loss, 1e-4) end
   end)
end)
