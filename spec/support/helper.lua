-- busted's helper: paths into the tree, here and for programs that specs start, and tide loaded
-- before the first spec file.
--
-- Loading it here keeps busted's insulation (it restores package.loaded between files) from ever
-- making a second copy of the FFI layer.

if not rawget(_G, 'jit') then
   io.stderr:write('the specs need LuaJIT, and this is ', _VERSION, '; run: luajit ',
      '$(which busted) FILE, or make test\n')
   os.exit(2)
end

local here = debug.getinfo(1, 'S').source:match('^@(.*)spec/support/helper%.lua$')
local root = here == '' and './' or here

local function paths(folder)
   return ('%sbindings/?.lua;%slua/?.lua;%slua/?/init.lua;'):format(folder, folder, folder)
end

package.path = paths(root) .. root .. '?.lua;' .. package.path

-- TIDE_BUILD names another build folder than build/ (sanitizers); the host's way of saying so.
local build = os.getenv 'TIDE_BUILD'
if build and not package.loaded['tide.host'] then
   package.loaded['tide.host'] = {
      library = build .. '/libtide.so', host_library = build .. '/libtide_host.so',
   }
end

-- Loaded modules and busted are most of a small heap: collect, and mark them, less often.
collectgarbage('setpause', 400)

require('tide.ffi.compiler').wait(jit)     -- most lines of a spec run a few hundred times, too

local ffi = require 'ffi'
ffi.cdef 'int setenv(const char *, const char *, int); int unsetenv(const char *);'

-- A sanitizer is preloaded: into this process, not into every program that specs start.
if os.getenv 'TIDE_LUAJIT' then ffi.C.unsetenv 'LD_PRELOAD' end

local ok, err = pcall(require, 'tide')
if not ok then
   error('the specs need the built library (run make first): ' .. tostring(err), 0)
end

-- busted looks up a global of a spec file through all contexts, at each use, which takes a fifth of
-- the time of a file with many small cases. The functions of Lua, which no spec replaces, are put
-- where the first look finds them. `busted` is an argument of the function that runs a helper.
local function environment_of_specs()
   local level = 2
   while debug.getinfo(level, 'f') do
      local name, busted = debug.getlocal(level, 1)
      if name == 'busted' and type(busted) == 'table' and busted.wrap then
         local fn = function() end
         busted.wrap(fn)
         return getfenv(fn)
      end
      level = level + 1
   end
end

local env = environment_of_specs() or {}
for _, name in ipairs { 'bit', 'error', 'getmetatable', 'ipairs', 'math', 'next', 'pairs', 'pcall',
                        'rawequal', 'rawget', 'rawset', 'select', 'setmetatable', 'string', 'table',
                        'tonumber', 'tostring', 'type', 'unpack' } do
   rawset(env, name, _G[name])
end
if env.assert then rawset(env, 'assert', env.assert) end

-- Programs that specs start may be in another folder.
local folder = require('tide.util.fs').absolute(root)
ffi.C.setenv('LUA_PATH', paths(folder) .. (os.getenv 'LUA_PATH' or ';'), 1)
