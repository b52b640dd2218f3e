-- The door of every public function: each object that it wants is given null, released, of another
-- kind and of another context, and each argument values that it cannot have. Nothing crashes, and
-- every failure leaves a record.

local child = require 'spec.support.child'

-- Runs a program that calls everything and writes "> " before each call. Returns its last line.
-- The program releases nothing that it made, so leaks are no finding. Shells that it starts are not
-- made for a preloaded sanitizer.
local function run(name)
   local out, status = child(([[local ffi = require 'ffi'
      ffi.cdef 'int unsetenv(const char *);'
      ffi.C.unsetenv 'LD_PRELOAD'
      assert(loadfile "spec/support/%s.lua")()]]):format(name),
      { env = 'ASAN_OPTIONS=detect_leaks=0 '
         .. 'TSAN_OPTIONS="$TSAN_OPTIONS:report_thread_leaks=0"' })
   local wrong = {}
   for line in out:gmatch '[^\n]+' do
      if not line:find '^> ' then wrong[#wrong + 1] = line end
   end
   -- after a crash the last line says which call it was
   local last = out:match '([^\n]*)\n*$' or ''
   assert.equal(0, status, table.concat(wrong, '\n') .. '\n' .. last)
   return last
end

describe('a public function', function()
   it('refuses each wrong handle with E_ARG and a record', function()
      local last = run 'door_program'
      assert.is_true(tonumber(last:match '(%d+) calls, 0 wrong') > 1000, last)
   end)

   it('survives hostile arguments; a failure names function and argument', function()
      local function files()
         local list = io.popen 'ls -A'
         local text = list:read '*a'
         list:close()
         return text
      end
      local before = files()
      local ncall, nfailed = run('hostile_program'):match '(%d+) calls, (%d+) failures, 0 wrong'
      assert.is_true(tonumber(ncall) > 4000 and tonumber(nfailed) > 2000, ncall .. ', ' .. nfailed)
      assert.equal(before, files())                         -- none is written beside the sources
   end)
end)
