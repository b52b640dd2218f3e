-- tide.model.save and tide.model.export: a model, a sharded one or a checkpoint as a published
-- folder, which transformers and tide.model.load read. The folder is written beside its place and
-- renamed, so it is complete or absent.
--
-- `o` is what options_of returns: the caller's options with dir and op, the name of the public
-- function in errors.

local tide = require 'tide'
local adapter = require 'tide.pretrained.adapter'
local card = require 'tide.pretrained.card'
local checkpoint = require 'tide.train.checkpoint'
local copy = require 'tide.util.copy'
local dims = require 'tide.util.dims'
local dist = require 'tide.comm'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local family = require 'tide.model.family'
local finally = require 'tide.util.finally'
local folder = require 'tide.pretrained.folder'
local fs = require 'tide.util.fs'
local low_rank = require 'tide.nn.low_rank'
local nf4 = require 'tide.nn.nf4'
local signature = require 'tide.util.signature'
local sorted_keys = require('tide.util.pretty').sorted_keys
local spread = require 'tide.nn.spread'
local stored = require 'tide.model.stored'
local state = require 'tide.train.state'
local tokenizer_file = require 'tide.tokenizer.file'

local save = {}

-- ---- sizes -------------------------------------------------------------------------------------

local units = { B = 1, KB = 1e3, MB = 1e6, GB = 1e9, TB = 1e12, KIB = 2^10, MIB = 2^20, GIB = 2^30 }

-- Returns a size in bytes from a number, or from a text such as '5GB'.
local function bytes_of(op, size)
   if type(size) == 'number' then return size end
   local n, unit = size:match '^%s*([%d.]+)%s*(%a+)%s*$'
   n = tonumber(n)
   err.arg_if(not n or n <= 0 or not units[unit:upper()], op, 'max_shard',
      "a number of bytes, or a text such as '5GB' or '200MiB'", size)
   return n * units[unit:upper()]
end

-- ---- writing -----------------------------------------------------------------------------------

