-- Random small decoders of every family, meshes, optimisers and batches of training, for domains.

local documents = require 'spec.deep.domain.documents'
local choice = require 'spec.deep.fuzz.choice'

local models = { families = { 'llama', 'qwen2', 'qwen3', 'mistral', 'phi3', 'gemma3', 'hybrid',
   'mamba2', 'mixtral', 'qwen3_moe', 'gpt_oss', 'qwen3_next' } }
-- Those that are trained over ranks.
models.trained = { unpack(models.families) }
for _, name in ipairs { 'gemma2', 'olmo2', 'granite', 'smollm3', 'ministral', 'gpt2', 'bamba',
                        'qwen2_moe', 'glm4_moe', 'deepseek_v2', 'deepseek_v3',
                         'granitemoehybrid' } do
   models.trained[#models.trained + 1] = name
end

-- Families that may have layers with a state.
models.has_state = { mamba2 = true, hybrid = true, bamba = true, granitemoehybrid = true,
   qwen3_next = true }

-- Families whose routers have correction biases; a hybrid has them in layers E.
local corrected = { glm4_moe = true, deepseek_v3 = true }

-- Whether a router of a configuration has a correction bias.
function models.has_bias(family, config)
   if corrected[family] then return config.first_k_dense_replace < config.num_hidden_layers end
   return (config.hybrid_override_pattern or ''):find 'E' ~= nil
end

-- Whether a configuration of such a family has one; a Bamba, a Granite or a Qwen3-Next may have
-- attention in every layer.
function models.keeps_state(family, config)
   local attention = config.attn_layer_indices or {}
   if config.layer_types then
      local kinds = table.concat(config.layer_types)
      return kinds:find 'mamba' ~= nil or kinds:find 'linear' ~= nil
   end
   return models.has_state[family] and #attention < (config.num_hidden_layers or math.huge)
end

-- ---- models ----------------------------------------------------------------------------------

local function attention_config(c, tp, stages)
   local kv = tp * c:few(1, 2)
   local heads = kv * c:few(1, 2)
   return { vocab_size = c:int(5, 41) + tp, hidden_size = heads * 2 * c:few(1, 2),
      num_hidden_layers = math.max(c:few(1, 3), stages), num_attention_heads = heads,
      num_key_value_heads = kv, intermediate_size = c:int(1, 24) + tp,
      initializer_range = 0.2 }
end

local function state_config(c, tp)
   local groups = c:few(1, 3)
   local heads = groups * c:few(1, 3)
   while heads < tp do heads = heads + groups end
   return { heads = heads, groups = groups, head_dim = c:few(1, 4), state = c:few(1, 5),
      conv = c:int(2, 4) }
end

local more = {}

function more.llama(c, o)
   o.attention_bias, o.mlp_bias = c:chance(0.3), c:chance(0.3)
   o.tie_word_embeddings = c:chance(0.5)
end

function more.qwen2(c, o)
   o.tie_word_embeddings = c:chance(0.5)
   if c:chance(0.5) then
      o.use_sliding_window, o.sliding_window = true, c:int(1, 9)
      o.max_window_layers = c:int(0, o.num_hidden_layers)
   end
end

function more.qwen3(c, o)
   more.qwen2(c, o)
   o.head_dim = 2 * c:few(1, 3)
end

function more.mistral(c, o)
   o.sliding_window = c:int(1, 9)
end

function more.phi3(c, o)
   if c:chance(0.3) then o.sliding_window = c:int(1, 9) end
end

function more.gemma3(c, o)
   o.head_dim = 2 * c:few(1, 3)
   o.query_pre_attn_scalar, o.sliding_window = c:int(1, 16), c:int(1, 9)
   o.sliding_window_pattern = c:int(1, 3)
   o.tie_word_embeddings = not c:chance(0.3)
end

function more.gemma2(c, o)
   o.head_dim = 2 * c:few(1, 3)
   o.query_pre_attn_scalar, o.sliding_window = c:int(1, 16), c:int(1, 9)
   o.attn_logit_softcapping, o.final_logit_softcapping = c:pick { 50, 1 }, c:pick { 30, 2 }
   o.tie_word_embeddings = not c:chance(0.3)
end

function more.olmo2(c, o) o.tie_word_embeddings = c:chance(0.3) end

function more.granite(c, o)
   o.embedding_multiplier, o.attention_multiplier = c:pick { 1, 6 }, c:pick { 1, 0.25 }
   o.residual_multiplier, o.logits_scaling = c:pick { 1, 0.5 }, c:pick { 1, 4 }
   o.attention_bias, o.tie_word_embeddings = c:chance(0.3), c:chance(0.5)
end

function more.smollm3(c, o)
   o.no_rope_layer_interval, o.tie_word_embeddings = c:int(1, 3), c:chance(0.5)
   if c:chance(0.3) then o.use_sliding_window, o.sliding_window = true, c:int(1, 9) end
end

function more.ministral(c, o)
   o.sliding_window, o.layer_types = c:int(1, 9), {}
   for i = 1, o.num_hidden_layers do
      o.layer_types[i] = c:pick { 'sliding_attention', 'full_attention' }
   end
end

function more.gpt2(c, o)
   o.num_key_value_heads, o.max_position_embeddings = nil, 32
   o.resid_pdrop, o.embd_pdrop, o.attn_pdrop = 0, 0, 0
   o.scale_attn_by_inverse_layer_idx, o.tie_word_embeddings = c:chance(0.3), c:chance(0.5)
end

-- The fields of a Bamba: a head of attention has four numbers, of which two or all turn.
local function bamba(c, o, s)
   local width = 4 * o.num_attention_heads
   local config = { vocab_size = o.vocab_size, hidden_size = width,
      num_hidden_layers = o.num_hidden_layers, num_attention_heads = o.num_attention_heads,
      num_key_value_heads = o.num_key_value_heads, intermediate_size = o.intermediate_size,
      attn_layer_indices = {}, mamba_expand = s.heads * s.head_dim / width,
      mamba_n_heads = s.heads, mamba_d_head = s.head_dim, mamba_n_groups = s.groups,
      mamba_d_state = s.state, mamba_d_conv = s.conv, mamba_proj_bias = c:chance(0.3),
      attention_bias = c:chance(0.3), partial_rotary_factor = c:pick { 0.5, 1 },
      tie_word_embeddings = c:chance(0.5), initializer_range = 0.2 }
   for i = 0, o.num_hidden_layers - 1 do
      if c:chance(0.5) then table.insert(config.attn_layer_indices, i) end
   end
   return config
end

-- Sets the numbers of experts under the name of a family's field.
local function experts(c, o, name)
   o[name] = c:few(1, 5)
   o.num_experts_per_tok = c:int(1, o[name])
end

-- The fields of a Granite with Mamba-2 layers.
local function granite(c, o, s)
   local width = 2 * o.num_attention_heads
   while width % s.heads > 0 do width = width + 2 * o.num_attention_heads end
   local config = { vocab_size = o.vocab_size, hidden_size = width,
      num_hidden_layers = o.num_hidden_layers, num_attention_heads = o.num_attention_heads,
      num_key_value_heads = o.num_key_value_heads, shared_intermediate_size = o.intermediate_size,
      intermediate_size = o.intermediate_size, layer_types = {}, mamba_expand = 1,
      mamba_n_heads = s.heads, mamba_n_groups = s.groups, mamba_d_state = s.state,
      mamba_d_conv = s.conv, mamba_proj_bias = c:chance(0.3), attention_bias = c:chance(0.3),
      position_embedding_type = c:pick { 'nope', 'rope' }, residual_multiplier = c:pick { 1, 0.5 },
      embedding_multiplier = c:pick { 1, 6 }, attention_multiplier = c:pick { 1, 0.25 },
      logits_scaling = c:pick { 1, 4 }, num_local_experts = 0,
      tie_word_embeddings = c:chance(0.5), initializer_range = 0.2 }
   for i = 1, o.num_hidden_layers do
      config.layer_types[i] = c:pick { 'mamba', 'attention' }
   end
   if c:chance(0.6) then experts(c, config, 'num_local_experts') end
   return config
end

-- The fields of a Qwen3-Next.
local function qwen3_next(c, o, s, tp)
   while s.groups < tp do s.groups = s.groups + 1 end
   o.linear_num_key_heads, o.linear_num_value_heads = s.groups, s.groups * c:few(1, 3)
   o.linear_key_head_dim, o.linear_value_head_dim = s.state, s.head_dim
   o.linear_conv_kernel_dim, o.layer_types = s.conv, {}
   for i = 1, o.num_hidden_layers do
      o.layer_types[i] = c:pick { 'linear_attention', 'full_attention' }
   end
   o.head_dim, o.partial_rotary_factor = 4 * c:few(1, 2), c:pick { 0.5, 1 }
   o.attention_bias, o.tie_word_embeddings = c:chance(0.3), c:chance(0.5)
   experts(c, o, 'num_experts')
   if c:chance(0.2) then o.num_experts = 0 end
   o.moe_intermediate_size, o.norm_topk_prob = o.intermediate_size, c:chance(0.5)
   o.shared_expert_intermediate_size = o.intermediate_size
   if c:chance(0.3) then o.mlp_only_layers = { c:int(0, o.num_hidden_layers - 1) } end
   return o
end

function more.mixtral(c, o)
   experts(c, o, 'num_local_experts')
   o.tie_word_embeddings = c:chance(0.5)
   if c:chance(0.5) then o.sliding_window = c:int(1, 9) end
end

function more.qwen3_moe(c, o)
   experts(c, o, 'num_experts')
   o.moe_intermediate_size, o.norm_topk_prob = o.intermediate_size, c:chance(0.5)
   o.tie_word_embeddings, o.head_dim = c:chance(0.5), 2 * c:few(1, 3)
   if c:chance(0.3) then o.use_sliding_window, o.sliding_window = true, c:int(1, 9) end
   if c:chance(0.3) then o.decoder_sparse_step = c:int(1, 3) end
   if c:chance(0.3) then o.mlp_only_layers = { c:int(0, o.num_hidden_layers - 1) } end
end

function more.gpt_oss(c, o)
   experts(c, o, 'num_local_experts')
   o.tie_word_embeddings, o.head_dim = c:chance(0.5), 2 * c:few(1, 3)
   o.attention_bias, o.sliding_window = not c:chance(0.3), c:int(1, 9)
   o.swiglu_limit = c:pick { 7, 0.02 }
   if c:chance(0.3) then o.rope_scaling = { rope_type = 'default' } end
end

function more.qwen2_moe(c, o)
   experts(c, o, 'num_experts')
   o.moe_intermediate_size, o.norm_topk_prob = o.intermediate_size, c:chance(0.5)
   o.shared_expert_intermediate_size, o.qkv_bias = o.intermediate_size, c:chance(0.5)
   o.tie_word_embeddings = c:chance(0.5)
   if c:chance(0.3) then o.use_sliding_window, o.sliding_window = true, c:int(1, 9) end
   if c:chance(0.3) then o.mlp_only_layers = { c:int(0, o.num_hidden_layers - 1) } end
end

-- Sets the numbers of experts, and of groups of two of them at least, of DeepSeek's fields.
local function grouped_experts(c, o)
   o.n_group = c:few(1, 3)
   o.topk_group = c:int(1, o.n_group)
   local of_group = c:int(2, 3)
   o.n_routed_experts = o.n_group * of_group
   o.num_experts_per_tok = c:int(1, o.topk_group * of_group)
   o.moe_intermediate_size, o.n_shared_experts = o.intermediate_size, c:few(1, 2)
   o.first_k_dense_replace = c:int(0, o.num_hidden_layers)
   o.routed_scaling_factor, o.tie_word_embeddings = c:pick { 1, 2.5 }, c:chance(0.5)
end

function more.glm4_moe(c, o)
   grouped_experts(c, o)
   o.norm_topk_prob, o.use_qk_norm = c:chance(0.5), c:chance(0.5)
   o.attention_bias, o.head_dim = c:chance(0.5), 4 * c:few(1, 2)
end

-- Sets the sizes of latent attention.
local function latent(c, o)
   o.num_key_value_heads = o.num_attention_heads
   o.q_lora_rank = c:few(1, 7)
   o.kv_lora_rank, o.qk_nope_head_dim = c:few(1, 7), c:few(1, 5)
   o.qk_rope_head_dim, o.v_head_dim = 2 * c:few(1, 2), c:few(1, 6)
end

function more.deepseek_v3(c, o)
   grouped_experts(c, o)
   latent(c, o)
   o.norm_topk_prob, o.rope_interleave = c:chance(0.5), c:chance(0.5)
   o.attention_bias = c:chance(0.3)
end

function more.deepseek_v2(c, o)
   grouped_experts(c, o)
   latent(c, o)
   o.topk_method = c:pick { 'greedy', 'group_limited_greedy' }
end

-- Adds the fields of experts to those of a hybrid that has some.
local function with_experts(c, o)
   if not o.hybrid_override_pattern:find 'E' then return o end
   experts(c, o, 'n_routed_experts')
   o.moe_intermediate_size = o.intermediate_size
   o.moe_shared_expert_intermediate_size = o.intermediate_size
   o.moe_latent_size = c:chance(0.3) and c:few(1, 6) or nil
   o.norm_topk_prob, o.routed_scaling_factor = c:chance(0.5), c:pick { 1, 1.5 }
   return o
end

-- A configuration of a family whose heads divide among tp ranks, and its layers among stages of a
-- pipeline (nil: one).
function models.config(c, family, tp, stages)
   stages = stages or 1
   local o = attention_config(c, tp, stages)
   if not models.has_state[family] then
      more[family](c, o)
      return o
   end
   local s = state_config(c, tp)
   if family == 'bamba' then return bamba(c, o, s) end
   if family == 'granitemoehybrid' then return granite(c, o, s) end
   if family == 'qwen3_next' then return qwen3_next(c, o, s, tp) end
   if family == 'mamba2' then
      return { vocab_size = o.vocab_size, hidden_size = o.hidden_size,
         num_hidden_layers = o.num_hidden_layers, state_size = s.state, head_dim = s.head_dim,
         num_heads = s.heads, n_groups = s.groups, conv_kernel = s.conv,
         tie_word_embeddings = c:chance(0.5), use_bias = c:chance(0.3), initializer_range = 0.2 }
   end
   local pattern = c:pick { 'M-', 'M*-', '*M-', 'MM*', 'M', 'ME', 'E*M' }
   while #pattern < stages do pattern = pattern .. pattern end
   return with_experts(c, { vocab_size = o.vocab_size, hidden_size = o.hidden_size,
      hybrid_override_pattern = pattern, num_attention_heads = o.num_attention_heads,
      num_key_value_heads = o.num_key_value_heads, head_dim = 2 * c:few(1, 2),
      intermediate_size = o.intermediate_size, ssm_state_size = s.state,
      mamba_head_dim = s.head_dim, mamba_num_heads = s.heads, n_groups = s.groups,
      conv_kernel = s.conv, rope_theta = c:chance(0.5) and 10000 or nil,
      mlp_hidden_act = c:pick { 'relu2', 'swiglu' }, initializer_range = 0.2 })
end

-- ---- ranks -----------------------------------------------------------------------------------

-- A divisor of n, 1 first.
function models.divisor(c, n)
   local list = {}
   for d = 1, n do
      if n % d == 0 then list[#list + 1] = d end
   end
   return c:pick(list)
end

-- Axes of n ranks: { pp, dp_replicate, dp_shard, cp, tp }, with at most `stages` (4) of pp.
function models.mesh(c, n, stages)
   local axes = { pp = 1, dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1 }
   local d = models.divisor(c, n)
   if d > 1 and d <= (stages or 4) then axes.pp, n = d, n / d end
   local names = { 'tp', 'cp', 'dp_replicate' }
   for _, name in ipairs(names) do
      d = models.divisor(c, n)
      axes[name], n = d, n / d
   end
   axes.dp_shard = n
   return axes
end

-- The fewest experts that a layer of a model has; 0: no layer has any.
function models.fewest_experts(t, o)
   local least = math.huge
   local model = t.model[o.family](o.config, { device = 'null' })
   model:walk(function(m)
      if m.class_name == 'MoE' then least = math.min(least, m.experts) end
   end)
   return least < math.huge and least or 0
end

-- ---- optimisers ------------------------------------------------------------------------------

-- Options of an optimiser, with its class in `kind`.
function models.optim(c)
   if c:chance(0.3) then
      local o = { kind = 'SGD', lr = 0.05, momentum = c:chance(0.6) and 0.8 or 0,
         weight_decay = c:chance(0.5) and 0.1 or 0 }
      o.nesterov = o.momentum > 0 and c:chance(0.5)
      if o.momentum > 0 and not o.nesterov and c:chance(0.3) then o.dampening = 0.2 end
      return o
   end
   return { kind = 'AdamW', lr = 0.01, weight_decay = c:chance(0.5) and 0.1 or 0,
      beta1 = c:pick { 0.9, 0.5 }, beta2 = c:pick { 0.95, 0.99 },
      eps = c:pick { 1e-8, 1e-3 }, decay_vectors = c:chance(0.3) }
end

-- ---- batches ---------------------------------------------------------------------------------

-- What `rows` rows of T tokens say of documents, in at most one field.
function models.says(c, rows, T)
   local o = c:chance(0.5) and documents.make(c, rows, T) or {}
   o.cu_real, o.cu_slot = nil, nil
   local kept
   for _, name in ipairs { 'attention_mask', 'packed_seq_ids', 'padding_mask', 'index' } do
      if kept then o[name] = nil end
      kept = kept or o[name]
   end
   if o.index then
      for r = #o.index + 1, rows do o.index[r] = o.index[1] end
      for _, row in ipairs(o.index) do                -- positions as they come
         local count = {}
         for _, pair in ipairs(row) do
            count[pair[1]] = (count[pair[1]] or -1) + 1
            pair[2] = count[pair[1]]
         end
      end
   end
   return o
end

-- Token ids and labels of `rows` rows, lists of lists; one label in five does not count. The first
-- of each row does, where it is no padding.
function models.tokens(seed, rows, T, vocab)
   local next_, ids, labels = choice.stream('tokens ' .. seed), {}, {}
   for r = 1, rows do
      ids[r], labels[r] = {}, {}
      for s = 1, T do
         ids[r][s] = math.floor(next_() * vocab)
         labels[r][s] = s > 1 and next_() < 0.2 and -100 or math.floor(next_() * vocab)
      end
   end
   return ids, labels
end

local fields = { attention_mask = 'i64', packed_seq_ids = 'i64', padding_mask = 'bool',
   index = 'i32' }

-- Rows first .. first + n - 1 as a batch of tensors.
function models.batch(t, ids, labels, says, first, n)
   local function rows(list, dtype)
      return t.tensor({ unpack(list, first, first + n - 1) }, { dtype = 'i64' }):to(dtype)
   end
   local batch = { ids = rows(ids, 'i64'), labels = rows(labels, 'i64') }
   for name, dtype in pairs(fields) do
      if says[name] then batch[name] = rows(says[name], dtype) end
   end
   return batch
end

return models
