-- Prints the ops that have no CUDA kernel in any floating or index dtype, or "all". Run by
-- emulated_all_spec.lua with TIDE_BUILD naming a folder of libraries.

package.path = './?.lua;' .. package.path
require 'spec.support.helper'
local info = require 'tide.ffi.info'

local missing = {}
for _, op in ipairs(info.ops()) do
   local some = false
   for _, dtype in ipairs { 'f32', 'i64', 'i32' } do
      some = some or info.op_supported(op.index, 'cuda', dtype)
   end
   if not some then missing[#missing + 1] = op.name end
end
print(#missing == 0 and 'all' or table.concat(missing, ' '))
