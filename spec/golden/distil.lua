-- Written by spec/golden/distil.py: torch 2.15.0+cu132,
-- on models of transformers 5.23.0.

return {
   forward = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 2,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings":
false, "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      teacher = { config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 36,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings":
false, "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==] },
      kind = 'forward', temperature = 2.0, alpha = 0.6, top = nil,
      loss = 1.69412967608769,
      grads = {
0.628097579023, 0.284071230153, 0.0995344930899, 0.811344758321, 0.427520623348,
0.494270345465, 0.057285439788, 0.225827843069, 5.63949718732, 0.15449923147, 0.95257314623,
0.0610486451084, 0.667985328786, 0.531453940185, 0.410992277921, 0.0246540593924,
0.160789226929, 1.19885759176, 0.239132928251, 0.535500471345, 0.31410875509
      },
   },
   reverse = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 2,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings":
true, "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      teacher = { config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 36,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 2,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings":
false, "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==] },
      kind = 'reverse', temperature = 1.5, alpha = 1.0, top = nil,
      loss = 0.414279723404175,
      grads = {
0.469362148933, 0.169529652749, 1.01228899305, 0.902518432944, 0.643948716291, 0.112198342171,
0.652103226475, 4.37260593636, 0.379492085131, 0.42761346773, 0.110216845724, 0.785061286304,
0.566668568844, 0.666222826511, 0.0432080559178, 0.169758356863, 1.34779371463, 0.23708237203,
0.547589311867, 0.182612161267
      },
   },
   capped = {
      config = [==[
{"architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"attn_logit_softcapping": 50.0, "bos_token_id": 1, "eos_token_id": 2,
"final_logit_softcapping": 3.0, "head_dim": 4, "hidden_activation": "gelu_pytorch_tanh",
"hidden_size": 24, "initializer_range": 0.02, "intermediate_size": 20, "layer_types":
["sliding_attention", "full_attention"], "max_position_embeddings": 64, "model_type":
"gemma2", "num_attention_heads": 6, "num_hidden_layers": 2, "num_key_value_heads": 2,
"pad_token_id": 0, "query_pre_attn_scalar": 4, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "default"}, "sliding_window": 64, "tie_word_embeddings":
true, "transformers_version": "5.23.0", "use_bidirectional_attention": null, "use_cache":
true, "vocab_size": 23}]==],
      teacher = { config = [==[
{"architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"attn_logit_softcapping": 50.0, "bos_token_id": 1, "eos_token_id": 2,
"final_logit_softcapping": 2.0, "head_dim": 4, "hidden_activation": "gelu_pytorch_tanh",
"hidden_size": 36, "initializer_range": 0.02, "intermediate_size": 20, "layer_types":
["sliding_attention", "full_attention"], "max_position_embeddings": 64, "model_type":
"gemma2", "num_attention_heads": 6, "num_hidden_layers": 2, "num_key_value_heads": 2,
"pad_token_id": 0, "query_pre_attn_scalar": 4, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "default"}, "sliding_window": 64, "tie_word_embeddings":
true, "transformers_version": "5.23.0", "use_bidirectional_attention": null, "use_cache":
true, "vocab_size": 23}]==] },
      kind = 'forward', temperature = 1.0, alpha = 0.5, top = nil,
      loss = 2.64062189951449,
      grads = {
0.878656336841, 0.0310302383775, 2.72680857745, 0.280125047596, 0.359075690324,
0.121368544657, 0.106122556525, 0.0241175195552, 0.186368426656, 4.48356047723,
0.151347552507, 0.568551048609, 0.0730253679602, 2.96254011636, 1.26797367394, 0.938700164972,
0.135746625452, 0.143291075684, 0.0755083717624, 0.173074252143, 2.90886681709, 0.21315894478,
0.408191883433, 0.370560954987
      },
   },
   top = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 2,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings":
false, "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      teacher = { config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 36,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 2,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings":
false, "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==] },
      kind = 'forward', temperature = 2.0, alpha = 0.6, top = 5,
      loss = 5.39035410367979,
      grads = {
0.822997944739, 0.33098309151, 0.0949047165944, 0.839467828123, 0.472003943308,
0.539876122846, 0.0598860428005, 0.206268607511, 6.21667119717, 0.148067541707, 1.07997963698,
0.071211331429, 0.692133087089, 0.555934962024, 0.445493476772, 0.0182767902057,
0.180676441278, 1.30093764857, 0.265678616196, 0.585342021128, 0.321589513446
      },
   },
}
