-- tide.ffi.signal: the first SIGINT or SIGTERM is noted, the second ends the process.

local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

-- Output and exit status of a script that plain luajit runs; raise(n) sends itself a signal.
local function run(script)
   local out, status
   tmp.with(function(dir)
      write(dir .. '/a.lua', ([[
         package.path = %q
         local ffi, signal = require 'ffi', require 'tide.ffi.signal'
         ffi.cdef 'int raise(int n);'
         local function raise(n) ffi.C.raise(n) end
         local function say(...) print(...) io.stdout:flush() end
      ]]):format(package.path) .. script)
      local pipe = io.popen(('%s %s/a.lua 2>&1; echo "status=$?"'):format(
         os.getenv 'TIDE_LUAJIT' or 'luajit', dir))
      out, status = pipe:read '*a':match '^(.*)status=(%d+)%s*$'
      pipe:close()
   end)
   return out, tonumber(status)
end

describe('signals under plain luajit', function()
   it('are noted for a run of training', function()
      assert.same({ 'nil\n15\n', 0 }, { run [[
         local launch = require 'tide.comm.launch'
         launch.watch()
         say(launch.signal())
         raise(15)
         say(launch.signal())
      ]] })
   end)

   it('are noted once watched, and only then', function()
      for _, number in ipairs { 2, 15 } do
         assert.same({ 'nil\n' .. number .. '\n' .. number .. '\n', 0 }, { run(([[
            signal.watch()
            say(signal.seen())
            raise(%d)
            say(signal.seen())
            signal.watch()
            say(signal.unwatch())
         ]]):format(number)) })
         local out, got = run(('signal.watch() signal.unwatch() raise(%d) say(1)'):format(number))
         assert.is_true(got ~= 0 and out:sub(1, 1) ~= '1', out .. got)
      end
   end)

   it('end the process the second time', function()
      for number, status in pairs { [2] = 130, [15] = 143 } do
         local out, got = run(([[
            signal.watch()
            raise(%d)
            say(signal.seen())
            raise(%d)
            say 'alive'
         ]]):format(number, number))
         assert.equal(status, got)
         assert.matches('^' .. number .. '\n', out)
         assert.is_nil(out:find 'alive')
      end
   end)

   it('that are ignored stay ignored', function()
      assert.same({ 'nil\n', 0 }, { run [[
         ffi.cdef 'void (*signal(int n, void (*handler)(int)))(int);'
         ffi.C.signal(15, ffi.cast('void (*)(int)', 1))
         signal.watch()
         raise(15)
         say(signal.seen())
      ]] })
   end)
end)
