-- Where binaries of the build look for libraries: never in the current folder.
--
-- An empty entry of RUNPATH means the working directory, so a program run inside a folder of
-- downloaded files would load libraries from it.

local lines_of = require('spec.support.files').lines_of

local build = os.getenv 'TIDE_BUILD' or 'build'

-- ELF files below the build folder, without those of other builds below it (build/asan).
local function binaries()
   local list = {}
   local find = ("find '%s' -mindepth 1 '(' -type d '(' -name CMakeFiles -o -exec test -e "
      .. "'{}/CMakeCache.txt' ';' ')' -prune ')' -o -type f -print"):format(build)
   for _, path in ipairs(lines_of(find)) do
      local f = assert(io.open(path, 'rb'))
      if f:read(4) == '\127ELF' then list[#list + 1] = path end
      f:close()
   end
   return list
end

-- The entries of RPATH and RUNPATH of a file.
local function entries(path)
   local list = {}
   for _, line in ipairs(lines_of(("LC_ALL=C readelf -d '%s'"):format(path))) do
      local value = line:match '%(R[UN]*PATH%).*%[(.*)%]'
      if value then
         for entry in (value .. ':'):gmatch '([^:]*):' do list[#list + 1] = entry end
      end
   end
   return list
end

local function is_fixed(entry) return entry:find '^/' or entry:find '^%$ORIGIN' end

describe('the run path of binaries', function()
   it('is read', function()
      assert.same({ '$ORIGIN' }, entries(build .. '/libtide_host.so'))
   end)

   it('has absolute folders and $ORIGIN only', function()
      local files, wrong = binaries(), {}
      assert.is_true(#files >= 3)
      for _, path in ipairs(files) do
         for _, entry in ipairs(entries(path)) do
            if not is_fixed(entry) then wrong[#wrong + 1] = path .. ': "' .. entry .. '"' end
         end
      end
      assert.same({}, wrong)
   end)
end)
