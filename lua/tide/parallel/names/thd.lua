-- Packed streams (THD: tokens x heads x head size, no batch dim): rows that hold several documents
-- as one stream of tokens with cumulative lengths.
--
-- Real lengths and slot lengths are both kept, always, so that padding is known from
-- the layout and never guessed from token ids. `cu_real` counts the tokens of the documents,
-- `cu_slot` the places they occupy; `cu_seqlens` and `cu_seqlens_padded` are the forms that
-- attention libraries take, where only padding after the last document belongs to it.
--
-- Legend: B rows of S tokens, T = B * S, P entries for documents in a row, the unused ones filled
-- with the sentinel.

local tide = require 'tide'
local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local cp_map = require 'tide.parallel.cp.map'
local documents = require 'tide.parallel.cp.documents'
local stack = require 'tide.parallel.cp.stack'

local thd = {}

local consumed = {
   attention_mask = true, input_ids = true, labels = true, position_ids = true,
   seq_lens = true, seq_lens_padded = true,
}

-- ---- lengths ---------------------------------------------------------------------------------

-- Returns the lengths of each row without the sentinels, or nil if the batch says false.
local function rows_of(op, batch, name, B, sentinel)
   local v, rows = batch[name], {}
   if not v then return nil end
   if tide.is_tensor(v) then v = v:tolist() end
   for b = 1, B do
      local row = ('%s[%d]'):format(name, b)
      rows[b] = err.integers(op, row, stack.before(op, row, v[b], sentinel), 0)
   end
   return rows
end

