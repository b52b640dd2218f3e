-- Written by spec/golden/lora.py: numbers of the peft package, version 0.21.2,
-- on models of transformers 5.23.0.

return {
   llama_some = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 2,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings":
false, "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      rank = 4, alpha = 6, rslora = false, dora = false,
      targets = 'q_proj|down_proj',
      loss = 3.52172221140729,
      logits = { 0.392623957880622, 0.379835887931466, 0.601558731777871 },
      grads = {
0.2696339283, 0.4387655633, 0.2728119452, 0.6862413639, 0.1527350471, 0.1306894779,
0.06222507192, 0.1155832866
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
true, "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      rank = 3, alpha = 8, rslora = true, dora = false,
      targets = 'all-linear',
      loss = 3.24462677632265,
      logits = { -0.448537639264552, -0.261444580408599, 1.07443854916312 },
      grads = {
0.7002311017, 0.6011838209, 0.3198877718, 1.327226386, 0.1259576075, 2.651432334, 1.341679133,
3.020409712, 49.16760634, 0.502350794, 4.869732687, 12.73853241, 2.588423817, 50.50000455,
0.09025985694, 0.6126606162, 0.1101499568, 0.1929838255, 0.1860755925, 0.5901425794,
0.09600004205, 0.08596574459, 0.1789780612, 0.1798771388, 0.0691925178, 0.08001938913,
0.05290315638, 0.1787733807
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
"transformers_version": "5.23.0", "use_cache": true, "use_sliding_window": false,
"vocab_size": 23}]==],
      rank = 2, alpha = 3, rslora = false, dora = false,
      targets = 'all-linear',
      loss = 3.50910593468939,
      logits = { 0.586981327110129, 0.562561271136976, 1.36373544795695 },
      grads = {
0.5715125065, 1.132853649, 1.150504451, 0.3718418516, 0.3061701166, 0.4197105889,
0.2182681307, 1.025351602, 1.442455455, 0.486815232, 0.2097050086, 2.093860366, 0.3204090603,
1.193924902, 0.1358748267, 0.1769965833, 0.6812727225, 0.2030842103, 0.1930999377,
0.2091175503, 0.07594678915, 0.08741657416, 0.4279990578, 0.08716655237, 0.1769240639,
0.2186990766, 0.1346844242, 0.1702016263
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
false, "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      rank = 3, alpha = 4, rslora = false, dora = true,
      targets = 'k_proj|down_proj',
      loss = 3.5850248550995,
      logits = { -0.00793111676974766, 0.730704318997619, -0.0538099943258979 },
      grads = {
0.3736950827, 0.3539357326, 0.1540634105, 0.1558478009, 0.7824211669, 0.3069260867,
0.3081592531, 0.7844883384, 0.2531559671, 0.01036510861, 0.01418895806, 0.004102554971
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
"transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23, "z_loss_coefficient":
0.0}]==],
      rank = 3, alpha = 6, rslora = false, dora = false,
      targets = 'in_proj|v_proj',
      loss = 3.78627614084886,
      logits = { 0.39948904849115, -0.0282430787555749, -0.712858547349823 },
      grads = {
0.507420802, 2.334011876, 0.2037487772, 0.3800161564
      },
   },
}
