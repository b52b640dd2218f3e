-- Without a GPU: each thing that can be missing is one sentence under E_DEVICE; the CPU works on.

local build = os.getenv 'TIDE_BUILD' or 'build'
local tide = require 'tide'

local capture = require('spec.cuda.toolkit').capture

local function full(path) return (capture('readlink -f ' .. path):gsub('%s+$', '')) end

-- A folder with libtide.so and, if named, a file as its libtide_cuda.so.
local function folder_with(file)
   local dir = os.tmpname()
   os.remove(dir)
   local made = os.execute(('mkdir %s && ln -s %s %s/libtide.so'):format(dir,
      full(build .. '/libtide.so'), dir))
   assert(made == 0 or made == true)
   if file then os.execute(('ln -s %s %s/libtide_cuda.so'):format(full(file), dir)) end
   return dir
end

local script = [[
package.path = 'bindings/?.lua;lua/?.lua;lua/?/init.lua;' .. package.path
package.loaded['tide.host'] = { library = '%s/libtide.so' }
local tide = require 'tide'
local before = (tide.ones { 3 } * 2):sum():item()
local maps = io.open('/proc/self/maps'):read '*a'
print('loaded=' .. tostring(maps:find('libtide_cuda', 1, true) ~= nil))
local ok, e = pcall(%s)
print('code=' .. tostring(not ok and e.code))
print('message=' .. tostring(e):gsub('\n', '\\n'))
assert(before == 6 and (tide.ones { 4 } + 1):sum():item() == 8)
print 'cpu works'
]]

local on_cuda = "function() return tide.ones({ 2 }, { device = 'cuda' }) end"

local function ask(dir, env, what)
   local name = os.tmpname()
   local file = assert(io.open(name, 'w'))
   file:write(script:format(dir, what or on_cuda))
   file:close()
   local text = capture(('%s %s %s'):format(env or '', os.getenv 'TIDE_LUAJIT' or 'luajit', name))
   os.remove(name)
   return { loaded = text:match 'loaded=(%a+)', code = text:match 'code=([%w_]+)',
            message = text:match 'message=([^\n]*)', works = text:find('cpu works', 1, true) ~= nil,
            text = text }
end

local function refused(r, ...)
   assert.equal('false', r.loaded, r.text)            -- not used yet
   assert.equal('E_DEVICE', r.code, r.text)
   assert.is_true(r.works, r.text)
   assert.is_nil(r.message:find('\\n', 1, true), r.text)
   for _, part in ipairs { ... } do
      assert.is_truthy(r.message:find(part, 1, true), r.message)
   end
end

