-- The tokens of a loss that count, and their rows of hidden states.
--
-- What lies after the last attention of a model works on each token by itself. A loss needs it for
-- the tokens with a label that counts; of packed chats these are often less than half.

local tide = require 'tide'
local err = require 'tide.util.err'
local private = require 'tide.util.private'

local rows_ = {}

-- Rows are picked where at most this share of the labels counts: a copy of the rows is cheap beside
-- an MLP or a head, but not free.
local most = 15 / 16

-- Returns whether it is worth to pick the rows of k of n labels.
local function is_worth(k, n) return k > 0 and k <= most * n end

-- Returns the places of the labels that are not `ignore` as an index [K] i64 into the flattened
-- labels, ascending. known: these places, from where the batch was made, or nil. Returns nil where
-- rows should not be picked: nearly all labels count or none do, or the places are not known and
-- the labels do not lie in host memory, so that counting them would wait for the device.
function rows_.counted(labels, ignore, known)
   if known ~= nil then return is_worth(known:numel(), labels:numel()) and known or nil end
   if labels.device ~= 'cpu' then return nil end
   local list, k = {}, 0
   for i, label in ipairs(labels:reshape(-1):tolist()) do
      if label ~= ignore then
         k = k + 1
         list[k] = i - 1
      end
   end
   if not is_worth(k, labels:numel()) then return nil end
   return tide.tensor(list, { dtype = 'i64' })
end

-- Returns the rows of x [N, C] whose labels [N] count, these labels, and the index that counted
-- gives; or x, labels and nil where rows should not be picked. known: as of counted.
function rows_.only(x_NC, labels_N, ignore, known)
   local rows = rows_.counted(labels_N, ignore, known)
   if not rows then return x_NC, labels_N, nil end
   return x_NC:index_select(1, rows), labels_N:index_select(1, rows), rows
end

-- Returns the rows of x [B, T, C] that an index [K] names, [1, K, C]; x itself where a part of the
-- model has picked them already: K is less than B T.
function rows_.pick(x, rows)
   err.arg_if(not tide.is_tensor(rows), 'nn.rows', 'at.rows', 'an index tensor [K]', rows)
   local n, K, C = x:size(1) * x:size(2), rows:size(1), x:size(3)
   if n == K then return x end
   local y = x:reshape(n, C):index_select(1, rows)
   return private.replace(y, y:reshape(1, K, C))
end

-- Returns the labels that an index [K] names, [1, K].
function rows_.pick_labels(labels, rows)
   return labels:reshape(-1):index_select(1, rows):reshape(1, rows:size(1))
end

-- Returns values [1, K] of the rows of an index [K] in `shape`, 0 everywhere else.
function rows_.spread(values, rows, shape)
   local flat = values:reshape(rows:size(1))
   local zeros = tide.zeros(shape, { dtype = values.dtype, device = values.device }):reshape(-1)
   return zeros:scatter_add(1, rows, flat):reshape(shape)
end

return rows_
