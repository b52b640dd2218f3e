-- Arguments: Lua values checked and turned into what C takes.
--
-- FFI silently converts 1e20, NaN or 1.5 to some integer and null to a pointer, so each argument is
-- checked here and an error names function, argument, expectation and value.
--
-- The only place where 1-based becomes 0-based: dims and element indices count from 1 in Lua,
-- negative from the end. Each list goes to a buffer of its own (see own.lua).

local ffi = require 'ffi'
local errors = require 'tide.error'
local buffer = require 'tide.ffi.buffer'
local lib = require 'tide.ffi.lib'
local status = require 'tide.ffi.status'
local own = require 'tide.ffi.own'
local each = pairs -- by another name: see "faults" in bindings/README.md
local C = lib.C

local M = {}
local istype, floor, abs = ffi.istype, math.floor, math.abs
local tensor_t = ffi.typeof 'tide_tensor *'
local bad = status.bad_arg
local MAX = C.TIDE_MAX_DIM

M.exact = 2^53                              -- integers up to here are exact in a Lua number

-- ---- scalars ---------------------------------------------------------------------------------

-- Returns a tensor handle of tide, its bytes there or gone; anything else, null and released ones
-- too, raises.
function M.tensor(op, name, x)
   if not istype(tensor_t, x) or C.tide_tensor_ndim(x) < 0 then bad(op, name, 'a tensor', x) end
   return x
end

-- Returns whether x is a tensor handle, live or gone.
function M.is_tensor(x) return istype(tensor_t, x) and x ~= nil end

-- Returns a tensor or nil; nil goes to C as a null pointer.
function M.tensor_or_nil(op, name, x)
   if x ~= nil and not istype(tensor_t, x) then bad(op, name, 'a tensor or nil', x) end
   return x
end

-- Refuses PyTorch's alpha for an op that does not have it.
function M.no_alpha(op, alpha)
   if alpha ~= nil then bad(op, 'alpha', 'nothing (multiply the second operand by it)', alpha) end
end

-- Returns any number, NaN and infinity included.
function M.number(op, name, v)
   if type(v) ~= 'number' then bad(op, name, 'a number', v) end
   return v
end

M.finite, M.int, M.func = errors.number, errors.integer, errors.func

-- Returns a boolean; nil means false.
function M.flag(op, name, v)
   if v == nil then return false end
   if type(v) ~= 'boolean' then bad(op, name, 'true, false or nil', v) end
   return v
end

-- Returns a string.
function M.string(op, name, v)
   if type(v) ~= 'string' then bad(op, name, 'a string', v) end
   return v
end

-- ---- dims and indices ------------------------------------------------------------------------

local function no_dim(op, name, v, ndim)
   bad(op, name, ndim == 0 and 'no dim at all (the tensor has none)'
      or ('an integer in [-%d, %d] without 0'):format(ndim, ndim), v)
end

-- Returns a dim of a tensor with ndim dims, 0-based.
function M.dim(op, name, v, ndim)
   if type(v) ~= 'number' or v ~= floor(v) or v == 0 or v < -ndim or v > ndim then
      no_dim(op, name, v, ndim)
   end
   return v > 0 and v - 1 or v + ndim
end

-- Returns an element index of a dim of this size, 0-based.
function M.index(op, name, v, size)
   if type(v) ~= 'number' or v ~= floor(v) or v == 0 or v < -size or v > size then
      bad(op, name, size == 0 and 'no index at all (the dim is empty)'
         or ('an integer in [-%d, %d] without 0'):format(size, size), v)
   end
   return v > 0 and v - 1 or v + size
end

-- Returns the number of dims.
function M.ndim(x) return C.tide_tensor_ndim(x) end
-- Returns the size of a dim given 0-based.
function M.size(x, dim) return tonumber(C.tide_tensor_dim(x, dim)) end

-- ---- lists of integers -----------------------------------------------------------------------

-- Buffers for the sizes of a shape, and for a list of dims.
local new_shape = ffi.typeof('int64_t[$]', MAX)
local new_dims = ffi.typeof('int32_t[$]', MAX)
M.new_shape, M.new_dims = new_shape, new_dims

local function not_a_list(op, name, list) bad(op, name, 'a list of integers', list) end

