-- Which parameters are gathered and reduced together.
--
-- A unit is a few modules that run one after the other, with the parameters below them that no
-- other unit uses. The rest (embeddings, norms, a head, parameters that two units share) is the
-- root unit. By default every element of every layer list is a unit; a list inside a list does not
-- count.

local class = require 'tide.class'
local err = require 'tide.util.err'
local names = require 'tide.util.names'
local near = require 'tide.util.near'
local layout = require 'tide.parallel.layout'
local Stack = require 'tide.nn.stack'

local units = {}

local op = 'parallel.fully_shard'

-- Calls fn(child module, path, index, count) for every element of the outermost layer lists.
function units.each_layer(module, fn, path)
   path = path or ''
   local is_list = class.is(module, Stack)
   for i, name in ipairs(module._child) do
      if is_list then
         fn(module[name], names.join(path, name), i, #module._child)
      else
         units.each_layer(module[name], fn, names.join(path, name))
      end
   end
end

-- Returns units of neighbours of a layer list, joined until they have at least `least` parameters;
-- 0: each layer is a unit. part_of: nil, or a function; layers with another value of it are no
-- neighbours.
local function by_size(model, least, part_of)
   local list, open, part = {}, nil, nil
   units.each_layer(model, function(m, path, i, n)
      local before = part
      part = part_of and part_of(m)
      if not open or i == 1 or part ~= before then
         open = { name = path, modules = {}, numel = 0 }
         list[#list + 1] = open
      end
      open.modules[#open.modules + 1] = m
      open.numel = open.numel + m:num_parameters()
      open.is_last = i == n
      if open.numel >= least then open = nil end
   end)
   return list
end

local function is_one_of(m, wanted)
   for _, w in ipairs(wanted) do
      if rawget(m, 'class_name') == w then return w end           -- a module with a name of its own
      local c = getmetatable(m)
      while c do
         if c == w or rawget(c, 'class_name') == w then return w end
         c = rawget(c, 'super')
      end
   end
end

-- Returns for each class of a list whether any stage of a pipeline has modules of it. has: whether
-- this one has. A simulation has no other stages, so it leaves the question to the run. Collective.
local function on_any_stage(stage, has)
   for _, other in ipairs(stage:gather(has)) do
      for i, is in ipairs(other) do has[i] = has[i] or is end
   end
   if stage.comm.transport == 'sim' then
      for i = 1, #has do has[i] = true end
   end
   return has
end

-- Refuses a class of `wanted` without a module in the model. list: of units.choose; stage: nil, or
-- that of a pipeline, of which another stage may have the modules. Collective over the stages,
-- which have equal options.
function units.check_used(model, wanted, list, stage)
   local seen, known, has = {}, {}, {}
   if type(wanted) ~= 'table' then return end
   model:walk(function(m)
      if not seen[m.class_name] then known[#known + 1] = m.class_name end
      seen[m.class_name] = true
   end)
   for i, w in ipairs(wanted) do has[i] = list.used[w] == true end
   if stage then has = on_any_stage(stage, has) end
   for i, w in ipairs(wanted) do
      local name = type(w) == 'table' and rawget(w, 'class_name') or tostring(w)
      err.raise_if(not has[i], 'E_ARG', op, "units: no module of class '%s' in the model%s", name,
         near.hint(name, known))
   end
end

-- Returns the outermost modules of the given classes (names or class tables), and in field used
-- which classes have any.
local function by_class(model, wanted)
   local list, used = {}, {}
   local function visit(m, path)
      local w = m ~= model and is_one_of(m, wanted)
      if w then
         used[w] = true
         list[#list + 1] = { name = path, modules = { m } }
         return
      end
      for _, name in ipairs(m._child) do
         visit(m[name], names.join(path, name))
      end
   end
   visit(model, '')
   if #list > 0 then list[#list].is_last = true end
   list.used = used
   return list
end

-- Returns the units of a model. how: nil (layer lists), a list of class names or classes, or a
-- least number of parameters. part_of: as of by_size.
function units.choose(model, how, part_of)
   if how == nil then return by_size(model, 0) end
   if type(how) == 'number' then
      return by_size(model, err.integer(op, 'units', how, 1), part_of)
   end
   err.type(op, 'units', how, 'table')
   if #how == 0 then err.arg(op, 'units', 'at least one class', how) end
   return by_class(model, how)
end

local function owners_of(list)
   local of = {}
   for _, unit in ipairs(list) do
      for _, m in ipairs(unit.modules) do
         m:walk(function(sub)
            err.raise_if(of[sub] and of[sub] ~= unit, 'E_ARG', op, "module '%s' is in two units",
               unit.name)
            of[sub] = unit
         end)
      end
   end
   return of
end

-- Returns every parameter with all places that hold it, in the order of the first ones;
-- entry.unit is the unit of all of them, or root; entry.over names the ranks over which the
-- parameter lies (see ranks.lua): 'sharded', or 'dealt' of experts; Sharded makes it 'tied' of a
-- weight that two stages of a pipeline share.
function units.entries(model, list, root)
   local of, entries, by_id = owners_of(list), {}, {}
   model:walk(function(m, path)
      for _, field in ipairs(m._param) do
         local t = m[field]
         local e, unit = by_id[t.id], of[m] or root
         if not e then
            e = { name = names.join(path, field), param = t, places = {},
               shape = t.shape, dtype = t.dtype, spec = m._spec[field], unit = unit,
               requires_grad = t.requires_grad, whole = t.shape, over = 'sharded' }
            local at = layout.get(m, field)
            if at then
               e.cut, e.whole, e.boxes = at.blocks and at, at.shape, at:boxes()
               if at.axis.deals_experts then e.over = 'dealt' end
            end
            by_id[t.id] = e
            entries[#entries + 1] = e
         end
         if e.unit ~= unit then e.unit = root end
         e.places[#e.places + 1] = { owner = m, field = field }
      end
   end)
   return entries, of
end

return units
