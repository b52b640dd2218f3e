-- The tensor handle in Lua: properties, methods, operators, reading.
--
-- One metatype for `tide_tensor`, an incomplete struct, so that arithmetic reaches the metamethods.
-- LuaJIT allows a metatype once in the life of a Lua state; its functions read tables kept in
-- lib.state, which a reload of this file refills.
--
-- Properties: shape ndim dtype device grad grad_dtype requires_grad is_leaf id. Everything else is
-- a method.
-- Comparing two handles with == compares identity; `<` and `<=` between two handles compare
-- addresses (LuaJIT does not call the metatable): use lt, le, gt, ge, equal.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local buffer = require 'tide.ffi.buffer'
local arg = require 'tide.ffi.arg'
local status = require 'tide.ffi.status'
local op = require 'tide.ffi.compose'
local instead = require 'tide.ffi.instead'
local near = require 'tide.near'
local each = pairs -- by another name: see "faults" in bindings/README.md
local C = lib.C

local new_box, take, check = own.new_box, own.take, own.check
local tensor, dim_of = arg.tensor, arg.dim
local bad = status.bad_arg

lib.state.methods = lib.state.methods or {}
lib.state.props = lib.state.props or {}
local methods, props = lib.state.methods, lib.state.props
for name in each(methods) do methods[name] = nil end
for name in each(props) do props[name] = nil end

local make, _, once = require('tide.ffi.row').adders(methods)

-- ---- properties ------------------------------------------------------------------------------

-- Returns the sizes of the dims, as a new list, which may be changed.
function props.shape(x)
   local list = {}
   for i = 1, C.tide_tensor_ndim(x) do list[i] = tonumber(C.tide_tensor_dim(x, i - 1)) end
   return list
end
-- Returns the number of dims.
function props.ndim(x) return C.tide_tensor_ndim(x) end
-- Returns the name of the dtype.
function props.dtype(x) return arg.dtype_name[C.tide_tensor_dtype(x)] end
-- Returns the name of the device.
function props.device(x) return arg.device_name[C.tide_tensor_device(x)] end
-- Returns a number that no other tensor of this process has; use it as a table key.
function props.id(x) return C.tide_tensor_id(x) end
-- Returns whether backward computes a gradient for it or for what it was made of.
function props.requires_grad(x) return C.tide_needs_grad(x) == 1 end
-- Returns the dtype of its gradient, or of the one that backward would begin (see set_grad_dtype).
function props.grad_dtype(x) return arg.dtype_name[C.tide_grad_dtype(x)] end
-- Returns whether the tensor is a leaf, not the result of a recorded op.
function props.is_leaf(x) return C.tide_is_leaf(x) == 1 end
-- Returns the gradient, or nil.
function props.grad(x)
   local box = new_box()
   check(x, C.tide_grad(box, x))
   return own.take_or_nil(box)
end

-- ---- ops as methods --------------------------------------------------------------------------

-- Ops that are functions of several equal tensors, or whose first argument is a list.
local not_methods = arg.set { 'where', 'cat', 'stack', 'embedding', 'one_hot', 'linear', 'affine',
   'to_device', 'document_index', 'zigzag_index', 'zigzag_places', 'run_index', 'inverse_index',
   'slot_index', 'sequence_index', 'conv1d', 'conv1d_step', 'ssd_scan', 'ssd_step',
   'gated_delta', 'gated_delta_step', 'gated_rms_norm', 'linear_act', 'linear_fp8', 'linear_nf4',
   'dequantize_nf4', 'grouped_linear', 'group_rows', 'grouped_linear_nf4',
   'linear_nf4_part', 'dequantize_nf4_part', 'foreach_copy_', 'foreach_add_', 'linear_joined',
   'linear_fp8_joined', 'rope_joined', 'linear_lora' }
for name, fn in each(op) do
   if not not_methods[name] then methods[name] = fn end
end

-- ---- shape and layout ------------------------------------------------------------------------

-- Returns the size of a dim (from 1, negative from the end).
function methods.size(x, dim)
   tensor('size', 'x', x)
   return arg.size(x, dim_of('size', 'dim', dim, C.tide_tensor_ndim(x)))
end

-- Returns the number of elements from one index of a dim to the next.
function methods.stride(x, dim)
   tensor('stride', 'x', x)
   return tonumber(C.tide_tensor_stride(x, dim_of('stride', 'dim', dim, C.tide_tensor_ndim(x))))
end

-- Returns the number of elements.
function methods.numel(x) return tonumber(C.tide_tensor_numel(tensor('numel', 'x', x))) end

-- Returns whether the elements lie row-major without gaps.
function methods.is_contiguous(x)
   return C.tide_tensor_is_contiguous(tensor('is_contiguous', 'x', x)) == 1
