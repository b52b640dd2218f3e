-- Layout: how the parameters of a module lie on a mesh axis. Integers only.
--
--    module._layout[field] = { axis, placement, shape, counts, blocks, within }
--
-- A local parameter is one or more boxes of the whole one, and a box is enough to
-- fill it (the counter-based random numbers take a start and strides), save it and shard it
-- further. axis is an axis of a mesh; placement Shard(d) or Replicate; shape that of the whole;
-- counts the sizes along d on each rank of the axis. blocks (usually nil) cuts dim d first: a
-- matrix of fused projections {gate; up} has two blocks, each shared among the ranks, so that a
-- rank holds the rows of its gate and of its up; counts is then a list for each block.
--
-- within (usually nil) is the layout of another axis that cuts the whole first, along another dim:
-- experts that expert parallelism deals out along dim 1 after tensor parallelism has cut each.
--
-- A parameter without an entry is the same on all ranks and counts once. So is one with Replicate.
-- Gradients are whole: where ranks hold parts of the gradient of a replicated parameter (a norm on
-- a sequence-sharded activation), its module adds them up in backward, and no other code does it
-- again.

local dims = require 'tide.util.dims'
local err = require 'tide.util.err'
local placement = require 'tide.parallel.placement'
local signature = require 'tide.util.signature'
require 'tide.nn.module'                -- the kind 'module'

local copy, strides, sum, zeros = dims.copy, dims.strides, dims.sum, dims.zeros

local layout = {}

local Layout = { class_name = 'Layout' }
Layout.__index = Layout

-- Returns how n things are shared among `parts` ranks: the first n % parts ranks have one more.
function layout.balanced(n, parts)
   local counts, least = {}, math.floor(n / parts)
   for r = 1, parts do counts[r] = least + (r <= n % parts and 1 or 0) end
   return counts
end

local function check_counts(op, entry)
   local dim, n = entry.placement.dim, entry.axis.size
   local total = 0
   for _, counts in ipairs(entry.blocks) do
      err.type(op, 'counts', counts, 'table')
      if #counts ~= n then err.arg(op, 'counts', ('%d counts'):format(n), #counts) end
      for r = 1, n do err.integer(op, ('counts[%d]'):format(r), counts[r], 0) end
      total = total + sum(counts)
   end
   if total ~= entry.shape[dim] then
      err.arg(op, 'counts', ('counts that add up to %d, the size of dim %d'):format(
         entry.shape[dim], dim), total)
   end
end

