-- What the call of a Linear amounts to: ops that do more at once may stand for a call that is
-- nothing but the product of its weight and bias.

local Linear = require 'tide.nn.linear'
local wrap = require 'tide.nn.wrap'

local product = {}

local function is_of_weight(m, forward)
   return forward == Linear.forward and m.product == Linear.product and not m.weight_nf4
end

-- Whether nothing stands around the call of m but recomputation, which is of no use for a product:
-- its result is not kept, and its operands are.
local function is_bare(m)
   if m._call == Linear._call then return true end
   local list = wrap.list(m, 'call')
   for _, entry in ipairs(list) do
      if entry.by ~= 'recompute' then return false end
   end
   return #list > 0
end

-- Whether the call of m is nothing but its product: tide.linear, or tide.linear_fp8.
function product.is_all(m) return is_of_weight(m, m.forward) and is_bare(m) end

-- Whether the call of m is nothing but tide.linear.
function product.is_plain(m) return product.is_all(m) and not m.fp8 end

-- Whether the innermost wrap of m's forward has this name, and tide.linear is all that it stands
-- around.
function product.is_plain_inside(m, name)
   return is_of_weight(m, wrap.base(m, 'forward')) and not m.fp8
      and wrap.list(m, 'forward')[1].name == name
end

return product
