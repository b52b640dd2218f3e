-- What a checkpoint must be before anything of it is used: every file has the size and hash of the
-- manifest, and what state.json says has the types that readers rely on.
--
-- Errors are E_FORMAT, name the file and the field, and name the checkpoint before a damaged one.

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local folder = require 'tide.train.folder'
local fs = require 'tide.util.fs'

local verify = {}

-- The version of manifest.json that is written and read.
verify.version = 1

-- Raises for a file of the checkpoint at `path`.
local function damaged(op, path, fmt, ...)
   err.raise('E_FORMAT', op, '%s%s', fmt:format(...), folder.older(op, path))
end

-- The value of a JSON file of the checkpoint at `path`.
function verify.json(op, path, name)
   local ok, value = pcall(fs.read_json, op, fs.join(path, name))
   if ok then return value end
   local e = err.of(value)
   if e and e.code == 'E_FORMAT' then damaged(op, path, '%s', e.message) end
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
-- name of the file that stands for weights in pieces. sizes_only: tensor files are not hashed.
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

local is = {
   ['an integer >= 0'] = err.is_count,
   ['a table'] = function(v) return type(v) == 'table' end,
   ['a text'] = function(v) return type(v) == 'string' end,
   ['a text or false'] = function(v) return type(v) == 'string' or v == false end,
   ['a number'] = function(v) return type(v) == 'number' end,
}

-- Dotted names with what they are; '?': may be absent. '.*' stands for every entry.
local rows = {
   { 'step', 'an integer >= 0' }, { 'optim', 'a table' }, { 'optim.kind', 'a text' },
   { 'optim.steps', 'an integer >= 0' }, { 'optim.counts', 'a table' },
   { 'optim.counts.*', 'an integer >= 0' }, { 'sampler', 'a table', '?' },
   { 'rng', 'a table', '?' }, { 'rng.seed', 'an integer >= 0', 'rng' },
   { 'rng.stream', 'an integer >= 0', 'rng' }, { 'rng.offset', 'an integer >= 0', 'rng' },
   { 'config', 'a table', '?' }, { 'family', 'a text or false', '?' }, { 'data', 'a table', '?' },
   { 'val_loss', 'a number', '?' }, { 'recipe', 'a table', '?' }, { 'job', 'a text', '?' },
}

-- Calls fn(name, value) for what a dotted name stands for.
local function each_at(plain, name, fn)
   local v = plain
   for part in name:gmatch '[^.]+' do
      if type(v) ~= 'table' then return end
      if part == '*' then
         for k, w in each(v) do fn(name:gsub('%*', tostring(k)), w) end
         return
      end
      v = v[part]
   end
   fn(name, v)
end

-- What state.json of the checkpoint at `path` holds, with fields that have their types.
function verify.plain(op, path)
   local plain = verify.json(op, path, 'state.json')
   for _, row in ipairs(rows) do
      local expected, optional = row[2], row[3]
      each_at(plain, row[1], function(name, v)
         if v == nil and (optional == '?' or optional and plain[optional] == nil) then return end
         if not is[expected](v) then
            damaged(op, path, "%s/state.json: field '%s': expected %s, got %s", path, name,
               expected, err.show(v))
         end
      end)
   end
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
      damaged(op, path, "%s/state.json: field 'config' tells of %.14g layers, the checkpoint has "
         .. '%d tensors', path, n, #names)
   end
end

return verify
