-- Checkpoints: a folder that is either complete or not there.
--
-- Everything is written to a staging folder, synced, listed with size and hash in manifest.json,
-- synced again and renamed to step-N; only then does the file LATEST name it. A save that fails
-- leaves the earlier checkpoints and LATEST as they were. A load checks every size and hash before
-- it looks into any file. model.safetensors with config.json is the published layout of weights.
--
-- A model on a mesh is saved by all its ranks, each its pieces (train/shard_store.lua), and
-- resumes on any other number of ranks or placement, as does a checkpoint of one rank;
-- `consolidate` makes the published layout of it.

local tide = require 'tide'
local copy = require 'tide.util.copy'
local dims = require 'tide.util.dims'
local dist = require 'tide.comm'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local family = require 'tide.model.family'
local run_folder = require 'tide.train.folder'
local fs = require 'tide.util.fs'
local signature = require 'tide.util.signature'
local store = require 'tide.train.shard_store'
local stored = require 'tide.model.stored'
local verify = require 'tide.train.verify'

local checkpoint = {}

-- Returns the name of the checkpoint of a step in the folder of its run.
function checkpoint.name(step) return run_folder.name(step) end

-- Returns the dtype that most numbers of a model have. list: entries with dtype and shape.
function checkpoint._main_dtype(list)
   local counts, best = {}, nil
   for _, t in each(list) do
      counts[t.dtype] = (counts[t.dtype] or 0) + dims.numel(t.shape)
   end
   for dtype, n in each(counts) do
      if not best or n > counts[best] or n == counts[best] and dtype < best then best = dtype end
   end
   return best
end

-- Syncs a file and describes it.
local function seal(op, folder, name)
   local path = fs.join(folder, name)
   fs.io().fsync_file(path)
   return { size = fs.size(path), xxh64 = fs.hash(op, path) }
end

-- Returns the names of the published checkpoints below `out`, oldest first.
function checkpoint.list(out) return run_folder.list('train.checkpoint.list', out) end

-- Returns the step of the newest checkpoint of the run in `out`; nil without one.
function checkpoint.step_in(out) return run_folder.step_in('train.checkpoint.step_in', out) end

-- Removes what a run has left in `out`: LATEST first, checkpoints, metrics, plot. Others stay.
function checkpoint.clear(out) run_folder.clear('train.checkpoint.clear', out) end

-- ---- saving ------------------------------------------------------------------------------------

-- Returns the metadata of a file of tensors. Other libraries read model.safetensors, and want the
-- format.
local function meta_of(name) return name == 'model.safetensors' and { format = 'pt' } or {} end

-- Writes and seals this rank's files of tensors. Returns the seals, by name.
local function write_tensors(op, staged, files)
   local sealed = {}
   for name, tensors in each(files) do
      fs.io().safetensors_save(fs.join(staged, name), tensors, meta_of(name))
      sealed[name] = seal(op, staged, name)
   end
   return sealed
end

