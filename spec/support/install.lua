-- An installation for specs, below a prefix with a space.

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

-- Installs below `prefix`, all or one component, and writes the list of files to `dir`. The build
-- folder keeps its own list of the last installation: the lock orders specs of other processes
-- that install at the same time.
function M.install(prefix, dir, component)
   local name = component and 'install_manifest_' .. component .. '.txt' or 'install_manifest.txt'
   local script = ([[
      set -e
      cp "$1" "$1.kept" 2>/dev/null || rm -f "$1.kept"
      cmake --install %s --prefix %s %s
      cp "$1" "$2/install_manifest.txt"
      if [ -f "$1.kept" ]; then mv "$1.kept" "$1"; else rm "$1"; fi]]):format(
      M.quote(M.build), M.quote(prefix), component and '--component ' .. component or '')
   M.run(('flock %s sh -c %s - %s %s'):format(M.quote(M.build), M.quote(script),
      M.quote(M.build .. '/' .. name), M.quote(dir)))
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
