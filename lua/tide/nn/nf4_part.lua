-- Weights in NF4 of a module, and their parts: what a rank of tensor parallelism keeps of one.
--
-- A weight [out, in] at a field of a module is two buffers, <field>_nf4 and <field>_scale. Those of
-- experts, [experts, out, in], have a row for each expert, which is coded by itself.
--
-- A part is one box [rows, cols] of the weight [out, in], or several where projections are fused.
-- A part keeps the codes of the numbers of each box, and those of the magnitudes of all blocks that
-- the box touches, as tide.linear_nf4_part reads them. The scale is whole on all ranks: 4 bytes for
-- 16384 numbers of the weight. So a part has exactly the numbers of the whole, wherever blocks of
-- 64 and groups of 256 magnitudes are cut.
--
-- Expert parallelism gives a rank the rows of its experts, of codes and of scales:
-- module._dealt[name] is the layout of a buffer along dim 1, see parallel/expert_parallel.lua.
--
-- module._layout[<field>_nf4] is the layout of the weight (of one expert) on the axis, and
-- module[<field>_boxes] the boxes of this rank. A box: rows, cols; first, stride (its row r begins
-- at number first + r * stride of the weight); per_row (codes of magnitudes a row; nil where rows
-- follow each other and share blocks); row (its first row in the part); at, nbyte (where its codes
-- lie in those of the part).

local tide = require 'tide'
local private = require 'tide.util.private'

local part = {}

-- Returns the names of the fields that codes, scale and boxes of the weight at a field have.
function part.names(field) return field .. '_nf4', field .. '_scale', field .. '_boxes' end

local block_size = 64
local panel = 2 ^ 18                 -- numbers that each_rows reads at a time

local function blocks(n) return math.ceil(n / block_size) end
local function pairs_of(n) return math.ceil(n / 2) end
local function block_of(place) return math.floor(place / block_size) end

-- Returns the layout of a buffer { owner, field }, or nil where it is whole.
local function layout_of(b)
   local all = rawget(b.owner, '_layout')
   return all and all[b.field]
end

-- Returns the layout of the rows of a buffer { owner, field, buffer }, or nil where they are those
-- of all experts.
local function dealt_of(b)
   local all = b.buffer.ndim == 2 and rawget(b.owner, '_dealt')
   return all and all[b.field] or nil
end

-- ---- boxes -------------------------------------------------------------------------------------

-- Returns a box of a weight whose rows have `stride` numbers.
local function box_of(rows, cols, first, stride)
   local b = { rows = rows, cols = cols, first = first, stride = stride }
   if cols ~= stride then
      b.per_row = stride % block_size == 0 and blocks(first % block_size + cols)
         or math.floor((cols + block_size - 2) / block_size) + 1
   end
   b.npair = pairs_of(rows * cols)
   b.nblock = b.npair == 0 and 0 or b.per_row and rows * b.per_row
      or blocks(first + rows * cols) - block_of(first)
   b.nbyte = b.npair + b.nblock
   return b
end

-- Returns the boxes that a rank (from 0; nil: this one) has of a weight, by its layout; and their
-- bytes.
local function boxes_of(layout, rank)
   local list, at, row = {}, 0, 0
   for i, box in ipairs(layout:boxes(rank)) do
      local b = box_of(box.size[1], box.size[2], box.start, layout.shape[2])
      b.at, b.row = at, row
      at, row, list[i] = at + b.nbyte, row + b.rows, b
   end
   return list, at
end

-- Refuses boxes of a weight [rows, cols] that hold half of a byte of the whole: two numbers of it
-- must be two numbers of one byte of the box.
local function check_boxes(on, layout, dim)
   local rows, cols = layout.shape[1], layout.shape[2]
   for rank = 0, on.ranks - 1 do
      for _, b in ipairs(boxes_of(layout, rank)) do
         if b.first % 2 ~= 0 or b.cols ~= b.stride and (b.cols % 2 ~= 0 or b.stride % 2 ~= 0) then
            on:refuse('a weight [%d, %d] in NF4 keeps two numbers a byte, and tp of %d ranks cuts '
               .. 'it along dim %d at an odd number; take a tp whose parts are even, dp_shard or '
               .. 'cp in its place, or leave out NF4', rows, cols, on.ranks, dim)
         end
      end
   end
end

-- Returns the result of Module.tp for the weight in NF4 at a field that is cut along dim. shape:
-- that of the weight, or of one expert; on: as in Module.tp; blocks: equal parts of the rows, or
-- lists of their counts.
function part.answer(m, on, field, shape, dim, blocks_)
   local layout = on:layout(shape, dim, blocks_)
   local codes_at, _, boxes_at = part.names(field)
   check_boxes(on, layout, dim)
   return { layout = layout, place = function()
      local list, nbyte = boxes_of(layout)
      local codes = m[codes_at]
      rawset(m, boxes_at, list)
      if codes.device == 'null' then
         local size = codes.ndim == 2 and { codes:size(1), nbyte } or { nbyte }
         m[codes_at] = tide.empty(size, { dtype = 'u8', device = 'null' })
      else
         m[codes_at] = tide.no_grad(part.cut, layout, codes)
      end
   end }
