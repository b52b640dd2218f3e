-- The op specs on emulated CUDA, but for all_spec and emulated_row_spec.lua.

local emulated = require 'spec.cuda.emulated'

if not emulated.here() then return end

describe('the CUDA kernels on emulated threads', function()
   for _, file in ipairs { 'spec/op/attention_spec.lua', 'spec/op/attention_part_spec.lua',
                           'spec/op/inplace_spec.lua', 'spec/op/foreach_spec.lua',
                           'spec/op/loss_spec.lua', 'spec/op/update_spec.lua',
                           'spec/op/update_8bit_spec.lua', 'spec/op/nf4_spec.lua',
                           'spec/op/nf4_part_spec.lua',
                           'spec/op/conv1d_spec.lua', 'spec/op/scan_spec.lua',
                           'spec/op/fp8_spec.lua', 'spec/op/layout_spec.lua',
                           'spec/op/round_spec.lua' } do
      it('pass ' .. file, function() emulated.run(file) end)
   end

   it('pass spec/op/layout_spec.lua where cuBLASLt has the least it may have', function()
      emulated.run('spec/op/layout_spec.lua', 'TIDE_EMULATE_LT=least')
   end)
end)
