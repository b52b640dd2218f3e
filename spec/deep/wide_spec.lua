-- Spec files with all of their cases, of which `make test` takes some (spec/support/wide.lua):
-- those of emulated CUDA, and the others that read `wide`.

local emulated = require 'spec.cuda.emulated'
local files = require 'spec.support.files'

local function passes(file)
   it(file, function()
      local out = '\n' .. emulated.capture('TIDE_WIDE=1 luajit /usr/bin/busted -o TAP ' .. file)
      assert.is_nil(out:find '\nnot ok', out)
      assert.equal(out:match '\n1%.%.(%d+)', tostring(select(2, out:gsub('\nok ', ''))))
   end)
end

describe('with all of its cases passes', function()
   for _, file in ipairs(files.lines_of(
      "grep -l support.wide spec/comm/*_spec.lua spec/lua/*_spec.lua "
      .. "spec/parallel/*_spec.lua spec/recipe/*_spec.lua spec/op/scan_wild_spec.lua")) do
      passes(file)
   end
   if not emulated.here() then return end
   for _, name in ipairs { 'all', 'device', 'mma', 'nccl', 'op', 'row', 'ssm', 'train', 'wgmma' } do
      passes(('spec/cuda/emulated_%s_spec.lua'):format(name))
   end
end)
