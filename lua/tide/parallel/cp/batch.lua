-- Batches for context parallelism: every tensor with a value a token is cut by one plan (layer 8).
--
-- The one idea: a table says for each field which dim counts tokens and what its padding is.
-- A tensor that looks like one value a token and has no row is an error, so nothing is left whole
-- by oversight. Batches are never changed: a new table comes back.
--
-- Legend: B rows of S tokens, W ranks.

local tide = require 'tide'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local cp = require 'tide.parallel.cp'
local cp_map = require 'tide.parallel.cp.map'
local thd = require 'tide.parallel.thd'

local batch_ = {}

-- Names that stand for the tokens themselves; a batch has exactly one.
local primary = { 'input_ids', 'inputs_embeds', 'ids', 'embeds' }

-- dim that counts tokens (from the end: -1 is the last) and the value of padding; 'pad' is
-- padding_token_id, 'next' goes on counting.
batch_.fields = {
   input_ids = { dim = 2, fill = 'pad' }, ids = { dim = 2, fill = 'pad' },
   inputs_embeds = { dim = 2, fill = 0 }, embeds = { dim = 2, fill = 0 },
   labels = { dim = 2, fill = -100 }, loss_mask = { dim = 2, fill = 0 },
   position_ids = { dim = -1, fill = 0 }, positions = { dim = -1, fill = 0 },
   padding_mask = { dim = 2, fill = true }, index = { dim = 2, fill = -1 },
   token_type_ids = { dim = 2, fill = 0 }, mm_token_type_ids = { dim = 2, fill = 0 },
   per_layer_inputs = { dim = 2, fill = 0 }, packed_seq_ids = { dim = 2, fill = 0 },
}
-- Told by the context instead; never handed on.
local masks = { attention_mask = true }

local known = {
   'loss_mask', 'use_te', 'padding_token_id', 'num_chunks', 'seq_lens_padding_value', 'fields',
   'kind', 'method', 'inner', 'outer', 'window', 'causal', 'multiple', 'tp', 'block', 'mask',
}

-- ---- positions -------------------------------------------------------------------------------

-- Gives a batch without position_ids the positions 0 .. S - 1, i64 [1, S]; one that has them stays
-- untouched, since packed rows count anew in each document. Changes and returns the batch.
function batch_.build_position_ids(batch)
   local op = 'parallel.cp.build_position_ids'
   err.type(op, 'batch', batch, 'table')
   if batch.position_ids ~= nil then return batch end
   local ids = batch.input_ids
   if not tide.is_tensor(ids) or ids.ndim ~= 2 then
      err.arg(op, 'input_ids', 'a tensor [B, S]', ids)
   end
   local S = ids:size(2)
   batch.position_ids = tide.arange(S, { dtype = 'i64', device = ids.device }):reshape { 1, S }
   return batch
end

-- The name, tensor, B and S of the tokens.
local function primary_of(op, batch)
   local name
   for _, n in ipairs(primary) do
      if batch[n] ~= nil then
         if name then
            err.raise('E_ARG', op, 'a batch must have exactly one of input_ids and inputs_embeds, '
               .. 'this one has %s and %s', name, n)
         end
         name = n
      end
   end
   if not name then
      err.raise('E_ARG', op, 'a batch must have exactly one of input_ids and inputs_embeds, this '
         .. 'one has neither')
   end
   local t, want = batch[name], name:find 'embeds' and 3 or 2
   if not tide.is_tensor(t) or t.ndim ~= want then
      err.arg(op, name, want == 2 and 'a tensor [B, S]' or 'a tensor [B, S, width]', t)
   end
   return name, t, t:size(1), t:size(2)
end

