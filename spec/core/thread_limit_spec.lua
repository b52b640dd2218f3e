-- A process that may start no more threads, as under `ulimit -u`, `ulimit -v` or a limit of its
-- cgroup: ops run on the threads that there are.

local ffi = require 'ffi'
local child = require 'spec.support.child'
local tide = require 'tide'

local plain = tide.build_info():find('sanitizers: none', 1, true) ~= nil

describe('a process that cannot start a thread', function()
   if ffi.os ~= 'Linux' or not plain then return pending 'sanitizers need the address space' end

   it('computes with those that it has', function()
      local out, status = child [[
         local ffi = require 'ffi'
         ffi.cdef 'struct limit { uint64_t soft, hard; }; int setrlimit(int, const struct limit *);'
         local tide = require 'tide'
         tide.set_nthread(1)
         local x = tide.ones { 512, 512 }
         x:clone():release()                                         -- memory for the result
         local pages = tonumber(io.open '/proc/self/statm':read '*n')
         local limit = pages * 4096 + 6 * 2 ^ 20                     -- less than a thread's stack
         assert(ffi.C.setrlimit(9, ffi.new('struct limit', limit, limit)) == 0)
         tide.set_nthread(2)
         for _ = 1, 3 do print((x * 2 + 1):sum():item()) end
      ]]
      assert.equal(0, status, out)
      assert.equal(('786432\n'):rep(3), out)
   end)
end)
