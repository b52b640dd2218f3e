-- Random cases: one field of a configuration changed. A value of a wrong kind is an error that
-- names the field; a good one changes what the model is or computes. A field that is taken and does
-- nothing is a failure.

local models = require 'spec.deep.domain.models'

local fields = { limit = 60 }

-- ---- what is known of fields -----------------------------------------------------------------

local decoder = { vocab_size = 'count', hidden_size = 'width', num_hidden_layers = 'layers',
   num_attention_heads = 'heads', num_key_value_heads = 'heads', head_dim = 'even',
   intermediate_size = 'count', rms_norm_eps = 'number', rope_theta = 'base',
   tie_word_embeddings = 'flag', attention_bias = 'flag', mlp_bias = 'flag',
   initializer_range = 'number', attention_dropout = 'share', hidden_act = 'name',
   max_position_embeddings = 'limit', sliding_window = 'window', rope_scaling = 'scaling' }

local state = { vocab_size = 'count', hidden_size = 'width', n_groups = 'group',
   conv_kernel = 'taps', chunk_size = 'limit', use_bias = 'flag', use_conv_bias = 'off',
   layer_norm_epsilon = 'number', initializer_range = 'number', time_step_min = 'least',
   time_step_max = 'most', time_step_limit = 'pair', tie_word_embeddings = 'flag',
   max_position_embeddings = 'limit' }

-- Fields of a family beside those, and those that it does not have (false).
local own = {
   llama = { sliding_window = false }, mistral = { attention_bias = 'absent', mlp_bias = 'absent' },
   qwen2 = { use_sliding_window = 'flag', max_window_layers = 'limit', layer_types = 'types',
      attention_bias = 'absent', mlp_bias = 'absent' },
   qwen3 = { use_sliding_window = 'flag', max_window_layers = 'limit', layer_types = 'types',
      mlp_bias = 'absent' },
   phi3 = { attention_bias = 'absent', mlp_bias = 'absent' },
   gemma3 = { mlp_bias = 'absent', query_pre_attn_scalar = 'positive',
      rope_local_base_freq = 'base',
      sliding_window_pattern = 'count', layer_types = 'types', hidden_activation = 'name' },
   mixtral = { mlp_bias = 'absent', attention_bias = 'absent', num_local_experts = 'count',
      num_experts_per_tok = 'topk', output_router_logits = 'flag',
      router_aux_loss_coef = 'number' },
   qwen3_moe = { mlp_bias = 'absent', num_experts = 'count', num_experts_per_tok = 'topk',
      moe_intermediate_size = 'count', norm_topk_prob = 'flag', decoder_sparse_step = 'count',
      mlp_only_layers = 'places', use_sliding_window = 'flag', output_router_logits = 'flag',
      router_aux_loss_coef = 'number' },
   qwen3_next = { mlp_bias = 'absent', sliding_window = 'absent', num_experts = 'some',
      num_experts_per_tok = 'topk', moe_intermediate_size = 'count', norm_topk_prob = 'flag',
      shared_expert_intermediate_size = 'count', decoder_sparse_step = 'count',
      mlp_only_layers = 'places', output_router_logits = 'flag', router_aux_loss_coef = 'number',
      layer_types = 'types', full_attention_interval = 'count', partial_rotary_factor = 'part',
      linear_num_key_heads = 'heads', linear_num_value_heads = 'heads',
      linear_key_head_dim = 'count', linear_value_head_dim = 'count',
      linear_conv_kernel_dim = 'taps' },
   qwen3_5 = { mlp_bias = 'absent', sliding_window = 'absent', layer_types = 'types',
      full_attention_interval = 'count', partial_rotary_factor = 'part',
      linear_num_key_heads = 'heads', linear_num_value_heads = 'heads',
      linear_key_head_dim = 'count', linear_value_head_dim = 'count',
      linear_conv_kernel_dim = 'taps' },
   gpt_oss = { mlp_bias = 'absent', num_local_experts = 'count', num_experts_per_tok = 'topk',
      swiglu_limit = 'positive', swiglu_alpha = 'positive', layer_types = 'types',
      output_router_logits = 'flag', router_aux_loss_coef = 'number' },
   mamba2 = { state_size = 'count', head_dim = 'count', num_heads = 'heads',
      num_hidden_layers = 'layers' },
   hybrid = { ssm_state_size = 'count', mamba_head_dim = 'count', mamba_num_heads = 'heads',
      num_attention_heads = 'heads', num_key_value_heads = 'heads', head_dim = 'count',
      intermediate_size = 'count', mlp_hidden_act = 'act', attention_bias = 'flag',
      mlp_bias = 'flag', hybrid_override_pattern = 'pattern', n_routed_experts = 'count',
      num_experts_per_tok = 'topk', moe_intermediate_size = 'count', norm_topk_prob = 'flag',
      moe_shared_expert_intermediate_size = 'count', moe_latent_size = 'count' },
}

