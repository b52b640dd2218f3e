-- Movement and index ops: views where strides allow, gathers and scatters.
--
-- Positions are 1-based and inclusive here, 0-based and half-open in C; arg.lua does
-- the arithmetic for single positions, slice() below for ranges. Index tensors stay 0-based data.

local lib = require 'tide.ffi.lib'
local arg = require 'tide.ffi.arg'
local status = require 'tide.ffi.status'
local C = lib.C

local M = {}
local make = require('tide.ffi.row').adders(M)
local raw = {}                              -- C functions behind wrappers that check the arguments
local call = require('tide.ffi.row').adders(raw, 'raw')
call 'reshape(x, ndim, shape)'
call 'expand(x, ndim, shape)'
call 'permute(x, ndim, order)'
call 'squeeze(x, dim)'
call 'slice(x, dim, start, stop, step)'
call 'select(x, dim, index)'
call 'pad(x, ndim, before, after, value)'
call 'one_hot(ids, nclass, dtype)'
call 'cat(x, list, n, dim) -> list, n, dim'
local tensor, dim_of, size_of, int = arg.tensor, arg.dim, arg.size, arg.int
local new_shape, new_dims = arg.new_shape, arg.new_dims
local ndim_of = arg.ndim

-- ---- shape -----------------------------------------------------------------------------------

-- Returns the sizes of a shape that is a list, or one size after the other.
local function sizes_of(op, x, a, b, c, d, e, f, g, h, more)
   tensor(op, 'x', x)
   if more ~= nil then status.bad_arg(op, 'shape', 'at most 8 sizes', more) end
   if a == nil then status.bad_arg(op, 'shape', 'a list of integers, or integers', a) end
   return arg.ints_of(op, 'shape', -1, a, b, c, d, e, f, g, h)
end

-- Returns x in another shape: x:reshape{2, -1} or x:reshape(2, -1); one size may be -1.
function M.reshape(x, a, b, c, d, e, f, g, h, more)
   return raw.reshape(x, sizes_of('reshape', x, a, b, c, d, e, f, g, h, more))
end
M.view = M.reshape

-- Returns a view in which dims of size 1, and new leading dims, repeat; -1 keeps a size.
function M.expand(x, a, b, c, d, e, f, g, h, more)
   local n, shape = sizes_of('expand', x, a, b, c, d, e, f, g, h, more)
   local lead = n - ndim_of(x)
   for i = 0, n - 1 do
      if shape[i] == -1 then
         if i < lead then
            status.bad_arg('expand', 'shape[' .. i + 1 .. ']', 'a size (the dim is new)', -1)
         end
         shape[i] = C.tide_tensor_dim(x, i - lead)
      end
   end
   return raw.expand(x, n, shape)
end

-- Returns a view with the dims in another order, which names all of them: x:permute(2, 1, 3) or a
-- list.
function M.permute(x, a, b, c, d, e, f, g, h)
   tensor('permute', 'x', x)
   local ndim, dims = ndim_of(x), new_dims()
   local n, order = arg.ints_of('permute', 'order', -ndim, a, b, c, d, e, f, g, h)
   for i = 0, n - 1 do dims[i] = dim_of('permute', 'order', tonumber(order[i]), ndim) end
   return raw.permute(x, n, dims)
end

-- Returns a view with two dims (from 1) exchanged.
make 'transpose(x, dim0: dim, dim1: dim)'

-- Swaps the last two dims; a vector or scalar stays as it is.
function M.t(x)
   tensor('t', 'x', x)
   local ndim = ndim_of(x)
   if ndim < 2 then return x end
   return M.transpose(x, ndim - 1, ndim)
end

-- Returns x with a new dim of size 1 at position dim of the result.
make 'unsqueeze(x, dim: newdim)'

-- Removes the dim, whose size must be 1. Without an argument: every dim of size 1.
function M.squeeze(x, dim)
   tensor('squeeze', 'x', x)
   local ndim = ndim_of(x)
   if dim == nil then
      local n, shape = 0, new_shape()
      for i = 0, ndim - 1 do
         local size = C.tide_tensor_dim(x, i)
         if size ~= 1 then
            shape[n] = size
            n = n + 1
         end
      end
      return raw.reshape(x, n, shape)
   end
   dim = dim_of('squeeze', 'dim', dim, ndim)
   return raw.squeeze(x, dim)