end

-- Returns whether the bytes were dropped (end of a scope, release, reshard); uses then raise
-- E_GONE.
function methods.is_gone(x) return C.tide_tensor_is_gone(tensor('is_gone', 'x', x)) == 1 end

-- Returns the number of in-place writes to the bytes.
function methods.version(x) return tonumber(C.tide_tensor_version(tensor('version', 'x', x))) end

-- Returns whether x and y are views of the same bytes.
function methods.same_storage(x, y)
   tensor('same_storage', 'x', x)
   return C.tide_tensor_same_storage(x, tensor('same_storage', 'y', y)) == 1
end

-- ---- reading ---------------------------------------------------------------------------------

-- Returns a number from C as Lua value of this dtype: booleans for bool, integers only while exact.
local function value_of(name, dtype, v)
   if dtype == C.TIDE_BOOL then return v ~= 0 end
   if dtype == C.TIDE_I64 and (v >= arg.exact or v <= -arg.exact) then
      status.raise(C.TIDE_E_UNSUPPORTED, name, 'the value is beyond 2^53, where Lua numbers are '
         .. 'not exact; read it with to_string_bytes')
   end
   return v
end

local new_number = ffi.typeof 'double[1]'

-- Returns the only element: a number, or a boolean for dtype bool.
function methods.item(x)
   tensor('item', 'x', x)
   local number = new_number()
   check(x, C.tide_item(x, number))
   return value_of('item', C.tide_tensor_dtype(x), number[0])
end

-- Returns the element at 1-based positions.
function methods.at(x, ...)
   tensor('at', 'x', x)
   local ndim, n = C.tide_tensor_ndim(x), select('#', ...)
   if n ~= ndim then bad('at', 'i', ('%d positions'):format(ndim), n) end
   local ctx = C.tide_tensor_ctx(x)
   for k = 1, n do arg.index('at', 'i[' .. k .. ']', (select(k, ...)), arg.size(x, k - 1)) end
   local recording = C.tide_set_recording(ctx, false)
   local part, rc = x, 0
   for k = 1, n do
      local i = select(k, ...)
      i = i > 0 and i - 1 or i + arg.size(part, 0)
      local box = new_box()
      rc = C.tide_select(box, part, 0, i)
      if rc < 0 then break end
      part = take(box)
   end
   C.tide_set_recording(ctx, recording == 1)
   check(x, rc)
   local number = new_number()
   check(x, C.tide_item(part, number))
   return value_of('at', C.tide_tensor_dtype(x), number[0])
end

local function nest(values, shape, depth, at)
   local list, n = {}, shape[depth]
   if depth == #shape then
      for i = 1, n do list[i] = values(at + i - 1) end
      return list, at + n
   end
   for i = 1, n do list[i], at = nest(values, shape, depth + 1, at) end
   return list, at
end

local new_integers, new_doubles = buffer.of 'int64_t', buffer.of 'double'
local new_bytes = buffer.of 'uint8_t'

-- Returns nested lists of numbers (booleans for bool), or a number for a 0-dim tensor.
function methods.tolist(x)
   tensor('tolist', 'x', x)
   local n, dtype = tonumber(C.tide_tensor_numel(x)), C.tide_tensor_dtype(x)
   local data
   if dtype == C.TIDE_I64 then
      data = new_integers(n)
      check(x, C.tide_to_bytes(x, data, n * 8))
   else
      data = new_doubles(n)
      check(x, C.tide_to_doubles(x, data, n))
   end
   local function values(i) return value_of('tolist', dtype, tonumber(data[i])) end
   local shape = props.shape(x)
   if #shape == 0 then return values(0) end
   return (nest(values, shape, 1, 0))
end

-- Returns the elements as raw bytes in row-major order.
function methods.to_string_bytes(x)
   tensor('to_string_bytes', 'x', x)
   local n = methods.numel(x) * C.tide_dtype_size(C.tide_tensor_dtype(x))
   local data = new_bytes(n)
   check(x, C.tide_to_bytes(x, data, n))
   return ffi.string(data, n)
end

local new_text = ffi.typeof 'char[4096]'

-- Returns shape, dtype, device, head and tail of the data as text.
function methods.tostring(x)
   if ffi.istype('tide_tensor *', x) and C.tide_tensor_ndim(x) < 0 then
      return x == nil and 'null tensor' or 'released tensor'
   end
   tensor('tostring', 'x', x)
   local text = new_text()
   check(x, C.tide_tensor_format(x, text, 4096, 1))
   return ffi.string(text)
end