end

-- Returns how many numbers of a module's weights are codes, of all ranks.
function part.numel(m)
   local n = 0
   for _, name in ipairs(m._buffer) do
      local field = name:match '^(.*)_nf4$'
      if field then
         local layout = layout_of { owner = m, field = name }
         local rows, cols
         if layout then rows, cols = layout.shape[1], layout.shape[2]
         elseif m._shape then rows, cols = m:_shape(field)
         else rows, cols = m.nout, m.nin end
         n = n + rows * cols * (m[name].ndim == 2 and m.experts or 1)
      end
   end
   return n
end

-- ---- cutting and joining ------------------------------------------------------------------------

-- Returns the pairs of a box in those of a whole weight: a view.
local function pairs_in(codes, n, b)
   if not b.per_row then return codes:narrow(1, b.first / 2 + 1, b.npair) end
   local row, half = math.floor(b.first / b.stride), b.stride / 2
   return codes:narrow(1, 1, n / 2):reshape(-1, half):narrow(1, row + 1, b.rows)
      :narrow(2, b.first % b.stride / 2 + 1, b.cols / 2)
end

local function count(n, device) return tide.arange(0, n, 1, { dtype = 'f64', device = device }) end

-- Returns what fn gives for each row of codes, as rows.
local function rows_of(codes, fn)
   local list = {}
   for e = 1, codes:size(1) do
      list[e] = tide.scope(function() return fn(codes:select(1, e), e):unsqueeze(1) end)
   end
   return tide.cat(list, 1)
end