-- Fields of a hybrid that a model without experts does not read.
local of_experts = { n_routed_experts = true, num_experts_per_tok = true, norm_topk_prob = true,
   moe_intermediate_size = true, moe_shared_expert_intermediate_size = true,
   moe_latent_size = true }

local function known(family)
   local all = {}
   local base = (family == 'mamba2' or family == 'hybrid') and state or decoder
   for name, kind in pairs(base) do all[name] = kind end
   for name, kind in pairs(own[family]) do all[name] = kind or nil end
   if own[family].sliding_window == false then all.sliding_window = nil end
   return all
end

-- Values that no field of the kind may have.
local text, list, truth = 'x', { 3, 4 }, true
local bad = {
   count = { 0, -1, 1.5, text, list, truth }, even = { 3, 0, -2, text, list, truth },
   number = { -1, text, list, truth }, base = { 0.5, -1, text, list, truth },
   positive = { 0, -1, text, list, truth }, flag = { 1, text, list },
   share = { -0.1, 1.5, text, list, truth }, name = { text, 3, list, 'nothing' },
   window = { 0, -3, 1.5, text, list }, limit = { -1, 1.5, text, list, truth },
   types = { { 'sliding_attention', 'nothing' }, text, 3, {},
      { 'full_attention', 'full_attention', 'full_attention', 'full_attention' } },
   pair = { text, 3, { 2, 1 }, { -1, 2 }, { text, 2 } },
   some = { -1, 1.5, text, list, truth }, part = { 0, -1, 1.5, text, list, truth },
   taps = { 1, 9, 0, text, list, truth }, act = { text, 3, list },
   scaling = { text, 3, { rope_type = 'nothing' }, { type = 'linear' } },
   topk = { 0, -1, 1.5, text, list, truth, 99 },
   places = { 3, text, { -1 }, { 99 }, { 1.5 }, { text } },
   pattern = { text, 3, list, 'MQ' }, absent = { true, false, 3, text },
}
bad.least, bad.most, bad.off = bad.number, bad.number, bad.flag
bad.width, bad.layers, bad.heads, bad.group = bad.count, bad.count, bad.count, bad.count

-- Values that change something, made of what the base has.
local good = {}

function good.count(c, v) return (v or 1) + c:int(1, 5) end
good.some = good.count
function good.part(c, v) return v == 1 and 0.5 or c:pick { 1, 0.25 } end
function good.limit(c, v) return (v or 7) + c:int(1, 5) end
function good.width(c, v) return v * c:int(2, 3) end
function good.layers(c, v) return v + c:int(1, 2) end
function good.heads(c, v) return v * c:int(2, 3) end
function good.group() return nil end
function good.even(c) return 2 + 2 * c:int(1, 2) end
function good.number(c, v) return (v or 1e-3) * c:pick { 3, 0.5 } end
function good.least(c) return c:pick { 0.002, 0.05 } end
function good.most(c) return c:pick { 0.3, 0.01 } end
function good.positive(c, v) return (v or 16) * c:pick { 3, 0.5 } end
function good.base(c) return c:pick { 100, 5e5 } end
function good.flag(_, v) return not v end
function good.off() return false end
function good.share(c) return c:pick { 0.5, 0.1 } end
function good.window(c, v) return (v or 5) % 6 + c:int(1, 3) end
function good.pair(c) return c:pick { { 0.9, 1 }, { 0, 1e-4 } } end
function good.taps(_, v) return v % 3 + 2 end
function good.act(c, v) return c:pick { v == 'gelu' and 'relu' or 'gelu', 'silu' } end
function good.places() return { 0 } end
function good.scaling(c)
   return c:pick { { rope_type = 'linear', factor = 4 }, { type = 'linear', factor = 2 } }
