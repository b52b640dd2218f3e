-- Tensor parallelism of a gated delta net: its heads of keys among the ranks, each with the heads
-- of values that it serves.
--
-- The code between the projections treats each head by itself, so a rank runs the layer with fewer
-- heads. The norm has one weight for all heads, whole on every rank, whose gradients are added up.

local layer = require 'tide.parallel.tp.layer'
local layout = require 'tide.parallel.layout'

local tp_delta = {}

-- Returns which rank holds what: lists of counts a rank, of heads of keys and of values, and of
-- channels of keys and of values.
function tp_delta.plan(m, n)
   local plan = { keys = layout.balanced(m.key_heads, n) }
   local function times(factor)
      local list = {}
      for r, count in ipairs(plan.keys) do list[r] = count * factor end
      return list
   end
   local values = m.heads / m.key_heads
   plan.values, plan.key_channels = times(values), times(m.key_dim)
   plan.inner, plan.times = times(values * m.head_dim), times
   plan.conv = { plan.key_channels, plan.key_channels, plan.inner }
   return plan
end

-- Returns the cuts of the projections by name (`give` of Module.tp).
function tp_delta.cuts(m, plan)
   local give = { out_proj = { blocks = { plan.inner } } }
   if m.apart then
      give.in_proj_qkv, give.in_proj_z = { blocks = plan.conv }, { blocks = { plan.inner } }
      give.in_proj_b, give.in_proj_a = { blocks = { plan.values } }, { blocks = { plan.values } }
   else
      local values = m.heads / m.key_heads
      give.in_proj_qkvz = { blocks = { plan.times(2 * (m.key_dim + values * m.head_dim)) } }
      give.in_proj_ba = { blocks = { plan.times(2 * values) } }
   end
   return give
end

-- Makes the layer one of this rank's heads, but for its projections and its norm.
function tp_delta.apply(m, env, plan)
   local rank = env.axis.rank + 1
   layer.place(m, 'dt_bias', env, 1, { plan.values })
   layer.place(m, 'A_log', env, 1, { plan.values })
   layer.place(m.conv1d, 'weight', env, 1, plan.conv)
   m.key_heads, m.heads, m.inner_dim = plan.keys[rank], plan.values[rank], plan.inner[rank]
   m.conv_dim = 2 * plan.key_channels[rank] + m.inner_dim
end

return tp_delta
