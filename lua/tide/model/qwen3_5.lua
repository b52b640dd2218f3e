-- The decoder of Qwen3.5 for texts alone (model_type qwen3_5_text): that of Qwen3-Next with an MLP
-- in each layer, and four projections of a gated delta net in place of two.
--
-- Published folders also have a vision tower, see qwen3_5_vl.lua. transformers writes their decoder
-- with the names that it has there.
--
-- Texts have one position a token, so mrope_section changes nothing unless a call gives three rows.

local class = require 'tide.class'
local config_ = require 'tide.model.config'
local delta = require 'tide.model.delta'
local Llama = require 'tide.model.llama'

local Qwen3_5 = delta.of(class('Qwen3_5', Llama))

-- Drops mlp_only_layers of files, which is empty: each layer has the same MLP or experts.
local function translate(f)
   if type(f.mlp_only_layers) == 'table' and #f.mlp_only_layers == 0 then
      f.mlp_only_layers = nil
   end
end

Qwen3_5.family = {
   op = 'model.qwen3_5', fields = delta.fields {}, kinds = delta.kinds, sizes = delta.sizes,
   defaults = { head_dim = 256, max_position_embeddings = 32768 },
   without = { mlp_bias = config_.no_mlp_bias,
      sliding_window = { why = 'a Qwen3.5 attends to all tokens before' } },
   only = { attn_output_gate = true, output_gate_type = 'swish', use_sliding_window = false },
   free = 'mamba_ssm_dtype mtp_num_hidden_layers mtp_use_dedicated_embeddings max_window_layers',
   rename = function(name) return (name:gsub('^model%.language_model%.', 'model.')) end,
   translate = translate, where = delta.where(), complete = delta.complete,
   norm_offset = 1, mixer = delta.mixer(true), layer = delta.layer,
}

return Qwen3_5
