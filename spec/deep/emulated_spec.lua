-- Spec files of emulated CUDA with all of their cases, of which `make test` takes some
-- (spec/support/wide.lua).

local emulated = require 'spec.cuda.emulated'

if not emulated.here() then return end

describe('with all of its cases passes', function()
   for _, name in ipairs { 'all', 'device', 'mma', 'nccl', 'op', 'row', 'ssm', 'train', 'wgmma' } do
      it(('spec/cuda/emulated_%s_spec.lua'):format(name), function()
         local out = '\n' .. emulated.capture(('TIDE_WIDE=1 luajit /usr/bin/busted -o TAP '
            .. 'spec/cuda/emulated_%s_spec.lua'):format(name))
         assert.is_nil(out:find '\nnot ok', out)
         assert.equal(out:match '\n1%.%.(%d+)', tostring(select(2, out:gsub('\nok ', ''))))
      end)
   end
end)
