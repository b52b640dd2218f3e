-- State-space layers on emulated CUDA: the scan's options, and what only larger sizes reach.

local emulated = require 'spec.cuda.emulated'

if not emulated.here() then return end

describe('the CUDA kernels on emulated threads', function()
   for _, file in ipairs { 'spec/op/scan_option_spec.lua', 'spec/cuda/ssm_case.lua' } do
      it('pass ' .. file, function() emulated.run(file) end)
   end
end)
