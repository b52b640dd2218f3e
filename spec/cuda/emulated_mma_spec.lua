-- Attention on tensor cores, emulated: its tiles, and the kernels of every chip.

local emulated = require 'spec.cuda.emulated'

if not emulated.here() then return end

describe('attention by mma on emulated threads', function()
   for _, name in ipairs { 'walk', 'mma' } do
      it(('pass spec/cuda/%s_case.lua'):format(name), function()
         emulated.run(('spec/cuda/%s_case.lua'):format(name))
      end)
   end
end)
