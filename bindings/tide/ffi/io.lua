-- Files and folders. Also reached from here: io.json, io.safetensors_save and _open.
--
-- Functions that open or read return nil and an error object on failure; all others raise.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local ctx_of = require 'tide.ffi.ctx'
local status = require 'tide.ffi.status'
local C = lib.C

local M = { json = require 'tide.ffi.json' }
local safetensors = require 'tide.ffi.safetensors'
local new_bytes = require('tide.ffi.buffer').of 'uint8_t'
local str, path_of, failure = arg.string, safetensors.path_of, safetensors.failure

local function handle() return ctx_of.default().handle end

-- ---- files -------------------------------------------------------------------------------------

local new_blob_box = ffi.typeof 'tide_blob *[1]'

-- Returns the bytes of a regular file as a string. limit: most bytes accepted. nil, err on failure.
function M.read_file(path, limit)
   path_of('read_file', 'path', path)
   limit = limit and arg.int('read_file', 'limit', limit, 1) or 0
   local ctx = handle()
   local box = new_blob_box()
   local rc = C.tide_path_read(box, ctx, path, limit)
   if rc < 0 then return nil, failure(ctx, rc) end
   return own.take_blob(box)
end

-- Returns the result of fn(ctx, path, ...), a function of C, on the default context; raises a
-- failure.
local function on_path(op, fn, path, ...)
   local ctx = handle()
   return own.check(ctx, fn(ctx, path_of(op, 'path', path), ...))
end

