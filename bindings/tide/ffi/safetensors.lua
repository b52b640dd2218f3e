-- safetensors: saves a table of tensors, opens a file, or several through an index.
--
-- Tensors are made on a context: the default one unless opts.ctx names another. open returns nil
-- and an error object on failure; all others raise.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local buffer = require 'tide.ffi.buffer'
local arg = require 'tide.ffi.arg'
local create = require 'tide.ffi.create'
local status = require 'tide.ffi.status'
local ctx_of = require 'tide.ffi.ctx'
local each = pairs -- by another name: see "faults" in bindings/README.md
local C = lib.C

local M = {}
local str = arg.string

-- Returns the failure rc of a call on ctx as an error object.
local function failure(ctx, rc)
   local record = C.tide_error(ctx)
   return status.new(rc, ffi.string(record.op), ffi.string(record.message))
end
M.failure = failure

-- Returns a path without a zero byte, at which C would truncate it.
local function path_of(op, name, path)
   str(op, name, path)
   if path == '' or path:find('\0', 1, true) then
      status.bad_arg(op, name, 'a path (not empty, no zero byte)', path)
   end
   return path
end
M.path_of = path_of

-- ---- writing ----------------------------------------------------------------------------------

local function sorted(t)
   local names = {}
   for name in each(t) do names[#names + 1] = name end
   table.sort(names)
   return names
end

local new_strings, new_handles = buffer.of 'const char *', buffer.of 'tide_tensor *'

-- Returns a C array of the strings; they must stay alive, which `list` does.
local function c_strings(list)
   local a = new_strings(#list)
   for i, s in ipairs(list) do a[i - 1] = s end
   return a
end

local function check_names(op, what, t)
   for name in each(t) do
      if type(name) ~= 'string' or name:find('\0', 1, true) then
         status.bad_arg(op, what, 'names as keys (strings without zero byte)', name)
      end
   end
end

local function meta_lists(op, meta)
   if type(meta) ~= 'table' then status.bad_arg(op, 'meta', 'a table of strings or nil', meta) end
   check_names(op, 'meta', meta)
   local keys, values = sorted(meta), {}
   for i, key in ipairs(keys) do
      values[i] = str(op, 'meta.' .. key, meta[key])
      if values[i]:find('\0', 1, true) then
         status.bad_arg(op, 'meta.' .. key, 'a string without zero byte', values[i])
      end
   end
   return keys, values
end

-- Returns the names, sorted, of a table of tensors with an array of their handles, and their
-- context.
local function tensor_lists(op, path, tensors)
   path_of(op, 'path', path)
   if type(tensors) ~= 'table' then
      status.bad_arg(op, 'tensors', 'a table of name = tensor', tensors)
   end
   check_names(op, 'tensors', tensors)
   local names = sorted(tensors)
   local handles = new_handles(#names)
   for i, name in ipairs(names) do
      handles[i - 1] = arg.tensor(op, "tensors['" .. name .. "']", tensors[name])
   end
   return names, handles, names[1] and C.tide_tensor_ctx(handles[0]) or ctx_of.default().handle
end

-- Writes {name = tensor} and {key = string} to a file, replacing it atomically.
function M.save(path, tensors, meta)
   local names, handles, ctx = tensor_lists('safetensors_save', path, tensors)
   local keys, values = meta_lists('safetensors_save', meta or {})
   own.check(ctx, C.tide_file_save(ctx, path, #names, c_strings(names), handles, #keys,
      c_strings(keys), c_strings(values)))
end

local new_saving_box, new_digits = ffi.typeof 'tide_saving *[1]', ffi.typeof 'char[17]'

lib.state.Saving = lib.state.Saving or {}
local Saving = lib.state.Saving
Saving.__index = Saving

-- Saves as save does, in the background: it copies the tensors now, and a thread writes them.
-- Returns a Saving.
function M.save_async(path, tensors, meta)
   local names, handles, ctx = tensor_lists('safetensors_save_async', path, tensors)
   local keys, values = meta_lists('safetensors_save_async', meta or {})
   local box = new_saving_box()
   own.check(ctx, C.tide_file_save_async(box, ctx, path, #names, c_strings(names), handles, #keys,
      c_strings(keys), c_strings(values)))
   local handle = own.handle(box[0], C.tide_saving_release)
   return own.adopt(setmetatable({ handle = handle, ctx = ctx, path = path }, Saving))
end

-- Returns whether the file is written, or has failed.
function Saving:test() return self.handle == nil or C.tide_saving_test(self.handle) == 1 end

-- Waits; returns the XXH64 of the file, or raises its failure once.
function Saving:wait()
   if not self.handle then return self.hash end
   local digits = new_digits()
   local rc = C.tide_saving_wait(self.handle, digits)
   local why = rc < 0 and failure(self.ctx, rc) or nil
   own.close(self, C.tide_saving_release)
   if why then status.throw(why) end
   self.hash = ffi.string(digits)
   return self.hash
end

-- ---- reading ----------------------------------------------------------------------------------

local new_file_box = ffi.typeof 'tide_file *[1]'

lib.state.SafeFile = lib.state.SafeFile or {}
local File = lib.state.SafeFile
File.__index = File
File.__tostring = function(self) return 'safetensors file ' .. self.path end

local open_opts = arg.set { 'ctx' }

-- Opens and checks a file. opts.ctx: the context of its tensors. nil, err on failure.
-- file.path, file.metadata (table of strings) are fields.
function M.open(path, opts)
   path_of('safetensors_open', 'path', path)
   opts = arg.opts('safetensors_open', opts, open_opts)
   local context = opts.ctx or ctx_of.default()
   if getmetatable(context) ~= ctx_of.Context or not context.handle then
      status.bad_arg('safetensors_open', 'opts.ctx', 'an open context', context)
   end
   local box = new_file_box()
   local rc = C.tide_file_open(box, context.handle, path)
   if rc < 0 then return nil, failure(context.handle, rc) end
   local h = own.handle(box[0], C.tide_file_release)
   local metadata = {}
   for i = 0, tonumber(C.tide_file_meta_count(h)) - 1 do
      metadata[ffi.string(C.tide_file_meta_key(h, i))] = ffi.string(C.tide_file_meta_value(h, i))
   end
   return own.adopt(setmetatable({ handle = h, path = path, metadata = metadata,
      context = context, ctx = context.handle }, File))
end

local function open_handle(self, op)
   if type(self) ~= 'table' or getmetatable(self) ~= File then
      status.bad_arg(op, 'self', 'an open safetensors file (call with :)', self)
   end
   if not self.handle then
      status.raise(C.TIDE_E_STATE, op, "the file '%s' is closed", self.path)
   end
   return self.handle
end

-- Closes the file; tensors loaded from it stay. Idempotent.
function File:close() own.close(self, C.tide_file_release) end

-- Returns the sorted names.
function File:names()
   local h, names = open_handle(self, 'names'), {}
   for i = 0, tonumber(C.tide_file_count(h)) - 1 do
      names[i + 1] = ffi.string(C.tide_file_name(h, i))
   end
   return names
end

local function find(h, name)
   if name:find('\0', 1, true) then return -1 end
   return tonumber(C.tide_file_find(h, name))
end

-- Returns whether the file has a tensor of this name.
function File:has(name) return find(open_handle(self, 'has'), str('has', 'name', name)) >= 0 end

-- Returns the index of a name; raises E_ARG if the file does not have it.
local function index_of(self, op, name)
   local h = open_handle(self, op)
   local i = find(h, str(op, 'name', name))
   if i < 0 then
      status.raise(C.TIDE_E_ARG, op, "'%s' has no tensor '%s' (it has %d; see file:names())",
         self.path, name, tonumber(C.tide_file_count(h)))
   end
   return h, i
end

-- Returns {dtype = 'f32' (nil if unsupported), stored = 'F32', shape = {...}, nbytes = n}.
function File:info(name)
   local h, i = index_of(self, 'info', name)
   local shape = {}
   for d = 0, math.min(C.tide_file_ndim(h, i), C.TIDE_MAX_DIM) - 1 do
      shape[d + 1] = tonumber(C.tide_file_dim(h, i, d))
   end
   return { dtype = arg.dtype_name[C.tide_file_dtype(h, i)],
      stored = ffi.string(C.tide_file_dtype_text(h, i)), shape = shape,
      nbytes = tonumber(C.tide_file_nbytes(h, i)) }
end

-- Failures are those of the file's context; another one would hide them.
local raw = {}
local call = require('tide.ffi.row').adders(raw, 'raw')
call 'cast(ctx, t, dtype) -> t, dtype'
call 'file_load(ctx, file, i, device) -> file, i, device'

local function convert(self, t, dtype)
   if dtype == nil or dtype == C.tide_tensor_dtype(t) then return t end
   return raw.cast(self.ctx, t, dtype)
end

local load_opts = arg.set { 'dtype', 'device', 'first', 'count' }

local function target_of(self, op, opts)
   local device = arg.device(op, 'opts.device', opts.device or self.context.device)
   local dtype = opts.dtype and arg.dtype(op, 'opts.dtype', opts.dtype)
   return device, dtype
end

-- Returns the rows first .. first + count - 1 of dim 1.
local function load_rows(self, h, i, device, opts)
   local ndim, shape = C.tide_file_ndim(h, i), arg.new_shape()
   if ndim < 1 or ndim > C.TIDE_MAX_DIM then
      status.raise(C.TIDE_E_SHAPE, 'load', 'rows of a tensor with %d dims', ndim)
   end
   local rows = tonumber(C.tide_file_dim(h, i, 0))
   local first = arg.int('load', 'opts.first', opts.first or 1, 1, rows + 1)
   local count = arg.int('load', 'opts.count', opts.count or rows + 1 - first, 0,
      rows + 1 - first)
   local width = 1
   shape[0] = count
   for d = 1, ndim - 1 do
      shape[d] = C.tide_file_dim(h, i, d)
      width = width * tonumber(shape[d])
   end
   local dtype = C.tide_file_dtype(h, i)
   if dtype < 0 then
      status.raise(C.TIDE_E_UNSUPPORTED, 'load', "dtype %s is not one of tide's",
         ffi.string(C.tide_file_dtype_text(h, i)))
   end
   local t = create.empty(self.ctx, device, dtype, ndim, shape)
   own.check(self.ctx, C.tide_file_read(t, h, i, (first - 1) * width))
   return t
end

-- Returns the tensor of this name. opts: dtype (converted after reading), device, and for a part of
-- it first and count: rows of dim 1, counted from 1.
function File:load(name, opts)
   local h, i = index_of(self, 'load', name)
   opts = arg.opts('load', opts, load_opts)
   local device, dtype = target_of(self, 'load', opts)
   if opts.first or opts.count then
      return convert(self, load_rows(self, h, i, device, opts), dtype)
   end
   return convert(self, raw.file_load(self.ctx, h, i, device), dtype)
end

-- Fills a contiguous tensor of the stored dtype with elements first, first + 1, ... (row-major,
-- counted from 1) of the stored one.
function File:read(name, t, first)
   local h, i = index_of(self, 'read', name)
   arg.tensor('read', 't', t)
   first = arg.int('read', 'first', first or 1, 1)
   own.check(self.ctx, C.tide_file_read(t, h, i, first - 1))
   return t
end

-- ---- several files ----------------------------------------------------------------------------

lib.state.SafeShards = lib.state.SafeShards or {}
local Shards = lib.state.SafeShards
Shards.__index = Shards
Shards.__tostring = function(self) return 'sharded safetensors ' .. self.path end

local function bad_index(path, message, ...)
   return nil, status.new(C.TIDE_E_FORMAT, 'safetensors_open', ("'%s': " .. message):format(path,
      ...))
end

local function folder_of(path) return path:match('^(.*/)[^/]*$') or '' end

-- Returns the files named by an index, opened: {file name = File}.
local function open_shards(path, weight_map, opts)
   local files = {}
   for name, file in each(weight_map) do
      if type(file) ~= 'string' or file == '' or file:find('[/%z]') or file:sub(1, 1) == '.' then
         return bad_index(path, "tensor '%s' is said to be in %s, which is not the name of a file "
            .. 'beside the index', name, status.show(file))
      end
      if not files[file] then
         local f, err = M.open(folder_of(path) .. file, opts)
         if not f then return nil, err end
         files[file] = f
      end
   end
   return files
end

-- Compares names of the index with those of the files. Sizes are each file's own to check: the
-- total_size of published indices may be that of another dtype, and readers pass over it.
local function check_shards(path, index, files)
   for name, file in each(index.weight_map) do
      if not files[file]:has(name) then
         return bad_index(path, "'%s' has no tensor '%s', which the index says it has", file, name)
      end
   end
   for file, f in each(files) do
      for _, name in ipairs(f:names()) do
         local said = index.weight_map[name]
         if said ~= file then
            return bad_index(path, "tensor '%s' is in '%s'; the index says %s", name, file,
               said and ("'" .. said .. "'") or 'nothing of it')
         end
      end
   end
   return true
end

-- Opens the files that a decoded model.safetensors.index.json names; path is the index's own.
function M.open_index(path, index, opts)
   if type(index) ~= 'table' or type(index.weight_map) ~= 'table' then
      return bad_index(path, 'expected an object with weight_map')
   end
   local files, err = open_shards(path, index.weight_map, opts)
   if not files then return nil, err end
   local ok
   ok, err = check_shards(path, index, files)
   if not ok then return nil, err end
   return setmetatable({ path = path, files = files, map = index.weight_map,
      metadata = type(index.metadata) == 'table' and index.metadata or {} }, Shards)
end

-- Returns the names of the tensors of all files, sorted.
function Shards:names() return sorted(self.map) end
-- Returns whether one of the files has a tensor of this name.
function Shards:has(name) return self.map[str('has', 'name', name)] ~= nil end

local function shard_of(self, op, name)
   local file = self.map[str(op, 'name', name)]
   if not file then
      status.raise(C.TIDE_E_ARG, op, "'%s' has no tensor '%s' (see :names())", self.path, name)
   end
   return self.files[file]
end

-- Returns info of the file that has the tensor; E_ARG without one.
function Shards:info(name) return shard_of(self, 'info', name):info(name) end
-- Returns load of the file that has the tensor; E_ARG without one.
function Shards:load(name, opts) return shard_of(self, 'load', name):load(name, opts) end
-- Returns read of the file that has the tensor; E_ARG without one.
function Shards:read(name, t, first) return shard_of(self, 'read', name):read(name, t, first) end
-- Closes every file; tensors that were loaded stay.
function Shards:close()
   for _, f in each(self.files) do f:close() end
end

return M
