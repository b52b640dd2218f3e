-- Written by spec/golden/folders.py: configurations and losses of the transformers package,
-- version 5.24.0.

return {
   llama = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}, "tie_word_embeddings":
false, "transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.48171736342555,
   },
   llama_mqa_bias = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
true, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 1, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings":
true, "transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.68137279322102,
   },
   llama_linear = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"factor": 2.0, "rope_theta": 500.0, "rope_type": "linear"},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.51366114353422,
   },
   llama_dynamic = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 4, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"factor": 2.0, "rope_theta": 500.0, "rope_type": "dynamic"},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.46079407255217,
   },
   llama_dynamic_short = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"factor": 2.0, "rope_theta": 500.0, "rope_type": "dynamic"},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.48171736220989,
   },
   llama_yarn = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"factor": 4.0, "original_max_position_embeddings": 16, "rope_theta":
500.0, "rope_type": "yarn"}, "tie_word_embeddings": false, "transformers_version": "5.24.0",
"use_cache": true, "vocab_size": 23}]==],
      loss = 3.44848584676505,
   },
   llama_yarn_mscale = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"beta_fast": 4.0, "beta_slow": 0.5, "factor": 4.0, "mscale": 1.5,
"mscale_all_dim": 0.7, "original_max_position_embeddings": 16, "rope_theta": 500.0,
"rope_type": "yarn", "truncate": false}, "tie_word_embeddings": false, "transformers_version":
"5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.45124142394434,
   },
   llama_longrope = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"factor": 4.0, "long_factor": [2.0, 3.0],
"original_max_position_embeddings": 6, "rope_theta": 500.0, "rope_type": "longrope",
"short_factor": [1.0, 1.5]}, "tie_word_embeddings": false, "transformers_version": "5.24.0",
"use_cache": true, "vocab_size": 23}]==],
      loss = 3.48536972233195,
   },
   llama_llama3 = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
