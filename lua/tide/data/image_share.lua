-- Pixels of images that several ranks read at once: one rank decodes each, and all get all.
--
-- Pixels of 8 bits travel, resized to whole patches: an eighth of the bytes of patches.

local agree = require 'tide.comm.agree'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'
local partition = require 'tide.util.partition'
local private = require 'tide.util.private'
local tide = require 'tide'

-- Returns the pixels of images first to last as one tensor of bytes; or nil and the first problem.
local function decoded(o, first, last)
   local list = {}
   for i = first, last do
      local x, problem = o.read(i)
      if problem then return nil, problem end
      list[#list + 1] = private.replace(x, x:reshape(x:numel()))
   end
   if not list[1] then return tide.empty({ 0 }, { dtype = 'u8', device = 'cpu' }) end
   if #list == 1 then return list[1] end
   local all = tide.cat(list, 1)
   for _, x in ipairs(list) do private.spend(x) end
   return all
end

-- Raises the first problem of a rank on all of them.
local function raise_any(op, comm, problem)
   local all = comm:all_gather_object(problem)
   for r = 1, comm.size do err.raise_if(all[r], 'E_FORMAT', op, '%s', all[r]) end
end

-- Returns a list of pixels, u8 on the host. Collective over comm. o: sizes { rows, columns, 3 } of
-- the images; read(i), which returns the pixels of image i, or nil and the problem; what, a text
-- that other images do not have.
return function(op, comm, o)
   agree.check(comm, op, 'E_COMM', { { 'images', o.what,
      hint = 'same_rows is for ranks that make the same batch' } })
   local costs, counts, list, at = {}, {}, {}, 1
   for i, size in ipairs(o.sizes) do costs[i] = dims.numel(size) end
   local bounds = partition(costs, comm.size)
   for r = 1, comm.size do
      counts[r] = 0
      for i = bounds[r] + 1, bounds[r + 1] do counts[r] = counts[r] + costs[i] end
   end
   local mine, problem = decoded(o, bounds[comm.rank + 1] + 1, bounds[comm.rank + 2])
   raise_any(op, comm, problem)
   local all = private.replace(mine, comm:all_gather_v(mine, counts))
   for i, n in ipairs(costs) do
      list[i], at = all:narrow(1, at, n):reshape(unpack(o.sizes[i])), at + n
   end
   return list
end
