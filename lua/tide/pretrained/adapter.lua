-- LoRA adapters as PEFT keeps them: a folder with adapter_config.json and
-- adapter_model.safetensors (see peft_names.lua and, for experts, peft_moe.lua).

local tide = require 'tide'
local checkpoint = require 'tide.train.checkpoint'
local class = require 'tide.class'
local copy = require 'tide.util.copy'
local cuts = require 'tide.parallel.layout'
local dims = require 'tide.util.dims'
local dist = require 'tide.comm'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local Exact = require 'tide.pretrained.exact'
local family = require 'tide.model.family'
local fs = require 'tide.util.fs'
local lora = require 'tide.nn.lora'
local low_rank = require 'tide.nn.low_rank'
local mixtures = require 'tide.nn.mixtures'
local nf4 = require 'tide.nn.nf4'
local nn = require 'tide.nn'
local outlive = require 'tide.util.outlive'
local peft_moe = require 'tide.pretrained.peft_moe'
local peft_names = require 'tide.pretrained.peft_names'
local signature = require 'tide.util.signature'
local spread = require 'tide.nn.spread'
local state = require 'tide.train.state'
local states = require 'tide.nn.state'

local adapter = {}

local config_name, weights_name = 'adapter_config.json', 'adapter_model.safetensors'

-- ---- merged weights ----------------------------------------------------------------------------

-- Returns a weight, or those of experts [experts, out, in], with its change, in the dtype of W.
local function with_change(W, A, B, m, scale)
   if W.ndim == 2 then return low_rank.changed(W, A, B, m, scale):to(W.dtype) end
   local sum = tide.empty(W.shape, { dtype = W.dtype, device = W.device })
   for e = 1, W:size(1) do
      tide.scope(function()
         local a, b = A:select(1, e), B:select(1, e)
         sum:select(1, e):copy_(low_rank.changed(W:select(1, e), a, b, nil, scale))
      end)
   end
   return sum
end

-- Returns the rows (name -> { shape, dtype }) of a stored model and its reading without adapters,
-- whose changes are in the weights. is_merged: they are there already.
function adapter.merged(description, rows, read, is_merged)
   local plain, changed, scale = {}, {}, low_rank.scale(description)
   for name, row in each(rows) do
      if not low_rank.is_name(name) then plain[name] = row end
   end
   for _, path in ipairs(description.modules) do
      local a, b, weight = low_rank.names(path, function(name) return rows[name] ~= nil end)
      changed[weight] = { path = path, a = a, b = b }
   end
   return plain, function(name, slice)
      local t, change = read(name, slice), not is_merged and changed[name]
      if not change then return t end
      return tide.no_grad(function()
         local m = description.dora and read(change.path .. '.lora_m') or nil
         local expert = #rows[change.a].shape == 3 and slice or nil
         return with_change(t, read(change.a, expert), read(change.b, expert), m, scale)
      end)
   end
end

-- ---- writing -----------------------------------------------------------------------------------

-- Returns adapter_config.json. linear: the modules that are Linear layers; more: fields for the
-- others; rules: of the family.
local function config_of(description, linear, more, all, base, rules)
   local null = tide.json.null
   return copy(more, { peft_type = 'LORA', task_type = 'CAUSAL_LM', r = description.rank,
      lora_alpha = description.alpha, lora_dropout = description.dropout,
      use_rslora = description.rslora, use_dora = description.dora or false,
      bias = 'none', fan_in_fan_out = false,
      inference_mode = true, init_lora_weights = true, modules_to_save = null,
      base_model_name_or_path = base or null,
      target_modules = #linear > 0 and peft_names.targets(linear, all, rules)
         or tide.json.array {} })
end

-- Returns the paths of the Linear layers of a model, and whether it has experts.
local function paths_of(op, plain)
   local bare = { config = plain.config, family = plain.family }
   local list, model = {}, family.build(op, bare, { device = 'null' })
   for i, entry in ipairs(lora.layers(model)) do list[i] = entry.path end
   return list, #mixtures(model) > 0
end

-- Returns the norms of the rows of a weight, in f32.
local function norms_of(W)
   W = W:to 'f32'
   return (W * W):sum(2):sqrt()
end

-- Returns why PEFT cannot read adapters, and which targets it can read (nil: none); nil if it can.
-- plain: family, config and adapter (its description); has(name): whether there is a parameter.
local function obstacle(plain, has)
   local rules = family.rules(plain.family)
   if rules.peft_obstacle then return rules.peft_obstacle end
   return peft_moe.obstacle(plain, rules.peft_experts, has)
end

-- Returns obstacle of the adapters of a model.
function adapter._obstacle(model)
   local has, sharded = {}, spread.of(model).sharded
   for _, e in ipairs(sharded and sharded:whole_parameters() or model:named_parameters()) do
      has[e.name] = true
   end
   return obstacle({ family = family.of(model), config = model.config, adapter = model.adapter },
      function(name) return has[name] end)
