-- Which tokens of a batch see each other: the one rule for all fields that say so.
--
--    index             i32 [B or 1, S, 2 or 3] (see nn.mask)
--    packed_seq_ids    [B, S]: documents numbered from 1; 0 is padding
--    attention_mask    [B, S]: the same. Beside other fields a mask of 1 and 0 marks padding only
--    cu_real, cu_slot  cumulative lengths of the documents of one row, and of the slots they lie in
--    padding_mask      [B, S]: true is padding
--
-- The rule: a token is padding if any field says so; fields that number documents must agree on
-- which of the other tokens share a document, else E_ARG. The first field of the list above gives
-- the positions. Padding sees nothing, is seen by nothing, and its label does not train.
--
-- Legend: B rows of S tokens.

local tide = require 'tide'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local stamp = require 'tide.util.stamp'
local mask_ = require 'tide.nn.mask'
local cp_map = require 'tide.parallel.cp.map'

local documents = {}

-- Fields that say which tokens see each other.
documents.fields = { 'index', 'packed_seq_ids', 'attention_mask', 'cu_real', 'cu_slot',
   'padding_mask' }

-- ---- single fields ---------------------------------------------------------------------------

-- Returns the pairs of a mask of document numbers [B, S].
local function of_mask(op, name, mask, B, S, device)
   local index = mask_.index(op, name, mask)
   signature.check(op, name, mask, 'tensor [B, S]', { B = B, S = S })
   return index:to(device)
end

-- Returns the pairs given. Raises E_ARG where pairs on the host have a token at a position below 0,
-- which rotary angles do not take. Pairs on a device are not read.
local function of_index(op, name, index, B, S, device)
   signature.check(op, name, index, 'tensor [B or 1, S, 2 or 3] of i32', { B = B, S = S })
   if index.device == 'cpu' and index:numel() > 0 then
      local least = index:select(3, 2):masked_fill(index:select(3, 1):lt(0), 0):amin():item()
      err.arg_if(least < 0, op, name, 'positions >= 0', least)
   end
   return index:to(device)
end

local function of_padding(op, mask, B, S, device)
   signature.check(op, 'padding_mask', mask, 'tensor [B, S]', { B = B, S = S })
   return mask:to(device):to 'bool'
end

