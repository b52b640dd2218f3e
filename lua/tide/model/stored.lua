-- Tensors of published files that hold parameters under another name, transposed, several in one,
-- or a slice of one each, as boxes and as whole tensors.
--
-- model:stored() returns a list of them: { name, shape, transposed (its last two dims are
-- exchanged), along (the dim of the parameters along which parts lie side by side; 1 if nil),
-- alternate (elements of the parts take turns along it), parts, also (an entry of the same name,
-- for tensors of another shape) }. parts: { name (of the parameter), shape, first (its place along
-- that dim, or in the turn, from 0) }. An entry of one part with `slice` is that slice of the
-- parameter along dim 1, from 0.

local tide = require 'tide'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'

local stored = {}

-- Returns the dim of a parameter along which the parts of an entry lie side by side.
local function along(entry) return entry.along or 1 end

-- Exchanges the last two entries of a list.
local function exchange(list)
   local n = #list
   list[n], list[n - 1] = list[n - 1], list[n]
   return list
end

-- Returns the box of a stored tensor that a box of one of its parts is: offset and size. Of parts
-- that alternate it has the elements of all of them.
function stored.box(entry, part, offset, size)
   local at, n, d = {}, {}, along(entry)
   for k = 1, #size do at[k], n[k] = offset[k], size[k] end
   if entry.alternate then
      at[d], n[d] = at[d] * #entry.parts, n[d] * #entry.parts
   else
      at[d] = at[d] + part.first
   end
   if entry.transposed then return exchange(at), exchange(n) end
   return at, n
end

-- Returns a box of a part from that of the stored tensor.
function stored.part(entry, part, t)
   if entry.transposed then t = t:transpose(-2, -1) end
   if entry.alternate and t:numel() > 0 then
      local d = along(entry)
      t = t:slice(d, part.first + 1, t:size(d), #entry.parts)
   end
   return t:contiguous()
end

-- Returns the parts of an entry as one tensor, in the order of the parameters' dims.
local function joined(entry, list)
   if #list == 1 then return list[1] end
   if not entry.alternate then return tide.cat(list, along(entry)) end
   local d, shape = along(entry), list[1].shape
   shape[d] = shape[d] * #list
   return tide.stack(list, d + 1):reshape(shape)
end

-- Returns the stored tensor of its parts. get(name, slice): the parameter, or a tensor like it;
-- with a slice (from 0) that one along dim 1.
function stored.whole(entry, get)
   local first = entry.parts[1]
   if first.slice then return get(first.name, first.slice):contiguous() end
   local list = {}
   for i, part in ipairs(entry.parts) do list[i] = get(part.name) end
   local t = joined(entry, list)
   return (entry.transposed and t:transpose(-2, -1) or t):contiguous()
end

-- Returns the entry of model:stored() for a tensor that a file holds under another name.
function stored.renamed(name, own, shape)
   return { name = name, shape = shape, parts = { { name = own, shape = shape, first = 0 } } }
end

-- Returns the entries of all parameters of a model that files hold under other names. name_of: from
-- the name of a parameter to that in files.
function stored.all_renamed(model, name_of)
   local list = {}
   for _, e in ipairs(model:named_parameters()) do
      local name = name_of(e.name)
      if name ~= e.name then list[#list + 1] = stored.renamed(name, e.name, e.param.shape) end
   end
   return list
end

-- Returns the list of model:stored() of a configuration of a family; nil where published files have
-- the parameters themselves. plain: config and family.
function stored.entries(op, plain)
   local made = plain.family and tide.model[plain.family]
   if not made or not made.stored then return nil end
   return require('tide.model.family').build(op, { config = plain.config, family = plain.family },
      { device = 'null' }):stored()
end

-- Returns rows (name -> { shape, dtype }) and their reading by the names of published files, of
-- those by the names of parameters. Tensors that no entry has stay. entries: of stored.entries;
-- read(name, slice): a tensor, or with a slice (from 0) that one along dim 1.
function stored.view(entries, rows, read)
   local list, of = copy(rows), {}
   for _, entry in ipairs(entries or {}) do
      for _, part in ipairs(entry.parts) do list[part.name] = nil end
   end
   for _, entry in ipairs(entries or {}) do
      list[entry.name] = { shape = entry.shape, dtype = rows[entry.parts[1].name].dtype }
      of[entry.name] = entry
   end
   return list, function(name)
      return of[name] and stored.whole(of[name], read) or read(name)
   end
end

-- Returns the tensors by the names of published files, of tensors by the names of parameters.
-- entries: as of stored.view.
function stored.published(entries, tensors)
   local rows, read = stored.view(entries, tensors, function(name, slice)
      return slice and tensors[name]:select(1, slice + 1) or tensors[name]
   end)
   local out = {}
   for name in each(rows) do out[name] = read(name) end
   return out
end

return stored
