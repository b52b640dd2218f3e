-- Runs spec/cuda/order_steps.lua on emulated CUDA under the orders of blocks and threads, and the
-- answers of the runtime, that a chip may give (emulate/runtime.cpp, device.cpp).

local assert = require 'luassert'
local emulated = require 'spec.cuda.emulated'

local M = {}

local function steps(words, env)
   local text = emulated.capture(([[env %s luajit -e "package.path = 'bindings/?.lua;lua/?.lua;]]
      .. [[lua/?/init.lua;' .. package.path; package.loaded['tide.host'] = { library = ]]
      .. [['%s/libtide.so', host_library = '%s/libtide_host.so' }" spec/cuda/order_steps.lua %s]])
      :format(env, emulated.folder, emulated.build, words))
   assert.is_truthy(text:find '^%x+\n$', text)
   return text
end

-- Raises unless the steps of a model have the bits of the forward order under each of envs.
function M.check(words, envs)
   local want = steps(words, 'TIDE_EMULATE_ORDER=forward')
   assert.is_true(#want > 20000)
   for _, env in ipairs(envs) do
      if emulated.misuse() or env ~= 'TIDE_EMULATE_ORDER=both' then
         assert.equal(want, steps(words, env), env)
      end
   end
end

return M
