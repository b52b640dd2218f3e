-- Training on emulated CUDA.

local emulated = require 'spec.cuda.emulated'
local build, folder, capture = emulated.build, emulated.folder, emulated.capture

if not emulated.here() then return end

describe('the pretrain recipe on emulated CUDA', function()
   local function losses(device, words)
      local out = os.tmpname()
      os.remove(out)
      local text = capture(([[timeout 800 luajit -e "package.path = 'bindings/?.lua;lua/?.lua;]]
         .. [[lua/?/init.lua;' .. package.path; package.loaded['tide.host'] = { library = ]]
         .. [['%s/libtide.so', host_library = '%s/libtide_host.so' }" recipes/pretrain.lua ]]
         .. [[--device %s --dtype %s --steps 10 --batch 2 --seq 40 --layers 2 --dim 32 --heads 2 ]]
         .. [[--kv-heads 1 --val-windows 1 --sample 4 --recompute 1 --out %s]])
         :format(folder, build, device, words, out))
      local list = {}
      local file = assert(io.open(out .. '/metrics.jsonl'), text)
      for line in file:lines() do list[#list + 1] = tonumber(line:match '"loss":([%d.]+)') end
      file:close()
      os.execute('rm -rf ' .. out)
      return list
   end
   for _, words in ipairs { 'f32', 'bf16', 'f32 --fp8' } do
      it('has the losses of the CPU in ' .. words, function()
         local want, got = losses('cpu', words), losses('cuda', words)
         assert.is_true(#want >= 10)
         assert.equal(#want, #got)
         for i = 1, #want do
            assert.is_true(math.abs(want[i] - got[i]) < 1e-3, ('step %d: %g and %g')
               :format(i, want[i], got[i]))
         end
      end)
   end
end)
