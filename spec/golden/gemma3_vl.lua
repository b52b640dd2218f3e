-- Written by spec/golden/gemma3_vl.py: configurations of the transformers package, version
-- 5.24.0.

return {
   text = [==[
{"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 38,
"eoi_token_index": 39, "image_token_index": 36, "initializer_range": 0.02,
"mm_tokens_per_image": 4, "model_type": "gemma3", "text_config": {"_sliding_window_pattern":
6, "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": null,
"bos_token_id": 1, "eos_token_id": 2, "final_logit_softcapping": null, "head_dim": 8,
"hidden_activation": "gelu_pytorch_tanh", "hidden_size": 16, "initializer_range": 0.02,
"intermediate_size": 12, "layer_types": ["sliding_attention", "full_attention",
"sliding_attention"], "max_position_embeddings": 64, "model_type": "gemma3_text",
"num_attention_heads": 2, "num_hidden_layers": 3, "num_key_value_heads": 1, "pad_token_id": 0,
"query_pre_attn_scalar": 8, "rms_norm_eps": 1e-06, "rope_parameters": {"full_attention":
{"rope_theta": 100.0, "rope_type": "default"}, "sliding_attention": {"rope_theta": 20.0,
"rope_type": "default"}}, "sliding_window": 3, "tie_word_embeddings": true,
"use_bidirectional_attention": false, "use_cache": true, "vocab_size": 41},
"tie_word_embeddings": true, "transformers_version": "5.24.0", "vision_config":
{"attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 8, "image_size":
8, "intermediate_size": 10, "layer_norm_eps": 1e-06, "model_type": "siglip_vision_model",
"num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2, "patch_size": 2,
"vision_use_head": false}}]==],
   image = [==[
{"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 38,
"eoi_token_index": 39, "image_token_index": 36, "initializer_range": 0.02,
"mm_tokens_per_image": 4, "model_type": "gemma3", "text_config": {"_sliding_window_pattern":
6, "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": null,
"bos_token_id": 1, "eos_token_id": 2, "final_logit_softcapping": null, "head_dim": 8,
"hidden_activation": "gelu_pytorch_tanh", "hidden_size": 16, "initializer_range": 0.02,
"intermediate_size": 12, "layer_types": ["sliding_attention", "full_attention",
"sliding_attention"], "max_position_embeddings": 64, "model_type": "gemma3_text",
"num_attention_heads": 2, "num_hidden_layers": 3, "num_key_value_heads": 1, "pad_token_id": 0,
"query_pre_attn_scalar": 8, "rms_norm_eps": 1e-06, "rope_parameters": {"full_attention":
{"rope_theta": 100.0, "rope_type": "default"}, "sliding_attention": {"rope_theta": 20.0,
"rope_type": "default"}}, "sliding_window": 3, "tie_word_embeddings": true,
"use_bidirectional_attention": false, "use_cache": true, "vocab_size": 41},
"tie_word_embeddings": true, "transformers_version": "5.24.0", "vision_config":
{"attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 8, "image_size":
8, "intermediate_size": 10, "layer_norm_eps": 1e-06, "model_type": "siglip_vision_model",
"num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2, "patch_size": 2,
"vision_use_head": false}}]==],
   images = [==[
{"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 38,
"eoi_token_index": 39, "image_token_index": 36, "initializer_range": 0.02,
"mm_tokens_per_image": 4, "model_type": "gemma3", "text_config": {"_sliding_window_pattern":
6, "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": null,
"bos_token_id": 1, "eos_token_id": 2, "final_logit_softcapping": null, "head_dim": 8,
"hidden_activation": "gelu_pytorch_tanh", "hidden_size": 16, "initializer_range": 0.02,
"intermediate_size": 12, "layer_types": ["full_attention", "sliding_attention"],
"max_position_embeddings": 64, "model_type": "gemma3_text", "num_attention_heads": 2,
"num_hidden_layers": 2, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar":
8, "rms_norm_eps": 1e-06, "rope_parameters": {"full_attention": {"rope_theta": 100.0,
"rope_type": "default"}, "sliding_attention": {"rope_theta": 20.0, "rope_type": "default"}},
"sliding_window": 3, "tie_word_embeddings": true, "use_bidirectional_attention": false,
"use_cache": true, "vocab_size": 41}, "tie_word_embeddings": true, "transformers_version":
"5.24.0", "vision_config": {"attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh",
"hidden_size": 8, "image_size": 8, "intermediate_size": 10, "layer_norm_eps": 1e-06,
"model_type": "siglip_vision_model", "num_attention_heads": 2, "num_channels": 3,
"num_hidden_layers": 2, "patch_size": 2, "vision_use_head": false}}]==],
   images_right = [==[
{"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 38,
"eoi_token_index": 39, "image_token_index": 36, "initializer_range": 0.02,
"mm_tokens_per_image": 4, "model_type": "gemma3", "text_config": {"_sliding_window_pattern":
6, "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": null,
"bos_token_id": 1, "eos_token_id": 2, "final_logit_softcapping": null, "head_dim": 8,
"hidden_activation": "gelu_pytorch_tanh", "hidden_size": 16, "initializer_range": 0.02,
"intermediate_size": 12, "layer_types": ["sliding_attention", "full_attention",
"sliding_attention"], "max_position_embeddings": 64, "model_type": "gemma3_text",
"num_attention_heads": 2, "num_hidden_layers": 3, "num_key_value_heads": 1, "pad_token_id": 0,
"query_pre_attn_scalar": 8, "rms_norm_eps": 1e-06, "rope_parameters": {"full_attention":
{"rope_theta": 100.0, "rope_type": "default"}, "sliding_attention": {"rope_theta": 20.0,
"rope_type": "default"}}, "sliding_window": 7, "tie_word_embeddings": true,
"use_bidirectional_attention": false, "use_cache": true, "vocab_size": 41},
"tie_word_embeddings": false, "transformers_version": "5.24.0", "vision_config":
{"attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 8, "image_size":
8, "intermediate_size": 10, "layer_norm_eps": 1e-06, "model_type": "siglip_vision_model",
"num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2, "patch_size": 2,
"vision_use_head": true}}]==],
   beside = [==[
{"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 38,
"eoi_token_index": 39, "image_token_index": 36, "initializer_range": 0.02,
"mm_tokens_per_image": 4, "model_type": "gemma3", "text_config": {"_sliding_window_pattern":
6, "attention_bias": true, "attention_dropout": 0.0, "attn_logit_softcapping": null,
"bos_token_id": 1, "eos_token_id": 2, "final_logit_softcapping": null, "head_dim": 8,
"hidden_activation": "gelu_pytorch_tanh", "hidden_size": 16, "initializer_range": 0.02,
"intermediate_size": 12, "layer_types": ["sliding_attention", "full_attention",
"sliding_attention"], "max_position_embeddings": 64, "model_type": "gemma3_text",
"num_attention_heads": 2, "num_hidden_layers": 3, "num_key_value_heads": 2, "pad_token_id": 0,
"query_pre_attn_scalar": 8, "rms_norm_eps": 1e-06, "rope_parameters": {"full_attention":
{"rope_theta": 100.0, "rope_type": "default"}, "sliding_attention": {"rope_theta": 20.0,
"rope_type": "default"}}, "sliding_window": 3, "tie_word_embeddings": true,
"use_bidirectional_attention": false, "use_cache": true, "vocab_size": 41},
"tie_word_embeddings": true, "transformers_version": "5.24.0", "vision_config":
{"attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 8, "image_size":
8, "intermediate_size": 10, "layer_norm_eps": 1e-06, "model_type": "siglip_vision_model",
"num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2, "patch_size": 2,
"vision_use_head": false}}]==],
   pool_1 = [==[
{"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 38,
"eoi_token_index": 39, "image_token_index": 36, "initializer_range": 0.02,
"mm_tokens_per_image": 4, "model_type": "gemma3", "text_config": {"_sliding_window_pattern":
6, "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": null,
"bos_token_id": 1, "eos_token_id": 2, "final_logit_softcapping": null, "head_dim": 8,
"hidden_activation": "gelu_pytorch_tanh", "hidden_size": 16, "initializer_range": 0.02,
"intermediate_size": 12, "layer_types": ["sliding_attention", "full_attention",
"sliding_attention"], "max_position_embeddings": 64, "model_type": "gemma3_text",
"num_attention_heads": 2, "num_hidden_layers": 3, "num_key_value_heads": 1, "pad_token_id": 0,
"query_pre_attn_scalar": 8, "rms_norm_eps": 1e-06, "rope_parameters": {"full_attention":
{"rope_theta": 100.0, "rope_type": "default"}, "sliding_attention": {"rope_theta": 20.0,
"rope_type": "default"}}, "sliding_window": 3, "tie_word_embeddings": true,
"use_bidirectional_attention": false, "use_cache": true, "vocab_size": 41},
"tie_word_embeddings": true, "transformers_version": "5.24.0", "vision_config":
{"attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 8, "image_size":
6, "intermediate_size": 10, "layer_norm_eps": 1e-06, "model_type": "siglip_vision_model",
"num_attention_heads": 2, "num_channels": 1, "num_hidden_layers": 2, "patch_size": 3,
"vision_use_head": false}}]==],
   one_token = [==[
{"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 38,
"eoi_token_index": 39, "image_token_index": 36, "initializer_range": 0.02,
"mm_tokens_per_image": 1, "model_type": "gemma3", "text_config": {"_sliding_window_pattern":
6, "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": null,
"bos_token_id": 1, "eos_token_id": 2, "final_logit_softcapping": null, "head_dim": 8,
"hidden_activation": "gelu_pytorch_tanh", "hidden_size": 16, "initializer_range": 0.02,
"intermediate_size": 12, "layer_types": ["sliding_attention", "full_attention",
"sliding_attention"], "max_position_embeddings": 64, "model_type": "gemma3_text",
"num_attention_heads": 2, "num_hidden_layers": 3, "num_key_value_heads": 1, "pad_token_id": 0,
"query_pre_attn_scalar": 8, "rms_norm_eps": 1e-06, "rope_parameters": {"full_attention":
{"rope_theta": 100.0, "rope_type": "default"}, "sliding_attention": {"rope_theta": 20.0,
"rope_type": "default"}}, "sliding_window": 3, "tie_word_embeddings": true,
"use_bidirectional_attention": false, "use_cache": true, "vocab_size": 41},
"tie_word_embeddings": true, "transformers_version": "5.24.0", "vision_config":
{"attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 8, "image_size":
8, "intermediate_size": 10, "layer_norm_eps": 1e-06, "model_type": "siglip_vision_model",
"num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2, "patch_size": 2,
"vision_use_head": false}}]==],
   linear = [==[
{"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 38,
"eoi_token_index": 39, "image_token_index": 36, "initializer_range": 0.02,
"mm_tokens_per_image": 16, "model_type": "gemma3", "text_config": {"_sliding_window_pattern":
6, "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": null,
"bos_token_id": 1, "eos_token_id": 2, "final_logit_softcapping": null, "head_dim": 8,
"hidden_activation": "gelu_pytorch_tanh", "hidden_size": 16, "initializer_range": 0.02,
"intermediate_size": 12, "layer_types": ["sliding_attention", "sliding_attention",
"sliding_attention"], "max_position_embeddings": 64, "model_type": "gemma3_text",
"num_attention_heads": 2, "num_hidden_layers": 3, "num_key_value_heads": 1, "pad_token_id": 0,
"query_pre_attn_scalar": 8, "rms_norm_eps": 1e-06, "rope_parameters": {"full_attention":
{"factor": 4.0, "rope_theta": 100.0, "rope_type": "linear"}, "sliding_attention":
{"rope_theta": 20.0, "rope_type": "default"}}, "sliding_window": 5, "tie_word_embeddings":
true, "use_bidirectional_attention": false, "use_cache": true, "vocab_size": 41},
"tie_word_embeddings": true, "transformers_version": "5.24.0", "vision_config":
{"attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 8, "image_size":
8, "intermediate_size": 10, "layer_norm_eps": 1e-06, "model_type": "siglip_vision_model",
"num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2, "patch_size": 2,
"vision_use_head": false}}]==],
}
