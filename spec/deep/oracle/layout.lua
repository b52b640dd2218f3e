-- Which token lies on which rank, by the definitions, as lists of whole positions from 0. A
-- position at or behind the tokens is padding.

local layout = {}

local function gcd(a, b)
   while b ~= 0 do a, b = b, a % b end
   return a
end

local function lcm(a, b) return a / gcd(a, b) * b end
layout.lcm = lcm

-- The length that `length` tokens are padded to over W ranks. o: kind, multiple, tp, block. A
-- head-tail layout has two chunks a rank; tp ranks split the tokens of a rank further, and each
-- such part is a multiple of block.
function layout.padded(length, W, o)
   local halves = W > 1 and (o.kind == 'zigzag' or o.kind == 'document') and 2 or 1
   local part = lcm(halves, o.block or 1)
   local unit = lcm(W * (o.tp or 1) * part, o.multiple or 1)
   return math.ceil(length / unit) * unit
end

-- Positions of a rank: contiguous.
function layout.contiguous(S, W, rank)
   local list = {}
   for i = 0, S / W - 1 do list[i + 1] = rank * S / W + i end
   return list
end

-- Positions of a rank: chunk r and chunk 2 W - 1 - r of 2 W, from `base` on.
function layout.zigzag(S, W, rank, base, list)
   list, base = list or {}, base or 0
   if W == 1 then
      for i = 0, S - 1 do list[#list + 1] = base + i end
      return list
   end
   local c = S / (2 * W)
   for _, chunk in ipairs { rank, 2 * W - 1 - rank } do
      for i = 0, c - 1 do list[#list + 1] = base + chunk * c + i end
   end
   return list
end

-- Positions of a rank: zigzag of every slot of cumulative lengths that divide by 2 W.
function layout.document(cu, W, rank)
   local list = {}
   for d = 1, #cu - 1 do layout.zigzag(cu[d + 1] - cu[d], W, rank, cu[d], list) end
   return list
end

-- Of a stream of `length` tokens with documents in slots (cumulative lengths): each slot is rounded
-- up so that it divides among the ranks, what is left behind the last one is a slot too, and the
-- whole is padded at its end. Returns the positions of a rank and, by position + 1, the token there
-- (nil: padding).
function layout.slots(cu, length, W, o, rank)
   local halves = W > 1 and 2 or 1
   local unit = W * (o.tp or 1) * halves
   local slots, from, to = { 0 }, {}, 0
   local function add(first, n, room)
      for i = 0, n - 1 do from[to + i + 1] = first + i end
      to = to + room
      slots[#slots + 1] = to
   end
   for d = 1, #cu - 1 do
      local n = cu[d + 1] - cu[d]
      add(cu[d], n, math.ceil(n / unit) * unit)
   end
   local tail = length - cu[#cu]
   local whole = layout.padded(to + math.ceil(tail / unit) * unit, W, { kind = 'document',
      tp = o.tp, block = o.block, multiple = o.multiple })
   if whole > to then add(cu[#cu], tail, whole - to) end
   return layout.document(slots, W, rank), from
end

return layout