-- Returns a list of integers as (length, buffer). lo: least value allowed (0).
function M.ints(op, name, list, lo)
   local buf = new_shape()
   lo = lo or 0
   if type(list) ~= 'table' then not_a_list(op, name, list) end
   local n = #list
   if n == 0 and next(list) ~= nil or list[n + 2] ~= nil then
      bad(op, name, 'a list without holes: { 2, 3 }, or {} for none', list)
   end
   if list.dtype ~= nil or list.device ~= nil or list.requires_grad ~= nil then
      bad(op, name, 'sizes alone; options are a table of their own: ({ 2 }, { dtype = .. })', list)
   end
   if n > MAX then bad(op, name, ('at most %d entries'):format(MAX), n) end
   for i = 1, n do
      local v = list[i]
      if type(v) ~= 'number' or v ~= floor(v) or v < lo or v > M.exact then
         bad(op, name .. '[' .. i .. ']', ('an integer >= %d'):format(lo), v)
      end
      buf[i - 1] = v
   end
   return n, buf
end

local function entry(op, name, lo, v)
   if type(v) ~= 'number' or v ~= floor(v) or v < lo or v > M.exact then
      bad(op, name, ('integers >= %d'):format(lo), v)
   end
   return v
end

-- Returns integers given as separate numbers as ints does: x:reshape(2, 3). The first may be a list
-- instead. It has no loop: one of few turns that becomes hot by itself keeps a caller's loop from
-- being compiled.
function M.ints_of(op, name, lo, a, b, c, d, e, f, g, h)
   if type(a) == 'table' then
      if b ~= nil then bad(op, name, 'one list, or numbers', b) end
      return M.ints(op, name, a, lo)
   end
   local buf = new_shape()
   if a == nil then return 0, buf else buf[0] = entry(op, name, lo, a) end
   if b == nil then return 1, buf else buf[1] = entry(op, name, lo, b) end
   if c == nil then return 2, buf else buf[2] = entry(op, name, lo, c) end
   if d == nil then return 3, buf else buf[3] = entry(op, name, lo, d) end
   if e == nil then return 4, buf else buf[4] = entry(op, name, lo, e) end
   if f == nil then return 5, buf else buf[5] = entry(op, name, lo, f) end
   if g == nil then return 6, buf else buf[6] = entry(op, name, lo, g) end
   if h == nil then return 7, buf else buf[7] = entry(op, name, lo, h) end
   return 8, buf
end

-- Returns dims of x for a reduction as (count, buffer): nil is every dim (count 0), a number one
-- dim, a list several.
function M.dims(op, x, dim)
   if dim == nil then return 0, nil end
   local ndim, buf = C.tide_tensor_ndim(x), new_dims()
   if type(dim) == 'number' then
      buf[0] = M.dim(op, 'dim', dim, ndim)
      return 1, buf
   end
   if type(dim) ~= 'table' then bad(op, 'dim', 'an integer, a list of integers or nil', dim) end
   local n = #dim
   if n == 0 then bad(op, 'dim', 'at least one dim in the list, or nil for all', dim) end
   if n > MAX then bad(op, 'dim', ('at most %d entries'):format(MAX), n) end
   for i = 1, n do
      buf[i - 1] = M.dim(op, 'dim', dim[i], ndim)
      for j = 0, i - 2 do
         if buf[j] == buf[i - 1] then bad(op, 'dim', 'each dim once', dim[i]) end
      end
   end
   return n, buf
end

-- ---- lists of tensors ------------------------------------------------------------------------

local new_list = buffer.of 'tide_tensor *'

-- Returns a Lua list of tensors as (buffer, length); the list keeps them alive. holes: false
-- entries become null.
function M.tensors(op, name, list, holes)
   if type(list) ~= 'table' then bad(op, name, 'a list of tensors', list) end
   local n = #list
   local buf = new_list(n)
   for i = 1, n do
      local t = list[i]
      if istype(tensor_t, t) and t ~= nil then
         buf[i - 1] = t
      elseif holes and t == false then
         buf[i - 1] = nil
      else
         bad(op, name .. '[' .. i .. ']', holes and 'a tensor or false' or 'a tensor', t)
      end
   end
   return buf, n
end

-- ---- dtypes and devices ----------------------------------------------------------------------

M.dtype_name, M.dtype_code, M.device_name, M.device_code = {}, {}, {}, {}
M.dtype_size = {}                          -- bytes of an element, by name
for code = 0, C.TIDE_NDTYPE - 1 do
   local name = ffi.string(C.tide_dtype_name(code))
   M.dtype_name[code], M.dtype_code[name] = name, code
   M.dtype_size[name] = C.tide_dtype_size(code)
end
for code = 0, C.TIDE_NDEV - 1 do
   local name = ffi.string(C.tide_device_name(code))
   M.device_name[code], M.device_code[name] = name, code
