-- Ops made of other ops, so with their derivatives and on every device (layer 7).
--
-- The one idea: they are ops as the others are: this file adds them to the table of ops.

local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local op = require 'tide.ffi.op'
local status = require 'tide.ffi.status'
local C = lib.C

local box, take, check = own.box, own.take, own.check_t
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
   for i = 0, n - 1 do arg.shape_buf[i] = C.tide_tensor_dim(x, i) end
   local rc = C.tide_full(box, ctx, device, dtype, n, arg.shape_buf, value)
   if rc ~= 0 and own.again(ctx, rc) then
      own.check(ctx, C.tide_full(box, ctx, device, dtype, n, arg.shape_buf, value))
   end
   return take()
end

-- Zeros of the shape, dtype and device of x. opts: dtype, device.
function op.zeros_like(x, opts) return like('zeros_like', x, 0, opts) end
-- Ones of the shape, dtype and device of x. opts: dtype, device.
function op.ones_like(x, opts) return like('ones_like', x, 1, opts) end
-- value everywhere, with the shape, dtype and device of x. opts: dtype, device.
function op.full_like(x, value, opts) return like('full_like', x, value, opts) end

-- ---- triangles -------------------------------------------------------------------------------

-- bool [rows, columns] on the device of x: column - row against a diagonal, both from 0.
local function side(name, x, diagonal, compare)
   local n = C.tide_tensor_ndim(tensor(name, 'x', x))
   if n < 2 then
      status.raise(C.TIDE_E_SHAPE, name, 'x: expected two dims or more, got %d', n)
   end
   diagonal = arg.int(name, 'diagonal', diagonal == nil and 0 or diagonal, -2^31, 2^31)
   local ctx, device = C.tide_tensor_ctx(x), C.tide_tensor_device(x)
   local function count(size)
      own.check(ctx, C.tide_arange(box, ctx, device, C.TIDE_I64, size, 0, 1))
      return take()
   end
   local rows, columns = count(arg.size(x, n - 2)), count(arg.size(x, n - 1))
   return compare(op.sub(columns, op.unsqueeze(rows, 2)), diagonal)
end

-- The lower triangle of the last two dims: 0 beyond a diagonal (0 the main one, 1 the one above).
function op.tril(x, diagonal) return op.where(side('tril', x, diagonal, op.le), x, 0) end
-- The upper triangle of the last two dims: 0 below a diagonal (0 the main one, 1 the one above).
function op.triu(x, diagonal) return op.where(side('triu', x, diagonal, op.ge), x, 0) end

-- ---- reductions ------------------------------------------------------------------------------

-- log(sum(exp(x))) over dim (an integer, a list, or nil for all), which does not overflow.
-- keepdim (false): dims stay with size 1.
function op.logsumexp(x, dim, keepdim)
   tensor('logsumexp', 'x', x)
   arg.dims('logsumexp', x, dim)
   local keep = arg.flag('logsumexp', 'keepdim', keepdim)
   check(x, C.tide_detach(box, x))
   local top = op.amax(take(), dim, true)         -- a constant: it cancels in the derivative
   top = op.where(op.isfinite(top), top, 0)
   local sum = op.log(op.sum(op.exp(op.sub(x, top)), dim, keep))
   local shape = {}
   for i = 1, C.tide_tensor_ndim(sum) do shape[i] = arg.size(sum, i - 1) end
   return op.add(sum, op.reshape(top, shape))
end

return op