describe('a missing GPU', function()
   local dir
   after_each(function() if dir then os.execute('rm -rf ' .. dir) end end)

   it('may lack the library', function()
      dir = folder_with(nil)
      refused(ask(dir), "device 'cuda' is not available", 'libtide_cuda.so could not be opened',
         'build it with the CUDA toolkit: make cuda')
   end)

   it('may have a file that is none', function()
      dir = folder_with 'spec/cuda/absent_spec.lua'
      refused(ask(dir), "device 'cuda' is not available", 'could not be opened')
   end)

   it('may have a library of another version', function()
      dir = folder_with(build .. '/libtide.so')        -- exports no tide_plugin
      refused(ask(dir), "device 'cuda' is not available", 'another version')
   end)

   it('is known beforehand', function()
      local ok, why = tide.default():device_available 'cuda'
      if ok then return end
      assert.is_truthy(why:find("device 'cuda' is not available", 1, true))
      assert.is_nil(why:find '\n')
   end)

   local emulated = build .. '/spec/emulated'
   local file = io.open(emulated .. '/libtide_cuda.so')
   if not file then return end
   file:close()

   it('may lack the driver', function()
      dir = folder_with(emulated .. '/libtide_cuda.so')
      refused(ask(dir, 'TIDE_EMULATE_DEVICES=-1'), 'no CUDA driver')
   end)

   it('may lack a device', function()
      dir = folder_with(emulated .. '/libtide_cuda.so')
      refused(ask(dir, 'TIDE_EMULATE_DEVICES=0'), 'sees no device',
         'CUDA_VISIBLE_DEVICES')
   end)

   it('may lack cuBLASLt: products are refused, the rest works', function()
      if tide.default():device_available 'cuda' then return end -- the real one would be found
      dir = folder_with(nil)                           -- a copy: its runpath is its own folder
      os.execute(('cp %s/libtide_cuda.so %s/'):format(emulated, dir))
      refused(ask(dir, nil, [[function()
         local x = tide.ones({ 2, 2 }, { device = 'cuda' })
         assert((x + x):sum():item() == 8)
         return x:matmul(x)
      end]]), 'products need cuBLASLt')
   end)

   it('may be too old for FP8: that op is refused, the rest works', function()
      dir = folder_with(emulated .. '/libtide_cuda.so')
      local r = ask(dir, 'TIDE_EMULATE_CAPABILITY=80', [[function()
         local x = tide.ones({ 2, 2 }, { device = 'cuda' })
         assert((x + x):sum():item() == 8)
         return tide.linear_fp8(x, x)
      end]])
      assert.equal('E_UNSUPPORTED', r.code, r.text)
      assert.is_true(r.works, r.text)
      assert.matches('capability 8.9 or above, this one has 8.0; use linear', r.message, 1, true)
   end)

   it('may be no Hopper chip: FP8 with scales of blocks is refused', function()
      dir = folder_with(emulated .. '/libtide_cuda.so')
      local r = ask(dir, 'TIDE_EMULATE_CAPABILITY=100', [[function()
         local x = tide.ones({ 2, 2 }, { device = 'cuda' })
         return tide.linear_fp8(x, x, nil, { scaling = 'block' })
      end]])
      assert.equal('E_UNSUPPORTED', r.code, r.text)
      assert.is_true(r.works, r.text)
      assert.matches("capability 9.0, this one has 10.0; use scaling 'tensor'", r.message, 1, true)
   end)

   it('may fail in the middle: the context is told so for good, the process goes on', function()
      dir = folder_with(emulated .. '/libtide_cuda.so')
      local r = ask(dir, 'TIDE_EMULATE_FAULT=3', [[function()
         local x = tide.ones({ 5 }, { device = 'cuda' })
         local y = x + x
         local calls = {
            function() return (y * x):tolist() end,              -- the third kernel
            function() return x + x end,
            function() return tide.ones({ 2^22 }, { device = 'cuda' }) end,
            function() return tide.ones({ 5 }):to 'cuda' end,
            function() return y:item() end,
            function() return tide.cuda.synchronize() end,
            function() return tide.cuda.graph(function() return x + x end) end,
            function() return tide.ones({ 5 }):pin_memory() end,
         }
         for i, call in ipairs(calls) do
            local good, e = pcall(call)
            local text = tostring(e):find('CUDA device 0: an illegal memory access was encountered',
               1, true)
            local told = i == 5 and e.code == 'E_SHAPE' or e.code == 'E_DEVICE' and text
            if good or not told then error('call ' .. i .. ': ' .. tostring(e)) end
         end
         x, y = nil, nil
         collectgarbage()
         return calls[6]()
      end]])
      assert.equal('E_DEVICE', r.code, r.text)
      assert.is_true(r.works, r.text)
   end)

   it('may fail in a kernel unseen: the error says how to find its op', function()
      dir = folder_with(emulated .. '/libtide_cuda.so')
      local program = [[function()
         local x = tide.ones({ 5 }, { device = 'cuda' })
         local y = x:exp()                                       -- the second kernel
         local z = x + y
         return z:tolist()
      end]]
      local late = ask(dir, 'TIDE_EMULATE_FAULT=2', program)
      assert.matches('to_doubles: .*; it may be of an earlier op, which a run with '
         .. 'CUDA_LAUNCH_BLOCKING=1 names; start the process again', late.message)
      local soon = ask(dir, 'TIDE_EMULATE_FAULT=2 CUDA_LAUNCH_BLOCKING=1', program)
      assert.equal('E_DEVICE', soon.code, soon.text)
      assert.matches('exp: .*an illegal memory access was encountered', soon.message)
   end)

   it('may not be the thread\'s current one: kernels and products find it', function()
      dir = folder_with(emulated .. '/libtide_cuda.so')
      os.execute(('ln -s %s %s/'):format(full(emulated .. '/libcublasLt.so.13'), dir))
      local r = ask(dir, 'TIDE_EMULATE_DEVICES=2', [[function()
         tide.param('cuda_device', 1)
         local x = tide.ones({ 3, 4 }, { device = 'cuda', requires_grad = true })
         local y = tide.linear(x, x):sum() + x:softmax(1):sum()
         y:backward()
         assert(x.grad:sum():item() == 72, x.grad:sum():item())
         error { code = 'none' }
      end]])
      assert.equal('none', r.code, r.text)
   end)

   it('ends a recipe with one sentence', function()
      local text = capture(([[TIDE_EMULATE_DEVICES=0 luajit -e "package.path = 'bindings/?.lua;]]
         .. [[lua/?.lua;lua/?/init.lua;' .. package.path; package.loaded['tide.host'] = { library ]]
         .. [[= '%s/libtide.so' }" recipes/pretrain.lua --device cuda --out %s; echo "status $?"]])
         :format(emulated, os.tmpname() .. '.run'))
      assert.is_truthy(text:find('E_DEVICE', 1, true), text)
      assert.is_truthy(text:find('sees no device', 1, true), text)
      assert.is_nil(text:find 'status 0')
   end)
end)
