-- Specs of rows, groups and sums on emulated CUDA.

local emulated = require 'spec.cuda.emulated'
local wide = require 'spec.support.wide'

if not emulated.here() then return end

describe('rows, groups and sums on emulated threads', function()
   for _, file in ipairs { 'spec/op/row_spec.lua', 'spec/op/index_add_spec.lua',
                           'spec/op/grouped_spec.lua', 'spec/op/joined_spec.lua',
                           'spec/grad/main_grad_spec.lua', 'spec/cuda/batch_case.lua' } do
      it('pass ' .. file, function() emulated.run(file, nil, not wide and { '[^b]f16' } or nil) end)
   end
end)
