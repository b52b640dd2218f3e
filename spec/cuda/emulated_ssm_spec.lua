-- State-space layers on emulated CUDA: what only larger sizes reach.

local emulated = require 'spec.cuda.emulated'

if not emulated.here() then return end

describe('the CUDA kernels on emulated threads', function()
   it('pass spec/cuda/ssm_case.lua', function() emulated.run 'spec/cuda/ssm_case.lua' end)
end)
