-- The machine code of libtide_cuda.so against the table of machine.lua.

local machine = require 'spec.cuda.machine'
local toolkit = require 'spec.cuda.toolkit'

local cuobjdump = toolkit.tool 'cuobjdump'
local library = (os.getenv 'TIDE_BUILD' or 'build') .. '/libtide_cuda.so'
local file = io.open(library)

describe('the machine code of the CUDA kernels', function()
   if not cuobjdump or not file then
      pending(cuobjdump and library .. ' is not built (make cuda)'
         or 'cuobjdump is neither in PATH nor named by $CUOBJDUMP')
      return
   end
   file:close()
   local kernels = machine.read(cuobjdump, library)
   for _, row in ipairs(machine.kernels) do
      it(row.file .. ' ' .. row.name, function()
         assert.same({}, machine.faults(row, machine.find(row, kernels)))
      end)
   end
end)
