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

local err = require 'tide.util.err'
local import = require 'tide.parallel.import'
local mesh_of = require 'tide.parallel.mesh'
local plan_of = require 'tide.parallel.plan'
local recompute = require 'tide.parallel.recompute'
local signature = require 'tide.util.signature'

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

-- Returns the mesh with the names of a plan.
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
            and "Hybrid-sharding not supported: the mesh also has the axis '%s' of %d ranks"
            or "nothing is known for the axis '%s' of %d ranks", a.name, a.size)
      end
      list[i] = { name, a.size }
      same = same and name == a.name
   end
   return same and mesh or mesh_of(list, { comm = mesh.comm, host_size = mesh.host_size })
end

-- ---- the common part -------------------------------------------------------------------------

-- Returns a policy of recomputation. true means the MLPs and experts, if the model has any.
local function recompute_of(v, model)
   if v ~= true then return v or nil end
   local found = false
   model:walk(function(m) found = found or recompute._is_mlp(m) end)
   return found and 'mlp' or nil
end

-- Checks dp_cp_mesh_name: it must name an axis that joins the data and context ranks of the mesh.
-- Sharding joins them in any case.
local function check_dp_cp(op, mesh, o)
   if o.dp_cp_mesh_name == nil then return end
   local axis = mesh:axis(o.dp_cp_mesh_name)
   local n = 1
   for _, role in ipairs(roles) do
      local name = role.ours ~= 'tp' and one_name(op, mesh, role, o[role.option])
      if name then n = n * mesh:axis(name).size end
   end
   if axis.size ~= n then
      err.arg_text(op, 'dp_cp_mesh_name', ('an axis of the %d data and context ranks'):format(n),
         ("'%s' of %d"):format(axis.name, axis.size))
   end
end

-- Options of all entry points.
local common = {
   'tp_shard_plan: any? -- a table, function or dotted path of either; by default the structure of '
      .. 'the model says it',
   'mp_policy: table? -- as fully_shard takes it',
   'activation_checkpointing: any? -- true: the MLPs; or a policy of parallel.recompute',
   'activation_checkpointing_scope: any? -- as parallel.recompute takes it',
   'dp_mesh_name: any? -- the axis of data ranks, if it has another name',
   'cp_mesh_name: any? -- the axis of context ranks, if it has another name',
   'tp_mesh_name: any? -- the axis of tensor ranks, if it has another name',
   'dp_cp_mesh_name: string? -- the axis of data and context ranks together',
   'cp: table? -- options of cp.attach', 'reshard_after_forward: any? -- option of fully_shard',
   'sync_each_backward: any? -- option of fully_shard',
   'device: any? -- device of a model that is on the null device now',
   'seed: any? -- seed of its values',
}

local function spread(op, model, mesh, o, fsdp)
   local whole = mesh
   mesh = named(op, mesh, o)
   check_dp_cp(op, whole, o)
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

signature.record('offload_policy', 'a table { cpu =, pin_memory = }', { 'cpu: boolean?' })
local read_offload = signature.options { 'cpu: any?', 'pin_memory: any?' }

-- Distributes a model over the axes data_parallel (or dp, dp_shard), context_parallel (cp) and
-- tensor_parallel (tp) of a mesh. Without mp_policy, sums and outputs are in f32. Collective.
-- Returns the model and the Sharded.
function parallelizer.fsdp2_strategy_parallelize(model, mesh, opts)
   local op = 'parallel.fsdp2_strategy_parallelize'
   local offload = read_offload(op .. ': offload_policy', opts.offload_policy)
   return finish(spread(op, model, mesh, opts, {
      mp_policy = opts.mp_policy or { param_dtype = opts.param_dtype or 'bf16',
         reduce_dtype = 'f32', output_dtype = 'f32' },
      cpu_offload = opts.cpu_offload or offload.cpu or false, pin_memory = offload.pin_memory,
      reshard_after_forward = opts.reshard_after_forward,
      sync_each_backward = opts.sync_each_backward,
   }), opts)
end

-- ---- Megatron-FSDP ---------------------------------------------------------------------------

