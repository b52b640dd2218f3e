-- Attention masks [B, T] that number documents: the index that they give, and whether they agree
-- with a given index.
--
-- An index says which keys a query sees: i32 [B or 1, T, 2] of (document, position), or [.., 3] of
-- (document, position, until). A query sees its document alone. A causal query sees keys up to its
-- position, or up to `until`, so that tokens of an image see each other. Document -1 is padding.
-- A mask has 0 (or false) at padding and numbers documents from 1; a mask of 1 and 0 has one
-- document a row.
--
-- A new kind of mask changes
--    tide.ffi.attention and the kernels   the options of the op, and what they mean
--    nn.attend, nn.attention              the same with dropout, and the options of a layer
--    parallel.cp: attention, ring         options that each part of the keys gets
--    parallel.cp: blocks, documents       which rows a rank needs, and what a batch says of them
--    parallel.cp.oracle                   the definition, for cp.self_check

local tide = require 'tide'
local err = require 'tide.util.err'

local mask_ = {}

-- Returns the names of the options of an attention call (see tide.attention and nn.attend), and
-- those given.
function mask_._options(...)
   return { 'causal', 'window', 'softcap', 'scale', 'q_start', 'q_index', 'k_index', 'q_tiles',
      'k_tiles', 'bias', 'sinks', 'dropout', 'context', ... }
end

-- Returns a mask in i32. Raises E_ARG if one on the host has a number that i32 does not hold: the
-- cast would make it another document. A mask on a device is not read.
local function numbers(op, name, mask)
   if mask.dtype ~= 'i64' then return mask:to 'i32' end
   if mask.device == 'cpu' and mask:numel() > 0 then
      local most = mask:amax():item()
      if most >= 2^31 then err.arg(op, name, 'document numbers below 2^31', most) end
   end
   return mask:clamp(0, nil):to 'i32'
end

-- Returns (document, position) pairs i32 [B, T, 2] of a mask [B, T]. Positions are those in the
-- row. Masks of another kind raise E_UNSUPPORTED.
function mask_.index(op, name, mask)
   err.raise_if(not tide.is_tensor(mask) or mask.ndim ~= 2 or mask.dtype:find 'f', 'E_UNSUPPORTED',
      op, "argument '%s': expected an integer or bool tensor [B, T] of document numbers (1 and 0: "
      .. 'one document with padding), got %s; other masks are given as documents, window and '
      .. 'causal', name, err.show(mask))
   local B, T = mask:size(1), mask:size(2)
   local doc = numbers(op, name, mask) - 1
   local pos = tide.arange(T, { dtype = 'i32', device = mask.device }):reshape { 1, T }
      :expand(B, T)
   return tide.stack({ doc:masked_fill(doc:lt(0), -1), pos:contiguous() }, 3)
end

-- Returns whether a mask marks padding only: it numbers one document.
function mask_.is_plain(mask)
   return mask.dtype == 'bool' or mask:numel() == 0 or mask:amax():item() <= 1
end

-- Returns the first place where two lists of document numbers separate the tokens differently, or
-- nil. Tokens of document -1 in either are passed over.
function mask_.parted(a, b)
   local there, back = {}, {}
   for i = 1, #a do
      local x, y = a[i], b[i]
      if x >= 0 and y >= 0 then
         if there[x] == nil and back[y] == nil then
            there[x], back[y] = y, x
         elseif there[x] ~= y or back[y] ~= x then
            return i
         end
      end
   end
end

-- Raises E_ARG unless a mask agrees with the pairs of the same tokens: it marks none of their
-- tokens as padding, and a mask that numbers documents separates them alike.
function mask_.check(op, mask, index)
   local theirs = mask_.index(op, 'attention_mask', mask)
   local docs, own = theirs:select(3, 1), index:select(3, 1)
   local fits = docs:size(2) == own:size(2) and (docs:size(1) == own:size(1) or own:size(1) == 1)
   if fits and docs:size(1) == own:size(1) and docs:equal(own) then return end
   local rows, others = docs:tolist(), own:tolist()
   local plain = fits and mask_.is_plain(mask)
   for b, row in ipairs(fits and rows or {}) do
      local there = others[b] or others[1]
      for t, doc in ipairs(row) do fits = fits and (doc >= 0 or there[t] < 0) end
      fits = fits and (plain or not mask_.parted(row, there))
   end
   err.raise_if(not fits, 'E_ARG', op, 'the mask has other documents than the context of this '
      .. 'batch; pass the mask to make_cp_batch_and_ctx')
end

-- Returns the pairs i32 [B, T, 2] that attention_mask [B, T] among the options of a model's call
-- with ids [B, T] gives; nil without one. c: the context of the call, which the mask must agree
-- with.
function mask_.of_call(op, opts, ids, c)
   local mask = opts.attention_mask
   if mask == nil then return nil end
   for _, name in ipairs { 'index', 'q_index', 'k_index', 'sequence', 'caches' } do
      if opts[name] ~= nil then
         err.arg(op, 'attention_mask', ('nil beside %s'):format(name), mask)
      end
   end
   local index = mask_.index(op, 'attention_mask', mask)
   if index:size(1) ~= ids:size(1) or index:size(2) ~= ids:size(2) then
      err.arg(op, 'attention_mask', ('a tensor [%d, %d], as ids'):format(ids:size(1), ids:size(2)),
         mask)
   end
   if not c then return index end
   mask_.check(op, mask, c:q_index(mask.device))
   return nil
end

-- Returns the index of a mask in the call of a layer: that which the model made (at.mask_index).
-- Without a model it makes one, or checks the mask against the context.
function mask_.of_layer(op, at, c)
   local mask = at.attention_mask
   if mask == nil or at.mask_checked then return at.mask_index end
   err.arg_if(at.q_index ~= nil or at.k_index ~= nil, op, 'attention_mask',
      'nil with q_index and k_index', mask)
   if not c or c.null then return mask_.index(op, 'attention_mask', mask) end
   mask_.check(op, mask, c:q_index(mask.device))
   return nil
end

return mask_
