-- Whole models, each loaded at first use, and the functions for published folders.

return require 'tide.util.lazy' ('model', {
   llama = 'llama', qwen2 = 'qwen2', qwen2_5_vl = 'qwen2_5_vl', qwen3 = 'qwen3',
   qwen3_vl = 'qwen3_vl', qwen3_vl_moe = 'qwen3_vl_moe',
   mistral = 'mistral', phi3 = 'phi3', ministral = 'ministral', granite = 'granite',
   smollm3 = 'smollm3', olmo2 = 'olmo2', gemma2 = 'gemma2', gemma3 = 'gemma3',
   gemma3_vl = 'gemma3_vl', mamba2 = 'mamba2',
   hybrid = 'hybrid', bamba = 'bamba', granitemoehybrid = 'granitemoehybrid',
   gpt2 = 'gpt2', mixtral = 'mixtral',
   olmoe = 'olmoe', qwen2_moe = 'qwen2_moe', qwen3_moe = 'qwen3_moe', qwen3_next = 'qwen3_next',
   qwen3_5 = 'qwen3_5', qwen3_5_moe = 'qwen3_5_moe', qwen3_5_vl = 'qwen3_5_vl',
   qwen3_5_moe_vl = 'qwen3_5_moe_vl',
   glm4_moe = 'glm4_moe',
   glm4_moe_lite = 'glm4_moe_lite', deepseek_v2 = 'deepseek_v2',
   deepseek_v3 = 'deepseek_v3', gpt_oss = 'gpt_oss', vision = 'vision',
   load = { 'tide.pretrained.load', 'model' }, fill = { 'tide.pretrained.load', 'fill' },
   generation = { 'tide.pretrained.generation', 'options' },
   save = { 'tide.pretrained.save', 'model' },
   save_adapter = { 'tide.pretrained.adapter', 'save' },
   load_adapter = { 'tide.pretrained.adapter', 'load' },
   export = { 'tide.pretrained.save', 'export' },
})
