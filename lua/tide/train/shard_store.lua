-- Tensors of a checkpoint as pieces: which rank writes what, and how any box is read again.
--
-- A piece is a box of a whole tensor, { name, shape, offset, size } with a list entry a dim. A rank
-- writes the boxes that it holds and no lower rank does, one file a rank and kind; shards.json says
-- where each box lies. Reading asks for a box of the whole tensor and opens only files with a piece
-- of it, so a run resumes on any number of ranks and any placement.
-- A checkpoint of one rank (model.safetensors) is read in the same way: one box a tensor.
--
-- Kinds are 'model' and 'optim'; an optimiser's tensor is called "<parameter>.<field>".

local tide = require 'tide'
local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local shard_index = require 'tide.train.shard_index'
local sorted_keys = require('tide.util.pretty').sorted_keys

local store = {}

store.index_name = 'shards.json'
local version = 1

-- ---- writing ---------------------------------------------------------------------------------

local function file_of(kind, rank, nrank)
   return ('%s-%05d-of-%05d.safetensors'):format(kind, rank, nrank)
end

-- Returns the boxes of item that none of `held` has, boxes that do not overlap. (Tensor-parallel
-- ranks hold what is not cut at other rows where their cut parts differ in size.)
local function rest_of(item, held)
   local rest = { item }
   for _, other in ipairs(held) do
      local less = {}
      for _, box in ipairs(rest) do
         for _, part in ipairs(dims.minus(box, other)) do less[#less + 1] = part end
      end
      rest = less
   end
   return rest
end

-- Adds a box of item, in the file of its rank, to a row of the index; returns its name there.
local function add_piece(row, item, box, file)
   -- a second box of the same rank needs a name of its own
   local name, last, array = item.name, row.pieces[#row.pieces], fs.io().json.array
   if last and last.file == file then name = ('%s#%d'):format(name, #row.pieces + 1) end
   row.pieces[#row.pieces + 1] = { file = file, offset = array(box.offset),
      size = array(box.size), name = name ~= item.name and name or nil }
   return name
end

-- Returns the index of a kind from what all ranks hold, and what this rank writes: name -> tensor.
-- mine: the items of this rank with their tensors.
local function plan_kind(comm, kind, all, mine)
   local index, file, seen, array = {}, {}, {}, fs.io().json.array
   for rank = 0, comm.size - 1 do
      for i, item in ipairs(all[rank + 1][kind]) do
         local key = ('%s|%s|%s'):format(item.name, dims.text(item.offset), dims.text(item.size))
         local row = index[item.name] or { dtype = item.dtype, shape = array(item.shape),
            pieces = array {} }
         index[item.name] = row
         for _, box in ipairs(seen[key] and {} or rest_of(item, row.pieces)) do
            local name = add_piece(row, item, box, file_of(kind, rank, comm.size))
            if rank == comm.rank then
               file[name] = dims.view(mine[i].t, box.offset, box.size, item.offset):contiguous()
            end
         end
         seen[key] = true
      end
   end
   return index, file
end

-- Plans a save. Collective. pieces: { model = list, optim = list } of { name, t, shape, offset,
-- size }. Returns what this rank writes, file name -> { name = tensor }, and the index of all.
function store.plan(comm, pieces)
   local mine = {}
   for _, kind in ipairs { 'model', 'optim' } do
      mine[kind] = {}
      for i, item in ipairs(pieces[kind]) do
         mine[kind][i] = { name = item.name, dtype = item.t.dtype, shape = item.shape,
            offset = item.offset, size = item.size }
      end
   end
   local all = comm:all_gather_object(mine)
   local index, files = { version = version, ranks = comm.size }, {}
   for _, kind in ipairs { 'model', 'optim' } do
      local file
      index[kind], file = plan_kind(comm, kind, all, pieces[kind])
      if next(file) then files[file_of(kind, comm.rank, comm.size)] = file end
   end
   return files, index
end

-- ---- reading ---------------------------------------------------------------------------------

local Store = { class_name = 'ShardStore' }
Store.__index = Store

local function open_file(self, name)
   if not self.files[name] then
      self.check(name)
      self.files[name] = fs.open_tensors(self.op, fs.join(self.folder, name))
   end
   return self.files[name]
end

-- Returns the index of a checkpoint of one rank, from the headers of its files.
local function plain_index(self, manifest)
   local index = { model = {}, optim = {} }
   for _, kind in ipairs { 'model', 'optim' } do
      local name = kind .. '.safetensors'
      if manifest.files[name] then
         local file = open_file(self, name)
         for _, key in ipairs(file:names()) do
            local info = file:info(key)
            index[kind][key] = { dtype = info.dtype, shape = info.shape,
               pieces = { { file = name, offset = dims.zeros(#info.shape), size = info.shape } } }
         end
      end
   end
   return index
end

-- Opens a checkpoint. manifest: of the folder; check(name) raises if a file of it is damaged.
function store.open(op, folder, manifest, check)
   local self = setmetatable({ op = op, folder = folder, files = {}, check = check, nbyte = 0 },
      Store)
   if manifest.files[store.index_name] then
      local path = fs.join(folder, store.index_name)
      self.index = shard_index.check(op, path, fs.read_json(op, path), version)
   else
      self.index = plain_index(self, manifest)
   end
   return self
end

-- Returns the whole shape of a tensor, or nil. kind: 'model' or 'optim'.
function Store:shape(kind, name)
   local row = self.index[kind][name]
   return row and row.shape
end

-- Returns the dtype of a tensor, or nil.
function Store:dtype(kind, name)
   local row = self.index[kind][name]
   return row and row.dtype
end

-- Returns the sorted names of the tensors of a kind.
function Store:names(kind) return sorted_keys(self.index[kind]) end

-- Returns the common part of a box and a piece: offset and size; nil without one.
local function common(offset, size, piece)
   local at, n = {}, {}
   for d = 1, #offset do
      local lo = math.max(offset[d], piece.offset[d])
      local hi = math.min(offset[d] + size[d], piece.offset[d] + piece.size[d])
      if hi <= lo then return nil end
      at[d], n[d] = lo, hi - lo
   end
   return at, n
end

-- Raises unless the file holds the piece as the index says.
local function check_stored(self, file, row, piece, name)
   local ok, info = pcall(file.info, file, name)
   if ok and info.dtype == row.dtype and dims.equal(info.shape, piece.size) then return end
   if not ok and (not err.of(info) or info.code ~= 'E_ARG') then error(info, 0) end
   err.raise('E_FORMAT', self.op, "%s: '%s' is %s, the index says %s %s", fs.join(self.folder,
      piece.file), name, ok and info.stored .. ' ' .. dims.text(info.shape) or 'not there',
      row.dtype, dims.text(piece.size))
end

-- Returns the rows of a piece that a box needs, cut to the box.
local function load_part(self, name, row, piece, at, n, device)
   local file, opts = open_file(self, piece.file), { device = device }
   name = piece.name or name
   check_stored(self, file, row, piece, name)
   if #at > 0 then opts.first, opts.count = at[1] - piece.offset[1] + 1, n[1] end
   local t = file:load(name, opts)
   if #at > 0 then self.nbyte = self.nbyte + file:info(name).nbytes / piece.size[1] * n[1] end
   return dims.view(t, at, n, piece.offset)
end

-- Opens, and so checks, the files that a box is read from.
function Store:touch(kind, name, offset, size)
   for _, piece in ipairs(self.index[kind][name].pieces) do
      if common(offset, size, piece) then open_file(self, piece.file) end
   end
end

-- Returns a box of a tensor, in its stored dtype. offset counts from 0.
function Store:read(kind, name, offset, size, device)
   local row = self.index[kind][name]
   if not row then err.raise('E_FORMAT', self.op, "%s has no '%s'", self.folder, name) end
   local out
   for _, piece in ipairs(row.pieces) do
      local at, n = common(offset, size, piece)
      if at then
         local part = load_part(self, name, row, piece, at, n, device)
         if dims.equal(n, size) then return part:contiguous() end
         out = out or tide.empty(size, { dtype = row.dtype, device = device })
         dims.view(out, at, n, offset):copy_(part)
      end
   end
   return out or tide.empty(size, { dtype = row.dtype, device = device })
end

-- Returns all tensors of a kind, whole: name -> tensor.
function Store:all(kind, device)
   local list = {}
   for name, row in each(self.index[kind]) do
      list[name] = self:read(kind, name, dims.zeros(#row.shape), row.shape, device)
   end
   return list
end

-- Closes the files.
function Store:close()
   for _, file in each(self.files) do file:close() end
   self.files = {}
end

return store
