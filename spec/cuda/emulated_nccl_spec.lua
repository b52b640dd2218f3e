-- Ranks over NCCL, which an emulated one carries between four emulated devices.

local emulated = require 'spec.cuda.emulated'

if not emulated.here() then return end

for name, what in require 'tide.util.each' {
   nccl_case = 'the NCCL communicator', nccl_graph_case = 'its calls in captured steps',
} do
   it(('%s: spec/cuda/%s.lua passes'):format(what, name), function()
      emulated.run(('spec/cuda/%s.lua'):format(name),
         ('TIDE_EMULATE_DEVICES=4 TIDE_SPEC_NCCL=%s/libnccl.so.2')
         :format((emulated.capture('readlink -f ' .. emulated.folder):gsub('%s+$', ''))))
   end)
end
