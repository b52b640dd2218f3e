-- GPT-2 decoder (Radford et al., 2019): learned positions, LayerNorm, biases, a plain MLP.
--
-- Published files keep the weights of projections transposed, and queries, keys and values in one
-- matrix. Here they have the form of the other families, so that they are cut over ranks alike;
-- `stored` maps each to its place in a published file.

local class = require 'tide.class'
local each = require 'tide.util.each'
local signature = require 'tide.util.signature'
local nn = require 'tide.nn'
local Backbone = require 'tide.model.backbone'
local part_ = require 'tide.model.part'

local op = 'model.gpt2'

local count, number, flag, share = 'integer >= 1', 'number >= 0', 'boolean', 'number in [0, 1)'

local rows = {
   { 'vocab_size', nil, count }, { 'hidden_size', nil, count },
   { 'num_hidden_layers', nil, count }, { 'num_attention_heads', nil, count },
   { 'intermediate_size', function(c) return 4 * c.hidden_size end, count },
   { 'max_position_embeddings', 1024, count, neutral = true },
   { 'activation_function', 'gelu_new',
      "'gelu_new' | 'gelu_pytorch_tanh' | 'gelu' | 'relu' | 'silu'" },
   { 'resid_pdrop', 0.1, share }, { 'embd_pdrop', 0.1, share }, { 'attn_pdrop', 0.1, share },
   { 'layer_norm_epsilon', 1e-5, number, float = true },
   { 'initializer_range', 0.02, number, float = true, neutral = true },
   { 'scale_attn_by_inverse_layer_idx', false, flag }, { 'tie_word_embeddings', true, flag },
}

-- Published names of fields.
local alias = {
   n_embd = 'hidden_size', n_layer = 'num_hidden_layers', n_head = 'num_attention_heads',
   n_inner = 'intermediate_size', n_positions = 'max_position_embeddings',
}

local rules = {
   alias = alias, only = { scale_attn_weights = true }, free = 'n_ctx reorder_and_upcast_attn',
   where = signature.options { 'where hidden_size % num_attention_heads == 0 -- hidden_size '
      .. '({hidden_size}) must be a multiple of num_attention_heads ({num_attention_heads})' },
}

local acts = { gelu_new = 'gelu_tanh', gelu_pytorch_tanh = 'gelu_tanh' }

local function dropout(p) return p > 0 and nn.Dropout(p) or nil end

local GPT2 = class('GPT2', Backbone)
GPT2.op, GPT2._rows, GPT2._rules = op, rows, rules

GPT2.form = {
   body = 'model', embed = 'embed_tokens', positions = 'embed_positions', norm = 'norm',
   eps = 'layer_norm_epsilon', Norm = nn.LayerNorm,
   dropout = function(c) return dropout(c.embd_pdrop) end,
   block = function(c, mixer, norm, opts)
      return nn.Block {
         names = { norm1 = 'input_layernorm', mixer = 'self_attn',
            norm2 = 'post_attention_layernorm', mlp = 'mlp' },
         norm1 = nn.LayerNorm(c.hidden_size, norm), mixer = mixer,
         norm2 = nn.LayerNorm(c.hidden_size, norm), dropout = dropout(c.resid_pdrop),
         mlp = nn.MLP(part_.of_layer(c, opts, {
            hidden = c.intermediate_size, bias = true,
            act = acts[c.activation_function] or c.activation_function })),
      }
   end,
}

-- Makes the fields of config.json of c, a complete configuration. transposed: whether the tensors
-- beside it are those of published files; others, in a checkpoint, are of a model type of its own.
function GPT2.publish(c, transposed)
   for theirs, ours in each(alias) do c[theirs], c[ours] = c[ours], nil end
   if not transposed then c.model_type, c.architectures = 'tide_gpt2', { 'TideGPT2LMHeadModel' } end
end

-- Returns the mixer of each layer.
function GPT2._mixers(c, opts)
   local mixers, size = {}, c.hidden_size / c.num_attention_heads
   for i = 1, c.num_hidden_layers do
      mixers[i] = nn.Attention(part_.of_layer(c, opts, {
         heads = c.num_attention_heads, bias = true, out_bias = true, dropout = c.attn_pdrop,
         scale = size ^ -0.5 / (c.scale_attn_by_inverse_layer_idx and i or 1),
      }))
   end
   return mixers
end

-- ---- published files ---------------------------------------------------------------------------

GPT2.family = {
   counts = { 'n_layer' }, sizes = { 'n_embd', 'n_inner', 'n_positions', 'n_head' },
   -- Adds the first part of names, which old files omit, and drops their masks.
   rename = function(name)
      if name:find '%.attn%.bias$' or name:find '%.attn%.masked_bias$' then return nil end
      if name:find '^transformer%.' or name:find '^lm_head%.' then return name end
      return 'transformer.' .. name
   end,
   peft_obstacle = 'published files of GPT-2 keep several layers in one tensor, so adapters of '
      .. 'single layers have no name there',
}

local parts_of = {
   ln_1 = { 'input_layernorm' }, ln_2 = { 'post_attention_layernorm' },
   ['attn.c_attn'] = { 'self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj' },
   ['attn.c_proj'] = { 'self_attn.o_proj' },
   ['mlp.c_fc'] = { 'mlp.up_proj' }, ['mlp.c_proj'] = { 'mlp.down_proj' },
}

-- Returns the tensors of a published file (see model/stored.lua).
function GPT2:stored()
   local shapes, list = {}, {}
   for _, e in ipairs(self:named_parameters()) do shapes[e.name] = e.param.shape end
   local function add(name, names, transposed)
      local entry, first = { name = name, transposed = transposed, parts = {} }, 0
      for i, part in ipairs(names) do
         entry.parts[i] = { name = part, shape = shapes[part], first = first }
         first = first + shapes[part][1]
      end
      local one = shapes[names[1]]
      entry.shape = transposed and { one[2], first } or #one == 2 and { first, one[2] } or { first }
      list[#list + 1] = entry
   end
   add('transformer.wte.weight', { 'model.embed_tokens.weight' })
   add('transformer.wpe.weight', { 'model.embed_positions.weight' })
   for i = 0, self.config.num_hidden_layers - 1 do
      for theirs, ours in each(parts_of) do
         for _, field in ipairs { 'weight', 'bias' } do
            local names = {}
            for k, part in ipairs(ours) do
               names[k] = ('model.layers.%d.%s.%s'):format(i, part, field)
            end
            add(('transformer.h.%d.%s.%s'):format(i, theirs, field), names,
               field == 'weight' and theirs:find '%.c_' ~= nil)
         end
      end
   end
   for _, field in ipairs { 'weight', 'bias' } do
      add('transformer.ln_f.' .. field, { 'model.norm.' .. field })
   end
   if self.lm_head then add('lm_head.weight', { 'lm_head.weight' }) end
   return list
end

return GPT2
