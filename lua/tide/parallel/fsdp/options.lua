-- The options of fully_shard, checked and filled in.
--
-- Names are those of FSDP2 and of Megatron's sharded data parallel. What cannot apply, or
-- contradicts something else, is an error here, before anything has changed.

local err = require 'tide.util.err'

local options = {}

local op = 'parallel.fully_shard'

options.strategies = { 'no_shard', 'optim', 'optim_grads', 'optim_grads_params' }

-- Flags and their defaults.
local flags = {
   overlap_grad_reduce = true, overlap_param_gather = true, disable_bucketing = false,
   check_for_nan_in_grad = false, fsdp_double_buffer = false, nccl_ub = false,
   average_in_collective = false, calculate_per_token_loss = true, grad_reduce_in_fp32 = false,
   preserve_fp32_weights = true, cpu_offload = false, pin_memory = true, init = true,
}
local flag_names = {
   'overlap_grad_reduce', 'overlap_param_gather', 'disable_bucketing', 'check_for_nan_in_grad',
   'fsdp_double_buffer', 'nccl_ub', 'average_in_collective', 'calculate_per_token_loss',
   'grad_reduce_in_fp32', 'preserve_fp32_weights', 'cpu_offload', 'pin_memory', 'init',
}
local others = {
   'mesh', 'comm', 'strategy', 'units', 'reshard_after_forward', 'mp_policy', 'device', 'seed',
   'forward_prefetch', 'backward_prefetch', 'sync_each_backward',
   'keep_fp8_transpose_cache_when_using_custom_fsdp',
}

-- The names of all options.
options.names = { unpack(others) }
for _, k in ipairs(flag_names) do table.insert(options.names, k) end

local floats = { 'f32', 'f64', 'bf16', 'f16' }

-- { param_dtype, reduce_dtype, output_dtype, cast_forward_inputs }; absent dtypes: no cast.
function options.precision(name, mp)
   mp = err.options(name .. ': mp_policy', mp,
      { 'param_dtype', 'reduce_dtype', 'output_dtype', 'cast_forward_inputs' })
   local out = { cast_forward_inputs = mp.cast_forward_inputs ~= false }
   for _, k in ipairs { 'param_dtype', 'reduce_dtype', 'output_dtype' } do
      if mp[k] ~= nil then out[k] = err.choice(name, 'mp_policy.' .. k, mp[k], floats) end
   end
   if mp.cast_forward_inputs ~= nil then
      err.type(name, 'mp_policy.cast_forward_inputs', mp.cast_forward_inputs, 'boolean')
   end
   return out
end

local function check_reshard(o, given)
   if given == nil or type(given) == 'boolean' then return given end
   err.integer(op, 'reshard_after_forward', given, 1)
   if o.strategy ~= 'optim_grads_params' then
      err.raise('E_ARG', op, 'reshard_after_forward = %d needs the strategy '
         .. 'optim_grads_params, not %s', given, o.strategy)
   end
   return given
end

local function check_conflicts(o)
   if o.average_in_collective and o.calculate_per_token_loss then
      err.raise('E_ARG', op, 'average_in_collective contradicts calculate_per_token_loss (a loss '
         .. 'divided by the global count needs sums); give calculate_per_token_loss = false')
   end
   if o.disable_bucketing and o.units ~= nil then
      err.raise('E_ARG', op, 'disable_bucketing puts all parameters into one unit and contradicts '
         .. 'units')
   end
   if o.grad_reduce_in_fp32 and o.mp.reduce_dtype and o.mp.reduce_dtype ~= 'f32' then
      err.raise('E_ARG', op, "grad_reduce_in_fp32 contradicts mp_policy.reduce_dtype '%s'",
         o.mp.reduce_dtype)
   end
end

-- A checked copy with defaults.
function options.check(opts)
   opts = err.options(op, opts, options.names)
   local o = { mesh = opts.mesh, comm = opts.comm, units = opts.units }
   for _, k in ipairs(flag_names) do
      o[k] = opts[k]
      if o[k] == nil then o[k] = flags[k] end
      err.type(op, k, o[k], 'boolean')
   end
   if opts.keep_fp8_transpose_cache_when_using_custom_fsdp then
      err.raise('E_UNSUPPORTED', op, 'keep_fp8_transpose_cache_when_using_custom_fsdp keeps a '
         .. 'second copy of FP8 weights, and there are no FP8 weights here; leave it out')
   end
   o.strategy = err.choice(op, 'strategy', opts.strategy or 'optim_grads_params',
      options.strategies)
   o.mp = options.precision(op, opts.mp_policy)
   o.reshard = check_reshard(o, opts.reshard_after_forward)
   o.forward_prefetch = err.integer(op, 'forward_prefetch', opts.forward_prefetch or 1, 0)
   o.backward_prefetch = err.integer(op, 'backward_prefetch', opts.backward_prefetch or 2, 0)
   o.seed = err.integer(op, 'seed', opts.seed or 0, 0)
   o.device = opts.device
   o.sync_each_backward = opts.sync_each_backward
   if o.sync_each_backward ~= nil then
      err.type(op, 'sync_each_backward', o.sync_each_backward, 'boolean')
   end
   if o.sync_each_backward == nil then
      o.sync_each_backward = o.strategy == 'optim_grads' or o.strategy == 'optim_grads_params'
   end
   check_conflicts(o)
   return o
end

-- What ranks must have in common, as text.
function options.text(o)
   local list = { o.strategy }
   for _, k in ipairs { 'param_dtype', 'reduce_dtype', 'output_dtype', 'cast_forward_inputs' } do
      list[#list + 1] = k .. ' ' .. tostring(o.mp[k])
   end
   for _, k in ipairs { 'reshard', 'forward_prefetch', 'backward_prefetch',
      'sync_each_backward' } do
      list[#list + 1] = k .. ' ' .. tostring(o[k])
   end
   for _, k in ipairs(flag_names) do list[#list + 1] = k .. ' ' .. tostring(o[k]) end
   return table.concat(list, ', ')
end

return options