end

-- ---- cases -----------------------------------------------------------------------------------

local function sorted(set)
   local names = {}
   for name in pairs(set) do names[#names + 1] = name end
   table.sort(names)
   return names
end

local has_delta = { qwen3_next = true, qwen3_5 = true }

local function base_of(c, family)
   local config = models.config(c, family, 1)
   if config.use_sliding_window ~= nil then
      config.use_sliding_window, config.sliding_window, config.max_window_layers = nil, nil, nil
   end
   config.mlp_only_layers, config.decoder_sparse_step = nil, nil   -- all layers have experts
   if has_delta[family] then                                       -- layers of both kinds
      config.num_hidden_layers, config.head_dim = 2, 8
      config.layer_types = { 'linear_attention', 'full_attention' }
   end
   if family == 'qwen3_next' then
      config.num_experts = math.max(1, config.num_experts)
      config.num_experts_per_tok = math.min(config.num_experts_per_tok, config.num_experts)
   end
   return config
end

-- A case: family, its configuration, and a field with its new value; want: 'change', 'error',
-- 'unknown' (a name that no family has) or 'null' (absent on purpose: taken, or an error).
function fields.make(c)
   local o = { family = c:pick(models.families) }
   o.config = base_of(c, o.family)
   local kinds = known(o.family)
   o.field = c:pick(sorted(kinds))
   local kind = kinds[o.field]
   o.want = c:pick { 'change', 'error', 'unknown', 'null' }
   if o.want == 'unknown' then
      o.field = c:pick { o.field .. 's', o.field:sub(2), 'num_expert', 'unheard_of' }
      o.value = c:pick { 1, true, 'x' }
   elseif o.want == 'error' then
      o.value = c:pick(bad[kind])
   elseif o.want == 'change' then
      o.value = good[kind] and good[kind](c, o.config[o.field])
      if o.value == nil then o.want = 'null' end
   end
   return o
end

-- ---- what a model is -------------------------------------------------------------------------

-- Names, shapes and logits of a model of fixed seed, and a loss in training (which drops out), as
-- one list of texts.
local function digest(t, family, config)
   local model = t.model[family](config, { dtype = 'f64', seed = 3 })
   local out = {}
   for _, e in ipairs(model:named_parameters()) do
      out[#out + 1] = e.name .. ' ' .. table.concat(e.param.shape, ',')
   end
   local ids = {}
   for i = 1, 14 do ids[i] = (i * i + i) % 5 end
   ids = t.tensor({ ids }, { dtype = 'i64' })
   model:eval()
   for _, v in ipairs(t.no_grad(function()
      return model(ids):reshape(-1):tolist()
   end)) do out[#out + 1] = ('%.15g'):format(v) end
   model:train()
   t.seed(11)
   out[#out + 1] = ('%.15g'):format(model:loss(ids, ids, { count = 14 }):item())
   return out
end

local function same(a, b)
   if #a ~= #b then return false end
   for i = 1, #a do
      if a[i] ~= b[i] then return false end
   end
   return true
end

-- What makes a change visible: eps of norms, window switches and others need company.
local function with_company(o)
   local config = {}
   for k, v in pairs(o.config) do config[k] = v end
   local f, family = o.field, o.family
   if family:find '^qwen' and f == 'sliding_window' then
      config.use_sliding_window, config.max_window_layers = true, 0
      config.sliding_window = 4
   elseif f == 'use_sliding_window' then
      config.sliding_window, config.max_window_layers = 3, 0
   elseif f == 'num_key_value_heads' then
      config.num_attention_heads = config.num_attention_heads * 6
      config.head_dim = 2
   elseif f == 'rope_local_base_freq' then
      config.sliding_window_pattern, config.sliding_window, config.head_dim = 5, 9, 4
   elseif f == 'swiglu_limit' or f == 'swiglu_alpha' then
      config.swiglu_limit, config.initializer_range = 0.03, 0.5
   elseif f == 'query_pre_attn_scalar' then
      config.sliding_window = 9
   elseif f == 'head_dim' then
      config.head_dim = o.family == 'hybrid' and config.head_dim or 2
      config.rope_theta = nil                       -- rotary heads of a hybrid must be even
   elseif f == 'rope_theta' or f == 'rope_scaling' then
      config.sliding_window = config.sliding_window and 9
      config.sliding_window_pattern, config.head_dim = config.sliding_window_pattern and 1, 4
   elseif f == 'sliding_window' and family == 'gemma3' then
      config.sliding_window_pattern = 5
   elseif f == 'sliding_window_pattern' then
      config.sliding_window, config.num_hidden_layers = 2, 3
      config.sliding_window_pattern = 1
   elseif f == 'router_aux_loss_coef' then
      config.output_router_logits = true
   elseif f == 'num_hidden_layers' and family == 'hybrid' then
      config.num_hidden_layers = nil
   end
   if has_delta[family] then
      if f == 'num_hidden_layers' then
         config.layer_types, config.full_attention_interval = nil, 2
      elseif f == 'linear_num_key_heads' then
         config.linear_num_value_heads = config.linear_num_value_heads * 6
      elseif f ~= 'partial_rotary_factor' then
         config.partial_rotary_factor = 1               -- all of a head turns, whatever its size
      end
   end
   if f == 'rms_norm_eps' or f == 'layer_norm_epsilon' then config[f] = 0.01 end
   return config
end

-- Fields that are limits or grains, and change no number by what is documented.
local quiet = { max_position_embeddings = true, chunk_size = true, max_window_layers = true,
   full_attention_interval = true }                    -- layer_types is given

local function changed(config, field, value)
   local out = {}
   for k, v in pairs(config) do out[k] = v end
   out[field] = value
   if field == 'num_attention_heads' and not out.head_dim then out.head_dim = 2 end
   return out
end

-- Whether the field has anything to act on.
local function applies(o)
   local config, f = o.config, o.field
   local pattern = config.hybrid_override_pattern
   if (o.family == 'qwen3_moe' or o.family == 'qwen3_next') and (f == 'intermediate_size'
      or f == 'norm_topk_prob' and config.num_experts_per_tok == config.num_experts) then
      return false
   end
   if not pattern then return true end
   local has = pattern:find 'E' ~= nil
   if of_experts[f] then return has end
   if has and (f == 'mlp_bias' or f == 'mlp_hidden_act') then
      return f ~= 'mlp_bias' or config.moe_latent_size == nil
   end
   if f:find 'mamba' or f:find 'conv' or f:find 'time_step' or f == 'ssm_state_size'
      or f == 'use_bias' or f == 'n_groups' then return pattern:find 'M' ~= nil end
   if f:find 'attention' or f:find 'key_value' or f == 'head_dim' then
      return pattern:find '*' ~= nil
   end
   if f:find 'mlp' or f == 'intermediate_size' then return pattern:find('-', 1, true) ~= nil end
   return true
end

-- ---- the check -------------------------------------------------------------------------------

-- What a failing case has.
function fields.trait(o) return ('%s.%s %s'):format(o.family, o.field, o.want) end

local function refused(t, o, config, may_be_taken)
   local ok, e = pcall(digest, t, o.family, config)
   if ok then return not may_be_taken and 'taken: ' .. o.field or nil end
   if type(e) ~= 'table' or not e.code then return 'a raw error: ' .. tostring(e) end
   if not may_be_taken and not tostring(e):find(o.field, 1, true) then
      return 'the error does not name the field: ' .. tostring(e)
   end
end

-- What is wrong with a case, or nil and a word on it.
function fields.check(o)
   local t = require 'tide'
   if o.want == 'error' and of_experts[o.field] and not applies(o) then return nil, 'idle' end
   if o.want == 'error' or o.want == 'unknown' then
      return refused(t, o, changed(o.config, o.field, o.value)), o.want
   end
   if not applies(o) then return nil, 'idle' end
   local config = with_company(o)
   if o.want == 'null' then
      return refused(t, o, changed(config, o.field, t.json.null), true), 'null'
   end
   local base = digest(t, o.family, config)
   local value = o.value
   if value == config[o.field] then return nil, 'idle' end
   local other = digest(t, o.family, changed(config, o.field, value))
   if quiet[o.field] then
      return not same(base, other) and 'numbers change with ' .. o.field or nil, 'quiet'
   end
   if same(base, other) then return 'nothing changes with ' .. o.field end
   return nil, 'change'
end

fields.idle = { idle = true }

return fields
