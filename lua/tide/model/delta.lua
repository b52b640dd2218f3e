-- What the families with gated delta nets share: their fields, and their layers.

local nn = require 'tide.nn'
local signature = require 'tide.util.signature'
local Backbone = require 'tide.model.backbone'
local part = require 'tide.model.part'

local delta = {}

local count = 'integer >= 1'

-- Kinds of layers in layer_types.
delta.kinds = { 'linear_attention', 'full_attention' }

-- Returns the kind of each layer of a configuration that does not list them.
local function kinds_of(c)
   local list = {}
   for i = 1, c.num_hidden_layers do
      list[i] = i % c.full_attention_interval == 0 and 'full_attention' or 'linear_attention'
   end
   return list
end

-- Returns a list of rows of fields with those of gated delta nets after them.
function delta.fields(rows)
   for _, row in ipairs {
      { 'partial_rotary_factor', 0.25, 'number in [1e-9, 1]', float = true },
      { 'full_attention_interval', 4, count }, { 'layer_types', kinds_of },
      { 'linear_conv_kernel_dim', 4, 'integer in [2, 4]' },
      { 'linear_key_head_dim', 128, count }, { 'linear_value_head_dim', 128, count },
      { 'linear_num_key_heads', 16, count }, { 'linear_num_value_heads', 32, count },
   } do rows[#rows + 1] = row end
   return rows
end

-- Fields of sizes, those of experts among them.
delta.sizes = { 'moe_intermediate_size', 'shared_expert_intermediate_size', 'linear_key_head_dim',
   'linear_value_head_dim', 'linear_num_key_heads', 'linear_num_value_heads',
   'linear_conv_kernel_dim' }

-- Returns a check of relations of the fields: that of the heads, and more rows.
function delta.where(more)
   return signature.options { { 'where linear_num_value_heads % linear_num_key_heads == 0 -- '
      .. 'linear_num_value_heads ({linear_num_value_heads}) must be a multiple of '
      .. 'linear_num_key_heads ({linear_num_key_heads})' }, more or {} }
end

-- Drops a field that has done its part: layer_types says where attention is.
function delta.complete(c) c.full_attention_interval = nil end

-- Returns what makes the gated delta net of a layer and names it, or returns nil for a layer with
-- attention (`mixer` of a family). apart: the form of its projections.
function delta.mixer(apart)
   return function(c, _, i, opts)
      if c.layer_types[i] ~= 'linear_attention' then return nil end
      return nn.GatedDeltaNet(part.options(c, opts, 2 * c.num_hidden_layers, {
         heads = c.linear_num_value_heads, head_dim = c.linear_value_head_dim,
         key_heads = c.linear_num_key_heads, key_dim = c.linear_key_head_dim,
         conv = c.linear_conv_kernel_dim, norm_eps = c.rms_norm_eps, apart = apart,
         recurrence_dtype = opts.recurrence_dtype })), 'linear_attn'
   end
end

-- Gives the attention of a layer its gate and its norms (`layer` of a family).
function delta.layer(c, _, mixer)
   mixer.gate, mixer.qk_norm = true, { eps = c.rms_norm_eps, offset = 1 }
end

-- Names of the shared expert and its gate.
delta.shared = { shared = 'shared_expert', gate = 'shared_expert_gate' }

-- Returns a class of decoders with layers that keep a state, whose files may also hold a layer that
-- predicts further tokens; it is left out.
function delta.of(Model)
   Model._options = { 'recurrence_dtype' }
   Model._read_place, Model.at_fields = Backbone._read_place, Backbone.at_fields

   -- Returns whether a tensor of a file is of a layer that predicts further tokens.
   function Model._leaves_out(_, name) return name:find '^mtp%.' ~= nil end

   return Model
end

return delta
