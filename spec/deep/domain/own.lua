-- What a user adds to a decoder: an MLP class that says itself how ranks cut it (tp_plan, tp,
-- mixes), and wraps around layers, attention and MLPs, which a registered section hangs on the
-- model that a plan spreads. For the domain training.

local models = require 'spec.deep.domain.models'

local own = {}

-- Children of a block that have wraps ('': the block), and where the section may stand.
local places, sections = { 'mlp', 'self_attn', '' }, { 'fsdp', 'recompute', 'pp', 'cp', 'tp' }

-- A case's own parts, nil for none: mlp (channels of an own MLP), wrap (a place), before.
function own.make(c, o)
   if not o.config.intermediate_size or models.has_state[o.family] then return nil end
   if not c:chance(0.4) then return nil end
   local parts = { before = c:pick(sections) }
   if c:chance(0.6) then parts.mlp = o.axes.tp + c:few(0, 9) end
   if parts.mlp and o.recompute == 'mlp' then o.recompute = 'full' end -- which is of nn.MLP
   if not parts.mlp or c:chance(0.5) then parts.wrap = c:pick(places) end
   return parts
end

local function classes(t)
   local class, nn = t.class, t.nn
   local Scale, Own = class('FuzzScale', nn.Module), class('FuzzMLP', nn.Module)
   Scale.mixes, Own.mixes = false, false

   function Scale:init(n, opts)
      nn.Module.init(self)
      self:param('weight', { n }, { kind = 'normal', std = 1 }, opts)
      self:param('gain', { 1 }, 'ones', opts)
      self:ready(opts)
   end

   function Scale:forward(x) return x * self.weight * self.gain end

   function Scale.tp(_, style)
      if style then return { cut = { weight = 1 }, takes = 'S(-1)', gives = 'S(-1)' } end
   end

   function Own:init(dim, hidden, opts)
      nn.Module.init(self)
      self.up = nn.Linear(dim, hidden, nn.Module.inner(opts))
      self.scale = Scale(hidden, nn.Module.inner(opts))
      self.down = nn.Linear(hidden, dim, nn.Module.inner(opts))
      self:ready(opts)
   end

   function Own:forward(x) return self.down(self.scale(self.up(x):silu())) end

   function Own.tp_plan()
      return { up = 'colwise', scale = { 'colwise', input = 'S(-1)' }, down = 'rowwise' }
   end
   return Own
end

-- The decoder of the case with its own MLPs, whole, in f64.
function own.model(t, o)
   local model = t.model[o.family](o.config, { dtype = 'f64', seed = o.seed })
   if not (o.own and o.own.mlp) then return model end
   local Own = classes(t)
   for i, block in ipairs(model.model.layers) do
      block.mlp = Own(o.config.hidden_size, o.own.mlp, { dtype = 'f64', seed = o.seed + i })
   end
   return model
end

local function around(next, self, x, ...) return next(self, x * 0.7, ...) + x * 0.3 end

-- Hangs the wraps of the case on a model.
function own.wrap(model, parts)
   if not parts.wrap then return end
   for _, block in ipairs(model.model.layers) do
      local module = parts.wrap == '' and block or block[parts.wrap]
      module:wrap('fuzz', around)
   end
end

-- The plan of a case, whose section 'fuzz_own' wraps.
function own.plan(t, o, options)
   if not o.own then
      return t.parallel.plan({ family = o.family, config = o.config, dtype = 'f64' }, o.axes,
         options)
   end
   t.parallel.plan.register('fuzz_own', { before = o.own.before,
      apply = function(run, parts) own.wrap(run.model, parts) end })
   options.fuzz_own = o.own
   return t.parallel.plan(function() return own.model(t, o) end, o.axes, options)
end

return own