-- Positions for every row: given ones spread over the rows, three-row ones as they are, else 0 ...
local function with_positions(op, out, name, t, B, S)
   local key = (name == 'ids' or name == 'embeds') and 'positions' or 'position_ids'
   if out.positions ~= nil then key = 'positions' end
   if out.position_ids ~= nil then key = 'position_ids' end
   local p = out[key]
   if p == nil then
      p = tide.arange(S, { dtype = 'i64', device = t.device }):reshape { 1, S }
   elseif not tide.is_tensor(p) or p.ndim < 2 or p.ndim > 3 or p:size(-1) ~= S
      or p:size(p.ndim - 1) ~= B and p:size(p.ndim - 1) ~= 1 then
      err.arg(op, key, ('a tensor [%d or 1, %d] or [n, %d, %d]'):format(B, S, B, S), p)
   end
   if p.ndim == 2 and B > 1 and p:size(1) == 1 then p = p:expand(B, S):contiguous() end
   out[key] = p
end

-- ---- documents as data -----------------------------------------------------------------------

-- (document, position) pairs i32 [B, S, 2] of a mask [B, S] that numbers documents from 1 (0 or
-- false: padding). Positions are those in the row, which orders tokens inside a document as well.
function batch_.document_index_of(mask)
   local op = 'parallel.cp.document_index_of'
   if not tide.is_tensor(mask) or mask.ndim ~= 2 or mask.dtype:find 'f' then
      err.raise('E_UNSUPPORTED', op, 'a mask must be [B, S] of document numbers (1 and 0 for one '
         .. 'document with padding); other masks over ranks are given as documents, window and '
         .. 'causal, got %s', tide.is_tensor(mask) and mask.dtype .. ' of '
         .. mask.ndim .. ' dims' or err.show(mask))
   end
   local B, S = mask:size(1), mask:size(2)
   local doc = mask:to 'i32' - 1
   local pos = tide.arange(S, { dtype = 'i32', device = mask.device }):reshape { 1, S }
      :expand(B, S)
   return tide.stack({ doc:masked_fill(doc:lt(0), -1), pos:contiguous() }, 3)
end

local function check_mask(op, name, m, B, S)
   if m ~= nil and tide.is_tensor(m) and m.ndim == 2 and (m:size(1) ~= B or m:size(2) ~= S) then
      err.arg(op, name, ('a tensor [%d, %d]'):format(B, S), m)
   end
   return m
end

-- What the batch says about documents; nil: each row is one document without padding.
local function index_of(op, batch, B, S)
   local index = batch.index
   local mask = batch.packed_seq_ids
   if mask == nil then mask = batch.attention_mask end
   if index == nil and mask ~= nil then
      index = batch_.document_index_of(check_mask(op, 'attention_mask', mask, B, S))
   end
   if index ~= nil and not tide.is_tensor(index) then
      err.arg(op, 'index', ('i32 [rows or 1, %d, 2] of (document, position)'):format(S), index)
   end
   local pad = check_mask(op, 'padding_mask', batch.padding_mask, B, S)
   if pad == nil then return index end
   if not tide.is_tensor(pad) or pad.ndim ~= 2 then
      err.arg(op, 'padding_mask', ('a tensor [%d, %d], true at padding'):format(B, S), pad)
   end
   if index == nil then
      index = batch_.document_index_of(tide.ones({ B, S }, { dtype = 'i32', device = pad.device }))
   end
   return index:masked_fill(pad:to 'bool':unsqueeze(3), -1)
end

-- ---- cutting ---------------------------------------------------------------------------------

local function field_of(op, fields, name, v, B, S)
   local row = fields and fields[name]
   if row == nil then row = batch_.fields[name] end
   if row == false or not tide.is_tensor(v) then return nil end
   if row then
      local dim = row.dim or 2
      if math.abs(dim) > v.ndim or v:size(dim) ~= S then
         err.raise('E_ARG', op, "field '%s': expected %d tokens in dim %d", name, S, dim)
      end
      return row
   end
   if v.ndim >= 2 and v:size(2) == S and (v:size(1) == B or v:size(1) == 1) then
      err.raise('E_ARG', op, "'%s' looks like a value for each token, and no row says how to cut "
         .. "it; give fields = { %s = { dim = 2, fill = 0 } }, or false to leave it whole", name,
         name)
   end
