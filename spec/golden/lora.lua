-- Written by spec/golden/lora.py: numbers of the peft package, version 0.21.2,
-- on models of transformers 5.24.0.

return {
   llama_some = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 2,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings":
false, "transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      rank = 4, alpha = 6, rslora = false, dora = false,
      targets = 'q_proj|down_proj',
      loss = 3.5217222151093,
      logits = { 0.392623957880622, 0.379835996664637, 0.601558733351697 },
      grads = {
0.2696338302, 0.4387654969, 0.272811733, 0.6862410104, 0.1527351265, 0.1306895043,
0.0622250668, 0.1155832651
      },
   },
   llama_all = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
true, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 2,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings":
true, "transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      rank = 3, alpha = 8, rslora = true, dora = false,
      targets = 'all-linear',
      loss = 3.24462677406673,
      logits = { -0.448537639264552, -0.261444591087633, 1.07443855010946 },
      grads = {
0.700231691, 0.6011839427, 0.3198879258, 1.327226966, 0.1259576511, 2.651433217, 1.341679668,
3.020411026, 49.16761588, 0.5023508839, 4.86973464, 12.73853835, 2.588424161, 50.50001293,
0.09025989363, 0.6126606559, 0.110149943, 0.1929838297, 0.1860757078, 0.5901425262,
0.09599994755, 0.08596574676, 0.1789781388, 0.1798771491, 0.06919250803, 0.08001943605,
0.05290318506, 0.1787736369
      },
   },
   qwen3_all = {
      config = [==[
{"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 6, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "layer_types": ["full_attention",
"full_attention"], "max_position_embeddings": 64, "max_window_layers": 28, "model_type":
"qwen3", "num_attention_heads": 6, "num_hidden_layers": 2, "num_key_value_heads": 2,
"pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 10000.0,
"rope_type": "default"}, "sliding_window": null, "tie_word_embeddings": false,
"transformers_version": "5.24.0", "use_cache": true, "use_sliding_window": false,
"vocab_size": 23}]==],
      rank = 2, alpha = 3, rslora = false, dora = false,
      targets = 'all-linear',
      loss = 3.50910619650517,
      logits = { 0.586981327110129, 0.562561178135409, 1.36373547173546 },
      grads = {
0.5715132335, 1.132853574, 1.150504438, 0.3718417721, 0.3061704259, 0.4197107243,
0.2182679559, 1.025350384, 1.44245844, 0.4868148678, 0.209704423, 2.09385756, 0.3204085559,
1.19392263, 0.1358750184, 0.1769968239, 0.6812734429, 0.2030845754, 0.193100583, 0.2091179527,
0.07594678402, 0.08741664218, 0.4279994229, 0.08716650733, 0.1769240351, 0.2186992122,
0.1346844229, 0.170201851
      },
   },
   llama_dora = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
true, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 2,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings":
false, "transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      rank = 3, alpha = 4, rslora = false, dora = true,
      targets = 'k_proj|down_proj',
      loss = 3.58502482558109,
      logits = { -0.00793111676974766, 0.730704289955676, -0.0538099881857894 },
      grads = {
0.373695095, 0.3539357459, 0.1540634156, 0.155847767, 0.7824210046, 0.3069260245,
0.3081592682, 0.7844883196, 0.2531559595, 0.01036510731, 0.01418895305, 0.00410255167
      },
   },
   bamba_mixer = {
      config = [==[
{"architectures": ["BambaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"attn_layer_indices": [1], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
"hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 20, "mamba_chunk_size": 4,
"mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 8, "mamba_d_state": 5,
"mamba_expand": 2, "mamba_n_groups": 2, "mamba_n_heads": 12, "mamba_proj_bias": false,
"max_position_embeddings": 64, "mlp_bias": false, "model_type": "bamba",
"num_attention_heads": 6, "num_hidden_layers": 2, "num_key_value_heads": 2,
"num_logits_to_keep": 1, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters":
{"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"},
"tie_word_embeddings": false, "time_step_limit": [0.0, {"__float__": "Infinity"}],
"transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23, "z_loss_coefficient":
0.0}]==],
      rank = 3, alpha = 6, rslora = false, dora = false,
      targets = 'in_proj|v_proj',
      loss = 3.78627613651066,
      logits = { 0.39948904849115, -0.0282430956867078, -0.712858553249221 },
      grads = {
0.5074207972, 2.334011827, 0.2037487855, 0.3800161537
      },
   },
   granitemoehybrid_mlp = {
      config = [==[
{"architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": false,
"attention_dropout": 0.0, "attention_multiplier": 0.3, "bos_token_id": 1,
"embedding_multiplier": 1.0, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 48,
"initializer_range": 0.02, "intermediate_size": 20, "layer_types": ["linear_attention",
"full_attention"], "logits_scaling": 1.0, "mamba_chunk_size": 4, "mamba_conv_bias": true,
"mamba_d_conv": 4, "mamba_d_head": 8, "mamba_d_state": 5, "mamba_expand": 2, "mamba_n_groups":
2, "mamba_n_heads": 12, "mamba_proj_bias": false, "max_position_embeddings": 64, "model_type":
"granitemoehybrid", "num_attention_heads": 6, "num_experts_per_tok": 2, "num_hidden_layers":
2, "num_key_value_heads": 2, "num_local_experts": 0, "output_router_logits": false,
"pad_token_id": 0, "position_embedding_type": null, "residual_multiplier": 0.4,
"rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
"router_aux_loss_coef": 0.001, "shared_intermediate_size": 14, "tie_word_embeddings": false,
"time_step_limit": [0.0, {"__float__": "Infinity"}], "transformers_version": "5.24.0",
"use_cache": true, "vocab_size": 23}]==],
      rank = 3, alpha = 6, rslora = false, dora = false,
      targets = 'input_linear|output_linear|out_proj',
      loss = 3.90105116671956,
      logits = { 0.526399547114297, -1.47135596577399, -0.0477878262526967 },
      grads = {
0.4236708963, 1.731597727, 0.3405048524, 2.35821933, 0.8525743699, 0.5642278743,
0.05862337611, 0.4048262678, 0.4805050029, 0.09563219812
      },
   },
}
