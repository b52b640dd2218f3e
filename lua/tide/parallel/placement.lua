-- Placements: how a tensor lies on a mesh, and plans that change it. Integers only.
--
--    Shard(dim)    an axis cuts the dim; ranks hold consecutive pieces
--    Replicate()   each rank of the axis holds the same
--    Partial(op)   the value is the reduction (sum, mean, min, max, prod) over the axis
--
-- One placement an axis of the mesh. Several axes may cut the same dim: the outer one first, the
-- inner ones cut its pieces. Pieces are ceil(n / k) long until n is used up, so the last ones may
-- be shorter or empty.
--
-- A change of placements is a list of steps, each on one axis and each the cheapest collective for
-- its pair, found before anything runs. A dim is cut from outer to inner axis and joined from inner
-- to outer, so an axis must sometimes gather its cut for a while. Steps that shrink the data run
-- first, steps that grow it last. plan.bytes is what this rank sends with the algorithms that
-- communicators count (rings; direct exchange).
--
-- Placements are values, one object each: compare with ==.

local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local old = require 'tide.util.old'
local signature = require 'tide.util.signature'
local dtype_size = require('tide').dtype_size

local placement = {}

-- ---- the three kinds -------------------------------------------------------------------------

local Placement = { class_name = 'Placement' }
Placement.__index = Placement
function Placement:__tostring()
   return self.kind == 'shard' and ('S(%d)'):format(self.dim)
      or self.kind == 'partial' and ('P(%s)'):format(self.op) or 'R'
end

local shards, partials = {}, {}
local replicate = setmetatable({ kind = 'replicate' }, Placement)

-- Returns the placement of an axis that cuts dim, which counts from 1, or from the end if negative.
function placement.shard(dim)
   shards[dim] = shards[dim] or setmetatable({ kind = 'shard', dim = dim }, Placement)
   return shards[dim]
end

-- Returns the placement of an axis whose ranks all hold the whole.
function placement.replicate() return replicate end

-- Returns the placement of ranks that hold terms of a reduction: op is 'sum' (default), 'mean',
-- 'min', 'max' or 'prod'.
function placement.partial(op)
   partials[op] = partials[op] or setmetatable({ kind = 'partial', op = op }, Placement)
   return partials[op]
end

-- Returns whether p is a placement.
local function is_placement(p) return getmetatable(p) == Placement end
placement.is = is_placement

-- ---- one placement an axis -------------------------------------------------------------------