-- Replaces a file so that a crash leaves the old or the new one.
function M.write_file_atomic(path, text)
   local op = 'write_file_atomic'
   on_path(op, C.tide_path_write, path, str(op, 'text', text), #text)
end

-- Adds a text to the end of a file, made if absent.
function M.append_file(path, text)
   on_path('append_file', C.tide_path_append, path, str('append_file', 'text', text), #text)
end

-- Blocks until the contents of this file are on the disk.
function M.fsync_file(path) on_path('fsync_file', C.tide_path_sync, path) end
-- Blocks until the names in a folder are on the disk.
function M.fsync_dir(path) on_path('fsync_dir', C.tide_path_sync, path) end

-- Renames a file or folder; replaces an existing file.
function M.rename(from, to)
   local ctx = handle()
   path_of('rename', 'from', from)
   path_of('rename', 'to', to)
   own.check(ctx, C.tide_path_rename(ctx, from, to))
end

-- Makes a folder and those above it. True if it was made, false if it was there.
function M.mkdir(path) return on_path('mkdir', C.tide_path_mkdir, path, true) == 0 end
-- Makes one folder in an existing parent. True if made, false if it existed already.
function M.mkdir_one(path) return on_path('mkdir_one', C.tide_path_mkdir, path, false) == 0 end

-- Returns the sorted names in a folder; nil, err on failure.
function M.listdir(path)
   local ctx = handle()
   local box = new_blob_box()
   local rc = C.tide_path_list(box, ctx, path_of('listdir', 'path', path))
   if rc < 0 then return nil, failure(ctx, rc) end
   local names = {}
   for name in own.take_blob(box):gmatch('([^%z]+)%z') do names[#names + 1] = name end
   return names
end

-- Removes a file, a link or an empty folder. True if removed, false if nothing was there.
function M.remove(path) return on_path('remove', C.tide_path_remove, path) == 0 end

-- Makes a symbolic link at path to target; replaces an existing link.
function M.symlink(target, path)
   local ctx = handle()
   path_of('symlink', 'target', target)
   path_of('symlink', 'path', path)
   own.check(ctx, C.tide_path_link(ctx, target, path))
end

local kinds = { [C.TIDE_PATH_FILE] = 'file', [C.TIDE_PATH_DIR] = 'dir',
   [C.TIDE_PATH_OTHER] = 'other' }

-- Returns 'file' and its size in bytes, 'dir', 'other', or nil when nothing is there.
function M.kind(path)
   local size = ffi.new 'int64_t[1]'
   local rc = on_path('kind', C.tide_path_kind, path, size)
   if rc == C.TIDE_PATH_FILE then return 'file', tonumber(size[0]) end
   return kinds[rc]
end

-- Returns whether anything is at this path.
function M.exists(path) return M.kind(path) ~= nil end

-- Returns whether this process may write the file, or make files in the folder.
function M.is_writable(path) return on_path('is_writable', C.tide_path_is_writable, path) == 1 end

lib.once('getcwd', function() ffi.cdef 'char *getcwd(char *to, size_t n);' end)

-- Returns the path from the root of the file system, by the folder that this process is in. Links
-- are not followed.
function M.absolute(path)
   path_of('absolute', 'path', path)
   if path:sub(1, 1) == '/' then return path end
   local here = ffi.new 'char[4096]'
   if ffi.C.getcwd(here, 4096) == nil then
      status.raise(C.TIDE_E_IO, 'absolute', "'%s': the folder that this process is in has no name",
         path)
   end
   return (ffi.string(here):gsub('/$', '')) .. '/' .. path:gsub('^%./+', '')
end

lib.once('links', function()
   ffi.cdef [[
      ptrdiff_t readlink(const char *path, char *to, size_t n);
      char *realpath(const char *path, char *to);
   ]]
end)

-- Returns whether a symbolic link is at this path, also a dangling one.
function M.is_link(path)
   return ffi.C.readlink(path_of('is_link', 'path', path), ffi.new 'char[1]', 1) >= 0
end

-- Returns the path from the root without links, '.' and '..'; nil when nothing is there.
function M.resolve(path)
   local to = ffi.new 'char[4096]'                    -- PATH_MAX of Linux
   if ffi.C.realpath(path_of('resolve', 'path', path), to) == nil then return nil end
   return ffi.string(to)
end

-- ---- locks -------------------------------------------------------------------------------------

local Lock = {}
Lock.__index = Lock

-- Releases the lock. Idempotent.
function Lock:release() own.close(self, C.tide_lock_release) end

-- Takes the lock on a file, made if absent: an object with release(), or nil while it is held
-- elsewhere. The lock ends with the process in any case.
function M.lock(path)
   local ctx, box = handle(), ffi.new 'tide_lock *[1]'
   local rc = own.check(ctx, C.tide_path_lock(box, ctx, path_of('lock', 'path', path)))
   if rc == C.TIDE_MORE then return nil end
   local h = own.handle(box[0], C.tide_lock_release)
   return own.adopt(setmetatable({ handle = h }, Lock))
end

-- ---- hashes ------------------------------------------------------------------------------------

-- Returns the XXH64 of a file's bytes, 16 hex digits; nil, err on failure.
function M.xxh64_file(path)
   local ctx, digits = handle(), ffi.new 'char[17]'
   local rc = C.tide_path_hash(ctx, path_of('xxh64_file', 'path', path), digits)
   if rc < 0 then return nil, failure(ctx, rc) end
   return ffi.string(digits)
end

local function hex(h) return ('%08x%08x'):format(tonumber(h / 2^32), tonumber(h % 2^32)) end

-- Returns the XXH64 of a string, 16 hex digits.
function M.xxh64(text) return hex(C.tide_hash(str('xxh64', 'text', text), #text, 0)) end

-- Returns a checksum of all bytes of a tensor, row by row, 16 hex digits: XXH64 of one MiB after
-- the other, each seeded with the one before, so that a device tensor is never on the host as a
-- whole.
function M.checksum(x)
   local n = arg.tensor('checksum', 'x', x):numel()
   local flat = x:detach():contiguous():reshape { n }
   local size = C.tide_dtype_size(C.tide_tensor_dtype(x))
   local h, most = ffi.new('uint64_t', 0), 2^20 / size
   local block = new_bytes(math.min(n, most) * size)
   for at = 1, n, most do
      local k = math.min(most, n - at + 1)
      own.check(C.tide_tensor_ctx(x), C.tide_to_bytes(flat:narrow(1, at, k), block, k * size))
      h = C.tide_hash(block, k * size, h)
   end
   return hex(h)
end

-- Returns the value of a JSON file. nil, err on failure.
function M.read_json(path, limit)
   local text, err = M.read_file(path, limit)
   if not text then return nil, err end
   local ok, value = pcall(M.json.decode, text, { name = path })
   if ok then return value end
   return nil, value
end

M.safetensors_save = safetensors.save
M.safetensors_save_async = safetensors.save_async
M.safetensors_open = safetensors.open

-- Opens the files that model.safetensors.index.json names; the object is like that of
-- safetensors_open.
function M.safetensors_open_index(path, opts)
   local index, err = M.read_json(path, 2^28)
   if not index then return nil, err end
   return safetensors.open_index(path, index, opts)
end

return M
