-- Every op on emulated CUDA.

local emulated = require 'spec.cuda.emulated'
local wide = require 'spec.support.wide'

if not emulated.here() then return end

describe('the CUDA kernels on emulated threads', function()
   it('pass spec/op/all_spec.lua', function()
      local without = { 'on the null device', 'that differences say',
         not wide and 'strided inputs' or nil, not wide and 'same bits twice' or nil }
      emulated.run('spec/op/all_spec.lua', nil, without)
   end)

   it('have a row for every op but views', function()
      assert.equal('all\n', emulated.capture(('TIDE_BUILD=%s luajit spec/cuda/rows.lua'):format(
         emulated.folder)))
   end)
end)
