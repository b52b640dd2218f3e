-- Finds and loads libtide, declares its contract, keeps it loaded.
--
-- The library carries its own header. tide_abi_text() is declared by hand, the text it returns goes
-- to ffi.cdef, so declaration and code cannot disagree.
--
-- Search order: the library named by the host that opened this Lua state; the build folder of the
-- tree this file lies in, or the lib folder of its prefix; the templates of package.cpath; the
-- plain system name.
--
-- Invariants: the namespace `C` is never collected (finalizers of live handles are code in it);
-- what must survive a reload of the Lua modules lives in `state`, kept in the registry: a second
-- cdef or metatype of the same name is not possible in LuaJIT.

local ffi = require 'ffi'

do
   local host = package.loaded['tide.host'] -- with the context of the state, where tide made it
   require('tide.ffi.compiler').settle(jit, type(host) == 'table' and host.ctx ~= nil)
end

local registry = debug.getregistry()
local state = registry['tide.ffi']
if not state then
   state = {}
   registry['tide.ffi'] = state
end

local M = { state = state }

-- Returns the folder of this file with a final slash, or nil when it was loaded from memory.
local function own_folder()
   local source = debug.getinfo(1, 'S').source
   return source:match('^@(.*/)[^/]*$') or (source:sub(1, 1) == '@' and './') or nil
end

local function exists(path)
   local f = io.open(path, 'rb')
   if f then f:close() end
   return f ~= nil
end

local build_folders = { 'build/', 'build/core/', 'build/release/', 'build/debug/', 'build/Release/',
   'build/Debug/', 'build/asan/', 'build/tsan/' }

-- Below the prefix of an installation, whose Lua files are in share/tide. The name without a number
-- belongs to the development files; soversion is TIDE_SOVERSION of CMakeLists.txt.
local soversion = '.0'
local lib_folders = { 'lib/', 'lib64/' }
local triplet = ({ x64 = 'x86_64', arm64 = 'aarch64' })[jit.arch]
if triplet then lib_folders[3] = 'lib/' .. triplet .. '-linux-gnu/' end

-- Returns candidate paths of a shared library called `name` ("tide"), best first.
local function candidates(name)
   local file, list = 'lib' .. name .. '.so', {}
   local host = package.loaded['tide.host']
   local folder = own_folder()
   if type(host) == 'table' and name == 'tide' then list[#list + 1] = host.library end
   if type(host) == 'table' and name == 'tide_host' then list[#list + 1] = host.host_library end
   if folder and not folder:find('^tide:') then
      for _, sub in ipairs(build_folders) do
         list[#list + 1] = folder .. '../../../' .. sub .. file
      end
      for _, sub in ipairs(lib_folders) do
         list[#list + 1] = folder .. '../../../../../' .. sub .. file
         list[#list + 1] = folder .. '../../../../../' .. sub .. file .. soversion
      end
   end
   for template in package.cpath:gmatch('[^;]+') do
      list[#list + 1] = (template:gsub('%?', 'lib' .. name))
   end
   return list
end

-- Loads a shared library by its short name, and returns it and its path; nil and a text on failure,
-- which names the files that were found but could not be loaded.
function M.load(name)
   local broken = {}
   for _, path in ipairs(candidates(name)) do
      if exists(path) then
         local ok, lib = pcall(ffi.load, path)
         if ok then return lib, path end
         broken[#broken + 1] = ('%s (%s)'):format(path, tostring(lib))
      end
   end
   local ok, lib = pcall(ffi.load, name)
   if ok then return lib, name end
   if #broken > 0 then
      return nil, ('lib%s.so could not be loaded; build it again (run make): %s'):format(name,
         table.concat(broken, ', '))
   end
   return nil, ('lib%s.so was not found; build it (run make), or add its folder to package.cpath '
      .. '(LUA_CPATH)'):format(name)
end

-- Returns the text of the header at `path` below the tree or the prefix of this file; nil without
-- one.
local function header(path)
   local folder = own_folder()
   if not folder or folder:find '^tide:' then return nil end
   for _, up in ipairs { '../../../', '../../../../../' } do
      local f = io.open(folder .. up .. path, 'rb')
      if f then
         local text = f:read '*a'
         f:close()
         return text
      end
   end
end

-- Returns a header as declarations alone, without comments and spaces.
local function bare(text) return (text:gsub('/%*.-%*/', ''):gsub('%s+', '')) end

-- Raises where a library was built from other declarations than those beside these Lua files: calls
-- would take wrong arguments. text: what the library carries; path: the library; headers: where the
-- same text lies in a tree and below a prefix.
function M.check_build(text, path, headers)
   for _, name in ipairs(headers) do
      local here = header(name)
      if here and here ~= text and bare(here) ~= bare(text) then
         error(('tide: %s is of another version than the Lua files in %s, whose %s has other '
            .. 'declarations; build again (make), or take both from one installation'):format(path,
            own_folder(), name), 0)
      elseif here then
         return
      end
   end
end

local function declare(C)
   local text = ffi.string(C.tide_abi_text())
   M.check_build(text, state.path, { 'core/include/tide/tide_abi.h', 'include/tide/tide_abi.h' })
   if state.abi_text == nil then
      ffi.cdef(text)
      state.abi_text = text
   elseif state.abi_text ~= text then
      error('tide: another version of libtide is already declared in this Lua state', 0)
   end
   if C.TIDE_ABI ~= 1 then
      error(('tide: these Lua files need ABI 1, %s has ABI %d; take both from one build')
         :format(state.path, C.TIDE_ABI), 0)
   end
end

if not ffi.abi('gc64') then
   error('tide: this LuaJIT is built without GC64, so its heap ends at 2 GiB; '
      .. 'use LuaJIT 2.1 for a 64-bit system with GC64 (the default today)', 0)
end

-- Loads with bounded spinning of OpenMP threads between two loops. It lasts milliseconds by
-- default, which halts everything when other processes share the cores. The runtime reads its
-- environment once, when it is loaded together with the library, so the bound is set for just that
-- moment, unless the user has set one. The states of rank threads do not set it: their host has
-- loaded the library, and an environment must not change while other threads read it.
local function with_bounded_spin(load)
   local key = 'GOMP_SPINCOUNT'
   if package.loaded['tide.host'] then return load() end
   if os.getenv(key) or os.getenv 'OMP_WAIT_POLICY' then return load() end
   ffi.cdef 'int setenv(const char *, const char *, int); int unsetenv(const char *);'
   ffi.C.setenv(key, '2000', 1)
   local lib, path = load()
   ffi.C.unsetenv(key)
   return lib, path
end

if not state.C then
   ffi.cdef 'const char *tide_abi_text(void);'
   local C, path = with_bounded_spin(function() return M.load 'tide' end)
   if not C then require('tide.error').brief('E_IO', 'load', '%s', path) end
   state.path = path
   declare(C)
   state.C = C
else
   declare(state.C)
end

M.C = state.C
M.path = state.path

-- A closing state finalizes namespaces, too: LuaJIT then closes the library, and functions that
-- were not called before are no longer found. Finalizers of the user may still call some, so this
-- namespace keeps its handle. The library itself stays loaded in any case (nodelete in
-- CMakeLists.txt).
if not state.keeps_library then
   local meta = debug.getmetatable(state.C)
   local close = meta.__gc
   function meta.__gc(namespace)
      if namespace ~= state.C then return close(namespace) end
   end
   state.keeps_library = true
end

-- Runs fn once for the life of the Lua state, also when modules are loaded again.
function M.once(name, fn)
   state.done = state.done or {}
   if not state.done[name] then
      fn()
      state.done[name] = true
   end
end

return M
