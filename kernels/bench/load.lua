-- Loading of a published folder against reading its bytes, alternated:
--
--    luajit kernels/bench/load.lua DIR [rounds]
--
-- Where DIR is not there, a Llama of 1.1 billion random parameters in bf16 is written to it first
-- (2.2 GB); remove it by hand. All sides read a warm page cache: `read` into one buffer of 8 MB,
-- `copy` into memory that was never touched, as a model needs it. Printed are median times, and the
-- median of each round's ratio to `copy`.

local here = arg[0]:match '^(.*)kernels/bench/' or './'
package.path = ('%slua/?.lua;%slua/?/init.lua;%sbindings/?.lua;'):format(here, here, here)
   .. package.path
local tide = require 'tide'
local ffi = require 'ffi'
local fs = tide.util.fs

ffi.cdef [[
int open(const char *path, int flags, ...);
int close(int fd);
ssize_t read(int fd, void *buffer, size_t n);
void *malloc(size_t n);
void free(void *p);
]]

local dir, rounds = assert(arg[1], 'give a folder'), tonumber(arg[2]) or 7

-- TinyLlama's sizes: 1.1 billion parameters.
local config = { vocab_size = 32000, hidden_size = 2048, intermediate_size = 5632,
   num_hidden_layers = 22, num_attention_heads = 32, num_key_value_heads = 4,
   max_position_embeddings = 2048 }

local function files()
   local list = {}
   for _, name in ipairs(fs.list('bench', dir)) do
      if name:find '%.safetensors$' then list[#list + 1] = fs.join(dir, name) end
   end
   return list
end

-- Reads a file from its beginning; into(done): where the next bytes go, and at most how many.
local function read_file(path, into)
   local fd, done = ffi.C.open(path, 0), 0
   assert(fd >= 0, path)
   while true do
      local p, most = into(done)
      local n = tonumber(ffi.C.read(fd, p, most))
      assert(n >= 0, path)
      if n == 0 then break end
      done = done + n
   end
   ffi.C.close(fd)
   return done
end

local buffer = ffi.new('uint8_t[?]', 2^23)
local function read()
   local sum = 0
   for _, path in ipairs(files()) do
      sum = sum + read_file(path, function() return buffer, 2^23 end)
   end
   return sum
end

local function copy(sizes)
   for i, path in ipairs(files()) do
      local p = ffi.cast('uint8_t *', ffi.C.malloc(sizes[i] + 1))
      read_file(path, function(done) return p + done, math.min(2^23, sizes[i] + 1 - done) end)
      ffi.C.free(p)
   end
end

local function sizes_of()
   local list = {}
   for i, path in ipairs(files()) do
      list[i] = read_file(path, function() return buffer, 2^23 end)
   end
   return list
end

local function timed(fn, ...)
   local start = tide.clock()
   fn(...)
   return tide.clock() - start
end

local function load(dtype)
   tide.model.load(dir, { dtype = dtype })
end

-- Gives the memory of models back to the system, so that each round touches new pages.
local function clear()
   collectgarbage()
   tide.default():collect()
   tide.default():trim()
end

local function median(list)
   table.sort(list)
   return list[math.floor((#list + 1) / 2)]
end

if not fs.is_dir(dir) then
   local model = tide.model.llama(config, { dtype = 'bf16', seed = 1 })
   tide.model.save(model, dir, { max_shard = '1GB' })
   collectgarbage()
end
local bytes, sizes = read(), sizes_of()
local sides = { { 'read', read }, { 'copy', copy, sizes }, { 'load bf16', load, 'bf16' },
   { 'load f32', load, 'f32' } }
local times, ratios = {}, {}
for _, side in ipairs(sides) do times[side[1]], ratios[side[1]] = {}, {} end
for _ = 1, rounds do
   local row = {}
   for i, side in ipairs(sides) do
      row[i] = timed(side[2], side[3])
      clear()
      table.insert(times[side[1]], row[i])
   end
   for i, side in ipairs(sides) do table.insert(ratios[side[1]], row[i] / row[2]) end
end
print(('%s: %.2f GB'):format(dir, bytes / 1e9))
for _, side in ipairs(sides) do
   local t = median(times[side[1]])
   print(('%-10s %7.3f s %7.2f GB/s %6.2f x copy'):format(side[1], t, bytes / 1e9 / t,
      median(ratios[side[1]])))
end
