-- A process that may start no more threads, as under `ulimit -u`, `ulimit -v` or a limit of its
-- cgroup: ops run on the threads that there are.

local ffi = require 'ffi'
local child = require 'spec.support.child'
local tide = require 'tide'

local plain = tide.build_info():find('sanitizers: none', 1, true) ~= nil

-- Limits the address space to what is in use and n megabytes; a thread's stack takes 8 of them.
local function limited(megabytes, program)
   return ([[
      local ffi = require 'ffi'
      ffi.cdef 'struct limit { uint64_t soft, hard; }; int setrlimit(int, const struct limit *);'
      local stack = ffi.new('struct limit', 8 * 2 ^ 20, 8 * 2 ^ 20)
      assert(ffi.C.setrlimit(3, stack) == 0)
      jit.off()                                                    -- for the hook, a callback
      local C = require 'tide.ffi.lib'.C
      local opts, ctx = ffi.new 'tide_opts', ffi.new 'tide_ctx *[1]'
      C.tide_opts_init(opts)
      opts.log = function(_, _, text) print(ffi.string(text)) end
      assert(C.tide_ctx_new(ctx, opts, nil, 0) == 0)
      package.loaded['tide.host'].ctx = ctx[0]
      local tide = require 'tide'
      tide.set_nthread(1)
      local x = tide.ones { 512, 512 }
      -- memory that the program needs is there before the limit
      for _ = 1, 3 do tostring((x * 2 + 1):sum():item()) end
      collectgarbage()
      local pages = tonumber(io.open '/proc/self/statm':read '*n')
      local limit = pages * 4096 + %d * 2 ^ 20
      assert(ffi.C.setrlimit(9, ffi.new('struct limit', limit, limit)) == 0)
      local function threads()
         return tonumber(io.open '/proc/self/status':read '*a':match 'Threads:%%s*(%%d+)')
      end
      local before = threads()
      %s
   ]]):format(megabytes, program)
end

describe('a process that cannot start a thread', function()
   if ffi.os ~= 'Linux' or not plain then return pending 'sanitizers need the address space' end

   it('computes with those that it has, and says so once', function()
      local out, status = child(limited(6, [[
         tide.set_nthread(2)
         for _ = 1, 3 do print((x * 2 + 1):sum():item()) end
      ]]))
      assert.equal(0, status, out)
      local line = 'the system started 1 of 2 threads; ops of this thread compute with 1'
      local _, said = out:gsub(line, '')
      assert.equal(1, said, out)
      assert.equal(3, select(2, out:gsub('786432\n', '')), out)
   end)

   it('starts the threads for which there is room, without room for twice as many', function()
      local out, status = child(limited(14, [[
         tide.set_nthread(2)
         for _ = 1, 3 do print((x * 2 + 1):sum():item()) end
         print('started', threads() - before)
      ]]))
      assert.equal(0, status, out)
      assert.is_truthy(out:find(('786432\n'):rep(3) .. 'started\t1\n', 1, true), out)
      assert.is_nil(out:find('the system started', 1, true), out)
   end)
end)