-- Splits names into lists for one file each, of at most `most` bytes (or one tensor).
local function parts_of(source, most)
   local parts, size = { {} }, 0
   for _, name in ipairs(source.names) do
      local n = source.nbyte(name)
      if size > 0 and size + n > most then
         parts[#parts + 1], size = {}, 0
      end
      table.insert(parts[#parts], name)
      size = size + n
   end
   return parts
end

local function write_weights(staged, source, o)
   local parts, map, total = parts_of(source, o.max_shard), {}, 0
   for i, names in ipairs(parts) do
      local file = #parts == 1 and 'model.safetensors'
         or ('model-%05d-of-%05d.safetensors'):format(i, #parts)
      tide.scope(function()
         local tensors = {}
         for _, name in ipairs(names) do
            tensors[name], map[name] = source.read(name), file
            total = total + source.nbyte(name)
         end
         fs.io().safetensors_save(fs.join(staged, file), tensors, { format = 'pt' })
      end)
      fs.io().fsync_file(fs.join(staged, file))
   end
   if #parts > 1 then
      fs.write_json(o.op, fs.join(staged, 'model.safetensors.index.json'),
         { metadata = { total_size = total }, weight_map = map })
   end
end

-- Files of a tokenizer, and of processors of images and videos, which are copied as they are.
local tokenizer_files = { 'tokenizer.json', 'tokenizer_config.json', 'tokenizer.model',
   'special_tokens_map.json', 'added_tokens.json', 'vocab.json', 'merges.txt', 'vocab.txt',
   'chat_template.jinja', 'chat_template.json', 'tekken.json', 'spiece.model',
   'sentencepiece.bpe.model', 'preprocessor_config.json', 'video_preprocessor_config.json',
   'processor_config.json' }

local function copy_tokenizer(op, staged, from)
   for _, name in ipairs(from and tokenizer_files or {}) do
      local path = fs.join(from, name)
      if fs.exists(path) then fs.write(op, fs.join(staged, name), fs.read(op, path)) end
   end
end

-- Returns the generation_config.json of a model that was loaded without one.
local function generation_of(source)
   if source.generation then return source.generation end
   local list = {}
   for _, key in ipairs { 'bos_token_id', 'eos_token_id', 'pad_token_id' } do
      local v = source.plain.config[key]
      if v ~= nil and v ~= tide.json.null then list[key] = v end
   end
   return next(list) and list
end

local function write_all(staged, source, o)
   local op = o.op
   write_weights(staged, source, o)
   fs.write(op, fs.join(staged, 'config.json'), family.config_file(source.plain, source.dtype,
      true))
   local generation = generation_of(source)
   if generation then fs.write_json(op, fs.join(staged, 'generation_config.json'), generation) end
   copy_tokenizer(op, staged, source.tokenizer)
   fs.write(op, fs.join(staged, 'README.md'), card.text(source, o.dir))
end

-- ---- the folder --------------------------------------------------------------------------------

local function trimmed(dir) return (dir:gsub('(.)/+$', '%1')) end

-- Returns a path beside dir.
local function beside(dir, what)
   local parent, name = trimmed(dir):match '^(.*/)([^/]+)$'
   return (parent or '') .. '.' .. what .. '-' .. (name or trimmed(dir))
end

-- Raises if writing to dir would destroy other files.
local function check_place(op, dir, overwrite)
   if not fs.is_present(dir) then return end
   if not fs.is_dir(dir) then err.raise('E_IO', op, '%s is a file; give a folder', dir) end
   local names = fs.list(op, dir)
   if #names == 0 then return end
   err.raise_if(fs.exists(fs.join(dir, 'manifest.json')), 'E_ARG', op, "argument 'dir': %s is a "
      .. 'checkpoint, whose optimiser state would be lost; give another folder', dir)
   err.raise_if(not overwrite, 'E_ARG', op, "argument 'dir': %s is not empty; give another folder, "
      .. 'or overwrite = true (--overwrite) to replace it', dir)
   err.raise_if(not fs.exists(fs.join(dir, 'config.json')), 'E_ARG', op, "argument 'dir': %s holds "
      .. 'no model (config.json), and overwrite = true replaces only a model; give another folder',
      dir)
   for _, name in ipairs(names) do
      err.raise_if(fs.is_dir(fs.join(dir, name)), 'E_ARG', op, "argument 'dir': %s holds the "
         .. 'folder %s, which overwrite = true would remove; give another folder', dir, name)
   end
end

-- Renames the staged folder to its final name.
local function publish(op, dir, staged)
   local old = beside(dir, 'old')
   if fs.take_place(op, staged, dir, old) then fs.remove_dir(op, old) end
   return dir
end

-- Takes the lock on the saves of dir, a file beside it that the holder removes. Returns the lock
-- and its file.
local function take_lock(op, dir)
   local file = beside(dir, 'lock')
   fs.mkdirs(op, fs.above(dir))
   local lock = fs.io().lock(file)
   err.raise_if(not lock, 'E_ARG', op, "argument 'dir': another save writes %s at this moment; a "
      .. 'model that is whole on every rank is saved by one (if comm.rank == 0), others need a '
      .. 'folder each', dir)
   return lock, file
end

-- Writes source into o.dir: complete, or not at all.
local function write_folder(source, o)
   local op, dir = o.op, trimmed(o.dir)
   local staged, lock, file = beside(dir, 'staging'), take_lock(op, dir)
   return finally(function(failed)
      if failed then pcall(fs.remove_dir, op, staged) end
      pcall(fs.io().remove, file)
      lock:release()
   end, function()
      check_place(op, dir, o.overwrite)
      fs.remove_dir(op, staged)                       -- of a save that was killed
      fs.mkdirs(op, staged)
      write_all(staged, source, o)
      fs.io().fsync_dir(staged)
      return publish(op, dir, staged)
   end)
end

-- ---- sources -----------------------------------------------------------------------------------

-- Returns the dtype of most numbers that are not in NF4.
local function main_dtype(rows, description)
   local scales, list = nf4._scales(description), {}
   for name, row in each(rows) do
      if row.dtype ~= 'u8' and not scales[name] and not low_rank.is_name(name) then
         list[name] = row
      end
   end
   return checkpoint._main_dtype(list)
end

-- Returns the set of the names of correction biases of routers in files. They stay f32 beside
-- weights in 16 bits, as published: a step moves them by less than 16 bits can hold. entries: of
-- stored.entries, or nil.
local function biases_of(entries)
   local set = {}
   for _, entry in ipairs(entries or {}) do
      set[entry.name] = entry.parts[1].name:find '%.router_bias$' ~= nil
   end
   return set
end

-- Returns a source: plain (config and family), names, nbyte(name), read(name) -> whole tensor on
-- the host, dtype (of most numbers), numel, generation and tokenizer (a folder) or nil. read: gives
-- a parameter by its name or, with a number (from 0), that slice of it along dim 1.
local function source_of(o, plain, rows, read, is_merged)
   local dtype = o.dtype
   if plain.quantised then
      rows, read = nf4._read_as_weights(plain.quantised, rows, read,
         dtype or main_dtype(rows, plain.quantised))
   end
   if plain.adapter then
      rows, read = adapter.merged(plain.adapter, rows, read, is_merged)
      plain = { config = plain.config, family = plain.family }
   end
   local entries = stored.entries(o.op, plain)
   rows, read = stored.view(entries, rows, read)
   local source = { plain = plain, names = sorted_keys(rows), numel = 0,
      dtype = dtype or checkpoint._main_dtype(rows) }
   for _, row in each(rows) do source.numel = source.numel + dims.numel(row.shape) end
   local is_bias = biases_of(entries)
   local function dtype_of(name) return not is_bias[name] and dtype or rows[name].dtype end
   function source.nbyte(name)
      return dims.numel(rows[name].shape) * tide.dtype_size(dtype_of(name))
   end
   function source.read(name)
      local t, to = read(name), dtype_of(name)
      return (t.dtype ~= to and t:to(to) or t):contiguous()
   end
   return source
end

local function source_of_model(o, model)
   local own = family.of(model)
   err.raise_if(not own, 'E_UNSUPPORTED', o.op, 'the model is of a custom class (%s), which has no '
      .. 'published configuration', model.class_name)
   spread.check_uncut(o.op, model)
   local tensors = model:state_dict()
   return source_of(o, { config = family.config(model), family = own,
      adapter = rawget(model, 'adapter'), quantised = rawget(model, 'quantised') }, tensors,
      function(name, slice)
         return (slice and tensors[name]:select(1, slice + 1) or tensors[name]):to 'cpu'
      end, low_rank.is_merged(model))
end

-- Returns the source of what checkpoint._load gave with lazy = true.
local function source_of_checkpoint(o, saved)
   local store, rows = saved.store, {}
   for _, name in ipairs(store:names 'model') do
      rows[name] = { shape = store:shape('model', name), dtype = store:dtype('model', name) }
   end
   return source_of(o, saved.plain, rows, function(name, slice)
      local offset, size = dims.zeros(#rows[name].shape), copy(rows[name].shape)
      if slice then offset[1], size[1] = slice, 1 end
      local t = store:read('model', name, offset, size, 'cpu')
      return slice and t:select(1, 1) or t
   end)
end

-- Calls fn with the source of a checkpoint, or of the newest one of a run. Returns its result.
local function with_checkpoint(o, where, fn)
   local saved = checkpoint._load(o.op, where, { model_only = true, lazy = true })
   return finally(function() saved.store:close() end, function()
      err.raise_if(type(saved.plain.config) ~= 'table' or not saved.plain.family, 'E_UNSUPPORTED',
         o.op, '%s holds a model of a custom class, which has no published configuration; '
         .. 'train.checkpoint.consolidate writes its weights as one model.safetensors',
         saved.folder)
      return fn(source_of_checkpoint(o, saved))
   end)
end

-- ---- doors -------------------------------------------------------------------------------------

local function options_of(op, dir, opts)
   opts.op, opts.dir, opts.max_shard = op, dir, bytes_of(op, opts.max_shard)
   err.arg_if(opts.tokenizer and not fs.is_dir(opts.tokenizer), op, 'tokenizer',
      'the folder of a tokenizer', opts.tokenizer)
   return opts
end

-- Saves the pieces of all ranks as a checkpoint beside dir, from which rank 0 writes the folder.
local function save_sharded(sharded, o)
   local comm, model = sharded.comm, sharded.model
   dist.on_first(comm, o.op, function() check_place(o.op, trimmed(o.dir), o.overwrite) end)
   local pieces, at = beside(o.dir, 'pieces'), nil
   local saved = state.weights(sharded)
   local ok, result = pcall(function()
      at = checkpoint.save(pieces, saved)
      return dist.on_first(comm, o.op, function()
         return with_checkpoint(o, at, function(source)
            source.generation = model.generation
            source.tokenizer = o.tokenizer or model.loaded_from
            return write_folder(source, o)
         end)
      end)
   end)
   comm:barrier()
   if comm.rank == 0 then
      if at then pcall(fs.remove_dir, o.op, at) end
      pcall(fs.remove_dir, o.op, pieces)
   end
   if not ok then error(result, 0) end
   return o.dir
end

-- Writes a model (of a family of tide.model) or what fully_shard returned as a published folder:
-- config.json, model.safetensors or shards with their index, generation_config.json, README.md and,
-- of a model that tide.model.load has read, the files of its tokenizer.
-- Changes of adapters (nn.lora) are merged into the weights. All ranks of a sharded model call it.
-- Returns dir.
function save.model(model, dir, opts)
   local o = options_of('model.save', dir, opts)
   if model.is_sharded then return save_sharded(model, o) end
   local source = source_of_model(o, model)
   source.generation, source.tokenizer = model.generation, o.tokenizer or model.loaded_from
   return write_folder(source, o)
end

-- Writes a checkpoint, or the newest of a run, as a published folder, with the tokenizer of the
-- run and the generation_config.json beside it. opts: as of save. One rank calls it, and holds the
-- tensors of one file at a time.
function save.export(where, dir, opts)
   local o = options_of('model.export', dir, opts)
   err.raise_if(folder.is(where) and fs.exists(fs.join(where, 'config.json')), 'E_ARG',
      o.op, '%s is a published folder already; tide.model.save(tide.model.load(DIR), '
      .. 'OUT, { dtype = .. }) writes it in other files', where)
   return with_checkpoint(o, where, function(source)
      source.tokenizer = o.tokenizer or tokenizer_file.place(where)
      local generation = source.tokenizer and fs.join(source.tokenizer, 'generation_config.json')
      if generation and fs.exists(generation) then
         source.generation = fs.read_json(o.op, generation)
      end
      return write_folder(source, o)
   end)
end

local options = {
   "max_shard: number >= 1 | string = '5GB' -- most bytes of a file",
   "dtype: 'f32' | 'f64' | 'bf16' | 'f16'? -- of the weights; default: as they are",
   'overwrite: boolean? -- replaces the folder of a model',
   'tokenizer: string? -- folder whose files of tokenizer and processors are copied',
   "where dir ~= '' -- argument 'dir': expected the path of a folder, got \"\"",
}
return signature.doors('model', save, {
   model = { 'model: weights; dir: string', op = 'model.save', opts = options },
   export = { 'where: string; dir: string', opts = options },
})
