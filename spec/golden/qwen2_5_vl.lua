-- Written by spec/golden/qwen2_5_vl.py: configurations of the transformers package, version
-- 5.24.0.

return {
   text = [==[
{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen2_5_vl", "text_config": {"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
"hidden_act": "silu", "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 12,
"layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 64,
"max_window_layers": 80, "model_type": "qwen2_5_vl_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-05,
"rope_parameters": {"mrope_section": [1, 2, 1], "rope_theta": 100.0, "rope_type": "default"},
"sliding_window": null, "use_cache": true, "use_sliding_window": false, "vocab_size": 41},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "video_token_id": 37,
"vision_config": {"depth": 2, "fullatt_block_indexes": [1], "hidden_act": "silu",
"hidden_size": 16, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 10,
"model_type": "qwen2_5_vl_vision", "num_heads": 2, "out_hidden_size": 16, "patch_size": 2,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 2,
"temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 8}, "vision_end_token_id":
39, "vision_start_token_id": 38}]==],
   image = [==[
{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen2_5_vl", "text_config": {"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
"hidden_act": "silu", "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 12,
"layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 64,
"max_window_layers": 80, "model_type": "qwen2_5_vl_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-05,
"rope_parameters": {"mrope_section": [1, 2, 1], "rope_theta": 100.0, "rope_type": "default"},
"sliding_window": null, "use_cache": true, "use_sliding_window": false, "vocab_size": 41},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "video_token_id": 37,
"vision_config": {"depth": 2, "fullatt_block_indexes": [1], "hidden_act": "silu",
"hidden_size": 16, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 10,
"model_type": "qwen2_5_vl_vision", "num_heads": 2, "out_hidden_size": 16, "patch_size": 2,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 2,
"temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 8}, "vision_end_token_id":
39, "vision_start_token_id": 38}]==],
   images = [==[
{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen2_5_vl", "text_config": {"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
"hidden_act": "silu", "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 12,
"layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 64,
"max_window_layers": 80, "model_type": "qwen2_5_vl_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-05,
"rope_parameters": {"mrope_section": [1, 2, 1], "rope_theta": 100.0, "rope_type": "default"},
"sliding_window": null, "use_cache": true, "use_sliding_window": false, "vocab_size": 41},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "video_token_id": 37,
"vision_config": {"depth": 2, "fullatt_block_indexes": [0], "hidden_act": "silu",
"hidden_size": 16, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 10,
"model_type": "qwen2_5_vl_vision", "num_heads": 2, "out_hidden_size": 16, "patch_size": 2,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 2,
"temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 8}, "vision_end_token_id":
39, "vision_start_token_id": 38}]==],
   images_right = [==[
{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen2_5_vl", "text_config": {"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
"hidden_act": "silu", "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 12,
"layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 64,
"max_window_layers": 80, "model_type": "qwen2_5_vl_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-05,
"rope_parameters": {"mrope_section": [1, 2, 1], "rope_theta": 100.0, "rope_type": "default"},
"sliding_window": null, "use_cache": true, "use_sliding_window": false, "vocab_size": 41},
"tie_word_embeddings": true, "transformers_version": "5.24.0", "video_token_id": 37,
"vision_config": {"depth": 2, "fullatt_block_indexes": [1], "hidden_act": "silu",
"hidden_size": 16, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 10,
"model_type": "qwen2_5_vl_vision", "num_heads": 2, "out_hidden_size": 16, "patch_size": 2,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 2,
"temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 8}, "vision_end_token_id":
39, "vision_start_token_id": 38}]==],
   video = [==[
{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen2_5_vl", "text_config": {"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
"hidden_act": "silu", "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 12,
"layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 64,
"max_window_layers": 80, "model_type": "qwen2_5_vl_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-05,
"rope_parameters": {"mrope_section": [1, 2, 1], "rope_theta": 100.0, "rope_type": "default"},
"sliding_window": null, "use_cache": true, "use_sliding_window": false, "vocab_size": 41},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "video_token_id": 37,
"vision_config": {"depth": 2, "fullatt_block_indexes": [1], "hidden_act": "silu",
"hidden_size": 16, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 10,
"model_type": "qwen2_5_vl_vision", "num_heads": 2, "out_hidden_size": 16, "patch_size": 2,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 2,
"temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 8}, "vision_end_token_id":
39, "vision_start_token_id": 38}]==],
   videos = [==[
{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen2_5_vl", "text_config": {"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
"hidden_act": "silu", "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 12,
"layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 64,
"max_window_layers": 80, "model_type": "qwen2_5_vl_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-05,
"rope_parameters": {"mrope_section": [1, 2, 1], "rope_theta": 100.0, "rope_type": "default"},
"sliding_window": null, "use_cache": true, "use_sliding_window": false, "vocab_size": 41},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "video_token_id": 37,
"vision_config": {"depth": 2, "fullatt_block_indexes": [1], "hidden_act": "silu",
"hidden_size": 16, "in_channels": 1, "initializer_range": 0.02, "intermediate_size": 10,
"model_type": "qwen2_5_vl_vision", "num_heads": 2, "out_hidden_size": 16, "patch_size": 2,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 2,
"temporal_patch_size": 1, "tokens_per_second": 2, "window_size": 8}, "vision_end_token_id":
39, "vision_start_token_id": 38}]==],
   mixed = [==[
{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen2_5_vl", "text_config": {"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
"hidden_act": "silu", "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 12,
"layer_types": ["full_attention"], "max_position_embeddings": 64, "max_window_layers": 80,
"model_type": "qwen2_5_vl_text", "num_attention_heads": 2, "num_hidden_layers": 1,
"num_key_value_heads": 2, "pad_token_id": null, "rms_norm_eps": 1e-05, "rope_parameters":
{"mrope_section": [1, 2, 1], "rope_theta": 100.0, "rope_type": "default"}, "sliding_window":
null, "use_cache": true, "use_sliding_window": false, "vocab_size": 41},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "video_token_id": 37,
"vision_config": {"depth": 3, "fullatt_block_indexes": [0, 2], "hidden_act": "silu",
"hidden_size": 16, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 10,
"model_type": "qwen2_5_vl_vision", "num_heads": 2, "out_hidden_size": 16, "patch_size": 2,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 2,
"temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 5}, "vision_end_token_id":
39, "vision_start_token_id": 38}]==],
   merge_3 = [==[
{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen2_5_vl", "text_config": {"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
"hidden_act": "silu", "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 12,
"layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 64,
"max_window_layers": 80, "model_type": "qwen2_5_vl_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-05,
"rope_parameters": {"mrope_section": [1, 2, 1], "rope_theta": 100.0, "rope_type": "default"},
"sliding_window": null, "use_cache": true, "use_sliding_window": false, "vocab_size": 41},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "video_token_id": 37,
"vision_config": {"depth": 2, "fullatt_block_indexes": [1], "hidden_act": "silu",
"hidden_size": 12, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 10,
"model_type": "qwen2_5_vl_vision", "num_heads": 1, "out_hidden_size": 16, "patch_size": 2,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 3,
"temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 12}, "vision_end_token_id":
39, "vision_start_token_id": 38}]==],
   merge_1 = [==[
{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen2_5_vl", "text_config": {"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
"hidden_act": "silu", "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 12,
"layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 64,
"max_window_layers": 80, "model_type": "qwen2_5_vl_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-05,
"rope_parameters": {"mrope_section": [1, 2, 1], "rope_theta": 100.0, "rope_type": "default"},
"sliding_window": null, "use_cache": true, "use_sliding_window": false, "vocab_size": 41},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "video_token_id": 37,
"vision_config": {"depth": 2, "fullatt_block_indexes": [1], "hidden_act": "silu",
"hidden_size": 16, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 10,
"model_type": "qwen2_5_vl_vision", "num_heads": 2, "out_hidden_size": 16, "patch_size": 2,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 1,
"temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 4}, "vision_end_token_id":
39, "vision_start_token_id": 38}]==],
   ahead = [==[
{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen2_5_vl", "text_config": {"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
"hidden_act": "silu", "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 12,
"layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 64,
"max_window_layers": 80, "model_type": "qwen2_5_vl_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-05,
"rope_parameters": {"mrope_section": [1, 2, 1], "rope_theta": 100.0, "rope_type": "default"},
"sliding_window": null, "use_cache": true, "use_sliding_window": false, "vocab_size": 41},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "video_token_id": 37,
"vision_config": {"depth": 2, "fullatt_block_indexes": [1], "hidden_act": "silu",
"hidden_size": 16, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 10,
"model_type": "qwen2_5_vl_vision", "num_heads": 2, "out_hidden_size": 16, "patch_size": 2,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 2,
"temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 8}, "vision_end_token_id":
39, "vision_start_token_id": 38}]==],
   yarn = [==[
{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 36, "model_type":
"qwen2_5_vl", "text_config": {"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
"hidden_act": "silu", "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 12,
"layer_types": ["full_attention", "full_attention"], "max_position_embeddings": 64,
"max_window_layers": 80, "model_type": "qwen2_5_vl_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": null, "rms_norm_eps": 1e-05,
"rope_parameters": {"factor": 4.0, "mrope_section": [2, 1, 1],
"original_max_position_embeddings": 16, "rope_theta": 100.0, "rope_type": "yarn"},
"sliding_window": null, "use_cache": true, "use_sliding_window": false, "vocab_size": 41},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "video_token_id": 37,
"vision_config": {"depth": 2, "fullatt_block_indexes": [1], "hidden_act": "silu",
"hidden_size": 16, "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 10,
"model_type": "qwen2_5_vl_vision", "num_heads": 2, "out_hidden_size": 16, "patch_size": 2,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}, "spatial_merge_size": 2,
"temporal_patch_size": 2, "tokens_per_second": 2, "window_size": 8}, "vision_end_token_id":
39, "vision_start_token_id": 38}]==],
}
