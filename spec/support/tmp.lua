-- Scratch files and folders that are removed when the function that uses them ends.

local M = {}

local function quote(path) return "'" .. path:gsub("'", "'\\''") .. "'" end

-- A fresh folder; give it to M.remove when done.
function M.folder()
   local pipe = assert(io.popen('mktemp -d', 'r'))
   local path = pipe:read '*l'
   pipe:close()
   assert(path and path ~= '', 'tmp: mktemp made no folder')
   return path
end

function M.remove(path)
   assert(path:find '^/.*/', 'tmp: refuses to remove ' .. path)
   os.execute('rm -rf ' .. quote(path))
end

local function finish(path, ok, ...)
   M.remove(path)
   if not ok then error((...), 0) end
   return ...
end

-- Runs fn(folder) and removes the folder, also on an error. Returns what fn returns.
function M.with_folder(fn)
   local path = M.folder()
   return finish(path, pcall(fn, path))
end

-- Writes a file and returns its path.
function M.write(folder, name, text)
   local path = folder .. '/' .. name
   local f = assert(io.open(path, 'wb'))
   f:write(text)
   f:close()
   return path
end

function M.read(path)
   local f = assert(io.open(path, 'rb'))
   local text = f:read '*a'
   f:close()
   return text
end

return M