end

-- Returns the last name of a layer with adapters that PEFT refuses in a model, though it has a form
-- for them; nil if it reads all.
function adapter._refused(model)
   local name = family.rules(family.of(model)).peft_refuses
   for _, path in ipairs(name and model.adapter.modules or {}) do
      if path:match '[^.]*$' == name then return name end
   end
end

-- Writes the adapters that read(name) gives. has(name): whether there is such a parameter;
-- magnitude(path): of DoRA, as PEFT keeps it.
local function write(op, dir, plain, has, read, magnitude, o)
   local description = plain.adapter
   err.raise_if(not description, 'E_STATE', op, 'the model has no adapters; attach some '
      .. '(nn.lora.attach), or write the model with tide.model.save')
   local why, targets = obstacle(plain, has)
   err.raise_if(why, 'E_UNSUPPORTED', op, '%s; write the merged model with tide.model.save or '
      .. 'export%s', why, targets and ', or train ' .. targets or '')
   local rules, all, is_mixture = family.rules(plain.family), description.modules, false
   if plain.family then all, is_mixture = paths_of(op, plain) end
   local linear, more
   fs.mkdirs(op, dir)
   tide.scope(function()
      local tensors = {}
      local function add(name, t)
         name = peft_names.published(name, rules)
         tensors[name] = (o.dtype and t:to(o.dtype) or t):contiguous()
      end
      linear, more = peft_moe.write(description, is_mixture and rules or {}, has, read, add)
      for _, path in ipairs(description.modules) do
         for _, name in ipairs { path .. '.lora_A', path .. '.lora_B' } do
            if has(name) then add(name, read(name)) end
         end
         if description.dora then add(path .. '.lora_m', magnitude(path)) end
      end
      fs.io().safetensors_save(fs.join(dir, weights_name), tensors, { format = 'pt' })
   end)
   fs.io().fsync_file(fs.join(dir, weights_name))
   fs.write_json(op, fs.join(dir, config_name), config_of(description, linear, more, all,
      o.base, rules))
   return dir
end

