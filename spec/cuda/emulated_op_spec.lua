-- The op specs on emulated CUDA, but for all_spec and emulated_row_spec.lua.

local emulated = require 'spec.cuda.emulated'
local wide = require 'spec.support.wide'

if not emulated.here() then return end

-- Long cases that ask nothing of the device; make test has them on the host.
local without = {
   ['spec/op/loss_spec.lua'] = { ' on ref', 'of more bf16 logits than are kept' },
   ['spec/op/foreach_spec.lua'] = { ' on ref', 'on any number of threads' },
   ['spec/op/update_8bit_spec.lua'] = { ', on ref' },
   ['spec/op/fp8_spec.lua'] = { ' on ref' },
   ['spec/op/gated_delta_spec.lua'] = { ' on ref', 'of a packed stream', 'the number of threads' },
   ['spec/op/scan_spec.lua'] = wide and {} or { 'within their sequence, in f16',
      'within their sequence, in f64' },
}

describe('the CUDA kernels on emulated threads', function()
   for _, file in ipairs { 'spec/op/attention_spec.lua', 'spec/op/attention_part_spec.lua',
                           'spec/op/inplace_spec.lua', 'spec/op/foreach_spec.lua',
                           'spec/op/loss_spec.lua', 'spec/op/update_spec.lua',
                           'spec/op/update_8bit_spec.lua', 'spec/op/nf4_spec.lua',
                           'spec/op/nf4_part_spec.lua', 'spec/op/nf4_grouped_spec.lua',
                           'spec/op/conv1d_spec.lua', 'spec/op/scan_spec.lua',
                           'spec/op/gated_delta_spec.lua',
                           'spec/op/layout_spec.lua', 'spec/op/round_spec.lua',
                           'spec/op/slope_spec.lua' } do
      it('pass ' .. file, function() emulated.run(file, nil, without[file]) end)
   end

   for _, file in ipairs { 'spec/op/fp8_spec.lua', 'spec/op/fp8_codes_spec.lua' } do
      it(('pass %s as a Hopper chip, which alone has scales of blocks'):format(file), function()
         emulated.run(file, 'TIDE_EMULATE_CAPABILITY=90', without[file])
      end)
   end

   it('refuse FP8 with scales of blocks where cuBLASLt is too old for them', function()
      local text = emulated.capture(('TIDE_EMULATE_CAPABILITY=90 TIDE_EMULATE_LT=old luajit -e '
         .. [["package.loaded['tide.host'] = { library = '%s/libtide.so' }
         local tide = require 'tide'
         local x = tide.ones({ 2, 2 }, { device = 'cuda' })
         print(tide.linear_fp8(x, x):sum():item())
         print(pcall(tide.linear_fp8, x, x, nil, { scaling = 'block' }))"]])
         :format(emulated.folder))
      assert.matches('^8.-\nfalse\t.*cuBLAS 12.9 or above %(status 7%); use scaling .tensor.', text)
   end)

   it('pass spec/op/layout_spec.lua where cuBLASLt has the least it may have', function()
      emulated.run('spec/op/layout_spec.lua', 'TIDE_EMULATE_LT=least')
   end)
end)
