-- A recipe of one's own, as the guides teach it: an optimiser (Lion), a module with its own tensor
-- parallelism and its declaration for context parallelism, a metric and a callback. own_spec runs
-- it with `axis` (the axis of the mesh that has all ranks) and `out` set before it.
-- luacheck: globals axis out

local tide, class = require 'tide', require 'tide.class'
local nn, world = tide.nn, tide.comm.world()
local Lion = require 'spec.support.lion'

local Scale = class('Scale', nn.Module)
Scale.mixes = false
function Scale:init(n, opts)
   nn.Module.init(self)
   self:param('weight', { n }, 'ones', opts)
   self:ready(opts)
end
function Scale:forward(x) return x * self.weight end
function Scale:tp(style)
   if style then return { cut = { weight = 1 }, takes = 'S(-1)', gives = 'S(-1)' } end
end

local Scaled = class('Scaled', nn.Module)
Scaled.mixes = false
function Scaled:init(dim, hidden, opts)
   opts = nn.Module.options('Scaled', opts, {})
   nn.Module.init(self)
   self.up = nn.Linear(dim, hidden, nn.Module.inner(opts))
   self.scale = Scale(hidden, nn.Module.inner(opts))
   self.down = nn.Linear(hidden, dim, nn.Module.inner(opts))
   self:ready(opts)
end
function Scaled:forward(x) return self.down(self.scale(self.up(x):silu())) end
function Scaled:tp_plan()
   return { up = 'colwise', scale = { 'colwise', input = 'S(-1)' }, down = 'rowwise' }
end

local ids = tide.data.bytes:encode(('to be, or not to be. '):rep(99), { width = 2 })
local all = tide.data.tokens.memory(ids, 2)
local train = tide.data.tokens.slice(all, 0, 1800)
local val = tide.data.tokens.slice(all, 1800, 200)

local model = tide.model.llama({ vocab_size = tide.data.bytes.vocab_size, hidden_size = 32,
   num_hidden_layers = 2, num_attention_heads = 4 }, { device = 'null' })
for _, layer in ipairs(model.model.layers) do layer.mlp = Scaled(32, 48, { device = 'null' }) end

local spread = tide.parallel.plan(model, { [axis] = world.size }):materialise { seed = 1 }
local sampler = tide.data.sampler { count = train.count, seq = 32, batch = 4, seed = 1,
   rank = spread.data.rank, size = spread.data.size }
local run = tide.train.run {
   model = spread.model, parallel = spread.sharded, comm = spread.comm, clip = 1, out = out,
   optim = Lion(spread.params, { lr = 1e-3 }), train = train, val = val, sampler = sampler,
   on_evaluate = function(_, loss)
      if world.rank == 0 then print(('evaluated %.3f'):format(loss)) end
   end,
   progress = { update = function() end, note = function() end, finish = function() end },
}
for s in run:steps(8) do
   run:metric('epochs', sampler:epochs())
   if world.rank == 0 then print(('%d %.3f'):format(s.step, s.loss)) end
   if s.last then run:evaluate() end
end
run:finish()