end

-- Returns x with dims d1 to d2 as one; all dims by default.
function M.flatten(x, d1, d2)
   tensor('flatten', 'x', x)
   local ndim, shape = ndim_of(x), new_shape()
   if ndim == 0 then
      shape[0] = 1
      return raw.reshape(x, 1, shape)
   end
   local first = dim_of('flatten', 'd1', d1 == nil and 1 or d1, ndim)
   local last = dim_of('flatten', 'd2', d2 == nil and -1 or d2, ndim)
   if last < first then status.bad_arg('flatten', 'd2', 'a dim not before d1', d2) end
   local n, run = 0, 1
   for i = 0, ndim - 1 do
      run = run * size_of(x, i)
      if i < first or i >= last then
         shape[n] = run
         n, run = n + 1, 1
      end
   end
   return raw.reshape(x, n, shape)
end

-- ---- parts -----------------------------------------------------------------------------------

-- Returns the elements first, first + step, ... not beyond last (inclusive, as in Lua). Negative
-- positions count from the end; first == last + 1 gives no element. Defaults: 1, -1, 1.
function M.slice(x, dim, first, last, step)
   tensor('slice', 'x', x)
   dim = dim_of('slice', 'dim', dim, ndim_of(x))
   local size = size_of(x, dim)
   first = int('slice', 'first', first == nil and 1 or first)
   last = int('slice', 'last', last == nil and -1 or last)
   step = int('slice', 'step', step == nil and 1 or step, 1)
   local from = first < 0 and first + size + 1 or first
   local to = last < 0 and last + size + 1 or last
   if from < 1 or from > size + 1 then
      status.bad_arg('slice', 'first',
         ('a position in [1, %d] or [-%d, -1]'):format(size + 1, size), first)
   end
   if to < from - 1 or to > size then
      status.bad_arg('slice', 'last',
         ('a position in [%d, %d], or negative'):format(from - 1, size), last)
   end
   return raw.slice(x, dim, from - 1, to, step)
end

-- Returns n elements from position first on.
function M.narrow(x, dim, first, n)
   tensor('narrow', 'x', x)
   dim = dim_of('narrow', 'dim', dim, ndim_of(x))
   local size = size_of(x, dim)
   first = int('narrow', 'first', first, -size, size + 1)
   local from = first < 0 and first + size or first - 1
   if from < 0 then status.bad_arg('narrow', 'first', 'a position without 0', first) end
   n = int('narrow', 'n', n, 0, size - from)
   return raw.slice(x, dim, from, from + n, 1)
end

-- Returns the part at one position, without the dim.
function M.select(x, dim, i)
   tensor('select', 'x', x)
   dim = dim_of('select', 'dim', dim, ndim_of(x))
   i = arg.index('select', 'i', i, size_of(x, dim))
   return raw.select(x, dim, i)
end

