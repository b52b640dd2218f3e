-- Published folders on emulated CUDA: see folder_case.lua.

local emulated = require 'spec.cuda.emulated'

if not emulated.here() then return end

describe('published folders on emulated CUDA', function()
   it('pass spec/cuda/folder_case.lua', function() emulated.run 'spec/cuda/folder_case.lua' end)
end)