end

local function names(codes)
   local list = {}
   for name in each(codes) do list[#list + 1] = name end
   table.sort(list)
   return table.concat(list, ', ')
end

-- Returns the code of a dtype given by name.
function M.dtype(op, name, v)
   local code = type(v) == 'string' and M.dtype_code[v]
   if not code then bad(op, name, 'a dtype (' .. names(M.dtype_code) .. ')', v) end
   return code
end

-- Returns the code of a device given by name.
function M.device(op, name, v)
   local code = type(v) == 'string' and M.device_code[v]
   if not code then bad(op, name, 'a device (' .. names(M.device_code) .. ')', v) end
   return code
end

-- Returns whether this code is of a floating dtype.
function M.is_float(dtype) return dtype <= C.TIDE_F16 end

-- ---- option tables ---------------------------------------------------------------------------

local none = {}

-- Checks options as errors.options does, for calls that are made often: nil gives one shared empty
-- table, which is read only. allowed: a set.
function M.opts(op, opts, allowed)
   if opts == nil then return none end
   return errors.options(op, opts, allowed)
end

-- Returns a set from names: set{'a', 'b'}.
function M.set(list)
   local s = {}
   for _, name in ipairs(list) do s[name] = true end
   return s
end

-- ---- numbers as operands ---------------------------------------------------------------------

local int_range = {
   [C.TIDE_I64] = { -M.exact, M.exact }, [C.TIDE_I32] = { -2^31, 2^31 - 1 },
   [C.TIDE_U8] = { 0, 255 }, [C.TIDE_BOOL] = { 0, 1 },
}

-- Returns a number (or boolean) to be stored in elements of this dtype: integers must be whole and
-- fit.
function M.element(op, name, v, dtype)
   if type(v) == 'boolean' then v = v and 1 or 0 end
   if type(v) ~= 'number' then bad(op, name, 'a number', v) end
   if dtype <= C.TIDE_F16 then return v end
   local range = int_range[dtype]
   if v ~= floor(v) or v < range[1] or v > range[2] then
      bad(op, name, ('an integer in [%.0f, %.0f] (dtype %s)'):format(range[1], range[2],
         M.dtype_name[dtype]), v)
   end
   return v
end

-- Returns the dtype of the number v as an operand beside a tensor of this dtype: the tensor's own
-- if it can hold v, else i64 for integers and f32 for other numbers.
local function scalar_dtype(dtype, v)
   if dtype <= C.TIDE_F16 then return dtype end
   if v ~= floor(v) or abs(v) > M.exact then return C.TIDE_F32 end
   local range = dtype ~= C.TIDE_BOOL and int_range[dtype]
   if range and v >= range[1] and v <= range[2] then return dtype end
   return C.TIDE_I64
end

-- Returns a 0-dim tensor with the value v (number or boolean) to combine with x.
local function scalar_like(op, name, x, v)
   local dtype = C.tide_tensor_dtype(x)
   if dtype < 0 then bad(op, name == 'y' and 'x' or 'y', 'a tensor', x) end
   if type(v) == 'boolean' then
      v = v and 1 or 0
      if dtype == C.TIDE_BOOL then return M.scalar(x, C.TIDE_BOOL, v) end
   elseif type(v) ~= 'number' then
      bad(op, name, 'a tensor or a number', v)
   end
   return M.scalar(x, scalar_dtype(dtype, v), v)
end

-- Returns a 0-dim tensor of this dtype on the device of x.
function M.scalar(x, dtype, v)
   local ctx, device = C.tide_tensor_ctx(x), C.tide_tensor_device(x)
   local box = own.new_box()
   local rc = C.tide_full(box, ctx, device, dtype, 0, nil, v)
   if rc ~= 0 and own.again(ctx, rc) then
      own.check(ctx, C.tide_full(box, ctx, device, dtype, 0, nil, v))
   end
   return own.take(box)
end

-- Returns the second operand of a binary op as a tensor.
function M.operand(op, name, x, y)
   if istype(tensor_t, y) then return y end
   return scalar_like(op, name, x, y)
end

-- Returns both operands of a binary op as tensors; one of them may be a number.
function M.pair(op, x, y)
   if istype(tensor_t, x) then
      if istype(tensor_t, y) then return x, y end
      return x, scalar_like(op, 'y', x, y)
   end
   if istype(tensor_t, y) then return scalar_like(op, 'x', y, x), y end
   return bad(op, 'x', 'a tensor', x)
end

return M