-- Returns a checked entry. spec: axis, placement, shape, and for Shard counts (one list, or with
-- `blocks` = k a list of k lists; default: dim d, or each of k equal blocks, shared as evenly as
-- possible); within: a layout of the same whole that cuts another dim, or nil.
function layout.new(spec)
   local op = 'parallel.layout'
   local place, k = spec.placement, spec.blocks
   local entry = setmetatable({ axis = spec.axis, placement = place, shape = spec.shape,
      within = spec.within }, Layout)
   if place.kind == 'replicate' then return entry end
   if place.kind ~= 'shard' or place.dim < 1 or place.dim > #spec.shape then
      err.arg(op, 'placement', ('Replicate() or Shard of a dim in [1, %d]'):format(#spec.shape),
         tostring(place))
   end
   local size = spec.shape[place.dim]
   err.arg_if(not spec.counts and size % k ~= 0, op, 'blocks',
      ('a divisor of %d'):format(size), k)
   entry.blocks = k > 1 and spec.counts or { spec.counts }
   for i = 1, k do
      entry.blocks[i] = entry.blocks[i] or layout.balanced(size / k, spec.axis.size)
   end
   entry.counts = k > 1 and entry.blocks or entry.blocks[1]
   check_counts(op, entry)
   return entry
end

local function box(whole, offset, size, at)
   local stride, start = strides(whole), 0
   for d = 1, #whole do start = start + offset[d] * stride[d] end
   return { offset = offset, size = size, at = at, start = start, stride = stride }
end

-- Returns the boxes of what a rank (from 0, default this one) of the axis keeps of a tensor of that
-- shape, cut by this layout alone.
local function own_boxes(self, shape, rank)
   local n = #shape
   if not self.blocks then return { box(shape, zeros(n), copy(shape), zeros(n)) } end
   rank = rank or self.axis.rank
   local list, dim, before, at = {}, self.placement.dim, 0, 0
   for i, counts in ipairs(self.blocks) do
      local offset, size, here = zeros(n), copy(shape), zeros(n)
      offset[dim], size[dim] = before + sum(counts, rank), counts[rank + 1]
      here[dim] = at
      list[i] = box(shape, offset, size, here)
      before, at = before + sum(counts), at + size[dim]
   end
   return list
end

-- Returns box b of `within`, narrowed along dim to box c.
local function narrowed(whole, b, c, dim)
   local offset, size, at = copy(b.offset), copy(b.size), copy(b.at)
   offset[dim], size[dim], at[dim] = c.offset[dim], c.size[dim], c.at[dim]
   return box(whole, offset, size, at)
end

-- Returns the boxes of what a rank (from 0, default this one) of the axis holds, in order along the
-- cut dim: { offset =, size = (both a number for each dim of the whole, from 0), at = where it lies
-- in the local parameter, start =, stride = (the first element and the strides in the whole) }.
function Layout:boxes(rank)
   local own = own_boxes(self, self.shape, rank)
   if not self.within then return own end
   local list = {}
   for _, b in ipairs(self.within:boxes()) do
      for _, c in ipairs(own) do
         list[#list + 1] = narrowed(self.shape, b, c, self.placement.dim)
      end
   end
   return list
end

-- Returns the axes over which parts differ.
function Layout:axes()
   local list = self.within and self.within:axes() or {}
   if self.blocks then list[#list + 1] = self.axis end
   return list
end

-- Returns the shape of what this layout cuts: the whole, or this rank's part of it by `within`.
local function before_cut(self)
   return self.within and self.within:local_shape() or copy(self.shape)
end

-- Returns the shape of the parameter on a rank.
function Layout:local_shape(rank)
   local shape = before_cut(self)
   if not self.blocks then return shape end
   local dim, n = self.placement.dim, 0
   for _, b in ipairs(own_boxes(self, self.shape, rank)) do n = n + b.size[dim] end
   shape[dim] = n
   return shape
end

-- Returns views of a local parameter, one a box, with start and stride for filling each from the
-- whole.
function Layout:parts(t)
   local list = {}
   for i, b in ipairs(self:boxes()) do
      list[i] = { view = dims.view(t, b.at, b.size), start = b.start, stride = b.stride }
   end
   return list
end

-- Returns a rank's part of t, which `within` has cut already, as a tensor of its own.
function Layout:cut_further(t, rank)
   if not self.blocks then return t:clone() end
   local tide, list, dim = require 'tide', {}, self.placement.dim
   for i, b in ipairs(own_boxes(self, self.shape, rank)) do
      list[i] = t:narrow(dim, b.offset[dim] + 1, b.size[dim])
   end
   return #list == 1 and list[1]:clone() or tide.cat(list, dim)
end

-- Returns a rank's part of a whole tensor, as a tensor of its own.
function Layout:cut(whole, rank)
   return self:cut_further(self.within and self.within:cut(whole) or whole, rank)
end

-- Returns what `within` has left of the whole (all of it without one), joined from this axis. No
-- history. Collective over the axis.
function Layout:joined(t)
   if not self.blocks or self.axis.size == 1 then return t:detach():clone() end
   local tide, dim, counts = require 'tide', self.placement.dim, {}
   for r = 1, self.axis.size do counts[r] = self:local_shape(r - 1)[dim] end
   local all = tide.no_grad(require('tide.parallel.collective_op').all_gather_v, t:detach(),
      self.axis, dim, counts)
   if #self.blocks == 1 then return all end
   local pieces = {}
   for r = 0, self.axis.size - 1 do
      for i, b in ipairs(own_boxes(self, self.shape, r)) do
         pieces[(i - 1) * self.axis.size + r + 1] =
            all:narrow(dim, sum(counts, r) + b.at[dim] + 1, b.size[dim])
      end
   end
   return tide.cat(pieces, dim)
end

-- Returns the whole from this rank's part. No history. Collective over the axes of the layout.
function Layout:gather(t)
   local part = self:joined(t)
   if not self.within then return part end
   local whole = self.within:gather(part)
   part:release()
   return whole
end

-- ---- on modules ------------------------------------------------------------------------------

-- Notes how a parameter of a module is cut. spec: a layout, or the options of one. Returns it.
function layout.set(module, field, spec)
   local entry = getmetatable(spec) == Layout and spec or layout.new(spec)
   module._layout = rawget(module, '_layout') or {}
   module._layout[field] = entry
   return entry
end

-- Returns the entry of a parameter, or nil: it is whole on every rank.
function layout.get(module, field)
   local all = rawget(err.type('parallel.layout.get', 'module', module, 'table'), '_layout')
   return all and all[field] or nil
end

local function shape_of(op, module, field)
   local t = module[field]
   if type(t) ~= 'cdata' then err.arg(op, 'field', 'the name of a parameter', field) end
   return t.shape
end

-- Returns the boxes of a parameter, whether it has an entry or not.
function layout.boxes(module, field)
   local entry = layout.get(module, field)
   if entry then return entry:boxes() end
   local shape = shape_of('parallel.layout.boxes', module, field)
   return { box(shape, zeros(#shape), copy(shape), zeros(#shape)) }
end

-- Returns the offset and size (lists, counted from 0) of a parameter that is one box of the whole.
function layout.box(module, field)
   local boxes = layout.boxes(module, field)
   err.raise_if(#boxes > 1, 'E_STATE', 'parallel.layout.box', "'%s' is %d boxes of the whole "
      .. 'parameter; read boxes instead of box', field, #boxes)
   return boxes[1].offset, boxes[1].size
end

-- Returns the shape of the whole parameter.
function layout.shape(module, field)
   local entry = layout.get(module, field)
   return entry and copy(entry.shape) or shape_of('parallel.layout.shape', module, field)
end

-- Gathers a module's parameters: name -> whole tensor; every rank calls it, in the order of names.
function layout.gathered(module, grads)
   local out = {}
   for _, e in ipairs(module:named_parameters()) do
      local t = e.param
      if grads then t = t.grad end
      local entry = layout.get(e.owner, e.field)
      out[e.name] = t and (entry and entry:gather(t) or t:detach():clone()) or nil
   end
   return out
end

signature.record('sized', 'a table { size = }', { 'size: integer >= 1' })
signature.kind('placement', 'Replicate() or Shard(dim)', placement.is)
return signature.doors('parallel.layout', layout, {
   balanced = 'n: integer >= 0; parts: integer >= 1',
   new = { op = 'parallel.layout', opts = {
      'axis: sized -- an axis of a mesh', 'placement: placement -- how the axis cuts it',
      'shape: integer[] >= 0 -- shape of the whole',
      'counts: table? -- sizes on the ranks of the axis, or a list of them for each block',
      'blocks: integer >= 1 = 1 -- parts of the dim, each of which is shared among the ranks',
      'within: table? -- a layout that cuts another dim of the same whole first' } },
   set = 'module: table; field: string', gathered = 'module: module',
})
