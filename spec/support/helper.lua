-- busted's helper: paths into the tree, and tide loaded before the first spec file.
--
-- Loading it here keeps busted's insulation (it restores package.loaded between files) from ever
-- making a second copy of the FFI layer.

local here = debug.getinfo(1, 'S').source:match('^@(.*)spec/support/helper%.lua$')
local root = here == '' and './' or here

package.path = table.concat({
   root .. 'bindings/?.lua', root .. 'lua/?.lua', root .. 'lua/?/init.lua', root .. '?.lua',
   package.path,
}, ';')

-- TIDE_BUILD names another build folder than build/ (sanitizers); the host's way of saying so.
local build = os.getenv 'TIDE_BUILD'
if build and not package.loaded['tide.host'] then
   package.loaded['tide.host'] = {
      library = build .. '/libtide.so', host_library = build .. '/libtide_host.so',
   }
end

-- A sanitizer is preloaded: into this process, not into every program that specs start.
if os.getenv 'TIDE_LUAJIT' then
   local ffi = require 'ffi'
   ffi.cdef 'int unsetenv(const char *name);'
   ffi.C.unsetenv 'LD_PRELOAD'
end

local ok, err = pcall(require, 'tide')
if not ok then
   error('the specs need the built library (run make first): ' .. tostring(err), 0)
end
