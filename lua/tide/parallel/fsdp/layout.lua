-- How the parameters of one flat buffer are cut among ranks: integers only.
--
-- Parameters lie end to end, and a cut falls on the row (index of dim 1) whose start
-- is nearest to an equal share. So every rank holds a few runs of whole rows, a gather of the
-- shards gives every parameter as a view, and nothing is padded or copied. Shards differ by at most
-- one row of the parameters at their ends; with more ranks than rows some are empty.
--
-- Offsets count elements from 0; rows count from 0 as well. Ranks count from 0.

local layout = {}

-- Returns the elements of a shape, its rows, and the elements of one row. A scalar is one row.
function layout.measure(shape)
   local rows, width = shape[1] or 1, 1
   for d = 2, #shape do width = width * shape[d] end
   return rows * width, rows, width
end

-- Returns the row boundary nearest to element `at`; items in order, each with first, rows, width,
-- numel.
local function nearest(items, at)
   local found = 0
   for _, item in ipairs(items) do
      if item.numel > 0 then
         if at <= item.first then break end
         local k = math.min(item.rows, math.floor((at - item.first) / item.width + 0.5))
         found = item.first + k * item.width
      end
   end
   return found
end

-- Returns the runs of rows between elements first and last (exclusive).
local function pieces(items, first, last)
   local list = {}
   for i, item in ipairs(items) do
      local a = math.max(first, item.first)
      local b = math.min(last, item.first + item.numel)
      if b > a then
         list[#list + 1] = {
            index = i, row = (a - item.first) / item.width, rows = (b - a) / item.width,
            offset = a - first, numel = b - a, start = a - item.first,
         }
      end
   end
   return list
end

-- Divides the rows of a list of shapes among `size` ranks. Returns { total, items, counts (elements
-- a rank), cuts, pieces }. Item i is { first, numel, rows, width, shape }. pieces[rank + 1] is a
-- list of { index (of the item), row, rows, start (element within the item), offset (element within
-- the shard), numel }.
function layout.new(shapes, size)
   local items, total = {}, 0
   for i, shape in ipairs(shapes) do
      local numel, rows, width = layout.measure(shape)
      items[i] = { first = total, numel = numel, rows = rows, width = width, shape = shape }
      total = total + numel
   end
   local self = { total = total, items = items, counts = {}, cuts = {}, pieces = {} }
   for r = 0, size do self.cuts[r + 1] = r == size and total or nearest(items, total * r / size) end
   for r = 1, size do
      self.counts[r] = self.cuts[r + 1] - self.cuts[r]
      self.pieces[r] = pieces(items, self.cuts[r], self.cuts[r + 1])
   end
   return self
end

return layout
