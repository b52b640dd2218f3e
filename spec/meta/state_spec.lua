-- What the tree does not have: state outside of contexts, globals in Lua, oracles that call what
-- they judge, sums of chance in CUDA.

local files = require 'spec.support.files'
local lib = require 'tide.ffi.lib'

-- Writable objects of the release library, by name.
local function writable()
   local list = {}
   for _, line in ipairs(files.lines_of("objdump -t '" .. lib.path .. "' 2>/dev/null")) do
      local name = line:match ' O %.data%s+%x+%s+(%S+)$' or line:match ' O %.bss%s+%x+%s+(%S+)$'
      if name then list[#list + 1] = name:match '^[^.]+' end
   end
   table.sort(list)
   return list
end

-- Names of the compiler's own, and names that a sanitizer or a coverage tool adds.
local function is_foreign(name)
   return name:find '^__' or name:find '^completed' or name:find 'asan' or name:find 'gcov'
end

describe('state', function()
   it('of the library: two facts of the process', function()
      local all, own = writable(), {}
      assert.is_true(#all > 0, 'objdump shows no symbols of ' .. lib.path)
      for _, name in ipairs(all) do
         if not is_foreign(name) then own[#own + 1] = name end
      end
      -- isa.c: what CPUID says; pool.c: the process that started the threads of OpenMP
      assert.same({ 'known', 'pool_owner' }, own)
   end)

   it('of the Lua library: no globals', function()
      local code = [[
         local before = {}
         for name in pairs(_G) do before[name] = true end
         local n = 0
         for path in io.popen('find lua/tide -name "*.lua"'):lines() do
            local name = path:gsub('^lua/', ''):gsub('%.lua$', ''):gsub('/init$', '')
            require((name:gsub('/', '.')))
            n = n + 1
         end
         for name in pairs(_G) do
            if not before[name] then error('a global: ' .. tostring(name)) end
         end
         io.write(n > 100 and 'none' or 'too few files')
      ]]
      local path = os.tmpname()
      files.write(path, code)
      local said = files.lines_of(('%s %s 2>&1'):format(os.getenv 'TIDE_LUAJIT' or 'luajit', path))
      os.remove(path)
      assert.same({ 'none' }, said)
   end)

   it('of the oracles: nothing of tide, but the model that train.lua updates', function()
      local n = 0
      for _, path in ipairs(files.lines_of 'ls spec/deep/oracle/*.lua') do
         for name in files.read(path):gmatch "require%s*%(?%s*['\"]([^'\"]+)" do
            local is_model = name == 'tide' and path:find '/train%.lua$'
            assert.is_truthy(is_model or not name:find '^tide', path .. ' requires ' .. name)
         end
         n = n + 1
      end
      assert.is_true(n > 2)
   end)

   it('of the CUDA kernels: no atomics but the mark of a fault', function()
      local list = files.lines_of "grep -rnE '\\batomic[A-Z]|\\bred\\.' kernels/cuda"
      assert.equal(1, #list, table.concat(list, '\n'))
      assert.matches('atomicCAS(&r.fault->set, 0, 1)', list[1], 1, true)
   end)
end)
