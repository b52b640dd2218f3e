-- LoRA: low-rank adapters beside the weights of Linear layers, experts and routers, which are
-- frozen.
--
--    nn.lora.attach(model, { rank = 16, alpha = 32, targets = 'q_proj|v_proj' })
--    local optim = tide.optim.AdamW(model, { lr = 2e-4 })      -- adapters alone get gradients
--    nn.lora.merge(model)                                      -- W + scale B A in place of W
--
-- A layer y = x W' becomes x W' + scale (x A') B', A [rank, in] as PEFT draws it and B [out, rank]
-- zeros, so that a model starts as it was. A and B are parameters lora_A and lora_B of the layer
-- itself: names of the base stay, tensor parallelism cuts B with the rows of the weight or A with
-- its columns (Linear:tp), and sharding gathers frozen parameters and reduces the others. Attach
-- before any of these. model.adapter is the description, which checkpoints keep.
--
-- Experts of an nn.MoE have an adapter each: parameters gate_proj_lora_A [experts, rank, in] and
-- gate_proj_lora_B [experts, out, rank] of the layer, and so on (lora_moe.lua).
--
-- The wrap is inside that of tensor parallelism, so it gets this rank's parts.
--
-- DoRA also scales each output by (|W| + m) / |W + scale B A| of the rows, where m (the
-- parameter lora_m) starts at zero. PEFT keeps |W| + m as the magnitude; as a difference it needs
-- no weights to start with, and takes the same steps. No gradient goes through the norms, as in
-- the paper.
--
-- merge and unmerge change the shards of a sharded model: no weight is gathered.

local tide = require 'tide'
local adapted = require 'tide.nn.adapted'
local class = require 'tide.class'
local by_key = require 'tide.util.by_key'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local finally = require 'tide.util.finally'
local lora_moe = require 'tide.nn.lora_moe'
local low_rank = require 'tide.nn.low_rank'
local names_ = require 'tide.util.names'
local near = require 'tide.util.near'
local outlive = require 'tide.util.outlive'
local private = require 'tide.util.private'
local product = require 'tide.nn.product'
local signature = require 'tide.util.signature'
local spread = require 'tide.nn.spread'
local weight = require 'tide.nn.weight'
local wrap = require 'tide.nn.wrap'
local Linear = require 'tide.nn.linear'

local lora = {}

local op = 'nn.lora.attach'

-- ---- which layers ------------------------------------------------------------------------------

-- Returns the Linear layers that can be adapted, { path, m } each: all but the output head, whose
-- weight the loss reads alone. A layer in several places has the path of the first one.
function lora.layers(model)
   local W = model.head_loss and model:head()             -- nil on stages before the last one
   local head = W and W.id
   local list, seen = {}, {}
   model:walk(function(m, path)
      if class.is(m, Linear) and not (m.weight and m.weight.id == head) and not seen[m] then
         list[#list + 1], seen[m] = { path = path, m = m }, true
      end
   end)
   return list
end

-- Returns all weights that can be adapted: { path, m, field, nin, nout }, those of Linear layers
-- first; of experts and routers also `experts` and `public`, all paths that name it (lora_moe.lua).
function lora._weights(model)
   local list = {}
   for i, entry in ipairs(lora.layers(model)) do
      local m = entry.m
      list[i] = { path = entry.path, m = m, field = 'weight', nin = m.nin, nout = m.nout }
   end
   return lora_moe.add(list, model)
end

-- Returns whether a path matches a target as in PEFT: the target is the end of the path, from a
-- dot; '*' matches one name.
local function matches(path, target)
   local pattern = target:gsub('[%^%$%(%)%%%.%[%]%+%-%?]', '%%%0'):gsub('%*', '[^.]+')
   return ('.' .. path):find('%.' .. pattern .. '$') ~= nil
end

local function last_names(list)
   local names, add = by_key(function(name) return name end)
   for _, entry in ipairs(list) do
      local name = entry.path:match '[^.]*$'
      add(name, name)
   end
   return names
end

local function refuse_target(model, list, target)
   for _, entry in ipairs(model:named_modules()) do
      if matches(entry.name, target) then
         err.raise('E_UNSUPPORTED', op, "targets: '%s' is of class %s; adapters are for Linear "
            .. 'layers but the output head, and experts, here %s', entry.name,
            entry.module.class_name, table.concat(last_names(list), ', '))
      end
   end
   local names = last_names(list)
   local found = near.best(target, names)
   err.raise('E_ARG', op, "targets: '%s' matches no layer%s (those of the model: %s; all: "
      .. 'all-linear)', target, found and ("; did you mean '%s'?"):format(found) or '',
      table.concat(names, ', '))
end

-- Returns the words of an option: a text 'q_proj|v_proj', or a list of such texts.
local function words_of(targets, name)
   local words = {}
   for _, text in ipairs(type(targets) == 'table' and targets or { targets }) do
      for word in err.type(op, name, text, 'string'):gmatch '[^|,%s]+' do
         words[#words + 1] = word
      end
   end
   return words
end

-- Returns the layers { path, m } that targets name, in the order of the model.
local function chosen(model, targets)
   local all, list, used = lora._weights(model), {}, {}
   if #all == 0 then err.raise('E_ARG', op, 'the model has no Linear layer') end
   if targets == 'all-linear' then return all end
   local words = words_of(targets, 'targets')
   if #words == 0 then err.arg(op, 'targets', "names of layers, or 'all-linear'", targets) end
   for _, entry in ipairs(all) do
      local found = false
      for _, word in ipairs(words) do
         for _, path in ipairs(entry.public or { entry.path }) do
            if matches(path, word) then found, used[word] = true, true end
         end
      end
      if found then list[#list + 1] = entry end
   end
   for _, word in ipairs(words) do
      if not used[word] then refuse_target(model, all, word) end
   end
   return list
end

-- ---- what a layer computes ---------------------------------------------------------------------

-- Returns scale (x A') B', computed with this rank's parts.
local function change_of(self, x, o)
   if o.dropout > 0 and self.training then x = tide.dropout(x, o.dropout) end
   local h = tide.linear(x, self.lora_A)
   h = private.replace(h, h * o.scale)
   return private.replace(h, tide.linear(h, self.lora_B))
end

-- Returns the factor of the outputs in DoRA: (|W| + m) / |W + scale B A|; m has a gradient.
local function stretch_of(m, self, scale)
   local view = adapted.whole(m)
   local before, after = tide.no_grad(function()
      return tide.scope(adapted.both_norms, view, scale)
   end)
   return (before + self.lora_m:to 'f32') / after
end

-- Returns the output of the inner call plus the low-rank change, in one op where that is possible.
local function changed(next, m, self, x, o)
   if product.is_plain_inside(m, 'lora') and not (o.dropout > 0 and self.training) then
      return tide.linear_lora(x, self.weight, self.lora_A, self.lora_B, o.scale, self.bias or nil)
   end
   local y, change = next(self, x), change_of(self, x, o)
   y = private.replace(y, y + change)
   private.spend(change)
   return y
end

-- Returns the output of a layer with DoRA; its bias is added at the end.
local function stretched(next, m, self, x, o)
   local y = changed(next, m, setmetatable({ bias = false }, { __index = self }), x, o)
   y = private.replace(y, y * stretch_of(m, self, o.scale):to(y.dtype))
   return self.bias and private.replace(y, y + self.bias) or y
end

-- Wraps a layer. The wrap finds the layer in a field of the layer, because a copy of a model (the
-- rehearsal of a plan) shares the functions of the model.
local function add_wrap(layer, o)
   rawset(layer, '_adapted', { layer })
   layer:wrap('lora', function(next, self, x)
      if o.merged or o.off then return next(self, x) end
      local m = self._adapted[1]
      return (m.lora_m and stretched or changed)(next, m, self, x, o)
   end, { of = 'forward', order = wrap.order.lora, by = 'lora' })
end

-- Gives a weight the parameters of its adapter.
local function adapt(entry, rank, o, seed)
   local m, W = entry.m, entry.m[entry.field]
   local like = { dtype = W and W.dtype or o.dtype,
      device = (W or m[entry.field .. '_nf4']).device }
   local a, b, magnitude = low_rank.fields(entry.field)
   local function shape(rows, cols)
      return entry.experts and { entry.experts, rows, cols } or { rows, cols }
   end
   m:param(a, shape(rank, entry.nin), { kind = 'kaiming', fan_in = entry.nin,
      gain = 1 / math.sqrt(3) }, like)
   m:param(b, shape(entry.nout, rank), 'zeros', like)
   if o.dora then m:param(magnitude, { entry.nout }, 'zeros', like) end
   if like.device ~= 'null' then
      tide.no_grad(function()
         for _, field in ipairs { a, b, o.dora and magnitude or nil } do
            weight.fill(m[field], m._spec[field], { seed = seed, path = entry.path
               .. (entry.field == 'weight' and '.' .. field or field:sub(#entry.field + 1)) })
         end
      end)
   end
   if entry.field == 'weight' then add_wrap(m, o) else lora_moe.wrap(m, o) end
end

-- Raises if two layers have one weight, to which the changes of both could not be added.
local function check_apart(list)
   local owner = {}
   for _, entry in ipairs(list) do
      local W = entry.m[entry.field]
      local id = W and W.id
      err.raise_if(id and owner[id], 'E_UNSUPPORTED', op, "'%s' and '%s' share one weight, which "
         .. 'could not hold the changes of both; leave one of them out of targets', owner[id],
         entry.path)
      if id then owner[id] = entry.path end
   end
end

-- Returns the layers that lie in none of the modules at `paths`.
local function outside(list, paths)
   local kept = {}
   for _, entry in ipairs(list) do
      local inside = false
      for _, path in ipairs(paths) do
         inside = inside or (entry.path .. '.'):sub(1, #path + 1) == path .. '.'
      end
      if not inside then kept[#kept + 1] = entry end
   end
   err.raise_if(#kept == 0, 'E_ARG', op, 'except: no layer that targets names is outside %s',
      table.concat(paths, ', '))
   return kept
end

-- ---- doors -------------------------------------------------------------------------------------

-- Adds adapters to the Linear layers, experts and routers that `targets` names, and freezes
-- everything else. Returns model.adapter: { rank, alpha, dropout, rslora, dora, modules (their
-- paths; of experts that of their weight) }. E_STATE: the model has adapters, or is distributed
-- over ranks already. E_UNSUPPORTED: two of the layers share a weight; experts with dropout or
-- dora.
function lora.attach(model, opts)
   err.raise_if(rawget(model, 'adapter'), 'E_STATE', op, 'the model has adapters already; merge '
      .. 'and remove them first, or continue with them')
   spread.check_whole(op, model, 'attach adapters first')
   local list = outside(chosen(model, opts.targets), words_of(opts.except or {}, 'except'))
   check_apart(list)
   lora_moe.check(op, list, opts)
   for _, entry in ipairs(list) do
      local most = math.min(entry.nin, entry.nout)
      -- a router has few rows and a gate has one, and PEFT adapts them at any rank
      local is_free = entry.field == 'router' or entry.nout == 1
      err.raise_if(opts.rank > most and not is_free, 'E_ARG', op, "rank: %d is larger "
         .. "than '%s' (%d -> %d) allows; give at most %d, or leave the layer out of targets",
         opts.rank, entry.path, entry.nin, entry.nout, most)
   end
   local adapter = { rank = opts.rank, alpha = opts.alpha or 2 * opts.rank, dropout = opts.dropout,
      rslora = opts.rslora, dora = opts.dora, modules = {} }
   local o = { scale = low_rank.scale(adapter), dropout = opts.dropout, dora = opts.dora,
      merged = false, stretch = {}, dtype = model:parameters()[1].dtype }
   model:requires_grad_(false)
   for i, entry in ipairs(list) do
      adapt(entry, opts.rank, o, opts.seed)
      adapter.modules[i] = entry.path
   end
   rawset(model, 'adapter', adapter)
   rawset(model, '_adapter', o)
   return adapter
end

-- Returns the adapters of a model; raises if it has no adapters.
local function adapters_of(name, model)
   local adapter = rawget(model, 'adapter')
   err.raise_if(not adapter, 'E_STATE', name, 'the model has no adapters; attach some with '
      .. 'nn.lora.attach')
   return adapter, rawget(model, '_adapter')
end

-- Returns the paths of adapted layers on this rank: a stage of a pipeline has some of them.
local function paths_here(model, adapter)
   local has, list = spread.has(model), {}
   for _, path in ipairs(adapter.modules) do
      if has((names_.split(path))) then list[#list + 1] = path end
   end
   return list
end

-- Calls fn(view, path) for the adapted layers.
local function each_layer(model, adapter, fn)
   local sharded = spread.of(model).inside
   tide.no_grad(function()
      for _, path in ipairs(paths_here(model, adapter)) do
         tide.scope(function()
            local m, field = lora_moe.find(model, path)
            if field ~= 'weight' then return fn(adapted.of_moe(m, field, sharded), path) end
            fn(sharded and adapted.sharded(m, sharded) or adapted.whole(m), path)
         end)
      end
   end)
end

-- Changes the weights in place: rows W become change(W, row, n), where change = fn(view, path).
local function rewrite(name, model, adapter, fn)
   local sharded = spread.of(model).inside
   if sharded then sharded:check_finished(name) end
   each_layer(model, adapter, function(view, path)
      local change = fn(view, path)
      view.each(function(W, row, n, at) at:copy_(change(W, row, n)) end)
   end)
   if sharded then sharded:updated() end
end

-- Adds the low-rank changes to the weights (in f32, rounded once); the layers then compute with the
-- weights alone. Idempotent. Collective where the model is distributed over ranks. Returns model.
function lora.merge(model)
   local name = 'nn.lora.merge'
   local adapter, o = adapters_of(name, model)
   if o.merged then return model end
   err.raise_if(rawget(model, 'quantised'), 'E_STATE', name, 'the weights are in NF4, which would '
      .. 'round the changes away; call nn.nf4.dequantise_(model) first, or write the merged model '
      .. 'with tide.model.save')
   rewrite(name, model, adapter, function(view, path)
      if view.magnitude then
         local before, after = adapted.both_norms(view, o.scale)
         o.stretch[path] = outlive(((before + view.magnitude:to 'f32') / after):unsqueeze(2))
      end
      local stretch = o.stretch[path]
      return function(W, row, n)
         W = adapted.changed(view, W, row, n, o.scale)
         return stretch and W * stretch:narrow(1, row + 1, n) or W
      end
   end)
   o.merged = true
   return model
end

-- Subtracts the low-rank changes from the weights, which are then those before merge, up to
-- rounding. Idempotent. Collective where the model is distributed over ranks. Returns model.
function lora.unmerge(model)
   local name = 'nn.lora.unmerge'
   local adapter, o = adapters_of(name, model)
   if not o.merged then return model end
   rewrite(name, model, adapter, function(view, path)
      local stretch = o.stretch[path]
      return function(W, row, n)
         if stretch then W = W / stretch:narrow(1, row + 1, n) end
         return adapted.changed(view, W, row, n, -o.scale)
      end
   end)
   o.merged = false
   return model
end

-- Returns a whole vector over the outputs of a layer from the part of this rank's outputs.
local function over_outputs(m, t)
   local places = rawget(m, '_layout')
   return places and places.lora_m and places.lora_m:gather(t) or t
end

-- Calls fn(path, m, norms): the norms of the rows of each adapted weight, f32 [out], whole.
-- Collective where the model is distributed over ranks.
function lora._each_norms(model, fn)
   each_layer(model, rawget(model, 'adapter'), function(view, path)
      fn(path, over_outputs(view.m, adapted.norms(view)))
   end)
end

-- Returns the magnitudes of DoRA as PEFT stores them, |W| + m of the unmerged weights: path -> f32
-- [out] on the host, whole; in a pipeline those of all stages. The table is empty without DoRA.
-- Collective where the model is distributed over ranks.
function lora._magnitudes(model)
   local list, o = {}, rawget(model, '_adapter')
   if not o.dora then return list end
   each_layer(model, rawget(model, 'adapter'), function(view, path)
      local t = adapted.norms(view)            -- of merged rows: the magnitudes but for the sign
      t = o.merged and t * o.stretch[path]:squeeze(2):sign() or t + view.magnitude:to 'f32'
      list[path] = outlive(over_outputs(view.m, t))
   end)
   local stage = spread.of(model).pp
   if stage then list = stage:joined(list, spread.of(model).sharded.device) end
   for path, t in each(list) do list[path] = t:to 'cpu' end
   return list
end

-- Returns the results of fn() with the adapters off, so those of the base model; also of a sharded
-- model.
function lora.without(model, fn)
   local o = rawget(model, '_adapter')
   err.raise_if(not o, 'E_STATE', 'nn.lora.without', 'the model has no adapters; attach some '
      .. 'with nn.lora.attach')
   err.raise_if(o.merged, 'E_STATE', 'nn.lora.without', 'the adapters are merged; call '
      .. 'nn.lora.unmerge(model) first')
   err.func('nn.lora.without', 'fn', fn)
   local before = o.off
   o.off = true
   return finally(function() o.off = before end, fn)
end

-- Removes the adapters: the parameters, the wraps and model.adapter; merged changes stay in the
-- weights. All parameters are trained again. Returns model.
function lora.remove(model)
   local adapter = adapters_of('nn.lora.remove', model)
   err.raise_if(spread.of(model).inside, 'E_STATE', 'nn.lora.remove', 'the model is sharded, with '
      .. 'its adapters in the shards; nn.lora.merge adds them to the weights, tide.model.save '
      .. 'writes the merged model')
   for _, path in ipairs(paths_here(model, adapter)) do
      local m, field = lora_moe.find(model, path)
      if field == 'weight' then
         wrap.drop(m, 'lora', 'forward')
         rawset(m, '_adapted', nil)
      else
         lora_moe.unwrap(m)
      end
      for _, name in ipairs { low_rank.fields(field) } do m:_take_away(name) end
   end
   rawset(model, 'adapter', nil)
   rawset(model, '_adapter', nil)
   return model:requires_grad_(true)
end

return signature.doors('nn.lora', lora, {
   attach = { 'model: module', opts = {
      'rank: integer >= 1 = 8 -- columns of B',
      'alpha: number? > 0 -- changes are multiplied by alpha / rank; 2 rank by default',
      "targets: string | string[] = 'all-linear' -- ends of paths ('q_proj|v_proj'; '*' is one "
         .. 'name), or all Linear layers but the output head, experts and routers',
      "except: string | string[]? -- modules without adapters, by their whole path ('visual')",
      'dropout: number in [0, 1) = 0 -- dropout of the input of A',
      'rslora: boolean = false -- alpha / sqrt(rank) in place of alpha / rank',
      'dora: boolean = false -- also trains the norm of each row (DoRA)',
      'seed: integer >= 0 = 0 -- of the values of A' } },
   layers = 'model: module', merge = 'model: module', unmerge = 'model: module',
   remove = 'model: module',
   without = 'model: module; fn: function',
})
