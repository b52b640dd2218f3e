-- A module that says itself how it is cut over ranks: methods tp and tp_plan.

local ranks = require 'spec.support.ranks'
local raised = require 'spec.support.raised'

-- Runs on a rank: a decoder with an MLP of its own on n ranks against the whole one. Returns true
-- or what is wrong.
local function check(_, n, opts)
   local tide = require 'tide'
   local class, nn = tide.class, tide.nn
   local Scale = class('Scale', nn.Module)
   Scale.mixes = false
   function Scale:init(n_, o)
      nn.Module.init(self)
      self:param('weight', { n_ }, { kind = 'normal', std = 1 }, o)
      self:param('gain', { 1 }, 'ones', o)
      self:ready(o)
   end
   function Scale:forward(x) return x * self.weight * self.gain end
   function Scale.tp(_, style, on)
      if not style then return nil end
      if on.ranks ~= n then on:refuse('%d ranks', on.ranks) end
      return { cut = { weight = 1 }, takes = 'S(-1)', gives = 'S(-1)' }
   end
   local Own = class('Own', nn.Module)
   Own.mixes = false
   function Own:init(dim, hidden, o)
      nn.Module.init(self)
      self.up = nn.Linear(dim, hidden, nn.Module.inner(o))
      self.scale = Scale(hidden, nn.Module.inner(o))
      self.down = nn.Linear(hidden, dim, nn.Module.inner(o))
      self:ready(o)
   end
   function Own:forward(x) return self.down(self.scale(self.up(x):silu())) end
   function Own.tp_plan()
      return { up = 'colwise', scale = { 'colwise', input = 'S(-1)' }, down = 'rowwise' }
   end
   local config = { vocab_size = 23, hidden_size = 12, num_hidden_layers = 2,
      num_attention_heads = 2 * n, num_key_value_heads = n, head_dim = 4, intermediate_size = 10 }
   local function make()
      local model = tide.model.llama(config, { seed = 1 })
      for i, block in ipairs(model.model.layers) do block.mlp = Own(12, 11, { seed = i }) end
      return model
   end
   local axis = tide.parallel.mesh({ { 'tp', n } }):axis 'tp'
   local whole, cut = make(), tide.parallel.tensor_parallel(make(), axis, opts)
   if cut:num_parameters() >= whole:num_parameters() then return 'nothing is cut' end
   local ids = tide.tensor({ { 1, 7, 3, 22, 0, 5, 9 }, { 4, 4, 8, 20, 11, 2, 1 } },
      { dtype = 'i64' })
   local a, b = cut:loss(ids, ids), whole:loss(ids, ids)
   if math.abs(a:item() - b:item()) > 1e-5 then return 'loss' end
   a:backward()
   b:backward()
   local grads = tide.parallel.layout.gathered(cut, true)
   for _, e in ipairs(whole:named_parameters()) do
      local far = (grads[e.name] - e.param.grad):abs():amax():item()
      if far ~= far or far > 1e-5 then return ('gradient of %s: off by %g'):format(e.name, far) end
   end
   return true
end

describe('tensor parallelism of a module of one\'s own', function()
   for _, n in ipairs { 2, 3 } do
      for _, opts in ipairs { {}, { sequence_parallel = true },
         { sequence_parallel = true, async_tp = true } } do
         it(('is the whole model on %d ranks%s%s'):format(n,
            opts.sequence_parallel and ', the sequence cut too' or '',
            opts.async_tp and ', overlapped' or ''), function()
            for _, got in ipairs(ranks.run(n, check, opts)) do assert.equal(true, got) end
         end)
      end
   end

   it('is refused where its answer does not fit', function()
      local tide = require 'tide'
      local nn = tide.nn
      local Own = tide.class('Own', nn.Module)
      function Own:init()
         nn.Module.init(self)
         self:param('weight', { 4 }, 'ones')
         self:ready()
      end
      local comm = tide.comm.simulate(2, 0)
      local axis = tide.parallel.mesh({ { 'tp', 2 } }, { comm = comm }):axis 'tp'
      local function bad(words, answer, style)
         Own.tp = function() return answer end
         local e = raised(tide.parallel.parallelize_module, nn.Stack { Own() }, axis,
            { ['0'] = style or 'colwise' })
         assert.equal('E_ARG', e.code)
         assert.matches(words, tostring(e))
      end
      bad('Own cannot be colwise .*its method tp gives no cut', nil)
      bad('does not fit the style', { cut = { weight = 1 }, takes = 'S(1)', gives = 'S(-1)' })
      bad('does not fit the style', { cut = { weight = 1 }, gives = 'P' })
      bad("expected parameters, got \"wight\"", { cut = { wight = 1 }, gives = 'S(-1)' })
      bad("'givs'", { cut = { weight = 1 }, givs = 'S(-1)' })
   end)
end)
