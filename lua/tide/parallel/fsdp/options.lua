-- The options of fully_shard, checked and filled in.
--
-- Names are those of FSDP2 and of Megatron's sharded data parallel. What cannot apply, or
-- contradicts something else, is an error here, before anything has changed.

local signature = require 'tide.util.signature'

local options = {}

local op = 'parallel.fully_shard'

-- Flags, which ranks compare.
local flags = {
   'overlap_grad_reduce: boolean = true -- reduces gradients beside the computation',
   'overlap_param_gather: boolean = true -- gathers parameters beside the computation',
   'disable_bucketing: boolean = false -- one unit, one collective',
   'check_for_nan_in_grad: boolean = false -- finish raises, naming parameter and rank',
   'fsdp_double_buffer: boolean = false -- at most two units are gathered at a time',
   'nccl_ub: boolean = false -- gradients are reduced from two permanent buffers, registered with '
      .. 'NCCL (comm:register)',
   'average_in_collective: boolean = false -- means are taken in the collective',
   'calculate_per_token_loss: boolean = true -- gradients are sums; false: means, by a factor '
      .. 'before the collective, or in it with average_in_collective (a loop of your own divides '
      .. 'its loss by its own count then)',
   'grad_reduce_in_fp32: boolean = false -- gradients are summed over ranks and micro-batches in '
      .. "f32, and the optimiser reads them so; as mp_policy.reduce_dtype = 'f32'",
   'preserve_fp32_weights: boolean = true -- shards of 16-bit parameters are f32',
   "cpu_offload: boolean = false -- shards, their gradients and the optimiser's state on the host",
   "pin_memory: boolean = true -- shards of a model on 'cuda' use pinned memory",
   'init: boolean = true -- false: shards have no values yet, the caller loads them',
}
local flag_names = {}
for i, row in ipairs(flags) do flag_names[i] = row:match '^[^:]+' end

-- The options (see util.signature).
options.rows = {
   "strategy: 'no_shard' | 'optim' | 'optim_grads' | 'optim_grads_params' = 'optim_grads_params' "
      .. '-- what to shard',
   'units: any? -- elements of layer lists; or class names; or a least number of parameters',
   'reshard_after_forward: boolean? | integer >= 1 -- all but the last of a list; true; false; or '
      .. 'k: shards among k ranks',
   'mp_policy: table? -- { param_dtype, reduce_dtype, output_dtype, cast_forward_inputs = true }',
   'forward_prefetch: integer >= 0 = 1 -- gathers begun ahead in forward',
   'backward_prefetch: integer >= 0 = 2 -- gathers begun ahead in backward',
   'sync_each_backward: boolean? -- reduces after every micro-batch; by default if gradients are '
      .. 'sharded; false: whole gradients add up on each rank until the last',
   'ep_size: integer >= 1 = 1 -- ranks that share the experts: each keeps some of every layer, and '
      .. 'tokens travel to them',
   'device: any? -- device of a model that is on the null device now',
   'seed: integer >= 0 = 0 -- seed of its values',
   'keep_fp8_transpose_cache_when_using_custom_fsdp: boolean? -- keeps FP8 codes of weights for '
      .. 'backward where reshard_after_forward drops the weights: a second copy of the model',
   flags,
   "where type(reshard_after_forward) ~= 'number' or strategy == 'optim_grads_params' -- "
      .. 'reshard_after_forward = {reshard_after_forward} needs the strategy optim_grads_params, '
      .. 'not {strategy}',
   'where not (average_in_collective and calculate_per_token_loss) -- average_in_collective '
      .. 'contradicts calculate_per_token_loss (a loss divided by the global count needs sums); '
      .. 'give calculate_per_token_loss = false',
   'where not disable_bucketing or units == nil -- disable_bucketing puts all parameters into one '
      .. 'unit and contradicts units',
   "where not (grad_reduce_in_fp32 and mp_policy and (mp_policy.reduce_dtype or 'f32') ~= 'f32') "
      .. "-- grad_reduce_in_fp32 contradicts mp_policy.reduce_dtype '{mp_policy.reduce_dtype}'",
}
local read_precision = signature.options { 'param_dtype: float?', 'reduce_dtype: float?',
   'output_dtype: float?', 'cast_forward_inputs: boolean = true' }

-- Returns checked options with what follows from them; changes the table. Field mp is mp_policy
-- with its defaults; absent dtypes: no cast.
function options.settle(o)
   o.mp, o.reshard = read_precision(op .. ': mp_policy', o.mp_policy), o.reshard_after_forward
   o.mp_policy, o.reshard_after_forward = nil, nil
   o.ep_size = o.ep_size or 1
   if o.sync_each_backward == nil then
      o.sync_each_backward = o.strategy == 'optim_grads' or o.strategy == 'optim_grads_params'
   end
   return o
end

local read = signature.options(options.rows)

-- Returns a checked copy with defaults and with what follows from them.
function options.check(opts) return options.settle(read(op, opts)) end

-- Returns what ranks must have in common, as text.
function options.text(o)
   local list = { o.strategy }
   for _, k in ipairs { 'param_dtype', 'reduce_dtype', 'output_dtype', 'cast_forward_inputs' } do
      list[#list + 1] = k .. ' ' .. tostring(o.mp[k])
   end
   for _, k in ipairs { 'reshard', 'forward_prefetch', 'backward_prefetch',
      'sync_each_backward', 'ep_size' } do
      list[#list + 1] = k .. ' ' .. tostring(o[k])
   end
   for _, k in ipairs(flag_names) do list[#list + 1] = k .. ' ' .. tostring(o[k]) end
   return table.concat(list, ', ')
end

return options
