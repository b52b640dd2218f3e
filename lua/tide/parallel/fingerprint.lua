-- What ranks must have in common, as text: models, values, batches, contexts.
--
-- What means the same has the same text on every rank; comm.agree compares the
-- texts. Two models may have parameters of equal shapes and compute different things (other heads,
-- another rotary base), so the text of a model is what its modules hold besides tensors.

local tide = require 'tide'
local canonical = require 'tide.util.canonical'
local each = require 'tide.util.each'
local image_fields = require 'tide.nn.image_fields'
local layout = require 'tide.parallel.layout'
local sorted_keys = require('tide.util.pretty').sorted_keys

local fingerprint = {}

local function digest(text) return require('tide.ffi.io').xxh64(text) end

-- ---- models ----------------------------------------------------------------------------------

local function names_of(t)
   local list = {}
   for _, k in ipairs(sorted_keys(t)) do
      if type(k) == 'string' and k:sub(1, 1) ~= '_' then list[#list + 1] = k end
   end
   return list
end

local deepest = 4      -- tables within tables

-- Adds lines for the value v called `name`: one for each named entry of a table, else one.
local function add_lines(list, name, v, depth)
   local text = canonical(v)
   if text == 'none' then return end
   local names = type(v) == 'table' and depth < deepest and names_of(v) or {}
   if #names == 0 or v[1] ~= nil then
      list[#list + 1] = ('%s = %s'):format(name, text)
      return
   end
   for _, k in ipairs(names) do add_lines(list, name .. '.' .. k, v[k], depth + 1) end
end

-- Returns all that the modules below `model` hold as numbers, words and lists of them, but for
-- what begins with '_': lines 'path.field = value', and 'path = class' of each. What a plan has put
-- into a module knows its rank and is an object, so it is left out. name: the path of the model.
function fingerprint.structure(model, name)
   local list = {}
   model:walk(function(m, path)
      local at = path == '' and (name or '') or (name and name .. '.' or '') .. path
      list[#list + 1] = ('%s = %s'):format(at == '' and 'the model' or at, m.class_name)
      for _, k in ipairs(names_of(m)) do
         if k ~= 'training' then add_lines(list, (at == '' and '' or at .. '.') .. k, m[k], 1) end
      end
   end)
   return table.concat(list, '\n')
end

-- Returns names, shapes and dtypes of the parameters, which of them are trained, and what part of
-- them a tensor-parallel layer holds: lines 'name = text'.
function fingerprint.parameters(model)
   local list = {}
   for i, p in ipairs(model:named_parameters()) do
      local cut = layout.get(p.owner, p.field)
      local text = ('%s = [%s] %s %s'):format(p.name, table.concat(p.param.shape, ', '),
         p.param.dtype, p.param.requires_grad and 'trained' or 'frozen')
      for _, box in ipairs(cut and cut:boxes() or {}) do
         text = text .. ' at ' .. table.concat(box.offset, ',')
      end
      list[i] = text
   end
   return table.concat(list, '\n')
end

-- Returns checksums of tensors that have bytes; it reads all of them. of: a list of tensors.
function fingerprint.values(of)
   local list = {}
   for i, p in ipairs(of) do
      list[i] = p.device ~= 'null' and require('tide.ffi.io').checksum(p) or ''
   end
   return table.concat(list, ' ')
end

-- Returns what a checkpoint of a model holds, as a list: parameters and persistent buffers.
local function kept(model)
   local list = model:parameters()
   for _, b in ipairs(model:named_buffers()) do
      if b.persistent then list[#list + 1] = b.buffer end
   end
   return list
end

-- Returns what ranks with the same model have in common: items of comm.agree. among: which ranks
-- those are (default: all that compare).
function fingerprint.model(model, among)
   return {
      { 'parameters', fingerprint.parameters(model), 'lines', among = among },
      { 'modules', fingerprint.structure(model), 'lines', among = among },
      { 'values', function() return fingerprint.values(kept(model)) end, among = among },
   }
end

-- ---- batches ---------------------------------------------------------------------------------

-- Returns the shape and contents of a tensor.
local function contents(t)
   return ('%s %s'):format(table.concat(t.shape, 'x'), require('tide.ffi.io').checksum(t))
end

-- Returns the shape and contents of a tensor of whole numbers, of any integer dtype.
local function integers(t) return contents(t:to 'i64') end

-- Returns a field of a batch as text; nil of one that is not compared.
local function field(name, v)
   if name == 'counted' then return nil end                -- follows from the labels
   if not tide.is_tensor(v) then
      local is_list = type(v) == 'table' and (tostring(name):find '^cu_' or image_fields.is[name])
      return is_list and canonical(v) or nil
   end
   if not v.dtype:find 'f' then return integers(v) end
   -- on the host alone: ranks may read or augment images by themselves
   if image_fields.is[name] and v.device == 'cpu' then return contents(v) end
   return table.concat(v.shape, 'x') .. ' ' .. v.dtype
end

-- Returns the tensors of a batch, by name: contents of whole numbers, masks and images, shapes of
-- the others; and its lists of cumulative lengths and of images.
function fingerprint.batch(batch)
   local list = {}
   for name, v in each(batch) do
      local text = field(name, v)
      if text then list[#list + 1] = ('%s %s'):format(name, text) end
   end
   table.sort(list)
   return table.concat(list, ', ')
end

-- Returns a list of batches: those fields, and how many labels are said to count.
function fingerprint.batches(batches)
   local list = {}
   for i, batch in ipairs(batches) do
      list[i] = ('%s, count %s'):format(fingerprint.batch(batch), tostring(batch.count))
   end
   return table.concat(list, '\n')
end

-- Returns this rank's share of a sum over `size` ranks (this one is `rank`) that is 0 exactly if
-- all have the same text, but for one chance in 2^32: a comparison in a sum that is made anyway.
-- Sums of such sums are 0, too.
function fingerprint.share(text, rank, size)
   local n = tonumber(digest(text):sub(1, 8), 16)
   return rank == 0 and (size - 1) * n or -n
end

-- ---- contexts --------------------------------------------------------------------------------

-- Returns a short text for lists of whole numbers.
local function mark(...)
   local list = { ... }
   for i, numbers in ipairs(list) do list[i] = table.concat(numbers, ' ') end
   return digest(table.concat(list, '\n')):sub(1, 8)
end

-- Returns cumulative lengths of documents as one line.
function fingerprint.documents(cu)
   if #cu <= 8 then return 'documents at ' .. table.concat(cu, ' ') end
   return ('%d documents (%s)'):format(#cu - 1, mark(cu))
end

-- Returns a plan (parallel.cp_map) in a line, the same on all its ranks.
function fingerprint.plan(map)
   local text = ('%s, %d tokens padded to %d, %d documents (%s)'):format(map.kind, map.length,
      map.padded, #map.cu_real - 1, mark(map.cu_real, map.cu_slot))
   if map.from then text = ('%s from %s'):format(text, mark(map.from)) end
   if map.kind == 'custom' or map.kind == 'balanced' then
      text = ('%s, order %s'):format(text, mark(unpack(map.all_runs)))
   end
   return text
end

-- Returns a context (parallel.cp.context) in a line: plan, or pairs as given, and index.
function fingerprint.context(context)
   local text
   if context.given then
      local list = {}
      for r, t in ipairs(context.given) do list[r] = integers(t) end
      text = ('pairs %s'):format(mark(list))
   else
      text = fingerprint.plan(context.map)
   end
   if not context.index then return text end
   return ('%s, index %s'):format(text, integers(context.index))
end

return fingerprint
