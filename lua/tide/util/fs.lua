-- Files for the library: the only place that names the primitives of tide.ffi.io.
--
-- Failures are raised in the name of the caller, with the path and the system's reason.

local err = require 'tide.util.err'

local fs = {}

local backend

-- Returns the primitives: read_file, write_file_atomic, fsync_file, fsync_dir, rename, mkdir,
-- listdir, remove, kind, is_link, resolve, xxh64_file, json, safetensors_save, safetensors_open.
-- Loaded at first use.
function fs.io()
   backend = backend or require 'tide.ffi.io'
   return backend
end

-- Returns whether a value of JSON is absent or null.
function fs.is_null(v) return v == nil or v == fs.io().json.null end

-- Returns whether a value is a list, of JSON or of Lua; an empty one must be of JSON.
function fs.is_list(v)
   return type(v) == 'table' and (fs.io().json.is_array(v) or v[1] ~= nil)
end

-- Replaces the primitives; specs use it to make chosen steps fail. Returns the old ones.
function fs.use(primitives)
   local old = fs.io()
   backend = primitives
   return old
end

-- Returns path b as seen from folder a, or b itself if it is absolute.
function fs.join(a, b)
   err.type('util.fs.join', 'a', a, 'string')
   err.type('util.fs.join', 'b', b, 'string')
   if b:sub(1, 1) == '/' or a == '' then return b end
   return a:sub(-1) == '/' and a .. b or a .. '/' .. b
end

-- Raises the failure of a primitive as one of `op`.
local function failed(op, what, path, problem)
   local e = err.of(problem)
   local code, reason = e and e.code or 'E_IO', e and e.message or tostring(problem)
   if reason:find(path, 1, true) then what, path = nil, nil end      -- the reason names it
   err.raise(code, op, '%s%s', what and ('cannot %s %s: '):format(what, path) or '', reason)
end

-- Returns the result of a primitive for a path; raises where it returns nil and a reason.
local function got(op, what, primitive, path)
   local value, problem = fs.io()[primitive](path)
   if not value then failed(op, what, path, problem) end
   return value
end

-- Calls a primitive that raises for a path.
local function done(op, what, primitive, path, ...)
   err.type(op, 'path', path, 'string')
   local ok, problem = pcall(fs.io()[primitive], path, ...)
   if not ok then failed(op, what, path, problem) end
end

-- Returns the bytes of a regular file.
function fs.read(op, path) return got(op, 'read', 'read_file', path) end

-- Replaces a file so that a crash leaves the old or the new one; durable on return.
function fs.write(op, path, text) done(op, 'write', 'write_file_atomic', path, text) end

-- Returns the path from the root of the file system; links are not followed.
function fs.absolute(path) return fs.io().absolute(path) end

-- Returns the absolute path without links, '.' and '..'; nil when nothing is there.
function fs.resolve(path) return fs.io().resolve(path) end

-- Returns whether anything is at this path; a link counts as what it leads to.
function fs.exists(path) return fs.io().kind(path) ~= nil end
-- Returns whether anything is at this path, a link that leads nowhere included.
function fs.is_present(path) return fs.io().is_link(path) or fs.exists(path) end
-- Returns whether a folder is at this path, or a link to one.
function fs.is_dir(path) return fs.io().kind(path) == 'dir' end

-- Returns the size in bytes of a regular file, or nil if the path is no regular file.
function fs.size(path)
   local kind, size = fs.io().kind(path)
   return kind == 'file' and size or nil
end

-- Returns the folder that a path lies in.
function fs.above(path)
   err.type('util.fs.above', 'path', path, 'string')
   local folder = path:gsub('/+$', ''):match '^(.*)/[^/]*$'
   return folder == '' and '/' or folder or '.'
end

-- Returns the folders that may hold what belongs to a folder: itself, and the one above it, since a
-- run holds what belongs to its checkpoints and to the runs aside-N in it. What is above another
-- run is not of that run.
function fs.places(path)
   local list = { err.type('util.fs.places', 'path', path, 'string') }
   for _ = 1, 2 do
      local is_aside = path:match '([^/]*)/*$':find '^aside%-%d+$'
      if #list > 1 and not is_aside or fs.exists(fs.join(path, 'LATEST')) and not is_aside then
         break
      end
      path = fs.above(path)
      list[#list + 1] = path
   end
   return list
end

-- Returns the sorted names in a folder.
function fs.list(op, path) return got(op, 'list', 'listdir', path) end

-- Makes a folder and its parents.
function fs.mkdirs(op, path) done(op, 'make the folder', 'mkdir', path) end

-- Returns the XXH64 of a file as text.
function fs.hash(op, path) return got(op, 'read', 'xxh64_file', path) end

-- Opens a file of safetensors.
function fs.open_tensors(op, path)
   local file, why = fs.io().safetensors_open(path)
   return file or err.raise(why.code, op, '%s', why.message)
end

-- Removes a folder with the files in it (one level, as checkpoints are), if it exists. It removes
-- a link and leaves its target.
function fs.remove_dir(op, path)
   local io_ = fs.io()
   if io_.is_link(path) then
      io_.remove(path)
      return
   end
   if not fs.is_dir(path) then return end
   for _, name in ipairs(fs.list(op, path)) do io_.remove(fs.join(path, name)) end
   io_.remove(path)
end

-- Renames the folder `from` to `path`. An existing `path` moves to `aside`, and back if that fails.
-- Returns whether there was one; the caller removes `aside`.
function fs.take_place(op, from, path, aside)
   local io_, again = fs.io(), fs.is_present(path)
   if again then
      fs.remove_dir(op, aside)
      io_.rename(path, aside)
   end
   local ok, why = pcall(io_.rename, from, path)
   if ok then return again end
   if again then io_.rename(aside, path) end
   error(why, 0)
end

-- Returns the value of a JSON file, which must be an object. Infinite numbers are read as
-- json.decode does with `nonfinite`.
function fs.read_json(op, path)
   local text = fs.read(op, path)
   err.raise_if(text:sub(1, 3) == '\239\187\191', 'E_FORMAT', op, '%s begins with a byte order '
      .. 'mark, which JSON does not allow; save it as UTF-8 without one', path)
   local ok, value = pcall(fs.io().json.decode, text, { nonfinite = true })
   if not ok or type(value) ~= 'table' then
      err.raise('E_FORMAT', op, '%s holds no JSON object: %s', path,
         ok and 'it is a ' .. type(value) or err.fault(value))
   end
   return value
end

-- Returns the JSON text of a value of the library's own files: read_json reads all of it back.
function fs.json_text(value) return fs.io().json.encode(value, { nonfinite = 'object' }) .. '\n' end

-- Replaces a file by the JSON text of value, as write.
function fs.write_json(op, path, value) fs.write(op, path, fs.json_text(value)) end

return fs
