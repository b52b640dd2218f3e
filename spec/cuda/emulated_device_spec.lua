-- What only a device has, on emulated CUDA.

local emulated = require 'spec.cuda.emulated'

if not emulated.here() then return end

describe('the CUDA kernels on emulated threads', function()
   it('pass spec/cuda/device_case.lua', function() emulated.run 'spec/cuda/device_case.lua' end)
end)
