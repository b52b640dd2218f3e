-- Experts of published decoders: the fields that their configurations share, and the tensors of
-- their files, which hold each projection of each expert apart. A parameter of nn.MoE has those of
-- all experts; model:stored() maps the one to the other.

local Llama = require 'tide.model.llama'
local class = require 'tide.class'
local nn = require 'tide.nn'
local signature = require 'tide.util.signature'

local experts = {}

local count = 'integer >= 1'

-- Returns the fields of a family with experts, before its own. name: of the field with their count.
function experts.fields(name, default, topk)
   return { { name, default, count }, { 'num_experts_per_tok', topk, count } }
end

-- Rules that these families share: a loss of the router, which tide does not have, and biases.
experts.only = { output_router_logits = false }
experts.free = 'router_aux_loss_coef'
experts.no_bias = { why = 'experts have no biases' }

-- Returns the relation between the two fields.
function experts.fit(name)
   return signature.options { ('where num_experts_per_tok <= %s -- num_experts_per_tok '
      .. '({num_experts_per_tok}) must be at most %s ({%s})'):format(name, name, name) }
end

-- Returns a class of decoders whose `names` say how files call the parts of a layer: block, and the
-- projections gate_proj, up_proj and down_proj.
function experts.derive(name, names)
   local Model = class(name, Llama)

   -- Returns the tensors of a published file that hold parts of the experts (see model/gpt2.lua).
   function Model:stored()
      local list = {}
      for _, e in ipairs(self:named_parameters()) do
         local path = class.is(e.owner, nn.MoE) and e.name:match '^(.*)%.mlp%.[%w_]+$'
         local shape, block = e.param.shape, path and path .. '.' .. names.block
         if path and e.field == 'router' then
            list[#list + 1] = { name = block .. '.gate.weight', shape = shape,
               parts = { { name = e.name, shape = shape, first = 0 } } }
         elseif path then
            for i = 0, shape[1] - 1 do
               list[#list + 1] = { shape = { shape[2], shape[3] },
                  name = ('%s.experts.%d.%s.weight'):format(block, i, names[e.field]),
                  parts = { { name = e.name, shape = shape, slice = i } } }
            end
         end
      end
      return list
   end
   return Model
end

-- How files of most families call them.
experts.usual = { block = 'mlp', gate_proj = 'gate_proj', up_proj = 'up_proj',
   down_proj = 'down_proj' }

return experts
