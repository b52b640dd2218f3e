-- Written by spec/golden/preference.py: torch 2.15.0+cu132,
-- on models of transformers 5.23.0.

return {
   answers = {
      { ids = { 5, 3, 8, 1, 2, 9 }, first = 2 },
      { ids = { 5, 3, 7, 7 }, first = 2 },
      { ids = { 11, 4, 6, 20, 13 }, first = 3 },
      { ids = { 11, 4, 6, 2, 17, 19, 1, 22 }, first = 3 },
      { ids = { 1, 9 }, first = 1 },
      { ids = { 1, 15, 3 }, first = 1 },
   },
   reference = { -13.0, -6.5, -7.25, -16.0, -3.5, -5.75 },
   cases = {
   sigmoid = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 2,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings":
false, "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      kind = 'sigmoid', beta = 0.3, label_smoothing = 0.0,
      loss = 0.640535798154228,
      sums = {
-13.6033977967715, -8.07748140380784, -5.5440999279109, -13.2040423402478, -2.95004018558947,
-6.69385470565729
      },
      grads = {
1.07890049043, 0.51093089418, 0.0896364452797, 0.241462532135, 0.174694404362, 0.333838079254,
0.0226938595124, 0.31893420857, 3.41166359684, 0.410220435056, 0.434378651119, 0.03728312078,
0.391228992242, 0.254560433138, 0.163603987201, 0.0224323656246, 0.0784771457346,
0.508582875579, 0.0651141177695, 0.278507630725, 0.221347886793
      },
   },
   smoothed = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 2,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings":
true, "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      kind = 'sigmoid', beta = 0.2, label_smoothing = 0.15,
      loss = 0.770350560559695,
      sums = {
-16.0791730156099, -6.96176558360588, -7.18637168835356, -15.2304311598595, -3.9333313614359,
-6.73946773052054
      },
      grads = {
0.782125101067, 0.216518454677, 0.56097654177, 0.231671973065, 0.466142199469,
0.0311042039753, 1.39768320359, 2.36586109216, 0.789612814968, 0.422327212012,
0.0210552976366, 0.546591234458, 0.260600330538, 0.144285684075, 0.0343302629607,
0.0394329604196, 0.480020940126, 0.0397455464589, 0.1078687981, 0.117267579726
      },
   },
   ipo = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 2,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings":
false, "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      kind = 'ipo', beta = 0.4, label_smoothing = 0.0,
      loss = 0.447036793823388,
      sums = {
-13.6033977967715, -8.07748140380784, -5.5440999279109, -13.2040423402478, -2.95004018558947,
-6.69385470565729
      },
      grads = {
3.46311638346, 1.2761145398, 0.1601442041, 0.747453133188, 0.418789184619, 0.78488907573,
0.0567226918292, 0.752418365112, 11.498565022, 0.9787877353, 1.64279078225, 0.137615023003,
0.983234311702, 0.594877764014, 0.374659391102, 0.0493719445047, 0.248953263978,
1.87190706895, 0.216156820894, 1.04381522668, 0.788719918333
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
      kind = 'sigmoid', beta = 0.3, label_smoothing = 0.0,
      loss = 1.0977186361536,
      sums = {
-18.9909943792543, -7.06250361355524, -9.27209443932221, -17.0465408262263, -6.68544176447695,
-9.33294778673739
      },
      grads = {
1.13333746657, 0.00948702982483, 1.1135766243, 0.279415288408, 0.491804504474, 0.163950570781,
0.0528534084351, 0.0130054838671, 0.0804509165361, 2.92186086723, 0.0746792578178,
0.32070580714, 0.0668312122952, 2.229511197, 0.661217627541, 0.617728297479, 0.126708435179,
0.119743078399, 0.025990539103, 0.130830457773, 2.79833850113, 0.16521630133, 0.347091459107,
0.33140980266
      },
   },
   },
}
