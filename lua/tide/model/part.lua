-- Makes what several families build from a configuration: the options of a part of a layer, and
-- experts.

local nn = require 'tide.nn'

local part = {}

-- Returns the options of a part of a model: its dtype and device, and the width of its residual
-- stream. The initial weights of projections into the stream are smaller by sqrt(branches), where
-- branches is the number of parts that add to it. So the variance of the stream does not depend on
-- depth (Radford et al., 2019).
function part.options(c, opts, branches, extra)
   extra.dim, extra.std = c.hidden_size, c.initializer_range
   extra.out_std = c.initializer_range / math.sqrt(branches)
   return nn.Module.inner(opts, extra)
end

-- Returns part.options of a model whose layers add two parts each to the stream.
function part.of_layer(c, opts, extra)
   return part.options(c, opts, 2 * c.num_hidden_layers, extra)
end

-- Returns the experts of a layer. o: options of nn.MoE, and with shared experts `shared`: hidden
-- (their width together), bias, gate (true: a gate on their output) and names (of the parts, as
-- nn.MoELayer takes them).
function part.experts(c, opts, branches, o)
   local shared = o.shared
   o.shared = nil
   local routed = nn.MoE(part.options(c, opts, branches, o))
   if not shared then return routed end
   return nn.MoELayer { routed = routed, names = shared.names,
      shared = nn.MLP(part.options(c, opts, branches, { hidden = shared.hidden, act = o.act,
         bias = shared.bias })),
      gate = shared.gate and nn.Linear(c.hidden_size, 1,
         nn.Module.inner(opts, { bias = false, std = c.initializer_range })) or nil }
end

return part