-- Returns whether shapes, dtypes and all elements are the same.
function methods.equal(x, y)
   tensor('equal', 'x', x)
   tensor('equal', 'y', y)
   local ndim = C.tide_tensor_ndim(x)
   if ndim ~= C.tide_tensor_ndim(y) or C.tide_tensor_dtype(x) ~= C.tide_tensor_dtype(y) then
      return false
   end
   for i = 0, ndim - 1 do
      if C.tide_tensor_dim(x, i) ~= C.tide_tensor_dim(y, i) then return false end
   end
   return op.all(op.eq(x, y)):item()
end

-- ---- conversion ------------------------------------------------------------------------------

local to_opts = arg.set { 'dtype', 'device', 'non_blocking' }

-- Returns x in another dtype or on another device, or x itself if nothing changes: x:to 'bf16',
-- x:to 'cpu', x:to{dtype =, device =, non_blocking =}, x:to('cuda', {non_blocking = true}).
-- non_blocking concerns the device: see tide.to_device.
function methods.to(x, what, opts)
   tensor('to', 'x', x)
   if opts ~= nil then
      arg.opts('to', opts, to_opts)
      if type(what) ~= 'string' then bad('to', 'what', 'a name when options follow', what) end
      local key = arg.dtype_code[what] and 'dtype' or 'device'
      what = { [key] = what, non_blocking = opts.non_blocking,
               dtype = key == 'dtype' and what or opts.dtype,
               device = key == 'device' and what or opts.device }
   end
   if type(what) == 'string' then
      if arg.dtype_code[what] then return op.cast(x, what) end
      if arg.device_code[what] then return op.to_device(x, what) end
      bad('to', 'what', 'a dtype or device name', what)
   end
   if type(what) ~= 'table' then bad('to', 'what', 'a name or {dtype =, device =}', what) end
   arg.opts('to', what, to_opts)
   if what.dtype ~= nil then arg.dtype('to', 'dtype', what.dtype) end
   if what.device ~= nil then
      local lazy = arg.flag('to', 'non_blocking', what.non_blocking)
      x = op.to_device(x, what.device, lazy)
   end
   if what.dtype ~= nil then x = op.cast(x, what.dtype) end
   return x
end

-- Returns x in pinned host memory, for asynchronous copies to the GPU, or x itself if it is pinned.
make 'pin_memory(x)'

-- Returns whether the memory of the tensor is page-locked, so that copies to a GPU run beside the
-- host.
function methods.is_pinned(x) return C.tide_is_pinned(tensor('is_pinned', 'x', x)) == 1 end

-- Returns x as f32.
function methods.float(x) return op.cast(x, 'f32') end
-- Returns x as f64.
function methods.double(x) return op.cast(x, 'f64') end
-- Returns x as f16.
function methods.half(x) return op.cast(x, 'f16') end
-- Returns x as bf16.
function methods.bf16(x) return op.cast(x, 'bf16') end
-- Returns x as i64.
function methods.long(x) return op.cast(x, 'i64') end

-- ---- gradients -------------------------------------------------------------------------------

-- Returns a tensor on the same bytes, without history.
make 'detach(x)'

-- Marks a leaf as needing a gradient (on, default) or not. Returns x.
function methods.requires_grad_(x, on)
   tensor('requires_grad_', 'x', x)
   on = on == nil or arg.flag('requires_grad_', 'on', on)
   local rc = C.tide_set_needs_grad(x, on)
   if rc < 0 then status.fail(C.tide_tensor_ctx(x), rc, nil, 'requires_grad_') end
   return x
end

-- Sets the gradient (a tensor, or nil to clear it). Returns x. That of a bf16 or f16 tensor may be
-- f32: backward then adds up in f32.
once 'set_grad(x, grad: maybe)'

-- Sets the dtype in which backward begins the gradient of a leaf: its own, or 'f32' for a bf16 or
-- f16 leaf. Products then write f32 sums, without rounding between micro-batches. Returns x.
once 'set_grad_dtype(x, dtype: dtype)'

-- Clears the gradient: x.grad is nil. Returns x.
once 'set_grad: zero_grad(x) -> x, nil'

-- Clears the gradient as zero_grad does, and frees its bytes now; remaining handles raise E_GONE.
-- Bytes that another tensor shares stay; gradients of one buffer (linear_joined) are freed with the
-- last one.
once 'drop_grad(x)'

-- Adds the gradients of x to the .grad of every leaf that x depends on. opts: retain (see
-- tide.backward).
function methods.backward(x, grad, opts) return require('tide.ffi.grad').backward(x, grad, opts) end

-- ---- life ------------------------------------------------------------------------------------

