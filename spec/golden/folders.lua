-- Written by spec/golden/folders.py: configurations and numbers of the transformers package,
-- version 5.23.0.

return {
   llama = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}, "tie_word_embeddings":
false, "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.48171734322305,
      logits = { 0.327627479008464, 0.240067887069464, 0.557624698867846 },
      grads = {
         1.242781127, 0.4038419309, 0.1029574518, 1.511091011, 0.6072675399, 0.7024137218,
         0.05893292528, 0.6359000012, 6.171385414, 0.5407416088, 0.6725717719, 0.04121494969,
         0.57805088, 0.5783551516, 0.4876092527, 0.02914198347, 0.08116701666, 1.12779586,
         0.116353751, 0.2874608105, 0.07648488767, 0.5585036756, 0.5239502624, 0.7090143454,
         0.05536748176, 0.1167461129, 1.201844527, 0.1812455828, 0.4860626842, 0.3781199775
      },
   },
   llama_mqa_bias = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
true, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 1, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings":
true, "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.68137281282235,
      logits = { 0.794293910150873, 0.219756171334438, -0.426451388351247 },
      grads = {
         1.365330186, 0.009792279441, 0.4679531465, 3.21667583, 0.08216818742, 0.3757779567,
         0.07462213418, 0.3499998283, 0.02197984462, 0.01422322186, 0.1380673601, 0.48923838,
         4.391402178, 0.02844990844, 0.1383500018, 0.04770512727, 0.2092339916, 0.01018907056,
         0.4125026658, 2.420225623, 0.07028323975, 0.40335246, 0.05977295945, 0.3432973251,
         0.08704032859, 0.001154483031, 0.01178245106, 0.4757810235, 3.42307364, 0.003767691378,
         0.02054434001, 0.03468965003, 0.1499985625, 0.006731995866, 0.4209341393, 0.8815526583,
         0.04300239464, 0.2282138047, 0.03739662174, 0.1951264067, 0.05612962249, 0.001638728022,
         0.007232064063, 0.4077947007, 1.076217146, 0.003344235052, 0.01407672409, 0.019736713,
         0.1001608154, 0.6590199724
      },
   },
   llama_linear = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"factor": 2.0, "rope_theta": 500.0, "rope_type": "linear"},
"tie_word_embeddings": false, "transformers_version": "5.23.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.51366108544624,
      logits = { 0.327627479008464, 0.0831595299967395, 0.507083921581869 },
      grads = {
         1.333527401, 1.062728309, 0.2625731752, 1.970501442, 0.6244919871, 0.8966316013,
         0.05784327674, 0.8311679014, 9.027183954, 0.7294991097, 1.015960343, 0.09880861351,
         0.8493794915, 0.5243467539, 0.3542361596, 0.02275378916, 0.267886582, 1.798204479,
         0.240057632, 0.6750166336, 0.1606217374, 0.5034326496, 0.3153356994, 0.4962677339,
         0.05785398078, 0.2459576654, 1.384527729, 0.2303817624, 0.9328943147, 0.4093711526
      },
   },
   llama_dynamic = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 4, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"factor": 2.0, "rope_theta": 500.0, "rope_type": "dynamic"},
"tie_word_embeddings": false, "transformers_version": "5.23.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.46079406519354,
      logits = { 0.327627479008464, 0.27486633149264, 0.556599065672178 },
      grads = {
         1.251936157, 0.3072356381, 0.03671294384, 0.966852523, 0.526350493, 0.664283018,
         0.05232335606, 0.2046167727, 6.126893995, 0.1327989601, 0.6267963202, 0.03984678949,
         0.5836337209, 0.5638304582, 0.4615538633, 0.02986159554, 0.06170520869, 1.095374878,
         0.1139294093, 0.2372496924, 0.07262895137, 0.5600163342, 0.5011089688, 0.6787035393,
         0.05301111231, 0.1134418819, 1.20385593, 0.1707052246, 0.5213571598, 0.3681628361
      },
   },
   llama_dynamic_short = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"factor": 2.0, "rope_theta": 500.0, "rope_type": "dynamic"},
