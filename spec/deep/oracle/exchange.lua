-- Orders of tokens and exchanges of tokens against heads by their definitions, on lists of rows.

local layout = require 'spec.deep.oracle.layout'

local exchange = {}

-- Rows (from 0) of x in the order that reorder_chunks gives: each document of cu in #order equal
-- chunks, chunk order[k] at place k.
function exchange.reorder(order, cu)
   local rows = {}
   for d = 1, #cu - 1 do
      local size = (cu[d + 1] - cu[d]) / #order
      for _, k in ipairs(order) do
         for i = 0, size - 1 do rows[#rows + 1] = cu[d] + k * size + i end
      end
   end
   return rows
end

-- Chunks of a sequence in rank order (r, 2 W - 1 - r for each rank), and the inverse.
function exchange.redo_order(W)
   local list = {}
   for r = 0, W - 1 do
      list[#list + 1] = r
      list[#list + 1] = 2 * W - 1 - r
   end
   return list
end

function exchange.inverse(list)
   local out = {}
   for place, k in ipairs(list) do out[k + 1] = place - 1 end
   return out
end

-- Rows of a rank-major packed stream in the order of documents; cu in tokens of one rank.
function exchange.deinterleave(cu, W)
   local rows, each = {}, cu[#cu]
   for d = 1, #cu - 1 do
      for r = 0, W - 1 do
         for i = cu[d], cu[d + 1] - 1 do rows[#rows + 1] = r * each + i end
      end
   end
   return rows
end

-- For each token of a stream of documents cu its place in rank order, every document a zigzag.
function exchange.places(cu, W)
   local all = {}
   for r = 0, W - 1 do
      for _, g in ipairs(layout.document(cu, W, r)) do all[#all + 1] = g end
   end
   return exchange.inverse(all)
end

-- Columns (from 0) that rank r of W has of a projection [z | x | B | C | dt]; o: H, P, G, N.
function exchange.columns(o, W, r)
   local list, I, heads = {}, o.H * o.P, o.H / W
   local repeats = o.G < W and W / o.G or 1
   local groups = o.G < W and 1 or o.G / W
   local function add(base, first, n)
      for k = 0, n - 1 do list[#list + 1] = base + first + k end
   end
   local group = math.floor(r / repeats) * groups * o.N
   add(0, r * heads * o.P, heads * o.P)
   add(I, r * heads * o.P, heads * o.P)
   add(2 * I, group, groups * o.N)
   add(2 * I + o.G * o.N, group, groups * o.N)
   add(2 * I + 2 * o.G * o.N, r * heads, heads)
   return list
end

-- Rows (from 0) of the convolution's parameters that rank r has.
function exchange.conv_rows(o, W, r)
   local I, list, heads = o.H * o.P, {}, o.H / W
   local skip = 2 * heads * o.P
   local columns = exchange.columns(o, W, r)
   for k = heads * o.P + 1, #columns - heads do list[#list + 1] = columns[k] - I end
   assert(#list == #columns - skip / 2 - heads)
   return list
end

return exchange
