-- Scratch folders of the specs: made before, removed after, also when the test fails.

local ffi = require 'ffi'

local tmp = {}

-- Thousands of folders are made and removed: a program for each would take milliseconds. The names
-- are the specs' own, so that no other declaration of these functions clashes.
pcall(ffi.cdef, [[
   typedef struct spec_dirent {
      uint64_t inode; int64_t offset; uint16_t length; uint8_t kind; char name[256];
   } spec_dirent;
   int spec_mkdir(const char *, unsigned) __asm__("mkdir");
   int spec_remove(const char *) __asm__("remove");
   void *spec_opendir(const char *) __asm__("opendir");
   spec_dirent *spec_readdir(void *) __asm__("readdir");
   int spec_closedir(void *) __asm__("closedir");
]])
local C, KIND_DIR = ffi.C, 4

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

-- Makes a folder, and those above it.
function tmp.mkdir(path)
   if C.spec_mkdir(path, 511) ~= 0 then assert(os.execute('mkdir -p ' .. quote(path)) == 0) end
end

-- Returns the entries of a folder as { name, kind }; none of one that cannot be read.
local function entries(path)
   local dir, list = C.spec_opendir(path), {}
   if dir == nil then return list end
   while true do
      local e = C.spec_readdir(dir)
      if e == nil then break end
      local name = ffi.string(e.name)
      if name ~= '.' and name ~= '..' then list[#list + 1] = { name, e.kind } end
   end
   C.spec_closedir(dir)
   return list
end

-- Removes a folder with all that is in it, links but not what they lead to. Returns whether it is
-- gone.
local function remove_tree(path)
   for _, e in ipairs(entries(path)) do
      local inner = path .. '/' .. e[1]
      if e[2] == KIND_DIR then remove_tree(inner) else C.spec_remove(inner) end
   end
   return C.spec_remove(path) == 0
end

-- Runs fn(dir) with an empty folder. Returns what fn returns.
function tmp.with(fn)
   local dir = os.tmpname()
   os.remove(dir)
   tmp.mkdir(dir)
   local r = { pcall(fn, dir) }
   if not remove_tree(dir) then os.execute('rm -rf ' .. quote(dir)) end
   if not r[1] then error(r[2], 0) end
   return unpack(r, 2, table.maxn(r))
end

return tmp
