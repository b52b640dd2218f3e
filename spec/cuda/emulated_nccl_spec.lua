-- Ranks over NCCL, which an emulated one carries between four emulated devices.

local emulated = require 'spec.cuda.emulated'

if not emulated.here() then return end

it('the NCCL communicator passes spec/cuda/nccl_case.lua', function()
   emulated.run('spec/cuda/nccl_case.lua', ('TIDE_EMULATE_DEVICES=4 TIDE_SPEC_NCCL=%s/libnccl.so.2')
      :format((emulated.capture('readlink -f ' .. emulated.folder):gsub('%s+$', ''))))
end)
