-- The attention kernels, compiled here for the chips of its rows, keep the limits of
-- spec/cuda/machine_attention.lua. Some minutes; needs nvcc and cuobjdump.

local machine = require 'spec.cuda.machine_attention'
local toolkit = require 'spec.cuda.toolkit'

local nvcc, cuobjdump = toolkit.tool 'nvcc', toolkit.tool 'cuobjdump'

describe('the machine code of attention', function()
   if not nvcc or not cuobjdump then
      pending('keeps its limits: there is no ' .. (nvcc and 'cuobjdump' or 'nvcc'))
      return
   end
   local done = {}
   for _, row in ipairs(machine.kernels) do
      local which = ('%s for sm_%s'):format(row.file, row.chip)
      if not done[which] then
         done[which] = true
         it('keeps its limits: ' .. which, function()
            local to, all = os.tmpname(), {}
            machine.compile(nvcc, row.file, to, row.chip)
            local kernels = machine.read(cuobjdump, to, row.chip)
            os.remove(to)
            for _, other in ipairs(machine.kernels) do
               local own = other.file == row.file and other.chip == row.chip
               local faults = own and machine.faults(other, kernels) or {}
               for _, fault in ipairs(faults) do all[#all + 1] = fault end
            end
            assert.same({}, all)
         end)
      end
   end
end)
