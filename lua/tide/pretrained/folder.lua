-- Recognises a published folder and reads its configuration; weights.lua reads its tensors.

local checkpoint = require 'tide.train.checkpoint'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'

local folder = {}

-- Returns whether dir is read as a published folder rather than as a checkpoint or a run of tide,
-- whose errors name the checkpoints in it.
function folder.is(dir)
   if not fs.is_dir(dir) then return fs.exists(dir) end
   for _, name in ipairs { 'manifest.json', 'LATEST' } do
      if fs.exists(fs.join(dir, name)) then return false end
   end
   return fs.exists(fs.join(dir, 'config.json')) or #checkpoint.list(dir) == 0
end

local function check_place(op, dir)
   if fs.is_dir(dir) then return end
   err.raise('E_IO', op, '%s is a file; give its folder', dir)
end

-- Raises unless dir has a configuration; the error names the folder of an adapter as such.
local function check_config(op, dir)
   if fs.exists(fs.join(dir, 'config.json')) then return end
   local adapter = fs.join(dir, 'adapter_config.json')
   if fs.exists(adapter) then
      local base = fs.read_json(op, adapter).base_model_name_or_path
      err.raise('E_IO', op, '%s holds adapters of another model (%s); load that one, then these '
         .. 'with tide.model.load_adapter (recipes that train: --from MODEL --adapter %s)', dir,
         type(base) == 'string' and base or 'it does not say which', dir)
   end
   err.raise('E_IO', op, 'no checkpoint in %s (no config.json, manifest.json or LATEST)', dir)
end

-- Opens a folder: returns { dir, config (as the file says), generation (of generation_config.json,
-- or nil) }. weights.open opens the weights, when the family is known.
function folder.open(op, dir)
   check_place(op, dir)
   check_config(op, dir)
   local self = { dir = dir, config = fs.read_json(op, fs.join(dir, 'config.json')) }
   if fs.exists(fs.join(dir, 'generation_config.json')) then
      self.generation = fs.read_json(op, fs.join(dir, 'generation_config.json'))
   end
   return self
end

return folder
