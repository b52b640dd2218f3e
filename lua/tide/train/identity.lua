-- Which model lies in a folder, as a short text: equal for copies, different after training.
--
-- It is a hash of config.json and, of each file of weights, of its name, its size, its first 64 KiB
-- and 64 pieces of 4 KiB that lie evenly over it, so a large model is not read whole. A model that
-- was saved in another dtype or other files counts as another.

local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local run_folder = require 'tide.train.folder'
local signature = require 'tide.util.signature'

local M = {}

local op = 'train.identity'
local head_bytes, piece_bytes, piece_count = 2 ^ 16, 4096, 64

-- Returns a hash of what is read of a file of weights.
local function sampled(path)
   local size, hash = fs.size(path), fs.io().xxh64
   local file = size and io.open(path, 'rb')
   err.raise_if(not file, 'E_IO', op, 'cannot read %s', path)
   local chain = hash(('%d:'):format(size) .. (file:read(head_bytes) or ''))
   for i = 1, piece_count do
      file:seek('set', math.floor(math.max(0, size - piece_bytes) * i / piece_count))
      chain = hash(chain .. (file:read(piece_bytes) or ''))
   end
   file:close()
   return chain
end

-- Returns the identity of the model in dir: a published folder, a checkpoint, or a run, which means
-- its newest checkpoint. E_IO where no weights lie there.
function M.of(dir)
   if not fs.exists(fs.join(dir, 'config.json')) then dir = run_folder.find(op, dir) end
   local list, count = {}, 0
   for _, name in ipairs(fs.list(op, dir)) do
      local path = fs.join(dir, name)
      if name == 'config.json' then
         list[#list + 1] = name .. fs.hash(op, path)
      elseif name:find '%.safetensors$' and not name:find '^optim' then
         list[#list + 1], count = name .. sampled(path), count + 1
      end
   end
   err.raise_if(count == 0, 'E_IO', op, '%s holds no weights (.safetensors)', dir)
   return fs.io().xxh64(table.concat(list, '\n'))
end

return signature.doors('train.identity', M, { of = 'dir: string' })
