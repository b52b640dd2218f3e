-- The CUDA kernels run on the host: libtide_cuda.so built as plain C++ on emulated threads
-- (spec/cuda/emulate) passes the op specs with device cuda, and trains as the CPU does.
--
-- Indexing, masks, barriers, fragments and arithmetic are tested so; speed, memory order, real
-- instructions and the driver are not. The spec files emulated_*_spec.lua share the work, which is
-- long: each has the time of a file.

local M = {}

M.build = os.getenv 'TIDE_BUILD' or 'build'
M.folder = M.build .. '/spec/emulated'

-- False without a C++ compiler, off x86-64, in a sanitized build.
function M.here()
   local file = io.open(M.folder .. '/libtide_cuda.so')
   if file then file:close() end
   return file ~= nil
end

-- Whether the kernels are compiled so that each access is seen (by GCC): the program that shows it.
function M.misuse()
   local file = io.open(M.folder .. '/misuse')
   if file then file:close() end
   return file and M.folder .. '/misuse'
end

-- In a case that M.run runs: the emulated driver, which counts the host's waits and refuses copies
-- (emulate/streams.cpp, memory.cpp). Nil where the driver is a real one.
function M.driver()
   local ffi = require 'ffi'
   pcall(ffi.cdef, 'long tide_emulate_waits(void); void tide_emulate_refuse(int n);')
   local here, lib = pcall(ffi.load, M.build .. '/libtide_cuda.so')
   return here and pcall(function() return lib.tide_emulate_waits end) and lib or nil
end

M.capture = require('spec.cuda.toolkit').capture

-- Runs a spec file with device cuda; raises with what failed, or with the case it did not end. env:
-- further variables as a shell takes them, or nil. without: patterns of the names of cases that ask
-- nothing of the device, and are left out; or nil.
function M.run(file, env, without)
   local options = {}
   for i, pattern in ipairs(without or {}) do options[i] = ("--filter-out='%s'"):format(pattern) end
   local text = M.capture(('%s TIDE_BUILD=%s TIDE_SPEC_DEVICE=cuda timeout 800 luajit '
      .. '/usr/bin/busted -v -o TAP %s %s'):format(env or '', M.folder, table.concat(options, ' '),
      file))
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

return M