end

-- Values that go on behind the last one, for padding at the end.
local function counted_on(plan, v, dim)
   local n = plan.padded - plan.length
   if n == 0 or plan.length == 0 or plan.from then return plan:shard(v, dim, 0) end
   local shape = {}
   for d = 1, v.ndim do shape[d] = d == dim and n or 1 end
   local more = (tide.arange(n, { dtype = v.dtype, device = v.device }) + 1):reshape(shape)
   local whole = tide.cat({ v, v:narrow(dim, -1, 1) + more }, dim)
   return whole:index_select(dim, plan:index('i64', v.device))
end

local function cut(plan, v, row, pad)
   local dim = row.dim or 2
   if dim < 0 then dim = dim + v.ndim + 1 end
   if row.fill == 'next' then return counted_on(plan, v, dim) end
   return plan:shard(v, dim, row.fill == 'pad' and pad or row.fill)
end

-- A new table in which every field with a value a token is this rank's part.
local function cut_all(op, plan, batch, fields, pad, B, S)
   local out = {}
   for name, v in each(batch) do
      if not masks[name] then
         local row = field_of(op, fields, name, v, B, S)
         out[name] = row and cut(plan, v, row, pad) or v
      end
   end
   return out
end

local function copy_of(batch)
   local out = {}
   for k, v in each(batch) do out[k] = v end
   return out
end

-- Documents of a batch of one row; their lists go on in the plan, not in the batch.
local function documents_of(op, batch, B)
   if batch.cu_real == nil and batch.cu_slot == nil then return nil, nil end
   if B ~= 1 then
      err.raise('E_ARG', op, 'cu_real and cu_slot tell of one row, the batch has %d; give index or '
         .. 'packed_seq_ids', B)
   end
   return batch.cu_real, batch.cu_slot or batch.cu_real
end

-- ---- a step's batch --------------------------------------------------------------------------

local function check_options(op, opts)
   opts = err.options(op, opts, known)
   local fields = err.type(op, 'fields', opts.fields or {}, 'table')
   for name, row in each(fields) do
      if row ~= false then
         err.type(op, 'fields.' .. tostring(name), row, 'table')
         err.options(op, row, { 'dim', 'fill' })
         if row.fill == nil then
            err.arg(op, ('fields.%s.fill'):format(name), 'a value for padding', row.fill)
         end
      end
   end
   return opts, err.integer(op, 'padding_token_id', opts.padding_token_id or 0)
end

local tells = { 'index', 'packed_seq_ids', 'attention_mask', 'padding_mask', 'cu_real', 'cu_slot' }

-- Whether the rows of a batch are whole documents without padding, seen as the layers have it: on
-- one rank there is nothing to do then.
local function is_plain(batch, opts)
   for _, name in ipairs(tells) do
      if batch[name] ~= nil then return false end
   end
   return opts.loss_mask == nil and opts.window == nil and opts.causal ~= false
end

local function generic(op, axis, batch, opts, pad)
   local out = copy_of(batch)
   local name, t, B, S = primary_of(op, out)
   if out.labels == nil then err.arg(op, 'labels', 'a tensor [B, S]', nil) end
   if opts.loss_mask ~= nil then out.loss_mask = opts.loss_mask end
   local real, slot = documents_of(op, out, B)
   local index = index_of(op, out, B, S)
   with_positions(op, out, name, t, B, S)
   local plan = cp_map.new { kind = opts.kind or 'zigzag', axis = axis, length = S,
      cu_real = real, cu_slot = slot, multiple = opts.multiple, tp = opts.tp, block = opts.block,
      mask = opts.mask }
   local context = cp.context { map = plan, method = opts.method, inner = opts.inner,
      outer = opts.outer, window = opts.window, causal = opts.causal, index = index }
   out = cut_all(op, plan, out, opts.fields, pad, B, S)
   out.cu_real, out.cu_slot = nil, nil
   return context, out
