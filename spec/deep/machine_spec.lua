-- The machine code of the CUDA kernels against the table of spec/cuda/machine.lua: each file
-- compiled for sm_90 as the library is. Needs nvcc and cuobjdump, no GPU.

local machine = require 'spec.cuda.machine'
local toolkit = require 'spec.cuda.toolkit'
local tmp = require 'spec.support.tmp'

local nvcc, cuobjdump = toolkit.tool 'nvcc', toolkit.tool 'cuobjdump'

local files, names = {}, {}
for _, row in ipairs(machine.kernels) do
   if not files[row.file] then
      files[row.file] = {}
      names[#names + 1] = row.file
   end
   table.insert(files[row.file], row)
end

describe('the machine code of the CUDA kernels', function()
   if not nvcc or not cuobjdump then
      pending(('needs %s: in PATH, in /usr/local/cuda or named by $%s'):format(
         nvcc and 'cuobjdump' or 'nvcc', nvcc and 'CUOBJDUMP' or 'NVCC'))
      return
   end
   for _, name in ipairs(names) do
      it('of ' .. name, function()
         tmp.with(function(dir)
            local object = dir .. '/kernel.o'
            assert(os.execute(('%s -std=c++17 -O2 -DNDEBUG -gencode arch=compute_90,code=sm_90 '
               .. '-I. -Icore/include -c kernels/cuda/%s -o %s'):format(nvcc, name, object)) == 0)
            local kernels, faults = machine.read(cuobjdump, object), {}
            for _, row in ipairs(files[name]) do
               for _, fault in ipairs(machine.faults(row, machine.find(row, kernels))) do
                  faults[#faults + 1] = fault
               end
            end
            assert.same({}, faults)
         end)
      end)
   end
end)
