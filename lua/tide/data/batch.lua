-- Windows of a token source as tensors: ids [B, T] and labels [B, T], the tokens one further on.

local tide = require 'tide'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local stamp = require 'tide.util.stamp'
local upload = require 'tide.util.upload'
require 'tide.data.tokens'              -- the kind 'source'

local batch = {}

local function tensor_of(raw, shape, dtype, device)
   return upload(function(here)
      return tide.from_string(raw, shape, { dtype = dtype, device = here })
   end, device)
end

-- Returns an i64 tensor [B, n] of the concatenated bytes of B windows of n tokens.
local function ids_of(raw, B, n, width, device)
   if width == 1 then return tensor_of(raw, { B, n }, 'u8', device):to 'i64' end
   if width == 4 then return tensor_of(raw, { B, n }, 'i32', device):to 'i64' end
   local pairs_BT2 = tensor_of(raw, { B, n, 2 }, 'u8', device):to 'i64'
   return pairs_BT2:select(3, 1) + pairs_BT2:select(3, 2) * 256
end

-- Returns the places (from 0) of the bytes of a text that are not 0.
local function places_of(text)
   local list, at = {}, text:find '[^%z]'
   while at do
      list[#list + 1] = at - 1
      at = text:find('[^%z]', at + 1)
   end
   return list
end

-- Changes a batch: labels are -100 where the mask of a source says that a token does not count. On
-- a GPU it gets their places as data.packed gives them.
local function mask_labels(out, source, starts, seq, device)
   local pieces = {}
   for i, start in ipairs(starts) do pieces[i] = source:mask(start + 1, seq) end
   local text = table.concat(pieces)
   local keep, list = tensor_of(text, { #starts, seq }, 'u8', device):to 'i64', places_of(text)
   out.labels, out.count = out.labels * keep + (keep - 1) * 100, #list
   if out.labels.device == 'cpu' or #list == 0 then return end
   out.counted = upload(function(here)
      return tide.tensor(list, { dtype = 'i64', device = here })
   end, device)
   out.stamp = stamp.of(out, { 'labels', 'counted' })
end

-- Returns the windows of a source that begin at the tokens `starts` as { ids, labels, count },
-- where count is the number of labels that are trained on.
function batch.make(source, starts, seq, device)
   local pieces = {}
   err.raise_if(source.images, 'E_UNSUPPORTED', 'data.batch.make', 'the source has images, which '
      .. 'windows would cut; make rows of whole documents (data.packed, --packed)')
   if #starts == 0 then
      err.arg_text('data.batch.make', 'starts', 'at least one first token of a window', 'none')
   end
   for i, start in ipairs(starts) do pieces[i] = source:raw(start, seq + 1) end
   local all = ids_of(table.concat(pieces), #starts, seq + 1, source.width, device)
   local out = { ids = all:slice(2, 1, seq):contiguous(), count = #starts * seq,
      labels = all:slice(2, 2, seq + 1):contiguous() }
   if source.mask then mask_labels(out, source, starts, seq, device) end
   return out
end

-- Cuts a list of starts into n equal parts, one for each micro-batch.
function batch.split(starts, n)
   err.raise_if(#starts % n ~= 0, 'E_ARG', 'data.batch.split', '%d windows cannot be split into %d '
      .. 'micro-batches', #starts, n)
   local each, parts = #starts / n, {}
   for i = 1, n do
      parts[i] = { unpack(starts, (i - 1) * each + 1, i * each) }
   end
   return parts
end

-- Returns the windows of a validation source, evenly spaced, at most `limit`.
function batch.windows(source, seq, limit)
   local n = math.floor((err.integer('data.batch.windows', 'source.count', source.count, 0) - 1)
      / seq)
   local take = math.min(n, limit)
   local list = {}
   for i = 1, take do list[i] = math.floor((i - 1) * n / take) * seq end
   return list
end

return signature.doors('data.batch', batch, {
   make = 'source: source; starts: table; seq: integer >= 1',
   split = 'starts: table; n: integer >= 1',
   windows = 'source: table; seq: integer >= 1; limit: integer >= 0',
})
