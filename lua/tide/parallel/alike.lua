-- Whether ranks have in common what they must (layer 8).
--
-- The one idea: what ranks must share is text, and hashes of it are gathered once, before anything
-- changes. Two models may have parameters of equal shapes and compute different things (other
-- heads, another rotary base), so the text of a model is what its modules hold besides tensors.

local tide = require 'tide'
local each = require 'tide.util.each'
local err = require 'tide.util.err'

local alike = {}

local function digest(text) return require('tide.ffi.io').xxh64(text) end

-- Raises on every rank of comm if one has other items than the first; items: a list of { what (a
-- plural), text, shown (the text goes into the message) }. Collective; imagined ranks are alike.
function alike.check(comm, op, code, items)
   if comm.size == 1 or comm.transport == 'sim' or not comm.all_gather_object then return end
   local mine = {}
   for i, item in ipairs(items) do mine[i] = item.shown and item.text or digest(item.text) end
   local all = comm:all_gather_object(mine)
   for i, item in ipairs(items) do
      for rank = 2, #all do
         if all[rank][i] ~= all[1][i] then
            err.raise(code, op, 'rank %d has other %s than rank 0: these ranks have different %s; '
               .. 'every rank must give the same%s', rank - 1, item.what, item.what, item.shown
               and (':\n%s\n%s'):format(all[1][i], all[rank][i]) or '')
         end
      end
   end
end

-- ---- what a model computes -------------------------------------------------------------------

local plain = { number = true, string = true, boolean = true }

local function is_public(k) return type(k) ~= 'string' or k:sub(1, 1) ~= '_' and k ~= 'training' end

-- Objects that a plan has put into a module know their rank; others say that they are constant.
local function is_data(v)
   local meta = getmetatable(v)
   return type(v) == 'table' and (meta == nil or type(meta) == 'table' and meta.constant == true)
end

local function add_value(list, v, seen, depth)
   if plain[type(v)] then
      list[#list + 1] = tostring(v)
   elseif is_data(v) and not seen[v] and depth < 4 then
      seen[v] = true
      local keys = {}
      for k in each(v) do
         if is_public(k) and plain[type(k)] then keys[#keys + 1] = k end
      end
      table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
      for _, k in ipairs(keys) do
         list[#list + 1] = tostring(k)
         add_value(list, v[k], seen, depth + 1)
      end
   end
end

-- All that the modules hold as numbers, words and lists of them, but for what begins with '_'.
function alike.structure(model)
   local list, seen = {}, {}
   model:walk(function(m, path)
      local keys = {}
      for k in each(m) do
         if type(k) == 'string' and is_public(k) then keys[#keys + 1] = k end
      end
      table.sort(keys)
      list[#list + 1] = path .. ': ' .. m.class_name
      for _, k in ipairs(keys) do
         list[#list + 1] = k
         add_value(list, m[k], seen, 1)
      end
   end)
   return table.concat(list, ' ')
end

-- The numbers, words and lists of them in a table, as text.
function alike.text(t)
   local list = {}
   add_value(list, t, {}, 1)
   return table.concat(list, ' ')
end

-- The first and last numbers of parameters that have bytes, as text. of: a list of parameters.
function alike.sample(of)
   local list = {}
   for i, p in ipairs(of) do
      local n = p:numel()
      if p.device ~= 'null' and n > 0 then
         local flat, k = p:detach():reshape { n }, math.min(n, 16)
         list[i] = flat:narrow(1, 1, k):to_string_bytes()
            .. flat:narrow(1, n - k + 1, k):to_string_bytes()
      else
         list[i] = ''
      end
   end
   return table.concat(list)
end

-- ---- what a batch is -------------------------------------------------------------------------

-- A text for a list of batches, the same for the same ids and labels.
function alike.batches(list)
   local out = {}
   for _, b in ipairs(list) do
      for _, t in ipairs { b.ids, b.labels } do
         out[#out + 1] = tide.is_tensor(t) and digest(t:to_string_bytes()) or ''
      end
   end
   return table.concat(out)
end

-- This rank's share of a sum over `size` ranks (this one is `rank`) that is 0 exactly if all have
-- the same text, but for one chance in 2^32. Sums of such sums are 0, too.
function alike.share(text, rank, size)
   local n = tonumber(digest(text):sub(1, 8), 16)
   return rank == 0 and (size - 1) * n or -n
end

return alike
