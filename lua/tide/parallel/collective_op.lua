-- Collectives that can be differentiated, along any dim.
--
-- Each is a host function whose backward is its adjoint collective, so backward
-- communicates in the reverse order of forward, alike on every rank. Communicators move flat
-- buffers with one part a rank; two helpers turn a tensor into parts along a dim and back, with at
-- most one copy.
--
-- Two conventions, by what the loss is:
--   sum over ranks (each rank has a loss of its own part; gradients are those of their sum)
--      all_gather <-> reduce_scatter, all_reduce <-> all_reduce, all_to_all <-> all_to_all,
--      broadcast <-> reduce, shift <-> shift back, and the _v forms
--   counted once (what follows is computed alike on every rank, and so is its gradient)
--      copy_to: identity <-> sum; reduce_from: sum <-> identity; gather_from: gather <-> own part;
--      scatter_to: own part <-> gather
--
-- comm is a communicator or an axis of a mesh. Every rank must call, and every rank's loss must
-- depend on its result, or backward waits for ranks that never call. With one rank each of them
-- is the identity. Results own their memory unless they are x itself.

local tide = require 'tide'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
require 'tide.parallel.axis_of'                 -- makes the kind 'group'
local is_even = require('tide.parallel.placement').is_even

local collective = {}

-- ---- arguments -------------------------------------------------------------------------------

-- Returns a count a rank; total (may be nil): what they must add up to.
local function check_counts(name, what, counts, comm, total)
   if type(counts) ~= 'table' or #counts ~= comm.size then
      err.arg(name, what, ('a list of %d counts'):format(comm.size), counts)
   end
   for i, c in ipairs(counts) do err.integer(name, ('%s[%d]'):format(what, i), c, 0) end
   if total and dims.sum(counts) ~= total then
      err.arg(name, what, ('counts that add up to the size %d'):format(total), dims.sum(counts))
   end
   return counts
end

local function same_counts(n, count)
   local counts = {}
   for i = 1, n do counts[i] = count end
   return counts
end

local function equal_counts(name, what, size, n)
   if size % n ~= 0 then
      err.arg(name, what, ('a dim whose size divides among %d ranks (or counts, in the _v form)')
         :format(n), size)
   end
   return same_counts(n, size / n)
end

-- Returns the sizes that the ranks have along dim, this rank's own among them; nil: all as this
-- rank.
local function own_count(name, what, x, dim, comm, counts)
   local size = x:size(dim)
   if counts == nil then return same_counts(comm.size, size) end
   check_counts(name, what, counts, comm)
   if counts[comm.rank + 1] ~= size then
      err.arg(name, what, ('%d for this rank (%d), the size of dim %d'):format(size, comm.rank,
         dim), counts[comm.rank + 1])
   end
   return counts
end

-- ---- parts along a dim -----------------------------------------------------------------------

local function extent(shape, dim)
   local before, after = 1, 1
   for d = 1, dim - 1 do before = before * shape[d] end
   for d = dim + 1, #shape do after = after * shape[d] end
   return before, after
end

local function flat(x) return x:contiguous():reshape { x:numel() } end

local function with_size(x, dim, size)
   local shape = x.shape
   shape[dim] = size
   return shape
end

-- Returns the parts of a flat tensor, each with the shape of its part of x along dim, and those
-- parts.
local function pieces(flat_parts, x, dim, counts)
   local before, after = extent(x.shape, dim)
   local parts, cut, at = {}, {}, 0
   for i, c in ipairs(counts) do
      parts[i] = flat_parts:narrow(1, before * at * after + 1, before * c * after)
         :reshape(with_size(x, dim, c))
      cut[i] = x:narrow(dim, at + 1, c)
      at = at + c
   end
   return parts, cut
end

