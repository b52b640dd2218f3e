-- Routing: which experts a token uses, and their factors, from the logits of a router.
--
--    softmax   the k largest of p = softmax(logits); factors p. With groups, those of the groups
--              with the largest p (DeepSeek-V2)
--    sigmoid   the k largest of s + bias, s = sigmoid(logits); factors s (DeepSeek-V3, arXiv
--              2412.19437). With groups, only experts of the best groups are candidates; the score
--              of a group is the sum of its two largest s + bias.
-- Legend: N tokens, E experts, G groups, k experts of a token.

local tide = require 'tide'
local private = require 'tide.util.private'

local routing = {}

-- Returns the scores [N, E], `outside` but for those of the topk_groups groups of each token whose
-- n largest scores have the largest sums.
local function of_best_groups(scores, o, n, outside)
   local N, E = scores:size(1), scores:size(2)
   local size = E / o.groups
   local best = scores:reshape(N, o.groups, size):topk(n, -1):sum(-1)
   local _, ids = best:topk(o.topk_groups, -1)
   local ones = tide.ones_like(best:narrow(2, 1, o.topk_groups))
   local chosen = tide.zeros_like(best):scatter_add(-1, ids, ones)
   local out = chosen:unsqueeze(-1):expand(N, o.groups, size):reshape(N, E):eq(0)
   return scores:masked_fill(out, outside)
end

local kinds = {}

function kinds.softmax(logits, o)
   local p = logits:softmax(-1)
   if o.groups > 1 then p = of_best_groups(p, o, 1, 0) end
   local w, ids = p:topk(o.topk, -1)
   if o.norm_topk then w = w / w:sum(-1, true) end
   return ids, w
end

function kinds.sigmoid(logits, o, bias)
   local s = logits:sigmoid()
   local ids = tide.no_grad(function()
      local scores = bias and s + bias:to(s.dtype) or s
      if o.groups > 1 then scores = of_best_groups(scores, o, 2, -math.huge) end
      local _, chosen = scores:topk(o.topk, -1)
      return chosen
   end)
   local w = s:gather(-1, ids)
   if o.norm_topk then w = w / (w:sum(-1, true) + 1e-20) end      -- all may be 0
   return ids, w
end

-- Returns the experts of each token, i64 [N, k], the likeliest first, and their factors [N, k].
-- o: score ('softmax' or 'sigmoid'), topk, norm_topk, groups, topk_groups, scale.
function routing.choose(logits, o, bias)
   local ids, w = private.frame(kinds[o.score], logits, o, bias)
   return ids, o.scale ~= 1 and private.replace(w, w * o.scale) or w
end

return routing