-- Options that fully_shard has under the same name, with Megatron's defaults.
local passed = {
   'grad_reduce_in_fp32: boolean = false', 'preserve_fp32_weights: boolean = false',
   'overlap_grad_reduce: boolean = true', 'overlap_param_gather: boolean = true',
   'check_for_nan_in_grad: boolean = true', 'average_in_collective: boolean = false',
   'disable_bucketing: boolean = false', 'calculate_per_token_loss: boolean = false',
   'keep_fp8_transpose_cache_when_using_custom_fsdp: boolean = false', 'nccl_ub: boolean = false',
   'fsdp_double_buffer: boolean = false',
}

local function megatron_door(prefix)
   return { 'model: module', opts = { common, passed,
      'optimizer: function? -- makes one of the sharded parameters',
      prefix .. '_unit_modules: any? -- dotted paths of classes; default: elements of layer lists',
      "data_parallel_sharding_strategy: any = 'optim_grads_params' -- strategy of fully_shard",
      'init_' .. prefix .. '_with_meta_device: boolean = false -- true: an error unless the model '
         .. 'is on the null device' } }
end

local function megatron(prefix)
   local op = ('parallel.%s_strategy_parallelize'):format(prefix)
   local units, meta = prefix .. '_unit_modules', 'init_' .. prefix .. '_with_meta_device'
   -- Distributes a model as fsdp2_strategy_parallelize does, with the options and the defaults of
   -- Megatron-FSDP. Collective. Returns the model, the optimiser (nil without opts.optimizer), the
   -- Sharded and run.
   return function(model, mesh, o)
      local first = o[meta] and model:parameters()[1]
      local device = first and first.device or 'null'
      err.raise_if(device ~= 'null', 'E_STATE', op, '%s: the model has its bytes already (on %s); '
         .. "make it with device = 'null'", meta, device)
      local fsdp = { strategy = o.data_parallel_sharding_strategy, mp_policy = o.mp_policy,
         units = o[units] and import.import_classes_from_paths(o[units]) or nil,
         reshard_after_forward = o.reshard_after_forward,
         sync_each_backward = o.sync_each_backward }
      for _, row in ipairs(passed) do
         local name = row:match '^[%w_]+'
         fsdp[name] = o[name]
      end
      local _, sharded, run = finish(spread(op, model, mesh, o, fsdp), o)
      return model, o.optimizer and o.optimizer(sharded), sharded, run
   end
end

-- As fsdp2_strategy_parallelize, with the options of Megatron-FSDP and Megatron's defaults, which
-- differ from those of fully_shard. Without calculate_per_token_loss gradients are means over
-- ranks; train.step trains alike with both. With the strategies optim_grads and optim_grads_params
-- gradients are reduced after every micro-batch, else after the last. Returns the model, the
-- optimiser and the Sharded.
parallelizer.megatron_fsdp_strategy_parallelize = megatron 'megatron_fsdp'

-- megatron_fsdp_strategy_parallelize by its former name, with nvfsdp_unit_modules and
-- init_nvfsdp_with_meta_device.
parallelizer.nvfsdp_strategy_parallelize = megatron 'nvfsdp'

return signature.doors('parallel', parallelizer, {
   fsdp2_strategy_parallelize = { 'model: module', opts = { common,
      "param_dtype: any? -- 'bf16' by default",
      'offload_policy: offload_policy? -- { cpu, pin_memory }',
      'sequence_parallel: boolean = false -- the tokens between blocks are cut, too',
      'cpu_offload: boolean? -- shards lie on the host',
      'where not mp_policy or param_dtype == nil or param_dtype == mp_policy.param_dtype -- '
         .. "param_dtype '{param_dtype}' contradicts mp_policy.param_dtype "
         .. "'{mp_policy.param_dtype}'; give one of them",
      'where cpu_offload == nil or not offload_policy or offload_policy.cpu == nil or '
         .. 'offload_policy.cpu == cpu_offload -- cpu_offload = {cpu_offload} contradicts '
         .. 'offload_policy.cpu = {offload_policy.cpu}; give one of them' } },
   megatron_fsdp_strategy_parallelize = megatron_door 'megatron_fsdp',
   nvfsdp_strategy_parallelize = megatron_door 'nvfsdp',
})
