-- After fork the child has the parent's memory and none of its threads: what it does with a context
-- of the parent is an error at once, and a context of its own computes.

local ffi = require 'ffi'

local luajit = os.getenv 'TIDE_LUAJIT' or 'luajit'

-- Runs a program that may call fork_child(fn): fn in a child, whose prints are seen. A child that
-- hangs is ended by its alarm, which shows as a missing line.
local function run(code)
   local path = os.tmpname()
   local file = assert(io.open(path, 'w'))
   file:write [[
      local ffi = require 'ffi'
      ffi.cdef 'int fork(void); int waitpid(int, int *, int);'
      ffi.cdef 'void _exit(int); unsigned alarm(unsigned);'
      local tide = require 'tide'
      local function fork_child(fn)
         io.stdout:flush()
         local pid = ffi.C.fork()
         if pid == 0 then
            ffi.C.alarm(20)
            local ok, e = pcall(fn)
            if not ok then print('raised ' .. tostring(e)) end
            io.stdout:flush()
            ffi.C._exit(0)
         end
         ffi.C.waitpid(pid, ffi.new 'int[1]', 0)
      end
      tide.set_nthread(2)
   ]]
   file:write(code)
   file:close()
   local pipe = assert(io.popen(luajit .. ' ' .. path .. ' 2>&1'))
   local text = pipe:read '*a'
   pipe:close()
   os.remove(path)
   return text
end

describe('a forked child', function()
   if ffi.os ~= 'Linux' then return end

   it('that uses a context of its parent gets an error at once', function()
      local text = run [[
         local a = tide.ones { 1200, 1200 }
         print('parent', a:matmul(a):sum():item())
         fork_child(function() print(a:matmul(a):sum():item()) end)
         print('parent', a:matmul(a):sum():item())
      ]]
      assert.matches('raised .*matmul.*fork.*E_STATE', text)
      assert.equal(2, select(2, text:gsub('parent%s+1728000000', '')), text)
   end)

   it('reads and releases what the parent made', function()
      local text = run [[
         local a = tide.full({ 3 }, 7)
         fork_child(function() print('read', #a:to_string_bytes()) a:release() end)
         print('parent', a:tolist()[1])
      ]]
      assert.matches('read%s+12', text)
      assert.matches('parent%s+7', text)
   end)

   it('computes with one thread in a context of its own, and cannot ask for more', function()
      local text = run [[
         local a = tide.ones { 1200, 1200 }
         a:matmul(a)
         fork_child(function()
            local ctx = tide.open {}
            local b = ctx:ones { 1200, 1200 }
            print('threads', ctx:nthread(), b:matmul(b):sum():item())
            ctx:set_nthread(2)
         end)
      ]]
      assert.matches('threads%s+1%s+1728000000', text)
      assert.matches('raised .*2 threads.*fork.*E_STATE', text)
   end)

   it('runs ranks of one thread each', function()
      local text = run [[
         local a = tide.ones { 1200, 1200 }
         a:matmul(a)
         fork_child(function()
            print('threads', require('tide.ffi.host').run(1, function()
               local tide = require 'tide'
               return tide.default():nthread() + tide.ones({ 3 }):sum():item()
            end)[1])
         end)
      ]]
      assert.matches('threads%s+4', text)
   end)

   it('of a parent that has computed nothing uses all threads', function()
      local text = run [[
         fork_child(function()
            local ctx = tide.open { nthread = 2 }
            local b = ctx:ones { 1200, 1200 }
            print('threads', ctx:nthread(), b:matmul(b):sum():item())
         end)
      ]]
      assert.matches('threads%s+2%s+1728000000', text)
   end)
end)
