-- The tensors of a published folder (model.safetensors, or its index with shards) under the names
-- of the model's parameters, with the interface of a checkpoint's ShardStore. Any box of a tensor
-- can be read alone.
--
-- The file has a parameter as a tensor of its own (`stored`), as codes and scales (`packed`), as a
-- part of a tensor of another name, or as one tensor for each slice (both in `views`).

local tide = require 'tide'
local checkpoint = require 'tide.train.checkpoint'
local copy = require 'tide.util.copy'
local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fp8_block = require 'tide.pretrained.fp8_block'
local fs = require 'tide.util.fs'
local mxfp4 = require 'tide.pretrained.mxfp4'
local sorted_keys = require('tide.util.pretty').sorted_keys
local stored_ = require 'tide.model.stored'

local weights = {}

-- ---- files -------------------------------------------------------------------------------------

local weights_name = 'model.safetensors'
local index_name = 'model.safetensors.index.json'

-- Weight files of other formats, which tide does not read.
local foreign = { 'pytorch_model.bin', 'pytorch_model.bin.index.json', 'tf_model.h5',
   'flax_model.msgpack', 'consolidated.00.pth', 'consolidated.safetensors' }

local function missing_weights(op, dir)
   for _, name in ipairs(foreign) do
      err.raise_if(fs.exists(fs.join(dir, name)), 'E_UNSUPPORTED', op,
         '%s holds %s and no %s; save it as safetensors first', dir, name, weights_name)
   end
   for _, name in ipairs(fs.list(op, dir)) do
      err.raise_if(name:find '%-of%-%d+%.safetensors$', 'E_IO', op, '%s holds %s, but not %s, '
         .. 'which says what is in which file; copy that, too', dir, name, index_name)
   end
   err.raise('E_IO', op, '%s has neither %s nor %s', dir, weights_name, index_name)
end

-- Returns the opened files of weights.
local function open_files(op, dir)
   local file, why
   if fs.exists(fs.join(dir, weights_name)) then
      file, why = fs.io().safetensors_open(fs.join(dir, weights_name))
   elseif fs.exists(fs.join(dir, index_name)) then
      file, why = fs.io().safetensors_open_index(fs.join(dir, index_name))
   else
      missing_weights(op, dir)
   end
   if not file then err.raise(why.code, op, '%s', why.message) end
   return file
end

-- Returns whether a name is that of a buffer in old files, which models compute instead.
local function is_passed_over(name) return name:find '%f[%w]rotary_emb%.inv_freq$' ~= nil end

-- ---- names -------------------------------------------------------------------------------------

-- The tensors of a folder. nbyte counts the bytes read.
local Weights = { class_name = 'PublishedWeights' }
Weights.__index = Weights

-- How packed tensors lie in files, by kind (see model/packing.lua).
local forms = { fp8 = fp8_block, mxfp4 = mxfp4 }

local is_float = { f32 = true, f64 = true, bf16 = true, f16 = true }

local row_of

-- Makes what row_of returns.
local function make_row(self, name)
   local view, packed = self.views[name], self.packed[name]
   if view then
      return { dtype = row_of(self, (view.entry or view[1]).name).dtype, shape = view.shape }
   elseif packed then
      return { dtype = 'bf16', shape = packed.shape() }
   end
   local info = self.file:info(self.stored[name])
   err.raise_if(not is_float[info.dtype], 'E_FORMAT', self.op, "%s: tensor '%s' is %s; expected "
      .. 'F32, BF16, F16 or F64', self.dir, self.stored[name], info.stored)
   return info
end

-- Returns { dtype, shape } of a tensor, by its name in the model or in the file.
function row_of(self, name)
   local row = self.rows[name] or make_row(self, name)
   self.rows[name] = row
   return row
end