-- Returns a list of parts along dim (default 1): pieces of this size (the last may be smaller), or
-- of the sizes in a list, which must add up.
function M.split(x, sizes, dim)
   tensor('split', 'x', x)
   dim = dim_of('split', 'dim', dim == nil and 1 or dim, ndim_of(x))
   local size, parts, at = size_of(x, dim), {}, 0
   if type(sizes) == 'number' then
      int('split', 'sizes', sizes, 1)
      repeat
         local stop = math.min(at + sizes, size)
         parts[#parts + 1] = raw.slice(x, dim, at, stop, 1)
         at = stop
      until at >= size
      return parts
   end
   if type(sizes) ~= 'table' then
      status.bad_arg('split', 'sizes', 'an integer or a list of integers', sizes)
   end
   local total = 0
   for i = 1, #sizes do total = total + int('split', 'sizes[' .. i .. ']', sizes[i], 0) end
   if total ~= size then
      status.bad_arg('split', 'sizes', ('sizes that add up to %d'):format(size), total)
   end
   for i = 1, #sizes do
      parts[i] = raw.slice(x, dim, at, at + sizes[i], 1)
      at = at + sizes[i]
   end
   return parts
end

-- Returns n parts of equal size; n must divide the size of the dim.
function M.chunk(x, n, dim)
   tensor('chunk', 'x', x)
   local d = dim_of('chunk', 'dim', dim == nil and 1 or dim, ndim_of(x))
   int('chunk', 'n', n, 1)
   local size = size_of(x, d)
   if size % n ~= 0 then
      status.bad_arg('chunk', 'n', ('a divisor of the size %d'):format(size), n)
   end
   local parts, each = {}, size / n
   for i = 1, n do parts[i] = raw.slice(x, d, (i - 1) * each, i * each, 1) end
   return parts
end

-- ---- joining, repeating, shifting ------------------------------------------------------------

-- Returns the tensors of a list joined along dim.
function M.cat(list, dim)
   local buf, n = arg.tensors('cat', 'list', list)
   if n == 0 then status.bad_arg('cat', 'list', 'at least one tensor', 0) end
   local x = list[1]
   local d = dim_of('cat', 'dim', dim == nil and 1 or dim, ndim_of(x))
   return raw.cat(x, buf, n, d)
end

-- Joins along a new dim.
function M.stack(list, dim)
   arg.tensors('stack', 'list', list)
   dim = dim == nil and 1 or dim
   local rows = {}
   for i = 1, #list do rows[i] = M.unsqueeze(list[i], dim) end
   if #rows == 0 then status.bad_arg('stack', 'list', 'at least one tensor', 0) end
   return M.cat(rows, dim)
end

-- Returns x with each element repeated n times in a row along dim.
function M.repeat_interleave(x, n, dim)
   tensor('repeat_interleave', 'x', x)
   int('repeat_interleave', 'n', n, 0, 2^31)
   local ndim = ndim_of(x)
   local d = dim_of('repeat_interleave', 'dim', dim, ndim)
   local wide, shape = {}, {}
   for i = 0, ndim - 1 do
      local size = size_of(x, i)
      wide[#wide + 1] = size
      shape[i + 1] = size
      if i == d then
         wide[#wide + 1] = n
         shape[i + 1] = size * n
      end
   end
   return M.reshape(M.expand(M.unsqueeze(x, d + 2), wide), shape)
end

-- Returns x padded with value (0) by a count for each dim, before and after it; a negative count
-- crops.
function M.pad(x, before, after, value)
   tensor('pad', 'x', x)
   value = arg.element('pad', 'value', value == nil and 0 or value, C.tide_tensor_dtype(x))
   local ndim = ndim_of(x)
   local n, front = arg.ints('pad', 'before', before, -arg.exact)
   local m, back = arg.ints('pad', 'after', after, -arg.exact)
   if n ~= ndim then status.bad_arg('pad', 'before', ('a list of %d counts'):format(ndim), n) end
   if m ~= ndim then status.bad_arg('pad', 'after', ('a list of %d counts'):format(ndim), m) end
   return raw.pad(x, n, front, back, value)
end

-- Moves elements by shift positions along dim; elements beyond one end enter at the other.
make 'roll(x, shift: int, dim: dim) -> x, dim, shift'

-- ---- index tensors (0-based values) ----------------------------------------------------------

-- Returns the elements of x that index names along dim: out[i, j] = x[i, index[i, j]] for dim 2.
-- index has as many dims as x.
make 'gather(x, dim: dim, index)'
-- Returns a copy of x with src added where index says along dim (the reverse of gather).
make 'scatter_add(x, dim: dim, index, src)'
-- Returns the slices of x along dim that index [n] names.
make 'index_select(x, dim: dim, index)'
-- Returns a copy of x with the slices of src added at index [n] along dim.
make 'index_add(x, dim: dim, index, src)'
-- Returns the rows of weight [V, C] that ids name, [..., C]; ids count from 0.
make 'embedding(weight, ids)'

local one_hot_opts = arg.set { 'dtype' }

-- Returns [..., n] with 1 where ids [...] (from 0) point, else 0; i64 unless opts.dtype names
-- another dtype.
function M.one_hot(ids, n, opts)
   tensor('one_hot', 'ids', ids)
   int('one_hot', 'n', n, 0)
   local dtype = arg.dtype('one_hot', 'dtype',
      arg.opts('one_hot', opts, one_hot_opts).dtype or 'i64')
   return raw.one_hot(ids, n, dtype)
end

return M