end

-- The context of a step and this rank's part of its batch. mesh: a mesh with an axis 'cp', the
-- axis itself, or nil. batch: input_ids [B, S] (or ids) or inputs_embeds [B, S, H] (or embeds),
-- labels, and what else there is for each token; documents as index [B or 1, S, 2],
-- packed_seq_ids [B, S], cu_real and cu_slot (one row), or a mask [B, S] (attention_mask;
-- padding_mask: true at padding).
-- Without context parallelism: the same, with a context of one rank, which models take without
-- being attached; cp.null and the very same batch where each row is one document, seen as the
-- layers have it. A batch with make_cp_batch_fn (or _cp_make_batch_fn) is cut by that function:
-- fn(cp_axis, tp_axis, batch, { loss_mask, padding_token_id }) returns what this does.
-- opts: loss_mask, padding_token_id (0), use_te (packed stream, see make_cp_batch_for_te),
-- num_chunks, seq_lens_padding_value, fields ({ name = { dim =, fill = } | false }), kind
-- ('zigzag'), method ('ring'), inner, outer, window, causal, multiple, tp, block, mask.
function batch_.make_cp_batch_and_ctx(mesh, batch, opts)
   local op = 'parallel.cp.make_cp_batch_and_ctx'
   err.type(op, 'batch', batch, 'table')
   local pad
   opts, pad = check_options(op, opts)
   local axis, tp = cp.axis_of(op, mesh, 'cp'), cp.axis_of(op, mesh, 'tp')
   local own = batch.make_cp_batch_fn or batch._cp_make_batch_fn
   if own then
      err.type(op, 'make_cp_batch_fn', own, 'function')
      local rest = copy_of(batch)
      rest.make_cp_batch_fn, rest._cp_make_batch_fn = nil, nil
      return own(axis, tp, rest, { loss_mask = opts.loss_mask, padding_token_id = pad })
   end
   if opts.use_te then
      local out = batch_.make_cp_batch_for_te(axis, batch, { padding_token_id = pad,
         num_chunks = opts.num_chunks, seq_lens_padding_value = opts.seq_lens_padding_value,
         method = opts.method, fields = opts.fields })
      return out.context or cp.null, out
   end
   if (not axis or axis.size <= 1) and is_plain(batch, opts) then return cp.null, batch end
   return generic(op, axis, batch, opts, pad)
end

-- A make_cp_batch_fn for models that want contiguous shards: padded to W * max(pad_multiple, 2),
-- positions go on counting in padding, documents numbered in packed_seq_ids (made from padding_mask
-- if there are none). opts: pad_multiple (1), method ('allgather'), fields.
function batch_.contiguous_batch(opts)
   local op = 'parallel.cp.contiguous_batch'
   opts = err.options(op, opts, { 'pad_multiple', 'method', 'fields' })
   local multiple = math.max(err.integer(op, 'pad_multiple', opts.pad_multiple or 1, 1), 2)
   return function(axis, _, batch, more)
      local out = copy_of(batch)
      local name, t, B, S = primary_of(op, out)
      if out.labels == nil then err.arg(op, 'labels', 'a tensor [B, S]', nil) end
      if more and more.loss_mask ~= nil then out.loss_mask = more.loss_mask end
      with_positions(op, out, name, t, B, S)
      if out.packed_seq_ids == nil then
         local ids = tide.ones({ B, S }, { dtype = 'i64', device = t.device })
         local mask = out.padding_mask
         out.packed_seq_ids = mask and ids:masked_fill(mask:to 'bool', 0) or ids
      end
      local index = index_of(op, out, B, S)
      axis = axis or { size = 1, rank = 0 }
      local plan = cp_map.new { kind = 'contiguous', axis = axis, length = S,
         multiple = axis.size * multiple }
      local fields = { position_ids = { dim = -1, fill = 'next' },
         positions = { dim = -1, fill = 'next' } }
      for k, row in each(opts.fields or {}) do fields[k] = row end
      local context = cp.context { map = plan, method = opts.method or 'allgather', index = index }
      return context, cut_all(op, plan, out, fields, more and more.padding_token_id or 0, B, S)
   end
