-- Experts of published decoders: the fields that their configurations share, and the tensors of
-- their files, which hold each projection of each expert apart. A parameter of nn.MoE has those of
-- all experts; model:stored() maps the one to the other.

local Llama = require 'tide.model.llama'
local class = require 'tide.class'
local err = require 'tide.util.err'
local names_ = require 'tide.util.names'
local nn = require 'tide.nn'
local published = require 'tide.model.published'
local renamed = require('tide.model.stored').renamed
local signature = require 'tide.util.signature'

local experts = {}

local count = 'integer >= 1'

-- Returns the fields of a family with experts, before its own. name: of the field with their count.
-- o: nil, or coef (default factor of the loss that balances experts, nn.balance; 0.001 if nil) and
-- least (the least count; 1 if nil).
function experts.fields(name, default, topk, o)
   o = o or {}
   return { { name, default, ('integer >= %d'):format(o.least or 1) },
      { 'num_experts_per_tok', topk, count },
      { 'output_router_logits', false, 'boolean', neutral = true },
      { 'router_aux_loss_coef', o.coef or 0.001, 'number >= 0', float = true, neutral = true },
      -- a field of tide
      { 'router_aux_loss_by_layer', published.optional, 'boolean', neutral = true } }
end

-- Fields that say which layers have experts: each decoder_sparse_step-th, but those of
-- mlp_only_layers, which count from 0.
experts.layer_fields = {
   { 'decoder_sparse_step', 1, count }, { 'mlp_only_layers', published.optional, 'integer[] >= 0' },
}

-- Refuses mlp_only_layers that the model does not have.
function experts.check_layers(c, op)
   for i, layer in ipairs(c.mlp_only_layers or {}) do
      err.arg_if(layer >= c.num_hidden_layers, op, ('mlp_only_layers[%d]'):format(i),
         ('a layer from 0 to %d'):format(c.num_hidden_layers - 1), layer)
   end
end

-- Returns whether layer i, from 1, has experts by these fields.
function experts.is_in_layer(c, i)
   for _, layer in ipairs(c.mlp_only_layers or {}) do
      if layer == i - 1 then return false end
   end
   return i % c.decoder_sparse_step == 0
end

-- Fields of the routing by sigmoid (DeepSeek-V3), with the defaults of a family.
function experts.sigmoid_fields(default)
   return {
      { 'n_routed_experts', default.experts, count },
      { 'num_experts_per_tok', default.topk, count },
      { 'moe_intermediate_size', default.hidden, count },
      { 'n_shared_experts', 1, 'integer >= 0' },
      { 'routed_scaling_factor', default.scale, 'number', float = true },
      { 'n_group', default.groups, count }, { 'topk_group', default.topk_groups, count },
      { 'norm_topk_prob', true, 'boolean' }, { 'first_k_dense_replace', default.dense,
         'integer >= 0' },
   }
end

-- Returns the options of part.experts for such a configuration.
function experts.of_sigmoid(c)
   return { score = 'sigmoid', correction = true, wide_router = true,
      hidden = c.moe_intermediate_size, experts = c.n_routed_experts,
      topk = c.num_experts_per_tok, norm_topk = c.norm_topk_prob,
      groups = c.n_group, topk_groups = c.topk_group, scale = c.routed_scaling_factor,
      shared = c.n_shared_experts > 0 and { names = { shared = 'shared_experts' },
         hidden = c.n_shared_experts * c.moe_intermediate_size } or nil }
end

-- Returns the options of layer i, nil for the first layers, which are dense.
function experts.by_sigmoid(c, i)
   return i > c.first_k_dense_replace and experts.of_sigmoid(c) or nil
end

-- Relations of these fields.
experts.fit_groups = {
   'where num_experts_per_tok <= n_routed_experts -- num_experts_per_tok ({num_experts_per_tok}) '
      .. 'must be at most n_routed_experts ({n_routed_experts})',
   'where num_experts_per_tok <= n_routed_experts * topk_group / n_group -- num_experts_per_tok '
      .. '({num_experts_per_tok}) must be at most the experts (n_routed_experts, '
      .. '{n_routed_experts}) in topk_group ({topk_group}) of n_group ({n_group}) groups',
   'where topk_group <= n_group -- topk_group ({topk_group}) must be at most n_group ({n_group})',
   'where n_group == 1 or n_routed_experts % n_group == 0 and n_routed_experts >= 2 * n_group '
      .. '-- n_routed_experts ({n_routed_experts}) must be a multiple of n_group ({n_group}), and '
      .. 'two of each at least',
}

-- Lets a class leave out the layers of a file that predict further tokens; it writes none.
function experts.without_further_layers(Model)
   -- Returns whether a tensor of a file is of a layer behind the last.
   function Model:_leaves_out(name)
      local c, i = self.config, tonumber(name:match '^model%.layers%.(%d+)%.')
      return i ~= nil and i >= c.num_hidden_layers
         and i < c.num_hidden_layers + c.num_nextn_predict_layers
   end

   -- Makes the fields of config.json of c.
   function Model.publish(c) c.num_nextn_predict_layers = 0 end