"original_max_position_embeddings": 32, "rope_theta": 500.0, "rope_type": "llama3"},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.4554080846188,
   },
   mistral = {
      config = [==[
{"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
"eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64,
"model_type": "mistral", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "default"}, "sliding_window": 3, "tie_word_embeddings":
false, "transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.52579049548162,
   },
   mistral_full = {
      config = [==[
{"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
"eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64,
"model_type": "mistral", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "default"}, "sliding_window": null,
"tie_word_embeddings": true, "transformers_version": "5.24.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.87910697037441,
   },
   ministral = {
      config = [==[
{"architectures": ["MinistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
"eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "layer_types": ["sliding_attention",
"full_attention", "sliding_attention"], "max_position_embeddings": 64, "model_type":
"ministral", "num_attention_heads": 6, "num_hidden_layers": 3, "num_key_value_heads": 2,
"pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 10000.0,
"rope_type": "default"}, "sliding_window": 3, "tie_word_embeddings": false,
"transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.53349844144873,
   },
   qwen2 = {
      config = [==[
{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
"eos_token_id": 2, "hidden_act": "silu", "hidden_size": 24, "initializer_range": 0.02,
"intermediate_size": 20, "layer_types": ["full_attention", "sliding_attention",
"sliding_attention"], "max_position_embeddings": 64, "max_window_layers": 1, "model_type":
"qwen2", "num_attention_heads": 6, "num_hidden_layers": 3, "num_key_value_heads": 2,
"pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 10000.0,
"rope_type": "default"}, "sliding_window": 3, "tie_word_embeddings": false,
"transformers_version": "5.24.0", "use_cache": true, "use_sliding_window": true, "vocab_size":
23}]==],
      loss = 3.58575274880218,
   },
   qwen3 = {
      config = [==[
{"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 6, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "layer_types": ["full_attention",
"full_attention", "full_attention"], "max_position_embeddings": 64, "max_window_layers": 28,
"model_type": "qwen3", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "default"}, "sliding_window": null,
"tie_word_embeddings": true, "transformers_version": "5.24.0", "use_cache": true,
"use_sliding_window": false, "vocab_size": 23}]==],
      loss = 3.58342397759285,
   },
   qwen3_bias = {
      config = [==[
{"architectures": ["Qwen3ForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "layer_types": ["full_attention",
"full_attention", "full_attention"], "max_position_embeddings": 64, "max_window_layers": 28,
"model_type": "qwen3", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 6, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "default"}, "sliding_window": null,
"tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true,
"use_sliding_window": false, "vocab_size": 23}]==],
      loss = 3.23334746123197,
   },
   phi3 = {
      config = [==[
{"architectures": ["Phi3ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
"embd_pdrop": 0.0, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64,
"model_type": "phi3", "num_attention_heads": 6, "num_hidden_layers": 3, "num_key_value_heads":
2, "original_max_position_embeddings": 4096, "pad_token_id": 0, "resid_pdrop": 0.0,
"rms_norm_eps": 1e-05, "rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta":
10000.0, "rope_type": "default"}, "sliding_window": 4, "tie_word_embeddings": false,
"transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.34488619827352,
   },
   phi4_partial = {
      config = [==[
{"architectures": ["Phi3ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
"embd_pdrop": 0.0, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 48,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64,
"model_type": "phi3", "num_attention_heads": 6, "num_hidden_layers": 3, "num_key_value_heads":
2, "original_max_position_embeddings": 6, "pad_token_id": 0, "resid_pdrop": 0.0,
"rms_norm_eps": 1e-05, "rope_parameters": {"long_factor": [2.0, 3.0],
"original_max_position_embeddings": 6, "partial_rotary_factor": 0.5, "rope_theta": 500.0,
"rope_type": "longrope", "short_factor": [1.0, 1.5]}, "sliding_window": null,
"tie_word_embeddings": true, "transformers_version": "5.24.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.56135218041439,
   },
   phi4_short = {
      config = [==[
{"architectures": ["Phi3ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
"embd_pdrop": 0.0, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 48,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 48,
"model_type": "phi3", "num_attention_heads": 6, "num_hidden_layers": 3, "num_key_value_heads":
2, "original_max_position_embeddings": 16, "pad_token_id": 0, "resid_pdrop": 0.0,
"rms_norm_eps": 1e-05, "rope_parameters": {"long_factor": [2.0, 3.0],
"original_max_position_embeddings": 16, "partial_rotary_factor": 0.5, "rope_theta": 500.0,
"rope_type": "longrope", "short_factor": [1.0, 1.5]}, "sliding_window": null,
"tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.79975767907237,
   },
   gemma2 = {
      config = [==[
{"architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"attn_logit_softcapping": 2.0, "bos_token_id": 1, "eos_token_id": 2,
"final_logit_softcapping": 1.5, "head_dim": 4, "hidden_activation": "gelu_pytorch_tanh",
"hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20, "layer_types":
["sliding_attention", "full_attention", "sliding_attention"], "max_position_embeddings": 64,
"model_type": "gemma2", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "query_pre_attn_scalar": 9, "rms_norm_eps":
1e-05, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "sliding_window":
3, "tie_word_embeddings": true, "transformers_version": "5.24.0",
"use_bidirectional_attention": null, "use_cache": true, "vocab_size": 23}]==],
      loss = 3.85682298986394,
   },
   gemma2_uncapped = {
      config = [==[
{"architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"attn_logit_softcapping": null, "bos_token_id": 1, "eos_token_id": 2,
"final_logit_softcapping": null, "head_dim": 4, "hidden_activation": "gelu_pytorch_tanh",
"hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20, "layer_types":
["full_attention", "sliding_attention", "sliding_attention"], "max_position_embeddings": 64,
"model_type": "gemma2", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps":
1e-05, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "sliding_window":
3, "tie_word_embeddings": true, "transformers_version": "5.24.0",
"use_bidirectional_attention": null, "use_cache": true, "vocab_size": 23}]==],
      loss = 4.4890406930159,
   },
   gemma3 = {
      config = [==[
{"_sliding_window_pattern": 6, "architectures": ["Gemma3ForCausalLM"], "attention_bias":
false, "attention_dropout": 0.0, "attn_logit_softcapping": null, "bos_token_id": 1,
"eos_token_id": 2, "final_logit_softcapping": null, "head_dim": 4, "hidden_activation":
"gelu_pytorch_tanh", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20,
"layer_types": ["full_attention", "sliding_attention", "full_attention"],
"max_position_embeddings": 64, "model_type": "gemma3_text", "num_attention_heads": 6,
"num_hidden_layers": 3, "num_key_value_heads": 2, "pad_token_id": 0, "query_pre_attn_scalar":
9, "rms_norm_eps": 1e-05, "rope_parameters": {"full_attention": {"rope_theta": 1000000.0,
"rope_type": "default"}, "sliding_attention": {"rope_theta": 10000.0, "rope_type":
"default"}}, "sliding_window": 3, "tie_word_embeddings": true, "transformers_version":
"5.24.0", "use_bidirectional_attention": false, "use_cache": true, "vocab_size": 23}]==],
      loss = 5.30188684161638,
   },
   granite = {
      config = [==[
{"architectures": ["GraniteForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"attention_multiplier": 0.3, "bos_token_id": 1, "embedding_multiplier": 3.0, "eos_token_id":
2, "hidden_act": "silu", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size":
20, "logits_scaling": 2.0, "max_position_embeddings": 64, "mlp_bias": false, "model_type":
"granite", "num_attention_heads": 6, "num_hidden_layers": 3, "num_key_value_heads": 2,
"pad_token_id": 0, "residual_multiplier": 0.4, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings": false,
"transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.67480966863323,
   },
   granite_tied = {
      config = [==[
{"architectures": ["GraniteForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
"attention_multiplier": 1.0, "bos_token_id": 1, "embedding_multiplier": 2.0, "eos_token_id":
2, "hidden_act": "silu", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size":
20, "logits_scaling": 1.0, "max_position_embeddings": 64, "mlp_bias": true, "model_type":
"granite", "num_attention_heads": 6, "num_hidden_layers": 3, "num_key_value_heads": 2,
"pad_token_id": 0, "residual_multiplier": 1.0, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings": true,
"transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.71403398832864,
   },
   olmo2 = {
      config = [==[
{"architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64,
"model_type": "olmo2", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings": false,
"transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.20860675398457,
   },
   olmo2_mqa = {
      config = [==[
{"architectures": ["Olmo2ForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64,
"model_type": "olmo2", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 1, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings": true,
"transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 4.26587390346408,
   },
   smollm3 = {
      config = [==[
{"architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "layer_types": ["full_attention",
"full_attention", "full_attention"], "max_position_embeddings": 64, "mlp_bias": false,
"model_type": "smollm3", "no_rope_layer_interval": 2, "no_rope_layers": [1, 0, 1],
"num_attention_heads": 6, "num_hidden_layers": 3, "num_key_value_heads": 2, "pad_token_id": 0,
"rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 2000000.0, "rope_type": "default"},
"sliding_window": null, "tie_word_embeddings": true, "transformers_version": "5.24.0",
"use_cache": true, "use_sliding_window": false, "vocab_size": 23}]==],
      loss = 3.85221942085111,
   },
   smollm3_sliding = {
      config = [==[
{"architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "layer_types": ["full_attention",
"sliding_attention", "sliding_attention"], "max_position_embeddings": 64, "mlp_bias": false,
"model_type": "smollm3", "no_rope_layer_interval": 4, "no_rope_layers": [0, 1, 1],
"num_attention_heads": 6, "num_hidden_layers": 3, "num_key_value_heads": 2, "pad_token_id": 0,
"rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 2000000.0, "rope_type": "default"},
"sliding_window": 3, "tie_word_embeddings": false, "transformers_version": "5.24.0",
"use_cache": true, "use_sliding_window": true, "vocab_size": 23}]==],
      loss = 3.43374980780728,
   },
   mixtral = {
      config = [==[
{"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
"eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64,
"model_type": "mixtral", "num_attention_heads": 6, "num_experts_per_tok": 2,
"num_hidden_layers": 3, "num_key_value_heads": 2, "num_local_experts": 4,
"output_router_logits": false, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 1000000.0, "rope_type": "default"}, "router_aux_loss_coef": 0.001,
"router_jitter_noise": 0.0, "sliding_window": null, "tie_word_embeddings": false,
"transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.36424104917818,
   },
   mixtral_window = {
      config = [==[
{"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
"eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64,
"model_type": "mixtral", "num_attention_heads": 6, "num_experts_per_tok": 1,
"num_hidden_layers": 3, "num_key_value_heads": 2, "num_local_experts": 3,
"output_router_logits": false, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 1000000.0, "rope_type": "default"}, "router_aux_loss_coef": 0.001,
"router_jitter_noise": 0.0, "sliding_window": 3, "tie_word_embeddings": true,
"transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.63971789474215,
   },
   olmoe = {
      config = [==[
{"architectures": ["OlmoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "clip_qkv": null, "eos_token_id": 2, "hidden_act": "silu", "hidden_size":
24, "initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64,
"model_type": "olmoe", "norm_topk_prob": false, "num_attention_heads": 6, "num_experts": 5,
"num_experts_per_tok": 3, "num_hidden_layers": 3, "num_key_value_heads": 2,
"output_router_logits": false, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "default"}, "router_aux_loss_coef": 0.01,
"tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.55435783447429,
   },
   qwen3_moe = {
      config = [==[
{"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "decoder_sparse_step": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act":
"silu", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20,
"max_position_embeddings": 64, "mlp_only_layers": [1], "model_type": "qwen3_moe",
"moe_intermediate_size": 12, "norm_topk_prob": true, "num_attention_heads": 6,
"num_experts_per_tok": 2, "num_hidden_layers": 3, "num_key_value_heads": 2,
"num_local_experts": 4, "output_router_logits": false, "pad_token_id": 0, "rms_norm_eps":
1e-05, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
"router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
"transformers_version": "5.24.0", "use_cache": true, "use_sliding_window": false,
"vocab_size": 23}]==],
      loss = 3.34232699014458,
   },
   qwen3_moe_step = {
      config = [==[
{"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "decoder_sparse_step": 2, "eos_token_id": 2, "head_dim": 6, "hidden_act":
"silu", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20,
"max_position_embeddings": 64, "mlp_only_layers": [], "model_type": "qwen3_moe",
"moe_intermediate_size": 10, "norm_topk_prob": false, "num_attention_heads": 6,
"num_experts_per_tok": 3, "num_hidden_layers": 3, "num_key_value_heads": 2,
"num_local_experts": 3, "output_router_logits": false, "pad_token_id": 0, "rms_norm_eps":
1e-05, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
"router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
"transformers_version": "5.24.0", "use_cache": true, "use_sliding_window": false,
"vocab_size": 23}]==],
      loss = 3.4043923109353,
   },
   qwen2_moe = {
      config = [==[
{"architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
"decoder_sparse_step": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "layer_types": ["sliding_attention",
"full_attention", "full_attention"], "max_position_embeddings": 64, "max_window_layers": 2,
"mlp_only_layers": [], "model_type": "qwen2_moe", "moe_intermediate_size": 12,
"norm_topk_prob": false, "num_attention_heads": 6, "num_experts": 4, "num_experts_per_tok": 2,
"num_hidden_layers": 3, "num_key_value_heads": 2, "output_router_logits": false,
"pad_token_id": 0, "qkv_bias": true, "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta":
10000.0, "rope_type": "default"}, "router_aux_loss_coef": 0.001,
"shared_expert_intermediate_size": 16, "sliding_window": 3, "tie_word_embeddings": false,
"transformers_version": "5.24.0", "use_cache": true, "use_sliding_window": true, "vocab_size":
23}]==],
      loss = 3.54788294828749,
   },
   qwen2_moe_step = {
      config = [==[
{"architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
"decoder_sparse_step": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "layer_types": ["full_attention",
"full_attention", "full_attention"], "max_position_embeddings": 64, "max_window_layers": 28,
"mlp_only_layers": [0], "model_type": "qwen2_moe", "moe_intermediate_size": 10,
"norm_topk_prob": true, "num_attention_heads": 6, "num_experts": 6, "num_experts_per_tok": 3,
"num_hidden_layers": 3, "num_key_value_heads": 2, "output_router_logits": false,
"pad_token_id": 0, "qkv_bias": false, "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta":
10000.0, "rope_type": "default"}, "router_aux_loss_coef": 0.001,
"shared_expert_intermediate_size": 9, "sliding_window": 0, "tie_word_embeddings": true,
"transformers_version": "5.24.0", "use_cache": true, "use_sliding_window": false,
"vocab_size": 23}]==],
      loss = 3.77625423092656,
   },
   glm4_moe = {
      config = [==[
{"architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "first_k_dense_replace": 1, "head_dim": 4, "hidden_act":
"silu", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20,
"max_position_embeddings": 64, "model_type": "glm4_moe", "moe_intermediate_size": 10,
"n_group": 4, "n_routed_experts": 8, "n_shared_experts": 1, "norm_topk_prob": true,
"num_attention_heads": 6, "num_experts_per_tok": 3, "num_hidden_layers": 3,
"num_key_value_heads": 2, "num_nextn_predict_layers": 1, "output_router_logits": false,
"pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters": {"partial_rotary_factor": 0.5,
"rope_theta": 10000.0, "rope_type": "default"}, "routed_scaling_factor": 1.5,
"tie_word_embeddings": false, "topk_group": 2, "transformers_version": "5.24.0", "use_cache":
true, "use_qk_norm": true, "vocab_size": 23}]==],
      loss = 3.61160276336643,
   },
   glm4_moe_plain = {
      config = [==[
{"architectures": ["Glm4MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "first_k_dense_replace": 0, "head_dim": 4, "hidden_act":
"silu", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20,
"max_position_embeddings": 64, "model_type": "glm4_moe", "moe_intermediate_size": 12,
"n_group": 1, "n_routed_experts": 4, "n_shared_experts": 2, "norm_topk_prob": false,
"num_attention_heads": 6, "num_experts_per_tok": 2, "num_hidden_layers": 3,
"num_key_value_heads": 2, "num_nextn_predict_layers": 1, "output_router_logits": false,
"pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters": {"partial_rotary_factor": 1.0,
"rope_theta": 500.0, "rope_type": "default"}, "routed_scaling_factor": 1.0,
"tie_word_embeddings": true, "topk_group": 1, "transformers_version": "5.24.0", "use_cache":
true, "use_qk_norm": false, "vocab_size": 23}]==],
      loss = 3.56726424846923,
   },
   gpt_oss = {
      config = [==[
{"architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "layer_types": ["sliding_attention",
"full_attention", "sliding_attention"], "max_position_embeddings": 64, "model_type":
"gpt_oss", "num_attention_heads": 6, "num_experts_per_tok": 2, "num_hidden_layers": 3,
"num_key_value_heads": 2, "num_local_experts": 4, "output_router_logits": false,
"pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters": {"beta_fast": 4.0, "beta_slow":
0.5, "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 500.0, "rope_type":
"yarn", "truncate": false}, "router_aux_loss_coef": 0.001, "sliding_window": 3,
"swiglu_alpha": 1.702, "swiglu_limit": 0.2, "tie_word_embeddings": false,
"transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.97762438274225,
   },
   gpt_oss_plain = {
      config = [==[
{"architectures": ["GptOssForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "layer_types": ["full_attention",
"sliding_attention", "full_attention"], "max_position_embeddings": 64, "model_type":
"gpt_oss", "num_attention_heads": 6, "num_experts_per_tok": 3, "num_hidden_layers": 3,
"num_key_value_heads": 1, "num_local_experts": 5, "output_router_logits": false,
"pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters": {"rope_theta": 500.0,
"rope_type": "default"}, "router_aux_loss_coef": 0.001, "sliding_window": 4, "swiglu_alpha":
1.702, "swiglu_limit": 7.0, "tie_word_embeddings": true, "transformers_version": "5.24.0",
"use_cache": true, "vocab_size": 23}]==],
      loss = 4.1087710355085,
   },
   deepseek_v3 = {
      config = [==[
{"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout":
0.0, "bos_token_id": 1, "eos_token_id": 2, "first_k_dense_replace": 1, "head_dim": 4,
"hidden_act": "silu", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20,
"kv_lora_rank": 10, "max_position_embeddings": 64, "model_type": "deepseek_v3",
"moe_intermediate_size": 10, "n_group": 4, "n_routed_experts": 8, "n_shared_experts": 1,
"norm_topk_prob": true, "num_attention_heads": 6, "num_experts_per_tok": 3,
"num_hidden_layers": 3, "num_key_value_heads": 6, "num_nextn_predict_layers": 1,
"output_router_logits": false, "pad_token_id": 0, "pretraining_tp": 1, "q_lora_rank": 14,
"qk_head_dim": 6, "qk_nope_head_dim": 2, "qk_rope_head_dim": 4, "rms_norm_eps": 1e-05,
"rope_interleave": true, "rope_parameters": {"factor": 4.0, "mscale": 1.0, "mscale_all_dim":
1.0, "original_max_position_embeddings": 16, "rope_theta": 500.0, "rope_type": "yarn"},
"routed_scaling_factor": 2.5, "tie_word_embeddings": false, "topk_group": 2,
"transformers_version": "5.24.0", "use_cache": true, "v_head_dim": 5, "vocab_size": 23}]==],
      loss = 3.33912641800869,
   },
   deepseek_v3_plain = {
      config = [==[
{"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "first_k_dense_replace": 0, "head_dim": 4, "hidden_act":
"silu", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20, "kv_lora_rank":
10, "max_position_embeddings": 64, "model_type": "deepseek_v3", "moe_intermediate_size": 12,
"n_group": 1, "n_routed_experts": 4, "n_shared_experts": 2, "norm_topk_prob": false,
"num_attention_heads": 6, "num_experts_per_tok": 2, "num_hidden_layers": 3,
"num_key_value_heads": 6, "num_nextn_predict_layers": 1, "output_router_logits": false,
"pad_token_id": 0, "pretraining_tp": 1, "q_lora_rank": null, "qk_head_dim": 6,
"qk_nope_head_dim": 2, "qk_rope_head_dim": 4, "rms_norm_eps": 1e-05, "rope_interleave": false,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "routed_scaling_factor":
2.5, "tie_word_embeddings": true, "topk_group": 1, "transformers_version": "5.24.0",
"use_cache": true, "v_head_dim": 5, "vocab_size": 23}]==],
      loss = 3.31656520032788,
   },
   deepseek_v2 = {
      config = [==[
{"architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "attention_dropout":
0.0, "bos_token_id": 1, "eos_token_id": 2, "first_k_dense_replace": 1, "head_dim": 4,
"hidden_act": "silu", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20,
"kv_lora_rank": 10, "max_position_embeddings": 64, "mlp_bias": false, "model_type":
"deepseek_v2", "moe_intermediate_size": 10, "n_group": null, "n_routed_experts": 5,
"n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 6,
"num_experts_per_tok": 2, "num_hidden_layers": 3, "num_key_value_heads": 6,
"output_router_logits": false, "pad_token_id": 0, "pretraining_tp": 1, "q_lora_rank": null,
"qk_head_dim": 6, "qk_nope_head_dim": 2, "qk_rope_head_dim": 4, "rms_norm_eps": 1e-05,
"rope_parameters": {"factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.9,
"original_max_position_embeddings": 16, "rope_theta": 500.0, "rope_type": "yarn"},
"routed_scaling_factor": 1.5, "tie_word_embeddings": false, "topk_group": null, "topk_method":
"greedy", "transformers_version": "5.24.0", "use_cache": true, "v_head_dim": 5, "vocab_size":
23}]==],
      loss = 3.7502228863544,
   },
   deepseek_v2_groups = {
      config = [==[
{"architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "attention_dropout":
0.0, "bos_token_id": 1, "eos_token_id": 2, "first_k_dense_replace": 0, "head_dim": 4,
"hidden_act": "silu", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20,
"kv_lora_rank": 10, "max_position_embeddings": 64, "mlp_bias": false, "model_type":
"deepseek_v2", "moe_intermediate_size": 10, "n_group": 3, "n_routed_experts": 6,
"n_shared_experts": 1, "norm_topk_prob": false, "num_attention_heads": 6,
"num_experts_per_tok": 2, "num_hidden_layers": 3, "num_key_value_heads": 6,
"output_router_logits": false, "pad_token_id": 0, "pretraining_tp": 1, "q_lora_rank": 14,
"qk_head_dim": 6, "qk_nope_head_dim": 2, "qk_rope_head_dim": 4, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "routed_scaling_factor":
1.0, "tie_word_embeddings": false, "topk_group": 2, "topk_method": "group_limited_greedy",
"transformers_version": "5.24.0", "use_cache": true, "v_head_dim": 5, "vocab_size": 23}]==],
      loss = 6.69202203643541,
   },
   glm4_moe_lite = {
      config = [==[
{"architectures": ["Glm4MoeLiteForCausalLM"], "attention_bias": false, "attention_dropout":
0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "kv_lora_rank": 10,
"max_position_embeddings": 64, "mlp_layer_types": ["sparse", "dense", "sparse"], "model_type":
"glm4_moe_lite", "moe_intermediate_size": 10, "n_group": 1, "n_routed_experts": 4,
"n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 6,
"num_experts_per_tok": 2, "num_hidden_layers": 3, "num_key_value_heads": 6,
"output_router_logits": false, "pad_token_id": 0, "pretraining_tp": 1, "q_lora_rank": 14,
"qk_head_dim": 6, "qk_nope_head_dim": 2, "qk_rope_head_dim": 4, "rms_norm_eps": 1e-05,
"rope_interleave": true, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
"routed_scaling_factor": 1.8, "tie_word_embeddings": false, "topk_group": 1,
"transformers_version": "5.24.0", "use_cache": true, "v_head_dim": 5, "vocab_size": 23}]==],
      loss = 4.59207791667142,
   },
   bamba = {
      config = [==[
{"architectures": ["BambaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"attn_layer_indices": [1], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
"hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 20, "mamba_chunk_size": 4,
"mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 8, "mamba_d_state": 5,
"mamba_expand": 2, "mamba_n_groups": 2, "mamba_n_heads": 12, "mamba_proj_bias": false,
"max_position_embeddings": 64, "mlp_bias": false, "model_type": "bamba",
"num_attention_heads": 6, "num_hidden_layers": 3, "num_key_value_heads": 2,
"num_logits_to_keep": 1, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters":
{"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"},
"tie_word_embeddings": false, "time_step_limit": [0.0, {"__float__": "Infinity"}],
"transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23, "z_loss_coefficient":
0.0}]==],
      loss = 3.38907715928533,
   },
   bamba_bias = {
      config = [==[
{"architectures": ["BambaForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
"attn_layer_indices": [0, 2], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
"hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 20, "mamba_chunk_size": 4,
"mamba_conv_bias": false, "mamba_d_conv": 4, "mamba_d_head": 8, "mamba_d_state": 5,
"mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 12, "mamba_proj_bias": true,
"max_position_embeddings": 64, "mlp_bias": true, "model_type": "bamba", "num_attention_heads":
6, "num_hidden_layers": 3, "num_key_value_heads": 2, "num_logits_to_keep": 1, "pad_token_id":
0, "rms_norm_eps": 1e-05, "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta":
10000.0, "rope_type": "default"}, "tie_word_embeddings": true, "time_step_limit": [0.05, 0.6],
"transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23, "z_loss_coefficient":
0.0}]==],
      loss = 4.04013655543535,
   },
   granitemoehybrid = {
      config = [==[
{"architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": false,
"attention_dropout": 0.0, "attention_multiplier": 0.3, "bos_token_id": 1,
"embedding_multiplier": 3.0, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 48,
"initializer_range": 0.02, "intermediate_size": 20, "layer_types": ["linear_attention",
"full_attention", "linear_attention"], "logits_scaling": 2.0, "mamba_chunk_size": 4,
"mamba_conv_bias": true, "mamba_d_conv": 4, "mamba_d_head": 8, "mamba_d_state": 5,
"mamba_expand": 2, "mamba_n_groups": 2, "mamba_n_heads": 12, "mamba_proj_bias": false,
"max_position_embeddings": 64, "model_type": "granitemoehybrid", "num_attention_heads": 6,
"num_experts_per_tok": 2, "num_hidden_layers": 3, "num_key_value_heads": 2,
"num_local_experts": 6, "output_router_logits": false, "pad_token_id": 0,
"position_embedding_type": null, "residual_multiplier": 0.4, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "router_aux_loss_coef":
0.001, "shared_intermediate_size": 14, "tie_word_embeddings": false, "time_step_limit": [0.0,
{"__float__": "Infinity"}], "transformers_version": "5.24.0", "use_cache": true, "vocab_size":
23}]==],
      loss = 3.28974988627123,
   },
   granitemoehybrid_dense = {
      config = [==[
{"architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": true,
"attention_dropout": 0.0, "attention_multiplier": 0.3, "bos_token_id": 1,
"embedding_multiplier": 3.0, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 48,
"initializer_range": 0.02, "intermediate_size": 20, "layer_types": ["full_attention",
"linear_attention", "full_attention"], "logits_scaling": 2.0, "mamba_chunk_size": 4,
"mamba_conv_bias": false, "mamba_d_conv": 4, "mamba_d_head": 8, "mamba_d_state": 5,
"mamba_expand": 2, "mamba_n_groups": 2, "mamba_n_heads": 12, "mamba_proj_bias": true,
"max_position_embeddings": 64, "model_type": "granitemoehybrid", "num_attention_heads": 6,
"num_experts_per_tok": 2, "num_hidden_layers": 3, "num_key_value_heads": 2,
"num_local_experts": 0, "output_router_logits": false, "pad_token_id": 0,
"position_embedding_type": "rope", "residual_multiplier": 0.4, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "router_aux_loss_coef":
0.001, "shared_intermediate_size": 14, "tie_word_embeddings": true, "time_step_limit": [0.05,
0.6], "transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.53687327463256,
   },
   nemotron_moe = {
      config = [==[
{"architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "chunk_size": 4, "conv_kernel": 4, "eos_token_id": 2, "expand": 2,
"head_dim": 4, "hidden_dropout": 0.0, "hidden_size": 24, "initializer_range": 0.02,
"intermediate_size": 20, "layer_norm_epsilon": 1e-05, "layers_block_type":
["linear_attention", "moe", "full_attention"], "mamba_head_dim": 6, "mamba_hidden_act":
"silu", "mamba_num_heads": 8, "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32",
"max_position_embeddings": 64, "mlp_bias": false, "mlp_hidden_act": "relu2", "model_type":
"nemotron_h", "moe_intermediate_size": 10, "moe_latent_size": null,
"moe_shared_expert_intermediate_size": 14, "moe_shared_expert_overlap": true,
"mtp_layers_block_type": ["full_attention", "moe"], "n_group": 1, "n_groups": 2,
"n_routed_experts": 6, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads":
6, "num_experts_per_tok": 2, "num_key_value_heads": 2, "num_logits_to_keep": 1,
"num_nextn_predict_layers": 0, "output_router_logits": false, "pad_token_id": 0,
"rescale_prenorm_residual": true, "residual_in_fp32": false, "routed_scaling_factor": 1.5,
"sliding_window": null, "ssm_state_size": 5, "tie_word_embeddings": false, "time_step_floor":
0.0001, "time_step_limit": [0.0, {"__float__": "Infinity"}], "time_step_max": 0.1,
"time_step_min": 0.001, "topk_group": 1, "transformers_version": "5.24.0", "use_bias": false,
"use_cache": true, "use_conv_bias": true, "use_mamba_kernels": true, "vocab_size": 23}]==],
      loss = 3.4144339932879,
   },
   nemotron_moe_latent = {
      config = [==[
{"architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "chunk_size": 4, "conv_kernel": 4, "eos_token_id": 2, "expand": 2,
"head_dim": 4, "hidden_dropout": 0.0, "hidden_size": 24, "initializer_range": 0.02,
"intermediate_size": 20, "layer_norm_epsilon": 1e-05, "layers_block_type": ["moe",
"linear_attention", "full_attention", "moe"], "mamba_head_dim": 6, "mamba_hidden_act": "silu",
"mamba_num_heads": 8, "mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32",
"max_position_embeddings": 64, "mlp_bias": false, "mlp_hidden_act": "silu", "model_type":
"nemotron_h", "moe_intermediate_size": 10, "moe_latent_size": 7,
"moe_shared_expert_intermediate_size": 14, "moe_shared_expert_overlap": true,
"mtp_layers_block_type": ["full_attention", "moe"], "n_group": 3, "n_groups": 2,
"n_routed_experts": 6, "n_shared_experts": 1, "norm_topk_prob": false, "num_attention_heads":
6, "num_experts_per_tok": 3, "num_key_value_heads": 2, "num_logits_to_keep": 1,
"num_nextn_predict_layers": 0, "output_router_logits": false, "pad_token_id": 0,
"rescale_prenorm_residual": true, "residual_in_fp32": false, "routed_scaling_factor": 1.0,
"sliding_window": null, "ssm_state_size": 5, "tie_word_embeddings": false, "time_step_floor":
0.0001, "time_step_limit": [0.0, {"__float__": "Infinity"}], "time_step_max": 0.1,
"time_step_min": 0.001, "topk_group": 2, "transformers_version": "5.24.0", "use_bias": false,
"use_cache": true, "use_conv_bias": true, "use_mamba_kernels": true, "vocab_size": 23}]==],
      loss = 3.38748405356784,
   },
   nemotron_moe_bias = {
      config = [==[
{"architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "chunk_size": 4, "conv_kernel": 4, "eos_token_id": 2, "expand": 2,
"head_dim": 4, "hidden_dropout": 0.0, "hidden_size": 24, "initializer_range": 0.02,
"intermediate_size": 20, "layer_norm_epsilon": 1e-05, "layers_block_type": ["full_attention",
"moe", "mlp"], "mamba_head_dim": 6, "mamba_hidden_act": "silu", "mamba_num_heads": 8,
"mamba_proj_bias": false, "mamba_ssm_cache_dtype": "float32", "max_position_embeddings": 64,
"mlp_bias": true, "mlp_hidden_act": "relu2", "model_type": "nemotron_h",
"moe_intermediate_size": 10, "moe_latent_size": null, "moe_shared_expert_intermediate_size":
14, "moe_shared_expert_overlap": true, "mtp_layers_block_type": ["full_attention", "moe"],
"n_group": 1, "n_groups": 2, "n_routed_experts": 4, "n_shared_experts": 1, "norm_topk_prob":
true, "num_attention_heads": 6, "num_experts_per_tok": 2, "num_key_value_heads": 2,
"num_logits_to_keep": 1, "num_nextn_predict_layers": 0, "output_router_logits": false,
"pad_token_id": 0, "rescale_prenorm_residual": true, "residual_in_fp32": false,
"routed_scaling_factor": 1.0, "sliding_window": null, "ssm_state_size": 5,
"tie_word_embeddings": false, "time_step_floor": 0.0001, "time_step_limit": [0.0,
{"__float__": "Infinity"}], "time_step_max": 0.1, "time_step_min": 0.001, "topk_group": 1,
"transformers_version": "5.24.0", "use_bias": false, "use_cache": true, "use_conv_bias": true,
"use_mamba_kernels": true, "vocab_size": 23}]==],
      loss = 5.03491227196361,
   },
   qwen3_next = {
      config = [==[
{"architectures": ["Qwen3NextForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "decoder_sparse_step": 1, "eos_token_id": 2, "head_dim": 8, "hidden_act":
"silu", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20, "layer_types":
["linear_attention", "full_attention", "linear_attention"], "linear_conv_kernel_dim": 4,
"linear_key_head_dim": 6, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
"linear_value_head_dim": 5, "max_position_embeddings": 64, "mlp_only_layers": [],
"model_type": "qwen3_next", "moe_intermediate_size": 12, "norm_topk_prob": true,
"num_attention_heads": 6, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 3,
"num_key_value_heads": 2, "output_router_logits": false, "pad_token_id": 0, "rms_norm_eps":
1e-05, "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type":
"default"}, "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 16,
"tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.17473799116315,
   },
   qwen3_next_step = {
      config = [==[
{"architectures": ["Qwen3NextForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
"bos_token_id": 1, "decoder_sparse_step": 2, "eos_token_id": 2, "head_dim": 8, "hidden_act":
"silu", "hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20, "layer_types":
["linear_attention", "full_attention", "linear_attention"], "linear_conv_kernel_dim": 3,
"linear_key_head_dim": 6, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
"linear_value_head_dim": 5, "max_position_embeddings": 64, "mlp_only_layers": [0],
"model_type": "qwen3_next", "moe_intermediate_size": 10, "norm_topk_prob": false,
"num_attention_heads": 6, "num_experts": 5, "num_experts_per_tok": 3, "num_hidden_layers": 3,
"num_key_value_heads": 2, "output_router_logits": false, "pad_token_id": 0, "rms_norm_eps":
1e-05, "rope_parameters": {"factor": 4.0, "original_max_position_embeddings": 16,
"partial_rotary_factor": 0.5, "rope_theta": 500.0, "rope_type": "yarn"},
"router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 9, "tie_word_embeddings":
true, "transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 4.87057477996782,
   },
   qwen3_5 = {
      config = [==[
{"architectures": ["Qwen3_5ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 8, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "layer_types": ["linear_attention",
"full_attention", "linear_attention"], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 6,
"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 5,
"max_position_embeddings": 64, "model_type": "qwen3_5_text", "num_attention_heads": 6,
"num_hidden_layers": 3, "num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-05,
"rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type":
"default"}, "tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.26925672788637,
   },
   qwen3_5_moe = {
      config = [==[
{"architectures": ["Qwen3_5MoeForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 8, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "layer_types": ["full_attention", "linear_attention",
"linear_attention"], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 6,
"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 5,
"max_position_embeddings": 64, "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 12,
"num_attention_heads": 6, "num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 3,
"num_key_value_heads": 2, "output_router_logits": false, "pad_token_id": 0, "rms_norm_eps":
1e-05, "rope_parameters": {"mrope_interleaved": true, "mrope_section": [1, 1, 0],
"partial_rotary_factor": 0.5, "rope_theta": 500.0, "rope_type": "default"},
"router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 10, "tie_word_embeddings":
true, "transformers_version": "5.24.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.86077505960589,
   },
   gpt2 = {
      config = [==[
{"activation_function": "gelu_new", "add_cross_attention": false, "architectures":
["GPT2LMHeadModel"], "attn_pdrop": 0.0, "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id":
2, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_embd": 24,
"n_head": 6, "n_inner": null, "n_layer": 3, "n_positions": 16, "pad_token_id": 0,
"reorder_and_upcast_attn": false, "resid_pdrop": 0.0, "scale_attn_by_inverse_layer_idx":
false, "scale_attn_weights": true, "summary_activation": null, "summary_first_dropout": 0.1,
"summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
"tie_word_embeddings": true, "transformers_version": "5.24.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 6.60859605381112,
   },
   gpt2_untied = {
      config = [==[
{"activation_function": "relu", "add_cross_attention": false, "architectures":
["GPT2LMHeadModel"], "attn_pdrop": 0.0, "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id":
2, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_embd": 24,
"n_head": 4, "n_inner": 20, "n_layer": 2, "n_positions": 12, "pad_token_id": 0,
"reorder_and_upcast_attn": false, "resid_pdrop": 0.0, "scale_attn_by_inverse_layer_idx": true,
"scale_attn_weights": true, "summary_activation": null, "summary_first_dropout": 0.1,
"summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
"tie_word_embeddings": false, "transformers_version": "5.24.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 6.8054016407243,
   },
}
