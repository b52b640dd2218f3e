-- An installation for specs, below a prefix with a space.

local files = require 'spec.support.files'
local tmp = require 'spec.support.tmp'

local M = { build = os.getenv 'TIDE_BUILD' or 'build' }

function M.quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

-- Returns the output of a command; an error if it fails.
function M.run(command)
   local pipe = assert(io.popen('{ ' .. command .. '; } 2>&1; echo "status=$?"'))
   local text, status = pipe:read('*a'):match '^(.*)status=(%d+)%s*$'
   pipe:close()
   if status ~= '0' then error(command .. '\n' .. text, 0) end
   return text
end

function M.exists(path)
   local f = io.open(path)
   if f then f:close() end
   return f ~= nil
end

-- Installs below `prefix`, all or one component; the build folder keeps its own list of the last
-- installation, and `dir` gets this one's.
function M.install(prefix, dir, component)
   local name = component and 'install_manifest_' .. component .. '.txt' or 'install_manifest.txt'
   local manifest = M.build .. '/' .. name
   local before = M.exists(manifest) and files.read(manifest)
   M.run(('cmake --install %s --prefix %s %s'):format(M.quote(M.build), M.quote(prefix),
      component and '--component ' .. component or ''))
   files.write(dir .. '/install_manifest.txt', files.read(manifest))
   if before then files.write(manifest, before) else os.remove(manifest) end
end

-- Runs fn(prefix, dir) with an installation below prefix, dir a scratch folder.
function M.with(fn)
   tmp.with(function(dir)
      local prefix = dir .. '/a prefix'
      M.install(prefix, dir)
      fn(prefix, dir)
   end)
end

return M