-- Returns x cut along dim: part after part in one flat tensor, each row-major in itself.
local function to_parts(x, dim, counts)
   local shape = x.shape
   local before, after = extent(shape, dim)
   if before == 1 or #counts == 1 then return flat(x) end
   if is_even(counts) then
      return flat(x:reshape { before, #counts, counts[1] * after }:permute(2, 1, 3))
   end
   local parts = tide.empty({ x:numel() }, { dtype = x.dtype, device = x.device })
   tide.foreach_copy_(pieces(parts, x, dim, counts))
   return parts
end

-- Joins such parts again; shape: that of the result.
local function from_parts(parts, shape, dim, counts)
   local before, after = extent(shape, dim)
   if before == 1 or #counts == 1 then return parts:reshape(shape) end
   if is_even(counts) then
      return parts:reshape { #counts, before, counts[1] * after }:permute(2, 1, 3):contiguous()
         :reshape(shape)
   end
   local x = tide.empty(shape, { dtype = parts.dtype, device = parts.device })
   local from, to = pieces(parts, x, dim, counts)
   tide.foreach_copy_(to, from)
   return x
end

-- Returns the number of elements of each part.
local function elements(x, dim, counts)
   local before, after = extent(x.shape, dim)
   local list = {}
   for i, c in ipairs(counts) do list[i] = before * c * after end
   return list
end

-- ---- collectives without history -------------------------------------------------------------

-- Their reduction is a sum unless `reduce` says another.

local function gather(x, comm, dim, counts)
   local got
   if is_even(counts) then
      got = comm:all_gather(flat(x))
   else
      got = comm:all_gather_v(flat(x), elements(x, dim, counts))
   end
   return from_parts(got, with_size(x, dim, dims.sum(counts)), dim, counts)
end

local function reduce_parts(x, comm, dim, counts, reduce)
   local parts = to_parts(x, dim, counts)
   local got
   if is_even(counts) then
      got = comm:reduce_scatter(parts, reduce)
   else
      got = comm:reduce_scatter_v(parts, elements(x, dim, counts), reduce)
   end
   return got:reshape(with_size(x, dim, counts[comm.rank + 1]))
end

-- Sends part r of x along `cut` to rank r and joins what arrives along `join`. equal: all parts of
-- all ranks are (which a rank cannot see from its own counts alone when cut is join).
local function exchange(x, comm, cut, join, give, take, equal)
   local parts = to_parts(x, cut, give)
   local shape = with_size(x, cut, give[comm.rank + 1])
   local unit = 1                            -- elements received, for each row along join
   for d, size in ipairs(shape) do
      if d ~= join then unit = unit * size end
   end
   shape[join] = dims.sum(take)
   local got
   if equal then
      got = comm:all_to_all(parts)
   else
      local out = {}
      for i, c in ipairs(take) do out[i] = c * unit end
      got = comm:all_to_all_v(parts, elements(x, cut, give), out)
   end
   return from_parts(got, shape, join, take)
end

local function reduced(x, comm, reduce) return comm:all_reduce(x:contiguous():clone(), reduce) end

-- Returns this rank's part of x along dim.
local function part_of(x, comm, dim, counts)
   return x:narrow(dim, dims.sum(counts, comm.rank) + 1, counts[comm.rank + 1]):clone()
end

-- Returns root's x on every rank; what the others gave is used for its shape alone.
local function sent(x, comm, root)
   local y = comm.rank == root and x:contiguous()
      or tide.empty(x.shape, { dtype = x.dtype, device = x.device })
   return comm:broadcast(y, root)
end

-- Returns the reduction on root, zeros elsewhere.
local function collected(x, comm, root, reduce)
   if comm.rank == root then return comm:reduce(x:contiguous():clone(), root, reduce) end
   comm:reduce(x:contiguous(), root, reduce)
   return tide.zeros(x.shape, { dtype = x.dtype, device = x.device })
end

-- ---- host functions --------------------------------------------------------------------------

-- Returns the derivative of a sum or mean for the term of each rank; other reductions have none
-- here.
local function linear(name, dy, comm, reduce)
   if reduce == 'mean' then return dy * (1 / comm.size) end
   err.raise_if(reduce ~= 'sum', 'E_UNSUPPORTED', 'parallel.' .. name, "'%s' over ranks has no "
      .. 'derivative here; detach the input', reduce)
   return dy
end

-- Returns a host function of forward(x, comm, ...), the identity over one rank; backward(dy, comm,
-- ...) takes the same arguments after the gradient.
local function adjoint(name, forward, backward)
   local fn = private.func {
      name = 'parallel.' .. name,
      forward = function(self, x, ...)
         self.given = { n = select('#', ...), ... }
         return forward(x, ...)
      end,
      backward = function(self, dy) return backward(dy, unpack(self.given, 1, self.given.n)) end,
   }
   return function(x, comm, ...) return comm.size == 1 and x or fn(x, comm, ...) end
end

local gather_fn = adjoint('all_gather', gather, reduce_parts)
local gather_from_fn = adjoint('gather_from', gather, part_of)
local scatter_to_fn = adjoint('scatter_to', part_of, gather)
local broadcast_fn = adjoint('broadcast', sent, collected)
local copy_to_fn = adjoint('copy_to', function(x) return x end, reduced)

local reduce_scatter_fn = adjoint('reduce_scatter', reduce_parts,
   function(dy, comm, dim, counts, reduce)
      return gather(linear('reduce_scatter', dy, comm, reduce), comm, dim, counts)
   end)

local exchange_fn = adjoint('all_to_all', exchange,
   function(dy, comm, cut, join, give, take, equal)
      return exchange(dy, comm, join, cut, take, give, equal)
   end)

local all_reduce_fn = adjoint('all_reduce', reduced, function(dy, comm, reduce)
   return reduced(linear('all_reduce', dy, comm, reduce), comm)
end)

local reduce_from_fn = adjoint('reduce_from', reduced, function(dy, comm, reduce)
   return linear('reduce_from', dy, comm, reduce)
end)

local reduce_fn = adjoint('reduce', collected, function(dy, comm, root, reduce)
   return sent(linear('reduce', dy, comm, reduce), comm, root)
end)

local function shifted(x, comm, by) return comm:shift(x:contiguous(), by) end
local shift_fn = adjoint('shift', shifted, function(dy, comm, by)
   return shifted(dy, comm, -by)
end)

-- ---- the loss is a sum over ranks ------------------------------------------------------------

-- Returns all ranks' x, of one shape, joined along dim (1) in rank order.
function collective.all_gather(x, comm, dim)
   return gather_fn(x, comm, dim, same_counts(comm.size, x:size(dim)))
end

-- Returns all ranks' x joined along dim (1), with counts[r + 1] rows from rank r. counts nil: the
-- ranks exchange them.
function collective.all_gather_v(x, comm, dim, counts)
   local name = 'parallel.all_gather_v'
   counts = own_count(name, 'counts', x, dim, comm, counts or collective.counts(x:size(dim), comm))
   return gather_fn(x, comm, dim, counts)
end

-- Returns the reduction over ranks (op: 'sum' or 'mean', also min, max, prod without derivative),
-- cut along dim (1) in equal parts, of which each rank gets its own.
function collective.reduce_scatter(x, comm, dim, op)
   local name = 'parallel.reduce_scatter'
   return reduce_scatter_fn(x, comm, dim, equal_counts(name, 'x', x:size(dim), comm.size), op)
end

-- Returns the reduction over ranks, cut along dim (1) in parts of counts[r + 1] rows.
function collective.reduce_scatter_v(x, comm, dim, counts, op)
   local name = 'parallel.reduce_scatter_v'
   check_counts(name, 'counts', counts, comm, x:size(dim))
   return reduce_scatter_fn(x, comm, dim, counts, op)
end

-- Sends part r of x along the dim `cut` (1) to rank r and joins what arrives along the dim `join`
-- (cut). Sequence against heads: all_to_all(x_BTHD, comm, 3, 2) has all of T and a part of H.
-- cut_counts, join_counts: sizes of the parts, and the sizes that the ranks have along join, when
-- unequal; both the same on every rank.
function collective.all_to_all(x, comm, cut, join, cut_counts, join_counts)
   local name = 'parallel.all_to_all'
   err.arg_if(cut == join and (cut_counts or join_counts), name, 'join', 'another dim than cut, '
      .. 'since counts are given (or all_to_all_v)', join)
   cut_counts = cut_counts and check_counts(name, 'cut_counts', cut_counts, comm, x:size(cut))
      or equal_counts(name, 'cut', x:size(cut), comm.size)
   if cut == join then
      join_counts = cut_counts
   else
      join_counts = own_count(name, 'join_counts', x, join, comm, join_counts)
   end
   return exchange_fn(x, comm, cut, join, cut_counts, join_counts,
      is_even(cut_counts) and is_even(join_counts))
end

-- Sends in_counts[r + 1] rows along dim (1) to rank r and takes out_counts[r + 1] from it.
function collective.all_to_all_v(x, comm, in_counts, out_counts, dim)
   local name = 'parallel.all_to_all_v'
   check_counts(name, 'in_counts', in_counts, comm, x:size(dim))
   check_counts(name, 'out_counts', out_counts, comm)
   if comm.size == 1 then
      if out_counts[1] ~= in_counts[1] then
         err.arg(name, 'out_counts', ('%d, as is sent'):format(in_counts[1]), out_counts[1])
      end
      return x
   end
   return exchange_fn(x, comm, dim, dim, in_counts, out_counts, false)
end

-- Returns the reduction on every rank, as a new tensor.
function collective.all_reduce(x, comm, op)
   return all_reduce_fn(x, comm, op)
end

-- Returns root's (0) x on every rank; all give an x of the same shape.
function collective.broadcast(x, comm, root)
   return broadcast_fn(x, comm, root)
end

-- Returns the reduction on root (0), zeros on the others.
function collective.reduce(x, comm, root, op)
   return reduce_fn(x, comm, root, op)
end

-- Sends x `by` (1) ranks up a ring and returns that of the rank as far below. One shape on all
-- ranks.
function collective.shift(x, comm, by)
   if by % comm.size == 0 then return x end
   return shift_fn(x, comm, by)
end

-- Returns every rank's number, as a list.
function collective.counts(n, comm)
   if comm.size == 1 then return { n } end
   err.raise_if(comm.transport == 'sim', 'E_UNSUPPORTED', 'parallel.counts', 'a simulated rank '
      .. 'cannot get the sizes of other ranks; give the counts, or the shape of the whole tensor')
   return comm:all_gather(tide.tensor({ n }, { dtype = 'i64' })):tolist()
end

-- ---- what follows is computed alike on every rank --------------------------------------------

-- Returns x, which is the same on every rank, for use with a rank's own part of the weights; the
-- gradients are summed.
function collective.copy_to(x, comm)
   return copy_to_fn(x, comm)
end

-- Returns the ranks' partial results added up (op: 'sum' or 'mean'); the gradient is alike on all.
function collective.reduce_from(x, comm, op)
   return reduce_from_fn(x, comm, op)
end

-- Returns all parts joined along dim (1); each rank keeps its part of the gradient. counts: the
-- ranks' sizes along dim, when unequal.
function collective.gather_from(x, comm, dim, counts)
   local name = 'parallel.gather_from'
   counts = own_count(name, 'counts', x, dim, comm, counts)
   return gather_from_fn(x, comm, dim, counts)
end

-- Returns this rank's part of x along dim (1), which is alike on all; the gradients are joined.
function collective.scatter_to(x, comm, dim, counts)
   local name = 'parallel.scatter_to'
   if counts then
      check_counts(name, 'counts', counts, comm, x:size(dim))
   else
      counts = equal_counts(name, 'x', x:size(dim), comm.size)
   end
   return scatter_to_fn(x, comm, dim, counts)
end

local x, along = 'x: tensor; comm: group', 'x: tensor; comm: group; dim: dim of x = 1'
local reduced_by = "; op: 'sum' | 'mean' | 'min' | 'max' | 'prod' = 'sum'"
local rooted = x .. '; root: integer in [0, comm.size - 1] = 0'
return signature.doors('parallel', collective, {
   all_gather = along, all_gather_v = along, reduce_scatter = along .. reduced_by,
   reduce_scatter_v = along .. reduced_by, all_reduce = x .. reduced_by,
   all_to_all = x .. '; cut: dim of x = 1; join: dim of x = cut', all_to_all_v = along,
   broadcast = rooted, reduce = rooted .. reduced_by, shift = x .. '; by: integer = 1',
   counts = 'n: integer >= 0; comm: group', copy_to = x, reduce_from = x .. reduced_by,
   gather_from = along, scatter_to = along,
})