end

-- ---- packed streams --------------------------------------------------------------------------

local stream_fields = {
   input_ids = 'pad', labels = -100, position_ids = 0, padding_mask = true, loss_mask = 0,
}
local told = {
   cu_seqlens = true, cu_seqlens_padded = true, cu_real = true, cu_slot = true, index = true,
   max_seqlen = true, gapless = true, padding_mask = true, attention_mask = true,
}

-- Cumulative lengths without sentinels.
local function lengths_of(op, name, v, sentinel)
   if tide.is_tensor(v) then v = v:tolist() end
   local out, ended = {}, false
   for i, n in ipairs(err.type(op, name, v, 'table')) do
      if n == sentinel then
         ended = true
      elseif ended then
         err.raise('E_ARG', op, "argument '%s': entry %d is %s, behind an entry of padding (%d)",
            name, i, err.show(n), sentinel)
      else
         out[i] = n
      end
   end
   return cp_map.cu(op, name, out)
end

local function stream_documents(op, batch, sentinel)
   if batch.cu_real ~= nil and batch.cu_slot ~= nil then
      return lengths_of(op, 'cu_real', batch.cu_real, sentinel),
         lengths_of(op, 'cu_slot', batch.cu_slot, sentinel)
   end
   if not batch.cu_seqlens then
      err.raise('E_ARG', op, 'cu_seqlens is missing: the batch is not packed (BSHD format is not '
         .. 'supported here)')
   end
   local real = lengths_of(op, 'cu_seqlens', batch.cu_seqlens, sentinel)
   if batch.cu_seqlens_padded == nil then return real, real end
   return real, lengths_of(op, 'cu_seqlens_padded', batch.cu_seqlens_padded, sentinel)
end

local function i32(list) return tide.tensor(list, { dtype = 'i32' }) end

local function put_documents(out, plan, device)
   local per, most = {}, 0
   for i, n in ipairs(plan.cu_slot) do
      per[i] = n / plan.size
      if i > 1 then most = math.max(most, n - plan.cu_slot[i - 1]) end
   end
   out.cu_seqlens, out.cu_slot, out.cu_real = i32(plan.cu_slot), i32(plan.cu_slot),
      i32(plan.cu_real)
   out.cu_local, out.max_seqlen = i32(per), most
   out.cp_size, out.cp_rank, out.qkv_format = plan.size, plan.rank, 'thd'
   out.index = plan:document_index(device)
   out.padding_mask = out.index:select(3, 1):select(1, 1):lt(0)
end

-- Published code says it so.
local function check_format(op, format)
   if format ~= nil and not err.same(format, 'thd') then
      err.raise('E_ARG', op, "currently only 'thd' format is supported, got %s", err.show(format))
   end
end

local te_options = { 'padding_token_id', 'num_chunks', 'seq_lens_padding_value', 'qkv_format',
   'method', 'fields' }