-- Frees the bytes now, also those of every view of them. The handle stays: uses of the bytes raise
-- E_GONE, shape and dtype can still be read.
function methods.release(x)
   tensor('release', 'x', x)
   check(x, C.tide_tensor_drop(x))
end

-- Frees bytes that restore_bytes will allocate again, as for a sharded parameter between its uses.
once 'tensor_drop: drop_bytes(x)'

-- Allocates the bytes again, contents undefined, for every view and every tensor saved by the tape.
once 'tensor_restore: restore_bytes(x)'

-- Declares that all restored bytes hold what they held when they were dropped, so that tensors that
-- the tape saved before stay valid. Without it backward refuses them as changed in place.
once 'tensor_refilled: refilled(x)'

-- ---- the metatype ----------------------------------------------------------------------------

-- Returns "; did you mean 'reshape'?" for a name that is close to one of a tensor's.
local function nearest(name)
   local list = {}
   for _, known in ipairs { methods, props } do
      for k in each(known) do list[#list + 1] = k end
   end
   table.sort(list)
   return type(name) == 'string' and near.hint(name, list) or ''
end

local function unknown(name)
   local more = instead[name] and '; instead: ' .. instead[name]
   if not more and not_methods[name] then
      more = ('; it is a function: tide.%s(...)'):format(name)
   end
   status.raise(C.TIDE_E_ARG, 'tensor', "a tensor has no field or method '%s'%s", tostring(name),
      more or nearest(name))
end

local function index(x, key)
   local method = methods[key]
   if method then return method end
   local prop = props[key]
   if prop then
      if C.tide_tensor_ndim(x) < 0 then bad('tensor', 'x', 'a tensor', x) end
      return prop(x)
   end
   return unknown(key)
end

local hints = { grad = 'use x:set_grad(g)', requires_grad = 'use x:requires_grad_(on)',
   grad_dtype = 'use x:set_grad_dtype(dtype)' }

local function newindex(_, key)
   status.raise(C.TIDE_E_ARG, 'tensor', "field '%s' cannot be assigned%s", tostring(key),
      hints[key] and '; ' .. hints[key] or '; tensors carry no fields of their own')
end

local function length(x)
   if C.tide_tensor_ndim(x) <= 0 then
      status.raise(C.TIDE_E_SHAPE, 'len', '# needs a tensor with at least one dim')
   end
   return tonumber(C.tide_tensor_dim(x, 0))
end

local function no_order()
   status.raise(C.TIDE_E_ARG, 'compare', 'tensors are not ordered; use lt, le, gt or ge')
end

local function no_mod()
   status.raise(C.TIDE_E_UNSUPPORTED, 'mod', 'tensors have no operator %; the remainder is '
      .. 'x - (x / y):floor() * y')
end

local function no_text()
   status.raise(C.TIDE_E_ARG, 'concat', 'a tensor is not text; x:item() is the number of a tensor '
      .. 'of one element, tostring(x) the text of any')
end

local function no_loop()
   status.raise(C.TIDE_E_ARG, 'ipairs', 'a tensor is not a list; for i = 1, x:size(1) with '
      .. 'x:select(1, i), or ipairs(x:tolist())')
end

-- The metamethods look these up at each call, so that a reload replaces them.
lib.state.meta = {
   index = index, newindex = newindex, len = length, order = no_order, mod = no_mod,
   tostring = methods.tostring, add = op.add, sub = op.sub, mul = op.mul, div = op.div,
   pow = op.pow, unm = op.neg, concat = no_text, ipairs = no_loop,
}

-- Returns an operator as a function that is not compiled. When a trace holds two arithmetic
-- metamethod calls in a row (x * 3 + 2), the recorder of LuaJIT builds of 2022 finds stale
-- references in the second one's frame and crashes. Loops that must be one trace use the methods
-- (x:mul(3):add(2)), which are looked up differently.
local function operator(name)
   local state = lib.state
   local function call(x, y) return state.meta[name](x, y) end
   jit.off(call)
   return call
end

lib.once('metatype', function()
   local state = lib.state
   state.metatable = {
      __index = function(x, key) return state.meta.index(x, key) end,
      __newindex = function(x, key) return state.meta.newindex(x, key) end,
      __tostring = function(x) return state.meta.tostring(x) end,
      __eq = function() return false end,
      __len = operator 'len', __lt = operator 'order', __le = operator 'order',
      __add = operator 'add', __sub = operator 'sub', __mul = operator 'mul',
      __div = operator 'div', __mod = operator 'mod', __pow = operator 'pow',
      __unm = operator 'unm', __concat = operator 'concat', __ipairs = operator 'ipairs',
      __pairs = operator 'ipairs',
   }
   ffi.metatype('tide_tensor', state.metatable)
end)

return { methods = methods, props = props }
