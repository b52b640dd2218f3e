-- Ranks over NCCL, which an emulated one carries between four emulated devices.

local emulated = require 'spec.cuda.emulated'

if not emulated.here() then return end

for _, case in ipairs {
   { 'nccl_case', 'the NCCL communicator', '' },
   { 'nccl_graph_case', 'its calls in captured steps', '' },
   { 'nccl_memory_case', 'memory beside its calls', 'TIDE_EMULATE_MEMORY=201326592' },
   { 'nccl_order_case', 'the order of its calls', 'TIDE_EMULATE_NCCL_SLOW=2' },
   { 'nccl_order_case', 'their order where NCCL keeps it on the device',
     'TIDE_EMULATE_NCCL_SLOW=3 NCCL_LAUNCH_ORDER_IMPLICIT=1' },
} do
   local name, what, env = unpack(case)
   it(('%s: spec/cuda/%s.lua passes'):format(what, name), function()
      emulated.run(('spec/cuda/%s.lua'):format(name),
         ('TIDE_EMULATE_DEVICES=4 TIDE_SPEC_NCCL=%s/libnccl.so.2 %s')
         :format((emulated.capture('readlink -f ' .. emulated.folder):gsub('%s+$', '')), env))
   end)
end
