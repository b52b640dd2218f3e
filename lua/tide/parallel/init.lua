-- Meshes, placements, collectives and what is cut over ranks with them: models and sequences. Each
-- part is loaded at first use. The names of other libraries are in names/, thin functions over the
-- rest.

return require 'tide.util.lazy' ('parallel', {
   mesh = 'mesh', op = 'collective_op', placement = 'placement',
   Shard = { 'placement', 'shard' }, Replicate = { 'placement', 'replicate' },
   Partial = { 'placement', 'partial' },
   DTensor = { 'dtensor', 'DTensor' }, distribute = { 'dtensor', 'distribute' },
   from_local = { 'dtensor', 'from_local' }, layout = 'layout', tp_plans = 'tp.plans',
   parallelize_module = { 'tp', 'parallelize_module' },
   tensor_parallel = { 'tp', 'tensor_parallel' },
   get_hf_tp_shard_plan = { 'names.hf_plan', 'get_hf_tp_shard_plan' },
   translate_to_parallel_style = { 'tp.style', 'translate_to_parallel_style' },
   import_class_from_path = { 'import', 'import_class_from_path' },
   import_classes_from_paths = { 'import', 'import_classes_from_paths' },
   linear_cross_entropy = { 'loss_parallel', 'linear_cross_entropy' },
   pipeline_parallel = { 'pipeline', 'pipeline_parallel' }, pipeline = 'pipeline',
   recompute = 'recompute', plan = 'plan', mamba_cp = 'names.mamba_cp',
   fsdp2_strategy_parallelize = { 'names.parallelizer', 'fsdp2_strategy_parallelize' },
   megatron_fsdp_strategy_parallelize = { 'names.parallelizer',
      'megatron_fsdp_strategy_parallelize' },
   nvfsdp_strategy_parallelize = { 'names.parallelizer', 'nvfsdp_strategy_parallelize' },
   cp_map = 'cp.map', cp_need = 'cp.need', cp = 'cp', thd = 'names.thd', pack = 'pack',
   multimodal = 'names.multimodal', vision_split = 'names.vision_split',
   apply_fsdp_sharding_recursively = { 'fsdp', 'apply_fsdp_sharding_recursively' },
   layer_units = { 'fsdp', 'layer_units' },
   unshard_fsdp2_model = { 'unshard', 'unshard_fsdp2_model' },
   destroy_dist_connection = { 'unshard', 'destroy_dist_connection' },
   clip = 'clip', clip_grad_norm_ = { 'clip', 'clip_grad_norm_' },
   fsdp = 'fsdp', fully_shard = { 'fsdp', 'fully_shard' }, Sharded = { 'fsdp', 'Sharded' },
})