-- Writes the files of rank 0 and publishes the checkpoint. job: out, staged, step, plain and config
-- (JSON as text), index (nil: the tensors are whole); lists: what the ranks have sealed.
local function complete(op, job, lists)
   local names, sealed = { 'state.json' }, {}
   fs.write(op, fs.join(job.staged, 'state.json'), job.plain)
   for _, name in ipairs { 'index', 'config' } do
      if job[name] then
         local file = name == 'index' and store.index_name or 'config.json'
         names[#names + 1] = file
         fs.write(op, fs.join(job.staged, file), job[name])
      end
   end
   for _, list in ipairs(lists) do copy(list, sealed) end
   for _, name in ipairs(names) do sealed[name] = seal(op, job.staged, name) end
   fs.write_json(op, fs.join(job.staged, 'manifest.json'),
      { version = verify.version, step = job.step, files = sealed })
   fs.io().fsync_dir(job.staged)
   local folder = run_folder.publish(op, job.out, job.staged, checkpoint.name(job.step))
   if job.keep then run_folder.retain(op, job.out, job.keep, job.spare) end
   return folder
end

-- Returns what the save writes, as it is now: this rank's files (name -> tensors), and the job with
-- the rest as text.
local function prepare(out, saved, opts, comm)
   local files, index
   if saved.pieces then
      files, index = store.plan(comm, saved.pieces)
   else
      files = comm.rank == 0 and { ['model.safetensors'] = saved.model,
         ['optim.safetensors'] = saved.optim } or {}
   end
   local config = saved.plain.config
   return files, {
      out = out, step = saved.plain.step, keep = opts.keep, spare = opts.spare,
      plain = fs.json_text(saved.plain),
      staged = fs.join(out, '.staging-' .. checkpoint.name(saved.plain.step)),
      index = index and fs.json_text(index),
      config = config and family.config_file(saved.plain,
         checkpoint._main_dtype(index and index.model or saved.model)),
   }
end

-- Runs the steps of a save; if one fails on any rank, the staged files go.
local function guarded(op, job, comm, fn)
   local ok, result = pcall(fn)
   if ok then return result end
   if comm.rank == 0 then pcall(fs.remove_dir, op, job.staged) end
   error(result, 0)
end

local function begin(op, job, comm)
   dist.together(comm, op, function()
      if comm.rank == 0 then run_folder.stage(op, job.out, checkpoint.name(job.step)) end
   end)
end

local function finish(op, job, comm, lists)
   return dist.together(comm, op, function()
      return comm.rank == 0 and complete(op, job, lists) or false
   end)[1]
end

-- Checks what train.state.collect gave.
local function check_saved(op, saved)
   local kind_of = type(saved) == 'table' and saved.pieces and 'written_pieces' or 'written'
   signature.check(op, 'saved', saved, kind_of)
   for _, kind in ipairs { 'model', 'optim' } do
      local list = (saved.pieces or saved)[kind]
      local what = (saved.pieces and 'saved.pieces.' or 'saved.') .. kind
      for name, t in each(err.type(op, what, list, 'table')) do
         err.arg_if(not tide.is_tensor(saved.pieces and type(t) == 'table' and t.t or t), op,
            ('%s[%s]'):format(what, err.show(name)), 'a tensor', t)
      end
   end
end

-- Returns the ranks of a save, this rank's files, and the job; see prepare.
local function begun(op, out, saved, opts)
   check_saved(op, saved)
   local comm = saved.comm or dist.comm_of(op, opts.comm)
   return comm, prepare(out, saved, opts, comm)
end

-- Saves what train.state.collect gave. Returns the folder. With several ranks, rank 0 writes, or
-- with a sharded model every rank its pieces, and all succeed or fail together.
function checkpoint.save(out, saved, opts)
   local op = 'train.checkpoint.save'
   local comm, files, job = begun(op, out, saved, opts)
   return guarded(op, job, comm, function()
      begin(op, job, comm)
      return finish(op, job, comm, dist.together(comm, op, function()
         return write_tensors(op, job.staged, files)
      end))
   end)
end

-- ---- in the background -------------------------------------------------------------------------

local Pending = { class_name = 'PendingSave' }
Pending.__index = Pending

-- Saves that are not waited for yet, by their staging folder.
local under_way = setmetatable({}, { __mode = 'v' })

-- Saves as save does, but returns when the tensors are copied: threads write them. Collective. At
-- most one may be under way in a folder. The result has done() and wait(), which every rank calls
-- alike; wait publishes the checkpoint and returns its folder, or raises what went wrong on any
-- rank.
function checkpoint.save_async(out, saved, opts)
   local op = 'train.checkpoint.save'
   local comm, files, job = begun(op, out, saved, opts)
   err.raise_if(under_way[job.staged], 'E_STATE', op, 'a save of step %d in %s is under way; '
      .. 'wait() for it first', job.step, out)
   local self = setmetatable({ job = job, comm = comm, writing = {} }, Pending)
   guarded(op, job, comm, function()
      begin(op, job, comm)
      dist.together(comm, op, function()
         for name, tensors in each(files) do
            self.writing[name] = fs.io().safetensors_save_async(fs.join(job.staged, name), tensors,
               meta_of(name))
         end
      end)
   end)
   under_way[job.staged] = self
   return self
end

-- Returns whether all ranks have written their files, so that wait will not wait.
function Pending:done()
   local open = false
   for _, w in each(self.writing) do open = open or not w:test() end
   return not dist.any(self.comm, open)
end

-- Waits for the files, seals the checkpoint and returns its folder; a failure is raised.
-- Collective.
function Pending:wait()
   if self.folder then return self.folder end
   local op, job, comm = 'train.checkpoint.save', self.job, self.comm
   under_way[job.staged] = nil
   self.folder = guarded(op, job, comm, function()
      return finish(op, job, comm, dist.together(comm, op, function()
         local sealed = {}
         for name, w in each(self.writing) do
            local hash = w:wait()
            sealed[name] = { size = fs.size(fs.join(job.staged, name)), xxh64 = hash }
         end
         return sealed
      end))
   end)
   return self.folder
end

-- ---- one run at a time -------------------------------------------------------------------------

-- Makes `out` and keeps other runs out of it until release() of the result, or the end of the
-- process; then removes what a killed run has left there. Rank 0 of comm decides, all agree.
function checkpoint.lock(out, comm)
   local op = 'train.checkpoint.lock'
   return run_folder.lock(op, out, dist.comm_of(op, comm))
end

-- ---- loading -----------------------------------------------------------------------------------

-- Returns the folder that `where` means: a checkpoint itself, or a run's folder by its LATEST.
function checkpoint.find(where) return run_folder.find('train.checkpoint.find', where) end

-- Checks every file of a checkpoint against its manifest, which is returned. sizes_only: hashes
-- only of what is not a tensor file.
function checkpoint.verify(folder, sizes_only)
   return verify.files('train.checkpoint.verify', folder, store.index_name, sizes_only)
end

-- Returns all tensors of a safetensors file: name -> tensor.
function checkpoint.tensors(path, device)
   local file, list = fs.open_tensors('train.checkpoint.tensors', path), {}
   for _, name in ipairs(file:names()) do list[name] = file:load(name, { device = device }) end
   file:close()
   return list
end

-- Returns the `recipe` table (options of the program) kept with a checkpoint or a run's newest; {}
-- without.
function checkpoint.recipe(where)
   local op = 'train.checkpoint.recipe'
   return verify.plain(op, run_folder.find(op, where)).recipe or {}
end

-- Returns the tensors of a verified checkpoint. is_hashed: its files of tensors are compared
-- already; else each is when it is opened.
local function open_store(op, folder, manifest, is_hashed)
   return store.open(op, folder, manifest, function(name)
      local entry = manifest.files[name]
      err.raise_if(not entry, 'E_FORMAT', op, '%s/%s names %s, which the manifest does not list',
         folder, store.index_name, name)
      if not is_hashed then verify.hash(op, folder, name, entry) end
   end)
end

-- Loads as checkpoint.load does, for the public function op.
function checkpoint._load(op, where, opts)
   local folder = run_folder.find(op, where)
   local manifest = verify.files(op, folder, store.index_name, opts.lazy)
   local saved = { folder = folder, plain = verify.plain(op, folder) }
   err.raise_if(not opts.model_only and not manifest.files[store.index_name]
      and not manifest.files['optim.safetensors'], 'E_FORMAT', op, '%s has no optimiser state',
      folder)
   local from = open_store(op, folder, manifest, not opts.lazy)
   verify.layers(op, folder, saved.plain, from:names 'model')
   if opts.lazy then
      saved.store = from
      return saved
   end
   saved.model = from:all('model', opts.device)
   saved.optim = not opts.model_only and from:all('optim', opts.device) or nil
   from:close()
   return saved
end

-- Loads a checkpoint, or the newest of a run's folder. Returns what train.state.collect gave.
function checkpoint.load(where, opts)
   return checkpoint._load('train.checkpoint.load', where, opts)
end

-- Writes the weights of a checkpoint, whole, in the published layout (model.safetensors,
-- config.json) into the folder `to`. One rank calls it; it holds all weights.
function checkpoint.consolidate(where, to, opts)
   local op = 'train.checkpoint.consolidate'
   for name, what in each { ['manifest.json'] = 'is a checkpoint, which would be damaged',
      ['model.safetensors.index.json'] = 'holds a model in several files' } do
      err.raise_if(fs.exists(fs.join(to, name)), 'E_ARG', op, "argument 'to': %s %s; give another "
         .. 'folder', to, what)
   end
   local saved = checkpoint._load(op, where, { model_only = true, device = 'cpu' })
   if opts.dtype then
      for name, t in each(saved.model) do saved.model[name] = t:to(opts.dtype) end
   end
   fs.mkdirs(op, to)
   local plain, weights = saved.plain, saved.model
   if plain.config then weights = stored.published(stored.entries(op, plain), weights) end
   fs.io().safetensors_save(fs.join(to, 'model.safetensors'), weights, { format = 'pt' })
   if plain.config then
      fs.write(op, fs.join(to, 'config.json'), family.config_file(plain,
         checkpoint._main_dtype(weights), true))
   end
   return to
end

local saving = { 'out: string', op = 'train.checkpoint.save', opts = {
   'keep: integer? >= 1 -- checkpoints that stay in the folder; all by default',
   'spare: integer? >= 0 -- the step of one that stays beside these',
   'comm: comm? -- ranks; all by default' } }
signature.record('written_plain', 'a table', { 'step: integer >= 0', 'config: table?' })
signature.record('written', 'a table', { 'plain: written_plain' })
signature.record('written_pieces', 'a table', { 'plain: written_plain', 'pieces: table',
   'comm: comm' })
return signature.doors('train.checkpoint', checkpoint, {
   name = 'step: integer >= 0', list = 'out: string', step_in = 'out: string',
   clear = 'out: string', find = 'where: string', verify = 'folder: string',
   tensors = 'path: string',
   save = saving, save_async = saving, lock = 'out: string', recipe = 'where: string',
   load = { 'where: string', opts = {
      'device: string? -- device of the tensors',
      'model_only: boolean = false -- leaves the state of the optimiser out',
      'lazy: boolean = false -- gives `store` in place of tensors, for a sharded model' } },
   consolidate = { 'where: string; to: string', opts = {
      'dtype: float? -- dtype of the weights; by default as stored' } },
})