end

-- Rules that families share: those without the fields of a loss of the router, which transformers
-- does not have there, refuse it; experts have no biases.
experts.only = { output_router_logits = false }
experts.free = 'router_aux_loss_coef'
experts.no_bias = { why = 'experts have no biases' }

-- Returns the relation between the two fields.
function experts.fit(name)
   return signature.options { ('where num_experts_per_tok <= %s -- num_experts_per_tok '
      .. '({num_experts_per_tok}) must be at most %s ({%s})'):format(name, name, name) }
end

-- Returns the entry of model:stored() for a tensor of a file in which parameters of a mixture lie
-- side by side along dim 2; nil where one of them is no parameter (its numbers lie in NF4). layer:
-- of nn.mixtures; fields: names of the parameters. how: nil, or a table with alternate (rows take
-- turns) and transposed (the last two dims are exchanged).
function experts.joined(name, layer, fields, how)
   how = how or {}
   local parts, rows = {}, 0
   for i, field in ipairs(fields) do
      if not layer.m[field] then return nil end
      local shape = layer.m[field].shape
      parts[i] = { name = names_.join(layer.path, field), shape = shape,
         first = how.alternate and i - 1 or rows }
      rows = rows + shape[2]
   end
   local shape = { unpack(parts[1].shape) }
   shape[2] = rows
   if how.transposed then shape[2], shape[3] = shape[3], shape[2] end
   return { name = name, shape = shape, parts = parts, along = 2, alternate = how.alternate,
      transposed = how.transposed }
end

-- Adds the tensors of a file that hold the weights of a layer of nn.mixtures: each projection of
-- all experts in one, the gate beside the up projection, and the router. block: the name of the
-- layer's part in the file; entry_of: makes the entry of a projection, experts.joined if nil.
function experts.add_together(list, layer, block, entry_of)
   entry_of = entry_of or experts.joined
   list[#list + 1] = entry_of(block .. '.experts.gate_up_proj', layer, { 'gate_proj', 'up_proj' })
   list[#list + 1] = entry_of(block .. '.experts.down_proj', layer, { 'down_proj' })
   list[#list + 1] = renamed(block .. '.gate.weight', names_.join(layer.path, 'router'),
      layer.m.router.shape)
end

-- Adds the tensors of a file that hold the parameter or buffer `field` of an nn.MoE. block: the
-- name of the layer's part in the file.
local function add_stored(list, block, own, field, shape, names)
   if field == 'router' then
      list[#list + 1] = renamed(block .. '.gate.weight', own, shape)
   elseif field == 'router_bias' then
      list[#list + 1] = renamed(block .. '.gate.e_score_correction_bias', own, shape)
   elseif field:find '_latent_proj$' then                  -- of all experts
      list[#list + 1] = renamed(('%s.%s.weight'):format(block, field), own, shape)
   elseif names[field] then
      for i = 0, shape[1] - 1 do
         list[#list + 1] = { shape = { shape[2], shape[3] },
            name = ('%s.experts.%d.%s.weight'):format(block, i, names[field]),
            parts = { { name = own, shape = shape, slice = i } } }
      end
   end
end

-- Makes a class of decoders one whose files hold each expert apart. names: how files call the
-- parts of a layer: block, and the projections gate_proj, up_proj and down_proj. part: the child of
-- a block that holds the experts.
function experts.store_apart(Model, names, part)
   local before = ('^(.*)%%.%s%%.'):format(part)
   Model._lists_experts = true          -- a file has tensors of each expert

   -- Returns the tensors of a published file that hold parts of the experts (see model/stored.lua).
   function Model:stored()
      local list = {}
      local function add(e, shape)
         if not class.is(e.owner, nn.MoE) then return end
         local layer = e.name:match(before)
         add_stored(list, layer .. '.' .. names.block, e.name, e.field, shape, names)
      end
      for _, e in ipairs(self:named_parameters()) do add(e, e.param.shape) end
      for _, e in ipairs(self:named_buffers()) do add(e, e.buffer.shape) end
      return list
   end
end

-- Returns a class of decoders as Llama, whose MLPs are experts that files hold apart.
function experts.derive(name, names)
   local Model = class(name, Llama)
   experts.store_apart(Model, names, 'mlp')
   return Model
end

-- How transformers and PEFT have the experts of most families (see pretrained/peft_moe.lua).
experts.peft = { router = 'gate', takes_names = true }

-- How files of most families call them.
experts.usual = { block = 'mlp', gate_proj = 'gate_proj', up_proj = 'up_proj',
   down_proj = 'down_proj' }

return experts
