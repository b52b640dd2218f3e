-- The entry points of NeMo Automodel's parallelizer, under their names.
--
--    local model, sharded = tide.parallel.fsdp2_strategy_parallelize(model, mesh, {
--       sequence_parallel = true, activation_checkpointing = true, seed = 1 })
--    local model, optim = tide.parallel.megatron_fsdp_strategy_parallelize(model, mesh, {
--       optimizer = function(params) return tide.optim.AdamW(params, { lr = 1e-3 }) end })
--
-- They are plans (parallel.plan) with other names for the options and the axes. So
-- the order is tensor parallelism, recomputation, sharding, and all is checked before anything is
-- changed. Parameters are sharded over data and context ranks together, whatever the axes are
-- called, and unit classes that cannot be imported are an error.

local class = require 'tide.class'
local err = require 'tide.util.err'
local import = require 'tide.parallel.import'
local mesh_of = require 'tide.parallel.mesh'
local nn = require 'tide.nn'
local plan_of = require 'tide.parallel.plan'

local parallelizer = {}

-- ---- axes ------------------------------------------------------------------------------------

-- Names for an axis where the caller gives none, the first one that the mesh has; and ours.
local roles = {
   { option = 'dp_mesh_name', ours = 'dp_shard', usual = { 'data_parallel', 'dp', 'dp_shard' } },
   { option = 'cp_mesh_name', ours = 'cp', usual = { 'context_parallel', 'cp' } },
   { option = 'tp_mesh_name', ours = 'tp', usual = { 'tensor_parallel', 'tp' } },
}