-- Returns the codes that a rank (from 0; nil: this one) keeps of those of a whole weight, or of one
-- for each expert.
function part.cut(layout, codes, rank)
   if codes.ndim == 2 then
      return rows_of(codes, function(row) return part.cut(layout, row, rank) end)
   end
   local n = layout.shape[1] * layout.shape[2]
   local magnitudes = codes:narrow(1, pairs_of(n) + 1, blocks(n))
   local list = {}
   for _, b in ipairs(boxes_of(layout, rank)) do
      list[#list + 1] = pairs_in(codes, n, b):reshape(-1)
      if b.per_row then
         local start = ((count(b.rows, codes.device) * b.stride + b.first) / block_size):floor()
         local at = start:reshape(-1, 1) + count(b.per_row, codes.device)
         list[#list + 1] = magnitudes:index_select(1,
            at:clamp(0, blocks(n) - 1):to 'i64':reshape(-1))
      else
         list[#list + 1] = magnitudes:narrow(1, block_of(b.first) + 1, b.nblock)
      end
   end
   return tide.cat(list, 1)
end

-- Returns the codes of a whole weight from those of all ranks, one after another. A block's
-- magnitude is taken from the box that has its first number.
local function join(layout, all)
   local rows, cols = layout.shape[1], layout.shape[2]
   local n, device, before = rows * cols, all.device, 0
   local codes = tide.empty({ pairs_of(n) + blocks(n) }, { dtype = 'u8', device = device })
   local block = count(blocks(n), device)
   local row = (block * block_size / cols):floor()
   local col, from = block * block_size - row * cols, block * 0
   for rank = 0, layout.axis.size - 1 do
      local list, nbyte = boxes_of(layout, rank)
      for _, b in ipairs(list) do
         local at = before + b.at
         local to, top, left = pairs_in(codes, n, b), math.floor(b.first / cols), b.first % cols
         to:copy_(all:narrow(1, at + 1, b.npair):reshape(to.shape))
         local r, slot = row - top, block - block_of(b.first)
         if b.per_row then
            slot = r * b.per_row + block - ((r * b.stride + b.first) / block_size):floor()
         end
         local off = (left - col):maximum(col - left - b.cols + 1)
         off = off:maximum(r - b.rows + 1):maximum(r * -1)
         from = tide.where(off:le(0), slot + at + b.npair, from)
      end
      before = before + nbyte
   end
   codes:narrow(1, pairs_of(n) + 1, blocks(n)):copy_(all:index_select(1, from:to 'i64'))
   return codes
end

-- ---- buffers of a model -------------------------------------------------------------------------
-- b: an entry of model:named_buffers(). One that is not cut is the whole.

-- Returns an axis over which a buffer is cut, or nil: that of tensor parallelism if there are two.
function part.axis(b)
   local layout = layout_of(b) or dealt_of(b)
   return layout and layout.axis
end

-- Returns the shape of the whole buffer.
function part.shape(b)
   local layout, dealt, shape = layout_of(b), dealt_of(b), b.buffer.shape
   if layout then
      local n = layout.shape[1] * layout.shape[2]
      shape[#shape] = pairs_of(n) + blocks(n)
   end
   if dealt then shape[1] = dealt.shape[1] end
   return shape
end

-- Returns the number of the first expert (from 0) whose codes a buffer of a module has, and how
-- many it has. all: the experts of the layer.
function part.experts_here(m, field, all)
   local dealt = dealt_of { owner = m, field = field, buffer = m[field] }
   return dealt and dealt:boxes()[1].offset[1] or 0, dealt and m[field]:size(1) or all
end

-- Fills a buffer from the whole one.
function part.fill(b, whole)
   local layout, dealt = layout_of(b), dealt_of(b)
   if dealt then whole = dealt:cut(whole) end
   b.buffer:copy_(layout and part.cut(layout, whole) or whole)
end

-- Returns the codes of all ranks for one expert, one rank after another, from those of all experts.
local function of_expert(all, counts, experts, e)
   local list, before = {}, 0
   for i, nbyte in ipairs(counts) do
      list[i] = all:narrow(1, before + (e - 1) * nbyte + 1, nbyte)
      before = before + experts * nbyte
   end
   return tide.cat(list, 1)
end

-- Returns a copy of a buffer, joined from the ranks that tensor parallelism cuts it over.
local function joined(b)
   local layout, counts, sizes = layout_of(b), {}, {}
   if not layout then return b.buffer:detach():clone() end
   local experts = b.buffer.ndim == 2 and b.buffer:size(1) or 1
   for rank = 0, layout.axis.size - 1 do
      local _, nbyte = boxes_of(layout, rank)
      counts[rank + 1], sizes[rank + 1] = nbyte, experts * nbyte
   end
   return tide.scope(function()
      local all = layout.axis.comm:all_gather_v(b.buffer:reshape(-1), sizes)
      if b.buffer.ndim == 1 then return join(layout, all) end
      return rows_of(b.buffer, function(_, e)
         return join(layout, of_expert(all, counts, experts, e))
      end)
   end)
end

-- Returns a copy of the whole buffer; all ranks of its axes call it, where it is cut.
function part.gather(b)
   local dealt, t = dealt_of(b), joined(b)
   return dealt and private.replace(t, dealt:gather(t)) or t
end

-- ---- computing ----------------------------------------------------------------------------------

-- Returns the product of a layer with its part of the weight. self: the layer, or as a wrap sees
-- it.
function part.product(self, x)
   local list, ys = self.weight_boxes, {}
   for i, b in ipairs(list) do
      local bias = self.bias or nil
      ys[i] = tide.linear_nf4_part(x, self.weight_nf4:narrow(1, b.at + 1, b.nbyte),
         self.weight_scale, bias and #list > 1 and bias:narrow(1, b.row + 1, b.rows) or bias,
         b.rows, b.first, b.stride)
   end
   if #list == 1 then return ys[1] end
   local y = tide.cat(ys, -1)
   private.spend_list(ys)
   return y
end

-- Returns the products of rows of x in groups with the experts' weights at a field, [rows, cols] of
-- each where they are whole.
function part.grouped(self, x, field, offsets, rows, cols)
   local codes, scale, boxes = part.names(field)
   local b = self[boxes] and self[boxes][1]
   return tide.grouped_linear_nf4(x, self[codes], self[scale], offsets, b and b.rows or rows,
      b and b.first or 0, b and b.stride or cols)
end

-- Calls fn(W, row, n) with n rows of this rank's part of the weight of a layer at a time, in f32
-- [n, cols], the first of them `row` (from 0); they are gone afterwards.
function part.each_rows(m, fn)
   for _, b in ipairs(m.weight_boxes or { box_of(m.nout, m.nin, 0, m.nin) }) do
      local begin = b.at or 0
      local magnitudes, step = begin + b.npair, math.max(2, math.floor(panel / b.cols / 2) * 2)
      for a = 0, b.rows - 1, step do
         local one = box_of(math.min(step, b.rows - a), b.cols, b.first + a * b.stride, b.stride)
         local skip = b.per_row and a * b.per_row or block_of(one.first) - block_of(b.first)
         tide.scope(function()
            local codes = tide.cat({ m.weight_nf4:narrow(1, begin + a * b.cols / 2 + 1, one.npair),
               m.weight_nf4:narrow(1, magnitudes + skip + 1, one.nblock) }, 1)
            fn(tide.dequantize_nf4_part(codes, m.weight_scale, one.rows, b.cols, one.first,
               b.stride), (b.row or 0) + a, one.rows)
         end)
      end
   end
end

return part
