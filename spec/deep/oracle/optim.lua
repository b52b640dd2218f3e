-- Optimisers and clipping by their formulas, on flat lists of Lua numbers.

local optim = {}

-- Rounds to f32 by a function given, or not at all.
local function as_is(v) return v end

-- One update of AdamW (decoupled decay). s: { m, v, step }, made at the first call; o: lr, beta1,
-- beta2, eps, weight_decay (0 where the parameter does not decay).
function optim.AdamW(p, g, s, o)
   s.step = (s.step or 0) + 1
   s.m, s.v = s.m or {}, s.v or {}
   local c1, c2 = 1 - o.beta1 ^ s.step, 1 - o.beta2 ^ s.step
   for k = 1, #p do
      s.m[k] = o.beta1 * (s.m[k] or 0) + (1 - o.beta1) * g[k]
      s.v[k] = o.beta2 * (s.v[k] or 0) + (1 - o.beta2) * g[k] * g[k]
      p[k] = p[k] - o.lr * o.weight_decay * p[k]
         - o.lr * (s.m[k] / c1) / (math.sqrt(s.v[k] / c2) + o.eps)
   end
end

-- One update of SGD: coupled decay, momentum whose first gradient is not dampened, Nesterov.
function optim.SGD(p, g, s, o)
   local first = not s.buf
   s.buf = s.buf or {}
   for k = 1, #p do
      local d = g[k] + o.weight_decay * p[k]
      if (o.momentum or 0) > 0 then
         local b = first and d or o.momentum * s.buf[k] + (1 - (o.dampening or 0)) * d
         s.buf[k] = b
         d = o.nesterov and d + o.momentum * b or b
      end
      p[k] = p[k] - o.lr * d
   end
end

-- The norm of all lists of gradients together.
function optim.norm(lists, round)
   local sum, r = 0, round or as_is
   for _, list in ipairs(lists) do
      for _, v in ipairs(list) do sum = sum + v * v end
   end
   return r(math.sqrt(sum))
end

-- The factor on gradients of a norm that may be `most` at most (0: any).
function optim.factor(norm, most)
   return most > 0 and math.min(1, most / (norm + 1e-6)) or 1
end

return optim
