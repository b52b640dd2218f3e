-- What only a device has, on emulated CUDA: its kernels, copies under way and captured steps, ranks
-- that share it.

local emulated = require 'spec.cuda.emulated'

if not emulated.here() then return end

describe('the CUDA kernels on emulated threads', function()
   for _, name in ipairs { 'device', 'stream', 'event', 'launch', 'near', 'memory' } do
      it(('pass spec/cuda/%s_case.lua'):format(name), function()
         emulated.run(('spec/cuda/%s_case.lua'):format(name))
      end)
   end
end)
