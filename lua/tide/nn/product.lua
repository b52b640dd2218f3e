-- Returns whether the call of a Linear is nothing but the product of its weight and bias, so that
-- an op that does more at once may replace it.

local Linear = require 'tide.nn.linear'
local wrap = require 'tide.nn.wrap'

local product = {}

local function is_of_weight(m, forward)
   return forward == Linear.forward and m.product == Linear.product and not m.weight_nf4
end

-- Returns whether the call of m has no wraps but recomputation, which a product does not need: its
-- operands are kept, not its result.
local function is_bare(m)
   if m._call == Linear._call then return true end
   local list = wrap.list(m, 'call')
   for _, entry in ipairs(list) do
      if entry.by ~= 'recompute' then return false end
   end
   return #list > 0
end

-- Returns whether the call of m is nothing but its product: tide.linear, or tide.linear_fp8.
function product.is_all(m) return is_of_weight(m, m.forward) and is_bare(m) end

-- Returns whether the call of m is nothing but tide.linear.
function product.is_plain(m) return product.is_all(m) and not m.fp8 end

-- Returns whether the innermost wrap of m's forward has this name, and wraps tide.linear alone.
function product.is_plain_inside(m, name)
   return is_of_weight(m, wrap.base(m, 'forward')) and not m.fp8
      and wrap.list(m, 'forward')[1].name == name
end

return product