-- Returns the names X of packed tensors: those that a file has as X .. form.codes and
-- X .. form.scales. Raises where it has one of the two, unless that is X itself, a plain tensor.
local function packed_names(self, form)
   local ends, list = { [form.scales] = form.codes }, {}
   if form.codes ~= '' then ends[form.codes] = form.scales end
   for _, name in ipairs(sorted_keys(self.stored)) do
      for this, other in each(ends) do
         local x = #name > #this and name:sub(-#this) == this and name:sub(1, -#this - 1)
         err.raise_if(x and not self.stored[x .. other], 'E_FORMAT', self.op, "%s holds '%s' and "
            .. "lacks '%s%s', the other part of a tensor in %s", self.dir, name, x, other,
            form.name)
         if x and this == form.scales then list[#list + 1] = x end
      end
   end
   return list
end

-- Maps packed tensors, two of the file each, to one name. packing: of model/packing.lua.
local function unpack_pairs(self, packing)
   local form, stored = forms[packing.kind], self.stored
   for _, name in ipairs(packed_names(self, form)) do
      local codes, scales = name .. form.codes, name .. form.scales
      err.raise_if(codes ~= name and stored[name], 'E_FORMAT', self.op, "%s holds '%s' and '%s', "
         .. 'which name one tensor; remove one', self.dir, name, codes)
      local of_codes, of_scales = stored[codes], stored[scales]
      local in_file = of_codes:sub(1, -#form.codes - 1)
      self.packed[name] = {
         box = function(offset, size, read)
            return form.box(offset, size, read, packing.block)
         end,
         shape = function()
            return form.shape(self.op, self.dir, in_file, self.file:info(of_codes),
               self.file:info(of_scales), packing.block)
         end,
      }
      stored[codes], stored[scales] = nil, nil
      stored[name] = in_file
   end
end

-- Opens the weights of a folder. rename: nil, or a function from a name of the file to that of the
-- model; it returns nil for a tensor to ignore. packing: of model/packing.lua, or nil.
local function open(op, dir, rename, packing)
   local self = setmetatable({ op = op, dir = dir, file = open_files(op, dir), stored = {},
      rows = {}, views = {}, sources = {}, packed = {}, nbyte = 0 }, Weights)
   for _, name in ipairs(self.file:names()) do
      local own = not is_passed_over(name) and name or nil
      if own and rename then own = rename(own) end
      if own then self.stored[own] = name end
   end
   if packing then unpack_pairs(self, packing) end
   return self
end

-- Returns the whole shape of a tensor, or nil.
function Weights:shape(_, name) return self.stored[name] and row_of(self, name).shape end
-- Returns the dtype of a tensor, or nil.
function Weights:dtype(_, name) return self.stored[name] and row_of(self, name).dtype end

-- Returns the names, sorted.
function Weights:names() return sorted_keys(self.stored) end

-- Raises unless a tensor of the file has the shape that the configuration gives it.
local function check_shape(self, entry)
   local shape = row_of(self, entry.name).shape
   err.raise_if(not dims.equal(shape, entry.shape), 'E_SHAPE', self.op, "%s: tensor '%s' is %s, "
      .. 'config.json says %s', self.dir, self.stored[entry.name], dims.text(shape),
      dims.text(entry.shape))
end

-- Raises if the file also has a tensor of the parameter's own name or, of a slice, one with all
-- slices.
local function check_single(self, entry, part)
   local view = self.views[part.name]
   local whole = part.slice and view and view.entry
   local other = whole and whole.name or not view and self.stored[part.name] and part.name
   err.raise_if(other, 'E_FORMAT', self.op, "%s holds '%s' and '%s', which name one parameter; "
      .. 'remove one', self.dir, entry.name, other)
end

-- Maps the tensor of an entry that is a slice of a parameter.
local function view_slice(self, entry, part)
   local view = self.views[part.name] or { shape = part.shape }
   view[part.slice + 1] = entry
   self.views[part.name], self.stored[part.name] = view, self.sources[entry.name]
end

-- Raises if the file lacks a slice of a parameter that it has others of.
local function check_slices(self, entries)
   for _, entry in ipairs(entries) do
      local view = self.views[entry.parts[1].name]
      err.raise_if(view and not view.entry and not self.sources[entry.name], 'E_STATE', self.op,
         "%s: tensor '%s' is missing, and config.json says that there are %d such",
         self.dir, entry.name, view and view.shape[1] or 0)
   end
end

-- Maps names of files that differ from those of parameters. entries: of model:stored().
function Weights:view(entries)
   for _, entry in ipairs(entries) do
      local name, also = entry.name, entry.also
      if self.stored[name] then
         if also and dims.equal(row_of(self, name).shape, also.shape) then entry = also end
         check_shape(self, entry)
         self.sources[name] = self.stored[name]
         self.stored[name] = nil
         for _, part in ipairs(entry.parts) do
            check_single(self, entry, part)
            if part.slice then
               view_slice(self, entry, part)
            else
               self.views[part.name] = part.name ~= name
                  and { entry = entry, part = part, shape = part.shape } or nil
               self.stored[part.name] = self.sources[name]
            end
         end
      end
   end
   check_slices(self, entries)
end

-- Removes a tensor from those to read.
function Weights:drop(name) self.stored[name] = nil end

-- ---- boxes -----------------------------------------------------------------------------------

-- Number of elements that are read and converted at a time, so that they stay in the CPU cache.
local PIECE = 2 ^ 19

-- Calls fn(first, at, count) for each run of elements of a box that lies in one piece in the
-- stored tensor: first and at count from 0, in the tensor and in the box.
local function each_run(shape, offset, size, fn)
   local d = #shape
   while d > 1 and size[d] == shape[d] do d = d - 1 end      -- dims after d are whole
   local stride, run = dims.strides(shape), 1
   for k = math.max(d, 1), #shape do run = run * size[k] end
   local at, total = {}, dims.numel(size)
   if total == 0 then return end
   for k = 1, d - 1 do at[k] = 0 end
   for n = 0, total - 1, run do
      local first = 0
      for k = 1, #shape do first = first + (offset[k] + (at[k] or 0)) * stride[k] end
      fn(first, n, run)
      for k = d - 1, 1, -1 do
         at[k] = at[k] + 1
         if at[k] < size[k] then break end
         at[k] = 0
      end
   end
end

-- Calls fn(name, offset, size, i) for the box of each slice (stored tensor `name`) that a box of a
-- parameter takes, i from 1.
local function each_slice(view, offset, size, fn)
   local at, n = { unpack(offset, 2) }, { unpack(size, 2) }
   for i = 1, size[1] do fn(view[offset[1] + i].name, at, n, i) end
end

-- Returns a box of a tensor in its stored dtype, on the host. offset counts from 0.
local function read_box(self, name, offset, size)
   local view = self.views[name]
   if view and not view.entry then
      local t = tide.empty(size, { dtype = row_of(self, name).dtype, device = 'cpu' })
      self:fill(name, offset, size, t)
      return t
   elseif view then
      local at, n = stored_.box(view.entry, view.part, offset, size)
      return stored_.part(view.entry, view.part, self:box(view.entry.name, at, n))
   end
   return self:box(name, offset, size)
end

-- Reads a box of a stored tensor into `flat`, which has its elements in row-major order and its
-- dtype.
local function read_runs(self, stored, shape, offset, size, flat)
   each_run(shape, offset, size, function(first, at, n)
      self.file:read(stored, n == flat:numel() and flat or flat:narrow(1, at + 1, n), first + 1)
   end)
end

-- Reads a box as read_runs does into a `flat` of another dtype: it reads and converts a cache-sized
-- piece at a time.
local function convert_runs(self, stored, row, offset, size, flat)
   local total, used, done = flat:numel(), 0, 0
   local piece = tide.empty({ math.min(total, PIECE) }, { dtype = row.dtype, device = 'cpu' })
   local room = piece:numel()
   each_run(row.shape, offset, size, function(first, _, n)
      while n > 0 do
         local k = math.min(n, room - used)
         self.file:read(stored, piece:narrow(1, used + 1, k), first + 1)
         first, n, used = first + k, n - k, used + k
         if used == room or done + used == total then
            flat:narrow(1, done + 1, used):copy_(piece:narrow(1, 1, used))
            done, used = done + used, 0
         end
      end
   end)
end

-- Counts the bytes of a box.
local function count(self, size, dtype)
   self.nbyte = self.nbyte + dims.numel(size) * tide.dtype_size(dtype)
end

-- Returns a box of a packed tensor.
local function unpacked_box(self, name, offset, size)
   return self.packed[name].box(offset, size, function(what, at, n)
      local stored = (self.sources[name] or self.stored[name]) .. what
      local info = self.file:info(stored)
      local t = tide.empty(n, { dtype = info.dtype or 'u8', device = 'cpu' })
      read_runs(self, stored, info.shape, at, n, t:reshape(dims.numel(n)))
      count(self, n, t.dtype)
      return t
   end)
end

-- Returns a box of a tensor as the file has it; in bf16 of one that is packed.
function Weights:box(name, offset, size)
   if self.packed[name] then return unpacked_box(self, name, offset, size) end
   local row, stored = row_of(self, name), self.sources[name] or self.stored[name]
   local t = tide.empty(size, { dtype = row.dtype, device = 'cpu' })
   read_runs(self, stored, row.shape, offset, size, t:reshape(dims.numel(size)))
   count(self, size, row.dtype)
   return t
end

-- Returns a box of a tensor in its stored dtype. offset counts from 0.
function Weights:read(_, name, offset, size, device)
   local t = read_box(self, name, offset, size)
   return (device == nil or device == 'cpu') and t or t:to(device)
end

-- ---- filling -----------------------------------------------------------------------------------

-- Reads a box of a tensor of the file into t, which is contiguous on the host, without a temporary
-- of its size.
local function read_into(self, name, offset, size, t)
   local row, flat = row_of(self, name), t:reshape(t:numel())
   local stored = self.sources[name] or self.stored[name]
   if t.dtype == row.dtype then
      read_runs(self, stored, row.shape, offset, size, flat)
   elseif t:numel() > 0 then
      convert_runs(self, stored, row, offset, size, flat)
   end
   count(self, size, row.dtype)
end

-- Copies a box into t through a temporary of its size.
local function copy_box(self, name, offset, size, t)
   t:copy_(self:read('model', name, offset, size, t.device))
end

-- Copies a box of experts into t through a temporary of one expert.
local function copy_experts(self, name, offset, size, t)
   local at, n = copy(offset), copy(size)
   n[1] = 1
   for i = 1, size[1] do
      at[1] = offset[1] + i - 1
      tide.scope(function() copy_box(self, name, at, n, t:narrow(1, i, 1)) end)
   end
end

-- Fills t with a box of one tensor of the file.
local function fill_stored(self, name, offset, size, t)
   local is_direct = not self.packed[name] and t.device == 'cpu' and t:is_contiguous()
   return (is_direct and read_into or copy_box)(self, name, offset, size, t)
end

-- Returns whether the file has the numbers of an entry in another order than its parameters.
local function is_reordered(entry) return entry.transposed or entry.alternate end

-- Fills t with a box of a tensor. If t is contiguous on the host and the file has its numbers in
-- the same order, the box is read into it without a temporary of its size.
function Weights:fill(name, offset, size, t)
   local view = self.views[name]
   if not view then
      fill_stored(self, name, offset, size, t)
   elseif not view.entry then
      each_slice(view, offset, size, function(of, at, n, i)
         fill_stored(self, of, at, n, t:select(1, i))
      end)
   elseif is_reordered(view.entry) then
      (t.ndim == 3 and copy_experts or copy_box)(self, name, offset, size, t)
   else
      local at, n = stored_.box(view.entry, view.part, offset, size)
      fill_stored(self, view.entry.name, at, n, t)
   end
end

-- Returns the dtype of most elements.
function Weights:main_dtype()
   local rows = {}
   for i, name in ipairs(self:names()) do rows[i] = row_of(self, name) end
   return checkpoint._main_dtype(rows)
end

-- Closes the files.
function Weights:close() self.file:close() end

weights.open, weights.each_run = open, each_run

return weights
