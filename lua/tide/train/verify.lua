-- What a checkpoint must be before anything of it is used: every file has the size and hash of the
-- manifest, and what state.json says has the types that readers rely on.
--
-- Errors are E_FORMAT, name the file and the field, and name the checkpoint before a damaged one.

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local folder = require 'tide.train.folder'
local fs = require 'tide.util.fs'
local signature = require 'tide.util.signature'

local verify = {}

-- The version of manifest.json that is written and read.
verify.version = 1

-- Raises for a file of the checkpoint at `path`.
local function damaged(op, path, fmt, ...)
   err.raise('E_FORMAT', op, '%s%s', fmt:format(...), folder.older(op, path))
end

-- Returns the value of a JSON file of the checkpoint at `path`.
function verify.json(op, path, name)
   local ok, value = pcall(fs.read_json, op, fs.join(path, name))
   if ok then return value end
   local e = err.of(value)
   local is_gone = not fs.exists(fs.join(path, name))
      and fs.exists(fs.join(path, 'manifest.json'))
   if e and (e.code == 'E_FORMAT' or is_gone) then damaged(op, path, '%s', e.message) end
   error(value, 0)
end

-- ---- files -------------------------------------------------------------------------------------

local function check_entry(op, path, name, entry)
   local good = type(name) == 'string' and not name:find('/', 1, true) and name:sub(1, 1) ~= '.'
      and type(entry) == 'table' and type(entry.size) == 'number' and type(entry.xxh64) == 'string'
   if good then return end
   damaged(op, path, '%s/manifest.json has a bad entry %s', path, err.show(name))
end

local function check_size(op, path, name, entry)
   local file = fs.join(path, name)
   local size = fs.size(file)
   if size ~= entry.size then
      damaged(op, path, '%s has %s bytes, the manifest says %.14g: the file is damaged', file,
         tostring(size or 'no'), entry.size)
   end
end

-- Compares a file with its hash in the manifest.
function verify.hash(op, path, name, entry)
   local file = fs.join(path, name)
   if fs.hash(op, file) ~= entry.xxh64 then
      damaged(op, path, '%s differs from its hash in the manifest: the file is damaged', file)
   end
end

local function check_manifest(op, path, manifest)
   if manifest.version ~= verify.version then
      damaged(op, path, '%s/manifest.json: version %s, this library reads %d', path,
         err.show(manifest.version), verify.version)
   end
   if type(manifest.files) ~= 'table' then
      damaged(op, path, "%s/manifest.json: field 'files': expected a table, got %s", path,
         err.show(manifest.files))
   end
end

-- Checks every file of the checkpoint at `path` against its manifest, which is returned. index: the
-- name of the file that replaces weights in pieces. sizes_only: tensor files are not hashed.
function verify.files(op, path, index, sizes_only)
   local manifest = verify.json(op, path, 'manifest.json')
   check_manifest(op, path, manifest)
   for name, entry in each(manifest.files) do
      check_entry(op, path, name, entry)
      check_size(op, path, name, entry)
      if not (sizes_only and name:find '%.safetensors$') then verify.hash(op, path, name, entry) end
   end
   local weights = manifest.files[index] and index or 'model.safetensors'
   for _, name in ipairs { weights, 'state.json' } do
      if not manifest.files[name] then
         damaged(op, path, '%s/manifest.json does not list %s', path, name)
      end
   end
   return manifest
end

-- ---- state.json --------------------------------------------------------------------------------

signature.reader('counts_by_name', 'a table of integers', function(op, name, v)
   for k, n in each(err.type(op, name, v, 'table')) do
      err.integer(op, ('%s.%s'):format(name, tostring(k)), n, 0)
   end
   return v
end)
signature.kind('any_number', 'a number', function(v) return type(v) == 'number' end, 'number')
signature.record('stored_optim', 'a table', { 'kind: string', 'steps: integer >= 0',
   'counts: counts_by_name' })
signature.record('stored_rng', 'a table', { 'seed: integer >= 0', 'stream: integer >= 0',
   'offset: integer >= 0' })
signature.record('stored_state', 'a table', { 'step: integer >= 0', 'optim: stored_optim',
   'sampler: table?', 'rng: stored_rng?', 'rng_stages: stored_rng[]?', 'config: table?',
   'family: string | false?', 'data: table?', 'val_loss: any_number?', 'recipe: table?',
   'job: string?' })

-- Returns what state.json of the checkpoint at `path` holds, with fields that have their types.
function verify.plain(op, path)
   local plain = verify.json(op, path, 'state.json')
   local wrong = signature.wrong(plain, 'stored_state')
   if wrong then damaged(op, path, '%s/state.json: %s', path, wrong) end
   return plain
end

-- Refuses a configuration of more layers than there are tensors: a model of so many would take long
-- to build before anything is compared. names: those of the model's tensors.
function verify.layers(op, path, plain, names)
   if #names == 0 then damaged(op, path, '%s holds no tensor of a model', path) end
   local config = plain.config or {}
   local pattern = config.hybrid_override_pattern
   local n = type(pattern) == 'string' and #pattern or tonumber(config.num_hidden_layers)
   if n and n > #names then
      damaged(op, path, "%s/state.json: field 'config' describes %.14g layers, the checkpoint has "
         .. '%d tensors', path, n, #names)
   end
end

return verify
