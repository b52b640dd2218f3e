-- Reads parameters from published tensors that hold them transposed, several in one, or a slice of
-- one each: the lists of model:stored() (see model/gpt2.lua) as boxes and as whole tensors.
-- An entry's `along` is the dim of the parameters along which its parts lie side by side (1).

local tide = require 'tide'
local copy = require 'tide.util.copy'

local stored = {}

-- Returns the box of a stored tensor that a box of one of its parts is: offset and size.
function stored.box(entry, part, offset, size)
   if entry.transposed then return { offset[2], part.first + offset[1] }, { size[2], size[1] } end
   local at = copy(offset)
   local dim = entry.along or 1
   at[dim] = at[dim] + part.first
   return at, copy(size)
end

-- Returns a box of a part from that of the stored tensor.
function stored.part(entry, t) return entry.transposed and t:transpose(1, 2):contiguous() or t end

-- Returns the stored tensor of its parts. get(name, slice): the parameter, or a tensor like it;
-- with a slice (from 0) that one along dim 1.
function stored.whole(entry, get)
   local first = entry.parts[1]
   if first.slice then return get(first.name, first.slice):contiguous() end
   local list = {}
   for i, part in ipairs(entry.parts) do
      local t = get(part.name)
      list[i] = entry.transposed and t:transpose(1, 2) or t
   end
   if #list == 1 then return list[1]:contiguous() end
   return tide.cat(list, entry.transposed and 2 or entry.along or 1)
end

-- Returns the list of model:stored() of a configuration of a family; nil where published files have
-- the parameters themselves. plain: config and family.
function stored.entries(op, plain)
   local made = plain.family and tide.model[plain.family]
   if not made or not made.stored then return nil end
   return require('tide.model.family').build(op, { config = plain.config, family = plain.family },
      { device = 'null' }):stored()
end

-- Returns the tensors by the names of published files, of tensors by the names of parameters.
-- Tensors that no entry has stay. entries: of stored.entries.
function stored.published(entries, tensors)
   local out = copy(tensors)
   for _, entry in ipairs(entries or {}) do
      for _, part in ipairs(entry.parts) do out[part.name] = nil end
   end
   for _, entry in ipairs(entries or {}) do
      out[entry.name] = stored.whole(entry, function(name, slice)
         return slice and tensors[name]:select(1, slice + 1) or tensors[name]
      end)
   end
   return out
end

return stored
