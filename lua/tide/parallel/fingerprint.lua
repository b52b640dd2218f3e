-- What ranks must have in common, as text: models, values, batches, contexts.
--
-- What means the same has the same text on every rank; dist.agree compares the
-- texts. Two models may have parameters of equal shapes and compute different things (other heads,
-- another rotary base), so the text of a model is what its modules hold besides tensors.

local tide = require 'tide'
local canonical = require 'tide.util.canonical'
local each = require 'tide.util.each'
local layout = require 'tide.parallel.layout'

local fingerprint = {}

local function digest(text) return require('tide.ffi.io').xxh64(text) end

-- ---- models ----------------------------------------------------------------------------------

-- All that the modules hold as numbers, words and lists of them, but for what begins with '_'.
-- What a plan has put into a module knows its rank and is an object, so it is left out.
function fingerprint.structure(model)
   local list = {}
   model:walk(function(m, path)
      local held = {}
      for k, v in each(m) do
         if k ~= 'training' then held[k] = v end
      end
      list[#list + 1] = ('%s: %s %s'):format(path, m.class_name, canonical(held))
   end)
   return table.concat(list, '\n')
end

-- Names, shapes and dtypes of the parameters, which of them are trained, and what part of them a
-- tensor-parallel layer holds.
function fingerprint.parameters(model)
   local list = {}
   for i, p in ipairs(model:named_parameters()) do
      local cut = layout.get(p.owner, p.field)
      local text = ('%s %s %s %s'):format(p.name, table.concat(p.param.shape, 'x'), p.param.dtype,
         tostring(p.param.requires_grad))
      for _, box in ipairs(cut and cut:boxes() or {}) do
         text = text .. ' at ' .. table.concat(box.offset, ',')
      end
      list[i] = text
   end
   return table.concat(list, '\n')
end

-- Checksums of parameters that have bytes: reads all of them. of: a list of parameters.
function fingerprint.values(of)
   local list = {}
   for i, p in ipairs(of) do
      list[i] = p.device ~= 'null' and require('tide.ffi.io').checksum(p) or ''
   end
   return table.concat(list, ' ')
end

-- ---- batches ---------------------------------------------------------------------------------

-- Shape and contents of a tensor of whole numbers, of any integer dtype.
local function integers(t)
   return ('%s %s'):format(table.concat(t.shape, 'x'), require('tide.ffi.io').checksum(t:to 'i64'))
end

-- The tensors of a batch, by name: contents of whole numbers and masks, shapes of the others; and
-- its lists of cumulative lengths.
function fingerprint.batch(batch)
   local list = {}
   for name, v in each(batch) do
      if tide.is_tensor(v) then
         local whole = not v.dtype:find 'f'
         list[#list + 1] = ('%s %s'):format(name, whole and integers(v)
            or table.concat(v.shape, 'x') .. ' ' .. v.dtype)
      elseif type(v) == 'table' and type(name) == 'string' and name:find '^cu_' then
         list[#list + 1] = ('%s %s'):format(name, canonical(v))
      end
   end
   table.sort(list)
   return table.concat(list, ', ')
end

-- A list of batches: those fields, and how many labels are said to count.
function fingerprint.batches(batches)
   local list = {}
   for i, batch in ipairs(batches) do
      list[i] = ('%s, count %s'):format(fingerprint.batch(batch), tostring(batch.count))
   end
   return table.concat(list, '\n')
end

-- This rank's share of a sum over `size` ranks (this one is `rank`) that is 0 exactly if all have
-- the same text, but for one chance in 2^32: a comparison in a sum that is made anyway. Sums of
-- such sums are 0, too.
function fingerprint.share(text, rank, size)
   local n = tonumber(digest(text):sub(1, 8), 16)
   return rank == 0 and (size - 1) * n or -n
end

-- ---- contexts --------------------------------------------------------------------------------

-- A short text for lists of whole numbers.
local function mark(...)
   local list = { ... }
   for i, numbers in ipairs(list) do list[i] = table.concat(numbers, ' ') end
   return digest(table.concat(list, '\n')):sub(1, 8)
end

-- A plan (parallel.cp_map) in a line, the same on all its ranks.
function fingerprint.plan(map)
   local text = ('%s, %d tokens padded to %d, %d documents (%s)'):format(map.kind, map.length,
      map.padded, #map.cu_real - 1, mark(map.cu_real, map.cu_slot))
   if map.from then text = ('%s from %s'):format(text, mark(map.from)) end
   if map.kind == 'custom' or map.kind == 'balanced' then
      text = ('%s, order %s'):format(text, mark(unpack(map.all_runs)))
   end
   return text
end

-- A context (parallel.cp.context) in a line: plan, or pairs as given, and index.
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
