-- Random ops on emulated CUDA against the CPU (domain/cuda.lua, domain/joined.lua), and the kernels
-- of the op specs run twice, in both orders of blocks and threads. The seed is printed; TIDE_SEED
-- and TIDE_CASES set what is run. On a machine with a GPU:
--
--    TIDE_SPEC_DEVICE=cuda luajit spec/deep/fuzz/run.lua cuda joined

local emulated = require 'spec.cuda.emulated'

if not emulated.here() then return end

local seed = os.getenv 'TIDE_SEED' or tostring(os.time())
local cases = os.getenv 'TIDE_CASES' or '2000'

-- Without the cache each tensor is an allocation, and what lies behind it is known.
local function run(env, domain)
   domain = domain or 'cuda'
   local text = emulated.capture(('TIDE_BUILD=%s TIDE_SPEC_DEVICE=cuda TIDE_SEED=%s TIDE_CASES=%s '
      .. 'TIDE_CACHE=0 %s luajit spec/deep/fuzz/run.lua %s'):format(emulated.folder, seed, cases,
      env, domain))
   io.stderr:write(text)
   assert.is_truthy(text:find(domain .. ': ' .. cases .. ' cases', 1, true), text)
   assert.is_truthy(text:find(' 0 kinds of failure', 1, true), text)
end

describe('random ops on emulated CUDA, TIDE_SEED=' .. seed, function()
   it('are those of the CPU', function() run '' end)
   it('are, on a Hopper chip with attention by wgmma', function()
      run 'TIDE_EMULATE_CAPABILITY=90 TIDE_ATTENTION_KERNEL=1'
   end)
   it('are, of tensors side by side', function() run('', 'joined') end)
   it('are where cuBLASLt has the least it may have', function() run 'TIDE_EMULATE_LT=least' end)
   if not emulated.misuse() then return end
   it('do not depend on the order of blocks and threads', function()
      run 'TIDE_EMULATE_ORDER=both'
   end)
end)

if not emulated.misuse() then return end

describe('the kernels of the op specs', function()
   for _, file in ipairs { 'spec/op/all_spec.lua', 'spec/cuda/device_case.lua',
                           'spec/cuda/ssm_case.lua', 'spec/op/update_spec.lua' } do
      it('do not depend on the order of blocks and threads: ' .. file, function()
         emulated.run(file, 'TIDE_EMULATE_ORDER=both')
      end)
   end
end)