local function check_lengths(op, lens, slots, S)
   for b, row in ipairs(slots) do
      err.raise_if(#row ~= #lens[b], 'E_ARG', op, 'row %d: seq_lens has %d documents, '
         .. 'seq_lens_padded %d', b, #lens[b], #row)
      for i, n in ipairs(row) do
         err.raise_if(lens[b][i] > n, 'E_ARG', op, 'row %d: document %d has %d tokens, its slot %d',
            b, i - 1, lens[b][i], n)
      end
      err.raise_if(dims.sum(row) > S, 'E_ARG', op, 'row %d: the documents take %d tokens, the row '
         .. 'has %d', b, dims.sum(row), S)
   end
end

local function cumulate(rows)
   local cu = { 0 }
   for _, row in ipairs(rows) do
      for _, n in ipairs(row) do cu[#cu + 1] = cu[#cu] + n end
   end
   return cu
end

-- Returns the order in which slots follow each other in the stream, or nil if nothing has to move.
-- The unused rest of a row moves to the end of the stream.
local function order_of(slots, S)
   local runs, tail, gap, moves = {}, {}, false, false
   for b, row in ipairs(slots) do
      local used = dims.sum(row)
      if gap and used > 0 then moves = true end
      runs[b] = { (b - 1) * S, used }
      tail[b] = { (b - 1) * S + used, S - used }
      gap = gap or used < S
   end
   if not moves then return nil end
   for _, run in ipairs(tail) do runs[#runs + 1] = run end
   return tide.run_index(tide.tensor(runs, { dtype = 'i64', device = 'cpu' }))
end

-- ---- tensors ---------------------------------------------------------------------------------

-- Returns x [B, S, ...] as [T, ...] in the order of the stream.
local function flat(x, order)
   local y = x:flatten(1, 2)
   return order and y:index_select(1, order:to(x.device)) or y
end

local function flat_positions(p, B, S, order)
   if not p then return nil end
   if p.ndim == 3 then
      local y = p:reshape(p:size(1), 1, B * S)
      return order and y:index_select(3, order:to(p.device)) or y
   end
   return flat(p:size(1) == B and p or p:expand(B, S):contiguous(), order)
end

signature.record('rows_batch', 'a table { input_ids =, labels =, .. }', {
   'input_ids: tensor [B, S] or [B, S, width]', 'labels: tensor [B, S]',
   'position_ids: tensor [B or 1, S] or [n, B, S] | false',
   'seq_lens: tensor [B, documents] | table[] | false',
   'seq_lens_padded: tensor [B, documents] | table[] | false',
   'where type(seq_lens) ~= "table" or #seq_lens == input_ids:size(1) -- seq_lens: expected '
      .. '{input_ids:size(1)} rows, as input_ids has, got {#seq_lens}',
   'where type(seq_lens_padded) ~= "table" or #seq_lens_padded == input_ids:size(1) -- '
      .. 'seq_lens_padded: expected {input_ids:size(1)} rows, as input_ids has, got '
      .. '{#seq_lens_padded}',
   'where seq_lens or not seq_lens_padded -- seq_lens_padded is given: give the real lengths, '
      .. 'seq_lens, too',
})

-- Returns the padding where no lengths are known: tokens equal to the pad id, if they only end
-- rows.
local function guess_mask(op, ids_BS, pad)
   if ids_BS.ndim ~= 2 then return nil end
   local S = ids_BS:size(2)
   local same = ids_BS:eq(pad)
   for b, row in ipairs(ids_BS:tolist()) do
      local tail = S
      while row[tail] == pad do tail = tail - 1 end
      for i = 1, tail do
         err.raise_if(row[i] == pad, 'E_ARG', op, 'padding_token_id %d also occurs as content (row '
            .. '%d, token %d); give seq_lens', pad, b, i - 1)
      end
   end
   return same:flatten(1, 2)
end

local function i32(list, device) return tide.tensor(list, { dtype = 'i32', device = device }) end

-- Returns cu_seqlens and cu_seqlens_padded (nil when the same) as attention libraries take them.
-- may: only padding after the last document belongs to it.
local function absorb(real, slot, T, may)
   local n = #real
   if may and n > 1 then
      local same = true
      for i = 1, n - 1 do same = same and real[i] == slot[i] end
      if same then
         local cu = dims.copy(real)
         cu[n] = T
         return cu, nil
      end
   end
   for i = 1, n do
      if real[i] ~= slot[i] then return real, slot end
   end
   return real, nil
end

-- Returns true where a token of the stream belongs to no document, bool [n].
function thd.padding_mask(cu_real, cu_slot, n)
   local host = { dtype = 'i64', device = 'cpu' }
   local index = tide.slot_index(tide.tensor(cu_slot, host), tide.tensor(cu_real, host), n)
   return index:select(3, 1):select(1, 1):lt(0)
end

-- ---- rows to a stream ------------------------------------------------------------------------

local function put_lengths(out, B, S, lens, slots, o, device)
   local T, real, slot = B * S, cumulate(lens), cumulate(slots)
   local cu, padded = absorb(real, slot, T, o.causal and o.slots)
   out.cu_seqlens, out.max_seqlen = i32(cu, device), 0
   for i = 2, #cu do out.max_seqlen = math.max(out.max_seqlen, cu[i] - cu[i - 1]) end
   out.cu_seqlens_padded = padded and i32(padded, device)
   out.cu_real, out.cu_slot = i32(real, device), i32(slot, device)
   out.gapless = padded == nil
   out.index = tide.slot_index(out.cu_slot, out.cu_real, T)
   out.padding_mask = out.index:select(3, 1):select(1, 1):lt(0)
end

-- Returns the checked lengths and slots of each row (nil if they are unknown), and whether slots
-- were given.
local function lengths_of(op, batch, B, S, sentinel)
   local lens = rows_of(op, batch, 'seq_lens', B, sentinel)
   local slots = rows_of(op, batch, 'seq_lens_padded', B, sentinel)
   if not lens then return nil, nil, false end
   check_lengths(op, lens, slots or lens, S)
   return lens, slots or lens, slots ~= nil
end

-- Returns the fields of a batch in the order of the stream.
local function flatten(batch, B, S, order)
   local out = {}
   for name, v in each(batch) do
      if not consumed[name] then
         local per_token = tide.is_tensor(v) and v.ndim >= 2 and v:size(1) == B and v:size(2) == S
         out[name] = per_token and flat(v, order) or v
      end
   end
   out.input_ids, out.labels = flat(batch.input_ids, order), flat(batch.labels, order)
   out.position_ids = flat_positions(batch.position_ids, B, S, order)
   return out
end

local function process(op, batch, o)
   local ids = batch.input_ids
   local B, S = ids:size(1), ids:size(2)
   local lens, slots, given = lengths_of(op, batch, B, S, o.seq_lens_padding_value)
   local order = slots and order_of(slots, S)
   local out = flatten(batch, B, S, order)
   if lens then
      documents.check_lengths(op, batch, B, S, lens, slots)
      put_lengths(out, B, S, lens, slots,
         { causal = o.causal, slots = given }, ids.device)
      out.order = order and order:to(ids.device)
   else
      local pad = documents.padding(op, batch, B, S, ids.device)
      out.padding_mask = pad and pad:flatten(1, 2) or guess_mask(op, ids, o.padding_token_id)
   end
   return out
end

-- Joins rows that hold several documents into one stream. batch: input_ids [B, S] or embeddings [B,
-- S, H], labels [B, S], position_ids ([B or 1, S], [n, B, S] or false), seq_lens and
-- seq_lens_padded ([B, P] or lists; false if unknown); further tensors [B, S, ...] become [T, ...],
-- the rest passes. attention_mask is left out, and padding_mask and index are replaced: what masks
-- and index say must agree with the lengths (E_ARG). Without lengths a mask says where padding is;
-- without either the tokens equal to padding_token_id are padding, if they only end rows. Returns a
-- new table: input_ids [T, ...], labels [T], position_ids, padding_mask bool [T], cu_seqlens,
-- cu_seqlens_padded (if it differs), cu_real, cu_slot (i32), max_seqlen (a number), gapless, index
-- i32 [1, T, 2] of (document, position). Where a row is not full, what is left of it lies at the
-- end of the stream, and order, i64 [T], says which token of the rows (row * S + place, from 0)
-- each place has; thd.to_rows puts values back.
function thd.process_input_for_thd(batch, opts)
   return process('parallel.thd.process_input_for_thd', batch, opts)
end

-- Returns the values of the tokens of a stream, [T, ...], as rows [B, S, ...] again. stream: the
-- result of process_input_for_thd that has them; B: its rows.
function thd.to_rows(x, stream, B)
   local T, order = x:size(1), stream.order
   if order then x = x:index_select(1, tide.inverse_index(order)) end
   return x:reshape { B, T / B, unpack(x.shape, 2) }
end

-- ---- chunks of rows --------------------------------------------------------------------------

-- Returns the rows first .. first + n - 1 of everything that has B rows.
local function rows_from(batch, first, n, B, S)
   local part = {}
   for name, v in each(batch) do
      if tide.is_tensor(v) then
         local mrope = name == 'position_ids' and v.ndim == 3
         local dim = mrope and 2 or 1
         local has = v.ndim >= 2 and v:size(dim) == B
            and (mrope or name:find '^seq_lens' or v:size(2) == S)
         part[name] = has and v:narrow(dim, first, n) or v
      elseif name:find '^seq_lens' and type(v) == 'table' then
         part[name] = { unpack(v, first, first + n - 1) }
      else
         part[name] = v
      end
   end
   return part
end

-- Makes a stream of each of num_chunks groups of rows (see process_input_for_thd); their tensors
-- are stacked on a new leading dim, lists of cumulative lengths filled up with the sentinel,
-- max_seqlen is a list. `chunks` of the result is the list of streams themselves, which is the
-- better form to use.
function thd.split_batch_into_thd_chunks(batch, num_chunks, opts)
   local op = 'parallel.thd.split_batch_into_thd_chunks'
   if num_chunks <= 1 then return process(op, batch, opts) end
   local B, S = batch.input_ids:size(1), batch.input_ids:size(2)
   lengths_of(op, batch, B, S, opts.seq_lens_padding_value)
   local chunks, n = {}, B / num_chunks
   for i = 1, num_chunks do
      chunks[i] = process(op, rows_from(batch, (i - 1) * n + 1, n, B, S), opts)
   end
   local out = { chunks = chunks }
   for name, v in each(chunks[1]) do
      if not tide.is_tensor(v) then out[name] = v end
   end
   for name, v in each(chunks[1]) do
      if tide.is_tensor(v) and rawequal(v, batch[name]) then
         out[name] = v
      elseif tide.is_tensor(v) and not name:find '^cu_' and name ~= 'order' then
         stack.tensors(out, chunks, { name })
      end
   end
   stack.lengths(out, chunks, opts.seq_lens_padding_value)
   stack.orders(out, chunks)
   local gapless = true
   for _, c in ipairs(chunks) do gapless = gapless and c.gapless ~= false end
   out.gapless = gapless
   return out
end

-- ---- companions ------------------------------------------------------------------------------

-- Returns the number of the document each token belongs to, i32 [1, n]: how many entries of cu
-- after the first are at or below it. n: tokens (default: the last entry); those beyond count as
-- one document more.
function thd.sequence_index(cu, n)
   local op = 'parallel.thd.sequence_index'
   local list = cp_map.cu(op, 'cu', cu)
   n = err.integer(op, 'n', n or list[#list], list[#list])
   local device = tide.is_tensor(cu) and cu.device or nil
   local doc = tide.document_index(tide.tensor(list, { dtype = 'i64', device = device }), n)
      :select(3, 1)
   return doc:masked_fill(doc:lt(0), #list - 1)
end

local of_tokens = { positions = true, position_ids = true } -- their last dims are those of tokens

-- Returns mask in a shape that broadcasts to v. The dims of the mask are the first dims of v, as
-- for embeddings, or its last dims, as for positions [n, B, S]. A size of 1 fits any. Raises
-- E_SHAPE for another tensor, which broadcasting might fill elsewhere.
local function mask_for(op, name, v, mask)
   local shape, n, more = v.shape, mask.ndim, v.ndim - mask.ndim
   local function fits(from)
      local ok = more >= 0
      for d, size in ipairs(mask.shape) do
         ok = ok and (shape[from + d] == size or shape[from + d] == 1 or size == 1)
      end
      return ok
   end
   err.raise_if(not fits(0) and not fits(more), 'E_SHAPE', op, 'fields.%s: expected a value for '
      .. 'each token of the mask [%s], got [%s]', name, table.concat(mask.shape, ', '),
      table.concat(shape, ', '))
   if not fits(0) or of_tokens[name] and fits(more) then return mask end
   local wide = mask.shape
   for d = n + 1, v.ndim do wide[d] = 1 end
   return mask:reshape(wide)
end

-- Returns v with `value` where mask is set, in its own dtype.
local function filled(op, name, v, mask, value)
   if v.dtype == 'bool' and type(value) == 'number' then value = value ~= 0 end
   local y = v:masked_fill(mask_for(op, name, v, mask), value)
   if y.dtype ~= v.dtype then
      err.arg(op, 'fill.' .. name, 'a value that ' .. v.dtype .. ' holds', value)
   end
   return y
end

-- Makes values of padding harmless: tokens 0, labels and loss mask 0, positions 0 (or `fill` of
-- that name). fields: a table of tensors; mask: bool of their shape. Returns a new table.
function thd.sanitize(fields, mask, fill)
   local op, out = 'parallel.thd.sanitize', {}
   fill = fill or {}
   for name, v in each(fields) do
      out[name] = tide.is_tensor(v) and filled(op, name, v, mask, fill[name] or 0) or v
   end
   return out
end

-- ---- collating -------------------------------------------------------------------------------

local function padded_to(list, n, value)
   local out = {}
   for i = 1, n do out[i] = list[i] == nil and value or list[i] end
   return out
end

-- Returns the tokens of row b that its attention_mask marks, which must be its first ones: padding
-- on the left would make others the document.
local function marked(row, b)
   local mask, n, len = row.attention_mask, #row.input_ids, 0
   if not mask then return n end
   local op, name = 'parallel.thd.collate', ('rows[%d].attention_mask'):format(b)
   err.type(op, name, mask, 'table')
   err.arg_if(#mask ~= n, op, name, ('%d entries, one for each token'):format(n), #mask)
   for i, v in ipairs(mask) do
      local is_token = v == 1 or v == true
      err.arg_if(not is_token and v ~= 0 and v ~= false, op, ('%s[%d]'):format(name, i),
         '0 or 1 (rows that number documents have seq_lens)', v)
      if is_token then
         err.raise_if(len ~= i - 1, 'E_ARG', op, "argument '%s': token %d counts after padding; "
            .. 'put the padding after the tokens, or give packed rows (seq_lens)', name, i - 1)
         len = i
      end
   end
   return len
end

-- Returns row b, which was not packed: one document in a slot of n tokens.
local function as_packed(row, b, n, pad)
   local len = marked(row, b)
   local positions = {}
   for i = 1, n do positions[i] = i - 1 end
   return {
      input_ids = padded_to(row.input_ids, n, pad), labels = padded_to(row.labels, n, -100),
      position_ids = positions, seq_lens = { len }, seq_lens_padded = { n },
   }
end

-- Returns rows as a batch of tensors for process_input_for_thd. A row is a table of lists:
-- input_ids, labels; when packed also position_ids, seq_lens and seq_lens_padded; else
-- attention_mask or nothing. No rows: an empty table.
function thd.collate(rows, opts)
   if #rows == 0 then return {} end
   local packed, n, most = rows[1].seq_lens ~= nil, 0, 0
   for _, row in ipairs(rows) do n = math.max(n, #row.input_ids) end
   for i, row in ipairs(rows) do
      signature.check('parallel.thd.collate', ('rows[%d]'):format(i),
         { row = row, first = rows[1] }, 'alike_rows')
   end
   local fields = { input_ids = {}, labels = {}, position_ids = {}, seq_lens = {},
      seq_lens_padded = {} }
   for b, row in ipairs(rows) do
      if not packed then row = as_packed(row, b, n, opts.padding_token_id) end
      for name, list in each(fields) do list[b] = row[name] end
      most = math.max(most, #row.seq_lens, #(row.seq_lens_padded or row.seq_lens))
   end
   local batch = {}
   for name, list in each(fields) do
      if name:find '^seq_lens' then
         for b = 1, #rows do
            list[b] = padded_to(list[b] or fields.seq_lens[b], most, opts.seq_lens_padding_value)
         end
      end
      batch[name] = #list == #rows and tide.tensor(list, { dtype = 'i64' }) or false
   end
   return batch
end

local options = {
   'seq_lens_padding_value: integer < 0 = -1000 -- fills up lists of lengths',
   'padding_token_id: integer = 0',
   'causal: boolean = true -- false: the last document never takes the padding after it',
}
signature.record('list_row', 'a table { input_ids =, labels = } of lists', {
   'input_ids: table', 'labels: table',
   'where #input_ids == #labels -- it has {#input_ids} tokens and {#labels} labels',
})
-- A row of a batch beside the first one.
signature.record('alike_rows', 'rows', {
   'row: table', 'first: table',
   'where (row.seq_lens == nil) == (first.seq_lens == nil) -- one of it and row 1 is packed (has '
      .. 'seq_lens), the other is not',
   'where not row.seq_lens or (row.position_ids == nil) == (first.position_ids == nil) -- one of '
      .. 'it and row 1 has position_ids, the other has none',
   'where not row.seq_lens or #row.input_ids == #first.input_ids -- packed rows must be of one '
      .. 'length: row 1 has {#first.input_ids} tokens, this one {#row.input_ids}',
})
return signature.doors('parallel.thd', thd, {
   padding_mask = 'cu_real: cu; cu_slot: cu; n: integer >= 0',
   process_input_for_thd = { 'batch: rows_batch', opts = options },
   to_rows = { { 'x: tensor [T, ..]', 'stream: table', 'B: integer >= 1',
      'where x:size(1) % B == 0 -- {x:size(1)} tokens of the stream do not make {B} rows',
      'where not stream.order or stream.order:size(1) == x:size(1) -- expected the '
         .. '{stream.order:size(1)} tokens of the stream, got {x:size(1)}' } },
   split_batch_into_thd_chunks = { { 'batch: rows_batch', 'num_chunks: integer = 1',
      'where num_chunks <= 1 or batch.input_ids:size(1) % num_chunks == 0 -- '
         .. '{batch.input_ids:size(1)} rows cannot be split into {num_chunks} chunks' },
      opts = options },
   sanitize = 'fields: table; mask: tensor', collate = { 'rows: list_row[]', opts = options },
})