-- This rank's part of a packed stream (a result of process_input_for_thd), every document cut
-- head-tail; slots are padded inside the plan where they do not divide by 2 W. Returns a new table:
-- the tokens, labels, positions, cu_seqlens = cu_slot (slots, all ranks' tokens), cu_real, cu_local
-- (this rank's), max_seqlen (longest slot), padding_mask and index from the layout, cp_size,
-- cp_rank, qkv_format, and the context.
-- opts: padding_token_id (0), seq_lens_padding_value (-1000), qkv_format ('thd'), method, fields
-- ({ name = { fill = } | false } for further tensors with a value a token).
function batch_.shard_thd_chunk(batch, axis, opts)
   local op = 'parallel.cp.shard_thd_chunk'
   opts = err.options(op, opts, te_options)
   err.type(op, 'batch', batch, 'table')
   check_format(op, opts.qkv_format)
   local ids = batch.input_ids
   if not tide.is_tensor(ids) then err.arg(op, 'input_ids', 'a tensor [T, ...]', ids) end
   local T, pad = ids:size(1), opts.padding_token_id or 0
   local real, slot = stream_documents(op, batch, opts.seq_lens_padding_value or -1000)
   local plan = cp_map.new { kind = 'document', axis = axis or nil, length = T, cu_real = real,
      cu_slot = slot }
   local out = {}
   for name, v in each(batch) do
      local row = opts.fields and opts.fields[name]
      local fill = row and row.fill
      if fill == nil then fill = stream_fields[name] end
      if fill == 'pad' then fill = ids.ndim == 1 and pad or 0 end
      local per_token = not told[name] and tide.is_tensor(v) and fill ~= nil
      if per_token then
         out[name] = plan:shard(v, name == 'position_ids' and -1 or 1, fill)
      elseif not told[name] and row ~= false and tide.is_tensor(v) and v.ndim >= 1
         and v:size(1) == T then
         err.raise('E_ARG', op, "'%s' looks like a value for each token; give fields = { %s = { "
            .. 'fill = 0 } }, or false to leave it whole', name, name)
      elseif not told[name] then
         out[name] = v
      end
   end
   put_documents(out, plan, ids.device)
   out.context = cp.context { map = plan, method = opts.method }
   return out
end

-- The context of a stream that one rank has whole.
local function whole_stream(op, stream, opts)
   local real, slot = stream_documents(op, stream, opts.seq_lens_padding_value or -1000)
   return cp.context { method = opts.method, map = cp_map.new { kind = 'document',
      length = stream.input_ids:size(1), cu_real = real, cu_slot = slot } }
end

local stacked = { 'input_ids', 'labels', 'position_ids', 'padding_mask' }

-- Rows with several documents (see process_input_for_thd) as a packed stream, this rank's part of
-- it. axis: of a mesh, or the mesh; nil or of one rank: the whole stream. num_chunks > 1: groups of
-- rows as streams of their own, in `chunks`; their tensors are stacked where they are of one size.
-- Each stream has its context. Options as shard_thd_chunk.
function batch_.make_cp_batch_for_te(axis, batch, opts)
   local op = 'parallel.cp.make_cp_batch_for_te'
   opts = err.options(op, opts, te_options)
   check_format(op, opts.qkv_format)
   axis = cp.axis_of(op, axis, 'cp')
   local n = opts.num_chunks or 1
   local packed = thd.split_batch_into_thd_chunks(batch, n, {
      padding_token_id = opts.padding_token_id,
      seq_lens_padding_value = opts.seq_lens_padding_value,
   })
   if not axis or axis.size <= 1 then
      packed.qkv_format = 'thd'
      for _, stream in ipairs(packed.chunks or { packed }) do
         stream.context = whole_stream(op, stream, opts)
      end
      return packed
   end
   if n <= 1 then return batch_.shard_thd_chunk(packed, axis, opts) end
   local out, even = { chunks = {}, cp_size = axis.size, cp_rank = axis.rank, qkv_format = 'thd' },
      true
   for i, chunk in ipairs(packed.chunks) do
      out.chunks[i] = batch_.shard_thd_chunk(chunk, axis, opts)
      even = even and out.chunks[i].input_ids:size(1) == out.chunks[1].input_ids:size(1)
   end
   for _, name in ipairs(even and stacked or {}) do
      local list = {}
      for i, chunk in ipairs(out.chunks) do list[i] = chunk[name] end
      if #list == n then out[name] = tide.stack(list, 1) end
   end
   return out
end

return batch_
