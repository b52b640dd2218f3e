-- Streams of several chunks as one table: their tensors on a new leading dim.
--
-- Tensors are stacked where all chunks have one and all are of one size; lists of cumulative
-- lengths are filled up with a sentinel, so they are always stacked.

local tide = require 'tide'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'

local stack = {}

-- Returns the field `name` of all chunks, `other` in its place where a chunk has none; nil if
-- neither is.
local function column(chunks, name, other)
   local list = {}
   for i, c in ipairs(chunks) do
      list[i] = c[name]
      if list[i] == nil and other then list[i] = c[other] end
      if list[i] == nil then return nil end
   end
   return list
end

local function is_even(list)
   for _, t in ipairs(list) do
      if not dims.equal(t.shape, list[1].shape) then return false end
   end
   return true
end

-- Adds the stacked tensors of these names to out.
function stack.tensors(out, chunks, names)
   for _, name in ipairs(names) do
      local list = column(chunks, name)
      out[name] = list and is_even(list) and tide.stack(list, 1) or nil
   end
end

-- Returns the tensors as rows of one i32 [chunks, longest], filled up with the sentinel.
local function rectangle(tensors, sentinel)
   local lists, most = {}, 0
   for i, t in ipairs(tensors) do
      lists[i] = t:tolist()
      most = math.max(most, #lists[i])
   end
   for _, list in ipairs(lists) do
      for i = #list + 1, most do list[i] = sentinel end
   end
   return tide.tensor(lists, { dtype = 'i32', device = tensors[1].device })
end

-- Returns the entries of a list before its sentinels.
function stack.before(op, name, list, sentinel)
   local out, ended = {}, false
   for i, n in ipairs(err.type(op, name, list, 'table')) do
      if n == sentinel then
         ended = true
      else
         err.raise_if(ended, 'E_ARG', op, "argument '%s': entry %d is %s, after an entry of "
            .. 'padding (%d)', name, i, err.show(n), sentinel)
         out[i] = n
      end
   end
   return out
end

-- Adds the cumulative lengths of all chunks to out, and max_seqlen as a list.
function stack.lengths(out, chunks, sentinel)
   local padded
   for _, c in ipairs(chunks) do padded = padded or c.cu_seqlens_padded end
   local others = { cu_seqlens_padded = padded and 'cu_seqlens' }
   for _, name in ipairs { 'cu_seqlens', 'cu_seqlens_padded', 'cu_real', 'cu_slot', 'cu_local' } do
      local list = (name ~= 'cu_seqlens_padded' or padded) and column(chunks, name, others[name])
      if list then out[name] = rectangle(list, sentinel) end
   end
   out.max_seqlen = column(chunks, 'max_seqlen')
end

-- Adds the order of the streams to out, i64 [chunks, T]; nil if no stream has moved tokens.
function stack.orders(out, chunks)
   local moved
   for _, c in ipairs(chunks) do moved = moved or c.order end
   if not moved then return end
   local list = {}
   for i, c in ipairs(chunks) do
      list[i] = c.order or tide.arange(moved:size(1), { dtype = 'i64', device = moved.device })
   end
   out.order = tide.stack(list, 1)
end

return stack