-- Writes the adapters of a checkpoint. magnitudes: those of the layers, by path; nil: computed from
-- the weights in the checkpoint.
local function write_checkpoint(op, where, dir, o, magnitudes)
   local saved = checkpoint._load(op, where, { model_only = true, lazy = true })
   local store = saved.store
   local function read(name)
      local shape = store:shape('model', name)
      return store:read('model', name, dims.zeros(#shape), shape, 'cpu')
   end
   local ok, result = pcall(function()
      local weight, _ = read, nil
      if saved.plain.quantised then
         _, weight = nf4._read_as_weights(saved.plain.quantised, {}, read, 'f32')
      end
      local function has(name) return store:shape('model', name) ~= nil end
      return write(op, dir, saved.plain, has, read, function(path)
         return magnitudes and magnitudes[path]
            or norms_of(weight(path .. '.weight')) + read(path .. '.lora_m'):to 'f32'
      end, o)
   end)
   store:close()
   if not ok then error(result, 0) end
   return result
end

-- Saves the adapters of all ranks as a checkpoint beside dir; rank 0 writes the folder from it.
local function write_sharded(op, sharded, dir, o)
   local model = sharded.model
   local magnitudes = rawget(model, 'adapter') and lora._magnitudes(model)
   local pieces = dir:gsub('(.)/+$', '%1') .. '.pieces'
   local saved = state.weights(sharded, low_rank.is_name)
   saved.plain.adapter = rawget(model, 'adapter')
   local at = checkpoint.save(pieces, saved)
   dist.on_first(saved.comm, op, function()
      write_checkpoint(op, at, dir, o, magnitudes)
      fs.remove_dir(op, at)
      fs.remove_dir(op, pieces)
   end)
   return dir
end

-- Writes the adapters of a model, of what fully_shard returned (all ranks call it), or of a
-- checkpoint or the newest of a run, as PEFT does. opts: base (what base_model_name_or_path says;
-- default: the folder that the model was loaded from), dtype. Returns dir.
function adapter.save(what, dir, opts)
   local op = 'model.save_adapter'
   if type(what) == 'string' then return write_checkpoint(op, what, dir, opts) end
   local model = what.is_sharded and what.model or what
   opts.base = opts.base or model.loaded_from
   if what.is_sharded then return write_sharded(op, what, dir, opts) end
   spread.check_uncut(op, model)
   local tensors, adapters = model:state_dict(), rawget(model, 'adapter')
   local magnitudes = adapters and lora._magnitudes(model)
   return write(op, dir, { config = family.config(model), family = family.of(model),
      adapter = adapters }, function(name) return tensors[name] ~= nil end,
      function(name) return tensors[name]:to 'cpu' end,
      function(path) return magnitudes[path] end, opts)
end

-- ---- reading -----------------------------------------------------------------------------------

-- Fields of adapter_config.json that change what is computed, with the values that do not.
local nothing = {}
local neutral = { bias = 'none', fan_in_fan_out = false, lora_bias = false,
   use_qalora = false, rank_pattern = nothing, alpha_pattern = nothing, modules_to_save = nothing,
   layer_replication = nothing, trainable_token_indices = nothing, target_parameters = nothing,
   megatron_config = nothing }

-- Fields that folders of adapters of experts have.
local of_experts = { rank_pattern = true, alpha_pattern = true, target_parameters = true }

-- Refuses a configuration of what is not known here. is_mixture: whether the model has experts.
local function check_config(op, path, c, is_mixture)
   err.raise_if(c.peft_type ~= 'LORA', 'E_UNSUPPORTED', op, "%s: peft_type is '%s', expected "
      .. "'LORA'", path, tostring(c.peft_type))
   for name, value in each(neutral) do
      local v = not (is_mixture and of_experts[name]) and c[name] or nil
      err.raise_if(v ~= nil and v ~= tide.json.null and v ~= value and (type(v) ~= 'table'
         or value ~= nothing or next(v) ~= nil), 'E_UNSUPPORTED', op, '%s: %s = %s is not known '
         .. 'here; merge the adapter into its base with PEFT (merge_and_unload), and load that',
         path, name, type(v) == 'string' and v or err.show(v))
   end
   if is_mixture then peft_moe.check(op, path, c) end
   for _, name in ipairs { 'r', 'lora_alpha' } do err.number(op, path .. ': ' .. name, c[name]) end
end

-- Returns the configuration and the tensors of a folder for a model, under tide's names.
local function open(op, dir, model)
   local path = fs.join(dir, config_name)
   err.raise_if(not fs.exists(path), 'E_IO', op, '%s has no %s; give the folder of an adapter', dir,
      config_name)
   local c = fs.read_json(op, path)
   local rules, all, tensors, names = family.rules(family.of(model)), {}, {}, {}
   local is_mixture = rules.peft_experts ~= nil and #mixtures(model) > 0
   check_config(op, path, c, is_mixture)
   for name, t in each(checkpoint.tensors(fs.join(dir, weights_name))) do
      local inner = peft_names.inner(name, rules)
      all[inner], names[inner] = t, name
   end
   if is_mixture then tensors, c = tide.no_grad(peft_moe.read, op, model, rules, c, all) end
   for name, t in each(all) do
      local mine = peft_names.own(name)
      if not mine then
         err.raise('E_UNSUPPORTED', op, "%s: the tensor '%s' is no part of a LoRA of Linear layers"
            .. '%s', fs.join(dir, weights_name), names[name],
            is_mixture and ', experts or routers' or '')
      end
      tensors[mine] = t
   end
   return c, tensors
end

local function modules_of(tensors)
   local list = {}
   for name in each(tensors) do
      local path = low_rank.path(name)
      if path then list[#list + 1] = path end
   end
   table.sort(list)
   return list
end

-- Raises if the model lacks a layer of the adapter.
local function check_base(op, dir, model, c, modules)
   local known, missing = {}, {}
   for _, entry in ipairs(lora._weights(model)) do known[entry.path] = true end
   for _, path in ipairs(modules) do
      if not known[path] then missing[#missing + 1] = path end
   end
   if #missing == 0 then return end
   err.raise('E_SHAPE', op, '%s is of another base model (%s): %d of its %d layers are not in this '
      .. 'model, the first is %s', dir, tostring(c.base_model_name_or_path), #missing, #modules,
      missing[1])
end

-- Returns what a folder's configuration says of the change that its numbers make, in the words of
-- nn.lora.attach.
local function change_of(c)
   return { rank = c.r, alpha = c.lora_alpha, rslora = c.use_rslora == true,
      dora = c.use_dora == true }
end

-- Raises if the model's adapters would make another change of the numbers in a folder.
local function check_description(op, dir, c, description)
   local stored = change_of(c)
   for _, name in ipairs { 'rank', 'alpha', 'rslora', 'dora' } do
      local mine = description[name] or false
      err.raise_if(stored[name] ~= mine, 'E_STATE', op, '%s: %s is %s, and %s for the adapters '
         .. 'that the model has; remove those first (nn.lora.remove), or attach some with the '
         .. 'values of the folder', fs.join(dir, config_name), name, tostring(stored[name]),
         tostring(mine))
   end
end

-- Compares names and shapes with those of the model's adapters; one error lists all differences.
-- whole: name -> shape.
local function check_names(op, dir, c, whole, tensors)
   local stored = {}
   for name, t in each(tensors) do stored[name] = t.shape end
   states.refuse(op, states.differences(whole, stored), { 'missing', 'unexpected', 'shape' },
      ('%s is of another base model (%s) or of other layers: '):format(dir,
         tostring(c.base_model_name_or_path)))
end

-- Makes m, what DoRA trains, of the magnitudes that PEFT keeps. Collective where the model is
-- distributed over ranks.
local function less_norms(model, tensors)
   lora._each_norms(model, function(path, norms)
      local name = path .. '.lora_m'
      tensors[name] = outlive(tensors[name]:to(norms.device) - norms)
   end)
end

-- Fills a model that is not sharded. exact: keeps the weights that parameters round.
local function fill_model(op, dir, c, exact, tensors)
   local model, whole, on_null = exact.model, {}, false
   for _, e in ipairs(model:named_parameters()) do
      if low_rank.is_name(e.name) then whole[e.name] = cuts.shape(e.owner, e.field) end
      on_null = on_null or e.param.device == 'null'
   end
   check_names(op, dir, c, whole, tensors)
   if on_null then return end
   if c.use_dora == true then less_norms(model, tensors) end
   for _, e in ipairs(model:named_parameters()) do
      local t, cut = tensors[e.name], cuts.get(e.owner, e.field)
      if t then
         exact:fill(e, t.dtype, function(to) to:copy_((cut and cut:cut(t) or t):to(to.device)) end)
      end
   end
end

local function fill_sharded(op, dir, c, sharded, tensors)
   local whole = {}
   for _, e in ipairs(sharded:whole_parameters()) do
      if low_rank.is_name(e.name) then whole[e.name] = e.shape end
   end
   check_names(op, dir, c, whole, tensors)
   if c.use_dora == true then less_norms(sharded.model, tensors) end
   for _, p in ipairs(sharded:named_parameters()) do
      for _, part in ipairs(tensors[p.name] and p.parts or {}) do
         local t = dims.view(tensors[p.name], part.offset, part.size)
         dims.view(p.param:detach(), part.at, part.size):copy_(t:to(p.param.device))
      end
   end
   sharded:updated()
end

-- Reads the adapters in dir into a model, which gets such adapters unless it has some, or into what
-- fully_shard or plan:materialise gave for one that has them (every rank calls it). Returns what it
-- was given. E_SHAPE: they are of another base model; E_STATE: the model's adapters have another
-- rank, alpha or kind; E_UNSUPPORTED: PEFT's variants that are not known here.
function adapter.load(what, dir)
   local op = 'model.load_adapter'
   local model = class.is(what, nn.Module) and what or what.model
   local sharded = spread.of(model).sharded
   err.raise_if(spread.of(model).inside ~= sharded, 'E_STATE', op, 'the model is a part of a '
      .. 'sharded one; read its adapters before fully_shard')
   local c, tensors = open(op, dir, model)
   local modules = modules_of(tensors)
   -- a stage of a pipeline has some of the layers; fill_sharded compares those of all stages
   if not spread.of(model).pp then check_base(op, dir, model, c, modules) end
   local description = rawget(model, 'adapter')
   if description then
      err.raise_if(low_rank.is_merged(model), 'E_STATE', op, 'the adapters of the model are '
         .. 'merged, so its weights hold their changes; call nn.lora.unmerge(model) first')
      check_description(op, dir, c, description)
   else
      local o = change_of(c)
      o.dropout, o.targets = type(c.lora_dropout) == 'number' and c.lora_dropout or 0, modules
      lora.attach(model, o)
   end
   tide.no_grad(function()
      if sharded then
         fill_sharded(op, dir, c, sharded, tensors)
      else
         local run = what ~= model and what.params and what or { model = model }
         local exact = Exact.of(run)
         fill_model(op, dir, c, exact, tensors)
         exact:keep(run)
      end
   end)
   return what
end

-- Returns whether a folder holds an adapter.
function adapter.is(dir) return fs.exists(fs.join(dir, config_name)) end

signature.kind('weights', 'a model, or what fully_shard returned', function(v)
   return class.is(v, nn.Module) or type(v) == 'table' and v.is_sharded
end)
signature.kind('adaptable', 'a model, or what fully_shard or plan:materialise gave', function(v)
   return class.is(v, nn.Module) or type(v) == 'table' and class.is(v.model, nn.Module)
end)
return signature.doors('model', adapter, {
   save = { 'what: weights | string; dir: string', op = 'model.save_adapter', opts = {
      'base: string? -- value of base_model_name_or_path; default: where the model was read',
      "dtype: 'f32' | 'f64' | 'bf16' | 'f16'? -- of the adapters; default: as they are" } },
   load = { 'what: adaptable; dir: string', op = 'model.load_adapter' },
})
