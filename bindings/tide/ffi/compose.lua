-- Ops made of other ops, so with their derivatives and on every device. This file adds them to the
-- table of ops.

local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local create = require 'tide.ffi.create'
local op = require 'tide.ffi.op'
local status = require 'tide.ffi.status'
local C = lib.C

local new_box, take, check = own.new_box, own.take, own.check
local tensor = arg.tensor

-- ---- like another ----------------------------------------------------------------------------

local like_opts = arg.set { 'dtype', 'device' }

local function like(name, x, value, opts)
   tensor(name, 'x', x)
   opts = arg.opts(name, opts, like_opts)
   local ctx, n = C.tide_tensor_ctx(x), C.tide_tensor_ndim(x)
   local device, dtype = C.tide_tensor_device(x), C.tide_tensor_dtype(x)
   if opts.device ~= nil then device = arg.device(name, 'opts.device', opts.device) end
   if opts.dtype ~= nil then dtype = arg.dtype(name, 'opts.dtype', opts.dtype) end
   value = arg.element(name, 'value', value, dtype)
   local shape = arg.new_shape()
   for i = 0, n - 1 do shape[i] = C.tide_tensor_dim(x, i) end
   return create.full(ctx, device, dtype, n, shape, value)
end

-- Returns zeros of the shape, dtype and device of x. opts: dtype, device.
function op.zeros_like(x, opts) return like('zeros_like', x, 0, opts) end
-- Returns ones of the shape, dtype and device of x. opts: dtype, device.
function op.ones_like(x, opts) return like('ones_like', x, 1, opts) end
-- Returns a tensor of the shape, dtype and device of x, with every element set to value. opts:
-- dtype, device.
function op.full_like(x, value, opts) return like('full_like', x, value, opts) end

-- ---- triangles -------------------------------------------------------------------------------

-- Returns bool [rows, columns] on the device of x, which compares column - row with a diagonal;
-- both count from 0.
local function side(name, x, diagonal, compare)
   local n = C.tide_tensor_ndim(tensor(name, 'x', x))
   if n < 2 then status.raise(C.TIDE_E_SHAPE, name, 'x: expected two dims or more, got %d', n) end
   diagonal = arg.int(name, 'diagonal', diagonal == nil and 0 or diagonal, -2^31, 2^31)
   local ctx, device = C.tide_tensor_ctx(x), C.tide_tensor_device(x)
   local function count(size) return create.arange(ctx, device, C.TIDE_I64, size, 0, 1) end
   local rows, columns = count(arg.size(x, n - 2)), count(arg.size(x, n - 1))
   return compare(op.sub(columns, op.unsqueeze(rows, 2)), diagonal)
end

local function triangle(name, x, diagonal, compare)
   local keep = side(name, x, diagonal, compare)
   if C.tide_tensor_dtype(x) == C.TIDE_BOOL then return op.logical_and(x, keep) end
   return op.where(keep, x, 0)
end

-- Returns the lower triangle of the last two dims, in the dtype of x: 0 (false) beyond a diagonal
-- (0 the main one, 1 the one above).
function op.tril(x, diagonal) return triangle('tril', x, diagonal, op.le) end
-- Returns the upper triangle of the last two dims, in the dtype of x: 0 (false) below a diagonal (0
-- the main one, 1 the one above).
function op.triu(x, diagonal) return triangle('triu', x, diagonal, op.ge) end

-- ---- reductions ------------------------------------------------------------------------------

-- Returns the value subtracted before exp: the largest one if it is finite; a constant (it cancels
-- in the derivative).
local function top_of(x, dim)
   local box = new_box()
   check(x, C.tide_detach(box, x))
   local top = op.amax(take(box), dim, true)
   return op.where(op.isfinite(top), top, 0)
end

local function has_elements(x)
   for i = 0, C.tide_tensor_ndim(x) - 1 do
      if arg.size(x, i) == 0 then return false end
   end
   return true
end

-- Returns log(sum(exp(x))) over dim (an integer, a list, or nil for all), without overflow; -inf
-- over no element. keepdim (false): dims stay with size 1. 16-bit types are computed in f32.
function op.logsumexp(x, dim, keepdim)
   tensor('logsumexp', 'x', x)
   arg.dims('logsumexp', x, dim)
   local keep = arg.flag('logsumexp', 'keepdim', keepdim)
   local dtype = C.tide_tensor_dtype(x)
   if dtype == C.TIDE_F16 or dtype == C.TIDE_BF16 then
      return op.cast(op.logsumexp(op.cast(x, 'f32'), dim, keepdim), arg.dtype_name[dtype])
   end
   if not has_elements(x) then return op.log(op.sum(op.exp(x), dim, keep)) end
   local top = top_of(x, dim)
   local sum = op.log(op.sum(op.exp(op.sub(x, top)), dim, keep))
   local shape = {}
   for i = 1, C.tide_tensor_ndim(sum) do shape[i] = arg.size(sum, i - 1) end
   return op.add(sum, op.reshape(top, shape))
end

return op
