-- Arrays for one call into C, of any length.
--
-- Compiled code must not make arrays of variable length: when a trace sinks the allocation of one,
-- LuaJIT builds of 2022 restore it with a wrong size at the trace's exit, which corrupts the heap.
-- So short arrays have one of three fixed types, and longer ones are made by a function that is
-- never compiled.

local ffi = require 'ffi'

local M = {}

-- Returns a function that makes arrays of at least n elements, all 0. element: a C type.
function M.of(element)
   local short, middle = ffi.typeof(element .. '[8]'), ffi.typeof(element .. '[64]')
   local long, any = ffi.typeof(element .. '[512]'), ffi.typeof(element .. '[?]')
   local function make_any(n) return any(n) end
   jit.off(make_any)
   return function(n)
      if n <= 8 then return short() end
      if n <= 64 then return middle() end
      if n <= 512 then return long() end
      return make_any(n)
   end
end

return M