-- Returns a list in the order of the axes from a list, a map by axis name, or one placement.
local function aligned(op, given, mesh)
   local list, n = {}, #mesh.axes
   if is_placement(given) and n == 1 then return { given } end
   err.arg_if(type(given) ~= 'table' or is_placement(given), op, 'placements',
      ('a list of %d placements, or a map by axis'):format(n), given)
   if #given > 0 then
      err.arg_if(#given ~= n, op, 'placements', ('%d placements for %s'):format(n, tostring(mesh)),
         #given)
      for i = 1, n do list[i] = given[i] end
      for key in each(given) do
         err.arg_if(type(key) ~= 'number', op, 'placements', 'a list or a map, not both', key)
      end
      return list
   end
   local known = {}
   for i, axis in ipairs(mesh.axes) do
      known[axis.name] = true
      list[i] = given[axis.name] or replicate
   end
   for name in each(given) do
      err.raise_if(not known[name], 'E_ARG', op, "argument 'placements': no axis '%s' in %s",
         tostring(name), tostring(mesh))
   end
   return list
end

-- Refuses several Partial ops that do not commute, which have no one meaning.
local function check_partials(op, list)
   local first
   for _, p in ipairs(list) do
      if p.kind == 'partial' then
         local kind = p.op == 'mean' and 'sum' or p.op
         err.raise_if(first and first ~= kind, 'E_ARG', op, "argument 'placements': Partial('%s') "
            .. "and Partial('%s') depend on their order; reduce one of them first", first, p.op)
         first = kind
      end
   end
end

-- Returns checked placements for a tensor with ndim dims, as a list in the order of the mesh's
-- axes.
function placement.normalise(op, given, mesh, ndim)
   signature.check(op, 'mesh', mesh, 'mesh')
   local list = aligned(op, given, mesh)
   for i, p in ipairs(list) do
      local name = ("placements of '%s'"):format(mesh.axes[i].name)
      err.arg_if(not is_placement(p), op, name, 'Shard(dim), Replicate() or Partial(op)', p)
      if p.kind == 'shard' then
         local dim = p.dim > 0 and p.dim or p.dim + ndim + 1
         err.arg_if(dim < 1 or dim > ndim, op, name, ('a dim of a tensor with %d'):format(ndim),
            p.dim)
         list[i] = placement.shard(dim)
      end
   end
   check_partials(op, list)
   return list
end

-- Returns text: "dp S(1), tp R".
function placement.text(list, mesh)
   local out = {}
   for i, p in ipairs(list) do out[i] = mesh.axes[i].name .. ' ' .. tostring(p) end
   return table.concat(out, ', ')
end

-- ---- pieces ----------------------------------------------------------------------------------

-- Returns the number of elements before piece `rank` (from 0) of n pieces of a dim, and its size.
function placement.piece(size, n, rank)
   local most = math.ceil(size / n)
   local at = math.min(rank * most, size)
   return at, math.min(most, size - at)
end

-- Returns the sizes of all n pieces.
function placement.pieces(size, n)
   local list = {}
   for r = 0, n - 1 do
      local _, count = placement.piece(size, n, r)
      list[r + 1] = count
   end
   return list
end

-- Returns the coordinates of a rank of the mesh (nil: this one) as a list.
local function coords_of(mesh, rank)
   local at, list = mesh:coord(rank), {}
   for i, axis in ipairs(mesh.axes) do list[i] = at[axis.name] end
   return list
end

-- Returns the local shape and offset under the placements of axes 1 to `last`.
local function cut(shape, list, mesh, at, last)
   local sizes, offset = dims.copy(shape), dims.zeros(#shape)
   for i = 1, last do
      local p = list[i]
      if p.kind == 'shard' then
         local before, count = placement.piece(sizes[p.dim], mesh.axes[i].size, at[i])
         offset[p.dim], sizes[p.dim] = offset[p.dim] + before, count
      end
   end
   return sizes, offset
end

-- Returns what a rank of the mesh (default: this one) holds of a tensor of this shape: its shape,
-- and how many elements lie before it along each dim.
function placement.local_shape(shape, placements, mesh, rank)
   local op = 'parallel.placement.local_shape'
   local list = placement.normalise(op, placements, mesh, #shape)
   return cut(shape, list, mesh, coords_of(mesh, rank), #list)
end

-- ---- steps -----------------------------------------------------------------------------------

-- Returns whether all counts are the same.
function placement.is_even(counts)
   for i = 2, #counts do
      if counts[i] ~= counts[1] then return false end
   end
   return true
end

-- What is under way: shape, placements now (cur) and wanted (dst), coordinates at.
local State = {}
State.__index = State

-- Returns whether an inner axis cuts the dim, so that axis i can neither cut nor join it.
function State:blocked(i, dim)
   for b = i + 1, #self.cur do
      if self.cur[b].kind == 'shard' and self.cur[b].dim == dim then return true end
   end
   return false
end

local function cuts(p, dim) return p.kind == 'shard' and p.dim == dim end

-- Returns whether axis i may cut dim now: no inner axis cuts it, and no outer axis will start or
-- stop cutting it.
function State:ready(i, dim)
   for a = 1, i - 1 do
      if cuts(self.cur[a], dim) ~= cuts(self.dst[a], dim) then return false end
   end
   return not self:blocked(i, dim)
end

-- Bytes that this rank sends; counts: sizes along the dim of the step on each rank of the axis.
local price = {}

function price.all_reduce(_, n, before) return math.floor(2 * (n - 1) * before / n) end
function price.all_gather(_, n, before) return (n - 1) * before end
function price.reduce_scatter(_, n, _, after) return (n - 1) * after end
function price.all_gather_v(s, n, _, after, row)
   return after - s.counts[(s.rank + 1) % n + 1] * row
end
function price.reduce_scatter_v(_, _, before, after) return before - after end
function price.all_to_all(s, _, before, _, row) return before - s.counts[s.rank + 1] * row end
price.all_to_all_v = price.all_to_all

local function add_price(self, step, n)
   local fn = price[step.action]
   step.bytes, step.collectives = 0, fn and 1 or 0
   if not fn then return end
   local unit = self.unit
   -- bytes of one row of step.counts: parts of what goes out, or of what is gathered
   local whole = step.action == 'all_gather_v' and step.after or step.before
   local row = 0
   if step.counts then
      local dim, rows = step.count_dim, 1
      for d, s in ipairs(whole) do
         if d ~= dim then rows = rows * s end
      end
      row = rows * unit
   end
   step.bytes = fn(step, n, dims.numel(step.before) * unit, dims.numel(step.after) * unit, row)
end

-- Returns the sizes of the pieces that axis i makes of dim.
function State:pieces(i, dim)
   local before = cut(self.shape, self.cur, self.mesh, self.at, i - 1)
   return placement.pieces(before[dim], self.mesh.axes[i].size)
end

local function suffix(name, ...)
   for i = 1, select('#', ...) do
      if not placement.is_even((select(i, ...))) then return name .. '_v' end
   end
   return name
end

-- Fills in what the step does, from the kinds of its two placements.
local function name_step(self, step, from, to)
   local i = step.index
   if to.kind == 'shard' then
      step.counts, step.count_dim = self:pieces(i, to.dim), to.dim
      if from.kind == 'replicate' then
         step.action = 'slice'
      elseif from.kind == 'partial' then
         step.action = suffix('reduce_scatter', step.counts)
      else
         step.join_counts = self:pieces(i, from.dim)
         step.action = suffix('all_to_all', step.counts, step.join_counts)
      end
   elseif from.kind == 'shard' then
      step.counts, step.count_dim = self:pieces(i, from.dim), from.dim
      step.action = to.kind == 'partial' and 'place' or suffix('all_gather', step.counts)
   elseif from.kind == 'partial' then
      step.action = 'all_reduce'
   else
      step.action = (to.op == 'sum' or to.op == 'prod') and 'keep_first' or 'rename'
   end
   if self.mesh.axes[i].size == 1 then step.action = 'rename' end
end

function State:move(i, to)
   local axis, from, n = self.mesh.axes[i], self.cur[i], #self.cur
   local step = { index = i, axis = axis, name = axis.name, rank = self.at[i], from = from, to = to,
      before = cut(self.shape, self.cur, self.mesh, self.at, n) }
   name_step(self, step, from, to)
   self.cur[i] = to
   step.after = cut(self.shape, self.cur, self.mesh, self.at, n)
   if step.action == 'place' then
      step.offset = placement.piece(step.after[from.dim], axis.size, self.at[i])
   end
   add_price(self, step, axis.size)
   self.steps[#self.steps + 1] = step
end

-- The kinds of change in the order in which they are preferred: those that shrink the data first.
-- Each says whether axis i can make it now, and returns the placement after it.
local moves = {
   function(s, i, from, to)                  -- R -> S
      return from.kind == 'replicate' and to.kind == 'shard' and s:ready(i, to.dim) and to
   end,
   function(s, i, from, to)                  -- P -> S
      return from.kind == 'partial' and to.kind == 'shard' and s:ready(i, to.dim) and to
   end,
   function(s, i, from, to)                  -- S -> S
      return from.kind == 'shard' and to.kind == 'shard' and not s:blocked(i, from.dim)
         and s:ready(i, to.dim) and to
   end,
   function(_, _, from, to)                  -- P -> R, and P -> P by way of it
      return from.kind == 'partial' and to.kind ~= 'shard' and replicate
   end,
   function(s, i, from, to)                  -- S -> R, and S -> P by way of it
      local stays = to.kind == 'partial' and to.op == 'sum'
      return from.kind == 'shard' and to.kind ~= 'shard' and not stays
         and not s:blocked(i, from.dim) and replicate
   end,
   function(s, i, from, to)                  -- R -> P; S -> P(sum): zeros around the piece
      return to.kind == 'partial' and (from.kind == 'replicate'
         or from.kind == 'shard' and not s:blocked(i, from.dim)) and to
   end,
}

-- Makes one change that can be made now; returns false if none can.
function State:advance()
   for _, move in ipairs(moves) do
      for i = 1, #self.cur do
         local from, to = self.cur[i], self.dst[i]
         local after = from ~= to and move(self, i, from, to)
         if after then
            self:move(i, after)
            return true
         end
      end
   end
   return false
end

-- Joins the innermost cut that keeps the outermost axis that has to change from doing so.
function State:give_way()
   for i = 1, #self.cur do
      local from, to = self.cur[i], self.dst[i]
      if from ~= to then
         for b = #self.cur, i + 1, -1 do
            local p = self.cur[b]
            if p.kind == 'shard' and (cuts(from, p.dim) or cuts(to, p.dim)) then
               return self:move(b, replicate)
            end
         end
      end
   end
end

-- ---- routes ----------------------------------------------------------------------------------

local Route = { class_name = 'Route' }
Route.__index = Route

-- Returns the seconds on links of `bandwidth` bytes a second with `latency` seconds a collective.
function Route:seconds(bandwidth, latency)
   return self.bytes / bandwidth + self.collectives * latency
end

function Route:__tostring()
   local lines = { ('redistribute %s %s: %s -> %s'):format(dims.text(self.shape), self.dtype,
      placement.text(self.from, self.mesh), placement.text(self.to, self.mesh)) }
   for i, s in ipairs(self.steps) do
      lines[#lines + 1] = ('%3d  %-12s %-7s -> %-7s %-16s %s -> %s, %.0f bytes'):format(i, s.name,
         tostring(s.from), tostring(s.to), s.action, dims.text(s.before), dims.text(s.after),
         s.bytes)
   end
   lines[#lines + 1] = ('%d collective%s, %.0f bytes sent by this rank'):format(self.collectives,
      self.collectives == 1 and '' or 's', self.bytes)
   return table.concat(lines, '\n')
end

-- Returns the steps from one list of placements to another, { steps, bytes, collectives }. shape
-- (of the whole) and dtype are those of the tensor; the sizes are those on a rank of the mesh
-- (default: this one). Each step: name (of the axis), from, to, action, before, after (local
-- shapes), bytes.
function placement.route(shape, dtype, mesh, from, to, rank)
   local op = 'parallel.placement.route'
   shape = dims.copy(shape)
   from = placement.normalise(op, from, mesh, #shape)
   to = placement.normalise(op, to, mesh, #shape)
   local state = setmetatable({
      shape = shape, mesh = mesh, unit = dtype_size(dtype, op), cur = dims.copy(from), dst = to,
      at = coords_of(mesh, rank), steps = {},
   }, State)
   while not dims.equal(state.cur, state.dst) do
      if not state:advance() then state:give_way() end
   end
   local route = setmetatable({ shape = shape, dtype = dtype, mesh = mesh, from = from, to = to,
      steps = state.steps, bytes = 0, collectives = 0 }, Route)
   for _, s in ipairs(route.steps) do
      route.bytes = route.bytes + s.bytes
      route.collectives = route.collectives + s.collectives
   end
   return route
end

-- Calls placement.route, which 0.1 named plan.
function placement.plan(...)
   old('parallel.placement.plan', 'parallel.placement.route')
   return placement.route(...)
end

signature.kind('mesh', 'a mesh', function(v)
   return type(v) == 'table' and type(v.axes) == 'table' and v.coord ~= nil
end, 'tide.Mesh')
local shape = "shape: integer[] >= 0; where #shape <= 8 -- argument 'shape': expected at most 8 "
   .. 'sizes, got {#shape}'
signature.doors('parallel.placement', Route, {
   seconds = 'bandwidth: number >= 1; latency: number >= 0 = 0' })
return signature.doors('parallel.placement', placement, {
   shard = { "dim: integer in [-8, 8]; where dim ~= 0 -- argument 'dim': expected a dim in [-8, 8] "
      .. 'without 0, got 0', op = 'parallel.Shard' },
   partial = { "op: 'sum' | 'mean' | 'min' | 'max' | 'prod' = 'sum'", op = 'parallel.Partial' },
   text = "list: table; mesh: mesh; where #list <= #mesh.axes -- argument 'list': expected at most "
      .. '{#mesh.axes} placements, got {#list}',
   piece = 'size: integer >= 0; n: integer >= 1; rank: integer >= 0',
   pieces = 'size: integer >= 0; n: integer >= 1',
   is_even = 'counts: table', local_shape = shape, route = shape,
})
