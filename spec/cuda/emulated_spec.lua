-- The CUDA kernels run on the host: libtide_cuda.so built as plain C++ on emulated threads
-- (spec/cuda/emulate) passes the op specs with device cuda, and trains as the CPU does.
--
-- Indexing, masks, barriers, fragments and arithmetic are tested so; speed, memory order, real
-- instructions and the driver are not.

local build = os.getenv 'TIDE_BUILD' or 'build'
local folder = build .. '/spec/emulated'
local seen = io.open(folder .. '/libtide_cuda.so')

if not seen then return end -- no C++ compiler, not x86-64, or a sanitized build
seen:close()

local function capture(command)
   local pipe = assert(io.popen(command .. ' 2>&1'))
   local text = pipe:read '*a'
   pipe:close()
   return text
end

local function run_spec(file, env)
   local text = capture(('%s TIDE_BUILD=%s TIDE_SPEC_DEVICE=cuda timeout 300 luajit '
      .. '/usr/bin/busted -o TAP %s'):format(env or '', folder, file))
   local passed, failed = 0, {}
   for line in text:gmatch '[^\n]+' do
      if line:match '^ok ' then passed = passed + 1 end
      if line:match '^not ok ' or (#failed > 0 and #failed < 20) then failed[#failed + 1] = line end
   end
   local plan = tonumber(text:match '\n?1%.%.(%d+)')
   if #failed > 0 or plan ~= passed or passed == 0 then
      error(('%s on emulated CUDA: %d of %s passed\n%s'):format(file, passed, plan or '?',
         #failed > 0 and table.concat(failed, '\n') or text:sub(-500)), 0)
   end
end

describe('the CUDA kernels on emulated threads', function()
   for _, file in ipairs { 'spec/op/all_spec.lua', 'spec/op/attention_spec.lua',
                           'spec/op/attention_part_spec.lua', 'spec/op/inplace_spec.lua',
                           'spec/op/loss_spec.lua', 'spec/op/update_spec.lua',
                           'spec/op/conv1d_spec.lua', 'spec/op/scan_spec.lua',
                           'spec/cuda/device_case.lua', 'spec/cuda/stream_case.lua',
                           'spec/cuda/near_case.lua' } do
      it('pass ' .. file, function() run_spec(file) end)
   end

   it('pass spec/cuda/nccl_case.lua, with an emulated NCCL', function()
      run_spec('spec/cuda/nccl_case.lua', ('TIDE_EMULATE_DEVICES=4 TIDE_SPEC_NCCL=%s/libnccl.so.2')
         :format((capture('readlink -f ' .. folder):gsub('%s+$', ''))))
   end)

   it('have a row for every op but views', function()
      local text = capture(('TIDE_BUILD=%s luajit spec/cuda/rows.lua'):format(folder))
      assert.equal('all\n', text)
   end)
end)

describe('the pretrain recipe on emulated CUDA', function()
   local function losses(device, dtype)
      local out = os.tmpname()
      os.remove(out)
      local text = capture(([[timeout 200 luajit -e "package.path = 'bindings/?.lua;lua/?.lua;]]
         .. [[lua/?/init.lua;' .. package.path; package.loaded['tide.host'] = { library = ]]
         .. [['%s/libtide.so', host_library = '%s/libtide_host.so' }" recipes/pretrain.lua ]]
         .. [[--device %s --dtype %s --steps 10 --batch 2 --seq 40 --layers 2 --dim 32 --heads 2 ]]
         .. [[--kv-heads 1 --val-windows 1 --sample 4 --recompute 1 --out %s]])
         :format(folder, build, device, dtype, out))
      local list = {}
      local file = assert(io.open(out .. '/metrics.jsonl'), text)
      for line in file:lines() do list[#list + 1] = tonumber(line:match '"loss":([%d.]+)') end
      file:close()
      os.execute('rm -rf ' .. out)
      return list
   end
   for _, dtype in ipairs { 'f32', 'bf16' } do
      it('has the losses of the CPU in ' .. dtype, function()
         local want, got = losses('cpu', dtype), losses('cuda', dtype)
         assert.is_true(#want >= 10)
         assert.equal(#want, #got)
         for i = 1, #want do
            assert.is_true(math.abs(want[i] - got[i]) < 1e-3, ('step %d: %g and %g')
               :format(i, want[i], got[i]))
         end
      end)
   end
end)
