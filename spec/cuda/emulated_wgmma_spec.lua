-- Attention on an emulated Hopper chip, and on another chip.

local emulated = require 'spec.cuda.emulated'

if not emulated.here() then return end

describe('attention by wgmma on emulated threads', function()
   it('pass spec/cuda/wgmma_case.lua on a Hopper chip', function()
      emulated.run('spec/cuda/wgmma_case.lua', 'TIDE_EMULATE_CAPABILITY=90')
   end)
   it('pass spec/cuda/wgmma_absent_case.lua on another', function()
      emulated.run('spec/cuda/wgmma_absent_case.lua', 'TIDE_EMULATE_CAPABILITY=80')
   end)
end)