"tie_word_embeddings": false, "transformers_version": "5.23.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.48171734322305,
      logits = { 0.327627479008464, 0.240067887069464, 0.557624698867846 },
      grads = {
         1.242781127, 0.4038419309, 0.1029574518, 1.511091011, 0.6072675399, 0.7024137218,
         0.05893292528, 0.6359000012, 6.171385414, 0.5407416088, 0.6725717719, 0.04121494969,
         0.57805088, 0.5783551516, 0.4876092527, 0.02914198347, 0.08116701666, 1.12779586,
         0.116353751, 0.2874608105, 0.07648488767, 0.5585036756, 0.5239502624, 0.7090143454,
         0.05536748176, 0.1167461129, 1.201844527, 0.1812455828, 0.4860626842, 0.3781199775
      },
   },
   llama_yarn = {
      config = [==[
{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64, "mlp_bias":
false, "model_type": "llama", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
"rope_parameters": {"factor": 4.0, "original_max_position_embeddings": 16, "rope_theta":
500.0, "rope_type": "yarn"}, "tie_word_embeddings": false, "transformers_version": "5.23.0",
"use_cache": true, "vocab_size": 23}]==],
      loss = 3.44848585561618,
      logits = { 0.327627479008464, 0.256553466734484, 0.53341397302672 },
      grads = {
         1.249809334, 0.2854262918, 0.03779808235, 0.9015461826, 0.5218017101, 0.6592455267,
         0.05298687856, 0.218609806, 6.110857538, 0.1535119099, 0.630566994, 0.03732219797,
         0.5466564419, 0.5605635035, 0.4704859574, 0.03083864348, 0.07596987668, 1.070705532,
         0.1301776984, 0.257473857, 0.07285895034, 0.5951079213, 0.5359348338, 0.7071277124,
         0.05440363681, 0.1261700093, 1.25744167, 0.1928394247, 0.5663130642, 0.3627831532
      },
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
"5.23.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.45124141033693,
      logits = { 0.327627479008464, 0.261493584292669, 0.539807939908672 },
      grads = {
         1.250182889, 0.2907532747, 0.03711882757, 0.9164046544, 0.5224332856, 0.6613163408,
         0.0529078714, 0.2031648478, 6.113894886, 0.1364080201, 0.6285250885, 0.0379917485,
         0.5557985661, 0.5612539894, 0.467322478, 0.0307188096, 0.07170165077, 1.076813582,
         0.1254843854, 0.2515034903, 0.07292392658, 0.5839914928, 0.524479718, 0.6974511853,
         0.05393269844, 0.1231251321, 1.244396258, 0.1870918088, 0.5572888194, 0.3636616475
      },
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
"short_factor": [1.0, 1.5]}, "tie_word_embeddings": false, "transformers_version": "5.23.0",
"use_cache": true, "vocab_size": 23}]==],
      loss = 3.48536968456396,
      logits = { 0.327627479008464, 0.0697698903509286, 0.49126463187865 },
      grads = {
         1.329510761, 2.190983561, 0.2732167465, 2.043833329, 0.6564243723, 0.9718259022,
         0.05760143408, 2.460378278, 9.574600259, 1.529566539, 1.326386681, 0.1030890365,
         0.8651519974, 0.5285833596, 0.3598478849, 0.0220116813, 0.2769137052, 2.095715239,
         0.218494645, 0.7548694804, 0.1867816662, 0.5027771045, 0.2927936505, 0.4646497038,
         0.05382646196, 0.311691131, 1.645844977, 0.3179246298, 1.028666729, 0.3885682618
      },
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
"tie_word_embeddings": false, "transformers_version": "5.23.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.45540811761262,
      logits = { 0.327627479008464, 0.293917889245121, 0.556628213397058 },
      grads = {
         1.254431805, 0.2986392219, 0.03771469017, 0.940481379, 0.5138506501, 0.6595191144,
         0.05000753383, 0.2261422102, 6.157297695, 0.138956532, 0.6189216518, 0.04070955597,
         0.5840446774, 0.5535377807, 0.454921487, 0.03136985908, 0.05972740322, 1.096825868,
         0.1141385518, 0.2427401705, 0.07179678021, 0.563619348, 0.4945095795, 0.6655169238,
         0.051818254, 0.1124878821, 1.213379732, 0.1692168945, 0.5281027855, 0.3689020299
      },
   },
   mistral = {
      config = [==[
{"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
"eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64,
"model_type": "mistral", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "default"}, "sliding_window": 3, "tie_word_embeddings":
false, "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.5257904876328,
      logits = { 0.327627479008464, 0.243914247581906, 0.469470165968085 },
      grads = {
         1.176383517, 0.3033760556, 0.05586632692, 1.437389925, 0.535061587, 0.6372899119,
         0.04902816806, 0.2861292854, 7.011180468, 0.287979756, 0.5546802176, 0.06409257809,
         0.591189492, 0.5402815728, 0.4669080785, 0.03237857019, 0.09017011806, 1.566154702,
         0.1044845625, 0.3809254626, 0.05686654341, 0.6730227939, 0.4986034393, 0.6582650614,
         0.04883615484, 0.1470726636, 1.570381809, 0.141339025, 0.5389745417, 0.3047398193
      },
   },
   mistral_full = {
      config = [==[
{"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
"eos_token_id": 2, "head_dim": 4, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64,
"model_type": "mistral", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "default"}, "sliding_window": null,
"tie_word_embeddings": true, "transformers_version": "5.23.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.87910692518044,
      logits = { 1.77527910643235, -0.774558453813502, 0.0340709011582429 },
      grads = {
         1.332885408, 0.1421973679, 1.687116471, 1.367735169, 1.461804841, 0.1915973781,
         0.3888967893, 7.720437008, 0.3359459966, 0.9783057554, 0.1271021886, 1.748165784,
         1.679597531, 1.180560957, 0.1566252134, 0.1845645474, 2.323467143, 0.1950524328,
         0.8571762747, 0.1466313721, 1.713931641, 1.258715057, 2.001388057, 0.1250505279,
         0.1848087715, 2.444850865, 0.2788263499, 1.288408187, 0.3838057577
      },
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
"transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.53349841443162,
      logits = { 0.327627479008464, 0.244996389450663, 0.463905956610607 },
      grads = {
         1.184364229, 0.3279232715, 0.0624214681, 1.345037475, 0.4869252165, 0.5982563597,
         0.04553738026, 0.3103175937, 6.971717858, 0.29782192, 0.6717378628, 0.04634822805,
         0.5373228206, 0.5170732757, 0.4560764912, 0.03191599792, 0.08390097123, 1.268074928,
         0.1447416917, 0.254707728, 0.06118276424, 0.6845139206, 0.4969679985, 0.6574908749,
         0.04817177613, 0.1414345513, 1.559189, 0.1350785135, 0.5483205085, 0.3198433071
      },
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
"transformers_version": "5.23.0", "use_cache": true, "use_sliding_window": true, "vocab_size":
23}]==],
      loss = 3.58575280814293,
      logits = { 0.111238627147659, 0.294725233535853, 0.770691320918306 },
      grads = {
         1.30599087, 1.237740731, 0.17296753, 2.744179549, 0.5531555062, 0.8073520539,
         0.09983163313, 0.09464408111, 0.9225927258, 7.732980484, 0.1288396492, 0.7912334523,
         0.2308990329, 1.377084653, 0.05559994875, 0.4983299702, 0.4254164479, 0.4265608103,
         0.03363418094, 0.01223729245, 0.1302285605, 1.543218432, 0.02067114604, 0.136059478,
         0.05434846236, 0.4408243564, 0.04931723079, 0.870554869, 0.5326613156, 0.486120584,
         0.03794089555, 0.008601146179, 0.1127372844, 1.490987548, 0.01881114738, 0.1176830369,
         0.05552188961, 0.4274878266, 0.4645013819
      },
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
"tie_word_embeddings": true, "transformers_version": "5.23.0", "use_cache": true,
"use_sliding_window": false, "vocab_size": 23}]==],
      loss = 3.58342402188328,
      logits = { 1.04947092405103, -1.06020055760939, -0.929192489227726 },
      grads = {
         1.468790509, 0.07088332302, 7.101078028, 1.363832883, 1.484551913, 0.1607495898,
         0.07108400555, 0.09074205705, 8.003109916, 0.07000758899, 0.3790020971, 0.6215375008,
         0.02238084434, 0.9669210904, 0.62204966, 0.5322154574, 0.01746205486, 0.007311454914,
         0.05917125044, 0.9181801737, 0.006885137656, 0.2777869707, 0.1673814034, 0.05820532423,
         0.5544560429, 0.4526169969, 0.3259469538, 0.01056446959, 0.01549177146, 0.05834388755,
         0.9171576306, 0.01528104157, 0.1795217513, 0.1915406149, 0.4983100968
      },
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
"tie_word_embeddings": false, "transformers_version": "5.23.0", "use_cache": true,
"use_sliding_window": false, "vocab_size": 23}]==],
      loss = 3.23334746429702,
      logits = { 0.595692137416494, -0.91935546367673, 0.521983141630189 },
      grads = {
         1.070861756, 0.1065319084, 0.01067543059, 1.375045178, 0.2626653396, 0.2434068347,
         0.03089522796, 0.004675903063, 0.002707183672, 0.01796214362, 0.1094873101, 2.55871783,
         0.005839485598, 0.00332014733, 0.0171275971, 0.06316416036, 0.2990321316, 0.02281337747,
         0.4829803857, 0.100030405, 0.1002817309, 0.01321349947, 0.005902109042, 0.006971529066,
         0.03412151601, 0.1286907513, 0.8353799155, 0.00509876723, 0.00459149803, 0.02274479241,
         0.1232445576, 0.5176927673, 0.01818847407, 0.4088248452, 0.05618895529, 0.05487564643,
         0.00638613539, 0.004666817564, 0.0040297561, 0.01987666388, 0.11863504, 0.6715415271,
         0.00436419131, 0.002806035971, 0.0142862418, 0.114465543, 0.5227940032, 0.3303045242
      },
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
"transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.34488621787528,
      logits = { 0.0934092713731954, -0.0464944891741935, 0.38776626438311 },
      grads = {
         1.32958179, 0.5407928653, 0.09079101046, 3.77740975, 0.7125837416, 0.04558713489,
         4.410932143, 0.743935891, 0.03133635037, 0.955197427, 0.4292369964, 0.03199970367,
         0.6294609196, 0.2114308488, 0.05427964688, 0.2519199245, 0.3318881824, 0.0465665804,
         0.6463345849, 0.3417252993, 0.4817721354
      },
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
"tie_word_embeddings": true, "transformers_version": "5.23.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.56135222043999,
      logits = { 1.04955017810208, 0.672845773012813, -1.06992205709868 },
      grads = {
         2.065948606, 0.2191549449, 1.718702972, 1.161676402, 0.1317427458, 8.344771809,
         0.8590866413, 0.06615535792, 1.976711225, 1.023655992, 0.1186941524, 1.43319214,
         1.023840659, 0.117021349, 0.8601835169, 0.5690035188, 0.05721158423, 2.0474365,
         1.007947796, 0.6260842127
      },
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
"tie_word_embeddings": false, "transformers_version": "5.23.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 3.79975765565603,
      logits = { 0.157459406021553, -0.921333875683475, -0.0441182733601016 },
      grads = {
         2.071326427, 0.6751094558, 0.314884497, 3.145920216, 2.205890235, 0.157995431, 18.66381553,
         4.011923672, 0.03658906012, 0.8670038478, 1.077284821, 0.07433258448, 1.447382948,
         1.108918519, 0.1872102488, 1.034007611, 1.09593867, 0.1240649529, 2.558607682, 1.77549455,
         0.6980048507
      },
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
3, "tie_word_embeddings": true, "transformers_version": "5.23.0",
"use_bidirectional_attention": null, "use_cache": true, "vocab_size": 23}]==],
      loss = 3.85682305617309,
      logits = { 1.35701123386346, -0.939668418689894, 0.325909122861103 },
      grads = {
         0.995428994, 0.003663883504, 2.742055972, 0.3980903312, 0.4578177297, 0.08558789985,
         0.1188140399, 0.009312115422, 0.01815624525, 2.365139894, 0.01745553542, 0.1273961281,
         0.04007594734, 3.178438895, 0.6933958186, 0.5084031829, 0.09187607363, 0.126336484,
         0.03529048383, 0.1465176145, 1.74219982, 0.1480064463, 0.3776744901, 0.06602624829,
         2.523095063, 1.586194822, 1.146505061, 0.07814987994, 0.08364233886, 0.1441391665,
         0.1283567505, 3.762268957, 0.1220741367, 0.8165343462, 0.237315105
      },
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
3, "tie_word_embeddings": true, "transformers_version": "5.23.0",
"use_bidirectional_attention": null, "use_cache": true, "vocab_size": 23}]==],
      loss = 4.48904067992157,
      logits = { 1.79226934284841, -3.75487139134308, 0.307638358608194 },
      grads = {
         1.788328885, 0.06426145554, 4.081558627, 0.824338951, 1.22160606, 0.1566104766,
         0.1783734711, 0.04402692925, 0.4675341531, 7.619376358, 0.3447700571, 0.4704578256,
         0.08386128328, 6.440188798, 1.894555436, 1.636667407, 0.1007651418, 0.249803239,
         0.1361286141, 0.2602421741, 13.73810741, 0.7172984409, 2.994386082, 0.02255043737,
         4.610094283, 3.029696989, 2.20705611, 0.1982062718, 0.1374571017, 0.1625682072,
         0.03507390428, 6.973953719, 0.346557052, 0.7363193317, 0.6455462935
      },
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
"5.23.0", "use_bidirectional_attention": false, "use_cache": true, "vocab_size": 23}]==],
      loss = 5.30188692407661,
      logits = { 3.4287586856228, -2.52375686773193, 0.441559392021152 },
      grads = {
         2.057689416, 0.006479578213, 5.866964112, 1.310762421, 1.888259237, 0.2829865965,
         0.179413049, 0.1947712523, 0.05566179849, 0.08242492307, 8.146742938, 0.04198443611,
         0.09599394212, 0.4154580644, 0.1947229307, 5.253999426, 0.8151258388, 1.033259593,
         0.2054428893, 0.2530776294, 0.06645058743, 0.07641249451, 0.3909728699, 8.574096487,
         0.1057537865, 0.3141864599, 2.617159459, 0.05595838492, 3.406348367, 1.187165551,
         2.191250876, 0.3171842714, 0.2732722508, 0.04384393106, 0.2865605675, 0.4449576515,
         5.199155028, 0.3215554069, 0.6557351164, 2.089792113, 0.7253692597
      },
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
"transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.67480969976114,
      logits = { 0.31348424740039, 0.487590066067396, 0.8926228386137 },
      grads = {
         0.6916366159, 0.3733825139, 0.02449018202, 1.14596539, 0.6123992638, 0.5600726727,
         0.0521915119, 0.1025466473, 0.9232729851, 0.06867489165, 0.2393535321, 0.0252771229,
         0.5107723861, 0.4424304308, 0.4271399483, 0.04010968691, 0.0834137542, 0.4548928376,
         0.07669926744, 0.287837845, 0.04950216769, 0.4720410191, 0.3422057829, 0.4557102772,
         0.02738503063, 0.1587855426, 0.5750248132, 0.1339060194, 0.3518857845, 0.277202205
      },
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
"transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.71403397723095,
      logits = { 1.50446384760601, -0.266854651836478, -0.0950346045066524 },
      grads = {
         1.36896224, 0.02963349532, 0.4114962249, 6.527066583, 0.1323668328, 0.6079921244,
         0.12622959, 0.5640716698, 0.04196671454, 0.02498296551, 0.283151607, 0.4180590678,
         5.09307475, 0.05913351245, 0.2738211642, 0.03231016461, 0.2239021804, 0.03172444515,
         0.3151931967, 1.070610147, 0.1088712888, 0.5687186487, 0.08083929103, 0.4198828366,
         0.1058476506, 0.01676852203, 0.09135459412, 0.4181348632, 3.731225732, 0.009115924708,
         0.05454911787, 0.02495594128, 0.2722741479, 0.04436331111, 0.2913086965, 0.6062062843,
         0.04741140413, 0.2265368688, 0.04027006579, 0.1903393551, 0.05971160372, 0.005348551875,
         0.03288359819, 0.2845006712, 0.4136020665, 0.01812924965, 0.08823036366, 0.07323651545,
         0.3365834894, 0.4563481244
      },
   },
   olmo2 = {
      config = [==[
{"architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64,
"model_type": "olmo2", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings": false,
"transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 3.20860675210178,
      logits = { -0.0916101859215949, 0.217969056434283, 0.353210064676011 },
      grads = {
         1.246844893, 0.4771710024, 8.940935613, 5.354738778, 5.641573194, 0.2631162912,
         0.3766591244, 0.05374083015, 0.06237418952, 18.45639693, 0.05820297894, 0.07122160736,
         0.2289775768, 10.33205601, 4.326274301, 4.642324819, 0.4969900974, 0.3197566681,
         0.1194759484, 0.947821326, 8.217078568, 0.1175721641, 1.316441985, 4.092585068,
         7.863013242, 9.648931902, 8.425108612, 0.3317519091, 0.1126653286, 0.01194446754,
         0.1322089357, 9.90391715, 0.01277997528, 0.2824607253, 1.270163129, 0.2683240235
      },
   },
   olmo2_mqa = {
      config = [==[
{"architectures": ["Olmo2ForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
"bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 24,
"initializer_range": 0.02, "intermediate_size": 20, "max_position_embeddings": 64,
"model_type": "olmo2", "num_attention_heads": 6, "num_hidden_layers": 3,
"num_key_value_heads": 1, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters":
{"rope_theta": 10000.0, "rope_type": "default"}, "tie_word_embeddings": true,
"transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23}]==],
      loss = 4.26587393141141,
      logits = { 1.98760452433704, 1.13077824930539, -2.13304491911437 },
      grads = {
         1.5138097, 4.079392149, 0.8742546906, 0.8416715, 0.1269416218, 0.1496038638, 0.01714076469,
         0.02113268378, 0.05594987642, 0.5934702859, 1.39261717, 0.04188208799, 0.08779305413,
         0.05899536715, 0.3639454249, 0.1674707333, 1.149739111, 0.1553464122, 0.2308824698,
         0.1683303115, 0.1859558539, 0.007356914384, 0.002202054317, 0.02005326493, 0.293021605,
         5.22207387, 0.009259725866, 0.002415047635, 0.01672367251, 0.09431728518, 0.6377094752,
         2.237278861, 0.1435204574, 0.123202649, 0.1762900443, 0.1686399164, 0.005743823806,
         0.001064578911, 0.0159291091, 0.3313224773, 9.184641543, 0.006262435068, 0.001097179796,
         0.0148456331, 0.06851919348, 0.8844139976, 0.8623686637
      },
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
"sliding_window": null, "tie_word_embeddings": true, "transformers_version": "5.23.0",
"use_cache": true, "use_sliding_window": false, "vocab_size": 23}]==],
      loss = 3.85221963483418,
      logits = { 1.77527910643235, -0.788263499815319, 0.0392936356866937 },
      grads = {
         1.55120927, 0.6340687238, 1.746755997, 1.352393927, 1.489465124, 0.1171319519, 2.190487236,
         6.702404994, 1.368273369, 1.111829406, 0.1706178424, 1.258704124, 1.33283261, 0.9803123674,
         0.07608553547, 0.156332459, 2.818608713, 0.2988218954, 1.202969298, 0.1752451122,
         0.8239957588, 0.7789385726, 1.24150083, 0.1196889311, 0.2033706489, 2.204650841,
         0.3082023451, 1.032398039, 0.4253862213
      },
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
"sliding_window": 3, "tie_word_embeddings": false, "transformers_version": "5.23.0",
"use_cache": true, "use_sliding_window": true, "vocab_size": 23}]==],
      loss = 3.43374970176928,
      logits = { 0.327627479008464, 0.356645335514349, 0.654041600191708 },
      grads = {
         1.350277768, 0.8145235346, 0.2409713901, 5.31615523, 1.930427197, 1.624727268,
         0.1134016555, 0.2981475734, 6.171945785, 0.3796969551, 2.43128019, 0.0389761614,
         0.4448034724, 0.5746130623, 0.6067626579, 0.04139334601, 0.05250363439, 1.375416847,
         0.07985382343, 0.248575624, 0.06366629188, 0.6538074949, 0.6439462624, 0.7565528222,
         0.05678480007, 0.05907582994, 1.560522139, 0.1088790243, 0.4478056849, 0.3760545666
      },
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
"transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23, "z_loss_coefficient":
0.0}]==],
      loss = 3.38907710859885,
      logits = { 0.132301073367279, -0.46987876204173, -0.52554673221774 },
      grads = {
         1.629342915, 0.5799266667, 0.4012930665, 1.994153114, 1.114964807, 1.046185297,
         0.04185717381, 0.05428946104, 0.1253822078, 0.2575934349, 3.060947594, 0.0785923211,
         0.8318982882, 0.3562703396, 4.434669604, 0.03758526066, 1.066403836, 0.6741593586,
         0.7095330625, 0.1219109405, 0.05347957264, 0.05574995793, 3.475654765, 0.07391792658,
         1.673271732, 0.4656034832, 0.2118065906, 0.2263625329, 0.3478164401, 0.04419668129,
         0.7413263832, 0.7559216598, 1.458430934, 0.1127207834, 4.219871738, 0.3010371341,
         2.175944734, 0.0134192488
      },
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
"transformers_version": "5.23.0", "use_cache": true, "vocab_size": 23, "z_loss_coefficient":
0.0}]==],
      loss = 4.04013660035155,
      logits = { -1.27902841147035, 1.41347227379126, -1.36211031481209 },
      grads = {
         2.207465869, 1.033717685, 0.2316144711, 4.329253087, 0.07532224526, 0.5869609968,
         0.06460925084, 0.5452612629, 0.1185295347, 0.02292266627, 0.01638992743, 0.3184706046,
         0.2093601267, 11.14253941, 0.05056845773, 0.3501900988, 0.3403518742, 0.7254425657,
         0.2451260781, 1.342341843, 0.08102751775, 0.4772762684, 0.07137822802, 0.4135905939,
         0.1281061314, 0.01506092473, 0.4610604495, 0.5940009869, 0.01968157368, 0.1423843029,
         0.7266151811, 0.177399215, 0.2088773218, 1.561610254, 0.1041887421, 0.2462014565,
         0.6215658032, 0.07916252624, 0.5125082542, 0.0682283987, 0.440497954, 0.05017918301,
         0.02520439183, 0.0007484457047, 0.009381294394, 0.2444943478, 1.863314306, 0.001917489996,
         0.01260281702, 0.188978835, 1.155176801
      },
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
"tie_word_embeddings": true, "transformers_version": "5.23.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 6.60859605381112,
      logits = { 5.28732688415569, 0.156264294617671, -3.19612080768698 },
      grads = {
         0.3692541742, 2.356766751, 0.2256064441, 3.148701875, 0.01527570425, 0.0195765597,
         0.0699825597, 0.06792241513, 0.4731525672, 3.355851851, 0.1235232464, 0.3513872771,
         0.3744981953, 2.501652512, 0.121869948, 1.556868816, 0.01832425142, 0.02014320998,
         0.01625994105, 0.01614615772, 0.4451332496, 3.047026236, 0.1177558482, 0.2391736864,
         0.3765729612, 2.638461518, 0.1173346727, 1.694861522, 0.02730419377, 0.02683452252,
         0.07315766392, 0.07279449822, 0.4442869044, 3.155464413, 0.109051799, 0.2558084035,
         0.9081568967, 1.076054515, 0.1645129827, 2.257692559
      },
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
"tie_word_embeddings": false, "transformers_version": "5.23.0", "use_cache": true,
"vocab_size": 23}]==],
      loss = 6.8054016407243,
      logits = { 2.33968396443987, 2.69811582440252, -4.83863841440991 },
      grads = {
         2.165987071, 3.115332834, 19.52473365, 2.634446907, 35.38407686, 0.6640693027, 1.223995264,
         0.6672812115, 0.7459084399, 1.795016747, 12.69194685, 1.815698995, 4.012958234,
         2.748374931, 16.36870031, 1.524117795, 22.17080732, 0.4570690883, 0.8064035047,
         0.384250709, 0.6852248028, 1.621243499, 10.77808815, 0.6839219566, 1.024325184,
         0.8158133817, 0.9268321915, 5.308621269, 4.635848446
      },
   },
}
