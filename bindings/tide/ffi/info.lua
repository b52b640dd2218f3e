-- Facts about this build: version, parts found, parameters, clock.

local ffi = require 'ffi'
local C = require('tide.ffi.lib').C
local each = pairs -- by another name: see "faults" in bindings/README.md

local M = {}

M.version = ffi.string(C.tide_version())

-- Returns a line for each part of this build and each library that it found.
function M.build_info() return ffi.string(C.tide_build_info()) end

-- Returns the seconds of a monotonic clock.
function M.clock() return C.tide_trace_clock() end

-- Returns every tunable: a list of {name =, doc =}.
function M.params()
   local list = {}
   for i = 0, C.tide_param_count() - 1 do
      local name, doc = C.tide_param_name(i), C.tide_param_doc(i)
      list[i + 1] = { name = ffi.string(name), doc = ffi.string(doc) }
   end
   return list
end

-- Returns the bytes of an element of this dtype ('f32'). op: the name in errors, if not this one.
function M.dtype_size(dtype, op)
   return C.tide_dtype_size(require('tide.ffi.arg').dtype(op or 'dtype_size', 'dtype', dtype))
end

-- Returns every op: a list of {name =, flags =}, flags a set of view, inplace, random, backward,
-- nograd.
function M.ops()
   local bits = { view = C.TIDE_OPF_VIEW, inplace = C.TIDE_OPF_INPLACE, random = C.TIDE_OPF_RANDOM,
      backward = C.TIDE_OPF_BACKWARD, nograd = C.TIDE_OPF_NOGRAD }
   local list = {}
   for i = 0, C.tide_op_count() - 1 do
      local flags, value = {}, C.tide_op_flags(i)
      for name, mask in each(bits) do
         if bit.band(value, mask) ~= 0 then flags[name] = true end
      end
      list[i + 1] = { name = ffi.string(C.tide_op_name(i)), flags = flags, index = i }
   end
   return list
end

-- Returns whether the device (name) has a kernel for op (index of M.ops) and dtype (name).
function M.op_supported(index, device, dtype)
   local arg = require 'tide.ffi.arg'
   return C.tide_op_supported(index, arg.device('op_supported', 'device', device),
      arg.dtype('op_supported', 'dtype', dtype)) == 1
end

return M
