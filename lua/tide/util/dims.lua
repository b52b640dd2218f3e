-- Lists of whole numbers, one a dim: shapes, offsets, strides.

local dims = {}

-- Returns a list of its own with the same numbers.
function dims.copy(list) return dims.slice(list, 1) end

-- Returns the entries first .. last (to the end by default), as a list of their own.
function dims.slice(list, first, last)
   local out = {}
   for d = first, last or #list do out[#out + 1] = list[d] end
   return out
end

-- Returns n zeros.
function dims.zeros(n)
   local list = {}
   for d = 1, n do list[d] = 0 end
   return list
end

-- Returns n zeros, but `value` at d.
function dims.only(n, d, value)
   local list = dims.zeros(n)
   list[d] = value
   return list
end

-- Returns the sum of the first `last` numbers; of all by default.
function dims.sum(list, last)
   local n = 0
   for d = 1, last or #list do n = n + list[d] end
   return n
end

-- Returns the sums of the first 0, 1, .. #list numbers.
function dims.cumulative(list)
   local sums = { 0 }
   for d, n in ipairs(list) do sums[d + 1] = sums[d] + n end
   return sums
end

-- Returns the strides of a contiguous tensor, in elements; the last one is 1.
function dims.strides(shape)
   local list, n = {}, 1
   for d = #shape, 1, -1 do list[d], n = n, n * shape[d] end
   return list
end

-- Returns the product: 1 for no dims.
function dims.numel(shape)
   local n = 1
   for _, size in ipairs(shape) do n = n * size end
   return n
end

-- Returns whether two lists have the same numbers.
function dims.equal(a, b)
   if #a ~= #b then return false end
   for d = 1, #a do
      if a[d] ~= b[d] then return false end
   end
   return true
end

-- Returns a list as "[2, 3]".
function dims.text(list) return '[' .. table.concat(list, ', ') .. ']' end

-- ---- boxes { offset, size }, lists with an entry a dim -----------------------------------------

-- Returns the view of tensor t on a box. from: where t begins in what the box counts from; zeros by
-- default.
function dims.view(t, offset, size, from)
   for d = 1, #size do
      if size[d] ~= t:size(d) then
         t = t:narrow(d, offset[d] - (from and from[d] or 0) + 1, size[d])
      end
   end
   return t
end

-- Returns whether two boxes of the same tensor have an element in common.
function dims.overlap(a, b)
   for d = 1, #a.size do
      local from = math.max(a.offset[d], b.offset[d])
      local to = math.min(a.offset[d] + a.size[d], b.offset[d] + b.size[d])
      if from >= to then return false end
   end
   return true
end

-- Returns the part of box a outside of b, as boxes that do not overlap.
function dims.minus(a, b)
   if not dims.overlap(a, b) then return { a } end
   local rest, offset, size = {}, { unpack(a.offset) }, { unpack(a.size) }
   local function add(d, from, to)
      if from >= to then return end
      local box = { offset = { unpack(offset) }, size = { unpack(size) } }
      box.offset[d], box.size[d] = from, to - from
      rest[#rest + 1] = box
   end
   for d = 1, #size do
      local first, last = offset[d], offset[d] + size[d]
      local from, to = math.max(first, b.offset[d]), math.min(last, b.offset[d] + b.size[d])
      add(d, first, from)
      add(d, to, last)
      offset[d], size[d] = from, to - from
   end
   return rest
end

return dims
