-- Adapters of experts and routers: which weights of an nn.MoE they are for, and what the layer then
-- computes.
--
-- The path of such a weight is that of the parameter: 'model.layers.0.mlp.gate_proj'. Targets may
-- also end its name in published files, where experts are modules: 'BLOCK.experts.gate_proj',
-- 'BLOCK.experts.gate_up_proj' for it and up_proj, and 'BLOCK.gate' for the router, with BLOCK =
-- 'model.layers.0.mlp'. PEFT with transformers 5 adapts the same weights by 'all-linear', and reads
-- the same targets so.
--
-- Each expert has its own A and B. All A of a projection are one parameter [experts, rank, in], all
-- B [experts, out, rank], so the change is two grouped products.

local tide = require 'tide'
local MoE = require 'tide.nn.moe'
local class = require 'tide.class'
local err = require 'tide.util.err'
local low_rank = require 'tide.nn.low_rank'
local mixtures = require 'tide.nn.mixtures'
local names_ = require 'tide.util.names'
local private = require 'tide.util.private'
local wrap = require 'tide.nn.wrap'

local lora_moe = {}

-- ---- which weights -----------------------------------------------------------------------------

-- Returns the path that published files give the block of a layer at `path`: that of the layer with
-- shared experts of which it is a part.
function lora_moe.block(path) return (path:gsub('%.routed$', ''):gsub('%.experts$', '')) end

-- Returns the paths whose ends may name the weight at a field of a layer.
local function public_of(path, field)
   local block, own = lora_moe.block(path), names_.join(path, field)
   if field == 'router' then return { own, names_.join(block, 'gate') } end
   local list = { own, names_.join(block, 'experts', field) }
   if field ~= 'down_proj' then list[3] = names_.join(block, 'experts.gate_up_proj') end
   return list
end

-- Adds the weights of experts and routers to a list of nn.lora._weights; returns it.
function lora_moe.add(list, model)
   for _, layer in ipairs(mixtures(model)) do
      local m, path = layer.m, layer.path
      for _, field in ipairs { 'router', unpack(m:_fields()) } do
         local nout, nin = m:_shape(field)
         local is_router = field == 'router'
         list[#list + 1] = { path = names_.join(path, field), m = m, field = field, nin = nin,
            nout = nout, experts = not is_router and m.experts or nil,
            public = public_of(path, field) }
      end
   end
   return list
end

-- Returns the module and field of the weight at a path of model.adapter.modules: 'weight' of a
-- Linear layer.
function lora_moe.find(model, path)
   local parent, field = names_.split(path)
   local m = model:get(parent)
   if class.is(m, MoE) then return m, field end
   return model:get(path), 'weight'
end

local other_half = { gate_proj = 'up_proj', up_proj = 'gate_proj' }

-- Refuses adapters of experts that PEFT does not have.
function lora_moe.check(op, list, opts)
   local chosen = {}
   for _, entry in ipairs(list) do
      local is_linear = entry.field == 'weight'
      for _, name in ipairs { 'dropout', 'dora' } do
         err.raise_if(not is_linear and opts[name] and opts[name] ~= 0, 'E_UNSUPPORTED', op,
            "%s: '%s' is the weight of %s, whose adapters have no %s, as in PEFT; leave %s out, or "
            .. 'name Linear layers in targets', name, entry.path, entry.experts and 'experts'
            or 'a router', name, name)
      end
      chosen[entry.path] = true
   end
   for _, entry in ipairs(list) do
      local is_half = entry.experts and entry.m:_is_gated()
      local half = is_half and other_half[entry.field]
      local path = half and entry.path:sub(1, -#entry.field - 1) .. half
      err.raise_if(half and not chosen[path], 'E_ARG', op, "targets: '%s' without '%s'; PEFT keeps "
         .. 'the adapters of both in one, so name both (gate_proj|up_proj)', entry.path, path)
   end
end

-- ---- what a layer computes ---------------------------------------------------------------------

-- Returns y + change, in place of y.
local function plus(y, change)
   local sum = private.replace(y, y + change)
   private.spend(change)
   return sum
end

local function grouped(next, self, name, x, offsets, o)
   local y, a, b = next(self, name, x, offsets), low_rank.fields(name)
   if o.merged or o.off or not self[a] then return y end
   local h = tide.grouped_linear(x, self[a], offsets)
   h = private.replace(h, h * o.scale)
   return plus(y, private.replace(h, tide.grouped_linear(h, self[b], offsets)))
end

local function logits(next, self, x, o)
   local y, A, B = next(self, x), self.router_lora_A, self.router_lora_B
   if o.merged or o.off or not A then return y end
   local h = tide.linear(x:to(y.dtype), A:to(y.dtype))
   h = private.replace(h, h * o.scale)
   return plus(y, private.replace(h, tide.linear(h, B:to(y.dtype))))
end

-- Lets a layer compute with the adapters that it has.
function lora_moe.wrap(m, o)
   if wrap.find(m, 'lora', '_grouped') then return end
   local function around(of, fn)
      m:wrap('lora', fn, { of = of, order = wrap.order.lora, by = 'lora' })
   end
   around('_grouped', function(next, self, name, x, offsets)
      return grouped(next, self, name, x, offsets, o)
   end)
   around('_logits', function(next, self, x) return logits(next, self, x, o) end)
end

-- Lets a layer compute without.
function lora_moe.unwrap(m)
   for _, of in ipairs { '_grouped', '_logits' } do
      if wrap.find(m, 'lora', of) then wrap.drop(m, 'lora', of) end
   end
end

return lora_moe
