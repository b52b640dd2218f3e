-- Written by spec/golden/qwen3_5_vl.py: configurations of the transformers package, version
-- 5.24.0.

return {
   text = [==[
{"architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen3_5", "text_config": {"attention_bias": false, "attention_dropout": 0.0, "bos_token_id":
1, "eos_token_id": 2, "head_dim": 16, "hidden_act": "silu", "hidden_size": 16,
"initializer_range": 0.02, "intermediate_size": 12, "layer_types": ["linear_attention",
"full_attention"], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 4,
"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 3,
"max_position_embeddings": 64, "model_type": "qwen3_5_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-06,
"rope_parameters": {"mrope_interleaved": true, "mrope_section": [2, 1, 1],
"partial_rotary_factor": 0.5, "rope_theta": 100.0, "rope_type": "default"},
"tie_word_embeddings": false, "use_cache": true, "vocab_size": 41}, "tie_word_embeddings":
false, "transformers_version": "5.24.0", "video_token_id": 37, "vision_config": {"depth": 2,
"hidden_act": "gelu_pytorch_tanh", "hidden_size": 16, "in_channels": 3, "initializer_range":
0.02, "intermediate_size": 10, "model_type": "qwen3_5_vision", "num_heads": 2,
"num_position_embeddings": 16, "out_hidden_size": 16, "patch_size": 2, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 2, "temporal_patch_size":
2}, "vision_end_token_id": 39, "vision_start_token_id": 38}]==],
   images = [==[
{"architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen3_5", "text_config": {"attention_bias": true, "attention_dropout": 0.0, "bos_token_id":
1, "eos_token_id": 2, "head_dim": 16, "hidden_act": "silu", "hidden_size": 16,
"initializer_range": 0.02, "intermediate_size": 12, "layer_types": ["full_attention",
"linear_attention"], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 4,
"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 3,
"max_position_embeddings": 64, "model_type": "qwen3_5_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-06,
"rope_parameters": {"mrope_interleaved": true, "mrope_section": [2, 1, 1],
"partial_rotary_factor": 0.5, "rope_theta": 100.0, "rope_type": "default"},
"tie_word_embeddings": false, "use_cache": true, "vocab_size": 41}, "tie_word_embeddings":
false, "transformers_version": "5.24.0", "video_token_id": 37, "vision_config": {"depth": 2,
"hidden_act": "gelu_pytorch_tanh", "hidden_size": 16, "in_channels": 3, "initializer_range":
0.02, "intermediate_size": 10, "model_type": "qwen3_5_vision", "num_heads": 2,
"num_position_embeddings": 16, "out_hidden_size": 16, "patch_size": 2, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 2, "temporal_patch_size":
2}, "vision_end_token_id": 39, "vision_start_token_id": 38}]==],
   images_right = [==[
{"architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen3_5", "text_config": {"attention_bias": false, "attention_dropout": 0.0, "bos_token_id":
1, "eos_token_id": 2, "head_dim": 16, "hidden_act": "silu", "hidden_size": 16,
"initializer_range": 0.02, "intermediate_size": 12, "layer_types": ["linear_attention",
"full_attention"], "linear_conv_kernel_dim": 2, "linear_key_head_dim": 4,
"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 3,
"max_position_embeddings": 64, "model_type": "qwen3_5_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-06,
"rope_parameters": {"mrope_interleaved": true, "mrope_section": [2, 1, 1],
"partial_rotary_factor": 0.5, "rope_theta": 100.0, "rope_type": "default"},
"tie_word_embeddings": false, "use_cache": true, "vocab_size": 41}, "tie_word_embeddings":
true, "transformers_version": "5.24.0", "video_token_id": 37, "vision_config": {"depth": 2,
"hidden_act": "gelu_pytorch_tanh", "hidden_size": 16, "in_channels": 3, "initializer_range":
0.02, "intermediate_size": 10, "model_type": "qwen3_5_vision", "num_heads": 2,
"num_position_embeddings": 30, "out_hidden_size": 16, "patch_size": 2, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 2, "temporal_patch_size":
2}, "vision_end_token_id": 39, "vision_start_token_id": 38}]==],
   video = [==[
{"architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen3_5", "text_config": {"attention_bias": false, "attention_dropout": 0.0, "bos_token_id":
1, "eos_token_id": 2, "head_dim": 16, "hidden_act": "silu", "hidden_size": 16,
"initializer_range": 0.02, "intermediate_size": 12, "layer_types": ["linear_attention",
"full_attention", "linear_attention", "full_attention"], "linear_conv_kernel_dim": 4,
"linear_key_head_dim": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
"linear_value_head_dim": 3, "max_position_embeddings": 64, "model_type": "qwen3_5_text",
"num_attention_heads": 2, "num_hidden_layers": 4, "num_key_value_heads": 1, "pad_token_id":
null, "rms_norm_eps": 1e-06, "rope_parameters": {"mrope_interleaved": true, "mrope_section":
[2, 1, 1], "partial_rotary_factor": 0.5, "rope_theta": 100.0, "rope_type": "default"},
"tie_word_embeddings": false, "use_cache": true, "vocab_size": 41}, "tie_word_embeddings":
false, "transformers_version": "5.24.0", "video_token_id": 37, "vision_config": {"depth": 2,
"hidden_act": "gelu_pytorch_tanh", "hidden_size": 16, "in_channels": 3, "initializer_range":
0.02, "intermediate_size": 10, "model_type": "qwen3_5_vision", "num_heads": 2,
"num_position_embeddings": 16, "out_hidden_size": 16, "patch_size": 2, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 2, "temporal_patch_size":
2}, "vision_end_token_id": 39, "vision_start_token_id": 38}]==],
   mixed = [==[
{"architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen3_5", "text_config": {"attention_bias": false, "attention_dropout": 0.0, "bos_token_id":
1, "eos_token_id": 2, "head_dim": 16, "hidden_act": "silu", "hidden_size": 16,
"initializer_range": 0.02, "intermediate_size": 12, "layer_types": ["linear_attention",
"full_attention"], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 4,
"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 3,
"max_position_embeddings": 64, "model_type": "qwen3_5_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 2, "pad_token_id": null, "rms_norm_eps": 1e-06,
"rope_parameters": {"mrope_interleaved": true, "mrope_section": [2, 1, 1],
"partial_rotary_factor": 0.5, "rope_theta": 100.0, "rope_type": "default"},
"tie_word_embeddings": false, "use_cache": true, "vocab_size": 41}, "tie_word_embeddings":
false, "transformers_version": "5.24.0", "video_token_id": 37, "vision_config": {"depth": 2,
"hidden_act": "gelu_pytorch_tanh", "hidden_size": 16, "in_channels": 3, "initializer_range":
0.02, "intermediate_size": 10, "model_type": "qwen3_5_vision", "num_heads": 2,
"num_position_embeddings": 16, "out_hidden_size": 16, "patch_size": 2, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 2, "temporal_patch_size":
2}, "vision_end_token_id": 39, "vision_start_token_id": 38}]==],
   plain = [==[
{"architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen3_5", "text_config": {"attention_bias": false, "attention_dropout": 0.0, "bos_token_id":
1, "eos_token_id": 2, "head_dim": 40, "hidden_act": "silu", "hidden_size": 16,
"initializer_range": 0.02, "intermediate_size": 12, "layer_types": ["linear_attention",
"full_attention"], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 4,
"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 3,
"max_position_embeddings": 64, "model_type": "qwen3_5_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-06,
"rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 50.0, "rope_type":
"default"}, "tie_word_embeddings": false, "use_cache": true, "vocab_size": 41},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "video_token_id": 37,
"vision_config": {"depth": 2, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 16,
"in_channels": 1, "initializer_range": 0.02, "intermediate_size": 10, "model_type":
"qwen3_5_vision", "num_heads": 2, "num_position_embeddings": 16, "out_hidden_size": 16,
"patch_size": 2, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"},
"spatial_merge_size": 1, "temporal_patch_size": 1}, "vision_end_token_id": 39,
"vision_start_token_id": 38}]==],
   ahead = [==[
{"architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen3_5", "text_config": {"attention_bias": false, "attention_dropout": 0.0, "bos_token_id":
1, "eos_token_id": 2, "head_dim": 16, "hidden_act": "silu", "hidden_size": 16,
"initializer_range": 0.02, "intermediate_size": 12, "layer_types": ["linear_attention",
"full_attention"], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 4,
"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 3,
"max_position_embeddings": 64, "model_type": "qwen3_5_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-06,
"rope_parameters": {"mrope_interleaved": true, "mrope_section": [2, 1, 1],
"partial_rotary_factor": 0.5, "rope_theta": 100.0, "rope_type": "default"},
"tie_word_embeddings": false, "use_cache": true, "vocab_size": 41}, "tie_word_embeddings":
false, "transformers_version": "5.24.0", "video_token_id": 37, "vision_config": {"depth": 2,
"hidden_act": "gelu_pytorch_tanh", "hidden_size": 16, "in_channels": 3, "initializer_range":
0.02, "intermediate_size": 10, "model_type": "qwen3_5_vision", "num_heads": 2,
"num_position_embeddings": 16, "out_hidden_size": 16, "patch_size": 2, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 2, "temporal_patch_size":
2}, "vision_end_token_id": 39, "vision_start_token_id": 38}]==],
   moe_mixed = [==[
{"architectures": ["Qwen3_5MoeForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen3_5_moe", "text_config": {"attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 16, "hidden_act": "silu", "hidden_size": 16,
"initializer_range": 0.02, "layer_types": ["linear_attention", "full_attention"],
"linear_conv_kernel_dim": 4, "linear_key_head_dim": 4, "linear_num_key_heads": 2,
"linear_num_value_heads": 4, "linear_value_head_dim": 3, "max_position_embeddings": 64,
"model_type": "qwen3_5_moe_text", "moe_intermediate_size": 6, "num_attention_heads": 2,
"num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 2,
"output_router_logits": false, "pad_token_id": null, "rms_norm_eps": 1e-06, "rope_parameters":
{"mrope_interleaved": true, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5,
"rope_theta": 100.0, "rope_type": "default"}, "router_aux_loss_coef": 0.001,
"shared_expert_intermediate_size": 5, "tie_word_embeddings": false, "use_cache": true,
"vocab_size": 41}, "tie_word_embeddings": false, "transformers_version": "5.24.0",
"video_token_id": 37, "vision_config": {"depth": 2, "hidden_act": "gelu_pytorch_tanh",
"hidden_size": 16, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 10,
"model_type": "qwen3_5_moe_vision", "num_heads": 2, "num_position_embeddings": 16,
"out_hidden_size": 16, "patch_size": 2, "rope_parameters": {"rope_theta": 10000.0,
"rope_type": "axial"}, "spatial_merge_size": 2, "temporal_patch_size": 2},
"vision_end_token_id": 39, "vision_start_token_id": 38}]==],
}
