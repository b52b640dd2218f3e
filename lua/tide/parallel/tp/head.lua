-- The output projection of a model whose vocabulary rows lie over ranks.

local tide = require 'tide'
local dims = require 'tide.util.dims'
local private = require 'tide.util.private'
local nn = require 'tide.nn'
local layout = require 'tide.parallel.layout'
local loss_parallel = require 'tide.parallel.loss_parallel'
local collective = require 'tide.parallel.collective_op'

local head = {}

local op = 'parallel.parallelize_module'

-- Returns the module whose rows are the output projection, with its path.
function head.of(model)
   if not model.head_loss then return end
   local weight = model:head()
   for _, entry in ipairs(model:named_parameters()) do
      if entry.param.id == weight.id then return entry.name:match '^(.*)%.[^.]+$', entry.owner end
   end
end

-- Returns what the methods of a model compute of final states where each rank has some of the V
-- rows of the head: by name, fn(model, states, ..).
function head.of_part(env, V, gather)
   local counts = layout.balanced(V, env.axis.size)
   local part = { comm = env.axis.comm or env.axis, first = dims.sum(counts, env.axis.rank),
      size = V }
   return {
      head_loss = function(me, x, labels, o)
         return nn.loss.per_count(private.note(function(x_NC, labels_N, attrs)
            return loss_parallel.linear_cross_entropy(x_NC, me:head(), labels_N, env.axis, counts,
               attrs)
         end), x, labels, o, me.op or op)
      end,
      head_distil = function(me, x, labels, teacher, o)
         return nn.distil._of_part(me.op or op, x, me:head(), labels, teacher, o, part)
      end,
      head_logprobs = function(me, x, labels, o)
         return nn.logprob._of_part(me.op or op, x, me:head(), labels, o, part)
      end,
      head_logits = function(me, x)
         local y = tide.linear(x, me:head())
         if not gather then return y end
         return private.replace(y, collective.gather_from(y, env.axis, -1, counts))
      end,
   }
end

return head