local function one_name(op, mesh, role, given)
   if type(given) == 'table' then
      local wide = {}
      for _, name in ipairs(given) do
         if mesh:axis(name).size > 1 then wide[#wide + 1] = name end
      end
      if #wide > 1 then
         err.raise('E_UNSUPPORTED', op, 'Hybrid-sharding not supported (%s = %s); '
            .. "parallel.plan and fully_shard do it, with the axes dp_replicate and dp_shard",
            role.option, table.concat(wide, ', '))
      end
      given = wide[1] or given[1]
   end
   if given ~= nil then
      mesh:axis(err.type(op, role.option, given, 'string'))
      return given
   end
   for _, name in ipairs(role.usual) do
      if mesh.by_name[name] then return name end
   end
end

-- The mesh with the names of a plan.
local function named(op, mesh, opts)
   if getmetatable(mesh) ~= mesh_of.Mesh then err.arg(op, 'mesh', 'a mesh', mesh) end
   mesh = mesh.root
   local ours, same = {}, true
   for _, role in ipairs(roles) do
      local name = one_name(op, mesh, role, opts[role.option])
      if name then
         err.raise_if(ours[name], 'E_ARG', op, "%s: '%s' is also %s", role.option, name, ours[name])
         ours[name] = role.ours
      end
   end
   local list = {}
   for i, a in ipairs(mesh.axes) do
      local name = ours[a.name] or a.name
      if a.size > 1 and not ours[a.name] then
         err.raise('E_UNSUPPORTED', op, a.name:find '^dp'
            and "Hybrid-sharding not supported: the mesh has the axis '%s' of %d ranks besides"
            or "nothing is known for the axis '%s' of %d ranks", a.name, a.size)
      end
      list[i] = { name, a.size }
      same = same and name == a.name
   end
   return same and mesh or mesh_of(list, { comm = mesh.comm, host_size = mesh.host_size })
end

-- ---- the common part -------------------------------------------------------------------------

-- true: the MLPs, if the model has some.
local function recompute_of(v, model)
   if v ~= true then return v or nil end
   local found = false
   model:walk(function(m) found = found or class.is(m, nn.MLP) end)
   return found and 'mlp' or nil
end

-- dp_cp_mesh_name: an axis of the mesh that is its data and context ranks together, as sharding
-- makes them in any case.
local function check_dp_cp(op, mesh, o)
   if o.dp_cp_mesh_name == nil then return end
   local axis = mesh:axis(err.type(op, 'dp_cp_mesh_name', o.dp_cp_mesh_name, 'string'))
   local n = 1
   for _, role in ipairs(roles) do
      local name = role.ours ~= 'tp' and one_name(op, mesh, role, o[role.option])
      if name then n = n * mesh:axis(name).size end
   end
   err.arg_if(axis.size ~= n, op, 'dp_cp_mesh_name',
      ('an axis of the %d data and context ranks'):format(n),
      ("'%s' of %d"):format(axis.name, axis.size))
end

local function defaults(opts, rows)
   local o = {}
   for _, row in ipairs(rows) do
      o[row[1]] = opts[row[1]]
      if o[row[1]] == nil then o[row[1]] = row[2] end
   end
   return o
end

local function check_flags(op, o, rows)
   for _, row in ipairs(rows) do
      if type(row[2]) == 'boolean' then err.type(op, row[1], o[row[1]], 'boolean') end
   end
end

local function read(op, opts, rows)
   local names = {}
   for i, row in ipairs(rows) do names[i] = row[1] end
   local o = defaults(err.options(op, opts, names), rows)
   check_flags(op, o, rows)
   return o
end

local function spread(op, model, mesh, o, fsdp)
   if not class.is(model, nn.Module) then err.arg(op, 'model', 'a module', model) end
   local whole = mesh
   mesh = named(op, mesh, o)
   check_dp_cp(op, whole, o)
   if o.cp ~= nil then err.type(op, 'cp', o.cp, 'table') end
   local tp = mesh:find 'tp' and { plan = o.tp_shard_plan,
      sequence_parallel = o.sequence_parallel } or nil
   return plan_of(model, mesh, { tp = tp, cp = mesh:find 'cp' and o.cp or nil,
      recompute = recompute_of(o.activation_checkpointing, model),
      scope = o.activation_checkpointing_scope, fsdp = fsdp })
end

local function finish(plan, o)
   local run = plan:materialise { device = o.device, seed = o.seed }
   return run.model, run.sharded, run
end

-- ---- FSDP2 -----------------------------------------------------------------------------------

local function fsdp2_precision(op, given, o)
   if o.mp_policy == nil then
      return { param_dtype = o.param_dtype, reduce_dtype = 'f32', output_dtype = 'f32' }
   end
   if given.param_dtype ~= nil and given.param_dtype ~= err.type(op, 'mp_policy', o.mp_policy,
      'table').param_dtype then
      err.raise('E_ARG', op, "param_dtype '%s' contradicts mp_policy.param_dtype '%s'; give one of "
         .. 'them', tostring(given.param_dtype), tostring(o.mp_policy.param_dtype))
   end
   return o.mp_policy
end

-- Whether shards lie on the host, and whether in pinned memory.
local function fsdp2_offload(op, given, o)
   local policy = err.options(op .. ': offload_policy', o.offload_policy, { 'cpu', 'pin_memory' })
   if policy.cpu ~= nil then
      err.type(op, 'offload_policy.cpu', policy.cpu, 'boolean')
      err.raise_if(given.cpu_offload ~= nil and given.cpu_offload ~= policy.cpu, 'E_ARG', op,
         'cpu_offload = %s contradicts offload_policy.cpu = %s; give one of them',
         tostring(given.cpu_offload), tostring(policy.cpu))
   end
   return o.cpu_offload or policy.cpu or false, policy.pin_memory
end

local fsdp2_rows = {
   { 'param_dtype', 'bf16' }, { 'mp_policy' }, { 'offload_policy' },
   { 'sequence_parallel', false }, { 'activation_checkpointing' },
   { 'activation_checkpointing_scope' }, { 'cpu_offload', false }, { 'tp_shard_plan' },
   { 'dp_mesh_name' }, { 'cp_mesh_name' }, { 'tp_mesh_name' },
      { 'dp_cp_mesh_name' }, { 'cp' }, { 'reshard_after_forward' },
   { 'sync_each_backward' }, { 'device' }, { 'seed' },
}

-- Spreads a model over the axes data_parallel (or dp, dp_shard), context_parallel (cp) and
-- tensor_parallel (tp) of a mesh. opts: param_dtype ('bf16'), mp_policy (default: param_dtype, sums
-- and outputs in f32), offload_policy ({ cpu = true }) or cpu_offload (false), sequence_parallel
-- (false), activation_checkpointing (nil; true: the MLPs; or a policy of parallel.recompute) and
-- activation_checkpointing_scope, tp_shard_plan (a table, function or dotted path of either;
-- default: by the structure of the model), dp_mesh_name, cp_mesh_name, tp_mesh_name,
-- reshard_after_forward and sync_each_backward (as of fully_shard), device, seed. Collective.
-- Returns the model and the Sharded.
function parallelizer.fsdp2_strategy_parallelize(model, mesh, opts)
   local op = 'parallel.fsdp2_strategy_parallelize'
   local o = read(op, opts, fsdp2_rows)
   local offload, pin = fsdp2_offload(op, opts or {}, o)
   return finish(spread(op, model, mesh, o, {
      mp_policy = fsdp2_precision(op, opts or {}, o), cpu_offload = offload, pin_memory = pin,
      reshard_after_forward = o.reshard_after_forward,
      sync_each_backward = o.sync_each_backward,
   }), o)
end

-- ---- Megatron-FSDP ---------------------------------------------------------------------------

-- Options that fully_shard knows by the same name.
local passed = {
   { 'grad_reduce_in_fp32', false }, { 'preserve_fp32_weights', false },
   { 'overlap_grad_reduce', true }, { 'overlap_param_gather', true },
   { 'check_for_nan_in_grad', true }, { 'average_in_collective', false },
   { 'disable_bucketing', false }, { 'calculate_per_token_loss', false },
   { 'keep_fp8_transpose_cache_when_using_custom_fsdp', false }, { 'nccl_ub', false },
   { 'fsdp_double_buffer', false },
}

local function megatron_rows(prefix)
   local rows = {
      { 'optimizer' }, { prefix .. '_unit_modules' }, { 'tp_shard_plan' },
      { 'data_parallel_sharding_strategy', 'optim_grads_params' },
      { 'init_' .. prefix .. '_with_meta_device', false }, { 'mp_policy' },
      { 'activation_checkpointing' }, { 'activation_checkpointing_scope' },
      { 'dp_mesh_name' }, { 'cp_mesh_name' }, { 'tp_mesh_name' },
      { 'dp_cp_mesh_name' }, { 'cp' }, { 'reshard_after_forward' },
      { 'sync_each_backward' }, { 'device' }, { 'seed' },
   }
   for _, row in ipairs(passed) do rows[#rows + 1] = row end
   return rows
end

local function check_meta(op, name, model, wanted)
   local first = wanted and class.is(model, nn.Module) and model:parameters()[1]
   if first and first.device ~= 'null' then
      err.raise('E_STATE', op, "%s: the model has its bytes already (on %s); make it with device = "
         .. "'null'", name, first.device)
   end
end

local function megatron(prefix)
   local op = ('parallel.%s_strategy_parallelize'):format(prefix)
   local rows, units = megatron_rows(prefix), prefix .. '_unit_modules'
   local meta = 'init_' .. prefix .. '_with_meta_device'
   -- Described where it gets its name, at the end of this file. Collective. Returns model,
   -- optimiser (nil without opts.optimizer), Sharded, run.
   return function(model, mesh, opts)
      local o = read(op, opts, rows)
      err.arg_if(o.optimizer ~= nil and type(o.optimizer) ~= 'function', op, 'optimizer',
         'a function that makes one of the sharded parameters', o.optimizer)
      check_meta(op, meta, model, o[meta])
      local fsdp = { strategy = o.data_parallel_sharding_strategy, mp_policy = o.mp_policy,
         units = o[units] and import.import_classes_from_paths(o[units]) or nil,
         reshard_after_forward = o.reshard_after_forward,
         sync_each_backward = o.sync_each_backward }
      for _, row in ipairs(passed) do fsdp[row[1]] = o[row[1]] end
      local _, sharded, run = finish(spread(op, model, mesh, o, fsdp), o)
      return model, o.optimizer and o.optimizer(sharded), sharded, run
   end
end

-- As fsdp2_strategy_parallelize, with the options of Megatron-FSDP: optimizer (fn(params) ->
-- optimiser), megatron_fsdp_unit_modules (dotted paths of classes; default: elements of layer
-- lists), data_parallel_sharding_strategy ('optim_grads_params'), tp_shard_plan,
-- init_megatron_fsdp_with_meta_device (false; true: an error unless the model is on the null
-- device), mp_policy, and those of fully_shard with Megatron's defaults, which differ:
-- preserve_fp32_weights (false), check_for_nan_in_grad (true), calculate_per_token_loss (false:
-- gradients are means over ranks, as in fully_shard; train.step trains alike with both). Further:
-- reshard_after_forward and sync_each_backward, as of fully_shard: with optim_grads and
-- optim_grads_params gradients are reduced after every micro-batch, else after the last. Returns
-- the model, the optimiser and the Sharded.
parallelizer.megatron_fsdp_strategy_parallelize = megatron 'megatron_fsdp'

-- The same by its former name, with nvfsdp_unit_modules and init_nvfsdp_with_meta_device.
parallelizer.nvfsdp_strategy_parallelize = megatron 'nvfsdp'

return parallelizer
