-- The values of a session in a file: tensors, and plain values beside them.
--
-- The file is safetensors; plain values (numbers, texts, booleans, tables of these) are bytes in
-- hex digits in its metadata. Other values (functions, models) are named and not kept. With
-- several ranks each has a file of its own, FILE.r0, FILE.r1, ...

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local plain = require 'tide.ffi.plain'

local stored = {}

-- Names that a session has by itself.
local given = { tide = true, rank = true, size = true, _G = true, _ = true }

-- Returns the path of this rank's file. existing: of a file to read, which all ranks may share.
function stored.path(path, env, existing)
   err.type('repl.stored.path', 'path', path, 'string')
   if (env.size or 1) == 1 then return path end
   local stem, dot = path:match '^(.*)(%.svg)$'
   local own = ('%s.r%d%s'):format(stem or path, env.rank, dot or '')
   return existing and not fs.exists(own) and path or own
end

-- Returns the bytes of a plain value; nil of any other.
local function bytes_of(v)
   if type(v) == 'table' and getmetatable(v) then return nil end
   local ok, text = pcall(plain.encode, v, ':save')
   return ok and text or nil
end

-- Writes the values of these names, or of all, to a file; returns what was written as text.
function stored.save(path, env, names)
   local tide = require 'tide'
   err.type(':save', 'path', path, 'string')
   local tensors, meta, left, count, list = {}, { tide_session = '1' }, {}, 0, names
   if not list then
      list = {}
      for name in each(env) do
         if type(name) == 'string' and not given[name] then list[#list + 1] = name end
      end
   end
   table.sort(list)
   for _, name in ipairs(list) do
      local v = env[name]
      if v == nil then err.raise('E_ARG', ':save', "no '%s' at this prompt", name) end
      local text = bytes_of(v)
      if tide.is_tensor(v) then tensors[name] = v:detach()
      elseif text then meta['value ' .. name] = plain.hex(text)
      else left[#left + 1] = name end
      count = count + 1
   end
   fs.io().safetensors_save(path, tensors, meta)
   return ('saved %d in %s%s'):format(count - #left, path,
      #left > 0 and '; not kept (neither tensor nor plain): ' .. table.concat(left, ', ') or '')
end

-- Reads the values of a file into env, but those of names that a session has by itself; returns
-- their names as text.
function stored.load(path, env)
   err.type(':load', 'path', path, 'string')
   local file = assert(fs.io().safetensors_open(path))
   local names, left = {}, {}
   local function take(name, read)
      local list = given[name] and left or names
      list[#list + 1] = name
      if list == names then env[name] = read() end
   end
   for _, name in ipairs(file:names()) do
      take(name, function() return file:load(name) end)
   end
   for key, text in each(file.metadata) do
      local name = key:match '^value (.*)$'
      if name then take(name, function() return plain.decode(plain.unhex(text)) end) end
   end
   file:close()
   table.sort(names)
   table.sort(left)
   return 'loaded ' .. (#names > 0 and table.concat(names, ', ') or 'nothing')
      .. (#left > 0 and "; left out, as the prompt's own: " .. table.concat(left, ', ') or '')
end

return stored