-- Returns cu_real and cu_slot as lists, nil if the batch has none.
local function of_cu(op, batch, B, S)
   if batch.cu_real == nil and batch.cu_slot == nil then return nil end
   err.raise_if(B ~= 1, 'E_ARG', op, 'cu_real and cu_slot describe one row, but the batch has %d; '
      .. 'give index or packed_seq_ids', B)
   local real = cp_map.cu(op, 'cu_real', batch.cu_real)
   local slot = batch.cu_slot == nil and real or cp_map.cu(op, 'cu_slot', batch.cu_slot)
   cp_map.check_slots(op, real, slot)
   err.raise_if(slot[#slot] > S, 'E_ARG', op, 'the documents end at %d, there are %d tokens',
      slot[#slot], S)
   return real, slot
end

-- Returns the pairs i32 [1, S, 2] of cumulative lengths (lists), on a device.
function documents.cu_index(real, slot, S, device)
   local host = { dtype = 'i64', device = 'cpu' }
   return tide.slot_index(tide.tensor(slot, host), tide.tensor(real, host), S):to(device)
end

-- ---- several fields --------------------------------------------------------------------------

local function doc_of(index) return index:select(3, 1) end

-- Raises unless two fields ({ name, index }) divide the tokens outside padding in the same way.
local function check_alike(op, one, two, pad)
   local a, b = doc_of(one.index), doc_of(two.index)
   if a:size(1) == b:size(1) and a:equal(b) then return end
   if pad then a = a:masked_fill(pad, -1) end
   local rows, others = a:tolist(), b:tolist()
   for r = 1, math.max(#rows, #others) do
      local at = mask_.parted(rows[r] or rows[1], others[r] or others[1])
      err.raise_if(at, 'E_ARG', op, "'%s' and '%s' describe different documents: row %d, token %d; "
         .. 'a batch may have both where they agree', one.name, two.name, r, at)
   end
end

-- Returns an index whose tokens in pad [B or 1, S] are padding; positions stay.
local function with_padding(index, pad)
   local doc, n = doc_of(index):masked_fill(pad, -1), index:size(3) - 1
   local rest = index:narrow(3, 2, n):expand(doc:size(1), doc:size(2), n)
   return tide.cat({ doc:unsqueeze(3), rest }, 3)
end

local function joined(pad, more) return pad and pad:logical_or(more) or more end

-- Returns the tensors of a batch that number documents, in the order of the rule: { name, index }.
local function numberings(op, batch, B, S, device)
   local list = {}
   for _, name in ipairs { 'index', 'packed_seq_ids', 'attention_mask' } do
      local index_of = name == 'index' and of_index or of_mask
      if batch[name] ~= nil then
         list[#list + 1] = { name = name, index = index_of(op, name, batch[name], B, S, device) }
      end
   end
   return list
end

-- Removes a mask that marks padding only from a list of several; returns that padding.
local function without_plain_mask(list, batch)
   for i, e in ipairs(list) do
      if #list > 1 and e.name == 'attention_mask' and mask_.is_plain(batch.attention_mask) then
         table.remove(list, i)
         return doc_of(e.index):lt(0)
      end
   end
end

-- Returns whether index and lengths of a batch were made together, so the index says all.
local function is_stamped(batch)
   return batch.index ~= nil
      and stamp.holds(batch.stamp, batch, { 'index', 'cu_real', 'cu_slot' })
end

-- Returns what the fields of a batch of B rows of S tokens say together: { index = i32 [B or 1, S,
-- 2], or nil where cu_real and cu_slot say all or each row is one document; cu_real, cu_slot =
-- lists or nil; pad = bool [B or 1, S], nil: no token is padding }.
function documents.of(op, batch, B, S, device)
   local list = numberings(op, batch, B, S, device)
   local real, slot = of_cu(op, batch, B, S)
   if real and (#list > 0 or batch.padding_mask ~= nil) and not is_stamped(batch) then
      list[#list + 1] = { name = 'cu_real', index = documents.cu_index(real, slot, S, device) }
   end
   local pad = batch.padding_mask ~= nil and of_padding(op, batch.padding_mask, B, S, device) or nil
   local plain = without_plain_mask(list, batch)
   if plain then pad = joined(pad, plain) end
   for i = 2, #list do pad = joined(pad, doc_of(list[i].index):lt(0)) end
   for i = 2, #list do check_alike(op, list[1], list[i], pad) end
   local index = list[1] and list[1].index
   if pad and not index then
      index = mask_.index(op, 'padding_mask',
         tide.ones({ B, S }, { dtype = 'i32', device = device }))
   end
   if pad then index = with_padding(index, pad) end
   local out = { index = index, cu_real = real, cu_slot = slot }
   if index then
      out.pad = doc_of(index):lt(0)
   elseif real and real[#real] < S then                     -- places without a token
      out.pad = doc_of(documents.cu_index(real, slot, S, device)):lt(0)
   end
   return out
end

-- ---- rows with lengths -----------------------------------------------------------------------

-- Returns the index of rows of lengths (lists) in slots: i32 [B, S, 2], on the host.
local function of_lengths(lens, slots, B, S)
   local rows = {}
   for b = 1, B do
      local real, slot = { 0 }, { 0 }
      for i, n in ipairs(slots[b]) do
         real[i + 1], slot[i + 1] = real[i] + lens[b][i], slot[i] + n
      end
      rows[b] = documents.cu_index(real, slot, S, 'cpu')
   end
   return tide.cat(rows, 1)
end

-- Raises where a field calls a token padding that lies in a document of the lengths.
local function check_tokens(op, name, index, layout)
   local lost = doc_of(index):lt(0):logical_and(doc_of(layout):ge(0))
   if not lost:any():item() then return end
   for b, row in ipairs(lost:tolist()) do
      for t, is_lost in ipairs(row) do
         err.raise_if(is_lost, 'E_ARG', op, "'%s' calls token %d of row %d padding, which seq_lens "
            .. 'counts; both must say the same', name, t, b)
      end
   end
end

-- Raises unless the masks and the index of a batch of packed rows say what its lengths (a list for
-- each row) say: a stream has no other place for them.
function documents.check_lengths(op, batch, B, S, lens, slots)
   local list = numberings(op, batch, B, S, 'cpu')
   local pad = batch.padding_mask ~= nil and of_padding(op, batch.padding_mask, B, S, 'cpu')
   if #list == 0 and not pad then return end
   local layout = of_lengths(lens, slots, B, S)
   if pad then
      check_tokens(op, 'padding_mask', layout:masked_fill(pad:unsqueeze(3), -1), layout)
   end
   for _, e in ipairs(list) do
      check_tokens(op, e.name, e.index, layout)
      if e.name ~= 'attention_mask' or not mask_.is_plain(batch.attention_mask) then
         check_alike(op, { name = 'seq_lens', index = layout }, e)
      end
   end
end

-- Returns the padding of rows whose documents are unknown, bool [B, S], nil if no field says it.
-- Raises for fields that number documents.
function documents.padding(op, batch, B, S, device)
   local list, pad = numberings(op, batch, B, S, device), nil
   for _, e in ipairs(list) do
      err.raise_if(e.name ~= 'attention_mask' or not mask_.is_plain(batch.attention_mask), 'E_ARG',
         op, "'%s' numbers documents; give their lengths too (seq_lens)", e.name)
      pad = doc_of(e.index):lt(0)
   end
   if batch.padding_mask ~= nil then
      pad = joined(pad, of_padding(op, batch.padding_mask, B, S, device))
   end
   return pad
end

-- ---- what follows for a batch ----------------------------------------------------------------

-- Value of padding of the fields that must know of it.
local fills = { labels = -100, loss_mask = 0, packed_seq_ids = 0 }

-- Gives those fields of a batch their value at padding: its labels do not train. pad: bool, of the
-- fields' dims. Changes the table, not its tensors.
function documents.fill(batch, pad)
   for name, fill in each(fills) do
      local v = batch[name]
      if tide.is_tensor(v) and v.ndim == pad.ndim then
         batch[name] = v:masked_fill(pad, v.dtype == 'bool' and false or fill)
      end
   end
end

-- Makes the fields of a batch of rows say what `said` (of documents.of) says. Changes the table.
function documents.settle(said, batch)
   local pad = said.pad
   if not pad then return end
   documents.fill(batch, pad)
   if batch.index ~= nil then batch.index = said.index end
   if batch.padding_mask ~= nil then
      batch.padding_mask = batch.padding_mask:to 'bool':logical_or(pad)
   end
end

-- Refuses the fields of a packed stream: rows would lose their documents.
function documents.check_rows(op, batch)
   for _, name in ipairs { 'cu_seqlens', 'cu_seqlens_padded', 'seq_lens', 'seq_lens_padded' } do
      err.raise_if(batch[name], 'E_ARG', op, "'%s' describes the documents of packed streams; give "
         .. 'use_te = true (make_cp_batch_for_te), or give cu_real and cu_slot, or index', name)
   end
end

-- Returns a batch of rows as one rank takes it: index says all that its fields say, labels of
-- padding do not train; its masks are gone. The batch itself if no field says anything. Its tokens
-- are ids [B, S].
function documents.settled(op, batch)
   local ids, says = batch.ids, false
   if batch.context == nil then documents.check_rows(op, batch) end
   for _, name in ipairs(documents.fields) do says = says or batch[name] ~= nil end
   if not says or not tide.is_tensor(ids) or ids.ndim ~= 2 then return batch end
   local B, S, out = ids:size(1), ids:size(2), copy(batch)
   local said = documents.of(op, out, B, S, ids.device)
   documents.settle(said, out)
   out.packed_seq_ids, out.attention_mask, out.padding_mask = nil, nil, nil
   out.index = said.index or documents.cu_index(said.cu_real, said.cu_slot, S, ids.device)
   return out
end

return documents
